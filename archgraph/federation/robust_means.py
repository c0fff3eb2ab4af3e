"""Robust means, which limit the influence of a few clients: the experiment's ``aggregate``.

The updates of a round are written to disk (:class:`Pool`). Krum selects clients, using their
updates of all groups. The mean, median or trimmed mean of each value is then taken over the
selected clients that cover the value. Sizes of tensors (FedFA's α) are averaged in the same way,
since one client could otherwise shift their mean. All clients have the same weight in Krum, median
and trimmed mean, because clients report their own weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from archgraph.federation.contribution import Contribution, EntrySizes
from archgraph.federation.server_optimiser import Reached
from archgraph.federation.state import ServerState
from archgraph.language.aggregate import AggregateSpec, KrumOptions, rounded_share
from archgraph.states import Merger, State
from archgraph.states.coverage import Coverage
from archgraph.states.pool import Pool
from archgraph.states.robust import krum


def robust_means(
    rules: AggregateSpec, state: ServerState, contributions: Iterable[Contribution]
) -> tuple[ServerState, dict[str, Reached]]:
    """Return the state with robust means, and which values the means have updated, per group.

    Args:
        rules: Krum, a median or a trimmed mean, or Krum followed by a median or trimmed mean.
        state: The server's state, which contains the groups.
        contributions: Contributions of the clients, at most one per client and group.
    """
    pools: dict[str, Pool] = {}
    sizes = EntrySizes()
    # All updates are needed at once, which may exceed memory: a pool stores them on disk.
    for one in contributions:
        if one.group not in pools:
            pools[one.group] = Pool(one.whole, state.group(one.group))
        sizes.add(one)
        pools[one.group].add(one.client, one.update)
    clients = sorted({update.client for pool in pools.values() for update in pool.updates})
    if rules.krum is not None:
        clients = krum_clients(rules.krum, list(pools.values()), clients)
    reached = {}
    for group, pool in pools.items():
        new: State
        coverage: Mapping[str, torch.Tensor]
        if rules.middle is None:
            new, coverage = merged(pool, state.group(group), clients, sizes.means(group, clients))
        else:
            cut, quorum = rules.middle.cut, rules.middle.quorum
            factors = sizes.means(group, clients, cut)
            new, coverage = pool.middle_and_reach(
                cut, quorum=quorum, clients=clients, multiply=factors
            )
        state = state.with_group(group, new)
        reached[group] = Reached(pool.graph, coverage)
    return state, reached


def krum_clients(options: KrumOptions, pools: Sequence[Pool], clients: Sequence[int]) -> list[int]:
    """Return the clients that Krum selects: their updates are nearest to those of other clients."""
    # Squared distances add up over groups, as if a client's update were one vector.
    squares = torch.zeros(len(clients), len(clients), dtype=torch.float64)
    counts = torch.zeros_like(squares)
    for pool in pools:
        for total, part in zip((squares, counts), pool.squared_distances(clients), strict=True):
            total += part
    malicious = rounded_share(options.malicious, len(clients))
    # If updates were rejected in this round, there are fewer clients than the rule expects.
    keep = min(options.keep, len(clients) - malicious)
    return [clients[index] for index in krum(squares, counts, malicious, keep)]


def merged(
    pool: Pool, old: State, clients: Sequence[int], factors: dict[str, float]
) -> tuple[dict[str, torch.Tensor], Coverage]:
    """Return the mean of some clients' updates, and the total weight of the clients per value."""
    # The order of float32 additions determines the last bits.
    merger = Merger(pool.graph, old)
    for update in pool.read(clients):
        merger.accumulate(update)
    return merger.result(multiply=factors)
