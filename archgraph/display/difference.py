"""How two graphs differ: part by part, or leaf by leaf and operator by operator."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from archgraph.analysis.structure import structure
from archgraph.display.hierarchy import between
from archgraph.graph.ir import ArchGraph, Node, Param, Value, replace, show
from archgraph.graph.passes import renaming
from archgraph.relate.correspondence import Correspondence, PartDifference
from archgraph.tables import Table, plural

SEVERAL = {"block": "blocks", "operator": "operators", "leaf": "leaves", "axis": "axes"}


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
        """Return the differences as tables; parts without a row are left out."""

        def table(title: str, changes: Sequence[Change]) -> Table:
            rows = tuple((c.name, c.before or "–", c.after or "–") for c in changes)
            return Table(title, ("name", "before", "after"), rows)

        tables = (
            table("Leaves", self.leaves),
            table("Operators", self.nodes),
            table("Inputs, outputs, updates", self.ends),
        )
        return tuple(t for t in tables if t.rows)


def correspondence_table(matched: Correspondence) -> Table:
    """Return the differences of two graphs as a table; equal neighbours share a row.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> from archgraph.relate.correspond import correspond
        >>> nets = (
        ...     torch.nn.Sequential(torch.nn.Linear(3, n), torch.nn.Linear(n, 2)) for n in (4, 2)
        ... )
        >>> a, b = (trace(net, torch.zeros(1, 3)).graph for net in nets)
        >>> correspondence_table(correspond(a, b)).rows
        (('narrower', 'axis', '0.out', '0.out', '4', '2'),)
    """
    alike = itertools.groupby(
        matched.differences,
        lambda d: (d.kind, d.level, bool(d.a), bool(d.b), d.before, d.after),
    )
    rows = tuple(_row(list(items)) for _, items in alike)
    a, b = matched.a.name, matched.b.name
    heads = (a, b) if a and b and a != b else ("A", "B")
    how = "read off the transfer" if matched.exact else "aligned by structure"
    blocks = [len({pair[i] for pair in matched.blocks}) for i in (0, 1)]
    total = [len(structure(graph).blocks) for graph in (matched.a, matched.b)]
    return Table(
        f"{heads[0]} → {heads[1]}",
        ("difference", "part", f"in {heads[0]}", f"in {heads[1]}", "before", "after"),
        rows,
        right=frozenset({4, 5}),
        note=f"{blocks[0]} of {total[0]} blocks correspond to {blocks[1]} of {total[1]}, {how}",
    )


def _row(items: Sequence[PartDifference]) -> tuple[str, ...]:
    """Merge equal differences into one row."""
    first = items[0]
    part = first.level if len(items) == 1 else plural(len(items), first.level, SEVERAL[first.level])
    names = (_ranges([item.a for item in items]), _ranges([item.b for item in items]))
    sizes = ("" if v is None else str(v) for v in (first.before, first.after))
    return (first.kind, part, *names, *sizes)


def _ranges(names: Sequence[str]) -> str:
    """Write names that follow one another as one, and where they do not as several.

    >>> _ranges(["a.3", "a.4", "a.5", "b.2", "b.3"]), _ranges(["a.0", "a.2"]), _ranges([""])
    ('a.3–5, b.2–3', 'a.0, a.2', '–')
    """
    runs: list[list[str]] = []
    for name in names:
        if runs and _follows(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(dict.fromkeys(between(run[0], run[-1]) for run in runs)) or "–"


def _follows(name: str, other: str) -> bool:
    """Return whether a name is another one with one number larger by 1, or the same."""
    parts = [re.split(r"(\d+)", text) for text in (name, other)]
    if len(parts[0]) != len(parts[1]):
        return False
    apart = [(x, y) for x, y in zip(*parts, strict=True) if x != y]
    if len(apart) != 1:
        return not apart
    ((x, y),) = apart
    return x.isdigit() and y.isdigit() and int(y) == int(x) + 1


def diff(a: ArchGraph, b: ArchGraph) -> Difference:
    """Compare two graphs; empty exactly if they are equal up to the names of operators.

    Leaves are matched by name, operators in order by operator and place in the module.

    Example:
        >>> from archgraph.graph.ir import BATCH, Ref, TensorType
        >>> kind = TensorType((BATCH, 8), "float32")
        >>> x, y = (
        ...     Node("x", "input", type=kind),
        ...     Node("y", "aten.relu", (("self", Ref("x")),), kind),
        ... )
        >>> a = ArchGraph((("x", Ref("x")),), (), (x, y), Ref("y"))
        >>> (
        ...     bool(diff(a, a)),
        ...     diff(a, a.replace(nodes=(x,), outputs=Ref("x"))).nodes[0].before,
        ... )
        (False, 'aten.relu(self=%x)')
    """
    leaves = []
    for name in dict.fromkeys((*a.param, *b.param)):
        was, now = a.param.get(name), b.param.get(name)
        if was != now:
            leaves.append(Change(name, _leaf(was), _leaf(now)))

    # Names of operators count up from the start of a graph, so one more shifts all that follow:
    # operators are matched by what they do and where, and compared in the names of `a`.
    keys = [[(n.op, n.scope) for n in g.nodes] for g in (a, b)]
    # Without autojunk: it ignores what is frequent, and in a graph relu is.
    matcher = difflib.SequenceMatcher(None, keys[0], keys[1], autojunk=False)
    partner: dict[str, str] = {}
    nodes: list[Change] = []
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            for one, other in zip(a.nodes[i1:i2], b.nodes[j1:j2], strict=True):
                partner[other.name] = one.name
                before, after = _call(one, {}), _call(other, partner)
                if before != after or one.type != other.type:
                    calls = f"{before} → {one.type}", f"{after} → {other.type}"
                    nodes.append(Change(_place(one), *calls))
        else:
            nodes += [Change(_place(n), _call(n, {}), None) for n in a.nodes[i1:i2]]
            nodes += [Change(_place(n), None, _call(n, partner)) for n in b.nodes[j1:j2]]

    def values(graph: ArchGraph, names: dict[str, str]) -> dict[str, str]:
        parts = {f"input {k}": _renamed(v, names) for k, v in graph.inputs}
        parts |= {f"update {k}": _renamed(v, names) for k, v in graph.updates}
        parts |= {f"section {k}": show(v) for k, v in graph.sections}
        return parts | {"output": _renamed(graph.outputs, names)}

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
    args = ", ".join(f"{k}={_renamed(v, names)}" for k, v in node.args)
    return f"{node.op}({args})"


def _renamed(value: Value, names: dict[str, str]) -> str:
    """Write a value in the names of the other graph, as far as operators were matched."""
    return show(replace(value, renaming(names)))
