"""The server's state between rounds: tensors and plain values."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from archgraph.fields import GLOBAL as GLOBAL
from archgraph.plain import Json as Json
from archgraph.states import State as State


@dataclass(frozen=True)
class ServerState:
    """Everything that changes between rounds on the server: tensors and plain values.

    Tensor names are paths; the part before the first slash is a group, e.g.
    ``global/layer1.0.conv1.weight``. Tensors are never changed in place: a checkpoint writes only
    the groups whose tensors changed.

    Attributes:
        tensors: Dict from path to tensor.
        values: Dict from name to plain value.
    """

    tensors: State = field(default_factory=dict)
    values: Mapping[str, Json] = field(default_factory=dict)

    def group(self, name: str) -> dict[str, Tensor]:
        """Return a dict of the tensors below a path, without the path in their names.

        >>> import torch
        >>> ServerState({"global/w": torch.ones(1), "h/w": torch.zeros(1)}).group("global")
        {'w': tensor([1.])}
        """
        prefix = f"{name}/"
        near = self._roots.get(name.partition("/")[0], {}).items()
        return {k[len(prefix) :]: v for k, v in near if k.startswith(prefix)}

    @functools.cached_property
    def _roots(self) -> dict[str, dict[str, Tensor]]:
        """The tensors by the first part of their paths: a group of thousands is found at once."""
        roots: dict[str, dict[str, Tensor]] = {}
        for path, value in self.tensors.items():
            roots.setdefault(path.partition("/")[0], {})[path] = value
        return roots

    def with_group(self, name: str, tensors: State) -> ServerState:
        """Return the state with all tensors below a path replaced."""
        prefix = f"{name}/"
        # Replaced and not updated: entries that the new group lacks are removed.
        others = {k: v for k, v in self.tensors.items() if not k.startswith(prefix)}
        return ServerState(others | {prefix + k: v for k, v in tensors.items()}, self.values)

    def with_values(self, **values: Json) -> ServerState:
        """Return the state with some plain values replaced."""
        return ServerState(self.tensors, {**self.values, **values})
