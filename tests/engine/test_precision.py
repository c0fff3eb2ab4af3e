"""Local training in bfloat16 and by compiled networks: what changes, and what stays as it is."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config

from archgraph.engine.local import execute
from archgraph.engine.precision import performed
from archgraph.engine.testing import answers
from archgraph.federation import Outcome, Train, Work, seeded
from archgraph.language.experiment import EngineSpec
from archgraph.language.local import LocalOptions
from archgraph.processes.isolation import isolated

HALF = LocalOptions(lr=0.05, batch=16, precision="bf16")


def test_products_are_rounded_and_weights_keep_their_type(experiment):
    plain = execute(experiment(rounds=1)).server.group("global")
    one, two = (
        execute(experiment(rounds=1, local=HALF, engine=EngineSpec(workers=workers)))
        for workers in (1, 2)
    )
    half, again = one.server.group("global"), two.server.group("global")
    assert {name: t.dtype for name, t in half.items()} == {n: t.dtype for n, t in plain.items()}
    assert not half["5.weight"].equal(plain["5.weight"])
    torch.testing.assert_close(half["5.weight"], plain["5.weight"], rtol=0.0, atol=0.02)
    assert all(tensor.equal(again[name]) for name, tensor in half.items())


@dataclasses.dataclass(frozen=True)
class Products:
    """What a program sees of products, and what leaves of them."""

    seen: list[torch.Tensor]

    def __call__(self, work: Work) -> Outcome:
        weight = torch.eye(2, requires_grad=True)
        first = torch.ones(2, 2) @ weight
        with torch.no_grad():
            weight.mul_(2)
        self.seen.extend((first, torch.ones(2, 2) @ weight))
        return Outcome(work.state, extras={"sent": first}, keep={"kept": first})


@pytest.mark.parametrize("precision", [None, "bf16"])
def test_changed_weights_are_converted_anew_and_activations_leave_in_float32(
    experiment, precision: Any
):
    setup = experiment(local=LocalOptions(precision=precision))
    world, generator = setup.world, torch.Generator()
    work = setup.work(0, 1, world.graph, world.state, generator, keep={})
    seen: list[torch.Tensor] = []
    outcome = performed(Products(seen), work, EngineSpec())
    first, second = seen
    assert first.dtype == (torch.float32 if precision is None else torch.bfloat16)
    assert second.equal(2 * first)
    for left in (outcome.extras["sent"], outcome.keep["kept"]):
        assert left.dtype == torch.float32 and left.equal(torch.ones(2, 2))


def test_training_before_a_test_is_rounded_and_the_test_is_not(experiment, mean, monkeypatch):
    """The test itself runs outside of it: else its figures would be those of another model."""
    modes = []

    def tune(work: Work) -> Outcome:
        modes.append(torch.is_autocast_enabled("cpu"))
        return Train()(work)

    def tested(*arguments: Any, **options: Any) -> Any:
        modes.append(torch.is_autocast_enabled("cpu"))
        return answers(*arguments, **options)

    monkeypatch.setattr("archgraph.engine.evaluate.answers", tested)
    execute(experiment(mean(tuned=tune), rounds=1, local=HALF))
    assert True in modes and False in modes


@pytest.mark.full
def test_compiled_networks_train_as_others_and_are_compiled_once(experiment, monkeypatch):
    monkeypatch.setattr(torch._inductor.config, "compile_threads", 1)
    torch._dynamo.utils.counters.clear()
    setup = experiment(local=LocalOptions(batch=1000))  # one step

    def trained(client: int, *, compiled: bool) -> Any:
        world, generator = setup.world, seeded(0, client)
        with isolated(generator):
            work = setup.work(client, 1, world.graph, world.state, generator, keep={})
            return performed(Train(), work, EngineSpec(compile=compiled)).state

    graphs = []
    for client in (0, 0):
        one, two = (trained(client, compiled=compiled) for compiled in (True, False))
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs == [1, 1]


@pytest.mark.parametrize("key, value", [("workers", 2), ("kind", "flower"), ("deadline", 1.0)])
def test_processes_that_would_compile_anew_are_refused(key, value):
    with pytest.raises(ValueError, match="requires a single process"):
        EngineSpec(**{key: value, "compile": True})
    assert EngineSpec(**{key: value, "compile": False}).compile is False
