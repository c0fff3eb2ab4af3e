"""AdaptiveFL's pool: submodels keep their first layers at full width; later ones are narrower.

Jia, Hu, Chen, Yang, Xie, Liu, Chen: *AdaptiveFL: Adaptive Heterogeneous Federated Learning for
Resource-Constrained AIoT Systems*, DAC 2024.

======================  ==========================================================================
symbol                  here
======================  ==========================================================================
levels S, M, L          the family's tiers; a tier's size is the maximum size of a level's members
``I`` (p values)        ``starts``: this fraction of the axes, counted from the input, is not cut
``r_w``                 fraction to which the other axes are cut (in attention, the number of
                        heads); the largest with which the member of largest ``I`` fits the level
pool of 2p + 1 models   :func:`pool`; the global model is the only member of its level
local pruning           :meth:`AdaptiveFLPool.member`: the largest part of the member that fits
aggregation             ``covered_mean``, weighted by examples
======================  ==========================================================================

The agent that learns which clients to choose is not implemented; the experiment draws clients
uniformly. Devices' resources do not change between rounds, and a drawn member is pruned before it
is sent.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch

import archgraph as ag
from archgraph import federation as fl

LEAST = 30  # per cent; the published code tries no narrower ones after a start


class Member(NamedTuple):
    """A submodel of the pool: its number of parameters, and the sizes of its free axes in order."""

    parameters: int
    sizes: tuple[int, ...]


@functools.lru_cache(maxsize=16)
def pool(
    graph: ag.ArchGraph, levels: tuple[int, ...], starts: tuple[float, ...]
) -> tuple[Member, ...]:
    """Return the submodels of all levels, from the smallest to the largest.

    Args:
        graph: The global architecture.
        levels: For each level, the maximum number of parameters of a member.
        starts: Fractions of the axes that keep their full size.

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 10), torch.nn.Linear(10, 10))
        >>> net = torch.nn.Sequential(net, torch.nn.Linear(10, 2))
        >>> graph = ag.trace(net, torch.zeros(1, 2)).graph  # 162 parameters
        >>> [tuple(member) for member in pool(graph, (90, 162), (0.5, 0.0))]
        [(42, (4, 4)), (84, (10, 4)), (162, (10, 10))]
    """
    axes, costs = ag.axes(graph).free, ag.cost(graph).polynomial
    cut = set(ag.axes(graph).independent())

    def member(start: float, percent: int) -> Member:
        behind = cut.intersection(axes[math.ceil(start * len(axes)) :])
        sizes = {a.name: -(-percent * a.size // 100) if a in behind else a.size for a in axes}
        return Member(costs.at(sizes).parameters, tuple(sizes.values()))

    members: set[Member] = set()
    for most in levels:
        # Where even the narrowest is too large after every start, all axes are narrow.
        deep = sorted(starts, reverse=True)
        fitting = [s for s in deep if member(s, LEAST).parameters <= most] or [0.0]
        steps = [member(fitting[0], percent).parameters for percent in range(1, 101)]
        percent = max(bisect.bisect_right(steps, most), 1)
        members |= {member(start, percent) for start in fitting}
    return tuple(sorted(members))


@functools.lru_cache(maxsize=64)
def _taken(graph: ag.ArchGraph, sizes: tuple[int, ...]) -> ag.Rewritten:
    by_name = {axis.name: size for axis, size in zip(ag.axes(graph).free, sizes, strict=True)}
    return ag.take(graph, sizes=by_name, allow_nothing=True)


@dataclass(frozen=True)
class AdaptiveFLPool(fl.PartAveraging):
    """Options of AdaptiveFL's pool of submodels.

    Attributes:
        starts: Each value is a fraction of the network's axes (such as channel dimensions), counted
            from the input. The submodels with this value keep the full size of these axes, and only
            later axes are cut. For each tier, the pool contains at most one submodel per fraction.
        norm: How running statistics are treated. Running statistics cannot stay with a client,
            because the width of a client's submodel changes between rounds.

    Example:
        >>> AdaptiveFLPool().starts
        (0.5, 0.375, 0.25)
    """

    paper, year, serves = "AdaptiveFL", 2024, ("width", "depth")

    starts: tuple[float, ...] = (0.5, 0.375, 0.25)  # of VGG-16's 16 layers 8, 6 and 4
    norm: Literal["static", "averaged"] = "static"

    def __post_init__(self) -> None:
        """Check that ``starts`` are fractions."""
        if not self.starts or not all(0 <= start < 1 for start in self.starts):
            expected = "fractions of 0 or more, below 1"
            raise ag.SpecError("out of range", where="starts", found=self.starts, expected=expected)

    def init(self, world: fl.World) -> fl.ServerState:
        """Start from the global model.

        Raises:
            RunError: If a tier has fewer parameters than every submodel.
        """
        for tier in world.tiers:
            if not self.fitting(world, tier):
                least = f"at least {self.pool(world)[0].parameters} parameters"
                raise ag.RunError("smaller than every submodel", where=tier.name, expected=least)
        return fl.ServerState().with_group("global", world.state)

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send a random submodel of the pool.

        If this submodel is too large for the client, a smaller one is sent instead.
        """
        tier = self._tier(world, world.tier_of(client), self.member(world, client, round))
        mask = self.mask_absent
        return fl.part(world, state, client, tier=tier, mask_absent=mask, norm=self.norm)

    def evaluated(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Evaluated]:
        """Evaluate the global model, and for each tier the largest submodel that fits the tier."""

        def largest(tier: fl.Tier) -> fl.Tier:
            return self._tier(world, tier, self.fitting(world, tier)[-1])

        return fl.by_tier(world, state, norm=self.norm, submodel=largest, idle=True)

    def pool(self, world: fl.World) -> tuple[Member, ...]:
        """Return all submodels of the pool, from the smallest to the largest."""
        levels = tuple(ag.cost(tier.graph).parameters for tier in world.tiers)
        return pool(world.graph, levels, self.starts)

    def fitting(self, world: fl.World, tier: fl.Tier) -> list[Member]:
        """Return the submodels of the pool that have at most as many parameters as the tier."""
        most = ag.cost(tier.graph).parameters
        return [one for one in self.pool(world) if one.parameters <= most]

    def member(self, world: fl.World, client: int, round: int) -> Member:
        """Draw a submodel of the pool. If it is too large for the client, return a smaller one."""
        fitting, members = self.fitting(world, world.tier_of(client)), self.pool(world)
        generator = fl.seeded(world.seed, "adaptivefl", round, client)
        drawn = members[int(torch.randint(len(members), (), generator=generator))]
        parts = [m for m in fitting if all(map(int.__le__, m.sizes, drawn.sizes))]
        return (parts or fitting[:1])[-1]

    def _tier(self, world: fl.World, tier: fl.Tier, member: Member) -> fl.Tier:
        cut = _taken(world.graph, member.sizes)
        return replace(tier, graph=cut.graph, transfer=cut.transfer)
