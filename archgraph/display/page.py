"""A run as one page: what was asked, what came out, how it went. No script, nothing to load."""

from __future__ import annotations

import base64
import html
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from archgraph.display import colours
from archgraph.display.runs import Log, read_run, seconds, tiers
from archgraph.errors import ArchGraphError
from archgraph.files import write
from archgraph.tables import Table

if TYPE_CHECKING:
    from archgraph.graph.ir import ArchGraph

STYLE = f"""
:root {{ color-scheme: light; }}
body {{ font: 15px/1.5 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; color: {colours.INK};
  max-width: 62rem; margin: 2.5rem auto; padding: 0 1.5rem; background: {colours.PAPER}; }}
h1 {{ font-size: 1.7rem; margin: 0 0 .2rem; }}
h2 {{ font-size: 1.15rem; margin: 2.4rem 0 .6rem; border-bottom: 1px solid {colours.BLOCK};
  padding-bottom: .3rem; }}
p, figcaption {{ color: {colours.QUIET}; margin: .3rem 0; }}
table {{ border-collapse: collapse; margin: .6rem 0; }}
th, td {{ padding: .35rem .9rem .35rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid {colours.BLOCK}; }}
th {{ font-weight: 600; color: {colours.QUIET}; }}
td.number, th.number {{ text-align: right; font-variant-numeric: tabular-nums; }}
tr.strong td {{ font-weight: 600; }}
figure {{ margin: .8rem 0; overflow-x: auto; }}
figure svg, figure img {{ max-width: 100%; height: auto; }}
details {{ margin: .5rem 0; }}
summary {{ cursor: pointer; color: {colours.INK}; }}
pre {{ background: {colours.SECTION}; padding: 1rem; overflow-x: auto; font-size: 13px;
  line-height: 1.4; border-radius: 6px; }}
@media print {{ body {{ margin: 0; max-width: none; }} }}
"""


def report(folder: str | os.PathLike[str], path: str | os.PathLike[str] | None = None) -> Path:
    """Write a page about a run, finished or not: a table per tier, curves, pictures, settings.

    Args:
        folder: The run folder.
        path: Where to write; None: `report.html` in the run folder.

    Returns:
        The page's path.

    Raises:
        RunError: If the folder is not a run folder, or the page cannot be written.
    """
    log = read_run(folder)
    return write(path or log.folder / "report.html", page(log))


def page(log: Log) -> str:
    """The page of a run as HTML text."""
    from archgraph.display.plots import curves, picture

    body = [f"<h1>{html.escape(log.name)}</h1>"]
    result = tiers(log)
    body.append(f"<p>{html.escape(result.note)}</p>")
    body.append("<h2>Models</h2>")
    body.append(result.html() if result.rows else "<p>Nothing was tested yet.</p>")
    body.append("<h2>Over the rounds</h2>")
    body.append(image(picture(curves(log.rounds)), "svg+xml", "curves"))
    if spent := seconds(log.rounds):
        total = sum(spent.values()) or 1.0
        share = ", ".join(f"{k} {v:.1f} s ({100 * v / total:.1f} %)" for k, v in spent.items())
        body.append(f"<p>Time of all rounds: {html.escape(share)}.</p>")
    body += _incidents(log)
    pictures = list(_pictures(log))
    if pictures:
        body.append("<h2>Architectures</h2>")
        body += pictures
    body.append("<h2>Settings</h2>")
    body.append(f"<pre>{html.escape(log.config)}</pre>")
    return html_page(log.name, body)


def html_page(title: str, body: Iterable[str]) -> str:
    """A whole page: what stands below one another in it, in the house's style."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _drawing(svg: str) -> str:
    """A picture of ours inside the page, where its tooltips work."""
    # Graphviz numbers the parts of each picture from one: two pictures would share identifiers.
    inside = re.sub(r' id="[^"]*"', "", svg[svg.index("<svg") :])
    return f"<figure>{inside}</figure>"


def image(data: bytes, kind: str, name: str) -> str:
    """A picture as a file inside the page: whatever an SVG holds, it cannot run or reach out."""
    source = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return f'<figure><img alt="{html.escape(name)}" src="{source}"></figure>'


def _incidents(log: Log) -> Iterator[str]:
    rows = [
        (str(line["round"]), str(item.get("name", item.get("client", ""))), str(item["reason"]))
        for line in log.rounds
        for key in ("rejected", "failed")
        for item in line.get(key) or ()
    ]
    if rows:
        yield "<h2>Clients left out</h2>"
        yield Table("", ("round", "client", "reason"), tuple(rows[:200])).html()
        if len(rows) > 200:
            yield f"<p>and {len(rows) - 200} more</p>"


def _pictures(log: Log) -> Iterator[str]:
    """The architectures and pictures in the run folder."""
    from archgraph.display.picture import draw, render

    graphs = dict(_graphs(log))
    cover = _coverage(log, graphs)
    for name, graph in graphs.items():
        if isinstance(graph, str):
            yield f"<p>{html.escape(f'{name}: {graph}')}</p>"
            continue
        shares = cover if name == "global" else None
        svg = render(draw(graph, cover=shares, title=name), "svg").decode()
        opened = " open" if name == "global" else ""
        yield f"<details{opened}><summary>{html.escape(name)}</summary>{_drawing(svg)}</details>"
    for kind, subtype in (("png", "png"), ("svg", "svg+xml")):
        for path in sorted((*log.folder.glob(f"*.{kind}"), *log.folder.glob(f"pictures/*.{kind}"))):
            name = html.escape(path.stem)
            shown = image(path.read_bytes(), subtype, path.stem)
            yield f"<details><summary>{name}</summary>{shown}</details>"


def _graphs(log: Log) -> Iterator[tuple[str, ArchGraph | str]]:
    """Models of the run folder, the global one first; for a damaged file, its error message."""
    from archgraph.language import load

    paths = sorted(log.folder.glob("models/*.yaml"), key=lambda p: (p.stem != "global", p.stem))
    for path in paths:
        try:
            yield path.stem, load(path)
        except ArchGraphError as error:
            yield path.stem, str(error)


def _coverage(log: Log, graphs: Mapping[str, ArchGraph | str]) -> dict[str, float] | None:
    """Share of clients by leaf of the global model, computed from the run folder alone.

    Models are aligned by structure, so that other files and the user's code are not needed.
    """
    from archgraph.display.cover import coverage
    from archgraph.language.yaml import read_document
    from archgraph.relate.align import align

    whole = graphs.get("global")
    try:
        config = read_document(log.folder / "run.yaml").data
        members = config["family"]["clients"]
        counts = {str(member["name"]): int(member.get("count", 1)) for member in members}
        parts = [(graphs.get(name), many) for name, many in counts.items()]
        return coverage(
            [
                (align(graph, whole).transfer, many)
                for graph, many in parts
                if not isinstance(graph, str | None) and not isinstance(whole, str | None)
            ]
        )
    except (ArchGraphError, KeyError, TypeError, ValueError, AttributeError):
        return None
