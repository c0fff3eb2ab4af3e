"""The tape that the passes of a capture transform: calls in program order, and their properties.

:func:`~archgraph.capture.spell.canonical` calls the passes in this order:
:func:`~archgraph.capture.inline.inline` creates the tape.
:func:`~archgraph.capture.fold.fold_constants`, :func:`~archgraph.capture.casts.spell_casts`,
:func:`~archgraph.capture.writes.functionalised` and :func:`~archgraph.capture.recurrent.unstack`
transform the tape. :func:`~archgraph.capture.spell.spell` converts it to nodes.
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

# A difference of a graph from its model: an error if results, gradients or training steps differ,
# which ``trace(..., strict=True)`` raises.
Note: TypeAlias = str | TraceError


@dataclass
class Observed:
    """Observations during the export of a model.

    Attributes:
        notes: Differences of the program from the module.
        autocast: Functions with which the user's code queries autocast.
        buffers: Dict from each buffer whose values decided a branch to the location of the branch.
        sizes: Whether a branch depends only on open (dynamic) sizes.
        numbers: Input sizes that forward needs as plain numbers. Keys are the sizes, as guards of
            torch.export write them. Values are pairs of the number and the line of code that needs
            it.
        narrowed: Lines of code with a condition that holds for the size of the example inputs, but
            fails for the next larger or the next smaller size.
        drew: Whether forward drew random numbers of Python or NumPy.
    """

    notes: list[Note] = field(default_factory=list)
    autocast: set[str] = field(default_factory=set)
    buffers: dict[str, str] = field(default_factory=dict)
    sizes: bool = False
    numbers: dict[str, tuple[int, str]] = field(default_factory=dict)
    narrowed: list[str] = field(default_factory=list)
    drew: bool = False

    def clear(self) -> None:
        """Clear all observations, for another export."""
        vars(self).update(vars(Observed()))


# Entries of `meta` in addition to those of torch.export (`val`, `stack_trace`, `nn_module_stack`).
REGION = "archgraph_region"  # Region: the switches under which a call runs
FOLDED = "archgraph_folded"  # its result is a constant: no live call uses it
LITERAL = "archgraph_literal"  # created by a pass in canonical form: kept as it is, never folded
INSERTED = "archgraph_inserted"  # created by a pass: only its region decides about no_grad
IMPLIED = "archgraph_implied"  # detach at the end of a no_grad region: kept only if it matters


@dataclass(frozen=True, slots=True)
class Region:
    """Settings with which a call runs: recording of gradients, device and dtype of autocast."""

    grad: bool = True
    autocast: tuple[str, torch.dtype | None] | None = None


PLAIN = Region()


@dataclass(frozen=True, slots=True)
class View:
    """A result that shares memory: ``call`` created it as a view of ``parent``."""

    parent: fx.Node
    call: fx.Node | None = None  # None: the result is the parent itself
    position: int = 0  # of the parent among the arguments
    index: int = 0  # of the result among several


@dataclass(frozen=True)
class Tape:
    """Calls in program order as a flat ``torch.fx`` graph, and properties of its nodes.

    A pass may edit the graph that it receives.
    """

    graph: fx.Graph
    sizes: CapturedSizes
    inputs: Mapping[fx.Node, str] = field(default_factory=dict)  # tensors passed to forward
    leaves: Mapping[fx.Node, str] = field(default_factory=dict)  # parameters and buffers
    tensors: Mapping[fx.Node, Tensor] = field(default_factory=dict)  # all other tensors
    labels: Mapping[fx.Node, str] = field(default_factory=dict)  # their names in the module
    views: Mapping[fx.Node, View] = field(default_factory=dict)
    constants: Mapping[fx.Node, Param] = field(default_factory=dict)  # created by folding
    updates: Mapping[str, fx.Node] = field(default_factory=dict)  # last values of buffers
    notes: tuple[Note, ...] = ()  # differences of the graph from the module

    @property
    def results(self) -> tuple[Argument, ...]:
        """Results of the calls, in order: nodes or other values."""
        results = self.graph.output_node().args[0]
        assert isinstance(results, (tuple, list))
        return tuple(results)


@dataclass(frozen=True)
class CapturedSizes:
    """Converter of a capture's sizes to sizes of a graph."""

    names: Mapping[str, str] = field(default_factory=dict)  # of open sizes, by symbol
    _known: dict[sympy.Expr, Size] = field(default_factory=dict, repr=False, compare=False)

    def size(self, size: int | torch.SymInt, where: str = "") -> Size:
        """Convert one size.

        Raises:
            TraceError: If the size is not an expression of numbers and open sizes.
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
                "or trace a submodule that does not use it",
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
                hint="express it with sums, products and // of sizes",
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
