"""States go to a device that copies by itself as one buffer, and are the same there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from archgraph.states import copies
from archgraph.states.copies import server_copies, state_to_device, to_device

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


class Calls(TorchDispatchMode):
    """Records which operators run."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.ops.append(func._schema.name)
        return func(*args, **kwargs or {})


def test_what_comes_from_a_device_is_not_read_before_it_has_arrived() -> None:
    images = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    state = {**STATE, "images": images}
    with Calls() as calls:
        there = server_copies(state)
    # Any further operator would read memory that a GPU may still have to write to.
    assert calls.ops == ["aten::_to_copy"] * len(state)
    for name, value in state.items():
        assert torch.equal(there[name], value) and there[name].is_contiguous()
        assert there[name] is not value
