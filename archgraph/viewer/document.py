"""The HTML file of a page: data, script and styles in one text that loads nothing.

Data and script are compressed and base64-encoded, so that no name in a graph can end their HTML
element. The script sets text, never markup. A content security policy forbids all requests, and all
scripts except the script of the page and the few lines that unpack it.

The layout code (``page/layout.js``) is 9 kB; the library dagre would be 49 kB. Encoders and
decoders are laid out in columns, both from top to bottom.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from archgraph.display import colours
from archgraph.display.style import SHARED
from archgraph.plain import Json

FOLDER = Path(__file__).parent / "page"
# A module follows the modules that it uses.
SCRIPTS = (
    "model layout canvas minimap panel compare overlays submodel trace rounds export main".split()
)


@cache
def script() -> str:
    """Return the script of the page, with all modules in one function."""
    parts = [(FOLDER / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    return '(function () {\n"use strict";\n' + "\n".join(parts) + "\n})();\n"


@cache
def style() -> str:
    """Return the style sheet of the page, with the colours of both the light and dark theme."""
    # Dark if the browser prefers it, but not in print.
    return SHARED + colours.themed((FOLDER / "page.css").read_text(encoding="utf-8"))


def document(title: str, data: Mapping[str, Json]) -> str:
    """Return the HTML text of a page.

    >>> text = document("</title><script>", {"graphs": []})
    >>> text.count("<script"), "&lt;/title&gt;" in text
    (3, True)
    """
    start = (FOLDER / "start.js").read_text(encoding="utf-8")
    digests = (hashlib.sha256(text.encode()).digest() for text in (start, script()))
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    # Forbid requests and all scripts except these two.
    policy = f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:"
    body = (FOLDER / "body.html").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,"><title>{html.escape(title)}</title>\n'
        f"<style>{style()}</style></head>\n<body>\n{body}"
        f'<script type="application/gzip" id="data">{encode_data(data)}</script>\n'
        f'<script type="application/gzip" id="script">{_packed(script())}</script>\n'
        f"<script>{start}</script>\n</body></html>\n"
    )


def encode_data(data: Mapping[str, Json]) -> str:
    """Encode data as text that a page can contain.

    >>> decode_data(f'<script type="application/gzip" id="data">{encode_data({"a": 1})}</script>')
    {'a': 1}
    """
    return _packed(json.dumps(data, ensure_ascii=False, separators=(",", ":")))


def _packed(text: str) -> str:
    # Base64 does not contain `<`. Without a timestamp, equal data give an equal page.
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def decode_data(page: str) -> Json:
    """Return the data that :func:`encode_data` stored in a page."""
    text = page.split('id="data">', 1)[1].split("<", 1)[0]
    return json.loads(gzip.decompress(base64.b64decode(text)))
