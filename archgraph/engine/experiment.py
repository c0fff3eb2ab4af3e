"""An experiment as a value: everything looked up, loaded and shared out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from archgraph.engine.data import Dataset
from archgraph.engine.shard import Shard
from archgraph.federation import LocalOptions, Strategy, World
from archgraph.language.local import rounds_of
from archgraph.plain import Json


@dataclass(frozen=True)
class Options:
    """How the engine runs, apart from what it runs.

    Attributes:
        sampled: Clients in each round; None: all.
        evaluate_every: Test after each so many rounds, and after the last.
        evaluate_after: Rounds (≥ 1) or a fraction of all rounds (< 1) before the first test.
        batch: Examples at a time in tests.
        statistics: Training examples from which static statistics are computed; None: all.
        fine_tune: Passes over a client's data before a model is tested for it; see
            :class:`archgraph.engine.evaluate.Evaluator`.
        checkpoint_every: Write a checkpoint after each so many rounds, and after the last.
        checkpoints: Checkpoints to keep.
        device: Where to compute.
    """

    sampled: int | None = None
    evaluate_every: int = 1
    evaluate_after: float = 0.0
    batch: int = 500
    statistics: int | None = None
    fine_tune: int = 0
    checkpoint_every: int = 1
    checkpoints: int = 2
    device: str = "cpu"

    def tests(self, round: int, rounds: int) -> bool:
        """Whether to test after a round (counted from 1) of so many.

        Example:
            >>> late = Options(evaluate_every=2, evaluate_after=0.7)
            >>> [number for number in range(1, 12) if late.tests(number, 11)]
            [8, 10, 11]
        """
        if round == rounds:
            return True
        begun = round > rounds_of(self.evaluate_after, rounds)
        return begun and round % self.evaluate_every == 0

    def saves(self, round: int, rounds: int) -> bool:
        """Whether to write a checkpoint after a round (counted from 1) of so many."""
        return round % self.checkpoint_every == 0 or round == rounds


@dataclass(frozen=True, eq=False)
class Experiment:
    """All that a run consists of, resolved: nothing is looked up any more.

    Attributes:
        world: Who takes part.
        strategy: The method.
        data: The data set.
        shares: Training examples of each client.
        local: How clients train.
        options: How the engine runs.
        malicious: Clients that attack.
        intensity: λ of the attack.
        text: The experiment as resolved, YAML, for the run folder.
        facts: All that decides the run's numbers, as plain values.
    """

    world: World
    strategy: Strategy
    data: Dataset
    shares: tuple[np.ndarray, ...]
    local: LocalOptions = field(default_factory=LocalOptions)
    options: Options = field(default_factory=Options)
    malicious: frozenset[int] = frozenset()
    intensity: float = 1.0
    text: str = ""
    facts: Mapping[str, Json] = field(default_factory=dict)

    def shard(self, client: int) -> Shard:
        """Training data of a client, made anew: the memory of one shard, not of all."""
        return Shard.of(
            self.data.train,
            self.shares[client],
            self.world.clients[client].histogram,
            self.options.device,
        )
