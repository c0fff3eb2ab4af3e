"""FFA-LoRA: the first factor of every adapter is drawn once and frozen, the second is averaged.

Sun, Li, Li, Ding: *Improving LoRA in Privacy-preserving Federated Learning*, ICLR 2024, §4.

With one ``A`` for all, the mean of the products ``B_k A`` is the product of the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

from archgraph import federation as fl


@dataclass(frozen=True)
class FFALoRA(fl.LowRankAveraging):
    """Options of FFA-LoRA.

    Example:
        >>> FFALoRA().serves
        ('rank',)
    """

    paper = "FFA-LoRA"
    year = 2024
    serves = ("rank",)

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send the client its part, to be trained without the first factors."""
        task = super().send(world, state, client, round)
        return fl.without_training(task, frozenset(a.down for a in fl.low_rank(world.graph)))
