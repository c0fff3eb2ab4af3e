"""Clients and their data as SVG text: a bar of examples, and the share of each class, by client."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from archgraph.display import colours
from archgraph.engine.clients import ClientFacts
from archgraph.plain import Json
from archgraph.reports.line_chart import FONT, WIDTH, words_at
from archgraph.tables import count, per_cent

# Clients whose names fit beside their rows, and clients that are drawn at all.
NAMED, MOST = 40, 400
# Shades of shares: more could not be told apart.
SHADES = 8
# Characters of a name.
NAME = 21
TOP, GAP = 44, 12


@dataclass(frozen=True)
class ClientChart:
    """The examples of each client, and the share of each class.

    Shares, because a client with few examples may be as one-sided as one with many.

    Attributes:
        clients: A row each.
        title: What stands above it.

    Example:
        >>> one = ClientFacts(client=0, tier="small", examples=3, classes=[1, 2])
        >>> ClientChart((one,)).data()["rows"]
        [['client 0, small', 3, [1, 2]]]
    """

    clients: tuple[ClientFacts, ...]
    title: str = "training examples of each client"

    @property
    def name(self) -> str:
        """What the picture is called."""
        return self.title

    @property
    def _drawn(self) -> tuple[ClientFacts, ...]:
        return self.clients[:MOST]

    @property
    def _classes(self) -> int:
        return max((len(client.classes) for client in self._drawn), default=0)

    @property
    def _row(self) -> float:
        few = len(self._drawn) <= NAMED
        return 19.0 if few else max(round(640 / len(self._drawn), 1), 1.5)

    def _columns(self) -> tuple[float, float, float]:
        """Return where bars start and end, and where the classes start."""
        start = 136.0 if len(self._drawn) <= NAMED else 46.0
        end = start + (WIDTH - start - GAP) * 0.36 if self._classes else WIDTH - 8.0
        return start, end, end + GAP

    @property
    def _cell(self) -> float:
        return (WIDTH - 2 - self._columns()[2]) / self._classes if self._classes else 0.0

    def data(self) -> Json:
        """Return what the script needs: where rows and cells are, and what they say."""
        start, end, classes = self._columns()
        return {
            "name": self.name,
            "box": [start, end, TOP, self._row, classes, round(self._cell, 3)],
            "classes": self._classes,
            "rows": [[_label(one), one.examples, one.classes] for one in self._drawn],
        }

    def svg(self) -> str:
        """Return the picture as SVG text, with the key of its shades."""
        bottom = TOP + self._row * len(self._drawn)
        start, _, classes = self._columns()
        parts = [words_at(0, 14, self.title, size=14, weight=600)]
        parts.append(words_at(start, 36, "examples", fill=colours.QUIET))
        parts += self._bars()
        if self._classes:
            parts.append(words_at(classes, 36, "share of each class", fill=colours.QUIET))
            parts += self._shares()
        else:
            bottom += 4
        parts += self._key(bottom + 24)
        height = round(bottom + (52 if self._classes or self._malicious else 30))
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" font-family="{FONT}" font-size="12" '
            f'fill="{colours.INK}" role="img" aria-label="{self.title}">{"".join(parts)}</svg>'
        )

    @property
    def _malicious(self) -> bool:
        return any(client.malicious for client in self._drawn)

    def _bars(self) -> Iterator[str]:
        start, end, _ = self._columns()
        most = max((client.examples for client in self._drawn), default=0) or 1
        has_names = len(self._drawn) <= NAMED
        for i, client in enumerate(self._drawn):
            y, wide = TOP + i * self._row, (end - start) * client.examples / most
            fill = colours.SERIES[1 if client.malicious else 0]
            inner = self._row * 0.76
            yield (
                f'<rect x="{start:g}" y="{round(y + self._row * 0.12, 1)}" width="{wide:.1f}" '
                f'height="{inner:.1f}" fill="{fill}"/>'
            )
            if has_names:
                yield words_at(start - 7, y + self._row / 2 + 4, _short(client), anchor="end")
        rows = len(self._drawn)
        if not has_names:
            of = "" if rows == len(self.clients) else f" of {len(self.clients)}"
            yield words_at(start - 7, TOP + 9, "1", anchor="end")
            yield words_at(start - 7, TOP + rows * self._row, f"{rows}{of}", anchor="end")
        bottom = TOP + rows * self._row
        yield f'<path d="M{start:g} {TOP}V{bottom:g}" stroke="{colours.LINE}"/>'
        yield words_at(start, bottom + 15, "0", fill=colours.QUIET)
        yield words_at(end, bottom + 15, count(most), anchor="end", fill=colours.QUIET)

    def _top_share(self) -> float:
        """Return the share that has the darkest shade: the largest one, rounded up."""
        largest = max(
            (max(c.classes, default=0) / max(sum(c.classes), 1) for c in self._drawn), default=1.0
        )
        return max(math.ceil(10 * largest) / 10, 0.1)

    def _shares(self) -> Iterator[str]:
        """Yield a path of all cells for each shade: one element per cell would be too many."""
        _, _, left = self._columns()
        top, wide, high = self._top_share(), self._cell, self._row
        gap = 0.6 if len(self._drawn) <= NAMED and self._classes <= NAMED else 0.0
        cells: dict[int, list[str]] = {}
        for i, client in enumerate(self._drawn):
            examples = max(sum(client.classes), 1)
            for j, many in enumerate(client.classes):
                if many:
                    shade = max(round(SHADES * many / examples / top), 1)
                    x, y = left + j * wide, TOP + i * high
                    cells.setdefault(shade, []).append(
                        f"M{x:.1f} {y:.1f}h{wide - gap:.1f}v{high - gap:.1f}h-{wide - gap:.1f}z"
                    )
        bottom = TOP + high * len(self._drawn)
        yield (
            f'<rect x="{left:.1f}" y="{TOP}" width="{wide * self._classes:.1f}" '
            f'height="{bottom - TOP:.1f}" fill="{colours.SECTION}"/>'
        )
        for shade, paths in sorted(cells.items()):
            yield _shade(f'<path d="{"".join(paths)}"', shade)
        every = max(math.ceil(16 / wide), 1)
        every = next(n for n in (1, 2, 5, 10, 20, 50, 100, 10**9) if n >= every)
        for j in range(0, self._classes, every):
            yield words_at(
                left + (j + 0.5) * wide, bottom + 15, str(j), anchor="middle", fill=colours.QUIET
            )

    def _key(self, y: float) -> Iterator[str]:
        left, wide = WIDTH - 170, 11
        if self._classes:
            yield words_at(left, y + 20, "0 %", fill=colours.QUIET)
            for shade in range(SHADES + 1):
                x = left + 28 + shade * wide
                yield (
                    f'<rect x="{x:.1f}" y="{y + 9:g}" width="{wide}" height="13" '
                    f'fill="{colours.SECTION}"/>'
                )
                if shade:
                    yield _shade(
                        f'<rect x="{x:.1f}" y="{y + 9:g}" width="{wide}" height="13"', shade
                    )
            x = left + 34 + (SHADES + 1) * wide
            yield words_at(x, y + 20, per_cent(self._top_share(), 0), fill=colours.QUIET)
        if self._malicious:
            yield f'<rect x="0" y="{y + 9:g}" width="13" height="13" fill="{colours.SERIES[1]}"/>'
            yield words_at(19, y + 20, "malicious", fill=colours.QUIET)


def client_charts(clients: Sequence[ClientFacts], title: str = "") -> Iterator[ClientChart]:
    """Yield the picture of clients, if there are any."""
    if clients:
        yield ClientChart(tuple(clients), *([title] if title else []))


def _shade(element: str, shade: int) -> str:
    return f'{element} fill="{colours.SERIES[0]}" fill-opacity="{shade / SHADES:g}"/>'


def _label(client: ClientFacts) -> str:
    return f"{client.label} (malicious)" if client.malicious else client.label


def _short(client: ClientFacts) -> str:
    words = f"{client.name or client.client} · {client.tier}"
    return words if len(words) <= NAME else f"{words[: NAME - 1]}…"
