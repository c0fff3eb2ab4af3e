"""Add low-rank adapters (two narrow layers parallel to a layer), and reduce their ranks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Literal

import numpy as np

from archgraph.analysis.axes import axes
from archgraph.analysis.positions import Kept
from archgraph.analysis.side_branches import low_rank_branches
from archgraph.errors import RewriteError
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph, Leaf, Node, Param, Ref, TensorType, Value
from archgraph.ops.check import check
from archgraph.ops.operator import LinearMap
from archgraph.ops.schema import canonical_args
from archgraph.ops.table import row
from archgraph.rewrites.cut import cut_axes
from archgraph.rewrites.insert import fresh, initialised, matching, with_leaves
from archgraph.rewrites.laws import mask_equals_take, same_function
from archgraph.states import Rewritten

Scaling = Literal["alpha_over_r", "rsqrt"]


@takes_graph
def add_lora(
    graph: ArchGraph,
    rank: int = 8,
    where: str | Iterable[str] | None = None,
    *,
    alpha: float | None = None,
    scaling: Scaling = "alpha_over_r",
    allow_nothing: bool = False,
    verify: bool = False,
) -> Rewritten:
    """Add low-rank adapters (LoRA), which add ``s · up(down(x))`` to a layer's result for ``x``.

    The weights of ``up`` start at zero, so the network computes the same function until it is
    trained. The original weights remain trainable; ``train_only="*.lora.*"`` freezes all except the
    adapters. The rank of each adapter is an axis with role ``rank``. In :func:`archgraph.rewrite`,
    ``take=0.5`` does not change the rank, but ``rank=4`` keeps the first four components.

    Args:
        graph: The architecture.
        rank: Rank of every adapter.
        where: Names or patterns of layers or of their weights (``*.query``). Default: every linear
            layer and convolution that can have an adapter. An embedding gets an adapter only if its
            full name is passed.
        alpha: Numerator of the scale. Default: the value that makes the scale 1.
        scaling: Formula of the scale ``s``. ``alpha_over_r`` means ``alpha / rank``, and ``rsqrt``
            means ``alpha / √rank``. If the rank is reduced later, the scale stays the same.
        allow_nothing: If True and no layer can have an adapter, return the model unchanged.
        verify: Check that the function is the same (three forward passes in float64).

    Raises:
        GraphError: If a pattern matches no layer. The message suggests the nearest names.
        RewriteError: If the rank or alpha is out of range; if a layer in ``where`` has a tied,
            grouped or computed weight; if no layer gets an adapter and ``allow_nothing`` is False.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))
        >>> graph = add_lora(trace(net, torch.zeros(1, 8)).graph, 4, "0", alpha=8).graph
        >>> [(p.name, p.shape) for p in graph.params if "lora" in p.name]
        [('0.lora.down.weight', (4, 8)), ('0.lora.up.weight', (6, 4))]

    Source: Hu et al., *LoRA*, ICLR 2022, §4.1; ``rsqrt``: Kalajdzievski, *A Rank Stabilization
    Scaling Factor for Fine-Tuning with LoRA*, 2023.
    """
    _check_rank(rank)
    _check_scale(alpha, scaling)
    scale = 1.0 if alpha is None else _scale(alpha, scaling, rank)
    weights = _chosen(graph, where)
    if not weights and allow_nothing:
        return Rewritten.identity(graph)
    if not weights:
        raise RewriteError(
            "changes nothing: no layer gets a low-rank adapter",
            found="no linear map or convolution with a weight of its own",
        )
    layers, in_use = _layers(graph), set(graph.node)
    nodes, added = list[Node](), dict[str, tuple[str, Param]]()
    for node in graph.nodes:
        fact, weight = layers.get(node.name, (None, ""))
        if fact is None or weight not in weights:
            nodes.append(node)
            continue
        path = _path(weight, weights)
        new, params = _adapted(graph, node, fact, path, rank, scale, in_use)
        nodes += new
        last = list(node.leaves())[-1]
        for param in params:  # a layer that is called several times has one adapter
            added.setdefault(param.name, (last, param))
    if again := [name for name in added if name in graph.param]:
        raise RewriteError("layer already has a low-rank adapter", where=again[0])
    changed = graph.replace(nodes=tuple(nodes), params=with_leaves(graph, added.values()))
    check(changed)
    rewritten = initialised(graph, changed, {*list(added)[1::2]})  # the second of each pair, `up`
    if verify:
        same_function(graph, rewritten)
    return rewritten


def _layers(graph: ArchGraph) -> dict[str, tuple[LinearMap, str]]:
    """Return a dict from each operator that multiplies by a weight to its properties and weight."""
    layers = {}
    for node in graph.nodes:
        fact = row(node.op).linear_map
        weight = node.arg(fact.weight) if fact else None
        if fact is not None and isinstance(weight, Leaf):
            layers[node.name] = fact, weight.name
    return layers


def _chosen(graph: ArchGraph, where: str | Iterable[str] | None) -> set[str]:
    """Return the weights of the layers that get an adapter.

    Raises:
        GraphError: If a pattern matches no layer.
        RewriteError: If a pattern matches a layer that cannot have an adapter.
    """
    asked = [where] if isinstance(where, str) else [*(where or ())]
    obstacles = {
        weight: _obstacle(graph, graph.node[name], fact, weight)
        for name, (fact, weight) in _layers(graph).items()
        if not fact.lookup or weight in asked or weight.rpartition(".")[0] in asked
    }
    if where is None:
        return {weight for weight, reason in obstacles.items() if not reason}
    by_name = {weight: weight for weight in obstacles}
    by_name |= {weight.rpartition(".")[0]: weight for weight in obstacles if "." in weight}
    chosen = matching(asked, by_name, "matches no linear map or convolution")
    for name in sorted(chosen):
        if obstacles[name]:
            raise RewriteError(
                "layer cannot have a low-rank adapter", where=name, found=obstacles[name]
            )
    return chosen


def _obstacle(graph: ArchGraph, node: Node, fact: LinearMap, weight: str) -> str:
    """Return why a layer cannot have an adapter; empty if it can."""
    param = graph.param[weight]
    others = {graph.node[n].op for n in graph.leaf_users[weight]} - {node.op}
    if param.role != "parameter" or not isinstance(node.arg(fact.input), Ref):
        return "it multiplies a parameter by a result in another order"
    if others or param.aliases:
        return "its weight is tied to that of another layer"
    if node.arg("groups", 1) != 1:
        return "it convolves in groups"
    if len(param.shape) < 2:
        return "its weight is not a matrix"
    if any(node.arg(factor, 1) != 1 for factor in ("alpha", "beta")):
        return "its product has a factor"
    return ""


def _path(weight: str, weights: set[str]) -> str:
    """Return the module path of an adapter: ``layer.lora``, or ``layer.weight_lora`` if several.

    A layer has several adapters if several of its weights are adapted.
    """
    prefix, dot, last = weight.rpartition(".")
    alone = sum(name.rpartition(".")[0] == prefix for name in weights) == 1
    return f"{prefix}{dot}lora" if alone else f"{prefix}{dot}{last}_lora"


def _adapted(
    graph: ArchGraph,
    node: Node,
    fact: LinearMap,
    path: str,
    rank: int,
    scale: float,
    names: set[str],
) -> tuple[tuple[Node, ...], tuple[Param, Param]]:
    """Return the operators of a layer and its adapter, and the weights of the adapter.

    The last operator, which adds both results, has the layer's name.
    """
    weight = node.arg(fact.weight)
    assert isinstance(weight, Leaf)
    param = graph.param[weight.name]
    outside, inside = param.shape[:2][:: -1 if fact.transposed else 1]
    kernel = param.shape[2:]
    alike, linear = (node.op, fact), ("aten.linear", LinearMap())
    channel = len(node.shape) - 1 - len(kernel)
    middle = TensorType((*node.shape[:channel], rank, *node.shape[channel + 1 :]), node.dtype)
    matrix = (inside, rank) if fact.lookup else (rank, inside, *kernel)
    down = Param(f"{path}.down.weight", TensorType(matrix, param.dtype))
    up = Param(f"{path}.up.weight", TensorType((outside, rank, *(1 for _ in kernel)), param.dtype))

    def layer(
        kind: tuple[str, LinearMap], value: Value, leaf: Param, type_: TensorType, **steps: Value
    ) -> Node:
        op, how = kind
        args = canonical_args(op, {how.input: value, how.weight: Leaf(leaf.name), **steps})
        scope = leaf.name.removesuffix(".weight")
        return Node(
            fresh(names, f"lora_{scope[len(path) + 1 :]}"), op, args, type_, scope, node.source
        )

    steps = {k: v for k, v in node.args if k in fact.steps}
    plain = dataclasses.replace(node, name=fresh(names, f"{node.name}_plain"))
    first = layer(
        alike if kernel or fact.lookup else linear, node.arg(fact.input), down, middle, **steps
    )
    assert not isinstance(node.type, tuple)
    second = layer(alike if kernel else linear, Ref(first.name), up, node.type)
    factor = (("alpha", scale),) if scale != 1 else ()
    args = (("self", Ref(plain.name)), ("other", Ref(second.name)), *factor)
    total = Node(node.name, "aten.add.Tensor", args, node.type, path, node.source)
    return (plain, first, second, total), (down, up)


@takes_graph
def rank(
    graph: ArchGraph,
    size: int | None = None,
    *,
    alpha: float | None = None,
    scaling: Scaling = "alpha_over_r",
    allow_nothing: bool = False,
    verify: bool = False,
) -> Rewritten:
    """Reduce the rank of all low-rank adapters of a network to ``size``.

    The first ``size`` components of each adapter are kept. Adapters with a smaller rank are
    unchanged. If ``alpha`` is not passed, the scale of an adapter does not change. The network then
    computes the same as the original network with the removed components set to zero.

    Args:
        graph: An architecture with low-rank adapters.
        size: The new rank. Default: keep every rank.
        alpha: New ``alpha`` of every adapter, which is the numerator of its scale, as in
            :func:`archgraph.add_lora`. If the scales of clients differ, use the strategy ``flora``.
        scaling: Formula of the scale: ``alpha / rank``, or ``alpha / √rank`` (``rsqrt``).
        allow_nothing: If True, return a model unchanged if it has no adapters or if all ranks are
            at most ``size``.
        verify: Check that the network computes the same as the original with the removed components
            set to zero (three forward passes in float64).

    Raises:
        RewriteError: If the rank or alpha is out of range; if nothing would change and
            ``allow_nothing`` is False.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> graph = add_lora(trace(torch.nn.Linear(8, 6), torch.zeros(1, 8)).graph, 4).graph
        >>> [p.shape for p in rank(graph, 2).graph.params if "lora" in p.name]
        [(2, 8), (6, 2)]
    """
    wider = {} if size is None else _larger(graph, size)
    _check_scale(alpha, scaling)
    scaled = () if alpha is None else _rescaled(graph, size, alpha, scaling)
    if not wider and not scaled and not allow_nothing:
        ranks = sorted({a.size for a in axes(graph).all if a.role == "rank"})
        raise RewriteError(
            f"changes nothing: no low-rank adapter has a larger rank than {size}",
            found=f"rank {', '.join(map(str, ranks))}" if ranks else "no low-rank adapter",
            hint="add_lora adds adapters to a model, with the largest rank of all clients; to "
            "keep the full rank, omit `rank` (in Python: allow_nothing=True)",
        )
    rewritten = cut_axes(graph, wider)
    if verify:
        mask_equals_take(graph, rewritten, wider)
    new = {node.name: node for node in scaled}
    args = (dataclasses.replace(n, args=new[n.name].args) if n.name in new else n
            for n in rewritten.graph.nodes)  # fmt: skip
    return dataclasses.replace(rewritten, graph=rewritten.graph.replace(nodes=tuple(args)))


def _larger(graph: ArchGraph, size: int) -> Kept:
    """Return a dict from each rank that is larger than ``size`` to its first positions."""
    _check_rank(size)
    free = axes(graph).free
    return {a.name: np.arange(size) for a in free if a.role == "rank" and a.size > size}


def _rescaled(
    graph: ArchGraph, size: int | None, alpha: float, scaling: Scaling
) -> tuple[Node, ...]:
    """Return the additions of the adapters whose scale changes, with their new scale."""
    sums = list[Node]()
    for branch in low_rank_branches(graph):
        rank = graph.param[branch.down].shape[branch.rank_dim]
        scale = _scale(alpha, scaling, rank if size is None else min(size, rank))
        total, last = graph.node[branch.total], branch.nodes[-1]
        if not math.isclose(scale, branch.scale, rel_tol=1e-12):
            before = 1.0 if total.arg("self") == Ref(last) else total.arg("alpha", 1)
            assert isinstance(before, (int, float))
            factor = before * scale / branch.scale
            pair: dict[str, Value] = {"self": Ref(branch.base), "other": Ref(last)}
            args = canonical_args(total.op, pair | ({"alpha": factor} if factor != 1 else {}))
            sums.append(dataclasses.replace(total, args=args))
    return tuple(sums)


def _scale(alpha: float, scaling: Scaling, rank: int) -> float:
    return alpha / (rank if scaling == "alpha_over_r" else math.sqrt(rank))


def _check_rank(rank: int) -> None:
    """Raise if a rank is out of range."""
    if type(rank) is not int or rank < 1:
        raise RewriteError("rank out of range", found=rank, expected="a whole number from 1")


def _check_scale(alpha: float | None, scaling: Scaling) -> None:
    """Check the parameters of a scale.

    Raises:
        RewriteError: If one of them is out of range.
    """
    if scaling not in ("alpha_over_r", "rsqrt"):
        raise RewriteError("unknown scaling", found=scaling, expected="alpha_over_r or rsqrt")
    if alpha is not None and not (isinstance(alpha, (int, float)) and 0 < alpha < math.inf):
        raise RewriteError("alpha out of range", found=alpha, expected="a number above 0")
