"""FedRolex: narrow clients train a window of channels, which moves in every round.

Alam, Liu, Yan, Zhang: *FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model
Extraction*, NeurIPS 2022 (Algorithm 1, Eqs. 1-3).

========================  ===============================================================
symbol                    here
========================  ===============================================================
``Θ``                     group ``global`` of the server state
``β_n K_i``               ``ag.widths``: how many channels of layer i the tier has
``ĵ = j mod K_i``         ``round - 1``, times ``step``
``S_n,i^(j)`` (Eq. 1)     :func:`window`: that many channels from ĵ on, wrapping round
``θ_n^(j)``               ``Θ`` at these channels of every layer
Eqs. 2-3                  ``covered_mean``
========================  ===============================================================

The window of an axis depends only on the axis's size. Both operands of a residual sum therefore
keep the same channels.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import archgraph as ag
from archgraph import federation as fl


@functools.lru_cache(maxsize=64)
def window(graph: ag.ArchGraph, transfer: ag.Transfer, start: int) -> ag.Rewritten:
    """Take as many channels of every axis as a tier has, from index ``start`` on, cyclically.

    Example:
        >>> import torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        >>> graph = ag.trace(net, torch.zeros(1, 2)).graph
        >>> print(window(graph, ag.take(graph, 0.5).transfer, 3).transfer.entries["0.weight"])
        0.weight[::3, :]
    """
    count, free = ag.widths(graph, transfer), ag.axes(graph).free
    # A cut needs ascending indices; the order of channels does not change the function.
    rolled = {
        axis.name: sorted((start + i) % axis.size for i in range(count[axis.name]))
        for axis in free
        if axis.name in count
    }
    return ag.take(graph, positions=rolled, allow_nothing=True)


@dataclass(frozen=True)
class FedRolex(fl.PartAveraging):
    """Options of FedRolex.

    Attributes:
        step: Number of channels by which the window of trained channels moves in each round.
        direction: Direction in which the window moves. ``forward``: towards higher channel numbers.
            ``backward``: towards lower channel numbers, as in the official code.
        scaler: If True, activations are divided in training by the tier's width rate (the fraction
            of channels that the tier has). HeteroFL and the official code of FedRolex do this, but
            the paper does not.
        norm: How running statistics are treated. Running statistics cannot stay with a client,
            because the client's window moves.

    Example:
        >>> FedRolex(direction="backward").step
        1
    """

    paper = "FedRolex"
    year = 2022
    serves = ("width",)

    step: int = fl.option(1, least=0)
    direction: Literal["forward", "backward"] = "forward"
    scaler: bool = False
    weights: fl.Weights = "uniform"
    norm: Literal["static", "averaged"] = "static"

    presets: ClassVar[Mapping[str, Mapping[str, fl.Json]]] = {
        "paper": {"direction": "forward"},
        "official_code": {"direction": "backward", "mask_absent": True, "scaler": True},
    }

    def init(self, world: fl.World) -> fl.ServerState:
        """Start from the global model ``Θ^(0)``.

        Raises:
            RunError: If a tier differs from the global model in more than its widths, or ``norm``
                does not work with ``scaler`` for a tier.
        """
        for tier in world.tiers:
            if self.scaler:
                fl.check_scaled(tier, fl.rate_of(tier), self.norm, where="strategy.fedrolex")
            if self._rolled(world, tier, 1).transfer.target != tier.transfer.target:
                raise ag.RunError(
                    "FedRolex only narrows the global model",
                    where=f"tier {tier.name}",
                    expected="a tier with only `take`",
                    hint="fedfa, nefl and fedadp serve shallower clients, too",
                )
        return fl.ServerState().with_group("global", world.state).with_values(round=1)

    def begin(
        self, world: fl.World, state: fl.ServerState, round: int, sampled: Sequence[int]
    ) -> fl.ServerState:
        """Store the number j of the round, which determines the submodels that are evaluated."""
        return state.with_values(round=round)

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send client n its part ``θ_n^(j)`` of the global model (lines 5-7)."""
        tier = self._rolled(world, world.tier_of(client), round)
        mask = self.mask_absent
        task = fl.part(world, state, client, tier=tier, mask_absent=mask, norm=self.norm)
        # The scaler has no weights, so the window's transfer fits the scaled graph, too.
        return replace(task, graph=fl.scaled(tier.graph, fl.rate_of(tier))) if self.scaler else task

    def evaluated(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Evaluated]:
        """Evaluate the global model, and the submodel that each tier had in the last round."""
        rolled = functools.partial(self._rolled, world, round=state.values["round"])
        return fl.by_tier(world, state, norm=self.norm, submodel=rolled, idle=True)

    def _rolled(self, world: fl.World, tier: fl.Tier, round: int) -> fl.Tier:
        """Return a tier with the window of a round."""
        start = (round - 1) * self.step * (1 if self.direction == "forward" else -1)
        rolled = window(world.graph, tier.transfer, start)
        # One graph for all windows where possible: its module is compiled once.
        graph = tier.graph if tier.graph == rolled.graph else rolled.graph
        return replace(tier, graph=graph, transfer=rolled.transfer)
