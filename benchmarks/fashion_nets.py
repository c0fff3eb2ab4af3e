"""Pretrain the small networks of ``specs/ablations/lora_vit.yaml`` and ``lora_resnet.yaml``.

``python -m benchmarks.fashion_nets``: a vision transformer and a residual network of specs learn
Fashion-MNIST turned by 15 degrees, so that fine-tuning on upright images has a shift to
make up for. The last 30,000 training images are used; studies take the first. Takes two minutes on
one core and writes ``specs/weights/fashion_vit.safetensors`` and ``fashion_resnet.safetensors``.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
from pathlib import Path

import torch
from safetensors.torch import save
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR

import archgraph as ag
from archgraph.data import load_dataset

RATES = {"fashion_vit": 2e-3, "fashion_resnet": 5e-3}
BATCH = 64
FIRST = 30_000


def shifted(images: torch.Tensor) -> torch.Tensor:
    """Turn images by 15 degrees; what comes in at the corners is as dark as the background."""
    angle = math.radians(15)
    matrix = torch.tensor(
        [[math.cos(angle), -math.sin(angle), 0], [math.sin(angle), math.cos(angle), 0]]
    )
    grid = F.affine_grid(matrix.expand(len(images), 2, 3), list(images.shape), align_corners=False)
    dark = images.amin()
    return F.grid_sample(images - dark, grid, align_corners=False) + dark


def main() -> None:
    """Pretrain both, and write their weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("ARCHGRAPH_DATA", ".")))
    parser.add_argument("--out", type=Path, default=Path("specs/weights"))
    parser.add_argument("--epochs", type=int, default=6)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # figures do not depend on the number of cores
    data = load_dataset("fashion_mnist", arguments.data)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, rate in RATES.items():
        torch.manual_seed(0)
        net = ag.build(ag.load(f"specs/models/{name}.yaml"), seed=0)
        steps = (len(data.train.targets) - FIRST) // BATCH
        optimiser = torch.optim.AdamW(net.parameters(), lr=rate)
        schedule = OneCycleLR(optimiser, rate, total_steps=arguments.epochs * steps, pct_start=0.1)
        net.train()
        for _ in range(arguments.epochs):
            for rows in torch.randperm(steps * BATCH).split(BATCH):
                images, targets = data.train.batch(FIRST + rows)
                loss = F.cross_entropy(net(shifted(images)), targets)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
        net.eval()
        with torch.no_grad():
            rows = torch.arange(len(data.test.targets))
            right = [
                net(shifted(images)).argmax(1) == targets
                for images, targets in map(data.test.batch, rows.split(500))
            ]
        accuracy = float(torch.cat(right).float().mean())
        content = save({name: tensor.contiguous() for name, tensor in net.state_dict().items()})
        (arguments.out / f"{name}.safetensors").write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()[:16]
        print(f"{name}: accuracy {accuracy:.4f}; sha256 {digest}", flush=True)


if __name__ == "__main__":
    main()
