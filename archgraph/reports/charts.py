"""Charts for pages, drawn by matplotlib: one panel each, narrow enough for a phone."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from archgraph.display import colours
from archgraph.fields import GLOBAL
from archgraph.record.changes import evenly
from archgraph.record.points import ALL_CLIENTS
from archgraph.reports.paper import legend_below, time_bars
from archgraph.reports.plots import band, panels, picture, scale, time_spent
from archgraph.reports.runs import Log, better, judge, rows_where, seconds, series
from archgraph.tables import elided, per_cent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
    from pandas import DataFrame, Series

    from archgraph.engine.clients import ClientFacts

# Inches: 380 CSS pixels, the width of a phone.
WIDTH, TALL = 380 / 72, 3.4
# Font sizes in pixels: titles; numbers and names.
TITLES, NUMBERS = 12, 11
# Characters per line of a title.
ACROSS = 48
# Maximum number of clients whose rows have names, and of characters per name.
NAMED, NAME = 40, 20
# Maximum number of clients, and of points per curve: more than there are pixels.
MOST = 400


@dataclass(frozen=True, eq=False)
class Picture:
    """A chart on a page.

    Attributes:
        name: Name, unique on the page.
        figure: The matplotlib figure.
    """

    name: str
    figure: Figure

    def svg(self) -> str:
        """Return the chart as SVG text, with identifiers that are unique on the page."""
        drawn = picture(self.figure, salt=self.name).decode()
        # Identifiers that are referenced are derived from content and salt. The others are numbered
        # from one in every chart, and are unused.
        used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', drawn))
        unused = (one for one in re.findall(' id="([^"]*)"', drawn) if one not in used)
        names = "|".join(map(re.escape, unused))
        inside = re.sub(f' id="(?:{names})"', "", drawn[drawn.index("<svg") :])
        label = html.escape(self.name)
        return inside.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def charts(log: Log) -> Iterator[Picture]:
    """Yield the charts of a run: metrics over rounds, on all and on clients' own data, and time."""
    what = judge([log])
    yield curve_chart(
        f"{what} over the rounds", f"{what} on all test data", tested_models(log), what, [log]
    )
    yield from _own(log, what)
    if seconds(log.figures):
        yield time_chart({log.name: log.figures})


def curve_chart(
    name: str,
    title: str,
    runs: Mapping[str, DataFrame],
    what: str,
    logs: Sequence[Log],
    axis: str = "round",
    places: Mapping[str, Series] | None = None,
    bold: str = GLOBAL,
) -> Picture:
    """Draw curves of the metric that compares models.

    Args:
        name: Name of the chart.
        title: Title. For metrics other than accuracy, the better direction is added.
        runs: Dict from the name of a curve to its values by round and seed. Curves without rounds
            are skipped.
        what: Name of the metric.
        logs: The runs.
        axis: Label of the horizontal axis.
        places: For each curve, the position of each round on the axis. Default: the number of the
            round.
        bold: Name of the curve to emphasise.
    """
    figure, (panel,) = panels(WIDTH, 1, points=(TITLES, NUMBERS))
    for number, (label, values) in enumerate(runs.items()):
        some = values.iloc[[*evenly(range(len(values)), MOST)]]
        band(panel, some, label, number, (places or {}).get(label), bold=label == bold)
    if what != "accuracy":  # whose direction is obvious
        title += f" ({'higher' if better(logs, what) else 'lower'} is better)"
    scale(panel, what, textwrap.fill(title, ACROSS), axis, points=(TITLES, NUMBERS))
    if not panel.get_lines():
        panel.text(
            0.5, 0.5, "nothing was tested yet", transform=panel.transAxes, ha="center",
            fontsize=NUMBERS, color=colours.QUIET,
        )  # fmt: skip
    legend_below(figure, TALL, points=NUMBERS)
    return Picture(name, figure)


def time_chart(runs: Mapping[str, DataFrame]) -> Picture:
    """Draw the mean seconds per round of each phase (training, evaluation, …)."""
    figure, (panel,) = panels(WIDTH, 1, points=(TITLES, NUMBERS))
    panel.set_title("seconds per round", loc="left", fontsize=TITLES, color=colours.INK)
    lines = time_bars(panel, time_spent(runs), 24)
    legend_below(figure, 0.25 * (3 + 1.4 * lines), points=NUMBERS)
    return Picture("seconds per round", figure)


def tested_models(log: Log) -> dict[str, DataFrame]:
    """Return the values of the metric that compares models, by model and round."""
    what = judge([log])
    rows = rows_where(log.figures, part="test", metric=what)
    names = sorted(log.models, key=lambda name: name == GLOBAL)
    by_name = {name: series(rows, group=name) for name in names}
    by_name["on validation examples"] = series(
        log.figures, part="validation", group=GLOBAL, metric=what
    )
    return _drawn(by_name)


def _drawn(values: Mapping[str, Series]) -> dict[str, DataFrame]:
    """Return the non-empty series as data frames of one run."""
    return {name: of.to_frame() for name, of in values.items() if len(of)}


def _own(log: Log, what: str) -> Iterator[Picture]:
    """Yield a chart of the tiers on their clients' own test data, with mean and worst tenth."""
    local = rows_where(log.figures, part="test local", metric=what)
    names = [*(name for name in log.models if name != GLOBAL), ALL_CLIENTS]
    by_name = {name: series(local, group=name) for name in names}
    if not any(len(by_name[name]) for name in names[:-1]):
        return
    by_name[worst_clients(log)] = worst_series(log, what)
    title = f"{what} on clients' own classes"
    name = f"{title} over the rounds"
    yield curve_chart(name, title, _drawn(by_name), what, [log], bold=ALL_CLIENTS)


def worst_clients(log: Log) -> str:
    """Return the label for the worst tenth of the clients.

    With ten or fewer clients, this is the worst client.
    """
    return "worst client" if 0 < len(log.participants) <= 10 else "worst tenth of the clients"


def worst_series(log: Log, what: str) -> Series:
    """Return the mean over the worst tenth of the clients, on their own data, for each round."""
    return series(log.figures, part="test tenth", group=ALL_CLIENTS, metric=what)


def client_charts(clients: Sequence[ClientFacts]) -> Iterator[Picture]:
    """Yield a chart of the examples and class fractions of each client, if there are any clients.

    Fractions make clients with few and with many examples comparable.
    """
    drawn = clients[:MOST]
    if not drawn:
        return
    several = 2 if any(client.classes for client in drawn) else 1
    title = "training examples of each client"
    figure, axes = panels(WIDTH, several, title, (1, 2), points=(TITLES, NUMBERS))
    _draw_examples(axes[0], drawn, len(clients))
    for panel in axes[1:]:
        _draw_shares(panel, [one.classes for one in drawn])
    legend_below(figure, 1.0 + min(0.26 * len(drawn), 8.0), points=NUMBERS)
    yield Picture(title, figure)


def _draw_examples(panel: Axes, clients: Sequence[ClientFacts], total: int) -> None:
    """Draw the number of examples of the first clients out of ``total``."""
    for bad, colour in enumerate(colours.SERIES[:2]):
        rows = [i for i, client in enumerate(clients) if client.malicious == bad]
        many = [clients[i].examples for i in rows]
        panel.barh(rows, many, 0.76, color=colour, label="malicious" if bad and rows else None)
    panel.set_ylim(len(clients) - 0.5, -0.5)
    panel.set_title("examples", loc="left", fontsize=NUMBERS, color=colours.QUIET)
    panel.xaxis.set_major_locator(_few(3))
    if len(clients) <= NAMED:
        names = (f"{client.name or client.client} · {client.tier}" for client in clients)
        panel.set_yticks(range(len(clients)), [elided(name, NAME, NAME // 2) for name in names])
    else:
        of = "" if len(clients) == total else f" of {total}"
        panel.set_yticks((0, len(clients) - 1), ("1", f"{len(clients)}{of}"))


def _draw_shares(panel: Axes, rows: Sequence[Sequence[int]]) -> None:
    """Draw class fractions as an image with a row per client."""
    classes = max(map(len, rows))
    counts = np.array([[*row] + [0] * (classes - len(row)) for row in rows])
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    # Transparent, in a blue that is visible on both light and dark pages.
    shades, blue = np.zeros((*shares.shape, 4)), colours.DARK[colours.SERIES[0]]
    shades[..., :3] = [int(blue[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    shades[..., 3] = shares / (shares.max() or 1.0)
    panel.imshow(shades, aspect="auto", interpolation="none")
    said = f"class fractions, up to {per_cent(float(shares.max()), 0)}"
    panel.set_title(said, loc="left", fontsize=NUMBERS, color=colours.QUIET)
    panel.set_yticks(())
    panel.xaxis.set_major_locator(_few(10))


def _few(most: int) -> MaxNLocator:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(most, integer=True, min_n_ticks=1)
