"""RoLoRA: rounds alternate between training and averaging the second and the first factors.

Chen, Guo, Ju, Dalal, Liu, Zhang: *Robust Federated Finetuning of LLMs via Alternating Optimization
of LoRA*, 2025, Algorithm 1.

In every round one factor is the same for all clients, so that the mean of the products is the
product of the means, and both factors learn.
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

    def fixed(self, world: fl.World, round: int) -> frozenset[str]:
        """Fix ``A`` in odd rounds, ``B`` in even ones: at B = 0, A has no gradient."""
        return frozenset(a.down if round % 2 else a.up for a in fl.low_rank(world.graph))
