"""What a node makes of the program in a message: only what it trusts."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

import torch

from archgraph.errors import RunError
from archgraph.federation import TaskLoss, Train
from archgraph.flower.programs import as_plain, as_program
from archgraph.flower.records import as_record, of_record

NOBODY: frozenset[str] = frozenset()


@pytest.mark.parametrize(
    "value",
    [(1, [2.5, None], True), frozenset({"a", "b"}), {"a": (1,)}, b"\x00\xff", torch.float16],
)
def test_plain_parts_come_back_as_they_were(value):
    back = as_program(as_plain(value), NOBODY)
    assert back == value and type(back) is type(value)


@pytest.mark.parametrize(
    "plain",
    [
        {"class": "subprocess:Popen", "fields": {"args": ["true"]}},
        {"function": "os:abort"},
        {"class": "archgraph.strategies.fedin:InTraining", "fields": {}},
    ],
)
def test_code_outside_the_trusted_modules_is_not_looked_up(plain):
    with pytest.raises(RunError, match="a program that this node does not trust; found"):
        as_program(plain, NOBODY)


@pytest.mark.parametrize(
    "plain",
    [
        {"class": "archgraph.federation.training:os", "fields": {}},
        {"class": "archgraph.federation.training:descend", "fields": {}},
        {"class": "archgraph.federation.training:Outcome", "fields": {}},  # of another module
        {"function": "archgraph.federation.training:Train"},
        {"dtype": "load"},
        {"other": 1},
    ],
)
def test_what_is_not_a_value_is_not_made(plain):
    with pytest.raises(RunError, match="not a program"):
        as_program(plain, NOBODY)


def test_what_cannot_travel_is_named_at_the_server():
    with pytest.raises(RunError, match="cannot be sent to another machine; found partial"):
        as_plain(Train(TaskLoss(predict=functools.partial(max))))


def test_every_type_of_number_travels():
    state = {
        str(dtype): torch.tensor([[0, 1], [1, 0]]).to(dtype)
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool)
    } | {"scalar": torch.tensor(3), "empty": torch.zeros(0, 2)}
    back = of_record(as_record(state))
    assert list(back) == list(state)
    for name, tensor in state.items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name], tensor)
