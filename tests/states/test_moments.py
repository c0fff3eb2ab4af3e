"""What an optimiser stores is mapped as gradients are: closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from archgraph.errors import RewriteError
from archgraph.states import (
    DimMap,
    Entry,
    Slot,
    Transfer,
)
from archgraph.states.optimisers import pull_moments, repeated


def transfer(source: Slot, target: Slot, *dims: DimMap | None, scale: float = 1.0) -> Transfer:
    return Transfer((source,), (target,), {target.name: Entry(source.name, dims, scale)})


W = Slot("w", (4, 3), "float32")


def widen(units: int, where: list[int]) -> Transfer:
    """Net2Wider on the hidden units of a two-layer perceptron."""
    share = (1 / np.bincount(where)[where]).tolist()
    n = len(where)
    source = (Slot("a", (units, 3), "float64"), Slot("b", (2, units), "float64"))
    target = (Slot("a", (n, 3), "float64"), Slot("b", (2, n), "float64"))
    rows, columns = DimMap.of(where, units), DimMap.of(where, units, weights=share)
    entries = {"a": Entry("a", (rows, None)), "b": Entry("b", (None, columns))}
    return Transfer(source, target, entries)


def narrow(units: int, where: list[int]) -> Transfer:
    """Its inverse: mean of the incoming, sum of the outgoing weights."""
    wide = widen(units, where)
    share = 1 / np.bincount(where)[where]
    n = range(len(where))
    rows = DimMap.sparse(where, n, share, size=len(where), length=units)
    columns = DimMap.sparse(where, n, np.ones(len(where)), size=len(where), length=units)
    entries = {"a": Entry("a", (rows, None)), "b": Entry("b", (None, columns))}
    return Transfer(wide.target, wide.source, entries)


def gradients(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    leaves = {k: v.clone().requires_grad_() for k, v in state.items()}
    x = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    loss = (torch.relu(x @ leaves["a"].T) @ leaves["b"].T).square().sum()
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def perceptron() -> dict[str, torch.Tensor]:
    stream = torch.Generator().manual_seed(0)
    shapes = {"a": (4, 3), "b": (2, 4)}
    return {k: torch.randn(s, dtype=torch.float64, generator=stream) for k, s in shapes.items()}


WHERE = [0, 1, 2, 3, 0, 1, 0]


def test_momentum_of_a_widened_model_is_what_its_own_gradients_give():
    wide, state = widen(4, WHERE), perceptron()
    own = gradients(wide.pull(state))
    mapped = pull_moments(wide, gradients(state))
    for name, value in own.items():
        torch.testing.assert_close(mapped[name], value, rtol=1e-12, atol=0)
    squares = {k: v.square() for k, v in gradients(state).items()}
    for name, value in pull_moments(wide, squares, order=2).items():
        torch.testing.assert_close(value, own[name].square(), rtol=1e-12, atol=0)


def test_narrowing_takes_widening_back():
    both = widen(4, WHERE) >> narrow(4, WHERE)
    state = perceptron()
    for name, value in both.pull(state).items():
        torch.testing.assert_close(value, state[name], rtol=1e-15, atol=0)
    wide, back = widen(4, WHERE), narrow(4, WHERE)
    for order in (1, 2):
        there = pull_moments(back, pull_moments(wide, state, order=order), order=order)
        for name, value in there.items():
            torch.testing.assert_close(value, state[name], rtol=1e-14, atol=0)


def test_replicas_merge_to_what_they_were():
    state = perceptron()
    wide = widen(4, WHERE)
    numerator, coverage = wide.push(wide.pull(state))
    for name, value in numerator.items():
        torch.testing.assert_close(value / coverage[name], state[name], rtol=1e-15, atol=0)


def test_a_repeated_leaf_leaves_moments_where_they_were():
    """Whether or not both are widened; with no original left, copies share them."""
    copy = W._replace(name="copy")
    both = Transfer((W,), (W, copy), {k: Entry("w", (None, None)) for k in ("w", "copy")})
    moments = {"w": torch.rand(4, 3)}
    rows = DimMap.of(WHERE, 4)
    wide = {k: Entry("w", (rows, None)) for k in ("w", "copy")}
    slots = (W._replace(shape=(len(WHERE), 3)), copy._replace(shape=(len(WHERE), 3)))
    assert repeated(both) == {"copy"}
    for order in (1, 2):
        found = pull_moments(both, moments, order=order)
        assert torch.equal(found["w"], moments["w"]) and not found["copy"].any()
        grown = pull_moments(Transfer((W,), slots, wide), moments, order=order)
        alone = pull_moments(Transfer((W,), slots[:1], {"w": wide["w"]}), moments, order=order)
        assert torch.equal(grown["w"], alone["w"]) and not grown["copy"].any()
    assert set(pull_moments(both, moments, order=0)) == {"w"}
    assert torch.equal(pull_moments(both, moments, order=-1)["w"], moments["w"])
    names = (copy, copy._replace(name="other"))
    moved = Transfer((W,), names, {s.name: Entry("w", (None, None)) for s in names})
    assert not repeated(moved)
    for value in pull_moments(moved, moments).values():
        torch.testing.assert_close(value, moments["w"] / 2)


def test_moments_of_some_parameters():
    new = Slot("new", (2,), "float32")
    entries = {"w": Entry("w", (None, None)), "new": Entry.initialised(new, "ones")}
    grown = Transfer((W,), (W, new), entries)
    assert pull_moments(grown, {"w": torch.ones(4, 3)})["new"].tolist() == [0, 0]
    assert pull_moments(grown, {"w": torch.tensor(7.0)}, order=0) == {"w": torch.tensor(7.0)}
    assert "w" not in pull_moments(grown, {})
    with pytest.raises(RewriteError, match="no such moment; found 3; expected -1, 0, 1 or 2"):
        pull_moments(grown, {}, order=3)
