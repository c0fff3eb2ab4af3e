"""How fast the command line answers: against an empty Python and torch alone, here and now."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPEATS = 7
LIMIT = 0.3  # seconds of `--help`
RATIO = 1.2  # of `show` to `import torch`
SPECS = Path(__file__).parents[1] / "specs"
MODEL = SPECS / "models/lenet5.yaml"
EXPERIMENT = SPECS / "experiments/fedfa_digits.yaml"
# The first optimiser of a process imports torch's compiler: a part of any training with torch.
STEP = """
import torch
net = torch.nn.Linear(3, 2)
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
net(torch.ones(4, 3)).sum().backward()
optimiser.step()
"""
# `archgraph run`, which ends when the first client takes its first local step.
RUN = """
import os, sys
import archgraph.cli
from torch.optim.optimizer import register_optimizer_step_pre_hook
register_optimizer_step_pre_hook(lambda *_: os._exit(0))
archgraph.cli.main()
"""


def seconds(*command: str) -> float:
    """Least wall time of a command over some repeats, in seconds."""
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    return min(times)


def processor(*commands: tuple[str, ...]) -> list[float]:
    """Least processor time of each command, in seconds; their repeats take turns."""
    least = [float("inf")] * len(commands)
    for _ in range(REPEATS):
        for number, command in enumerate(commands):
            began = os.times()
            subprocess.run([sys.executable, *command], check=True, capture_output=True)
            ended = os.times()
            used = ended.children_user + ended.children_system
            used -= began.children_user + began.children_system
            least[number] = min(least[number], used)
    return least


def figures() -> dict[str, float]:
    """Seconds of an empty Python, `--help`, `import torch`, `show`, `run`, and their ratios."""
    empty = seconds("-c", "")
    helped = seconds("-m", "archgraph", "--help")
    with tempfile.TemporaryDirectory() as folder:
        run = ("-c", RUN, "run", str(EXPERIMENT), "--out", folder, "--overwrite")
        torch, step, shown, ran = processor(
            ("-c", "import torch"), ("-c", STEP), ("-m", "archgraph", "show", str(MODEL)), run
        )
    return {
        "python -c '', s": empty,
        f"archgraph --help, s (aim: {LIMIT})": helped,
        "archgraph --help / python -c ''": helped / empty,
        "import torch, processor s": torch,
        "archgraph show, processor s": shown,
        f"archgraph show / import torch (aim: {RATIO})": shown / torch,
        "import torch and a step of SGD, processor s": step,
        "archgraph run to its first step, processor s": ran,
        "archgraph run to its first step / import torch and a step of SGD": ran / step,
    }


def main() -> None:
    """Print all figures."""
    for name, value in figures().items():
        print(f"{name:<66} {value:6.2f}")


if __name__ == "__main__":
    main()
