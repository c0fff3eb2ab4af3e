"""What methods with personal models share: a mean of parts, training part by part, own networks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from archgraph.federation.average import by_tier, covered_mean, part
from archgraph.federation.options import Averaging, Masking
from archgraph.federation.state import GLOBAL, ServerState
from archgraph.federation.strategy import Evaluated
from archgraph.federation.tasks import Model, Outcome, Program, Result, Task, Work
from archgraph.federation.world import Tier, World
from archgraph.graph.ir import ArchGraph, per_graph
from archgraph.states import State

VERSION = "version/"
"""Beginning of the names in ``Outcome.keep`` under which a program keeps a version of the model
that is the client's own: it is tested on the client's data."""


@dataclass(frozen=True)
class PartAveraging(Averaging, Masking):
    """A method whose clients train parts of the global model.

    By itself it averages every entry over the clients that have it.
    """

    serves = ("one", "width", "depth")

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
    """A program that trains some parameters; statistics of norms go on as in all training.

    Attributes:
        train: The program that trains them.
        entries: Their names.
        others: Whether all others are trained, instead of these.

    Example:
        >>> from archgraph.federation import Train
        >>> TrainOnly(Train(), frozenset({"fc.weight"})).others
        False
    """

    train: Program
    entries: frozenset[str]
    others: bool = False

    def __call__(self, work: Work) -> Outcome:
        """Train them; where there are none, return the state as it is."""
        graph = _trained(work.graph, self.entries, self.others)
        if not any(p.trainable for p in graph.params if p.role == "parameter"):
            return Outcome(work.state, work.keep)
        return self.train(replace(work, graph=graph))


@dataclass(frozen=True)
class InTurn:
    """A program that goes on with what another one leaves behind.

    Attributes:
        programs: What is done, in this order.

    Example:
        >>> from archgraph.federation import Train
        >>> len(InTurn((Train(epochs=1), Train())).programs)
        2
    """

    programs: tuple[Program, ...]

    def __call__(self, work: Work) -> Outcome:
        """Return the last outcome; steps and examples are those of all together."""
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
    """Make the task of a client whose whole network stays with it; it is sent once, as it begins.

    Args:
        world: Who takes part.
        client: To whom.
        program: What it is to do.
        extras: Tensors that are sent beside the network.
        others: Further models, which are sent and come back.
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
    """Yield each tier's network for a test: of each of its clients the version that it has."""

    def model(tier: Tier) -> Model:
        return Model(tier.graph, tier.state)

    # The server has no weights: `private` lays each client's own over the initial ones.
    return by_tier(world, state, model=model, private=True, whole=False)


@per_graph
def _trained(graph: ArchGraph, entries: frozenset[str], others: bool) -> ArchGraph:
    """Return an architecture in which nothing else is trained; what is frozen stays so."""
    return graph.replace(
        params=tuple(
            replace(p, trainable=p.trainable and (p.name in entries) != others)
            for p in graph.params
        )
    )
