"""What weights are: tensors by leaf name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

#: Tensors by the names of an architecture's parameters and buffers, as in a state dict.
State: TypeAlias = "Mapping[str, Tensor]"
