"""Evaluation against closed forms and against torch's own cumulative statistics."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from archgraph.capture.trace import trace
from archgraph.data import Dataset, Split
from archgraph.data.partition import local_test_indices
from archgraph.engine.evaluate import Evaluator, worst_tenth
from archgraph.engine.experiment import Experiment
from archgraph.engine.local import execute
from archgraph.engine.recalibration import recalibrated
from archgraph.engine.testing import Answers, answers
from archgraph.federation import (
    TASKS,
    Evaluated,
    LocalOptions,
    Outcome,
    Shard,
    Train,
    Work,
    minibatches,
    seeded,
)
from archgraph.federation.metrics import METRICS, Metric
from archgraph.language.experiment import EvaluateSpec
from archgraph.module.build import build
from archgraph.module.initial import initial_state
from archgraph.record.client import ClientState
from archgraph.record.progress import table, troubles
from archgraph.strategies.standalone import Standalone


class Says(nn.Module):
    """Logits that are its inputs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_answers_in_closed_form():
    logits = torch.tensor([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0]])
    (found,) = answers(Says(), Split(logits, torch.tensor([0, 1, 1])), batch=2)
    low, high = math.log(1 + math.exp(-2)), math.log(1 + math.exp(2))
    torch.testing.assert_close(
        found.rows["loss"], torch.tensor([low, low, high], dtype=torch.float64), rtol=1e-6, atol=0
    )
    assert found.rows["accuracy"].tolist() == [1, 1, 0]
    assert found.summary()["accuracy"] == 2 / 3
    assert found.summary([2]) == {"accuracy": 0.0, "loss": pytest.approx(high, rel=1e-6)}


def test_answers_do_not_depend_on_the_batch_size():
    generator = torch.Generator().manual_seed(0)
    data = Split(
        torch.randn(23, 5, generator=generator), torch.randint(5, (23,), generator=generator)
    )
    one, other = (answers(Says(), data, batch=b)[0] for b in (1, 23))
    assert torch.equal(one.rows["accuracy"], other.rows["accuracy"])
    torch.testing.assert_close(one.rows["loss"], other.rows["loss"], rtol=1e-6, atol=1e-7)


def test_uniform_words_have_the_vocabulary_as_perplexity():
    """Targets of text are counted one by one, and ignored ones not at all."""
    targets = torch.tensor([[0, 3, 1], [2, -100, -100]])
    (found,) = answers(Says(), Split(torch.zeros(2, 3, 7), targets))
    assert found.targets.tolist() == [3, 1]
    assert math.exp(found.summary()["loss"]) == pytest.approx(7.0, rel=1e-6)
    assert found.summary()["accuracy"] == 1 / 4


def test_mask_sets_absent_logits_to_zero():
    logits = torch.tensor([[1.0, 5.0, 2.0], [-1.0, 5.0, -2.0]])
    present = torch.tensor([True, False, True])
    plain, masked = answers(Says(), Split(logits, torch.tensor([2, 0])), masks=[present])
    assert plain.rows["accuracy"].tolist() == [0, 0]
    # The second example has only negative logits left, so that the absent class's 0 is largest.
    assert masked.rows["accuracy"].tolist() == [1, 0]


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, nn.InstanceNorm2d])
def test_recalibrated_statistics_are_cumulative_ones(kind, digits):
    """Against the module itself: its norm alone in train mode, the mean over batches."""
    norm = kind(4, track_running_stats=True)
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Dropout(0.5), norm, nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
    )
    graph, state, *_ = trace(module, torch.zeros(2, 1, 8, 8))
    spoilt = {k: v + 3 if "running" in k else v for k, v in state.items()}
    found = recalibrated(graph, spoilt, digits.train, batch=130, seed=5)

    module.eval()
    norm.train()
    norm.momentum = 1.0
    order = torch.randperm(len(digits.train), generator=seeded(5, "statistics"))
    statistics = []
    with torch.no_grad():
        for piece in order.tensor_split(4):
            module(digits.train.batch(piece)[0])
            statistics.append((norm.running_mean.clone(), norm.running_var.clone()))
    for at, name in enumerate(("running_mean", "running_var")):
        expected = torch.stack([pair[at] for pair in statistics]).mean(0)
        torch.testing.assert_close(found[f"2.{name}"], expected, rtol=1e-5, atol=1e-6)
    others = [k for k in state if "running" not in k]
    assert all(torch.equal(found[k], spoilt[k]) for k in others)
    assert list(found) == list(spoilt)
    assert torch.equal(spoilt["2.running_mean"], state["2.running_mean"] + 3), "as it was given"


def test_recalibration_of_a_graph_without_statistics_is_nothing(digits):
    graph, state, *_ = trace(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), torch.zeros(2, 1, 8, 8)
    )
    assert recalibrated(graph, state, digits.train) is state


def hits(right: torch.Tensor) -> Answers:
    """What is right of examples with one target each."""
    accuracy = METRICS["accuracy", "classes"]
    assert isinstance(accuracy, Metric)
    return Answers([accuracy], {"accuracy": right}, torch.ones(len(right)))


def drawn(found: Answers, targets: torch.Tensor, per_class: dict[int, int]) -> float:
    """Mean accuracy over all test sets with so many examples of each class."""
    examples = {c: (targets == c).nonzero().flatten().tolist() for c in per_class}
    choices = [itertools.combinations(examples[c], n) for c, n in per_class.items()]
    sets = [torch.tensor(sum(chosen, ())) for chosen in itertools.product(*choices)]
    return sum(found.summary(chosen)["accuracy"] for chosen in sets) / len(sets)


def test_matched_accuracy_is_the_mean_over_all_test_sets_of_that_mixture():
    """Every set that sampling could draw, counted out."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.tensor([0] * 4 + [1] * 5 + [2] * 3)
    right = torch.randint(2, (12,), generator=generator)
    found = hits(right)
    for shares in ((2, 1, 1), (1, 3, 0), (0, 0, 1)):
        expected = drawn(found, targets, dict(enumerate(shares)))
        several = found.matched(targets, [shares, [7 * n for n in shares]])
        # Shares are relative: their sum does not matter.
        assert several == pytest.approx([expected, expected], abs=1e-12)


def test_ignored_targets_do_not_count_for_the_mixture():
    found = hits(torch.tensor([1, 0, 1, 0]))
    targets = torch.tensor([0, -100, 1, 1])
    assert found.matched(targets, [(1, 3)]) == pytest.approx([(1 * 1 + 3 * 0.5) / 4], abs=1e-12)


def test_classes_without_test_examples_do_not_count_for_the_mixture():
    found = hits(torch.tensor([1, 0, 1]))
    targets = torch.tensor([0, 0, 2])
    shares = [(1, 98, 1, 0), (0, 1, 0, 0)]
    assert found.matched(targets, shares) == pytest.approx([(1 / 2 + 1) / 2, math.nan], nan_ok=True)


def evaluator(world, digits: Dataset, **changes: Any) -> Evaluator:
    setup = Experiment(
        world=world,
        strategy=Standalone(),
        data=digits,
        shares=(np.arange(40),) * len(world.clients),
        evaluate=EvaluateSpec(batch=100),
    )
    return Evaluator(dataclasses.replace(setup, **changes))


def test_local_accuracy_is_over_the_clients_own_classes(world, digits, net):
    """Against the definition, client by client."""
    small = world()
    owned = [(0, 1, 2), (3,), tuple(range(10)), (8, 9)]
    small = dataclasses.replace(
        small,
        clients=tuple(
            dataclasses.replace(c, histogram=tuple(int(k in classes) for k in range(10)))
            for c, classes in zip(small.clients, owned, strict=True)
        ),
    )
    state = initial_state(net, 1)
    found = evaluator(small, digits)(
        [
            Evaluated("global", net, state),
            Evaluated("even", net, state, (0, 2)),
            Evaluated("odd", net, state, (1, 3)),
        ],
        private={},
        round=1,
    )
    predicted = build(net, state).eval()(digits.test.batch(slice(None))[0]).argmax(1)
    accuracy = []
    for client in small.clients:
        at = local_test_indices(digits.test.targets, torch.tensor(client.histogram))
        accuracy.append((predicted[at] == digits.test.targets[at]).double().mean().item())
    assert found["local"]["accuracy"] == pytest.approx(sum(accuracy) / 4)
    assert found["tenth"]["accuracy"] == pytest.approx(min(accuracy))
    # Who runs a model stands beside its figures, and is none of them.
    assert [row.get("clients") for row in found["models"].values()] == [None, 2, 2]
    assert not {"clients"} & (found["global"].keys() | found["worst"].keys())
    even = found["models"]["even"]["local"]["accuracy"]
    assert even == pytest.approx((accuracy[0] + accuracy[2]) / 2)
    assert "local" not in found["models"]["global"]
    whole = (predicted == digits.test.targets).double().mean().item()
    assert found["global"]["accuracy"] == pytest.approx(whole)
    # One class: with the others' logits at 0 it wins wherever its logit is positive.
    assert found["models"]["odd"]["local"]["masked"] >= found["models"]["odd"]["local"]["accuracy"]


def test_matched_figures_are_of_each_clients_own_mixture(world, digits, net):
    """A model that always says 3 is right on as many as the client has threes."""
    small = world(clients=3)
    bias = torch.zeros(10)
    bias[3] = 1e6
    says = {**small.state, "5.bias": bias}
    share = [c.histogram[3] / sum(c.histogram) for c in small.clients]
    assert len(set(share)) == 3
    found = evaluator(small, digits)(
        [
            Evaluated("even", net, says, (0, 2)),
            Evaluated("odd", net, small.state, (1,), states=lambda _: says),
        ],
        private={},
        round=1,
    )
    expected = {"even": (share[0] + share[2]) / 2, "odd": share[1]}
    for name, value in expected.items():
        assert found["models"][name]["local"]["matched"] == pytest.approx(value, abs=1e-12)
    assert found["local"]["matched"] == pytest.approx(sum(share) / 3, abs=1e-12)
    assert found["tenth"]["matched"] == pytest.approx(min(share), abs=1e-12)

    assert "matched" not in found["global"]


def test_the_worst_tenth_is_rounded_up_and_has_what_diverged():
    rows = [{"accuracy": a / 11, "loss": -a / 11} for a in (*range(5, 11), *range(5))]
    found = worst_tenth(rows, {"loss"})
    assert found == pytest.approx({"accuracy": 0.5 / 11, "loss": -0.5 / 11}, abs=1e-12)
    for name in rows[0]:
        diverged = worst_tenth([*rows[1:], {**rows[0], name: math.nan}], {"loss"})
        assert [key for key, value in diverged.items() if math.isnan(value)] == [name]


def test_equal_models_are_tested_once_and_alike(world, digits, net, monkeypatch):
    from archgraph.engine import evaluate

    calls: list[int] = []
    plain = answers

    def counted(*args: Any, **options: Any) -> list[Answers]:
        calls.append(1)
        return plain(*args, **options)

    monkeypatch.setattr(evaluate, "answers", counted)
    state, other = initial_state(net, 1), initial_state(net, 2)
    same = {k: v.clone() for k, v in state.items()}
    test = evaluator(world(), digits)
    found = test(
        [
            Evaluated("global", net, state, statistics="recompute"),
            Evaluated("odd", net, other, (1, 3), statistics="recompute"),
            Evaluated("even", net, same, (0, 2), statistics="recompute"),
        ],
        private={},
        round=1,
    )
    assert len(calls) == 2
    alone = test(
        [Evaluated("even", net, same, (0, 2), statistics="recompute")], private={}, round=1
    )
    assert found["models"]["even"] == alone["models"]["even"]
    assert found["models"]["even"]["loss"] == found["global"]["loss"]
    assert found["models"]["odd"]["loss"] != found["global"]["loss"]


def test_text_has_perplexity_and_local_figures_only_where_models_are_personal(world):
    """Ten words, each followed by the next: a table that knows it, and one that knows nothing."""
    net = nn.Sequential(nn.Embedding(10, 10))
    graph, _, *_ = trace(net, torch.zeros(2, 6, dtype=torch.int64))
    words = torch.arange(60).remainder(10).view(10, 6)
    split = Split(words, (words + 1).remainder(10))
    text = Dataset("count", "text", 10, (6,), split, split, tuple("abcdefghij"))
    knows = torch.eye(10).roll(1, dims=1) * 20
    small = dataclasses.replace(world(clients=2), learning=TASKS["next_token"])
    found = evaluator(small, text)(
        [
            Evaluated("global", graph, {"0.weight": torch.zeros(10, 10)}, (0, 1)),
            Evaluated("own", graph, {"0.weight": torch.zeros(10, 10)}, (0,), private=True),
        ],
        private={0: ClientState({"0.weight": knows})},
        round=1,
    )
    assert found["global"]["perplexity"] == pytest.approx(10.0, rel=1e-5)
    assert "local" not in found["models"]["global"]
    assert found["models"]["own"]["local"]["accuracy"] == 1.0
    assert found["worst"]["name"] == "own"


def test_worst_is_the_tier_of_least_accuracy(world, digits, net):
    states = [initial_state(net, seed) for seed in range(3)]
    names = ["global", "even", "odd"]
    found = evaluator(world(), digits)(
        [Evaluated(n, net, s) for n, s in zip(names, states, strict=True)], private={}, round=1
    )
    tiers = {n: found["models"][n]["accuracy"] for n in names[1:]}
    assert found["worst"]["name"] == min(tiers, key=lambda n: tiers[n])
    assert found["worst"]["accuracy"] == min(tiers.values())


@pytest.mark.parametrize("judge", ["accuracy", "loss"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_worst_is_the_tier_whose_figure_is_not_finite(judge, place):
    """Wherever it stands, and whatever is better."""
    from archgraph.engine.evaluate import _together

    learning = dataclasses.replace(TASKS["classification"], judge=judge)
    values = [0.5, 0.25]
    values.insert(place, math.nan)
    figures = {name: {judge: value} for name, value in zip("abc", values, strict=True)}
    found = _together(figures, {name: {} for name in figures}, learning)
    assert found["worst"]["name"] == "abc"[place]


def test_personal_entries_are_tested_on_their_client(world, digits, net):
    """A client whose kept bias always says 3 is right on exactly the examples of class 3."""
    small = world(clients=2)
    bias = torch.zeros(10)
    bias[3] = 1e6
    found = evaluator(small, digits)(
        [Evaluated("even", net, small.state, (0,), private=True)],
        private={0: ClientState({"5.bias": bias})},
        round=1,
    )
    at = local_test_indices(digits.test.targets, torch.tensor(small.clients[0].histogram))
    share = (digits.test.targets[at] == 3).double().mean().item()
    assert found["models"]["even"]["local"]["accuracy"] == pytest.approx(share)


def test_personal_models_are_averaged_over_their_clients_on_all_test_data(world, digits, net):
    small = world(clients=2)

    def says(number: int) -> ClientState:
        bias = torch.zeros(10)
        bias[number] = 1e6
        return ClientState({"5.bias": bias})

    found = evaluator(small, digits)(
        [Evaluated("even", net, small.state, (0, 1), private=True)],
        private={0: says(3), 1: says(4)},
        round=1,
    )
    shares = [(digits.test.targets == number).double().mean().item() for number in (3, 4)]
    assert found["models"]["even"]["accuracy"] == pytest.approx(sum(shares) / 2)
    assert found["worst"]["accuracy"] == pytest.approx(sum(shares) / 2)


def test_static_statistics_of_a_personal_model_are_those_of_its_own_weights(world, digits):
    """Kept weights are laid over first: statistics belong to what is tested."""
    small = world(clients=2)
    torch.manual_seed(0)
    net, state, *_ = trace(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10)), torch.zeros(2, 1, 8, 8)
    )
    own = {"1.weight": torch.randn(10, 64), "2.running_mean": torch.full((10,), 7.0)}
    found = evaluator(small, digits)(
        [Evaluated("own", net, state, (0,), statistics="recompute", private=True)],
        private={0: ClientState(own)},
        round=1,
    )
    alone = evaluator(small, digits)(
        [Evaluated("own", net, {**state, **own}, (0,), statistics="recompute")], private={}, round=1
    )
    assert found["models"]["own"]["loss"] == alone["models"]["own"]["loss"]


def test_program_runs_before_the_test_on_the_clients_data(world, digits, net):
    @dataclass(frozen=True)
    class Say:
        def __call__(self, work: Work) -> Outcome:
            bias = torch.zeros(10)
            bias[work.client] = 1e6
            return Outcome({**work.state, "5.bias": bias})

    small = world(clients=3)
    found = evaluator(small, digits)(
        [Evaluated("all", net, small.state, (0, 1, 2), program=Say())], private={}, round=1
    )
    shares = []
    for client in small.clients:
        at = local_test_indices(digits.test.targets, torch.tensor(client.histogram))
        shares.append((digits.test.targets[at] == client.id).double().mean().item())
    assert found["local"]["accuracy"] == pytest.approx(sum(shares) / 3)


@dataclass(frozen=True)
class Shift:
    """Adds 1e6 to the logit of the client's number, on whatever its bias is by then."""

    def __call__(self, work: Work) -> Outcome:
        bias = work.state["5.bias"].clone()
        bias[work.client] += 1e6
        return Outcome({**work.state, "5.bias": bias})


def test_a_clients_own_version_gets_what_it_kept_and_is_then_tuned(world, digits, net):
    """In this order: 5 from its version, what it kept over it, its number from the program."""
    small = world(clients=2)
    five = torch.zeros(10)
    five[5] = 3e6
    versions = {c: {**small.state, "5.bias": five * (1 + c)} for c in (0, 1)}
    made: list[int] = []

    def states(client: int) -> dict[str, torch.Tensor]:
        made.append(client)
        return versions[client]

    def share(client: int, number: int) -> float:
        at = local_test_indices(digits.test.targets, torch.tensor(small.clients[client].histogram))
        return (digits.test.targets[at] == number).double().mean().item()

    def found(**options: Any) -> float:
        row = evaluator(small, digits)(
            [Evaluated("own", net, small.state, (0, 1), states=states, **options)],
            private={1: ClientState({"5.bias": torch.zeros(10)})},
            round=1,
        )
        return row["local"]["accuracy"]

    assert found() == pytest.approx((share(0, 5) + share(1, 5)) / 2)
    assert made == [0, 1]
    # Of client 1 the kept bias has replaced the version's, so that its program decides.
    assert found(private=True, program=Shift()) == pytest.approx((share(0, 5) + share(1, 1)) / 2)
    assert found(program=Shift()) == pytest.approx((share(0, 5) + share(1, 5)) / 2)


def test_fine_tuning_is_training_before_the_test(world, digits, net):
    """Equal to naming the program; a model with its own, or without clients, is left alone."""
    small = world(clients=2)
    clients, tuned = (0, 1), Train(epochs=2)
    test = evaluator(small, digits)

    def found(test: Evaluator, **options: Any) -> Any:
        models = [
            Evaluated("global", net, small.state),
            Evaluated("m", net, small.state, **options),
        ]
        return test(models, private={}, round=1)["models"]

    fine = evaluator(small, digits, evaluate=EvaluateSpec(batch=100, fine_tune=2))
    plain, named = found(test, clients=clients), found(test, clients=clients, program=tuned)
    assert found(fine, clients=clients) == named
    assert named["m"]["local"]["loss"] < plain["m"]["local"]["loss"]
    assert named["global"] == plain["global"]
    shifted = found(test, clients=clients, program=Shift())
    assert found(fine, clients=clients, program=Shift()) == shifted
    assert found(fine) == found(test)


def test_a_model_that_cannot_be_tuned_is_tested_as_it_is(world, digits, net):
    small = world(clients=2)
    test = evaluator(small, digits)
    tuning = EvaluateSpec(batch=100, fine_tune=3)
    wild = evaluator(small, digits, evaluate=tuning, local=LocalOptions(lr=3e38))
    models = [Evaluated("m", net, small.state, (0, 1))]
    found = wild(models, private={}, round=1)
    tuned, plain = found["models"]["m"], test(models, private={}, round=1)["models"]["m"]
    assert tuned["accuracy"] == plain["accuracy"] and tuned["local"] == plain["local"]
    assert [(who["client"], who["name"]) for who in found["untuned"]] == [(0, "m"), (1, "m")]


def dies(error: type[BaseException]) -> Any:
    def program(work: Work) -> Outcome:
        torch.set_grad_enabled(False)
        raise error("no data")

    return program


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (dies(ValueError), "ValueError: no data"),
        (dies(SystemExit), "SystemExit: no data"),
        (lambda work: None, "RunError: .* returned the wrong type"),
        (lambda work: Outcome({**work.state, "5.bias": torch.ones(3)}), "5.bias: wrong shape"),
        (lambda work: Outcome({**work.state, "5.bias": torch.ones(10) / 0}), "5.bias: not finite"),
    ],
    ids=["error", "exit", "nothing", "shape", "infinite"],
)
def test_a_program_before_a_test_is_isolated_like_a_clients(world, digits, net, program, why):
    """It harms neither the test nor the process; the figures and the run's troubles say so."""
    small = world(clients=2)
    models = [Evaluated("m", net, small.state, (0, 1), program=program)]
    found = evaluator(small, digits)(models, private={}, round=1)
    plain = evaluator(small, digits)(
        [dataclasses.replace(models[0], program=None)], private={}, round=1
    )
    assert found["local"] == plain["local"] and "untuned" not in plain
    assert torch.is_grad_enabled()
    (line,) = troubles([{"round": 1, "evaluation": found}])
    assert re.match(rf"tested without fine-tuning: client 0, m .*; the first: {why}", line)


def test_an_interrupt_before_a_test_is_the_users(world, digits, net):
    model = Evaluated("m", net, world(clients=2).state, (0, 1), program=dies(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        evaluator(world(clients=2), digits)([model], private={}, round=1)


@pytest.mark.parametrize("statistics", ["stored", "recompute"])
def test_one_clients_version_is_in_memory_at_a_time(world, digits, net, statistics):
    small = world(clients=3)
    made: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def states(client: int) -> dict[str, torch.Tensor]:
        alive.append(sum(reference() is not None for reference in made))
        # As a hypernetwork makes it: the result of a computation, without its history.
        state = {k: v.float().requires_grad_().mul(1).detach() for k, v in small.state.items()}
        made.append(weakref.ref(state["5.weight"]))
        return {**state, "1.num_batches_tracked": small.state["1.num_batches_tracked"]}

    evaluator(small, digits)(
        [Evaluated("own", net, small.state, (0, 1, 2), statistics, private=True, states=states)],
        private={0: ClientState({"5.bias": torch.ones(10)})},
        round=1,
    )
    assert alive == [0, 0, 0]


@pytest.mark.parametrize(("n", "size"), [(1, 4), (2, 4), (4, 4), (5, 4), (9, 4), (10, 4), (3, 1)])
def test_minibatches_cover_everything_and_none_is_single(n, size):
    pieces = minibatches(torch.arange(n), size)
    assert torch.cat(pieces).tolist() == list(range(n))
    assert n == 1 or size == 1 or all(len(p) >= 2 for p in pieces)
    assert all(len(p) <= size + 1 for p in pieces)


def test_shard_draws_a_new_order_from_the_generator(digits):
    inputs, targets = digits.train.examples(range(20, 60))
    shard = Shard(inputs, targets, (4,) * 10)
    generator = torch.Generator().manual_seed(0)
    first, second = ([b.ids for b in shard.batches(generator, 8)] for _ in range(2))
    assert sorted(torch.cat(first).tolist()) == list(range(40))
    assert not torch.equal(torch.cat(first), torch.cat(second))
    batch = next(iter(shard.batches(torch.Generator().manual_seed(0), 8)))
    wanted, targets = digits.train.batch(batch.ids + 20)
    assert torch.equal(batch.inputs[0], wanted)
    assert torch.equal(batch.targets, targets)


def test_kept_entries_of_another_shape_are_not_laid_over():
    kept = ClientState({"w": torch.ones(3), "b": torch.ones(2)})
    sent = {"w": torch.zeros(2), "b": torch.zeros(2)}
    assert kept.over(sent)["w"].tolist() == [0, 0]
    assert kept.over(sent)["b"].tolist() == [1, 1]
    assert kept.over(sent, frozenset({"w"}))["b"].tolist() == [0, 0]
    assert kept.over({}, frozenset({"b"}))["b"].tolist() == [1, 1]


def test_answers_of_nothing_divide_by_nothing():
    summary = hits(torch.zeros(0, dtype=torch.long)).summary()
    assert summary.keys() == {"accuracy"} and math.isnan(summary["accuracy"])


def test_table_has_a_row_per_tier(experiment):
    run = execute(experiment(rounds=1))
    shown = table(run.experiment.world, run.evaluation, "after 1 round")
    assert shown.columns[:2] == ("model", "clients")
    model, clients, parameters = list(zip(*shown.rows, strict=True))[:3]
    assert model == ("global", "even", "odd")
    assert clients == ("4", "2", "2")
    assert parameters == ("698",) * 3


def test_a_run_shows_itself(experiment, tmp_path):
    run = execute(experiment(rounds=1), out=tmp_path / "run")
    accuracy = run.evaluation["global"]["accuracy"]
    assert str(run).startswith(f"Run(1 round, accuracy {accuracy:.4g}, loss ")
    assert str(run).endswith(f"{tmp_path}/run)")
    assert f"{100 * accuracy:.2f} %" in str(run.table())
    assert "<td" in run._repr_html_()
    assert repr(run.models[0]) == "<Evaluated global: 9 tensors>"


def test_table_shows_perplexity_of_text(world):
    figures = {"accuracy": 0.1, "loss": 5.0, "perplexity": math.exp(5.0)}
    none = {**figures, "perplexity": None}
    tested = {"better": {"perplexity": False}, "models": {"global": figures, "even": none}}
    shown = table(world(), tested)
    assert [row[4] for row in shown.rows] == ["148.4", "-"]
