"""A run as one page: what was asked, what came out, how it went. No script, nothing to load."""

from __future__ import annotations

import base64
import hashlib
import html
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from archgraph.display import colours
from archgraph.display.charts import charts, data_chart
from archgraph.display.header import header
from archgraph.display.run_tables import (
    client_sheet,
    lost_sheet,
    model_sheet,
    setting_sheet,
    traffic_sheet,
)
from archgraph.display.runs import Log, read_run, seconds
from archgraph.display.sheets import Sheet, as_csv, download
from archgraph.display.style import STYLE
from archgraph.engine.points import Point, points
from archgraph.errors import ArchGraphError
from archgraph.files import write
from archgraph.tables import plural

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Rows of a table that is not folded.
FEW = 12


def report(folder: str | os.PathLike[str], path: str | os.PathLike[str] | None = None) -> Path:
    """Write a page about a run, finished or not: facts, tables, curves, architectures.

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
    models = model_sheet(log)
    body = [
        f"<h1>{html.escape(log.name)}</h1>",
        _facts(header(log)),
        "<h2>Models</h2>",
        models.html() or "<p>Nothing was tested yet.</p>",
        *_rounds(log),
        *_clients(log),
        *_section("Communication", traffic_sheet(log).html()),
        *_section("Clients left out", _folded(lost_sheet(log), "update")),
        *_section("Architectures", "\n".join(_pictures(log))),
        "<h2>Settings</h2>",
        *_settings(log),
    ]
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


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    rows = (
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd></div>"
        for name, text in facts
    )
    return f"<dl>{''.join(rows)}</dl>"


def _section(title: str, inside: str) -> Iterator[str]:
    """A part of the page, if there is anything in it."""
    if inside:
        yield f"<h2>{title}</h2>"
        yield inside


def _folded(sheet: Sheet, noun: str) -> str:
    """A table that is folded where it is long; empty without rows."""
    many = len(sheet.rows)
    opened = " open" if many <= FEW else ""
    inside = f"<summary>{plural(many, noun)}</summary>{sheet.html()}"
    return f"<details{opened}>{inside}</details>" if many else ""


def _rounds(log: Log) -> Iterator[str]:
    yield "<h2>Over the rounds</h2>"
    drawn = "".join(_chart(figure, name) for name, figure in charts(log))
    yield f'<div class="charts">{drawn}</div>'
    if spent := seconds(log.rounds):
        total = sum(spent.values()) or 1.0
        share = ", ".join(f"{k} {v:.1f} s ({100 * v / total:.1f} %)" for k, v in spent.items())
        yield f"<p>Time of all rounds: {html.escape(share)}.</p>"
    # Clients' own figures would be most of it; `Run.to_frame` has them.
    rows = [p for line in log.rounds for p in points(line) if p.part != "train"]
    yield f"<p>{download('rounds', as_csv(Point._fields, rows))}</p>"


def _clients(log: Log) -> Iterator[str]:
    figure = data_chart(log.clients)
    if figure is not None:
        yield "<h2>Clients and their data</h2>"
        yield f'<div class="charts">{_chart(figure, "training examples of each client")}</div>'
        yield _folded(client_sheet(log), "client")


def _settings(log: Log) -> Iterator[str]:
    """Those that differ from the defaults; all of them on demand, or if none can be told apart."""
    if log.experiment is not None:
        yield setting_sheet(log).html() or "<p>All are the defaults.</p>"
    opened = "" if log.experiment else " open"
    everything = f"<pre>{html.escape(log.config)}</pre>"
    yield f"<details{opened}><summary>All settings (run.yaml)</summary>{everything}</details>"


def _chart(figure: Figure, name: str) -> str:
    """A figure of ours inside the page, in the colours of the page."""
    from archgraph.display.plots import picture

    svg = picture(figure).decode()
    inside = re.sub("<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    # Every figure numbers its parts alike: two would share identifiers.
    own = hashlib.sha256(name.encode()).hexdigest()[:8]
    inside = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{own}-", inside)
    label = f'<svg role="img" aria-label="{html.escape(name)}"'
    return f"<figure>{colours.themed(inside).replace('<svg', label, 1)}</figure>"


def _drawing(svg: str) -> str:
    """A picture of ours inside the page, where its tooltips work."""
    # Graphviz numbers the parts of each picture from one: two pictures would share identifiers.
    inside = re.sub(r' id="[^"]*"', "", svg[svg.index("<svg") :])
    # What is wider than a telephone is moved there, not shrunk.
    wide = re.search(r'<svg width="(\d+)', inside)
    least = f'<svg style="min-width: min({wide[1]}pt, 36rem)"' if wide else "<svg"
    return f'<figure class="drawing">{inside.replace("<svg", least, 1)}</figure>'


def image(data: bytes, kind: str, name: str) -> str:
    """A picture as a file inside the page: whatever an SVG holds, it cannot run or reach out."""
    source = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return f'<figure class="image"><img alt="{html.escape(name)}" src="{source}"></figure>'


def _pictures(log: Log) -> Iterator[str]:
    """The architectures and pictures in the run folder."""
    from archgraph.display.picture import draw, render

    graphs = log.graphs
    cover = _coverage(log)
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


def _coverage(log: Log) -> Mapping[str, float] | None:
    """Share of clients by leaf of the global model; None where the folder does not tell it."""
    from archgraph.display.cover import coverage
    from archgraph.display.run_family import run_family

    try:
        return coverage(run_family(log))
    except ArchGraphError:
        return None
