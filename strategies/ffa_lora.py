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

    def fixed(self, world: fl.World, round: int) -> frozenset[str]:
        """Fix the first factors: clients get them once."""
        return frozenset(a.down for a in fl.low_rank(world.graph))
