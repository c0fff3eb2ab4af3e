"""Parts of pages: sections, charts, architectures. A page is one file that loads no other files."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator

from archgraph.display import colours
from archgraph.display.style import STYLE
from archgraph.reports.charts import Picture
from archgraph.reports.sheets import Sheet, download
from archgraph.tables import plural

# Maximum number of rows of a table that is expanded.
FEW = 12


def closed_page(title: str, body: Iterable[str], *, reload: int = 0) -> str:
    """Return a complete page, which runs no scripts of its own and loads no other files.

    Args:
        title: Title of the page.
        body: HTML of its parts, from top to bottom.
        reload: Seconds after which the page reloads itself; 0 for never.
    """
    text = "\n".join(body)
    # A frame's document inherits this policy, so the policy lists the viewer's scripts.
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
    """Return a list of names and facts, in as many columns as fit."""
    rows = (
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd></div>"
        for name, text in pairs
    )
    return f"<dl>{''.join(rows)}</dl>"


def section(title: str, inside: str) -> Iterator[str]:
    """Yield a heading and its content; nothing if the content is empty."""
    if inside:
        yield f"<h2>{title}</h2>"
        yield inside


def expandable(sheet: Sheet, noun: str) -> str:
    """Return a table that is collapsed if it is long; empty without rows."""
    many = len(sheet.rows)
    opened = " open" if many <= FEW else ""
    inside = f"<summary>{plural(many, noun)}</summary>{sheet.html()}"
    return f"<details{opened}>{inside}</details>" if many else ""


def embedded(picture: Picture) -> str:
    """Embed a chart in the page's colours, with a link that saves the chart."""
    svg = picture.svg()
    file = re.sub(r"[^a-z0-9]+", "_", picture.name.lower()).strip("_")
    link = download(file, svg, "svg", "SVG")
    caption = f'<figcaption class="file">{link}</figcaption>'
    return f'<figure class="picture">{colours.themed(svg)}{caption}</figure>'


def viewer_frame(viewer: str) -> str:
    """Embed the viewer in a sandbox, where it runs its script but cannot access this page."""
    rights = 'sandbox="allow-scripts allow-downloads"'
    source = html.escape(viewer)
    return f'<iframe class="viewer" title="Architectures" {rights} srcdoc="{source}"></iframe>'
