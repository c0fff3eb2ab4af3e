"""Seconds of a round by purpose as SVG text: a bar for each run, or group of runs."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archgraph.display import colours
from archgraph.reports.line_chart import FONT, LEADING, WIDTH, words_at
from archgraph.reports.plots import PURPOSES, purposes_of, time_spent
from archgraph.tables import per_cent

if TYPE_CHECKING:
    from pandas import DataFrame

BAR, NAME = 20, 52


@dataclass(frozen=True)
class TimeChart:
    """Mean seconds of a round.

    Attributes:
        spent: By run and by purpose.
    """

    spent: Mapping[str, Mapping[str, float]]
    name = "seconds per round"

    @classmethod
    def of(cls, runs: Mapping[str, DataFrame]) -> TimeChart:
        """Return the seconds of rounds from the figures of runs."""
        return cls(time_spent(runs))

    def svg(self) -> str:
        """Return the picture as SVG text; each part tells its seconds."""
        totals = {name: sum(of.values()) for name, of in self.spent.items()}
        purposes = [(name, PURPOSES[name], fill) for name, fill in purposes_of(self.spent)]
        parts = [words_at(0, 14, self.name, size=14, weight=600)]
        y, room = 30.0, WIDTH - 62
        for name, of in self.spent.items():
            if len(self.spent) > 1:
                for line in textwrap.wrap(name, NAME):
                    y += LEADING
                    parts.append(words_at(0, y - 4, line))
            x = 0.0
            for purpose, label, fill in purposes:
                value = of.get(purpose, 0.0)
                wide = room * value / (max(totals.values()) or 1.0)
                share = per_cent(value / (totals[name] or 1.0), 1)
                parts.append(
                    f'<rect x="{x:.1f}" y="{y:g}" width="{wide:.1f}" height="{BAR}" fill="{fill}">'
                    f"<title>{html.escape(label)}: {value:.3g} s ({share})</title></rect>"
                )
                x += wide
            parts.append(words_at(x + 6, y + 15, f"{totals[name]:.3g} s"))
            y += BAR + 8
        column = 0
        for _, label, fill in purposes:
            parts.append(
                f'<rect x="{column * 190}" y="{y + 5:g}" width="13" height="13" fill="{fill}"/>'
            )
            parts.append(words_at(column * 190 + 20, y + 16, label))
            column = 1 - column
            y += 0 if column else 24
        height = round(y + (24 if column else 0) + 6)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" font-family="{FONT}" font-size="13" '
            f'fill="{colours.INK}" role="img" aria-label="{self.name}">{"".join(parts)}</svg>'
        )
