"""Curves as SVG text: complete without a script, and with the values that the page's script reads.

The script (`charts.js`) shows values, hides lines and changes axes, and draws no tick of its own:
ticks of both kinds of axes are in the picture, those of one of them invisible.
"""

from __future__ import annotations

import html
import itertools
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archgraph.display import colours
from archgraph.plain import Json
from archgraph.reports.scales import Ruler, fitted_scale, logarithmic
from archgraph.tables import per_cent, significant

if TYPE_CHECKING:
    from pandas import Series

# Units of a picture: those of a telephone's screen.
WIDTH, PLOT = 380, 190
LEFT, RIGHT = 62, 10
# Between two lines of text, and two names of lines: high enough for a finger.
LEADING, ROW = 17, 25
# Characters beside one another in a title and in a name.
TITLE, NAME = 52, 44
# Points of a line: more of them than units would not be seen.
MOST = 400
# Points of a line that has a mark at each of them.
MARKED = 25
DASHES = ("", "7 3", "2 2.5", "8 3 2 3")
FONT = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"


@dataclass(frozen=True)
class Line:
    """A curve.

    Attributes:
        name: In the legend.
        x: Where its points stand, ascending.
        y: Their values.
        spread: Half the height of the band around each point; empty: no band.
        bold: Whether it stands out: the global model, say.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    spread: tuple[float, ...] = ()
    bold: bool = False

    @classmethod
    def of(
        cls, name: str, values: Series, spread: Sequence[float] = (), *, bold: bool = False
    ) -> Line:
        """Return values over their index as a line, of many points evenly spread ones."""
        last = len(values) - 1
        stops = min(len(values), MOST)
        chosen = [round(i * last / max(stops - 1, 1)) for i in range(stops)]
        x, y = ([float(of[i]) for i in chosen] for of in (values.index, values.to_numpy()))
        return cls(
            name, tuple(x), tuple(y), tuple(float(spread[i]) for i in chosen if spread), bold
        )


@dataclass(frozen=True)
class LineChart:
    """Curves of one figure.

    Attributes:
        name: What the picture is called.
        title: What stands above it.
        lines: The curves.
        figure: What is measured.
        axis: What it is measured over.
        show: A value as text.
        show_x: A place on the axis below as text.
        log: Whether values are logarithmic to begin with.

    Example:
        >>> text = LineChart("a", "accuracy", (Line("b", (1, 2), (0.1, 0.9)),), "accuracy").svg()
        >>> text.startswith("<svg"), "100 %" in text
        (True, True)
    """

    name: str
    title: str
    lines: tuple[Line, ...]
    figure: str
    axis: str = "round"
    show: Callable[[float], str] = significant
    show_x: Callable[[float], str] = "{:g}".format
    log: bool = False

    @property
    def _titles(self) -> list[str]:
        return textwrap.wrap(self.title, TITLE)

    @property
    def _top(self) -> int:
        return 14 + LEADING * len(self._titles)

    def _axes(self, which: str) -> tuple[Ruler, ...]:
        """Return an axis, and its logarithmic form where there is one."""
        points = [v for line in self.lines for v in getattr(line, which)]
        drawn = [v for line in self.lines for v in self._values(line, which)]
        share = self.figure == "accuracy" and which == "y"
        integer = self.axis == "round" and which == "x"
        bottom = self._top + PLOT
        ends = (LEFT, WIDTH - RIGHT) if which == "x" else (bottom, self._top)
        plain = fitted_scale(drawn, ends, share=share, integer=integer)
        if not logarithmic(points):
            return (plain,)
        # Of points alone: a band may reach below zero.
        return plain, fitted_scale(points, ends, log=True, integer=integer)

    def _values(self, line: Line, which: str) -> Iterator[float]:
        if which == "x":
            yield from line.x
            return
        yield from line.y
        for y, half in zip(line.y, line.spread, strict=False):
            yield from (y - half, y + half)

    def data(self) -> Json:
        """Return what the script needs: axes, and points with their texts."""
        axes = {}
        for which in "xy":
            forms = self._axes(which)
            log = int(which == "y" and self.log and len(forms) == 2)
            axes[which] = {"log": log, "forms": [[a.start, a.end, a.low, a.high] for a in forms]}
        lines = [
            {
                "name": line.name,
                "x": [_brief(v) for v in line.x],
                "y": [_brief(v) for v in line.y],
                "spread": [_brief(v) for v in line.spread],
                "text": [self._said(line, i) for i in range(len(line.y))],
            }
            for line in self.lines
        ]
        places = sorted({v for line in self.lines for v in line.x})
        before = "round " if self.axis == "round" else ""
        texts = [before + self.show_x(v) for v in places]
        return {
            "name": self.name, "places": [_brief(v) for v in places], "texts": texts,
            "lines": lines, **axes,
        }  # fmt: skip

    def _said(self, line: Line, i: int) -> str:
        return self.show(line.y[i]) + (f" ± {self.show(line.spread[i])}" if line.spread else "")

    def svg(self) -> str:
        """Return the picture as SVG text: axes, lines, names."""
        entries, height = self._legend()
        said = ", ".join(f"{line.name} {self._said(line, -1)}" for line in self.lines[:8] if line.y)
        label = html.escape(f"{self.name}; at the end: {said}" if said else self.name)
        head = "".join(
            words_at(0, 14 + LEADING * i, line, size=14, weight=600)
            for i, line in enumerate(self._titles)
        )
        return "".join(
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
                f'width="{WIDTH}" height="{height}" font-family="{FONT}" font-size="13" '
                f'fill="{colours.INK}" role="img" aria-label="{label}">',
                head, *self._ticks("y"), *self._ticks("x"), *self._curves(), *entries,
                "" if any(line.y for line in self.lines) else self._nothing(), "</svg>",
            )
        )  # fmt: skip

    def _nothing(self) -> str:
        middle = (LEFT + WIDTH - RIGHT) / 2, self._top + PLOT / 2
        return words_at(*middle, "nothing was tested yet", anchor="middle", fill=colours.QUIET)

    def _ticks(self, which: str) -> Iterator[str]:
        """Yield a group of ticks for each form of an axis; the title of the lower one."""
        bottom = self._top + PLOT
        for log, axis in enumerate(self._axes(which)):
            visible = log == int(which == "y" and self.log and len(self._axes(which)) == 2)
            ticks = axis.ticks(5)
            names = self._names(which, ticks)
            parts = []
            for value, name in zip(ticks, names, strict=True):
                at = round(axis.at(value), 1)
                if which == "y":
                    parts.append(
                        f'<path d="M{LEFT} {at}H{WIDTH - RIGHT}" stroke="{colours.BLOCK}"/>'
                        + words_at(LEFT - 7, at + 4.5, name, anchor="end")
                    )
                else:
                    parts.append(
                        f'<path d="M{at} {bottom}v4" stroke="{colours.LINE}"/>'
                        + words_at(at, bottom + 18, name, anchor="middle")
                    )
            hidden = "" if visible else ' display="none"'
            yield f'<g class="ticks" data-axis="{which}{log}"{hidden}>{"".join(parts)}</g>'
        if which == "x":
            middle = (LEFT + WIDTH - RIGHT) / 2
            yield f'<path d="M{LEFT} {bottom}H{WIDTH - RIGHT}" stroke="{colours.LINE}"/>'
            yield words_at(middle, bottom + 36, self.axis, anchor="middle", fill=colours.QUIET)

    def _names(self, which: str, ticks: Sequence[float]) -> list[str]:
        if which == "x":
            return [self.show_x(v) for v in ticks]
        if self.figure == "accuracy":
            steps = [b - a for a, b in itertools.pairwise(ticks)]
            return [per_cent(v, 0 if min(steps, default=1.0) > 0.0099 else 1) for v in ticks]
        return [f"{v:g}" for v in ticks]

    def _curves(self) -> Iterator[str]:
        x, y = self._axes("x")[0], self._axes("y")[-1 if self.log else 0]
        # Below the others: a tier that equals the global model stays visible on top of it.
        for number, line in sorted(enumerate(self.lines), key=lambda one: not one[1].bold):
            if not line.y:
                continue
            across = [round(x.at(v), 1) for v in line.x]

            def path(values: Iterable[float], across: list[float] = across) -> list[str]:
                # A logarithmic axis has no place for a band below zero.
                up = (round(y.at(max(v, y.low)), 1) for v in values)
                return [f"{a} {b}" for a, b in zip(across, up, strict=True)]

            colour, dash = self._look(number)
            parts = []
            if line.spread:
                both = list(zip(line.y, line.spread, strict=True))
                above, below = path(v + s for v, s in both), path(v - s for v, s in both)
                around = "L".join((*above, *reversed(below)))
                parts.append(f'<path class="band" d="M{around}Z" fill="{colour}" opacity=".16"/>')
            points = path(line.y)
            style = f' stroke-dasharray="{dash}"' if dash else ""
            parts.append(
                f'<path class="curve" d="M{"L".join(points)}" fill="none" stroke="{colour}" '
                f'stroke-width="{2.8 if line.bold else 2}" stroke-linejoin="round"{style}/>'
            )
            if len(points) <= MARKED:
                for a, b in (point.split() for point in points):
                    parts.append(f'<circle cx="{a}" cy="{b}" r="2.4" fill="{colour}"/>')
            yield f'<g class="line" data-line="{number}">{"".join(parts)}</g>'

    def _look(self, number: int) -> tuple[str, str]:
        """Return the colour and the dashes of a line."""
        if self.lines[number].bold:
            return colours.INK, ""
        rank = sum(not line.bold for line in self.lines[:number])
        return colours.SERIES[rank % len(colours.SERIES)], DASHES[rank % len(DASHES)]

    def _legend(self) -> tuple[list[str], int]:
        """Return the names of the lines, and the height of the picture."""
        top = self._top + PLOT + 50
        longest = max((len(line.name) for line in self.lines), default=0)
        columns = 1 if longest > 20 else 2 if longest > 11 else 3
        wide = WIDTH / columns
        entries = []
        column = 0
        for number, line in enumerate(self.lines):
            names = textwrap.wrap(line.name, NAME) or [""]
            left, middle = round(column * wide, 1), top + ROW / 2
            colour, dash = self._look(number)
            style = f' stroke-dasharray="{dash}"' if dash else ""
            high = ROW + LEADING * (len(names) - 1)
            words = "".join(
                words_at(left + 34, middle + 4.5 + LEADING * i, name)
                for i, name in enumerate(names)
            )
            entries.append(
                f'<g class="entry" data-line="{number}">'
                f'<rect x="{left}" y="{top}" width="{round(wide - 4, 1)}" height="{high}" rx="4" '
                f'fill="none"/><path d="M{left + 5} {middle}h23" stroke="{colour}" '
                f'stroke-width="{3.2 if line.bold else 2.6}"{style}/>{words}</g>'
            )
            column += 1
            if column == columns:
                column, top = 0, top + high
        return entries, top + (ROW if column else 0) + 4


def words_at(
    x: float,
    y: float,
    words: str,
    *,
    anchor: str = "",
    fill: str = "",
    size: int = 0,
    weight: int = 0,
) -> str:
    """Return words at a place of a picture.

    >>> words_at(1, 2, "a < b")
    '<text x="1" y="2">a &lt; b</text>'
    """
    more = {"text-anchor": anchor, "fill": fill, "font-size": size, "font-weight": weight}
    said = "".join(f' {key}="{value}"' for key, value in more.items() if value)
    return f'<text x="{x:g}" y="{y:g}"{said}>{html.escape(words)}</text>'


def _brief(value: float) -> float | int:
    """Return a number with as many digits as can be seen."""
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() else rounded
