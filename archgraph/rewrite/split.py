"""Parts: cut an architecture behind or before named blocks, and chain parts to a whole again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

from archgraph.analysis.structure import Structure, structure
from archgraph.errors import RewriteError
from archgraph.graph.argument import GraphLike, graph_of, takes_graph
from archgraph.graph.ir import (
    ArchGraph,
    Batch,
    Leaf,
    Node,
    Param,
    Ref,
    Value,
    refs,
    replace,
    walk,
)
from archgraph.ops.check import check
from archgraph.states import Entry, Rewritten, Transfer, signature


@dataclass(frozen=True, repr=False)
class Parts(Sequence[Rewritten]):
    """The parts of an architecture, in order of computation.

    Each part takes the values that earlier parts made and that it or a later one needs; where that
    is one value, forward takes and returns a plain tensor.

    Attributes:
        parts: Each part's graph, and the transfer from the whole state to its own.
        leaves: Names of the whole architecture's leaves, in its order.
        inputs: Its arguments, in its order.
        heads: The nodes that stand for them, in its order.
        updates: Names of the buffers that the whole architecture assigns, in its order.
        name: Of the whole architecture.
        sections: The whole architecture's own sections.
    """

    parts: tuple[Rewritten, ...]
    leaves: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
    name: str = ""
    sections: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def __repr__(self) -> str:
        operators = ", ".join(str(len(part.graph.nodes)) for part in self.parts)
        return f"<Parts of {self.name or 'graph'}: {operators} operators>"

    @overload
    def __getitem__(self, index: int) -> Rewritten: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Rewritten, ...]: ...
    def __getitem__(self, index: int | slice) -> Rewritten | tuple[Rewritten, ...]:
        return self.parts[index]

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[Rewritten]:
        return iter(self.parts)


@takes_graph
def split(
    graph: ArchGraph,
    after: str | Sequence[str] = (),
    before: str | Sequence[str] = (),
) -> Parts:
    """Cut an architecture into parts that are architectures themselves.

    Args:
        graph: The architecture.
        after: Sections or blocks behind which to cut.
        before: Sections or blocks in front of which to cut.

    Returns:
        The parts in order; ``chain(split(g, …)) == g``.

    Raises:
        RewriteError: For a cut that leaves a part empty.
        GraphError: For a section or block that does not exist; names the nearest.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
        >>> graph = trace(net, torch.zeros(1, 4)).graph
        >>> extractor, middle, classifier = split(graph, before=["1", "head"])
        >>> [p.graph.state_names for p in (extractor, classifier)]
        [('0.weight', '0.bias'), ('2.weight', '2.bias')]
        >>> chain(split(graph, before="1")) == graph
        True

    Source: Chan et al., *FedIN: Federated Intermediate Layers Learning*, §III.
    """
    blocks = structure(graph)
    order = {n.name: i for i, n in enumerate(graph.nodes)}
    ends = {_end(blocks, name, order) for name in _listed(after)}
    ends |= {_start(blocks, name, order) for name in _listed(before)}
    bounds = sorted(ends)
    first = next((i for i, n in enumerate(graph.nodes) if n.op != "input"), len(order))
    for low, high in zip([first, *(b + 1 for b in bounds)], [*bounds, len(order) - 1], strict=True):
        if low > high:
            raise RewriteError(
                "cut leaves a part empty",
                where=f"%{graph.nodes[min(low, len(order) - 1)].name}",
                found=", ".join([*_listed(after), *_listed(before)]),
                expected="cuts with operators before and behind them",
            )
    part_of = _assigned(graph, bounds)
    return Parts(
        tuple(_part(graph, part_of, k, len(bounds)) for k in range(len(bounds) + 1)),
        tuple(p.name for p in graph.params),
        tuple(k for k, _ in graph.inputs),
        tuple(n.name for n in graph.nodes if n.op == "input"),
        tuple(k for k, _ in graph.updates),
        graph.name,
        graph.sections,
    )


def _listed(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _end(blocks: Structure, name: str, order: Mapping[str, int]) -> int:
    return max(order[n] for n in blocks.nodes(name))


def _start(blocks: Structure, name: str, order: Mapping[str, int]) -> int:
    return min(order[n] for n in blocks.nodes(name)) - 1


def _assigned(graph: ArchGraph, bounds: Sequence[int]) -> dict[str, int]:
    """Number of the part that each operator belongs to; results stay with what makes them."""
    part_of: dict[str, int] = {}
    for index, node in enumerate(graph.nodes):
        part_of[node.name] = sum(index > bound for bound in bounds)
        if node.op == "getitem":
            part_of[node.name] = part_of[next(node.uses())]
    return part_of


def _part(graph: ArchGraph, part_of: Mapping[str, int], k: int, last: int) -> Rewritten:
    """One part: its operators, what it takes from earlier ones, what later ones take from it."""
    mine = [n for n in graph.nodes if n.op != "input" and part_of[n.name] == k]
    inputs = {n.name for n in graph.nodes if n.op == "input"}
    # An update goes with the last operator that it needs.
    updates = tuple(
        (key, value)
        for key, value in graph.updates
        if max((part_of[r] for r in refs(value) if r not in inputs), default=0) == k
    )
    used = {u for n in mine for u in n.uses()} | {r for _, v in updates for r in refs(v)}
    if k == last:
        used |= set(refs(graph.outputs))
    arriving = _crossing(graph, part_of, k - 1)
    leaving = _crossing(graph, part_of, k)
    somewhere = {u for n in graph.nodes for u in n.uses()} | set(refs(graph.outputs))
    somewhere |= {r for _, v in graph.updates for r in refs(v)}
    arguments = tuple(  # one that nothing uses goes with the last part
        (key, v)
        for key, v in graph.inputs
        if used & set(refs(v)) or (k == last and not somewhere & set(refs(v)))
    )
    entering = {r for _, v in arguments for r in refs(v)}
    nodes: list[Node] = [n for n in graph.nodes if n.name in entering]
    for name in arriving:
        source = graph.node[name]
        nodes.append(Node(name, "input", (), source.types[0], "", source.source))
    outputs: Value = graph.outputs
    if k < last:
        results = tuple(Ref(name) for name in leaving)
        outputs = results[0] if len(results) == 1 else results
    leaves = {leaf for n in mine for leaf in n.leaves()}
    for value in (outputs, *(v for _, v in updates)):
        leaves |= {i.name for i in walk(value) if isinstance(i, Leaf)}
    leaves |= {key for key, _ in updates}
    everywhere = {leaf for n in graph.nodes for leaf in n.leaves()} | {u for u, _ in graph.updates}
    modules = {leaf.rpartition(".")[0] for leaf in leaves}
    params = tuple(  # counters that nothing uses go with their module
        p
        for p in graph.params
        if p.name in leaves
        or (p.name not in everywhere and (p.name.rpartition(".")[0] in modules or k == last))
    )
    taken_inputs = tuple((name, Ref(name)) for name in arriving)
    part = graph.replace(
        inputs=(*taken_inputs, *arguments),
        params=params,
        nodes=(*nodes, *mine),
        outputs=outputs,
        updates=updates,
        sections=(),
        name=f"{graph.name} part {k + 1}" if graph.name else "",
    )
    if not any(n.shape[:1] == (Batch(),) for n in part.nodes if n.op == "input"):
        raise RewriteError(
            "cut through values whose first size is not the batch",
            where=", ".join(f"%{name}" for name in arriving),
            found=", ".join(str(graph.node[name].type) for name in arriving),
            hint="cut at another block",
        )
    check(part)
    entries = {
        p.name: Entry(p.name, (None,) * len(p.shape)) for p in params if p.role != "constant"
    }
    return Rewritten(part, Transfer(signature(graph), signature(part), entries))


def _crossing(graph: ArchGraph, part_of: Mapping[str, int], k: int) -> tuple[str, ...]:
    """Values made up to part k that later parts need, in order; without inputs."""
    if k < 0:
        return ()
    later: set[str] = set()
    for node in graph.nodes:
        if node.op != "input" and part_of[node.name] > k:
            later.update(node.uses())
    last = max(part_of.values())
    if last > k:
        later.update(refs(graph.outputs))
    for _, value in graph.updates:
        used = refs(value)
        if any(part_of[r] > k for r in used):
            later.update(used)
    return tuple(
        n.name for n in graph.nodes if n.op != "input" and part_of[n.name] <= k and n.name in later
    )


def chain(parts: Parts | Sequence[GraphLike]) -> ArchGraph:
    """One architecture that runs parts one after the other.

    Args:
        parts: What :func:`split` gave, or architectures of which each returns what the next one
            takes first. Leaves of one name are one leaf.

    Raises:
        RewriteError: If a part does not take what the one before it returns, or if two parts
            have different leaves or inputs of one name.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> def linear(name, a, b):
        ...     net = torch.nn.Sequential()
        ...     net.add_module(name, torch.nn.Linear(a, b))
        ...     return trace(net, torch.zeros(1, a)).graph
        >>> chain([linear("client", 3, 8), linear("server", 8, 2)]).state_names
        ('client.weight', 'client.bias', 'server.weight', 'server.bias')
    """
    listed = parts if isinstance(parts, Sequence) else ()
    graphs = [graph_of(p) for p in listed]
    if listed is not parts:
        raise RewriteError(
            "not parts to chain", found=type(parts).__name__, expected="architectures, in order"
        )
    if not graphs:
        raise RewriteError("nothing to chain", found=0, expected="at least one part")
    inputs: dict[str, Value] = {}
    heads: dict[str, Node] = {}
    nodes: list[Node] = []
    params: dict[str, Param] = {}
    updates: list[tuple[str, Value]] = []
    names: set[str] = set()
    before: Value = ()
    for number, graph in enumerate(graphs):
        rename = _joined(graph, before, names, number, heads, nodes)

        def follow(value: Value, rename: Mapping[str, str] = rename) -> Value:
            return Ref(rename.get(value.name, value.name)) if isinstance(value, Ref) else value

        for key, value in graph.inputs:
            if number and all(r in rename and rename[r] not in heads for r in refs(value)):
                continue
            renamed = replace(value, follow)
            if inputs.setdefault(key, renamed) != renamed:
                raise RewriteError("two parts take different values under one name", where=key)
        for node in graph.nodes:
            new = Node(
                rename.get(node.name, node.name),
                node.op,
                tuple((a, replace(v, follow)) for a, v in node.args),
                node.type,
                node.scope,
                node.source,
            )
            if node.op == "input":
                if new.name not in names and new.name not in heads:
                    heads[new.name] = new
            else:
                nodes.append(new)
                names.add(new.name)
        for param in graph.params:
            if params.setdefault(param.name, param) != param:
                raise RewriteError(
                    "two parts have different leaves of one name",
                    where=param.name,
                    found=param,
                    expected=params[param.name],
                )
        updates += [(key, replace(value, follow)) for key, value in graph.updates]
        before = replace(graph.outputs, follow)
    ordered, changed, label = list(params.values()), updates, graphs[-1].name
    arguments, inputs_of_all = list(inputs.items()), list(heads.values())
    sections: tuple[tuple[str, tuple[str, ...]], ...] = ()
    if isinstance(parts, Parts):
        turn = {name: i for i, name in enumerate(parts.leaves)}
        ordered.sort(key=lambda p: turn[p.name])
        arguments.sort(key=lambda a: parts.inputs.index(a[0]))
        inputs_of_all.sort(key=lambda n: parts.heads.index(n.name))
        place = {name: i for i, name in enumerate(parts.updates)}
        changed.sort(key=lambda u: place[u[0]])
        label, sections = parts.name, parts.sections
    whole = ArchGraph(
        tuple(arguments),
        tuple(ordered),
        (*inputs_of_all, *nodes),
        before,
        tuple(changed),
        sections,
        label,
    )
    check(whole)
    return whole


def _joined(
    graph: ArchGraph,
    before: Value,
    names: set[str],
    number: int,
    heads: Mapping[str, Node],
    operators: Sequence[Node],
) -> dict[str, str]:
    """New names of a part's nodes: its first inputs are what the part before returned."""
    rename: dict[str, str] = {}
    if number:
        values = before if isinstance(before, tuple) else (before,)
        first = [v for _, v in graph.inputs][: len(values)]
        types = {n.name: n.type for n in (*heads.values(), *operators)}
        for value, wanted in zip(values, first, strict=False):
            actual = types.get(value.name) if isinstance(value, Ref) else None
            expected = graph.node[wanted.name].type if isinstance(wanted, Ref) else None
            if actual is None or actual != expected:
                raise RewriteError(
                    "a part does not take what the one before it returns",
                    where=f"part {number + 1}",
                    found=actual,
                    expected=expected,
                )
            assert isinstance(value, Ref) and isinstance(wanted, Ref)
            rename[wanted.name] = value.name
        if len(first) < len(values):
            raise RewriteError(
                "a part does not take what the one before it returns",
                where=f"part {number + 1}",
                found=f"{len(values)} values",
                expected=f"{len(first)}",
            )
    in_use = names | set(heads)
    for node in graph.nodes:
        if node.name in rename or (node.op == "input" and node.name in heads):
            continue
        new, count = node.name, 0
        while new in in_use:
            count += 1
            new = f"{node.name}_{count}"
        in_use.add(new)
        if new != node.name:
            rename[node.name] = new
    return rename
