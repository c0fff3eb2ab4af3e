"""Hidden orders in the models of the zoo: the function they keep, and whether matching finds them.

``python -m benchmarks.match_zoo --out FILE NAME…``: each model is traced; its graph in double
precision gets random weights, and all axes that are matched a random order. Is the graph the same,
are the results the same, and does ``ag.match`` find the order of each axis, without noise and with
noise of 30 % of each tensor's deviation? A line of JSON per model is appended as soon as it is
measured; lines that are there are not made again. Without names: all models but the heavy ones.
"""

from __future__ import annotations

import argparse
import json
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import archgraph as ag
from archgraph.analysis.axes import axes
from archgraph.relate.match import matched_axes
from archgraph.rewrites.laws import (
    evaluated,
    in_float64,
    random_inputs,
    random_state,
    relative_difference,
)
from archgraph.tables import Table
from tests.zoo.collection import GROUPS, Entry, entries, entry

NOISE = (0.0, 0.3)
SAME = 1e-12  # results of a network in another order, relative to the largest


def noisy(state: dict[str, torch.Tensor], share: float) -> dict[str, torch.Tensor]:
    """Add noise of a share of each tensor's deviation to the weights of a network."""
    draw = torch.Generator().manual_seed(2)

    def one(value: torch.Tensor) -> torch.Tensor:
        if not value.is_floating_point() or value.numel() < 2 or not share:
            return value
        return value + share * value.std() * torch.randn(value.shape, generator=draw).double()

    return {name: one(value) for name, value in state.items()}


def line(model: Entry) -> dict[str, Any]:
    """Measure a model: what its hidden order changes, and which axes have it found."""
    start = time.process_time()
    foreign = model.make()
    graph = in_float64(ag.trace(foreign.model, *foreign.args, **foreign.kwargs).graph)
    del foreign
    state, inputs = random_state(graph), random_inputs(graph)
    sizes = {axis.name: axis.size for axis in axes(graph).free}
    draw = np.random.default_rng(1)
    orders = {n: draw.permutation(sizes[n]) for n in sorted(matched_axes(graph, graph))}
    for name, order in orders.items():  # of two positions, half of the draws hide nothing
        if np.array_equal(order, np.arange(len(order))):
            orders[name] = np.roll(order, 1)
    hidden = ag.take(graph, positions=orders, allow_nothing=True)
    other = dict(hidden.transfer.pull(state))
    record: dict[str, Any] = {
        "model": f"{model.group}/{model.name}",
        "parameters": ag.cost(graph).parameters,
        "free": len(sizes),
        "axes": len(orders),
        "graph": hidden.graph == graph,
    }
    torch.manual_seed(0)
    expected = evaluated(graph, state, inputs)
    torch.manual_seed(0)
    record["difference"] = relative_difference(evaluated(graph, other, inputs), expected)
    # Half of the moved tensors as they were: it must matter, or equal results say nothing.
    moved = [name for name, value in other.items() if not torch.equal(value, state[name])]
    partly = other | {name: state[name] for name in moved[::2]}
    record["half of it"] = relative_difference(evaluated(graph, partly, inputs), expected)
    for share in NOISE:
        positions = ag.match(graph, state, noisy(other, share)).positions
        record[f"missed at {share:g}"] = [
            name for name, order in orders.items() if not np.array_equal(positions[name], order)
        ]
    return record | {"seconds": round(time.process_time() - start, 1)}


def attempt(model: Entry, seconds: int) -> dict[str, Any]:
    """Measure a model; one that takes too long or fails has a reason instead."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s of processor time")

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return line(model)
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return {"model": f"{model.group}/{model.name}", "error": text[:300]}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def tables(records: Iterable[dict[str, Any]]) -> tuple[Table, Table]:
    """Return the counts by group, and the models that are not as they should be."""
    rows, exceptions = [], []
    every = list(records)
    for group in (*GROUPS, ""):
        models = [r for r in every if r["model"].startswith(group)]
        of = [r for r in models if "error" not in r]
        count = sum(r["axes"] for r in of)
        same = sum(r["graph"] and r["difference"] <= SAME for r in of)
        hits = (count - sum(len(r[f"missed at {share:g}"]) for r in of) for share in NOISE)
        cells = (f"{n} ({100 * n / max(count, 1):.2f} %)" for n in hits)
        rows.append((group or "all", f"{len(of)} of {len(models)}", str(same), str(count), *cells))
    for r in every:
        if "error" in r:
            exceptions.append((r["model"], r["error"]))
            continue
        if not (r["graph"] and r["difference"] <= SAME):
            change = "" if r["graph"] else ", another graph"
            exceptions.append((r["model"], f"results differ by {r['difference']:.1e}{change}"))
        for share in NOISE:
            missed = r[f"missed at {share:g}"]
            if missed:
                names = ", ".join(missed[:4]) + (", …" if len(missed) > 4 else "")
                text = f"noise {share:g}: {len(missed)} of {r['axes']} axes not found: {names}"
                exceptions.append((r["model"], text))
    columns = ("group", "models", "same function and graph", "axes", "found", "found, noise 30 %")
    return (
        Table("Hidden orders", columns, tuple(rows)),
        Table("Exceptions", ("model", "what"), tuple(exceptions)),
    )


def main() -> None:
    """Measure what is missing, and print the tables."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("names", nargs="*", help="group/name, or a group")
    options.add_argument("--out", type=Path, default=Path("docs/measured/match_zoo.jsonl"))
    options.add_argument("--seconds", type=int, default=300, help="processor time per model")
    asked = options.parse_args()
    torch.set_num_threads(1)
    text = asked.out.read_text() if asked.out.exists() else ""
    records = [json.loads(item) for item in text.splitlines()]
    there = {r["model"] for r in records}
    names = asked.names or [*reversed(GROUPS)]
    models = [m for n in names for m in (entries(n) if n in GROUPS else [entry(n)])]
    for model in models:
        if model.heavy or f"{model.group}/{model.name}" in there:
            continue
        records.append(attempt(model, asked.seconds))
        with asked.out.open("a") as file:
            file.write(json.dumps(records[-1]) + "\n")
    for table in tables(records):
        print(table.markdown())


if __name__ == "__main__":
    main()
