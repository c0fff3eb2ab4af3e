"""Plots of runs: metrics against rounds or cost, and the time of each phase."""

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
# Markers distinguish lines in print and for colour-blind readers.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", "*", ">")
STYLES: tuple[str | tuple[float, tuple[float, ...]], ...] = (
    "-",
    (0, (5, 2)),
    (0, (1, 1.5)),
    (0, (6, 2, 1, 2)),
)
# Phases with a smaller fraction of the time are omitted.
VISIBLE = 0.002
# If the largest value is this many times the smallest value, the scale is logarithmic.
WIDE = 50
PURPOSES = {
    "local": "local training",
    "server": "server work",
    "evaluate": "evaluation",
    "record": "record",
    "other": "other",
}
FILLS = ("#0072b2", "#d55e00", "#9cc4e2", "#9aa5b1", "#e6eaee")

# Horizontal axes other than rounds: the columns to add up, and the unit.
COSTS: Mapping[str, tuple[tuple[str, ...], float]] = {
    "megabytes, both ways": ((DOWN, UP), 1e6),
    "GMACs of training": (("macs",), 1e9),
}


def picture(figure: Figure, form: str = "svg", *, salt: str = "archgraph") -> bytes:
    """Render a figure as `svg`, `png` or `pdf`, deterministically.

    Args:
        figure: The figure.
        form: File format.
        salt: Text that makes the identifiers in an SVG distinct from those of other SVGs on a page.
    """
    import matplotlib as mpl

    stream = io.BytesIO()
    # Dates and random identifiers would differ with every call.
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    fixed = {"svg": nothing, "pdf": {"CreationDate": None}, "png": {}}
    # Text is kept as text, so that it can be searched. Verdana is as wide as DejaVu.
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
    """Create a figure with panels in a row, in the common style.

    Args:
        width: Width in inches.
        count: Number of panels.
        title: Title of the figure.
        ratios: Relative widths of the panels; ignored unless there are ``count`` of them.
        points: Font sizes of the title and of tick labels.
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


def reduced(figures: DataFrame, what: str, reduce: Reduce) -> DataFrame:
    """Reduce a metric over the submodels. The result has a column per seed and a row per round.

    Args:
        figures: Data frame of runs that differ only in the seed.
        what: The metric.
        reduce: Function that reduces the values of the submodels. It should return NaN if one value
            is NaN.
    """
    rows = rows_where(figures, part="test", metric=what, submodel=True)
    values = rows.groupby(["round", "seed"])["value"]
    return by_seed(values.agg(lambda of: reduce(of.to_numpy())))


def by_seed(values: Series) -> DataFrame:
    """Unstack values by round and seed. Rounds that some run did not test are dropped."""
    return values.unstack("seed").dropna()


def by_cost(figures: DataFrame) -> dict[str, dict[str, Series]]:
    """Return the cumulative cost of each group by round, as the mean over its runs.

    Returns:
        Dict from axis label (:data:`COSTS`) to a dict from group to costs. Costs that some round
        did not record are omitted.
    """
    keys = [*RUN, "round"]
    rounds = rows_where(figures, part="run").pivot(index=keys, columns="metric", values="value")
    spent = {}
    for axis, (metrics, unit) in COSTS.items():
        # Values that no round recorded are columns of NaN.
        each = (rounds.reindex(columns=metrics) / unit).sum(axis=1, skipna=False)
        # A partial curve would look like a cheaper run.
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
    """Draw the mean over runs as a line with a band of one standard deviation.

    Args:
        panel: Axes to draw on.
        runs: Values of one metric by round and seed. If empty, nothing is drawn.
        name: Label in the legend.
        number: Number of the line, which sets its colour, style and marker.
        places: Position of each round on the axis. Default: its number.
        bold: Whether to emphasise the line, as for the global model.
    """
    if runs.empty:
        return
    means = runs.mean(axis=1)
    means.index = runs.index if places is None else places[runs.index]
    repeat, at = divmod(number, len(colours.SERIES))
    colour = colours.INK if bold else colours.SERIES[at]
    panel.plot(
        means.index,
        means,
        label=name,
        color=colour,
        linestyle="-" if bold else STYLES[number % len(STYLES)],
        linewidth=2.6 if bold else 1.8,
        # Drawn below the other lines, so that a tier with the same values stays visible.
        zorder=1.9 if bold else 2.0,
        # A colour that repeats gets another marker.
        marker=MARKERS[(number + repeat) % len(MARKERS)],
        # Markers at every round of a long run would hide the line style.
        markevery=1 + len(means) // 25,
        markersize=4,
    )
    if runs.shape[1] > 1:
        std = runs.std(axis=1).to_numpy()
        alpha = 0.12 if bold else 0.18
        panel.fill_between(
            means.index, means - std, means + std, color=colour, alpha=alpha, linewidth=0
        )


def scale(
    panel: Axes, what: str, title: str, axis: str = "round", points: tuple[int, int] = (10, 9)
) -> None:
    """Set the title, the labels and the scale of a panel.

    Args:
        panel: Axes with their lines.
        what: The metric.
        title: Title of the panel.
        axis: Label of the horizontal axis.
        points: Font sizes of title and label.
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
    """Fit the vertical scale to the lines, within the range of the metric."""
    from matplotlib.ticker import PercentFormatter

    panel.grid(axis="y", color=colours.BLOCK, linewidth=0.8)
    values = [float(v) for line in panel.get_lines() for v in np.asarray(line.get_ydata())]
    points = [v for v in values if math.isfinite(v)]
    low, high = panel.dataLim.intervaly  # includes bands
    if what in SHARES:
        panel.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
        if points:
            # At least two percentage points, so that rounding does not look like a trend.
            room = max(0.06 * (high - low), 0.01)
            panel.set_ylim(max(low - room, -0.01), min(high + room, 1.01))
    # On a linear scale, losses of diverging runs would flatten all others.
    elif points and (what == "perplexity" or WIDE * min(points) < max(points)) and min(points) > 0:
        panel.set_yscale("log")
        panel.set_ylim(bottom=0.8 * min(points))  # a band may reach zero


def time_spent(runs: Mapping[str, DataFrame]) -> dict[str, dict[str, float]]:
    """Return the mean seconds per round of each phase, for each run or group of runs."""
    spent = {}
    for name, figures in runs.items():
        rounds = len(rows_where(figures, part="run", metric="clients"))  # every round has this row
        spent[name] = {k: v / max(rounds, 1) for k, v in seconds(figures).items()}
    return spent


def purposes_of(spent: Mapping[str, Mapping[str, float]]) -> Iterator[tuple[str, str]]:
    """Yield the phases that are large enough to be visible, with their colours."""
    total = sum(sum(of.values()) for of in spent.values())
    for purpose, fill in zip(PURPOSES, FILLS, strict=True):
        if sum(of.get(purpose, 0.0) for of in spent.values()) >= VISIBLE * total:
            yield purpose, fill
