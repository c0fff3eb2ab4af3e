"""How fast the command line answers: against an empty Python, and `import torch`, here and now."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

REPEATS = 7
LIMIT = 0.3  # seconds of `--help`
RATIO = 1.2  # of `show` to `import torch`
MODEL = Path(__file__).parents[1] / "specs/models/lenet5.yaml"


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
    """Seconds of an empty Python, of `--help`, `import torch` and `show`, and their ratios."""
    empty = seconds("-c", "")
    helped = seconds("-m", "archgraph", "--help")
    torch, shown = processor(("-c", "import torch"), ("-m", "archgraph", "show", str(MODEL)))
    return {
        "python -c '', s": empty,
        f"archgraph --help, s (aim: {LIMIT})": helped,
        "archgraph --help / python -c ''": helped / empty,
        "import torch, processor s": torch,
        "archgraph show, processor s": shown,
        f"archgraph show / import torch (aim: {RATIO})": shown / torch,
    }


def main() -> None:
    """Print all figures."""
    for name, value in figures().items():
        print(f"{name:<66} {value:6.2f}")


if __name__ == "__main__":
    main()
