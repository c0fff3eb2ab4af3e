"""Checks that the tensors of a returned model could result from training."""

from __future__ import annotations

from collections.abc import Collection

import torch

from archgraph.errors import RejectedUpdate
from archgraph.graph.ir import ArchGraph
from archgraph.ops.table import counters, variances
from archgraph.states import State, check_update
from archgraph.states.updates import unsummable

# Maximum number of forward passes of a program with one example in one epoch.
PASSES = 16


def check_ranges(
    graph: ArchGraph, sent: State, state: State, steps: int, *, optional: Collection[str] = ()
) -> None:
    """Check that a returned state fits its architecture and could result from training.

    Masks must be unchanged. Other values must be finite and small enough to be summed without
    overflow. Running variances must not be negative. Counters must not have advanced by more than
    the possible number of steps.

    Args:
        graph: The architecture.
        sent: The state that was sent; private tensors may be missing.
        state: The returned state.
        steps: Maximum number of forward passes.
        optional: Names of tensors that may be missing, such as private tensors.

    Raises:
        RejectedUpdate: If a tensor is missing or invalid. The message names the tensor.

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
    """Check that running variances are not negative."""
    # One transfer from the device for all variances.
    names = [name for name in variances(graph) if name in state and state[name].numel()]
    smallest = torch.stack([state[name].min() for name in names]).cpu().tolist() if names else []
    for name, least in zip(names, smallest, strict=True):
        # The client is not rejected for a negative variance that it was sent.
        if least < 0 and (name not in sent or least < float(sent[name].min())):
            raise RejectedUpdate(
                "negative variance", where=name, found=f"{least:g}", expected="0 or more"
            )


def _check_counters(graph: ArchGraph, sent: State, state: State, steps: int) -> None:
    """Check that counters did not decrease, and advanced by at most the possible steps."""
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
                "a counter does not fit the number of training steps",
                where=name,
                found=f"{least if least < 0 else most:+d}",
                expected=f"an increase of 0 to {allowed}",
            )
