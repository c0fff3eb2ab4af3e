"""The page of a run: results, network, curves, clients and settings, in one file."""

from __future__ import annotations

import html
from collections.abc import Iterator

from archgraph.reports.charts import charts, client_charts
from archgraph.reports.header import header
from archgraph.reports.headline import context, run_headline
from archgraph.reports.parts import (
    closed_page,
    definition_list,
    embedded,
    expandable,
    section,
    viewer_frame,
)
from archgraph.reports.run_tables import (
    client_sheet,
    lost_sheet,
    model_sheet,
    setting_sheet,
    traffic_sheet,
)
from archgraph.reports.runs import Log
from archgraph.reports.sheets import download


def page(log: Log, viewer: str | None = None, *, reload: int = 0) -> str:
    """Return the page of a run as HTML text.

    Args:
        log: The run.
        viewer: HTML page of the run's architectures, which is embedded. Default: no architectures.
        reload: Seconds after which the page reloads itself; 0 for never.
    """
    first, *others = map(embedded, charts(log))
    networks = viewer_frame(viewer) if viewer else ""
    # Next to the curves, or below them if there is not enough room.
    inside = f'{first}<div class="network">{networks}</div>' if networks else first
    body = [
        f"<h1>{html.escape(log.name)}</h1>",
        f"<p>{html.escape(context(log))}</p>",
        run_headline(log) or "<p>Nothing was tested yet.</p>",
        f'<div class="{"first" if networks else "charts"}">{inside}</div>',
        "<h2>Over the rounds</h2>",
        f'<div class="charts">{"".join(others)}</div>',
        f"<p>{download('rounds', log.figures.to_csv(index=False, na_rep='nan'))}</p>",
        *section("Models", model_sheet(log).html()),
        *_clients(log),
        *section("Communication", traffic_sheet(log).html()),
        *section("Lost updates", expandable(lost_sheet(log), "update")),
        "<h2>The run</h2>",
        definition_list(header(log)),
        "<h2>Settings</h2>",
        *_settings(log),
    ]
    return closed_page(log.name, body, reload=reload)


def _clients(log: Log) -> Iterator[str]:
    for chart in client_charts(log.participants):
        yield "<h2>Clients and their data</h2>"
        table = expandable(client_sheet(log), "client")
        yield f'<div class="first">{embedded(chart)}<div>{table}</div></div>'


def _settings(log: Log) -> Iterator[str]:
    """Yield the settings that differ from the defaults, and all settings in a collapsed element."""
    if log.experiment is not None:
        yield setting_sheet(log).html() or "<p>All are the defaults.</p>"
    opened = "" if log.experiment else " open"
    everything = f"<pre tabindex='0'>{html.escape(log.config)}</pre>"
    yield f"<details{opened}><summary>All settings (run.yaml)</summary>{everything}</details>"
