"""The parts of pages: sections, pictures, architectures; a page is one file that loads nothing."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator

from archgraph.display import colours
from archgraph.display.style import STYLE
from archgraph.reports.charts import Picture
from archgraph.reports.sheets import Sheet, download
from archgraph.tables import plural

# Rows of a table that is not folded.
FEW = 12


def closed_page(title: str, body: Iterable[str], *, reload: int = 0) -> str:
    """Return a whole page in the house's style that runs no script of its own and loads nothing.

    Args:
        title: Of the page.
        body: HTML, one part below the other.
        reload: Seconds after which it reloads itself; 0: never.
    """
    text = "\n".join(body)
    # A frame's document inherits this policy, so it names the viewer's scripts.
    listed = re.findall(r"script-src ((?:&#x27;sha256-[\w+/=]+&#x27; ?)+)", text)
    viewers = sorted({digest for policy in listed for digest in policy.split()})
    scripts = f"script-src {html.unescape(' '.join(viewers))}; " if viewers else ""
    policy = f"default-src 'none'; {scripts}style-src 'unsafe-inline'; img-src data:"
    refresh = f'<meta http-equiv="refresh" content="{reload}">\n' if reload else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n{refresh}'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style></head>\n<body><main>\n"
        f"{text}\n</main></body></html>\n"
    )


def definition_list(pairs: Iterable[tuple[str, str]]) -> str:
    """Write facts with their names, in columns as wide as there is room."""
    rows = (
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd></div>"
        for name, text in pairs
    )
    return f"<dl>{''.join(rows)}</dl>"


def section(title: str, inside: str) -> Iterator[str]:
    """Yield a part of the page, if there is anything in it."""
    if inside:
        yield f"<h2>{title}</h2>"
        yield inside


def expandable(sheet: Sheet, noun: str) -> str:
    """Return a table that is folded where it is long; empty without rows."""
    many = len(sheet.rows)
    opened = " open" if many <= FEW else ""
    inside = f"<summary>{plural(many, noun)}</summary>{sheet.html()}"
    return f"<details{opened}>{inside}</details>" if many else ""


def embedded(picture: Picture) -> str:
    """Embed a picture in the page, in the colours of the page, and as a file to save."""
    svg = picture.svg()
    file = re.sub(r"[^a-z0-9]+", "_", picture.name.lower()).strip("_")
    link = download(file, svg, "svg", "SVG")
    caption = f'<figcaption class="file">{link}</figcaption>'
    return f'<figure class="picture">{colours.themed(svg)}{caption}</figure>'


def viewer_frame(viewer: str) -> str:
    """Embed the viewer: it runs its own script and reaches nothing of this page."""
    rights = 'sandbox="allow-scripts allow-downloads"'
    source = html.escape(viewer)
    return f'<iframe class="viewer" title="Architectures" {rights} srcdoc="{source}"></iframe>'
