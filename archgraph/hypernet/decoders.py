"""Decoders, one per slot: from a node's features to tensors of the slot's shapes."""

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
    """Repeat each dimension of a tensor, and crop it to a shape from its start.

    Example:
        >>> import torch
        >>> stretch(torch.tensor([[1, 2], [3, 4]]), (1, 5)).tolist()
        [[1, 2, 1, 2, 1]]
    """
    tensor = crop(tensor, shape)
    # The first dimension last: its gradient is then summed first, in long rows.
    for dim in reversed(range(len(shape))):
        if (times := -(-shape[dim] // max(tensor.shape[dim], 1))) != 1:
            tensor = tensor.repeat([times if d == dim else 1 for d in range(len(shape))])
            tensor = tensor.narrow(dim, 0, shape[dim])
    return tensor


def _halved(shape: Sequence[int], most: int) -> tuple[int, ...]:
    """Halve the longest side of a shape until it has at most ``most`` values."""
    sides = [*shape]
    while math.prod(sides) > most:
        widest = sides.index(max(sides))
        sides[widest] = -(-sides[widest] // 2)
    return tuple(sides)


def crop(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Crop a tensor to its start in each dimension that is longer than in the shape."""
    for dim, size in enumerate(shape):
        if size < tensor.shape[dim]:  # narrowing to the full size would copy the gradient
            tensor = tensor.narrow(dim, 0, size)
    return tensor


class Decoder(nn.Module, ABC):
    """Two layers that map ``[h_v, a_m]`` to a slot's code, and a map from codes to tensors.

    Args:
        features: Size of ``[h_v, a_m]``.
        hidden: Size of the hidden layer.
        shape: Shape of a code.
    """

    def __init__(self, features: int, hidden: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.size = shape, math.prod(shape)
        self.inner, self.outer = nn.Linear(features, hidden), nn.Linear(hidden, self.size)
        # Features of variance 1 give codes of variance 1, so a form's scale is the tensor's.
        nn.init.kaiming_normal_(self.inner.weight, nonlinearity="relu")
        nn.init.kaiming_normal_(self.outer.weight, nonlinearity="linear")
        nn.init.zeros_(self.inner.bias)
        nn.init.zeros_(self.outer.bias)

    def forward(self, features: Tensor, largest: tuple[int, ...]) -> Tensor:
        """Compute codes from features; only the part of them that the largest tensors need.

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
        """Decode codes [rows, *part] to tensors [rows, *shape], with the form applied to them."""


class Tiled(Decoder):
    """A decoder whose code is a tile, at most ``tile`` long per dimension, repeated and cropped.

    A tile has at most as many values as one of ``tile × tile`` with 3 × 3 kernels, and a vector at
    most ``tile²``.

    Args:
        features: Size of ``[h_v, a_m]``.
        hidden: Size of the hidden layer.
        largest: Largest size of each dimension among the slot's tensors.
        tile: Maximum side length.

    Example:
        >>> Tiled(8, 4, (512, 256, 3, 3), tile=64).shape, Tiled(8, 4, (512,), tile=64).shape
        ((64, 64, 3, 3), (512,))
    """

    def __init__(self, features: int, hidden: int, largest: tuple[int, ...], tile: int) -> None:
        longest = tile if len(largest) > 1 else tile * tile
        sides = [min(size, longest) for size in largest]
        super().__init__(features, hidden, _halved(sides, 9 * tile * tile))

    def part(self, largest: tuple[int, ...]) -> tuple[int, ...]:
        """Return the start of the tile: 1 × 1 kernels need a ninth of the part for 3 × 3."""
        return tuple(map(min, self.shape, largest))

    def tensors(self, codes: Tensor, shape: tuple[int, ...], form: Elementwise) -> Tensor:
        """Repeat and crop the tiles; the form is applied while they are small."""
        shape = (len(codes), *shape)
        return stretch(form(crop(codes, shape)), shape)


class LowRank(Decoder):
    """A decoder whose code has ``rank`` vectors for each of two dimensions, and ``rank`` kernels.

    The tensor is ``Σ u ⊗ v ⊗ k``. Nothing is repeated as long as no side exceeds ``longest``.

    Args:
        features: Size of ``[h_v, a_m]``.
        hidden: Size of the hidden layer.
        largest: Largest size of each of the (two or more) dimensions of the slot's tensors.
        rank: Number of terms.
        longest: Maximum length of a vector, and maximum size of a kernel.
    """

    def __init__(
        self, features: int, hidden: int, largest: tuple[int, ...], rank: int, longest: int
    ) -> None:
        kernel = _halved(largest[2:], longest)
        first, second = (min(size, longest) for size in largest[:2])
        super().__init__(features, hidden, (rank * (first + second + math.prod(kernel)),))
        self.rank, self.sides, self.kernel = rank, (first, second), kernel

    def part(self, largest: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the full code, which is short."""
        return self.shape

    def tensors(self, codes: Tensor, shape: tuple[int, ...], form: Elementwise) -> Tensor:
        """Return the sums of outer products, with variance 1 if the codes have it."""
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
    """Create the decoder of a slot; vectors and scalars are always tiled."""
    if kind == "low_rank" and len(largest) > 1:
        return LowRank(features, hidden, largest, rank, tile * tile)
    return Tiled(features, hidden, largest, tile)
