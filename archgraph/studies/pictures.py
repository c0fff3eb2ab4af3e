"""A study's figures as pictures: curves over rounds and costs, differences with their intervals."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from archgraph.display import colours
from archgraph.reports.comparison import Comparison, RunGroup, by_test
from archgraph.reports.measures import SHARES
from archgraph.reports.paper import bands_words, legend_below
from archgraph.reports.plots import band, by_cost, panels, scale
from archgraph.studies.claims import Judged
from archgraph.studies.spec import StudyFigure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from archgraph.studies.study import StudyResult

# Figures of a study that are drawn, at most.
MOST = 3
# Inches: of a panel, of a line of differences, and what titles and axes take.
PANEL, TALL, LINE, AROUND = 3.4, 2.5, 0.25, 0.8
# How many times the median reach of the intervals an axis of differences goes.
FAR = 3.5
SHADES = {"holds": colours.SERIES[2], "against": colours.SERIES[1], "equivalent": colours.SERIES[0]}

Curves: TypeAlias = Mapping[str, Mapping[str, "DataFrame"]]
"""By figure and row the value of each test: a column per seed, a row per round."""


def columns_of(result: StudyResult) -> dict[str, Comparison]:
    """Return the finished runs by column, those of each row as a group of its name."""
    columns: dict[str, list[RunGroup]] = {}
    for (row, column), of in result.groups.items():
        # Figures of a cell are read from the same runs; one at equal cost has a part of them.
        longest = max(of.values(), key=lambda group: group.at)
        columns.setdefault(column, []).append(replace(longest, label=row))
    return {column: Comparison(tuple(groups), ()) for column, groups in columns.items()}


def curves_of(result: StudyResult, column: str, compared: Comparison) -> Curves:
    """Return the curves of a column: of the figures that claims use, without claims of all.

    What no test measures, such as bytes, has no curve. Figures that read one measure in several
    ways (the last test, a mean of the last ones) have one curve.

    Args:
        result: The study.
        column: The column.
        compared: Its runs.
    """
    read = result.spec.read
    cells = {one.cell.row: one.cell.figures for one in result.runs if one.cell.column == column}
    claimed = [name for c in result.spec.claims for name in ([c.by] if c.by else read)]
    first: dict[str, str] = {}  # figure of each measure
    for name in claimed or read:
        first.setdefault(read[name].measure, name)
    curves: dict[str, Mapping[str, DataFrame]] = {}
    for name in first.values():
        each = {of.label: by_test(of, cells[of.label][name].measure) for of in compared.groups}
        if len(curves) < MOST and (drawn := {row: of for row, of in each.items() if len(of)}):
            curves[name] = drawn
    return curves


def column_picture(
    compared: Comparison, curves: Curves, read: Mapping[str, StudyFigure], title: str
) -> Figure:
    """Draw figures of every row over the rounds, the bytes and the MACs; a line of panels for each.

    Lines are means over the seeds, bands standard deviations. A row without communication has its
    last value in the panel of bytes.

    Args:
        compared: A column's runs.
        curves: Its curves (:func:`curves_of`).
        read: The study's figures.
        title: Heading.
    """
    costs = by_cost(compared.frame)
    over = ("round", *costs)
    figure, axes = panels(PANEL * len(over), len(over), title, rows=len(curves))
    bands = bands_words(next(iter(curves.values())))
    said = [f"lines and bands: {bands}" if bands else "one seed"]
    for panel, (name, axis) in zip(axes, itertools.product(curves, over), strict=True):
        for number, group in enumerate(compared.groups):
            if (values := curves[name].get(group.label)) is None:
                continue
            spent = costs[axis][group.label][values.index] if axis in costs else None
            if spent is None or len(spent) == 1 or spent.nunique() > 1:
                band(panel, values, group.label, number, spent)
            else:  # the curve would be vertical
                level, shade = (
                    values.mean(axis=1).iloc[-1],
                    colours.SERIES[number % len(colours.SERIES)],
                )
                panel.axhline(level, color=shade, linestyle=(0, (4, 4)), linewidth=1.2)
                said.append(f"dashed: last test of {group.label}, which exchanges nothing")
        scale(panel, read[name].quantity, "", axis=axis)
        if axis == "round":
            panel.set_ylabel(f"{name}\n{read[name].measure}", fontsize=9, color=colours.INK)
        if (last := read[name].last) is not None:
            planned = dict.fromkeys(group.planned for group in compared.groups)
            rounds = dict.fromkeys(min(last if last >= 1 else last * n, n) for n in planned)
            many = " or ".join(f"{number:g}" for number in rounds)
            said.append(f"the table averages the tests of the last {many} rounds")
    legend_below(figure, AROUND + TALL * len(curves), "; ".join(dict.fromkeys(said)), 9)
    return figure


def drawable(judged: Sequence[Judged]) -> list[Judged]:
    """Return the comparisons that have an interval and a margin: those of accuracies.

    One that refers to another study is drawn there.
    """
    return [
        one
        for one in judged
        if (paired := one.tabled) is not None
        and paired.margin is not None
        and paired.interval is not None
    ]


def differences_picture(judged: Sequence[Judged], title: str = "") -> Figure:
    """Draw differences with their 95 % intervals, a panel for each figure.

    A grey bar is the margin of equivalence; points of claims without a verdict are hollow.

    Args:
        judged: The comparisons (:func:`drawable`), from top to bottom.
        title: Heading.
    """
    parts: dict[str, list[Judged]] = {}
    for one in judged:
        parts.setdefault(one.finding.figure, []).append(one)
    lines = [len(part) + 2 for part in parts.values()]  # with title and numbers
    figure, axes = panels(7.2, 1, title, rows=len(parts), heights=lines)
    for panel, part in zip(axes, parts.values(), strict=True):
        _differences(panel, part)
    left, right = axes[-1].get_xlim()
    middle = min(max(left / (left - right), 0.25), 0.65)  # zero, unless words would be cut off
    words = "← against the claim · favours the claim →"
    axes[-1].set_xlabel(words, x=middle, fontsize=9, color=colours.INK)
    seeds = {len(one.finding.paired.differences) for one in judged if one.finding.paired}
    number = " or ".join(map(str, sorted(seeds)))
    caption = f"points and lines: mean difference over {number} seeds with its 95 % interval"
    legend_below(figure, AROUND + LINE * sum(lines), caption, 9)
    return figure


def _differences(panel: Axes, judged: Sequence[Judged]) -> None:
    """Draw the differences of one figure.

    1. The axis reaches as far as the intervals, but no further than FAR times their median.
    2. What goes on beyond it ends in an arrow, with the mean if that is beyond, too.
    """
    findings = [one.finding for one in judged]
    pairs = [f.paired for f in findings if f.paired is not None]
    ends = np.array([pair.interval for pair in pairs])
    margins = np.array([pair.margin for pair in pairs])
    far = FAR * np.median(np.abs(ends).max(axis=1))  # 1
    low = min(max(ends.min(), -far), -margins.max())
    high = max(min(ends.max(), far), margins.max())
    room, lines = 0.05 * (high - low), range(len(pairs))
    panel.axvline(0, color=colours.LINE, linewidth=0.8, zorder=1.5)
    label = "margin of equivalence"
    panel.barh(lines, 2 * margins, left=-margins, color=colours.BLOCK, label=label)
    for line, pair, outcome in zip(lines, pairs, (one.outcome for one in judged), strict=True):
        shade = SHADES.get(outcome or "", colours.INK)
        style: dict[str, Any] = {
            "color": shade,
            "markerfacecolor": shade if outcome in SHADES else "white",
        }
        panel.plot(ends[line], [line] * 2, color=shade, linewidth=1.8)
        label = outcome or "exploratory: no verdict"
        panel.plot([pair.mean], [line], "o" if outcome else "s", label=label, **style)
        beyond = {"<": ends[line, 0] < low, ">": ends[line, 1] > high}  # 2
        for arrow, edge in (("<", low - room), (">", high + room)):
            if beyond[arrow]:
                panel.plot([edge], [line], arrow, clip_on=False, **style)
                side = "right" if arrow == ">" else "left"
                said = "" if low <= pair.mean <= high else f"{pair.mean:+.1f}"
                panel.text(edge, line - 0.15, said, ha=side, fontsize=8, color=shade)
    panel.set_xlim(low - room, high + room)
    panel.set_ylim(len(pairs) - 0.4, -0.6)
    several = len({f.where for f in findings}) > 1
    names = [
        f"{f.claim.replace(' better than ', ' vs ')}{f', {f.where}' * several}" for f in findings
    ]
    panel.set_yticks(lines, names)
    quantity = StudyFigure(measure=findings[0].runs[0].partition("@")[0]).quantity
    unit = "percentage points" if quantity in SHARES else quantity
    heading = ", ".join(filter(None, (findings[0].figure, "" if several else findings[0].where)))
    panel.set_title(f"{heading}: difference in {unit}", loc="left", fontsize=10, color=colours.INK)
