"""FFA-LoRA: the first factor of every adapter is drawn once and frozen, the second is averaged.

Sun, Li, Li, Ding: *Improving LoRA in Privacy-preserving Federated Learning*, ICLR 2024, §4.

All clients have the same ``A``, so the mean of their products ``B_k A`` is the mean of the ``B_k``
times ``A``.
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
        """Return the names of the adapters' first factors, which are not trained."""
        return frozenset(a.down for a in fl.low_rank(world.graph))
