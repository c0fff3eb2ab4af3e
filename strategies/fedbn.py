"""FedBN: each client keeps its own norm layers; all other layers are averaged.

Li, Jiang, Zhang, Kamp, Dou: *FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization*, ICLR 2021, Algorithm 1. Norm layers of every kind are private, including their
scales, shifts and running statistics.
"""

from __future__ import annotations

from dataclasses import dataclass

import archgraph as ag
from archgraph import federation as fl


@dataclass(frozen=True)
class FedBN(fl.PartAveraging):
    """Options of FedBN.

    Example:
        >>> FedBN().norm
        'averaged'
    """

    paper = "FedBN"
    year = 2021

    def private_entries(self, world: fl.World, graph: ag.ArchGraph) -> frozenset[str]:
        """Return the names of norm layers' tensors, and the names that ``private`` selects."""
        norms = fl.NormPolicy("per_submodel").unmerged(graph)
        return norms | super().private_entries(world, graph)
