"""Helpers for methods with personal models: partial averaging, partial training, private models."""

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
"""Prefix of names in ``Outcome.keep``. A program stores the weights of a client's personal model
under names with this prefix, and the engine tests this model on the client's data.
"""


@dataclass(frozen=True)
class PartAveraging(Averaging, Masking):
    """A method in which each client trains a submodel of the global model.

    By default, each value is averaged over the clients whose model contains this value.
    """

    serves: ClassVar[Serves] = ("one", "width", "depth")

    def init(self, world: World) -> ServerState:
        """Return a state with the weights of the global model."""
        return ServerState().with_group(GLOBAL, world.state)

    def send(self, world: World, state: ServerState, client: int, round: int) -> Task:
        """Send the client its submodel of the global model."""
        return part(world, state, client, mask_absent=self.mask_absent, norm=self.norm)

    def receive(
        self, world: World, state: ServerState, results: Iterable[Result], round: int
    ) -> ServerState:
        """Average each value over the clients whose model contains this value."""
        return covered_mean(world, state, results, weights=self.weights)

    def evaluated(self, world: World, state: ServerState) -> Iterable[Evaluated]:
        """Yield the models to evaluate: the global model and one model per tier."""
        return by_tier(world, state, norm=self.norm)


@dataclass(frozen=True)
class TrainOnly:
    """A program that trains only some parameters. Running statistics are updated as usual.

    Attributes:
        train: The program that trains the parameters.
        entries: Names of the parameters.
        others: If True, train all parameters except those in ``entries``.

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
    """A program that runs several programs one after the other, such as two training phases.

    Attributes:
        programs: The programs in order. Each program starts with the weights of the program before
            it.

    Example:
        >>> from archgraph.federation import Train
        >>> len(InTurn((Train(epochs=1), Train())).programs)
        2
    """

    programs: tuple[Program, ...]

    def __call__(self, work: Work) -> Outcome:
        """Return the last program's outcome, with the steps and examples of all programs."""
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
    """Return the task of a client whose network is entirely private.

    The network is sent only once, in the client's first task.

    Args:
        world: The clients and tiers.
        client: Id of the client.
        program: Program to run.
        extras: Tensors that are sent in addition to the network.
        others: Dict from name to an additional model that is sent and returned.
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
    """Yield one model per tier, to be tested with each client's private weights."""
    # The server has only initial weights: `private` replaces them by each client's weights.
    return by_tier(
        world,
        state,
        model=lambda tier: Model(tier.graph, tier.state),
        private=True,
        whole=False,
    )


@per_graph
def _trained(graph: ArchGraph, entries: frozenset[str], others: bool) -> ArchGraph:
    """Return the architecture with only these parameters trainable; frozen ones stay frozen."""
    return graph.replace(
        params=tuple(
            replace(p, trainable=p.trainable and (p.name in entries) != others)
            for p in graph.params
        )
    )
