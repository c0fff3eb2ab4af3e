"""What methods with personal models share: a mean of parts, and training part by part."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from archgraph.federation.average import by_tier, covered_mean, part
from archgraph.federation.options import Averaging, Masking
from archgraph.federation.state import GLOBAL, ServerState
from archgraph.federation.strategy import Evaluated
from archgraph.federation.tasks import Outcome, Program, Result, Task, Work
from archgraph.federation.world import World
from archgraph.graph.ir import ArchGraph, per_graph

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


@per_graph
def _trained(graph: ArchGraph, entries: frozenset[str], others: bool) -> ArchGraph:
    """Return an architecture in which nothing else is trained; what is frozen stays so."""
    return graph.replace(
        params=tuple(
            replace(p, trainable=p.trainable and (p.name in entries) != others)
            for p in graph.params
        )
    )
