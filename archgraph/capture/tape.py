"""The tape, which the passes of a capture hand on: calls in program order and facts about them.

Order of the passes, each ``Tape -> Tape``: :func:`~archgraph.capture.inline.inline` (makes the
tape), :func:`~archgraph.capture.fold.fold`, :func:`~archgraph.capture.casts.cast`,
:func:`~archgraph.capture.writes.functional`; :func:`~archgraph.capture.spell.spell` reads it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy  # type: ignore[import-untyped]  # no stubs exist
import torch

from archgraph.capture.places import users_line
from archgraph.errors import TraceError
from archgraph.graph.ir import Batch, Param, Size, TensorType
from archgraph.ops.schema import op_name

# Entries of `meta` beside those of torch.export (`val`, `stack_trace`, `nn_module_stack`).
REGION = "archgraph_region"  # Region: the switches that a call runs under
FOLDED = "archgraph_folded"  # its result is a constant: nothing that runs uses the call
LITERAL = "archgraph_literal"  # made by a pass in canonical form: spelt as it is, never folded
INSERTED = "archgraph_inserted"  # made by a pass: under no_grad by its region alone
IMPLIED = "archgraph_implied"  # the detach at the end of a no_grad region: only where it matters


@dataclass(frozen=True, slots=True)
class Region:
    """Switches that a call runs under.

    Attributes:
        grad: Whether gradients are recorded.
        autocast: Device and dtype of the autocast around the call.
    """

    grad: bool = True
    autocast: tuple[str, torch.dtype] | None = None


@dataclass(frozen=True, slots=True)
class View:
    """Where a result's memory belongs: ``call`` made it as a view of ``parent``.

    Attributes:
        parent: The tensor that it shares memory with.
        call: The operator that took the view; None where the result is the parent itself.
        place: Position of the parent among the arguments of ``call``.
        index: Which result of ``call`` it is.
    """

    parent: torch.fx.Node
    call: torch.fx.Node | None = None
    place: int = 0
    index: int = 0


@dataclass(frozen=True)
class Tape:
    """Calls in program order as a flat ``torch.fx`` graph, and what is known of its nodes.

    Attributes:
        graph: The calls; a pass may edit the graph that it was given.
        sizes: Reads symbolic sizes.
        inputs: Placeholders that are tensors given to forward, and their names.
        leaves: Placeholders of parameters and buffers, and the names of their owners.
        tensors: Tensors that belong to neither (placeholders and ``get_attr`` nodes).
        labels: Names that the module itself gives to such tensors.
        views: What is a view of what.
        constants: ``get_attr`` nodes that folding made, and their leaves.
        updates: Value of each buffer that forward changes, at the end.
        notes: What the graph does otherwise than the module.
    """

    graph: torch.fx.Graph
    sizes: CapturedSizes
    inputs: Mapping[torch.fx.Node, str] = field(default_factory=dict)
    leaves: Mapping[torch.fx.Node, str] = field(default_factory=dict)
    tensors: Mapping[torch.fx.Node, torch.Tensor] = field(default_factory=dict)
    labels: Mapping[torch.fx.Node, str] = field(default_factory=dict)
    views: Mapping[torch.fx.Node, View] = field(default_factory=dict)
    constants: Mapping[torch.fx.Node, Param] = field(default_factory=dict)
    updates: Mapping[str, torch.fx.Node] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def output(self) -> torch.fx.Node:
        """The node whose first argument lists the results."""
        return next(iter(reversed(self.graph.nodes)))

    @property
    def results(self) -> tuple[Any, ...]:
        """What the calls give, in order: nodes, or plain values."""
        results: Any = self.output.args[0]
        return tuple(results)


@dataclass(frozen=True)
class CapturedSizes:
    """Sizes of a capture as sizes of a graph.

    Attributes:
        batch: Symbol of the batch axis; None where every size is a number.
    """

    batch: str | None = None
    _known: dict[Any, Size] = field(default_factory=dict, repr=False, compare=False)

    def size(self, size: Any, where: str = "") -> Size:
        """One size.

        Raises:
            TraceError: If it is not a number or a multiple of the batch size.
        """
        if isinstance(size, int):
            return size
        expr = size.node.expr
        if expr not in self._known:
            self._known[expr] = self._read(sympy.expand(expr), where)
        return self._known[expr]

    def _read(self, expr: Any, where: str) -> Size:
        symbols = {str(s) for s in expr.free_symbols}
        if not symbols:
            return int(expr)
        if not symbols <= {self.batch}:
            raise TraceError(
                "a size depends on the values of a tensor",
                where=where or None,
                found=str(expr),
                hint="keep the shape and mask instead (torch.where, multiplication by the mask), "
                "or trace the submodule that does not",
            )
        factor, rest = expr.as_coeff_Mul()
        powers = rest.as_powers_dict()
        whole = all(b.is_Symbol and e.is_Integer and e > 0 for b, e in powers.items())
        if whole and factor.is_Integer:
            return Batch(int(factor), int(sum(powers.values())))
        raise TraceError(
            "a size depends on the batch size in a way that a graph cannot express",
            where=where or None,
            found=str(expr).replace(str(self.batch), "batch"),
            expected="a multiple of the batch size",
            hint="keep the batch axis apart from the others",
        )

    def shape(self, tensor: torch.Tensor, where: str) -> tuple[Size, ...]:
        """Shape of a tensor of the capture."""
        return tuple(self.size(s, where) for s in tensor.shape)

    def type(self, tensor: torch.Tensor, where: str) -> TensorType:
        """Type of a tensor of the capture."""
        return TensorType(self.shape(tensor, where), dtype_name(tensor.dtype))


def dtype_name(dtype: torch.dtype) -> str:
    """Name of a dtype in a graph.

    >>> dtype_name(torch.float32)
    'float32'
    """
    return str(dtype).removeprefix("torch.")


def where(node: torch.fx.Node) -> str:
    """Place of a call in the user's code, or its name in the capture."""
    place = users_line(node.meta.get("stack_trace"))
    return f"{place[0]}:{place[1]}" if place else node.name


def tensor(node: Any) -> torch.Tensor | None:
    """The stand-in tensor of a result; None where the result is something else."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def memory(node: torch.fx.Node) -> int | None:
    """Which storage a result lives in; a copy lives in its own, a view in that of its source."""
    value = tensor(node)
    return None if value is None else value.untyped_storage()._cdata


def region(node: torch.fx.Node) -> Region:
    """The switches that a call runs under."""
    return node.meta.get(REGION, _PLAIN)


_PLAIN = Region()


def is_operator(node: torch.fx.Node) -> bool:
    """Whether a node calls an operator that makes tensors (not sizes, not assertions)."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) or isinstance(value, (tuple, list))


def writes(node: torch.fx.Node) -> bool:
    """Whether a call changes the values of a tensor (``unsqueeze_`` and its like change none)."""
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    return target._schema.is_mutable and torch.Tag.inplace_view not in target.tags


def written(node: torch.fx.Node) -> torch.fx.Node | None:
    """The one tensor that a call changes; None where there are several."""
    assert isinstance(node.target, torch._ops.OpOverload)
    arguments = node.target._schema.arguments
    places = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    by_name = dict(zip([a.name for a in arguments], node.args, strict=False)) | node.kwargs
    found = by_name.get(places[0]) if len(places) == 1 else None
    return found if isinstance(found, torch.fx.Node) else None


@functools.cache
def operator_name(target: torch._ops.OpOverload) -> str:
    """Graph name of an operator; ``unsqueeze_`` and its like change no value: ``unsqueeze``."""
    op = op_name(target)
    if torch.Tag.inplace_view not in target.tags:
        return op
    namespace, packet, *overload = op.split(".")
    return ".".join((namespace, packet.removesuffix("_"), *overload))


def insert(
    graph: torch.fx.Graph,
    target: torch._ops.OpOverload,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    like: torch.fx.Node,
    val: Any,
    **flags: bool,
) -> torch.fx.Node:
    """A call that a pass makes at the place of another one: its line, module and region."""
    node = graph.call_function(target, args, dict(kwargs))
    keep = ("stack_trace", "nn_module_stack", REGION)
    node.meta = {k: like.meta[k] for k in keep if k in like.meta}
    node.meta |= {"val": val, INSERTED: True, **flags}
    return node
