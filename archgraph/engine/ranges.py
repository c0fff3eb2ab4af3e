"""What values a client's model can have after training, by the roles of its entries."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor

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
    """Check that a state is one of its architecture that training can have led to.

    Its values are finite and small enough to be summed, or a mask as it was sent; no running
    variance is negative, and counters have advanced by no more than the steps that were done.

    Args:
        graph: The architecture.
        sent: What the client got; entries that it kept itself may be missing.
        state: What it returned.
        steps: Forward passes that it may have done.
        optional: Entries that may be missing (what stays with the client).

    Raises:
        RejectedUpdate: If not; names the entry.

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
    for name in variances(graph):
        least = _least(state.get(name))
        # One that it was sent already is not the client's fault.
        if least < min(_least(sent.get(name)), 0):
            raise RejectedUpdate(
                "negative variance", where=name, found=f"{least:g}", expected="0 or more"
            )
    for name, step in counters(graph).items():
        if name in sent and name in state and state[name].numel():
            advance = state[name] - sent[name].to(state[name].device)
            least, most = int(advance.min()), int(advance.max())
            if least < 0 or most > steps * step:
                raise RejectedUpdate(
                    "a counter has not counted the steps",
                    where=name,
                    found=f"{least if least < 0 else most:+d}",
                    expected=f"an advance of 0 to {steps * step}",
                )


def _least(values: Tensor | None) -> float:
    return 0.0 if values is None or not values.numel() else float(values.min())
