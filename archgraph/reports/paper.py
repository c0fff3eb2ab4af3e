"""Plots of several runs for print: one figure per panel, with the legend below."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from archgraph.display import colours
from archgraph.display.printed import UNITS, width_in_points
from archgraph.reports.comparison import Comparison
from archgraph.reports.plots import (
    PURPOSES,
    band,
    by_cost,
    fit_scale,
    panels,
    purposes_of,
    reduced,
    time_spent,
)
from archgraph.reports.runs import better, judge, rows_where

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

# Label of the horizontal axis of each panel.
PANELS: Mapping[str, str] = {
    "average": "round",
    "worst": "round",
    "bytes": "megabytes, both ways",
    "macs": "GMACs of training",
    "time": "seconds per round",
}
# Font sizes in points: names of axes; numbers and legends.
NAMES, NUMBERS = 8, 7
# Inches: maximum height of the axes with their labels, and height of a line of text.
TALL, LINE = 2.4, 0.16
# Characters per inch in a legend and in a bar's name; width of a legend's line sample, in
# characters.
ACROSS, BESIDE, SAMPLE = 17, 6, 7


def paper_figures(compared: Comparison, *, width: str = "3.3in") -> dict[str, Figure]:
    """Plot each panel for which every run has data.

    Lines are means over runs that differ only in the seed. Bands show one standard deviation.

    Args:
        compared: The runs.
        width: Width of each figure in print, such as ``3.3in``, ``84mm`` or ``240pt``. The font
            size is at least 7 points at any width.

    Returns:
        A dict from the name of a panel in :data:`PANELS` to its figure.
    """
    inches, figures = width_in_points(width) / UNITS["in"], compared.frame
    logs = [log for group in compared.groups for log in group.runs]
    rows = {of.label: rows_where(figures, experiment=of.label) for of in compared.groups}
    what, costs, spent = judge(logs), by_cost(figures), time_spent(rows)
    known = [name for name, axis in PANELS.items() if axis == "round" or axis in costs]
    known += ["time"] if any(spent.values()) else []
    drawn = {}
    for name in known:
        figure, (panel,) = panels(inches, 1, points=(NAMES, NUMBERS))
        drawn[name] = figure
        if name == "time":
            lines = time_bars(panel, spent, int(BESIDE * inches))
            panel.set_xlabel(PANELS["time"], fontsize=NAMES, color=colours.INK)
            legend_below(figure, LINE * (4 + 1.4 * lines))
            continue
        reduce = np.mean if name != "worst" else np.min if better(logs, what) else np.max
        curves = {group: reduced(of, what, reduce) for group, of in rows.items()}
        for number, (group, values) in enumerate(curves.items()):
            band(panel, values, group, number, costs.get(PANELS[name], {}).get(group))
        _axes(panel, PANELS[name], f"{'worst' if name == 'worst' else 'average'} {what}")
        fit_scale(panel, what)
        legend_below(figure, min(0.62 * inches, TALL), bands_words(curves))
    return drawn


def _axes(panel: Axes, below: str, beside: str) -> None:
    """Label the axes, with few ticks."""
    from matplotlib.ticker import MaxNLocator

    panel.set_xlabel(below, fontsize=NAMES, color=colours.INK)
    panel.set_ylabel(beside, fontsize=NAMES, color=colours.INK)
    panel.xaxis.set_major_locator(MaxNLocator(6, integer=below == "round", min_n_ticks=1))
    panel.yaxis.set_major_locator(MaxNLocator(5))
    for line in panel.get_lines():
        line.set(linewidth=1.2, markersize=3)


def bands_words(curves: Mapping[str, DataFrame]) -> str:
    """Describe the bands for the legend; empty if there are none."""
    seeds = sorted({values.shape[1] for values in curves.values()})
    if seeds[-1] < 2:
        return ""
    number = str(seeds[-1]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return f"mean ± standard deviation, {number} seeds"


def legend_below(figure: Figure, tall: float, title: str = "", points: int = NUMBERS) -> None:
    """Put the legend below the axes, in as many columns as fit.

    Args:
        figure: A figure with labelled artists.
        tall: Height of all axes with their labels, in inches.
        title: Title of the legend.
        points: Font size.
    """
    across = int(ACROSS * NUMBERS / points * figure.get_figwidth())
    handles = {
        textwrap.fill(label, across - SAMPLE): handle
        for panel in figure.axes
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    if not handles:
        figure.set_figheight(tall)
        return
    longest = max(len(line) for label in handles for line in label.split("\n"))
    columns = max(1, min(len(handles), across // (longest + SAMPLE)))
    columns = math.ceil(len(handles) / math.ceil(len(handles) / columns))  # equally long lines
    title = textwrap.fill(title, across)
    legend = figure.legend(
        list(handles.values()),
        list(handles),
        title=title or None,
        title_fontsize=points,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        labelcolor=colours.INK,
        fontsize=points,
        handlelength=2.6,
        columnspacing=1.2,
        labelspacing=0.35,
    )
    legend.get_title().set(color=colours.INK, multialignment="center")
    lines = math.ceil(sum(label.count("\n") + 1 for label in handles) / columns)
    lines += title.count("\n") + bool(title)
    figure.set_figheight(tall + LINE * points / NUMBERS * lines)
    figure.set_dpi(300)


def time_bars(panel: Axes, spent: Mapping[str, Mapping[str, float]], across: int = 1) -> int:
    """Draw the seconds per round of each phase, with a bar for each group.

    Args:
        panel: Axes to draw on.
        spent: Dict from group to the seconds of each phase.
        across: Characters per line of a group's name, shown if there are several groups.

    Returns:
        Number of lines of the longest name.
    """
    names = [textwrap.fill(name, across) if len(spent) > 1 else "" for name in spent]
    left = [0.0] * len(names)
    for purpose, fill in purposes_of(spent):
        values = [of.get(purpose, 0.0) for of in spent.values()]
        label = PURPOSES[purpose]
        panel.barh(range(len(names)), values, left=left, height=0.6, color=fill, label=label)
        left = [a + b for a, b in zip(left, values, strict=True)]
    panel.set_yticks(range(len(names)), names)
    panel.tick_params(axis="y", length=0)
    panel.invert_yaxis()
    panel.grid(axis="x", color=colours.BLOCK, linewidth=0.8)
    return sum(name.count("\n") + 1 for name in names)
