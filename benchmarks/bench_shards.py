"""Cutting a folder of transformers in shards of 2 GB, beside ``cp`` of the folder.

A Llama of 5.4 GB in bfloat16 is written, then read and cut by a fresh process: bytes read and
written in a second beside those of ``cp --reflink=never`` with fsync, in turns and without the
files in the page cache; and how much anonymous memory the process had beyond the largest tensor.
It needs 17 GB of disk, in the folder that is given, and ten minutes: not part of ``make bench``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tests.conftest  # noqa: F401 - torchvision beside a CPU torch

SHARD = 2_100_000_000
REPEATS = 3
SIZES = {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
         "num_hidden_layers": 12, "num_attention_heads": 32, "num_key_value_heads": 8}  # fmt: skip


def write_model(folder: Path) -> None:
    """Write the folder, band after band."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from archgraph.foreign.shards import write_shards
    from archgraph.states.lazy import LazyState

    folder.mkdir()
    config = LlamaConfig(**SIZES, dtype="bfloat16", architectures=["LlamaForCausalLM"])
    config.save_pretrained(folder)
    with torch.device("meta"):
        types = LlamaForCausalLM(config).to(torch.bfloat16).state_dict()
    drawn = torch.randn(2**22).to(torch.bfloat16)

    def rows(name: str, start: int, stop: int) -> torch.Tensor:
        shape = (stop - start, *types[name].shape[1:])
        return drawn[: torch.Size(shape).numel()].view(shape)

    write_shards(folder, LazyState(types, rows), SHARD)


def _cuts() -> dict[str, Callable[[Any], Any]]:
    import archgraph as ag

    def half(graph: Any) -> Any:
        names = {a.name: 0.5 for a in ag.axes(graph).free if a.role in ("heads", "channels")}
        return ag.take(graph, {k: v for k, v in names.items() if not k.endswith("~2")})

    return {
        "half of heads and channels": half,
        "two blocks left out": lambda graph: ag.skip(graph, ["model.layers.5", "model.layers.6"]),
        "every other channel within blocks": lambda graph: ag.take(
            graph,
            positions={
                a.name: range(0, a.size, 2) for a in ag.axes(graph).free if "gate_proj" in a.name
            },
        ),
    }


def measure(name: str, folder: Path, out: Path) -> dict[str, float]:
    """Cut the folder in this process."""
    import archgraph as ag
    from archgraph.foreign import shards, transformers_folder

    seconds: dict[str, float] = {}
    write_shards = shards.write_shards

    def timed(*args: Any) -> None:
        before, start = _moved(), time.perf_counter()
        write_shards(*args)
        seconds["copying"] = time.perf_counter() - start
        seconds["bytes"] = _moved() - before

    vars(transformers_folder)["write_shards"] = timed
    with _peak() as peak:
        start = time.perf_counter()
        graph, state = ag.from_transformers(folder)
        small = _cuts()[name](graph)
        ag.to_transformers(small, state.through(small.transfer), folder, out)
        seconds["all"] = time.perf_counter() - start
    largest = max(like.nbytes for like in state.types.values())
    return {**seconds, "anonymous": peak[0], "largest": largest}


@contextmanager
def _peak() -> Iterator[list[int]]:
    """Give the largest anonymous memory of the process, looked at every five milliseconds."""
    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            status = Path("/proc/self/status").read_text()
            peak[0] = max(peak[0], 1024 * int(status.partition("RssAnon:")[2].split()[0]))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def _moved() -> int:
    """Bytes that this process has read and written."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"]) + int(fields["wchar"])


def _forget(folder: Path) -> None:
    """Drop the files of a folder from the page cache."""
    for file in folder.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def copied(folder: Path, out: Path) -> float:
    """Return bytes read and written in a second by ``cp`` with fsync."""
    _forget(folder)
    files = sorted(folder.glob("*.safetensors"))
    start = time.perf_counter()
    for file in files:
        subprocess.run(["cp", "--reflink=never", file, out / file.name], check=True)
        descriptor = os.open(out / file.name, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    seconds = time.perf_counter() - start
    return 2 * sum(file.stat().st_size for file in files) / seconds


def main() -> None:
    """Print a row for each cut."""
    if len(sys.argv) == 4:
        print(json.dumps(measure(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))))
        return
    with TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as at:
        folder = Path(at) / "whole"
        write_model(folder)
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"{size / 1e9:.1f} GB in {len([*folder.glob('*.safetensors')])} shards", flush=True)
        for name in _cuts():
            rows: list[dict[str, float]] = []
            for _ in range(REPEATS):
                with TemporaryDirectory(dir=at) as out:
                    speed = copied(folder, Path(out))
                _forget(folder)
                with TemporaryDirectory(dir=at) as out:
                    command = [sys.executable, "-m", "benchmarks.bench_shards", name]
                    arguments = [*command, str(folder), f"{out}/cut"]
                    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
                    if done.returncode:
                        sys.exit(done.stderr[-2000:])
                row = json.loads(done.stdout.strip().splitlines()[-1])
                ours = row["bytes"] / row["copying"]
                rows.append({**row, "cp": speed, "ours": ours, "ratio": ours / speed})
            middle = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
            beyond = (max(row["anonymous"] for row in rows) - middle["largest"]) / 1e9
            print(
                f"{name}: {middle['ours'] / 1e9:.2f} GB/s, cp {middle['cp'] / 1e9:.2f} GB/s, "
                f"{middle['ratio']:.0%}; {middle['copying']:.1f} s of {middle['all']:.1f}; "
                f"anonymous memory {beyond:+.2f} GB beyond the largest tensor "
                f"({middle['largest'] / 1e9:.2f} GB)",
                flush=True,
            )


if __name__ == "__main__":
    main()
