"""FedPer: the classifier stays with its client, all other layers are averaged.

Arivazhagan, Aggarwal, Singh, Choudhary: *Federated Learning with Personalization Layers*, 2019,
Algorithm 1. Base layers ``W_B`` are the global model's, personal layers ``W_P`` the classifier: the
parameters with a row per class. More personal layers: ``private: [layer4.*]``.
"""

from __future__ import annotations

from dataclasses import dataclass

import archgraph as ag
from archgraph import federation as fl


@dataclass(frozen=True)
class FedPer(fl.PartAveraging):
    """Options of FedPer.

    Example:
        >>> FedPer(private=("layer4.*",)).weights
        'examples'
    """

    paper = "Federated Learning with Personalization Layers"
    year = 2019

    def private_entries(self, world: fl.World, graph: ag.ArchGraph) -> frozenset[str]:
        """Return the classifier's entries, and those of ``private``."""
        return fl.classifier(graph, world.classes) | super().private_entries(world, graph)
