"""Words and borders stand out from every colour that may be behind them (WCAG 2.1, AA)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from archgraph.display import colours

# Words on tinted boxes, the same on a dark page.
TINTED = "#1e2832"


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_words_on_every_overlay():
    steps = [colours.blend(colours.SCALE, i / 50) for i in range(51)]
    assert min(contrast(TINTED, c) for c in (*steps, *colours.FAMILIES.values())) >= 4.5


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("words", [colours.INK, colours.QUIET])
def test_words_on_paper_sections_and_blocks(words, dark):
    def shown(colour):
        return colours.DARK[colour] if dark else colour

    behind = (colours.PAPER, colours.SECTION, colours.BLOCK)
    assert min(contrast(shown(words), shown(one)) for one in behind) >= 4.5


def test_words_and_borders_on_every_fill_of_a_picture():
    fills = [colours.blend(colours.SCALE, i / 100) for i in range(101)]
    filled = (*fills, colours.INPUT, colours.OUTPUT, *colours.FAMILIES.values())
    assert min(contrast(colours.INK, fill) for fill in filled) >= 4.5
    assert min(contrast(colours.EDGE, fill) for fill in filled) >= 3


# Linear RGB as eyes without one kind of cone see it. Source: Machado and others, 2009.
SEEN = {
    "all": [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
    "red": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "green": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "blue": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
# Linear RGB to OKLab. Source: Ottosson, A perceptual color space for image processing, 2020.
CONES = [[0.412, 0.536, 0.051], [0.212, 0.681, 0.107], [0.088, 0.282, 0.630]]
OPPONENTS = [[0.210, 0.794, -0.004], [1.978, -2.429, 0.451], [0.026, 0.783, -0.809]]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("eyes", SEEN)
def test_ten_series_differ_for_all_eyes(eyes, dark):
    assert len(colours.SERIES) >= 10
    shown = [colours.DARK.get(one, one) if dark else one for one in colours.SERIES]
    paper = colours.DARK[colours.PAPER] if dark else colours.PAPER
    assert min(contrast(paper, one) for one in shown) > 2.2
    rgb = np.array([[int(one[i : i + 2], 16) / 255 for i in (1, 3, 5)] for one in shown])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    cones = np.cbrt(np.clip(linear @ np.transpose(SEEN[eyes]), 0, 1) @ np.transpose(CONES))
    places = 100 * cones @ np.transpose(OPPONENTS)
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(places, 2)) > 7
