"""Weights for any architecture from one graph network at the server (RecipFL).

The extra ``hypernet`` brings PyTorch Geometric, which takes seconds to import: nothing else of
archgraph imports this package.
"""

from archgraph.hypernet.decoders import Decoder, LowRank, Tiled
from archgraph.hypernet.encoder import ParameterEncoder, summary
from archgraph.hypernet.gnn import GatedGNN
from archgraph.hypernet.graphs import (
    Entry,
    Slot,
    Vocabulary,
    entries,
    local,
    sweeps,
    to_batch,
    to_data,
)
from archgraph.hypernet.network import GraphHypernetwork
from archgraph.hypernet.server import update

__all__ = [
    "Decoder",
    "Entry",
    "GatedGNN",
    "GraphHypernetwork",
    "LowRank",
    "ParameterEncoder",
    "Slot",
    "Tiled",
    "Vocabulary",
    "entries",
    "local",
    "summary",
    "sweeps",
    "to_batch",
    "to_data",
    "update",
]
