"""InputTypes: what a call of a built module is given, compared with the types of its graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from archgraph.errors import GraphError
from archgraph.graph.ir import ArchGraph, Batch, Record, Ref, TensorType, Value
from archgraph.ops.schema import torch_dtype

_Steps = tuple[int | str, ...]  # from an argument to a tensor inside of it


@dataclass(frozen=True)
class TensorInput:
    """One tensor that forward takes.

    Attributes:
        label: What messages call it.
        index: Place of its argument.
        key: Name of its argument.
        steps: The way to it inside of the argument.
        dtype: Its dtype.
        rank: How many dimensions it has.
        sizes: Those of its sizes that are not open, with their dimensions.
        batched: Whether its first dimension is the batch.
        low: The least size of its first dimension for which the graph holds.
        high: The largest one; None where there is none.
        type: All of that, as the graph says it.
    """

    label: str
    index: int
    key: str
    steps: _Steps
    dtype: torch.dtype
    rank: int
    sizes: tuple[tuple[int, int], ...]
    batched: bool
    low: int
    high: int | None
    type: TensorType

    def fits(self, value: Any) -> bool:
        """Return whether a value is a tensor of this type."""
        if not isinstance(value, torch.Tensor):
            return False
        if value.dtype is not self.dtype or value.dim() != self.rank:
            return False
        shape = value.shape
        return all(shape[dim] == size for dim, size in self.sizes) and self.holds(shape)

    def holds(self, shape: Sequence[int]) -> bool:
        """Return whether the graph holds for the size of the batch."""
        if self.low and shape[0] < self.low:
            return False
        return self.high is None or shape[0] <= self.high


@dataclass(frozen=True)
class InputTypes:
    """All tensors that forward takes, and the parameter that tells where the module is."""

    tensors: tuple[TensorInput, ...]
    own: tuple[str, str, torch.dtype] | None  # module path, name and dtype of a floating leaf

    @staticmethod
    def of(graph: ArchGraph) -> InputTypes:
        """The inputs of a graph."""
        found = []
        for index, (key, value) in enumerate(graph.inputs):
            for steps, name in _tensors(value, ()):
                node = graph.node[name]
                fixed = [(d, s) for d, s in enumerate(node.shape) if isinstance(s, int)]
                label = key + "".join(f"[{step!r}]" for step in steps)
                type_ = TensorType(node.shape, node.dtype)
                dtype = torch_dtype(node.dtype)
                low, high = cast(int, node.arg("min", 0)), cast("int | None", node.arg("max"))
                rank = len(node.shape)
                batched = node.shape[:1] == (Batch(),)
                at = label, index, key, steps, dtype, rank, tuple(fixed), batched, low, high, type_
                found.append(TensorInput(*at))
        leaf = next((p for p in graph.params if torch_dtype(p.dtype).is_floating_point), None)
        own = None
        if leaf is not None:
            path, _, last = leaf.name.rpartition(".")
            own = path, last, torch_dtype(leaf.dtype)
        return InputTypes(tuple(found), own)

    def check(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Refuse inputs of another type than the graph's; missing ones are forward's to refuse.

        Raises:
            GraphError: Names the input, what was found and what is expected.
        """
        if torch.jit.is_tracing():  # type: ignore[attr-defined]  # public in its documentation
            return
        leaf = self._leaf(module)
        converted = leaf is not None and self.own is not None and leaf.dtype is not self.own[2]
        first: tuple[TensorInput, torch.Tensor] | None = None
        for item in self.tensors:
            value = args[item.index] if item.index < len(args) else kwargs.get(item.key)
            if value is None:
                continue
            for step in item.steps:
                value = _inside(value, step)
            if isinstance(value, torch.fx.Proxy):  # of symbolic tracing, which has no types
                return
            if converted or not item.fits(value):
                self._refuse(item, value, leaf)
            if leaf is not None and value.device != leaf.device:
                raise GraphError(
                    "is on another device than the module",
                    where=f"input {item.label}",
                    found=str(value.device),
                    expected=str(leaf.device),
                    hint=f"move it: .to({str(leaf.device)!r})",
                )
            if item.batched:
                first = first or (item, value)
                if value.shape[0] != first[1].shape[0]:
                    raise GraphError(
                        f"has another batch size than input {first[0].label}",
                        where=f"input {item.label}",
                        found=value.shape[0],
                        expected=first[1].shape[0],
                    )

    def _leaf(self, module: nn.Module) -> torch.Tensor | None:
        """A tensor that is where the module is; None if it has been replaced."""
        if self.own is None:
            return None
        for part in self.own[0].split(".") if self.own[0] else ():
            inside = module._modules.get(part)
            if inside is None:
                return None
            module = inside
        found = module._parameters.get(self.own[1])
        return found if found is not None else module._buffers.get(self.own[1])

    def _refuse(self, item: TensorInput, value: Any, leaf: torch.Tensor | None) -> None:
        """Raise for a value that does not fit; a module in another dtype takes inputs in that."""
        dtype, where = item.dtype, f"input {item.label}"
        if leaf is not None and self.own is not None and dtype is self.own[2]:
            dtype = leaf.dtype
        expected = TensorType(item.type.shape, _name(dtype))
        if not isinstance(value, torch.Tensor):
            raise GraphError(
                "is not a tensor",
                where=where,
                found=type(value).__name__,
                expected=str(expected),
                hint="make it one: torch.as_tensor",
            )
        shape = tuple(value.shape)
        others = [dim for dim, size in item.sizes if dim < len(shape) and shape[dim] != size]
        if value.dtype is dtype and len(shape) == item.rank and not others:
            if item.holds(shape):
                return
            ends = [f"{item.low} or more"] if item.low else []
            ends += [f"{item.high} or less"] if item.high is not None else []
            raise GraphError(
                "the graph does not hold for this batch size: the model computes something else "
                "for it",
                where=where,
                found=shape[0],
                expected=" and ".join(ends),
                hint="split the batch, or trace the model on an example of this size",
            )
        if len(shape) == item.rank - 1 and item.batched:
            hint = "an axis for the batch seems to be missing: x[None]"
        elif len(shape) != item.rank or others:
            hint = "give it this size, or trace the model on an example of the other size"
            if others == [0]:
                hint += "; the notes of ag.trace say why the size of the batch is fixed"
        else:
            hint = f"convert it: .to(torch.{_name(dtype)})"
        raise GraphError(
            "is not of the type that the graph was traced with",
            where=where,
            found=f"{_name(value.dtype)}[{', '.join(map(str, shape))}]",
            expected=str(expected),
            hint=hint,
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def checked(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The forward of a network, which compares its inputs with the graph's first."""

    @functools.wraps(forward)
    def compared(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._inputs.check(self, args, kwargs)
        return forward(self, *args, **kwargs)

    return compared


def _tensors(value: Value, steps: _Steps) -> list[tuple[_Steps, str]]:
    """The tensors inside of an argument, each with the way to it."""
    match value:
        case Ref(name):
            return [(steps, name)]
        case tuple():
            return [t for i, v in enumerate(value) for t in _tensors(v, (*steps, i))]
        case Record():
            return [t for k, v in value.fields for t in _tensors(v, (*steps, k))]
        case _:
            return []


def _inside(value: Any, step: int | str) -> Any:
    if isinstance(step, str) and not isinstance(value, Mapping):
        return getattr(value, step)
    return value[step]
