"""FedDistill (federated distillation): clients exchange their mean outputs for each label.

Jeong, Oh, Kim, Park, Bennis, Kim: *Communication-Efficient On-Device Machine Learning: Federated
Distillation and Augmentation under Non-IID Private Data*, 2018 (Algorithm 1: FD); Seo, Park, Oh,
Bennis, Kim: *Federated Knowledge Distillation*, 2020.

====================  ========================================================================
symbol                here
====================  ========================================================================
``F(w, x)``           softmax of a network's logits: the paper's logit vector
``F̄_k,l``             group ``answers/k``: client k's mean output for label l in training
``F̂_k,l``             mean of ``F̄_i,l`` over the other clients i ≠ k that have label l
``φ(F, F̂)``, ``γ``    cross-entropy with ``F̂_k,l`` as target, and its weight ``gamma``
====================  ========================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

import archgraph as ag
from archgraph import federation as fl


@dataclass(frozen=True)
class FedDistill(fl.Masking):
    """Options of FedDistill.

    Attributes:
        gamma: γ, the weight of the loss term that compares a client's outputs with those of the
            other clients. With 0, clients train independently.

    Example:
        >>> FedDistill(gamma=0.5).gamma
        0.5
    """

    paper = "Federated Distillation"
    year = 2018
    serves = ("any",)
    needs_global = False
    unlearnable: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("labels", "values", "any"), "it distils probabilities of classes"
    )

    gamma: float = fl.option(1.0, least=0)

    @property
    def reads_labels(self) -> bool:
        """Always True, because clients send outputs only for the classes that they have."""
        return True

    def init(self, world: fl.World) -> fl.ServerState:
        """Start without outputs of any client."""
        fl.check_single(world)
        return fl.ServerState()

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send client k the mean outputs of the other clients for each label of client k.

        The mean for label l, ``F̂_k,l``, is computed over the other clients that have the label.
        The network stays with the client.
        """
        total, extras = state.group("sum"), dict[str, Tensor]()
        if total:
            answers = state.group(f"answers/{client}")
            rows, present = fl.rows_of(answers, world.classes, world.classes)
            others = total["clients"] - present.float()
            means = (total["rows"] - rows).clamp(min=0) / others.clamp(min=1)[:, None]
            labels = torch.tensor(world.clients[client].histogram) > 0
            extras = dict(fl.sent_rows(means, (others > 0) & labels))
        program = Listening(fl.TaskLoss(self.mask_absent), self.gamma)
        return fl.private_network(world, client, program, extras=extras)

    def examine(self, world: fl.World, result: fl.Result) -> None:
        """Check that the client returned outputs only for labels that it has."""
        fl.check_rows(world, result, world.classes)

    def receive(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], round: int
    ) -> fl.ServerState:
        """Store the outputs of this round's clients, and sum the outputs of all clients."""
        for result in results:
            state = state.with_group(f"answers/{result.client}", result.extras)
        rows, clients = torch.zeros(world.classes, world.classes), torch.zeros(world.classes)
        for client in range(len(world.clients)):
            answers = state.group(f"answers/{client}")
            table, present = fl.rows_of(answers, world.classes, world.classes)
            rows, clients = rows + table, clients + present.float()
        return state.with_group("sum", {"rows": rows, "clients": clients})

    def evaluated(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Evaluated]:
        """Evaluate each client's network."""
        return fl.private_networks(world, state)


@dataclass(frozen=True)
class Listening:
    """Program that trains a network towards the other clients' outputs and returns its own.

    Attributes:
        objective: ``φ(F, c)``.
        gamma: γ.
    """

    objective: fl.Objective
    gamma: float

    def __call__(self, work: fl.Work) -> fl.Outcome:
        """Train, and return mean outputs for each label over all minibatches of the round."""
        classes = len(work.data.histogram)
        table = fl.rows_of(work.extras, classes, classes)[0].to(work.device)
        module = fl.module_of(work, training=True)
        sums = torch.zeros(classes, classes, device=work.device)
        counts = torch.zeros(classes, device=work.device)

        def loss(examples: fl.Examples) -> Tensor:
            outputs = module(*examples.inputs)
            logits, labels = work.learning.predictions(outputs), examples.targets
            rows, numbers = fl.class_sums(logits.detach().softmax(-1), labels, classes)
            sums.add_(rows)
            counts.add_(numbers)
            # For a label that no other client has, the target is 0 and adds nothing to the loss.
            counted = labels != fl.IGNORED
            targets = table[labels.clamp(min=0)] * counted[:, None]
            distance = -(targets * logits.log_softmax(-1)).sum(-1).sum() / counted.sum().clamp(
                min=1
            )
            return self.objective(outputs, examples, work) + self.gamma * distance

        metrics = fl.descend(work, dict(module.named_parameters()), loss)
        means = sums / counts.clamp(min=1)[:, None]
        extras = fl.sent_rows(means, counts > 0)
        return fl.Outcome(ag.state_of(module), work.keep, extras=extras, metrics=metrics)
