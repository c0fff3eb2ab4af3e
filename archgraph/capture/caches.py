"""Results that are kept for the next call (keys and values of generation): a graph has none.

They are objects that a graph cannot hold, and a model that has them also has a switch for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

_SWITCHES = ("use_cache",)  # of the ``config`` of a module


@contextlib.contextmanager
def uncached(model: torch.nn.Module) -> Iterator[list[str]]:
    """Switch off what is kept for the next call, for a while; gives a note for each switch."""
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    on = [(c, name) for c in configs.values() for name in _SWITCHES if _is_on(c, name)]
    for config, name in on:
        setattr(config, name, False)
    try:
        yield [
            f"config.{name} is off in the graph: what it adds to the results is of a type that a "
            "graph cannot hold"
            for name in dict.fromkeys(name for _, name in on)
        ]
    finally:
        for config, name in on:
            setattr(config, name, True)


def _is_on(config: Any, name: str) -> bool:
    return getattr(config, name, None) is True
