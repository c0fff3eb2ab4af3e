"""A small world for the engine: two tiers on `digits`, and a method of means."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from archgraph.capture.trace import trace
from archgraph.data import Dataset, load_dataset
from archgraph.data.partition import allot, class_histogram
from archgraph.engine.experiment import Experiment
from archgraph.federation import (
    Client,
    Evaluated,
    LocalOptions,
    Program,
    Result,
    ServerState,
    State,
    Strategy,
    Task,
    Tier,
    Train,
    World,
)
from archgraph.graph.ir import ArchGraph
from archgraph.language.experiment import EngineSpec, EvaluateSpec
from archgraph.module.initial import initial_state
from archgraph.states import Merger, Transfer, Update


@dataclass(frozen=True)
class Mean(Strategy):
    """The mean of one architecture; everything that an engine has to honour is an option.

    Attributes:
        programs: What a client does, where it is not plain training.
        private: Entries that stay with the client.
        asked: Program of the survey, if there is one.
        statistics: As in ``Evaluated``.
        personal: Test each client on its own entries.
        tuned: Program before a test.
        seen: Told of every result while it is the only one alive.
        refuse: Told of every result before it is accepted.
    """

    programs: Mapping[int, Program] = field(default_factory=dict)
    program: Program = field(default_factory=Train)
    private: frozenset[str] = frozenset()
    asked: Program | None = None
    statistics: Any = "stored"
    personal: bool = False
    tuned: Program | None = None
    seen: Callable[[Result], None] | None = None
    refuse: Callable[[Result], None] | None = None
    find: Callable[[Result], Any] | None = None

    def examine(self, world: World, result: Result) -> State | None:
        if self.refuse is not None:
            self.refuse(result)
        return None if self.find is None else self.find(result)

    def init(self, world: World) -> ServerState:
        return ServerState(values={"results": 0}).with_group("global", world.state)

    def survey(self, world: World, state: ServerState) -> Iterable[Task]:
        if self.asked is not None:
            for client in world.clients:
                yield Task(client.id, world.graph, world.state, self.asked)

    def surveyed(self, world: World, state: ServerState, results: Iterable[Result]) -> ServerState:
        return state.with_values(answers=[r.metrics["answer"] for r in results])

    def send(self, world: World, state: ServerState, client: int, round: int) -> Task:
        program = self.programs.get(client, self.program)
        return Task(client, world.graph, state.group("global"), program, private=self.private)

    def receive(
        self, world: World, state: ServerState, results: Iterable[Result], round: int
    ) -> ServerState:
        merger = Merger(world.graph, state.group("global"))
        count = state.values["results"]
        for result in results:
            if self.seen is not None:
                self.seen(result)
            full = {**state.group("global"), **result.state}
            transfer = world.tier_of(result.client).transfer
            merger.accumulate(Update(transfer, full, result.examples, unmerged=self.private))
            count += 1
        return state.with_group("global", merger.result()[0]).with_values(results=count)

    def evaluated(self, world: World, state: ServerState) -> Iterable[Evaluated]:
        for name in ("global", *(tier.name for tier in world.tiers)):
            members = tuple(c.id for c in world.clients if c.name == name)
            yield Evaluated(
                name,
                world.graph,
                state.group("global"),
                members,
                statistics=self.statistics,
                private=self.personal,
                program=self.tuned,
            )


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return load_dataset("digits", limit=400)


@pytest.fixture(scope="session")
def net() -> ArchGraph:
    """A network with everything that a resumed run can get wrong: running statistics, dropout."""
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, stride=2),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(64, 10),
    )
    return trace(module, torch.zeros(2, 1, 8, 8)).graph


@pytest.fixture(scope="session")
def world(digits: Dataset, net: ArchGraph) -> Callable[..., World]:
    def make(clients: int = 4, rounds: int = 3, seed: int = 0) -> World:
        shares = allot(digits.train.targets, tiers=["all"] * clients, scheme="dirichlet", seed=seed)
        same = Transfer.identity(net)
        return World(
            graph=net,
            state=initial_state(net, seed),
            clients=tuple(
                Client(
                    i,
                    "odd" if i % 2 else "even",
                    len(own),
                    tuple(class_histogram(digits.train.targets[own], 10).tolist()),
                )
                for i, own in enumerate(shares)
            ),
            tiers=(Tier("even", net, same), Tier("odd", net, same)),
            classes=10,
            rounds=rounds,
            seed=seed,
        )

    return make


@pytest.fixture(scope="session")
def experiment(digits: Dataset, world: Callable[..., World]) -> Callable[..., Experiment]:
    """An experiment; keywords are fields of `Experiment`, or clients, rounds, seed."""

    def make(
        strategy: Strategy | None = None,
        *,
        clients: int = 4,
        rounds: int = 3,
        seed: int = 0,
        **changes: Any,
    ) -> Experiment:
        chosen = Experiment(
            world=world(clients, rounds, seed),
            strategy=strategy or Mean(),
            data=digits,
            shares=allot(
                digits.train.targets, tiers=["all"] * clients, scheme="dirichlet", seed=seed
            ),
            local=LocalOptions(lr=0.05, batch=16),
            evaluate=EvaluateSpec(batch=100),
            engine=EngineSpec(workers=1),  # this process: tests watch what clients do
            sampled=max(clients - 1, 1),
            text="name: test\n",
            facts={"rounds": rounds, "clients": clients, "seed": seed},
        )
        return dataclasses.replace(chosen, **changes)

    return make


@pytest.fixture(scope="session")
def mean() -> type[Mean]:
    return Mean
