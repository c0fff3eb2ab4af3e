"""Helpers for methods with personal models: means of parts, training by parts, private networks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from archgraph.federation.average import by_tier, covered_mean, part
from archgraph.federation.options import Averaging, Masking
from archgraph.federation.state import GLOBAL, ServerState
from archgraph.federation.strategy import Evaluated, Serves
from archgraph.federation.tasks import Model, Outcome, Program, Result, Task, Work
from archgraph.federation.world import World
from archgraph.graph.ir import ArchGraph, per_graph
from archgraph.states import State

VERSION = "version/"
"""Prefix of the names in ``Outcome.keep`` under which a program keeps the client's own version of
the model, which is tested on the client's data."""


@dataclass(frozen=True)
class PartAveraging(Averaging, Masking):
    """A method whose clients train parts of the global model.

    The default averages every entry over the clients that have it.
    """

    serves: ClassVar[Serves] = ("one", "width", "depth")

    def init(self, world: World) -> ServerState:
        """Start from the global model."""
        return ServerState().with_group(GLOBAL, world.state)

    def send(self, world: World, state: ServerState, client: int, round: int) -> Task:
        """Send the client its part of the global model."""
        return part(world, state, client, mask_absent=self.mask_absent, norm=self.norm)

    def receive(
        self, world: World, state: ServerState, results: Iterable[Result], round: int
    ) -> ServerState:
        """Average every entry over the clients that have it."""
        return covered_mean(world, state, results, weights=self.weights)

    def evaluated(self, world: World, state: ServerState) -> Iterable[Evaluated]:
        """Evaluate the global model, and each tier's."""
        return by_tier(world, state, norm=self.norm)


@dataclass(frozen=True)
class TrainOnly:
    """A program that trains only some parameters; running statistics are updated as usual.

    Attributes:
        train: The program that trains the parameters.
        entries: Names of the parameters.
        others: Whether to train all other parameters instead.

    Example:
        >>> from archgraph.federation import Train
        >>> TrainOnly(Train(), frozenset({"fc.weight"})).others
        False
    """

    train: Program
    entries: frozenset[str]
    others: bool = False

    def __call__(self, work: Work) -> Outcome:
        """Train the parameters; if there are none, return the state unchanged."""
        graph = _trained(work.graph, self.entries, self.others)
        if not any(p.trainable for p in graph.params if p.role == "parameter"):
            return Outcome(work.state, work.keep)
        return self.train(replace(work, graph=graph))


@dataclass(frozen=True)
class InTurn:
    """A program that runs several programs in sequence, each on the outcome of the previous one.

    Attributes:
        programs: The programs, in this order.

    Example:
        >>> from archgraph.federation import Train
        >>> len(InTurn((Train(epochs=1), Train())).programs)
        2
    """

    programs: tuple[Program, ...]

    def __call__(self, work: Work) -> Outcome:
        """Return the last outcome, with the total steps and examples."""
        outcome, metrics = Outcome(work.state, work.keep), dict[str, float]()
        for program in self.programs:
            outcome = program(replace(work, state=outcome.state, keep=outcome.keep))
            sums = {k: metrics.get(k, 0.0) + outcome.metrics.get(k, 0.0) for k in ("steps", "seen")}
            metrics = {**metrics, **outcome.metrics, **sums}
        return replace(outcome, metrics=metrics)


def private_network(
    world: World,
    client: int,
    program: Program,
    *,
    extras: State | None = None,
    others: Mapping[str, Model] | None = None,
) -> Task:
    """Return the task of a client whose network is entirely private, and sent only once.

    Args:
        world: The clients and tiers.
        client: The recipient.
        program: Program to run.
        extras: Tensors that are sent in addition to the network.
        others: Additional models, which are sent and returned.
    """
    tier = world.tier_of(client)
    return Task(
        client=client,
        graph=tier.graph,
        state=tier.state,
        program=program,
        private=frozenset(tier.graph.state_names),
        extras=extras or {},
        others=others or {},
    )


def private_networks(world: World, state: ServerState) -> Iterator[Evaluated]:
    """Yield each tier's network for evaluation, with each client's version of the weights."""
    # The server has no weights: `private` replaces the initial ones by each client's own.
    return by_tier(
        world,
        state,
        model=lambda tier: Model(tier.graph, tier.state),
        private=True,
        whole=False,
    )


@per_graph
def _trained(graph: ArchGraph, entries: frozenset[str], others: bool) -> ArchGraph:
    """Return an architecture that only trains these entries; frozen entries stay frozen."""
    return graph.replace(
        params=tuple(
            replace(p, trainable=p.trainable and (p.name in entries) != others)
            for p in graph.params
        )
    )
