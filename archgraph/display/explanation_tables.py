"""The tables of an explanation; parts that differ only in a number share a row."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from archgraph.display.facts import (
    AxisFact,
    BlockFact,
    LeafFact,
    Pin,
)
from archgraph.display.pricing import Saving
from archgraph.tables import Table, count, per_cent

# Runs of axes pinned for one reason that are named one by one.
EACH = 3

SAVES = ("parameters", "MACs")


def savings(saving: Saving | None) -> tuple[str, str]:
    """Write the two cells of a saving: parameters and MACs, each with its share."""
    if saving is None:
        return "", ""
    return (
        f"{count(saving.parameters)} {per_cent(saving.parameters_share, 1):>7}",
        f"{count(saving.macs)} {per_cent(saving.macs_share, 1):>7}",
    )


def numbered_runs(names: Sequence[str], alike: Sequence[Hashable]) -> list[tuple[str, list[int]]]:
    """Return the names that differ in one number and agree in everything else, in order.

    Args:
        names: Names with numbers in them.
        alike: What else must be equal, for each name.

    Returns:
        For each run its pattern and the indices of its members; a name alone is its own pattern.

    Example:
        >>> numbered_runs(["a.0.w", "a.1.w", "b1.w", "b2.w", "c"], [8, 8, 8, 4, 4])
        [('a.*.w', [0, 1]), ('b1.w', [2]), ('b2.w', [3]), ('c', [4])]
    """
    members: dict[tuple[int, str, str, Hashable], list[int]] = {}
    for index, name in enumerate(names):
        parts = re.split(r"(\d+)", name)
        for at in range(1, len(parts), 2):
            before, after = "".join(parts[:at]), "".join(parts[at + 1 :])
            members.setdefault((at, before, after, alike[index]), []).append(index)
    grouped: set[int] = set()
    runs_of_names: list[tuple[str, list[int]]] = []
    # the longest runs first; of equal ones that of the number further left, e.g. the block's
    for (_, before, after, _), indices in sorted(
        members.items(), key=lambda item: (-len(item[1]), item[0][0])
    ):
        left = [i for i in indices if i not in grouped]
        if len(left) > 1:
            runs_of_names.append((f"{before}*{after}", left))
            grouped.update(left)
    runs_of_names += [(name, [i]) for i, name in enumerate(names) if i not in grouped]
    return sorted(runs_of_names, key=lambda run: run[1][0])


def _grouped(
    names: Sequence[str], alike: Sequence[Hashable], each: bool
) -> list[tuple[str, list[int]]]:
    return [(n, [i]) for i, n in enumerate(names)] if each else numbered_runs(names, alike)


def _times(name: str, number: int) -> str:
    return name if number == 1 else f"{name} ×{number}"


def free_axes(
    axes: Sequence[AxisFact], together: Callable[[Sequence[AxisFact]], Saving | None], each: bool
) -> Table:
    """Return the free axes with what halving saves; ``each``: one row for every axis."""
    kinds = [tuple(dict.fromkeys(s.partition(" in ")[0] for s in a.spans)) for a in axes]
    alike = [(a.section, a.size, a.role, over) for a, over in zip(axes, kinds, strict=True)]
    groups = _grouped([a.name for a in axes], alike, each)
    several = any(len(indices) > 1 for _, indices in groups)
    rows = []
    for name, indices in groups:
        members = [axes[i] for i in indices]
        first, many = members[0], str(len(members)) if len(members) > 1 else ""
        role = f"{first.role}*" if first.spans else first.role
        rows.append((name, many, str(first.size), role, *savings(together(members))))
    notes = ["a row of several axes shows what halving all of them saves"] if several else []
    if over := dict.fromkeys(itertools.chain(*kinds)):
        notes.append(f"*: {', '.join(over)} runs over it; cutting it changes what that computes")
    heads, right = ("axis", "axes", "size", "role", *SAVES), frozenset({1, 2, 4, 5})
    title, note = "Free axes: what halving saves", "\n".join(notes)
    return _filled_columns(Table(title, heads, tuple(rows), right, note=note, short=frozenset({0})))


def _filled_columns(table: Table) -> Table:
    """Leave out columns in which every cell is empty."""
    used = [i for i in range(len(table.columns)) if any(row[i] for row in table.rows)]
    return replace(
        table,
        columns=tuple(table.columns[i] for i in used),
        rows=tuple(tuple(row[i] for i in used) for row in table.rows),
        right=frozenset(at for at, i in enumerate(used) if i in table.right),
        short=frozenset(at for at, i in enumerate(used) if i in table.short),
    )


def pinned_axes(axes: Sequence[AxisFact], each: bool) -> Table:
    """Return one row per cause; where it holds for many axes, the first ones stand for all."""
    causes: dict[Hashable, list[AxisFact]] = {}
    for axis in axes:
        assert axis.pin is not None
        # One cause at many places is one row, unless every axis is asked for.
        key = (axis.pin.why, axis.pin.operator, axis.pin.remedy)
        causes.setdefault((*key, axis.pin.place) if each else key, []).append(axis)
    rows = []
    for members in causes.values():
        groups = _grouped([a.name for a in members], [(a.section, a.size) for a in members], each)
        limit = len(groups) if each else EACH
        lines = [
            _times(f"{name} [{members[indices[0]].size}]", len(indices))
            for name, indices in groups[:limit]
        ]
        if hidden := sum(len(indices) for _, indices in groups[limit:]):
            lines.append(f"and {hidden} more")
        rows.append(("\n".join(lines), *_cause([a.pin for a in members if a.pin is not None])))
    return Table(
        "Pinned axes",
        ("axis [size]", "why", "what would free it"),
        tuple(rows),
        short=frozenset({0}),
    )


def _cause(pins: Sequence[Pin]) -> tuple[str, str]:
    """Return why axes are pinned, and what would free them; they differ in the place alone."""
    pin = pins[0]
    why = pin.why if pin.operator is None else f"{pin.why}: {pin.operator} in {pin.place}"
    if len({one.place for one in pins}) > 1:
        why += " and elsewhere"
    if pin.source is not None:
        # Of a path the last two parts: the path to a package says little.
        last = pin.source.replace("\\", "/").split("/")[-2:]
        why += f" ({'/'.join(last)})"
    return why, pin.remedy


def block_savings(blocks: Sequence[BlockFact], each: bool) -> Table:
    """Return the blocks with what leaving one out saves, or why it has to stay."""
    alike = [(b.kind, b.saving, b.reason) for b in blocks]
    rows = []
    for name, indices in _grouped([b.name for b in blocks], alike, each):
        block, many = blocks[indices[0]], str(len(indices)) if len(indices) > 1 else ""
        rows.append((name, many, block.kind, *savings(block.saving), block.reason))
    title, heads = "Blocks: what skipping one saves", ("block", "blocks", "kind", *SAVES, "why not")
    return _filled_columns(
        Table(title, heads, tuple(rows), right=frozenset({1, 3, 4}), short=frozenset({0}))
    )


def leaf_layouts(leaves: Sequence[LeafFact]) -> Table:
    """Return the leaves with the layout of each dimension."""
    names, alike = [p.name for p in leaves], [(p.shape, p.layout) for p in leaves]
    rows = tuple(
        (_times(name, len(of)), "×".join(map(str, alike[of[0]][0])), " | ".join(alike[of[0]][1]))
        for name, of in numbered_runs(names, alike)
    )
    heads = ("leaf", "shape", "layout of each dimension")
    return Table("Leaves", heads, rows, short=frozenset({0}))
