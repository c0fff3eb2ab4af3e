"""What a notebook shows of a value: a page in a frame, with a picture where scripts are off.

What draws a value stands in rooms above it. They are named here and imported when a notebook asks,
so that the rooms below know nothing of them.
"""

from __future__ import annotations

import base64
import html
import pkgutil
from collections.abc import Iterable
from typing import Any

DRAWN_BY = {
    "picture": "archgraph.display.picture:notebook",
    "page": "archgraph.viewer.notebook:notebook_page",
    "run": "archgraph.viewer.notebook:run_page",
    "models": "archgraph.viewer.notebook:models_page",
}
# Operators of the largest graphs that a notebook shows without being asked.
MOST = 2000
HEIGHT = 560
# The frame appears, and the picture goes, where scripts run: in a notebook that is not trusted,
# and on sites that show notebooks, frames are left out and the picture stays.
_APPEAR = "this.style.display='block';this.nextElementSibling.remove()"


def page_text(kind: str, *values: Any) -> str | None:
    """Return the picture or the page of a value as text; None if it is too large for one."""
    text: str | None = pkgutil.resolve_name(DRAWN_BY[kind])(*values)
    return text


def framed(page: str | None, static: str, title: str, height: int = HEIGHT) -> str:
    """Return a page in a frame as HTML; where scripts are off, what stands for it.

    Args:
        page: A whole page. Default: there is none, and what stands for it is all.
        static: HTML without scripts.
        title: What the frame is called.
        height: Of the frame, in pixels.

    Example:
        >>> framed("<p>page</p>", "<img>", "a page").count("<iframe"), framed(None, "<img>", "")
        (1, '<img>')
    """
    if page is None:
        return static
    # No same origin: the page reaches nothing of the notebook.
    return (
        f'<iframe title="{html.escape(title)}" onload="{_APPEAR}" allow="fullscreen" '
        'sandbox="allow-scripts allow-downloads" style="display: none; width: 100%; '
        f'height: {height}px; border: 1px solid #9aa5b1; border-radius: 6px; background: Canvas" '
        f'srcdoc="{html.escape(page)}"></iframe><div>{static}</div>'
    )


def embedded_svg(svg: str) -> str:
    """Return a picture as an HTML element, which sites that show notebooks leave in."""
    source = base64.b64encode(svg.encode()).decode()
    style = 'style="max-width: 100%; background: #ffffff"'
    return f'<img alt="the network" {style} src="data:image/svg+xml;base64,{source}">'


def preformatted(title: str, lines: Iterable[str]) -> str:
    """Return lines of text as HTML.

    >>> preformatted("a", ["b < c"])
    '<p><b>a</b></p><pre>b &lt; c</pre>'
    """
    return f"<p><b>{html.escape(title)}</b></p><pre>{html.escape(chr(10).join(lines))}</pre>"
