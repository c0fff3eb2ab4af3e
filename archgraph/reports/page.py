"""A run as one page: what was asked, what came out, how it went. No script, nothing to load."""

from __future__ import annotations

import base64
import hashlib
import html
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from archgraph.display import colours
from archgraph.display.style import STYLE
from archgraph.errors import ArchGraphError
from archgraph.fields import GLOBAL
from archgraph.files import write
from archgraph.reports.charts import charts, data_chart
from archgraph.reports.comparison import comparison, run_folders
from archgraph.reports.header import header
from archgraph.reports.run_tables import (
    client_sheet,
    lost_sheet,
    model_sheet,
    setting_sheet,
    traffic_sheet,
)
from archgraph.reports.runs import Log, read_run, seconds
from archgraph.reports.sheets import Sheet, download
from archgraph.tables import plural

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Rows of a table that is not folded.
FEW = 12


def report(
    folder: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    path: str | os.PathLike[str] | None = None,
    *,
    viewer: Callable[[Log], str] | None = None,
) -> Path:
    """Write a page about a run, finished or not: facts, tables, curves, architectures.

    Of several runs, too: their clients' data, communication, attacks, and each architecture once.

    Args:
        folder: The run folder, or several of them, or folders that hold some: then runs that
            differ in the seed only are one curve with a band.
        path: Where to write. Default: `report.html` in the run folder, the first of several.
        viewer: Makes the page that shows a run's architectures, to stand inside this one.
            Default: they are drawn.

    Returns:
        The page's path.

    Raises:
        RunError: If the folder is not a run folder, or the page cannot be written.
    """
    folders = run_folders([folder] if isinstance(folder, str | os.PathLike) else folder)
    if len(folders) > 1:
        from archgraph.reports.runs_page import runs_page

        text = runs_page(comparison(folders, unfinished=True, tiers=True), viewer)
    else:
        log = read_run(folders[0])
        text = page(log, viewer(log) if viewer else "")
    return write(path or folders[0] / "report.html", text)


def page(log: Log, architectures: str = "") -> str:
    """Return the page of a run as HTML text.

    Args:
        log: The run.
        architectures: A page that shows them, to stand inside this one; empty: they are drawn.
    """
    body = [
        f"<h1>{html.escape(log.name)}</h1>",
        *live_parts(log),
        *section("Architectures", "\n".join(_architectures(log, architectures))),
        "<h2>Settings</h2>",
        *_settings(log),
    ]
    return html_page(log.name, body)


def live_parts(log: Log) -> Iterator[str]:
    """Yield what changes from round to round, from the numbers that the run recorded."""
    yield definition_list(header(log))
    yield "<h2>Models</h2>"
    yield model_sheet(log).html() or "<p>Nothing was tested yet.</p>"
    yield from _rounds(log)
    yield from _clients(log)
    yield from section("Communication", traffic_sheet(log).html())
    yield from section("Clients left out", expandable(lost_sheet(log), "update"))


def html_page(title: str, body: Iterable[str]) -> str:
    """Return a whole page in the house's style, with the parts of its body below one another."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
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


def _rounds(log: Log) -> Iterator[str]:
    yield "<h2>Over the rounds</h2>"
    drawn = "".join(chart(figure, name) for name, figure in charts(log))
    yield f'<div class="charts">{drawn}</div>'
    if spent := seconds(log.figures):
        total = sum(spent.values()) or 1.0
        share = ", ".join(f"{k} {v:.1f} s ({100 * v / total:.1f} %)" for k, v in spent.items())
        yield f"<p>Time of all rounds: {html.escape(share)}.</p>"
    yield f"<p>{download('rounds', log.figures.to_csv(index=False, na_rep='nan'))}</p>"


def _clients(log: Log) -> Iterator[str]:
    figure = data_chart(log.participants)
    if figure is not None:
        yield "<h2>Clients and their data</h2>"
        yield f'<div class="charts">{chart(figure, "training examples of each client")}</div>'
        yield expandable(client_sheet(log), "client")


def _settings(log: Log) -> Iterator[str]:
    """Yield settings that are not defaults; all on demand, or where the defaults are not known."""
    if log.experiment is not None:
        yield setting_sheet(log).html() or "<p>All are the defaults.</p>"
    opened = "" if log.experiment else " open"
    everything = f"<pre>{html.escape(log.config)}</pre>"
    yield f"<details{opened}><summary>All settings (run.yaml)</summary>{everything}</details>"


def chart(figure: Figure, name: str) -> str:
    """Embed one of our figures in the page, in the colours of the page."""
    from archgraph.reports.plots import picture

    svg = picture(figure).decode()
    inside = re.sub("<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    # Every figure numbers its parts alike: two would share identifiers.
    prefix = hashlib.sha256(name.encode()).hexdigest()[:8]
    inside = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{prefix}-", inside)
    label = f'<svg role="img" aria-label="{html.escape(name)}"'
    drawn = colours.themed(inside).replace("<svg", label, 1)
    file = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    link = download(file, svg, "svg", "SVG")
    return f'<figure>{drawn}<figcaption class="file">{link}</figcaption></figure>'


def _drawing(svg: str) -> str:
    """Embed one of our pictures in the page itself, where its tooltips work."""
    # Graphviz numbers the parts of each picture from one: two pictures would share identifiers.
    inside = re.sub(r' id="[^"]*"', "", svg[svg.index("<svg") :])
    # What is wider than a telephone is moved there, not shrunk.
    wide = re.search(r'<svg width="(\d+)', inside)
    least = f'<svg style="min-width: min({wide[1]}pt, 36rem)"' if wide else "<svg"
    return f'<figure class="drawing">{inside.replace("<svg", least, 1)}</figure>'


def image(data: bytes, kind: str, name: str) -> str:
    """Embed a picture as a file: whatever an SVG contains, it cannot run or reach out."""
    source = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return f'<figure class="image"><img alt="{html.escape(name)}" src="{source}"></figure>'


def _architectures(log: Log, viewer: str) -> Iterator[str]:
    """Yield the architectures, then the pictures in the run folder."""
    yield from [viewer_frame(viewer)] if viewer else drawings(log)
    for kind, subtype in (("png", "png"), ("svg", "svg+xml")):
        for path in sorted((*log.folder.glob(f"*.{kind}"), *log.folder.glob(f"pictures/*.{kind}"))):
            drawn = image(path.read_bytes(), subtype, path.stem)
            yield f"<details><summary>{html.escape(path.stem)}</summary>{drawn}</details>"


def viewer_frame(viewer: str) -> str:
    """Embed the viewer: it runs its own script and reaches nothing of this page."""
    return (
        '<iframe class="viewer" title="Architectures" sandbox="allow-scripts" '
        f'srcdoc="{html.escape(viewer)}"></iframe>'
    )


def drawings(log: Log) -> Iterator[str]:
    """Yield every architecture as a picture."""
    from archgraph.display.picture import draw, render

    cover = _coverage(log)
    for name, graph in log.graphs.items():
        if isinstance(graph, str):  # why its file cannot be read
            yield f"<p>{html.escape(f'{name}: {graph}')}</p>"
            continue
        shares, opened = (cover, " open") if name == GLOBAL else (None, "")
        svg = render(draw(graph, cover=shares, title=name), "svg").decode()
        yield f"<details{opened}><summary>{html.escape(name)}</summary>{_drawing(svg)}</details>"


def _coverage(log: Log) -> Mapping[str, float] | None:
    """Return the coverage of the global model; None where the folder does not tell it."""
    from archgraph.display.cover import coverage
    from archgraph.reports.run_family import run_family

    try:
        return coverage(run_family(log))
    except ArchGraphError:
        return None
