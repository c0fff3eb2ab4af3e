"""A run as one page: what came out, its network, how it went, what was asked. Nothing is loaded.

Its one script (`charts.js`) reads values off the pictures; without it they are pictures.
"""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from archgraph.display import colours
from archgraph.display.cover import Cover
from archgraph.display.style import STYLE
from archgraph.errors import ArchGraphError
from archgraph.fields import GLOBAL
from archgraph.files import write
from archgraph.reports.charts import Picture, charts
from archgraph.reports.client_chart import ClientChart, client_charts
from archgraph.reports.comparison import comparison, run_folders
from archgraph.reports.header import header
from archgraph.reports.headline import context, run_headline
from archgraph.reports.line_chart import LineChart
from archgraph.reports.run_tables import (
    client_sheet,
    lost_sheet,
    model_sheet,
    setting_sheet,
    traffic_sheet,
)
from archgraph.reports.runs import Log, read_run, seconds
from archgraph.reports.sheets import Sheet, download
from archgraph.tables import per_cent, plural

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
        *result(log),
        opening(first_chart(log), "".join(_architectures(log, architectures))),
        *live_tables(log),
        *section("Pictures", "\n".join(_pictures(log))),
        "<h2>Settings</h2>",
        *_settings(log),
    ]
    return closed_page(log.name, body)


def result(log: Log) -> Iterator[str]:
    """Yield what came out: a sentence, and figures."""
    yield f"<h1>{html.escape(log.name)}</h1>"
    yield f"<p>{html.escape(context(log))}</p>"
    yield run_headline(log) or "<p>Nothing was tested yet.</p>"


def first_chart(log: Log) -> str:
    """Return the picture by which a run is judged."""
    return embedded(next(charts(log)))


def opening(curves: str, networks: str) -> str:
    """Put a run's network beside its curves: below them, where there is not enough room."""
    inside = f'{curves}<div class="network">{networks}</div>' if networks else curves
    return f'<div class="{"first" if networks else "charts"}">{inside}</div>'


def live_tables(log: Log) -> Iterator[str]:
    """Yield what changes from round to round, from the numbers that the run recorded."""
    yield from _rounds(log)
    yield from section("Models", model_sheet(log).html())
    yield from _clients(log)
    yield from section("Communication", traffic_sheet(log).html())
    yield from section("Clients left out", expandable(lost_sheet(log), "update"))
    yield "<h2>The run</h2>"
    yield definition_list(header(log))


@cache
def chart_script() -> str:
    """Return the script that reads values off the pictures."""
    return (Path(__file__).parent / "charts.js").read_text(encoding="utf-8")


def script_hash(script: str) -> str:
    """Return the source of a script for a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def html_page(
    title: str, body: Iterable[str], *, scripts: Sequence[str] = (), head: str = ""
) -> str:
    """Return a whole page in the house's style, with the parts of its body below one another.

    Args:
        title: Of the page.
        body: HTML, one part below the other.
        scripts: Scripts that the page runs.
        head: What else stands in its head.
    """
    run = "".join(f"<script>{script}</script>" for script in scripts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"{head}<title>{html.escape(title)}</title>\n<style>{STYLE}</style>{run}</head>\n<body><main>\n"
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )


def closed_page(title: str, body: Iterable[str]) -> str:
    """Return a page with pictures that can be read; it runs no other script and loads nothing."""
    text = "\n".join(body)
    # A frame's document inherits this policy, so it names the viewer's script, too.
    viewers = set(re.findall(r"script-src &#x27;(sha256-[\w+/=]+)&#x27;", text))
    allowed = " ".join([script_hash(chart_script()), *(f"'{one}'" for one in sorted(viewers))])
    policy = f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:"
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    return html_page(title, [text], scripts=(chart_script(),), head=head)


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
    drawn = "".join(map(embedded, itertools.islice(charts(log), 1, None)))
    yield f'<div class="charts">{drawn}</div>'
    if spent := seconds(log.figures):
        total = sum(spent.values()) or 1.0
        share = ", ".join(f"{k} {v:.1f} s ({per_cent(v / total, 1)})" for k, v in spent.items())
        yield f"<p>Time of all rounds: {html.escape(share)}.</p>"
    yield f"<p>{download('rounds', log.figures.to_csv(index=False, na_rep='nan'))}</p>"


def _clients(log: Log) -> Iterator[str]:
    for chart in client_charts(log.participants):
        yield "<h2>Clients and their data</h2>"
        table = expandable(client_sheet(log), "client")
        yield f'<div class="first">{embedded(chart)}<div>{table}</div></div>'


def _settings(log: Log) -> Iterator[str]:
    """Yield settings that are not defaults; all on demand, or where the defaults are not known."""
    if log.experiment is not None:
        yield setting_sheet(log).html() or "<p>All are the defaults.</p>"
    opened = "" if log.experiment else " open"
    everything = f"<pre tabindex='0'>{html.escape(log.config)}</pre>"
    yield f"<details{opened}><summary>All settings (run.yaml)</summary>{everything}</details>"


def embedded(picture: Picture) -> str:
    """Embed a picture in the page, in the colours of the page, and as a file to save."""
    svg = picture.svg()
    file = re.sub(r"[^a-z0-9]+", "_", picture.name.lower()).strip("_")
    data = ""
    if isinstance(picture, LineChart | ClientChart):
        kind = "curves" if isinstance(picture, LineChart) else "cells"
        values = json.dumps(picture.data(), ensure_ascii=False, separators=(",", ":"))
        data = f' data-{kind}="{html.escape(values)}"'
    link = download(file, svg, "svg", "SVG")
    caption = f'<figcaption class="file">{link}</figcaption>'
    return f'<figure class="picture"{data}>{colours.themed(svg)}{caption}</figure>'


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
    if viewer:
        # Where scripts are off the viewer is empty.
        yield viewer_frame(viewer)
        picture = "".join(drawings(log, most=1))
        yield f"<noscript><style>iframe.viewer {{ display: none; }}</style>{picture}</noscript>"
    else:
        yield from drawings(log)


def _pictures(log: Log) -> Iterator[str]:
    """Yield the pictures in the run folder, folded."""
    for kind, subtype in (("png", "png"), ("svg", "svg+xml")):
        for path in sorted((*log.folder.glob(f"*.{kind}"), *log.folder.glob(f"pictures/*.{kind}"))):
            drawn = image(path.read_bytes(), subtype, path.stem)
            yield f"<details><summary>{html.escape(path.stem)}</summary>{drawn}</details>"


def viewer_frame(viewer: str) -> str:
    """Embed the viewer: it runs its own script and reaches nothing of this page."""
    rights = 'sandbox="allow-scripts allow-downloads" allow="fullscreen"'
    source = html.escape(viewer)
    return f'<iframe class="viewer" title="Architectures" {rights} srcdoc="{source}"></iframe>'


def drawings(log: Log, most: int | None = None) -> Iterator[str]:
    """Yield architectures as pictures, the global one first; all of them, or as many as said."""
    from archgraph.display.picture import draw, render

    cover = _coverage(log)
    for name, graph in itertools.islice(log.graphs.items(), most):
        if isinstance(graph, str):  # why its file cannot be read
            yield f"<p>{html.escape(f'{name}: {graph}')}</p>"
            continue
        shares, opened = (cover, " open") if name == GLOBAL else (None, "")
        svg = render(draw(graph, cover=shares, title=name), "svg").decode()
        yield f"<details{opened}><summary>{html.escape(name)}</summary>{_drawing(svg)}</details>"


def _coverage(log: Log) -> Cover | None:
    """Return the coverage of the global model; None where the folder does not tell it."""
    from archgraph.display.cover import coverage
    from archgraph.reports.run_family import run_family

    try:
        return coverage(run_family(log))
    except ArchGraphError:
        return None
