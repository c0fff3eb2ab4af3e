"""A picture of a box per block: less around its boxes, in columns where a page is too short."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from archgraph.display.dot import short
from archgraph.display.labels import LabelLine
from archgraph.display.paths import depths
from archgraph.display.scene import Box, Link, Scene

# Height of a box without its lines and of a frame's title, in lines of a box.
AROUND, TITLE = 3, 4


def overview(picture: Scene) -> Scene:
    """Return a picture of a box per block without what repeats.

    1. A block has no frame: its box says its name and size. A section of one box has none either.
    2. What makes a mask has no box: a dotted arrow leads from its inputs to the attention.
    3. Outputs of one box share a box; what feeds others, too, says its outputs itself.

    Example:
        >>> from archgraph.display.scene import Cluster
        >>> boxes = tuple(Box(name, "operator", (), (LabelLine(name),)) for name in "ab")
        >>> section = Cluster("s", (Cluster("s.0", (), ("a",)), Cluster("s.1", (), ("b",))))
        >>> overview(Scene("", boxes, (Link("a", "b", ""),), (section,))).groups[0].boxes
        ('a', 'b')
    """
    inside = [tuple(n for c in group.walk() for n in c.boxes) for group in picture.groups]
    # Without leaves: the mean over a section would hide its weak block.
    groups = tuple(  # 1
        replace(group, groups=(), boxes=names, leaves=())
        for group, names in zip(picture.groups, inside, strict=True)
        if len(names) > 1
    )
    section = {name: group.name for group in groups for name in group.boxes}
    boxes = {box.name: box for box in picture.boxes if not box.mask}
    for name in section.keys() & boxes.keys():
        title, *lines = boxes[name].lines
        shorter = replace(title, text=short(title.text, section[name]))
        boxes[name] = replace(boxes[name], lines=(shorter, *lines))
    links = list(_past_masks(picture))  # 2
    _share(boxes, links)  # 3
    links = [link for link in links if link.head in boxes]
    return replace(picture, boxes=tuple(boxes.values()), links=tuple(links), groups=groups)


def _share(boxes: dict[str, Box], links: Sequence[Link]) -> None:
    """Put outputs of one box into one box, or into what feeds others, too."""
    feeding = {link.tail for link in links if boxes[link.head].kind == "operator"}
    first: dict[tuple[str, bool], str] = {}
    for link in [link for link in links if boxes[link.head].kind == "output"]:
        tail, box = boxes[link.tail], boxes[link.head]
        shared = first.setdefault((link.tail, box.training), box.name)
        if link.tail in feeding and tail.kind == "operator":
            shared, box = link.tail, replace(box, lines=(LabelLine(f"output: {box.name}"),))
        if shared != link.head:
            boxes[shared] = replace(boxes[shared], lines=boxes[shared].lines + box.lines)
            del boxes[link.head]


def _past_masks(picture: Scene) -> Iterator[Link]:
    """Yield the arrows, those to a mask from where it comes; none beside another arrow."""
    masks = {box.name for box in picture.boxes if box.mask}
    drawn = {(link.tail, link.head) for link in picture.links if link.tail not in masks}
    # From the end: an arrow out of a mask becomes one out of what the mask is made of.
    pending = list(reversed(picture.links))
    while pending:
        link = pending.pop()
        if link.tail not in masks:
            if link.head not in masks:
                yield link
            continue
        for source in picture.links:
            ends = source.tail, link.head
            if source.head == link.tail and source.tail != link.head and ends not in drawn:
                drawn.add(ends)
                pending.append(replace(source, head=link.head, mask=True))


def columns(picture: Scene, number: int) -> list[frozenset[str]]:
    """Divide the boxes among columns of about equal height, in order.

    A section stays in one column; it is as high as its longest path.

    Example:
        >>> boxes = tuple(Box(name, "operator", (), ()) for name in "abc")
        >>> chain = (Link("a", "b", ""), Link("b", "c", ""))
        >>> [sorted(column) for column in columns(Scene("", boxes, chain, ()), 2)]
        [['a', 'b'], ['c']]
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
    """Return what stays together, a name for each box: sections, and boxes outside all.

    An input stands with what it feeds first, an output or a box of training alone with what feeds
    it.
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
