"""HeteroFL: clients train the first channels of each layer; a weight is averaged where trained.

Diao, Ding, Tarokh: *HeteroFL: Computation and Communication Efficient Federated Learning for
Heterogeneous Clients*, ICLR 2021, Algorithm 1.

=======================  ================================================================
symbol                   here
=======================  ================================================================
``W_g``                  group ``global`` of the server state
``r_m``                  rate of client m: ``rates``, or measured on its tier's transfer
``W_g[:d_m, :k_m]``      ``Tier.transfer.pull``: the first channels of every layer
mean over levels ``p``   ``ag.Merger``: every value, over the clients whose model has it
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
            tier with probabilities proportional to the tiers' numbers of clients.
        rates: Dict from tier to width rate. For tiers that are not in the dict, the rate is
            measured (``federation.rate_of``).
        scaler: If True, divide the output of every layer with weights by the tier's width rate, in
            training mode only.
        label_rows: If True, average the row of the head that belongs to a label only over the
            clients whose data contain this label.
        norm: How running statistics are treated. If a narrow tier has running statistics,
            ``averaged`` and ``local`` require ``scaler: false``. With the scaler, the statistics
            would be those of scaled activations, although activations are not scaled in evaluation
            mode.

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
        """Check that rates are in (0, 1], and that ``mode`` and ``norm`` are compatible."""
        for name, rate in self.rates.items():
            if not 0 < rate <= 1:
                raise ag.SpecError(
                    "out of range", where=f"rates.{name}", found=rate, expected="above 0, at most 1"
                )
        if self.mode == "dynamic" and self.norm == "local":
            message = "kept statistics would have the width of the previous round's tier"
            raise ag.SpecError(message, where="norm", expected="static or averaged, or `mode: fix`")

    @property
    def reads_labels(self) -> bool:
        """Whether the averages depend on the labels that a client has."""
        return self.label_rows

    def init(self, world: fl.World) -> fl.ServerState:
        """Start from the global model ``W_g``, and assign tiers to clients.

        Raises:
            RunError: If ``rates`` names an unknown tier, or ``norm`` does not work with ``scaler``
                for a tier.
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
        """In dynamic mode, draw a new tier for every client."""
        if self.mode == "fix":
            return state
        names = [t.name for t in world.tiers]
        odds = [sum(c.name == name for c in world.clients) for name in names]
        # For all clients, so that sampling does not change what the other clients receive.
        drawn = torch.multinomial(
            torch.tensor(odds, dtype=torch.float64),
            len(world.clients),
            replacement=True,
            generator=fl.seeded(world.seed, "heterofl rates", round),
        )
        return state.with_values(tiers=[names[i] for i in drawn.tolist()])

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send client m the first channels ``W_g[:d_m, :k_m]`` (Algorithm 1, first inner loop)."""
        tier = world.tier(state.values["tiers"][client])
        mask = self.mask_absent
        task = fl.part(world, state, client, tier=tier, mask_absent=mask, norm=self.norm)
        # The scaler has no weights, so the tier's transfer fits the scaled graph, too.
        return replace(task, graph=fl.scaled(tier.graph, self._rate(tier))) if self.scaler else task

    def receive(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], round: int
    ) -> fl.ServerState:
        """Average each value over the clients whose model has it (Algorithm 1, second loop)."""
        rows = self.owned_rows(world)
        return fl.covered_mean(world, state, results, weights=self.weights, rows=rows)

    def evaluated(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Evaluated]:
        """Evaluate the global model, and each tier's model on the data of the tier's clients."""
        return fl.by_tier(world, state, norm=self.norm, runs=state.values["tiers"], idle=True)

    def owned_rows(self, world: fl.World) -> Callable[[fl.Result], Mapping[str, Tensor]] | None:
        """Return a function that takes a client's result, and returns masks for rows of the head.

        The function returns a dict from tensor name to mask. A mask contains one number per row of
        the tensor: 1 if the client has the row's label, and 0 otherwise. Only rows with 1 are
        averaged. The dict is empty if the client has all labels. Without ``label_rows``, return
        None.
        """
        if not self.label_rows:
            return None
        return lambda result: self._rows(world.tier(result.tier), world.clients[result.client])

    def _rate(self, tier: fl.Tier) -> float:
        """Return the width rate of a tier, as set or measured."""
        return self.rates.get(tier.name) or fl.rate_of(tier)

    def _rows(self, tier: fl.Tier, client: fl.Client) -> Mapping[str, Tensor]:
        """Return 0 or 1 for each row of the head; an empty dict if the client has every label."""
        present = torch.tensor([float(count > 0) for count in client.histogram])
        if all(present):
            return {}
        return dict.fromkeys(ag.label_rows(tier.graph, len(client.histogram)), present)
