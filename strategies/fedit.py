"""FedIT: low-rank adapters of equal rank are averaged, each of their two factors separately.

Zhang, Vahidian, Kuo, Li, Zhang, Yu, Wang, Chen: *Towards Building the Federated GPT: Federated
Instruction Tuning*, ICASSP 2024, §3 (LoRA adapters, averaged as in FedAvg).

The product of the mean factors is not the mean of the products ``B_k A_k``. For clients with
different ranks, use ``rank_mean``, ``hetlora``, ``flexlora`` or ``flora``.
"""

from __future__ import annotations

from dataclasses import dataclass

import archgraph as ag
from archgraph import federation as fl


@dataclass(frozen=True)
class FedIT(fl.LowRankAveraging):
    """Options of FedIT.

    Example:
        >>> FedIT().weights
        'examples'
    """

    paper = "Federated Instruction Tuning"
    year = 2024
    serves = ("one",)

    def init(self, world: fl.World) -> fl.ServerState:
        """Start from the global model.

        Raises:
            RunError: If the global model has no low-rank adapters, or a client's adapters have
                another rank.
        """
        state = super().init(world)
        for tier in world.tiers:
            if tier.transfer != ag.Transfer.identity(world.graph):
                hint = "rank_mean averages each rank over the clients that have it"
                where = f"tier {tier.name}"
                raise ag.RunError("FedIT averages adapters of one rank", where=where, hint=hint)
        return state
