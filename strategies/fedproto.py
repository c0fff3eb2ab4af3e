"""FedProto: clients with heterogeneous networks exchange a prototype (mean embedding) per class.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang: *FedProto: Federated Prototype Learning across Heterogeneous
Clients*, AAAI 2022 (Algorithm 1, Eqs. 3, 6-8).

=========================  =======================================================================
symbol                     here
=========================  =======================================================================
``f_i(φ_i; x)``            the input of the head of client i's network (``with_features``)
``C_i^(j)`` (Eq. 3)        ``Result.extras`` of client i, with a row for each class j that it has
``C̄^(j)`` (Eq. 6)          group ``prototypes``
``L_S + λ L_R`` (Eq. 7)    :class:`Prototypes`, ``λ`` is ``pull``
``L_R`` (Eq. 8)            ``Σ_j n_j / n ‖C_i^(j) - C̄^(j)‖² / width`` over a minibatch's classes
=========================  =======================================================================
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
class FedProto(fl.Masking):
    """Options of FedProto.

    Attributes:
        pull: λ, the weight of the loss term that pulls a minibatch's prototypes to the global ones.
            With 0, clients train independently.
        width: Size of a prototype. Embeddings of another size are projected to this size by a fixed
            random matrix (not in the paper). Default: the smallest embedding size of all clients.
        weights: Weight of a client in the prototype of a class: its number of examples of the class
            (``examples``, Eq. 6), or 1 (``uniform``, as in the published code).

    Example:
        >>> FedProto(width=32).pull
        1.0
    """

    paper = "FedProto"
    year = 2022
    serves = ("any",)
    needs_global = False
    unlearnable: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("labels", "values", "any"), "it has a prototype for each class"
    )

    pull: float = fl.option(1.0, least=0)
    width: int | None = fl.option(None, least=1)
    weights: fl.Weights = "examples"

    @property
    def reads_labels(self) -> bool:
        """Always True, because clients send prototypes only of the classes that they have."""
        return True

    def init(self, world: fl.World) -> fl.ServerState:
        """Start without prototypes (line 1).

        Raises:
            RunError: If the task is not to predict one class per example, or a network has no
                embedding.
        """
        fl.check_single(world)
        self._width(world)
        return fl.ServerState()

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send the prototypes ``C̄`` of the client's classes (line 4).

        The network stays with the client.
        """
        width = self._width(world)
        table, known = fl.rows_of(state.group("prototypes"), world.classes, width)
        present = torch.tensor(world.clients[client].histogram) > 0
        program = Prototypes(fl.TaskLoss(self.mask_absent), self.pull, width, world.seed)
        extras = fl.sent_rows(table, known & present)
        return fl.private_network(world, client, program, extras=extras)

    def examine(self, world: fl.World, result: fl.Result) -> None:
        """Check that the client returned prototypes only for classes that it has."""
        fl.check_rows(world, result, self._width(world))

    def receive(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], round: int
    ) -> fl.ServerState:
        """Average the prototypes of each class over the clients that have the class (line 6).

        The prototype of a class does not change in a round in which no client has the class.
        """
        arrived = {result.client: result.extras for result in results}
        width = self._width(world)
        table, known = fl.rows_of(state.group("prototypes"), world.classes, width)
        sums, totals = torch.zeros_like(table), torch.zeros(world.classes)
        for client, extras in sorted(arrived.items()):  # fixed order: same bits
            rows, present = fl.rows_of(extras, world.classes, width)
            examples = torch.tensor(world.clients[client].histogram)
            weights = present * (examples if self.weights == "examples" else 1.0)
            sums, totals = sums + weights[:, None] * rows, totals + weights
        # As printed, Eq. 6 divides weights that sum to 1 by the number of clients again.
        new = totals > 0
        table = torch.where(new[:, None], sums / totals.clamp(min=1)[:, None], table)
        return state.with_group("prototypes", fl.sent_rows(table, known | new))

    def evaluated(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Evaluated]:
        """Evaluate each client's network with its own head."""
        return fl.private_networks(world, state)

    def _width(self, world: fl.World) -> int:
        widths = [fl.embedding_width(tier.graph) for tier in world.tiers]
        return self.width or min(widths)


def projected(embeddings: Tensor, width: int, seed: int) -> Tensor:
    """Project embeddings ``[example, ...]`` to a width, unless they already have this width.

    The random matrix depends only on the seed and the two widths. On average, it preserves lengths
    and distances.
    """
    flat = embeddings.flatten(1)
    if flat.shape[1] == width:
        return flat
    draw = fl.seeded(seed, "fedproto projection", flat.shape[1], width)
    matrix = torch.randn(flat.shape[1], width, generator=draw) / width**0.5
    return flat @ fl.to_device(matrix.to(flat.dtype), flat.device)


@dataclass(frozen=True)
class Prototypes:
    """Program that trains a network whose prototypes are pulled to the global ones (LocalUpdate).

    Attributes:
        objective: ``L_S``.
        pull: λ.
        width: Size of a prototype.
        seed: Seed of projections.
    """

    objective: fl.Objective
    pull: float
    width: int
    seed: int

    def __call__(self, work: fl.Work) -> fl.Outcome:
        """Train, then send the mean embedding of each class that the client has."""
        classes = len(work.data.histogram)
        table, known = fl.rows_of(work.extras, classes, self.width)
        model = fl.Model(ag.with_features(work.graph), work.state)
        module = fl.module_of(model, work.device, training=True)

        def loss(examples: fl.Examples) -> Tensor:
            outputs, features = module(*examples.inputs)
            rows = projected(features, self.width, self.seed)
            sums, counts = fl.class_sums(rows, examples.targets, classes)
            both = known.to(rows.device) & (counts > 0)
            apart = sums[both] / counts[both][:, None] - table.to(rows)[both]
            # Classes count by their examples, as in the published code, which λ was chosen for.
            far = (apart.square().mean(1) * counts[both]).sum() / counts.sum().clamp(min=1)
            return self.objective(outputs, examples, work) + self.pull * far

        metrics = fl.descend(work, dict(module.named_parameters()), loss)
        module.eval()  # Eq. 3 uses the network in evaluation mode
        sums = torch.zeros(classes, self.width, device=work.device)
        counts = torch.zeros(classes, device=work.device)
        with torch.no_grad():
            for batch in work.data.batches(None, work.local.batch):
                _, features = module(*(x.to(work.device) for x in batch.inputs))
                rows = projected(features, self.width, self.seed)
                more = fl.class_sums(rows, batch.targets, classes)
                sums, counts = sums + more[0], counts + more[1]
        means = sums / counts.clamp(min=1)[:, None]
        return fl.Outcome(
            state=ag.state_of(module),
            keep=work.keep,
            extras=fl.sent_rows(means, counts > 0),
            metrics=metrics,
        )
