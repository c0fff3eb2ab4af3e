"""DepthFL: clients train the first sections of a network; early exits teach one another.

Kim, Yu, Kim, Moon: *DepthFL: Depthwise Federated Learning for Heterogeneous Clients*, ICLR 2023.

========================  ===============================================================
symbol                    here
========================  ===============================================================
``W``                     group ``global`` of the server state
depth of client k         its tier: the network up to an exit, with all exits before it
``L_ce``, ``L_kl``        :class:`MutualDistillation`
``w(t)``                  weight of ``L_kl``: ``exp(-5 (1 - min(t, ramp) / ramp)²)``
FedDyn ``α``              ``alpha``; Acar et al., ICLR 2021
``h``                     group ``h``
``∇L_k`` of client k      private to the client: :class:`Dynamic`
========================  ===============================================================
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

import archgraph as ag
from archgraph import federation as fl


@dataclass(frozen=True)
class DepthFL(fl.Averaging):
    """Options of DepthFL.

    Attributes:
        distil: If True, the exits of a client's model learn from each other by distillation.
        ramp: Fraction of the rounds after which the weight of distillation has risen to 1. A value
            above 1 is a number of rounds instead. The published code uses 300 of 1,000 rounds.
        alpha: Weight of FedDyn's regularisation at the clients and of the correction at the server.
            With 0, neither is applied.

    Example:
        >>> DepthFL(alpha=0).distil
        True
    """

    paper = "DepthFL"
    year = 2023
    serves = ("exits",)

    distil: bool = True
    ramp: float = fl.option(0.3, above=0)
    alpha: float = fl.option(0.1, least=0)
    weights: fl.Weights = "uniform"

    presets: ClassVar[Mapping[str, Mapping[str, fl.Json]]] = {
        "paper": {"ramp": 300},
        "fedavg": {"alpha": 0},
        "without_distillation": {"distil": False},
    }
    unlearnable: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("labels", "values", "any"), "exits answer with classes, and distil their probabilities"
    )

    def __post_init__(self) -> None:
        """Check that ``ramp`` is a fraction or a whole number of rounds.

        Raises:
            SpecError: If it is neither.
        """
        super().__post_init__()
        if self.ramp > 1 and self.ramp % 1:
            raise ag.SpecError(
                "is neither a fraction nor a whole number of rounds",
                where="ramp",
                found=self.ramp,
                expected="a fraction (above 0, at most 1) or a whole number of rounds",
            )

    @property
    def corrected(self) -> str:
        """Reason why the experiment may not set ``server``, or an empty string."""
        return "`alpha` already corrects the mean at the server (FedDyn)" if self.alpha else ""

    def init(self, world: fl.World) -> fl.ServerState:
        """Start from ``W``, the global model.

        Raises:
            RunError: If a tier's architecture is not the global network up to one of the network's
                exits.
        """
        full = ag.exits(world.graph)
        for tier in world.tiers:
            exits, entries = ag.exits(tier.graph), tier.transfer.entries.values()
            if not exits or exits != full[: len(exits)] or not all(e.unchanged for e in entries):
                # Exits teach one another: a tier has all exits before its last one, as they are.
                raise ag.RunError(
                    "DepthFL trains a network up to one of its exits, at full width",
                    where=f"tier {tier.name}",
                    found=f"exits {', '.join(exits) or 'without names'}",
                    expected=f"the first of {', '.join(full) or 'the exits'}",
                    hint="give the family `change: {add_exits: {SECTION: CLASSES}}`, and clients "
                    "`ends_after: {section: SECTION}`; scalefl serves narrower clients, too, "
                    "nefl and fedfa those without exits",
                )
        return fl.ServerState().with_group("global", world.state)

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send the sections and exits of the global model that the client's tier has."""
        rounds = self.ramp if self.ramp > 1 else self.ramp * world.rounds
        ramp = rounds if self.distil else None
        train = fl.Train(MutualDistillation(ag.exits(world.tier_of(client).graph), ramp))
        program: fl.Program = Dynamic(train, self.alpha) if self.alpha else train
        return fl.part(world, state, client, program=program, norm=self.norm)

    def receive(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], round: int
    ) -> fl.ServerState:
        """Average each value over the clients whose model has it, then apply FedDyn's correction.

        ``h ← h - α/m Σ_k (W_k - W)``, ``W ← mean_k W_k - h/α``. ``m`` is the number of all clients.
        ``h`` is stored in the server state.
        """
        trained: collections.Counter[str | None] = collections.Counter()

        def counted() -> Iterator[fl.Result]:
            # Counted while they pass: results are a stream, which can be read once.
            for result in results:
                assert result.transfer is not None  # of part()
                trained.update(entry.source for entry in result.transfer.entries.values())
                yield result

        merged = fl.covered_mean(world, state, counted(), weights=self.weights)
        if not self.alpha:
            return merged
        old, new, h = (s.group(g) for s, g in ((state, "global"), (merged, "global"), (state, "h")))
        for param in world.graph.params:
            if param.trainable and (clients := trained[param.name]):
                # FedDyn divides by all clients, not by those of this round.
                name, share = param.name, clients / len(world.clients)
                # For a parameter that no client has trained yet, there is no correction.
                before = h.get(name, torch.zeros_like(old[name]))
                h[name] = before - self.alpha * share * (new[name] - old[name])
                new[name] = new[name] - h[name] / self.alpha
        return merged.with_group("global", new).with_group("h", h)

    def evaluated(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Evaluated]:
        """Evaluate the global model, and the model of each depth.

        The prediction of a model is the mean of the logits of its exits.
        """
        for model in fl.by_tier(world, state, norm=self.norm, idle=True):
            yield dataclasses.replace(model, predict=MeanLogits(ag.exits(model.graph)))


@dataclass(frozen=True)
class MeanLogits:
    """The mean of several exits' logits.

    Attributes:
        exits: Names of the exits.
    """

    exits: tuple[str, ...]

    def __call__(self, outputs: object) -> Tensor:
        """Return the mean logits ``[batch, classes]``."""
        return torch.stack([fl.Logits(name)(outputs) for name in self.exits]).mean(0)


@dataclass(frozen=True)
class MutualDistillation:
    """Loss ``Σ_i L_ce(p_i, y) + w(t) Σ_i Σ_{j≠i} D_KL(p_j ‖ p_i) / (K - 1)``.

    No gradient goes through the teachers ``p_j``.

    Attributes:
        exits: Names of the K exits.
        ramp: First round in which ``w(t)`` is 1. Default: no distillation.
    """

    exits: tuple[str, ...]
    ramp: float | None = None

    def __call__(self, outputs: object, examples: fl.Examples, work: fl.Work) -> Tensor:
        """Return the mean loss over the minibatch."""
        answers = [work.learning.predictions(outputs, fl.Logits(name)) for name in self.exits]
        value = torch.stack([work.learning.loss(a, examples.targets) for a in answers]).sum()
        if self.ramp is None or len(answers) == 1:  # no other exit to learn from
            return value
        logs = [fl.counted_logits(answer, examples).log_softmax(-1) for answer in answers]
        of_batch = len(logs[0])
        # All ordered pairs: `mine` learns, and no gradient goes through its teacher.
        distances = [
            functional.kl_div(mine, other.detach(), reduction="sum", log_target=True) / of_batch
            for mine, other in itertools.permutations(logs, 2)
        ]
        weight = math.exp(-5 * (1 - min(work.round, self.ramp) / self.ramp) ** 2)
        return value + weight * torch.stack(distances).sum() / (len(answers) - 1)


@dataclass(frozen=True)
class Dynamic:
    """Program that trains a client's model with FedDyn's penalty.

    Attributes:
        train: The program without FedDyn.
        alpha: α.
    """

    train: fl.Train
    alpha: float

    def __call__(self, work: fl.Work) -> fl.Outcome:
        """Train with the penalty, then ``∇L_k ← ∇L_k - α (W_k - W)``."""
        penalty = Regularisation(self.alpha)
        outcome = dataclasses.replace(self.train, penalty=penalty)(work)
        # Kept separately from the state: FedDyn's correction never leaves the client.
        keep = {
            p.name: work.keep.get(p.name, torch.zeros(p.shape, device=work.device))
            - self.alpha * (outcome.state[p.name] - work.state[p.name])
            for p in work.graph.params
            if p.trainable
        }
        return dataclasses.replace(outcome, keep=keep)


@dataclass(frozen=True)
class Regularisation:
    """FedDyn's penalty ``-⟨∇L_k, W_k⟩ + α/2 ‖W_k - W‖²``.

    Attributes:
        alpha: α.
    """

    alpha: float

    def __call__(self, parameters: Mapping[str, Tensor], work: fl.Work) -> Tensor:
        """Return the penalty at the given parameters."""
        terms = []
        for name, value in parameters.items():
            if value.requires_grad:
                move = value - work.state[name]
                terms.append(self.alpha / 2 * move.square().sum())
                if name in work.keep:
                    terms.append(-(work.keep[name] * value).sum())
        return torch.stack(terms).sum()
