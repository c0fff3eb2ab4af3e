"""Cost of a graph: parameters, multiply–accumulates, bytes; per operator and per block."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph, TensorType, per_graph, size_at
from archgraph.graph.passes import specialise
from archgraph.graph.sizes import at_sizes, example_sizes
from archgraph.ops.schema import torch_dtype
from archgraph.ops.table import macs as node_macs
from archgraph.tables import Table

if TYPE_CHECKING:
    from archgraph.analysis.cost_polynomial import CostPolynomial
    from archgraph.analysis.training_memory import TrainingMemory
    from archgraph.analysis.training_step import Optimizer


@dataclass(frozen=True, slots=True)
class NodeCost:
    """Cost of one operator for one example.

    Attributes:
        parameters: Number of elements of the parameters that the operator is the first to use.
        macs: Multiply–accumulates (FLOPs of products = 2 · MACs).
        bytes: Size of the result, in bytes.
    """

    parameters: int = 0
    macs: int = 0
    bytes: int = 0

    def __add__(self, other: NodeCost) -> NodeCost:
        return NodeCost(
            self.parameters + other.parameters, self.macs + other.macs, self.bytes + other.bytes
        )


@dataclass(frozen=True, repr=False)
class Cost:
    """Cost of a graph.

    Attributes:
        parameters: Elements of all parameters; tied parameters count once.
        macs: Multiply–accumulates for one example in evaluation.
        bytes: Size of the state (parameters and buffers), in bytes.
        activations: Size of all intermediate results for one example in evaluation, in bytes.
        nodes: Dict from operator to its cost; operators that run only in training cost nothing.
        graph: The graph.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> cost(trace(net, torch.zeros(1, 3)).graph).polynomial.at({"0.out": 4}).parameters
        26
    """

    parameters: int
    macs: int
    bytes: int
    activations: int
    nodes: Mapping[str, NodeCost]
    graph: ArchGraph = field(compare=False)

    @property
    def polynomial(self) -> CostPolynomial:
        """Costs of all submodels, as exact polynomials in the sizes of axes."""
        from archgraph.analysis.cost_polynomial import cost_polynomial  # solves the axes

        return cost_polynomial(self.graph)

    def training(self, batch: int = 1, optimizer: Optimizer = "sgd") -> TrainingMemory:
        """Return the memory of a training step, in bytes.

        The sum includes everything that PyTorch allocates on a CPU: weights, buffers, the batch,
        the optimiser's state, gradients, tensors that autograd saves according to the operator
        table, and gradients of intermediate results. The loss counts as twice the outputs: the
        tensors that it saves, and the gradients of the outputs.

        Args:
            batch: Number of examples per step.
            optimizer: Name of an optimiser in ``torch.optim`` (case-insensitive), ``momentum`` for
                SGD with momentum, or a function from parameters to an optimiser.

        Raises:
            GraphError: If the batch is empty or the optimiser is unknown.

        Example:
            >>> import torch
            >>> from archgraph.capture.trace import trace
            >>> graph = trace(torch.nn.Linear(3, 2), torch.zeros(1, 3)).graph
            >>> memory = cost(graph).training(batch=4, optimizer="adam")
            >>> memory.weights, memory.optimizer, memory.gradients, memory.saved, memory.total
            (32, 72, 32, 0, 248)
            >>> memory.polynomial.at().total
            248
        """
        from archgraph.analysis.training_step import training_memory  # solves the axes

        return training_memory(self.graph, batch, optimizer)

    def __repr__(self) -> str:
        measures = ("parameters", "macs", "bytes", "activations")
        return f"<Cost: {', '.join(f'{getattr(self, m):,} {m}' for m in measures)}>"

    def _repr_html_(self) -> str:
        measures = {
            "parameters": self.parameters,
            "multiply–accumulates of one example": self.macs,
            "bytes of the state": self.bytes,
            "bytes of intermediate results of one example": self.activations,
        }
        rows = tuple((measure, f"{value:,}") for measure, value in measures.items())
        return Table("Cost", ("measure", "value"), rows, frozenset({1}))._repr_html_()

    def of(self, nodes: Iterable[str]) -> NodeCost:
        """Sum the costs of some operators, such as those of a block."""
        return sum((self.nodes[n] for n in nodes), NodeCost())


def _bytes(type_: TensorType, sizes: Mapping[str, int]) -> int:
    return math.prod(size_at(s, sizes) for s in type_.shape) * torch_dtype(type_.dtype).itemsize


@takes_graph
def cost(graph: ArchGraph, sizes: Mapping[str, int] | None = None) -> Cost:
    """Return the exact numbers of parameters, MACs and bytes of a graph.

    Args:
        graph: The architecture, or an object that contains one.
        sizes: Dict from open (dynamic) size to its value. Default: the values of the traced
            example.

    Raises:
        GraphError: If there is no such open size, or the graph does not allow its value.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> costs = cost(trace(torch.nn.Linear(3, 2), torch.zeros(1, 3)).graph)
        >>> costs.parameters, costs.macs, costs.bytes
        (8, 6, 32)
    """
    return _cost(at_sizes(graph, sizes) if sizes else graph)


@per_graph
def _cost(graph: ArchGraph) -> Cost:
    sizes = example_sizes(graph)
    evaluated = specialise(graph, training=False)
    counted: set[str] = set()  # a tied or shared parameter counts at its first use
    parameters = {p.name: math.prod(p.shape) for p in graph.params if p.role == "parameter"}
    nodes: dict[str, NodeCost] = {}
    for node in graph.nodes:
        first = (set(node.leaves()) & parameters.keys()) - counted
        counted |= first
        nodes[node.name] = NodeCost(sum(parameters[leaf] for leaf in first))
    # Use the evaluated graph: operators of the training branch have parameters but no other cost.
    for node in evaluated.nodes:
        size = sum(_bytes(type_, sizes) for type_ in node.types)
        nodes[node.name] += NodeCost(0, node_macs(evaluated, node), size)
    return Cost(
        sum(parameters.values()),
        sum(n.macs for n in nodes.values()),
        sum(_bytes(p.type, sizes) for p in graph.params if p.role != "constant"),
        sum(n.bytes for n in nodes.values()),
        nodes,
        graph,
    )
