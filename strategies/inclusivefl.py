"""InclusiveFL: clients share the first layers; each size also learns from the next deeper one.

Liu, Wu, Wu, Wang, Lyu, Chen, Xie: *No One Left Behind: Inclusive Federated Learning over
Heterogeneous Devices*, KDD 2022.

========================  ===============================================================
symbol                    here
========================  ===============================================================
sizes of model            ``World.by_size``: the tiers from the smallest to the largest
shared layers             group ``global`` of the server state
last layer, pooler, head  groups ``tier/NAME``, one for each size
gradient of a layer       the change of the layer's mean over a size's clients in a round
``β``                     ``beta``
momentum distillation     :meth:`InclusiveFL.receive`
========================  ===============================================================
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

import archgraph as ag
from archgraph import federation as fl


@dataclass(frozen=True)
class InclusiveFL(fl.Averaging, fl.Masking):
    """Options of InclusiveFL.

    Attributes:
        beta: β, the weight of momentum distillation. The last layer of each tier's model changes by
            ``(1-β)g + βm``, where ``g`` is the layer's own update and ``m`` is the update of the
            next deeper model.

    Example:
        >>> InclusiveFL().beta
        0.2
    """

    paper = "No One Left Behind"
    year = 2022
    serves = ("depth",)

    beta: float = fl.option(0.2, least=0, most=1)

    def init(self, world: fl.World) -> fl.ServerState:
        """Start from the initial weights of the shared layers, and of each tier's own layers.

        Raises:
            RunError: If a tier shares no layers at full width, or lacks a layer of a section but
                has a later layer of this section.
        """
        state = fl.ServerState().with_group("global", world.state)
        for tier in world.tiers:
            private = prefix(world.graph, world.tiers, tier).private
            state = state.with_group(
                f"tier/{tier.name}", tier.transfer.only(private).pull(world.state)
            )
        return state

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send the shared layers, and the layers that belong only to the client's tier."""
        tier = world.tier_of(client)
        weights = self._weights(state, tier)
        mask = self.mask_absent
        task = fl.part(world, state, client, mask_absent=mask, norm=self.norm, weights=weights)
        return replace(
            task, unmerged=task.unmerged | prefix(world.graph, world.tiers, tier).private
        )

    def receive(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], round: int
    ) -> fl.ServerState:
        """Average, then change the last layer of each tier's model by ``(1 - β) g + β m``.

        ``g`` is the change of this layer's average in the round. ``m`` is computed from the next
        deeper model: it is the mean change of the layers from the same depth to the last layer. If
        one of the two tiers has no results in the round, the layer changes by ``g``.
        """
        trained: set[str] = set()

        def contributions() -> Iterator[fl.Contribution]:
            for result in results:
                trained.add(result.tier)
                yield fl.Contribution.of(result, world.graph, self.weights)
                # The layers of a single size are averaged within that size.
                names = tuple(state.group(f"tier/{result.tier}"))
                if names:
                    graph = world.tier(result.tier).graph
                    same, group = fl.identity_of(graph, names), f"tier/{result.tier}"
                    update = {name: result.state[name] for name in names if name in result.state}
                    policy = fl.NormPolicy(self.norm)
                    # A mean of equal frozen values need not be that value.
                    local = policy.unmerged(graph) | ag.frozen(graph)
                    local |= set(names) - update.keys()  # these stay with the client
                    yield fl.Contribution(
                        result.client,
                        group,
                        same.source,
                        same,
                        update,
                        result.weight(self.weights),
                        local & set(names),
                    )

        merged = fl.group_means(world, state, contributions())
        after = merged
        # Steps are those of the plain means, so that mixing one size does not affect the next.
        for small, large in itertools.pairwise(world.by_size):
            if self.beta and {small.name, large.name} <= trained:
                after = self._distilled(world, state, merged, after, small, large)
        return after

    def evaluated(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Evaluated]:
        """Evaluate each tier's model. The largest one is the global model."""

        def model(tier: fl.Tier) -> fl.Model:
            return fl.Model(tier.graph, self._weights(state, tier))

        return fl.by_tier(
            world, state, norm=self.norm, model=model, whole=world.by_size[-1], idle=True
        )

    def _weights(self, state: fl.ServerState, tier: fl.Tier) -> fl.State:
        """Return a size's weights: shared and private."""
        shared = tier.transfer.pull(state.group("global"), copy=False)
        return shared | state.group(f"tier/{tier.name}")

    def _distilled(
        self,
        world: fl.World,
        before: fl.ServerState,
        merged: fl.ServerState,
        after: fl.ServerState,
        small: fl.Tier,
        large: fl.Tier,
    ) -> fl.ServerState:
        """Move the last layers of a size in the direction that the next deeper one has learnt."""
        # The deeper size's own layers and the shared ones both teach.
        old, new = (self._weights(state, large) for state in (before, merged))
        moved = after.group(f"tier/{small.name}")
        was = before.group(f"tier/{small.name}")
        for name, deeper in teaching_layers(world.graph, world.tiers, small, large).items():
            momentum = torch.stack([new[entry] - old[entry] for entry in deeper]).mean(0)
            step = (1 - self.beta) * (moved[name] - was[name]) + self.beta * momentum
            moved[name] = was[name] + step
        return after.with_group(f"tier/{small.name}", moved)


class Prefix(NamedTuple):
    """The shared and the private parts of a size.

    Attributes:
        blocks: Dict from section to the names of the size's blocks in the global model. Contains
            only sections in which sizes differ.
        private: Parameters and buffers that only this size has. They belong to the last block of
            each section that the size does not contain completely, to all blocks after the last
            section in which sizes differ, and to all blocks from the first narrower one on.
        names: Dict from parameter or buffer of the global model to that of the size.
    """

    blocks: Mapping[str, tuple[str, ...]]
    private: frozenset[str]
    names: Mapping[str, str]


def _leaves(graph: ag.ArchGraph, nodes: Iterable[str]) -> set[str]:
    return {leaf for name in nodes for leaf in graph.node[name].leaves()} & set(graph.state_names)


def _kept(graph: ag.ArchGraph, tier: fl.Tier) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Return a tier's blocks of the global model, from the input on.

    Returns:
        By section, the first blocks at full width; and all blocks from the first narrower one on.

    Raises:
        RunError: If it has no blocks with weights, or they are not the first of their section.
    """
    # From the first block with a cut (narrower) parameter on, blocks cannot be shared.
    changed = {e.source for e in tier.transfer.entries.values() if not e.unchanged}
    sources = {entry.source for entry in tier.transfer.entries.values()}
    result: dict[str, tuple[str, ...]] = {}
    rest: list[str] = []
    odd, shared = list[str](), False
    for section in ag.structure(graph).sections:
        names: list[str] = []
        lacking = False
        for block in section.blocks:
            leaves = _leaves(graph, block.nodes)
            there = not leaves or bool(leaves & sources)
            if rest or leaves & changed:
                rest.append(block.name)
            elif not there:
                lacking = True
            elif not lacking:  # blocks without weights go with those before them
                names.append(block.name)
                shared |= bool(leaves)
            elif leaves:
                odd.append(f"{block.name}, but not all blocks before it")
        result[section.name] = tuple(names)
    if odd or not shared:
        raise ag.RunError(
            "InclusiveFL shares a network's first layers at full width (`shorten`)",
            where=f"tier {tier.name}",
            found=[*odd, *(f"a narrower {name}" for name in rest), "none of its layers"][0],
            hint="nefl and fedfa serve other depths, heterofl and fedrolex other widths",
        )
    return result, tuple(rest)


@functools.lru_cache(maxsize=256)
def _prefixes(graph: ag.ArchGraph, tiers: tuple[fl.Tier, ...]) -> dict[str, Prefix]:
    """Return the shared and private parts of every tier, by name."""
    parts = {tier.name: _kept(graph, tier) for tier in tiers}
    shared = {name: blocks for name, (blocks, _) in parts.items()}
    complete = {s.name: tuple(b.name for b in s.blocks) for s in ag.structure(graph).sections}
    shorter = [s for s in complete if any(mine[s] != complete[s] for mine in shared.values())]
    prefixes = {}
    for tier in tiers:
        mine, rest = parts[tier.name]
        inside = _last_blocks(mine, complete, shorter).union(rest)
        names = {str(entry.source): name for name, entry in tier.transfer.entries.items()}
        mapped = frozenset(names[e] for e in _private(graph, inside) if e in names)
        prefixes[tier.name] = Prefix({name: mine[name] for name in shorter}, mapped, names)
    return prefixes


def _last_blocks(
    mine: Mapping[str, Sequence[str]], complete: Mapping[str, Sequence[str]], shorter: Sequence[str]
) -> set[str]:
    """Return the private blocks of a size among those with the global model's width.

    Args:
        mine: Dict from section to blocks of the size.
        complete: Dict from section to blocks of the global model.
        shorter: Sections that at least one size does not contain completely.
    """
    lacking = [s for s in shorter if mine[s] != complete[s]]
    if not lacking:
        return set()
    # The paper's pooler and head: everything after the last difference is each size's own.
    order = [*complete]
    behind = (mine[section] for section in order[order.index(shorter[-1]) + 1 :])
    return {mine[s][-1] for s in lacking if mine[s]}.union(*behind)


def _private(graph: ag.ArchGraph, inside: set[str]) -> set[str]:
    """Return the parameters and buffers that only these blocks use.

    A weight that earlier layers also use, such as a tied embedding, belongs to the earlier layers.
    """
    blocks = ag.structure(graph).blocks
    private = _leaves(graph, (n for b in blocks if b.name in inside for n in b.nodes))
    return private - _leaves(graph, (n for b in blocks if b.name not in inside for n in b.nodes))


def prefix(graph: ag.ArchGraph, tiers: tuple[fl.Tier, ...], tier: fl.Tier) -> Prefix:
    """Return the shared and private parts of a tier.

    Raises:
        RunError: If a tier shares no layers at full width, or lacks a layer of a section but has a
            later layer of this section.
    """
    # Without weights: the cache neither compares nor holds them.
    return _prefixes(graph, tuple(replace(one, source={}) for one in tiers))[tier.name]


def teaching_layers(
    graph: ag.ArchGraph, tiers: tuple[fl.Tier, ...], small: fl.Tier, large: fl.Tier
) -> dict[str, list[str]]:
    """Map parameters of a size's last layers to the deeper size's parameters that teach them.

    This is done in each section in which the deeper size has more blocks. A layer in the size's
    last block of the section is taught by the corresponding layers of the deeper size's blocks,
    from the block at the same depth to the last block of the section.
    """
    mine, theirs = (prefix(graph, tiers, tier) for tier in (small, large))
    trained = {param.name for param in graph.params if param.trainable}
    layers: dict[str, list[str]] = defaultdict(list)
    for section, blocks in mine.blocks.items():
        if not blocks or len(theirs.blocks[section]) <= len(blocks):
            continue
        last, *more = [_by_kind(graph, b) for b in theirs.blocks[section][len(blocks) - 1 :]]
        for key, entry in last.items():
            if entry in trained and mine.names[entry] in mine.private:
                deeper = [entry, *(block[key] for block in more if key in block)]
                layers[mine.names[entry]] = [theirs.names[name] for name in deeper]
    return layers


@functools.lru_cache(maxsize=1024)
def _by_kind(graph: ag.ArchGraph, block: str) -> dict[tuple[object, int, int], str]:
    """Return a dict from kind and number of a layer, and index in the layer, to parameter."""
    nodes = set(ag.structure(graph).block(block).nodes)
    counts: dict[object, int] = defaultdict(int)
    entries: dict[tuple[object, int, int], str] = {}
    for layer in ag.layers(graph):
        if layer.node in nodes:
            for index, name in enumerate(layer.entries):
                entries[layer.kind, counts[layer.kind], index] = name
            counts[layer.kind] += 1
    return entries
