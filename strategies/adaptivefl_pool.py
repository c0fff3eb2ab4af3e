"""AdaptiveFL's pool: submodels of several levels, narrow from some layer on, averaged by coverage.

Jia, Hu, Chen, Yang, Xie, Liu, Chen: *AdaptiveFL: Adaptive Heterogeneous Federated Learning for
Resource-Constrained AIoT Systems*, DAC 2024.

======================  =========================================================================
symbol                  here
======================  =========================================================================
levels S, M, L          the family's tiers, of whose parameters a member has no more
``I`` (p values)        ``starts``: this share of the axes, in their order, keeps its full size
``r_w``                 one share for all other axes of a level: the largest with which the member
                        of the largest ``I`` fits the level
pool of 2p + 1 models   :func:`pool`; the whole network is a level with one member
local pruning           :meth:`AdaptiveFLPool.member`: of what is drawn, the largest part that fits
aggregation             ``covered_mean``, weighted by examples
======================  =========================================================================

Left out: the agent that learns which clients to choose from what they could train so far (tables of
curiosity and resources); the experiment draws clients uniformly. Devices' resources do not change
between rounds, and the server prunes for the client, so that bytes are those of what is trained.
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

LEAST = 30  # per cent; the published code tries no narrower ones behind a start


class Member(NamedTuple):
    """A submodel of the pool.

    Attributes:
        level: Name of the tier that it is made for.
        sizes: Positions of each free axis, in their order.
        parameters: How many it has.
    """

    level: str
    sizes: tuple[int, ...]
    parameters: int


@functools.lru_cache(maxsize=16)
def pool(
    graph: ag.ArchGraph, levels: tuple[tuple[str, int], ...], starts: tuple[float, ...]
) -> tuple[Member, ...]:
    """Return the submodels of all levels, from the smallest to the largest.

    Args:
        graph: The global architecture.
        levels: Name of each level, and the parameters that a member of it may have.
        starts: Shares of the axes that keep their sizes.

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 10), torch.nn.Linear(10, 10))
        >>> net = torch.nn.Sequential(net, torch.nn.Linear(10, 2))
        >>> graph = ag.trace(net, torch.zeros(1, 2)).graph  # 162 parameters
        >>> [(m.sizes, m.parameters) for m in pool(graph, (("S", 90), ("L", 162)), (0.5, 0.0))]
        [((4, 4), 42), ((10, 4), 84), ((10, 10), 162)]
    """
    axes = ag.axes(graph).free
    costs = ag.cost(graph).polynomial

    def member(level: str, start: float, percent: int) -> Member:
        whole = math.ceil(start * len(axes))
        sizes = [a.size if i < whole else -(-percent * a.size // 100) for i, a in enumerate(axes)]
        named = {axis.name: size for axis, size in zip(axes, sizes, strict=True)}
        return Member(level, tuple(sizes), costs.at(named).parameters)

    members: dict[tuple[int, ...], Member] = {}
    for level, most in levels:
        # Where even the narrowest is too large behind every start, all axes are narrow.
        deep = sorted(starts, reverse=True)
        fitting = [s for s in deep if member(level, s, LEAST).parameters <= most] or [0.0]
        sizes = [member(level, fitting[0], percent).parameters for percent in range(1, 101)]
        percent = max(bisect.bisect_right(sizes, most), 1)
        for start in fitting:
            one = member(level, start, percent)
            members.setdefault(one.sizes, one)
    return tuple(sorted(members.values(), key=lambda one: (one.parameters, one.sizes)))


@functools.lru_cache(maxsize=64)
def _taken(graph: ag.ArchGraph, sizes: tuple[int, ...]) -> ag.Rewritten:
    """Cut the free axes to their first positions."""
    named = {axis.name: size for axis, size in zip(ag.axes(graph).free, sizes, strict=True)}
    return ag.take(graph, sizes=named, allow_nothing=True)


@dataclass(frozen=True)
class AdaptiveFLPool(fl.Averaging, fl.Masking):
    """Options of AdaptiveFL's pool.

    Attributes:
        starts: Shares of the axes, in their order, that keep their full size: one for each member
            of a level.
        choice: ``drawn``: each round a member is drawn for each client, which trains the largest
            part of it that its tier has the parameters for. ``largest``: it always trains the
            largest that fits.

    Example:
        >>> AdaptiveFLPool(choice="largest").starts
        (0.5, 0.375, 0.25)
    """

    paper = "AdaptiveFL"
    year = 2024
    serves = ("width",)

    starts: tuple[float, ...] = (0.5, 0.375, 0.25)  # of VGG-16's 16 layers 8, 6 and 4
    choice: Literal["drawn", "largest"] = "drawn"
    norm: Literal["averaged", "local", "static"] = "static"

    def __post_init__(self) -> None:
        """Check that starts are shares, and that statistics fit the next round."""
        if not self.starts or not all(0 <= start < 1 for start in self.starts):
            expected = "shares of 0 or more, below 1"
            raise ag.SpecError("out of range", where="starts", found=self.starts, expected=expected)
        if self.choice == "drawn" and self.norm == "local":
            message = "what a client keeps has the width of its last submodel; they are drawn"
            raise ag.SpecError(message, where="norm", expected="static or averaged")

    def init(self, world: fl.World) -> fl.ServerState:
        """Start from the whole network; refuse a tier that is smaller than any narrow network.

        Raises:
            RunError: Names the tier.
        """
        for tier in world.tiers:
            if not self.fitting(world, tier):
                least = f"at least {self.pool(world)[0].parameters} parameters"
                raise ag.RunError("no submodel is as small", where=tier.name, expected=least)
        return fl.ServerState().with_group("global", world.state)

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send a member of the pool that fits the client's tier."""
        tier = self._tier(world, self.member(world, client, round))
        mask = self.mask_absent
        return fl.part(world, state, client, tier=tier, mask_absent=mask, norm=self.norm)

    def receive(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], round: int
    ) -> fl.ServerState:
        """Average every entry over the clients that cover it."""
        return fl.covered_mean(world, state, results, weights=self.weights)

    def evaluated(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Evaluated]:
        """Evaluate the global model, and for each tier the largest member that fits it."""

        def model(tier: fl.Tier) -> fl.Model:
            part = self._tier(world, self.fitting(world, tier)[-1])
            return fl.Model(part.graph, part.transfer.pull(state.group("global"), copy=False))

        return fl.by_tier(world, state, norm=self.norm, model=model, idle=True)

    def pool(self, world: fl.World) -> tuple[Member, ...]:
        """Return the members of all levels."""
        levels = tuple((tier.name, ag.cost(tier.graph).parameters) for tier in world.tiers)
        return pool(world.graph, levels, self.starts)

    def fitting(self, world: fl.World, tier: fl.Tier) -> list[Member]:
        """Return the members that have no more parameters than a tier."""
        most = ag.cost(tier.graph).parameters
        return [one for one in self.pool(world) if one.parameters <= most]

    def member(self, world: fl.World, client: int, round: int) -> Member:
        """Return what a client trains in a round."""
        fitting, members = self.fitting(world, world.tier_of(client)), self.pool(world)
        if self.choice == "largest":
            return fitting[-1]
        generator = fl.seeded(world.seed, "adaptivefl", round, client)
        drawn = members[int(torch.randint(len(members), (), generator=generator))]
        parts = [m for m in fitting if all(map(int.__le__, m.sizes, drawn.sizes))]
        return (parts or fitting[:1])[-1]

    def _tier(self, world: fl.World, member: Member) -> fl.Tier:
        """Return a member as an architecture."""
        taken = _taken(world.graph, member.sizes)
        return replace(world.tier(member.level), graph=taken.graph, transfer=taken.transfer)
