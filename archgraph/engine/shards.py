"""Clients' examples that stay on a device from round to round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from archgraph.federation import Shard


@dataclass(eq=False)
class DeviceShards:
    """Clients' examples on a device: those of the first clients that fit stay there.

    None makes room for another: whoever trains in turn would then never find its own.

    Attributes:
        limit: Megabytes that may stay.

    Example:
        >>> import torch
        >>> shards = DeviceShards(1.0)
        >>> first, again = (
        ...     shards.of(0, lambda client: Shard((), torch.ones(2), (2,))) for _ in range(2)
        ... )
        >>> first is again
        True
    """

    limit: float = 1000.0
    _there: dict[int, tuple[Shard, list[int]]] = field(default_factory=dict)
    _bytes: int = 0

    def of(self, client: int, read: Callable[[int], Shard]) -> Shard:
        """Return a client's examples, read anew if they do not stay or a program wrote to them."""
        shard, versions = self._there.pop(client, (None, []))
        if shard is None or versions != _versions(shard):
            self._bytes -= 0 if shard is None else _size(shard)
            shard = read(client)
            if self._bytes + _size(shard) > self.limit * 2**20:
                return shard
            self._bytes += _size(shard)
        self._there[client] = shard, _versions(shard)
        return shard

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the examples: another process has them on its own device."""
        return DeviceShards, (self.limit,)


def _tensors(shard: Shard) -> tuple[Tensor, ...]:
    return (*shard.inputs, shard.targets)


def _size(shard: Shard) -> int:
    return sum(tensor.nbytes for tensor in _tensors(shard))


def _versions(shard: Shard) -> list[int]:
    """Return how often each tensor was written to."""
    return [tensor._version for tensor in _tensors(shard)]
