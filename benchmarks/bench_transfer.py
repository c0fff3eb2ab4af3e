"""Distribution and aggregation against memory bandwidth, as ratios measured in one process.

``pull`` is compared with a plain copy of the same bytes, ``merge`` of ten clients with ten
``torch.add_`` over the same bytes. Run as a script, it also measures the peak memory of merging
1 000 updates, in a process of its own.

Ratios are of the processor time of one thread, which other load on the machine disturbs least.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from archgraph.engine.world import WAIT
from archgraph.graph.ir import ArchGraph, Param, TensorType
from archgraph.states import DimMap, Entry, Merger, Rewritten, State, Transfer, Update, signature

RATES = (1.0, 0.5, 0.25, 0.125, 0.0625)
Choose = Callable[[int, float], DimMap | None]


def shapes(rate: float = 1.0, classes: int = 1000) -> dict[str, tuple[int, ...]]:
    """Parameter and buffer shapes of ResNet-18, its channels scaled by ``rate``."""
    widths = [-int(-rate * width // 1) for width in (64, 128, 256, 512)]
    result: dict[str, tuple[int, ...]] = {}

    def conv(name: str, norm: str, into: int, out: int, kernel: int) -> None:
        result[f"{name}.weight"] = (out, into, kernel, kernel)
        for part in ("weight", "bias", "running_mean", "running_var"):
            result[f"{norm}.{part}"] = (out,)
        result[f"{norm}.num_batches_tracked"] = ()

    conv("conv1", "bn1", 3, widths[0], 7)
    into = widths[0]
    for stage, out in enumerate(widths, start=1):
        for block in range(2):
            prefix = f"layer{stage}.{block}"
            conv(f"{prefix}.conv1", f"{prefix}.bn1", into, out, 3)
            conv(f"{prefix}.conv2", f"{prefix}.bn2", out, out, 3)
            if stage > 1 and block == 0:
                conv(f"{prefix}.downsample.0", f"{prefix}.downsample.1", into, out, 1)
            into = out
    result["fc.weight"], result["fc.bias"] = (classes, into), (classes,)
    return result


def graph_of(entries: dict[str, tuple[int, ...]]) -> ArchGraph:
    """A graph that has these leaves and computes nothing."""
    params = []
    for name, shape in entries.items():
        kind = TensorType(shape, "int64" if name.endswith("tracked") else "float32")
        buffer = name.rsplit(".", 1)[-1] in ("running_mean", "running_var", "num_batches_tracked")
        params.append(Param(name, kind, "buffer" if buffer else "parameter"))
    return ArchGraph(inputs=(), params=tuple(params), nodes=(), outputs=())


def prefix(size: int, rate: float) -> DimMap | None:
    """HeteroFL's choice: the first positions."""
    return DimMap.of(range(-int(-rate * size // 1)), size)


def scattered(size: int, rate: float) -> DimMap | None:
    """Any positions, the same for every axis of a size."""
    rng = np.random.default_rng(size)
    count = -int(-rate * size // 1)
    return DimMap.of(np.sort(rng.choice(size, count, replace=False)), size)


def narrowed(rate: float, choose: Choose = prefix, scale: int = 1) -> Rewritten:
    """ResNet-18, or one with so many times its channels, narrowed."""
    full, small = graph_of(shapes(scale)), graph_of(shapes(scale * rate))
    entries = {}
    for slot, now in zip(signature(full), signature(small), strict=True):
        dims = [
            None if a == b else choose(a, rate) for a, b in zip(slot.shape, now.shape, strict=True)
        ]
        entries[slot.name] = Entry(slot.name, tuple(dims))
    return Rewritten(small, Transfer(signature(full), signature(small), entries))


def widened(factor: float = 1.5) -> Rewritten:
    """ResNet-18 with its channels replicated as in Net2Net, incoming weights divided."""
    full, large = graph_of(shapes()), graph_of(shapes(factor))
    entries = {}
    for slot, now in zip(signature(full), signature(large), strict=True):
        dims: list[DimMap | None] = []
        for axis, (a, b) in enumerate(zip(slot.shape, now.shape, strict=True)):
            where = np.arange(b) % a
            share = None if axis == 0 else 1 / np.bincount(where)[where]
            dims.append(None if a == b else DimMap.of(where, a, weights=share))
        entries[slot.name] = Entry(slot.name, tuple(dims))
    return Rewritten(large, Transfer(signature(full), signature(large), entries))


def random_state(graph: ArchGraph, seed: int = 0) -> dict[str, torch.Tensor]:
    """A state of random numbers, counters at the seed."""
    stream = torch.Generator().manual_seed(seed)
    return {
        slot.name: torch.randn(slot.shape, generator=stream)
        if slot.averaged
        else torch.full(slot.shape, seed)
        for slot in signature(graph)
    }


def copied(state: State) -> dict[str, torch.Tensor]:
    """The baseline of ``pull``: the same bytes, copied."""
    return {name: value.clone() for name, value in state.items()}


def each(call: Callable[[State], object], states: Sequence[State]) -> None:
    """Call it on every state, keeping nothing."""
    for state in states:
        call(state)


def added(states: Sequence[State]) -> Callable[[], None]:
    """The baseline of ``merge``: every update, as one flat tensor, added to a sum of its size."""
    flat = [torch.cat([v.flatten() for v in s.values() if v.is_floating_point()]) for s in states]
    sums = {part.numel(): torch.zeros_like(part) for part in flat}

    def run() -> None:
        for part in flat:
            sums[part.numel()].add_(part)

    return run


def keep_freed_memory() -> None:
    """Let malloc keep what is freed: else the system's speed at zeroing new pages is measured."""
    trim_threshold, mmap_threshold = -1, -3  # M_… of malloc.h
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(trim_threshold, 2**31 - 1)
        libc.mallopt(mmap_threshold, 2**30)


def merged(
    full: ArchGraph,
    state: State,
    updates: Sequence[tuple[Transfer, State]],
    *,
    checked: bool,
) -> Callable[[], None]:
    """A whole aggregation: all updates and the result."""

    def run() -> None:
        merger = Merger(full, state, wait=WAIT)
        for transfer, update in updates:
            if checked:
                merger.add(transfer, update)
            else:
                merger.accumulate(Update(transfer, update))
        merger.result()

    return run


def seconds(*runs: Callable[[], object], repeat: int = 15) -> list[float]:
    """Least seconds of each, measured in turn so that all see the same machine."""
    times: list[list[float]] = [[] for _ in runs]
    for run in runs:
        run()
    for _ in range(repeat):
        for run, taken in zip(runs, times, strict=True):
            start = time.process_time()
            run()
            taken.append(time.process_time() - start)
    return [min(taken) for taken in times]


def figures(repeat: int = 15) -> dict[str, float]:
    """Ratios to the baseline, by name; 1 is the memory-bandwidth bound."""
    keep_freed_memory()
    full = graph_of(shapes())
    state = random_state(full)
    result: dict[str, float] = {}
    kinds = {
        "identity": Rewritten.identity(full),
        "half prefix": narrowed(0.5),
        "half scattered": narrowed(0.5, scattered),
        "net2net 1.5": widened(),
    }
    # Four of each in turn: what is read lies in memory and not in a cache, for both.
    states = [random_state(full, seed) for seed in range(4)]
    for name, (_, transfer) in kinds.items():
        targets = [transfer.pull(state) for state in states]
        bound, taken = seconds(
            functools.partial(each, copied, targets),
            functools.partial(each, transfer.pull, states),
            repeat=repeat,
        )
        result[f"pull {name} / copy"] = taken / bound

    def mixed(choose: Choose, scale: int = 1) -> list[Transfer]:
        return [narrowed(rate, choose, scale).transfer for rate in RATES for _ in range(2)]

    fleets = {
        "10 equal": [Transfer.identity(full)] * 10,
        "10 mixed prefixes": mixed(prefix),
        "10 mixed scattered": mixed(scattered),
        "10 net2net 1.5": [widened().transfer] * 10,
        "10 mixed prefixes of 47 M": mixed(prefix, 2),
    }
    for name, transfers in fleets.items():
        full = graph_of(shapes(2 if "47 M" in name else 1))
        state = random_state(full)
        updates = [(t, t.pull(random_state(full, i))) for i, t in enumerate(transfers)]
        values = [update for _, update in updates]
        bound, taken, checked = seconds(
            added(values),
            merged(full, state, updates, checked=False),
            merged(full, state, updates, checked=True),
            repeat=repeat,
        )
        result[f"merge {name} / add_"] = taken / bound
        result[f"merge {name}, values checked / add_"] = checked / bound
    return result


def peak_memory(clients: int) -> tuple[float, int]:
    """Peak memory of merging this many updates in this process, less what there was before.

    Returns:
        Peak in units of one global state, and the number of distinct architectures.
    """
    full = graph_of(shapes())
    state = random_state(full)
    transfers = [narrowed(rate).transfer for rate in RATES[:2]]
    size = sum(value.nbytes for value in state.values())

    def updates() -> Iterator[tuple[Transfer, dict[str, torch.Tensor]]]:
        for index in range(clients):
            transfer = transfers[index % len(transfers)]
            yield transfer, transfer.pull(state)

    del full
    before = resident("VmRSS")
    merger = Merger(transfers[0].source, state)
    for transfer, update in updates():
        merger.add(transfer, update)
        del update
    merger.result()
    return (resident("VmHWM") - before) / size, len(transfers)


def resident(kind: str) -> int:
    """Resident bytes of this process: ``VmRSS`` now, ``VmHWM`` at most so far."""
    with Path("/proc/self/status").open() as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(kind))


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory", type=int, help="only the peak memory of this many updates")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    if chosen.memory:
        peak, architectures = peak_memory(chosen.memory)
        print(f"{peak:.2f} {architectures}")
        return
    for name, value in figures().items():
        print(f"{name:<50} {value:6.2f}")
    for clients in (10, 1000):
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.bench_transfer", "--memory", str(clients)],
            check=True,
            capture_output=True,
            text=True,
        )
        print(f"merging {clients} updates: (global states at the peak, architectures)", done.stdout)


if __name__ == "__main__":
    main()
