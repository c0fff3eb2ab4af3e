"""Local training in bfloat16: what changes, and what stays as it is."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from archgraph.engine.local import execute
from archgraph.engine.precision import performed
from archgraph.engine.testing import answers
from archgraph.federation import Outcome, Train, Work
from archgraph.language.experiment import EngineSpec
from archgraph.language.local import LocalOptions

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
    outcome = performed(Products(seen), work)
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
