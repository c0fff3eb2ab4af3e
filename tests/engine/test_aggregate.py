"""`aggregate` of an experiment: what limits the part of single clients, and who can use it."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from archgraph.engine import prepare
from archgraph.engine.local import execute
from archgraph.engine.turn import _Arrival
from archgraph.errors import RunError, SpecError
from archgraph.federation import Outcome, Train, Work
from archgraph.federation.registry import find_strategy
from archgraph.language import ExperimentSpec
from archgraph.language import help as explained
from archgraph.language.aggregate import RULES, AggregateSpec
from archgraph.language.yaml import parse_document
from archgraph.states.clipping import change

AVERAGING = ("allsmall", "exclusivefl", "fedavg", "fedfa", "fedin", "flexifed", "heterofl", "nefl")


@dataclass(frozen=True)
class Strong:
    """Trains, and goes on in that direction so many times as far."""

    factor: float

    def __call__(self, work: Work) -> Outcome:
        outcome = Train()(work)
        more = {
            k: work.state[k] + self.factor * (v - work.state[k])
            for k, v in outcome.state.items()
            if v.is_floating_point() and "running" not in k
        }
        return replace(outcome, state={**outcome.state, **more})


def limited(setup: Any, **rules: Any) -> Any:
    return replace(setup, world=replace(setup.world, aggregate=AggregateSpec(**rules)))


@pytest.mark.parametrize("clip", [0.05, "median"])
def test_clipping_leaves_no_update_larger_than_the_bound(experiment, mean, clip):
    sizes: list[Any] = []
    setup = experiment(mean({1: Strong(50.0)}), rounds=1, sampled=None)
    sent = setup.world.state
    seen = replace(setup.strategy, seen=lambda r: sizes.append(change(sent, r.state, r.skip)))
    free = execute(replace(setup, strategy=seen))
    before, sizes[:] = list(sizes), []
    run = execute(limited(replace(setup, strategy=seen), clip=clip))
    bound = sorted(size.rms for size in before)[1:3]
    for number, (was, now) in enumerate(zip(before, sizes, strict=True)):
        largest = sum(bound) / 2 if clip == "median" else clip
        found, old = (now.rms, was.rms) if clip == "median" else (now.norm, was.norm)
        assert found == pytest.approx(min(largest, old), rel=1e-4)
        told = run.rounds[0]["clients"][number].get("clipped", 1.0)
        assert told == pytest.approx(min(1.0, largest / old), rel=1e-6)
    moved = [change(sent, r.server.group("global")).norm for r in (run, free)]
    assert moved[0] < 0.5 * moved[1]


def test_a_clip_that_nothing_exceeds_changes_no_bit(experiment, mean):
    setup = experiment(rounds=2)
    plain, clipped = execute(setup), execute(limited(setup, clip=1e6))
    assert not any("clipped" in client for line in clipped.rounds for client in line["clients"])
    for name, value in plain.server.group("global").items():
        assert torch.equal(value, clipped.server.group("global")[name])


def test_clipping_by_a_norm_holds_one_update_at_a_time(experiment, mean):
    """Only the median has to see them all."""
    alive: list[int] = []

    def count(result: Any) -> None:
        alive.append(sum(type(o) is _Arrival for o in gc.get_objects()))

    for clip, most in ((0.01, 2), ("median", 4)):  # the one that arrived, and it clipped
        execute(limited(experiment(mean(seen=count), rounds=1, sampled=None), clip=clip))
        assert max(alive) <= most
        alive.clear()


SPEC = """
archgraph: 1
name: t
family: {{model: {{archgraph: 1, name: m, inputs: {{x: [1, 8, 8]}},
  sections: [{{name: head, steps: [flatten, linear: 10]}}]}}, clients: [{{name: a, count: 4}}]}}
data: {{dataset: digits, limit: 200}}
strategy: {{{strategy}: {{}}}}
rounds: 1
aggregate: {aggregate}
"""


def spec(aggregate: str, strategy: str = "fedavg") -> Any:
    text = SPEC.format(aggregate=aggregate, strategy=strategy)
    return parse_document(text, "e.yaml").validate(ExperimentSpec)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_example_of_a_rule_is_read_and_explained(rule):
    read = spec(f"{{{rule.name}: {rule.example}}}")
    assert getattr(read.aggregate, rule.name) is not None
    world = prepare(read).world
    assert world.aggregate == read.aggregate
    topic = explained.topic(rule.name)
    assert topic.sentence == rule.help and rule.source in "".join(topic.notes)


def test_an_experiment_without_it_has_the_facts_that_it_had():
    text = SPEC.format(aggregate="null", strategy="fedavg")
    assert "aggregate" not in prepare(parse_document(text, "e.yaml").validate(ExperimentSpec)).facts


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("{}", "names no rule"),
        ("{clip: 0}", "aggregate.clip"),
        ("{clip: mean}", "aggregate.clip"),
        ("{cilp: 1.0}", "clip"),
    ],
)
def test_what_is_not_a_rule_is_refused_with_its_place(value, reason):
    with pytest.raises(SpecError, match=reason):
        spec(value)


@pytest.mark.parametrize("name", explained.strategy_names())
def test_a_strategy_that_does_not_average_is_refused_by_name(name):
    assert find_strategy(name).averages is (name in AVERAGING)
    if name not in AVERAGING:
        with pytest.raises(RunError, match=f"strategy {name}: the strategy does not average"):
            prepare(spec("{clip: 1.0}", name))
