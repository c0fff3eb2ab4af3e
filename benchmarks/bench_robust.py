"""Medians, trimmed means and Krum of updates on disk, against the covered mean of the same.

``--memory N``: the peak memory of a trimmed mean of ``N`` updates, less what there was before.
"""

from __future__ import annotations

import argparse
import functools
import subprocess
import sys
from collections.abc import Callable, Sequence

import torch

from archgraph.federation.contribution import Contribution
from archgraph.federation.robust_means import robust_means
from archgraph.federation.state import ServerState
from archgraph.language.aggregate import (
    AggregateSpec,
    KrumOptions,
    MedianOptions,
    TrimmedMeanOptions,
)
from archgraph.states import Merger, State, Transfer, Update
from benchmarks.bench_transfer import (
    RATES,
    graph_of,
    keep_freed_memory,
    merged,
    narrowed,
    random_state,
    resident,
    seconds,
    shapes,
)

RULES = {
    "median": AggregateSpec(median=MedianOptions()),
    "trimmed_mean 0.2": AggregateSpec(trimmed_mean=TrimmedMeanOptions(share=0.2)),
    "krum 0.2, 5 kept": AggregateSpec(krum=KrumOptions(malicious=0.2, keep=5)),
}


def moved(state: State, by: int) -> dict[str, torch.Tensor]:
    """An update: the state, each value moved a little."""
    draw = torch.Generator().manual_seed(by)
    return {
        k: v + 0.01 * torch.randn(v.shape, generator=draw) if v.is_floating_point() else v
        for k, v in state.items()
    }


def averaged(
    rules: AggregateSpec, state: State, updates: list[tuple[Transfer, State]]
) -> Callable[[], None]:
    """A whole aggregation by rules."""
    held = ServerState().with_group("global", state)

    def run() -> None:
        robust_means(
            rules,
            held,
            (
                Contribution(number, "global", transfer.source, transfer, update, 1.0)
                for number, (transfer, update) in enumerate(updates)
            ),
        )

    return run


def figures(repeat: int = 3) -> dict[str, float]:
    """Ratios to the covered mean of ten updates of ResNet-18's size, by rule and architectures."""
    keep_freed_memory()
    full = graph_of(shapes())
    state = random_state(full)
    fleets = {
        "10 equal": [Transfer.identity(full)] * 10,
        "10 mixed prefixes": [narrowed(rate).transfer for rate in RATES for _ in range(2)],
    }
    result = {}
    for name, transfers in fleets.items():
        updates = [(t, moved(t.pull(state), i)) for i, t in enumerate(transfers)]
        runs = [averaged(rules, state, updates) for rules in RULES.values()]  # type: ignore[arg-type]  # tuples of states
        mean, *taken = seconds(merged(full, state, updates, checked=False), *runs, repeat=repeat)
        for rule, spent in zip(RULES, taken, strict=True):
            result[f"{rule}, {name} / covered mean"] = spent / mean
            result[f"{rule}, {name}, s"] = spent
    return result


def orders() -> dict[str, float]:
    """What the order of ten updates changes in their mean, and what sums in float64 cost."""
    full = graph_of(shapes())
    state = random_state(full)
    updates = [(Transfer.identity(full), moved(state, i)) for i in range(10)]

    def mean(order: Sequence[int], dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
        merger = Merger(full, state, dtype=dtype)
        for place in order:
            merger.accumulate(Update(*updates[place]))
        return merger.result()[0]

    ascending, result = range(10), {}
    for dtype in (torch.float32, torch.float64):
        first, last = mean(ascending, dtype), mean(ascending[::-1], dtype)
        apart = max(
            float(((first[k] - last[k]) / first[k]).abs().nan_to_num().max()) for k in first
        )
        result[f"mean in the other order, {dtype} sums: largest relative change"] = apart
    single, double = seconds(
        functools.partial(mean, ascending),
        functools.partial(mean, ascending, torch.float64),
        repeat=3,
    )
    result["mean, sums in float64 / in float32"] = double / single
    return result


def peak_memory(clients: int) -> float:
    """Peak memory of a trimmed mean of so many updates in this process, in global states."""
    full = graph_of(shapes())
    state = random_state(full)
    transfers = [narrowed(rate).transfer for rate in RATES[:2]]
    size = sum(value.nbytes for value in state.values())
    held = ServerState().with_group("global", state)
    del full
    before = resident("VmRSS")
    robust_means(
        RULES["trimmed_mean 0.2"],
        held,
        (
            Contribution(i, "global", t.source, t, t.pull(state), 1.0)
            for i in range(clients)
            for t in [transfers[i % len(transfers)]]
        ),
    )
    return (resident("VmHWM") - before) / size


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory", type=int, help="only the peak memory of this many updates")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.memory:
        print(f"{peak_memory(chosen.memory):.2f}")
        return
    for name, value in (figures() | orders()).items():
        print(f"{name:<72} {value:8.2g}", flush=True)
    for clients in (10, 40):
        command = [sys.executable, "-m", "benchmarks.bench_robust", "--memory", str(clients)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        print(f"trimmed mean of {clients} updates: global states at the peak", done.stdout.strip())


if __name__ == "__main__":
    main()
