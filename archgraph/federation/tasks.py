"""Data exchanged between server and client: work, outcomes, tasks, results."""

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
        inputs: Arguments of the model, in order, with the batch as first axis.
        targets: Classes ``[batch, ...]``, where ``-100`` is ignored; labels or numbers.
        ids: Index of each example in the client's data, ``[batch]``, the same in all rounds.
        all_count: Whether it is known that no target is ignored, so that training steps need not
            wait for the device.
    """

    inputs: tuple[Tensor, ...]
    targets: Tensor
    ids: Tensor
    all_count: bool = False


class Pixels(NamedTuple):
    """Normalisation of images that are stored as bytes.

    Attributes:
        mean: Mean of each channel, subtracted from images, ``[channel]``.
        std: Standard deviation of each channel, by which images are divided, ``[channel]``.
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
        """Targets per class, label or word; empty if targets are not classes."""

    def batches(self, generator: torch.Generator | None, size: int) -> Iterator[Examples]:
        """Yield the minibatches of one pass in random order, or without a generator in data order.

        A remainder of one example joins the previous batch, since batch statistics need two.
        """


class Model(NamedTuple):
    """An architecture with weights."""

    graph: ArchGraph
    state: State


@dataclass(frozen=True)
class Work:
    """The input of a program: a task at a client, with the client's data.

    Attributes:
        client: Id of the client.
        round: Counted from 1; 0 for the survey before the first.
        rounds: Number of rounds.
        graph: Architecture of the client's model.
        state: Full state of the model: the sent entries, overlaid with the client's private ones.
            All tensors are on ``device``.
        data: The client's training data.
        local: Options of local training.
        generator: Source of all randomness of this client in this round. The engine seeds torch's
            own generator (dropout) from it before it calls the program.
        keep: Private tensors of the client in addition to its state.
        others: Dict from name to additional model.
        extras: Tensors that the server sent.
        values: Plain values that the server sent.
        device: Device to compute on.
        learning: The learning task.
        public: Examples that every client has, if the experiment sets ``public``.
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
        """Return a deep copy, since a program may write in place."""

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
        """Mask of the classes of which this client has examples, bool ``[classes]``."""
        return torch.tensor([n > 0 for n in self.data.histogram])


@wire.carried
@dataclass(frozen=True)
class Outcome:
    """The result of a program, on any device; the engine copies it.

    Attributes:
        state: Full state of the model after the work. The engine takes ``Task.private`` out of it.
        keep: Replaces the client's private tensors other than its state.
        others: States of the additional models.
        extras: Tensors for the server.
        metrics: Numbers for the record. A program that does not always run the full model reports
            ``macs``, the multiply–accumulates of its forward passes; three times as many are
            recorded, for forward and backward passes.
    """

    state: State
    keep: State = field(default_factory=dict)
    others: Mapping[str, State] = field(default_factory=dict)
    extras: State = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


class Program(Protocol):
    """A client's program: a frozen dataclass, so that it pickles and prints."""

    def __call__(self, work: Work) -> Outcome:
        """Run the program on a client."""


@dataclass(frozen=True)
class Task:
    """A task that the server sends to a client.

    Attributes:
        client: Id of the recipient.
        graph: Architecture of the model.
        state: Weights of the model. Entries of ``private`` may be omitted if the client has them.
        program: The program to run.
        private: Entries that stay with the client from round to round and are never returned. Their
            shapes must be the same in later tasks. Frozen entries (``ag.frozen``) are not stored
            per client, since they never change: every task sends them.
        unmerged: Other entries that the server does not merge: they are returned, but ignored.
        transfer: Linear map from the global state to this model's state; also in the result.
        indexed: Entries that are 0 outside a mask. Byte counts include only their nonzero numbers
            and, when sent to the client, four bytes for the index of each.
        known: Entries of ``private`` that the client has unchanged from an earlier task, so that
            byte counts omit them.
        others: Dict from name to additional model; all of their state is sent and returned.
        extras: Tensors that are not weights.
        values: Plain values.
        tier: Name of the architecture, for the record. Default: the client's tier.
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
        """Return the part of an outcome for the server, without private entries."""
        return Result(
            client=self.client,
            state={k: v for k, v in outcome.state.items() if k not in self.private},
            examples=examples,
            others=outcome.others,
            extras=outcome.extras,
            metrics=outcome.metrics,
            tier=self.tier,
            unmerged=self.private | self.unmerged,  # what is missing cannot be merged
            transfer=self.transfer,
            indexed=self.indexed,
            counted=counted,
        )


@dataclass(frozen=True)
class Result:
    """A client's result as the server sees it, validated by the engine.

    Attributes:
        client: Id of the client.
        state: All entries of the task's graph except ``Task.private``, on ``World.merging``;
            floating point ones are finite.
        examples: Number of the client's training examples.
        others: States of the additional models.
        extras: Tensors for the server; floating point ones are finite.
        metrics: Numbers for the record.
        tier: Tier of the task.
        unmerged: Entries that are not merged: ``Task.private`` and ``Task.unmerged``.
        transfer: Transfer of the task.
        indexed: Entries of the task of which only nonzero numbers count as sent.
        findings: Values that ``Strategy.examine`` computed from the other fields; never sent by a
            client.
        counted: Weight of these examples in the loss (:attr:`.Client.counted`). Default: 1 each.
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
        """Return the weight of this client in a mean.

        Args:
            weights: ``examples`` (the weight of the examples in the loss), ``uniform`` (1), or a
                function of this result.

        Raises:
            RunError: If ``weights`` has another value, or a function does not return a positive
                number.
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
        raise RunError("is not a weight of a mean", where=f"client {self.client}", **facts)
