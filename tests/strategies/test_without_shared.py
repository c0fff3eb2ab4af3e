"""FedProto, FedMD, FML, FedDistill: loss and merge of each by hand; what clients keep and send."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import archgraph as ag
from archgraph.engine.experiment import Experiment
from archgraph.engine.local import Run, execute
from archgraph.engine.world import prepare
from archgraph.federation import (
    IGNORED,
    LocalOptions,
    Outcome,
    Result,
    Shard,
    embedding_width,
)
from archgraph.federation.by_class import CLASSES, ROWS
from archgraph.strategies.feddistill import FedDistill
from archgraph.strategies.fedmd import Digest, Draw, FedMD
from archgraph.strategies.fedproto import FedProto, projected
from archgraph.strategies.fml import FML, divergence
from tests.engine.families import experiment_of
from tests.runs import checkpoint_of

LR = 0.5
ONE_STEP = LocalOptions(batch=100, lr=LR)
METHODS = {
    "feddistill": "{}",
    "fedmd": "{subset: 15, public_epochs: 1}",
    "fedproto": "{width: 12}",
    "fml": "{}",
}
# Eight classes for each of four clients, whose networks have nothing in common.
TEXT = """archgraph: 1
name: unlike
family:
  clients:
    - {{name: cnn, count: 2, model: {models}/digits_cnn.yaml}}
    - {{name: mlp, count: 2, model: {models}/digits_mlp.yaml}}
data: {{dataset: digits, limit: 120, partition: {{scheme: classes, per_client: 8}}}}
strategy: {{{method}: {options}}}
rounds: 3
sample: {sample}
local: {{batch: 16, lr: 0.05, momentum: 0.9}}
public: 20
{more}
"""


def run(
    folder: Path,
    method: str,
    options: str = "",
    *,
    sample: float = 1.0,
    more: str = "",
    out: str | None = None,
) -> Run:
    file = folder / f"{method}.yaml"
    options = options or METHODS.get(method, "{}")
    models = Path("specs/models").absolute()
    file.write_text(
        TEXT.format(models=models, method=method, options=options, sample=sample, more=more)
    )
    return ag.run(file, progress=False, out=out and folder / out)


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Tanh(), nn.Linear(6, 5))
    return ag.trace(model, torch.randn(2, 1, 8, 8))


@pytest.fixture
def world(lab, net):
    """Two clients of the hand-made network; the second one lacks classes 0 and 1."""
    graph, state = net
    same = ag.Rewritten.identity(graph)
    histograms = [(2, 2, 1, 1, 0), (0, 0, 3, 4, 2)]
    world = lab.make_world(
        graph, state, {"all": same}, ["all", "all"], histograms=histograms, examples=[6, 9]
    )
    return dataclasses.replace(world, public=lab.toy(9, 7))


def embedded(state: Any, x: Tensor) -> Tensor:
    return (x.flatten(1) @ state["1.weight"].T + state["1.bias"]).tanh()


def answered(state: Any, x: Tensor) -> Tensor:
    return embedded(state, x) @ state["3.weight"].T + state["3.bias"]


def stepped(state: Any, loss: Any) -> tuple[dict[str, Tensor], float]:
    """One step of gradient descent on a loss of a state."""
    leaves = {k: v.clone().requires_grad_() for k, v in state.items()}
    value = loss(leaves)
    steps = torch.autograd.grad(value, list(leaves.values()))
    moved = {k: v.detach() - LR * g for (k, v), g in zip(leaves.items(), steps, strict=True)}
    return moved, value.item()


def check(outcome: Outcome, expected: Any) -> None:
    moved, loss = expected
    assert outcome.metrics["loss"] == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(outcome.state, moved, rtol=0.0001, atol=1e-6)


def task_of(strategy, world, state, client=0):
    task = strategy.send(world, state, client, 2)
    assert task.private == set(task.graph.state_names)
    return task


def result(client: int, **extras: Tensor) -> Result:
    return Result(client, {}, 1, extras=extras)


# -- FedProto ------------------------------------------------------------------------------------


def test_prototypes_pull_at_the_means_of_a_minibatch(lab, world):
    data, strategy = lab.toy(0, 6, labels=(0, 1, 2, 3)), FedProto(pull=0.7)
    assert strategy.width is None and embedding_width(world.graph) == 6
    known = {CLASSES: torch.tensor([0, 2, 4]), ROWS: torch.randn(3, 6)}
    state = strategy.init(world).with_group("prototypes", known)
    task = task_of(strategy, world, state)
    assert task.extras[CLASSES].tolist() == [0, 2]  # no row of a class that the client lacks
    outcome = task.program(lab.work_of(task, data, ONE_STEP))

    def loss(s):
        rows = embedded(s, data.inputs)
        apart = [
            n / 6 * (rows[data.targets == c].mean(0) - known[ROWS][i]).square().sum() / 6
            for n, i, c in ((2, 0, 0), (1, 1, 2))
        ]
        return cross_entropy(answered(s, data.inputs), data.targets) + 0.7 * sum(apart)

    check(outcome, stepped(task.state, loss))
    assert outcome.extras[CLASSES].tolist() == [0, 1, 2, 3]
    rows = embedded(outcome.state, data.inputs)
    means = torch.stack([rows[data.targets == c].mean(0) for c in range(4)])
    torch.testing.assert_close(outcome.extras[ROWS], means, rtol=1e-4, atol=1e-5)


def test_a_global_prototype_is_the_mean_over_clients_that_have_the_class(world):
    one, two = torch.randn(4, 6), torch.randn(3, 6)
    sent = [
        result(1, **{CLASSES: torch.tensor([2, 3, 4]), ROWS: two}),
        result(0, **{CLASSES: torch.tensor([0, 1, 2, 3]), ROWS: one}),
    ]
    for weights, (a, b) in (("examples", (1 / 4, 1 / 5)), ("uniform", (1 / 2, 1 / 2))):
        strategy = FedProto(weights=weights)  # type: ignore[arg-type]  # names as in a spec
        after = strategy.receive(world, strategy.init(world), sent, 1)
        expected = torch.stack(
            [one[0], one[1], a * one[2] + (1 - a) * two[0], b * one[3] + (1 - b) * two[1], two[2]]
        )
        assert after.group("prototypes")[CLASSES].tolist() == [0, 1, 2, 3, 4]
        torch.testing.assert_close(after.group("prototypes")[ROWS], expected)
    # A class of nobody in this round stays as it was.
    later = strategy.receive(world, after, sent[:1], 2).group("prototypes")[ROWS]
    assert torch.equal(later[:2], expected[:2]) and torch.equal(later[2:], two)


def test_embeddings_of_another_width_are_projected_by_one_matrix():
    rows = torch.randn(5, 40)
    assert projected(rows, 40, 0) is not None and torch.equal(projected(rows, 40, 0), rows)
    low = projected(rows, 7, 0)
    assert low.shape == (5, 7) and torch.equal(low, projected(rows, 7, 0))
    torch.testing.assert_close(projected(2 * rows, 7, 0), 2 * low)  # linear
    many = projected(torch.randn(500, 400), 100, 0).square().sum(1).mean() / 400
    assert many == pytest.approx(1, abs=0.1)


# -- FedDistill ----------------------------------------------------------------------------------


def test_the_others_answers_are_the_targets_of_a_cross_entropy(lab, world):
    data, strategy = lab.toy(0, 6, labels=(0, 1, 2, 3)), FedDistill(gamma=0.6)
    mine, theirs = torch.rand(4, 5), torch.rand(3, 5)
    sent = [
        result(1, **{CLASSES: torch.tensor([2, 3, 4]), ROWS: theirs}),
        result(0, **{CLASSES: torch.tensor([0, 1, 2, 3]), ROWS: mine}),
    ]
    state = strategy.receive(world, strategy.init(world), sent, 1)
    task = task_of(strategy, world, state)
    # Of two clients the mean of the others is the other's; a label that it lacks has none.
    assert task.extras[CLASSES].tolist() == [2, 3]
    torch.testing.assert_close(task.extras[ROWS], theirs[:2])
    outcome = task.program(lab.work_of(task, data, ONE_STEP))

    def loss(s):
        logits = answered(s, data.inputs)
        teacher = torch.zeros(5, 5)
        teacher[2:4] = theirs[:2]
        distance = -(teacher[data.targets] * logits.log_softmax(1)).sum(1).mean()
        return cross_entropy(logits, data.targets) + 0.6 * distance

    check(outcome, stepped(task.state, loss))
    # What it answered in training: before the step, since there was one.
    answers = answered(task.state, data.inputs).softmax(1)
    means = torch.stack([answers[data.targets == c].mean(0) for c in range(4)])
    torch.testing.assert_close(outcome.extras[ROWS], means, rtol=1e-4, atol=1e-6)


def test_the_mean_of_the_others_leaves_out_the_own_answer(lab, net):
    graph, start = net
    world = lab.make_world(graph, start, {"all": ag.Rewritten.identity(graph)}, ["all"] * 3)
    rows = [torch.rand(5, 5) for _ in range(3)]
    strategy = FedDistill()
    sent = [result(c, **{CLASSES: torch.arange(5), ROWS: rows[c]}) for c in (2, 0, 1)]
    state = strategy.receive(world, strategy.init(world), sent, 1)
    for client in range(3):
        expected = (sum(rows) - rows[client]) / 2
        torch.testing.assert_close(task_of(strategy, world, state, client).extras[ROWS], expected)
    # Who is not in a round is heard with its last answers; who never was, not at all.
    alone = strategy.receive(world, strategy.init(world), sent[:1], 1)
    assert not len(task_of(strategy, world, alone, 2).extras[CLASSES])
    torch.testing.assert_close(task_of(strategy, world, alone, 0).extras[ROWS], rows[2])


# -- FML -----------------------------------------------------------------------------------------


def test_both_networks_learn_from_the_targets_and_from_each_other(lab, world):
    data, strategy = lab.toy(0, 6), FML(alpha=0.3, beta=0.8)
    meme = lab.random_state(world.state, 4)
    task = task_of(strategy, world, strategy.init(world).with_group("shared", meme))
    outcome = task.program(lab.work_of(task, data, ONE_STEP))
    x, y = data.inputs, data.targets

    def distance(teacher, learner):
        p, q = teacher.detach().softmax(1), learner.softmax(1)
        return (p * (p.log() - q.log())).sum(1).mean()

    def private(s):
        mine, theirs = answered(s, x), answered(meme, x)
        return 0.3 * cross_entropy(mine, y) + 0.7 * distance(theirs, mine)

    def shared(s):
        mine, theirs = answered(task.state, x), answered(s, x)
        return 0.8 * cross_entropy(theirs, y) + 0.2 * distance(mine, theirs)

    moved, one = stepped(task.state, private)
    other, two = stepped(meme, shared)
    check(outcome, (moved, one + two))
    torch.testing.assert_close(outcome.others["shared"], other, rtol=0.0001, atol=1e-6)
    assert outcome.metrics["macs"] == 2 * ag.cost(world.graph).macs * 6


def test_the_divergence_is_that_of_the_teacher_and_moves_the_learner_alone():
    p, q = torch.tensor([[0.9, 0.1]]), torch.tensor([[0.5, 0.5]])
    teacher, learner = p.log().requires_grad_(), q.log().requires_grad_()
    value = divergence(learner, teacher)
    expected = 0.9 * torch.tensor(0.9 / 0.5).log() + 0.1 * torch.tensor(0.1 / 0.5).log()
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    value.backward()
    assert teacher.grad is None and learner.grad is not None


def test_the_shared_network_is_averaged_by_examples_and_is_the_smallest(lab, world):
    small = ag.take(world.graph, 0.5)
    tiers = {"all": ag.Rewritten.identity(world.graph), "half": small}
    world = lab.make_world(world.graph, world.state, tiers, ["all", "half"], examples=[6, 9])
    one, two = (lab.random_state(world.tier("half").state, seed) for seed in (1, 2))
    sent = [Result(0, {}, 6, others={"shared": one}), Result(1, {}, 9, others={"shared": two})]
    for weights, a in (("examples", 6 / 15), ("uniform", 0.5)):
        strategy = FML(weights=weights)  # type: ignore[arg-type]
        after = strategy.receive(world, strategy.init(world), sent, 1).group("shared")
        for name, value in after.items():
            torch.testing.assert_close(value, a * one[name] + (1 - a) * two[name])
    models = [m.name for m in strategy.evaluated(world, strategy.init(world))]
    assert models == ["global", "all", "half"]
    assert FML(shared="all").init(world).group("shared").keys() == set(world.state)


# -- FedMD ---------------------------------------------------------------------------------------


def test_a_client_digests_the_consensus_and_revisits_its_own_examples(lab, world):
    data, strategy = lab.toy(0, 6), FedMD()
    public, scores = world.public, torch.randn(7, 5)
    state = strategy.init(world).with_group("consensus", {"scores": scores}).with_values(drawn=1)
    task = task_of(strategy, world, state)
    work = dataclasses.replace(lab.work_of(task, data, ONE_STEP), public=public, round=2)
    outcome = task.program(work)
    before, now = (torch.randperm(7, generator=draw) for draw in draws(1, 2))

    def digest(s):
        return (answered(s, public.inputs[before]) - scores).abs().mean()

    between, _ = stepped(task.state, digest)
    check(
        outcome,
        stepped(between, lambda s: cross_entropy(answered(s, data.inputs), data.targets)),
    )
    assert outcome.metrics["seen"] == 7 + 6
    told = answered(outcome.state, public.inputs[now])
    torch.testing.assert_close(outcome.extras["scores"], told, rtol=1e-4, atol=1e-5)


def draws(*rounds):
    from archgraph.federation import seeded

    return [seeded(0, "fedmd", round) for round in rounds]


def test_the_first_round_learns_the_public_set_if_it_is_labelled(lab, world):
    data, strategy = lab.toy(0, 6), FedMD(public_epochs=1)
    task = strategy.send(world, strategy.init(world), 0, 1)
    work = dataclasses.replace(lab.work_of(task, data, ONE_STEP), public=world.public)
    outcome = task.program(work)

    def loss(d):
        return lambda s: cross_entropy(answered(s, d.inputs), d.targets)

    between, _ = stepped(task.state, loss(world.public))
    check(outcome, stepped(between, loss(data)))
    # Once: a client that has begun does not go back there.
    again = task.program(dataclasses.replace(work, keep=outcome.keep))
    check(again, stepped(task.state, loss(data)))


def test_the_consensus_counts_every_client_once(world):
    strategy = FedMD(subset=3)
    one, two = torch.randn(3, 5), torch.randn(3, 5)
    after = strategy.receive(
        world, strategy.init(world), [result(1, scores=two), result(0, scores=one)], 4
    )
    torch.testing.assert_close(after.group("consensus")["scores"], (one + two) / 2)
    assert after.values == {"drawn": 4}
    assert strategy.receive(world, after, [], 5) == after
    shard = Draw(0, 3)(world.public, 4)
    assert len({*map(float, shard.inputs[0].flatten(1)[:, 0])}) == 3
    assert Digest(shard, 1).public.examples == 3


# -- all -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [FedProto(), FedDistill()])
@pytest.mark.parametrize(
    ("classes", "rows"),
    [([0, 4], 2), ([1, 0], 2), ([0, 0], 2), ([0, 1], 3), ([[0], [1]], 2)],
)
def test_rows_of_classes_that_a_client_lacks_are_refused(world, strategy, classes, rows):
    width = 6 if isinstance(strategy, FedProto) else 5
    sent = result(0, **{CLASSES: torch.tensor(classes), ROWS: torch.zeros(rows, width)})
    with pytest.raises(ag.RejectedUpdate, match="client 0: does not have a row"):
        strategy.examine(world, sent)
    right = {CLASSES: torch.tensor([0, 3]), ROWS: torch.zeros(2, width)}
    strategy.examine(world, result(0, **right))


def test_scores_of_other_examples_are_refused(world):
    with pytest.raises(ag.RejectedUpdate, match=r"\(7, 5\)"):
        FedMD().examine(world, result(0, scores=torch.zeros(6, 5)))


# Without what others say, the own network is Standalone's, bit for bit.
ALONE = {"feddistill": "{gamma: 0}", "fedproto": "{pull: 0}", "fml": "{alpha: 1}"}


@pytest.mark.sample(3)
@pytest.mark.parametrize("method", ALONE)
def test_without_the_others_every_client_is_alone(tmp_path, method):
    run(tmp_path, "standalone", out="alone")
    run(tmp_path, method, ALONE[method], out="other")
    one, two = (checkpoint_of(tmp_path / name, 3).private for name in ("alone", "other"))
    assert one.keys() == two.keys() == {0, 1, 2, 3}
    for client, state in one.items():
        assert all(torch.equal(two[client][name], value) for name, value in state.items())


SENT = {  # bytes down and up of each client in the third round: eight classes of ten
    "feddistill": (8 * (8 + 10 * 4), 8 * (8 + 10 * 4)),
    "fedmd": (15 * 10 * 4, 15 * 10 * 4),
    "fedproto": (8 * (8 + 12 * 4), 8 * (8 + 12 * 4)),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("method", [*SENT, "fml"])
def test_bytes_are_those_that_are_sent(tmp_path, method):
    done = run(tmp_path, method)
    sent = {(row["bytes_down"], row["bytes_up"]) for row in done.rounds[-1]["clients"]}
    if method == "fml":
        shared = sum(t.numel() * t.element_size() for t in done.server.group("shared").values())
        assert sent == {(shared, shared)}
    else:
        assert sent == {SENT[method]}
    # The network travels once, as it begins.
    first = done.rounds[0]["clients"]
    assert all(row["bytes_down"] > 1000 for row in first)


# -- the public set ------------------------------------------------------------------------------

BASE = {
    "name": "public",
    "family": {"clients": [{"name": "all", "count": 3, "model": "specs/models/digits_cnn.yaml"}]},
    "data": {"dataset": "digits", "limit": 60},
    "strategy": {"fedmd": {}},
    "rounds": 1,
    "local": {"lr": 0.1},
}


def public_of(setup: Experiment) -> Shard:
    assert isinstance(setup.world.public, Shard)
    return setup.world.public


def test_public_examples_belong_to_no_client():
    setup = prepare({**BASE, "public": 12})
    assert sum(map(len, setup.shares)) == 48 and public_of(setup).examples == 12
    everything = prepare({**BASE, "strategy": {"standalone": {}}})
    taken_out = set(range(60)) - {int(i) for share in setup.shares for i in share}
    inputs, _ = everything.data.train.examples(torch.tensor(sorted(taken_out)))
    assert torch.equal(public_of(setup).inputs[0], inputs[0])
    # Beside it, another method trains on the same examples.
    other = prepare({**BASE, "strategy": {"standalone": {}}, "public": 12})
    assert [s.tolist() for s in other.shares] == [s.tolist() for s in setup.shares]
    assert setup.facts != prepare({**BASE, "public": 13}).facts
    # All that decides a run but its seed is the same for every seed: a study counts on it.
    assert {**setup.facts, "seed": 1} == prepare({**BASE, "public": 12, "seed": 1}).facts


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "public: fedmd needs public examples, which every client has.*public: 200"),
        ({"public": 60}, "public: leaves no examples to train on"),
        (
            {"public": {"dataset": "digits", "limit": 5}, "strategy": {"fedavg": {}}},
            "changes nothing: fedavg",
        ),
        ({"public": 12, "strategy": {"fedmd": {"subset": 13}}}, "subset.*13.*at most 12"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_first_round(changes, words):
    spec = {**BASE, **changes}
    if "fedavg" in spec["strategy"]:
        spec = {
            **spec,
            "family": {"model": "specs/models/digits_cnn.yaml", "clients": [{"name": "a"}]},
        }
    with pytest.raises(ag.ArchGraphError, match=words):
        ag.run(spec, progress=False)


def test_public_examples_have_the_form_of_the_clients(data_root):
    spec = {**BASE, "public": {"dataset": "sick"}}
    with pytest.raises(ag.ArchGraphError, match=r"different forms.*text.*image"):
        ag.run(spec, progress=False, data_root=str(data_root))


def test_another_data_set_may_be_public(tmp_path):
    file = tmp_path / "e.yaml"
    models = Path("specs/models").absolute()
    file.write_text(
        TEXT.format(models=models, method="fedmd", options="{}", sample=1.0, more="").replace(
            "public: 20", "public: {dataset: digits, limit: 9}"
        )
    )
    setup = prepare(file)
    assert public_of(setup).examples == 9
    assert "root" not in setup.facts["public"]
    file.write_text(file.read_text().replace("limit: 9", "limit: 8"))
    assert prepare(file).facts["public_examples"] != setup.facts["public_examples"]


def test_a_public_set_of_another_form_is_refused():
    model = {
        "archgraph": 1,
        "name": "m",
        "inputs": {"x": [1, 6, 6]},
        "sections": [{"name": "head", "steps": ["flatten", {"linear": 2}]}],
    }
    data = torch.rand(20, 1, 6, 6), torch.arange(20) % 2
    spec = {**BASE, "family": {"clients": [{"name": "all", "model": model}]}, "data": {}}
    with pytest.raises(ag.RunError, match=r"different forms.*\[1, 8, 8\].*\[1, 6, 6\]"):
        prepare({**spec, "public": {"dataset": "digits"}}, data=(data, data))


@pytest.mark.parametrize("strategy", [FedProto(), FedDistill(), FedMD()])
def test_an_example_needs_one_class(world, strategy):
    learning = dataclasses.replace(world.learning, per_example=False, name="segmentation")
    with pytest.raises(ag.RunError, match="single class for each example; found segmentation"):
        strategy.init(dataclasses.replace(world, learning=learning))


@pytest.mark.sample(3)
@pytest.mark.parametrize("method", ["feddistill", "fedgkt", "fedproto"])
def test_examples_whose_class_is_ignored_count_for_nothing(tmp_path, method):
    setup = prepare(ag.load_experiment(experiment_of(method, tmp_path)))
    setup.data.train.targets[::3] = IGNORED
    run = execute(setup, progress=False)
    assert run.sound and not run.troubles
