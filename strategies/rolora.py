"""RoLoRA: clients train the adapters' second factors in odd rounds, the first in even rounds.

Chen, Guo, Ju, Dalal, Liu, Zhang: *Robust Federated Finetuning of LLMs via Alternating Optimization
of LoRA*, 2025, Algorithm 1.

In every round, only one factor is trained; the other is the same for all clients. The mean of the
clients' products is therefore the product of the mean factors.
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
        """Return the names of the factors that are not trained: ``A`` in odd rounds, else ``B``.

        ``B`` is trained first, because ``B`` starts at 0, and the gradient of ``A`` is 0 while
        ``B`` is 0.
        """
        return frozenset(a.down if round % 2 else a.up for a in fl.low_rank(world.graph))
