"""Resolved experiments, with their models, data and clients."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from archgraph.data import Dataset, Split
from archgraph.data.validation import Selection, held_out, subset
from archgraph.engine.attack import drawn_attackers, exchanged
from archgraph.federation import Pixels, Shard, State, Strategy, Work, World
from archgraph.federation.training_loss import trained_task
from archgraph.graph.ir import ArchGraph
from archgraph.language.experiment import AttackSpec, EngineSpec, EvaluateSpec
from archgraph.language.local import LocalOptions
from archgraph.language.privacy import PrivacySpec
from archgraph.plain import Json
from archgraph.states.copies import to_device


@dataclass(frozen=True, eq=False)
class Experiment:
    """An experiment that is ready to run, with its models, clients and data.

    Attributes:
        world: The clients, tiers and devices.
        strategy: The federated method.
        data: The data set.
        shares: Tuple of arrays. Array ``i`` contains the indices of the training examples of client
            ``i``. If a client trains additional models, each of these models has its own id and the
            indices of the client.
        local: Options of local training.
        evaluate: Options of tests.
        engine: Number of processes, and limits on a client's time and memory.
        attack: Options of malicious clients. Default: no client is malicious.
        sampled: Number of clients that take part in each round. Default: all.
        patience: Number of consecutive rounds without an accepted update after which the run ends.
            A run also ends if all clients of a round fail.
        privacy: Options of differential privacy. Default: none.
        bound: Maximum root mean square of an update, as a multiple of the median over the updates
            of the round. Default: no maximum.
        text: The resolved experiment as YAML, which is written to the run folder.
        facts: JSON values of everything that affects the results of the run.
        locating: Function that maps a key of the experiment to a context manager. The message of an
            error raised in this context contains the line of the key in the file.
        selection: Options for selecting a round by its metrics on held-out examples. Default: no
            examples are held out.
        held_out: Indices of the held-out training examples.
        by_kind: Dict from tier to options of local training that override ``local``.
    """

    world: World
    strategy: Strategy
    data: Dataset
    shares: tuple[np.ndarray, ...]
    local: LocalOptions = field(default_factory=LocalOptions)
    evaluate: EvaluateSpec = field(default_factory=EvaluateSpec)
    engine: EngineSpec = field(default_factory=EngineSpec)
    attack: AttackSpec | None = None
    sampled: int | None = None
    patience: int = 5
    bound: float | None = None
    privacy: PrivacySpec | None = None
    text: str = ""
    facts: Mapping[str, Json] = field(default_factory=dict)
    locating: Callable[[str], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    selection: Selection | None = None
    held_out: np.ndarray = field(default_factory=lambda: np.arange(0))
    by_kind: Mapping[str, LocalOptions] = field(default_factory=dict)

    @functools.cached_property
    def malicious(self) -> frozenset[int]:
        """Ids of the malicious clients."""
        if self.attack is None:
            return frozenset()
        clients = self.world.participants
        tiers = [client.name for client in clients] if self.attack.within else []
        drawn = drawn_attackers(range(len(clients)), self.attack.fraction, self.world.seed, tiers)
        return frozenset(self.world.with_further(drawn))

    @functools.cached_property
    def exchanged(self) -> Mapping[int, torch.Tensor]:
        """Dict from malicious client to its labels, shuffled among all malicious clients.

        The dict is empty if no labels are shuffled among clients. The additional models of a client
        have the same labels as the client.
        """
        if self.attack is None or self.attack.among == "own":
            return {}
        owner = {client: self.world.clients[client].owner for client in self.malicious}
        shares = {client: self.shares[client] for client in owner.values()}
        labels = exchanged(shares, self.data.train.targets, self.world.seed)
        return {client: labels[of] for client, of in owner.items()}

    @property
    def rate(self) -> float:
        """Fraction of the clients that take part in a round."""
        clients = len(self.world.participants)
        return 1.0 if self.sampled is None else min(self.sampled / clients, 1.0)

    @functools.cached_property
    def training(self) -> Split:
        """The training examples, without held-out examples."""
        if not len(self.held_out):
            return self.data.train
        return subset(self.data.train, np.unique(np.concatenate(self.shares)))

    @functools.cached_property
    def validating(self) -> Experiment:
        """The same experiment with the held-out examples as its test data."""
        return dataclasses.replace(self, data=held_out(self.data, self.held_out))

    def local_of(self, client: int) -> LocalOptions:
        """Return the options of local training that apply to a client."""
        clients = self.world.clients
        return self.by_kind.get(clients[clients[client].owner].name, self.local)

    def shard(self, client: int) -> Shard:
        """Return a new copy of a client's training data."""
        train, share = self.data.train, self.shares[client]
        device, histogram = self.world.device, self.world.clients[client].histogram
        if train.stream is not None:
            stream = functools.partial(train.streamed, int(share[0]))
            targets = train.targets[: len(share)].to(device)
            return Shard((), targets, histogram, stream=stream)
        # `examples` copies tensors, so that clients do not see each other's data.
        inputs, targets = train.examples(share)
        there = tuple(to_device(x, device) for x in inputs)
        again = functools.partial(self._again, client) if train.again else None
        targets = to_device(targets, device)
        return Shard(there, targets, histogram, padding=train.padding, again=again)

    def _again(
        self, client: int, ids: torch.Tensor, seed: int
    ) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        """Read some of a client's examples again, with new random transforms."""
        return self.data.train.examples(torch.from_numpy(self.shares[client])[ids], seed)

    def work(
        self,
        client: int,
        round: int,
        graph: ArchGraph,
        state: State,
        generator: torch.Generator,
        *,
        keep: State,
        **more: Any,
    ) -> Work:
        """Create the input of a client's training function, with copies of all tensors and values.

        Without copies, a training function that changes tensors in place could change the server's
        state or the client's private tensors.
        """
        data, local = self.shard(client), self.local_of(client)
        mean, std = self.data.train.mean, self.data.train.std
        return Work(
            client=client,
            round=round,
            rounds=self.world.rounds,
            graph=graph,
            state=state,
            data=data,
            local=local,
            generator=generator,
            keep=keep,
            device=self.world.device,
            learning=trained_task(self.world.learning, local),
            public=self.world.public,
            pixels=None if mean is None or std is None else Pixels(mean, std),
            **more,
        ).copied()
