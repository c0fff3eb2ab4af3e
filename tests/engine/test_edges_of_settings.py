"""Settings at their edges, against plain loops and formulas from the words of their help."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import archgraph as ag
from archgraph.engine.world import prepare
from archgraph.language.data import ClassesSpec
from archgraph.reports.run_tables import traffic_sheet
from archgraph.reports.runs import read_run

GENERATOR = torch.Generator().manual_seed(0)
ROWS = torch.randn(48, 4, generator=GENERATOR)
VALUES = ROWS[:, 0] - 2 * ROWS[:, 1] + 3
CLASSES = torch.arange(48) % 6
LR = 0.05


def mlp(out: int, *, norm: bool = False) -> dict[str, Any]:
    steps = [{"linear": 5}, *(["batch_norm"] if norm else []), "tanh", {"linear": out}]
    return {
        "archgraph": 1,
        "name": "mlp",
        "inputs": {"row": [4]},
        "sections": [{"name": "net", "steps": steps}],
    }


def spec(out: int = 1, two: Any = None, **keys: Any) -> dict[str, Any]:
    """Return an experiment of two clients that take all of their examples in a step."""
    family = {"model": mlp(out), "clients": [{"name": "one"}, {"name": "two", "local": two}]}
    return {
        "name": "edges",
        "family": family,
        "strategy": {"fedavg": {}},
        "rounds": 3,
        **keys,
        "local": {"batch": 100, "lr": LR, **keys.get("local", {})},
    }


def run(targets: torch.Tensor, spec: Mapping[str, Any], **more: Any) -> Any:
    task = "regression" if targets.is_floating_point() else "classification"
    data = (ROWS, targets), (ROWS, targets)
    return ag.run({"task": task, **spec}, data=data, progress=False, **more)


def entries(state: Mapping[str, torch.Tensor]) -> tuple[nn.Sequential, dict[str, nn.Parameter]]:
    """Return the plain network of a state, and its parameters by name."""
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
    names = [name for name in state if name.endswith(("weight", "bias"))]
    for parameter, name in zip(net.parameters(), names, strict=True):
        parameter.data = state[name].clone()
    return net, dict(zip(names, net.parameters(), strict=True))


def descended(
    state: Mapping[str, torch.Tensor],
    rows: np.ndarray,
    rates: list[float],
    trained: Callable[[str], bool] = lambda name: True,
) -> dict[str, torch.Tensor]:
    """Train with plain SGD on all rows in each step; return all parameters."""
    net, parameters = entries(state)
    for rate in rates:
        net.zero_grad()
        functional.mse_loss(net(ROWS[rows])[:, 0], VALUES[rows]).backward()
        for name, parameter in parameters.items():
            if trained(name):
                assert parameter.grad is not None
                parameter.data -= rate * parameter.grad
    return {name: parameter.detach().clone() for name, parameter in parameters.items()}


def error(state: Mapping[str, torch.Tensor]) -> float:
    with torch.no_grad():
        return float(functional.mse_loss(entries(state)[0](ROWS)[:, 0], VALUES))


COSINE = {"CosineAnnealingLR": {"T_max": "$rounds"}}
CYCLE = {"CyclicLR": {"base_lr": LR / 9, "max_lr": LR, "cycle_momentum": False}}
LINE = {"LinearLR": {"start_factor": 1.0, "end_factor": 0.0, "total_iters": "$steps"}}


@pytest.mark.sample(4)
@pytest.mark.parametrize("strategy", [{"fedavg": {}}, {"fedbabu": {"tune_epochs": 4}}])
@pytest.mark.parametrize(
    "local",
    [
        {},
        {"schedule": COSINE},
        {"schedule": LINE, "over": "round"},
        {"schedule": CYCLE, "over": "run"},
        {"schedule": {"MultiStepLR": {"milestones": [1, "$rounds // 2"], "gamma": 0.01}}},
        {"schedule": {"MultiStepLR": {"milestones": [1]}}, "over": "round"},
        {"proximal": 50.0},
        {"epochs": 2, "fraction": 0.5},
    ],
    ids=["none", "cosine", "round", "cycle", "falls", "steps", "term", "fraction"],
)
def test_tuning_is_at_the_rate_of_local(local, strategy):
    evaluate: dict[str, Any] = {} if "fedbabu" in strategy else {"evaluate": {"fine_tune": 4}}
    other = {"lr": LR / 5}
    found = run(VALUES, spec(local=local, two=other, strategy=strategy, **evaluate))
    state = found.server.group("global")
    clients = zip((LR, LR / 5), found.experiment.shares, strict=True)
    tuned = [error(descended(state, share, [rate] * 4)) for rate, share in clients]
    assert all(after < error(state) for after in tuned)
    assert found.evaluation["local"]["mse"] == pytest.approx(sum(tuned) / 2, rel=1e-4)


def test_fedrep_trains_in_two_parts_and_each_has_the_schedule():
    local = {"epochs": 2, "schedule": LINE, "over": "round"}
    found = run(VALUES, spec(strategy={"fedrep": {"head_epochs": 3}}, rounds=1, local=local))
    start = dict(found.experiment.world.state)
    bodies = []
    for share in found.experiment.shares:

        def head(name: str) -> bool:
            return "linear2" in name

        assert sum(map(head, start)) == 2
        after = descended(start, share, [LR, LR * 2 / 3, LR / 3], head)
        after = descended(after, share, [LR, LR / 2], lambda name: not head(name))
        bodies.append(after)
    for name, tensor in found.server.group("global").items():
        if not head(name):
            expected = torch.stack([body[name] for body in bodies]).mean(0)
            torch.testing.assert_close(tensor, expected, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------- static norms


def static(sections: list[Any], **evaluate: int) -> dict[str, Any]:
    model = mlp(6) | {"inputs": {"x": [1, 3, 3]}}
    model["sections"] = [{"name": "net", "steps": sections}]
    return spec(
        family={"model": model, "clients": [{"name": "all", "count": 2}]},
        strategy={"fedavg": {"norm": "static"}},
        rounds=1,
        evaluate=evaluate,
    )


FLAT = ["flatten", {"linear": 5}, "batch_norm", "relu", {"linear": 6}]
WIDE = [{"conv": {"out": 3, "kernel": 1}}, "batch_norm", "relu", "flatten", {"linear": 6}]
IMAGES = torch.rand(600, 1, 3, 3, generator=GENERATOR)
DATA = (IMAGES, torch.arange(600) % 6), (IMAGES[:30], torch.arange(30) % 6)


def test_the_batch_of_tests_changes_no_statistics():
    figures = [
        ag.run(static(FLAT, batch=batch), data=DATA, progress=False).evaluation["global"]
        for batch in (1, 7, 500)
    ]
    for one in figures[1:]:
        assert one == pytest.approx(figures[0], rel=1e-6)


def test_one_example_has_statistics_where_there_is_space():
    refused = r"evaluate\.statistics: a layer has one value.*found 1 example, for net\.bn; expected"
    with pytest.raises(ag.RunError, match=refused):
        ag.run(static(FLAT, statistics=1), data=DATA, progress=False)
    for steps, examples in ((FLAT, 2), (WIDE, 1)):
        found = ag.run(static(steps, statistics=examples), data=DATA, progress=False)
        assert math.isfinite(found.evaluation["global"]["loss"])


# ---------------------------------------------------------------- scales


def test_a_table_is_scaled_by_the_rows_that_are_trained_on(tmp_path: Path):
    validation = {"clients": 0.25}
    file = tmp_path / "t.csv"
    numbers = [[float(2 * (i % 2) - 1), i**2 / 7, "ab"[i % 3 == 0], 3 * i] for i in range(60)]
    lines = ["a,b,kind,y", *(",".join(map(str, row)) for row in numbers)]
    file.write_text("\n".join(lines) + "\n")
    task = {"kind": "regression", "standardise": True}
    data = {"table": str(file), "target": "y"}
    setup: Any = prepare(spec(data=data, task=task, validation=validation))
    train, learning = setup.data.train, setup.world.learning
    used = torch.from_numpy(np.concatenate(setup.shares))
    assert len(used) < len(train) == 48
    for split in (train, setup.data.test, setup.validating.data.test):
        # Categories stay 0 and 1.
        torch.testing.assert_close(split.mean[:2], train.inputs[used, :2].mean(0))
        torch.testing.assert_close(split.std[:2], train.inputs[used, :2].std(0, correction=0))
        assert split.mean[2:].tolist() == [0, 0] and split.std[2:].tolist() == [1, 1]
    scale: Any = learning.loss
    torch.testing.assert_close(scale.mean, train.targets[used].mean())
    torch.testing.assert_close(scale.std, train.targets[used].std(correction=0))
    # What decides a run is the same for every seed, which draws what is held out.
    other: Any = prepare(spec(data=data, task=task, validation=validation, seed=1))
    assert {**setup.facts, "seed": 1} == other.facts
    assert not torch.equal(other.data.train.mean, train.mean)


@pytest.mark.parametrize("strategy", ["fedavg", "fedmd"])
@pytest.mark.parametrize("public", [None, 9])
def test_byte_images_are_scaled_by_those_that_are_trained_on(strategy, public):
    if (strategy, public) == ("fedmd", None):
        return  # it needs public examples
    images = torch.randint(256, (60, 2, 3, 3), generator=GENERATOR).to(torch.uint8)
    targets = torch.arange(60) % 6
    model = mlp(6) | {"inputs": {"x": [2, 3, 3]}}
    model["sections"][0]["steps"] = ["flatten", {"linear": 6}]
    family: dict[str, Any] = {"model": model, "clients": [{"name": "all", "count": 3}]}
    if strategy == "fedmd":
        family = {"clients": [{"name": "all", "count": 3, "model": model}]}
    keys = {"family": family, "strategy": {strategy: {}}, "public": public}
    setup: Any = prepare(spec(**keys, validation={"clients": 0.25}), data=((images, targets),) * 2)
    used = np.concatenate(setup.shares)
    if strategy == "fedmd":  # its clients learn from the public examples, too
        everything = np.concatenate([used, setup.held_out])
        used = np.concatenate([used, np.setdiff1d(np.arange(60), everything)])
    assert len(used) < 60
    values = images[torch.from_numpy(used)].double().transpose(0, 1).flatten(1)
    mean, std = values.mean(1)[:, None, None], values.std(1, correction=0)[:, None, None]
    share = setup.shares[0]
    expected = (images[torch.from_numpy(share)].double() - mean) / std
    torch.testing.assert_close(setup.shard(0).inputs[0], expected.float(), rtol=1e-4, atol=1e-4)
    if setup.world.public is not None and public:
        shown = setup.world.public.inputs[0]
        inside = ((images.double() - mean) / std).float()
        assert all(torch.isclose(inside, one, atol=1e-4).flatten(1).all(1).any() for one in shown)


# ---------------------------------------------------------------- who owns what


@pytest.mark.parametrize("assignment", ["first-deterministic", "deterministic", "random"])
def test_a_note_counts_the_examples_of_classes_without_an_owner(assignment):
    partition = {"scheme": "classes", "per_client": 2, "assignment": assignment}
    found = run(CLASSES, spec(6, data={"partition": partition}, rounds=1))
    owned = [sorted(set(CLASSES[share].tolist())) for share in found.experiment.shares]
    left = 48 - sum(map(len, found.experiment.shares))
    assert left == 8 * (6 - len({number for own in owned for number in own}))
    (note,) = found.notes
    assert note.startswith(f"data.partition: {left} of 48 training examples belong to no client")
    everything = {"scheme": "classes", "per_client": 6}
    assert not run(CLASSES, spec(6, data={"partition": everything}, rounds=1)).notes
    # The help lists them in the order of the values.
    text = ClassesSpec.model_fields["assignment"].description or ""
    order = [
        text.index(f"{name}: ") for name in ("first-deterministic", "; deterministic", "random")
    ]
    assert order == sorted(order)
    if assignment != "random":
        assert [0 in owned[0], 1 in owned[1]] == [True, True]
    if assignment == "deterministic":
        assert owned == [[0, 1], [1, 2]]


@pytest.mark.sample(4)
@pytest.mark.parametrize("scheme", ["iid", "equal_dirichlet", "whole", "dirichlet", "classes"])
@pytest.mark.parametrize("public", [1, 7, 20])
def test_shares_are_equal_beside_public_examples(scheme, public):
    more = {"dirichlet": {"min_size": 1, "alpha": 9}, "classes": {"per_client": 4}}.get(scheme, {})
    family = {"model": mlp(6), "clients": [{"name": "all", "count": 3}]}
    keys = {"family": family, "data": {"partition": {"scheme": scheme, **more}}, "public": public}
    setup: Any = prepare(spec(**keys), data=((ROWS, CLASSES),) * 2)
    rest = 48 - public
    sizes = [len(share) for share in setup.shares]
    equal = [len(part) for part in np.array_split(np.arange(rest), 3)]
    if scheme in ("iid", "equal_dirichlet"):
        assert sizes == equal
    assert scheme != "whole" or sizes == [rest] * 3
    assert setup.world.public is not None and setup.world.public.examples == public
    shown = {tuple(row) for row in setup.world.public.inputs[0].tolist()}
    owned = {tuple(row) for share in setup.shares for row in ROWS[share].tolist()}
    assert len(shown) == public and not shown & owned


# ---------------------------------------------------------------- targets of several numbers


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("SpearmanCorrCoef", "cannot be computed; found SpearmanCorrCoef.*a target has 2 numbers"),
        (
            {"R2Score": {"multioutput": "raw_values"}},
            r"does not return one number; found R2Score, \(2,\)",
        ),
    ],
)
def test_a_metric_of_one_output_is_refused_before_the_first_round(metric, said, monkeypatch):
    pytest.importorskip("torchmetrics", reason="needs the extra metrics")
    monkeypatch.setattr("archgraph.engine.rounds.Loop.round", lambda self: pytest.fail("ran"))
    task = {"kind": "regression", "metrics": ["mse", metric]}
    with pytest.raises(ag.SpecError, match=rf"task\.metrics\[1\]: {said}"):
        run(torch.stack([VALUES, -VALUES], 1), spec(2, task=task))


# ---------------------------------------------------------------- multiply–accumulates


@pytest.mark.parametrize("strategy", ["heterofl", "fjord"])
def test_macs_of_the_page_are_those_of_the_record(tmp_path: Path, strategy):
    clients = [{"name": "small", "count": 2, "take": 0.5}, {"name": "large", "count": 2}]
    model = mlp(6) | {
        "sections": [{"name": "net", "steps": [{"linear": 8}, "relu", {"linear": 6}]}]
    }
    keys = {"family": {"model": model, "clients": clients}, "strategy": {strategy: {}}}
    found = run(CLASSES, spec(6, **keys, rounds=2, local={"batch": 4}), out=tmp_path / "run")
    world = found.experiment.world
    sheet = {row[0]: row[-1] for row in traffic_sheet(read_run(tmp_path / "run")).rows}
    for name in ("small", "large"):
        rows = [r for line in found.rounds for r in line["clients"] if r["name"] == name]
        full = 3 * sum(row["seen"] for row in rows) * ag.cost(world.tier(name).graph).macs
        executed = sum(row["macs"] for row in rows)
        assert sheet[name] == executed
        assert executed == full if (strategy, name) != ("fjord", "large") else executed < full
    assert sheet["all"] == sum(line["macs"]["round"] for line in found.rounds)
