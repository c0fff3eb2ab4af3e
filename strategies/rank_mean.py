"""The covered mean by rank: each rank of an adapter over the clients that have it.

Not to be confused with HetLoRA: nothing is padded with zeros, and no client's weight depends on its
adapters. It is FedIT where all ranks are equal, and HeteroFL's average (Diao et al., ICLR 2021,
Algorithm 1) with the rank in place of the width.

The mean of factors differs from the mean of products, and a rank that only the largest client has
counts with its whole weight: the update of the weights differs from ``Σ p s B A``. FLoRA's stacks
are exact.
"""

from __future__ import annotations

from dataclasses import dataclass

from archgraph import federation as fl


@dataclass(frozen=True)
class RankMean(fl.LowRankAveraging):
    """Options of the covered mean by rank.

    Example:
        >>> RankMean(weights="uniform").norm
        'averaged'
    """

    paper = "HeteroFL"
    year = 2021
    serves = ("rank",)
