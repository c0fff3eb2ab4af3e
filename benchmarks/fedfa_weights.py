"""How alike blocks of two runs are, and how far their scales lie apart (FedFA, appendices B.3, F).

``python -m benchmarks.fedfa_weights RUN OTHER``: for every two models of the runs, the mean
correlation of the weight maps of their blocks, matched greedily, beside what independent weights of
the same shapes reach; and the mean L1 distance of the maps of the first and the last convolution,
on the filters that both have, beside the mean L1 norm of the first model's. Its Tables 7 to 10 and
Figures 7 to 9 train ``specs/families/fedfa_*_plain.yaml``, ``*_skip.yaml`` and ``*_scales.yaml``
with the strategy ``standalone``, twice: the models of one run start from common weights.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from archgraph.analysis.structure import structure
from archgraph.engine.run_models import trained
from archgraph.federation import Model
from archgraph.graph.ir import Leaf
from archgraph.ops.table import row

FILTERS = 32
"""Filters of a layer that are compared, drawn at random; all pairs of 512 take 70 times as long."""


def kernels(model: Model, nodes: tuple[str, ...] | None = None) -> dict[str, Tensor]:
    """Return the weights ``[out, in, kernel]`` of layers with kernels, by name."""
    graph, state = model
    found = {}
    for node in graph.nodes if nodes is None else [graph.node[name] for name in nodes]:
        facts = row(node.op)
        for argument, sides in facts.sides.items() if facts.weighted else ():
            leaf = node.arg(argument)
            if isinstance(leaf, Leaf) and {"out", "in"} <= set(sides):
                value = state[leaf.name].detach()
                if value.ndim > 2:
                    order = sides.index("out"), sides.index("in")
                    found[leaf.name] = value.movedim(order, (0, 1)).flatten(2).float()
    return found


def similarity(a: Tensor, b: Tensor) -> float:
    """Compute the mean Pearson correlation of two layers' maps ``[out, in, kernel]``, matched."""
    a, b = (_standard(_drawn(weight)) for weight in (a, b))
    matched = torch.stack([_matched(torch.einsum("ik,bjk->bij", one, b)) for one in a])
    return float(_matched(matched[None])[0])


def _drawn(weight: Tensor) -> Tensor:
    order = torch.randperm(len(weight), generator=torch.Generator().manual_seed(0))
    return weight[order[:FILTERS].sort().values]


def _standard(maps: Tensor) -> Tensor:
    centred = maps - maps.mean(2, keepdim=True)
    return centred / centred.norm(dim=2, keepdim=True).clamp_min(1e-12)


def _matched(tables: Tensor) -> Tensor:
    """Return the mean of the matched values of each ``[table, row, column]``: row by row."""
    if tables.shape[1] > tables.shape[2]:
        tables = tables.transpose(1, 2)
    barred, total = torch.zeros(tables.shape[0], tables.shape[2]), torch.zeros(len(tables))
    for line in tables.unbind(1):
        best, at = (line + barred).max(1)
        total += best
        barred.scatter_(1, at[:, None], -math.inf)
    return total / tables.shape[1]


@functools.cache
def chance(a: tuple[int, ...], b: tuple[int, ...]) -> float:
    """Compute the similarity of independent uniform weights of two shapes."""
    draw = torch.Generator().manual_seed(0)
    return similarity(*(torch.rand(shape, generator=draw) - 0.5 for shape in (a, b)))


def alike(one: Model, other: Model) -> Iterator[tuple[str, str, float, float]]:
    """Yield blocks of equal sections whose layers have the same kernels: similarity and chance."""
    theirs = {section.name: section for section in structure(other.graph).sections}
    for section in structure(one.graph).sections:
        opposite = theirs[section.name].blocks if section.name in theirs else ()
        for a, b in itertools.product(section.blocks, opposite):
            mine, others = (
                [weight for weight in kernels(*of).values() if weight.shape[2] > 1]
                for of in ((one, a.nodes), (other, b.nodes))
            )
            pairs = list(zip(mine, others, strict=False))
            if len(mine) == len(others) > 0 and all(
                x.shape[2] == y.shape[2] and len(x) * y.shape[1] == len(y) * x.shape[1]
                for x, y in pairs
            ):
                reached = sum(similarity(x, y) for x, y in pairs) / len(pairs)
                expected = sum(chance(x.shape, y.shape) for x, y in pairs) / len(pairs)
                yield a.name, b.name, reached, expected


def apart(one: Model, other: Model) -> Iterator[tuple[str, float, float]]:
    """Yield the first and the last convolution: mean L1 norm of maps, and of their differences."""
    theirs, mine = kernels(other), list(kernels(one).items())
    for name, weight in dict((mine[0], mine[-1]) if mine else ()).items():
        if name in theirs and theirs[name].shape[2] == weight.shape[2]:
            both = tuple(map(slice, map(min, weight.shape, theirs[name].shape)))
            distance = (weight[both] - theirs[name][both]).abs().sum(2).mean()
            yield name, float(weight.abs().sum(2).mean()), float(distance)


def main() -> None:
    """Compare the models of two runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs=2)
    runs = (trained(folder) for folder in parser.parse_args().runs)
    for (name, one), (of, other) in itertools.product(*(run.items() for run in runs)):
        print(f"{name} and {of}")
        for a, b, reached, expected in alike(one, other):
            print(f"  {a:20} {b:20} {reached:.4f}, independent {expected:.4f}")
        for layer, norm, distance in apart(one, other):
            print(f"  {layer:41} norm {norm:.4f}, distance {distance:.4f}")


if __name__ == "__main__":
    main()
