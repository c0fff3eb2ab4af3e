"""Count the bytes sent to a client with a task, and the bytes returned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from archgraph.federation import Result, State, Task
from archgraph.record.client import ClientState

DOWN, UP = "bytes_down", "bytes_up"
"""Keys of the bytes sent and returned, in a client's row."""

POSITION = 4
"""Number of bytes of the index of a number, if only a tensor's nonzero numbers are sent."""


def size(*states: State) -> int:
    """Return the number of bytes of all tensors.

    >>> import torch
    >>> size({"w": torch.zeros(2, 3), "n": torch.zeros((), dtype=torch.int64)})
    32
    """
    return sum(t.numel() * t.element_size() for state in states for t in state.values())


def masked_size(state: State, indexed: frozenset[str], index: int = 0) -> int:
    """Return the number of bytes of a state.

    In ``indexed`` tensors, only nonzero numbers count, each with ``index`` additional bytes.

    >>> import torch
    >>> masked_size({"w": torch.tensor([0.0, 2.0, 3.0]), "b": torch.zeros(2)}, frozenset("w"), 4)
    24
    """
    dense = {name: t for name, t in state.items() if name not in indexed}
    return size(dense) + sum(
        int(state[name].count_nonzero()) * (state[name].element_size() + index)
        for name in indexed & state.keys()
    )


def sent(task: Task, private: ClientState) -> int:
    """Return the bytes of the tensors sent with a task, except those that the client already has.

    Plain values and the architecture are not counted.
    """
    state = private.over(task.state, task.private)
    new = task.state.keys() - task.known
    brought = {name: t for name, t in task.state.items() if name in new and state[name] is t}
    others = size(task.extras, *(model.state for model in task.others.values()))
    return masked_size(brought, task.indexed, POSITION) + others


def back(result: Result) -> int:
    """Return the number of bytes that a client returns: all tensors except private ones."""
    others = size(result.extras, *result.others.values())
    return masked_size(result.state, result.indexed) + others


def traffic(line: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes down and up in a round, including lost updates; empty if not recorded.

    >>> traffic({"clients": [{"bytes_down": 3, "bytes_up": 2}], "failed": [{"bytes_down": 3}]})
    {'bytes_down': 6, 'bytes_up': 2}
    """
    if DOWN in line:  # a condensed line, which contains only the number of rows
        return {way: line[way] for way in (DOWN, UP)}
    rows = [row for kind in ("clients", "rejected", "failed") for row in line.get(kind) or ()]
    known = any(DOWN in row for row in rows)
    return {way: sum(row.get(way, 0) for row in rows) for way in (DOWN, UP)} if known else {}
