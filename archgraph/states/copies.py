"""Copies to a device for which nothing waits: neither the device nor who asks for them."""

from __future__ import annotations

import torch
from torch import Tensor

from archgraph.states.state import State

#: Kinds of devices that take copies while they and the processor compute.
ASYNCHRONOUS = {"cuda"}
# Bytes at whose multiples a GPU's own tensors begin: the bits of a product may depend on it.
_ALIGNED = 512


def to_device(value: Tensor, device: torch.device | str) -> Tensor:
    """Return a tensor on a device; a GPU copies it from page-locked memory when it comes to it.

    >>> to_device(torch.ones(2), "cpu")
    tensor([1., 1.])
    """
    where = torch.device(device)
    if not value.is_cpu or where.type not in ASYNCHRONOUS:
        return value.to(where)
    # PyTorch uses this memory again once the device has read it.
    staged = torch.empty_like(value, pin_memory=where.type == "cuda")
    return staged.copy_(value).to(where, non_blocking=True)


def state_copy(state: State, device: torch.device | str) -> dict[str, Tensor]:
    """Copy a state to a device, its entries in the processor's memory as one buffer.

    Each entry begins where a tensor of its own might. They share the buffer's memory, which stays
    as long as one of them.

    Example:
        >>> state_copy({"w": torch.ones(2)}, "cpu")
        {'w': tensor([1., 1.])}
    """
    where = torch.device(device)
    if where.type not in ASYNCHRONOUS:
        return {name: value.to(where, copy=True) for name, value in state.items()}
    starts, size = {}, 0
    for name, value in state.items():
        if value.is_cpu:
            starts[name] = size
            size += -(-value.nbytes // _ALIGNED) * _ALIGNED
    staged = torch.empty(size, dtype=torch.uint8, pin_memory=where.type == "cuda")

    def part(buffer: Tensor, name: str) -> Tensor:
        value, start = state[name], starts[name]
        return buffer[start : start + value.nbytes].view(value.dtype).view(value.shape)

    for name in starts:
        part(staged, name).copy_(state[name])
    there = staged.to(where, non_blocking=True)
    return {
        name: part(there, name) if name in starts else value.to(where, copy=True)
        for name, value in state.items()
    }
