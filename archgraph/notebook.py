"""HTML that a notebook shows for a value: an interactive page, or a picture without scripts.

The packages that draw values import this module. It therefore lists their functions by name, and
imports a function only when a notebook displays a value.
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
# Maximum number of operators of a graph that notebooks show automatically.
MOST = 2000
HEIGHT = 560
# If scripts run, the iframe appears and the picture is removed. In an untrusted notebook, and on
# sites that display notebooks, iframes are removed and the picture remains.
_APPEAR = "this.style.display='block';this.nextElementSibling.remove()"


def page_text(kind: str, *values: Any) -> str | None:
    """Return a picture or page that shows a value, as text; None if the value is too large."""
    text: str | None = pkgutil.resolve_name(DRAWN_BY[kind])(*values)
    return text


def framed(page: str | None, static: str, title: str, height: int = HEIGHT) -> str:
    """Return HTML that shows a page in an iframe, or static HTML if scripts are disabled.

    Args:
        page: A complete page. If None, only the static HTML is returned.
        static: HTML without scripts.
        title: Title of the iframe.
        height: Height of the iframe in pixels.

    Example:
        >>> framed("<p>page</p>", "<img>", "a page").count("<iframe"), framed(None, "<img>", "")
        (1, '<img>')
    """
    if page is None:
        return static
    # Without same-origin permission: the page cannot access the notebook.
    return (
        f'<iframe title="{html.escape(title)}" onload="{_APPEAR}" allow="fullscreen" '
        'sandbox="allow-scripts allow-downloads" style="display: none; width: 100%; '
        f'height: {height}px; border: 1px solid #9aa5b1; border-radius: 6px; background: Canvas" '
        f'srcdoc="{html.escape(page)}"></iframe><div>{static}</div>'
    )


def embedded_svg(svg: str) -> str:
    """Return an SVG picture as an `<img>` element, because sites that show notebooks keep it."""
    source = base64.b64encode(svg.encode()).decode()
    style = 'style="max-width: 100%; background: #ffffff"'
    return f'<img alt="the network" {style} src="data:image/svg+xml;base64,{source}">'


def preformatted(title: str, lines: Iterable[str]) -> str:
    """Return lines of text as preformatted HTML with a title.

    >>> preformatted("a", ["b < c"])
    '<p><b>a</b></p><pre>b &lt; c</pre>'
    """
    return f"<p><b>{html.escape(title)}</b></p><pre>{html.escape(chr(10).join(lines))}</pre>"
