"""A typical network in plain PyTorch, without any code for archgraph."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Gate(nn.Module):
    """Squeeze and excitation: scales channels by factors computed from the whole image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.squeeze = nn.Linear(channels, channels // 2)
        self.excite = nn.Linear(channels // 2, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Gate channels: `[batch, channels, height, width]` to the same shape."""
        scale = torch.relu(self.squeeze(x.mean((2, 3))))
        return x * torch.sigmoid(self.excite(scale))[:, :, None, None]


class Mixer(nn.Module):
    """Two parallel branches, concatenated, gated and added to the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.near = nn.Conv2d(channels, half, 3, padding=1, bias=False)
        self.far = nn.Conv2d(channels, half, 3, padding=2, dilation=2, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.gate = Gate(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Mix: `[batch, channels, height, width]` to the same shape."""
        mixed = torch.cat([self.near(x), self.far(x)], 1)
        return torch.relu(x + self.gate(self.norm(mixed)))


class Network(nn.Module):
    """Digit classifier: `image [batch, 1, 8, 8]` to logits `[batch, 10]`."""

    def __init__(self, width: int = 16, depth: int = 2) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU())
        self.stages = nn.Sequential(
            nn.Sequential(*(Mixer(width) for _ in range(depth))),
            nn.Sequential(*(Mixer(2 * width) for _ in range(depth))),
        )
        self.down = nn.Conv2d(width, 2 * width, 2, stride=2)
        self.dropout = nn.Dropout(0.1)
        self.classes = nn.Linear(2 * width, 10)

    def forward(self, image: Tensor) -> Tensor:
        """Classify images."""
        first, second = self.stages
        x = second(self.down(first(self.stem(image))))
        return self.classes(self.dropout(x.mean((2, 3))))
