"""Models that give other results in training than in tests, and values that no mean can hold."""

from __future__ import annotations

import functools
import math
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import archgraph as ag
from archgraph.engine import Run
from archgraph.errors import RunError

INPUTS = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
TARGETS = torch.arange(40) % 3
Results = namedtuple("Results", "out aux")
FORMS: dict[str, Callable[..., Any]] = {
    "tuple": lambda out, aux: (out, aux),
    "second": lambda out, aux: (aux, out),
    "named": Results,
    "dict": lambda out, aux: {"out": out, "aux": aux},
    "three": lambda out, aux: (out, aux, 2 * aux),
}


class Auxiliary(nn.Module):
    """A network with a further result in training, as GoogLeNet and Inception have."""

    def __init__(self, form: Callable[..., Any]) -> None:
        super().__init__()
        self.form = form
        self.a, self.x, self.o = nn.Linear(6, 16), nn.Linear(16, 3), nn.Linear(16, 3)

    def forward(self, x):
        h = torch.relu(self.a(x))
        return self.form(self.o(h), self.x(h)) if self.training else self.o(h)


@functools.cache
def auxiliary(form: str) -> Any:
    return ag.trace(Auxiliary(FORMS[form]), INPUTS[:2])


@functools.cache
def masked(fill: float) -> Any:
    return ag.trace(Masked(fill), INPUTS[:2])


def run(model: object, targets: object = TARGETS, inputs: object = INPUTS, **keys: Any) -> Run:
    said = {
        "name": "modes",
        "family": {"model": model, "clients": [{"name": "c", "count": 2}]},
        "strategy": {"fedavg": {}},
        "rounds": 1,
        "local": {"batch": 40, "lr": 0.1},
    }
    data = (inputs, targets), (inputs, targets)
    return ag.run(said | keys, data=data, progress=False)


@pytest.mark.sample(3)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("weight", [None, 0.3])
def test_training_is_on_the_main_result_and_weighted_auxiliary_ones(form, weight) -> None:
    traced = graph, state = auxiliary(form)
    task = {"kind": "classification"} | ({} if weight is None else {"auxiliary": weight})
    clients = [{"name": "c", "count": 1}]
    done = run(traced, task=task, family={"model": traced, "clients": clients})
    net = ag.build(graph, state).train()
    h = torch.relu(
        functional.linear(INPUTS, net.get_parameter("a.weight"), net.get_parameter("a.bias"))
    )
    out, aux = (
        functional.linear(h, net.get_parameter(f"{k}.weight"), net.get_parameter(f"{k}.bias"))
        for k in "ox"
    )
    loss = functional.cross_entropy(out, TARGETS)
    for further in (aux, 2 * aux)[: 2 if form == "three" else 1]:
        loss = loss + (weight or 0.0) * functional.cross_entropy(further, TARGETS)
    loss.backward()
    (model,) = (m for m in done.models if m.name == "global")
    for name, parameter in net.named_parameters():
        gradient = torch.zeros(()) if parameter.grad is None else parameter.grad
        expected = parameter.detach() - 0.1 * gradient
        torch.testing.assert_close(model.state[name], expected, atol=1e-6, rtol=1e-5)
    assert torch.equal(model.state["x.weight"], state["x.weight"]) == (not weight)


@pytest.mark.parametrize("form", FORMS)
def test_an_output_is_named_by_position_or_key(form) -> None:
    traced = auxiliary(form)
    place = 1 if form == "second" else 0
    keys = [place, *(["out"] if form in ("named", "dict") else [])]
    for key in keys:
        assert run(traced, task={"kind": "classification", "output": key}).sound
    with pytest.raises(
        RunError, match=r"task\.output: .*the model does not return this output in tests"
    ):
        run(traced, task={"kind": "classification", "output": 1 - place})


def test_what_changes_nothing_is_refused() -> None:
    plain = ag.trace(nn.Linear(6, 3), INPUTS[:2])
    assert run(plain, task={"kind": "classification", "output": 0}).sound
    for key, value in (("output", "logits"), ("auxiliary", 0.3)):
        with pytest.raises(RunError, match=rf"task\.{key}: changes nothing"):
            run(plain, task={"kind": "classification", key: value})
    mixed = ag.trace(Auxiliary(lambda out, aux: (out, aux[:, :2])), INPUTS[:2])
    assert run(mixed).sound
    with pytest.raises(RunError, match=r"found \[batch, 2\]; expected \[batch, 3\]"):
        run(mixed, task={"kind": "classification", "auxiliary": 0.3})


class Masked(nn.Module):
    """A network with a causal mask in a buffer."""

    def __init__(self, fill: float) -> None:
        super().__init__()
        self.e, self.q, self.o = nn.Linear(1, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.register_buffer("mask", torch.full((6, 6), fill).triu(1))

    def forward(self, x):
        h = self.e(x[..., None])
        h = h + torch.relu(self.q(h))
        return self.o(((h @ h.transpose(1, 2) + self.mask).softmax(-1) @ h).mean(1))


@pytest.mark.sample(4)
@pytest.mark.parametrize("fill", [-math.inf, torch.finfo(torch.float32).min])
@pytest.mark.parametrize(
    ("strategy", "aggregate"),
    [
        ("heterofl", None),
        ("heterofl", {"median": {}}),
        ("heterofl", {"krum": {"malicious": 0}}),
        ("heterofl", {"clip": "median"}),
        ("standalone", None),
        ("fedadp", None),
        ("fedadp", {"median": {}}),
    ],
)
def test_a_mask_in_a_buffer_stays_as_it_is(fill, strategy, aggregate) -> None:
    traced = _, state = masked(fill)
    narrow = {"take": 0.5} if strategy == "heterofl" else {}
    family = {
        "model": traced,
        "clients": [{"name": "a", "count": 2, **narrow}, {"name": "b"}],
    }
    keys = {} if aggregate is None else {"aggregate": aggregate}
    done = run(None, family=family, strategy={strategy: {}}, **keys)
    assert done.sound and not done.troubles
    assert all(torch.equal(model.state["mask"], state["mask"]) for model in done.models)
    if strategy != "standalone":  # whose clients keep all that they train
        assert not any(torch.equal(m.state["o.bias"], state["o.bias"]) for m in done.models)


def test_a_frozen_parameter_may_be_a_mask_of_infinity() -> None:
    net: Any = Masked(-math.inf)
    mask = net.mask
    del net.mask
    net.mask = nn.Parameter(mask, requires_grad=False)
    graph, state = traced = ag.trace(net, INPUTS[:2])
    family = {"model": traced, "clients": [{"name": "a", "count": 3}]}
    done = run(None, family=family, strategy={"heterofl": {}})
    assert done.sound and not done.troubles
    merger = ag.Merger(graph, state)
    merger.add(ag.Transfer.identity(graph), state)
    assert torch.equal(merger.result()[0]["mask"], mask)


def test_mergers_take_a_mask_of_infinity_that_is_the_servers() -> None:
    graph, state = masked(-math.inf)
    half = ag.take(graph, 0.5)
    merger = ag.Merger(graph, state)
    small = half.transfer.pull(state)
    merger.add(half.transfer, small)
    merger.add(ag.Transfer.identity(graph), {k: v.clone() for k, v in state.items()})
    other = {**small, "mask": torch.full((6, 6), math.inf).triu(1)}
    for wrong in (other, {**small, "mask": small["mask"] * 0}):
        with pytest.raises(ag.RejectedUpdate, match="mask: not finite"):
            merger.add(half.transfer, wrong)
    assert all(torch.equal(value, state[name]) for name, value in merger.result()[0].items())


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16])
def test_another_float_type_is_answered_before_the_first_round(kind) -> None:
    model = ag.trace(nn.Linear(6, 3).to(kind), INPUTS[:2].to(kind))
    name = str(kind).removeprefix("torch.")
    with pytest.raises(RunError, match=rf"found {name} as .*data of float32.*`model\.float\(\)`"):
        run(model)


def test_true_and_false_are_two_classes_or_one_label() -> None:
    flags = TARGETS == 0
    for outputs, targets, task in (
        (1, flags, "classification"),
        (2, flags, "classification"),
        (1, flags[:, None], "multilabel"),
        (2, flags.long(), None),
    ):
        said = {} if task is None else {"task": task}
        assert run(ag.trace(nn.Linear(6, outputs), INPUTS[:2]), targets, **said).sound
