"""Weights for any architecture from one graph network at the server (RecipFL).

The extra ``hypernet`` brings PyTorch Geometric, which takes seconds to import: nothing else of
archgraph imports this package.
"""

from archgraph.hypernet.decoders import Decoder, LowRank, Tiled
from archgraph.hypernet.encoder import ParameterEncoder, summary
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
from archgraph.hypernet.server import on_disk, optimiser_state, step, with_state

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
    "block_mean",
    "entries",
    "local",
    "on_disk",
    "optimiser_state",
    "step",
    "summary",
    "sweeps",
    "to_batch",
    "to_data",
    "with_state",
]
