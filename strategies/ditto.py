"""Ditto: each client also trains a personal model, which is pulled towards the global model.

Li, Hu, Beirami, Smith: *Ditto: Fair and Robust Federated Learning Through Personalization*, ICML
2021, Algorithm 1.

==============  ==================================================================
symbol          here
==============  ==================================================================
``w^t``         group ``global`` of the server state: FedAvg's
``v_k``         kept by the client under ``version/NAME``; at first what it was sent
``λ``           ``pull``
Eq. (2)         ``min_v F_k(v) + λ/2 ‖v - w^t‖²``, ``fl.Towards``
==============  ==================================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

import archgraph as ag
from archgraph import federation as fl


@dataclass(frozen=True)
class Ditto(fl.PartAveraging):
    """Options of Ditto.

    Attributes:
        pull: λ: strength with which a client's personal model is pulled towards the global model;
            0: no pull.
        own_epochs: Passes over the data for a client's personal model. Default: ``local.epochs``.

    Example:
        >>> Ditto(pull=0.1).own_epochs is None
        True
    """

    paper = "Ditto"
    year = 2021

    pull: float = fl.option(1.0, least=0)
    own_epochs: int | None = fl.option(None, least=1)

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send ``w^t``."""
        task = super().send(world, state, client, round)
        train = fl.Train(fl.TaskLoss(self.mask_absent), epochs=self.own_epochs)
        return replace(task, program=Both(task.program, train, self.pull))

    def evaluated(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Evaluated]:
        """Evaluate the global model, and each client's personal model."""
        for model in super().evaluated(world, state):
            yield replace(model, private=bool(model.clients))


@dataclass(frozen=True)
class Both:
    """Train the model that was sent, then the personal model, which the client keeps.

    Attributes:
        shared: Trains ``w``.
        personal: Trains ``v``, without the pull.
        pull: λ.
    """

    shared: fl.Program
    personal: fl.Train
    pull: float

    def __call__(self, work: fl.Work) -> fl.Outcome:
        """Return ``w``; both see the same minibatches in the same order."""
        draw = torch.Generator().set_state(work.generator.get_state())
        dropout = torch.get_rng_state()
        outcome = self.shared(work)
        torch.set_rng_state(dropout)
        v = {name: work.keep.get(fl.VERSION + name, value) for name, value in work.state.items()}
        penalty = fl.Towards(self.pull, work.state) if self.pull else None
        alone = replace(work, state=v, generator=draw)
        version = replace(self.personal, penalty=penalty)(alone)
        frozen = ag.frozen(work.graph)
        metrics = {k: outcome.metrics[k] + version.metrics[k] for k in ("steps", "seen")}
        return replace(
            outcome,
            keep={fl.VERSION + k: v for k, v in version.state.items() if k not in frozen},
            metrics={**outcome.metrics, **metrics, "own_loss": version.metrics["loss"]},
        )
