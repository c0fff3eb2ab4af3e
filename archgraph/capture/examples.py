"""Example inputs: their tensors, their batch, their dynamic axes, and where they lie."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

ExampleInputs: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]  # positional and named


def example_tensors(inputs: Any) -> list[torch.Tensor]:
    """Return all tensors among some inputs, in order."""
    return [t for t in pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)]


def leading(inputs: Any) -> bool:
    """Return whether a tensor has a leading axis of size one."""
    return any(t.dim() and t.shape[0] == 1 for t in example_tensors(inputs))


def grow(inputs: Any) -> Any:
    """Repeat examples of batch size one: export would take a size of one for a constant."""
    batch = next((t.shape[0] for t in example_tensors(inputs) if t.dim()), None)

    def grow(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if x.dim() and x.shape[0] == batch == 1:
            return x.detach().expand(2, *x.shape[1:]).contiguous()
        return x.detach().clone()  # one tensor given twice is still two inputs

    return pytree.tree_map(grow, inputs)


def at_batch(inputs: Any, batched: Sequence[bool], size: int) -> Any:
    """Return the inputs at another batch size; ``batched`` says which tensors have it.

    Their values do not count.
    """
    which = iter(batched)

    def resized(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and next(which):
            return x.new_empty((size, *x.shape[1:]))
        return x

    return pytree.tree_map(resized, inputs)


def redrawn(inputs: Any) -> Any:
    """Redraw floating-point numbers of the same kind; ids, masks and indices stay.

    A mask has at most two values, or values that are not finite. Whole numbers move along the
    batch, so that those of a column stay among its own.
    """
    generator = torch.Generator().manual_seed(1)

    def redraw(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not x.is_floating_point() or not x.numel():
            return x
        values = x.detach().double().cpu()
        low, high = float(values.min()), float(values.max())
        different = low != high
        mask = different and bool((values.eq(low) | values.eq(high)).all())
        if mask or not values.isfinite().all():
            return x
        if different and torch.equal(values, values.round()):
            return x.detach().roll(1, 0)
        if low >= 0 and high > 0:
            drawn = torch.rand(values.shape, generator=generator, dtype=values.dtype) * high
        else:
            drawn = torch.randn(values.shape, generator=generator, dtype=values.dtype)
            drawn.flatten()[::8] *= 30  # outliers show what clips
            if different:
                drawn = drawn * values.std() + values.mean()
        return drawn.to(x.device, x.dtype)

    return pytree.tree_map(redraw, inputs)


def shapes(model: torch.nn.Module, inputs: ExampleInputs, dim: Any) -> dict[str, Any]:
    """Return the argument that export expects: each tensor replaced by its dynamic axes."""
    signature = inspect.signature(model.forward)
    bound = signature.bind(*inputs[0], **inputs[1])
    counter = iter(range(1 << 30))

    def dims(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            index = next(counter)
            if dim is None or not x.dim():
                return None
            return dim(index) if inspect.isfunction(dim) else {0: dim}
        if isinstance(x, Mapping):
            return {k: dims(v) for k, v in x.items()}
        if type(x) not in pytree.SUPPORTED_NODES and not pytree.is_namedtuple(x):
            return None
        children = [dims(v) for v in pytree.tree_flatten(x, is_leaf=lambda v: v is not x)[0]]
        if pytree.is_namedtuple(x):
            return type(x)(*children)
        return tuple(children) if isinstance(x, tuple) else children

    shapes: dict[str, Any] = {}
    for key, value in bound.arguments.items():
        if signature.parameters[key].kind is inspect.Parameter.VAR_KEYWORD:
            shapes |= dims(value)
        else:
            shapes[key] = dims(value)
    return shapes


def register_dataclasses(inputs: Any) -> None:
    """Let pytrees look into the dataclasses among some values."""
    for value in pytree.tree_leaves(inputs):
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            if type(value) not in pytree.SUPPORTED_NODES:
                torch.export.register_dataclass(type(value))
                register_dataclasses(value)


@contextlib.contextmanager
def buffers_on_meta(model: torch.nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Move buffers to the meta device for a while, if a parameter is there.

    All of a model is on one device then. Gives the values of those buffers that have some.
    """
    values: dict[str, torch.Tensor] = {}
    if not any(parameter.is_meta for parameter in model.parameters()):
        yield values
        return
    before = [(module._buffers, dict(module._buffers)) for module in model.modules()]
    for path, module in model.named_modules(remove_duplicate=False):
        for key, buffer in module._buffers.items():
            if buffer is not None and not buffer.is_meta:
                values[f"{path}.{key}" if path else key] = buffer
    moved = {id(buffer): buffer.to("meta") for buffer in values.values()}
    try:
        for table, buffers in before:
            table.update({key: moved.get(id(b), b) for key, b in buffers.items()})
        yield values
    finally:
        for table, buffers in before:
            table.update(buffers)


def on_device_of(model: torch.nn.Module, inputs: Any) -> Any:
    """Move example inputs to the model's device, if the model is on a single one."""
    devices = {t.device for t in (*model.parameters(), *model.buffers())}
    if len(devices) != 1:
        return inputs
    (device,) = devices

    def move(x: Any) -> Any:
        return x.to(device) if isinstance(x, torch.Tensor) and x.device != device else x

    return pytree.tree_map(move, inputs)
