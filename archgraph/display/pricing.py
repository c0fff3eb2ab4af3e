"""What cutting axes or leaving out blocks would save, without rewriting the graph."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

from archgraph.analysis.axes import Axes, Axis, axes
from archgraph.analysis.cost import cost
from archgraph.analysis.positions import Kept, axis_refs, node_after, param_after
from archgraph.analysis.structure import Block
from archgraph.display.facts import AxisFact, Saving
from archgraph.graph.ir import ArchGraph, Leaf, Node, Param, walk
from archgraph.graph.passes import reachable, specialise
from archgraph.graph.values import refs
from archgraph.layout.layouts import Layout
from archgraph.ops.equations import StatedSizes
from archgraph.ops.table import macs as node_macs
from archgraph.ops.table import row


class Pricing:
    """What a graph costs, and what it would cost with other sizes or without some operators.

    Savings are exact: sizes after a cut come from the solved layouts, multiply–accumulates from the
    operator table, and only operators that have the axis are counted again. No graph is rewritten,
    so pricing every axis and block takes about as long as one rewrite.
    """

    def __init__(self, graph: ArchGraph) -> None:
        self.graph = graph
        self.solved: Axes = axes(graph)
        self.evaluated = specialise(graph, training=False)
        self.cost = cost(graph)
        # By identity: layouts are trees, and hashing one walks it; the solution keeps them alive.
        self._names: dict[int, frozenset[str]] = {}
        self.leaves_of: dict[str, list[str]] = {a.name: [] for a in self.solved.all}
        self.nodes_of: dict[str, list[str]] = {a.name: [] for a in self.solved.all}
        leaf_names = {
            leaf: frozenset[str]().union(*map(self.names, dims))
            for leaf, dims in self.solved.leaf.items()
        }
        for leaf, names in leaf_names.items():
            for name in names:
                self.leaves_of[name].append(leaf)
        value_names = {
            node: frozenset[str]().union(*(self.names(d) for dims in results for d in dims))
            for node, results in self.solved.value.items()
        }
        stated: dict[str, set[str]] = {}
        for (node_name, _), sizes in self.solved.attributes.items():
            stated.setdefault(node_name, set()).update(*map(self.names, _layouts(sizes)))
        # The axes that an operator meets: in its results, its arguments, and the sizes in its
        # attributes (`groups`, a `view`'s shape). Whatever it costs can change with no other axis.
        self.met: dict[str, frozenset[str]] = {}
        for node in graph.nodes:
            names = value_names[node.name].union(stated.get(node.name, ()))
            names = names.union(*(value_names[used] for used in node.uses()))
            names = names.union(*(leaf_names[leaf] for leaf in node.leaves()))
            self.met[node.name] = names
            for name in names:
                self.nodes_of[name].append(node.name)
        self.counting = frozenset(n.name for n in self.evaluated.nodes if row(n.op).macs)
        # Two graphs: parameters count for training, too, MACs for evaluation alone.
        self._trained = Liveness(graph)
        self._evaluated = Liveness(self.evaluated)
        # Leaves that no operator uses (counters of batch norms) go with the rest of their module.
        self._silent: dict[str, list[str]] = {}
        for param in graph.params:
            if not graph.leaf_users[param.name]:
                self._silent.setdefault(param.name.rpartition(".")[0], []).append(param.name)

    def names(self, layout: Layout) -> frozenset[str]:
        """Return the axes in a layout."""
        key = id(layout)
        if key not in self._names:
            self._names[key] = frozenset(a.name for a in axis_refs(layout))
        return self._names[key]

    def numel(self, leaf: str) -> int:
        """Return the elements of a leaf that count as parameters."""
        param = self.graph.param[leaf]
        return math.prod(param.shape) if param.role == "parameter" else 0

    def halving(self, chosen: Iterable[Axis | AxisFact]) -> Saving:
        """Return what halving some axes at once saves; halves are rounded up."""
        return self.cutting({a.name: np.arange(halved(a.size)) for a in chosen})

    def cutting(
        self, selection: Kept, nodes: Collection[str] = (), leaves: Collection[str] = ()
    ) -> Saving:
        """Return what keeping some positions of some axes saves, some operators and leaves gone."""
        parameters = sum(map(self.numel, leaves))
        macs = sum(self.cost.nodes[name].macs for name in nodes)
        touched = dict.fromkeys(leaf for name in selection for leaf in self.leaves_of[name])
        sizes = {
            leaf: param_after(self.solved, self.graph.param[leaf], selection) for leaf in touched
        }
        for leaf, param in sizes.items():
            if leaf not in leaves and param.role == "parameter":
                parameters += self.numel(leaf) - math.prod(param.shape)
        counted = [
            name
            for name in dict.fromkeys(n for axis in selection for n in self.nodes_of[axis])
            if name in self.counting and name not in nodes
        ]
        # Costs are read off a graph of these operators alone, of the sizes after the cut.
        if counted:
            small = self._resized(counted, sizes, selection)
            macs += sum(
                self.cost.nodes[name].macs - node_macs(small, small.node[name]) for name in counted
            )
        return Saving(
            parameters,
            macs,
            parameters / self.cost.parameters if self.cost.parameters else 0.0,
            macs / self.cost.macs if self.cost.macs else 0.0,
        )

    def skipping(self, block: Block) -> Saving:
        """Return what skipping a block saves, with everything that only it needs."""
        # A dense block takes the width that it appends away from all that reads it.
        none = np.zeros(0, dtype=np.int64)
        selection = {
            name: none
            for term in block.terms
            for layout in self.solved.value[term][0]
            for name in self.names(layout)
        }
        ends = block.exit, block.bypass, block.terms
        gone = self._trained.without(*ends)
        leaves = self._trained.unused(gone)
        for module in {leaf.rpartition(".")[0] for leaf in leaves} & self._silent.keys():
            used = self._trained.leaves_under.get(module, set())
            if used <= leaves:
                leaves = leaves.union(self._silent[module])
        return self.cutting(selection, self._evaluated.without(*ends), leaves)

    def _resized(
        self, names: Iterable[str], sizes: Mapping[str, Param], selection: Kept
    ) -> ArchGraph:
        """Return some operators and all that they use, with the sizes after a cut."""
        nodes: dict[str, Node] = {}
        params: dict[str, Param] = {}
        for name in names:
            node = self.evaluated.node[name]
            for used in (name, *node.uses()):
                if used not in nodes:
                    nodes[used] = node_after(self.solved, self.evaluated.node[used], selection)
            for leaf in node.leaves():
                params[leaf] = sizes.get(leaf) or self.graph.param[leaf]
        return ArchGraph((), tuple(params.values()), tuple(nodes.values()), None)


class Liveness:
    """What the outputs of a graph need, and what becomes unused when a part is removed."""

    def __init__(self, graph: ArchGraph) -> None:
        self.graph = graph
        self.roots = set(refs(graph.outputs))
        self.returned = {i.name for i in walk(graph.outputs) if isinstance(i, Leaf)}
        # Of the outputs alone: what only updates buffers keeps no operator alive.
        live = reachable(self.roots, lambda name: graph.node[name].uses())
        self.users = {n: [u for u in graph.users[n] if u in live] for n in live}
        self.leaf_users = {
            leaf: [u for u in users if u in live] for leaf, users in graph.leaf_users.items()
        }
        self.leaves_under: dict[str, set[str]] = {}
        for leaf, users in graph.leaf_users.items():
            if users:
                self.leaves_under.setdefault(leaf.rpartition(".")[0], set()).add(leaf)

    def without(self, end: str, entry: str, terms: Sequence[str]) -> frozenset[str]:
        """Return operators that become unused when a value replaces another or lists lose terms."""
        starts = {end, *terms}
        gone: set[str] = set()
        pending = [name for name in starts if name in self.users]
        while pending:
            name = pending.pop()
            if name in gone or name == entry or self.graph.node[name].op == "input":
                continue
            needed = name in self.roots or any(u not in gone for u in self.users[name])
            # Visited again from its last user, if that goes later.
            if needed and name not in starts:
                continue
            gone.add(name)
            pending.extend(self.graph.node[name].uses())
        return frozenset(gone)

    def unused(self, gone: Collection[str]) -> frozenset[str]:
        """Return the leaves that only these operators use."""
        used = {leaf for name in gone for leaf in self.graph.node[name].leaves()}
        return frozenset(
            leaf
            for leaf in used - self.returned
            if all(user in gone for user in self.leaf_users[leaf])
        )


def halved(size: int) -> int:
    """Return positions of an axis that halving keeps, as :func:`archgraph.take` rounds."""
    return -(-size // 2)


def _layouts(sizes: StatedSizes) -> Iterator[Layout]:
    if isinstance(sizes, tuple):
        for item in sizes:
            yield from _layouts(item)
    elif sizes is not None and not isinstance(sizes, int):
        yield sizes
