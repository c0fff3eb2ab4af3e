"""The facts about an operator: the fields of a row of the operator table."""

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
    """A write into a view of a tensor, in canonical form."""

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
    """How an operator treats repeated positions, and how it becomes the identity (Net2Net).

    Attributes:
        scales: Operands whose factors carry over to the result: ``all`` of them together, exactly
            ``one`` of them (a product), the ``first`` (a quotient); empty for none.
        pointwise: Whether its operands' dimensions are its result's, counted from the last.
        moves: Whether it only moves positions of its single operand (or omits some).
        affine: Leaves, by argument, that scale its result elementwise, each with the dimension that
            has the result's channels; the weight comes first.
        bilinear: Whether it multiplies and sums operands, so that a factor on one of them becomes a
            factor on the result.
        repeats: When the result over an axis does not change if its positions are repeated:
            ``any`` number of times each, ``uniform`` (all equally often) or ``never``. A function
            of the node if its arguments decide.
        identity: Values of leaves, by argument, that make it return its input, or the reason why
            there are none.
        idempotent: Whether applying it twice is the same as applying it once.
        keeps_zero: Whether it maps zero to zero.
        picks: Whether every value of its result is a value of its operand.
        finite: Whether its result is finite wherever its operands are: it does not divide by them.
        nothing: Arguments that, if all are zero, make it return zeros whatever its input is.
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
        """Return the argument of a node that is its weight."""
        return node.arg(next(iter(self.affine), "weight"))

    def repeated(self, node: Node) -> Repeats:
        """Return when a node's result does not change if positions of an axis are repeated."""
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
    """How an operator multiplies its input by a matrix, or slides a matrix over it.

    Attributes:
        input: Name of the argument that is multiplied.
        weight: Name of the matrix, [out, in, kernel…].
        bias: Name of the argument that is added.
        transposed: Whether the weight is [in, out] instead.
        steps: Names of other arguments: ``stride``, ``padding`` and ``dilation`` of a
            convolution, ``padding_idx`` of an embedding.
        lookup: Whether the input contains row indices of the weight (an embedding), which stand for
            one-hot vectors.
    """

    input: str = "input"
    weight: str = "weight"
    bias: str = "bias"
    transposed: bool = False
    steps: tuple[str, ...] = ()
    lookup: bool = False


def unknown_axes(eq: Equations) -> list[Dims]:
    """Forbid cutting any axis of an operator that has no row."""
    return eq.opaque()


@dataclass(frozen=True, slots=True)
class Operator:
    """The facts about an operator: a row of the table.

    Attributes:
        rule: Equations between the layouts of its arguments and results.
        zero: Masked positions at which its results are zero.
        macs: Multiply–accumulates for one example, using only sums and products of sizes.
        init: Initialiser of each leaf, by argument name.
        training_flag: Argument that is true in training and false in evaluation.
        statistics: Arguments that are running statistics, which forward updates in training.
        variances: Statistics that cannot be negative.
        sides: Names of the dimensions of each leaf, by argument name.
        weighted: Whether it does heavy work with a weight: it starts a block of a plain chain and
            takes a scaler.
        normalises: Whether it divides by statistics of its input.
        pointwise: Whether it is elementwise: it belongs to the block before it.
        merges: Whether it joins branches by adding them: it ends a residual region.
        casts: Whether it returns the values of its first argument in another dtype.
        attends: Names of the query and the mask of attention, whose result is
            [..., heads, queries, width of a head].
        rates: Numeric arguments that may differ between two networks of the same architecture: they
            depend on training or widths, or guard against division by zero.
        growth: How it treats repeated positions.
        type: Type of its result in the common case; None if only PyTorch's meta kernel computes it.
        alias: Overload that it is another name for, with the same arguments in the same order.
        spelling: Returns the canonical form of a call.
        unchanged: Whether a call whose result has its input's type returns the input itself; a
            function of the arguments if they matter.
        overwritten: Returns the call that computes a tensor after a write into the view that this
            operator takes of it; None if there is no such call.
        fill: Fill value of a result that takes only shape or dtype from the first argument;
            ``argument`` if the caller passes the value.
        functional: Functional form of an in-place operator, if it has another name.
        contiguous: Arguments that must be contiguous in memory, which a graph does not show.
        real: Whether gradients flow through it for real numbers only.
        impossible: Returns why the operator cannot run at a node's sizes; empty if it can.
        layer: Returns the ``torch.nn`` layer that computes it.
        linear_map: How it maps its input linearly, with one matrix for all of it.
        words: Name in pictures if it has a weight; empty if its own name is clear enough.
        family: Family for colours in pictures, one of :data:`archgraph.ops.table.FAMILIES`; empty
            for the family of its file.
        backward: How autograd treats it; a function of the node if its arguments decide. If None,
            it counts as if all operands and results were saved.
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
        """State the current operator's equations and return the layouts of its results."""
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
    """Combine parts of the operator table into one row per name.

    Operators with the same facts share a key: their names, separated by spaces.

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
