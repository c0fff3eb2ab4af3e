"""FlexLoRA: products of factors are averaged; a client gets the mean's first singular directions.

Bai, Chen, Zhang, Li, Huang, Yu, Zhou: *Federated Fine-tuning of Large Language Models under
Heterogeneous Tasks and Client Resources*, NeurIPS 2024, §3.2.

==========================  ==========================================================
symbol                      here
==========================  ==========================================================
``ΔW = Σ p_k B_k A_k``      ``AdapterSums`` of ``LowRankAdapter.product``
``ΔW = U Σ Vᵀ``             ``torch.linalg.svd``, in double precision
the first ``r_k``           ``Transfer.pull``: the first positions of the rank
==========================  ==========================================================

Our choice: both factors are multiplied by ``√Σ``, which keeps the scales of their gradients
similar. Directions with a singular value of zero are arbitrary. For these directions, ``A`` is
drawn again and ``B`` is zero, as in new adapters; if both were zero, they would never be trained
again. Singular values within the rounding error of 32-bit factors count as zero. A classifier, for
example, always has such a direction, because cross-entropy does not train the sum of all logits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from archgraph import federation as fl

ZERO, ROUNDED = 1e-12, 1e-6  # relative to the largest singular value: 64-bit factors, others


@dataclass(frozen=True)
class FlexLoRA(fl.LowRankAveraging):
    """Options of FlexLoRA.

    Example:
        >>> FlexLoRA(weights="uniform").serves
        ('rank',)
    """

    paper = "FlexLoRA"
    year = 2024
    serves = ("rank",)
    averages = False  # products are averaged, not entries
    in_pairs = True

    def merged(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], round: int
    ) -> fl.ServerState:
        """Average the products ``B A``, and factor each mean into a new ``B`` and ``A`` (SVD)."""

        def product(adapter: fl.LowRankAdapter, result: fl.Result) -> tuple[tuple[Tensor], float]:
            return (adapter.product(result.state),), result.weight(self.weights)

        sums = fl.AdapterSums(product)
        rest = sums.watched(self.shared(world), results)
        after = fl.covered_mean(world, state, rest, weights=self.weights)
        weights = dict(after.group("global"))
        fresh = fl.fresh_factors(world, "flexlora", round)
        for adapter, (mean,) in sums.means().items():
            down, up = weights[adapter.down], weights[adapter.up]
            left, values, right = torch.linalg.svd(mean, full_matrices=False)
            root = values[: down.shape[0]].sqrt()
            zero = ZERO if up.dtype == torch.float64 else ROUNDED
            count = int((values[: len(root)] > zero * values[0]).sum())
            new_down = fresh[adapter.down].double().flatten(1)
            new_up = torch.zeros_like(up, dtype=torch.float64).flatten(1)
            new_down[:count] = root[:count, None] * right[:count]
            new_up[:, :count] = left[:, :count] * root[:count]
            weights[adapter.down] = new_down.reshape(down.shape).to(down.dtype)
            weights[adapter.up] = new_up.reshape(up.shape).to(up.dtype)
        return after.with_group("global", weights)
