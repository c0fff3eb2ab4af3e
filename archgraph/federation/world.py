"""The participants of a run (tiers, clients, the world), and its random generators."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from archgraph.analysis.cost import cost
from archgraph.errors import RunError
from archgraph.federation.learning import CLASSIFICATION, LearningTask
from archgraph.graph.ir import ArchGraph
from archgraph.hints import unknown
from archgraph.language.aggregate import AggregateSpec
from archgraph.language.server import ServerSpec
from archgraph.states import State, Transfer

if TYPE_CHECKING:
    from archgraph.federation.contribution import Contribution
    from archgraph.federation.server_optimiser import Reached
    from archgraph.federation.state import ServerState
    from archgraph.federation.tasks import ClientData

    Means = Callable[
        [ServerState, Iterable[Contribution]], tuple[ServerState, Mapping[str, Reached]]
    ]


def seeded(seed: int, *labels: int | str) -> torch.Generator:
    """Return a new random generator, which is seeded from ``seed`` and the labels.

    A run that is resumed at round 7 therefore draws the same numbers as the uninterrupted run.

    >>> a, b = seeded(0, "sample", 7), seeded(0, "sample", 7)
    >>> bool(torch.equal(torch.rand(3, generator=a), torch.rand(3, generator=b)))
    True
    """
    # Hashed, so that neighbouring seeds and rounds have unrelated streams; shifted by a bit to fit
    # a signed integer of 64 bits.
    digest = hashlib.sha256(json.dumps([seed, *labels]).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


@dataclass(frozen=True)
class Tier:
    """An architecture that clients of a family may run.

    Attributes:
        name: Name of the tier in the family.
        graph: The architecture.
        transfer: Linear map from the global state to the state of this architecture.
        source: State from which the tier's initial weights are computed.
        own: If True, ``source`` is a state of this architecture. If False, ``source`` is a state of
            the global architecture, which ``transfer`` maps to a state of this architecture.
        count: Number of clients of this tier in the family.
    """

    name: str
    graph: ArchGraph
    transfer: Transfer
    source: State = field(default_factory=dict, repr=False, compare=False)
    own: bool = False
    count: int = 1

    @property
    def alone(self) -> Tier:
        """A copy of the tier for use without a global model: ``transfer`` is the identity."""
        return dataclasses.replace(self, transfer=Transfer.identity(self.graph))

    @property
    def state(self) -> State:
        """Weights before the first round, computed again on each access to save memory."""
        return self.source if self.own else self.transfer.pull(self.source)


class Uncounted(tuple[int, ...]):
    """A placeholder for unknown numbers of examples per class, e.g. of a stream.

    Reading the numbers raises an error.
    """

    def __iter__(self) -> Iterator[int]:
        """Raise an error."""
        raise RunError(
            "the examples of a client are not counted by class",
            hint="choose a strategy that does not need them; pass a stream as a torch dataset "
            "with __len__ and __getitem__, start a Flower node without labels=false",
        )

    def __len__(self) -> int:
        """Raise an error."""
        return len([*self])

    def __getitem__(self, index: object) -> int:  # type: ignore[override]  # refuses everything
        """Raise an error."""
        return len([*self])


@dataclass(frozen=True)
class Client:
    """Information that the server has about a client.

    Attributes:
        id: Index of the client in ``World.clients``.
        name: Name of the client's tier (kind of client) in the family.
        examples: Number of training examples.
        histogram: Number of training targets per class (for text, per token of the vocabulary).
            Empty if targets are not classes.
        of: None, except for additional models. A client may train additional models on its data. A
            strategy sees each additional model as a separate ``Client``, which is not tested. The
            ``of`` of an additional model is the id of the client that trains the model.
        counted: Total weight of the client's training targets in the loss. An ignored target has
            weight 0, any other target the weight of its class. If the total is 0, the client's
            results are not passed to the strategy. Default: the number of examples.
    """

    id: int
    name: str
    examples: int
    histogram: tuple[int, ...]
    of: int | None = None
    counted: float | None = None

    @property
    def weight(self) -> float:
        """Weight of the client in averages over examples: ``counted`` if set, else ``examples``."""
        return self.examples if self.counted is None else self.counted

    @property
    def owner(self) -> int:
        """Id of the client whose data is used: ``of`` for an additional model, else ``id``."""
        return self.id if self.of is None else self.of


@dataclass(frozen=True)
class World:
    """Everything that stays the same during a run: models, clients and settings.

    Attributes:
        graph: The global architecture. If there is no global model, this is an empty graph; see
            ``Strategy.needs_global``.
        state: Initial weights of the global model.
        clients: List of clients, indexed by id. It contains the clients of the family, followed by
            the additional models that some of these clients train.
        tiers: The architectures, in the family's order.
        classes: Number of classes (for text, of tokens). 0 if targets are not classes.
        rounds: Number of rounds.
        seed: Seed of the run; see :func:`seeded`.
        device: Device of server-side computation.
        merging: Device on which clients' states stay until they are averaged.
        aggregate: Options that limit the influence of single clients on averages. Default: no
            limits.
        means: Function that computes means with differential privacy. Default: ordinary means.
        learning: The learning task.
        server: The server optimiser, which is applied to the means. Default: none.
        public: Examples that every client has in addition to its own examples. Default: none.
        wait: Maximum number of bytes of results that are collected in memory and then merged
            together. A collected result must not be modified. Default: each result is merged when
            it arrives.
    """

    graph: ArchGraph
    state: State
    clients: tuple[Client, ...]
    tiers: tuple[Tier, ...]
    classes: int
    rounds: int
    seed: int
    device: str = "cpu"
    merging: str = "cpu"
    aggregate: AggregateSpec | None = None
    means: Means | None = None
    learning: LearningTask = CLASSIFICATION
    server: ServerSpec | None = None
    public: ClientData | None = field(default=None, repr=False, compare=False)
    wait: int = field(default=0, repr=False, compare=False)

    def tier(self, name: str) -> Tier:
        """Return the tier with this name.

        Raises:
            RunError: If no tier has this name.
        """
        for tier in self.tiers:
            if tier.name == name:
                return tier
        raise RunError("unknown tier", **unknown(name, (tier.name for tier in self.tiers)))

    def tier_of(self, client: int) -> Tier:
        """Return the tier that the family assigns to a client."""
        return self.tier(self.clients[client].name)

    def clients_of(self, tier: str) -> tuple[int, ...]:
        """Return the ids of the clients that the family assigns to a tier."""
        return tuple(client.id for client in self.clients if client.name == tier)

    @property
    def counted(self) -> bool:
        """Whether the number of examples per class is known for every client."""
        return not any(isinstance(client.histogram, Uncounted) for client in self.clients)

    @property
    def participants(self) -> tuple[Client, ...]:
        """The clients of the family, without additional models."""
        return tuple(client for client in self.clients if client.of is None)

    def with_further(self, clients: Collection[int]) -> tuple[int, ...]:
        """Return the ids of some clients and of the additional models that these clients train."""
        return tuple(client.id for client in self.clients if client.owner in clients)

    @property
    def one_by_one(self) -> bool:
        """Whether the options of the run require :func:`group_means` for averages.

        This is the case with a robust mean, differential privacy or a server optimiser.
        """
        rules = self.aggregate
        robust = rules is not None and (rules.krum or rules.middle) is not None
        return robust or self.means is not None or self.server is not None

    @property
    def by_size(self) -> tuple[Tier, ...]:
        """The tiers, sorted by number of parameters. Equally large tiers keep their order."""
        # sorted is stable: ties stay in the family's order.
        return tuple(sorted(self.tiers, key=lambda tier: cost(tier.graph).parameters))
