"""A picture from left to right in rows that fit a screen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from archgraph.display.scene import Scene
from archgraph.display.spine import depths

# Boxes side by side in a row that fits a screen.
LENGTH = 6


@dataclass(frozen=True, slots=True)
class Row:
    """Boxes that stand in one row.

    Attributes:
        boxes: Their names.
        leaves: Boxes whose values another row takes.
        enters: Boxes of other rows whose values this one takes.
    """

    boxes: frozenset[str]
    leaves: tuple[str, ...] = ()
    enters: tuple[str, ...] = ()


def scene_rows(picture: Scene, length: int = LENGTH) -> list[Row]:
    """Arrange the boxes of a scene in rows; no block is cut.

    Example:
        >>> from archgraph.display.scene import Box, Link
        >>> boxes = tuple(Box(name, "operator", (), ()) for name in "abc")
        >>> chain = (Link("a", "b", ""), Link("b", "c", ""))
        >>> [sorted(row.boxes) for row in scene_rows(Scene("", boxes, chain, ()), length=2)]
        [['a', 'b'], ['c']]
    """
    depth, _ = depths(picture)
    parts: list[set[str]] = [set()]
    start = 0
    for unit in _units(picture):
        last = max(depth[name] for name in unit)
        if parts[-1] and last - start >= length:
            parts.append(set())
            start = min(depth[name] for name in unit)
        parts[-1].update(unit)
    _stay(picture, parts)
    unit_of = {name: number for number, part in enumerate(parts) for name in part}
    across = [(k.tail, k.head) for k in picture.links if unit_of[k.tail] != unit_of[k.head]]
    return [
        Row(
            frozenset(part),
            tuple(dict.fromkeys(tail for tail, _ in across if tail in part)),
            tuple(dict.fromkeys(tail for tail, head in across if head in part)),
        )
        for part in parts
    ]


def _stay(picture: Scene, parts: list[set[str]]) -> None:
    """Put outputs into the rows that make them."""
    ends = {box.name for box in picture.boxes if box.kind == "output"}
    for link in picture.links:
        if link.head in ends:
            for part in parts:
                part.discard(link.head)
            next(part for part in parts if link.tail in part).add(link.head)
    parts[:] = [part for part in parts if part]


def _units(picture: Scene) -> Iterator[tuple[str, ...]]:
    """Yield what stays together, in order: the boxes of a block, or a box outside all blocks."""
    holder = {name: each.boxes for each in picture.clusters() for name in each.boxes}
    done: set[str] = set()
    for box in picture.boxes:
        if box.name not in done:
            unit = holder.get(box.name, (box.name,))
            done.update(unit)
            yield unit
