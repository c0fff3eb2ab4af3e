"""From a node's features to tensors of its shapes: one decoder for each slot."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

DecoderKind = Literal["tiled", "low_rank"]
Elementwise = Callable[[Tensor], Tensor]


def stretch(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Repeat and crop each dimension of a tensor to a shape, from its start.

    Example:
        >>> import torch
        >>> stretch(torch.tensor([[1, 2], [3, 4]]), (1, 5)).tolist()
        [[1, 2, 1, 2, 1]]
    """
    tensor = crop(tensor, shape)
    # The first dimension last: gradients are then summed over it first, in long rows.
    for dim in reversed(range(len(shape))):
        if (times := -(-shape[dim] // max(tensor.shape[dim], 1))) != 1:
            tensor = tensor.repeat([times if d == dim else 1 for d in range(len(shape))])
            tensor = tensor.narrow(dim, 0, shape[dim])
    return tensor


def _halved(shape: Sequence[int], most: int) -> tuple[int, ...]:
    """Halve the longest side of a shape until it has at most so many values."""
    sides = [*shape]
    while math.prod(sides) > most:
        widest = sides.index(max(sides))
        sides[widest] = -(-sides[widest] // 2)
    return tuple(sides)


def crop(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Crop a tensor to its start in each dimension where it is longer than the shape."""
    for dim, size in enumerate(shape):
        if size < tensor.shape[dim]:  # a cut that cuts nothing would copy its gradient
            tensor = tensor.narrow(dim, 0, size)
    return tensor


class Decoder(nn.Module, ABC):
    """Two layers from ``[h_v, a_m]`` to a slot's codes, and from a code to a tensor.

    Args:
        features: Size of ``[h_v, a_m]``.
        hidden: Size of the hidden layer.
        shape: Shape of a code.
    """

    def __init__(self, features: int, hidden: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.size = shape, math.prod(shape)
        self.inner, self.outer = nn.Linear(features, hidden), nn.Linear(hidden, self.size)
        # Features of variance 1 give codes of variance 1: a form's scale is the tensor's then.
        nn.init.kaiming_normal_(self.inner.weight, nonlinearity="relu")
        nn.init.kaiming_normal_(self.outer.weight, nonlinearity="linear")
        nn.init.zeros_(self.inner.bias)
        nn.init.zeros_(self.outer.bias)

    def forward(self, features: Tensor, largest: tuple[int, ...]) -> Tensor:
        """Return codes of features, as much of them as tensors of some size need.

        Args:
            features: [rows, features].
            largest: Largest size of each dimension among the tensors of these rows.

        Returns:
            [rows, *part].
        """
        part, hidden = self.part(largest), self.inner(features).relu()
        weight = crop(self.outer.weight.view(*self.shape, -1), (*part, hidden.shape[1]))
        bias = crop(self.outer.bias.view(self.shape), part)
        codes = functional.linear(hidden, weight.reshape(-1, hidden.shape[1]), bias.reshape(-1))
        return codes.view(-1, *part)

    @abstractmethod
    def part(self, largest: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the part of a code that tensors of at most this size need."""

    @abstractmethod
    def tensors(self, codes: Tensor, shape: tuple[int, ...], form: Elementwise) -> Tensor:
        """Decode codes [rows, *part] to tensors [rows, *shape], every number in its form."""


class Tiled(Decoder):
    """A code is a tile, at most ``tile`` long in each dimension, which is repeated and cropped.

    A tile never has more values than one of ``tile × tile`` with kernels of 3 × 3, and a vector
    never more than ``tile²``.

    Args:
        features: Size of ``[h_v, a_m]``.
        hidden: Size of the hidden layer.
        largest: Largest size of each dimension among the slot's tensors.
        tile: Longest side.

    Example:
        >>> Tiled(8, 4, (512, 256, 3, 3), tile=64).shape, Tiled(8, 4, (512,), tile=64).shape
        ((64, 64, 3, 3), (512,))
    """

    def __init__(self, features: int, hidden: int, largest: tuple[int, ...], tile: int) -> None:
        longest = tile if len(largest) > 1 else tile * tile
        sides = [min(size, longest) for size in largest]
        super().__init__(features, hidden, _halved(sides, 9 * tile * tile))

    def part(self, largest: tuple[int, ...]) -> tuple[int, ...]:
        """Return the start of the tile: kernels of 1 × 1 need a ninth of that for 3 × 3."""
        return tuple(map(min, self.shape, largest))

    def tensors(self, codes: Tensor, shape: tuple[int, ...], form: Elementwise) -> Tensor:
        """Repeat and crop the tiles; the form is applied while they are small."""
        shape = (len(codes), *shape)
        return stretch(form(crop(codes, shape)), shape)


class LowRank(Decoder):
    """A code is ``rank`` vectors for each of the first two dimensions, and as many kernels.

    The tensor is ``Σ u ⊗ v ⊗ k``, with nothing repeated as long as no side exceeds ``longest``.

    Args:
        features: Size of ``[h_v, a_m]``.
        hidden: Size of the hidden layer.
        largest: Largest size of each of the (two or more) dimensions of the slot's tensors.
        rank: Number of terms.
        longest: Longest vector and largest kernel.
    """

    def __init__(
        self, features: int, hidden: int, largest: tuple[int, ...], rank: int, longest: int
    ) -> None:
        kernel = _halved(largest[2:], longest)
        first, second = (min(size, longest) for size in largest[:2])
        super().__init__(features, hidden, (rank * (first + second + math.prod(kernel)),))
        self.rank, self.sides, self.kernel = rank, (first, second), kernel

    def part(self, largest: tuple[int, ...]) -> tuple[int, ...]:
        """Return the full code: it is short."""
        return self.shape

    def tensors(self, codes: Tensor, shape: tuple[int, ...], form: Elementwise) -> Tensor:
        """Return the sums of products, of variance 1 if the codes have it."""
        rows, rank = len(codes), self.rank
        first, second = self.sides
        parts = codes.split([rank * n for n in (first, second, math.prod(self.kernel))], 1)
        u = stretch(parts[0].view(rows, rank, first), (rows, rank, shape[0]))
        v = stretch(parts[1].view(rows, rank, second), (rows, rank, shape[1]))
        k = stretch(parts[2].view(rows, rank, *self.kernel), (rows, rank, *shape[2:]))
        right = v[..., None] * k.reshape(rows, rank, 1, -1) / math.sqrt(rank)
        return form((u.mT @ right.flatten(2)).view(rows, *shape))


def decoder(
    kind: DecoderKind, features: int, hidden: int, largest: tuple[int, ...], tile: int, rank: int
) -> Decoder:
    """Build the decoder of a slot; vectors and scalars are always tiled."""
    if kind == "low_rank" and len(largest) > 1:
        return LowRank(features, hidden, largest, rank, tile * tile)
    return Tiled(features, hidden, largest, tile)
