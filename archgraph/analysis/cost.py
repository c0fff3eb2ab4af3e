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
        nodes: Dict from operator to its cost. Operators that run only in training have no MACs and
            no bytes.
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
        """Costs of all submodels, as polynomials in the sizes of axes. The costs are exact."""
        from archgraph.analysis.cost_polynomial import cost_polynomial  # solves the axes

        return cost_polynomial(self.graph)

    def training(self, batch: int = 1, optimizer: Optimizer = "sgd") -> TrainingMemory:
        """Predict the memory that a training step allocates, in bytes.

        The prediction includes everything that PyTorch allocates on a CPU: weights, buffers, the
        batch, the optimiser's state, gradients, tensors that autograd saves, and gradients of
        intermediate results. It assumes that the loss needs twice the size of the outputs: once for
        the tensors that the loss saves, and once for the gradients of the outputs.

        Args:
            batch: Number of examples per step.
            optimizer: Name of an optimiser in ``torch.optim`` (case-insensitive), ``momentum`` for
                SGD with momentum, or a function that takes a list of parameters and returns an
                optimiser.

        Raises:
            GraphError: If ``batch`` is less than 1 or the optimiser is unknown.

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
    """Count the parameters, MACs and bytes of a graph.

    Args:
        graph: The architecture.
        sizes: Dict from the name of a dynamic size to its value. Default: the sizes of the traced
            example.

    Raises:
        GraphError: If a name in ``sizes`` is not a dynamic size of the graph, or if a value is out
            of range.

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
    # MACs and bytes are those of evaluation: operators that run only in training have neither.
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
