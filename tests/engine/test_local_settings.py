"""How clients train: optimisers, schedules, losses, terms; what kinds of client have instead."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_post_hook

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
from archgraph.federation.learning import CLASSIFICATION, TASKS
from archgraph.federation.training import optimiser
from archgraph.federation.training_loss import trained_task
from archgraph.language.named import _classes
from tests.runs import same_bits

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


def options(**said: Any) -> LocalOptions:
    """Options as a file says them."""
    return LocalOptions(**said)


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
    torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=atol)


# ---------------------------------------------------------------- optimisers


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", sorted(set(_classes("optimiser")) - {"LBFGS", "SparseAdam"}))
def test_an_optimiser_steps_as_in_plain_pytorch(name: str):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 3, bias=False))  # Muon takes matrices alone
    work = work_of(net, lr=None, optimiser={name: {"lr": 0.02}})
    ours = Train()(work).state
    kind: Any = getattr(torch.optim, name)
    same(ours, plain(net, order_of(work), cross, lambda p: kind(p, lr=0.02)))


def test_arguments_reach_the_optimiser_and_left_out_ones_are_its_own():
    local = options(optimiser={"AdamW": {"betas": [0.5, 0.9], "amsgrad": True}})
    (group,) = optimiser(local, [torch.zeros(1, requires_grad=True)], 1, 1).param_groups
    assert (tuple(group["betas"]), group["amsgrad"]) == ((0.5, 0.9), True)
    assert (group["lr"], group["weight_decay"]) == (0.001, 0.01)
    assert (
        options(lr=0.1, momentum=0.9).chosen
        == options(optimiser={"SGD": {"lr": 0.1, "momentum": 0.9}}).chosen
    )


# ---------------------------------------------------------------- schedules


def rates(local: LocalOptions, rounds: int, steps: int) -> list[float]:
    each = [(t, s) for t in range(1, rounds + 1) for s in range(1, steps + 1)]
    return [local.settings_at(t, rounds, s, steps)["lr"] for t, s in each]


SCHEDULES: Mapping[str, dict[str, Any]] = {
    "StepLR": {"step_size": 2},
    "MultiStepLR": {"milestones": [1, 3], "gamma": 0.5},
    "ConstantLR": {"total_iters": 2},
    "LinearLR": {"total_iters": 3},
    "ExponentialLR": {"gamma": 0.9},
    "PolynomialLR": {"total_iters": 4, "power": 2.0},
    "CosineAnnealingLR": {"T_max": 6, "eta_min": 0.01},
    "CosineAnnealingWarmRestarts": {"T_0": 2, "T_mult": 2},
    "CyclicLR": {"base_lr": 0.1, "max_lr": 0.4, "step_size_up": 2},
    "OneCycleLR": {"max_lr": 0.2, "total_steps": 6},
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_is_pytorchs_over_rounds_and_steps(name: str):
    """Rates and momenta, of a run of six rounds, of six steps, and of each round anew."""
    steps = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1, momentum=0.9)
    theirs = getattr(torch.optim.lr_scheduler, name)(steps, **SCHEDULES[name])
    expected = []
    for _ in range(6):
        group = steps.param_groups[0]
        expected.append({"lr": group["lr"], "momentum": group["momentum"]})
        steps.step()
        theirs.step()
    local = options(lr=0.1, momentum=0.9, schedule={name: SCHEDULES[name]})
    assert [local.settings_at(t, 6, 1, 9) for t in range(1, 7)] == expected
    whole, anew = (local.model_copy(update={"over": over}) for over in ("run", "round"))
    places = [(t, s) for t in (1, 2) for s in (1, 2, 3)]
    assert [whole.settings_at(t, 2, s, 3) for t, s in places] == expected
    assert [anew.settings_at(t, 2, s, 3) for t, s in places] == expected[:3] * 2


def test_schedules_follow_one_another():
    warm = {"LinearLR": {"start_factor": 0.5, "total_iters": 1}}
    down = {"CosineAnnealingLR": {"T_max": "$rounds - 2"}}
    sequence = {"SequentialLR": {"schedulers": [warm, down], "milestones": [2]}}
    local = options(lr=1.0, schedule=sequence)
    expected = [0.5, 1.0, *(1 / 2 * (1 + math.cos(math.pi * t / 4)) for t in range(4))]
    assert rates(local, 6, 1) == pytest.approx(expected)


@pytest.mark.parametrize("total", [1, 2, 3])
def test_parts_of_few_rounds_hold_one_at_least(total: int):
    """A quarter of three rounds is none: the first round is trained at the rate all the same."""
    falls = {"MultiStepLR": {"milestones": ["$rounds // 4", "$rounds * 3 // 4"]}}
    each = rates(options(lr=1.0, schedule=falls), total, 1)
    assert each[0] == 1.0 and all(rate < 1 for rate in each[1:])
    cosine = {"CosineAnnealingLR": {"T_max": "$rounds // 2"}}
    assert rates(options(lr=1.0, schedule=cosine), total, 1)[0] == 1.0


@pytest.mark.parametrize("total", [2, 3])
def test_a_cycle_of_few_steps_is_pytorchs(total: int):
    steps = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    facts: Any = {"max_lr": 1.0, "cycle_momentum": False}
    theirs = torch.optim.lr_scheduler.OneCycleLR(steps, total_steps=total, **facts)
    expected = []
    for left in reversed(range(total)):
        expected.append(theirs.get_last_lr()[0])
        steps.step()
        if left:
            theirs.step()
    cycle = {"OneCycleLR": {"total_steps": "$steps", **facts}}
    local = options(lr=1.0, schedule=cycle, over="round")
    assert rates(local, 1, total) == expected


COSINE = {"CosineAnnealingLR": {"T_max": "$rounds * $steps"}}


def test_every_step_has_the_rate_of_the_schedule(net):
    work = work_of(net, round=2, schedule=COSINE, over="run", epochs=2, accumulate=2)
    expected = [
        work.local.settings_at(2, 4, s, 4)["lr"] for s in range(1, 5)
    ]  # two steps in each pass
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


# ---------------------------------------------------------------- losses and terms


@pytest.mark.parametrize("weights", [None, (0.5, 2.0, 1.0)])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_training_loss_is_pytorchs(weights, smoothing: float):
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([0, 1, 2, -100, 1, 1])
    scales = None if weights is None else torch.tensor(weights)
    expected = functional.cross_entropy(logits, targets, scales, label_smoothing=smoothing)
    args = {"label_smoothing": smoothing, **({} if weights is None else {"weight": weights})}
    trained = options(loss={"CrossEntropyLoss": args})
    learning = trained_task(CLASSIFICATION, trained)
    torch.testing.assert_close(learning.loss(logits, targets), expected)
    texts = learning.loss(logits.reshape(2, 3, 3), targets.reshape(2, 3))
    torch.testing.assert_close(texts, expected)
    assert float(learning.loss(logits, torch.full((6,), -100))) == 0
    assert learning.class_weights == weights


@pytest.mark.parametrize(
    ("kind", "loss"),
    [
        ("classification", {"MultiMarginLoss": {"margin": 0.5}}),
        ("classification", {"MultiMarginLoss": {"weight": [1.0, 3.0, 0.5]}}),
        ("regression", {"HuberLoss": {"delta": 0.3}}),
        ("regression", "L1Loss"),
        ("multilabel", {"MultiLabelSoftMarginLoss": {"weight": [1.0, 2.0, 0.5]}}),
    ],
)
def test_another_loss_is_pytorchs(kind: str, loss: Any):
    draw = torch.Generator().manual_seed(0)
    said, numbers = (torch.randn(6, 3, generator=draw) for _ in range(2))
    targets = {"classification": Y[:6], "regression": numbers, "multilabel": numbers > 0}[kind]
    ((name, args),) = loss.items() if isinstance(loss, dict) else [(loss, {})]
    args = {k: torch.tensor(v) if k == "weight" else v for k, v in args.items()}
    theirs = getattr(nn, name)(**args)
    expected = theirs(said, targets if kind == "classification" else targets.float())
    ours = trained_task(TASKS[kind], options(loss=loss)).loss(said, targets)
    torch.testing.assert_close(ours, expected)


def test_weights_of_classes_are_not_rounded_to_16_bits():
    weights, draw = [1.01, 3.17, 0.237], torch.Generator().manual_seed(0)
    logits = torch.randn(512, 3, generator=draw).bfloat16()
    targets = torch.randint(3, (512,), generator=draw)
    expected = functional.cross_entropy(logits.float(), targets, torch.tensor(weights))
    named = options(loss={"CrossEntropyLoss": {"weight": weights}})
    with torch.autocast("cpu", torch.bfloat16):
        ours = trained_task(CLASSIFICATION, named).loss(logits, targets)
    torch.testing.assert_close(ours, expected)


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
    descend(work, {"w": w}, lambda examples: w.sum())
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


def test_a_kind_with_another_optimiser_has_nothing_of_the_runs(write):
    run = options(lr=0.3, momentum=0.9, batch=8)
    adam = run.changed(options(optimiser={"AdamW": {"lr": 0.01}}))
    assert adam.chosen.plain() == {"AdamW": {"lr": 0.01}} and adam.batch == 8
    slow = run.changed(options(lr=0.1))
    assert slow.chosen.plain() == {"SGD": {"lr": 0.1, "momentum": 0.9}}
    setup = prepare(
        write([{**SMALL, "local": {"optimiser": "Adam"}}], local={"lr": 0.1, "momentum": 0.9})
    )
    assert setup.local_of(0).chosen.plain() == {"Adam": {}}


EVERYTHING = {
    "local": {
        "batch": 8,
        "epochs": 3,
        "optimiser": {"NAdam": {"betas": [0.8, 0.9], "lr": 0.01}},
        "schedule": {
            "OneCycleLR": {"max_lr": 0.01, "total_steps": "$rounds * $steps", "pct_start": 0.4}
        },
        "over": "run",
        "accumulate": 2,
        "loss": {"CrossEntropyLoss": {"label_smoothing": 0.1, "weight": [*range(1, 11)]}},
        "proximal": 0.01,
        "fraction": 0.8,
    },
    "server": {"optimiser": "yogi", "lr": 0.05},
    "strategy": {"fedavg": {"norm": "local"}},
}
SGD = {"SGD": {"lr": 0.1, "momentum": 0.5}}
KINDS = (SMALL, {**LARGE, "local": {"optimiser": SGD, "clip": 1.0, "accumulate": None}})


def test_workers_and_interruptions_do_not_change_a_bit(write, tmp_path):
    file = write(KINDS, **EVERYTHING, rounds=3)
    one = ag.run(file, out=tmp_path / "one", progress=False)
    file = write(KINDS, **EVERYTHING, rounds=3, engine={"workers": 2})
    two = ag.run(file, out=tmp_path / "cut", progress=False)
    torch.testing.assert_close(two.server.tensors, one.server.tensors, rtol=0, atol=0)
    ag.run(
        write(KINDS, **EVERYTHING, rounds=3), out=tmp_path / "cut", resume_from=2, progress=False
    )
    same_bits(tmp_path / "one", tmp_path / "cut")


def test_what_a_run_folder_says_is_the_same_experiment(write, tmp_path):
    file = write(KINDS, **EVERYTHING)
    ag.run(file, out=tmp_path / "run", progress=False)
    first, again = prepare(file), prepare(tmp_path / "run" / "run.yaml")
    assert again.by_kind == first.by_kind and again.local == first.local
    assert again.by_kind["large"].accumulate is None
    assert again.facts == first.facts
    # And another one where a kind trains otherwise.
    other = write((SMALL, {**LARGE, "local": {"optimiser": {"SGD": {"lr": 0.2}}}}), **EVERYTHING)
    assert prepare(other).facts != first.facts


def test_settings_that_are_not_asked_for_are_not_written(write):
    """Else runs of before would not be seeds of the same experiment."""
    facts = prepare(write()).facts
    assert sorted(facts["local"]) == ["batch", "epochs", "fraction", "lr"]
    assert "server" not in facts and "local" not in facts["family"]["small"]


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


CYCLE = {"max_lr": 0.1, "cycle_momentum": False}
MISTAKES = (
    Wrong(
        "a misspelt optimiser",
        local(optimiser="AdamV"),
        "e.yaml:7: local.optimiser: is an unknown optimiser; found 'AdamV'; expected one of ASGD, "
        "Adadelta, Adafactor, Adagrad, Adam, AdamW, Adamax, Muon, NAdam, RAdam, RMSprop, Rprop, "
        "SGD; did you mean Adam?",
    ),
    Wrong("an earlier name", local(optimiser="sgd"), "found 'sgd'; expected one of ASGD, "),
    Wrong(
        "a closure",
        local(optimiser="LBFGS"),
        "e.yaml:7: local.optimiser: cannot be the optimiser; found 'LBFGS'; it evaluates the loss "
        "several times in a step",
    ),
    Wrong(
        "a class of another module",
        local(optimiser={"os.system": {"command": "true"}}),
        "e.yaml:7: local.optimiser: is outside the modules that may be named here; found "
        "'os.system'; expected one of torch.optim",
    ),
    Wrong(
        "an unknown argument",
        local(optimiser={"AdamW": {"beta": [0.9, 0.99]}}),
        "e.yaml:7: local.optimiser.AdamW.beta: is an unknown key; found 'beta'; expected one of "
        "lr, betas, eps, weight_decay, amsgrad; did you mean 'betas'?",
    ),
    Wrong(
        "an argument beside",
        local(optimiser="AdamW", betas=[0.9, 0.99]),
        "write it below the optimiser's name: optimiser: {NAME: {betas: …}}",
    ),
    Wrong(
        "one beta",
        local(optimiser={"Adam": {"betas": 0.9}}),
        "e.yaml:7: local.optimiser.Adam.betas: has a wrong value; found 0.9; expected a list",
    ),
    Wrong(
        "a beta out of range",
        local(optimiser={"Adam": {"betas": [0.9, 1.5]}}),
        "e.yaml:7: local.optimiser: PyTorch rejects Adam: Invalid beta parameter at index 1: 1.5",
    ),
    Wrong(
        "two optimisers",
        local(optimiser={"Adam": {}, "SGD": {}}),
        "e.yaml:7: local.optimiser: must name exactly one optimiser; found Adam, SGD; expected "
        "a class, or a class with its arguments, e.g. {NAME: {key: value}}",
    ),
    Wrong(
        "momentum of Adam",
        local(optimiser="Adam", momentum=0.9),
        "e.yaml:7: local.momentum: cannot be combined with `optimiser`; found 0.9; write "
        "optimiser: {Adam: {momentum: …}}, or null here",
    ),
    Wrong(
        "Muon on biases",
        local(optimiser="Muon"),
        "e.yaml:7: local.optimiser: PyTorch rejects Muon: Muon only supports 2D "
        "parameters whereas we found a parameter with size: torch.Size([10]); found linear;"
        " choose another optimiser, or freeze the parameters that it cannot train (`train_only`)",
    ),
    Wrong("American spelling", local(optimizer="AdamW"), "it is 'optimiser' here"),
    Wrong(
        "over without a schedule",
        local(over="round"),
        "e.yaml:7: local.over: needs a schedule; found round; set `schedule`, or remove `over`",
    ),
    Wrong(
        "keys of earlier versions",
        local(milestones=[2]),
        "write schedule: {MultiStepLR: {milestones: [",
    ),
    Wrong(
        "an earlier schedule",
        local(schedule="one_cycle"),
        "e.yaml:7: local.schedule: is an unknown schedule; found 'one_cycle'; expected one of "
        "ChainedScheduler, ConstantLR, CosineAnnealingLR, CosineAnnealingWarmRestarts, CyclicLR, "
        "ExponentialLR, LinearLR, MultiStepLR, OneCycleLR, PolynomialLR, SequentialLR, StepLR; "
        "did you mean OneCycleLR?",
    ),
    Wrong(
        "a schedule without its argument",
        local(schedule="CosineAnnealingLR"),
        "e.yaml:7: local.schedule: lacks the key 'T_max'",
    ),
    Wrong(
        "a misspelt number of rounds",
        local(schedule={"MultiStepLR": {"milestones": ["$round // 2"]}}),
        "e.yaml:7: local.schedule.MultiStepLR.milestones[0]: names an unknown parameter; found "
        "'$round'; expected one of $rounds, $steps; did you mean '$rounds'?",
    ),
    Wrong(
        "a schedule of fewer rounds",
        {"rounds": 3, **local(schedule={"OneCycleLR": {**CYCLE, "total_steps": 1}})},
        "e.yaml:7: local.schedule: cannot set the learning rate; found OneCycleLR: ",
    ),
    Wrong(
        "a schedule that reads figures",
        local(schedule="ReduceLROnPlateau"),
        "it depends on a metric, but schedules are computed before the run",
    ),
    Wrong(
        "a function",
        local(schedule={"LambdaLR": {"lr_lambda": "abs"}}),
        "e.yaml:7: local.schedule: cannot be the schedule: its argument `lr_lambda` is a function",
    ),
    Wrong(
        "accumulate 1",
        local(accumulate=1),
        "e.yaml:7: local.accumulate: has a wrong value; found 1; expected 2 or more",
    ),
    Wrong(
        "too few weights",
        local(lr=0.1, loss={"CrossEntropyLoss": {"weight": [1.0, 2.0]}}),
        "e.yaml:7: local.loss: CrossEntropyLoss does not accept outputs and targets of the task: "
        "weight tensor should be defined either for all 10 classes or no classes but got weight "
        "tensor of shape: [2]; found classification (digits)",
    ),
    Wrong(
        "a kind's weights",
        kind(loss={"CrossEntropyLoss": {"weight": [1.0, 2.0]}}),
        "e.yaml:3: clients[1].local.loss: CrossEntropyLoss does not take",
    ),
    Wrong(
        "a loss of numbers",
        local(lr=0.1, loss="MSELoss"),
        "e.yaml:7: local.loss: MSELoss does not accept outputs and targets of the task",
    ),
    Wrong(
        "a loss of three tensors",
        local(lr=0.1, loss="TripletMarginLoss"),
        "e.yaml:7: local.loss: TripletMarginLoss does not accept outputs and targets of the task",
    ),
    Wrong("a kind's misspelt key", kind(learning_rate=0.1), "it is 'lr' here"),
    Wrong(
        "a kind's rate beside the run's optimiser",
        {**local(optimiser="Adam"), **kind(lr=0.01)},
        "e.yaml:3: clients[1].local.lr: cannot be combined with `optimiser`; found 0.01; write "
        "optimiser: {Adam: {lr: …}}, or null here",
    ),
    Wrong(
        "a loss beside an objective of one's own",
        {
            **local(lr=0.1, loss="CrossEntropyLoss"),
            "task": {
                "kind": "classification",
                "objective": "python:torch.nn.functional:cross_entropy",
            },
        },
        "e.yaml:7: local.loss: would replace the objective of `task`; found CrossEntropyLoss; "
        "remove `local.loss`, or the objective",
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
        "e.yaml:5: strategy.standalone: does not average the clients' weights, so a server "
        "optimiser cannot be used; found `server`; remove `server`, or choose a strategy that "
        "averages (fedavg, heterofl, …)",
    ),
    Wrong(
        "a server's optimiser where it is done otherwise",
        {"server": "adam", "strategy": {"fiarse": {}}},
        "e.yaml:5: strategy.fiarse: does not average the clients' weights, so a server "
        "optimiser cannot be used; found `server`; remove `server`, or choose a strategy that "
        "averages (fedavg, heterofl, …)",
    ),
)


@pytest.mark.sample(3)
@pytest.mark.parametrize("wrong", MISTAKES, ids=lambda wrong: wrong.about)
def test_mistakes_are_answered(wrong: Wrong, write):
    file = write(**wrong.more)
    with pytest.raises(ArchGraphError) as caught:
        prepare(file, python=True)
    said = re.sub(r"^.*?/(?=e\.yaml)", "", str(caught.value))
    assert wrong.said in said
