"""Words are readable on every colour that a page or a picture puts behind them (WCAG 2.1, AA)."""

from __future__ import annotations

import pytest

from archgraph.display import colours
from archgraph.viewer.show import SCALES

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
    steps = [colours.blend(scale, i / 50) for scale in SCALES.values() for i in range(51)]
    assert min(contrast(TINTED, c) for c in (*steps, *colours.FAMILIES.values())) >= 4.5


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("words", [colours.INK, colours.QUIET])
def test_words_on_paper_sections_and_blocks(words, dark):
    def shown(colour):
        return colours.DARK[colour] if dark else colour

    behind = (colours.PAPER, colours.SECTION, colours.BLOCK)
    assert min(contrast(shown(words), shown(one)) for one in behind) >= 4.5
