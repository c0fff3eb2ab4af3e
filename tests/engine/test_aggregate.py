"""`aggregate` of an experiment: what limits the part of single clients, and who can use it."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
import torch

from archgraph.engine import prepare
from archgraph.engine.clientwork import Returned
from archgraph.engine.local import execute
from archgraph.errors import RunError, SpecError
from archgraph.federation import (
    Contribution,
    Outcome,
    Result,
    ServerState,
    Strategy,
    Train,
    Work,
    group_means,
)
from archgraph.federation.registry import find_strategy
from archgraph.language import ExperimentSpec
from archgraph.language import help as explained
from archgraph.language.aggregate import (
    RULES,
    AggregateSpec,
    KrumOptions,
    MedianOptions,
    TrimmedMeanOptions,
)
from archgraph.language.experiment import AttackSpec
from archgraph.language.yaml import parse_document
from archgraph.states import Slot, Transfer
from archgraph.states.clipping import change

AVERAGING = (
    *("allsmall", "exclusivefl", "fedadp", "fedavg", "fedfa", "fedin", "flexifed", "heterofl"),
    *("adaptivefl_pool", "flexfl_pool", "ditto", "fedbabu", "fedbn", "fedper", "fedrep"),
    *("fedit", "ffa_lora", "rank_mean", "rolora"),
    *("clusteredfl", "depthfl", "fedrolex", "fjord", "inclusivefl", "nefl", "scalefl"),
)


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
    seen = replace(setup.strategy, seen=lambda r: sizes.append(change(sent, r.state, r.unmerged)))
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
    torch.testing.assert_close(
        clipped.server.group("global"), plain.server.group("global"), rtol=0, atol=0
    )


@pytest.mark.sample(3)
@pytest.mark.parametrize("limit", [{"bound": 1e6}, {"clip": 0.01}, {"clip": "median"}])
def test_one_update_is_in_memory_at_a_time_whatever_limits_it(experiment, mean, limit):
    alive: list[int] = []

    def count(result: Any) -> None:
        held = [o.outcome for o in gc.get_objects() if type(o) is Returned]
        alive.append(sum(outcome is not None and bool(outcome.state) for outcome in held))

    setup = experiment(mean(seen=count), rounds=1, sampled=None)
    if "clip" in limit:
        setup = limited(setup, **limit)
    else:
        setup = replace(setup, **limit)
    execute(setup)
    assert len(alive) == 4 and max(alive) <= 2  # what arrived, and it clipped


ROBUST: dict[str, dict[str, Any]] = {
    "median": {"median": MedianOptions()},
    "trimmed mean": {"trimmed_mean": TrimmedMeanOptions(share=0.2)},
    "krum": {"krum": KrumOptions(malicious=0.2, keep=3)},
    "krum, then median": {"krum": KrumOptions(malicious=0.2, keep=3), "median": MedianOptions()},
}


@pytest.mark.parametrize("rule", ROBUST)
def test_one_client_of_five_cannot_move_the_model_far(experiment, rule):
    method = find_strategy("fedavg")
    setup = experiment(method(), clients=5, rounds=1, sampled=None)
    attacked = replace(setup, attack=AttackSpec(fraction=0.2, intensity=1e4))
    moved = {}
    for name, chosen in (("clean", setup), ("mean", attacked), ("rule", attacked)):
        run = execute(limited(chosen, **ROBUST[rule]) if name == "rule" else chosen)
        assert [c.get("malicious", False) for c in run.rounds[0]["clients"]].count(True) == (
            name != "clean"
        )
        moved[name] = change(setup.world.state, run.server.group("global")).norm
    assert moved["rule"] < 2 * moved["clean"] < 0.01 * moved["mean"]


@dataclass(frozen=True)
class Reversed(Strategy):
    """FedAvg whose results arrive the other way round."""

    averages: ClassVar[bool] = True
    like: Strategy = field(default_factory=lambda: find_strategy("fedavg")())

    def init(self, world):
        return self.like.init(world)

    def send(self, world, state, client, round):
        return self.like.send(world, state, client, round)

    def receive(self, world, state, results, round):
        return self.like.receive(world, state, reversed(list(results)), round)

    def evaluated(self, world, state):
        return self.like.evaluated(world, state)


@pytest.mark.sample(2)
@pytest.mark.parametrize("rule", ROBUST)
def test_the_order_in_which_results_arrive_changes_no_bit(experiment, rule):
    runs = [
        execute(limited(experiment(s, clients=5, rounds=2, sampled=None), **ROBUST[rule]))
        for s in (find_strategy("fedavg")(), Reversed())
    ]
    torch.testing.assert_close(
        runs[1].server.group("global"), runs[0].server.group("global"), rtol=0, atol=0
    )


def contributions(group: str, values: list[float], sizes: list[float] | None = None) -> Any:
    slots = (Slot("w", (2,), "float32"),)
    for client, value in enumerate(values):
        size = {} if sizes is None else {"w": sizes[client]}
        weights = {"w": torch.tensor([value, value])}
        yield Contribution(
            client, group, slots, Transfer.identity(slots), weights, 1.0 + client, sizes=size
        )


def test_krum_chooses_a_client_by_all_that_it_adds(world):
    """In one group the first client is the nearest, in the other the farthest."""
    rules = AggregateSpec(krum=KrumOptions(malicious=0.2, keep=4))
    state = ServerState()
    for group in ("near", "far"):
        state = state.with_group(group, {"w": torch.zeros(2)})
    both = [
        *contributions("near", [1.05, 1.2, 0.9, 1.1, 1.0]),
        *contributions("far", [50.0, 1.1, 0.9, 1.0, 1.0]),
    ]
    new = group_means(replace(world(), aggregate=rules), state, iter(both))
    for group, values in (("near", (1.2, 0.9, 1.1, 1.0)), ("far", (1.1, 0.9, 1.0, 1.0))):
        mean = sum(c * v for c, v in enumerate(values, start=2)) / 14
        assert new.group(group)["w"].tolist() == pytest.approx([mean] * 2)


def test_what_too_few_clients_cover_stays(world):
    """The quorum of a rule reaches the mean."""
    state = ServerState().with_group("global", {"w": torch.tensor([7.0, 7.0])})
    for clients, expected in ((2, 7.0), (3, 2.0)):
        rules = AggregateSpec(median=MedianOptions(quorum=3))
        few = contributions("global", [1.0, 2.0, 3.0][:clients])
        new = group_means(replace(world(), aggregate=rules), state, few)
        assert new.group("global")["w"].tolist() == [expected] * 2


@pytest.mark.parametrize("rule", ROBUST)
def test_sizes_of_entries_are_not_moved_by_one_client_either(world, rule):
    """FedFA divides by sizes and multiplies by their mean: 1e20 would scale every weight."""
    state = ServerState().with_group("global", {"w": torch.zeros(2)})
    sizes = [1.0, 1.1, 0.9, 1.05, 1e20]
    values = [2.0 * size for size in sizes]
    values[-1] = 1e25
    rules = AggregateSpec(**ROBUST[rule])
    clients = contributions("global", values, sizes)
    new = group_means(replace(world(), aggregate=rules), state, clients)
    assert new.group("global")["w"].tolist() == pytest.approx([2.0] * 2, rel=0.1)
    free = group_means(world(), state, contributions("global", values, sizes))
    assert free.group("global")["w"].min() > 1e19


@pytest.mark.parametrize("rule", ["median", "{krum: {malicious: 0.2, keep: 3}}"])
def test_fedadps_models_are_compared_as_they_are_grown(rule):
    """A fifth of the clients goes 10⁴ times as far: the rule sees it among clients of all sizes."""
    text = SPEC.format(aggregate=rule, strategy="fedadp")
    text = text.replace("linear: 10", "linear: 8, linear: 10")
    clients = "{name: a, count: 3}, {name: half, take: 0.5, count: 2}"
    text = text.replace("{name: a, count: 5}", clients)
    setup = prepare(parse_document(text, "e.yaml").validate(ExperimentSpec))
    strategy, world = setup.strategy, setup.world
    state = strategy.begin(world, strategy.init(world), 1, range(5))

    def results(far: float) -> Iterable[Result]:
        for client in range(5):
            task = strategy.send(world, state, client, 1)
            by = far if client == 4 else 1 + client / 100
            yield task.result(Outcome({k: v * by for k, v in task.state.items()}), 10)

    free = replace(world, aggregate=None)
    honest, robust, mean = (
        strategy.receive(w, state, results(far), 1).group("global")
        for w, far in ((world, 1.04), (world, 1e4), (free, 1e4))
    )
    torch.testing.assert_close(robust, honest, rtol=0.1, atol=0.02)
    assert max(float((mean[name] - value).abs().max()) for name, value in honest.items()) > 100


def test_fedadps_mean_is_the_same_client_by_client():
    text = SPEC.format(aggregate="{trimmed_mean: 0.0}", strategy="fedadp")
    text = text.replace("{fedadp: {}}", "{fedadp: {weights: uniform}}")
    setup = prepare(parse_document(text, "e.yaml").validate(ExperimentSpec))
    plain = replace(setup, world=replace(setup.world, aggregate=None))
    runs = [execute(setup), execute(plain)]
    torch.testing.assert_close(
        runs[1].server.group("global"),
        runs[0].server.group("global"),
        rtol=1e-5,
        atol=1e-7,
    )


SPEC = """
archgraph: 1
name: t
family: {{model: {{archgraph: 1, name: m, inputs: {{x: [1, 8, 8]}},
  sections: [{{name: head, steps: [flatten, linear: 10]}}]}}, clients: [{{name: a, count: 5}}]}}
data: {{dataset: digits, limit: 200}}
strategy: {{{strategy}: {{}}}}
rounds: 1
local: {{lr: 0.1}}
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
        ("{}", "must name a rule"),
        ("{clip: 0}", "aggregate.clip"),
        ("{clip: mean}", "aggregate.clip"),
        ("{cilp: 1.0}", "clip"),
        ("{trimmed_mean: 0.5}", "aggregate.trimmed_mean"),
        ("{krum: {malicious: 0.2, keep: 0}}", "aggregate.krum.keep"),
        ("{median: {}, trimmed_mean: 0.1}", "two replacements of the mean"),
        ("mean", "did you mean 'median'"),
    ],
)
def test_what_is_not_a_rule_is_refused_with_its_place(value, reason):
    with pytest.raises(SpecError, match=reason):
        spec(value)


@pytest.mark.parametrize("name", explained.strategy_names())
def test_a_strategy_that_does_not_average_is_refused_by_name(name):
    assert find_strategy(name).averages is (name in AVERAGING)
    if name not in AVERAGING:
        with pytest.raises(
            RunError, match=rf"strategy\.{name}: the strategy does not only average"
        ):
            prepare(spec("{clip: 1.0}", name))


def test_short_and_long_forms_are_one():
    assert spec("median").aggregate == spec("{median: {}}").aggregate
    long = spec("{trimmed_mean: {share: 0.2, quorum: 1}}").aggregate
    assert spec("{trimmed_mean: 0.2}").aggregate == long
    assert spec("{krum: 0.2}").aggregate == spec("{krum: {malicious: 0.2, keep: 1}}").aggregate
    again = prepare(
        parse_document(prepare(spec("median")).text, "run.yaml").validate(ExperimentSpec)
    )
    assert again.world.aggregate == spec("median").aggregate


def test_rounds_that_are_too_small_for_krum_are_refused():
    with pytest.raises(
        RunError, match=r"aggregate.krum: too few clients.*5 clients, of which 2.*7 or more"
    ):
        prepare(spec("{krum: 0.4}"))
    assert prepare(spec("{krum: 0.3}")).sampled == 5


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("{krum: {malicious: 0.2, keep: 9}}", r"aggregate.krum.keep: Krum would keep malicious"),
        (
            "{median: {quorum: 50}}",
            "aggregate: a round of . clients never reaches the quorum.*found 50",
        ),
    ],
)
def test_a_rule_that_would_do_nothing_is_refused(value, reason):
    with pytest.raises(RunError, match=reason):
        prepare(spec(value))
