"""Matched: the channels of the clients' networks are reordered to match before averaging.

The method combines two papers. The channels are matched as in *Git Re-Basin* (Ainsworth, Hayase,
Srinivasa, ICLR 2023, Algorithms 1 and 3). Averaging matched clients is the idea of *FedMA* (Wang,
Yurochkin, Sun, Papailiopoulos, Khazaeni, ICLR 2020). FedMA matches and trains the network layer by
layer and makes it wider. Matched matches all layers at once and keeps their sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

import archgraph as ag
from archgraph import federation as fl

PASSES = 10  # over all clients, at most


@dataclass(frozen=True)
class Matched(fl.PartAveraging):
    """Options of Matched.

    In the first round, every client starts from its own random weights, which depend on the seed
    and the client's id.

    Example:
        >>> Matched().weights
        'examples'
    """

    paper = "Git Re-Basin"
    year = 2023
    serves = ("one", "width")
    averages = False  # it needs single clients' updates
    reports = ("moved",)
    extra = "stats"

    def init(self, world: fl.World) -> fl.ServerState:
        """Start from the global model.

        Raises:
            RunError: If a tier differs from the global model in more than its widths.
        """
        for tier in world.tiers:
            sizes = ag.widths(world.graph, tier.transfer)
            counts = {a: sizes[a.name] for a in ag.axes(world.graph).free if a.name in sizes}
            narrow = ag.take(world.graph, sizes=counts, allow_nothing=True)
            if narrow.transfer.target != tier.transfer.target:
                raise ag.RunError(
                    "Matched requires tiers that are narrower only, with all layers",
                    where=f"tier {tier.name}",
                    expected="a tier with only `take` or `fit`",
                )
        return fl.ServerState().with_group("global", world.state).with_values(moved=0)

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send a client its part of the global model, or its own random weights in round 1."""
        weights = None
        if round == 1:
            draw = fl.seeded(world.seed, "matched", client)
            weights = ag.initial_state(world.tier_of(client).graph, draw.initial_seed())
        mask = self.mask_absent
        return fl.part(world, state, client, mask_absent=mask, norm=self.norm, weights=weights)

    def receive(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], round: int
    ) -> fl.ServerState:
        """Reorder the channels of each client to match the other clients, then average.

        1. Sort the clients by the number and the norm of their parameters, the largest first. The
           result then depends neither on ids nor on the order of arrival.
        2. Match each client to the global model. In round 1, clients have started from different
           weights, so match each client to the mean of the clients before it in this order.
        3. Match each client to the mean of all other clients. Repeat this step until no client's
           order of channels changes, at most 10 times.
        """
        arrived = sorted(results, key=_size, reverse=True)  # 1
        moved = [0] * len(arrived)
        base = state
        if round == 1:  # weights that none of the other clients has do not count
            nothing = {name: torch.zeros_like(v) for name, v in state.group("global").items()}
            base = state.with_group("global", nothing)

        def ordered(index: int, others: Sequence[fl.Result]) -> bool:
            """Match a client to the mean of others; return whether its order has changed."""
            weights = fl.covered_mean(world, base, others, weights=self.weights).group("global")
            result = arrived[index]
            tier = world.tier(result.tier)
            part = {**tier.transfer.pull(weights), **result.state}
            match = ag.match(world.graph, weights, part, other=tier.graph)
            arrived[index] = replace(result, transfer=match.transfer)
            moved[index] = sum(match.moved.values())
            return match.transfer != result.transfer

        for index in range(1 if round == 1 else 0, len(arrived)):  # 2
            ordered(index, arrived[:index] if round == 1 else ())
        for _ in range(PASSES):  # 3
            changed = False
            for index in range(len(arrived) if len(arrived) > 1 else 0):
                changed |= ordered(index, [*arrived[:index], *arrived[index + 1 :]])
            if not changed:
                break
        after = fl.covered_mean(world, state, arrived, weights=self.weights)
        return after.with_values(moved=sum(moved))


def _size(result: fl.Result) -> tuple[int, float]:
    values = [v.double() for v in result.state.values() if v.is_floating_point()]
    return sum(v.numel() for v in values), sum(float(v.square().sum()) for v in values)
