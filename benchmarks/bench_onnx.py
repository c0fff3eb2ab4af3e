"""Reading a ResNet-50 (25.6 M parameters) that PyTorch's exporter wrote, beside other readers.

``ag.load`` makes a graph and weights of it, ``onnx.load`` the message, onnxruntime a session. Each
runs in a process of its own: seconds, and how much memory its peak adds to the imported packages.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


def _archgraph(path: Path) -> Any:
    import archgraph as ag

    return ag.load(path)


def _onnx(path: Path) -> Any:
    import onnx

    return onnx.load(path)


def _onnxruntime(path: Path) -> Any:
    from archgraph.onnx.session import open_session

    return open_session(path)


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
READERS: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "onnx.load": (_onnx, ("onnx",)),
    "onnxruntime session": (_onnxruntime, ("archgraph.onnx.session", "onnxruntime")),
    "ag.load": (_archgraph, ("onnx", "archgraph.onnx.read", "archgraph.capture.trace")),
}


def main() -> None:
    """Print a row for each reader."""
    if len(sys.argv) == 3:
        _measure(sys.argv[1], Path(sys.argv[2]))
        return
    with TemporaryDirectory() as folder:
        path = Path(folder) / "resnet50.onnx"
        _write(path)
        size = sum(file.stat().st_size for file in path.parent.iterdir())
        print(f"resnet50.onnx: {size / 1e6:.0f} MB")
        base: dict[str, float] = {}
        for name in READERS:
            command = [sys.executable, "-m", "benchmarks.bench_onnx", name, str(path)]
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, env=ENVIRONMENT
            )
            if done.returncode:
                print(f"{name:20}: {done.stderr.strip().splitlines()[-1][:200]}")
                continue
            found = json.loads(done.stdout.strip().splitlines()[-1])
            base = base or found
            shown = [f"{found[k]:6.1f} {k} ({found[k] / base[k]:.1f}x)" for k in found]
            print(f"{name:20}: {', '.join(shown)}")


def _write(path: Path) -> None:
    """The model as torchvision has it, exported as PyTorch's documentation shows."""
    import torch

    import tests.conftest  # noqa: F401 - makes torchvision importable beside a CPU torch
    from tests.zoo.collection import entry

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    foreign = entry("torchvision/resnet50").make()
    sizes = ({0: torch.export.Dim("batch")},)
    options: dict[str, Any] = {"dynamo": True, "dynamic_shapes": sizes, "verbose": False}
    torch.onnx.export(foreign.model.eval(), foreign.args, path, **options)


def _measure(name: str, path: Path) -> None:
    """One reader, in processor seconds; what it reads is held until the end."""
    read, modules = READERS[name]
    warnings.simplefilter("ignore")
    for module in modules:
        importlib.import_module(module)
    before = _peak()
    begin = time.process_time()
    kept = read(path)
    seconds = time.process_time() - begin
    added = _peak() - before
    assert kept is not None
    print(json.dumps({"seconds": seconds, "MB": added / 1024}))


def _peak() -> int:
    """Most memory of this process so far, in kB; getrusage counts its parent's, too."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


if __name__ == "__main__":
    main()
