"""Pictures and words for graphs and runs; nothing here changes either.

Names are imported on first use: a table of a graph needs no Graphviz, and `matplotlib` takes long.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from archgraph.view.cover import coverage
    from archgraph.view.gallery import draw_family
    from archgraph.view.inspect import diff, explain, summary
    from archgraph.view.page import report
    from archgraph.view.picture import draw, render
    from archgraph.view.plots import compare, curves
    from archgraph.view.published import figures, figures_table
    from archgraph.view.runs import read_run

# No submodule has the name of an exported function: it would hide it.
_HOME = {
    "compare": "plots",
    "coverage": "cover",
    "curves": "plots",
    "diff": "inspect",
    "draw": "picture",
    "draw_family": "gallery",
    "explain": "inspect",
    "figures": "published",
    "figures_table": "published",
    "read_run": "runs",
    "render": "picture",
    "report": "page",
    "summary": "inspect",
}

__all__ = [
    "compare",
    "coverage",
    "curves",
    "diff",
    "draw",
    "draw_family",
    "explain",
    "figures",
    "figures_table",
    "read_run",
    "render",
    "report",
    "summary",
]


def __getattr__(name: str) -> object:
    """Import an exported name from the module that defines it."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
