"""Windows of three sensors, each with its own bias: training data by client."""

import torch


def make(sensors: int = 3, windows: int = 90):
    """Return training data by sensor, and test data of all: is a wave rising, falling or flat?"""
    time = torch.linspace(0, 1, 16)
    slopes = torch.tensor([1.0, -1.0, 0.0])

    def measured(bias: float, count: int):
        kinds = torch.arange(count) % len(slopes)
        noise = 0.2 * torch.randn(count, len(time))
        return slopes[kinds, None] * time + bias + noise, kinds

    train = {f"sensor{i}": measured(0.1 * i, windows) for i in range(sensors)}
    return train, measured(0.0, 60)
