"""FjORD: nested widths of one model, trained in one step and merged by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import archgraph as ag
from archgraph.engine.computed import of_client
from archgraph.federation import TASKS, LocalOptions, Outcome
from archgraph.strategies.fjord import FjORD, OrderedDropout, nested_widths

SLOW = LocalOptions(batch=100, lr=0.5)


@pytest.fixture(scope="module")
def tiers(lab):
    return {
        "quarter": ag.take(lab.graph, 0.25),
        "half": ag.take(lab.graph, 0.5),
        "full": ag.Rewritten.identity(lab.graph),
    }


@pytest.fixture(scope="module")
def linear():
    """Two linear layers without a norm: gradients by hand."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 4, bias=False), nn.ReLU(), nn.Linear(4, 5))
    return ag.trace(net, torch.randn(2, 1, 8, 8))


def forward(state, x, units: int):
    """The net with its first hidden units."""
    hidden = (x.flatten(1) @ state["1.weight"][:units].T).relu()
    return hidden @ state["3.weight"][:, :units].T + state["3.bias"]


@pytest.mark.parametrize("distil", [False, True])
def test_one_step_follows_the_written_out_loss(lab, linear, distil):
    """p is drawn once for each minibatch; with `distil` the own width is trained in every step."""
    graph, state = linear
    tiers = {"half": ag.take(graph, 0.5), "full": ag.Rewritten.identity(graph)}
    world = lab.make_world(graph, state, tiers, ["full"])
    data, seen = lab.toy(0, 10), set()
    for seed in range(6):
        strategy = FjORD(distil=distil)
        task = strategy.send(world, strategy.init(world), 0, 1)
        found = task.program(lab.work_of(task, data, SLOW, seed)).state
        fits = []
        for units in (2, 4):
            leaves = {k: v.clone().requires_grad_() for k, v in state.items()}
            answers = forward(leaves, data.inputs, units)
            loss = cross_entropy(answers, data.targets)
            if distil:
                own = forward(leaves, data.inputs, 4)
                loss = cross_entropy(own, data.targets)
                if units < 4:
                    wanted = own.detach().softmax(1)
                    loss = loss - (wanted * answers.log_softmax(1)).sum(1).mean()
            loss.backward()
            steps = {k: v.detach() - 0.5 * v.grad for k, v in leaves.items()}
            if all(torch.allclose(found[k], steps[k], atol=1e-6) for k in steps):
                fits.append(units)
        assert len(fits) == 1
        seen |= set(fits)
    assert seen == {2, 4}


@pytest.mark.parametrize("distil", [False, True])
def test_multiply_accumulates_are_those_of_the_widths_that_ran(lab, linear, distil):
    graph, state = linear
    tiers = {"half": ag.take(graph, 0.5), "full": ag.Rewritten.identity(graph)}
    world = lab.make_world(graph, state, tiers, ["full"])
    strategy, data, found = FjORD(distil=distil), lab.toy(0, 10), set()
    task = strategy.send(world, strategy.init(world), 0, 1)
    for seed in range(6):  # one minibatch each
        metrics = task.program(lab.work_of(task, data, SLOW, seed)).metrics
        found.add(metrics["macs"] / 10)
        assert of_client(task, metrics) == 3 * metrics["macs"]
    half, full = (ag.cost(tier.graph).macs for tier in world.by_size)
    assert found == ({half + full, full} if distil else {half, full})


def test_a_client_trains_the_widths_up_to_its_own_and_returns_their_statistics(lab, tiers):
    world = lab.make_world(lab.graph, lab.state, tiers, ["half", "full"])
    strategy = FjORD()
    state = strategy.init(world)
    task = strategy.send(world, state, 0, 1)
    assert isinstance(task.program, OrderedDropout)
    assert [width.name for width in task.program.widths] == ["quarter", "half"]
    assert {name.partition("/")[0] for name in task.extras} == {"quarter", "half"}
    outcome = task.program(lab.work_of(task, lab.toy(0, 40), LocalOptions(batch=4, lr=0.1)))
    strategy.examine(world, task.result(outcome, 40))
    for width in ("quarter", "half"):
        name = f"{width}/layer1.0.bn1.running_mean"
        assert not torch.equal(outcome.extras[name], task.extras[name])
    counter = "layer1.0.bn1.num_batches_tracked"
    counts = [int(outcome.extras[f"{width}/{counter}"]) for width in ("quarter", "half")]
    assert sum(counts) == 10 and min(counts) > 0
    # Labels are not a width: the last layer keeps its rows.
    assert outcome.state["fc.weight"].shape == (5, 6)


def test_weights_and_statistics_are_merged_by_hand(lab, tiers):
    world = lab.make_world(lab.graph, lab.state, tiers, ["quarter", "half"], examples=[30, 10])
    strategy = FjORD()
    before = strategy.init(world)
    results = []
    for client in (0, 1):
        task = strategy.send(world, before, client, 1)
        own = {k: torch.full_like(v, client + 1) for k, v in task.state.items()}
        extras = {k: torch.full_like(v, client + 1) for k, v in task.extras.items()}
        results.append(task.result(Outcome(own, extras=extras), world.clients[client].examples))
    state = strategy.receive(world, before, iter(results), 1)
    bias, name = state.group("global")["layer2.0.conv1.weight"], "layer1.0.bn1.running_var"
    # (30·1 + 10·2) / 40; client 1 alone.
    assert bias[0, 0, 0, 0] == 1.25 and bias[5, 3, 0, 0] == 2.0
    assert torch.equal(bias[6:], lab.state["layer2.0.conv1.weight"][6:])
    assert state.group("statistics/quarter")[name].tolist() == [1.25, 1.25]
    assert state.group("statistics/half")[name].tolist() == [2.0] * 4
    assert torch.equal(state.group("statistics/full")[name], lab.state[name])
    models = {model.name: model for model in strategy.evaluated(world, state)}
    assert models["quarter"].state[name].tolist() == [1.25, 1.25]
    assert torch.equal(models["global"].state[name], lab.state[name])
    assert all(model.statistics == "stored" for model in models.values())


def test_static_statistics_are_neither_sent_nor_held(lab, tiers):
    world = lab.make_world(lab.graph, lab.state, tiers, ["half"])
    strategy = FjORD(norm="static")
    state = strategy.init(world)
    assert {name.partition("/")[0] for name in state.tensors} == {"global"}
    task = strategy.send(world, state, 0, 1)
    assert not task.extras
    strategy.examine(world, task.result(Outcome(task.state), 10))  # nothing to examine
    assert {model.statistics for model in strategy.evaluated(world, state)} == {"recompute"}


def test_statistics_that_do_not_fit_are_refused(lab, tiers):
    world = lab.make_world(lab.graph, lab.state, tiers, ["half"])
    strategy = FjORD()
    task = strategy.send(world, strategy.init(world), 0, 1)
    name = "half/layer1.0.bn1.running_var"
    for wrong, message in (
        (task.extras[name] - 9, "half: layer1.0.bn1.running_var: negative variance"),
        (task.extras[name][:2], "half: layer1.0.bn1.running_var: statistics do not fit"),
    ):
        result = task.result(Outcome(task.state, extras={**task.extras, name: wrong}), 10)
        with pytest.raises(ag.RejectedUpdate, match=message):
            strategy.examine(world, result)


def test_tiers_that_are_not_nested_are_refused_with_those_that_serve_them(lab, tiers):
    short = ag.shorten(lab.graph, {"layer1": 1})
    world = lab.make_world(
        lab.graph, lab.state, {"half": ag.take(lab.graph, 0.9), "short": short}, ["half", "short"]
    )
    with pytest.raises(ag.RunError, match=r"is not a part of tier .*heterofl, nefl and fedfa"):
        FjORD().init(world)


def test_distillation_needs_classes(lab):
    world = lab.replace(lab.uniform(1), learning=TASKS["regression"])
    with pytest.raises(ag.RunError, match=r"distil: distillation compares class prob"):
        FjORD(distil=True).init(world)
    assert FjORD().init(world)


def test_shallower_parts_are_nested_too(lab, tiers):
    """A part may lack blocks: whatever lies inside the next larger one is a width."""
    short = tiers["half"] >> ag.shorten(tiers["half"].graph, {"layer1": 2})
    offered = {"short": short, "half": tiers["half"], "full": tiers["full"]}
    world = lab.make_world(lab.graph, lab.state, offered, ["full"])
    made = nested_widths(world.by_size, "full")
    assert [width.name for width in made] == ["short", "half", "full"]
    pulled = made[0].transfer.pull(lab.state)
    expected = short.transfer.pull(lab.state)
    assert all(torch.equal(pulled[name], expected[name]) for name in expected)
