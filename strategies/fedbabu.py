"""FedBABU: all clients share a random head that is not trained; models are tuned before tests.

Oh, Kim, Yun: *FedBABU: Toward Enhanced Representation for Federated Image Classification*, ICLR
2022, Algorithm 1. Clients train only the body; the head keeps its initial random weights. Before a
test on a client's data, the head, the body or the whole model is tuned on the client's training
data.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from archgraph import federation as fl


@dataclass(frozen=True)
class FedBABU(fl.PartAveraging):
    """Options of FedBABU.

    Attributes:
        tune: Part of the model that is tuned on a client's training data before the model is tested
            on this client's test data. With ``none``, the model is tested without tuning.
        tune_epochs: Number of epochs of tuning on a client's training data. Every step uses the
            optimiser's learning rate. The experiment's ``schedule`` and ``proximal`` do not apply.

    Example:
        >>> FedBABU(tune="head").tune_epochs
        5
    """

    paper = "FedBABU"
    year = 2022

    tune: Literal["all", "head", "body", "none"] = "all"
    tune_epochs: int = fl.option(5, least=1)

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send the body. The head is sent only in the client's first round."""
        task = super().send(world, state, client, round)
        head = fl.classifier(task.graph, world.classes)
        body = fl.TrainOnly(task.program, head, others=True)
        return replace(task, program=body, private=task.private | head)

    def evaluated(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Evaluated]:
        """Evaluate the global model without tuning, and each tier's model after tuning."""
        train = fl.Train(fl.TaskLoss(self.mask_absent), epochs=self.tune_epochs)
        for model in super().evaluated(world, state):
            if not model.clients or self.tune == "none":
                yield model
                continue
            head = fl.classifier(model.graph, world.classes)
            part = fl.TrainOnly(train, head, others=self.tune == "body")
            yield replace(model, program=train if self.tune == "all" else part)
