"""Images that are changed and mixed at random, each time that training sees them.

All numbers are drawn on the CPU, so that every device sees the same images.
"""

from __future__ import annotations

import math
import random

import torch
from torch import Tensor
from torch.nn import functional

from archgraph.federation.tasks import Examples, Mix, MixedExamples, Pixels
from archgraph.language.local import AugmentOptions, ColourJitterOptions, ResizedCropOptions
from archgraph.states.copies import to_device

TRIES = 10
"""How often a window is drawn before the middle of the image is taken, as in torchvision."""
# Of red, green and blue in a grey, as in torchvision (ITU-R BT.601).
GREY = (0.2989, 0.587, 0.114)
BYTES = 255.0


def augmented(
    images: Tensor,
    options: AugmentOptions,
    generator: torch.Generator,
    pixels: Pixels | None = None,
) -> Tensor:
    """Change a minibatch of images at random, each image independently.

    Args:
        images: ``[batch, channel, height, width]``.
        options: What is changed, and how much.
        generator: Source of the draws.
        pixels: What they were normalised by, which changes of colours undo. Default: values are
            between 0 and 1.

    Example:
        >>> row = torch.tensor([[[[1.0, 2.0, 3.0]]]])
        >>> augmented(row, AugmentOptions(crop=1), torch.Generator().manual_seed(3)).tolist()
        [[[[2.0, 3.0, 0.0]]]]
    """
    count, _, height, width = images.shape
    if options.crop:
        draw = torch.randint(2 * options.crop + 1, (2, count, 1), generator=generator)
        top, left = to_device(draw, images.device)
        rows = (top + torch.arange(height, device=images.device))[:, :, None]
        columns = (left + torch.arange(width, device=images.device))[:, None, :]
        example = torch.arange(count, device=images.device)[:, None, None]
        padded = functional.pad(images, (options.crop,) * 4)
        # Indices that broadcast to [batch, height, width] cut a window of its own from each image.
        images = padded.movedim(1, -1)[example, rows, columns].movedim(-1, 1).contiguous()
    if options.resized_crop is not None:
        images = zoomed(images, random_windows(images.shape, options.resized_crop, generator))
    if options.flip:
        mirrored = (torch.rand(count, generator=generator) < 0.5)[:, None, None, None]
        images = torch.where(to_device(mirrored, images.device), images.flip(-1), images)
    if options.colour_jitter is not None:
        images = jittered(images, options.colour_jitter, generator, pixels)
    return images


def random_windows(
    shape: torch.Size, options: ResizedCropOptions, generator: torch.Generator
) -> Tensor:
    """Draw a window of each image: top, left, height and width, ``[4, batch]``.

    1. Area and ratio of sides are drawn; the logarithm of the ratio is uniform.
    2. The first of ten draws that fits into the image is used, at a drawn position.
    3. Where none fits: the largest window in the middle with a ratio that is allowed.

    Args:
        shape: Of the images, ``[batch, channel, height, width]``.
        options: Limits of area and ratio.
        generator: Source of the draws.

    Example:
        >>> full = ResizedCropOptions(scale=(1.0, 1.0), ratio=(1.0, 1.0))
        >>> random_windows(torch.Size([1, 3, 8, 8]), full, torch.Generator()).flatten().tolist()
        [0, 0, 8, 8]
    """
    count, _, height, width = shape
    least, most = options.ratio

    def uniform(low: float, high: float, *sizes: int) -> Tensor:
        draw = torch.rand(*sizes, dtype=torch.float64, generator=generator)
        return low + (high - low) * draw

    area = height * width * uniform(*options.scale, TRIES, count)  # 1
    ratio = uniform(math.log(least), math.log(most), TRIES, count).exp()
    rows, columns = (area / ratio).sqrt().round(), (area * ratio).sqrt().round()
    fits = (rows > 0) & (rows <= height) & (columns > 0) & (columns <= width)  # 2
    first, each = fits.int().argmax(0), torch.arange(count)
    rows, columns, fits = rows[first, each], columns[first, each], fits.any(0)
    top = (uniform(0, 1, count) * (height - rows + 1)).floor()
    left = (uniform(0, 1, count) * (width - columns + 1)).floor()
    allowed = min(max(width / height, least), most)  # 3
    high, wide = min(height, round(width / allowed)), min(width, round(height * allowed))
    middle = torch.tensor([(height - high) // 2, (width - wide) // 2, high, wide])[:, None]
    return torch.where(fits, torch.stack([top, left, rows, columns]).long(), middle)


def zoomed(images: Tensor, windows: Tensor) -> Tensor:
    """Cut a window of each image and scale it to the image's size, bilinearly.

    Windows are not larger than images, so that nothing is to be smoothed before.

    Args:
        images: ``[batch, channel, height, width]``.
        windows: Top, left, height and width, ``[4, batch]``.

    Example:
        >>> row = torch.tensor([[[[0.0, 1.0, 2.0, 5.0]]]])
        >>> zoomed(row, torch.tensor([[0], [1], [1], [2]])).tolist()
        [[[[1.0, 1.25, 1.75, 2.0]]]]
    """
    count, _, height, width = images.shape
    top, left, rows, columns = to_device(windows.to(images.dtype), images.device)[..., None]

    def read(start: Tensor, length: Tensor, size: int) -> Tensor:
        """Return where an axis is read, ``[batch, size]``, from -1 to 1 between its ends."""
        at = (torch.arange(size, device=images.device) + 0.5) * length / size - 0.5
        # The window ends at its last pixels: what lies beside it in the image is not seen.
        at = start + torch.minimum(at.clamp(min=0), length - 1)
        return (2 * at + 1) / size - 1

    y = read(top, rows, height)[:, :, None].expand(count, height, width)
    x = read(left, columns, width)[:, None, :].expand(count, height, width)
    grid = torch.stack([x, y], -1)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


def jittered(
    images: Tensor,
    options: ColourJitterOptions,
    generator: torch.Generator,
    pixels: Pixels | None = None,
) -> Tensor:
    """Change colours of images at random.

    1. Normalisation is undone: values are between 0 and 1.
    2. The factor of each change, and their order, are drawn for each image.
    3. Changes follow in that order; after each, values are clamped to their range.
    4. Images are normalised again.

    Args:
        images: ``[batch, channel, height, width]``.
        options: How much they change.
        generator: Source of the draws.
        pixels: What they were normalised by. Default: they were not.
    """
    amounts = {name: amount for name, amount in options if amount}
    if not amounts:
        return images
    count, mean, std = len(images), images.new_zeros(()), images.new_ones(())
    if pixels is not None:
        mean, std = (
            to_device(x.to(images.dtype), images.device)[:, None, None] / BYTES for x in pixels
        )
    raw = images * std + mean  # 1
    draws = torch.rand(len(amounts), count, generator=generator)  # 2
    order = torch.rand(len(amounts), count, generator=generator).argsort(0)
    for step in order:  # 3
        for number, (name, amount) in enumerate(amounts.items()):
            rows = (step == number).nonzero().flatten()
            middle, least = (0.0, -amount) if name == "hue" else (1.0, max(0.0, 1 - amount))
            factors = least + (middle + amount - least) * draws[number, rows, None, None, None]
            there = to_device(rows, images.device)
            changed = recoloured(raw[there], name, to_device(factors.to(raw.dtype), raw.device))
            raw[there] = changed.clamp(0, 1)
    return (raw - mean) / std  # 4


def recoloured(images: Tensor, change: str, factors: Tensor) -> Tensor:
    """Change colours of images by factors, as torchvision's functions of these names.

    Args:
        images: ``[batch, channel, height, width]``, between 0 and 1.
        change: A key of ``colour_jitter``.
        factors: ``[batch, 1, 1, 1]``: turns of the hue, or what stays as it is at 1.

    Example:
        >>> pixel = torch.tensor([0.8, 0.4, 0.2]).reshape(1, 3, 1, 1)
        >>> recoloured(pixel, "hue", torch.full((1, 1, 1, 1), 1 / 3)).flatten()
        tensor([0.2000, 0.8000, 0.4000])
    """
    if change == "hue":
        return _turned(images, factors)
    if change == "brightness":
        return images * factors
    grey = images
    if images.shape[1] == len(GREY):
        shares = to_device(torch.tensor(GREY, dtype=images.dtype), images.device)
        grey = (images * shares[:, None, None]).sum(1, keepdim=True)
    if change == "contrast":
        grey = grey.mean((1, 2, 3), keepdim=True)
    return torch.lerp(grey.expand_as(images), images, factors)


def _turned(images: Tensor, turns: Tensor) -> Tensor:
    """Turn hues, by the hexagon of HSV; value and chroma stay."""
    value = images.amax(1)
    chroma = value - images.amin(1)
    red, green, blue = images.unbind(1)
    divisor = torch.where(chroma > 0, chroma, 1.0)  # greys have no hue, and stay
    sixths = torch.where(
        red == value,
        (green - blue) / divisor,
        torch.where(green == value, 2 + (blue - red) / divisor, 4 + (red - green) / divisor),
    )
    at = [(offset + sixths + 6 * turns[:, 0]) % 6 for offset in (5, 3, 1)]
    return torch.stack([value - chroma * torch.minimum(k, 4 - k).clamp(0, 1) for k in at], 1)


def mixed(examples: Examples, options: AugmentOptions, generator: torch.Generator) -> Examples:
    """Mix the images of a minibatch with one another, if options say so.

    As in both papers' code, λ and the window are drawn once for a minibatch, and each image has
    another of the same minibatch as its partner.

    Args:
        examples: A minibatch of images, as the first input, and a class for each.
        options: α of each method; of both, each minibatch draws one.
        generator: Source of the draws.
    """
    alphas = {"mixup": options.mixup, "cutmix": options.cutmix}
    methods = [name for name, alpha in alphas.items() if alpha is not None]
    if not methods:
        return examples
    (images, *others), targets = examples.inputs, examples.targets
    partners = to_device(torch.randperm(len(images), generator=generator), images.device)
    # PyTorch has no beta distribution that draws from a generator.
    draw = random.Random(int(torch.randint(2**62, (), generator=generator)))
    method = draw.choice(methods)
    alpha = alphas[method] or 0.0
    share, (height, width) = draw.betavariate(alpha, alpha), images.shape[-2:]
    if method == "mixup":
        images = blended(images, images[partners], share)
    else:
        centre = draw.randrange(height), draw.randrange(width)
        images, share = pasted(images, images[partners], share, centre)
    mix = Mix(targets, targets[partners], share)
    return MixedExamples((images, *others), targets[:0], examples.ids, mix)


def blended(images: Tensor, others: Tensor, share: float) -> Tensor:
    """Return ``λ`` of images and ``1 - λ`` of others (MixUp).

    >>> blended(torch.tensor([1.0]), torch.tensor([5.0]), 0.75)
    tensor([2.])
    """
    return share * images + (1 - share) * others


def pasted(
    images: Tensor, others: Tensor, share: float, centre: tuple[int, int]
) -> tuple[Tensor, float]:
    """Return images with a window of others, and the share of pixels that are their own (CutMix).

    Args:
        images: ``[batch, channel, height, width]``.
        others: Of the same shape.
        share: λ: a window has ``sqrt(1 - λ)`` of the height and of the width.
        centre: Row and column of its middle; what lies beyond an edge is cut off.

    Example:
        >>> zeros = torch.zeros(1, 1, 2, 4)
        >>> images, share = pasted(zeros, zeros + 1, 0.0, (1, 0))
        >>> images.tolist(), share
        ([[[[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]]]], 0.5)
    """
    sizes, side = images.shape[-2:], math.sqrt(1 - share)
    (top, bottom), (left, right) = (
        (max(at - int(size * side) // 2, 0), min(at + int(size * side) // 2, size))
        for at, size in zip(centre, sizes, strict=True)
    )
    images = images.clone()
    images[..., top:bottom, left:right] = others[..., top:bottom, left:right]
    pixels = math.prod(sizes)
    return images, (pixels - (bottom - top) * (right - left)) / pixels
