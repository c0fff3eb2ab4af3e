"""HeteroFL: clients train the first channels of every layer; the server averages covered entries.

Diao, Ding, Tarokh: *HeteroFL: Computation and Communication Efficient Federated Learning for
Heterogeneous Clients*, ICLR 2021, Algorithm 1.

=======================  ================================================================
symbol                   here
=======================  ================================================================
``W_g``                  group ``global`` of the server state
``r_m``                  rate of client m: ``rates``, or measured on its tier's transfer
``W_g[:d_m, :k_m]``      ``Tier.transfer.pull``: the first channels of every layer
mean over levels ``p``   ``ag.Merger``: every entry over the clients that cover it
``Scaler``               ``ag.add_scaler``: divide by ``r_m`` while training
sBN                      norm policy ``static``
=======================  ================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

import archgraph as ag
from archgraph import federation as fl


@dataclass(frozen=True)
class HeteroFL(fl.Averaging, fl.Masking):
    """Options of HeteroFL.

    Attributes:
        mode: ``fix``: clients keep their tiers. ``dynamic``: in every round, each client draws a
            tier with probabilities proportional to the family's counts.
        rates: Width rates of tiers by name; other rates are measured (``federation.rate_of``).
        scaler: Divide by the rate in training mode, after every weighted operator.
        label_rows: Merge the rows of a label only from clients that have the label.
        norm: How running statistics are treated. If a narrow tier has running statistics,
            ``averaged`` and ``local`` need ``scaler: false``: the statistics would be those of
            scaled activations, but tests do not scale.

    Example:
        >>> HeteroFL(mode="dynamic").norm
        'static'
    """

    paper = "HeteroFL"
    year = 2021
    serves = ("width", "depth")

    mode: Literal["fix", "dynamic"] = "fix"
    rates: Mapping[str, float] = field(default_factory=dict)
    scaler: bool = True
    mask_absent: bool = True
    label_rows: bool = True
    weights: fl.Weights = "uniform"  # as in the official code
    norm: Literal["averaged", "local", "static"] = "static"

    def __post_init__(self) -> None:
        """Check that rates are rates, and that kept statistics fit the next round."""
        for name, rate in self.rates.items():
            if not 0 < rate <= 1:
                raise ag.SpecError(
                    "out of range", where=f"rates.{name}", found=rate, expected="above 0, at most 1"
                )
        if self.mode == "dynamic" and self.norm == "local":
            message = "kept statistics have the width of the last tier; the mode is dynamic"
            raise ag.SpecError(message, where="norm", expected="static or averaged")

    @property
    def reads_labels(self) -> bool:
        """Rows of a label are merged from clients that have it."""
        return self.label_rows

    def init(self, world: fl.World) -> fl.ServerState:
        """Start from ``W_g``, and assign tiers to clients.

        Raises:
            RunError: If ``rates`` names an unknown tier, or a scaled tier would be tested with
                statistics of scaled activations.
        """
        for name in self.rates:
            world.tier(name)
        for tier in world.tiers if self.scaler else ():
            fl.check_scaled(tier, self._rate(tier), self.norm, where="strategy.heterofl")
        return (
            fl.ServerState()
            .with_group("global", world.state)
            .with_values(tiers=[c.name for c in world.clients])
        )

    def begin(
        self, world: fl.World, state: fl.ServerState, round: int, sampled: Sequence[int]
    ) -> fl.ServerState:
        """Draw, in dynamic mode, new rates for all clients."""
        if self.mode == "fix":
            return state
        names = [t.name for t in world.tiers]
        odds = [sum(c.name == name for c in world.clients) for name in names]
        # All clients, sampled or not: sampling must not change what the others receive.
        drawn = torch.multinomial(
            torch.tensor(odds, dtype=torch.float64),
            len(world.clients),
            replacement=True,
            generator=fl.seeded(world.seed, "heterofl rates", round),
        )
        return state.with_values(tiers=[names[i] for i in drawn.tolist()])

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send ``W_m ← W_g[:d_m, :k_m]`` to client m (Algorithm 1, first inner loop)."""
        tier = world.tier(state.values["tiers"][client])
        mask = self.mask_absent
        task = fl.part(world, state, client, tier=tier, mask_absent=mask, norm=self.norm)
        # The scaler has no weights, so the tier's transfer fits the scaled graph, too.
        return replace(task, graph=fl.scaled(tier.graph, self._rate(tier))) if self.scaler else task

    def receive(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], round: int
    ) -> fl.ServerState:
        """Average each value over the clients that have it (Algorithm 1, second inner loop)."""
        rows = self.owned_rows(world)
        return fl.covered_mean(world, state, results, weights=self.weights, rows=rows)

    def evaluated(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Evaluated]:
        """Evaluate the global model, and each tier's on the data of the clients that run it."""
        return fl.by_tier(world, state, norm=self.norm, runs=state.values["tiers"], idle=True)

    def owned_rows(self, world: fl.World) -> Callable[[fl.Result], Mapping[str, Tensor]] | None:
        """Return the function that marks a client's rows for a mean; None if all rows count."""
        if not self.label_rows:
            return None
        return lambda result: self._rows(world.tier(result.tier), world.clients[result.client])

    def _rate(self, tier: fl.Tier) -> float:
        """Return the width rate of a tier, as set or measured."""
        return self.rates.get(tier.name) or fl.rate_of(tier)

    def _rows(self, tier: fl.Tier, client: fl.Client) -> Mapping[str, Tensor]:
        """Mark rows of label-wise entries by 0 or 1; empty if the client has every label."""
        present = torch.tensor([float(count > 0) for count in client.histogram])
        if all(present):
            return {}
        return dict.fromkeys(ag.label_rows(tier.graph, len(client.histogram)), present)
