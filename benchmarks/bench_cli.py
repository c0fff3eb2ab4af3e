"""How fast the command line answers, in processor time: against torch alone, here and now."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

REPEATS = 7
LIMIT = 0.12  # of `--help` to `import torch`
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


def processor(*commands: tuple[str, ...]) -> list[float]:
    """Least processor time of each command, in seconds; their repeats take turns."""
    least = [float("inf")] * len(commands)
    # The first run of each compiles the package.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    for _ in range(REPEATS):
        for number, command in enumerate(commands):
            began = os.times()
            subprocess.run(
                [sys.executable, *command], check=True, capture_output=True, env=environment
            )
            ended = os.times()
            used = ended.children_user + ended.children_system
            used -= began.children_user + began.children_system
            least[number] = min(least[number], used)
    return least


def figures() -> dict[str, float]:
    """Seconds of `import torch`, `--help`, `show` and `run`, and their ratios."""
    with tempfile.TemporaryDirectory() as folder:
        run = ("-c", RUN, "run", str(EXPERIMENT), "--out", folder, "--overwrite")
        helped, torch, step, shown, ran = processor(
            ("-m", "archgraph", "--help"),
            ("-c", "import torch"),
            ("-c", STEP),
            ("-m", "archgraph", "show", str(MODEL)),
            run,
        )
    return {
        "import torch, s": torch,
        "archgraph --help, s": helped,
        f"archgraph --help / import torch (aim: {LIMIT})": helped / torch,
        "archgraph show, s": shown,
        f"archgraph show / import torch (aim: {RATIO})": shown / torch,
        "import torch and a step of SGD, s": step,
        "archgraph run to its first step, s": ran,
        "archgraph run to its first step / import torch and a step of SGD": ran / step,
    }


def main() -> None:
    """Print all figures."""
    for name, value in figures().items():
        print(f"{name:<66} {value:6.2f}")


if __name__ == "__main__":
    main()
