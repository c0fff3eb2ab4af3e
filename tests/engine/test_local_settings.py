"""How clients train: optimisers, schedules, losses, terms; what kinds of client have instead."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import archgraph as ag
from archgraph.engine.world import prepare
from archgraph.errors import ArchGraphError
from archgraph.federation import (
    Examples,
    LocalOptions,
    Shard,
    Towards,
    Train,
    Work,
    descend,
    seeded,
)
from archgraph.federation.metrics import cross_entropy
from archgraph.federation.training import optimiser
from archgraph.federation.training_loss import TrainingCrossEntropy
from archgraph.language.local import LocalChanges
from archgraph.language.optimisers import NAMES, optimiser_class
from archgraph.record.equal import run_differences

X = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
Y = torch.tensor([0, 1, 2, 1, 0, 2, 1, 1, 0, 2, 1, 0])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.hidden(x)).relu())


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


def work_of(net: nn.Module, round: int = 1, rounds: int = 4, **local: Any) -> Work:
    graph, state = ag.trace(net.train(), X)
    shard = Shard((X,), Y, (4, 5, 3))
    options = LocalOptions(**{"batch": 4, "lr": 0.1, **local})
    return Work(0, round, rounds, graph, state, shard, options, seeded(0, "work"))


def order_of(work: Work) -> list[Examples]:
    """The minibatches that a run of the work sees in its passes."""
    draw = seeded(0, "work")
    passes = range(work.local.epochs)
    return [b for _ in passes for b in work.data.batches(draw, work.local.batch)]


def plain(net: nn.Module, batches: list[Examples], loss: Any, make: Any) -> Mapping[str, Tensor]:
    """Train in plain PyTorch."""
    steps = make(net.train().parameters())
    for batch in batches:
        steps.zero_grad()
        loss(net, batch).backward()
        steps.step()
    return net.state_dict()


def cross(net: nn.Module, batch: Examples) -> Tensor:
    return functional.cross_entropy(net(batch.inputs[0]), batch.targets)


def same(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], atol: float = 1e-6) -> None:
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-5, atol=atol)


# ---------------------------------------------------------------- optimisers


def test_every_optimiser_of_dense_gradients_without_a_closure_is_there():
    kinds = {
        name.lower()
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    }
    assert set(NAMES) == kinds - {"optimizer", "lbfgs", "sparseadam"}


@pytest.mark.parametrize("name", NAMES)
def test_an_optimiser_steps_as_in_plain_pytorch(name: str):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 3, bias=False))  # Muon takes matrices alone
    work = work_of(net, optimiser=name, lr=0.02)
    ours = Train()(work).state
    kind: Any = optimiser_class(name)
    same(ours, plain(net, order_of(work), cross, lambda p: kind(p, lr=0.02)))


def test_options_are_checked_with_those_beside_them():
    LocalOptions(optimiser={"sgd": {"nesterov": True}}, momentum=0.9)


def test_options_reach_the_optimiser_and_left_out_ones_are_its_own():
    local = LocalOptions(optimiser={"adamw": {"betas": [0.5, 0.9], "amsgrad": True}})
    (group,) = optimiser(local, [torch.zeros(1, requires_grad=True)], 1, 1).param_groups
    assert (tuple(group["betas"]), group["amsgrad"]) == ((0.5, 0.9), True)
    assert (group["lr"], group["weight_decay"]) == (0.001, 0.01)
    # Those from before keep their defaults: figures of older runs stay.
    assert (LocalOptions(optimiser="adam").lr, LocalOptions().lr) == (0.1, 0.1)


# ---------------------------------------------------------------- schedules


def rates(local: LocalOptions, rounds: int, steps: int) -> list[float]:
    each = [(t, s) for t in range(1, rounds + 1) for s in range(1, steps + 1)]
    return [local.lr_at(t, rounds, s, steps) for t, s in each]


@pytest.mark.parametrize("rise", [0.3, 0.5])
def test_one_cycle_is_pytorchs(rise: float):
    steps = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    theirs = torch.optim.lr_scheduler.OneCycleLR(steps, 0.2, total_steps=24, pct_start=rise)
    expected = []
    for _ in range(24):
        expected.append(theirs.get_last_lr()[0])
        steps.step()
        theirs.step()
    local = LocalOptions(lr=0.2, schedule="one_cycle", over="run", warmup=0 if rise == 0.3 else 0.5)
    assert rates(local, 4, 6) == pytest.approx(expected, rel=1e-9)
    anew = local.model_copy(update={"over": "round"})
    assert rates(anew, 2, 24) == pytest.approx(expected * 2, rel=1e-9)


def test_a_schedule_goes_through_the_run_or_through_each_round():
    run = LocalOptions(lr=1.0, schedule="linear", over="run")
    assert rates(run, 2, 2) == pytest.approx([1, 0.75, 0.5, 0.25])
    assert rates(LocalOptions(lr=1.0, schedule="linear", over="round"), 2, 2) == [1, 0.5, 1, 0.5]
    assert rates(LocalOptions(lr=1.0, schedule="linear"), 2, 2) == [1, 1, 0.5, 0.5]
    # Spans of 1 or more are rounds of the run, and steps of a round.
    falls = LocalOptions(lr=1.0, milestones=(1,), over="run")
    assert rates(falls, 3, 2) == pytest.approx([1, 1, 0.1, 0.1, 0.1, 0.1])
    warm = LocalOptions(lr=1.0, warmup=2, over="round")
    assert rates(warm, 1, 3) == [0.5, 1.0, 1.0]


@pytest.mark.parametrize("total", [1, 2, 3])
def test_a_cycle_of_few_steps_has_rates(total: int):
    each = rates(LocalOptions(lr=1.0, schedule="one_cycle", over="run"), 1, total)
    assert max(each) == 1.0 and min(each) > 0


def test_every_step_has_the_rate_of_the_schedule(net):
    work = work_of(net, round=2, schedule="cosine", over="run", epochs=2, accumulate=2)
    expected = [work.local.lr_at(2, 4, s, 4) for s in range(1, 5)]  # two steps in each pass
    seen: list[float] = []

    def noted(optimiser: torch.optim.Optimizer, *_: object) -> None:
        seen.append(optimiser.param_groups[0]["lr"])

    hook = register_optimizer_step_post_hook(noted)
    Train()(work)
    hook.remove()
    assert seen == expected and len(set(seen)) == 4


# ---------------------------------------------------------------- steps, means, passes


def test_accumulated_minibatches_are_one_larger_one():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    for batch, times in ((3, 2), (5, 2)):  # of 5 the last is of 2: sizes differ
        small = Train()(work_of(net, batch=batch, accumulate=times, epochs=2, clip=0.5))
        large = Train()(work_of(net, batch=batch * times, epochs=2, clip=0.5))
        same(small.state, large.state)
        assert small.metrics["steps"] == large.metrics["steps"]
        assert small.metrics["seen"] == large.metrics["seen"] == 24


def test_the_mean_of_the_weights_is_pytorchs_with_its_statistics(net):
    work = work_of(net, ema=0.8, epochs=2)
    ours = Train()(work).state
    mean = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.8), use_buffers=True)
    steps = torch.optim.SGD(net.train().parameters(), lr=0.1)
    for batch in order_of(work):
        steps.zero_grad()
        cross(net, batch).backward()
        steps.step()
        mean.update_parameters(net)
    theirs = {**mean.module.state_dict(), "norm.num_batches_tracked": torch.tensor(6)}
    same(ours, theirs)
    assert not torch.allclose(ours["norm.running_mean"], net.state_dict()["norm.running_mean"])


def test_a_round_ends_when_the_loss_falls_no_more(net):
    stuck: dict[str, Any] = {"lr": 1e-30, "epochs": 9, "batch": 12}  # one minibatch: equal losses
    assert Train()(work_of(net, **stuck)).metrics["steps"] == 9
    assert Train()(work_of(net, **stuck, patience=2)).metrics["steps"] == 3
    falling = Train()(work_of(net, lr=0.1, epochs=9, batch=12, patience=2))
    assert falling.metrics["steps"] == 9


# ---------------------------------------------------------------- losses and terms


@pytest.mark.parametrize("weights", [None, (0.5, 2.0, 1.0)])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_training_loss_is_pytorchs(weights, smoothing: float):
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([0, 1, 2, -100, 1, 1])
    scales = None if weights is None else torch.tensor(weights)
    expected = functional.cross_entropy(logits, targets, scales, label_smoothing=smoothing)
    loss = TrainingCrossEntropy(weights, smoothing)
    torch.testing.assert_close(loss(logits, targets), expected)
    texts = loss(logits.reshape(2, 3, 3), targets.reshape(2, 3))
    torch.testing.assert_close(texts, expected)
    assert float(loss(logits, torch.full((6,), -100))) == 0


def test_fedprox_is_an_option_of_training(net):
    """Step by step: w ← w - η (g + μ (w - w_0)); and it is the term of docs/examples."""
    work = work_of(net, proximal=0.7, epochs=2)
    ours = Train()(work)
    sent = {name: p.detach().clone() for name, p in net.named_parameters()}

    def loss(net: nn.Module, batch: Examples) -> Tensor:
        away = sum((p - sent[n]).square().sum() for n, p in net.named_parameters())
        return cross(net, batch) + 0.7 / 2 * away

    same(ours.state, plain(net, order_of(work), loss, lambda p: torch.optim.SGD(p, lr=0.1)))
    torch.manual_seed(0)
    other = Train(penalty=Towards(0.7))(work_of(Net(), epochs=2))
    same(ours.state, other.state, atol=0)


def test_programs_that_descend_by_themselves_have_fedproxs_term():
    work = work_of(nn.Sequential(nn.Linear(3, 3)), proximal=2.0, lr=0.5, epochs=1, batch=6)
    w = nn.Parameter(torch.tensor([0.0]))
    descend(work, {"w": w}, lambda examples: w.sum(), modules=[])
    # -0.5, then -0.5 - 0.5 · (1 + 2 · (-0.5)) = -0.5
    assert w.item() == pytest.approx(-0.5)


# ---------------------------------------------------------------- runs

LINEAR = """
archgraph: 1
name: linear
inputs: {image: [1, 8, 8]}
sections:
  - {name: head, steps: [flatten, {linear: {out: 10}}]}
"""
SMALL = {"name": "small", "count": 2}
LARGE = {"name": "large", "count": 1}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """An experiment of a linear model on digits."""

    def make(clients: Any = (SMALL, LARGE), **more: Any) -> Path:
        (tmp_path / "m.yaml").write_text(LINEAR)
        values = {
            "archgraph": 1,
            "name": "settings",
            "family": {"model": "m.yaml", "clients": list(clients)},
            "data": {"dataset": "digits", "limit": 90},
            "strategy": {"fedavg": {}},
            "rounds": 2,
            "local": {"lr": 0.5, "batch": 64},
            "engine": {"workers": 1},
            **more,
        }
        lines = "\n".join(f"{key}: {json.dumps(value)}" for key, value in values.items())
        (tmp_path / "e.yaml").write_text(lines)
        return tmp_path / "e.yaml"

    return make


def test_a_kind_of_client_trains_as_it_says(write):
    """By hand: one step of SGD with 0.5, and two with 0.25; the mean of both."""
    file = write([SMALL, {**LARGE, "local": {"lr": 0.25, "epochs": 2}}], rounds=1)
    run = ag.run(file, progress=False)
    setup, total = run.experiment, 0
    expected: dict[str, Tensor] = {}
    for client in setup.world.clients:
        data, state = setup.shard(client.id), dict(setup.world.state)
        lr, steps = (0.25, 2) if client.name == "large" else (0.5, 1)
        x, y = data.inputs[0].flatten(1), functional.one_hot(data.targets, 10).float()
        for _ in range(steps):
            error = (x @ state["head.linear.weight"].T + state["head.linear.bias"]).softmax(1) - y
            state["head.linear.weight"] = state["head.linear.weight"] - lr * error.T @ x / len(x)
            state["head.linear.bias"] = state["head.linear.bias"] - lr * error.mean(0)
        total += client.examples
        for name, value in state.items():
            expected[name] = expected.get(name, 0) + client.examples * value
    same(run.server.group("global"), {n: v / total for n, v in expected.items()})
    rows = {row["client"]: row["steps"] for row in run.rounds[0]["clients"]}
    assert rows == {0: 1, 1: 1, 2: 2}
    assert run.rounds[0]["macs"]["epochs"] == pytest.approx(4 / 3)


def test_an_experiment_changes_kinds_of_a_family_of_another_file(write, tmp_path):
    clients = [SMALL, {**LARGE, "local": {"lr": 0.25, "epochs": 2}}]
    setup = prepare(write(clients, local_of={"large": {"lr": 0.125}, "small": {"clip": 1.0}}))
    (tmp_path / "run.yaml").write_text(setup.text)
    large, small = setup.local_of(2), setup.local_of(0)
    assert (large.lr, large.epochs, large.clip) == (0.125, 2, None)
    assert (small.lr, small.epochs, small.clip) == (0.5, 1, 1.0)
    again = prepare(tmp_path / "run.yaml")
    assert again.by_kind == setup.by_kind and again.facts == setup.facts
    assert {"lr": 0.125, "epochs": 2}.items() <= setup.facts["family"]["large"]["local"].items()


def test_a_kind_with_another_optimiser_has_its_defaults_unless_the_run_says_them(write):
    run = LocalOptions(optimiser="adamw", batch=8)
    assert (run.lr, run.weight_decay) == (0.001, 0.01)
    sgd = run.changed(LocalChanges(optimiser="sgd"))
    assert (sgd.lr, sgd.weight_decay, sgd.batch) == (0.1, 0.0, 8)
    muon = LocalOptions(lr=0.3).changed(LocalChanges(optimiser="muon"))
    assert (muon.lr, muon.momentum, muon.weight_decay) == (0.3, 0.95, 0.1)
    setup = prepare(write([{**SMALL, "local": {"optimiser": "sgd"}}], local={"optimiser": "adamw"}))
    assert (setup.local_of(0).lr, setup.local_of(0).weight_decay) == (0.1, 0.0)


EVERYTHING = {
    "local": {
        "batch": 8,
        "epochs": 3,
        "optimiser": {"nadam": {"betas": [0.8, 0.9]}},
        "lr": 0.01,
        "schedule": "one_cycle",
        "over": "run",
        "accumulate": 2,
        "ema": 0.5,
        "patience": 2,
        "class_weights": "balanced",
        "label_smoothing": 0.1,
        "proximal": 0.01,
        "fraction": 0.8,
    },
    "server": {"optimiser": "yogi", "lr": 0.05},
    "strategy": {"fedavg": {"norm": "local"}},
}
KINDS = (SMALL, {**LARGE, "local": {"optimiser": "sgd", "lr": 0.1, "clip": 1.0, "ema": None}})


def test_workers_and_interruptions_do_not_change_a_bit(write, tmp_path):
    file = write(KINDS, **EVERYTHING, rounds=3)
    one = ag.run(file, out=tmp_path / "one", progress=False)
    ag.run(write(KINDS, **EVERYTHING, rounds=3), out=tmp_path / "cut", progress=False)
    ag.run(tmp_path / "e.yaml", out=tmp_path / "cut", resume_from=2, progress=False)
    differences, _ = run_differences(tmp_path / "one", tmp_path / "cut")
    assert not differences
    two = ag.run(write(KINDS, **EVERYTHING, rounds=3, engine={"workers": 2}), progress=False)
    for name, value in one.server.tensors.items():
        assert torch.equal(value, two.server.tensors[name]), name


def test_what_a_run_folder_says_is_the_same_experiment(write, tmp_path):
    file = write(KINDS, **EVERYTHING)
    ag.run(file, out=tmp_path / "run", progress=False)
    first, again = prepare(file), prepare(tmp_path / "run" / "run.yaml")
    assert again.by_kind == first.by_kind and again.local == first.local
    assert again.by_kind["large"].ema is None
    assert again.facts == first.facts
    # And another one where a kind trains otherwise.
    other = write((SMALL, {**LARGE, "local": {"lr": 0.2}}), **EVERYTHING)
    assert prepare(other).facts != first.facts


def test_settings_that_are_not_asked_for_are_not_written(write):
    """Else runs of before would not be seeds of the same experiment."""
    facts = prepare(write()).facts
    assert sorted(facts["local"]) == [
        *("batch", "decay", "epochs", "fraction", "lr", "milestones", "momentum", "optimiser"),
        *("schedule", "warmup", "weight_decay"),
    ]
    assert "server" not in facts and "local" not in facts["family"]["small"]


def test_weights_are_those_of_the_classes_that_a_kind_has(write):
    weights = [float(n + 1) for n in range(10)]
    clients = [{**SMALL, "classes": [2, 3, 7]}, LARGE]
    setup = prepare(write(clients, local={"class_weights": weights}, strategy={"fedrolex": {}}))
    graph, state = setup.world.graph, setup.world.state

    def loss(client: int) -> Any:
        return setup.work(client, 1, graph, state, seeded(0, "x"), keep={}).learning.loss

    assert loss(0).weights == (3.0, 4.0, 8.0) and loss(2).weights == tuple(weights)
    assert setup.world.learning.loss is cross_entropy  # of tests


def test_balanced_weights_are_of_each_client(write):
    partition = {"partition": {"scheme": "dirichlet", "alpha": 0.3}}
    file = write(local={"class_weights": "balanced"}, data={"dataset": "digits", **partition})
    setup = prepare(file)
    for client in setup.world.clients:
        graph, state = setup.world.graph, setup.world.state
        work = setup.work(client.id, 1, graph, state, seeded(0, "x"), keep={})
        loss: Any = work.learning.loss
        pairs = zip(loss.weights, client.histogram, strict=True)
        products = [round(w * n, 6) for w, n in pairs if n]
        assert len(set(products)) == 1  # every class counts alike
        assert sum(products) == pytest.approx(client.examples)


# ---------------------------------------------------------------- mistakes


class Wrong(NamedTuple):
    """A mistake, where it is made, and what is answered."""

    about: str
    more: dict[str, Any]
    said: str


def local(**options: Any) -> dict[str, Any]:
    return {"local": options}


def kind(**options: Any) -> dict[str, Any]:
    return {"clients": [SMALL, {**LARGE, "local": options}]}


MISTAKES = (
    Wrong(
        "a misspelt optimiser",
        local(optimiser="adamv"),
        "e.yaml:7: local.optimiser: is an unknown optimiser; found 'adamv'; expected one of"
        " sgd, adam, adamw, adamax, nadam, radam, rmsprop, rprop, asgd, adagrad, adadelta, "
        "adafactor, muon; did you mean 'adam'?",
    ),
    Wrong(
        "capitals",
        local(optimiser="AdamW"),
        "e.yaml:7: local.optimiser: is an unknown optimiser; found 'AdamW'; expected one of"
        " sgd, adam, adamw, adamax, nadam, radam, rmsprop, rprop, asgd, adagrad, adadelta, "
        "adafactor, muon; did you mean 'adamw'?",
    ),
    Wrong(
        "a closure",
        local(optimiser="lbfgs"),
        "e.yaml:7: local.optimiser: is an unknown optimiser; found 'lbfgs'; expected one of"
        " sgd, adam, adamw, adamax, nadam, radam, rmsprop, rprop, asgd, adagrad, adadelta, "
        "adafactor, muon; L-BFGS evaluates the loss several times in a step",
    ),
    Wrong(
        "sparse gradients",
        local(optimiser="sparseadam"),
        "e.yaml:7: local.optimiser: is an unknown optimiser; found 'sparseadam'; expected "
        "one of sgd, adam, adamw, adamax, nadam, radam, rmsprop, rprop, asgd, adagrad, "
        "adadelta, adafactor, muon; SparseAdam takes sparse gradients, which these models "
        "do not have",
    ),
    Wrong(
        "an unknown option",
        local(optimiser={"adamw": {"beta": 0.9}}),
        "e.yaml:7: local.optimiser.adamw.beta: is not an option of adamw; found 'beta'; "
        "expected one of betas, eps, amsgrad; did you mean 'betas'?",
    ),
    Wrong(
        "an option of `local` inside",
        local(optimiser={"adamw": {"lr": 0.1}}),
        "e.yaml:7: local.optimiser.adamw.lr: stands in `local` itself; found 0.1; write "
        "`lr` beside `optimiser`",
    ),
    Wrong(
        "an option beside",
        local(optimiser="adamw", betas=[0.9, 0.99]),
        "write it behind the optimiser's name: optimiser: {NAME: {betas: …}}",
    ),
    Wrong(
        "one beta",
        local(optimiser={"adam": {"betas": 0.9}}),
        "e.yaml:7: local.optimiser.adam.betas: has a wrong value; found 0.9; expected a "
        "value such as [0.9, 0.999]",
    ),
    Wrong(
        "a beta out of range",
        local(optimiser={"adam": {"betas": [0.9, 1.5]}}),
        "e.yaml:7: local.optimiser.adam: is refused by PyTorch: Invalid beta parameter at "
        "index 1: 1.5",
    ),
    Wrong(
        "two optimisers",
        local(optimiser={"adam": {}, "sgd": {}}),
        "e.yaml:7: local.optimiser: is not one optimiser; found adam, sgd; expected a name,"
        " or a name with options, e.g. {adamw: {betas: [0.9, 0.99]}}",
    ),
    Wrong(
        "nesterov without momentum",
        local(optimiser={"sgd": {"nesterov": True}}),
        "e.yaml:7: local.optimiser.sgd: is refused by PyTorch: Nesterov momentum requires a"
        " momentum and zero dampening",
    ),
    Wrong(
        "a decay below 0 beside options",
        local(optimiser={"adamw": {"eps": -1.0}}, weight_decay=0.1),
        "e.yaml:7: local.optimiser.adamw: is refused by PyTorch: Invalid epsilon value: -1.0",
    ),
    Wrong(
        "momentum of adam",
        local(optimiser="adam", momentum=0.9),
        "e.yaml:7: local.momentum: is not an option of adam; found 0.9; remove it, or set "
        "it to 0 (a kind of client has the run's keys, too)",
    ),
    Wrong(
        "decay of rprop",
        local(optimiser="rprop", weight_decay=0.1),
        "e.yaml:7: local.weight_decay: is not an option of rprop; found 0.1; remove it, or "
        "set it to 0 (a kind of client has the run's keys, too)",
    ),
    Wrong(
        "muon on biases",
        local(optimiser="muon"),
        "e.yaml:7: local.optimiser: muon cannot train this model: Muon only supports 2D "
        "parameters whereas we found a parameter with size: torch.Size([10]); found linear;"
        " choose another optimiser, or freeze what it cannot train (`train_only`)",
    ),
    Wrong("American spelling", local(optimizer="adamw"), "it is 'optimiser' here"),
    Wrong(
        "over without a schedule",
        local(over="round"),
        "e.yaml:7: local.over: has no schedule to go through; found round; write a "
        "schedule, milestones or warmup, or remove it",
    ),
    Wrong(
        "milestones of one cycle",
        local(schedule="one_cycle", milestones=[2]),
        "e.yaml:7: local.milestones: are ignored by schedule: one_cycle; leave them out, or"
        " write schedule: steps",
    ),
    Wrong(
        "an unknown schedule",
        local(schedule="onecycle"),
        "e.yaml:7: local.schedule: has an unknown value; found 'onecycle'; expected one of "
        "steps, cosine, linear, one_cycle; did you mean 'one_cycle'?",
    ),
    Wrong(
        "patience of one pass",
        local(patience=1),
        "e.yaml:7: local.patience: ends no round early; found 1; expected less than "
        "`epochs` (1); raise `epochs`, or set it to null (`validation: {patience: …}` ends a "
        "run)",
    ),
    Wrong(
        "accumulate 1",
        local(accumulate=1),
        "e.yaml:7: local.accumulate: has a wrong value; found 1; expected 2 or more",
    ),
    Wrong(
        "ema of 1",
        local(ema=1.0),
        "e.yaml:7: local.ema: has a wrong value; found 1.0; expected less than 1",
    ),
    Wrong(
        "too few weights",
        local(class_weights=[1.0, 2.0]),
        "e.yaml:7: local.class_weights: must have a weight for each class, and one above 0;"
        " found 2 weights; expected 10 weights, in the order of the classes (digits)",
    ),
    Wrong(
        "weights of 0",
        local(class_weights=[0.0] * 10),
        "e.yaml:7: local.class_weights: must have a weight for each class, and one above 0;"
        " found zeros alone; expected 10 weights, in the order of the classes (digits)",
    ),
    Wrong(
        "a kind's weights",
        kind(class_weights=[1.0, 2.0]),
        "e.yaml:3: clients[1].local.class_weights: must have a weight for each class, and "
        "one above 0; found 2 weights; expected 10 weights, in the order of the classes "
        "(digits)",
    ),
    Wrong("a kind's misspelt key", kind(learning_rate=0.1), "it is 'lr' here"),
    Wrong(
        "a kind's optimiser that does not read the run's momentum",
        {**local(momentum=0.9), **kind(optimiser="adam", lr=0.01)},
        "e.yaml:3: clients[1].local.momentum: is not an option of adam; found 0.9; remove "
        "it, or set it to 0 (a kind of client has the run's keys, too)",
    ),
    Wrong(
        "smoothing of an objective of one's own",
        {
            **local(label_smoothing=0.1),
            "task": {
                "kind": "classification",
                "objective": "python:torch.nn.functional:cross_entropy",
            },
        },
        "e.yaml:7: local.label_smoothing: changes the task's cross-entropy, which an "
        "objective of yours replaces; remove it, and let the objective do so",
    ),
    Wrong(
        "a kind that there is not",
        {"local_of": {"lage": {"lr": 0.1}}},
        "e.yaml:9: local_of.lage: is not a kind of client; found 'lage'; expected one of small, "
        "large; did you mean 'large'?",
    ),
    Wrong(
        "a kind's weights in the experiment",
        {"local_of": {"large": {"class_weights": [1.0, 2.0]}}},
        "e.yaml:9: local_of.large.class_weights: must have a weight for each class",
    ),
    Wrong(
        "an unknown server optimiser",
        {"server": "adamw"},
        "e.yaml:9: server: has an unknown value; found 'adamw'; expected one of momentum, "
        "adam, yogi, adagrad; did you mean 'adam'?",
    ),
    Wrong(
        "momentum of FedAdam",
        {"server": {"optimiser": "adam", "momentum": 0.9}},
        "e.yaml:9: server.momentum: is not an option of adam; found 0.9; expected one of "
        "lr, beta1, tau, bias_correction, beta2",
    ),
    Wrong(
        "betas",
        {"server": {"optimiser": "adam", "betas": [0.9, 0.99]}},
        "e.yaml:9: server.betas: is an unknown key; found 'betas'; expected one of "
        "optimiser, lr, momentum, beta1, beta2, tau, bias_correction; did you mean 'beta2'?",
    ),
    Wrong(
        "a correction of momentum",
        {"server": {"optimiser": "momentum", "bias_correction": "flower"}},
        "e.yaml:9: server.bias_correction: is not an option of momentum; found flower; "
        "expected one of lr, momentum",
    ),
    Wrong(
        "a server without an optimiser",
        {"server": {"lr": 0.1}},
        "e.yaml:9: server: lacks the key 'optimiser'",
    ),
    Wrong(
        "a server's optimiser where nothing is averaged",
        {"server": "adam", "strategy": {"standalone": {}}},
        "e.yaml:5: strategy.standalone: has no plain mean of the clients that an optimiser "
        "could follow; found `server`, with a strategy that merges otherwise, or not at "
        "all; remove it, or choose a strategy that averages (fedavg, heterofl, fedrolex, …)",
    ),
    Wrong(
        "a server's optimiser where it is done otherwise",
        {"server": "adam", "strategy": {"fiarse": {}}},
        "e.yaml:5: strategy.fiarse: has no plain mean of the clients that an optimiser "
        "could follow; found `server`, with a strategy that merges otherwise, or not at "
        "all; remove it, or choose a strategy that averages (fedavg, heterofl, fedrolex, …)",
    ),
)


@pytest.mark.parametrize("wrong", MISTAKES, ids=lambda wrong: wrong.about)
def test_mistakes_are_answered(wrong: Wrong, write):
    file = write(**wrong.more)
    with pytest.raises(ArchGraphError) as caught:
        prepare(file, python=True)
    said = re.sub(r"^.*?/(?=e\.yaml)", "", str(caught.value))
    assert wrong.said in said
