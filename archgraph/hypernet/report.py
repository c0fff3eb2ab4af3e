"""What a hypernetwork's decoders cannot express."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from archgraph.graph.ir import ArchGraph
from archgraph.hypernet.decoders import Tiled, stretch
from archgraph.hypernet.network import GraphHypernetwork

if TYPE_CHECKING:
    from archgraph.states import State


def beyond_tiles(network: GraphHypernetwork, graph: ArchGraph, state: State) -> dict[str, float]:
    """Return for each tensor with a tiled decoder the part of it that no tile can express.

    Args:
        network: A hypernetwork that generates for the graph.
        graph: The architecture.
        state: Weights of it.

    Returns:
        By name ‖θ − tile(block mean)‖ / ‖θ‖, from 0 (θ is a tile, repeated and cropped, as any
        tensor is that is no larger than the tile) to 1. Low-rank tensors are left out. That a form
        bounds a tile's numbers (scales to 0 … 2) is not counted.

    Raises:
        GraphError: If a tensor has no decoder, or the state does not fit.

    Example:
        >>> from archgraph.capture.trace import trace
        >>> graph, state = trace(torch.nn.Linear(4, 2, bias=False), torch.zeros(1, 4))
        >>> network = GraphHypernetwork.for_graphs([graph], tile=2)
        >>> theta = torch.tensor([[1.0, 2, 1, 2], [3, 4, 3, 4]])
        >>> beyond_tiles(network, graph, {"weight": theta})
        {'weight': 0.0}
        >>> round(beyond_tiles(network, graph, {"weight": theta + torch.eye(2, 4)})["weight"], 4)
        0.1179
    """
    network.check([graph], [state])
    beyond = {}
    for entry in network.entries(graph):
        decode = network.decoders[network.slots[entry.slot]]
        if not isinstance(decode, Tiled):
            continue
        exact = state[entry.name].detach().double()
        left = exact - stretch(block_mean(exact, decode.part(entry.shape)), entry.shape)
        size = float(torch.linalg.vector_norm(exact))
        beyond[entry.name] = float(torch.linalg.vector_norm(left)) / size if size else 0.0
    return beyond


def block_mean(tensor: Tensor, tile: tuple[int, ...]) -> Tensor:
    """Return the tile nearest to a tensor: each number is the mean over its repetitions.

    Args:
        tensor: A tensor at least as long as the tile in every dimension.
        tile: Shape of the tile.

    Example:
        >>> block_mean(torch.tensor([1.0, 2, 3, 4, 8]), (2,)).tolist()
        [4.0, 3.0]
    """
    for dim, size in enumerate(tile):
        position = torch.arange(tensor.shape[dim], device=tensor.device) % max(size, 1)
        count = torch.bincount(position, minlength=size).to(tensor)
        shape = [*tensor.shape[:dim], size, *tensor.shape[dim + 1 :]]
        total = tensor.new_zeros(shape).index_add(dim, position, tensor)
        tensor = total / count.view(-1, *[1] * (total.dim() - dim - 1))
    return tensor
