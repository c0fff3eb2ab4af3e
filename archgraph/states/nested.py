"""The transfer from one part of a model to a smaller part inside it."""

from __future__ import annotations

import numpy as np

from archgraph.errors import RewriteError
from archgraph.states.dimension_map import DimMap
from archgraph.states.entry import Entry
from archgraph.states.transfer import Transfer


def nested(larger: Transfer, smaller: Transfer) -> Transfer:
    """Return the transfer (mapping of weights) from a larger to a smaller submodel of a model.

    Args:
        larger: Transfer from the model to the larger submodel.
        smaller: Transfer from the model to the smaller submodel.

    Returns:
        The transfer from the larger to the smaller submodel: ``larger >> nested(larger, smaller) ==
        smaller``.

    Raises:
        RewriteError: If the larger submodel does not contain all values of the smaller submodel.
            The message names the parameter.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> from archgraph.rewrites.take import take
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> graph = trace(net, torch.zeros(1, 3)).graph
        >>> half, quarter = (take(graph, share).transfer for share in (0.5, 0.25))
        >>> print(nested(half, quarter).entries["0.weight"])
        0.weight[:2, :]
        >>> half >> nested(half, quarter) == quarter
        True
    """
    if larger.source != smaller.source:
        raise RewriteError("transfers of different models", found=smaller, expected=larger)
    homes: dict[str | None, list[str]] = {}
    for name, entry in larger.entries.items():
        homes.setdefault(entry.source, []).append(name)
    entries = {}
    for name, entry in smaller.entries.items():
        parts = homes.get(entry.source, []) if entry.source is not None else []
        # If an entry has several copies (grafted blocks), it is unclear which one is meant.
        outer = larger.entries[parts[0]] if len(parts) == 1 else None
        if outer is None or not (outer.selects and entry.selects):
            raise RewriteError(
                "is not a selection from one entry of the larger part", where=name, found=entry
            )
        try:
            dims = tuple(map(_within, outer.dims, entry.dims))
        except LookupError as error:
            raise RewriteError(
                f"has positions that the larger part lacks; the larger part has {outer}",
                where=name,
                found=entry,
            ) from error
        entries[name] = Entry(parts[0], dims)
    return Transfer(larger.target, smaller.target, entries)


def _within(outer: DimMap | None, inner: DimMap | None) -> DimMap | None:
    """Return the positions of one selection within another."""
    if outer is None or outer == inner:
        return None if outer is not None else inner
    positions = np.arange(outer.size) if inner is None else inner.positions
    inverse = np.full(outer.size, -1)
    inverse[outer.positions] = np.arange(outer.length)
    if (inverse[positions] < 0).any():
        raise LookupError
    return DimMap.of(inverse[positions], outer.length)
