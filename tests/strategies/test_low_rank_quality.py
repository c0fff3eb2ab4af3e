"""Errors of merging adapters of several ranks: what is exact, and which method is nearer."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers", reason="needs the extra hf")

from benchmarks.low_rank_quality import RANKS, WHOLE, errors

EXACT = ("stacking", f"SVD to {WHOLE}")


@pytest.mark.full
@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["gpt2", "mobilenet_v2"])
def test_stacking_is_exact_and_of_all_others_the_svd_is_nearest(name: str):
    """Transposed weights and convolutions; a rank's best approximation is its singular vectors."""
    error = errors(name, "random")
    assert all(error[column] < 1e-12 for column in EXACT)
    svd = [error[f"SVD to {rank}"] for rank in RANKS]
    assert svd == sorted(svd, reverse=True) and svd[-1] > 0.01
    assert svd[-1] < error["zero padding"] < error["covered mean"]
