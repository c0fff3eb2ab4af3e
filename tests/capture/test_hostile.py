"""No silent difference: a hostile module equals its graph in training too, or is refused."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn.modules import module as modules

import archgraph as ag
from archgraph.capture.unseen import overlapping
from tests.capture.faithful import tensors
from tests.capture.hostile import (  # noqa: F401  # each enters its modules into the table
    asks,
    gradients,
    hooks,
    kept,
    memory,
    numbers,
    unseen,
    wrappers,
)
from tests.capture.hostile.table import HOSTILE, Hostile, Net, X

STEPS = 10


@pytest.fixture(autouse=True)
def _no_hooks_of_all_modules() -> Iterator[None]:
    yield
    for name in (n for n in vars(modules) if n.startswith("_global_") and n.endswith("_hooks")):
        getattr(modules, name).clear()


def _steps(module: nn.Module, entry: Hostile) -> Iterator[list[torch.Tensor]]:
    """Outputs and gradients of training steps, an evaluation after each."""
    trained = [p for p in module.parameters() if p.requires_grad]
    optimiser = entry.optimiser(trained, lr=0.05)
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        x = torch.randn(
            entry.batches[step % len(entry.batches)], *entry.example.shape[1:], generator=generator
        )
        torch.manual_seed(step)
        optimiser.zero_grad()
        outputs = tensors(module.train()(x.clone()))
        sum(t.square().mean() for t in outputs).backward()  # type: ignore[union-attr]  # a tensor
        yield outputs
        yield [p.grad for p in module.parameters() if p.grad is not None]
        optimiser.step()
        torch.manual_seed(step)
        with torch.no_grad():
            evaluated = tensors(module.eval()(x.clone()))
        yield [*evaluated, *module.state_dict().values()]


def assert_equal(module: nn.Module, entry: Hostile) -> None:
    graph, state = ag.trace(module, entry.example)
    built = ag.build(graph, state)
    for found, expected in zip(_steps(built, entry), _steps(module, entry), strict=True):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", [name for name, entry in HOSTILE.items() if not entry.refused])
def test_equal(name):
    entry = HOSTILE[name]
    torch.manual_seed(0)
    assert_equal(entry.make(), entry)


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", [name for name, entry in HOSTILE.items() if entry.refused])
def test_refused(name):
    entry = HOSTILE[name]
    torch.manual_seed(0)
    module = entry.make()
    with pytest.raises(ag.TraceError, match=entry.refused or "") as refusal:
        ag.trace(module, entry.example)
    assert refusal.value.where


def test_what_is_refused_can_be_noted_and_is_warned_of():
    net = HOSTILE["full_backward_hook"].make()
    with pytest.warns(UserWarning, match="layer: has a backward hook"):
        graph, _ = traced = ag.trace(net, X, strict=False)
    assert "note: layer: has a backward hook" in repr(traced)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ag.trace(Net(), X).graph == graph


def test_extra_state_is_left_out_where_that_is_asked_for():
    net = HOSTILE["Extra"].make()
    with pytest.warns(UserWarning, match="has extra state"):
        graph, state = ag.trace(net, X, strict=False)
    torch.testing.assert_close(ag.build(graph, state)(X), net(X), rtol=0, atol=0)


def test_overlap_is_decided_element_by_element():
    flat = torch.arange(24.0)
    table = flat.view(4, 6)
    named = {
        "left": table[:, ::2],
        "right": table[:, 1::2],
        "row": table[2],
        "apart": torch.ones(3),
    }
    found = {frozenset((a, b)) for (a, _), (b, _) in overlapping(named.items())}
    assert found == {frozenset(("left", "row")), frozenset(("right", "row"))}
    assert list(overlapping({"whole": flat, "bytes": flat.view(torch.uint8)}.items()))
    copies = {"a": flat, "b": copy.deepcopy(flat), "none": flat[:0]}
    assert not list(overlapping(copies.items()))
