"""A study's figures as pictures: curves over rounds and costs, differences with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from archgraph.display import colours
from archgraph.reports.comparison import Comparison, RunGroup
from archgraph.reports.plots import band, by_cost, panels, reduced, scale
from archgraph.reports.runs import judge, rows_where
from archgraph.studies.claims import Judged

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from archgraph.studies.study import StudyResult

# Inches: of a panel, of a line of differences, and what titles and axes take.
PANEL, LINE, AROUND = 3.4, 0.27, 1.1
SHADES = {"holds": colours.SERIES[2], "against": colours.SERIES[1], "equivalent": colours.SERIES[0]}


def columns_of(result: StudyResult) -> dict[str, Comparison]:
    """Return the finished runs by column, those of each row as a group of its name."""
    columns: dict[str, list[RunGroup]] = {}
    for (row, column), of in result.groups.items():
        # Figures of a cell are read from the same runs; one at equal cost has a part of them.
        longest = max(of.values(), key=lambda group: group.at)
        columns.setdefault(column, []).append(replace(longest, label=row))
    return {column: Comparison(tuple(groups), ()) for column, groups in columns.items()}


def column_picture(compared: Comparison, title: str) -> Figure:
    """Draw the mean submodel of every row over the rounds, the bytes and the MACs.

    Lines are means over the seeds, bands standard deviations.

    Args:
        compared: A column's runs.
        title: Heading.
    """
    names = [group.label for group in compared.groups]
    figures, what = compared.frame, judge([log for of in compared.groups for log in of.runs])
    costs = by_cost(figures)
    figure, axes = panels(PANEL * (1 + len(costs)), 1 + len(costs), title, height=PANEL)
    for number, name in enumerate(names):
        means = reduced(rows_where(figures, experiment=name), what, np.mean)
        band(axes[0], means, name, number)
        for panel, spent in zip(axes[1:], costs.values(), strict=True):
            band(panel, means, name, number, spent[name])
    for panel, axis in zip(axes, ("round", *costs), strict=True):
        scale(panel, what, f"mean submodel: {what}" if axis == "round" else "", axis=axis)
    figure.legend(
        *axes[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=min(len(names), 4),
        frameon=False,
        labelcolor=colours.INK,
        fontsize=9,
    )
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
    """Draw differences with their 95 % intervals.

    A grey band is the margin of equivalence; points of claims without a verdict are hollow.

    Args:
        judged: The comparisons (:func:`drawable`), from top to bottom.
        title: Heading.
    """
    figure, (panel,) = panels(7.2, 1, title, height=AROUND + LINE * len(judged))
    for number, one in enumerate(judged):
        paired = one.finding.paired
        assert paired is not None and paired.margin is not None and paired.interval is not None
        (low, high), margin = paired.interval, paired.margin
        shade = SHADES.get(one.outcome or "", colours.INK)
        filled = shade if one.outcome in SHADES else "white"
        panel.plot([low, high], [number] * 2, color=shade, linewidth=1.8)
        panel.plot([paired.mean], [number], "o", color=shade, markerfacecolor=filled, markersize=6)
        panel.fill_betweenx([number - 0.4, number + 0.4], -margin, margin, color=colours.BLOCK)
    several = len({one.finding.figure for one in judged}) > 1
    names = [
        ", ".join(filter(None, (f.claim, f.where, f.figure if several else "")))
        for f in (one.finding for one in judged)
    ]
    panel.set_yticks(range(len(names)), names)
    panel.set_ylim(len(names) - 0.4, -0.6)
    panel.axvline(0, color=colours.LINE, linewidth=0.8, zorder=0)
    panel.set_xlabel(
        "difference with its 95 % interval, as claimed to the right",
        fontsize=9,
        color=colours.INK,
    )
    return figure
