"""A study's figures as pictures: curves over rounds and costs, differences with their intervals."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from archgraph.display import colours
from archgraph.reports.comparison import Comparison, RunGroup, by_test, part_of_rounds
from archgraph.reports.measures import SHARES
from archgraph.reports.plots import band, by_cost, legend_below, many_seeds, panels, scale
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
FAR = 4.0
FILLED = {"holds": colours.SERIES[2], "against": colours.SERIES[1], "equivalent": colours.SERIES[0]}
SHADES = {**FILLED, "undecided": colours.INK}

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
    """Return the curves of a column: of the figures that claims use, else of the first ones.

    What no test measures, such as bytes, has no curve; of figures that read one measure in several
    ways (the last test, the mean of the last ones), the first has it.

    Args:
        result: The study.
        column: The column.
        compared: Its runs.
    """
    spec = result.spec
    cells = {one.cell.row: one.cell.figures for one in result.runs if one.cell.column == column}
    claimed = [name for c in spec.claims for name in ([c.by] if c.by else spec.figures)]
    curves: dict[str, Mapping[str, DataFrame]] = {}
    measures: set[str] = set()
    for name in dict.fromkeys((*claimed, *spec.figures)):
        # After the last figure of a claim, others only where claims have no curve.
        if len(curves) == MOST or (curves and name not in claimed):
            break
        if spec.read[name].measure not in measures:
            rows = {of.label: by_test(of, cells[of.label][name].measure) for of in compared.groups}
            if drawn := {row: values for row, values in rows.items() if len(values)}:
                curves[name] = drawn
                measures.add(spec.read[name].measure)
    return curves


def column_picture(
    compared: Comparison, curves: Curves, read: Mapping[str, StudyFigure], title: str
) -> Figure:
    """Draw figures of every row over the rounds, the bytes and the MACs; a line of panels for each.

    Lines are means over the seeds, bands standard deviations. What sends nothing has a level in
    the panel of bytes.

    Args:
        compared: A column's runs.
        curves: Its curves (:func:`curves_of`).
        read: The study's figures.
        title: Heading.
    """
    costs = by_cost(compared.frame)
    over = ("round", *costs)
    figure, axes = panels(PANEL * len(over), len(over), title, rows=len(curves))
    labels = [group.label for group in compared.groups]
    seeds = many_seeds(len(of.runs) for of in compared.groups)
    said = [f"Lines: mean over {seeds}; bands: ± 1 standard deviation"]
    for line, (name, rows) in enumerate(curves.items()):
        for panel, axis in zip(axes[line * len(over) :], over, strict=False):
            for number, label in enumerate(labels):
                spent = costs[axis][label] if axis in costs else None
                if label in rows and (spent is None or spent.any()):
                    band(panel, rows[label], label, number, spent)
                elif label in rows:
                    level, shade = rows[label].mean(axis=1).iloc[-1], colours.SERIES[number]
                    panel.axhline(level, color=shade, linestyle=(0, (4, 4)), linewidth=1.2)
                    said.append(f"{label} has no cost there: its last test")
            scale(panel, read[name].quantity, "", axis=axis)
        words = f"{name}\n{read[name].measure}"
        axes[line * len(over)].set_ylabel(words, fontsize=9, color=colours.INK)
        if (last := read[name].last) is not None:
            said.append(f"the table averages the tests of the last {part_of_rounds(last)}")
    legend_below(figure, AROUND + TALL * len(curves), f"{'; '.join(dict.fromkeys(said))}.")
    return figure


def drawable(judged: Sequence[Judged]) -> list[Judged]:
    """Return the comparisons that have an interval and a margin: those of accuracies.

    One that refers to another study is drawn there.
    """
    return [
        one
        for one in judged
        if (paired := one.finding.paired) is not None
        and not one.elsewhere
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
    words = "← against the claim · favours the claim →"
    axes[-1].set_xlabel(words, fontsize=9, color=colours.INK)
    seeds = many_seeds(len(one.finding.paired.differences) for one in judged if one.finding.paired)
    legend_below(
        figure, AROUND + LINE * sum(lines), f"Mean difference over {seeds}, 95 % interval."
    )
    return figure


def _differences(panel: Axes, judged: Sequence[Judged]) -> None:
    """Draw the differences of one figure.

    1. The axis reaches as far as the intervals, but no further than FAR times their median.
    2. What goes on beyond it ends in an arrow, with the mean if that is beyond, too.
    """
    findings = [one.finding for one in judged]
    pairs = [f.paired for f in findings if f.paired is not None]
    margins = [pair.margin or 0.0 for pair in pairs]
    intervals = [pair.interval or (pair.mean, pair.mean) for pair in pairs]
    far = FAR * statistics.median(max(-low, high) for low, high in intervals)  # 1
    left = min(max(min(low for low, _ in intervals), -far), -max(margins))
    right = max(min(max(high for _, high in intervals), far), max(margins))
    room = 0.04 * (right - left)
    for number, (one, pair) in enumerate(zip(judged, pairs, strict=True)):
        (low, high), margin = intervals[number], margins[number]
        shade = SHADES.get(one.outcome or "", colours.QUIET)
        filled = shade if one.outcome in FILLED else "white"
        style = {"color": shade, "markerfacecolor": filled, "markersize": 6}
        panel.fill_betweenx(
            [number - 0.4, number + 0.4], -margin, margin, color=colours.BLOCK, label="margin"
        )
        panel.plot([low, high], [number] * 2, color=shade, linewidth=1.8)
        label = one.outcome or "exploratory: no verdict"
        panel.plot([pair.mean], [number], "o", label=label, **style)
        for arrow, end, beyond in ((">", right, high - right), ("<", left, left - low)):
            if beyond > 0:  # 2
                panel.plot([end], [number], arrow, **style)
                said = f"{pair.mean:+.1f}" if not left <= pair.mean <= right else ""
                panel.text(end, number - 0.2, said, ha="center", fontsize=8, color=shade)
    panel.axvline(0, color=colours.LINE, linewidth=0.8, zorder=0)
    panel.set_xlim(left - room, right + room)
    panel.set_ylim(len(judged) - 0.4, -0.6)
    several = len({f.where for f in findings}) > 1
    names = (f.claim.replace(" better than ", " vs ") for f in findings)
    panel.set_yticks(
        range(len(judged)),
        [
            ", ".join(filter(None, (name, f.where * several)))
            for name, f in zip(names, findings, strict=True)
        ],
    )
    quantity = StudyFigure(measure=findings[0].runs[0].partition("@")[0]).quantity
    unit = "percentage points" if quantity in SHARES else quantity
    heading = ", ".join(filter(None, (findings[0].figure, findings[0].where * (not several))))
    panel.set_title(f"{heading}: difference in {unit}", loc="left", fontsize=10, color=colours.INK)
