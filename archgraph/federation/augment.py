"""Images that are shifted and mirrored at random, each time that training sees them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from archgraph.language.local import AugmentOptions


def augmented(images: Tensor, options: AugmentOptions, generator: torch.Generator) -> Tensor:
    """Shift and mirror a minibatch of images at random, each image independently.

    Args:
        images: ``[batch, channel, height, width]``.
        options: Widths of shifts, and whether to mirror.
        generator: Source of the draws.

    Example:
        >>> row = torch.tensor([[[[1.0, 2.0, 3.0]]]])
        >>> augmented(row, AugmentOptions(crop=1), torch.Generator().manual_seed(3)).tolist()
        [[[[2.0, 3.0, 0.0]]]]
    """
    count, _, height, width = images.shape
    if options.crop:
        # Drawn on the CPU, so that every device sees the same images.
        draw = torch.randint(2 * options.crop + 1, (2, count, 1), generator=generator)
        top, left = draw.to(images.device, non_blocking=True)
        rows = (top + torch.arange(height, device=images.device))[:, :, None]
        columns = (left + torch.arange(width, device=images.device))[:, None, :]
        example = torch.arange(count, device=images.device)[:, None, None]
        padded = functional.pad(images, (options.crop,) * 4)
        # Indices that broadcast to [batch, height, width] cut a window of its own from each image.
        images = padded.movedim(1, -1)[example, rows, columns].movedim(-1, 1).contiguous()
    if options.flip:
        mirrored = (torch.rand(count, generator=generator) < 0.5)[:, None, None, None]
        images = torch.where(mirrored.to(images.device, non_blocking=True), images.flip(-1), images)
    return images
