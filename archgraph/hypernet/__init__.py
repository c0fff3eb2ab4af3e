"""Weights for any architecture from one graph network at the server (RecipFL).

The extra ``hypernet`` brings PyTorch Geometric, which takes seconds to import: nothing else of
archgraph imports this package.
"""

from archgraph.hypernet.decoders import Decoder, LowRank, Tiled
from archgraph.hypernet.encoder import ParameterEncoder, bin_means
from archgraph.hypernet.gnn import GatedGNN
from archgraph.hypernet.graphs import (
    DecoderSlot,
    GeneratedTensor,
    Vocabulary,
    entries,
    local,
    sweeps,
    to_batch,
    to_data,
)
from archgraph.hypernet.network import GraphHypernetwork
from archgraph.hypernet.report import beyond_tiles, block_mean
from archgraph.hypernet.server import follow_gradients, on_disk, optimiser_state, with_state

__all__ = [
    "Decoder",
    "DecoderSlot",
    "GatedGNN",
    "GeneratedTensor",
    "GraphHypernetwork",
    "LowRank",
    "ParameterEncoder",
    "Tiled",
    "Vocabulary",
    "beyond_tiles",
    "bin_means",
    "block_mean",
    "entries",
    "follow_gradients",
    "local",
    "on_disk",
    "optimiser_state",
    "sweeps",
    "to_batch",
    "to_data",
    "with_state",
]
