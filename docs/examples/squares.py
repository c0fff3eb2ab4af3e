"""Images of a bright and a dark square, with the class of each pixel."""

import torch


def make(train=60, test=20):
    """Return training and test images, with the class of each pixel."""
    return pictures(train, seed=0), pictures(test, seed=1)


def pictures(count, seed):
    """Return random images [image, 1, 16, 16] and their classes [image, 16, 16]."""
    draw = torch.Generator().manual_seed(seed)
    images = 0.3 * torch.randn(count, 1, 16, 16, generator=draw)
    classes = torch.zeros(count, 16, 16, dtype=torch.int64)
    for image, target in zip(images, classes, strict=True):
        for value, brightness in ((1, 2.0), (2, -2.0)):
            top, left = torch.randint(11, (2,), generator=draw).tolist()
            image[0, top : top + 5, left : left + 5] += brightness
            target[top : top + 5, left : left + 5] = value
    return images, classes
