"""The tables of an explanation; parts that differ only in a number share a row."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from archgraph.display.facts import (
    AxisFact,
    AxisMember,
    BlockFact,
    Facts,
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


def _kinds(spans: Sequence[str]) -> str:
    """Write the operators of spans: `layer norm ×2, softmax`."""
    counts = Counter(s.partition(" in ")[0] for s in spans)
    return ", ".join(_times(kind, number) for kind, number in counts.items())


def free_axes(
    axes: Sequence[AxisFact], together: Callable[[Sequence[AxisFact]], Saving | None], each: bool
) -> Table:
    """Return the free axes with what halving saves; ``each``: one row for every axis."""
    alike = [(a.section, a.size, a.role, _kinds(a.spans)) for a in axes]
    groups = _grouped([a.name for a in axes], alike, each)
    several = any(len(indices) > 1 for _, indices in groups)
    rows = []
    for name, indices in groups:
        members = [axes[i] for i in indices]
        first, many = members[0], str(len(members)) if len(members) > 1 else ""
        role = f"{first.role}*" if first.spans else first.role
        rows.append((name, many, str(first.size), role, *savings(together(members))))
    notes = ["a row of several axes shows what halving all of them saves"] if several else []
    kinds = dict.fromkeys(s.partition(" in ")[0] for a in axes for s in a.spans)
    if kinds:
        notes.append(f"*: {', '.join(kinds)} runs over it; cutting it changes what that computes")
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
        why += f" ({_source(pin.source)})"
    return why, pin.remedy


def _source(source: str) -> str:
    """Shorten a source line's path to its last two parts: the path to a package says little."""
    return "/".join(source.replace("\\", "/").split("/")[-2:])


def removable_blocks(blocks: Sequence[BlockFact], each: bool) -> Table:
    """Return the blocks that can be left out, with what that saves."""
    blocks = [b for b in blocks if b.removable]
    groups = _grouped([b.name for b in blocks], [(b.kind, b.saving) for b in blocks], each)
    rows = []
    for name, indices in groups:
        block, many = blocks[indices[0]], str(len(indices)) if len(indices) > 1 else ""
        rows.append((name, many, block.kind, *savings(block.saving)))
    title, heads = "Removable blocks: what skipping one saves", ("block", "blocks", "kind", *SAVES)
    return _filled_columns(
        Table(title, heads, tuple(rows), right=frozenset({1, 3, 4}), short=frozenset({0}))
    )


def staying_blocks(blocks: Sequence[BlockFact], each: bool) -> Table:
    """Return the blocks that cannot be left out, with the reason."""
    blocks = [b for b in blocks if not b.removable]
    groups = _grouped([b.name for b in blocks], [(b.kind, b.reason) for b in blocks], each)
    rows = tuple(
        (_times(name, len(indices)), blocks[indices[0]].kind, blocks[indices[0]].reason)
        for name, indices in groups
    )
    return Table("Blocks that stay", ("block", "kind", "why"), rows, short=frozenset({0}))


def leaf_layouts(leaves: Sequence[LeafFact]) -> Table:
    """Return the leaves with the layout of each dimension."""
    heads = ("leaf", "shape", "layout of each dimension")
    rows = tuple((p.name, "×".join(map(str, p.shape)), " | ".join(p.layout)) for p in leaves)
    return Table("Leaves", heads, rows, short=frozenset({0}))


def one_axis(axis: AxisFact) -> Table:
    """Tabulate an axis, one fact per row."""
    rows = [("size", str(axis.size)), ("role", axis.role)]
    if axis.section:
        block = "" if axis.block == axis.section else f", {axis.block}"
        rows.append(("made in", f"{axis.section}{block}"))
    if axis.pin is None:
        # 24 = 50.0 %
        parameters, macs = (" = ".join(text.split(None, 1)) for text in savings(axis.saving))
        rows += [
            ("free", "yes"),
            ("halving", f"{axis.size} → {axis.halved}"),
            ("saves", f"{parameters} of the parameters, {macs} of the MACs"),
        ]
    else:
        rows.append(("free", f"no: {axis.pin.why}"))
        if axis.pin.operator is not None:
            rows.append(("pinned by", f"{axis.pin.operator} %{axis.pin.node}"))
        rows.append(("in", axis.pin.place))
        if axis.pin.source is not None:
            rows.append(("code", axis.pin.source))
        rows.append(("what would free it", axis.pin.remedy))
    if axis.spans:
        rows.append(("spanned by", "\n".join(name for name, _ in _counted(axis.spans))))
        rows.append(("", "cutting it changes what these compute"))
    return Table(axis.name, ("", ""), tuple(rows))


def _counted(names: Sequence[str]) -> list[tuple[str, int]]:
    """Return runs of names with their numbers of members, the number written behind the name."""
    groups = numbered_runs(names, [None] * len(names))
    return [(_times(name, len(indices)), len(indices)) for name, indices in groups]


def leaves_with_axis(axis: AxisFact) -> Table:
    """Return the leaves that are cut with an axis."""
    full = f"{axis.name}[{axis.size}]"
    dims: dict[str, list[AxisMember]] = {}
    for member in axis.members:
        dims.setdefault(member.leaf, []).append(member)

    def shape(members: Sequence[AxisMember]) -> str:
        cut = {m.dimension for m in members}
        sizes = enumerate(members[0].shape)
        return "×".join(f"[{size}]" if i in cut else str(size) for i, size in sizes)

    def made_of(members: Sequence[AxisMember]) -> str:
        return ", ".join(dict.fromkeys(m.layout for m in members if m.layout != full))

    shapes = [shape(members) for members in dims.values()]
    layouts = [made_of(members) for members in dims.values()]
    groups = numbered_runs(list(dims), list(zip(shapes, layouts, strict=True)))
    rows = tuple((n, str(len(of)), shapes[of[0]], layouts[of[0]]) for n, of in groups)
    title = f"Leaves that have it: {len(dims)}"
    heads = ("leaf", "leaves", "shape", "what [ ] is made of")
    note, short = "[ ]: the dimension with the axis", frozenset({0, 3})
    return _filled_columns(Table(title, heads, rows, frozenset({1}), note=note, short=short))


def operators_with_axis(axis: AxisFact, about: Facts) -> Table:
    """Return the operators and idioms that an axis runs through, in runs of places."""
    places_by_kind: dict[str, dict[str, str]] = {}
    for name in axis.operators:
        kind, result = about.operators[name].idiom or (about.operators[name].operator, name)
        places = places_by_kind.setdefault(kind, {})
        places[result] = about.operators[result].place or f"%{result}"
    rows = []
    for kind, places in places_by_kind.items():
        labels = _counted(list(dict.fromkeys(places.values())))
        lines = [label for label, _ in labels[: 2 * EACH]]
        hidden = sum(n for _, n in labels[2 * EACH :])
        lines += [f"and {hidden} more"] * bool(hidden)
        rows.append((kind, str(len(places)), "\n".join(lines)))
    return Table(
        f"Operators that it runs through: {sum(map(len, places_by_kind.values()))}",
        ("operator", "times", "in"),
        tuple(rows),
        right=frozenset({1}),
        short=frozenset({2}),
    )
