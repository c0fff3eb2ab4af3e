"""The scaler of HeteroFL and of methods built on its code: a tier's rate, and its scaled graph."""

from __future__ import annotations

import functools

from archgraph.errors import RunError
from archgraph.federation.norms import NormName, NormPolicy
from archgraph.federation.world import Tier
from archgraph.graph.ir import ArchGraph
from archgraph.rewrites.scaler import add_scaler


@functools.lru_cache(maxsize=64)
def scaled(graph: ArchGraph, rate: float, always: bool = False) -> ArchGraph:
    """Return the graph with a scaler; cached, so that clients of a tier share a compiled module.

    Args:
        graph: The architecture.
        rate: Its width rate.
        always: Divide in tests, too.
    """
    return add_scaler(graph, rate, always=always).graph


def rate_of(tier: Tier) -> float:
    """Return the width rate of a tier: the kept share of its largest narrowed dimension.

    Rounding up to whole channels distorts the largest dimension least.
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
    """Refuse statistics of scaled activations that would be used in tests, which do not scale.

    Weak models would train to a low loss and test at chance.

    Args:
        tier: A kind of client.
        rate: Its width rate.
        norm: How running statistics are treated; ``static`` ones are computed for the test.
        where: Location of the strategy's options.

    Raises:
        RunError: If the tier has running statistics that do not fit tests.
    """
    statistics = NormPolicy("static").unmerged(tier.graph)
    if norm != "static" and statistics and rate < 1:
        raise RunError(
            "statistics of scaled activations do not fit tests, which do not scale",
            where=f"{where}: tier {tier.name}",
            found=f"norm: {norm}",
            expected="norm: static; or scaler: false",
        )
