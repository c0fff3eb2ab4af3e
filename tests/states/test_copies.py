"""States go to a device that copies by itself as one buffer, and are the same there."""

from __future__ import annotations

import pytest
import torch

from archgraph.states import copies
from archgraph.states.copies import state_to_device, to_device

STATE = {
    "w": torch.randn(3, 5, dtype=torch.float64),
    "mask": torch.tensor([True, False, True]),
    "count": torch.tensor(7),
    "empty": torch.zeros(0, 4),
    "turned": torch.randn(4, 3).T,
    "half": torch.randn(5, dtype=torch.bfloat16),
}


@pytest.fixture
def asynchronous(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the processor count as a device to which copies go by themselves."""
    monkeypatch.setattr(copies, "ASYNCHRONOUS", {"cpu"})


@pytest.mark.usefixtures("asynchronous")
def test_a_state_arrives_as_one_buffer_with_the_same_values() -> None:
    there = state_to_device(STATE, "cpu")
    assert list(there) == list(STATE)
    for name, value in STATE.items():
        assert there[name].dtype == value.dtype and torch.equal(there[name], value)
    # One memory, in which entries begin as tensors of their own do.
    assert len({value.untyped_storage().data_ptr() for value in there.values()}) == 1
    for value in there.values():
        assert value.storage_offset() * value.itemsize % 512 == 0
    there["w"].zero_()
    assert STATE["w"].all() and torch.equal(there["mask"], STATE["mask"])


@pytest.mark.usefixtures("asynchronous")
def test_one_tensor_arrives_with_its_strides() -> None:
    there = to_device(STATE["turned"], "cpu")
    assert torch.equal(there, STATE["turned"]) and there.stride() == STATE["turned"].stride()
    assert there is not STATE["turned"]


def test_elsewhere_entries_are_copied_one_by_one_if_at_all() -> None:
    assert all(state_to_device(STATE, "cpu")[name] is STATE[name] for name in STATE)
    copied = state_to_device(STATE, "cpu", copy=True)
    assert all(copied[name] is not STATE[name] for name in STATE)
    assert to_device(STATE["w"], "cpu") is STATE["w"]
