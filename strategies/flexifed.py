"""FlexiFed: clients with any architectures average the first layers that they have in common.

Wang, He, Chen, Chen, Huang, Jin, Yang: *FlexiFed: Personalized Federated Learning for Edge Clients
with Heterogeneous Model Architectures*, WWW 2023 (Basic-Common, Clustered-Common, Max-Common).

=====================  ========================================================================
term                   here
=====================  ========================================================================
layers of a client     :func:`chain_units`: operators with weights, in order
common base layers     :class:`CommonLayers` whose members are all clients
run of layers          consecutive layers that the same clients share: a :class:`CommonLayers`
cluster                the members of a run
*Max-Common*           the runs are the nodes of the prefix tree of all clients' layers
weights of a cluster   group ``trie/N`` of the server state; tensors are numbered within run N
personal layers        layers that are in no run: ``Task.private``
=====================  ========================================================================

Each run of a client has a transfer that maps the names in the run to the names of the client's
parameters. The runs are then averaged with ``group_means``, as in other methods.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor

import archgraph as ag
from archgraph import federation as fl

Sharing = Literal["basic", "clustered", "max"]
Match = Literal["operator", "name"]
Unit = Literal["layer", "block"]


@dataclass(frozen=True)
class FlexiFed(fl.Averaging, fl.Masking):
    """Options of FlexiFed.

    Attributes:
        sharing: ``basic``: average only the first layers that all clients have in common.
            ``clustered``: also average the other layers over the clients with the same
            architecture. ``max``: average each layer over all clients whose layers are the same up
            to this layer.
        match: Condition under which layers are the same. ``operator``: same operator, arguments and
            shapes. ``name``: same parameter names and shapes.
        unit: Unit of comparison. ``layer``: single layers (paper). ``block``: whole blocks. With
            single layers, the layers after the last block of a shallow Transformer can wrongly
            match the first layers of an additional block of a deeper Transformer.

    Example:
        >>> FlexiFed().sharing
        'max'
    """

    paper = "FlexiFed"
    year = 2023
    serves = ("any",)
    needs_global = False

    sharing: Sharing = "max"
    match: Match = "operator"
    unit: Unit = "layer"
    weights: fl.Weights = "uniform"

    presets: ClassVar[Mapping[str, Mapping[str, fl.Json]]] = {
        "paper": {"sharing": "max"},
        "as_in_FedADP": {"sharing": "clustered"},
        "as_in_FedFA": {"norm": "static", "mask_absent": True},
    }

    def init(self, world: fl.World) -> fl.ServerState:
        """Determine the shared layers.

        Each shared layer starts from the initial weights of the first architecture that has it.
        """
        # Tiers of one architecture are one chain; architectures that no client runs do not share.
        alike: dict[ag.ArchGraph, list[fl.Tier]] = {}
        for tier in world.tiers:
            if world.clients_of(tier.name):
                alike.setdefault(tier.graph, []).append(tier)
        chains = [[part.kind for part in chain_units(g, self.match, self.unit)] for g in alike]
        shared_runs = common_layers(chains, self.sharing)
        bounds: list[list[list[int]]] = [[] for _ in alike]
        for number, run in enumerate(shared_runs):
            for member in run.members:
                bounds[member].append([number, run.start, run.stop])
        tensors: dict[str, Tensor] = {}
        for cuts, (first, *_) in zip(bounds, alike.values(), strict=True):
            weights = first.state
            for number, transfer in self._runs(first.graph, cuts):
                for name, entry in transfer.entries.items():
                    # The first of the architectures that share a layer initialises the layer.
                    tensors.setdefault(f"trie/{number}/{entry.source}", weights[name])
        shared = {t.name: cuts for cuts, ts in zip(bounds, alike.values(), strict=True) for t in ts}
        return fl.ServerState(tensors, {"runs": shared})

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send the layers that the client shares. All other layers stay with the client."""
        tier = world.tier_of(client)
        weights, private = self._weights(state, tier)
        mask = self.mask_absent
        task = fl.part(world, state, client, mask_absent=mask, norm=self.norm, weights=weights)
        return dataclasses.replace(task, private=private)

    def receive(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], round: int
    ) -> fl.ServerState:
        """Average each shared layer over the clients that share it."""

        def contributions() -> Iterator[fl.Contribution]:
            for result in results:
                client = world.clients[result.client]
                graph = world.tier(client.name).graph
                unmerged, weight = result.unmerged | ag.frozen(graph), result.weight(self.weights)
                for number, transfer in self._runs(graph, state.values["runs"][client.name]):
                    names = transfer.entries.keys() & result.state.keys()
                    shared = {name: result.state[name] for name in names}
                    out = unmerged & transfer.entries.keys()
                    yield fl.Contribution(
                        client.id, f"trie/{number}", transfer.source, transfer, shared, weight, out
                    )

        return fl.group_means(world, state, contributions())

    def evaluated(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Evaluated]:
        """Evaluate each architecture's model, with each client's private layers.

        If all layers of a client with the global architecture are shared, the client's model is
        also evaluated as the global model.
        """

        def model(tier: fl.Tier) -> fl.Model:
            return fl.Model(tier.graph, self._weights(state, tier)[0])

        for tier in world.tiers:
            if tier.graph == world.graph and world.clients_of(tier.name):
                weights, private = self._weights(state, tier)
                if not private:
                    # Tested first: the tier's test reuses its outputs.
                    statistics = fl.NormPolicy(self.norm).evaluation
                    yield fl.Evaluated(fl.GLOBAL, tier.graph, weights, statistics=statistics)
                    break
        for tested in fl.by_tier(world, state, norm=self.norm, model=model, whole=False):
            private = self._weights(state, world.tier(tested.name))[1]
            yield dataclasses.replace(tested, private=bool(private))

    def _runs(
        self, graph: ag.ArchGraph, bounds: Sequence[Sequence[int]]
    ) -> Iterator[tuple[int, ag.Transfer]]:
        """Yield the runs of an architecture, each with its transfer to the architecture."""
        cuts = tuple((start, stop) for _, start, stop in bounds)
        private = fl.NormPolicy(self.norm).private(graph)
        transfers = run_transfers(graph, self.match, self.unit, cuts, private)
        return zip((number for number, *_ in bounds), transfers, strict=True)

    def _weights(self, state: fl.ServerState, tier: fl.Tier) -> tuple[fl.State, frozenset[str]]:
        """Return an architecture's weights, and the names of those private to each client."""
        weights: dict[str, Tensor] = {}
        for number, transfer in self._runs(tier.graph, state.values["runs"][tier.name]):
            # The map only renames: no copy is needed.
            weights |= {
                name: state.tensors[f"trie/{number}/{entry.source}"]
                for name, entry in transfer.entries.items()
            }
        private = frozenset(tier.graph.state_names) - weights.keys()
        # Private weights never leave their clients. The server has only the initial ones.
        if private:
            weights = {**tier.state, **weights}
        return {name: weights[name] for name in tier.graph.state_names}, private


class ChainUnit(NamedTuple):
    """A unit of comparison: a layer or a block.

    Attributes:
        kind: Key by which units are compared.
        entries: Names of the unit's parameters and buffers.
    """

    kind: Hashable
    entries: tuple[str, ...]


@functools.lru_cache(maxsize=1024)
def chain_units(
    graph: ag.ArchGraph, match: Match = "operator", unit: Unit = "layer"
) -> tuple[ChainUnit, ...]:
    """Return the layers or blocks of an architecture in order.

    ``match`` and ``unit`` are options of :class:`FlexiFed`.
    """

    def unit_of(part: Iterable[ag.Layer]) -> ChainUnit:
        part = list(part)
        names = [name for layer in part for name in layer.entries]
        kind: Hashable = tuple(layer.kind for layer in part)
        if match == "name":
            kind = tuple((n, graph.param[n].role, graph.param[n].type) for n in names)
        return ChainUnit(kind, tuple(names))

    if unit == "layer":
        return tuple(unit_of([layer]) for layer in ag.layers(graph))
    block = {node: block.name for block in ag.structure(graph).blocks for node in block.nodes}
    parts = itertools.groupby(ag.layers(graph), lambda layer: block.get(layer.node))
    return tuple(unit_of(part) for _, part in parts)


class CommonLayers(NamedTuple):
    """A run of layers that some architectures share.

    Attributes:
        members: Indices of the architectures.
        start: Index of the run's first layer in each architecture.
        stop: Index of the first layer after the run.
    """

    members: tuple[int, ...]
    start: int
    stop: int


def common_layers(
    chains: Sequence[Sequence[Hashable]], sharing: Sharing = "max"
) -> list[CommonLayers]:
    """Return the runs of layers that are averaged together; a layer is in at most one run.

    Args:
        chains: For each architecture, the kinds of its layers in order.
        sharing: See :class:`FlexiFed`.

    Example:
        >>> for run in common_layers(["abcd", "abce", "abx", "abcd"]):
        ...     print(*run)
        (0, 1, 2, 3) 0 2
        (0, 1, 3) 2 3
        (0, 3) 3 4
        (1,) 3 4
        (2,) 2 3
        >>> common_layers(["abcd", "abce"], "clustered")[1:]
        [CommonLayers(members=(0,), start=3, stop=4), CommonLayers(members=(1,), start=3, stop=4)]
    """
    shared = []
    undone = [(tuple(range(len(chains))), 0)] if chains else []
    while undone:
        members, start = undone.pop()
        first = chains[members[0]]
        stop = start
        while stop < len(first) and all(
            stop < len(chains[m]) and chains[m][stop] == first[stop] for m in members
        ):
            stop += 1
        if stop > start:
            shared.append(CommonLayers(members, start, stop))
        if sharing == "basic":
            break
        # Split where they differ: by the next layer, or once by everything that follows.
        parts: dict[Hashable, list[int]] = {}
        for m in members:
            if stop < len(chains[m]):
                rest = chains[m][stop] if sharing == "max" else tuple(chains[m][stop:])
                parts.setdefault(rest, []).append(m)
        # Reversed, since the last one is popped first: runs are numbered in the chains' order.
        undone += [(tuple(part), stop) for part in reversed(parts.values())]
    return shared


@functools.lru_cache(maxsize=4096)
def run_transfers(
    graph: ag.ArchGraph,
    match: Match,
    unit: Unit,
    cuts: tuple[tuple[int, int], ...],
    private: frozenset[str],
) -> tuple[ag.Transfer, ...]:
    """Map the tensors of each run, named by their positions, to an architecture's parameters.

    Args:
        graph: The architecture.
        match: See :class:`FlexiFed`.
        unit: See :class:`FlexiFed`.
        cuts: Start and stop of each run in the architecture.
        private: Parameters and buffers that are not shared.
    """
    chain = chain_units(graph, match, unit)
    slots = {slot.name: slot for slot in ag.Transfer.identity(graph).target}
    transfers = []
    for start, stop in cuts:
        names = [name for part in chain[start:stop] for name in part.entries]
        # Private weights are numbered, too, so that numbers are the same in all members.
        numbers = {name: str(number) for number, name in enumerate(names) if name not in private}
        same = ag.Transfer.identity(tuple(slots[name] for name in numbers))
        transfers.append(
            ag.Transfer(
                tuple(slots[name]._replace(name=number) for name, number in numbers.items()),
                same.target,
                {n: dataclasses.replace(e, source=numbers[n]) for n, e in same.entries.items()},
            )
        )
    return tuple(transfers)
