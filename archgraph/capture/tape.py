"""The tape, which the passes of a capture hand on: calls in program order and facts about them.

Order of the passes (:func:`~archgraph.capture.spell.canonical`), each ``Tape -> Tape``:
:func:`~archgraph.capture.inline.inline` (makes the tape),
:func:`~archgraph.capture.fold.fold_constants`, :func:`~archgraph.capture.casts.spell_casts`,
:func:`~archgraph.capture.writes.functionalised`, :func:`~archgraph.capture.recurrent.unstack`;
:func:`~archgraph.capture.spell.spell` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import sympy  # type: ignore[import-untyped]  # no stubs exist
import torch
from torch import Tensor, fx
from torch.fx.node import Argument

from archgraph.errors import Inexpressible, TraceError
from archgraph.graph.ir import Param, Size, TensorType
from archgraph.ops.symbols import size_of

# What a graph does otherwise than its model: an error where results, gradients or training steps
# differ, which ``trace(..., strict=True)`` raises.
Note: TypeAlias = str | TraceError


@dataclass
class Observed:
    """What is observed while a model is exported.

    Attributes:
        notes: What the program does otherwise than the module.
        autocast: Functions by which the user's code asks for autocast.
        buffers: Names of buffers whose values decided a branch, each with the place of the code.
        sizes: Whether a branch depends on nothing but a size that is open.
        numbers: Sizes of inputs, as guards write them, that had to be a number: it and the place.
        drew: Whether forward drew random numbers of Python or NumPy.
        narrowed: Places where a condition on a size does not hold for the next one, or the last.
    """

    notes: list[Note] = field(default_factory=list)
    autocast: set[str] = field(default_factory=set)
    buffers: dict[str, str] = field(default_factory=dict)
    sizes: bool = False
    numbers: dict[str, tuple[int, str]] = field(default_factory=dict)
    narrowed: list[str] = field(default_factory=list)
    drew: bool = False

    def clear(self) -> None:
        """Forget everything, for another export."""
        vars(self).update(vars(Observed()))


# Entries of `meta` beside those of torch.export (`val`, `stack_trace`, `nn_module_stack`).
REGION = "archgraph_region"  # Region: the switches that a call runs under
FOLDED = "archgraph_folded"  # its result is a constant: nothing that runs uses the call
LITERAL = "archgraph_literal"  # made by a pass in canonical form: spelt as it is, never folded
INSERTED = "archgraph_inserted"  # made by a pass: under no_grad by its region alone
IMPLIED = "archgraph_implied"  # the detach at the end of a no_grad region: only where it matters


@dataclass(frozen=True, slots=True)
class Region:
    """Switches that a call runs under: recording of gradients, device and dtype of autocast."""

    grad: bool = True
    autocast: tuple[str, torch.dtype | None] | None = None


PLAIN = Region()


@dataclass(frozen=True, slots=True)
class View:
    """Where a result's memory belongs: ``call`` made it as a view of ``parent``."""

    parent: fx.Node
    call: fx.Node | None = None  # none: the result is the parent itself
    position: int = 0  # of the parent among the arguments
    index: int = 0  # of the result among several


@dataclass(frozen=True)
class Tape:
    """Calls in program order as a flat ``torch.fx`` graph, and what is known of its nodes.

    A pass may edit the graph that it was given.
    """

    graph: fx.Graph
    sizes: CapturedSizes
    inputs: Mapping[fx.Node, str] = field(default_factory=dict)  # tensors given to forward
    leaves: Mapping[fx.Node, str] = field(default_factory=dict)  # parameters and buffers
    tensors: Mapping[fx.Node, Tensor] = field(default_factory=dict)  # all others
    labels: Mapping[fx.Node, str] = field(default_factory=dict)  # the module's for these
    views: Mapping[fx.Node, View] = field(default_factory=dict)
    constants: Mapping[fx.Node, Param] = field(default_factory=dict)  # made by folding
    updates: Mapping[str, fx.Node] = field(default_factory=dict)  # last values of buffers
    notes: tuple[Note, ...] = ()  # what the graph does otherwise than the module

    @property
    def results(self) -> tuple[Argument, ...]:
        """What the calls give, in order: nodes, or plain values."""
        results = self.graph.output_node().args[0]
        assert isinstance(results, (tuple, list))
        return tuple(results)


@dataclass(frozen=True)
class CapturedSizes:
    """Sizes of a capture as sizes of a graph."""

    names: Mapping[str, str] = field(default_factory=dict)  # of open sizes, by symbol
    _known: dict[sympy.Expr, Size] = field(default_factory=dict, repr=False, compare=False)

    def size(self, size: int | torch.SymInt, where: str = "") -> Size:
        """Convert one size.

        Raises:
            TraceError: If it is not made of numbers and open sizes.
        """
        if isinstance(size, int):
            return size
        expr = size.node.expr
        if expr not in self._known:
            self._known[expr] = self._read(expr, where)
        return self._known[expr]

    def _read(self, expr: sympy.Expr, where: str) -> Size:
        if not {str(s) for s in expr.free_symbols} <= self.names.keys():
            raise Inexpressible(
                "a size depends on the values of a tensor",
                where=where or None,
                hint="keep the shape and mask instead (torch.where, multiplication by the mask), "
                "or trace the submodule that does not",
            )
        try:
            return size_of(expr, self.names)
        except ValueError as error:
            text = str(error)
            for symbol, name in self.names.items():
                text = text.replace(symbol, name)
            raise TraceError(
                "a size depends on an open one in a way that a graph cannot express",
                where=where or None,
                found=text,
                hint="express it by sums, products and // of sizes",
            ) from None

    def shape(self, tensor: Tensor, where: str) -> tuple[Size, ...]:
        """Return the shape of a tensor of the capture."""
        return tuple(self.size(s, where) for s in tensor.shape)

    def type(self, tensor: Tensor, where: str) -> TensorType:
        """Return the type of a tensor of the capture."""
        return TensorType(self.shape(tensor, where), dtype_name(tensor.dtype))


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype in a graph.

    >>> dtype_name(torch.float32)
    'float32'
    """
    return str(dtype).removeprefix("torch.")
