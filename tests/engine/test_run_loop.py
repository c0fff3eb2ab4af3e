"""The round loop: what it promises about randomness, isolation, memory and time."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.optimizer import register_optimizer_step_post_hook

from archgraph.engine.local import execute
from archgraph.engine.rounds import Loop, RoundPlan, sample
from archgraph.errors import RejectedUpdate, RunError
from archgraph.federation import Model, Outcome, Result, ServerState, Train, Work
from archgraph.language.experiment import EvaluateSpec
from archgraph.record.traffic import size


def bits(tensors: Any) -> dict[str, bytes]:
    return {k: v.numpy().tobytes() for k, v in tensors.items()}


def test_hooks_of_optimisers_see_every_local_step(experiment):
    counts: list[torch.optim.Optimizer] = []
    hook = register_optimizer_step_post_hook(lambda optimiser, *_: counts.append(optimiser))
    try:
        clients = execute(experiment(rounds=1)).rounds[0]["clients"]
    finally:
        hook.remove()
    assert len(counts) == sum(client["steps"] for client in clients) > 0


@dataclass(frozen=True)
class Spoil:
    """Trains, then breaks its update."""

    how: str

    def __call__(self, work: Work) -> Outcome:
        outcome = Train()(work)
        state = dict(outcome.state)
        match self.how:
            case "nan":
                state["5.weight"] = state["5.weight"].clone().fill_(float("nan"))
            case "inf":
                state["0.bias"] = state["0.bias"] / 0
            case "missing":
                del state["1.weight"]
            case "shape":
                state["5.bias"] = state["5.bias"][:-1]
            case "unknown":
                state["backdoor"] = torch.zeros(1)
            case "dtype":
                state["5.bias"] = state["5.bias"].double()
            case "extras":
                return Outcome(state, extras={"features": torch.tensor([float("nan")])})
            case "others":
                return Outcome(state, others={"large": state})
            case "crash":
                raise ValueError("out of battery")
        return Outcome(state)


REASONS = {
    "nan": "5.weight: not finite",
    "inf": "0.bias: not finite",
    "missing": "1.weight: missing entry",
    "shape": "5.bias: wrong shape",
    "unknown": "backdoor: unknown entry",
    "dtype": "5.bias: wrong dtype",
    "extras": "features: not finite",
    "others": "other models than the task's",
}


@pytest.mark.parametrize("how", REASONS)
def test_bad_update_is_rejected_by_name_and_the_round_goes_on(experiment, mean, how):
    run = execute(experiment(mean({1: Spoil(how)}), rounds=1, sampled=None))
    (line,) = run.rounds
    assert [r["client"] for r in line["clients"]] == [0, 2, 3]
    (rejected,) = line["rejected"]
    assert (rejected["client"], rejected["name"]) == (1, "odd")
    assert rejected["reason"].startswith(REASONS[how])
    assert line["failed"] == []
    assert all(bool(torch.isfinite(t).all()) for t in run.server.tensors.values())


def test_what_a_strategy_does_not_accept_is_rejected_like_any_other(experiment, mean):
    def refuse(result: Result) -> None:
        if result.client == 1:
            raise RejectedUpdate("no features", where="client 1")

    run = execute(experiment(mean(refuse=refuse), rounds=1, sampled=None))
    (line,) = run.rounds
    assert [r["client"] for r in line["clients"]] == [0, 2, 3]
    assert [r["reason"] for r in line["rejected"]] == ["client 1: no features"]
    assert run.server.values["results"] == 3


def test_rejected_client_leaves_no_trace(experiment, mean):
    """Nothing half-added: the others' mean is what it would be without the client."""

    spoilt = execute(experiment(mean({1: Spoil("missing")}), rounds=1, sampled=None))
    crashed = execute(experiment(mean({1: Spoil("crash")}), rounds=1, sampled=None))
    assert bits(spoilt.server.tensors) == bits(crashed.server.tensors)


def test_failed_client_is_isolated(experiment, mean):
    run = execute(experiment(mean({2: Spoil("crash")}), rounds=2, sampled=None))
    for line in run.rounds:
        (failed,) = line["failed"]
        assert failed["reason"].startswith("ValueError: out of battery, ")
        assert failed == {
            "client": 2,
            "name": "even",
            "bytes_down": size(run.experiment.world.state),
            "reason": failed["reason"],
        }
        assert len(line["clients"]) == 3


def test_failure_of_every_client_is_not_the_clients(experiment, mean):
    with pytest.raises(RunError, match="round 1: every client failed; found ValueError: out of"):
        execute(experiment(mean(program=Spoil("crash")), rounds=1))


def test_where_every_client_fails_each_reason_is_counted(experiment, mean):
    def silent(work: Work) -> Any:
        raise ConnectionError("gone")

    programs = {0: silent, 1: Spoil("crash"), 2: silent, 3: silent}
    told = r"found ConnectionError: gone, .* \(3 of 4 clients\); ValueError: out of .* \(1 of 4"
    with pytest.raises(RunError, match=told):
        execute(experiment(mean(programs), rounds=1, sampled=None))


def test_round_without_a_usable_update_keeps_the_old_state(experiment, mean):
    setup = experiment(mean(program=Spoil("nan")), rounds=1)
    run = execute(setup)
    assert bits(run.server.group("global")) == bits(setup.world.state)
    assert run.server.values["results"] == 0


def test_diverging_client_is_rejected_with_its_parameter(experiment, mean):
    setup = experiment(rounds=1)
    wild = setup.local.model_copy(update={"lr": 1e30})
    run = execute(experiment(rounds=1, local=wild))
    assert run.rounds[0]["rejected"]
    reasons = [r["reason"] for r in run.rounds[0]["rejected"]]
    assert all("not finite" in reason or "too large" in reason for reason in reasons), reasons


def test_one_update_is_alive_at_a_time(experiment, mean):
    """The law of memory: when a result arrives, those before it are gone."""
    alive: list[weakref.ref[torch.Tensor]] = []
    counts: list[int] = []

    def seen(result: Result) -> None:
        gc.collect()
        alive.append(weakref.ref(result.state["5.weight"]))
        counts.append(sum(r() is not None for r in alive))

    gc.freeze()  # what other tests have left need not be looked at again and again
    try:
        execute(experiment(mean(seen=seen), clients=8, rounds=2))
    finally:
        gc.unfreeze()
    # Two, since the strategy's own loop variable holds the last one until the next arrives.
    assert len(counts) == 14
    assert max(counts) <= 2


def test_run_neither_uses_nor_moves_the_global_generator(experiment):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    a = execute(experiment(rounds=1))
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    assert bits(a.server.tensors) == bits(execute(experiment(rounds=1)).server.tensors)


def test_every_client_has_randomness_of_its_own_in_every_round(experiment, mean):
    seeds: list[tuple[int, float]] = []

    @dataclass(frozen=True)
    class Tell:
        def __call__(self, work: Work) -> Outcome:
            seeds.append((work.generator.initial_seed(), float(torch.rand(()))))
            return Outcome(work.state)

    execute(experiment(mean(program=Tell()), rounds=3, sampled=None))
    assert len(seeds) == 12
    assert len({own for own, _ in seeds}) == 12
    assert len({dropout for _, dropout in seeds}) == 12


def test_clients_draw_apart_from_one_another(experiment, mean):
    """A client's randomness depends on no other client: dropping one leaves the others' updates."""
    updates: dict[str, dict[int, bytes]] = {"all": {}, "less": {}}

    def watch(into):
        def seen(result: Result) -> None:
            into[result.client] = result.state["5.weight"].numpy().tobytes()

        return seen

    execute(experiment(mean(seen=watch(updates["all"])), rounds=1, sampled=None))
    less = mean({0: Spoil("crash")}, seen=watch(updates["less"]))
    execute(experiment(less, rounds=1, sampled=None))
    assert set(updates["less"]) == {1, 2, 3}
    assert all(updates["all"][k] == v for k, v in updates["less"].items())


@given(clients=st.integers(1, 50), count=st.integers(1, 60), seed=st.integers(0, 9))
def test_sampling_draws_distinct_clients_in_order(clients, count, seed):
    chosen = sample(clients, count, seed, round=3)
    assert chosen == sample(clients, count, seed, round=3)
    assert list(chosen) == sorted(set(chosen))
    assert len(chosen) == min(count, clients)
    assert set(chosen) <= set(range(clients))


def test_sampling_draws_all_clients_equally_often():
    counts = torch.zeros(10)
    for round in range(2000):
        counts[list(sample(10, 3, 0, round))] += 1
    torch.testing.assert_close(counts, torch.full((10,), 600.0), rtol=0.1, atol=0)


def test_kept_entries_stay_with_the_client(experiment, mean):
    """Personal layers: never returned, found again in the next round."""
    returned: list[set[str]] = []
    strategy = mean(
        private=frozenset({"1.running_mean", "1.running_var"}),
        seen=lambda result: returned.append(set(result.state)),
    )
    setup = experiment(strategy, rounds=2, sampled=None)
    loop = Loop(setup)
    loop.start(setup.strategy.init(setup.world))
    loop.round()
    first = {client: kept.state["1.running_mean"].clone() for client, kept in loop.private.items()}
    assert len({bytes(t.numpy()) for t in first.values()}) == 4
    loop.round()
    assert all("1.running_mean" not in names and "1.weight" in names for names in returned)
    untouched = setup.world.state["1.running_mean"]
    assert torch.equal(loop.server.tensors["global/1.running_mean"], untouched)
    for client, kept in loop.private.items():
        assert not torch.equal(kept.state["1.running_mean"], first[client])


def test_what_a_program_keeps_comes_back(experiment, mean):
    @dataclass(frozen=True)
    class Count:
        def __call__(self, work: Work) -> Outcome:
            rounds = work.keep.get("rounds", torch.zeros(()))
            return Outcome(work.state, keep={"rounds": rounds + 1}, metrics={"n": float(rounds)})

    run = execute(experiment(mean(program=Count()), rounds=3, sampled=None))
    assert [line["clients"][0]["n"] for line in run.rounds] == [0.0, 1.0, 2.0]


def test_survey_comes_before_the_first_round(experiment, mean):
    @dataclass(frozen=True)
    class Answer:
        def __call__(self, work: Work) -> Outcome:
            assert work.round == 0
            return Outcome(work.state, metrics={"answer": float(work.client)})

    run = execute(experiment(mean(asked=Answer()), rounds=1))
    assert run.server.values["answers"] == [0.0, 1.0, 2.0, 3.0]


def test_seconds_are_split_and_add_up(experiment):
    run = execute(experiment(rounds=2))
    for line in run.rounds:
        seconds = line["seconds"]
        assert set(seconds) == {"local", "server", "evaluate", "record", "total"}
        parts = seconds["local"] + seconds["server"] + seconds["evaluate"]
        assert parts <= seconds["total"]
        # Not nearer: another process may have the core between two of them.
        assert parts > 0.5 * seconds["total"]
        assert 0 < sum(c["seconds"] for c in line["clients"]) <= seconds["total"]
    assert set(run.seconds) == set(run.rounds[0]["seconds"])


def test_seconds_count_inner_purposes_once(monkeypatch):
    now = iter([0.0, 1.0, 3.0, 7.0])
    monkeypatch.setattr("archgraph.engine.rounds.time.perf_counter", lambda: next(now))
    plan = RoundPlan(1)
    with plan.measure("server"), plan.measure("local"):
        pass
    assert plan.seconds == {"server": 1.0 + 4.0, "local": 2.0}


@pytest.mark.parametrize(
    ("every", "after", "rounds", "expected"),
    [
        (1, 0.0, 3, [1, 2, 3]),
        (2, 0.0, 5, [2, 4, 5]),
        (1, 0.8, 10, [9, 10]),
        (1, 0.29, 100, list(range(30, 101))),
        (3, 4, 10, [6, 9, 10]),
        (1, 1, 3, [2, 3]),
        (1, 0.99, 3, [3]),
        (1, 7, 3, [3]),
    ],
)
def test_tests_begin_after_a_fraction_of_the_rounds(every, after, rounds, expected):
    evaluate = EvaluateSpec(every=every, after=after or None)
    assert [n for n in range(1, rounds + 1) if evaluate.due(n, rounds)] == expected


def test_late_tests_change_nothing_else(experiment):
    early = execute(experiment(rounds=3))
    late = execute(experiment(rounds=3, evaluate=EvaluateSpec(after=0.6, batch=100)))
    assert ["evaluation" in line for line in late.rounds] == [False, True, True]
    assert bits(late.server.tensors) == bits(early.server.tensors)
    assert late.evaluation == early.evaluation


# ---------------------------------------------------------------- what methods return


WRONG: dict[str, tuple[Any, str]] = {
    "init": (None, r"Mine\.init: returned the wrong type; found None; expected ServerState"),
    "survey": ([3], r"Mine\.survey: returned the wrong type; found int; expected Task"),
    "surveyed": ({}, r"Mine\.surveyed: returned the wrong type; found dict; expected ServerState"),
    "begin": (None, r"Mine\.begin: .*found None; expected ServerState; check that every path"),
    "send": ("task", r"Mine\.send: returned the wrong type; found str; expected Task"),
    "receive": (
        ServerState({"w": [1.0]}),  # type: ignore[dict-item]  # the mistake
        r"Mine\.receive: ServerState\.tensors\['w'\]: .*found list; expected Tensor",
    ),
    "evaluated": (None, r"Mine\.evaluated: .*found None; expected Iterable"),
}


@pytest.mark.parametrize("method", WRONG)
def test_wrong_return_is_named_where_it_enters(experiment, mean, method):
    value, message = WRONG[method]
    mine = type("Mine", (mean,), {method: lambda self, *_: value})
    with pytest.raises(RunError, match=message):
        execute(experiment(mine(), rounds=1))


def test_fields_of_what_is_returned_are_checked(experiment, mean):
    class Mine(mean):  # type: ignore[misc, valid-type]  # a fixture is a variable
        change: Any = None

        def send(self, world, state, client, round):
            return self.change(super().send(world, state, client, round))

    for change, message in [
        ({"graph": "net"}, r"Mine\.send: Task\.graph: .*found str; expected ArchGraph"),
        ({"state": {"5.bias": [0.0]}}, r"Task\.state\['5\.bias'\]: .*found list; expected Tensor"),
        ({"values": {"a": {1j}}}, r"Task\.values\['a'\]: .*found set; expected a JSON value"),
        (
            {"values": {"a": [{1: 2}]}},
            r"Task\.values\['a'\]: .*a JSON value whose keys are strings",
        ),
        ({"client": 3}, r"Mine\.send: returned a task for another client; found 3; expected 0"),
    ]:
        Mine.change = staticmethod(lambda task, change=change: replace(task, **change))
        with pytest.raises(RunError, match=message):
            execute(experiment(Mine(), rounds=1, sampled=None))


def test_large_weights_are_not_taken_for_infinite_ones(experiment, mean):
    """Their sum is."""

    @dataclass(frozen=True)
    class Large(mean):  # type: ignore[misc, valid-type]  # a fixture is a variable
        def receive(self, world, state, results, round):
            after = super().receive(world, state, results, round)
            bias = torch.full_like(state.group("global")["5.bias"], 3e38)
            return after.with_group("global", {**after.group("global"), "5.bias": bias})

    run = execute(experiment(Large(), rounds=1))
    assert run.server.group("global")["5.bias"][0] == torch.tensor(3e38)


@pytest.mark.parametrize(
    ("entry", "change", "said"),
    [
        ("0.weight", lambda t: t[:1], r"float32\[1, 1, 3, 3\]; expected float32\[4, 1, "),
        ("1.num_batches_tracked", lambda t: t.float(), r"float32\[\]; expected int64\[\]"),
        ("0.weight", lambda t: t.add_(1), r"writes into the server's tensors; return "),
        (
            "5.bias",
            lambda t: t / 0 * 0,
            r"global/5\.bias \(round 1\): returned numbers that are not",
        ),
    ],
    ids=["shape", "dtype", "in place", "not finite"],
)
def test_what_receive_may_not_do_names_it(experiment, mean, entry, change, said):
    class Mine(mean):  # type: ignore[misc, valid-type]  # a fixture is a variable
        def receive(self, world, state, results, round):
            group = dict(super().receive(world, state, results, round).group("global"))
            group = {**group, entry: state.group("global")[entry]}
            return state.with_group("global", {**group, entry: change(group[entry])})

    with pytest.raises(RunError, match=rf"Mine\.receive: .*{said}"):
        execute(experiment(Mine(), rounds=2, evaluate=EvaluateSpec(every=2)))


def test_a_tested_model_of_another_shape_names_evaluated(experiment, mean):
    class Mine(mean):  # type: ignore[misc, valid-type]  # a fixture is a variable
        def evaluated(self, world, state):
            for model in super().evaluated(world, state):
                yield replace(model, state={**model.state, "5.bias": torch.zeros(3)})

    with pytest.raises(
        RunError, match=r"Mine\.evaluated: 5\.bias: returns a tensor with another shape"
    ):
        execute(experiment(Mine(), rounds=1))


def test_wrong_outcome_names_the_program(experiment, mean):
    def forgetful(work: Work) -> Any:
        Train()(work)

    with pytest.raises(
        RunError,
        match=r"every client failed; found RunError: forgetful\.__call__: "
        "returned the wrong type; found None; expected Outcome",
    ):
        execute(experiment(mean(program=forgetful), rounds=1))

    def unmeasured(work: Work) -> Outcome:
        return Outcome(work.state, metrics={"loss": "small"})  # type: ignore[dict-item]  # wrong

    run = execute(experiment(mean({1: unmeasured}), rounds=1, sampled=None))
    (failed,) = run.rounds[0]["failed"]
    assert (
        "unmeasured.__call__: Outcome.metrics['loss']: returned the wrong type" in failed["reason"]
    )


# ---------------------------------------------------------------- memory of the server


def test_writing_in_place_reaches_neither_server_nor_what_is_kept(experiment, mean):
    @dataclass(frozen=True)
    class Vandal:
        def __call__(self, work: Work) -> Outcome:
            trained = Train()(work)
            keep = {"n": work.keep.get("n", torch.zeros(1)) + 1}
            for tensor in (*work.state.values(), *work.extras.values(), *work.keep.values()):
                tensor.data.fill_(7)
            for model in work.others.values():
                model.state["5.bias"].fill_(7)
            work.values.get("list", []).append(1)
            return replace(trained, keep=keep, others={k: m.state for k, m in work.others.items()})

    shared = {"extra": torch.zeros(2)}
    values = {"list": [0]}

    class Sharing(mean):  # type: ignore[misc, valid-type]  # a fixture is a variable
        def send(self, world, state, client, round):
            task = super().send(world, state, client, round)
            small = Model(task.graph, world.state)
            return replace(task, others={"small": small}, extras=shared, values=values)

    kept = frozenset({"1.running_mean"})
    setups = [
        experiment(Sharing(program=program, private=kept), rounds=2, sampled=None)
        for program in (Gentle(), Vandal())
    ]
    before = bits(setups[1].world.state)
    runs = [execute(setup) for setup in setups]
    assert bits(setups[1].world.state) == before
    assert not bool(shared["extra"].any()) and values == {"list": [0]}
    assert bits(runs[0].server.tensors) == bits(runs[1].server.tensors)


@dataclass(frozen=True)
class Gentle:
    """What the vandal does, without the damage."""

    def __call__(self, work: Work) -> Outcome:
        return replace(Train()(work), others={k: m.state for k, m in work.others.items()})


# ---------------------------------------------------------------- what went wrong


def test_run_names_clients_and_rounds_that_went_wrong(experiment, mean):
    @dataclass(frozen=True)
    class Blind:
        def __call__(self, work: Work) -> Outcome:
            return replace(Train()(work), metrics={"gap": float("nan") if work.round > 1 else 1.0})

    programs = {0: Spoil("nan"), 1: Spoil("crash"), 2: Blind()}
    run = execute(experiment(mean(programs), rounds=3, sampled=None))
    assert [trouble.partition(" (")[0] for trouble in run.troubles] == [
        "updates rejected: client 0, even",
        "clients failed: client 1, odd",
        "not finite: gap of client 2, even",
    ]
    assert "(rounds 1–3); the first: 5.weight: not finite" in run.troubles[0]
    assert "(rounds 2–3)" in run.troubles[2]
    assert run.sound and run.troubles[0] in run.table().note
    assert execute(experiment(rounds=1)).troubles == ()


def test_run_whose_end_cannot_be_trusted_is_not_sound(experiment, mean):
    run = execute(experiment(mean(program=Spoil("nan")), rounds=1))
    assert not run.sound and repr(run).endswith("see troubles)")

    class Poisoned(mean):  # type: ignore[misc, valid-type]  # a fixture is a variable
        def evaluated(self, world, state):
            for model in super().evaluated(world, state):
                bias = model.state["5.bias"] * float("nan")
                yield replace(model, state={**model.state, "5.bias": bias})

    run = execute(experiment(Poisoned(), rounds=1))
    assert not run.sound
    (trouble,) = run.troubles
    assert trouble.startswith("not finite: loss of ") and "round 1" in trouble


def test_a_round_without_results_is_named(experiment, mean):
    class Deaf(mean):  # type: ignore[misc, valid-type]  # a fixture is a variable
        def receive(self, world, state, results, round):
            return state

    run = execute(experiment(Deaf(), rounds=2))
    assert not run.sound
    assert run.troubles == (
        "no update was accepted: the strategy did not read the results (rounds 1–2)",
    )
