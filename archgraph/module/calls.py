"""Call a module with the inputs of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from torch import nn

# Inputs of the network (a value, a list, or a dict from argument name to value), and targets.
BatchPair: TypeAlias = tuple[Any, Any]


def called(net: nn.Module, inputs: Any) -> Any:
    """Call a network with inputs: a value, a list of values, or a dict from argument to value."""
    if isinstance(inputs, Mapping):
        return net(**inputs)
    return net(*inputs) if isinstance(inputs, list | tuple) else net(inputs)
