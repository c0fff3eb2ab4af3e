"""HetLoRA: adapters are padded with zeros to the largest rank, weighted by their product's norm.

Cho, Liu, Xu, Fahrezi, Joshi: *Heterogeneous LoRA for Federated Fine-tuning of On-Device Foundation
Models*, EMNLP 2024, §3.2.

===================  ==============================================================
symbol               here
===================  ==============================================================
``r_k``              rank of client k: ``rank`` in its tier
``‖B_k A_k‖_F``      ``LowRankAdapter.product``, for each adapter
zero padding         ``Transfer.push``
truncation           ``Transfer.pull``: the first ``r_k`` rows of A, columns of B
===================  ==============================================================

Our choice: aggregation weights are computed separately for each adapter. With ``prune`` (γ, §3.1),
a penalty is added to the loss: ``penalty`` (λ) times ``‖A_k‖ ‖B_k‖``, restricted to the rows and
columns from ``γ r_k`` on. If this value becomes smaller in a round, the client has rank ``γ r_k``
from the next round on. All adapters of a client have the same rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import archgraph as ag
from archgraph import federation as fl


@dataclass(frozen=True)
class Tail:
    """Penalty ``Σ ‖A‖ ‖B‖`` over adapters, without the first rows of A and columns of B.

    Attributes:
        adapters: The adapters.
        share: Fraction of the rank that the penalty leaves out.
        factor: Factor on the sum.
    """

    adapters: tuple[fl.LowRankAdapter, ...]
    share: float
    factor: float = 1.0

    def __call__(self, parameters: Mapping[str, Tensor], work: fl.Work | None = None) -> Tensor:
        """Return the sum times the factor."""
        norm, total = torch.linalg.vector_norm, torch.zeros(())
        for a in self.adapters:
            keep = math.ceil(self.share * len(parameters[a.down]))
            total = total + norm(parameters[a.down][keep:]) * norm(parameters[a.up][:, keep:])
        return self.factor * total


@dataclass(frozen=True)
class HetLoRA(fl.LowRankAveraging):
    """Options of HetLoRA.

    Attributes:
        prune: γ, the fraction of the rank that remains when a client's adapters are pruned.
            Default: no pruning.
        penalty: λ, the weight of a loss term that penalises the rows and columns of adapters that
            pruning would remove. Only used with ``prune``.
        weights: Weight of a client in the mean of all parameters except adapters: its number of
            examples (``examples``), or 1 (``uniform``).

    Example:
        >>> HetLoRA().serves
        ('rank',)
    """

    paper = "HetLoRA"
    year = 2024
    serves = ("rank",)
    averages = False  # adapters have their own weights
    in_pairs = True

    prune: float | None = fl.option(None, above=0, most=1)
    penalty: float = fl.option(1e-3, least=0)

    def init(self, world: fl.World) -> fl.ServerState:
        """Start from the global model.

        Raises:
            RunError: If the global model has no low-rank adapters, or ``prune`` is set and some
                adapters are private.
        """
        if self.prune is not None and len(self.shared(world)) < len(fl.low_rank(world.graph)):
            raise ag.RunError(
                "cuts the rank of all of a client's adapters, and some are private",
                where="prune",
                hint="remove prune, or the adapters from `private`",
            )
        return super().init(world).with_values(ranks={})

    def tier(self, world: fl.World, state: fl.ServerState, client: int) -> fl.Tier:
        """Return the client's tier, with the client's current rank."""
        tier, rank = world.tier_of(client), state.values["ranks"].get(str(client))
        if rank is None:
            return tier
        cut = ag.rank(tier.graph, rank)
        return replace(tier, graph=cut.graph, transfer=tier.transfer >> cut.transfer)

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send the client's part of the global model. With ``prune``, add a penalty to the loss."""
        task = super().send(world, state, client, round)
        if self.prune is None:
            return task
        tail = Tail(fl.low_rank(world.graph), self.prune, self.penalty)
        return replace(task, program=fl.Train(fl.TaskLoss(mask_absent=self.mask_absent), tail))

    def merged(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], round: int
    ) -> fl.ServerState:
        """Average the clients' adapters, weighted by ``‖B_k A_k‖``, and all other parameters.

        ``A ← Σ ‖B_k A_k‖ pad(A_k) / Σ ‖B_k A_k‖``, and likewise ``B``.
        """
        adapters, ranks = self.shared(world), dict(state.values["ranks"])

        def padded(a: fl.LowRankAdapter, result: fl.Result) -> tuple[tuple[Tensor, ...], float]:
            assert result.transfer is not None
            pair = result.transfer.only({a.down, a.up})
            full, _ = pair.push({name: result.state[name].double() for name in (a.down, a.up)})
            return (full[a.down], full[a.up]), float(a.product(result.state).norm())

        def pruned() -> Iterator[fl.Result]:
            for result in results:
                if self.prune is not None and result.transfer is not None:
                    tail = Tail(adapters, self.prune)
                    before = tail(result.transfer.pull(state.group("global"), copy=False))
                    rank = max(len(result.state[a.down]) for a in adapters)
                    keep = math.ceil(self.prune * rank)
                    if keep < rank and tail(result.state) < before:
                        ranks[str(result.client)] = keep
                yield result

        sums = fl.AdapterSums(padded)
        rest = sums.watched(adapters, pruned())
        after = fl.covered_mean(world, state, rest, weights=self.weights)
        weights = dict(after.group("global"))
        for a, (down, up) in sums.means().items():
            weights[a.down] = down.to(weights[a.down].dtype)
            weights[a.up] = up.to(weights[a.up].dtype)
        return after.with_group("global", weights).with_values(ranks=ranks)
