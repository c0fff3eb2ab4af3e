"""HetLoRA: adapters padded with zeros to the largest rank, weighted by the size of their product.

Cho, Liu, Xu, Fahrezi, Joshi: *Heterogeneous LoRA for Federated Fine-tuning of On-Device Foundation
Models*, EMNLP 2024, §3.2.

===================  ==============================================================
symbol               here
===================  ==============================================================
``r_k``              rank of client k: ``rank`` in its tier
``‖B_k A_k‖_F``      ``LowRankAdapter.product``, for each adapter
zero padding         ``Transfer.push``
truncation           ``Transfer.pull``: the first ``r_k`` positions
===================  ==============================================================

Left out: pruning of ranks during training (§3.1, ``γ`` and its penalty); ranks stay those of the
family.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from archgraph import federation as fl


@dataclass(frozen=True)
class HetLoRA(fl.LowRankAveraging):
    """Options of HetLoRA.

    Attributes:
        weights: Weight of a client in the means of all but adapters: its number of examples, or 1.

    Example:
        >>> HetLoRA().serves
        ('rank',)
    """

    paper = "HetLoRA"
    year = 2024
    serves = ("rank",)
    averages = False  # adapters have weights of their own

    def receive(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], round: int
    ) -> fl.ServerState:
        """Compute ``Σ ‖B_k A_k‖ pad(A_k) / Σ ‖B_k A_k‖``, likewise of B; the mean of all else."""

        def padded(
            adapter: fl.LowRankAdapter, result: fl.Result
        ) -> tuple[tuple[Tensor, ...], float]:
            assert result.transfer is not None
            pair = result.transfer.only({adapter.down, adapter.up})
            full, _ = pair.push({n: result.state[n].double() for n in (adapter.down, adapter.up)})
            norm = float(adapter.product(result.state).norm())
            return (full[adapter.down].double(), full[adapter.up].double()), norm

        sums = fl.AdapterSums(padded)
        rest = sums.watched(fl.low_rank(world.graph), results)
        after = fl.covered_mean(world, state, rest, weights=self.weights)
        weights = dict(after.group("global"))
        for adapter, (down, up) in sums.means().items():
            weights[adapter.down] = down.to(weights[adapter.down].dtype)
            weights[adapter.up] = up.to(weights[adapter.up].dtype)
        return after.with_group("global", weights)
