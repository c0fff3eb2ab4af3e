"""Means that a few clients cannot move: what an experiment's ``aggregate`` makes of updates.

The updates of a round are written to disk (:class:`Pool`). Krum chooses clients by all that they
add, to any group. The chosen updates are averaged, or their median or trimmed mean is taken, value
by value over the clients that cover it. Sizes of entries (FedFA's α) are averaged in the same way,
else one client could move all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from archgraph.federation.contribution import Contribution, EntrySizes
from archgraph.federation.state import ServerState
from archgraph.language.aggregate import AggregateSpec, KrumOptions, rounded_share
from archgraph.states import Merger, State
from archgraph.states.pool import Pool
from archgraph.states.robust import krum


def robust_means(
    rules: AggregateSpec, state: ServerState, contributions: Iterable[Contribution]
) -> ServerState:
    """Return what :func:`group_means` does, by rules that need all updates of a round.

    Args:
        rules: Krum, a median or a trimmed mean, or Krum and then one of them.
        state: Holds the groups.
        contributions: What clients add, one at a time, to each group once.
    """
    pools: dict[str, Pool] = {}
    sizes = EntrySizes()
    # All of them are needed at once, which is more than memory holds: a pool is on disk.
    for one in contributions:
        if one.group not in pools:
            pools[one.group] = Pool(one.whole, state.group(one.group))
        sizes.add(one)
        pools[one.group].add(one.client, one.update)
    clients = sorted({update.client for pool in pools.values() for update in pool.updates})
    if rules.krum is not None:
        clients = krum_clients(rules.krum, list(pools.values()), clients)
    for group, pool in pools.items():
        new: State
        if rules.middle is None:
            new = merged(pool, state.group(group), clients, sizes.means(group, clients))
        else:
            cut, quorum = rules.middle.cut, rules.middle.quorum
            factors = sizes.means(group, clients, cut)
            new = pool.middle(cut, quorum=quorum, clients=clients, multiply=factors)
        state = state.with_group(group, new)
    return state


def krum_clients(options: KrumOptions, pools: Sequence[Pool], clients: Sequence[int]) -> list[int]:
    """Return the clients whose updates are nearest to their neighbours, over all groups."""
    # Squared distances add up over groups, as if all that a client adds were one vector.
    squares = torch.zeros(len(clients), len(clients), dtype=torch.float64)
    counts = torch.zeros_like(squares)
    for pool in pools:
        for total, part in zip((squares, counts), pool.squared_distances(clients), strict=True):
            total += part
    malicious = rounded_share(options.malicious, len(clients))
    # Updates may have been refused in this round: then there are fewer than the rule counts on.
    keep = min(options.keep, len(clients) - malicious)
    return [clients[index] for index in krum(squares, counts, malicious, keep)]


def merged(
    pool: Pool, old: State, clients: Sequence[int], factors: dict[str, float]
) -> dict[str, torch.Tensor]:
    """Return the covered mean of some clients' updates, in ascending order."""
    # The order in which float32 is added decides the last bits.
    merger = Merger(pool.graph, old)
    for update in pool.read(clients):
        merger.accumulate(update)
    return merger.result(multiply=factors)[0]
