"""Example inputs: their tensors, their batch, their dynamic axes, and where they lie."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

ExampleInputs: TypeAlias = tuple[tuple[object, ...], dict[str, object]]  # positional and named
T = TypeVar("T")


def example_tensors(inputs: object) -> list[Tensor]:
    """Return all tensors among some inputs, in order."""
    return [t for t in pytree.tree_leaves(inputs) if isinstance(t, Tensor)]


def leading(inputs: object) -> bool:
    """Return whether a tensor has a leading axis of size one."""
    return any(t.dim() and t.shape[0] == 1 for t in example_tensors(inputs))


def grow(inputs: T) -> T:
    """Repeat examples of batch size one: export would take a size of one for a constant."""
    batch = next((t.shape[0] for t in example_tensors(inputs) if t.dim()), None)

    def grow(x: Tensor) -> Tensor:
        if x.dim() and x.shape[0] == batch == 1:
            return x.detach().expand(2, *x.shape[1:]).contiguous()
        return x.detach().clone()  # one tensor given twice is still two inputs

    return pytree.tree_map_only(Tensor, grow, inputs)


def at_batch(inputs: T, batched: Sequence[bool], size: int) -> T:
    """Return the inputs at another batch size; ``batched`` says which tensors have it.

    Their values do not count.
    """
    which = iter(batched)

    def resized(x: Tensor) -> Tensor:
        return x.new_empty((size, *x.shape[1:])) if next(which) else x

    return pytree.tree_map_only(Tensor, resized, inputs)


def redrawn(inputs: T) -> T:
    """Redraw floating-point numbers of the same kind; ids, masks and indices stay.

    A mask has at most two values, or values that are not finite. Whole numbers move along the
    batch, so that those of a column stay among its own.
    """
    generator = torch.Generator().manual_seed(1)

    def redraw(x: Tensor) -> Tensor:
        if not x.is_floating_point() or not x.numel():
            return x
        values = x.detach().double().cpu()
        low, high = float(values.min()), float(values.max())
        different = low != high
        mask = different and bool((values.eq(low) | values.eq(high)).all())
        if mask or not values.isfinite().all():
            return x
        if different and torch.equal(values, values.round()):
            return x.detach().roll(1, 0)
        if low >= 0 and high > 0:  # non-negative values stay in [0, high)
            drawn = torch.rand(values.shape, generator=generator, dtype=values.dtype) * high
        else:
            drawn = torch.randn(values.shape, generator=generator, dtype=values.dtype)
            drawn.flatten()[::8] *= 30  # outliers show what clips
            if different:
                drawn = drawn * values.std() + values.mean()
        return drawn.to(x.device, x.dtype)

    return pytree.tree_map_only(Tensor, redraw, inputs)


def shapes(inputs: ExampleInputs, dims: Sequence[object]) -> torch.export.ShapesCollection:
    """Return the dynamic axes of tensors; ``dims`` are the first ones, None for a fixed one."""
    collection = torch.export.ShapesCollection()
    for tensor, dim in zip(example_tensors(inputs), dims, strict=True):
        if dim is not None and tensor.dim():
            collection[tensor] = {0: dim}
    return collection


def register_dataclasses(inputs: object) -> None:
    """Let pytrees look into the dataclasses among some values."""
    for value in pytree.tree_leaves(inputs):
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            if type(value) not in pytree.SUPPORTED_NODES:  # unless an earlier leaf registered it
                torch.export.register_dataclass(type(value))
                register_dataclasses(value)


@contextlib.contextmanager
def buffers_on_meta(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Move buffers to the meta device for a while, if a parameter is there.

    All of a model is on one device then. Gives the values of those buffers that have some.
    """
    values: dict[str, Tensor] = {}
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


def on_device_of(model: nn.Module, inputs: T) -> T:
    """Move example inputs to the model's device, if the model is on a single one."""
    devices = {t.device for t in (*model.parameters(), *model.buffers())}
    if len(devices) != 1:
        return inputs
    (device,) = devices
    return pytree.tree_map_only(Tensor, lambda x: x.to(device), inputs)
