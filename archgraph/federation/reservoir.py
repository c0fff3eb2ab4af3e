"""A uniform sample, of bounded size, of all rows that a server has received."""

from __future__ import annotations

import torch
from torch import Tensor

from archgraph.states import State


def reservoir(
    old: State, new: State, earlier: int, capacity: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """Update a uniform sample of all rows received so far (Vitter's algorithm R).

    Args:
        old: The sample before the update, as a dict from name to rows ``[row, ...]``. Rows with the
            same index belong to one example.
        new: Dict from name to the new rows.
        earlier: Number of rows that were received before the new rows.
        capacity: Maximum number of rows in the sample.
        generator: Source of randomness.

    Example:
        >>> from archgraph.federation import seeded
        >>> rows = reservoir({}, {"in/0": torch.arange(3.0)}, 0, 8, seeded(0, "store"))
        >>> rows["in/0"].tolist()
        [0.0, 1.0, 2.0]
    """
    count = len(next(iter(new.values())))
    numbers = torch.arange(earlier, earlier + count)
    chance = torch.rand(count, generator=generator, dtype=torch.float64)
    # Algorithm R: row n draws one of n + 1 slots, and is dropped if the slot is beyond capacity.
    drawn = torch.where(numbers < capacity, numbers, (chance * (numbers + 1)).long())
    # If several rows draw the same slot, the last row stays.
    slots = {slot: row for row, slot in enumerate(drawn.tolist()) if slot < capacity}
    filled, size = min(earlier, capacity), min(earlier + count, capacity)
    at = torch.tensor(list(slots), dtype=torch.int64)
    rows = torch.tensor(list(slots.values()), dtype=torch.int64)
    result = {}
    for name, arrived in new.items():
        if not slots:
            result[name] = old[name]
            continue
        # A new tensor, since a state's tensors are never changed in place.
        result[name] = arrived.new_empty((size, *arrived.shape[1:]))
        if filled:
            result[name][:filled] = old[name]
        result[name].index_copy_(0, at, arrived.index_select(0, rows))
    return result
