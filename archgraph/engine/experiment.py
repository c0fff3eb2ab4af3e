"""An experiment as a value: everything looked up, loaded and shared out."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from archgraph.engine.attack import malicious
from archgraph.engine.data import Dataset
from archgraph.engine.shard import Shard
from archgraph.federation import Strategy, World
from archgraph.language.experiment import AttackSpec, EvaluateSpec
from archgraph.language.local import LocalOptions
from archgraph.plain import Json


@dataclass(frozen=True, eq=False)
class Experiment:
    """All that a run consists of, resolved: nothing is looked up any more.

    Attributes:
        world: Who takes part, and where it is computed.
        strategy: The method.
        data: The data set.
        shares: Training examples of each client.
        local: How clients train.
        evaluate: When and how models are tested.
        attack: What malicious clients do.
        sampled: Clients in each round; None: all.
        text: The experiment as resolved, YAML, for the run folder.
        facts: All that decides the run's numbers, as plain values.
    """

    world: World
    strategy: Strategy
    data: Dataset
    shares: tuple[np.ndarray, ...]
    local: LocalOptions = field(default_factory=LocalOptions)
    evaluate: EvaluateSpec = field(default_factory=EvaluateSpec)
    attack: AttackSpec | None = None
    sampled: int | None = None
    text: str = ""
    facts: Mapping[str, Json] = field(default_factory=dict)

    @functools.cached_property
    def malicious(self) -> frozenset[int]:
        """Clients that attack."""
        if self.attack is None:
            return frozenset()
        clients = range(len(self.world.clients))
        return malicious(clients, self.attack.fraction, self.world.seed)

    def shard(self, client: int) -> Shard:
        """Training data of a client, copied on each call: the memory of one shard, not of all."""
        return Shard.of(
            self.data.train,
            self.shares[client],
            self.world.clients[client].histogram,
            self.world.device,
        )
