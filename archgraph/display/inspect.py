"""Graphs in words: what is in one, what can change in it and why, how two differ."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeAlias

from archgraph.display.scene import count, dimensions, parameters, shape_label
from archgraph.errors import ArchGraphError
from archgraph.graph.ir import ArchGraph, Node, Param, Ref, replace, show
from archgraph.hints import nearest
from archgraph.tables import Table

if TYPE_CHECKING:
    from archgraph.display.facts import (
        AxisFact,
        BlockFact,
        Facts,
        GroupFact,
        LeafFact,
        Member,
        OperatorFact,
        Saving,
    )

# Names of parts, by kind.
Names: TypeAlias = Mapping[str, Sequence[str]]
# Runs of axes pinned for one reason that are named one by one.
EACH = 3
# Names that an unknown name may have meant.
NEAREST = 3


def summary(graph: ArchGraph) -> Table:
    """Sections and blocks with the shapes of their results, parameters and MACs per example.

    What stands in no block (stem, head) is a row of its own where it stands.

    Example:
        >>> from archgraph.graph.ir import Batch, TensorType
        >>> kind = TensorType((Batch(), 8), "float32")
        >>> x, y = (
        ...     Node("x", "input", type=kind),
        ...     Node("y", "aten.relu", (("self", Ref("x")),), kind),
        ... )
        >>> summary(ArchGraph((("x", Ref("x")),), (), (x, y), Ref("y"))).rows[-1]
        ('total', '', '8', '0', '0', '')
    """
    from archgraph.analysis.cost import cost
    from archgraph.analysis.structure import structure

    spent = cost(graph)
    found = structure(graph)
    owner = {name: block for block in found.blocks for name in block.nodes}
    runs: list[tuple[Any, list[Node]]] = []
    at: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if node.op == "input":
            continue
        block = owner.get(node.name)
        if block is not None and block.name in at:
            at[block.name].append(node)
        elif block is None and runs and runs[-1][0] is None:
            runs[-1][1].append(node)
        else:
            runs.append((block, [node]))
            if block is not None:
                at[block.name] = runs[-1][1]

    def numbers(nodes: Iterable[Node]) -> tuple[str, str]:
        nodes = tuple(nodes)
        leaves = dict.fromkeys(leaf for node in nodes for leaf in node.leaves())
        macs = sum(spent.nodes[node.name].macs for node in nodes if node.name in spent.nodes)
        return count(parameters(graph, tuple(leaves))), count(macs)

    rows: list[tuple[str, ...]] = []
    strong: set[int] = set()
    begun: set[str] = set()
    for block, nodes in runs:
        if block is None:
            first, last = nodes[0].scope or nodes[0].name, nodes[-1].scope or nodes[-1].name
            name = first if first == last else f"{first} … {last}"
            rows.append((name, "", shape_label(nodes[-1].types[0]), *numbers(nodes), ""))
            continue
        shape = shape_label(graph.node[block.exit].types[0])
        can = "removable" if block.removable else ""
        section = next(s for s in found.sections if s.name == block.section)
        if len(section.blocks) == 1:
            alike = block.name == section.name
            name = section.name if alike else f"{section.name}: {block.name}"
            strong.add(len(rows))
            rows.append((name, block.kind, shape, *numbers(nodes), can))
            continue
        if block.section not in begun:
            begun.add(block.section)
            members = [graph.node[name] for b in section.blocks for name in b.nodes]
            end = shape_label(graph.node[section.blocks[-1].exit].types[0])
            strong.add(len(rows))
            rows.append(
                (block.section, f"{len(section.blocks)} blocks", end, *numbers(members), "")
            )
        rows.append((f"  {block.name}", block.kind, shape, *numbers(nodes), can))
    strong.add(len(rows))
    ends = [graph.node[name] for name in graph.output_refs()]
    result = shape_label(ends[0].types[0]) if ends else ""
    rows.append(("total", "", result, count(spent.parameters), count(spent.macs), ""))
    inputs = ", ".join(f"{n.name} {dimensions(n.shape)}" for n in graph.nodes if n.op == "input")
    return Table(
        title=graph.name or "architecture",
        columns=("part", "kind", "result", "parameters", "MACs", ""),
        rows=tuple(rows),
        right=frozenset({3, 4}),
        strong=frozenset(strong),
        note=f"inputs: {inputs}; shapes without the batch axis; MACs per example",
    )


@dataclass(frozen=True)
class Explanation:
    """What can change in a graph and what cannot, with reasons and savings; frozen values.

    Attributes:
        model: Name of the graph.
        asked: Part that was asked for; None: everything.
        about: The facts about the whole graph.
        axes: Axes that were asked for.
        roles: Free axes by role, as far as asked for.
        sections: Free axes by section, as far as asked for.
        blocks: Blocks that were asked for.
        leaves: Leaves that were asked for; empty where everything was.
        operators: Operators that were asked for; empty where everything was.
    """

    model: str
    asked: str | None
    about: Facts
    axes: tuple[AxisFact, ...] = ()
    roles: tuple[GroupFact, ...] = ()
    sections: tuple[GroupFact, ...] = ()
    blocks: tuple[BlockFact, ...] = ()
    leaves: tuple[LeafFact, ...] = ()
    operators: tuple[OperatorFact, ...] = ()

    @property
    def free(self) -> tuple[AxisFact, ...]:
        """Axes that may be cut."""
        return tuple(a for a in self.axes if a.free)

    @property
    def pinned(self) -> tuple[AxisFact, ...]:
        """Axes that may not, each with its pin."""
        return tuple(a for a in self.axes if not a.free)

    def plain(self) -> dict[str, Any]:
        """The explanation as values that JSON can write.

        Keys are those of the facts in :mod:`archgraph.display.facts`, one list per kind: ``model``,
        ``asked``, ``parameters``, ``macs``, ``reach`` (share of the parameters on a free axis),
        ``halving`` (what halving every free axis saves), ``axes``, ``roles``, ``sections``,
        ``blocks``, ``leaves``, ``operators``.
        """
        from archgraph.display.facts import plain

        return {
            "model": self.model,
            "asked": self.asked,
            "parameters": self.about.parameters,
            "macs": self.about.macs,
            "reach": self.about.reach,
            "halving": plain(self.about.halving),
            "axes": plain(self.axes),
            "roles": plain(self.roles),
            "sections": plain(self.sections),
            "blocks": plain(self.blocks),
            "leaves": plain(self.leaves),
            "operators": plain(self.operators),
        }

    def tables(self) -> tuple[Table, ...]:
        """The explanation for people; parts without a row are left out.

        Everything is told in runs of parts alike; a part that was asked for, one by one.
        """
        each = self.asked is not None
        if self.asked is None:
            found = [self._overview()]
        elif len(self.axes) == 1 and self.axes[0].name == self.asked and not self.blocks:
            axis = self.axes[0]
            found = [_one_axis(axis), _moving(axis), _through(axis, self.about)]
            return tuple(table for table in found if table.rows)
        else:
            one = self.operators if len(self.operators) == 1 else ()
            found = [*map(_one_operator, one), self._halves()]
        return tuple(
            table
            for table in (
                *found,
                _free(self.free, self._together, each),
                _pinned(self.pinned, each),
                _blocks(self.blocks, each),
                _staying(self.blocks, each),
                _leaves(self.leaves),
                _operators(self.operators if len(self.operators) > 1 else ()),
            )
            if table.rows
        )

    def _overview(self) -> Table:
        about = self.about
        table = self._halves()
        can = sum(b.removable for b in self.blocks)
        reach = math.floor(1000 * about.reach) / 10  # 100% means all of them
        note = (
            f"{count(about.parameters)} parameters, {reach:g}% of them on a free axis; "
            f"{count(about.macs)} MACs per example; axes: {len(self.free)} free, "
            f"{len(self.pinned)} pinned; blocks: {can} of {len(self.blocks)} removable"
        )
        every = (("all free axes", str(len(self.free)), *_saves(about.halving)),)
        return dataclasses.replace(
            table,
            title=f"{self.model or 'architecture'}: what halving saves",
            rows=every + table.rows,
            note=note,
        )

    def _halves(self) -> Table:
        """What halving all axes of a role or a section saves."""
        roles = self.roles if len(self.roles) > 1 or self.asked is not None else ()
        groups = [(f"role {g.name}", g) for g in roles]
        groups += [(f"section {g.name}", g) for g in self.sections if g.axes]
        return Table(
            "What halving saves",
            ("halving", "axes", *SAVES),
            tuple((name, str(len(g.axes)), *_saves(g.saving)) for name, g in groups),
            right=frozenset({1, 2, 3}),
            short=frozenset({0}),
        )

    def _together(self, chosen: Sequence[AxisFact]) -> Saving | None:
        return chosen[0].saving if len(chosen) == 1 else self.about.bill.halving(chosen)


def explain(graph: ArchGraph, name: str | None = None) -> Explanation:
    """Which axes are free, which are pinned and why, which blocks can go; what that would save.

    Args:
        graph: The architecture.
        name: Part to explain: an axis, section, block, leaf, operator, role or module, or a
            pattern (`layer1.*`). None: all axes and blocks.

    Returns:
        Facts, with `plain()` for tools and `tables()` for people.

    Raises:
        ArchGraphError: If nothing has that name; gives the nearest names.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> found = explain(trace(net, torch.zeros(1, 3)).graph)
        >>> [(a.name, a.saving.parameters) for a in found.free]
        [('0.out', 24)]
        >>> [(a.name, a.pin.why) for a in found.pinned][-1]
        ('2.out', "dimension 1 of the model's output")
    """
    from archgraph.display.facts import facts

    about = facts(graph)
    if name is None:
        return Explanation(
            graph.name,
            None,
            about,
            tuple(about.axes.values()),
            tuple(about.roles.values()),
            tuple(about.sections.values()),
            tuple(about.blocks.values()),
        )
    word = name.removeprefix("%")
    found = _named(about, word, operator=word != name) or _like(about, word)
    if not found:
        raise _nothing(about, word)
    chosen = {kind: set(names) for kind, names in found.items()}
    return Explanation(
        graph.name,
        name,
        about,
        tuple(a for a in about.axes.values() if a.name in chosen["axes"]),
        tuple(r for r in about.roles.values() if r.name in chosen["roles"]),
        tuple(s for s in about.sections.values() if s.name in chosen["sections"]),
        tuple(b for b in about.blocks.values() if b.name in chosen["blocks"]),
        tuple(k for k in about.leaves.values() if k.name in chosen["leaves"]),
        tuple(n for n in about.operators.values() if n.name in chosen["operators"]),
    )


def _named(about: Facts, word: str, *, operator: bool) -> Names:
    """Parts of exactly this name, each with the axes that it makes or has."""
    if operator:
        return _operator_of(about, [n for n in about.operators if n == word])
    sections = [s for s in about.sections if s == word]
    blocks = [b.name for b in about.blocks.values() if word in (b.name, b.section)]
    leaves = [k for k in about.leaves if k == word]
    roles = [r for r in about.roles if r == word]
    axes = [a for a in about.axes if a == word]
    axes += [a for b in blocks for a in about.blocks[b].axes]
    axes += [a for k in leaves for a in about.leaves[k].axes]
    axes += [a for r in roles for a in about.roles[r].axes]
    if blocks and not sections:
        inside = (n for b in blocks for n in about.blocks[b].operators)
        leaves += [k for n in inside for k in about.operators[n].leaves]
    found = _parts(axes, roles, sections, blocks, leaves)
    return found or _operator_of(about, [n for n in about.operators if n == word])


def _like(about: Facts, word: str) -> Names:
    """Parts of a module or a pattern; operators only where nothing else is."""
    kinds = (about.sections, about.blocks, about.leaves)
    found = _parts(_matching(about.axes, word), (), *(_matching(kind, word) for kind in kinds))
    return found or _operator_of(about, _matching(about.operators, word))


def _operator_of(about: Facts, names: Sequence[str]) -> Names:
    axes = about.operators[names[0]].axes if len(names) == 1 else ()
    return _parts(axes, operators=names)


def _parts(
    axes: Iterable[str] = (),
    roles: Iterable[str] = (),
    sections: Iterable[str] = (),
    blocks: Iterable[str] = (),
    leaves: Iterable[str] = (),
    operators: Iterable[str] = (),
) -> Names:
    """Names by kind; empty where there is none at all."""
    found = {
        "axes": list(axes),
        "roles": list(roles),
        "sections": list(sections),
        "blocks": list(blocks),
        "leaves": list(leaves),
        "operators": list(operators),
    }
    return found if any(found.values()) else {}


def _matching(names: Iterable[str], word: str) -> list[str]:
    return [n for n in names if n.startswith(f"{word}.") or fnmatch.fnmatchcase(n, word)]


def _nothing(about: Facts, word: str) -> ArchGraphError:
    kinds = (about.axes, about.sections, about.blocks, about.roles, about.leaves, about.operators)
    known = list(dict.fromkeys(name for kind in kinds for name in kind))
    return ArchGraphError(
        "no axis, section, block, leaf or operator has this name",
        where=word,
        hint=nearest(word, known, cutoff=0.5, count=NEAREST)
        or "without a name, everything is explained",
    )


# -- tables of an explanation --------------------------------------------------------------------

SAVES = ("parameters", "MACs")


def _saves(saving: Saving | None) -> tuple[str, str]:
    if saving is None:
        return "", ""
    return (
        f"{count(saving.parameters)} {100 * saving.parameters_share:5.1f}%",
        f"{count(saving.macs)} {100 * saving.macs_share:5.1f}%",
    )


def runs(names: Sequence[str], alike: Sequence[Hashable]) -> list[tuple[str, list[int]]]:
    """Names that differ in one number, where what is said of them is alike; in order.

    Args:
        names: Names with numbers in them.
        alike: What else must be equal, for each name.

    Returns:
        For each run its pattern and the indices of its members; a name alone is its own pattern.

    Example:
        >>> runs(["a.0.w", "a.1.w", "b1.w", "b2.w", "c"], [8, 8, 8, 4, 4])
        [('a.*.w', [0, 1]), ('b1.w', [2]), ('b2.w', [3]), ('c', [4])]
    """
    members: dict[tuple[Any, ...], list[int]] = {}
    for index, name in enumerate(names):
        parts = re.split(r"(\d+)", name)
        for at in range(1, len(parts), 2):
            rest = ("".join(parts[:at]), "".join(parts[at + 1 :]))
            members.setdefault((at, *rest, alike[index]), []).append(index)
    taken: set[int] = set()
    found: list[tuple[str, list[int]]] = []
    # the longest runs first; of equal ones that of the number further left, e.g. the block's
    for (_, before, after, _), indices in sorted(
        members.items(), key=lambda item: (-len(item[1]), item[0][0])
    ):
        left = [i for i in indices if i not in taken]
        if len(left) > 1:
            found.append((f"{before}*{after}", left))
            taken.update(left)
    found += [(name, [i]) for i, name in enumerate(names) if i not in taken]
    return sorted(found, key=lambda run: run[1][0])


def _grouped(
    names: Sequence[str], alike: Sequence[Hashable], each: bool
) -> list[tuple[str, list[int]]]:
    return [(n, [i]) for i, n in enumerate(names)] if each else runs(names, alike)


def _kinds(spans: Sequence[str]) -> str:
    """`layer norm ×2, softmax` of spans with their places."""
    found = Counter(s.partition(" in ")[0] for s in spans)
    return ", ".join(k if n == 1 else f"{k} ×{n}" for k, n in found.items())


def _free(
    axes: Sequence[AxisFact], together: Callable[[Sequence[AxisFact]], Saving | None], each: bool
) -> Table:
    alike = [(a.section, a.size, a.role, _kinds(a.spans)) for a in axes]
    groups = _grouped([a.name for a in axes], alike, each)
    several = any(len(indices) > 1 for _, indices in groups)
    rows = []
    for name, indices in groups:
        members = [axes[i] for i in indices]
        first = members[0]
        many = (str(len(members)) if len(members) > 1 else "",) if several else ()
        role = f"{first.role}*" if first.spans else first.role
        rows.append((name, *many, str(first.size), role, *_saves(together(members))))
    notes = ["a row of several axes tells what halving all of them saves"] if several else []
    kinds = dict.fromkeys(s.partition(" in ")[0] for a in axes for s in a.spans)
    if kinds:
        notes.append(f"*: {', '.join(kinds)} runs over it; cutting it changes what that computes")
    return Table(
        "Free axes: what halving saves",
        ("axis", *(("axes",) if several else ()), "size", "role", *SAVES),
        tuple(rows),
        right=frozenset({1, 2, 4, 5} if several else {1, 3, 4}),
        short=frozenset({0}),
        note="\n".join(notes),
    )


def _pinned(axes: Sequence[AxisFact], each: bool) -> Table:
    """One row per cause; where it holds for many axes, the first ones stand for all."""
    causes: dict[Hashable, list[AxisFact]] = {}
    for axis in axes:
        assert axis.pin is not None
        key = (axis.pin.why, axis.pin.operator, axis.pin.remedy)
        causes.setdefault((*key, axis.pin.place) if each else key, []).append(axis)
    rows = []
    for members in causes.values():
        groups = _grouped([a.name for a in members], [(a.section, a.size) for a in members], each)
        shown = len(groups) if each else EACH
        lines = [
            f"{name} [{members[indices[0]].size}]" + (f" ×{len(indices)}" * (len(indices) > 1))
            for name, indices in groups[:shown]
        ]
        hidden = sum(len(indices) for _, indices in groups[shown:])
        pin = members[0].pin
        assert pin is not None
        why = pin.why if pin.operator is None else f"{pin.why}: {pin.operator} in {pin.place}"
        if len({a.pin.place for a in members if a.pin is not None}) > 1:
            why += " and elsewhere"
        if pin.source is not None:
            why += f" ({_source(pin.source)})"
        if hidden:
            lines.append(f"and {hidden} more")
        rows.append(("\n".join(lines), why, pin.remedy))
    return Table(
        "Pinned axes",
        ("axis [size]", "why", "what would free it"),
        tuple(rows),
        short=frozenset({0}),
    )


def _source(source: str) -> str:
    """A line of code by its file's last two parts: the path to a package says little."""
    return "/".join(source.replace("\\", "/").split("/")[-2:])


def _blocks(blocks: Sequence[BlockFact], each: bool) -> Table:
    blocks = [b for b in blocks if b.removable]
    groups = _grouped([b.name for b in blocks], [(b.kind, b.saving) for b in blocks], each)
    several = any(len(indices) > 1 for _, indices in groups)
    rows = []
    for name, indices in groups:
        many = (str(len(indices)) if len(indices) > 1 else "",) if several else ()
        block = blocks[indices[0]]
        rows.append((name, *many, block.kind, *_saves(block.saving)))
    return Table(
        "Removable blocks: what skipping one saves",
        ("block", *(("blocks",) if several else ()), "kind", *SAVES),
        tuple(rows),
        right=frozenset({1, 3, 4} if several else {2, 3}),
        short=frozenset({0}),
    )


def _staying(blocks: Sequence[BlockFact], each: bool) -> Table:
    blocks = [b for b in blocks if not b.removable]
    groups = _grouped([b.name for b in blocks], [(b.kind, b.reason) for b in blocks], each)
    return Table(
        "Blocks that stay",
        ("block", "kind", "why"),
        tuple(
            (
                name if len(indices) == 1 else f"{name} ×{len(indices)}",
                blocks[indices[0]].kind,
                blocks[indices[0]].reason,
            )
            for name, indices in groups
        ),
        short=frozenset({0}),
    )


def _leaves(leaves: Sequence[LeafFact]) -> Table:
    return Table(
        "Leaves",
        ("leaf", "shape", "layout of each dimension"),
        tuple((p.name, "×".join(map(str, p.shape)), " | ".join(p.layout)) for p in leaves),
        short=frozenset({0}),
    )


def _one_axis(axis: AxisFact) -> Table:
    """An axis, one fact per row."""
    rows = [("size", str(axis.size)), ("role", axis.role)]
    if axis.section:
        inside = axis.section if axis.block == axis.section else f"{axis.section}, {axis.block}"
        rows.append(("made in", inside))
    if axis.pin is None:
        parameters, macs = (" = ".join(text.split()) for text in _saves(axis.saving))
        rows += [
            ("free", "yes"),
            ("halving", f"{axis.size} → {axis.halved}"),
            ("saves", f"{parameters} of the parameters, {macs} of the MACs"),
        ]
    else:
        rows += [("free", f"no: {axis.pin.why}")]
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
    """Runs of names with their numbers of members, the number written behind the name."""
    return [
        (name if len(indices) == 1 else f"{name} ×{len(indices)}", len(indices))
        for name, indices in runs(names, [None] * len(names))
    ]


def _moving(axis: AxisFact) -> Table:
    """Leaves that are cut with an axis."""
    whole = f"{axis.name}[{axis.size}]"
    dims: dict[str, list[Member]] = {}
    for member in axis.members:
        dims.setdefault(member.leaf, []).append(member)

    def shape(members: Sequence[Member]) -> str:
        cut = {m.dimension for m in members}
        sizes = enumerate(members[0].shape)
        return "×".join(f"[{size}]" if i in cut else str(size) for i, size in sizes)

    def made_of(members: Sequence[Member]) -> str:
        found = []
        for layout in dict.fromkeys(m.layout for m in members if m.layout != whole):
            several = layout.count(" + ") > 1
            found.append("one of several terms" if several else _local(layout, axis.name))
        return ", ".join(found)

    shapes = [shape(members) for members in dims.values()]
    layouts = [made_of(members) for members in dims.values()]
    groups = runs(list(dims), list(zip(shapes, layouts, strict=True)))
    mixed = any(layouts)
    rows = tuple(
        (
            name,
            str(len(indices)),
            shapes[indices[0]],
            *((layouts[indices[0]],) if mixed else ()),
        )
        for name, indices in groups
    )
    return Table(
        f"Leaves that have it: {len(dims)}",
        ("leaf", "leaves", "shape", *(("what [ ] is made of",) if mixed else ())),
        rows,
        right=frozenset({1}),
        short=frozenset({0, 3} if mixed else {0}),
        note="[ ]: the dimension with the axis",
    )


def _local(layout: str, axis: str) -> str:
    """A layout with the axes of an axis' own module called by what follows the module.

    >>> _local("a.b.q.heads[2] × a.b.v.dim[3]", "a.b.q.heads")
    'q.heads[2] × v.dim[3]'
    """
    names = [axis, *re.findall(r"[^\s()]+(?=\[\d+\])", layout)]
    paths = [name.split(".")[:-1] for name in names]
    shared = takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))
    prefix = "".join(f"{parts[0]}." for parts in shared)
    return re.sub(rf"(?<![^\s(]){re.escape(prefix)}", "", layout)


def _through(axis: AxisFact, about: Facts) -> Table:
    """Operators that an axis runs through, in runs of places."""
    found: dict[str, list[str]] = {}
    for name in axis.operators:
        operator = about.operators[name]
        found.setdefault(operator.operator, []).append(operator.place or f"%{name}")
    rows = []
    for kind, places in found.items():
        labels = _counted(list(dict.fromkeys(places)))
        lines = [label for label, _ in labels[: 2 * EACH]]
        hidden = sum(n for _, n in labels[2 * EACH :])
        lines += [f"and {hidden} more"] * bool(hidden)
        rows.append((kind, str(len(places)), "\n".join(lines)))
    return Table(
        f"Operators that it runs through: {len(axis.operators)}",
        ("operator", "times", "in"),
        tuple(rows),
        right=frozenset({1}),
        short=frozenset({2}),
    )


def _one_operator(operator: OperatorFact) -> Table:
    """An operator, one fact per row."""
    rows = [("operator", operator.operator), ("in", operator.place or "the model itself")]
    if operator.source:
        rows.append(("code", operator.source))
    if operator.block:
        rows.append(("block", operator.block))
    for shape, layout in zip(operator.shapes, operator.layout, strict=True):
        rows += [("result", shape), ("made of", " | ".join(layout))]
    rows += [("MACs", count(operator.macs)), ("leaves", "\n".join(operator.leaves) or "none")]
    return Table(f"%{operator.name}", ("", ""), tuple(rows))


def _operators(operators: Sequence[OperatorFact]) -> Table:
    return Table(
        "Operators",
        ("name", "operator", "in", "result", "MACs"),
        tuple(
            (f"%{o.name}", o.operator, o.place, ", ".join(o.shapes), count(o.macs))
            for o in operators
        ),
        right=frozenset({4}),
        short=frozenset({0, 2}),
    )


@dataclass(frozen=True, slots=True)
class Change:
    """One difference: what it was and what it is; None where there is nothing."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Difference:
    """How two graphs differ, leaf by leaf and operator by operator."""

    leaves: tuple[Change, ...]
    nodes: tuple[Change, ...]
    ends: tuple[Change, ...]

    def __bool__(self) -> bool:
        return bool(self.leaves or self.nodes or self.ends)

    def tables(self) -> tuple[Table, ...]:
        """The differences for people; parts without a row are left out."""

        def table(title: str, changes: Sequence[Change]) -> Table:
            rows = tuple((c.name, c.before or "–", c.after or "–") for c in changes)
            return Table(title, ("name", "before", "after"), rows)

        found = (
            table("Leaves", self.leaves),
            table("Operators", self.nodes),
            table("Inputs, outputs, updates", self.ends),
        )
        return tuple(t for t in found if t.rows)


def diff(a: ArchGraph, b: ArchGraph) -> Difference:
    """Differences of two graphs, empty exactly when they are equal up to the names of operators.

    Leaves are matched by name, operators in order by operator and place in the module.

    Example:
        >>> from archgraph.graph.ir import Batch, TensorType
        >>> kind = TensorType((Batch(), 8), "float32")
        >>> x, y = (
        ...     Node("x", "input", type=kind),
        ...     Node("y", "aten.relu", (("self", Ref("x")),), kind),
        ... )
        >>> a = ArchGraph((("x", Ref("x")),), (), (x, y), Ref("y"))
        >>> bool(diff(a, a)), diff(a, a.replace(nodes=(x,), outputs=Ref("x"))).nodes[0].before
        (False, 'aten.relu(self=%x)')
    """
    leaves = []
    for name in dict.fromkeys((*a.param, *b.param)):
        was, now = a.param.get(name), b.param.get(name)
        if was != now:
            leaves.append(Change(name, _leaf(was), _leaf(now)))

    keys = [[(n.op, n.scope) for n in g.nodes] for g in (a, b)]
    matcher = difflib.SequenceMatcher(None, keys[0], keys[1], autojunk=False)
    partner: dict[str, str] = {}
    nodes: list[Change] = []
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            for one, other in zip(a.nodes[i1:i2], b.nodes[j1:j2], strict=True):
                partner[other.name] = one.name
                before, after = _call(one, {}), _call(other, partner)
                if before != after or one.type != other.type:
                    kinds = (str(one.type), str(other.type))
                    nodes.append(
                        Change(_place(one), f"{before} → {kinds[0]}", f"{after} → {kinds[1]}")
                    )
        else:
            nodes += [Change(_place(n), _call(n, {}), None) for n in a.nodes[i1:i2]]
            nodes += [Change(_place(n), None, _call(n, partner)) for n in b.nodes[j1:j2]]

    def values(graph: ArchGraph, names: dict[str, str]) -> dict[str, str]:
        def rename(value: Any) -> Any:
            return Ref(names.get(value.name, value.name)) if isinstance(value, Ref) else value

        found = {f"input {k}": show(replace(v, rename)) for k, v in graph.inputs}
        found |= {f"update {k}": show(replace(v, rename)) for k, v in graph.updates}
        found |= {f"section {k}": show(v) for k, v in graph.sections}
        return found | {"output": show(replace(graph.outputs, rename))}

    old, new = values(a, {}), values(b, partner)
    ends = [
        Change(key, old.get(key), new.get(key))
        for key in dict.fromkeys((*old, *new))
        if old.get(key) != new.get(key)
    ]
    return Difference(tuple(leaves), tuple(nodes), tuple(ends))


def _leaf(param: Param | None) -> str | None:
    if param is None:
        return None
    text = str(param)
    return text if len(text) <= 120 else text[:117] + "..."


def _place(node: Node) -> str:
    return f"{node.name} @ {node.scope}" if node.scope else node.name


def _call(node: Node, names: dict[str, str]) -> str:
    """An application in the names of the other graph, as far as operators were matched."""

    def rename(value: Any) -> Any:
        return Ref(names.get(value.name, value.name)) if isinstance(value, Ref) else value

    args = ", ".join(f"{k}={show(replace(v, rename))}" for k, v in node.args)
    return f"{node.op}({args})"
