"""FIARSE: every client trains the largest weights of the global model, as many as its tier has.

Wu, Wang, Wang, Liu, Su, Gao: *FIARSE: Model-Heterogeneous Federated Learning via Importance-Aware
Submodel Extraction*, NeurIPS 2024.

=====================  ==========================================================================
``x``                  group ``global`` of the server state
``γ_i``                the fraction of the parameters that client i's tier has
``θ_i``                :func:`threshold`: a fraction γ_i of the weights has at least this magnitude
``M(x) = 1{|x| ≥ θ}``  :func:`important`: the mask of every forward pass; norms are not masked
``Σ w M x_i / Σ w M``  :meth:`FIARSE.receive`: weights in no client's mask keep their values
=====================  ==========================================================================

Masking single weights saves bytes but not multiply-accumulates, because the network runs at its
full size. Byte counts include an index of four bytes for every value that is sent to a client.
Returned values need no index, since the server knows the masks. The option ``structured``, which is
not in the paper, takes the most important channels of every axis instead. The result is a narrow
network.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor
from torch.func import functional_call

import archgraph as ag
from archgraph import federation as fl


def important(x: Tensor, limit: float) -> Tensor:
    """Return ``x M(x)``, with gradient ``M (1 + 2θ|x| / (|x| + θ)²)``: 3/2 at θ, 1 far above it."""
    size = x.detach().abs()
    mask, ratio = size >= limit, size / (size + limit).clamp(min=1e-30)
    # The second term has value 0 and the gradient of the mask.
    return x * mask + 2 * ratio * (1 - ratio) * mask * (x - x.detach())


def threshold(weights: Iterable[Tensor], share: float) -> float:
    """Return the magnitude that the given fraction of the weights reaches or exceeds.

    Example:
        >>> threshold([torch.tensor([1.0, -4.0]), torch.tensor([3.0, 2.0])], 0.5)
        3.0
    """
    sizes = torch.cat([weight.abs().flatten() for weight in weights])
    count = int(round(share * len(sizes), 6))  # 10 / 18 · 18 may be below 10
    return float(sizes.topk(max(count, 1)).values[-1])


@dataclass(frozen=True)
class TrainMasked:
    """Program that trains the weights above ``Work.values["limits"]`` and masks all others."""

    objective: fl.Objective = field(default_factory=fl.TaskLoss)

    def __call__(self, work: fl.Work) -> fl.Outcome:
        """Train, and return the client's state."""
        module = fl.module_of(work, training=True)
        parameters = dict(module.named_parameters())

        def loss(examples: fl.Examples) -> Tensor:
            limits: Mapping[str, float] = work.values["limits"]
            masked = {name: important(parameters[name], limits[name]) for name in limits}
            return self.objective(functional_call(module, masked, examples.inputs), examples, work)

        metrics = fl.descend(work, parameters, loss)
        return fl.Outcome(state=ag.state_of(module), keep=work.keep, metrics=metrics)


@dataclass(frozen=True)
class FIARSE(fl.Weighted, fl.Masking):
    """Options of FIARSE.

    Attributes:
        by: Scope of the threshold θ: one for the whole ``model``, or one for each ``tensor``.
        structured: If True, clients train whole channels: the most important channels of every
            axis, as many as the tier has. If False, clients train single weights: the weights with
            the largest magnitudes.
        norm: How running statistics are treated. Running statistics cannot stay with a client,
            because the client's mask changes.

    Example:
        >>> FIARSE(structured=True).by
        'model'
    """

    paper, year, serves = "FIARSE", 2024, ("width", "depth")
    averages = False  # the rules of `aggregate` do not support masks of single weights

    by: Literal["model", "tensor"] = "model"
    structured: bool = False
    weights: fl.Weights = "uniform"
    norm: Literal["static", "averaged"] = "static"

    def init(self, world: fl.World) -> fl.ServerState:
        """Start from the global model ``x_0``.

        Raises:
            RunError: If ``structured`` is set, and a tier differs from the global model in more
                than its widths.
        """
        for tier in world.tiers if self.structured else ():
            if self._part(world, world.state, tier).transfer.target != tier.transfer.target:
                message, where = "structured FIARSE only narrows", f"tier {tier.name}"
                hint = "without `structured` a tier only sets the number of trained weights"
                raise ag.RunError(message, where=where, expected="`take` alone", hint=hint)
        return self._with_limits(world, fl.ServerState().with_group("global", world.state))

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send the weights whose magnitude is at least θ_i, with their indices.

        The tensors in the task are dense and contain 0 where no value is sent. For tensors in
        ``Task.indexed``, byte counts include only the nonzero values.
        """
        tier, limits = self._masked(world, state, world.tier_of(client))
        objective = fl.TaskLoss(mask_absent=self.mask_absent)
        program = TrainMasked(objective) if limits else fl.Train(objective)
        task = fl.part(world, state, client, tier=tier, program=program, norm=self.norm)
        task = replace(task, state=_above(task.state, limits), values={"limits": limits})
        return replace(task, indexed=frozenset(limits))

    def receive(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], round: int
    ) -> fl.ServerState:
        """Average every weight over the clients whose masks contain it.

        ``ag.Merger`` is not used, because it does not support masks of single weights.
        """
        old, limits = state.group("global"), state.values["limits"]
        masked = frozenset(name for tier in limits.values() for name in tier)
        sums, covered = ({k: torch.zeros_like(old[k]) for k in masked} for _ in range(2))

        def unmasked() -> Iterator[fl.Result]:
            for one in results:
                theirs = limits[world.clients[one.client].name]
                for name in masked - one.unmerged:
                    mask = (old[name].abs() >= theirs.get(name, 0.0)) * one.weight(self.weights)
                    sums[name] += one.state[name] * mask
                    covered[name] += mask
                yield replace(one, unmerged=one.unmerged | masked)

        after = fl.covered_mean(world, state, unmasked(), weights=self.weights)
        means = {k: torch.where(covered[k] > 0, sums[k] / covered[k], old[k]) for k in masked}
        after = after.with_group("global", {**after.group("global"), **means})
        return self._with_limits(world, after)

    def evaluated(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Evaluated]:
        """Evaluate the global model, and the global model under each tier's current mask."""

        def model(tier: fl.Tier) -> fl.Model:
            tier, limits = self._masked(world, state, tier)
            weights = tier.transfer.pull(state.group("global"), copy=False)
            return fl.Model(tier.graph, _above(weights, limits))

        return fl.by_tier(world, state, norm=self.norm, model=model, idle=True)

    def _with_limits(self, world: fl.World, state: fl.ServerState) -> fl.ServerState:
        """Compute θ for each tier and tensor, without norm layers and frozen parameters."""
        norms = fl.NormPolicy("per_submodel").unmerged(world.graph)
        names = [p.name for p in world.graph.params if p.trainable and p.name not in norms]
        tensors = {name: state.group("global")[name] for name in names}
        groups = [[name] for name in names] if self.by == "tensor" else [names]
        limits: dict[str, dict[str, float]] = {tier.name: {} for tier in world.tiers}
        for tier in world.tiers:
            share = ag.cost(tier.graph).parameters / ag.cost(world.graph).parameters
            for group in groups if share < 1 and not self.structured else ():
                limit = threshold([tensors[name] for name in group], share)
                limits[tier.name] |= dict.fromkeys(group, limit)
        return state.with_values(limits=limits)

    def _masked(
        self, world: fl.World, state: fl.ServerState, tier: fl.Tier
    ) -> tuple[fl.Tier, Mapping[str, float]]:
        """Return a tier's architecture with its thresholds."""
        return self._part(world, state.group("global"), tier), state.values["limits"][tier.name]

    def _part(self, world: fl.World, weights: fl.State, tier: fl.Tier) -> fl.Tier:
        """Return a tier with the complete network or, if structured, its important channels."""
        best = {}
        if self.structured:
            scores = ag.importance(world.graph, weights)
            counts = ag.widths(world.graph, tier.transfer).items()
            best = {a: scores.best(a, n) for a, n in counts if ag.axes(world.graph)[a].free}
        chosen = ag.take(world.graph, positions=best, allow_nothing=True)
        return replace(tier, graph=chosen.graph, transfer=chosen.transfer)


def _above(weights: fl.State, limits: Mapping[str, float]) -> dict[str, Tensor]:
    return {k: v * (v.abs() >= limits[k]) if k in limits else v for k, v in weights.items()}
