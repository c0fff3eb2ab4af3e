"""Ditto: each client also trains a personal model, which is pulled towards the global model.

Li, Hu, Beirami, Smith: *Ditto: Fair and Robust Federated Learning Through Personalization*, ICML
2021, Algorithm 1.

==============  ======================================================================
symbol          here
==============  ======================================================================
``w^t``         group ``global`` of the server state, as in FedAvg
``v_k``         stored by the client as ``version/NAME``; initially the first ``w`` it receives
``λ``           ``pull``
Eq. (2)         ``min_v F_k(v) + λ/2 ‖v - w^t‖²``, ``fl.Towards``
==============  ======================================================================
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
        pull: λ, the weight of the penalty that pulls a client's personal model towards the global
            model. With 0, there is no penalty.

    Example:
        >>> Ditto(pull=0.1).weights
        'examples'
    """

    paper = "Ditto"
    year = 2021

    pull: float = fl.option(1.0, least=0)

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send the global model ``w^t``."""
        task = super().send(world, state, client, round)
        return replace(task, program=Both(fl.Train(fl.TaskLoss(self.mask_absent)), self.pull))

    def evaluated(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Evaluated]:
        """Evaluate the global model, and each client's personal model."""
        for model in super().evaluated(world, state):
            yield replace(model, private=bool(model.clients))


@dataclass(frozen=True)
class Both:
    """Train the model that was sent, then the personal model, which the client keeps.

    Attributes:
        train: Program that trains ``w`` and, with the penalty added, ``v``.
        pull: λ.
    """

    train: fl.Train
    pull: float

    def __call__(self, work: fl.Work) -> fl.Outcome:
        """Train ``w``, then ``v`` on the same minibatches in the same order; return ``w``."""
        draw = torch.Generator().set_state(work.generator.get_state())
        dropout = torch.get_rng_state()
        outcome = self.train(work)
        torch.set_rng_state(dropout)
        v = {name: work.keep.get(fl.VERSION + name, value) for name, value in work.state.items()}
        penalty = fl.Towards(self.pull, work.state) if self.pull else None
        alone = replace(work, state=v, generator=draw)
        version = replace(self.train, penalty=penalty)(alone)
        frozen = ag.frozen(work.graph)
        metrics = {k: outcome.metrics[k] + version.metrics[k] for k in ("steps", "seen")}
        return replace(
            outcome,
            keep={fl.VERSION + k: v for k, v in version.state.items() if k not in frozen},
            metrics={**outcome.metrics, **metrics, "own_loss": version.metrics["loss"]},
        )
