"""Draw initial weights for a graph."""

from __future__ import annotations

import torch
from torch import Tensor

from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph, Param
from archgraph.ops.constants import constant_tensor
from archgraph.ops.schema import torch_dtype
from archgraph.ops.starts import Initialiser
from archgraph.ops.table import initialiser


@takes_graph
def initial_state(graph: ArchGraph, seed: int = 0) -> dict[str, Tensor]:
    """Draw initial weights for a graph, and return them as a dict from name to tensor.

    Each parameter is initialised as in the ``torch.nn`` layer of the operator that uses it.

    Args:
        graph: The architecture.
        seed: Seed of the random numbers. Equal seeds give equal weights.
    """
    generator = torch.Generator().manual_seed(seed)
    return {
        p.name: _initial(p, initialiser(graph, p), generator)
        for p in graph.params
        if p.role != "constant"
    }


def _initial(param: Param, how: Initialiser | None, generator: torch.Generator) -> Tensor:
    if param.value is not None:
        return constant_tensor(param.value)
    dtype = torch_dtype(param.dtype)
    if how is None or not (dtype.is_floating_point or dtype.is_complex):
        return torch.zeros(param.shape, dtype=dtype)
    tensor = torch.empty(param.shape, dtype=dtype)
    match how.kind:
        case "zeros":
            return tensor.zero_()
        case "ones":
            return tensor.fill_(how.scale)
        case "uniform":  # real and imaginary parts separately
            numbers = torch.view_as_real(tensor) if dtype.is_complex else tensor
            numbers.uniform_(-how.scale, how.scale, generator=generator)
            return tensor
        case "normal":
            return tensor.normal_(0.0, how.scale, generator=generator)
