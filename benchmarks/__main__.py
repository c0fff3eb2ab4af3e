"""``make bench``: every benchmark in turn; each prints ratios against a baseline of its own run."""

from __future__ import annotations

import importlib

NAMES = (
    "bench_cli", "bench_graph", "bench_transfer", "bench_strategies", "bench_round",
    "bench_step", "bench_robust", "bench_hypernet", "bench_trace", "bench_view",
    "bench_workers", "bench_memory",
)  # fmt: skip

for name in NAMES:
    print(f"\n== {name}", flush=True)
    importlib.import_module(f"benchmarks.{name}").main()
