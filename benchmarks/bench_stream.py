"""Memory of a run on streams: ``python -m benchmarks.bench_stream``.

Two clients train a linear model on examples of 10,000 numbers that are drawn as they are asked for,
10 MB and 10 GB in a pass, in two processes. What all processes of the run hold at once
(proportional set size) is read ten times a second.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

import archgraph as ag
from archgraph.data import dataset_of

WIDTH = 10_000
BYTES = 4 * WIDTH


class Drawn:
    """Examples without an end: noise, and on which side of a plane it lies."""

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        for _ in itertools.count():
            x = torch.randn(WIDTH)
            yield x, int(x[:100].sum() > 0)


def train(examples: int) -> None:
    """Train for a round on so many examples of each client."""
    x = torch.randn(200, WIDTH, generator=torch.Generator().manual_seed(0))
    data = dataset_of(
        ({"a": Drawn(), "b": Drawn()}, (x, (x[:, :100].sum(1) > 0).long())), examples=examples
    )
    model = ag.trace(torch.nn.Linear(WIDTH, 2), torch.zeros(1, WIDTH))
    experiment = {
        "name": "stream",
        "family": {"model": model, "clients": [{"name": "c", "count": 2}]},
        "strategy": {"fedavg": {}},
        "rounds": 1,
        "local": {"batch": 64, "lr": 0.01},
        "engine": {"workers": 2},
    }
    print(ag.run(experiment, data=data, progress=False).evaluation["global"])


def held(pid: int) -> int:
    """Bytes that a process and those that it started hold."""
    total, left = 0, [pid]
    while left:
        one = left.pop()
        try:
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
            tasks = Path(f"/proc/{one}/task").iterdir()
            left += [int(c) for t in tasks for c in (t / "children").read_text().split()]
        except OSError:  # it has ended
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def peak(size: float) -> float:
    """Return the most bytes that a run on so many bytes in a pass holds."""
    code = f"from benchmarks.bench_stream import train; train({int(size / 2 / BYTES)})"
    most, start = 0, time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", code])
    done = threading.Event()
    threading.Thread(target=lambda: (process.wait(), done.set())).start()
    while not done.wait(0.1):
        most = max(most, held(process.pid))
    seconds = time.perf_counter() - start
    print(f"{size / 1e6:,.0f} MB in a pass: {most / 1e6:,.0f} MB at most, {seconds:.0f} s")
    return most


def main() -> None:
    """Print the memory of a small and a large pass."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_stream", description=__doc__)
    parser.add_argument("--bytes", type=float, default=10e9, help="of a pass over both clients")
    small, large = peak(10e6), peak(parser.parse_args().bytes)
    print(f"{(large - small) / 1e6:+,.0f} MB")


if __name__ == "__main__":
    main()
