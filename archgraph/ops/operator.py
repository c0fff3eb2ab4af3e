"""The class of a row in the operator table: everything that archgraph knows about an operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from archgraph.graph.ir import ArchGraph, Node, Size, Value
from archgraph.ops.backward import Backward
from archgraph.ops.equations import Dims, Equations
from archgraph.ops.layers import LayerRule
from archgraph.ops.operands import Amount, Counted
from archgraph.ops.starts import Identity, Init
from archgraph.ops.types import Args, ResultType
from archgraph.ops.zeros import Zeros, never

# An operator's name and its arguments.
Call: TypeAlias = "tuple[str, dict[str, Value]]"


@dataclass(frozen=True, slots=True)
class Spelling:
    """A call that is not yet in canonical form."""

    op: str
    args: dict[str, Value]
    sizes: Mapping[str, tuple[Size, ...]]  # shapes of tensor arguments
    shapes: tuple[tuple[Size, ...], ...]  # of the results


@dataclass(frozen=True, slots=True)
class ViewWrite:
    """A write into a view of a tensor, with canonical arguments."""

    op: str
    args: Mapping[str, Value]
    tensor: Value  # before the write
    part: Value  # new contents of the view
    shape: tuple[Size, ...]  # of the tensor
    index: int  # index of the view among the operator's results

    def scattered(self, op: str, **position: Value) -> Call:
        """Return the call that writes the view's contents into the tensor."""
        return op, {"self": self.tensor, "src": self.part, **position}


AffectedOperands: TypeAlias = Literal["", "all", "one", "first"]
Repeats: TypeAlias = Literal["never", "uniform", "any"]

AxisRule: TypeAlias = Callable[[Equations], list[Dims]]
CountMacs: TypeAlias = Callable[[Counted], Amount]
TypeRule: TypeAlias = Callable[[Args], ResultType]
BackwardRule: TypeAlias = Backward | Callable[[Node], Backward]


@dataclass(frozen=True, slots=True)
class Growth:
    """The effect of repeated channels on an operator, and its weights for the identity (Net2Net).

    Attributes:
        scales: Operands that can be multiplied by a factor to multiply the result by the same
            factor: ``all`` operands together, exactly ``one`` of them (a product), or the ``first``
            (a quotient); empty if there are none.
        pointwise: True if the dimensions of operands and result are the same, counted from the end.
        moves: True if the operator only moves or omits positions of its single operand.
        affine: Dict from arguments that scale the result elementwise to the dimension of the
            argument that has the result's channels. The weight comes first.
        bilinear: True if the operator multiplies and sums operands, so that a factor on one operand
            becomes a factor on the result.
        repeats: Repetitions of positions along an axis that do not change the result: each position
            ``any`` number of times, ``uniform`` (all positions equally often) or ``never``. A
            function of the node if this depends on its arguments.
        identity: Function that returns a dict from arguments to values with which the operator
            returns its input; or the reason why there are none.
        idempotent: True if applying the operator twice is the same as applying it once.
        keeps_zero: True if the operator maps zero to zero.
        picks: True if every value of the result is a value of the operand.
        finite: True if the result is finite where the operands are, unlike that of a quotient.
        nothing: Arguments that make the operator return zeros for any input if they are all zero.
    """

    scales: AffectedOperands = ""
    pointwise: bool = False
    moves: bool = False
    affine: Mapping[str, int] = field(default_factory=dict)
    bilinear: bool = False
    repeats: Repeats | Callable[[Node], Repeats] = "never"
    identity: Callable[[ArchGraph, Node], Identity] | None = None
    idempotent: bool = False
    keeps_zero: bool = False
    picks: bool = False
    finite: bool = True
    nothing: tuple[str, ...] = ()

    def weight(self, node: Node) -> Value:
        """Return the argument of a node that contains its weight."""
        return node.arg(next(iter(self.affine), "weight"))

    def repeated(self, node: Node) -> Repeats:
        """Return the repetitions of positions along an axis that do not change a node's result."""
        return self.repeats if isinstance(self.repeats, str) else self.repeats(node)


# MOVES: the operand's positions in another order or shape. ALIGNED: every position of the result
# comes from the same position of the operand.
MOVES = Growth(scales="all", moves=True, repeats="any", picks=True)
ALIGNED = Growth(scales="all", pointwise=True, repeats="any", picks=True)
# Like ALIGNED for several operands, with an extra dimension or dimensions at other indices.
COPIES = Growth(scales="all", repeats="any", picks=True)
UNKNOWN_GROWTH = Growth(finite=False)


@dataclass(frozen=True, slots=True)
class LinearMap:
    """The arguments of an operator that multiplies its input by a matrix, or convolves with it.

    Attributes:
        input: Name of the argument that is multiplied.
        weight: Name of the argument with the matrix, [out, in, kernel…].
        bias: Name of the argument that is added.
        transposed: Whether the weight is [in, out] instead.
        steps: Names of other arguments: ``stride``, ``padding`` and ``dilation`` of a
            convolution, ``padding_idx`` of an embedding.
        lookup: True if the input contains indices of rows of the weight (an embedding). The
            indices represent one-hot vectors.
    """

    input: str = "input"
    weight: str = "weight"
    bias: str = "bias"
    transposed: bool = False
    steps: tuple[str, ...] = ()
    lookup: bool = False


def unknown_axes(eq: Equations) -> list[Dims]:
    """Forbid cutting the axes of an operator that does not have a row in the table."""
    return eq.opaque()


@dataclass(frozen=True, slots=True)
class Operator:
    """The description of an operator: a row of the table.

    Attributes:
        rule: Function that adds the equations between the layouts of arguments and results.
        zero: Function that computes the layouts at whose masked (removed) positions results may be
            nonzero (:mod:`archgraph.ops.zeros`).
        macs: Function that counts multiply–accumulates for one example, using only sums and
            products of sizes.
        init: Dict from arguments with parameters to their initialisers.
        training_flag: Argument that is true in training and false in evaluation.
        statistics: Arguments that are running statistics, which forward updates in training.
        variances: Statistics that cannot be negative.
        sides: Dict from arguments with parameters to the names of their dimensions.
        weighted: True if the operator's main work is a product with a weight. The operator then
            starts a block of a network without branches, and a scaler may follow it.
        normalises: True if the operator divides by statistics of its input.
        pointwise: True if the operator is elementwise. It then belongs to the block before it.
        merges: True if the operator adds branches. It then ends a residual block.
        casts: True if the operator returns the values of its first argument in another dtype.
        attends: Names of the query and the mask of attention, whose result is
            [..., heads, queries, width of a head].
        rates: Numeric arguments that may differ between two networks of the same architecture,
            because they depend on training or on widths, or prevent a division by zero.
        growth: The effect of repeated channels on the operator.
        type: Function that computes the type of the result in common cases. If None, only
            PyTorch's meta kernel computes the type.
        alias: Overload with the same meaning, and the same arguments in the same order.
        spelling: Function that returns the canonical form of a call.
        unchanged: True if a call returns its input itself whenever result and input have the same
            type; a function of the arguments if this depends on them.
        overwritten: Function from a write into a view, which this operator created, to the call
            that computes the whole tensor after the write; None if there is no such call.
        fill: Value that fills a result of which only shape or dtype depend on the first argument;
            ``argument`` if the caller passes the value.
        functional: Functional form of an in-place operator, if it has another name.
        contiguous: Arguments that must be contiguous in memory. A graph does not show this.
        real: True if gradients flow through the operator for real numbers only.
        impossible: Function that returns the reason why the operator cannot run at a node's sizes;
            empty if it can run.
        layer: Function that returns the ``torch.nn`` layer that computes the operator.
        linear_map: Arguments of the matrix product, if the operator is a single linear map.
        words: Name in figures if the operator has a weight; empty for the operator's own name.
        family: Family for colours in figures, one of :data:`archgraph.ops.table.FAMILIES`; empty
            for the family of its file.
        backward: Tensors that autograd saves; a function of the node if they depend on its
            arguments. If None, all operands and results are counted as saved.
    """

    rule: AxisRule = unknown_axes
    zero: Zeros = never
    macs: CountMacs | None = None
    init: Mapping[str, Init] = field(default_factory=dict)
    training_flag: str | None = None
    statistics: tuple[str, ...] = ()
    variances: tuple[str, ...] = ()
    sides: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    weighted: bool = False
    normalises: bool = False
    pointwise: bool = False
    merges: bool = False
    casts: bool = False
    attends: tuple[str, str] | None = None
    rates: tuple[str, ...] = ()
    growth: Growth = UNKNOWN_GROWTH
    type: TypeRule | None = None
    alias: str = ""
    spelling: Callable[[Spelling], Call] | None = None
    unchanged: bool | Callable[[Mapping[str, Value]], bool] = False
    overwritten: Callable[[ViewWrite], Call | None] | None = None
    fill: int | Literal["argument"] | None = None
    functional: str = ""
    contiguous: tuple[str, ...] = ()
    real: bool = False
    impossible: Callable[[Node], str] | None = None
    layer: LayerRule | None = None
    linear_map: LinearMap | None = None
    words: str = ""
    family: str = ""
    backward: BackwardRule | None = None

    def axes(self, eq: Equations) -> list[Dims]:
        """Add the equations of the current operator, and return the layouts of its results."""
        try:
            results = self.rule(eq)
            eq.settle(results, self.zero(eq, results))
        except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError):
            # An unexpected rank or argument: pin, which is always correct. Layouts unified before
            # the error only tie axes that are now pinned.
            return eq.opaque()
        if self.pointwise:
            eq.follow()
        return results


def rows(*parts: Mapping[str, Operator]) -> dict[str, Operator]:
    """Combine parts of the operator table into a dict with one row for each operator.

    In the parts, operators with the same row share a key: their names, separated by spaces.

    Raises:
        ValueError: If an operator has two rows.

    >>> sorted(rows({"mm bmm": Operator(weighted=True)}, {"mv": Operator()}))
    ['bmm', 'mm', 'mv']
    """
    table: dict[str, Operator] = {}
    for keys, operator in (item for part in parts for item in part.items()):
        for name in keys.split():
            # A dict would silently keep the last row.
            if name in table:
                raise ValueError(f"operator {name} has two rows")
            table[name] = operator
    return table
