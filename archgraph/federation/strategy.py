"""The base class of all federated methods, and the models that they evaluate.

A method is a set of pure functions, not of hooks around a fixed training loop, because FjORD,
FedGKT and FedIN need other loops. The state of a client is a dict of tensors, which can be written
to disk.
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

# Clients that a method supports; "any" means any networks, without a global model.
Serves: TypeAlias = tuple[Literal["one", "width", "depth", "exits", "split", "rank", "any"], ...]

# How a family file describes these clients.
SERVES: Mapping[str, str] = {
    "one": "one architecture for all clients",
    "width": "narrower clients (`take`)",
    "depth": "shallower clients (`shorten`, `skip`)",
    "exits": "the network up to one of its exits (`add_exits`, `ends_after`)",
    "split": "networks with common first and last layers (FedIN), or only the first layers "
    "(FedGKT: `ends_after` with a head)",
    "rank": "smaller ranks of low-rank adapters (`rank`)",
    "any": "any architectures, without a global model or shared weights",
}


@dataclass(frozen=True, repr=False)
class Evaluated:
    """A model that is tested after a round.

    Attributes:
        name: Name of the model in the records: ``global``, or the name of a tier, a cluster or a
            client.
        graph: Architecture of the model.
        state: Weights of the model.
        clients: Ids of clients. The model is tested on all test data, and on the test data of each
            of these clients.
        statistics: With ``stored``, the test uses the running statistics in ``state``. With
            ``recompute``, new running statistics are computed before the test by running the model
            once on training data.
        predict: Function that maps the model's outputs to predictions, for example their mean if
            the model has early exits. Default: ``predict`` of the learning task.
        private: If True, a test on a client's data uses the client's private tensors (such as
            personal layers) in place of the model's tensors with the same names.
        program: A :class:`Program`, such as fine-tuning, that runs on a client's training data
            before the model is tested on the client's test data.
        states: Dict from client id to weights, if each client has its own version of the model. The
            weights are created on access. ``state`` is then the version of one of these clients.
        current: Names of tensors that keep their values from ``state`` even if ``private`` is True,
            because the clients' private versions of these tensors are older.
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
        """Return one line, without the tensors."""
        who = f", clients {', '.join(map(str, self.clients[:6]))}" if self.clients else ""
        more = ", …" if len(self.clients) > 6 else ""
        return f"<Evaluated {self.name}: {plural(len(self.state), 'tensor')}{who}{more}>"

    @property
    def personal(self) -> bool:
        """Whether each client has its own version of the model."""
        return self.private or self.program is not None or self.states is not None


def option(
    default: T,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    later: bool = False,
) -> T:
    """Declare a numeric option of a strategy, with the range of its values.

    None is always allowed.

    Args:
        default: The default value.
        least: The smallest allowed value.
        above: An exclusive lower bound.
        most: The largest allowed value.
        later: Whether the option was added after runs had been recorded. If True, the default value
            is not recorded, so that earlier runs still count as runs of the same experiment.

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
    # Each function compares a bound with a value.
    bounds = [(text, partial(holds, bound)) for text, holds, bound in limits if bound is not None]
    words = ", ".join(text for text, _ in bounds)
    checks = [(words, holds) for _, holds in bounds]
    # The range is in the metadata: `__post_init__` checks it, and `archgraph help` prints it.
    declared: T = field(default=default, metadata={"range": checks, LATER: later})
    return declared


@dataclass(frozen=True)
class Strategy(ABC):
    """A federated method: what clients receive and do, and how their results are merged.

    Subclasses are frozen dataclasses whose fields are the options of the method. The functions of a
    subclass do not change the server's state, but return a new state. Random numbers come from
    generators that :func:`seeded` creates from ``world.seed``, a label and the round.

    A run calls ``init``, ``survey`` and ``surveyed`` once. In every round it then calls ``begin``,
    ``send`` for each sampled client, ``examine`` for each result, ``receive``, and, if models are
    tested, ``evaluated``.
    """

    paper: ClassVar[str] = ""
    """Short title of the paper."""

    year: ClassVar[int | None] = None
    """Year of the paper."""

    serves: ClassVar[Serves] = ()
    """Kinds of clients that the method supports, as keys of ``SERVES``."""

    presets: ClassVar[Mapping[str, Mapping[str, Json]]] = {}
    """Dict from name to values of options, such as those of the paper's code."""

    needs_global: ClassVar[bool] = True
    """Whether clients' models must be parts of a global model."""

    averages: ClassVar[bool] = False
    """Whether ``receive`` merges all results by ``covered_mean`` or ``group_means``. If not, an
    experiment with the key ``aggregate`` raises an error. If so, results of clients on a GPU stay
    on the GPU until they are averaged (``World.merging``).
    """

    reports: ClassVar[tuple[str, ...]] = ()
    """Keys of ``ServerState.values`` that are recorded in each round, under ``server``."""

    def __post_init__(self) -> None:
        """Check that options are in their ranges.

        Raises:
            SpecError: If an option is out of range. The message names the option.
        """
        for field_ in dataclasses.fields(self):
            value = getattr(self, field_.name)
            # None means a default that depends on the world. It is always allowed.
            for words, holds in field_.metadata.get("range", ()) if value is not None else ():
                if not holds(value):
                    raise SpecError("out of range", where=field_.name, found=value, expected=words)

    public: ClassVar[bool] = False
    """Whether clients also train on the examples of the experiment's key ``public``."""

    extra: ClassVar[str] = ""
    """Name of the pip extra that the method needs, if any (a value of ``hints.EXTRAS``)."""

    unlearnable: ClassVar[Mapping[str, str]] = {}
    """Dict from an unsupported kind of targets (``classes``, ``labels``, ``values`` or ``any``) to
    the reason. An experiment with such targets raises an error.
    """

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
        """Return two sentences that state the supported clients and the requirements."""
        return (
            f"Clients: {'; '.join(SERVES[kind] for kind in cls.serves) or 'any'}.",
            f"Requires: {', '.join(cls.requirements()) or 'nothing else'}.",
        )

    @property
    def corrected(self) -> str:
        """Reason why the method does not allow the key ``server``. Empty if it allows the key."""
        return ""

    @property
    def reads_labels(self) -> bool:
        """Whether the method uses each client's number of examples per class.

        If True, Flower nodes that do not report these numbers raise an error.
        """
        return False

    @abstractmethod
    def init(self, world: World) -> ServerState:
        """Return the state before the first round.

        Raises:
            RunError: If the method does not support these clients, models or data.
        """

    def survey(self, world: World, state: ServerState) -> Iterable[Task]:
        """Return tasks that clients run before the first round, such as an architecture search."""
        return ()

    def surveyed(self, world: World, state: ServerState, results: Iterable[Result]) -> ServerState:
        """Return the state that includes the results of the tasks from :meth:`survey`."""
        return state

    def begin(
        self, world: World, state: ServerState, round: int, sampled: Sequence[int]
    ) -> ServerState:
        """Return the state at the beginning of a round, including the round's random draws."""
        return state

    @abstractmethod
    def send(self, world: World, state: ServerState, client: int, round: int) -> Task:
        """Return the task of a sampled client in this round."""

    def private_entries(self, world: World, graph: ArchGraph) -> frozenset[str]:
        """Return the names of the model's tensors that stay with each client.

        The engine adds these names to ``Task.private``. The tensors stay with the client from round
        to round and are neither sent nor merged. When the model is tested on a client's data, the
        client's private tensors replace the model's tensors with these names.
        """
        return frozenset()

    def examine(self, world: World, result: Result) -> State | None:
        """Examine the result of a client before the server uses it.

        This method runs in the client's worker process, in parallel for several clients. Use it to
        compute values that ``receive`` needs and that depend only on this result. The worker
        process uses copies of the strategy and of ``world`` that were made when the process
        started, possibly in an earlier round.

        Returns:
            A dict from name to tensor, which ``receive`` reads as ``result.findings``, or None.

        Raises:
            RejectedUpdate: If the result does not fit the task. The round continues without this
                client.
        """
        return None

    @final
    def examined(self, world: World, result: Result) -> Result:
        """Call :meth:`examine`, and return the result with the tensors that it computed.

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

        ``results`` can be iterated over only once. Each result is loaded when it is reached, so
        that only one result is in memory at a time. There may be fewer results than sampled
        clients, or none.
        """

    @abstractmethod
    def evaluated(self, world: World, state: ServerState) -> Iterable[Evaluated]:
        """Yield the models to evaluate, one at a time."""
