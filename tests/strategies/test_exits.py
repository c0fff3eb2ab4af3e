"""DepthFL and ScaleFL: networks that end at an exit, their objectives and their merges by hand."""

from __future__ import annotations

import dataclasses
import math
from typing import cast

import pytest
import torch

import archgraph as ag
from archgraph.federation import Examples, LocalOptions, Outcome, Train, configure
from archgraph.strategies.depthfl import (
    DepthFL,
    Dynamic,
    MeanLogits,
    MutualDistillation,
    Regularisation,
)
from archgraph.strategies.scalefl import EarlyExits, ScaleFL


@pytest.fixture(scope="module")
def early(lab):
    """The network with exits behind the first section and one block of the second."""
    exits = ag.add_exits(lab.graph, {"layer2.0": 5, "layer1": 5})
    return lab.replace(lab, graph=exits.graph, state=exits.transfer.pull(lab.state))


@pytest.fixture(scope="module")
def tiers(early):
    return {
        "first": ag.ends_after(early.graph, "layer1"),
        "second": ag.ends_after(early.graph, "layer2.0"),
        "full": ag.Rewritten.identity(early.graph),
    }


def test_exits_are_known_by_depth_and_a_network_ends_at_one(early, tiers):
    assert ag.exits(early.graph) == ("layer1", "layer2.0", "main")
    assert ag.exits(tiers["second"].graph) == ("layer1", "layer2.0")
    short = ag.ends_after(early.graph, "layer1", verify=True)
    assert ag.exits(short.graph) == ("layer1",)
    assert not [
        n for n in short.graph.state_names if n.startswith(("layer2", "fc", "exits.layer2"))
    ]
    assert all(entry.unchanged for entry in short.transfer.entries.values())
    with pytest.raises(
        ag.RewriteError, match=r"layer2: no exit at this section; found main, layer2.0, layer1"
    ):
        ag.ends_after(early.graph, "layer2")


def test_scalefl_divides_by_the_width_rate_where_its_code_does(early, tiers):
    """In training and in tests; the paper's text has no such division."""
    narrow = tiers["second"] >> ag.take(tiers["second"].graph, 0.5)
    world = early.make_world(
        early.graph, early.state, {"narrow": narrow, "full": tiers["full"]}, ["narrow", "full"]
    )
    code = cast(ScaleFL, configure("scalefl", {"preset": "official_code"}))
    assert code.gamma == 0 and not ScaleFL().scaler
    scaled = ag.add_scaler(narrow.graph, 0.5, always=True).graph
    for strategy, graph in ((ScaleFL(), narrow.graph), (code, scaled)):
        state = strategy.init(world)
        assert strategy.send(world, state, 0, 1).graph == graph
        assert strategy.send(world, state, 1, 1).graph == early.graph
        tested = {model.name: model.graph for model in strategy.evaluated(world, state)}
        assert tested == {"global": early.graph, "narrow": graph, "full": early.graph}


@pytest.mark.parametrize(
    ("options", "rounds"),
    [({}, 30), ({"ramp": 1}, 100), ({"ramp": 20}, 20), ({"preset": "paper"}, 300)],
)
def test_distillation_rises_over_a_share_of_the_rounds_or_a_number_of_them(
    early, tiers, options, rounds
):
    """Of 100 rounds, by the weight that remains of the loss: ``exp(-5 (1 - min(t, T) / T)²)``."""
    world = early.make_world(early.graph, early.state, tiers, ["second"])
    world = early.replace(world, rounds=100)
    strategy = cast(DepthFL, configure("depthfl", {"alpha": 0, **options}))
    task = strategy.send(world, strategy.init(world), 0, 1)
    assert isinstance(task.program, Train)
    objective = cast(MutualDistillation, task.program.objective)
    work = early.work_of(task, early.toy(0))
    outputs = {"layer1": logits(1, 2, 3), "layer2.0": logits(0, 1, 0)}

    def loss(round: int, objective: MutualDistillation) -> float:
        return objective(outputs, examples(), early.replace(work, round=round)).item()

    alone = loss(1, dataclasses.replace(objective, ramp=None))
    full = loss(rounds, objective) - alone
    assert full > 0.1
    for t in (1, 15, 20, 29, 30, 100):
        expected = math.exp(-5 * (1 - min(t, rounds) / rounds) ** 2)
        assert (loss(t, objective) - alone) / full == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("ramp", [0, -1, 1.5, 300.25])
def test_a_ramp_is_a_share_or_a_whole_number_of_rounds(ramp):
    expected = "above 0" if ramp <= 0 else "a fraction .* or a whole number of rounds"
    with pytest.raises(ag.SpecError, match=rf"strategy.depthfl.ramp: .*; expected {expected}"):
        configure("depthfl", {"ramp": ramp})


def constant(task):
    return {k: torch.full_like(v, task.client + 1) for k, v in task.state.items()}


def test_depthfl_merges_over_those_who_are_deep_enough(early, tiers):
    world = early.make_world(early.graph, early.state, tiers, ["first", "second", "first"])
    after, _ = early.one_round(DepthFL(alpha=0), world, constant)
    assert after["layer1.0.conv1.weight"].unique().tolist() == [2.0]
    assert after["layer2.0.conv1.weight"].unique().tolist() == [2.0]
    assert after["exits.layer1.weight"].unique().tolist() == [2.0]
    for name in ("layer2.1.conv1.weight", "fc.weight"):
        assert torch.equal(after[name], early.state[name])


def test_feddyn_corrects_what_was_trained_and_nothing_else(early, tiers):
    """By hand: Δ of clients 0, 1, 2 is 1, 2, 3; of four clients two have layer2.0."""
    names = ["first", "second", "second", "full"]
    world = early.make_world(early.graph, early.state, tiers, names)
    strategy = DepthFL(alpha=0.5)
    state = strategy.init(world)

    def results(state):
        for client in (0, 1, 2):
            task = strategy.send(world, state, client, 1)
            moved = {
                k: v + client + 1 if v.is_floating_point() else v for k, v in task.state.items()
            }
            yield task.result(Outcome(moved), 10)

    after = strategy.receive(world, state, results(state), 1)
    for name, mean, total in (("layer1.0.conv1.weight", 2, 6), ("layer2.0.conv1.weight", 2.5, 5)):
        h = -0.5 * total / 4
        torch.testing.assert_close(
            after.group("h")[name], torch.full_like(early.state[name], h), rtol=1e-5, atol=1e-5
        )
        expected = early.state[name] + mean - h / 0.5
        torch.testing.assert_close(after.group("global")[name], expected, rtol=1e-5, atol=1e-5)
    for name in ("layer2.2.conv1.weight", "fc.bias"):
        assert name not in after.group("h")
        assert torch.equal(after.group("global")[name], early.state[name])
    # Running statistics are not parameters: their mean is not corrected.
    name = "layer1.0.bn1.running_mean"
    expected = early.state[name] + 2
    torch.testing.assert_close(after.group("global")[name], expected, rtol=1e-5, atol=1e-5)
    again = strategy.receive(world, after, results(after), 2)
    name = "layer1.0.conv1.weight"
    change = again.group("global")[name] - after.group("global")[name]
    torch.testing.assert_close(change, torch.full_like(change, 2 + 2 * 6 / 4), rtol=1e-5, atol=1e-5)


def test_feddyn_at_a_client_is_the_written_out_penalty(early, tiers):
    world = early.make_world(early.graph, early.state, tiers, ["first"])
    strategy = DepthFL(alpha=0.5)
    task = strategy.send(world, strategy.init(world), 0, 1)
    assert isinstance(task.program, Dynamic)
    work = early.work_of(task, early.toy(0), LocalOptions(batch=100, lr=0.1))
    outcome = task.program(work)
    name = "exits.layer1.weight"
    moved = outcome.state[name] - task.state[name]
    assert moved.abs().max() > 0
    torch.testing.assert_close(outcome.keep[name], -0.5 * moved)
    assert "layer1.0.bn1.running_mean" not in outcome.keep
    # The gradient of the penalty: -h + α (W_k - W).
    later = early.replace(work, keep=outcome.keep)
    weights = {n: outcome.state[n].clone().requires_grad_() for n in outcome.keep}
    Regularisation(0.5)(weights, later).backward()
    torch.testing.assert_close(weights[name].grad, moved)


def logits(*numbers):
    return torch.tensor([[float(n) for n in numbers], [0.0, 1.0, 2.0]], requires_grad=True)


def examples():
    return Examples((), torch.tensor([1, 0]), torch.arange(2))


def cross(p, targets):
    return -sum(math.log(row[t]) for row, t in zip(p, targets, strict=True)) / len(targets)


def kl(p, q):
    return sum(
        a * math.log(a / b) for x, y in zip(p, q, strict=True) for a, b in zip(x, y, strict=True)
    ) / len(p)


@pytest.mark.parametrize("round", [1, 150, 900])
def test_the_loss_of_depthfl_is_the_written_out_formula(early, tiers, round):
    order = ("layer1", "layer2.0", "main")
    world = early.make_world(early.graph, early.state, tiers, ["full"])
    task = DepthFL().send(world, DepthFL().init(world), 0, round)
    work = early.replace(early.work_of(task, early.toy(0)), round=round)
    outputs = {"main": logits(1, 2, 3), "layer1": logits(0, 1, 0), "layer2.0": logits(2, 0, 1)}
    p = [outputs[k].detach().softmax(1).tolist() for k in order]
    t = min(round, 300)
    weight = math.exp(-5 * (1 - t / 300) ** 2)
    expected = sum(cross(x, [1, 0]) for x in p)
    expected += weight * sum(kl(p[j], p[i]) for i in range(3) for j in range(3) if i != j) / 2
    loss = MutualDistillation(order, 300)(outputs, examples(), work)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    # No gradient through the teacher: of D_KL(p_j ‖ p_i) only p_i is trained.
    loss.backward()
    rows = torch.tensor(p)
    hot = torch.nn.functional.one_hot(torch.tensor([1, 0]), 3)
    by_hand = (rows[0] - hot) / 2 + weight * (2 * rows[0] - rows[1] - rows[2]) / 2 / 2
    torch.testing.assert_close(outputs["layer1"].grad, by_hand, rtol=1e-4, atol=1e-6)
    plain = MutualDistillation(order)(outputs, examples(), work)
    assert plain.item() == pytest.approx(sum(cross(x, [1, 0]) for x in p), rel=1e-5)


def test_the_loss_of_scalefl_is_the_written_out_formula(early, tiers):
    """Defects of the published code: divergence divided by the classes, teacher not fixed."""
    world = early.make_world(early.graph, early.state, tiers, ["full"])
    task = ScaleFL().send(world, ScaleFL().init(world), 0, 1)
    work = early.work_of(task, early.toy(0))
    outputs = {"main": logits(1, 2, 3), "layer1": logits(0, 1, 0), "layer2.0": logits(2, 0, 1)}
    order = ("layer1", "layer2.0", "main")
    p = [outputs[k].detach().softmax(1).tolist() for k in order]
    soft = [(outputs[k].detach() / 3).softmax(1).tolist() for k in order]
    parts = [cross(x, [1, 0]) for x in p]
    for j in (0, 1):
        parts[j] += 0.4 * 9 * kl(soft[2], soft[j])
    loss = EarlyExits(order, 0.4)(outputs, examples(), work)
    expected = (parts[0] + 2 * parts[1] + 3 * parts[2]) / 6
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    loss.backward()
    hot = torch.nn.functional.one_hot(torch.tensor([1, 0]), 3)
    by_hand = (torch.tensor(p[2]) - hot) / 2 * 3 / 6  # of the teacher: cross-entropy alone
    torch.testing.assert_close(outputs["main"].grad, by_hand, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "objective",
    [MutualDistillation(("layer1", "main"), 300), EarlyExits(("layer1", "main"), 0.4)],
    ids=lambda objective: type(objective).__name__,
)
def test_exits_learn_nothing_from_one_another_on_padding(early, tiers, objective):
    world = early.make_world(early.graph, early.state, tiers, ["full"])
    work = early.work_of(DepthFL().send(world, DepthFL().init(world), 0, 300), early.toy(0))
    draw = torch.Generator().manual_seed(0)
    said = {k: torch.randn(2, 5, 3, generator=draw) for k in ("layer1", "main")}
    targets = torch.tensor([[1, 0, -100, -100, -100], [2, 2, 1, -100, -100]])
    losses = []
    for changed in (0.0, 3.0):
        outputs = {k: v + changed * (targets == -100)[..., None] * v for k, v in said.items()}
        losses.append(objective(outputs, Examples((), targets, torch.arange(2)), work))
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-6, atol=0)


def test_scalefl_merges_width_and_depth_and_warms_up(early):
    first = ag.ends_after(early.graph, "layer1")
    narrow = first >> ag.take(first.graph, 0.5)
    tiers = {"small": narrow, "full": ag.Rewritten.identity(early.graph)}
    world = early.make_world(early.graph, early.state, tiers, ["small", "full"])
    after, tasks = early.one_round(ScaleFL(), world, constant)
    weight = after["layer1.1.conv1.weight"]
    assert weight[0, 0, 0, 0] == 1.5 and weight[7, 0, 0, 0] == 2.0
    head = after["exits.layer1.weight"]
    assert head[:, :4].unique().tolist() == [1.5] and head[:, 4:].unique().tolist() == [2.0]
    assert tasks[0].program == Train(EarlyExits(("layer1",), 0.0))
    strategy = ScaleFL()
    state = strategy.init(world)
    later = strategy.send(world, state, 1, 3).program  # of ten rounds
    assert later == Train(EarlyExits(("layer1", "layer2.0", "main"), 0.05))
    models = {m.name: m for m in strategy.evaluated(world, state)}
    x = torch.randn(2, 1, 8, 8)
    for name, last in (("small", "layer1"), ("full", "main")):
        outputs = ag.build(models[name].graph, models[name].state).eval()(x)
        predict = models[name].predict
        assert predict is not None and torch.equal(predict(outputs), outputs[last])


def test_depthfl_answers_with_the_mean_of_its_exits(early, tiers):
    world = early.make_world(early.graph, early.state, tiers, ["first", "second"])
    strategy = DepthFL()
    models = {m.name: m for m in strategy.evaluated(world, strategy.init(world))}
    assert set(models) == {"global", "first", "second", "full"}
    assert models["second"].predict == MeanLogits(("layer1", "layer2.0"))
    outputs = {"layer1": logits(1, 2, 3), "layer2.0": logits(3, 2, 0)}
    assert MeanLogits(("layer1", "layer2.0"))(outputs)[0].tolist() == [2.0, 2.0, 1.5]


def test_depthfl_refuses_narrow_tiers_and_names_scalefl(early):
    half = ag.take(early.graph, 0.5)
    world = early.make_world(early.graph, early.state, {"half": half}, ["half"])
    with pytest.raises(ag.RunError, match=r"tier half: .*at full width.*scalefl"):
        DepthFL().init(world)
    assert ScaleFL().init(world)
