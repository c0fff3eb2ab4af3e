"""HeteroFL's scaler, which divides activations of narrow models by their width rate in training."""

from __future__ import annotations

import functools

from archgraph.errors import RunError
from archgraph.federation.norms import NormName, NormPolicy
from archgraph.federation.world import Tier
from archgraph.graph.ir import ArchGraph
from archgraph.rewrites.scaler import add_scaler


@functools.lru_cache(maxsize=64)
def scaled(graph: ArchGraph, rate: float, always: bool = False) -> ArchGraph:
    """Return the graph with HeteroFL's scalers: in training, activations are divided by ``rate``.

    The result is cached. All clients of a tier therefore share one compiled module.

    Args:
        graph: The architecture.
        rate: Width rate of the architecture.
        always: If True, also divide in evaluation.
    """
    return add_scaler(graph, rate, always=always).graph


def rate_of(tier: Tier) -> float:
    """Return the width rate of a tier.

    Among all dimensions of parameters that are narrower in the tier than in the global model, the
    largest is used. The rate is the tier's size of this dimension, divided by the global model's
    size. In smaller dimensions, rounding to whole channels would change the fraction more.
    """
    source = {e.name: e.shape for e in tier.transfer.source}
    # The first of equally large dimensions, so that the rate does not depend on ties.
    size, rate = 0, 1.0
    for entry in tier.transfer.target:
        origin = tier.transfer.entries[entry.name].source
        if origin is not None:
            for narrow, full in zip(entry.shape, source[origin], strict=True):
                if narrow < full and full > size:
                    size, rate = full, narrow / full
    return rate


def check_scaled(tier: Tier, rate: float, norm: NormName, *, where: str) -> None:
    """Check that a tier's running statistics can be used in tests.

    HeteroFL's scaler divides activations in training but not in tests. Running statistics from
    training therefore do not fit the activations in tests: the accuracy would be at chance level.

    Args:
        tier: The tier to check.
        rate: Width rate of the tier.
        norm: How running statistics are treated. With ``static``, they are recomputed before tests.
        where: Location of the strategy's options in the file, for errors.

    Raises:
        RunError: If ``rate`` is below 1 and the tier has running statistics that are not
            recomputed.
    """
    statistics = NormPolicy("static").unmerged(tier.graph)
    if norm != "static" and statistics and rate < 1:
        raise RunError(
            "tests would use running statistics of scaled activations, but do not scale",
            where=f"{where}: tier {tier.name}",
            found=f"norm: {norm}",
            expected="norm: static; or scaler: false",
        )
