"""An optimiser at the server: Reddi et al., Algorithm 2, and Flower's of the same numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import archgraph as ag
from archgraph.federation import Contribution, ServerState, group_means
from archgraph.federation.server_optimiser import MOMENTS
from archgraph.language.aggregate import AggregateSpec, MedianOptions
from archgraph.language.server import ServerSpec
from archgraph.states import DimMap, Entry, Slot, Transfer
from tests.runs import same_bits

from .families import STRATEGIES, experiment_of

SLOTS = (
    Slot("w", (3,), "float32"),
    Slot("mean", (2,), "float32", "buffer"),
    Slot("count", (), "int64", "buffer"),
)
START = {"w": torch.tensor([1.0, 2.0, 3.0]), "mean": torch.zeros(2), "count": torch.tensor(1)}
WHOLE = Transfer.identity(SLOTS)
PART = Transfer(SLOTS, (Slot("w", (2,), "float32"),), {"w": Entry("w", (DimMap.of([0, 1], 3),))})


def world(lab_graph: ag.ArchGraph, server: ServerSpec | None, **more: Any) -> Any:
    from archgraph.federation import World

    return World(lab_graph, {}, (), (), 0, 9, 0, server=server, **more)


@pytest.fixture(scope="module")
def plain() -> ag.ArchGraph:
    return ag.trace(nn.Linear(1, 1), torch.zeros(2, 1)).graph


def rounds(
    graph: ag.ArchGraph, server: ServerSpec, means: list[list[float]], part: bool = False
) -> Iterator[ServerState]:
    """The state after each round in which one client returns these weights."""
    state = ServerState().with_group("global", START)
    for values in means:
        update = {"w": torch.tensor(values)}
        if not part:
            update |= {"mean": torch.ones(2), "count": torch.tensor(7)}
        one = Contribution(0, "global", SLOTS, PART if part else WHOLE, update, 1.0)
        state = group_means(world(graph, server), state, [one])
        yield state


MEANS = [[1.5, 2.0, 2.0], [2.0, 1.0, 2.0], [1.0, 1.0, 1.0]]


def by_hand(server: ServerSpec, value: float, targets: list[float]) -> list[float]:
    """Algorithm 2 for one number, in plain Python."""
    o, m, v = server.values, 0.0, 0.0
    if o.get("bias_correction") == "none":
        v = o["tau"] ** 2
    result = []
    for t, target in enumerate(targets, 1):
        delta = target - value
        if server.optimiser == "momentum":
            m = o["momentum"] * m + delta
            value += o["lr"] * m
        else:
            m, rate = o["beta1"] * m + (1 - o["beta1"]) * delta, o["lr"]
            if server.optimiser == "adagrad":
                v += delta**2
            elif server.optimiser == "yogi":
                v -= (1 - o["beta2"]) * delta**2 * float(np.sign(v - delta**2))
            else:
                v = o["beta2"] * v + (1 - o["beta2"]) * delta**2
                if o["bias_correction"] == "flower":
                    rate *= math.sqrt(1 - o["beta2"] ** (t + 1)) / (1 - o["beta1"] ** (t + 1))
            value += rate * m / (math.sqrt(v) + o["tau"])
        result.append(value)
    return result


SPECS = [
    ServerSpec(optimiser="momentum", lr=0.5, momentum=0.8),
    ServerSpec(optimiser="adam"),
    ServerSpec(optimiser="adam", bias_correction="flower", lr=0.03, tau=1e-9),
    ServerSpec(optimiser="yogi", beta1=0.5, beta2=0.7),
    ServerSpec(optimiser="adagrad", lr=0.2, tau=0.1),
]


@pytest.mark.parametrize("server", SPECS, ids=str)
def test_weights_follow_the_mean_as_by_hand_and_buffers_take_it(plain, server: ServerSpec):
    states = list(rounds(plain, server, MEANS))
    for position in range(3):
        ours = [float(state.group("global")["w"][position]) for state in states]
        targets = [values[position] for values in MEANS]
        start = float(START["w"][position])
        assert ours == pytest.approx(by_hand(server, start, targets), rel=1e-5)
    assert states[0].group("global")["mean"].tolist() == [1.0, 1.0]
    assert int(states[0].group("global")["count"]) == 7


def test_the_first_step_of_momentum_and_adam():
    """Two numbers that a reader can check: Δ = 0.5."""
    momentum = ServerSpec(optimiser="momentum", lr=1.0, momentum=0.9)
    assert by_hand(momentum, 1.0, [1.5, 1.5]) == pytest.approx([1.5, 1.95])  # 1.5 + 0.9 · 0.5
    adam = ServerSpec(optimiser="adam", lr=0.1, tau=0.001)
    # m = 0.05, v = 0.99e-6 + 0.0025: 0.1 · 0.05 / (0.0500099 + 0.001)
    assert by_hand(adam, 1.0, [1.5])[0] == pytest.approx(1.0980199, abs=1e-6)


@pytest.mark.parametrize("server", SPECS, ids=str)
def test_what_no_client_covers_keeps_its_bits_and_its_moments(plain, server: ServerSpec):
    first = list(rounds(plain, server, MEANS[:1]))[-1]
    one = Contribution(0, "global", SLOTS, PART, {"w": torch.tensor([9.0, 9.0])}, 1.0)
    after = group_means(world(plain, server), first, [one])
    old, new = first.group("global"), after.group("global")
    assert new["w"][2].equal(old["w"][2]) and not new["w"][:2].equal(old["w"][:2])
    assert new["mean"].equal(old["mean"]) and new["count"].equal(old["count"])
    moments = after.group(MOMENTS)
    assert moments
    for name, moment in first.group(MOMENTS).items():
        assert moments[name][2].equal(moment[2]), name
    # And goes on as if the round had not been: the count of its steps, too.
    both = [group_means(world(plain, server), state, [full()]) for state in (first, after)]
    assert both[0].group("global")["w"][2].equal(both[1].group("global")["w"][2])


def full() -> Contribution:
    update = {"w": torch.tensor([0.0, 0.0, 0.5]), "mean": torch.ones(2), "count": torch.tensor(7)}
    return Contribution(0, "global", SLOTS, WHOLE, update, 1.0)


def test_a_value_below_the_quorum_of_a_median_keeps_its_bits(plain):
    rules = AggregateSpec(median=MedianOptions(quorum=2))
    state = ServerState().with_group("global", START)
    ones = [
        Contribution(0, "global", SLOTS, PART, {"w": torch.tensor([9.0, 9.0])}, 1.0),
        replace_client(full(), 1),
    ]
    for server in SPECS:
        after = group_means(world(plain, server, aggregate=rules), state, ones)
        assert after.group("global")["w"][2].equal(START["w"][2])
        assert not after.group("global")["w"][0].equal(START["w"][0])
        assert all(float(m[2]) == start_of(server, n) for n, m in after.group(MOMENTS).items())


def start_of(server: ServerSpec, name: str) -> float:
    paper = server.values.get("bias_correction") == "none" and name.startswith("second")
    return float(torch.tensor(server.values["tau"] ** 2)) if paper else 0.0


def replace_client(one: Contribution, client: int) -> Contribution:
    return one._replace(client=client)


@pytest.mark.parametrize(
    ("ours", "theirs"), [("adam", "FedAdam"), ("yogi", "FedYogi"), ("adagrad", "FedAdagrad")]
)
def test_flowers_own_strategies_give_the_same_numbers(plain, ours: str, theirs: str):
    strategies = pytest.importorskip("flwr.server.strategy")
    from flwr.common import (
        Code,
        FitRes,
        Status,
        ndarrays_to_parameters,
        parameters_to_ndarrays,
    )

    options = {"eta": 0.05, "eta_l": 0.1, "beta_1": 0.9, "tau": 1e-3}
    if ours != "adagrad":
        options["beta_2"] = 0.95
    else:
        del options["beta_1"]
    start = [START["w"].numpy()]
    flower = getattr(strategies, theirs)(
        initial_parameters=ndarrays_to_parameters(start), **options
    )
    server = ServerSpec(
        optimiser=ours,  # type: ignore[arg-type]  # of the table
        lr=0.05,
        beta1=0.0 if ours == "adagrad" else 0.9,
        beta2=None if ours == "adagrad" else 0.95,
        bias_correction="flower",
    )
    state = ServerState().with_group("global", START)
    draw = torch.Generator().manual_seed(0)
    for number in range(1, 6):
        moved = [START["w"] + torch.randn(3, generator=draw) for _ in range(2)]
        results: list[Any] = [
            (None, FitRes(Status(Code.OK, ""), ndarrays_to_parameters([w.numpy()]), size, {}))
            for w, size in zip(moved, (3, 1), strict=True)
        ]
        parameters, _ = flower.aggregate_fit(number, results, [])
        rest = {"mean": torch.ones(2), "count": torch.tensor(7)}
        ones = [
            Contribution(client, "global", SLOTS, WHOLE, {"w": w, **rest}, size)
            for client, (w, size) in enumerate(zip(moved, (3.0, 1.0), strict=True))
        ]
        state = group_means(world(plain, server), state, ones)
        expected = torch.from_numpy(parameters_to_ndarrays(parameters)[0]).float()
        torch.testing.assert_close(state.group("global")["w"], expected, rtol=1e-6, atol=1e-6)


AVERAGING = [name for name in STRATEGIES if name not in ("recipfl", "fedgkt", "standalone")]


def with_server(file: Path, server: Any, **more: Any) -> Any:
    spec = ag.load_experiment(file)
    return spec.model_copy(update={"server": ServerSpec(optimiser=server), **more})


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", AVERAGING)
def test_every_averaging_strategy_has_one_or_says_why_not(name: str, tmp_path: Path):
    spec = with_server(experiment_of(name, tmp_path), "adam")
    try:
        run = ag.run(spec, progress=False)
    except ag.RunError as error:
        assert "server" in str(error)
        return
    assert not run.troubles
    moments = run.server.group(MOMENTS)
    assert any(bool(value.abs().gt(1e-5).any()) for value in moments.values())
    assert all(bool(value.isfinite().all()) for value in run.server.tensors.values())


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """A small experiment of two widths."""

    def make(**more: Any) -> Path:
        model = Path(__file__).parents[2] / "specs" / "models" / "digits_cnn.yaml"
        clients = [{"name": "half", "count": 2, "take": 0.5}, {"name": "whole", "count": 1}]
        values = {
            "archgraph": 1,
            "name": "stepped",
            "family": {"model": str(model), "clients": clients},
            "data": {"dataset": "digits", "limit": 120},
            "strategy": {"heterofl": {"norm": "averaged", "scaler": False}},
            "rounds": 3,
            "local": {"lr": 0.05, "batch": 16},
            "server": {"optimiser": "adam", "bias_correction": "flower"},
            "engine": {"workers": 1},
            **more,
        }
        file = tmp_path / "e.yaml"
        file.write_text(json.dumps(values))
        return file

    return make


def tensors(run: Any) -> dict[str, Tensor]:
    return dict(run.server.tensors)


def test_workers_and_interruptions_do_not_change_a_bit(write, tmp_path: Path):
    one, two = (
        ag.run(write(engine={"workers": n}), out=tmp_path / str(n), progress=False) for n in (1, 2)
    )
    assert any(name.startswith(MOMENTS) for name in tensors(one))
    torch.testing.assert_close(tensors(two), tensors(one), rtol=0, atol=0)
    again = ag.run(write(), out=tmp_path / "2", resume_from=2, progress=False)
    torch.testing.assert_close(tensors(again), tensors(one), rtol=0, atol=0)
    same_bits(tmp_path / "1", tmp_path / "2")


def test_private_means_are_followed_too(write):
    pytest.importorskip("dp_accounting")
    file = write(
        privacy={"clip": 1.0, "noise": 0.5, "delta": 1e-3},
        strategy={"fedrolex": {"weights": "uniform"}},
        server="momentum",
        rounds=2,
    )
    run = ag.run(file, progress=False)
    assert run.server.group(MOMENTS) and not run.troubles


def test_depthfl_corrects_means_itself(tmp_path: Path):
    spec = with_server(experiment_of("depthfl", tmp_path), "momentum")
    with pytest.raises(ag.RunError, match=r"cannot be combined with `server`.*FedDyn"):
        ag.run(spec, progress=False)
    ag.run(spec.model_copy(update={"strategy": {"depthfl": {"alpha": 0.0}}}), progress=False)


def test_options_behind_the_name_are_answered_with_the_form():
    with pytest.raises(ValueError, match="must name the optimiser with the key"):
        ServerSpec.model_validate({"adam": {"lr": 0.1}})
