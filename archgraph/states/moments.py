"""What an optimiser stores per parameter, mapped as gradients are, not as weights are."""

from __future__ import annotations

import torch
from torch import Tensor

from archgraph.errors import RewriteError
from archgraph.states.coverage import Coverage
from archgraph.states.entry import Entry
from archgraph.states.state import State
from archgraph.states.transfer import Transfer, entry_of


def repeated(transfer: Transfer) -> frozenset[str]:
    """Entries that begin as copies of one which is still there under its own name."""
    stay = {name for name, entry in transfer.entries.items() if entry.source == name}
    return frozenset(
        name
        for name, entry in transfer.entries.items()
        if entry.source in stay and name not in stay
    )


@torch.no_grad()
def pull_moments(transfer: Transfer, moments: State, *, order: int = 1) -> dict[str, Tensor]:
    """What an optimiser stores per parameter, mapped so that training can go on.

    Gradients transform with the transpose's inverse, not with the weights: where a unit is
    replicated with its outgoing weights divided, the outgoing gradients stay and the incoming
    ones are divided. With coverage D = |A|ᵀ|A| 1 the first moment maps as A D⁻¹, the second as
    (|A| D⁻¹ 1) ∘ |A| D⁻¹, exact for replicas and for merging them again. What is
    :func:`repeated` takes no part: the original keeps its moments.

    Args:
        transfer: From the old state to the new one.
        moments: By parameter name; parameters that the optimiser does not know may be missing.
        order: 1 for momentum and Adam's ``exp_avg``; 2 for ``exp_avg_sq``; 0 for what a factor
            on the gradient does not change: a mean over what an entry is composed of, or, without
            axes of the parameter (``step``), a copy; -1 for averages of weights.

    Returns:
        By target name; zeros for an initialised parameter and a repeated one.

    Raises:
        RewriteError: For another order, or moments of another shape than their parameter.
    """
    if order not in (-1, 0, 1, 2):
        raise RewriteError("no such moment", found=order, expected="-1, 0, 1 or 2")
    without = repeated(transfer)
    coverage = Coverage.of(
        transfer.shapes, (e for name, e in transfer.entries.items() if name not in without)
    )
    inverse: dict[str, Tensor] = {}  # D⁻¹ by source entry
    result: dict[str, Tensor] = {}
    for slot in transfer.target:
        entry = transfer.entries[slot.name]
        source = entry.source
        if source is None or slot.name in without:
            if order and slot.role == "parameter":
                result[slot.name] = torch.zeros(slot.shape, dtype=slot.torch_dtype)
        elif source not in moments:
            continue
        elif order == 0 and moments[source].shape != transfer.shapes[source]:
            result[slot.name] = moments[source].clone()
        else:
            value = entry_of(moments, source, transfer.shapes[source])
            if order > 0 and source not in inverse:
                covered = coverage[source].to(value)
                inverse[source] = torch.where(covered > 0, 1 / covered, 0)
            result[slot.name] = _moment(entry, value, order, inverse.get(source))
    return result


def _moment(entry: Entry, value: Tensor, order: int, inverse: Tensor | None) -> Tensor:
    if order == -1:
        return entry.pull(value)
    magnitude = entry.magnitude()
    if inverse is None:
        total = magnitude.pull(torch.ones_like(value))
        return torch.where(total > 0, magnitude.pull(value) / total, 0)
    if order == 1:
        return entry.pull(value * inverse)
    return magnitude.pull(inverse) * magnitude.pull(value * inverse)
