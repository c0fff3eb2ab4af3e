"""Curves of runs: what judges them by tier over rounds, clean against attacked, and time spent."""

from __future__ import annotations

import io
import math
import os
import statistics
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archgraph.display import colours
from archgraph.errors import RunError
from archgraph.files import write
from archgraph.record.traffic import traffic
from archgraph.reports.runs import (
    RoundLine,
    better,
    judge,
    models,
    seconds,
    series,
    submodels,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("svg", "png", "pdf")
# Markers besides colours distinguish lines in print and without colour vision.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
STYLES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
# Share of the time below which a purpose cannot be seen in its bar.
VISIBLE = 0.002
# How many times the smallest value the largest one is on a logarithmic scale.
WIDE = 50
# Characters that fit side by side below one panel.
BESIDE = 45
PURPOSES = {
    "local": "local training",
    "server": "server work",
    "evaluate": "evaluation",
    "record": "record",
    "other": "other",
}


def _bytes(line: RoundLine) -> float | None:
    ways = traffic(line)
    return sum(ways.values()) / 1e6 if ways else None


def _macs(line: RoundLine) -> float | None:
    return line["macs"]["round"] / 1e9 if "macs" in line else None


# What accuracy is drawn over beside rounds, where all runs say it.
COSTS: Mapping[str, Callable[[RoundLine], float | None]] = {
    "megabytes, both ways": _bytes,
    "GMACs of training": _macs,
}


def curves(rounds: Sequence[RoundLine], *, title: str = "") -> Figure:
    """Every model by the figure that judges it (accuracy, say) over the rounds; the time split.

    Args:
        rounds: Lines of `metrics.jsonl`.
        title: Heading.

    Example:
        >>> line = {"round": 1, "evaluation": {"models": {"weak": {"accuracy": 0.5}}}}
        >>> len(curves([line]).axes)
        1
    """
    spent = seconds(rounds)
    figure, axes = panels(9.0 if spent else 6.5, 2 if spent else 1, title, ratios=(2.4, 1.0))
    tiers_panel(axes[0], rounds)
    if spent:
        time_panel(axes[1], {title or "run": rounds})
    return figure


def spread(groups: Mapping[str, Sequence[Sequence[RoundLine]]], *, title: str = "") -> Figure:
    """Groups of runs that differ in the seed only: means as lines, standard deviations as bands.

    Args:
        groups: The lines of `metrics.jsonl` of each run, by the name of the group.
        title: Heading.

    Raises:
        RunError: If there are no runs.
    """
    runs = {name: [line for rounds in many for line in rounds] for name, many in groups.items()}
    if not any(runs.values()):
        raise RunError("no runs to compare", expected="at least one")
    everything = [line for lines in runs.values() for line in lines]
    what = judge(everything)
    worst = min if better(everything, what) else max
    timed = any(seconds(lines) for lines in runs.values())
    costs = by_cost(groups)
    number_of = 2 + len(costs) + timed
    figure, axes = panels(2.5 + 3.5 * number_of, number_of, title)
    for number, (name, many) in enumerate(groups.items()):
        band(axes[0], [reduced(rounds, what, statistics.fmean) for rounds in many], name, number)
        band(axes[1], [reduced(rounds, what, worst) for rounds in many], name, number)
    scale(axes[0], what, f"average submodel: {what}")
    scale(axes[1], what, f"worst submodel: {what}")
    if len(groups) > 1:
        axes[0].legend(frameon=False, labelcolor=colours.INK, fontsize=9)
    for panel, (axis, known) in zip(axes[2:], costs.items(), strict=False):
        for number, (name, many) in enumerate(groups.items()):
            means = [reduced(rounds, what, statistics.fmean) for rounds in many]
            band(panel, means, name, number, known[name])
        scale(panel, what, f"average submodel over {axis}", axis=axis)
    if timed:
        time_panel(axes[-1], runs)
    return figure


def picture(figure: Figure, form: str = "svg") -> bytes:
    """A figure as `svg`, `png` or `pdf`; the same figure gives the same bytes every time."""
    import matplotlib as mpl

    stream = io.BytesIO()
    fixed: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    with mpl.rc_context({"svg.hashsalt": "archgraph", "svg.fonttype": "none"}):
        figure.savefig(stream, format=form, dpi=150, metadata=fixed[form], facecolor="white")
    return stream.getvalue()


def save(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure as `.svg`, `.png` or `.pdf`.

    Raises:
        RunError: If the file cannot be written or its ending names no format.
    """
    form = Path(path).suffix.lower().lstrip(".")
    if form not in FORMATS:
        raise RunError(
            "is not a picture format",
            where=str(path),
            found=Path(path).suffix or "no ending",
            expected=" or ".join(f".{name}" for name in FORMATS),
        )
    return write(path, picture(figure, form))


def panels(
    width: float,
    count: int,
    title: str = "",
    ratios: Sequence[float] | None = None,
    height: float = 4.0,
) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels in a row, in the style of all."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    grid: Any = {"width_ratios": list(ratios)} if ratios and count == len(ratios) else {}
    axes = list(figure.subplots(1, count, squeeze=False, gridspec_kw=grid)[0])
    if title:
        figure.suptitle(title, fontsize=13, fontweight="bold", color=colours.INK)
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.spines[["left", "bottom"]].set_color(colours.LINE)
        panel.tick_params(colors=colours.INK, labelsize=9)
        panel.set_axisbelow(True)
    return figure, axes


def draw_line(
    panel: Axes,
    points: tuple[Sequence[float], Sequence[float]],
    name: str,
    number: int,
    *,
    bold: bool = False,
) -> None:
    """A line in the colour, style and marker of its number."""
    if not points[0]:
        return
    panel.plot(
        *points,
        label=name,
        color=colours.INK if bold else colours.SERIES[number % len(colours.SERIES)],
        linestyle="-" if bold else STYLES[number % len(STYLES)],
        linewidth=2.6 if bold else 1.8,
        # Below the others: a tier that equals the global model stays visible on top of it.
        zorder=1.9 if bold else 2.0,
        # A curve of many rounds is distinguished by its line style; markers would hide it.
        marker=MARKERS[number % len(MARKERS)] if len(points[0]) <= 25 else None,
        markersize=4,
    )


def reduced(
    rounds: Sequence[RoundLine], what: str, reduce: Callable[[Iterable[float]], float]
) -> dict[int, float]:
    """One figure of all submodels together, by round."""
    values_by_round = {}
    for line in rounds:
        values = [row.get(what) for row in submodels(line)]
        if values and None not in values:
            values_by_round[int(line["round"])] = reduce(v for v in values if v is not None)
    return values_by_round


def by_cost(
    groups: Mapping[str, Sequence[Sequence[RoundLine]]],
) -> dict[str, dict[str, dict[int, float]]]:
    """What every group had spent until each round, by what curves are drawn over beside rounds.

    A cost that some round does not say is left out.
    """
    spent = {
        axis: {name: _cumulated(many, read) for name, many in groups.items()}
        for axis, read in COSTS.items()
    }
    return {axis: known for axis, known in spent.items() if all(known.values())}


def _cumulated(
    many: Sequence[Sequence[RoundLine]], read: Callable[[RoundLine], float | None]
) -> dict[int, float]:
    """What was spent until each round, as the mean of the runs; empty: some round does not say."""
    sums: dict[int, list[float]] = defaultdict(list)
    for rounds in many:
        total = 0.0
        for line in rounds:
            value = read(line)
            if value is None:
                return {}
            total += value
            sums[int(line["round"])].append(total)
    return {number: statistics.fmean(values) for number, values in sums.items()}


def band(
    panel: Axes,
    runs: Sequence[Mapping[int, float]],
    name: str,
    number: int,
    places: Mapping[int, float] | None = None,
    *,
    bold: bool = False,
) -> None:
    """The mean of runs as a line, from round to round that all of them tested.

    Args:
        panel: Where it is drawn.
        runs: A figure by round, of each.
        name: In the legend.
        number: Of the line.
        places: Where each round stands on the axis; None: at its number.
        bold: Whether it stands out: the global model, say.
    """
    common = sorted(set.intersection(*map(set, runs)))
    at = common if places is None else [places[n] for n in common]
    values = [[run[at] for run in runs] for at in common]
    means = [statistics.fmean(row) for row in values]
    draw_line(panel, (at, means), name, number, bold=bold)
    if len(runs) > 1 and common:
        stds = [statistics.stdev(row) for row in values]
        panel.fill_between(
            at,
            [m - s for m, s in zip(means, stds, strict=True)],
            [m + s for m, s in zip(means, stds, strict=True)],
            color=colours.INK if bold else colours.SERIES[number % len(colours.SERIES)],
            alpha=0.12 if bold else 0.18,
            linewidth=0,
        )


def scale(
    panel: Axes, what: str, title: str, more: bool | None = None, axis: str = "round"
) -> None:
    """Titles and axes of a panel over rounds; the scale of values fits what is drawn.

    Args:
        panel: With its lines.
        what: The figure.
        title: Heading.
        more: Whether more of it is better, to be said; None: that goes without saying.
        axis: What the curves are drawn over.
    """
    from matplotlib.ticker import MaxNLocator

    said = {None: "", True: " (higher is better)", False: " (lower is better)"}[more]
    panel.set_title(title + said, loc="left", fontsize=10, color=colours.INK)
    panel.set_xlabel(axis, fontsize=9, color=colours.INK)
    if axis == "round":
        panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    fit(panel, what)


def fit(panel: Axes, what: str) -> None:
    """A scale of values that fits what is drawn: no further than a share goes, nor than it can."""
    import numpy as np
    from matplotlib.ticker import PercentFormatter

    panel.grid(axis="y", color=colours.BLOCK, linewidth=0.8)
    values = [float(v) for line in panel.get_lines() for v in np.asarray(line.get_ydata())]
    bands = (path.vertices for part in panel.collections for path in part.get_paths())
    values += [float(v) for corners in bands for v in np.asarray(corners)[:, 1]]
    known = [v for v in values if math.isfinite(v)]
    if what == "accuracy":
        panel.yaxis.set_major_formatter(PercentFormatter(1.0))
        if known:
            # Never less than two points of a per cent: rounding is not a trend.
            room = max(0.06 * (max(known) - min(known)), 0.01)
            panel.set_ylim(max(min(known) - room, -0.01), min(max(known) + room, 1.01))
    elif what == "perplexity" or (known and 0 < WIDE * min(known) < max(known)):
        panel.set_yscale("log")


def tiers_panel(panel: Axes, rounds: Sequence[RoundLine]) -> None:
    """Every model by the figure that judges it, over the rounds."""
    what = judge(rounds)
    names = models(rounds)
    others = [name for name in names if name != "global"]
    for number, name in enumerate(others):
        draw_line(panel, series(rounds, "models", name, what), name, number)
    if "global" in names:
        points = series(rounds, "models", "global", what)
        draw_line(panel, points, "global", 0, bold=True)
    held = series(rounds, "global", what, part="validation")
    draw_line(panel, held, "on validation examples", len(others))
    more = better(rounds, what)
    scale(panel, what, f"{what} on all test data", None if what == "accuracy" else more)
    if names:
        panel.legend(frameon=False, labelcolor=colours.INK, fontsize=9, loc="best")
    else:
        panel.text(
            0.5, 0.5, "nothing was tested yet", transform=panel.transAxes, ha="center", fontsize=9
        )


def time_panel(panel: Axes, runs: Mapping[str, Sequence[RoundLine]]) -> None:
    """Seconds per round by purpose, a bar per run."""
    names = list(runs)
    left = [0.0] * len(names)
    spent = [
        {k: v / max(len(rounds), 1) for k, v in seconds(rounds).items()} for rounds in runs.values()
    ]
    fills = ("#0072b2", "#d55e00", "#9cc4e2", "#c9ced4", "#e6eaee")
    for (purpose, label), fill in zip(PURPOSES.items(), fills, strict=True):
        values = [bar.get(purpose, 0.0) for bar in spent]
        if sum(values) < VISIBLE * sum(sum(bar.values()) for bar in spent):
            continue
        panel.bar(range(len(names)), values, bottom=left, width=0.55, color=fill, label=label)
        left = [a + b for a, b in zip(left, values, strict=True)]
    few = len(names) <= 4
    told = ["\n".join(textwrap.wrap(name, BESIDE // len(names))) if few else name for name in names]
    panel.set_xticks(range(len(names)), told if len(names) > 1 else [""])
    if not few:
        panel.tick_params(axis="x", labelrotation=25)
        for text in panel.get_xticklabels():
            text.set_horizontalalignment("right")
    panel.set_xlim(-0.8, len(names) - 0.2)
    panel.set_title("seconds per round", loc="left", fontsize=10, color=colours.INK)
    panel.grid(axis="y", color=colours.BLOCK, linewidth=0.8)
    panel.set_ylim(0, max(left, default=1.0) * 1.45 or 1.0)
    panel.legend(
        frameon=False, labelcolor=colours.INK, fontsize=8, loc="upper center", reverse=True
    )
