"""ScaleFL: clients train a narrower network up to an exit; the last exit teaches the others.

Ilhan, Su, Liu: *ScaleFL: Resource-Adaptive Federated Learning with Heterogeneous Clients*, CVPR
2023.

========================  ===============================================================
symbol                    here
========================  ===============================================================
``Θ``                     group ``global`` of the server state
complexity level ``l``    the client's tier: `ends_after` and `take` combined
``L``                     :class:`EarlyExits`
``γ``, ``τ``              ``gamma``, ``temperature``
========================  ===============================================================
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

import archgraph as ag
from archgraph import federation as fl


@dataclass(frozen=True)
class ScaleFL(fl.Averaging):
    """Options of ScaleFL.

    Attributes:
        gamma: γ, the weight of the distillation from a model's last exit to its earlier exits.
        temperature: τ, the temperature of the distillation.
        warmup: Fraction of the rounds before distillation begins.
        scaler: If True, divide hidden activations by the width rate of the client's tier, in
            training and in tests, as the official code does. Norm layers without running statistics
            undo this division, except for the effect of their epsilon.

    Example:
        >>> ScaleFL(gamma=0).temperature
        3.0
    """

    paper = "ScaleFL"
    year = 2023
    serves = ("exits", "width")

    gamma: float = fl.option(0.05, least=0)
    temperature: float = fl.option(3.0, above=0)
    warmup: float = fl.option(0.25, least=0, most=1)
    scaler: bool = False
    weights: fl.Weights = "uniform"
    norm: Literal["averaged", "local", "static"] = "static"

    presets: ClassVar[Mapping[str, Mapping[str, fl.Json]]] = {
        "official_code": {"gamma": 0, "scaler": True},
    }
    unlearnable: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("labels", "values", "any"), "exits answer with classes, and distil their probabilities"
    )

    def init(self, world: fl.World) -> fl.ServerState:
        """Start from the global model ``Θ``.

        Raises:
            RunError: If a tier's exits are not the first exits of the global model.
        """
        full = ag.exits(world.graph)
        for tier in world.tiers:
            exits = ag.exits(tier.graph)
            if not exits or exits != full[: len(exits)]:
                # Levels nest: the last exit of a small one is an earlier exit of the large ones.
                raise ag.RunError(
                    "ScaleFL trains a network up to one of its exits",
                    where=f"tier {tier.name}",
                    found=f"exits {', '.join(exits) or 'without names'}",
                    expected=f"the first of {', '.join(full) or 'the exits'}",
                    hint="give the family `change: {add_exits: {SECTION: CLASSES}}`, and clients "
                    "`ends_after: {section: SECTION}` with `take`; nefl and fedfa serve narrower "
                    "and shallower clients without exits",
                )
        return fl.ServerState().with_group("global", world.state)

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send the client's part of the global model, cut in width and depth."""
        gamma = self.gamma if round > self.warmup * world.rounds else 0.0
        exits = ag.exits(world.tier_of(client).graph)
        program = fl.Train(EarlyExits(exits, gamma, self.temperature))
        task = fl.part(world, state, client, program=program, norm=self.norm)
        return dataclasses.replace(task, graph=self._graph(world.tier_of(client)))

    def receive(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], round: int
    ) -> fl.ServerState:
        """Average each value over the clients whose model has it."""
        return fl.covered_mean(world, state, results, weights=self.weights)

    def evaluated(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Evaluated]:
        """Evaluate the global model and each tier's model, with predictions of the last exit."""
        for model in fl.by_tier(world, state, norm=self.norm, idle=True):
            tier = next((one for one in world.tiers if one.name == model.name), None)
            graph = model.graph if tier is None else self._graph(tier)  # global: rate 1
            last = fl.Logits(ag.exits(graph)[-1])
            yield dataclasses.replace(model, graph=graph, predict=last)

    def _graph(self, tier: fl.Tier) -> ag.ArchGraph:
        """Return a level's network for training and tests."""
        return fl.scaled(tier.graph, fl.rate_of(tier), True) if self.scaler else tier.graph


@dataclass(frozen=True)
class EarlyExits:
    """Loss ``Σ_j j (L_ce(p_j, y) + γ τ² D_KL(p_n^τ ‖ p_j^τ)) / (n (n + 1) / 2)`` over n exits.

    Attributes:
        exits: Names of the exits, from the shallowest to the deepest.
        gamma: γ.
        temperature: τ, by which logits are divided.
    """

    exits: tuple[str, ...]
    gamma: float
    temperature: float = 3.0

    def __call__(self, outputs: object, examples: fl.Examples, work: fl.Work) -> Tensor:
        """Return the mean loss over the minibatch."""
        answers = [work.learning.predictions(outputs, fl.Logits(name)) for name in self.exits]
        terms = [work.learning.loss(answer, examples.targets) for answer in answers]
        if self.gamma:
            # The last exit teaches and does not learn from the others: no gradient flows through
            # it.
            logits = [fl.counted_logits(answer, examples) for answer in answers]
            taught = (logits[-1].detach() / self.temperature).log_softmax(-1)
            for index, answer in enumerate(logits[:-1]):
                said = (answer / self.temperature).log_softmax(-1)
                total = functional.kl_div(said, taught, reduction="sum", log_target=True)
                distance = total / len(said)
                terms[index] = terms[index] + self.gamma * self.temperature**2 * distance
        # Deeper exits count more: weight j of n (n + 1) / 2.
        shares = torch.arange(1, len(terms) + 1, device=terms[0].device)
        return (torch.stack(terms) * shares).sum() / shares.sum()
