"""Division of a picture that is too tall for a page into columns."""

from __future__ import annotations

from archgraph.display.paths import depths
from archgraph.display.scene import Scene

# Height of a box without its lines, and of a frame's title, in lines of text.
AROUND, TITLE = 3, 4


def columns(picture: Scene, number: int) -> list[frozenset[str]]:
    """Divide the boxes, in order, into columns of about equal height.

    A section is not divided. Its height is that of its longest path.

    Example:
        >>> from archgraph.display.scene import Box, Link
        >>> boxes = tuple(Box(name, "operator", (), ()) for name in "abc")
        >>> chain = (Link("a", "b", ""), Link("b", "c", ""))
        >>> [sorted(column) for column in columns(Scene("", boxes, chain, ()), 2)]
        [['a'], ['b', 'c']]
    """
    unit, (depth, _) = _units(picture), depths(picture)
    heights: dict[str, dict[int, int]] = {}
    for box in picture.boxes:
        levels, level = heights.setdefault(unit[box.name], {}), depth[box.name]
        levels[level] = max(levels.get(level, 0), AROUND + len(box.lines))
    tall = {name: sum(rows.values()) + TITLE * (len(rows) > 1) for name, rows in heights.items()}
    above, column = 0.0, dict[str, int]()
    for name, height in tall.items():
        column[name] = int(number * (above + height / 2) / sum(tall.values()))
        above += height
    divided = (frozenset(n for n in unit if column[unit[n]] == i) for i in range(number))
    return [names for names in divided if names]


def _units(picture: Scene) -> dict[str, str]:
    """Return a dict from each box to its unit, a group of boxes that stays in one column.

    A section is a unit. An input belongs to the unit of the first box that reads it. An output, or
    a box that only training has, belongs to the unit of the box whose value it reads. Each other
    box outside sections is a unit.
    """
    unit = {name: group.name for group in picture.groups for c in group.walk() for name in c.boxes}
    user = {link.tail: link.head for link in reversed(picture.links)}
    feeder = {link.head: link.tail for link in reversed(picture.links)}
    inputs = [box for box in picture.boxes if box.kind == "input"]
    for box in [*(box for box in picture.boxes if box not in inputs), *inputs]:
        beside = feeder if box.kind == "output" or box.training else {}
        beside = user if box.kind == "input" else beside
        unit.setdefault(box.name, unit.get(beside.get(box.name, ""), f"box {box.name}"))
    return unit
