"""FedPer: each client keeps its own classifier; all other layers are averaged.

Arivazhagan, Aggarwal, Singh, Choudhary: *Federated Learning with Personalization Layers*, 2019,
Algorithm 1. The personal layers ``W_P`` are the classifier, that is, the parameters with a row per
class. All other layers are the base layers ``W_B``, which the server averages. The option
``private: [layer4.*]`` makes further layers personal.
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
        """Return the names of the head's parameters, and the names that ``private`` selects."""
        return fl.classifier(graph, world.classes) | super().private_entries(world, graph)
