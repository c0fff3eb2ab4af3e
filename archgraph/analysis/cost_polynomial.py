"""Costs of all submodels of a graph, as polynomials in the sizes of axes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from archgraph.analysis.axes import Axes, axes
from archgraph.analysis.positions import appended, total
from archgraph.analysis.presence import Needs, any_needs, presence
from archgraph.analysis.structure import Block, structure
from archgraph.errors import AxisError, GraphError
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph, Leaf, Ref, Value, per_graph, size_at
from archgraph.graph.passes import specialise
from archgraph.graph.polynomial import Polynomial
from archgraph.graph.sizes import example_sizes
from archgraph.hints import unknown
from archgraph.layout.layouts import AxisRef, Layout
from archgraph.ops.operands import Amount, Counted, numel
from archgraph.ops.schema import torch_dtype
from archgraph.ops.table import counted_macs

MEASURES = ("parameters", "macs", "bytes", "activations")


@dataclass(frozen=True, slots=True)
class CostPart:
    """A term of a cost, which counts only in submodels with certain blocks.

    Attributes:
        needs: Sets of blocks. The term counts if the submodel has at least one block of every set.
            If there are no sets, the term always counts.
        polynomial: The term, as a polynomial in the sizes of axes.
    """

    needs: Needs
    polynomial: Polynomial

    def there(self, skipped: Collection[str]) -> bool:
        """Return whether the term counts in a submodel without the ``skipped`` blocks."""
        return not any(blocks.issubset(skipped) for blocks in self.needs)


@dataclass(frozen=True, slots=True)
class CostFigures:
    """Costs of a submodel, as in :class:`archgraph.analysis.cost.Cost`.

    Attributes:
        parameters: Elements of all parameters.
        macs: Multiply–accumulates for one example in evaluation.
        bytes: Size of the state, in bytes.
        activations: Size of all intermediate results for one example in evaluation, in bytes.
    """

    parameters: int
    macs: int
    bytes: int
    activations: int


@dataclass(frozen=True)
class CostPolynomial:
    """Exact costs of every submodel of a graph, computed without building the submodel.

    Attributes:
        axes: Dict from each free axis to its size in the graph.
        blocks: Dict from each removable block to the axes that are removed with it.
        equal: Dict from removable block to pairs of sizes of its output and input. The sizes of a
            pair are equal in the graph but belong to different axes. If a cut makes them unequal,
            the block cannot be skipped.
        parts: Dict from measure (``parameters``, ``macs``, ``bytes``, ``activations``) to the terms
            of its cost.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> costs = cost_polynomial(trace(net, torch.zeros(1, 3)).graph)
        >>> print(costs.polynomial("parameters"))
        6*0.out + 2
        >>> costs.at({"0.out": 4}).parameters, costs.at().macs
        (26, 40)
    """

    axes: Mapping[str, int]
    blocks: Mapping[str, tuple[str, ...]]
    equal: Mapping[str, tuple[tuple[Polynomial, Polynomial], ...]]
    parts: Mapping[str, tuple[CostPart, ...]]

    @classmethod
    def of(
        cls, graph: ArchGraph, parts: Mapping[str, Mapping[Needs, Polynomial]]
    ) -> CostPolynomial:
        """Return the cost polynomials of a graph.

        Args:
            graph: The graph.
            parts: Dict from measure to its terms: a dict from the needed blocks (see
                :class:`CostPart`) to the polynomial.
        """
        sizes, solved = TensorSizes.of_graph(graph), axes(graph)
        removable = [block for block in structure(graph).blocks if block.removable]
        unlike = {block.name: _unlike(sizes, block) for block in removable}
        return cls(
            {axis.name: axis.size for axis in solved.free},
            {block.name: tuple(appended(solved, block.terms)) for block in removable},
            {name: pairs for name, pairs in unlike.items() if pairs},
            {
                measure: tuple(CostPart(needed, p) for needed, p in of.items() if p.terms)
                for measure, of in parts.items()
            },
        )

    def polynomial(self, measure: str, skipped: Collection[str] = ()) -> Polynomial:
        """Return a measure of the cost without the ``skipped`` blocks, as one polynomial."""
        gone = {name for block in skipped for name in self.blocks[block]}
        there = (part.polynomial for part in self.parts[measure] if part.there(skipped))
        return Polynomial.total(there).without(gone)

    def at(
        self, sizes: Mapping[str, int] | None = None, skipped: Collection[str] = ()
    ) -> CostFigures:
        """Return the cost of a submodel.

        Args:
            sizes: Dict from the name of an axis to its size. Other axes keep their size.
            skipped: Names of skipped blocks.

        Raises:
            AxisError: If there is no free axis with a name in ``sizes``.
            GraphError: If a block does not exist, is not removable, or cannot be skipped at these
                sizes.
        """
        all_sizes = self.sizes(sizes or {}, skipped)
        return CostFigures(**{m: self.polynomial(m, skipped).value(all_sizes) for m in MEASURES})

    def sizes(self, cut: Mapping[str, int], skipped: Collection[str]) -> dict[str, int]:
        """Return the sizes of all axes of a submodel with cut axes and skipped blocks.

        Raises:
            AxisError: If there is no free axis with a name in ``cut``.
            GraphError: If a block does not exist, is not removable, or cannot be skipped at these
                sizes.
        """
        for name in cut:
            if name not in self.axes:
                raise AxisError("no such free axis", **unknown(name, self.axes))
        for name in skipped:
            if name not in self.blocks:
                raise GraphError("no such removable block", **unknown(name, self.blocks))
        sizes = {**self.axes, **cut}
        for name in skipped:
            for end, entry in self.equal.get(name, ()):
                if (a := end.value(sizes)) != (b := entry.value(sizes)):
                    message = "block cannot be skipped at these sizes"
                    raise GraphError(message, where=name, found=f"changes {b} to {a}")
        return sizes


@dataclass(frozen=True)
class TensorSizes:
    """Sizes of the tensors of a graph, as polynomials in the free axes.

    Attributes:
        solved: Axes of the graph.
        free: Names of the free axes, which can be cut.
        values: Dict from the name of a dynamic size to its value.
    """

    solved: Axes
    free: Collection[str]
    values: Mapping[str, int]

    @classmethod
    def of_graph(cls, graph: ArchGraph, batch: int = 1) -> TensorSizes:
        """Return the sizes for a batch size; other dynamic sizes are those of the example."""
        free = {axis.name for axis in axes(graph).free}
        return cls(axes(graph), free, example_sizes(graph, batch))

    def of(self, layouts: Iterable[Layout]) -> tuple[Amount, ...]:
        """Return the sizes of dimensions from their layouts."""
        return tuple(total(layout, self._size) for layout in layouts)

    def _size(self, part: Layout) -> Amount:
        if isinstance(part, AxisRef) and part.name in self.free:
            return Polynomial.of(part.name)
        return size_at(part.size, self.values)

    def operand(self, value: Value) -> tuple[Amount, ...]:
        """Return the shape of a parameter or an operator's first result; empty for other values."""
        match value:
            case Ref():
                return self.of(self.solved.value[value.name][0])
            case Leaf():
                return self.of(self.solved.leaf[value.name])
            case _:
                return ()


@takes_graph
@per_graph
def cost_polynomial(graph: ArchGraph) -> CostPolynomial:
    """Return the costs of all submodels of a graph, as polynomials in the sizes of its axes.

    1. Write the size of each dimension as a polynomial: an axis, a product of axes, a sum, or a
       number.
    2. Compute the costs of each operator from these sizes, with the rules of the operator table.
    3. Record which blocks each operator needs. Skipping a block removes its operators, operators
       whose results only these operators use (:mod:`archgraph.analysis.presence`), and the features
       that a dense block appends.
    """
    evaluated, sizes = specialise(graph, training=False), TensorSizes.of_graph(graph)
    needs = presence(graph).there
    parts: dict[str, dict[Needs, list[Amount]]] = {measure: {} for measure in MEASURES}

    def add(measure: str, needed: Needs, count: Amount) -> None:
        parts[measure].setdefault(needed, []).append(count)

    for param in graph.params:
        needed = any_needs(needs[node] for node in graph.leaf_users[param.name])
        elements = numel(sizes.operand(Leaf(param.name)))
        if param.role == "parameter":
            add("parameters", needed, elements)
        if param.role != "constant":
            add("bytes", needed, elements * torch_dtype(param.dtype).itemsize)
    for node in evaluated.nodes:
        needed = needs[node.name]
        results = [*map(sizes.of, sizes.solved.value[node.name])]
        for type_, result in zip(node.types, results, strict=True):
            add("activations", needed, numel(result) * torch_dtype(type_.dtype).itemsize)
        add("macs", needed, counted_macs(Counted(node, sizes.operand, results[0])))
    totals = {m: {n: Polynomial.total(c) for n, c in of.items()} for m, of in parts.items()}
    return CostPolynomial.of(graph, totals)


def _unlike(sizes: TensorSizes, block: Block) -> tuple[tuple[Polynomial, Polynomial], ...]:
    """Return the pairs of sizes of a block's output and input that belong to different axes."""
    if block.terms:  # a dense block's appended features are removed with it
        return ()
    ends = [sizes.operand(Ref(name)) for name in (block.exit, block.bypass)]
    return tuple(
        (Polynomial({}) + a, Polynomial({}) + b) for a, b in zip(*ends, strict=True) if a != b
    )
