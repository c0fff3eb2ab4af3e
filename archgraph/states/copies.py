"""Asynchronous copies to a device: neither the device nor the caller waits for them."""

from __future__ import annotations

import torch
from torch import Tensor

from archgraph.states.state import State

#: Types of devices that can copy asynchronously.
ASYNCHRONOUS = {"cuda"}
# A GPU's own tensors start at multiples of this many bytes; the bits of a product may depend on it.
_ALIGNED = 512


def to_device(value: Tensor, device: torch.device | str) -> Tensor:
    """Copy a tensor to a device. Copies to a GPU are asynchronous, from page-locked memory.

    >>> to_device(torch.ones(2), "cpu")
    tensor([1., 1.])
    """
    where = torch.device(device)
    if not value.is_cpu or where.type not in ASYNCHRONOUS:
        return value.to(where)
    # PyTorch reuses this memory once the device has read it.
    pinned = torch.empty_like(value, pin_memory=where.type == "cuda").copy_(value)
    return pinned.to(where, non_blocking=True)


def state_to_device(
    state: State, device: torch.device | str, *, copy: bool = False
) -> dict[str, Tensor]:
    """Return a state on a device; tensors in CPU memory are copied as one buffer.

    The new tensors share this buffer, with the same alignment as separate tensors. The buffer is
    freed with the last of these tensors.

    Args:
        state: The state, on any devices.
        device: The target device.
        copy: If True, also copy tensors that are already on the device.

    Example:
        >>> state_to_device({"w": torch.ones(2)}, "cpu")
        {'w': tensor([1., 1.])}
    """
    where = torch.device(device)
    if where.type not in ASYNCHRONOUS:
        return {name: value.to(where, copy=copy) for name, value in state.items()}
    there = {n: value.to(where, copy=copy) for n, value in state.items() if not value.is_cpu}
    starts, size = {}, 0
    for name, value in state.items():
        if name not in there:
            starts[name] = size
            size += -(-value.nbytes // _ALIGNED) * _ALIGNED

    def part(buffer: Tensor, name: str) -> Tensor:
        value, start = state[name], starts[name]
        return buffer[start : start + value.nbytes].view(value.dtype).view(value.shape)

    if starts:
        staged = torch.empty(size, dtype=torch.uint8, pin_memory=where.type == "cuda")
        for name in starts:
            part(staged, name).copy_(state[name])
        buffer = staged.to(where, non_blocking=True)
        there |= {name: part(buffer, name) for name in starts}
    return {name: there[name] for name in state}


def server_copies(state: State) -> dict[str, Tensor]:
    """Copy a state from any device into contiguous memory of its own on the CPU."""
    if not state:
        return {}
    with torch.inference_mode(False):  # whatever mode the calling strategy is in
        contiguous = torch.contiguous_format
        copies = {
            # From a GPU into page-locked memory, which PyTorch reuses. Do not copy a second time
            # here: that would read this memory before the GPU has written to it.
            name: tensor.to("cpu", non_blocking=tensor.is_cuda, copy=True, memory_format=contiguous)
            for name, tensor in state.items()
        }
        for device in {tensor.device for tensor in state.values() if tensor.is_cuda}:
            torch.cuda.synchronize(device)
        return copies
