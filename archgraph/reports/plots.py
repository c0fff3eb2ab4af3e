"""Curves of runs: what judges them by tier over rounds, clean against attacked, and time spent."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from archgraph.display import colours
from archgraph.display.picture import picture_form
from archgraph.files import write
from archgraph.record.traffic import DOWN, UP
from archgraph.reports.measures import SHARES
from archgraph.reports.runs import (
    RUN,
    rows_where,
    seconds,
)
from archgraph.tables import count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame, Series

Reduce = Callable[[np.ndarray], float]
FORMATS = ("svg", "png", "pdf")
# Markers besides colours distinguish lines in print and without colour vision.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", "*", ">")
STYLES: tuple[str | tuple[float, tuple[float, ...]], ...] = (
    "-",
    (0, (5, 2)),
    (0, (1, 1.5)),
    (0, (6, 2, 1, 2)),
)
# Share of the time below which a purpose cannot be seen in its bar.
VISIBLE = 0.002
# How many times the smallest value the largest one is on a logarithmic scale.
WIDE = 50
PURPOSES = {
    "local": "local training",
    "server": "server work",
    "evaluate": "evaluation",
    "record": "record",
    "other": "other",
}
FILLS = ("#0072b2", "#d55e00", "#9cc4e2", "#9aa5b1", "#e6eaee")

# What accuracy is drawn over beside rounds, where all runs say it: figures of a round, and a unit.
COSTS: Mapping[str, tuple[tuple[str, ...], float]] = {
    "megabytes, both ways": ((DOWN, UP), 1e6),
    "GMACs of training": (("macs",), 1e9),
}


def picture(figure: Figure, form: str = "svg", *, salt: str = "archgraph") -> bytes:
    """Return a figure as `svg`, `png` or `pdf`; the same figure gives the same bytes every time.

    Args:
        figure: What is drawn.
        form: Of the file.
        salt: What tells the identifiers in an SVG from those of others on its page.
    """
    import matplotlib as mpl

    stream = io.BytesIO()
    # The time of drawing and random identifiers would differ with every call.
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    fixed = {"svg": nothing, "pdf": {"CreationDate": None}, "png": {}}
    # Text stays text: it can be searched. Where there is no DejaVu, Verdana is as wide.
    fonts = ["DejaVu Sans", "Verdana"]
    with mpl.rc_context(
        {
            "svg.hashsalt": salt,
            "svg.fonttype": "none",
            "pdf.fonttype": 42,
            "font.sans-serif": fonts,
        }
    ):
        figure.savefig(stream, format=form, metadata=fixed[form], facecolor="white")
    return stream.getvalue()


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure as `.svg`, `.png` or `.pdf`.

    Raises:
        RunError: If the file cannot be written or its suffix is not a format.
    """
    return write(path, picture(figure, picture_form(path, FORMATS)))


def panels(
    width: float,
    count: int,
    title: str = "",
    ratios: Sequence[float] | None = None,
    points: tuple[int, int] = (13, 9),
) -> tuple[Figure, list[Axes]]:
    """Make a figure of ``count`` panels in a row, in the style of all figures.

    Args:
        width: In inches.
        count: Number of panels in a row.
        title: Heading.
        ratios: Of the widths of the panels, if there are as many.
        points: Sizes of the heading and of the numbers at the axes.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, 4.0), dpi=150, layout="constrained")
    widths = list(ratios) if ratios and count == len(ratios) else None
    grid = figure.subplots(1, count, squeeze=False, width_ratios=widths)
    axes = list(grid.flat)
    if title:
        figure.suptitle(title, fontsize=points[0], fontweight="bold", color=colours.INK)
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.spines[["left", "bottom"]].set_color(colours.LINE)
        panel.tick_params(colors=colours.INK, labelsize=points[1])
        panel.set_axisbelow(True)
    return figure, axes


def draw_line(panel: Axes, points: Series, name: str, number: int, *, bold: bool = False) -> None:
    """Draw values over their index as a line in the colour, style and marker of its number."""
    if points.empty:
        return
    repeat = number // len(colours.SERIES)  # of its colour, with another marker
    panel.plot(
        points.index,
        points,
        label=name,
        color=colours.INK if bold else colours.SERIES[number % len(colours.SERIES)],
        linestyle="-" if bold else STYLES[number % len(STYLES)],
        linewidth=2.6 if bold else 1.8,
        # Below the others: a tier that equals the global model stays visible on top of it.
        zorder=1.9 if bold else 2.0,
        # Of a curve of many rounds some points are marked: all marks would hide its line style.
        marker=MARKERS[(number + repeat) % len(MARKERS)],
        markevery=1 + len(points) // 25,
        markersize=4,
    )


def reduced(figures: DataFrame, what: str, reduce: Reduce) -> DataFrame:
    """Return one figure of all submodels of runs together: a column per seed, a row per round.

    Args:
        figures: Of runs that differ in the seed only.
        what: The figure.
        reduce: Over the submodels; of values of which one is NaN, NaN.
    """
    rows = rows_where(figures, part="test", metric=what, submodel=True)
    values = rows.groupby(["round", "seed"])["value"]
    return by_seed(values.agg(lambda of: reduce(of.to_numpy())))


def by_seed(values: Series) -> DataFrame:
    """Return values by round and seed as a table, with the rounds that every run tested."""
    return values.unstack("seed").dropna()


def by_cost(figures: DataFrame) -> dict[str, dict[str, Series]]:
    """Return what every group had spent until each round, as the mean over its runs.

    Returns:
        By what curves are drawn over beside rounds, and by group; a cost that some round does not
        say is left out.
    """
    keys = [*RUN, "round"]
    rounds = rows_where(figures, part="run").pivot(index=keys, columns="metric", values="value")
    spent = {}
    for axis, (metrics, unit) in COSTS.items():
        # A figure that no line has is a column of gaps.
        each = (rounds.reindex(columns=metrics) / unit).sum(axis=1, skipna=False)
        # Half a curve would look like a cheaper run.
        if each.notna().all():
            means = each.groupby(RUN).cumsum().groupby(["experiment", "round"]).mean()
            spent[axis] = {name: means[name] for name in means.index.unique("experiment")}
    return spent


def band(
    panel: Axes,
    runs: DataFrame,
    name: str,
    number: int,
    places: Series | None = None,
    *,
    bold: bool = False,
) -> None:
    """Draw the mean of runs as a line, and their standard deviation around it.

    Args:
        panel: Where it is drawn.
        runs: A figure by round and seed.
        name: In the legend.
        number: Of the line.
        places: Where each round stands on the axis. Default: at its number.
        bold: Whether it stands out: the global model, say.
    """
    means = runs.mean(axis=1)
    means.index = runs.index if places is None else places[runs.index]
    draw_line(panel, means, name, number, bold=bold)
    if runs.shape[1] > 1 and len(runs):
        std = runs.std(axis=1).to_numpy()
        panel.fill_between(
            means.index,
            means - std,
            means + std,
            color=colours.INK if bold else colours.SERIES[number % len(colours.SERIES)],
            alpha=0.12 if bold else 0.18,
            linewidth=0,
        )


def scale(
    panel: Axes, what: str, title: str, axis: str = "round", points: tuple[int, int] = (10, 9)
) -> None:
    """Set titles and axes of a panel over rounds; the scale of values fits what is drawn.

    Args:
        panel: With its lines.
        what: The figure.
        title: Heading.
        axis: What the curves are drawn over.
        points: Sizes of the heading and of the axis' name.
    """
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    panel.set_title(title, loc="left", fontsize=points[0], color=colours.INK)
    panel.set_xlabel(axis, fontsize=points[1], color=colours.INK)
    if axis == "round":
        panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    else:
        panel.xaxis.set_major_locator(MaxNLocator(5))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))
    fit_scale(panel, what)


def fit_scale(panel: Axes, what: str) -> None:
    """Fit the scale of values to what is drawn: no further than a share goes, nor than it can."""
    from matplotlib.ticker import PercentFormatter

    panel.grid(axis="y", color=colours.BLOCK, linewidth=0.8)
    values = [float(v) for line in panel.get_lines() for v in np.asarray(line.get_ydata())]
    points = [v for v in values if math.isfinite(v)]
    low, high = panel.dataLim.intervaly  # with bands
    if what in SHARES:
        panel.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
        if points:
            # Never less than two points of a per cent: rounding is not a trend.
            room = max(0.06 * (high - low), 0.01)
            panel.set_ylim(max(low - room, -0.01), min(high + room, 1.01))
    # Losses of runs that diverge would flatten all others.
    elif points and (what == "perplexity" or WIDE * min(points) < max(points)) and min(points) > 0:
        panel.set_yscale("log")
        panel.set_ylim(bottom=0.8 * min(points))  # a band may reach zero, which has no place


def time_spent(runs: Mapping[str, DataFrame]) -> dict[str, dict[str, float]]:
    """Return mean seconds per round by purpose, of the figures of each run or group of runs."""
    spent = {}
    for name, figures in runs.items():
        rounds = len(rows_where(figures, part="run", metric="clients"))  # every round has this row
        spent[name] = {k: v / max(rounds, 1) for k, v in seconds(figures).items()}
    return spent


def purposes_of(spent: Mapping[str, Mapping[str, float]]) -> Iterator[tuple[str, str]]:
    """Yield the purposes that can be seen in bars, with their colours."""
    total = sum(sum(of.values()) for of in spent.values())
    for purpose, fill in zip(PURPOSES, FILLS, strict=True):
        if sum(of.get(purpose, 0.0) for of in spent.values()) >= VISIBLE * total:
            yield purpose, fill
