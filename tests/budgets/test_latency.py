"""Latency: coefficients that are known are found again, and every submodel has its milliseconds."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import nn

import archgraph as ag
from archgraph.analysis.cost_polynomial import operator_sizes
from archgraph.budgets.latency import ATTOSECONDS, Coefficients, DeviceProfile, signatures
from archgraph.budgets.timing import NetworkRun, Timing, TorchTimer
from archgraph.errors import GraphError, RunError, SpecError
from tests.nets import Residual, image, networks
from tests.structures import PreAct, graph_of

# Nanoseconds that depend on nothing but what an operator reads, writes and computes.
NEGATIVE = dict.fromkeys(("call", "read", "weights", "written", "macs"), -1.0)
KNOWN = Coefficients(call=2000.0, read=0.5, weights=0.25, written=1.0, macs=0.125)


def clockwork(
    known: Callable[[str], Coefficients] = lambda op: KNOWN,
    *,
    batch: int = 1,
    training: bool = False,
    calls: float = 1.0,
    work: float = 1.0,
) -> Callable[[Sequence[ag.ArchGraph]], list[Timing]]:
    """A timer whose operators take what coefficients say, and whose networks stretch them."""

    def timing(graph: ag.ArchGraph) -> Timing:
        full = {axis.name: axis.size for axis in ag.axes(graph).free}
        seconds, total = {}, 0.0
        for sizes in operator_sizes(graph, batch, training):
            c = known(sizes.node.op)
            pairs = (
                (c.read, sizes.read),
                (c.weights, sizes.weights),
                (c.written, sizes.written),
                (c.macs, sizes.macs),
            )
            working = sum(factor * amount.value(full) for factor, amount in pairs)
            seconds[sizes.node.name] = 1e-9 * (c.call + working)
            total += 1e-9 * (calls * c.call + work * working)
        return Timing(seconds, total)

    return lambda networks: [timing(graph) for graph in networks]


def by_operator(op: str) -> Coefficients:
    """Other numbers for each operator, the same ones in every session."""
    digits = [sum(map(ord, op)) * prime % 97 + 1 for prime in (3, 5, 7, 11, 13)]
    return Coefficients(1000.0 * digits[0], *(d / 64 for d in digits[1:]))


def plain(measured: DeviceProfile, **changes: Any) -> dict[str, Any]:
    """What a file holds, with some keys changed."""
    return (
        json.loads(json.dumps({"archgraph": 1, "profile": dataclasses.asdict(measured)})) | changes
    )


@pytest.fixture(scope="module")
def resnet() -> ag.ArchGraph:
    return graph_of(nn.Sequential(PreAct(3, 16), PreAct(16, 24, 2), PreAct(24, 24)))


@pytest.fixture(scope="module")
def profile(resnet: ag.ArchGraph) -> DeviceProfile:
    return ag.profile(resnet, timer=clockwork(by_operator))


# -- laws ----------------------------------------------------------------------------------------


@given(networks(), st.randoms(use_true_random=False))
@settings(max_examples=3, suppress_health_check=[HealthCheck.too_slow])
def test_a_submodel_has_the_milliseconds_of_its_graph(net, random):
    graph = graph_of(net, image())
    profile = ag.profile(graph, timer=clockwork(by_operator), submodels=4)
    axes = {axis.name: axis.size for axis in ag.axes(graph).free}
    sizes = {k: random.randint(max(n // 2, 2), n) for k, n in axes.items() if n > 3}
    narrow = ag.take(graph, positions={k: range(n) for k, n in sizes.items()}) if sizes else graph
    # A size of 1 may be another operator.
    assume({*signatures(narrow_graph(narrow)).values()} <= profile.operators.keys())
    costs = profile.polynomial(graph)
    attoseconds = costs.polynomial(ATTOSECONDS).value({**costs.axes, **sizes})
    assert profile.milliseconds(narrow) == attoseconds / 10**15


def narrow_graph(value: Any) -> ag.ArchGraph:
    return value if isinstance(value, ag.ArchGraph) else value.graph


def nodes(value: Any) -> list[ag.Node]:
    return [n for n in narrow_graph(value).nodes if n.op != "input"]


def test_a_submodel_without_blocks_has_the_milliseconds_of_its_graph(resnet, profile):
    costs = profile.polynomial(resnet)
    for block in costs.blocks:
        if block in costs.equal:
            continue
        value = costs.polynomial(ATTOSECONDS, [block]).value(costs.axes)
        assert profile.milliseconds(ag.skip(resnet, [block])) == value / 10**15
        assert value < costs.polynomial(ATTOSECONDS).value(costs.axes)


@given(networks())
@settings(max_examples=3, suppress_health_check=[HealthCheck.too_slow])
def test_times_that_are_sums_of_features_are_predicted_exactly(net):
    graph = graph_of(net, image())
    profile = ag.profile(graph, timer=clockwork(), submodels=4)
    (timing,) = clockwork()([graph])
    assert math.isclose(profile.milliseconds(graph), 1e3 * timing.total, rel_tol=1e-5)


# -- closed forms --------------------------------------------------------------------------------


def chain(stride: int) -> ag.ArchGraph:
    """Convolutions on images of several sizes: on one size, weights and work grow alike."""
    widths = ((3, 8), (8, 16), (16, 12))
    layers = ((nn.Conv2d(a, b, 3, stride, padding=1), nn.MaxPool2d(2)) for a, b in widths)
    return graph_of(nn.Sequential(*itertools.chain(*layers)), torch.zeros(2, 3, 64, 64))


def test_least_squares_recovers_known_coefficients():
    profile = ag.profile(chain(1), timer=clockwork(), submodels=12)
    name = "aten.conv2d float32 input weight[3, 3] bias padding=(1, 1)"
    for fitted in (profile.operators[name], profile.operators["aten.conv2d"]):
        assert dataclasses.astuple(fitted) == pytest.approx(dataclasses.astuple(KNOWN), rel=1e-6)
    assert profile.errors[0].worst < 1e-6


def test_a_network_stretches_its_operators(resnet):
    stretched = clockwork(by_operator, calls=3.0, work=1.5)
    profile = ag.profile(resnet, timer=stretched, submodels=12)
    (timing,) = stretched([resnet])
    assert profile.milliseconds(resnet) == pytest.approx(1e3 * timing.total, rel=5e-3)
    assert profile.errors[0].worst < 5e-3


def test_what_costs_less_with_size_is_not_fitted_below_zero(resnet):
    def shrinking(networks: Sequence[ag.ArchGraph]) -> list[Timing]:
        parameters = [ag.cost(graph).parameters for graph in networks]
        return [
            Timing({n.name: 1 / p for n in nodes(g)}, len(nodes(g)) / p)
            for g, p in zip(networks, parameters, strict=True)
        ]

    profile = ag.profile(resnet, timer=shrinking)
    assert min(min(dataclasses.astuple(c)) for c in profile.operators.values()) >= 0
    assert profile.errors[0].worst > 0.1


def test_held_out_submodels_do_not_teach(resnet):
    """Every fourth network is slow by the factor of its place: no fit to the others can know."""

    def odd(networks: Sequence[ag.ArchGraph]) -> list[Timing]:
        timings = clockwork(by_operator)(networks)
        return [
            dataclasses.replace(t, total=t.total * (2 if n % 4 == 3 else 1))
            for n, t in enumerate(timings)
        ]

    (error,) = ag.profile(resnet, timer=odd, submodels=11).errors
    assert error.submodels == 3
    assert (error.mean, error.worst) == pytest.approx((0.5, 0.5), rel=1e-6)


def test_a_batch_is_counted(resnet):
    one, four = (
        ag.profile(resnet, timer=clockwork(batch=n), batch=n).milliseconds(resnet) for n in (1, 4)
    )
    costs = operator_sizes(resnet, 4)
    calls = sum(1 for _ in costs) * KNOWN.call / 1e6
    leaves = sum(
        sizes.weights.value({a.name: a.size for a in ag.axes(resnet).free}) for sizes in costs
    )
    fixed = calls + KNOWN.weights * leaves / 1e6
    assert four - fixed == pytest.approx(4 * (one - fixed), rel=1e-4)


def test_an_argument_that_no_cut_changes_makes_another_signature():
    first, second = chain(1), chain(2)
    assert {*signatures(first).values()} != {*signatures(second).values()}
    # A stride that was not timed has the coefficients of the operator.
    profile = ag.profile(first, timer=clockwork())
    (timing,) = clockwork()([second])
    assert profile.milliseconds(second) == pytest.approx(1e3 * timing.total, rel=1e-4)


# -- files ---------------------------------------------------------------------------------------


def test_a_profile_comes_back_from_its_file(profile, tmp_path):
    assert DeviceProfile.load(profile.save(tmp_path / "device.json")) == profile


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"archgraph": 2}, "is of another version; found 2; expected 1"),
        ({"other": 1}, "is not a profile of a device"),
        ({"profile": []}, "Input should be an object"),
    ],
)
def test_another_file_is_refused(profile, tmp_path, change, message):
    path = tmp_path / "device.json"
    path.write_text(json.dumps(plain(profile, **change)))
    with pytest.raises(SpecError, match="device.json.*" + message):
        DeviceProfile.load(path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("threads", "two", "threads: Input should be a valid integer"),
        ("runtime", "tflite", "runtime: Input should be 'torch' or 'onnxruntime'"),
        ("batch", 0, "batch: is too small"),
        ("colour", 1, "colour: Unexpected keyword argument"),
        ("operators", {"aten.relu": {"call": 1.0}}, "operators.aten.relu.read: Field required"),
        ("operators", {"aten.relu": NEGATIVE}, "call: is not a time; found -1.0"),
    ],
)
def test_a_wrong_value_is_refused_by_its_key(profile, tmp_path, key, value, message):
    data = plain(profile)
    data["profile"][key] = value
    path = tmp_path / "device.json"
    path.write_text(json.dumps(data))
    with pytest.raises(SpecError, match=message):
        DeviceProfile.load(path)


def test_a_file_that_is_not_json_is_refused(tmp_path):
    (tmp_path / "device.json").write_text("{")
    with pytest.raises(SpecError, match="is not JSON"):
        DeviceProfile.load(tmp_path / "device.json")
    with pytest.raises(RunError, match="cannot be read"):
        DeviceProfile.load(tmp_path / "none.json")


# -- refusals ------------------------------------------------------------------------------------


def test_an_operator_that_was_not_timed_is_refused_by_name(profile):
    graph = graph_of(nn.Sequential(nn.Conv2d(3, 4, 1), nn.Softplus()))
    with pytest.raises(GraphError, match=r"operator was not timed; found aten\.softplus"):
        profile.milliseconds(graph)


def test_what_cannot_be_profiled_is_refused(resnet):
    with pytest.raises(RunError, match="nothing to profile"):
        ag.profile([])
    with pytest.raises(RunError, match="batch: is too small; found 0; expected 1 or more"):
        ag.profile(resnet, batch=0)
    with pytest.raises(RunError, match="submodels: is too small; found 3"):
        ag.profile(resnet, submodels=3)
    with pytest.raises(RunError, match="unknown runtime; found tflite; expected torch or onnx"):
        ag.profile(resnet, runtime="tflite")  # type: ignore[arg-type]  # a mistake
    with pytest.raises(RunError, match="in evaluation on the processor; found a training step"):
        ag.profile(resnet, runtime="onnxruntime", training=True)
    with pytest.raises(RunError, match="device nowhere: cannot be used"):
        ag.profile(resnet, device="nowhere")


def test_a_batch_that_a_model_does_not_take_is_refused():
    graph = graph_of(nn.Sequential(nn.Conv2d(3, 4, 8), nn.BatchNorm2d(4)), train=True)
    with pytest.raises(GraphError, match="cannot be run with a batch of 1; found Expected more"):
        ag.profile(graph, training=True, seconds=0, submodels=4)


# -- what is timed -------------------------------------------------------------------------------


class Everything(nn.Module):
    """Several results of one operator, a tensor that is made, a buffer that is assigned."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.gru = Residual(3, 8), nn.GRU(3, 4, batch_first=True)

    def forward(self, x, scale):
        x = self.net(x) * scale["by"] + torch.ones(6, device=x.device)
        left, right = x.chunk(2, dim=-1)
        return self.gru((left * right).flatten(2).transpose(1, 2))[0].mean(1)


@pytest.mark.parametrize("training", [False, True])
def test_the_operators_compute_what_the_network_computes(training):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2, 3, 6, 6, generator=generator), {"by": torch.ones(2, 1, 1, 1)}
    graph = ag.trace(Everything(), *inputs, train=True).graph
    run = NetworkRun(graph, TorchTimer(batch=2, training=training))
    results: list[Any] = []
    call = NetworkRun._call

    def recording(self: NetworkRun, node: ag.Node, operands: Any) -> Callable[[], Any]:
        work = call(self, node, operands)

        def recorded() -> Any:
            results.append(result := work())
            return result

        return recorded

    run._call = recording.__get__(run)  # type: ignore[method-assign]  # what the last one gives
    run.once()
    with torch.no_grad():
        expected = run.module(**run.inputs)
    last = next(
        r for r in reversed(results) if isinstance(r, torch.Tensor) and r.shape == expected.shape
    )
    assert torch.allclose(last, expected, atol=1e-6)
    work = ag.build(graph).train(training)
    assert run.operators.keys() == {n.name for n in run.work.nodes if n.op != "input"}
    assert work.training is training


def test_a_timing_is_the_median_of_the_rounds_after_the_first(resnet):
    run = NetworkRun(resnet, TorchTimer())
    run.totals = [9.0, 3.0, 1.0, 2.0]
    run.operators["conv2d"] = [9.0, 1.0, 2.0, 6.0]
    assert run.timing() == Timing({"conv2d": 2.0}, 2.0)


def test_the_threads_are_what_they_were_before(resnet):
    threads = torch.get_num_threads()
    ag.profile(resnet, threads=threads + 1, seconds=0, submodels=4)
    assert torch.get_num_threads() == threads
