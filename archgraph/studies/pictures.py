"""A study as a plot: its first figure over rounds and costs, a line of panels for each column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from archgraph.display import colours
from archgraph.reports.comparison import Comparison, RunGroup, by_test
from archgraph.reports.paper import bands_words, legend_below
from archgraph.reports.plots import band, by_cost, panels, scale
from archgraph.studies.study import StudyResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame, Series

# Inches: of a panel, and what titles and axes take.
PANEL, TALL, AROUND = 3.4, 2.5, 0.8

Curves: TypeAlias = Mapping[str, "DataFrame"]
"""By row the value of each test: a column per seed, a row per round."""


def columns_of(result: StudyResult) -> dict[str, Comparison]:
    """Return the finished runs by column, those of each row as a group of its name."""
    columns: dict[str, list[RunGroup]] = {}
    for (row, column), of in result.groups.items():
        # Figures of a cell are read from the same runs; one at equal cost has a part of them.
        longest = max(of.values(), key=lambda group: group.at)
        columns.setdefault(column, []).append(replace(longest, label=row))
    return {column: Comparison(tuple(groups), ()) for column, groups in columns.items()}


def curves_of(result: StudyResult, column: str, compared: Comparison) -> tuple[str, Curves]:
    """Return the first figure that tests measure, and its curves; without one: nothing.

    Args:
        result: The study.
        column: The column.
        compared: Its runs.
    """
    cells = {one.cell.row: one.cell.figures for one in result.runs if one.cell.column == column}
    for name in result.spec.figures:
        each = {of.label: by_test(of, cells[of.label][name].measure) for of in compared.groups}
        if drawn := {row: of for row, of in each.items() if len(of)}:
            return name, drawn
    return "", {}


def study_picture(result: StudyResult) -> Figure | None:
    """Draw the first figure of every row over the rounds, the bytes and the MACs, by column.

    Lines are means over the seeds, bands standard deviations. A row without communication has its
    last value in the panel of bytes, and one with a single test, such as a trivial model, in each.
    None without a run that was tested twice.
    """
    every = {
        column: (compared, name, curves)
        for column, compared in columns_of(result).items()
        for name, curves in [curves_of(result, column, compared)]
        if any(len(of) > 1 for of in curves.values())
    }
    if not every:
        return None
    # What was tested once did not train: it has no costs.
    costs = {}
    for column, (compared, _, curves) in every.items():
        trained = tuple(of for of in compared.groups if len(curves.get(of.label, ())) > 1)
        costs[column] = by_cost(Comparison(trained, ()).frame)
    over = ("round", *dict.fromkeys(axis for of in costs.values() for axis in of))
    figure, axes = panels(PANEL * len(over), len(over), result.spec.study, rows=len(every))
    lines = [axes[i : i + len(over)] for i in range(0, len(axes), len(over))]
    bands = dict.fromkeys(bands_words(curves) for _, _, curves in every.values())
    said = [f"lines and bands: {words}" if words else "one seed" for words in bands]
    for line, (column, (compared, name, curves)) in zip(lines, every.items(), strict=True):
        for panel, axis in zip(line, over, strict=True):
            for number, group in enumerate(compared.groups):
                if (values := curves.get(group.label)) is None:
                    continue
                spent = costs[column].get(axis, {}).get(group.label)
                if _drawn(panel, values, group.label, number, spent) == "level":
                    said.append(f"dashed: last test of {group.label}")
            scale(panel, result.spec.read[name].quantity, "", axis=axis)
            if axis == "round":
                label = "\n".join(filter(None, (column, name)))
                panel.set_ylabel(label, fontsize=9, color=colours.INK)
    legend_below(figure, AROUND + TALL * len(every), "; ".join(dict.fromkeys(said)), 9)
    return figure


def _drawn(
    panel: Axes, values: DataFrame, name: str, number: int, spent: Series | None
) -> Literal["curve", "level"]:
    """Draw a row as a curve, or as a level where that would be vertical, or a point."""
    places = None if spent is None else spent.reindex(values.index)
    if len(values) > 1 and (places is None or places.nunique() > 1):
        band(panel, values, name, number, places)
        return "curve"
    shade = colours.SERIES[number % len(colours.SERIES)]
    level = values.mean(axis=1).iloc[-1]
    line = panel.axhline(level, color=shade, linestyle=(0, (4, 4)), linewidth=1.2)
    line.set_label(name if len(values) == 1 else "")
    return "level"
