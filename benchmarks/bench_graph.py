"""How axes and structure grow with the graph.

Residual chains of up to 1 000 blocks and dense chains of up to 2 000 layers: graphs that are made
of a traced one's operators, not traced.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Sequence

import torch

import archgraph as ag
import tests.conftest  # noqa: F401 - makes torchvision importable beside a CPU torch
from archgraph.analysis import axes as axes_module
from archgraph.analysis import structure as structure_module
from archgraph.graph.ir import ArchGraph, Leaf, Node, Param, Ref, TensorType, Value, replace
from archgraph.graph.passes import prune
from tests import structures


def best(work: Callable[[], object], repeats: int) -> float:
    """Least processor seconds of one thread over some repeats."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


def _template(net: torch.nn.Module) -> ArchGraph:
    """A traced network without its batch counters."""
    return prune(structures.graph_of(net).replace(updates=()))


def residual(blocks: int) -> ArchGraph:
    """A residual network of equal blocks: the last of two traced ones over and over."""
    graph = _template(structures.Net(structures.Basic, (2,), (8,)))
    block = structure_module.structure(graph).block("stage1.1")
    inside = [graph.node[n] for n in block.nodes]
    used = {leaf for n in inside for leaf in n.leaves()}
    params = {p.name: p for p in graph.params}
    nodes, leaves, end = [], [], block.exit
    for i in range(2, blocks):

        def change(value: Value, i: int = i, end: str = end) -> Value:
            if isinstance(value, Ref):
                return Ref(end if value.name == block.entry else f"{value.name}~{i}")
            if isinstance(value, Leaf):
                return Leaf(value.name.replace("stage1.1", f"stage1.{i}"))
            return value

        nodes += [
            dataclasses.replace(
                n,
                name=f"{n.name}~{i}",
                scope=n.scope.replace("stage1.1", f"stage1.{i}"),
                args=tuple((k, replace(v, change)) for k, v in n.args),
            )
            for n in inside
        ]
        leaves += [
            dataclasses.replace(params[p], name=p.replace("stage1.1", f"stage1.{i}"))
            for p in sorted(used)
        ]
        end = f"{block.exit}~{i}"
    at = next(i for i, n in enumerate(graph.nodes) if n.name == block.exit) + 1

    def follow(value: Value) -> Value:
        return Ref(end) if value == Ref(block.exit) else value

    rest = [
        dataclasses.replace(n, args=tuple((k, replace(v, follow)) for k, v in n.args))
        for n in graph.nodes[at:]
    ]
    return _checked(graph, (*graph.nodes[:at], *nodes, *rest), (*graph.params, *leaves))


def dense(layers: int, size: int = 0) -> ArchGraph:
    """A dense chain: each layer reads all before it (in its block of ``size``), concatenated.

    Blocks of bounded length are joined by a layer that brings the width back to that of the stem.
    """
    graph = _template(structures.DenseNet(layers=2))
    whole = {p.name: p for p in graph.params}
    layer = [n for n in graph.nodes if n.scope.startswith("dense.1") and n.op != "aten.cat"]
    cat = next(n for n in graph.nodes if n.op == "aten.cat")
    stem, squeeze = (
        next(n for n in graph.nodes if f"{name}.weight" in n.leaves())
        for name in ("stem", "squeeze")
    )
    width, growth = 8, 4
    nodes: list[Node] = []
    params: list[Param] = []

    def put(template: Node, name: str, source: Ref, scope: str, c: int, out: int) -> Ref:
        """A copy of an operator for ``c`` channels that makes ``out``."""

        def change(value: Value) -> Value:
            if isinstance(value, Ref):
                return source
            if isinstance(value, Leaf):
                old = whole[value.name]
                leaf = Leaf(f"{scope}.{value.name.rpartition('.')[2]}")
                shape = (out, c, *old.shape[2:]) if len(old.shape) == 4 else (out,)
                params.append(
                    dataclasses.replace(old, name=leaf.name, type=TensorType(shape, old.dtype))
                )
                return leaf
            return value

        batch, _, *pixels = template.shape
        nodes.append(
            dataclasses.replace(
                template,
                name=name,
                scope=scope,
                args=tuple((k, replace(v, change)) for k, v in template.args),
                type=TensorType((batch, out, *pixels), template.dtype),
            )
        )
        return Ref(name)

    def joined(refs: Sequence[Ref], name: str, c: int) -> Ref:
        batch, _, *pixels = cat.shape
        nodes.append(
            dataclasses.replace(
                cat, name=name, type=TensorType((batch, c, *pixels), cat.dtype), scope=""
            ).with_args(tensors=tuple(refs))
        )
        return Ref(name)

    begin = graph.nodes.index(stem)
    nodes += graph.nodes[:begin]
    x = put(stem, "stem", Ref(graph.nodes[0].name), "stem", 3, width)
    for block, first in enumerate(range(0, layers, size or layers)):
        refs, c = [x], width
        for i in range(first, min(first + (size or layers), layers)):
            y = joined(refs, f"cat~{i}", c)
            for n in layer:
                out = growth if n is layer[-1] else c
                y = put(n, f"{n.op.split('.')[1]}~{i}", y, f"dense.{block}.{i}.{n.op[5:]}", c, out)
            refs.append(y)
            c += growth
        y = joined(refs, f"all~{block}", c)
        x = put(squeeze, f"squeeze~{block}", y, f"squeeze.{block}", c, width)
    end = next(i for i, n in enumerate(graph.nodes) if n is squeeze)
    kept = [leaf for n in graph.nodes[end + 1 :] for leaf in n.leaves()]

    def follow(value: Value) -> Value:
        return x if value == Ref(squeeze.name) else value

    nodes += [
        dataclasses.replace(n, args=tuple((k, replace(v, follow)) for k, v in n.args))
        for n in graph.nodes[end + 1 :]
    ]
    return _checked(graph, nodes, [*params, *(whole[k] for k in dict.fromkeys(kept))])


def _checked(graph: ArchGraph, nodes: Sequence[Node], params: Sequence[Param]) -> ArchGraph:
    used = {leaf for n in nodes for leaf in n.leaves()}
    made = graph.replace(nodes=tuple(nodes), params=tuple(p for p in params if p.name in used))
    ag.check(made)
    return made


CHAINS: dict[str, tuple[Callable[[int], ArchGraph], tuple[int, ...]]] = {
    "residual": (residual, (10, 30, 100, 300, 1000)),
    "dense, blocks of 16": (lambda n: dense(n, 16), (10, 30, 100, 300, 1000, 2000)),
    "dense": (dense, (10, 30, 100, 300, 1000)),  # half a million edges
}


def growth(make: Callable[[int], ArchGraph], sizes: Sequence[int]) -> list[dict[str, float]]:
    """CPU seconds of both analyses by size, and of a pass that is linear in nodes and edges."""
    return [_timed(size, make(size)) for size in sizes]


def _timed(size: int, graph: ArchGraph) -> dict[str, float]:
    edges = sum(len(tuple(n.uses())) for n in graph.nodes)
    repeats = 3 if edges < 100_000 else 1
    analysed = []
    for _ in range(repeats):
        fresh = graph.replace()
        axes_module.axes(fresh)  # structure asks for them
        analysed.append(best(functools.partial(structure_module.structure, fresh), 1))
    return {
        "layers": size,
        "nodes": len(graph.nodes),
        "edges": edges,
        "print, s": best(lambda: str(graph.replace()), repeats),
        "axes, s": best(lambda: axes_module.axes(graph.replace()), repeats),
        "structure, s": min(analysed),
    }


def exponents(rows: Sequence[dict[str, float]], what: str, by: str) -> list[float]:
    """Growth from row to row: time goes as size to this power."""
    return [
        math.log(b[what] / a[what]) / math.log(b[by] / a[by]) for a, b in itertools.pairwise(rows)
    ]


def show_growth(name: str, rows: Sequence[dict[str, float]]) -> None:
    """Print one chain: seconds, ratio to printing, exponents by node and by edge."""
    print(f"\n{name}")
    heads = ("layers", "nodes", "edges", "print, s", "axes, s", "structure, s")
    print("".join(f"{h:>14}" for h in heads) + f"{'axes/print':>14}{'struct./print':>14}")
    for r in rows:
        plain = "".join(f"{r[h]:>14.0f}" for h in heads[:3])
        times = "".join(f"{r[h]:>14.3f}" for h in heads[3:])
        ratios = "".join(f"{r[h] / r['print, s']:>14.2f}" for h in heads[4:])
        print(plain + times + ratios)
    for what, by in itertools.product(heads[4:], ("nodes", "edges")):
        powers = " ".join(f"{e:.2f}" for e in exponents(rows, what, by))
        print(f"  {what[:-3]} grows with {by} to the power {powers}")


def main() -> None:
    """Print all figures."""
    for name, (make, sizes) in CHAINS.items():
        show_growth(name, growth(make, sizes))


if __name__ == "__main__":
    main()
