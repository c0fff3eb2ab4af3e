"""Helpers for methods with low-rank adapters: find a model's adapters, and average them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from archgraph.analysis.roles import frozen as untrained
from archgraph.analysis.side_branches import side_branches
from archgraph.errors import RunError
from archgraph.federation.average import by_tier, covered_mean, part
from archgraph.federation.options import Averaging, Masking
from archgraph.federation.state import GLOBAL, ServerState
from archgraph.federation.strategy import Evaluated, Serves
from archgraph.federation.tasks import Result, Task
from archgraph.federation.world import Tier, World, seeded
from archgraph.graph.ir import ArchGraph
from archgraph.hints import listed
from archgraph.module.initial import initial_state
from archgraph.states import State


@dataclass(frozen=True)
class LowRankAdapter:
    """A low-rank adapter, which adds ``scale · up @ down`` to the weight of a layer.

    Attributes:
        down: Name of the weight ``A``, [rank, in, kernel…], which is applied first.
        up: Name of the weight ``B``, [out, rank, 1…], which is applied second.
        scale: Number by which the product ``up @ down`` is multiplied.
        weight: Name of the layer's weight.
        transposed: Whether the layer's weight has the shape [in, out].
        alone: Whether only one layer uses the weight.
    """

    down: str
    up: str
    scale: float
    weight: str
    transposed: bool
    alone: bool = True

    def product(self, state: State) -> Tensor:
        """Return ``B @ A`` as a matrix, float64 [out, in · kernel]."""
        return self.matrices(state)[0] @ self.matrices(state)[1]

    def folded(self, weight: Tensor, up: Tensor, down: Tensor) -> Tensor:
        """Return ``weight`` plus ``up @ down`` [out, in · kernel], in the dtype of ``weight``."""
        change = up.double() @ down.double()
        change = change.T if self.transposed else change
        return (weight.double() + change.reshape(weight.shape)).to(weight.dtype)

    def matrices(self, state: State) -> tuple[Tensor, Tensor]:
        """Return ``B`` [out, rank] and ``A`` [rank, in · kernel], float64."""
        return state[self.up].double().flatten(1), state[self.down].double().flatten(1)


@functools.lru_cache(maxsize=256)
def low_rank(graph: ArchGraph) -> tuple[LowRankAdapter, ...]:
    """Return the low-rank adapters of a model, in the order of its operators."""
    every = [b for b in side_branches(graph) if b.low_rank and b.weight and not b.rank_dim]
    layers: dict[tuple[str, str, str], set[str]] = {}
    for b in every:
        layers.setdefault((b.weight, b.down, b.up), set()).add(b.layer)
    adapters = (
        LowRankAdapter(
            b.down,
            b.up,
            b.scale,
            b.weight,
            b.transposed,
            layers[b.weight, b.down, b.up] == set(graph.leaf_users[b.weight]),
        )
        for b in every
    )
    return tuple(dict.fromkeys(adapters))


@dataclass(frozen=True)
class LowRankAveraging(Averaging, Masking):
    """A method for models with low-rank adapters.

    The adapters of a client may have smaller ranks than the adapters of the global model. By
    default, each value is averaged over the clients whose model contains this value. Subclasses
    override :meth:`fixed` to freeze one factor of the adapters in a round, and :meth:`merged` to
    change the average.
    """

    serves: ClassVar[Serves] = ("rank",)
    own_scales: ClassVar[bool] = False
    """Whether clients' adapters may have other scales than the global model's."""
    in_pairs: ClassVar[bool] = False
    """Whether the server merges the product of an adapter's factors, and so needs both factors."""

    def init(self, world: World) -> ServerState:
        """Return a state with the weights of the global model.

        Raises:
            RunError: If the model has no low-rank adapters, the adapters are frozen, or a client's
                model differs from the global model in more than the adapters' ranks. If the method
                averages products of both factors of an adapter, also if only one of the factors is
                private.
        """
        adapters = low_rank(world.graph)
        name = type(self).__name__
        if not adapters:
            raise RunError(
                f"{name} needs a model with low-rank adapters",
                found="none",
                hint="add adapters with `change: {add_lora: 8}` in the family",
            )
        ours = {leaf for a in adapters for leaf in (a.down, a.up)}
        still = ours & untrained(world.graph)
        if still and (self.in_pairs or still == ours):
            raise RunError(
                f"{name} trains low-rank adapters, which are frozen",
                where="family.change.train_only",
                found=listed(sorted(still)),
                hint="add '*.lora.*' to `train_only`",
            )
        for tier in world.tiers:
            self._check_tier(tier, adapters)
        private = self.private_entries(world, world.graph) if self.in_pairs else frozenset[str]()
        halves = [a for a in adapters if (a.down in private) != (a.up in private)]
        if halves:
            raise RunError(
                f"{name} merges the product of both factors, but one factor is private",
                where="private",
                found=halves[0].down if halves[0].down in private else halves[0].up,
                expected="both factors of an adapter, or neither",
                hint="rank_mean averages each factor by itself",
            )
        return ServerState().with_group(GLOBAL, world.state).with_values(seen=[])

    def _check_tier(self, tier: Tier, adapters: Sequence[LowRankAdapter]) -> None:
        """Check that a tier and the global model differ only in the ranks of adapters."""
        ours = {leaf for a in adapters for leaf in (a.down, a.up)}
        entries = tier.transfer.entries
        same = all(entry.unchanged for leaf, entry in entries.items() if leaf not in ours)
        theirs = low_rank(tier.graph)
        if self.own_scales:
            theirs = tuple(
                replace(a, scale=b.scale) for a, b in zip(theirs, adapters, strict=False)
            )
        if theirs != adapters or not same:
            expected = "the global model, or one with a `rank`"
            raise RunError(
                f"{type(self).__name__} serves clients that differ only in rank",
                where=f"tier {tier.name}",
                expected=expected if self.own_scales else f"{expected} without an alpha",
            )

    def shared(self, world: World) -> tuple[LowRankAdapter, ...]:
        """Return the adapters of the global model that are not private."""
        private = self.private_entries(world, world.graph)
        return tuple(a for a in low_rank(world.graph) if a.up not in private)

    def fixed(self, world: World, round: int) -> frozenset[str]:
        """Return the names of the adapter weights that are frozen in a round."""
        return frozenset()

    def tier(self, world: World, state: ServerState, client: int) -> Tier:
        """Return the tier that a client trains."""
        return world.tier_of(client)

    def send(self, world: World, state: ServerState, client: int, round: int) -> Task:
        """Send the client its submodel of the global model.

        The client does not return frozen parameters. Tensors that never change are sent only in its
        first task.
        """
        tier = self.tier(world, state, client)
        task = part(world, state, client, tier=tier, mask_absent=self.mask_absent, norm=self.norm)
        still, fixed = untrained(task.graph), self.fixed(world, round)
        same = still | (fixed & self.fixed(world, round + 1))
        return replace(
            task,
            graph=freeze(task.graph, fixed) if fixed else task.graph,
            private=task.private | still | fixed,
            known=same if client in state.values["seen"] else frozenset(),
        )

    def receive(
        self, world: World, state: ServerState, results: Iterable[Result], round: int
    ) -> ServerState:
        """Merge the results. Store which clients have received the tensors that never change."""
        seen = set(state.values["seen"])

        def noted() -> Iterator[Result]:
            for result in results:
                seen.add(result.client)
                yield result

        after = self.merged(world, state, noted(), round)
        return after.with_values(seen=sorted(seen))

    def merged(
        self, world: World, state: ServerState, results: Iterable[Result], round: int
    ) -> ServerState:
        """Average each value over the clients whose model contains this value."""
        return covered_mean(world, state, results, weights=self.weights)

    def evaluated(self, world: World, state: ServerState) -> Iterable[Evaluated]:
        """Yield the models to evaluate: the global model and one model per tier."""
        return by_tier(world, state, norm=self.norm)


def freeze(graph: ArchGraph, names: frozenset[str], *, trainable: bool = False) -> ArchGraph:
    """Return a copy of an architecture in which the named parameters are frozen.

    If ``trainable`` is True, the named parameters become trainable instead.
    """
    change = (replace(p, trainable=trainable) if p.name in names else p for p in graph.params)
    return graph.replace(params=tuple(change))


def fresh_factors(world: World, label: str, round: int) -> State:
    """Draw new initial values for the factor ``down`` of every adapter of the global model."""
    draw = torch.randint(2**62, (), generator=seeded(world.seed, label, round))
    fresh = initial_state(world.graph, int(draw))
    return {a.down: fresh[a.down] for a in low_rank(world.graph)}


@dataclass
class AdapterSums:
    """Weighted sums over all clients of tensors that are computed from the clients' adapters.

    Only one client's adapters are in memory at a time.

    Attributes:
        of: Function that maps an adapter and a client's result to a pair: the tensors to sum, and
            the client's weight. The tensors have double precision, and the same shapes for all
            clients.
    """

    of: Callable[[LowRankAdapter, Result], tuple[tuple[Tensor, ...], float]]

    def __post_init__(self) -> None:
        self.sums: dict[LowRankAdapter, tuple[Tensor, ...]] = {}
        self.weights: dict[LowRankAdapter, float] = {}

    def watched(
        self, adapters: Iterable[LowRankAdapter], results: Iterable[Result]
    ) -> Iterable[Result]:
        """Add the adapters of each result to the sums, and yield the result.

        The yielded result lists the adapters in ``unmerged``, so that they are not averaged again.
        """
        adapters = tuple(adapters)
        names = frozenset(leaf for a in adapters for leaf in (a.down, a.up))
        for result in results:
            for adapter in adapters:
                values, weight = self.of(adapter, result)
                before = self.sums.get(adapter, tuple(map(torch.zeros_like, values)))
                self.sums[adapter] = tuple(
                    b + weight * v for b, v in zip(before, values, strict=True)
                )
                self.weights[adapter] = self.weights.get(adapter, 0.0) + weight
            yield replace(result, unmerged=result.unmerged | names)

    def means(self) -> dict[LowRankAdapter, tuple[Tensor, ...]]:
        """Return the weighted means for each adapter with a total weight above 0."""
        return {
            adapter: tuple(v / self.weights[adapter] for v in values)
            for adapter, values in self.sums.items()
            if self.weights[adapter] > 0
        }
