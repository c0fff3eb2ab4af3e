"""Random transforms of torchvision, applied to training images each time they are read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from archgraph.federation.tasks import Pixels
from archgraph.language.named import LibraryClass
from archgraph.states.copies import to_device

BYTES = 255.0
_Transform: TypeAlias = Callable[[Tensor], Tensor]


def transform_images(
    images: Tensor, transforms: Sequence[LibraryClass], pixels: Pixels | None
) -> Tensor:
    """Transform each image of a minibatch separately.

    1. Undo normalisation, so that values are between 0 and 1, as the transforms expect.
    2. Apply the transforms in order to each image. They draw from PyTorch's global generator, which
       the engine seeds for each client and round.
    3. Normalise the images again.

    Args:
        images: ``[batch, channel, height, width]``.
        transforms: Classes of torchvision.
        pixels: Normalisation of the images. Default: none.
    """
    chain = [_made(one) for one in transforms]
    if pixels is None:
        return torch.stack([_applied(image, chain) for image in images])
    mean, std = (
        to_device(x.to(images.dtype), images.device)[:, None, None] / BYTES for x in pixels
    )
    raw = images * std + mean  # 1
    return (torch.stack([_applied(image, chain) for image in raw]) - mean) / std  # 2, 3


def _applied(image: Tensor, chain: Sequence[_Transform]) -> Tensor:
    return functools.reduce(lambda changed, one: one(changed), chain, image)


@functools.cache
def _made(one: LibraryClass) -> _Transform:
    transform: _Transform = one.make()
    return transform
