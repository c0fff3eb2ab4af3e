"""Matched: the positions of networks are brought into one order before averaging.

The method combines two papers. Orders are found as in *Git Re-Basin* (Ainsworth, Hayase, Srinivasa,
ICLR 2023, Algorithms 1 and 3); averaging clients in one order is the idea of *FedMA* (Wang,
Yurochkin, Sun, Papailiopoulos, Khazaeni, ICLR 2020). Unlike FedMA, which matches and trains the
network layer by layer and grows it, Matched matches all layers at once and keeps sizes.
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

    In the first round every client starts from its own weights, drawn from the seed and its id.

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
            RunError: If a tier is not only narrower.
        """
        for tier in world.tiers:
            sizes = ag.widths(world.graph, tier.transfer)
            counts = {a: sizes[a.name] for a in ag.axes(world.graph).free if a.name in sizes}
            narrow = ag.take(world.graph, sizes=counts, allow_nothing=True)
            if narrow.transfer.target != tier.transfer.target:
                raise ag.RunError(
                    "Matched orders the positions of axes, not layers",
                    where=f"tier {tier.name}",
                    expected="a tier with only `take` or `fit`",
                )
        return fl.ServerState().with_group("global", world.state).with_values(moved=0)

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send a client its part of the global model, or in the first round weights of its own."""
        weights = None
        if round == 1:
            draw = fl.seeded(world.seed, "matched", client)
            weights = ag.initial_state(world.tier_of(client).graph, draw.initial_seed())
        mask = self.mask_absent
        return fl.part(world, state, client, mask_absent=mask, norm=self.norm, weights=weights)

    def receive(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], round: int
    ) -> fl.ServerState:
        """Return the mean of all clients, each in the order that best matches the others' mean.

        1. Clients are sorted by their weights, so that neither ids nor arrival decide.
        2. Each is matched to the global model that all began with; in round 1, where each began
           with its own weights, to the mean of those before it, the widest first.
        3. Each is matched to the mean of all others, until no order changes.
        """
        arrived = sorted(results, key=_size, reverse=True)  # 1
        moved = [0] * len(arrived)
        base = state
        if round == 1:  # entries that none of the others covers do not count
            nothing = {name: torch.zeros_like(v) for name, v in state.group("global").items()}
            base = state.with_group("global", nothing)

        def ordered(index: int, others: Sequence[fl.Result]) -> bool:
            """Match a client to the mean of others; return whether its order is another one."""
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
