"""Who takes part in a run: tiers, clients, the world; and where its randomness comes from."""

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
    """Return a generator that depends on seed and labels only, not on earlier draws.

    A run that is resumed at round 7 therefore draws what the uninterrupted run drew there.

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
    """An architecture that clients may run.

    Attributes:
        name: Its name in the family.
        graph: The architecture.
        transfer: Linear map from the global state to this architecture's.
        source: Origin of its first weights: the global state, or its own model's weights.
        own: Whether ``source`` is a state of this architecture already.
        count: Number of clients that the family gives it to.
    """

    name: str
    graph: ArchGraph
    transfer: Transfer
    source: State = field(default_factory=dict, repr=False, compare=False)
    own: bool = False
    count: int = 1

    @property
    def alone(self) -> Tier:
        """The tier with weights that are its own, not a part of the global ones."""
        return dataclasses.replace(self, transfer=Transfer.identity(self.graph))

    @property
    def state(self) -> State:
        """Weights before the first round, computed on each access: the memory of one at a time."""
        return self.source if self.own else self.transfer.pull(self.source)


class Uncounted(tuple[int, ...]):
    """Examples per class that are not known, of a stream or on another machine: not to be read."""

    def __iter__(self) -> Iterator[int]:
        """Refuse."""
        raise RunError(
            "the examples of a client are not counted by class",
            hint="choose a strategy that does not ask for it; give a stream as a torch dataset "
            "with __len__ and __getitem__, start a node of Flower without labels=false",
        )

    def __len__(self) -> int:
        """Refuse."""
        return len([*self])

    def __getitem__(self, index: object) -> int:  # type: ignore[override]  # refuses everything
        """Refuse."""
        return len([*self])


@dataclass(frozen=True)
class Client:
    """What the server knows of a client.

    Attributes:
        id: Position in ``World.clients``.
        name: Name of the tier that the family gives it.
        examples: Number of training examples.
        histogram: Training targets per class; over the vocabulary for text. Empty where targets
            are not classes.
        of: The client that trains this model beside its own, on its own data. Default: a client
            of the family. Strategies treat a further model as a separate, untested client.
        counted: How much its training targets count in its loss: those that are not ignored, each
            by the weight of its class. Results of a client without any are not passed on. Default:
            every example counts 1.
    """

    id: int
    name: str
    examples: int
    histogram: tuple[int, ...]
    of: int | None = None
    counted: float | None = None

    @property
    def weight(self) -> float:
        """Its weight among clients, where these are weighted by examples."""
        return self.examples if self.counted is None else self.counted

    @property
    def owner(self) -> int:
        """Client that owns the data."""
        return self.id if self.of is None else self.of


@dataclass(frozen=True)
class World:
    """All that stays the same during a run.

    Attributes:
        graph: The global architecture; empty where clients have only models of their own (see
            ``Strategy.needs_global``).
        state: Its initial weights.
        clients: The clients, by id; behind those of the family the further models that some train.
        tiers: The architectures that are offered, in the family's order.
        classes: Number of classes (of words, for text); 0 where targets are not classes.
        rounds: Number of rounds.
        seed: Seed of the run; see :func:`seeded`.
        device: Device of server-side computation.
        merging: Device on which clients' states stay until their mean is taken.
        aggregate: Limits on the influence of single clients on a mean. Default: none.
        means: Private means that replace the ordinary ones. Default: none.
        learning: The learning task.
        server: The optimiser that follows the means. Default: they are taken as they are.
        public: Examples that every client has beside its own. Default: none.
        wait: Bytes of results that may wait until several are merged at once; these must not change
            after the next one was asked for. Default: each is merged as it comes.
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
        """Return a tier by name.

        Raises:
            RunError: If there is none of that name.
        """
        for tier in self.tiers:
            if tier.name == name:
                return tier
        raise RunError("unknown tier", **unknown(name, (tier.name for tier in self.tiers)))

    def tier_of(self, client: int) -> Tier:
        """Return the tier that the family assigns to a client."""
        return self.tier(self.clients[client].name)

    def clients_of(self, tier: str) -> tuple[int, ...]:
        """Return the clients that the family assigns to a tier, by id."""
        return tuple(client.id for client in self.clients if client.name == tier)

    @property
    def counted(self) -> bool:
        """Whether it is known of every client how many examples of each class it has."""
        return not any(isinstance(client.histogram, Uncounted) for client in self.clients)

    @property
    def participants(self) -> tuple[Client, ...]:
        """The clients of the family: without the further models that some of them train."""
        return tuple(client for client in self.clients if client.of is None)

    def with_further(self, clients: Collection[int]) -> tuple[int, ...]:
        """Return clients and the further models that they train, by id."""
        return tuple(client.id for client in self.clients if client.owner in clients)

    @property
    def one_by_one(self) -> bool:
        """Whether means need each client's update, so that `group_means` has to make them."""
        rules = self.aggregate
        robust = rules is not None and (rules.krum or rules.middle) is not None
        return robust or self.means is not None or self.server is not None

    @property
    def by_size(self) -> tuple[Tier, ...]:
        """The tiers from the fewest parameters to the most; equals as in the family."""
        # sorted is stable: equals stay in the family's order.
        return tuple(sorted(self.tiers, key=lambda tier: cost(tier.graph).parameters))
