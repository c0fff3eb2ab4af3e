"""CIFAR-10 with random crops and mirror images, drawn once or anew in every pass.

``archgraph study --python specs/ablations/random_crops.yaml`` compares the two;
``python -m benchmarks.random_crops`` shows that a run has the same bits with one process and two,
and after it was killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import archgraph as ag
from archgraph.data import Dataset, dataset_of, load_dataset
from archgraph.data.validation import subset

ROUNDS = 4
MARGIN = 4  # pixels around an image


def cropped(image: Tensor) -> Tensor:
    """Shift and mirror an image ``[channel, height, width]`` at random."""
    top, left = torch.randint(2 * MARGIN + 1, (2,)).tolist()
    height, width = image.shape[-2:]
    image = nn.functional.pad(image, (MARGIN,) * 4)[:, top : top + height, left : left + width]
    return image.flip(-1) if torch.rand(()) < 0.5 else image


def cifar(limit: int = 5000, cache: bool = False) -> Dataset:
    """Return the first images of CIFAR-10, with random crops for training."""
    data = load_dataset("cifar10")
    train = subset(data.train, torch.arange(limit).numpy())
    return dataset_of(
        ((train.inputs, train.targets), (data.test.inputs, data.test.targets)),
        "cifar10",
        cache=cache,
        transform=cropped,
    )


def bits(folder: Path, workers: int, resume: bool = False) -> str:
    """Run, and return the digest of the last model."""
    experiment = {
        "name": "crops",
        "family": {"model": "specs/models/cifar_cnn.yaml", "clients": [{"name": "c", "count": 4}]},
        "strategy": {"fedavg": {}},
        "rounds": ROUNDS,
        "local": {"batch": 32, "lr": 0.1},
        "engine": {"workers": workers},
    }
    run = ag.run(experiment, data=cifar(2000), out=folder, resume=resume, progress=False)
    state = run.models[0].state
    return str(sum(t.double().abs().sum() for t in state.values()).item().hex())


def killed(folder: Path) -> str:
    """Kill a run after its second round, and let another process go on with it."""
    code = "import sys; from benchmarks.random_crops import *; "
    call = code + f"print(bits(Path({str(folder)!r}), 1, {{}}))"
    first = subprocess.Popen([sys.executable, "-c", call.format(False)])
    while not (folder / "metrics.jsonl").is_file() or _rounds(folder) < ROUNDS // 2:
        time.sleep(0.05)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    print(f"killed after {_rounds(folder)} of {ROUNDS} rounds")
    done = subprocess.run(
        [sys.executable, "-c", call.format(True)], capture_output=True, text=True, check=True
    )
    return done.stdout.split()[-1]


def _rounds(folder: Path) -> int:
    return len((folder / "metrics.jsonl").read_text().splitlines())


def main() -> None:
    """Print the digests."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        alone, two = bits(folder / "one", 1), bits(folder / "two", 2)
        print("one process and two:", alone == two, alone, two)
        again = killed(folder / "killed")
        print("after kill -9:", alone == again, again)


if __name__ == "__main__":
    main()
