"""Paths through a picture: the main one runs straight; from left to right, rows fit a screen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from archgraph.display.scene import Scene

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
    # A row is full when it spans `length` ranks, not boxes: boxes of one rank stand side by side.
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


def depths(picture: Scene) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Return the longest path's length to every box, and the boxes that feed it; no masks."""
    into: dict[str, list[str]] = {}
    for link in picture.links:
        if not link.mask:
            into.setdefault(link.head, []).append(link.tail)
    depth: dict[str, int] = {}
    for box in picture.boxes:
        before = (depth.get(tail, -1) for tail in into.get(box.name, ()))
        depth[box.name] = 1 + max(before, default=-1)
    return depth, into


def span(picture: Scene) -> int:
    """Return the total length of all arrows, in ranks: what the effort of a layout grows with."""
    depth, _ = depths(picture)
    # Masks count here: Graphviz routes them, too, though they do not push anything down.
    return sum(abs(depth[link.head] - depth[link.tail]) for link in picture.links)


def spine(picture: Scene) -> frozenset[str]:
    """Return the boxes on the longest path to the deepest output."""
    depth, into = depths(picture)
    ends = [b for b in picture.boxes if b.kind == "output" and not b.training] or picture.boxes
    if not ends:  # an empty graph
        return frozenset()
    name = max(ends, key=lambda box: depth[box.name]).name
    path = [name]
    while into.get(name):
        deepest = max(depth[tail] for tail in into[name])
        if deepest >= depth[name]:  # fed by a box that stands later: no way back to an input
            break
        # Of several, as a query, a key and a value are, the one in the middle.
        before = [tail for tail in into[name] if depth[tail] == deepest]
        name = before[len(before) // 2]
        path.append(name)
    return frozenset(path)
