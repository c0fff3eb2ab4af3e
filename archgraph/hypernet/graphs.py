"""Inputs of the hypernetwork: graphs as PyG data, tensors with their slots, plans of traversals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, cast

import networkx as nx
import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch_geometric.data import Batch, Data

from archgraph.errors import GraphError
from archgraph.graph.ir import ArchGraph, Leaf, Param, per_graph, walk
from archgraph.ops.schema import torch_dtype
from archgraph.ops.table import base, initialiser, row
from archgraph.states.copies import state_to_device

# Reasons why a tensor is not generated: it is a buffer, it is frozen, no operator reads it, or its
# dtype is not a real one. Every other tensor is generated.
LocalRule = Literal["buffer", "frozen", "unused", "not real"]

# A PyG Data or Batch, whose attributes are set by name; the library has no types.
PygGraph: TypeAlias = Data

# How a decoder's output p becomes a tensor: 2·scale·σ(p/2), tanh(p/5), scale·p.
StartForm = Literal["factor", "shift", "weight"]


@dataclass(frozen=True, slots=True, order=True)
class DecoderSlot:
    """An operator, one of its arguments, and a number of dimensions.

    One decoder generates all tensors that are passed as this argument and have this number of
    dimensions.

    >>> str(DecoderSlot("conv2d", "weight", 4))
    'conv2d.weight:4'
    """

    op: str
    argument: str
    rank: int

    def __str__(self) -> str:
        return f"{self.op}.{self.argument}:{self.rank}"


@dataclass(frozen=True, slots=True)
class GeneratedTensor:
    """A tensor to generate.

    Attributes:
        name: Name of the tensor in the state.
        slot: Slot of the tensor. If several operators use the tensor, the first operator counts.
        node: Index of the first operator that uses the tensor in ``graph.nodes``.
        shape: Shape of the tensor.
        dtype: Dtype of the tensor.
        form: Elementwise function that is applied to the decoder's output: ``weight`` multiplies by
            ``scale``, ``factor`` is a sigmoid times ``2 · scale``, ``shift`` is a hyperbolic
            tangent.
        scale: Factor in the functions ``weight`` and ``factor``.
    """

    name: str
    slot: DecoderSlot
    node: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    form: StartForm
    scale: float

    def formed(self, p: Tensor) -> Tensor:
        """Apply the function ``form`` to a decoder's output."""
        match self.form:
            case "factor":
                return 2 * self.scale * torch.sigmoid(p / 2)
            case "shift":
                return torch.tanh(p / 5)
            case "weight":
                return self.scale * p


def rule(graph: ArchGraph, param: Param) -> LocalRule | None:
    """Return the reason why a tensor is not generated; None if it is generated."""
    if param.role != "parameter":
        return "buffer"
    if not param.trainable:
        return "frozen"
    if not graph.leaf_users[param.name]:
        return "unused"
    return None if torch_dtype(param.dtype).is_floating_point else "not real"


@per_graph
def local(graph: ArchGraph) -> Mapping[str, LocalRule]:
    """Return the tensors that are never generated, as a dict from name to reason.

    Example:
        >>> from archgraph.capture.trace import trace
        >>> graph, _ = trace(torch.nn.BatchNorm1d(2), torch.zeros(3, 2))
        >>> local(graph)["running_mean"]
        'buffer'
    """
    rules = {name: rule(graph, graph.param[name]) for name in graph.state_names}
    return {name: why for name, why in rules.items() if why is not None}


@per_graph
def entries(graph: ArchGraph) -> tuple[GeneratedTensor, ...]:
    """Return the generated tensors of a graph, in the order of the state.

    Example:
        >>> from archgraph.capture.trace import trace
        >>> graph, _ = trace(torch.nn.Linear(3, 2), torch.zeros(1, 3))
        >>> [(e.name, str(e.slot), e.form) for e in entries(graph)]
        [('weight', 'linear.weight:2', 'weight'), ('bias', 'linear.bias:1', 'shift')]
    """
    index = _positions(graph)

    def entry(name: str) -> GeneratedTensor:
        param, owner = graph.param[name], graph.leaf_users[name][0]
        operator, argument = base(graph.node[owner].op), _argument(graph, owner, name)
        slot, dtype = DecoderSlot(operator, argument, len(param.shape)), torch_dtype(param.dtype)
        return GeneratedTensor(name, slot, index[owner], param.shape, dtype, *_form(graph, param))

    return tuple(entry(name) for name in graph.state_names if name not in local(graph))


def _positions(graph: ArchGraph) -> dict[str, int]:
    return {node.name: i for i, node in enumerate(graph.nodes)}


def _argument(graph: ArchGraph, node: str, leaf: str) -> str:
    """Return the argument to which a tensor is passed, with its index in a list (``params.2``)."""
    for key, value in graph.node[node].args:
        for number, item in enumerate(walk(value)):
            if isinstance(item, Leaf) and item.name == leaf:
                return key if value is item else f"{key}.{number}"
    raise AssertionError(f"{node} does not use {leaf}")


def _form(graph: ArchGraph, param: Param) -> tuple[StartForm, float]:
    """Return the form of a tensor, with the scale of the operator table's initialiser."""
    how = initialiser(graph, param)
    # As in training from scratch, factors start around their mean, and shifts around 0.
    if how is not None and how.kind == "ones":
        return "factor", how.scale
    if how is None or how.kind == "zeros" or len(param.shape) < 2:
        return "shift", 1.0
    if how.kind == "normal":
        return "weight", how.scale
    # He et al.: with ReLU, the variance of the values stays the same from layer to layer.
    return "weight", math.sqrt(2 / max(math.prod(param.shape[1:]), 1))


# -- nodes --------------------------------------------------------------------------------------

_KINDS = ("weighted", "normalises", "merges", "pointwise", "other")


@dataclass(frozen=True)
class Vocabulary:
    """The operators that a hypernetwork distinguishes.

    All operators that are not in the vocabulary and have the same kind in archgraph's operator
    table (activations, for example) are treated as the same operator.

    Attributes:
        operators: Names of operators without namespace and overload, sorted.

    Example:
        >>> words = Vocabulary(("conv2d", "relu"))
        >>> (
        ...     len(words),
        ...     words.index("aten.relu"),
        ...     words.index("aten.tanh") == words.index("aten.exp"),
        ... )
        (7, 1, True)
    """

    operators: tuple[str, ...]

    @classmethod
    def of(cls, graphs: Iterable[ArchGraph]) -> Vocabulary:
        """Return the vocabulary with all operators of some graphs."""
        return cls(tuple(sorted({base(node.op) for graph in graphs for node in graph.nodes})))

    def __len__(self) -> int:
        return len(self.operators) + len(_KINDS)

    def index(self, op: str) -> int:
        """Return the index of an operator in the vocabulary."""
        if base(op) in self.operators:
            return self.operators.index(base(op))
        facts = row(op)
        kind = next((k for k in _KINDS[:-1] if getattr(facts, k)), _KINDS[-1])
        return len(self.operators) + _KINDS.index(kind)


@per_graph
def _skeleton(graph: ArchGraph) -> tuple[Tensor, Tensor, Tensor]:
    """Return edges, and the lengths of each node's longest paths from inputs and to outputs."""
    index = _positions(graph)
    pairs = [(index[a], index[b]) for a, b in graph.nx.edges]
    edges = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T.contiguous()
    levels = []
    for view in (graph.nx, graph.nx.reverse(copy=False)):
        level = torch.zeros(len(index), dtype=torch.long)
        for number, names in enumerate(nx.topological_generations(view)):
            level[[index[name] for name in names]] = number
        levels.append(level)
    return edges, levels[0], levels[1]


@per_graph
def _virtual(graph: ArchGraph, reach: int) -> tuple[Tensor, Tensor]:
    """Return pairs [2, pairs] of nodes 2 to ``reach`` edges apart, and their distances [pairs]."""
    index = _positions(graph)
    distant = [
        (index[a], index[b], length)
        for a, lengths in nx.all_pairs_shortest_path_length(graph.nx, cutoff=reach)
        for b, length in lengths.items()
        if length > 1
    ]
    listed = torch.tensor(distant, dtype=torch.long).reshape(-1, 3)
    return listed[:, :2].T.contiguous(), listed[:, 2].clone()


def to_data(graph: ArchGraph, vocabulary: Vocabulary, reach: int = 1) -> PygGraph:
    """Convert a graph to ``torch_geometric.data.Data``, with one node per operator.

    Args:
        graph: The architecture. If an operator uses the same result twice, the data contain only
            one edge.
        vocabulary: The vocabulary that defines the indices of operators.
        reach: A virtual edge connects two nodes if the shortest path between the nodes has at least
            2 and at most ``reach`` edges. With 1, there are no virtual edges.

    Returns:
        Data with these tensors:

        - ``word`` [nodes]: indices of the operators.
        - ``edge_index`` [2, edges]: edges from an operator to the operators that use its result.
        - ``level_forward`` [nodes]: length of the longest path from an input to the node.
        - ``level_backward`` [nodes]: length of the longest path from the node to an output.
        - ``virtual_index`` [2, pairs]: virtual edges, if there are any.
        - ``distance`` [pairs]: length of the shortest path for each virtual edge.

    Raises:
        GraphError: If the graph has no operators.

    Example:
        >>> from archgraph.capture.trace import trace
        >>> graph, _ = trace(torch.nn.ReLU(), torch.zeros(1, 2))
        >>> to_data(graph, Vocabulary.of([graph])).level_forward
        tensor([0, 1])
    """
    if not graph.nodes:
        raise GraphError("an architecture without operators does not have weights to generate")
    edges, forward, backward = _skeleton(graph)
    words = torch.tensor([vocabulary.index(node.op) for node in graph.nodes])
    pairs, distance = _virtual(graph, reach) if reach > 1 else (None, None)
    return Data(
        word=words,
        edge_index=edges,
        level_forward=forward,
        level_backward=backward,
        virtual_index=pairs,
        distance=distance,
        num_nodes=len(graph.nodes),
    )


def to_batch(graphs: Sequence[ArchGraph], vocabulary: Vocabulary, reach: int = 1) -> PygGraph:
    """Combine several graphs into one ``torch_geometric.data.Batch``.

    Raises:
        GraphError: If a graph has no operators.
    """
    return Batch.from_data_list([to_data(graph, vocabulary, reach) for graph in graphs])


# -- sweeps -------------------------------------------------------------------------------------


# Edges [2, edges], and the lengths of the paths that they stand for, [edges], or None if all are 1.
Edges = tuple[Tensor, Tensor | None]


class Messages(NamedTuple):
    """The messages that the nodes of a level receive over edges, or over virtual edges.

    Attributes:
        sources: Pairs of the index of an earlier level, and the indices of the nodes in this level
            that send messages (None if all of them do).
        edge_index: Edges [2, edges]. The first row contains indices into the concatenated sending
            nodes, the second contains indices of the receiving level's nodes.
        distance: For each virtual edge, the length of the path that it replaces, [edges]. Messages
            are divided by this length. Default: all 1.
    """

    sources: tuple[tuple[int, Tensor | None], ...]
    edge_index: Tensor
    distance: Tensor | None


class Level(NamedTuple):
    """The nodes of one level in all graphs, and the messages that they receive.

    Attributes:
        size: Number of nodes.
        messages: The messages over edges, followed by those over virtual edges if the plan has any.
    """

    size: int
    messages: tuple[Messages, ...]


class Sweep(NamedTuple):
    """The plan of one traversal, level by level.

    Attributes:
        order: Nodes sorted by level.
        position: Index of each node in ``order``.
        levels: The levels, from the first to the last.
    """

    order: Tensor
    position: Tensor
    levels: tuple[Level, ...]


def sweep(level: Tensor, edges: Edges, *more: Edges) -> Sweep:
    """Plan a traversal that visits every node after all nodes that send to it.

    Args:
        level: Level of each node; edges lead from lower to higher levels.
        edges: Edges [2, edges] from sender to receiver, and the lengths of the paths that they
            stand for, [edges] or None.
        more: The same for virtual edges, if there are any.

    Example:
        >>> plan = sweep(torch.tensor([0, 1, 1]), (torch.tensor([[0, 0], [1, 2]]), None))
        >>> [step.size for step in plan.levels]
        [1, 2]
    """
    levels = level.numpy()
    order = np.argsort(levels, kind="stable")
    position = np.argsort(order, kind="stable")
    sizes = np.bincount(levels)
    kinds = [_messages(levels[order], position, sizes, *kind) for kind in (edges, *more)]
    steps = zip(sizes.tolist(), zip(*kinds, strict=True), strict=True)
    visited, back = torch.from_numpy(order), torch.from_numpy(position)
    return Sweep(visited, back, tuple(Level(*step) for step in steps))


def _messages(
    homes: np.ndarray,
    position: np.ndarray,
    sizes: np.ndarray,
    edge_index: Tensor,
    distance: Tensor | None,
) -> Iterator[Messages]:
    """Yield the messages over one kind of edge, level by level.

    Args:
        homes: Level of the node at each position of the order, [nodes].
        position: Each node's position in the order, [nodes].
        sizes: Number of nodes of each level.
        edge_index: As in :func:`sweep`.
        distance: As in :func:`sweep`.
    """
    # Each level takes tens of small steps, which are ten times faster in NumPy than in torch.
    sender, receiver = position[edge_index.numpy()]
    by_receiver = np.argsort(receiver, kind="stable")
    sender, receiver = sender[by_receiver], receiver[by_receiver]
    lengths = None if distance is None else distance.numpy()[by_receiver]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    cuts = np.searchsorted(receiver, starts)
    for number in range(len(sizes)):
        mine = slice(cuts[number], cuts[number + 1])
        senders, rows = np.unique(sender[mine], return_inverse=True)
        sources: list[tuple[int, Tensor | None]] = []
        for home in np.unique(homes[senders]):
            sending = senders[homes[senders] == home] - starts[home]
            complete = len(sending) == sizes[home]
            sources.append((int(home), None if complete else torch.from_numpy(sending)))
        edges = np.stack([rows, receiver[mine] - starts[number]])
        apart = None if lengths is None else torch.from_numpy(lengths[mine])
        yield Messages(tuple(sources), torch.from_numpy(edges), apart)


@per_graph
def sweeps_alone(graph: ArchGraph, reach: int) -> tuple[Sweep, Sweep]:
    """Return the plans of the forward and the backward traversal of one graph, from a cache."""
    return sweeps(to_data(graph, Vocabulary(()), reach))


def sweeps(batch: PygGraph) -> tuple[Sweep, Sweep]:
    """Plan the forward and the backward traversal of a graph or a batch of graphs.

    A plan contains the nodes in the order in which a graph hypernetwork visits them.
    """
    kinds: list[Edges] = [(batch.edge_index, None)]
    if "virtual_index" in batch:
        kinds.append((batch.virtual_index, batch.distance))
    there = sweep(batch.level_forward, *kinds)
    back = sweep(batch.level_backward, *((edges.flip(0), apart) for edges, apart in kinds))
    return there, back


def sweeps_on(plans: tuple[Sweep, Sweep], device: torch.device) -> tuple[Sweep, Sweep]:
    """Copy the plans of two traversals to a device, with all tensors in one buffer."""
    leaves, form = pytree.tree_flatten(plans)
    tensors = {str(n): leaf for n, leaf in enumerate(leaves) if isinstance(leaf, Tensor)}
    there = state_to_device(tensors, device)
    moved = [there.get(str(n), leaf) for n, leaf in enumerate(leaves)]
    return cast("tuple[Sweep, Sweep]", pytree.tree_unflatten(moved, form))
