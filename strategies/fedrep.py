"""FedRep: clients train a private head with the body frozen, then the body; bodies are averaged.

Collins, Hassani, Mokhtari, Shakkottai: *Exploiting Shared Representations for Personalized
Federated Learning*, ICML 2021, Algorithm 1.

====================  =====================================================
symbol                here
====================  =====================================================
head ``h_i``          the parameters with a row per class: ``fl.classifier``
representation ``φ``  all others: group ``global`` of the server state
``τ_h``               ``head_epochs``: passes, as in the paper's experiments
local steps of ``φ``  the experiment's ``local.epochs``
====================  =====================================================
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import archgraph as ag
from archgraph import federation as fl


@dataclass(frozen=True)
class FedRep(fl.PartAveraging):
    """Options of FedRep.

    Attributes:
        head_epochs: Number of epochs for which a client trains the head in each round. After these
            epochs, the client trains the body. The experiment's settings ``over: round`` and
            ``fraction`` in ``local`` apply separately to the training of the head and to the
            training of the body.

    Example:
        >>> FedRep().head_epochs
        10
    """

    paper = "Exploiting Shared Representations"
    year = 2021

    head_epochs: int = fl.option(10, least=1)

    def private_entries(self, world: fl.World, graph: ag.ArchGraph) -> frozenset[str]:
        """Return the names of the head's parameters, and the names that ``private`` selects."""
        return fl.classifier(graph, world.classes) | super().private_entries(world, graph)

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send the body ``φ^{t-1}``. The client trains its head ``h_i`` first, then the body."""
        task = super().send(world, state, client, round)
        head, loss = fl.classifier(task.graph, world.classes), fl.TaskLoss(self.mask_absent)
        phases = (
            fl.TrainOnly(fl.Train(loss, epochs=self.head_epochs), head),
            fl.TrainOnly(fl.Train(loss), head, others=True),
        )
        return replace(task, program=fl.InTurn(phases))
