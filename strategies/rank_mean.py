"""Rank mean: each row or column of adapter factors is averaged over the clients that have it.

Unlike in HetLoRA, adapters are not padded with zeros, and a client's aggregation weight does not
depend on its adapters. If all ranks are equal, this method is FedIT. The average is that of
HeteroFL (Diao et al., ICLR 2021, Algorithm 1), with the rank in place of the width.

The resulting update of the weights differs from ``Σ p s B A``, because the product of mean factors
is not the mean of the products, and because a row or column that only one client has keeps this
client's values unscaled. FLoRA, which stacks the factors, computes the sum exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

from archgraph import federation as fl


@dataclass(frozen=True)
class RankMean(fl.LowRankAveraging):
    """Options of the strategy that averages low-rank adapters row by row and column by column.

    Example:
        >>> RankMean(weights="uniform").norm
        'averaged'
    """

    paper = "HeteroFL"
    year = 2021
    serves = ("rank",)
