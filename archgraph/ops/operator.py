"""What may be known of an operator: the fields of a row of the operator table."""

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
    """A call before it has its canonical form."""

    op: str
    args: dict[str, Value]
    sizes: Mapping[str, tuple[Size, ...]]  # shapes of tensor arguments
    shapes: tuple[tuple[Size, ...], ...]  # of the results


@dataclass(frozen=True, slots=True)
class ViewWrite:
    """A write into a view that an operator made of a tensor, in canonical form."""

    op: str
    args: Mapping[str, Value]
    tensor: Value  # before the write
    part: Value  # what the view contains now
    shape: tuple[Size, ...]  # of the tensor
    index: int  # which result of the operator the view is

    def scattered(self, op: str, **position: Value) -> Call:
        """Return the call that writes the view's part into the tensor."""
        return op, {"self": self.tensor, "src": self.part, **position}


AffectedOperands: TypeAlias = Literal["", "all", "one", "first"]
Repeats: TypeAlias = Literal["never", "uniform", "any"]

AxisRule: TypeAlias = Callable[[Equations], list[Dims]]
CountMacs: TypeAlias = Callable[[Counted], Amount]
TypeRule: TypeAlias = Callable[[Args], ResultType]
BackwardRule: TypeAlias = Backward | Callable[[Node], Backward]


@dataclass(frozen=True, slots=True)
class Growth:
    """What an operator does with repeated positions, and how it becomes the identity (Net2Net).

    Attributes:
        scales: When its result is multiplied by what its operands are: ``all`` of them, exactly
            ``one`` of them (a product), the ``first`` (a quotient), or never.
        pointwise: Its operands' dimensions are its result's, counted from the last.
        moves: It only moves positions of its one operand (or leaves some out).
        affine: Leaves, by argument, that multiply its result position by position, with the
            dimension that has the result's channels; the weight first.
        bilinear: It multiplies and sums operands: whatever one of them is multiplied by, its result
            is too.
        repeats: Whether it gives the same over an axis whose positions are repeated: ``any`` how,
            ``uniform``: all equally often, or ``never``; by node where its arguments decide.
        identity: Leaves, by argument, for which it returns its input; a text says why it cannot.
        idempotent: Twice is the same as once.
        keeps_zero: It is zero at zero.
        picks: Every number of its result is one of its operand's.
        finite: Its result is a number wherever its operands are: nothing is divided by them.
        nothing: Arguments that, where all are zero, make it return zeros whatever its input is.
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
        """Return whether a node gives the same over an axis whose positions are repeated."""
        return self.repeats if isinstance(self.repeats, str) else self.repeats(node)


# MOVES: every position of the operand, somewhere else; ALIGNED: every position of the result, from
# the same one of the operand.
MOVES = Growth(scales="all", moves=True, repeats="any", picks=True)
ALIGNED = Growth(scales="all", pointwise=True, repeats="any", picks=True)
# The same of several operands; the result has a dimension that they lack, or counts them elsewhere.
COPIES = Growth(scales="all", repeats="any", picks=True)
UNKNOWN_GROWTH = Growth(finite=False)


@dataclass(frozen=True, slots=True)
class LinearMap:
    """How an operator multiplies its input by a matrix, or moves a matrix over it.

    Attributes:
        input: Argument that is multiplied.
        weight: Argument that is the matrix, [out, in, kernel…].
        bias: Argument that is added.
        transposed: Whether the weight is [in, out] instead.
        steps: Arguments that say where a kernel is applied, or which row is padding.
        lookup: Whether the input counts rows of the weight instead (an embedding): it stands for
            vectors with a single one.
    """

    input: str = "input"
    weight: str = "weight"
    bias: str = "bias"
    transposed: bool = False
    steps: tuple[str, ...] = ()
    lookup: bool = False


def unknown_axes(eq: Equations) -> list[Dims]:
    """Forbid cuts of all that touches the operator: it has no row."""
    return eq.opaque()


@dataclass(frozen=True, slots=True)
class Operator:
    """What is known of an operator: a row of the table.

    Attributes:
        rule: Equation between the layouts of its arguments and results.
        zero: At which masked positions its results are zero.
        macs: Multiply–accumulates for one example; sums and products of sizes alone.
        init: Initialiser of a leaf, by argument name.
        training_flag: Argument that is true in training and false in evaluation.
        statistics: Arguments that are running statistics, which forward updates in training.
        variances: Those of them that cannot be negative.
        sides: What the dimensions of a leaf are called, by argument name.
        weighted: Does heavy work with a weight: starts a block of a plain chain, takes a scaler.
        normalises: Divides by statistics of its input.
        pointwise: Position by position: belongs to the block that feeds it.
        merges: Joins branches by adding them: ends a residual region.
        casts: Gives the numbers of its first argument in another type.
        attends: Arguments that are the query and the mask of attention, whose result is
            [..., heads, queries, width of a head].
        rates: Numbers that may differ between two networks of one form: they follow from training
            or widths, or guard against division by zero.
        growth: What it does with repeated positions.
        type: Type of its result in the common case; None where PyTorch's meta kernel decides.
        alias: Overload that it is another name of, argument by argument in the same order.
        spelling: The canonical form of a call.
        unchanged: Whether a call whose result has its input's type returns the input itself,
            by its arguments if that matters.
        overwritten: The call that gives a tensor after the view that this operator makes of it was
            overwritten; None if there is no such call.
        fill: What the result is filled with, where it has its first argument's shape or dtype but
            none of its values; ``argument`` where the caller says it.
        functional: Functional form of an in-place operator, where it has another name.
        contiguous: Arguments that must lie in memory in order, which a graph does not say.
        real: Whether only real numbers have a gradient through it.
        impossible: Why the operator cannot run at a node's sizes; empty where it can.
        layer: The layer of ``torch.nn`` that computes it.
        linear_map: How it maps its input linearly, with one matrix for all of it.
        words: What pictures call it where it has a weight, if its name says less.
        family: What it does, as pictures colour it: one of :data:`archgraph.ops.table.FAMILIES`;
            empty: what its file says.
        backward: What autograd does for it, by node where its arguments decide; None: nothing is
            known, so that it counts as if all operands and results were saved.
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
        """Return the layouts of the current operator's results, after stating its equations."""
        try:
            results = self.rule(eq)
            eq.settle(results, self.zero(eq, results))
        except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError):
            # Of a rank or with arguments that the rule does not know: to pin is always right. What
            # was unified before the error only ties axes together that are now pinned.
            return eq.opaque()
        if self.pointwise:
            eq.follow()
        return results


def rows(*parts: Mapping[str, Operator]) -> dict[str, Operator]:
    """Put parts of the operator table together, one row per name.

    Operators of which the same is known share a key: their names, with blanks between.

    Raises:
        ValueError: If an operator has two rows.

    >>> sorted(rows({"mm bmm": Operator(weighted=True)}, {"mv": Operator()}))
    ['bmm', 'mm', 'mv']
    """
    table: dict[str, Operator] = {}
    for keys, operator in (item for part in parts for item in part.items()):
        for name in keys.split():
            # A dict would keep the last row without a word.
            if name in table:
                raise ValueError(f"operator {name} has two rows")
            table[name] = operator
    return table
