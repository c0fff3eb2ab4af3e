"""Clustered-FL: clients whose updates point in different directions are trained in clusters.

Sattler, Müller, Samek: *Clustered Federated Learning: Model-Agnostic Distributed Multi-Task
Optimization under Privacy Constraints*, IEEE TNNLS 2020 (Algorithms 1-2, Eqs. 26-30).

========================  ===============================================================
symbol                    here
========================  ===============================================================
cluster ``c``             a number; ``values["clusters"]`` lists the cluster of each client
``θ_c``                   group ``cluster/c`` of the server state
``ΔW_i``                  parameters as a client returns them minus those that it was sent
``α_ij``                  cosine of two updates, computed from :class:`PairwiseProducts`
``ε_1``, ``ε_2``          ``mean_norm``, ``largest_norm``
bipartition               :func:`bipartition`
========================  ===============================================================

FedFA and FedADP use the name Clustered-FL for FedAvg within each architecture, which is the preset
``by_architecture``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from archgraph import federation as fl


@dataclass(frozen=True)
class ClusteredFL(fl.Averaging, fl.Masking):
    """Options of Clustered-FL.

    Attributes:
        split: If True, split a cluster if its clients' updates have different directions. If False,
            keep one cluster per architecture, as at the start.
        mean_norm: ε_1. A cluster is split only if the norm of the mean of its clients' updates is
            below this value.
        largest_norm: ε_2. A cluster is split only if the largest norm of a client's update is above
            this value.
        after: Number of rounds before the first split.
        smallest: Minimum number of clients in a cluster that is split. The official code splits
            clusters of more than two clients.

    Example:
        >>> ClusteredFL().mean_norm
        0.4
    """

    paper = "Clustered Federated Learning"
    year = 2020
    serves = ("any",)
    needs_global = False

    split: bool = True
    mean_norm: float = fl.option(0.4, least=0)
    largest_norm: float = fl.option(1.6, least=0)
    after: int = fl.option(20, least=0)
    smallest: int = fl.option(3, least=2)
    weights: fl.Weights = "uniform"

    presets: ClassVar[Mapping[str, Mapping[str, fl.Json]]] = {
        "sattler": {"split": True},
        "by_architecture": {"split": False},
    }

    def init(self, world: fl.World) -> fl.ServerState:
        """Start with one cluster per architecture.

        Each cluster starts from the initial weights of the first tier with its architecture.
        """
        digests = [world.tier_of(c.id).graph.digest for c in world.clients]
        order = list(dict.fromkeys(digests))
        state = fl.ServerState().with_values(clusters=[order.index(digest) for digest in digests])
        for number, digest in enumerate(order):
            first = next(tier for tier in world.tiers if tier.graph.digest == digest)
            state = state.with_group(f"cluster/{number}", first.state)
        return state

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send ``θ_c``, the weights of the client's cluster."""
        return fl.part(
            world,
            state,
            client,
            # A cluster has its own model: nothing is cut out of the global one.
            tier=world.tier_of(client).alone,
            mask_absent=self.mask_absent,
            norm=self.norm,
            weights=self._weights(state, client),
        )

    def receive(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], round: int
    ) -> fl.ServerState:
        """Average the clients of each cluster, then split clusters whose clients' updates disagree.

        After a split, both new clusters start from the mean of the old cluster. A cluster is split
        only in a round in which all of its clients have returned a result.
        """
        # Cosines and norms need inner products only: no client's update is stored.
        products = fl.PairwiseProducts()
        judged = self.split and round > self.after

        def contributions() -> Iterator[fl.Contribution]:
            for result in results:
                graph = world.tier_of(result.client).graph
                if judged:
                    sent = self._weights(state, result.client)
                    update = {
                        p.name: result.state[p.name].cpu() - sent[p.name]
                        for p in graph.params
                        if p.trainable and p.name in result.state
                    }
                    products.add(result.client, update)
                group = f"cluster/{state.values['clusters'][result.client]}"
                yield fl.Contribution.of(result, graph, self.weights, group=group)

        merged = fl.group_means(world, state, contributions())
        return self._split(merged, products) if judged else merged

    def evaluated(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Evaluated]:
        """Evaluate one model per tier.

        If a tier's clients are in several clusters, evaluate the model of each client's cluster.
        """

        def model(tier: fl.Tier) -> fl.Model:
            return fl.Model(tier.graph, self._weights(state, world.clients_of(tier.name)[0]))

        clusters = state.values["clusters"]
        for tested in fl.by_tier(world, state, norm=self.norm, model=model, whole=False):
            if len({clusters[client] for client in tested.clients}) > 1:
                versions = functools.partial(self._weights, state)
                tested = dataclasses.replace(tested, states=versions)
            yield tested

    def _weights(self, state: fl.ServerState, client: int) -> fl.State:
        """Return the weights of a client's cluster."""
        return state.group(f"cluster/{state.values['clusters'][client]}")

    def _split(self, state: fl.ServerState, products: fl.PairwiseProducts) -> fl.ServerState:
        """Split clusters whose mean has converged while single clients still move."""
        clusters = list(state.values["clusters"])
        for number in range(max(clusters) + 1):
            members = [client for client, its in enumerate(clusters) if its == number]
            if len(members) < self.smallest or not products.clients.issuperset(members):
                continue
            inner = products.of(members)
            mean, largest = inner.mean().clamp(min=0).sqrt(), inner.diagonal().max().sqrt()
            # The mean has converged but single clients still move: they pull in different
            # directions.
            if mean < self.mean_norm and largest > self.largest_norm:
                new = max(clusters) + 1
                for member in bipartition(cosines(inner))[1]:
                    clusters[members[member]] = new
                state = state.with_group(f"cluster/{new}", state.group(f"cluster/{number}"))
        return state.with_values(clusters=clusters)


def cosines(inner: Tensor) -> Tensor:
    """Return the cosines of vectors from their inner products; 0 for zero vectors.

    Example:
        >>> cosines(torch.tensor([[4.0, -2.0, 0], [-2.0, 1.0, 0], [0, 0, 0]]))[0].tolist()
        [1.0, -1.0, 0.0]
    """
    norms = inner.diagonal().clamp(min=0).sqrt()
    both = norms.outer(norms)
    # A client whose update is zero pulls in no direction.
    return torch.where(both > 0, inner / both, 0.0)


def bipartition(similarities: Tensor) -> tuple[list[int], list[int]]:
    """Split clients into two clusters by complete linkage.

    Each client starts as its own cluster. The similarity of two clusters is the smallest similarity
    between their members. The two most similar clusters are merged until two clusters remain.

    Args:
        similarities: Similarity of each pair of clients, ``[client, client]``, for at least two
            clients.

    Returns:
        The indices of the clients in both clusters. The first cluster contains index 0.

    Example:
        >>> near, far = 0.9, -0.2
        >>> bipartition(torch.tensor([[1, far, near], [far, 1, far], [near, far, 1]]))
        ([0, 2], [1])
    """
    parts = [[index] for index in range(len(similarities))]
    while len(parts) > 2:
        # Indices are negated, so that of equal similarities the first pair is joined.
        _, one, other = max(
            (float(similarities[a][:, b].min()), -i, -j)
            for i, a in enumerate(parts)
            for j, b in enumerate(parts[:i])
        )
        joined = sorted(parts[-one] + parts[-other])
        parts = [p for index, p in enumerate(parts) if index not in (-one, -other)] + [joined]
    first, second = sorted(parts)
    return first, second
