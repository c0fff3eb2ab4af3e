"""Results of a round are read once: a second pass is refused, where it merged nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from archgraph.engine import prepare
from archgraph.engine.local import execute
from archgraph.errors import RunError
from archgraph.federation import Result, ServerState, World, covered_mean
from archgraph.language import ExperimentSpec
from archgraph.language.yaml import parse_document
from archgraph.strategies.fedavg import FedAvg

SPEC = """
archgraph: 1
name: once
family:
  model:
    archgraph: 1
    name: m
    inputs: {x: [1, 8, 8]}
    sections: [{name: head, steps: [flatten, linear: 10]}]
  clients: [{name: a, count: 3}]
data: {dataset: digits, limit: 60}
strategy: {fedavg: {}}
rounds: 1
local: {lr: 0.1}
"""


def reading(read: Callable[[Iterable[Result]], Any], survey: bool = False) -> Any:
    """An experiment whose strategy reads results in some way before it takes their mean."""

    class Reading(FedAvg):
        def survey(self, world: World, state: ServerState) -> Any:
            return (self.send(world, state, 0, 0) for _ in range(survey))

        def surveyed(self, world: World, state: ServerState, results: Iterable[Result]) -> Any:
            return read(results) and state if survey else state

        def receive(
            self, world: World, state: ServerState, results: Iterable[Result], round: int
        ) -> ServerState:
            return covered_mean(world, state, results if survey else read(results))

    made = prepare(parse_document(SPEC, "e.yaml").validate(ExperimentSpec))
    return replace(made, strategy=Reading())


def first(results: Iterable[Result]) -> None:
    for _ in results:
        break


@pytest.mark.parametrize(
    "look",
    [
        lambda results: [result.metrics["loss"] for result in results],
        lambda results: next(iter(results)),
        lambda results: next(results),
        lambda results: any(result.examples for result in results),
        lambda results: list(zip("ab", results, strict=False)),
        lambda results: list(itertools.islice(results, 0)),
        first,
    ],
    ids=["loop", "first", "next", "any", "zip", "none", "break"],
)
def test_a_second_pass_is_refused_however_far_the_first_went(look):
    message = r"Reading\.receive: reads results a second time: .*`results = list\(results\)`"
    with pytest.raises(RunError, match=message):
        execute(reading(lambda results: (look(results), results)[1]))


def test_after_a_list_everything_is_read_as_often_as_one_likes():
    plain = execute(reading(lambda results: results)).server.group("global")

    def listed(results: Iterable[Result]) -> Iterable[Result]:
        results = list(results)
        assert len([result.metrics["loss"] for result in results]) == 3
        return results

    twice = execute(reading(listed)).server.group("global")
    onward = execute(reading(lambda results: (result for result in iter(results)))).server
    assert all((value == twice[name]).all() for name, value in plain.items())
    assert all((value == onward.group("global")[name]).all() for name, value in plain.items())


def test_those_of_a_survey_are_read_once_too():
    with pytest.raises(RunError, match=r"Reading\.surveyed: reads results a second time"):
        execute(reading(lambda results: [*results, *results], survey=True))
