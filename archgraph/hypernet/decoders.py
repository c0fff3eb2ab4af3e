"""Decoders of a hypernetwork, which map the features of an operator to its tensors."""

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
    """Repeat a tensor along each dimension, and crop the result to a shape.

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
    """Crop a tensor to a shape, along each dimension that is longer than in the shape."""
    for dim, size in enumerate(shape):
        if size < tensor.shape[dim]:  # narrowing to the full size would copy the gradient
            tensor = tensor.narrow(dim, 0, size)
    return tensor


class Decoder(nn.Module, ABC):
    """Base class of decoders. A decoder generates all tensors of one :class:`DecoderSlot`.

    A two-layer network computes an array per tensor, called a code. Subclasses compute the tensor
    from its code.

    Args:
        features: Size of the input, which consists of the node's features ``h_v`` and the client's
            descriptor ``a_m``.
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
        """Compute codes from features. Only the values that the tensors need are computed.

        Args:
            features: Inputs of shape [rows, features], one per tensor.
            largest: Largest size of each dimension among the tensors to generate.

        Returns:
            Codes of shape [rows, *part], where ``part`` is the result of ``self.part(largest)``.
        """
        part, hidden = self.part(largest), self.inner(features).relu()
        weight = crop(self.outer.weight.view(*self.shape, -1), (*part, hidden.shape[1]))
        bias = crop(self.outer.bias.view(self.shape), part)
        codes = functional.linear(hidden, weight.reshape(-1, hidden.shape[1]), bias.reshape(-1))
        return codes.view(-1, *part)

    @abstractmethod
    def part(self, largest: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the part of a code that tensors of the size ``largest`` need."""

    @abstractmethod
    def tensors(self, codes: Tensor, shape: tuple[int, ...], form: Elementwise) -> Tensor:
        """Decode codes [rows, *part] to tensors [rows, *shape].

        ``form`` is an elementwise function that scales or bounds the values.
        """


class Tiled(Decoder):
    """A decoder whose code is a tile, which is repeated and cropped to the tensor's shape.

    Each side of a tile is at most ``tile`` long, and a tile has at most ``9 · tile²`` values.
    One-dimensional tiles are at most ``tile²`` long.

    Args:
        features: Size of the input ``[h_v, a_m]``.
        hidden: Size of the hidden layer.
        largest: Largest size of each dimension among the slot's tensors.
        tile: Maximum side length of a tile.

    Example:
        >>> Tiled(8, 4, (512, 256, 3, 3), tile=64).shape, Tiled(8, 4, (512,), tile=64).shape
        ((64, 64, 3, 3), (512,))
    """

    def __init__(self, features: int, hidden: int, largest: tuple[int, ...], tile: int) -> None:
        longest = tile if len(largest) > 1 else tile * tile
        sides = [min(size, longest) for size in largest]
        super().__init__(features, hidden, _halved(sides, 9 * tile * tile))

    def part(self, largest: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the part of the tile that tensors of the size ``largest`` need.

        For example, 1 × 1 kernels need only a ninth of the tile for 3 × 3 kernels.
        """
        return tuple(map(min, self.shape, largest))

    def tensors(self, codes: Tensor, shape: tuple[int, ...], form: Elementwise) -> Tensor:
        """Apply ``form`` to the tiles, then repeat and crop them."""
        shape = (len(codes), *shape)
        return stretch(form(crop(codes, shape)), shape)


class LowRank(Decoder):
    """A decoder that computes a tensor as a sum of outer products, ``Σ u ⊗ v ⊗ k``.

    The code consists of ``rank`` vectors u, ``rank`` vectors v and ``rank`` kernels k. If a side of
    the tensor is longer than ``longest``, the vector for this side is repeated.

    Args:
        features: Size of the input ``[h_v, a_m]``.
        hidden: Size of the hidden layer.
        largest: Largest size of each dimension among the slot's tensors; two or more dimensions.
        rank: Number of outer products.
        longest: Maximum length of a vector, and maximum number of values in a kernel.
    """

    def __init__(
        self, features: int, hidden: int, largest: tuple[int, ...], rank: int, longest: int
    ) -> None:
        kernel = _halved(largest[2:], longest)
        first, second = (min(size, longest) for size in largest[:2])
        super().__init__(features, hidden, (rank * (first + second + math.prod(kernel)),))
        self.rank, self.sides, self.kernel = rank, (first, second), kernel

    def part(self, largest: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a code, because a code is always used completely."""
        return self.shape

    def tensors(self, codes: Tensor, shape: tuple[int, ...], form: Elementwise) -> Tensor:
        """Apply ``form`` to the sums of outer products.

        If the vectors and kernels in the codes have variance 1, the sums have variance 1, too.
        """
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
    """Create the decoder of a slot; for vectors and scalars, always a :class:`Tiled` decoder."""
    if kind == "low_rank" and len(largest) > 1:
        return LowRank(features, hidden, largest, rank, tile * tile)
    return Tiled(features, hidden, largest, tile)
