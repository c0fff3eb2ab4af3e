"""The pictures of a run's page: one panel each, narrow enough for a telephone."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from archgraph.display import colours
from archgraph.fields import GLOBAL
from archgraph.record.points import ALL_CLIENTS
from archgraph.record.traffic import DOWN, UP
from archgraph.reports.plots import (
    BESIDE,
    draw_line,
    fit_scale,
    panels,
    scale,
    tiers_panel,
    time_panel,
)
from archgraph.reports.runs import Log, better, judge, rows_where, seconds, series
from archgraph.reports.sheets import in_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from archgraph.engine.clients import ClientFacts

# Inches of a panel: as wide as a telephone shows unscaled.
WIDTH, HEIGHT = 4.6, 3.3
# Clients whose names fit beside their rows.
NAMED = 40


def charts(log: Log) -> Iterator[tuple[str, Figure]]:
    """Draw figures on all data and on clients' own over the rounds and bytes; time by purpose."""
    figure, panel = one_panel()
    tiers_panel(panel, log)
    legend(figure, panel)
    yield f"{judge([log])} over the rounds", figure
    yield from _own(log)
    yield from _over_bytes(log)
    if seconds(log.figures):
        figure, panel = one_panel()
        time_panel(panel, {log.name: log.figures})
        yield "seconds per round", figure


def one_panel() -> tuple[Figure, Axes]:
    """Make a figure of one panel."""
    figure, (panel,) = panels(WIDTH, 1, height=HEIGHT)
    return figure, panel


def _own(log: Log) -> Iterator[tuple[str, Figure]]:
    """Draw each tier on its clients' own test data, and the mean over all clients."""
    what = judge([log])
    local = rows_where(log.figures, part="test local", metric=what)
    lines = [(name, series(local, group=name)) for name in log.models if name != GLOBAL]
    if all(points.empty for _, points in lines):
        return
    figure, panel = one_panel()
    for number, (name, points) in enumerate(lines):
        draw_line(panel, points, name, number)
    draw_line(panel, series(local, group=ALL_CLIENTS), ALL_CLIENTS, 0, bold=True)
    more = None if what == "accuracy" else better([log], what)
    scale(panel, what, f"{what} on clients' own classes", more)
    legend(figure, panel)
    yield f"{what} on clients' own classes over the rounds", figure


def _over_bytes(log: Log) -> Iterator[tuple[str, Figure]]:
    """Draw what the run reached by the bytes that had travelled until then, both ways together."""
    what = judge([log])
    of_run = rows_where(log.figures, part="run")
    sent = of_run[of_run["metric"].isin((DOWN, UP))].groupby("round")["value"].sum().cumsum()
    tested = rows_where(log.figures, part="test", metric=what)
    rows = tested[tested["group"].isin(log.submodels)].groupby("round")["value"]
    values = series(tested, group=GLOBAL)
    # A round before which nothing travelled (the test of the first state) has no place on the axis.
    values = values[values.index.isin(sent[sent > 0].index)]
    worst = (rows.min() if better([log], what) else rows.max())[values.index]
    if len(values) < 2:  # one point is not a curve
        return
    worst.index = values.index = sent[values.index]
    figure, panel = one_panel()
    # `global` is a tested model, or else the mean of all.
    name = GLOBAL if GLOBAL in log.models else "mean of all models"
    draw_line(panel, values, name, 0, bold=True)
    if not worst.equals(values):
        draw_line(panel, worst, "worst tier", 0)
    panel.set_title(f"{what} by bytes sent", loc="left", fontsize=10, color=colours.INK)
    panel.xaxis.set_major_formatter(lambda value, _: in_bytes(round(value)))
    panel.set_xlabel("bytes down and up so far", fontsize=9, color=colours.INK)
    fit_scale(panel, what)
    legend(figure, panel)
    yield f"{what} by bytes sent", figure


def legend(figure: Figure, panel: Axes) -> None:
    """Put the names of the lines below the panel, where they hide nothing."""
    lines, names = panel.get_legend_handles_labels()
    # Figures of their own size have the legend inside: on a telephone it would cover the lines.
    if inside := panel.get_legend():
        inside.remove()
    if names:
        figure.legend(
            lines,
            ["\n".join(textwrap.wrap(name, BESIDE)) for name in names],
            loc="outside lower left",
            ncols=_columns(names),
            frameon=False,
            fontsize=9,
            labelcolor=colours.INK,
        )


def _columns(names: Sequence[str]) -> int:
    """Return how many names of a legend fit side by side without leaving the figure."""
    if max(map(len, names)) > BESIDE // 2:
        return 1
    return 3 if sum(map(len, names)) <= BESIDE or len(names) > 6 else 2


def data_chart(clients: Sequence[ClientFacts]) -> Figure | None:
    """Draw the examples of each client, and the share of each class; None without clients.

    Shares, because a client with few examples may be as one-sided as one with many.

    Example:
        >>> from archgraph.engine.clients import ClientFacts
        >>> one = ClientFacts(client=0, tier="small", examples=3, classes=[1, 2])
        >>> [axes.get_title(loc="left") for axes in data_chart([one]).axes]
        ['training examples', 'share of each class']
    """
    if not clients:
        return None
    classes = max(len(client.classes) for client in clients)
    each = 0.24 if len(clients) <= NAMED else 0.05
    height = min(0.9 + each * len(clients), 11.0)
    figure, axes = panels(WIDTH, 2 if classes else 1, ratios=(1.0, 1.4), height=height)
    rows = range(len(clients))
    fills = [colours.SERIES[1 if client.malicious else 0] for client in clients]
    axes[0].barh(rows, [client.examples for client in clients], color=fills, height=0.75)
    axes[0].set_title("training examples", loc="left", fontsize=10, color=colours.INK)
    axes[0].set_ylim(len(clients) - 0.4, -0.6)  # the first client on top
    if len(clients) <= NAMED:
        axes[0].set_yticks(rows, [_name(client) for client in clients])
        axes[0].set_ylabel("")
    else:
        axes[0].set_ylabel("client", fontsize=9, color=colours.INK)
    axes[0].tick_params(axis="y", length=0)
    if classes:
        _by_class(axes[1], clients, classes)
    return figure


def _by_class(panel: Axes, clients: Sequence[ClientFacts], classes: int) -> None:
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.ticker import MaxNLocator

    # A client's list may end before the last class of another's.
    counts = ([*c.classes, *[0] * (classes - len(c.classes))] for c in clients)
    shares = [[many / max(sum(row), 1) for many in row] for row in counts]
    # From transparent on: it stands on a light page as well as on a dark one.
    hue = colours.SERIES[0]
    shades = LinearSegmentedColormap.from_list("examples", [f"{hue}00", f"{hue}ff"])
    # Squares, not an image: they stay sharp at any size.
    panel.pcolormesh(
        [i - 0.5 for i in range(classes + 1)],
        [i - 0.5 for i in range(len(clients) + 1)],
        shares,
        cmap=shades,
        vmin=0,
        edgecolor=colours.BLOCK,
        linewidth=0.3 if len(clients) <= NAMED else 0,
    )
    panel.set_ylim(len(clients) - 0.4, -0.6)
    panel.set_yticks([])
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10))
    panel.set_title("share of each class", loc="left", fontsize=10, color=colours.INK)


def _name(client: ClientFacts) -> str:
    text = f"{client.name or client.client} · {client.tier}"
    text = text if len(text) <= 22 else f"{text[:21]}…"
    return f"{text} (malicious)" if client.malicious else text
