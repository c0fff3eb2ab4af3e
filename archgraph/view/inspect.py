"""Graphs in words: what is in one, what can change in it and why, how two differ."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from archgraph.errors import ArchGraphError
from archgraph.ir import ArchGraph, Node, Param, Ref, replace, show
from archgraph.view.scene import count, dimensions, parameters, shape_label

# Axes pinned for one reason that are named one by one.
EACH = 3


@dataclass(frozen=True, slots=True)
class Table:
    """A table of text; `right` tells the columns that hold numbers, `strong` the rows that sum."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()
    strong: frozenset[int] = frozenset()
    note: str = ""


def summary(graph: ArchGraph) -> Table:
    """Sections and blocks with the shapes of their results, parameters and MACs per example.

    What stands in no block (stem, head) is a row of its own where it stands.

    Example:
        >>> from archgraph.ir import Batch, TensorType
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


@dataclass(frozen=True, slots=True)
class Explanation:
    """What can change in a graph and what cannot, with reasons; plain values, ready for JSON."""

    name: str
    free: tuple[dict[str, Any], ...]
    pinned: tuple[dict[str, Any], ...]
    blocks: tuple[dict[str, Any], ...]
    leaves: tuple[dict[str, Any], ...]

    def plain(self) -> dict[str, Any]:
        """The explanation as values that JSON can write."""
        return {
            "name": self.name,
            "axes": {"free": list(self.free), "pinned": list(self.pinned)},
            "blocks": list(self.blocks),
            "leaves": list(self.leaves),
        }

    def tables(self) -> tuple[Table, ...]:
        """The explanation for people; parts without a row are left out."""
        free = Table(
            "Free axes",
            ("axis", "size", "role", "spanned by"),
            tuple((a["name"], str(a["size"]), a["role"], ", ".join(a["spans"])) for a in self.free),
            right=frozenset({1}),
        )
        pinned = Table("Pinned axes", ("reason", "axes"), tuple(_by_reason(self.pinned)))
        blocks = Table(
            "Blocks",
            ("block", "section", "kind", "removable"),
            tuple(
                (
                    b["name"],
                    b["section"],
                    b["kind"],
                    "yes" if b["removable"] else f"no: {b['reason']}",
                )
                for b in self.blocks
            ),
        )
        leaves = Table(
            "Leaves",
            ("leaf", "shape", "layout of each dimension"),
            tuple(
                (p["name"], "×".join(map(str, p["shape"])), " | ".join(p["layout"]))
                for p in self.leaves
            ),
        )
        return tuple(table for table in (free, pinned, blocks, leaves) if table.rows)


def explain(graph: ArchGraph, name: str | None = None) -> Explanation:
    """Which axes are free, which are pinned and why, which blocks can go and why not.

    Args:
        graph: The architecture.
        name: Part to explain: an axis, section, block or leaf, or a pattern (`layer1.*`); leaves
            are explained dimension by dimension. None: all axes and blocks.

    Raises:
        ArchGraphError: If nothing has that name.
    """
    from archgraph.analysis.axes import axes
    from archgraph.analysis.structure import structure

    solved = axes(graph)
    blocks = structure(graph).blocks
    free = [_axis(a) for a in solved.free]
    pinned = [{**_axis(a), "reason": a.reason} for a in solved.pinned]
    parts = [
        {
            "name": b.name,
            "section": b.section,
            "kind": b.kind,
            "removable": b.removable,
            "reason": b.reason,
            "entry": b.entry,
            "exit": b.exit,
            "nodes": list(b.nodes),
        }
        for b in blocks
    ]
    if name is None:
        return Explanation(graph.name, tuple(free), tuple(pinned), tuple(parts), ())

    def chosen(key: str) -> bool:
        return key == name or key.startswith(f"{name}.") or fnmatch.fnmatchcase(key, name)

    leaves = tuple(
        {
            "name": p.name,
            "shape": list(p.shape),
            "layout": [str(layout) for layout in solved.of(p.name)],
        }
        for p in graph.params
        if chosen(p.name)
    )
    named = Explanation(
        graph.name,
        tuple(a for a in free if chosen(a["name"])),
        tuple(a for a in pinned if chosen(a["name"])),
        tuple(b for b in parts if chosen(b["name"]) or chosen(b["section"])),
        leaves,
    )
    if not (named.free or named.pinned or named.blocks or named.leaves):
        known = [a["name"] for a in (*free, *pinned)] + [b["name"] for b in parts]
        known += [b["section"] for b in parts] + list(graph.param)
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        raise ArchGraphError(
            "no axis, section, block or leaf of this name",
            where=name,
            hint=f"did you mean {near[0]}?" if near else None,
        )
    return named


def _by_reason(pinned: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """One row per reason; where it holds for many axes, the first ones stand for all."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for axis in pinned:
        # What follows in parentheses is the place, another one for each axis.
        groups.setdefault(axis["reason"].partition(" (")[0], []).append(axis)
    for reason, members in groups.items():
        if len(members) <= EACH:
            for axis in members:
                yield axis["reason"], f"{axis['name']} [{axis['size']}]"
        else:
            first = ", ".join(f"{axis['name']} [{axis['size']}]" for axis in members[:EACH])
            yield reason, f"{first} and {len(members) - EACH} more"


def _axis(axis: Any) -> dict[str, Any]:
    return {
        "name": axis.name,
        "size": axis.size,
        "role": axis.role,
        "spans": list(axis.spans),
    }


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
        >>> from archgraph.ir import Batch, TensorType
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
