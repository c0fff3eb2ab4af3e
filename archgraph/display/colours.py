"""Colours of pictures, plots and pages, distinguishable with every kind of colour vision.

The hues are those of Okabe and Ito (Color Universal Design, 2008). Blue differs from orange and
vermilion in lightness and along the blue–yellow axis, which red–green blindness does not affect.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

INK = "#1f2933"
QUIET = "#5b6672"
LINE = "#7f8a96"
# The border of boxes of all colours.
EDGE = "#3d4852"
PAPER = "#ffffff"
SECTION = "#f4f6f8"
BLOCK = "#e6eaee"
INPUT = "#d5efe6"
OUTPUT = "#e9e0f3"

# Colours of the lines of a plot, in order.
SERIES = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000",
    # Three more colours. All ten differ on light and dark pages, with every kind of colour vision.
    "#882255", "#332288", "#8c564b",
)  # fmt: skip

# Colour scale for numbers, from 0 to the largest number. Dark text is readable on each colour.
SCALE = ("#ffffff", "#d3e4f1", "#9cc4e2", "#6ba6d3", "#549bcd")

# Colours of the families of operators, light enough for dark text. Families that are neighbours in
# networks (convolution and norm, linear and attention) also differ in lightness.
FAMILIES = {
    "attention": "#ecb9d3",
    "convolution": "#a6cfea",
    "linear": "#f5ca96",
    "recurrent": "#d3b595",
    "embedding": "#f7ea9f",
    "norm": "#dcf1e7",
    "pooling": "#8ed1bb",
    "join": "#dde1e6",
    "activation": "#fce3d6",
}

# Colours that replace these on a dark page.
DARK = {
    INK: "#e4e7eb",
    QUIET: "#9aa5b1",
    LINE: "#717e8c",
    PAPER: "#14181d",
    SECTION: "#1f262d",
    BLOCK: "#323a43",
    "#0072b2": "#4c8dff",
    "#d55e00": "#e95018",
    "#009e73": "#309850",
    "#000000": "#ffffff",
    "#882255": "#b22c8b",
    "#332288": "#784cbf",
}


def themed(text: str) -> str:
    """Replace the colours in CSS or SVG by variables, which have other values on a dark page.

    >>> themed("fill: #1f2933; stroke: #123456")
    'fill: var(--c1f2933); stroke: #123456'
    """
    return re.sub("|".join(DARK), lambda match: f"var(--c{match[0][1:]})", text)


def variables(dark: bool) -> str:
    """Return CSS that declares the variables of :func:`themed`."""
    return " ".join(f"--c{k[1:]}: {v if dark else k};" for k, v in DARK.items())


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def blend(colours: Sequence[str], share: float) -> str:
    """Return the colour at a position on a colour scale, from 0 to 1.

    >>> blend(("#000000", "#ffffff"), 0.5), blend(("#000000", "#ffffff"), 7.0)
    ('#808080', '#ffffff')
    """
    position = min(max(share, 0.0), 1.0) * (len(colours) - 1)
    index = min(int(position), len(colours) - 2)
    low, high = _channels(colours[index]), _channels(colours[index + 1])
    mixed = (round(a + (b - a) * (position - index)) for a, b in zip(low, high, strict=True))
    return "#" + "".join(f"{value:02x}" for value in mixed)
