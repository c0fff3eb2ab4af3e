"""Data that server and clients exchange: tasks, work, outcomes and results."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from archgraph.errors import ErrorFacts, RunError
from archgraph.federation.learning import CLASSIFICATION, LearningTask
from archgraph.graph.ir import ArchGraph
from archgraph.language.local import LocalOptions as LocalOptions
from archgraph.plain import Json
from archgraph.states import State, Transfer, wire
from archgraph.states.copies import state_to_device

Weights = Literal["examples", "uniform"]
WeightOf: TypeAlias = "Weights | Callable[[Result], float]"


class Examples(NamedTuple):
    """A minibatch of inputs and targets.

    Attributes:
        inputs: List of the model's inputs, each ``[batch, ...]``.
        targets: Targets ``[batch, ...]``: classes (class ``-100`` is ignored), labels or numbers.
        ids: Index of each example in the client's data, ``[batch]``. An example has the same index
            in all rounds.
        all_count: True if it is known that no target is ignored. Training is then faster, because
            the targets need not be counted.
    """

    inputs: tuple[Tensor, ...]
    targets: Tensor
    ids: Tensor
    all_count: bool = False


class Pixels(NamedTuple):
    """Mean and standard deviation for the normalisation of images that are stored as bytes.

    Attributes:
        mean: Mean of each channel, which is subtracted from the image, ``[channel]``.
        std: Standard deviation of each channel, by which the difference is divided, ``[channel]``.
    """

    mean: Tensor
    std: Tensor


class ClientData(Protocol):
    """A client's training data."""

    @property
    def examples(self) -> int:
        """Number of examples."""

    @property
    def histogram(self) -> tuple[int, ...]:
        """Number of targets per class, label or token. Empty if targets are numbers."""

    def batches(self, generator: torch.Generator | None, size: int) -> Iterator[Examples]:
        """Yield the minibatches of one epoch, in random order if a generator is passed.

        If the last minibatch would have only one example, this example is added to the previous
        minibatch, because batch norm needs at least two examples.
        """


class Model(NamedTuple):
    """An architecture with weights."""

    graph: ArchGraph
    state: State


@dataclass(frozen=True)
class Work:
    """The input of a program: a task, together with the client's data and private tensors.

    Attributes:
        client: Id of the client.
        round: The round, counted from 1. It is 0 in tasks from :meth:`Strategy.survey`, which run
            before the first round.
        rounds: Number of rounds.
        graph: Architecture of the client's model.
        state: All tensors of the model, on ``device``, including the client's private tensors.
        data: The client's training data.
        local: Options of local training.
        generator: Source of all randomness of this client in this round. Before each program, the
            engine seeds torch's global generator, which dropout uses, from this generator.
        keep: Tensors that the client's previous program stored (:attr:`Outcome.keep`). They are not
            part of the model's state.
        others: Dict from name to additional model.
        extras: Dict from name to tensor that the server sent in addition to weights.
        values: Dict from name to JSON value that the server sent.
        device: Device to compute on.
        learning: The learning task.
        public: Examples that every client has, if the experiment has the key ``public``.
        pixels: Normalisation of images. Default: none.
    """

    client: int
    round: int
    rounds: int
    graph: ArchGraph
    state: State
    data: ClientData
    local: LocalOptions
    generator: torch.Generator
    keep: State = field(default_factory=dict)
    others: Mapping[str, Model] = field(default_factory=dict)
    extras: State = field(default_factory=dict)
    values: Mapping[str, Json] = field(default_factory=dict)
    device: str = "cpu"
    learning: LearningTask = CLASSIFICATION
    public: ClientData | None = None
    pixels: Pixels | None = None

    def copied(self) -> Work:
        """Return a copy of the work, which a program may change in place."""

        def copied(state: State) -> State:
            return state_to_device(state, self.device, copy=True)

        return replace(
            self,
            state=copied(self.state),
            keep=copied(self.keep),
            others={k: Model(m.graph, copied(m.state)) for k, m in self.others.items()},
            extras=copied(self.extras),
            values=copy.deepcopy(dict(self.values)),
        )

    @property
    def present(self) -> Tensor:
        """Mask of the classes that occur in this client's data, bool ``[classes]``."""
        return torch.tensor([n > 0 for n in self.data.histogram])


@wire.carried
@dataclass(frozen=True)
class Outcome:
    """The result of a :class:`Program`, with tensors on any device.

    Attributes:
        state: All tensors of the model at the end of the program. The engine sends them to the
            server, except for the tensors in ``Task.private``.
        keep: Tensors that the client stores for its next round. The program of that round reads
            them as ``Work.keep``. They replace all tensors that the client stored in earlier
            rounds.
        others: Dict from name to the state of an additional model.
        extras: Dict from name to tensor that is sent to the server in addition to weights.
        metrics: Dict from name to number for the run's record. A program that does not always run
            the full model reports ``macs``, the number of multiply–accumulates of its forward
            passes. The record contains three times this number, to include the backward passes.
    """

    state: State
    keep: State = field(default_factory=dict)
    others: Mapping[str, State] = field(default_factory=dict)
    extras: State = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


class Program(Protocol):
    """A program that a client runs, such as local training.

    Programs are frozen dataclasses that can be pickled and printed.
    """

    def __call__(self, work: Work) -> Outcome:
        """Run the program on a client, and return its outcome."""


@dataclass(frozen=True)
class Task:
    """A task that the server sends to a client.

    Attributes:
        client: Id of the client.
        graph: Architecture of the model.
        state: Weights of the model. Tensors in ``private`` may be omitted if the client has them.
        program: The program to run.
        private: Names of tensors that stay with the client from round to round and are never
            returned. Their shapes must be the same in later tasks. Clients do not store frozen
            tensors (``ag.frozen``), because every task sends these tensors again.
        unmerged: Names of further tensors, which are returned but not merged.
        transfer: Linear map from the global state to this model's state. The map is copied to the
            result.
        indexed: Names of tensors that are 0 outside a mask. In these tensors, byte counts include
            only the nonzero numbers. For each nonzero number that is sent to the client, four bytes
            are added for its index.
        known: Names of the private tensors that the client has received in an earlier task. Byte
            counts omit these tensors.
        others: Dict from name to additional model. All tensors of an additional model are sent and
            returned.
        extras: Dict from name to tensor that is sent in addition to weights.
        values: Dict from name to JSON value that is sent.
        tier: Name of the architecture in the run's record. Default: the client's tier.
    """

    client: int
    graph: ArchGraph
    state: State
    program: Program
    private: frozenset[str] = frozenset()
    others: Mapping[str, Model] = field(default_factory=dict)
    extras: State = field(default_factory=dict)
    values: Mapping[str, Json] = field(default_factory=dict)
    tier: str = ""
    unmerged: frozenset[str] = frozenset()
    transfer: Transfer | None = None
    indexed: frozenset[str] = frozenset()
    known: frozenset[str] = frozenset()

    def result(self, outcome: Outcome, examples: int, counted: float | None = None) -> Result:
        """Return the result that the server receives. It does not contain private tensors."""
        return Result(
            client=self.client,
            state={k: v for k, v in outcome.state.items() if k not in self.private},
            examples=examples,
            others=outcome.others,
            extras=outcome.extras,
            metrics=outcome.metrics,
            tier=self.tier,
            unmerged=self.private | self.unmerged,  # missing tensors cannot be merged
            transfer=self.transfer,
            indexed=self.indexed,
            counted=counted,
        )


@dataclass(frozen=True)
class Result:
    """The result of a client's task, as the server receives it after the engine's checks.

    Attributes:
        client: Id of the client.
        state: All tensors of the task's graph except ``Task.private``, on the device
            ``World.merging``. Floating-point tensors are finite.
        examples: Number of the client's training examples.
        others: Dict from name to the state of an additional model.
        extras: Dict from name to tensor that the client sent in addition to weights. Floating-point
            tensors are finite.
        metrics: Dict from name to number for the run's record.
        tier: Name of the architecture in the run's record (``Task.tier``).
        unmerged: Names of tensors that are not merged: ``Task.private`` and ``Task.unmerged``.
        transfer: Linear map from the global state to this model's state (``Task.transfer``).
        indexed: Names of tensors for which byte counts include only the nonzero numbers
            (``Task.indexed``).
        findings: Tensors that ``Strategy.examine`` computed for this result, as a dict from name to
            tensor.
        counted: Total weight of the client's examples in the loss (:attr:`.Client.counted`).
            Default: 1 per example.
    """

    client: int
    state: State
    examples: int
    others: Mapping[str, State] = field(default_factory=dict)
    extras: State = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    tier: str = ""
    unmerged: frozenset[str] = frozenset()
    transfer: Transfer | None = None
    indexed: frozenset[str] = frozenset()
    findings: State = field(default_factory=dict)
    counted: float | None = None

    def weight(self, weights: WeightOf) -> float:
        """Return the weight of this client in an average.

        Args:
            weights: ``examples`` (the weight of the examples in the loss), ``uniform`` (1), or a
                function of this result.

        Raises:
            RunError: If ``weights`` has another value, or is a function that does not return a
                positive number.
        """
        match weights:
            case "examples":
                return self.examples if self.counted is None else self.counted
            case "uniform":
                return 1
        facts: ErrorFacts = {"found": weights, "expected": "examples, uniform or a function"}
        if callable(weights):
            weight = float(weights(self))
            if 0 < weight < math.inf:
                return weight
            facts = {"found": weight, "expected": "a positive number"}
        raise RunError(
            "is not a valid weight for an average", where=f"client {self.client}", **facts
        )
