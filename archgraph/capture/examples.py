"""Functions for example inputs: their tensors, batch, open axes and device."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from archgraph.graph.values import BATCH_WORD

ExampleInputs: TypeAlias = tuple[tuple[object, ...], dict[str, object]]  # positional and named
OpenAxes: TypeAlias = Sequence[Mapping[int, str]]  # names of open axes, for each tensor
NONE_OPEN: Mapping[str, Mapping[int, str]] = MappingProxyType({})  # as stated by input name
T = TypeVar("T")


def example_tensors(inputs: object) -> list[Tensor]:
    """Return all tensors in some inputs, in order."""
    return [t for t in pytree.tree_leaves(inputs) if isinstance(t, Tensor)]


def all_axes(inputs: object, stated: OpenAxes) -> OpenAxes:
    """Add the batch dimension to the open dimensions; by default, it is dimension 0."""
    tensors = example_tensors(inputs)
    axes: list[dict[int, str]] = []
    for index, tensor in enumerate(tensors):
        mine = dict(stated[index]) if stated else {}
        if tensor.dim() and BATCH_WORD not in mine.values():
            mine.setdefault(0, BATCH_WORD)
        axes.append(mine)
    return axes


def axis_of(axes: Mapping[int, str], name: str = BATCH_WORD) -> int | None:
    """Return the index of the first axis with a given name; None if no axis has the name."""
    return next((axis for axis, other in axes.items() if other == name), None)


def size_values(inputs: object, axes: OpenAxes) -> dict[str, int]:
    """Return a dict from each open (dynamic) size to its value in some inputs."""
    pairs = zip(example_tensors(inputs), axes, strict=True)
    return {name: int(x.shape[axis]) for x, mine in pairs for axis, name in mine.items()}


def leading(inputs: object, axes: OpenAxes) -> bool:
    """Return whether a tensor has a batch of one."""
    pairs = zip(example_tensors(inputs), map(axis_of, axes), strict=True)
    return any(axis is not None and tensor.shape[axis] == 1 for tensor, axis in pairs)


def grow(inputs: T, axes: OpenAxes) -> T:
    """Repeat a batch of one, since export would treat a size of one as a constant."""
    at = iter(map(axis_of, axes))
    pairs = zip(example_tensors(inputs), map(axis_of, axes), strict=True)
    batch = next((t.shape[axis] for t, axis in pairs if axis is not None), None)

    def grown(x: Tensor) -> Tensor:
        axis = next(at)
        if axis is not None and x.shape[axis] == batch == 1:
            return torch.cat([x.detach()] * 2, axis)
        return x.detach().clone()  # a tensor that is passed twice is still two inputs

    return pytree.tree_map_only(Tensor, grown, inputs)


def at_size(inputs: T, axes: OpenAxes, name: str, size: int, *, numbers: bool = True) -> T:
    """Return the inputs with another value of an open (dynamic) size.

    Examples are repeated or dropped to reach the size. With ``numbers=False``, the tensors are not
    initialised. This is enough for an export, which does not read their values, and saves time for
    batches of millions of examples.
    """
    which = iter(axes)

    def one(x: Tensor) -> Tensor:
        for axis in (axis for axis, other in next(which).items() if other == name):
            if numbers:
                index = torch.arange(size, device=x.device) % max(x.shape[axis], 1)
                x = x.index_select(axis, index)
            else:
                x = x.new_empty(
                    (*x.shape[:axis], size, *x.shape[axis + 1 :]), requires_grad=x.requires_grad
                )
        return x

    return pytree.tree_map_only(Tensor, one, inputs)


def redrawn(inputs: T) -> T:
    """Replace floating-point numbers by similar random numbers; keep integers and masks.

    A floating-point tensor with exactly two different values, or with values that are not finite,
    is a mask. A floating-point tensor of whole numbers is rolled along the batch instead, so that
    each column keeps its values.
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
        if low >= 0 and high > 0:  # non-negative values remain in [0, high)
            drawn = torch.rand(values.shape, generator=generator, dtype=values.dtype) * high
        else:
            drawn = torch.randn(values.shape, generator=generator, dtype=values.dtype)
            drawn.flatten()[::8] *= 30  # outliers reveal clipping
            if different:
                drawn = drawn * values.std() + values.mean()
        return drawn.to(x.device, x.dtype)

    return pytree.tree_map_only(Tensor, redraw, inputs)


def shapes(
    inputs: ExampleInputs, dims: Sequence[Mapping[int, object]]
) -> torch.export.ShapesCollection:
    """Return the dynamic axes of tensors in the form that ``torch.export`` accepts."""
    collection = torch.export.ShapesCollection()
    for tensor, axes in zip(example_tensors(inputs), dims, strict=True):
        if axes:
            collection[tensor] = dict(axes)
    return collection


def register_dataclasses(inputs: object) -> None:
    """Register the dataclasses in some values as pytrees."""
    for value in pytree.tree_leaves(inputs):
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            if type(value) not in pytree.SUPPORTED_NODES:  # unless an earlier leaf registered it
                torch.export.register_dataclass(type(value))
                register_dataclasses(value)


@contextlib.contextmanager
def buffers_on_meta(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Temporarily move buffers to the meta device if a parameter is on it.

    The complete model is then on one device. Yields the values of buffers that were not on the meta
    device.
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
