"""Measure the size of an update, and scale an update down."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from archgraph.states.state import State, accumulator
from archgraph.states.wire import carried


@carried
class UpdateSize(NamedTuple):
    """The size of an update: its norm and its number of values.

    Attributes:
        norm: L2 norm over all values that can be averaged.
        values: Number of values that can be averaged.
    """

    norm: float
    values: int

    @property
    def rms(self) -> float:
        """Root mean square of the changes, comparable between models of different sizes."""
        return self.norm / math.sqrt(max(self.values, 1))


@torch.no_grad()
def change(sent: State, state: State, unmerged: Collection[str] = ()) -> UpdateSize:
    """Return the size of the update ``state - sent``, computed in double precision.

    Args:
        sent: The state that the client received.
        state: The state that the client returned. Integers and tensors that are not in ``sent`` are
            ignored.
        unmerged: Names of further tensors to ignore.

    Example:
        >>> size = change({"w": torch.zeros(4)}, {"w": torch.tensor([2.0, -2.0, 2.0, -2.0])})
        >>> size.norm, size.rms
        (4.0, 2.0)
    """
    norms, values = [], 0
    for _, before, after in _changed(sent, state, unmerged):
        norms.append(float(torch.linalg.vector_norm(after - before)))
        values += after.numel()
    return UpdateSize(math.hypot(*norms), values)  # squares could overflow


@torch.no_grad()
def clipped(sent: State, state: State, factor: float, unmerged: Collection[str] = ()) -> State:
    """Return ``sent + factor · (state - sent)``, the state of the scaled update.

    The norm of the new update is ``factor`` times the old norm, up to rounding. Every value lies
    between the sent and the returned value, so variances stay nonnegative. Integers are copied from
    ``state``.

    Args:
        sent: The state that the client received.
        state: The state that the client returned.
        factor: Factor on the update. At 1 or more, ``state`` itself is returned.
        unmerged: Names of tensors that are not scaled.

    Example:
        >>> clipped({"w": torch.zeros(2)}, {"w": torch.tensor([3.0, -4.0])}, 0.5)
        {'w': tensor([ 1.5000, -2.0000])}
    """
    if factor >= 1:
        return state
    return dict(state) | {
        name: torch.lerp(before, after, factor).to(state[name].dtype)
        for name, before, after in _changed(sent, state, unmerged)
    }


def _changed(
    sent: State, state: State, unmerged: Collection[str]
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield each entry that counts: name, value before, value after (in double precision)."""
    for name, after in state.items():
        inexact = after.is_floating_point() or after.is_complex()
        if inexact and name in sent and name not in unmerged:
            wide = torch.promote_types(accumulator(after.dtype), torch.float64)
            yield name, sent[name].to(after.device, wide), after.to(wide)
