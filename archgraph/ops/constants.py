"""Tensors as values of a graph, and back."""

from __future__ import annotations

import torch

from archgraph.errors import GraphError
from archgraph.graph.ir import Constant
from archgraph.limits import LIMITS
from archgraph.ops.schema import torch_dtype


def constant(tensor: torch.Tensor) -> Constant:
    """Return a tensor as a value of a graph, with every bit.

    Raises:
        GraphError: If it is larger than a graph may hold.

    >>> constant_tensor(constant(torch.tensor([1.0, 2.0])))
    tensor([1., 2.])
    """
    size = tensor.numel() * tensor.element_size()
    if size > LIMITS.constant_bytes:
        message = "constant is too large for a graph: make it a buffer of the state"
        raise GraphError(
            message, found=f"{size} bytes", expected=f"at most {LIMITS.constant_bytes}"
        )
    # A copy, since one element may stand in any stride and still count as contiguous.
    tensor = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    raw = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if size else b""
    return Constant(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), raw)


def constant_tensor(value: Constant) -> torch.Tensor:
    """Return a constant as a fresh tensor."""
    dtype = torch_dtype(value.dtype)
    if not value.data:
        return torch.empty(value.shape, dtype=dtype)
    return torch.frombuffer(bytearray(value.data), dtype=dtype).reshape(value.shape)
