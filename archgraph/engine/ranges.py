"""Possible values of a client's model after training, from the role of each entry."""

from __future__ import annotations

from collections.abc import Collection

import torch

from archgraph.errors import RejectedUpdate
from archgraph.graph.ir import ArchGraph
from archgraph.ops.table import counters, variances
from archgraph.states import State, check_update
from archgraph.states.updates import unsummable

# Forward passes that a program may do with one example in one epoch.
PASSES = 16


def check_ranges(
    graph: ArchGraph, sent: State, state: State, steps: int, *, optional: Collection[str] = ()
) -> None:
    """Check that a state fits its architecture and can result from training.

    Values must be finite and small enough to be summed, or a mask as it was sent. Running variances
    must not be negative, and counters must not have advanced by more than the possible steps.

    Args:
        graph: The architecture.
        sent: The sent state; private entries may be missing.
        state: The returned state.
        steps: Forward passes that it may have done.
        optional: Entries that may be missing (private entries).

    Raises:
        RejectedUpdate: If this is not the case; names the entry.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from archgraph.capture.trace import trace
        >>> graph, sent = trace(nn.BatchNorm1d(2), torch.zeros(3, 2))
        >>> state = sent | {"running_var": torch.tensor([1.0, -1000.0])}
        >>> check_ranges(graph, sent, state, steps=10)
        Traceback (most recent call last):
        archgraph.errors.RejectedUpdate: running_var: negative variance; found -1000; expected ...
    """
    check_update(graph, state, optional=optional, fixed=unsummable(graph, sent))
    _check_variances(graph, sent, state)
    _check_counters(graph, sent, state, steps)


def _check_variances(graph: ArchGraph, sent: State, state: State) -> None:
    """Raise if a running variance is negative."""
    # One transfer from the device for all of them.
    names = [name for name in variances(graph) if name in state and state[name].numel()]
    smallest = torch.stack([state[name].min() for name in names]).cpu().tolist() if names else []
    for name, least in zip(names, smallest, strict=True):
        # One that it was already sent is not the client's fault.
        if least < 0 and (name not in sent or least < float(sent[name].min())):
            raise RejectedUpdate(
                "negative variance", where=name, found=f"{least:g}", expected="0 or more"
            )


def _check_counters(graph: ArchGraph, sent: State, state: State, steps: int) -> None:
    """Raise if a counter has gone back, or advanced by more than the steps that were done."""
    advanced = {
        name: torch.stack((state[name] - sent[name].to(state[name].device)).aminmax())
        for name in counters(graph)
        if name in sent and name in state and state[name].numel()
    }
    ends = torch.stack([*advanced.values()]).cpu().tolist() if advanced else []
    for name, (least, most) in zip(advanced, ends, strict=True):
        allowed = steps * counters(graph)[name]
        if least < 0 or most > allowed:
            raise RejectedUpdate(
                "a counter has not counted the steps",
                where=name,
                found=f"{least if least < 0 else most:+d}",
                expected=f"an advance of 0 to {allowed}",
            )
