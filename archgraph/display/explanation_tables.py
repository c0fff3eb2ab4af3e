"""The tables of an explanation, in which names that differ only in a number share a row."""

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

# Maximum number of groups of axes that are listed for one reason.
EACH = 3

SAVES = ("parameters", "MACs")


def savings(saving: Saving | None) -> tuple[str, str]:
    """Return two cells: the saved parameters and MACs, each with its percentage."""
    if saving is None:
        return "", ""
    return (
        f"{count(saving.parameters)} {per_cent(saving.parameters_share, 1):>7}",
        f"{count(saving.macs)} {per_cent(saving.macs_share, 1):>7}",
    )


def numbered_runs(names: Sequence[str], keys: Sequence[Hashable]) -> list[tuple[str, list[int]]]:
    """Group names that differ only in one number.

    Args:
        names: The names. Names without numbers are not grouped.
        keys: For each name, a value that must be equal within a group.

    Returns:
        For each group, a pattern and the indices of its names. If a group has only one name, its
        pattern is this name.

    Example:
        >>> numbered_runs(["a.0.w", "a.1.w", "b1.w", "b2.w", "c"], [8, 8, 8, 4, 4])
        [('a.*.w', [0, 1]), ('b1.w', [2]), ('b2.w', [3]), ('c', [4])]
    """
    members: dict[tuple[int, str, str, Hashable], list[int]] = {}
    for index, name in enumerate(names):
        parts = re.split(r"(\d+)", name)
        for at in range(1, len(parts), 2):
            before, after = "".join(parts[:at]), "".join(parts[at + 1 :])
            members.setdefault((at, before, after, keys[index]), []).append(index)
    grouped: set[int] = set()
    runs_of_names: list[tuple[str, list[int]]] = []
    # The largest group first; of equally large groups, the one whose number is further left.
    for (_, before, after, _), indices in sorted(
        members.items(), key=lambda item: (-len(item[1]), item[0][0])
    ):
        left = [i for i in indices if i not in grouped]
        if len(left) > 1:
            runs_of_names.append((f"{before}*{after}", left))
            grouped.update(left)
    runs_of_names += [(name, [i]) for i, name in enumerate(names) if i not in grouped]
    return sorted(runs_of_names, key=lambda run: run[1][0])


def _times(name: str, number: int) -> str:
    return name if number == 1 else f"{name} ×{number}"


def free_axes(
    axes: Sequence[AxisFact], together: Callable[[Sequence[AxisFact]], Saving | None], each: bool
) -> Table:
    """Return a table of the free axes and the savings from halving them.

    Args:
        axes: The free axes.
        together: Returns the savings from halving several axes.
        each: Whether each axis has its own row.
    """
    kinds = [tuple(dict.fromkeys(s.partition(" in ")[0] for s in a.spans)) for a in axes]
    keys = [(a.section, a.size, a.role, over) for a, over in zip(axes, kinds, strict=True)]
    names = [a.name for a in axes]
    groups = numbered_runs(names, names if each else keys)
    several = any(len(indices) > 1 for _, indices in groups)
    rows = []
    for name, indices in groups:
        members = [axes[i] for i in indices]
        first, many = members[0], str(len(members)) if len(members) > 1 else ""
        role = f"{first.role}*" if first.spans else first.role
        rows.append((name, many, str(first.size), role, *savings(together(members))))
    notes = ["a row of several axes shows what halving all of them saves"] if several else []
    if over := dict.fromkeys(itertools.chain(*kinds)):
        notes.append(f"*: cutting this axis changes the results of {', '.join(over)}")
    heads, right = ("axis", "axes", "size", "role", *SAVES), frozenset({1, 2, 4, 5})
    title, note = "Free axes: savings from halving", "\n".join(notes)
    return _filled_columns(Table(title, heads, tuple(rows), right, note=note, short=frozenset({0})))


def _filled_columns(table: Table) -> Table:
    """Drop columns in which every cell is empty."""
    used = [i for i in range(len(table.columns)) if any(row[i] for row in table.rows)]
    return replace(
        table,
        columns=tuple(table.columns[i] for i in used),
        rows=tuple(tuple(row[i] for i in used) for row in table.rows),
        right=frozenset(at for at, i in enumerate(used) if i in table.right),
        short=frozenset(at for at, i in enumerate(used) if i in table.short),
    )


def pinned_axes(axes: Sequence[AxisFact], each: bool) -> Table:
    """Return a table of the pinned axes, with one row for each reason.

    Args:
        axes: The pinned axes.
        each: Whether a reason has one row per module, in which all axes are listed.
    """
    causes: dict[Hashable, list[AxisFact]] = {}
    for axis in axes:
        assert axis.pin is not None
        # In the explanation of a named part, each module has its own row.
        key = (axis.pin.why, axis.pin.operator, axis.pin.remedy)
        causes.setdefault((*key, axis.pin.place) if each else key, []).append(axis)
    rows = []
    for members in causes.values():
        names, keys = [a.name for a in members], [(a.section, a.size) for a in members]
        groups = numbered_runs(names, names if each else keys)
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
    """Return the reason and the remedy of pins that differ only in their module."""
    pin = pins[0]
    why = pin.why if pin.operator is None else f"{pin.why}: {pin.operator} in {pin.place}"
    if len({one.place for one in pins}) > 1:
        why += " and elsewhere"
    if pin.source is not None:
        # Show only the last two parts of the path.
        last = pin.source.replace("\\", "/").split("/")[-2:]
        why += f" ({'/'.join(last)})"
    return why, pin.remedy


def block_savings(blocks: Sequence[BlockFact], each: bool) -> Table:
    """Return a table of the blocks: savings from skipping each, or why it cannot be skipped."""
    names, keys = [b.name for b in blocks], [(b.kind, b.saving, b.reason) for b in blocks]
    rows = []
    for name, indices in numbered_runs(names, names if each else keys):
        block, many = blocks[indices[0]], str(len(indices)) if len(indices) > 1 else ""
        rows.append((name, many, block.kind, *savings(block.saving), block.reason))
    title, heads = "Blocks: savings from skipping", ("block", "blocks", "kind", *SAVES, "why not")
    return _filled_columns(
        Table(title, heads, tuple(rows), right=frozenset({1, 3, 4}), short=frozenset({0}))
    )


def leaf_layouts(leaves: Sequence[LeafFact]) -> Table:
    """Return a table of parameters and buffers, with the layout of each dimension."""
    names, keys = [p.name for p in leaves], [(p.shape, p.layout) for p in leaves]
    rows = tuple(
        (_times(name, len(of)), "×".join(map(str, keys[of[0]][0])), " | ".join(keys[of[0]][1]))
        for name, of in numbered_runs(names, keys)
    )
    heads = ("leaf", "shape", "layout of each dimension")
    return Table("Leaves", heads, rows, short=frozenset({0}))
