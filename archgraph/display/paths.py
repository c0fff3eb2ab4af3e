"""The main path through a picture, which is drawn as a straight line."""

from __future__ import annotations

from archgraph.display.scene import Scene


def depths(picture: Scene) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Return two dicts from boxes: to the length of the longest path to a box, and to its sources.

    Arrows of masks are ignored.
    """
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
    """Return the total length of all arrows, in ranks. Long arrows make the layout slow."""
    depth, _ = depths(picture)
    # Arrows of masks do not influence ranks, but Graphviz also routes them.
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
        if deepest >= depth[name]:  # a later box feeds this one, so no path leads back to an input
            break
        # Of several boxes, such as query, key and value, take the one in the middle.
        before = [tail for tail in into[name] if depth[tail] == deepest]
        name = before[len(before) // 2]
        path.append(name)
    return frozenset(path)
