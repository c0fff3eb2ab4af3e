"""Results that are kept for the next call (keys and values of generation): a graph has none.

They are objects that a graph cannot hold, and a model that has them also has a switch for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def uncached(model: torch.nn.Module) -> Iterator[list[str]]:
    """Switch ``config.use_cache`` of all modules off for a while, and give the note on it."""
    every: list[Any] = [getattr(module, "config", None) for module in model.modules()]
    configs = [c for c in every if getattr(c, "use_cache", None) is True]
    for config in configs:
        config.use_cache = False
    note = (
        "config.use_cache is off in the graph: what it adds to the results is of a type that a "
        "graph cannot hold"
    )
    try:
        yield [note] if configs else []
    finally:
        for config in configs:
            config.use_cache = True
