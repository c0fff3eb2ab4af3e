"""How far an update goes, and updates that go only part of that way."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from archgraph.states.clipping import change, clipped


def states(seed: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    sent = {
        "w": torch.randn(3, 4, generator=draw),
        "half": torch.randn(5, generator=draw).bfloat16(),
        "wave": torch.randn(2, generator=draw, dtype=torch.complex64),
        "var": torch.rand(4, generator=draw),
        "steps": torch.tensor(7),
    }
    after = {k: v + torch.rand(v.shape, generator=draw) for k, v in sent.items() if k != "steps"}
    after = {k: v.to(sent[k].dtype) for k, v in after.items()}
    return sent, {**after, "steps": torch.tensor(9), "kept": torch.ones(2)}


@given(seed=st.integers(0, 99), factor=st.floats(0, 0.999))
def test_a_clipped_update_has_the_factor_times_the_norm_and_overshoots_nowhere(seed, factor):
    sent, after = states(seed)
    part = clipped(sent, after, factor)
    assert part.keys() == after.keys()
    # bfloat16 rounds at 2⁻⁹ of values up to 3 or so.
    full, less = (change(sent, s, unmerged={"half"}).norm for s in (after, part))
    assert less == pytest.approx(factor * full, rel=1e-5, abs=1e-6)
    for name in ("w", "var", "half"):
        low, high = torch.minimum(sent[name], after[name]), torch.maximum(sent[name], after[name])
        assert ((part[name] >= low) & (part[name] <= high)).all()
    assert (part["var"] >= 0).all()
    assert torch.equal(part["steps"], after["steps"]) and torch.equal(part["kept"], after["kept"])
    assert all(part[k].dtype == after[k].dtype for k in after)


def test_from_factor_one_on_the_update_itself_is_returned():
    sent, after = states(0)
    assert clipped(sent, after, 1.0) is after


def test_what_is_left_out_neither_counts_nor_moves():
    sent, after = states(1)
    part = clipped(sent, after, 0.0, unmerged={"w"})
    assert torch.equal(part["w"], after["w"]) and torch.equal(part["var"], sent["var"])
    whole, less = change(sent, after), change(sent, after, unmerged={"w"})
    assert whole.values - less.values == 12 and less.norm < whole.norm
    assert whole.values == 12 + 5 + 2 + 4


def test_nothing_that_counts_has_no_size():
    steps = {"steps": torch.tensor(3)}
    assert change(steps, steps) == (0.0, 0) and change(steps, steps).rms == 0


def test_a_size_whose_square_overflows_is_measured():
    sent = {name: torch.zeros(1, dtype=torch.float64) for name in "ab"}
    after = {"a": sent["a"] + 3e200, "b": sent["b"] + 4e200}
    assert change(sent, after).norm == pytest.approx(5e200)


def test_a_size_beyond_single_precision_is_measured_and_clipped():
    sent, after = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([3e38, 3e38])}
    size = change(sent, after)
    assert size.norm == pytest.approx(3e38 * math.sqrt(2))
    part = clipped(sent, after, 1.0 / size.norm)
    assert part["w"].tolist() == pytest.approx([1 + 0.5**0.5, 2 + 0.5**0.5], rel=1e-6)
