"""Conversion between tensors and constants of a graph."""

from __future__ import annotations

import torch

from archgraph.errors import GraphError
from archgraph.graph.ir import Constant
from archgraph.limits import LIMITS
from archgraph.ops.schema import torch_dtype


def constant(tensor: torch.Tensor) -> Constant:
    """Convert a tensor to a constant of a graph, bit for bit.

    Raises:
        GraphError: If the tensor is larger than a graph may store.

    >>> constant_tensor(constant(torch.tensor([1.0, 2.0])))
    tensor([1., 2.])
    """
    size = tensor.numel() * tensor.element_size()
    if size > LIMITS.constant_bytes:
        message = "constant is too large for a graph: register it as a buffer"
        raise GraphError(
            message, found=f"{size} bytes", expected=f"at most {LIMITS.constant_bytes}"
        )
    # Clone first: a tensor of one element counts as contiguous whatever its strides.
    tensor = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    raw = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if size else b""
    return Constant(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), raw)


def constant_tensor(value: Constant) -> torch.Tensor:
    """Convert a constant to a new tensor."""
    dtype = torch_dtype(value.dtype)
    if not value.data:
        return torch.empty(value.shape, dtype=dtype)
    return torch.frombuffer(bytearray(value.data), dtype=dtype).reshape(value.shape)
