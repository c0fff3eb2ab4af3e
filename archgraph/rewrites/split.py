"""Split an architecture into consecutive parts, and join parts again."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar, overload

from archgraph.analysis.structure import structure
from archgraph.errors import RewriteError
from archgraph.graph.argument import GraphLike, graph_of, takes_graph
from archgraph.graph.ir import BATCH, ArchGraph, Leaf, Node, Param, Ref, Value, refs, replace, walk
from archgraph.graph.passes import notes_of, renaming
from archgraph.graph.polynomial import sizes_in
from archgraph.graph.sizes import open_sizes, with_open_sizes
from archgraph.ops.check import check
from archgraph.rewrites.insert import fresh
from archgraph.states import Entry, Rewritten, signature

T = TypeVar("T")


@dataclass(frozen=True, repr=False)
class Parts(Sequence[Rewritten]):
    """The parts of an architecture, in order of computation.

    The inputs of a part are the results of earlier parts that this part or a later part needs, and
    the inputs of the original that this part uses. The outputs of a part are the results that
    later parts need: a tensor if it is one result, otherwise a tuple.

    Attributes:
        parts: For each part, its graph and the transfer from the full state to the part's state.
        original: The architecture before the split.
    """

    parts: tuple[Rewritten, ...]
    original: ArchGraph

    def __repr__(self) -> str:
        operators = ", ".join(str(len(part.graph.nodes)) for part in self.parts)
        return f"<Parts of {self.original.name or 'graph'}: {operators} operators>"

    @overload
    def __getitem__(self, index: int) -> Rewritten: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Rewritten, ...]: ...
    def __getitem__(self, index: int | slice) -> Rewritten | tuple[Rewritten, ...]:
        return self.parts[index]

    def __len__(self) -> int:
        return len(self.parts)


@takes_graph
def split(
    graph: ArchGraph, after: str | Sequence[str] = (), before: str | Sequence[str] = ()
) -> Parts:
    """Split an architecture into several architectures that run one after the other.

    Args:
        graph: The architecture.
        after: Sections or blocks after which to cut.
        before: Sections or blocks before which to cut.

    Returns:
        The architectures in order. ``chain(split(g, …)) == g`` holds.

    Raises:
        RewriteError: If one of the architectures would be empty.
        GraphError: If a section or block does not exist. The message suggests the nearest name.

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
    ends = {max(order[n] for n in blocks.nodes(name)) for name in _listed(after)}
    ends |= {min(order[n] for n in blocks.nodes(name)) - 1 for name in _listed(before)}
    bounds = sorted(ends)
    # Inputs come first and belong to no part, so a cut among them would leave a part empty.
    first = next((i for i, n in enumerate(graph.nodes) if n.op != "input"), len(order))
    for low, high in zip([first, *(b + 1 for b in bounds)], [*bounds, len(order) - 1], strict=True):
        if low > high:
            where = f"%{graph.nodes[min(low, len(order) - 1)].name}"
            cuts = ", ".join([*_listed(after), *_listed(before)])
            raise RewriteError("cut leaves a part empty", where=where, found=cuts)
    cut = _Cut(graph, bounds)
    return Parts(tuple(cut.part(k) for k in range(len(bounds) + 1)), graph)


def _listed(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


class _Cut:
    """A graph that is cut after some of its operators.

    Attributes:
        last: Index of the last part.
        part_of: Dict from operator to the index of the part that contains it.
        needed: Dict from operator to the index of the last part that needs its result.
    """

    def __init__(self, graph: ArchGraph, bounds: Sequence[int]) -> None:
        self.graph, self.last = graph, len(bounds)
        self.part_of: dict[str, int] = {}
        self.needed: dict[str, int] = {}
        for index, node in enumerate(graph.nodes):
            part = sum(index > bound for bound in bounds)
            # A getitem stays with its operator: a part can return tensors, but not nested tuples.
            if node.op == "getitem":
                part = self.part_of[next(node.uses())]
            self.part_of[node.name] = part
            self._need(node.uses(), part)
        # The last part returns the outputs, whichever part computes them.
        self._need(refs(graph.outputs), self.last)
        for _, value in graph.updates:
            self._need(refs(value), self._home(value))

    def _need(self, names: Iterable[str], part: int) -> None:
        self.needed |= {name: max(part, self.needed.get(name, 0)) for name in names}

    def _home(self, update: Value) -> int:
        """Return the index of the last part that an update of a buffer needs."""
        return max((self.part_of[name] for name in refs(update)), default=0)

    def _crossing(self, k: int) -> tuple[str, ...]:
        """Return the results of parts 0 to k that later parts need, in order; without inputs."""
        return tuple(
            n.name
            for n in self.graph.nodes
            if n.op != "input" and self.part_of[n.name] <= k < self.needed.get(n.name, -1)
        )

    def part(self, k: int) -> Rewritten:
        """Return the graph and transfer of part k.

        1. Collect its operators and updates. Its outputs are the values that later parts need, or
           for the last part the outputs of the graph.
        2. Collect its inputs: values of earlier parts, and arguments of the graph's forward.
        3. Collect its parameters and buffers.
        """
        graph = self.graph
        leaving = tuple(map(Ref, self._crossing(k)))
        results = leaving[0] if len(leaving) == 1 else leaving
        work = graph.replace(  # 1
            nodes=tuple(n for n in graph.nodes if n.op != "input" and self.part_of[n.name] == k),
            outputs=graph.outputs if k == self.last else results,
            updates=tuple((key, v) for key, v in graph.updates if self._home(v) == k),
            sections=(),
            name=f"{graph.name} part {k + 1}" if graph.name else "",
        )
        arriving, arguments = self._crossing(k - 1), self._arguments(work, k)  # 2
        entering = {r for _, v in arguments for r in refs(v)}
        part = work.replace(
            inputs=(*((name, Ref(name)) for name in arriving), *arguments),
            params=self._leaves(work, k),  # 3
            nodes=(
                *(n for n in graph.nodes if n.name in entering),
                *map(self._input, arriving),
                *work.nodes,
            ),
        )
        self._check_inputs(part, arriving)
        part = with_open_sizes(part, open_sizes(graph))
        check(part)
        return Rewritten.between(graph, part, {s.name: Entry.kept(s) for s in signature(part)})

    def _input(self, name: str) -> Node:
        """Return an input node for a result of an earlier part."""
        node = self.graph.node[name]
        return Node(name, "input", (), node.types[0], "", node.source)

    def _arguments(self, work: ArchGraph, k: int) -> tuple[tuple[str, Value], ...]:
        """Return the forward arguments that part k uses; the last part also gets unused ones."""
        used = {u for n in work.nodes for u in n.uses()} | {*refs(_results(work))}
        return tuple(
            (key, v)
            for key, v in self.graph.inputs
            if used & {*refs(v)} or (k == self.last and not self.needed.keys() & {*refs(v)})
        )

    def _leaves(self, work: ArchGraph, k: int) -> tuple[Param, ...]:
        """Return the leaves that part k uses, and the unused leaves that belong to it."""
        leaves = {leaf for n in work.nodes for leaf in n.leaves()} | {*dict(work.updates)}
        leaves |= {i.name for i in walk(_results(work)) if isinstance(i, Leaf)}
        return tuple(p for p in self.graph.params if p.name in leaves or self._idle(p, leaves, k))

    def _check_inputs(self, part: ArchGraph, arriving: Sequence[str]) -> None:
        """Raise if the inputs of a part do not determine the batch size or another dynamic size."""
        graph = self.graph
        lost = sorted(open_sizes(graph).keys() - open_sizes(part).keys() & _sizes_of(part))
        # A graph has a batch: the first axis of at least one of its inputs.
        if not any(n.shape[:1] == (BATCH,) for n in part.nodes if n.op == "input"):
            problem = "the cut crosses values whose first axis is not the batch"
            hint = "cut at another block"
        elif lost:
            problem = f"no value that crosses the cut has the dynamic size {lost[0]}"
            hint = "fix the size first: ag.fix_sizes(graph)"
        else:
            return
        where = ", ".join(f"%{name}" for name in arriving)
        types = ", ".join(str(graph.node[name].type) for name in arriving)
        raise RewriteError(problem, where=where, found=types, hint=hint)

    def _idle(self, param: Param, leaves: Collection[str], k: int) -> bool:
        """Return whether an unused leaf (a counter) belongs to part k, which has these leaves.

        An unused leaf belongs to each part with other leaves of its module, and to the last part.
        """
        updated = any(param.name == key for key, _ in self.graph.updates)
        if updated or self.graph.leaf_users[param.name]:
            return False
        modules = {leaf.rpartition(".")[0] for leaf in leaves}
        return k == self.last or param.name.rpartition(".")[0] in modules


def _results(graph: ArchGraph) -> Value:
    """Return the results of a graph: its outputs, and the new values of its buffers."""
    return (graph.outputs, *(value for _, value in graph.updates))


def _sizes_of(graph: ArchGraph) -> frozenset[str]:
    """Return the dynamic sizes on which the types of a graph depend."""
    shapes = (type_.shape for node in graph.nodes for type_ in node.types)
    return frozenset().union(*(sizes_in(size) for shape in shapes for size in shape))


def chain(parts: Parts | Sequence[GraphLike]) -> ArchGraph:
    """Join architectures that run one after the other into one architecture.

    Args:
        parts: The result of :func:`split`, or a list of architectures. The outputs of each
            architecture must match the first inputs of the next architecture. If two parts have a
            parameter or buffer with the same name, they share it.

    Raises:
        RewriteError: If the inputs of a part do not match the outputs of the part before it; if
            parameters, buffers or inputs of two parts have the same name, but differ.

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
    if not isinstance(parts, Sequence):
        raise RewriteError(f"cannot chain {type(parts).__name__}: pass architectures, in order")
    graphs = [graph_of(p) for p in parts]
    joined = graphs[0]
    for number, graph in enumerate(graphs[1:], 2):
        joined = _chained(joined, graph, f"part {number}")
    joined = joined.replace(name=graphs[-1].name, sections=(), notes=notes_of(graphs))
    if isinstance(parts, Parts):
        joined = _in_order(joined, parts.original)
    check(joined)
    return joined


def _chained(one: ArchGraph, two: ArchGraph, where: str) -> ArchGraph:
    """Join two architectures: the outputs of the first are the first inputs of the second."""
    heads = {n.name: n for n in one.nodes if n.op == "input"}
    rename = _renamed_inputs(one, two, where)
    supplied = {name for name, value in rename.items() if value not in heads}
    # Parts may share an input by name (a mask): it is one input, not a result of the first part.
    entering, in_use = {*rename, *heads}, set(one.node)
    rename |= {
        n.name: fresh(in_use, n.name)
        for n in two.nodes
        if n.op != "input" or n.name not in entering
    }
    follow = renaming(rename)
    arguments = ((k, replace(v, follow)) for k, v in two.inputs if not supplied.issuperset(refs(v)))
    problem = "two parts take different values under the same name"
    inputs = _united(dict(one.inputs), arguments, problem)
    leaves = ((p.name, p) for p in two.params)
    params = _united(dict(one.param), leaves, "two parts have different leaves of the same name")
    after = two.mapped(follow)
    renamed = [dataclasses.replace(n, name=rename.get(n.name, n.name)) for n in after.nodes]
    nodes = (*one.nodes, *(n for n in renamed if n.name not in one.node))
    return ArchGraph(
        tuple(inputs.items()),
        tuple(params.values()),
        tuple(sorted(nodes, key=lambda n: n.op != "input")),
        after.outputs,
        (*one.updates, *after.updates),
    )


def _united(known: dict[str, T], more: Iterable[tuple[str, T]], problem: str) -> dict[str, T]:
    """Merge two mappings; raise if a name has two different values."""
    for name, value in more:
        if known.setdefault(name, value) != value:
            raise RewriteError(problem, where=name, found=value, expected=known[name])
    return known


def _renamed_inputs(one: ArchGraph, two: ArchGraph, where: str) -> dict[str, str]:
    """Return a dict from inputs of the second architecture to outputs of the first."""
    values = one.outputs if isinstance(one.outputs, tuple) else (one.outputs,)
    first = [v for _, v in two.inputs][: len(values)]
    rename: dict[str, str] = {}
    problem = "the inputs of a part do not match the outputs of the part before it"
    for value, target in zip(values, first, strict=False):
        actual = one.node[value.name].type if isinstance(value, Ref) else None
        expected = two.node[target.name].type if isinstance(target, Ref) else None
        if actual is None or actual != expected:
            raise RewriteError(problem, where=where, found=actual, expected=expected)
        assert isinstance(value, Ref) and isinstance(target, Ref)
        rename[target.name] = value.name
    if len(first) < len(values):
        returned = f"{len(values)} values, but it takes only {len(first)}"
        raise RewriteError(problem, where=where, found=returned)
    return rename


def _in_order(graph: ArchGraph, like: ArchGraph) -> ArchGraph:
    """Sort the contents of a graph as in ``like``, and give it the name of ``like``."""
    arguments, leaves, nodes, buffers = (
        {name: i for i, name in enumerate(names)}
        for names in (dict(like.inputs), like.param, like.node, dict(like.updates))
    )
    heads = sorted((n for n in graph.nodes if n.op == "input"), key=lambda n: nodes[n.name])
    return graph.replace(
        inputs=tuple(sorted(graph.inputs, key=lambda item: arguments[item[0]])),
        params=tuple(sorted(graph.params, key=lambda p: leaves[p.name])),
        nodes=(*heads, *(n for n in graph.nodes if n.op != "input")),
        updates=tuple(sorted(graph.updates, key=lambda item: buffers[item[0]])),
        sections=like.sections,
        name=like.name,
    )
