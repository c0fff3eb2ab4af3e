"""RoLoRA: rounds train and average the second factors and the first ones in turn.

Chen, Guo, Ju, Dalal, Liu, Zhang: *Robust Federated Finetuning of LLMs via Alternating Optimization
of LoRA*, 2025, Algorithm 1.

In every round one factor is the same everywhere, so that the mean of the products is the product
of the means, and both factors learn.
"""

from __future__ import annotations

from dataclasses import dataclass

from archgraph import federation as fl


@dataclass(frozen=True)
class RoLoRA(fl.LowRankAveraging):
    """Options of RoLoRA.

    Example:
        >>> RoLoRA().serves
        ('rank',)
    """

    paper = "RoLoRA"
    year = 2025
    serves = ("rank",)

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send the client its part: in odd rounds without ``A`` to train, in even ones without B.

        ``B`` is zero at first, so that ``A`` has no gradient before ``B`` was trained.
        """
        task = super().send(world, state, client, round)
        still = (a.down if round % 2 else a.up for a in fl.low_rank(world.graph))
        return fl.without_training(task, frozenset(still))
