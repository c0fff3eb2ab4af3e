"""Means of networks that were trained apart, as they are and in one order.

``python -m benchmarks.match_quality --seeds 3``: Fashion-MNIST at 14 × 14 pixels. *Barrier*: two
networks on all examples, accuracy half way between them. *One shot*: two clients with half of the
examples each, their mean. Running statistics are measured anew after it (the part of REPAIR,
Jordan et al. 2023, that networks with batch norm need).
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import archgraph as ag
from archgraph.tables import Table
from benchmarks.fit_quality import EXAMPLES, accuracy, data, perceptron, plain, resnet, train

EPOCHS, RATE = 5, 0.05
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "perceptron 512": (lambda: perceptron(512, 512), lambda: perceptron(512, 512)),
    "plain 32": (lambda: plain(32, 1), lambda: plain(32, 1)),
    "plain 32 and 16": (lambda: plain(32, 1), lambda: plain(16, 1)),
    "resnet 16": (lambda: resnet(16, 1), lambda: resnet(16, 1)),
    "resnet 32": (lambda: resnet(32, 1), lambda: resnet(32, 1)),
}


def recalibrated(net: nn.Module, x: Tensor) -> nn.Module:
    """Measure running statistics anew."""
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    net.train()
    with torch.no_grad():
        for part in x[:2000].split(250) if norms else ():
            net(part)
    return net.eval()


def mean(
    graph: ag.ArchGraph, a: dict[str, Tensor], b: dict[str, Tensor], transfer: ag.Transfer
) -> dict[str, Tensor]:
    """The covered mean of two networks."""
    merger = ag.Merger(graph, a)
    merger.add(ag.Transfer.identity(graph), a)
    merger.add(transfer, b)
    return dict(merger.result()[0])


def line(name: str, seed: int) -> dict[str, object]:
    """What one network and seed give."""
    x, y, u, v = data()
    makers = NETWORKS[name]
    graphs = [ag.trace(make(), x[:2]).graph for make in makers]
    wide, other = graphs
    prefix = ag.take(wide, sizes={a.name: a.size for a in ag.axes(other).free}).transfer

    def trained(which: int, part: slice, number: int) -> dict[str, Tensor]:
        start = ag.initial_state(graphs[which], 1000 * seed + number)
        return ag.state_of(
            train(ag.build(graphs[which], start), x[part], y[part], EPOCHS, RATE, number)
        )

    def tested(graph: ag.ArchGraph, state: dict[str, Tensor]) -> float:
        return accuracy(recalibrated(ag.build(graph, state), x), u, v)

    record: dict[str, object] = {"network": name, "seed": seed}
    halves = slice(0, EXAMPLES, 2), slice(1, EXAMPLES, 2)
    for setting, parts in (("barrier", (slice(None),) * 2), ("one shot", halves)):
        a, b = trained(0, parts[0], 1), trained(1, parts[1], 2)
        ends = accuracy(ag.build(wide, a).eval(), u, v), accuracy(ag.build(other, b).eval(), u, v)
        weights = ag.match(wide, a, b, other=other)
        batches = [(x[:512], y[:512])]
        seen = ag.match(wide, a, b, other=other, data=batches)
        merged = mean(wide, a, b, seen.transfer)
        repaired = None
        if wide == other:
            ordered = (a, seen.order.pull(b))
            repaired = tested(wide, ag.repair(wide, merged, batches, ends=ordered))
        record[setting] = {
            "ends": ends,
            "as it is": tested(wide, mean(wide, a, b, prefix)),
            "by weights": tested(wide, mean(wide, a, b, weights.transfer)),
            "by activations": tested(wide, merged),
            "repaired": repaired,
            "similarity": (weights.before, weights.after),
        }
    return record


def main() -> None:
    """Make what is missing, and print a table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--out", type=Path, default=Path("match_quality.jsonl"))
    asked = options.parse_args()
    torch.set_num_threads(1)
    text = asked.out.read_text() if asked.out.exists() else ""
    records = [json.loads(item) for item in text.splitlines()]
    there = {(r["network"], r["seed"]) for r in records}
    for seed in range(asked.seeds):
        for name in NETWORKS:
            if (name, seed) not in there:
                records.append(line(name, seed))
                with asked.out.open("a") as file:
                    file.write(json.dumps(records[-1]) + "\n")
    cells: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for record in records:
        for setting in ("barrier", "one shot"):
            cells[record["network"], setting].append(record[setting])
    ways = ("as it is", "by weights", "by activations", "repaired")
    rows = []
    for (name, setting), values in cells.items():
        ends = " and ".join(f"{np.mean([v['ends'][i] for v in values]):.1f}" for i in (0, 1))  # type: ignore[index]
        means = (
            "" if values[0][w] is None else f"{np.mean([v[w] for v in values]):.1f}" for w in ways
        )
        rows.append((name, setting, ends, *means, str(len(values))))
    columns = ("network", "setting", "alone", *ways, "seeds")
    print(Table("Accuracy of the mean of two networks, in %", columns, tuple(rows)))


if __name__ == "__main__":
    main()
