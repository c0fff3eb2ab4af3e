"""Calling a module with the inputs of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from torch import nn

# Inputs of the network (a single one, a list, or a mapping by name), and its targets.
BatchPair: TypeAlias = tuple[Any, Any]


def called(net: nn.Module, inputs: Any) -> Any:
    """Call a network with the inputs of a batch: a single one, a list, or a mapping by name."""
    if isinstance(inputs, Mapping):
        return net(**inputs)
    return net(*inputs) if isinstance(inputs, list | tuple) else net(inputs)
