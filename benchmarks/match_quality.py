"""Means of networks that were trained apart, as they are and in one order.

``python -m benchmarks.match_quality --seeds 3 NAME…``: Fashion-MNIST at 14 × 14 pixels. *Barrier*:
two networks on all examples, accuracy half way between them. *One shot*: two clients with half of
the examples each, their mean, beside that of clients that begin alike. Running statistics are
measured anew after it (the part of REPAIR, Jordan et al. 2023, that networks with batch norm need).
A line of JSON per network and seed is appended; lines that are there are not made again, and
``--seeds 0`` prints the table of the lines alone.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

import archgraph as ag
from archgraph.tables import Table
from benchmarks.fit_quality import EXAMPLES, accuracy, data, perceptron, plain, resnet, train

EPOCHS, RATE = 5, 0.05
Maker: TypeAlias = Callable[[], nn.Module]
MLP: Maker = functools.partial(perceptron, 512, 512)
PLAIN: dict[int, Maker] = {w: functools.partial(plain, w, 1) for w in (16, 32, 64)}
RESNET: dict[int, Maker] = {w: functools.partial(resnet, w, 1) for w in (16, 32)}
# A stem of stride 2: a quarter of the work.
STRIDED: dict[int, Maker] = {w: functools.partial(resnet, w, 1, stride=2) for w in (16, 32, 64)}
NETWORKS: dict[str, tuple[Maker, Maker]] = {
    "perceptron 512": (MLP, MLP),
    **{f"plain {w}": (net, net) for w, net in PLAIN.items()},
    "plain 32 and 16": (PLAIN[32], PLAIN[16]),
    **{f"strided resnet {w}": (net, net) for w, net in STRIDED.items()},
    **{f"resnet {w}": (net, net) for w, net in RESNET.items()},
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

    def trained(
        which: int, part: slice, number: int, start: int | None = None
    ) -> dict[str, Tensor]:
        begin = ag.initial_state(graphs[which], 1000 * seed + (number if start is None else start))
        return ag.state_of(
            train(ag.build(graphs[which], begin), x[part], y[part], EPOCHS, RATE, number)
        )

    def tested(graph: ag.ArchGraph, state: dict[str, Tensor]) -> float:
        return accuracy(recalibrated(ag.build(graph, state), x), u, v)

    record: dict[str, object] = {"network": name, "seed": seed}
    halves = slice(0, EXAMPLES, 2), slice(1, EXAMPLES, 2)
    for setting, parts in (("barrier", (slice(None),) * 2), ("one shot", halves)):
        a, b = trained(0, parts[0], 1), trained(1, parts[1], 2)
        ends = accuracy(ag.build(wide, a).eval(), u, v), accuracy(ag.build(other, b).eval(), u, v)
        weights = ag.match(wide, a, b, other=other)
        record[setting] = {
            "ends": ends,
            "as it is": tested(wide, mean(wide, a, b, prefix)),
            "by weights": tested(wide, mean(wide, a, b, weights.transfer)),
            "one start": None,
            "similarity": (weights.before, weights.after),
        }
        if setting == "one shot" and wide == other:
            alike = trained(1, parts[1], 2, start=1)
            start = tested(wide, mean(wide, a, alike, ag.Transfer.identity(wide)))
            record[setting]["one start"] = start  # type: ignore[index]
    return record


def table(records: list[dict[str, dict[str, float]]]) -> Table:
    """Return means and deviations over seeds, a row per network and setting."""
    cells: dict[tuple[object, str], list[dict[str, float]]] = defaultdict(list)
    for record in records:
        for setting in ("barrier", "one shot"):
            cells[record["network"], setting].append(record[setting])
    ways = ("as it is", "by weights", "one start")

    def spread(values: list[float]) -> str:
        if None in values:
            return ""
        deviation = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
        return f"{np.mean(values):.1f}{deviation}"

    rows = []
    for (name, setting), values in cells.items():
        ends = ", ".join(f"{np.mean([v['ends'][i] for v in values]):.1f}" for i in (0, 1))  # type: ignore[index]
        means = (spread([v[way] for v in values]) for way in ways)
        rows.append((str(name), setting, ends, *means, str(len(values))))
    columns = ("network", "setting", "alone", *ways, "seeds")
    return Table("Accuracy of the mean of two networks, in %", columns, tuple(rows))


def main() -> None:
    """Make what is missing, and print a table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("names", nargs="*", help=f"default: all of {', '.join(NETWORKS)}")
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--out", type=Path, default=Path("docs/measured/match_quality.jsonl"))
    asked = options.parse_args()
    torch.set_num_threads(1)
    text = asked.out.read_text() if asked.out.exists() else ""
    records = [json.loads(item) for item in text.splitlines()]
    there = {(r["network"], r["seed"]) for r in records}
    for seed in range(asked.seeds):
        for name in asked.names or NETWORKS:
            if (name, seed) not in there:
                records.append(line(name, seed))
                with asked.out.open("a") as file:
                    file.write(json.dumps(records[-1]) + "\n")
    print(table(records).markdown())


if __name__ == "__main__":
    main()
