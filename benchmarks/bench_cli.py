"""How fast the command line answers: `--help` against an empty Python of the same machine."""

from __future__ import annotations

import subprocess
import sys
import time

REPEATS = 7
LIMIT = 0.3


def seconds(*command: str) -> float:
    """Least wall time of a command over some repeats, in seconds."""
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    return min(times)


def figures() -> dict[str, float]:
    """Seconds of an empty Python and of `--help`, and their ratio."""
    empty = seconds("-c", "")
    shown = seconds("-m", "archgraph", "--help")
    return {
        "python -c '', s": empty,
        f"archgraph --help, s (aim: {LIMIT})": shown,
        "archgraph --help / python -c ''": shown / empty,
    }


def main() -> None:
    """Print all figures."""
    for name, value in figures().items():
        print(f"{name:<66} {value:6.2f}")


if __name__ == "__main__":
    main()
