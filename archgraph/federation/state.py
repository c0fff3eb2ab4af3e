"""The server's state between rounds: tensors and JSON values."""

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
    """The server's state between rounds: tensors and JSON values.

    Names of tensors are paths such as ``global/layer1.0.conv1.weight``. Tensors with the same
    prefix before the first slash form a group, here ``global``. Tensors are never changed in place.
    A checkpoint can therefore skip groups whose tensors were not replaced since the previous
    checkpoint.

    Attributes:
        tensors: Dict from path to tensor.
        values: Dict from name to JSON value.
    """

    tensors: State = field(default_factory=dict)
    values: Mapping[str, Json] = field(default_factory=dict)

    def group(self, name: str) -> dict[str, Tensor]:
        """Return the tensors of a group, without the group's prefix in their names.

        >>> import torch
        >>> ServerState({"global/w": torch.ones(1), "h/w": torch.zeros(1)}).group("global")
        {'w': tensor([1.])}
        """
        prefix = f"{name}/"
        near = self._roots.get(name.partition("/")[0], {}).items()
        return {k[len(prefix) :]: v for k, v in near if k.startswith(prefix)}

    @functools.cached_property
    def _roots(self) -> dict[str, dict[str, Tensor]]:
        """Dict from group to its tensors, so that a group is found without a search."""
        roots: dict[str, dict[str, Tensor]] = {}
        for path, value in self.tensors.items():
            roots.setdefault(path.partition("/")[0], {})[path] = value
        return roots

    def with_group(self, name: str, tensors: State) -> ServerState:
        """Return a copy of the state in which ``tensors`` replace all tensors of a group."""
        prefix = f"{name}/"
        # Replaced, not updated: tensors that the new group lacks are removed.
        others = {k: v for k, v in self.tensors.items() if not k.startswith(prefix)}
        return ServerState(others | {prefix + k: v for k, v in tensors.items()}, self.values)

    def with_values(self, **values: Json) -> ServerState:
        """Return a copy of the state in which some JSON values are added or replaced."""
        return ServerState(self.tensors, {**self.values, **values})
