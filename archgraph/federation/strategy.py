"""The abstract class of all federated methods, and their evaluated models.

A method is not a set of hooks around one training loop, which FjORD, FedGKT and FedIN would have to
work around. Clients are not objects either, since a dict of tensors is enough and can be written to
disk.
"""

from __future__ import annotations

import dataclasses
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Literal, TypeAlias, TypeVar, final

from archgraph.errors import SpecError
from archgraph.federation.outputs import Predict
from archgraph.federation.state import ServerState
from archgraph.federation.tasks import Program, Result, Task
from archgraph.federation.world import World
from archgraph.graph.ir import ArchGraph
from archgraph.plain import Json
from archgraph.states import State
from archgraph.tables import plural

T = TypeVar("T")

# Key in the metadata of a field: `later` of :func:`option`.
LATER = "later"

# Supported clients of a method; "any": any networks, without a global model.
Serves: TypeAlias = tuple[Literal["one", "width", "depth", "exits", "split", "rank", "any"], ...]

# How a family says it.
SERVES: Mapping[str, str] = {
    "one": "one architecture for all clients",
    "width": "narrower clients (`take`)",
    "depth": "shallower clients (`shorten`, `skip`)",
    "exits": "the network up to one of its exits (`add_exits`, `ends_after`)",
    "split": "a network in parts: FedIN's share both ends, FedGKT's have the first part "
    "(`ends_after` with a head)",
    "rank": "smaller ranks of low-rank adapters (`rank`)",
    "any": "any architectures, without a global model or shared weights",
}


@dataclass(frozen=True, repr=False)
class Evaluated:
    """A model for evaluation.

    Attributes:
        name: Tier, cluster, client or ``global``.
        graph: Architecture of the model.
        state: Weights of the model.
        clients: Clients on whose local test data it is tested, in addition to the global test data.
        statistics: ``stored`` uses the running statistics of the state; ``recompute`` first
            computes cumulative statistics in one pass over training data.
        predict: Maps outputs to predictions (e.g. a mean over exits). Default: the task's output.
        private: Overlay each client's private entries (personal layers) before testing on its data.
        program: Run this on each client's training data before testing on its data (fine-tuning).
        states: Dict from client id to the weights of the client's own version, created on access.
            ``state`` is then one of these.
        current: Entries of ``state`` that are not overlaid, because the clients' private values are
            from an earlier round.
    """

    name: str
    graph: ArchGraph
    state: State
    clients: tuple[int, ...] = ()
    statistics: Literal["stored", "recompute"] = "stored"
    predict: Predict | None = None
    private: bool = False
    program: Program | None = None
    states: Callable[[int], State] | None = None
    current: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        """Render one line, without the tensors."""
        who = f", clients {', '.join(map(str, self.clients[:6]))}" if self.clients else ""
        more = ", …" if len(self.clients) > 6 else ""
        return f"<Evaluated {self.name}: {plural(len(self.state), 'tensor')}{who}{more}>"

    @property
    def personal(self) -> bool:
        """Whether each client has its own version."""
        return self.private or self.program is not None or self.states is not None


def option(
    default: T,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    later: bool = False,
) -> T:
    """Declare a field of a strategy as a number in a range; None is always allowed.

    Args:
        default: The default value.
        least: The smallest value.
        above: An exclusive lower bound.
        most: The largest value.
        later: Whether the option was added after runs were recorded. Its default is then not
            recorded, so that those runs still count as the same experiment.

    Example:
        >>> @dataclass(frozen=True)
        ... class Mine(Strategy):
        ...     mu: float = option(0.1, above=0)
        ...     init = send = receive = evaluated = None
        >>> Mine(mu=-1)
        Traceback (most recent call last):
        archgraph.errors.SpecError: mu: out of range; found -1; expected above 0
    """
    limits = (
        (f"{least} or more", operator.le, least),
        (f"above {above}", operator.lt, above),
        (f"at most {most}", operator.ge, most),
    )
    # Each compares its bound with a value.
    bounds = [(text, partial(holds, bound)) for text, holds, bound in limits if bound is not None]
    words = ", ".join(text for text, _ in bounds)
    checks = [(words, holds) for _, holds in bounds]
    # In the metadata, where `__post_init__` checks it and `archgraph help` prints it.
    declared: T = field(default=default, metadata={"range": checks, LATER: later})
    return declared


@dataclass(frozen=True)
class Strategy(ABC):
    """A federated method: pure functions from server state to server state.

    Subclasses are frozen dataclasses whose fields are the method's options, final, one per paper.
    Randomness comes from :func:`seeded` with ``world.seed``, a label and the round.

    One run calls ``init``, then ``survey`` and ``surveyed`` once, then in every round ``begin``,
    ``send`` for each sampled client, ``examine`` for each result, ``receive``, and ``evaluated``
    if the model is tested.
    """

    paper: ClassVar[str] = ""
    """Short title of the paper."""

    year: ClassVar[int | None] = None
    """Year of the paper."""

    serves: ClassVar[Serves] = ()
    """The paper's clients, as keys of ``SERVES``."""

    presets: ClassVar[Mapping[str, Mapping[str, Json]]] = {}
    """Named sets of options, for sources that use one name for different algorithms."""

    needs_global: ClassVar[bool] = True
    """Whether clients' models must be parts of a global model."""

    averages: ClassVar[bool] = False
    """Whether all results of clients enter the server's state by ``covered_mean`` or
    ``group_means``: an experiment with ``aggregate`` is refused otherwise. On a GPU results then
    stay there until they are averaged (``World.merging``)."""

    reports: ClassVar[tuple[str, ...]] = ()
    """Plain values of the server's state that each round records as ``server``."""

    def __post_init__(self) -> None:
        """Check that options are in their ranges.

        Raises:
            SpecError: If an option is out of range. The message names it.
        """
        for field_ in dataclasses.fields(self):
            value = getattr(self, field_.name)
            # None stands for a default that depends on the world: it is in every range.
            for words, holds in field_.metadata.get("range", ()) if value is not None else ():
                if not holds(value):
                    raise SpecError("out of range", where=field_.name, found=value, expected=words)

    public: ClassVar[bool] = False
    """Whether clients learn from shared examples: the experiment's ``public``."""

    extra: ClassVar[str] = ""
    """The extra of archgraph that it needs, if any: a value of ``hints.EXTRAS``."""

    unlearnable: ClassVar[Mapping[str, str]] = {}
    """Unsupported targets (``classes``, ``labels``, ``values`` or ``any``), with reasons: an
    experiment whose task has such targets is refused."""

    @classmethod
    def requirements(cls) -> tuple[str, ...]:
        """Return the requirements on models, data and other keys of an experiment."""
        facts = (
            ("a global model", cls.needs_global),
            ("`public` examples", cls.public),
            ("targets that are classes", "values" in cls.unlearnable),
            ("no `aggregate`, no `server`", not cls.averages),
            (f"the extra `{cls.extra}`", bool(cls.extra)),
        )
        return tuple(text for text, holds in facts if holds)

    @classmethod
    def help_notes(cls) -> tuple[str, str]:
        """Return two sentences, on the supported clients and on the requirements."""
        return (
            f"Clients: {'; '.join(SERVES[kind] for kind in cls.serves) or 'any'}.",
            f"Requires: {', '.join(cls.requirements()) or 'nothing else'}.",
        )

    @property
    def corrected(self) -> str:
        """Name of the method's own correction of means, which excludes a server optimiser."""
        return ""

    @property
    def reads_labels(self) -> bool:
        """Whether the method reads the clients' numbers of examples per class.

        If so, Flower nodes that do not share these counts raise an error.
        """
        return False

    @abstractmethod
    def init(self, world: World) -> ServerState:
        """Return the state before the first round.

        Raises:
            RunError: If the method cannot serve this world.
        """

    def survey(self, world: World, state: ServerState) -> Iterable[Task]:
        """Return tasks that clients do once before the first round (architecture search)."""
        return ()

    def surveyed(self, world: World, state: ServerState, results: Iterable[Result]) -> ServerState:
        """Return the state after the survey."""
        return state

    def begin(
        self, world: World, state: ServerState, round: int, sampled: Sequence[int]
    ) -> ServerState:
        """Return the state at the beginning of a round. Random draws for the round belong here."""
        return state

    @abstractmethod
    def send(self, world: World, state: ServerState, client: int, round: int) -> Task:
        """Return the task of a sampled client in this round."""

    def private_entries(self, world: World, graph: ArchGraph) -> frozenset[str]:
        """Return the entries of an architecture that stay with each client that trains it.

        The engine adds them to ``Task.private``: they stay with the client from round to round, are
        neither sent nor merged, and are overlaid on the model that is tested on its data.
        """
        return frozenset()

    def examine(self, world: World, result: Result) -> State | None:
        """Examine the result of a client before the server uses it.

        This runs in the process of the client's work, in parallel for several clients. Compute
        values here that ``receive`` needs and that depend on one result only. Strategy and world
        are those at the start of that process, in this round or an earlier one.

        Returns:
            A dict from name to tensor, which ``receive`` gets as ``result.findings``, or None.

        Raises:
            RejectedUpdate: If the result does not fit the task. The round continues without this
                client.
        """
        return None

    @final
    def examined(self, world: World, result: Result) -> Result:
        """Return the result with the findings of :meth:`examine`.

        Raises:
            RejectedUpdate: As in :meth:`examine`.
        """
        findings = self.examine(world, result)
        return dataclasses.replace(result, findings={} if findings is None else findings)

    @abstractmethod
    def receive(
        self, world: World, state: ServerState, results: Iterable[Result], round: int
    ) -> ServerState:
        """Return the state after a round.

        ``results`` is a stream, with one update in memory at a time. There may be fewer results
        than sampled clients, or none.
        """

    @abstractmethod
    def evaluated(self, world: World, state: ServerState) -> Iterable[Evaluated]:
        """Yield the models to evaluate, one at a time."""
