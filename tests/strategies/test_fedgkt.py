"""FedGKT: two losses by hand, targets by the example's id, and two tested models per client."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import archgraph as ag
from archgraph.federation import LocalOptions, Outcome
from archgraph.strategies.fedgkt import FedGKT, KnowledgeTransfer, model_halves, taught

ONE_STEP = LocalOptions(batch=100, lr=0.5)


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 5))
    )
    return ag.trace(model, torch.randn(2, 1, 8, 8))


@pytest.fixture
def world(lab, net):
    graph, state = net
    edge = ag.ends_after(graph, "1", 5)
    return lab.make_world(graph, state, {"edge": edge}, ["edge", "edge"], examples=[6, 9])


def answers(state, x):
    """Features and logits of a client's model."""
    features = (x.flatten(1) @ state["1.weight"].T + state["1.bias"]).relu()
    return features, features @ state["end.weight"].T + state["end.bias"]


def distance(mine, teacher, temperature=3.0):
    p, q = ((x / temperature).softmax(1) for x in (teacher, mine))
    return temperature**2 * (p * (p.log() - q.log())).sum(1).mean()


def test_the_server_trains_as_long_as_in_the_published_runs():
    assert FedGKT().server_epochs == 20


def test_a_clients_step_follows_its_loss_by_the_examples_ids(lab, world):
    """Defect of the published code: targets go by the number of a shuffled batch."""
    data = lab.toy(0, 6)
    draw = torch.Generator().manual_seed(1)
    order, teacher = torch.randperm(6, generator=draw), torch.randn(6, 5, generator=draw)
    strategy = FedGKT(after="1", alpha=0.7)
    state = strategy.init(world).with_group("logits/0", {"ids": order, "logits": teacher[order]})
    task = strategy.send(world, state, 0, 2)
    outcome = task.program(lab.work_of(task, data, ONE_STEP, seed=3))
    leaves = {k: v.clone().requires_grad_() for k, v in task.state.items()}
    logits = answers(leaves, data.inputs)[1]
    loss = cross_entropy(logits, data.targets) + 0.7 * distance(logits, teacher)
    steps = torch.autograd.grad(loss, list(leaves.values()))
    for (name, leaf), step in zip(leaves.items(), steps, strict=True):
        expected = leaf.detach() - 0.5 * step
        torch.testing.assert_close(outcome.state[name], expected, rtol=1e-4, atol=1e-5)
    assert outcome.metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)


def test_the_first_round_is_the_clients_alone(lab, world):
    strategy = FedGKT(after="1")
    task = strategy.send(world, strategy.init(world), 0, 1)
    assert not task.extras and task.program == KnowledgeTransfer(1.0, 3.0)
    assert task.private == set(task.graph.state_names)
    data = lab.toy(0, 6)
    outcome = task.program(lab.work_of(task, data, ONE_STEP))
    assert outcome.metrics["loss"] == pytest.approx(
        cross_entropy(answers(task.state, data.inputs)[1], data.targets).item(), rel=1e-5
    )
    # What is told is what the trained model sees.
    features, logits = answers(outcome.state, data.inputs)
    torch.testing.assert_close(outcome.extras["features"], features, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(outcome.extras["logits"], logits, rtol=1e-4, atol=1e-5)
    assert torch.equal(outcome.extras["targets"], data.targets)
    assert outcome.extras["ids"].tolist() == list(range(6))


def results(lab, world, strategy, state, round=1):
    for client, count in ((1, 9), (0, 6)):
        task = strategy.send(world, state, client, round)
        outcome = task.program(lab.work_of(task, lab.toy(client, count), ONE_STEP))
        result = task.result(outcome, count)
        strategy.examine(world, result)
        yield result


def test_the_servers_step_by_hand(lab, world):
    strategy = FedGKT(after="1", alpha=0.5, server_epochs=1, server_lr=0.2)
    before = strategy.init(world)
    assert set(before.group("server")) == {"3.weight", "3.bias", "5.weight", "5.bias"}
    sent = {result.client: result.extras for result in results(lab, world, strategy, before)}
    after = strategy.receive(world, before, results(lab, world, strategy, before), 1)
    w = {k: v.clone().requires_grad_() for k, v in before.group("server").items()}

    def forward(weights, features):
        hidden = (features @ weights["3.weight"].T + weights["3.bias"]).relu()
        return hidden @ weights["5.weight"].T + weights["5.bias"]

    features, teacher, targets = (
        torch.cat([sent[0][name], sent[1][name]]) for name in ("features", "logits", "targets")
    )
    said = forward(w, features)
    loss = distance(said, teacher) + 0.5 * cross_entropy(said, targets)
    steps = torch.autograd.grad(loss, list(w.values()))
    for (name, leaf), step in zip(w.items(), steps, strict=True):
        expected = leaf.detach() - 0.2 * step
        torch.testing.assert_close(after.group("server")[name], expected, rtol=1e-4, atol=1e-5)
    for client in (0, 1):
        group = after.group(f"logits/{client}")
        expected = forward(after.group("server"), sent[client]["features"])
        torch.testing.assert_close(group["logits"], expected, rtol=1e-4, atol=1e-5)
        assert torch.equal(group["ids"], sent[client]["ids"])
    assert set(strategy.send(world, after, 0, 2).extras) == {"ids", "logits"}


def test_whoever_comes_first_the_server_learns_the_same(lab, world):
    strategy = FedGKT(after="1", server_batch=4)
    before = strategy.init(world)
    arrived = list(results(lab, world, strategy, before))
    assert [result.client for result in arrived] == [1, 0]
    one, other = (
        strategy.receive(world, before, order, 1).tensors for order in (arrived, arrived[::-1])
    )
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_two_models_of_each_client_are_tested(lab, world):
    strategy = FedGKT(after="1")
    state = strategy.init(world)
    models = {m.name: m for m in strategy.evaluated(world, state)}
    assert set(models) == {"edge", "edge+server"} and all(m.private for m in models.values())
    whole = models["edge+server"]
    assert whole.clients == (0, 1)
    x = torch.randn(3, 1, 8, 8)
    expected = ag.build(world.graph, world.state)(x)
    torch.testing.assert_close(ag.build(whole.graph, whole.state)(x), expected)


def test_a_round_without_results_changes_nothing(world):
    strategy = FedGKT(after="1")
    state = strategy.init(world)
    assert strategy.receive(world, state, iter(()), 1) is state


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("features", lambda x: x[:, :2]),
        ("logits", lambda x: x[:3]),
        ("targets", lambda x: x + 3),
        ("ids", lambda x: x + 1),
    ],
)
def test_what_does_not_belong_to_the_examples_is_refused(lab, world, name, change):
    strategy = FedGKT(after="1")
    state = strategy.init(world)
    task = strategy.send(world, state, 0, 1)
    extras = dict(task.program(lab.work_of(task, lab.toy(0, 6), ONE_STEP)).extras)
    extras[name] = change(extras[name])
    result = task.result(Outcome(task.state, extras=extras), 6)
    with pytest.raises(ag.RejectedUpdate, match=f"client 0: {name}: does not match"):
        strategy.examine(world, result)


def test_features_that_the_server_cannot_take_are_refused_with_what_to_write(lab, net):
    graph, state = net
    for tier in (ag.ends_after(graph, "3", 5), ag.Rewritten.identity(graph)):
        world = lab.make_world(graph, state, {"edge": tier}, ["edge"])
        with pytest.raises(ag.RunError, match=r"tier edge: its features.*ends_after.*fedin"):
            FedGKT(after="1").init(world)


def test_a_model_is_cut_before_its_classifier(lab):
    extractor, classifier = model_halves(ag.ends_after(lab.graph, "layer1", 5).graph)
    assert classifier.state_names == ("end.weight", "end.bias")
    assert extractor.state_names[-1].startswith("layer1.2")
    torch.testing.assert_close(
        taught(torch.tensor([[1.0, 0]]), torch.tensor([[0.0, 1]]), 3.0),
        distance(torch.tensor([[1.0, 0]]), torch.tensor([[0.0, 1]])),
    )
