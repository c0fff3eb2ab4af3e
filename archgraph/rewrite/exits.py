"""Exits: further classifiers on the way to the output (DepthFL, ScaleFL)."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from archgraph.analysis.structure import structure
from archgraph.errors import RewriteError
from archgraph.graph.ir import (
    ArchGraph,
    Leaf,
    Mode,
    Node,
    Param,
    Record,
    Ref,
    TensorType,
    Value,
    replace,
    walk,
)
from archgraph.ops.check import check
from archgraph.rewrite.insert import channels, fresh, initialised
from archgraph.states import Rewritten

PREFIX = "exits"


def add_exits(
    graph: ArchGraph, heads: Mapping[str, ArchGraph | int], *, verify: bool = False
) -> Rewritten:
    """Let an architecture answer early as well: classifiers behind sections or blocks.

    Forward then returns a dict: ``main`` is what it returned before, every exit has the name of
    its section or block; further exits join those that are there. Leaves of an exit are named
    ``exits.<name>.…``, dots as underscores.

    Args:
        graph: The architecture.
        heads: What each exit computes, by section or block: an architecture with one input and one
            output, or a number of classes for a mean over positions and a linear layer.
        verify: Check that the main output is the same (two forwards in float64).

    Raises:
        GraphError: For a section or block that does not exist; names the nearest.
        RewriteError: For a head that does not take what the section makes.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> early = add_exits(trace(net, torch.zeros(1, 3)).graph, {"0": 2}, verify=True)
        >>> print(early.graph.outputs)
        {'main': %linear_1, '0': %linear_2}

    Source: Kim et al., *DepthFL*, ICLR 2023, §3.
    """
    found = structure(graph)
    order = {n.name: i for i, n in enumerate(graph.nodes)}
    taken = set(order)
    nodes, params = list(graph.nodes), list(graph.params)
    updates = list(graph.updates)
    fields: list[tuple[str, Value]] = []
    for name, head in heads.items():
        end = graph.node[max(found.nodes(name), key=order.__getitem__)]
        stem = f"{PREFIX}.{name.replace('.', '_')}"
        if name == "main" or any(p.name.startswith(stem + ".") for p in params):
            raise RewriteError("there is an exit of that name already", where=name)
        if not isinstance(head, ArchGraph) and type(head) is not int:
            raise RewriteError(
                "no head", where=name, found=head, expected="an architecture or a number of classes"
            )
        if isinstance(head, int):
            result: Value = _classifier(graph, end, stem, head, taken, nodes, params)
        else:
            result = _attached(head, end, stem, name, taken, nodes, params, updates)
        fields.append((name, result))
    if not fields:
        return Rewritten.identity(graph)
    new = graph.replace(
        nodes=tuple(nodes),
        params=tuple(params),
        updates=tuple(updates),
        outputs=_with_exits(graph, tuple(fields)),
    )
    check(new)
    rewritten = initialised(graph, new)
    if verify:
        _main_unchanged(graph, rewritten, heads)
    return rewritten


def _with_exits(graph: ArchGraph, fields: tuple[tuple[str, Value], ...]) -> Value:
    before = any(p.name.startswith(f"{PREFIX}.") for p in graph.params)

    def joined(value: Value) -> Value:
        own = value.fields if before and isinstance(value, Record) else (("main", value),)
        return Record((*own, *fields))

    if isinstance(graph.outputs, Mode):  # what training returns beside it stays in `main`
        return Mode(joined(graph.outputs.train), joined(graph.outputs.eval))
    return joined(graph.outputs)


def _classifier(
    graph: ArchGraph,
    end: Node,
    stem: str,
    classes: int,
    taken: set[str],
    nodes: list[Node],
    params: list[Param],
) -> Ref:
    """A mean over all positions, then a linear layer."""
    shape, dtype = end.shape, end.dtype
    channel, wide = channels(graph, end, stem)
    if classes < 1:
        raise RewriteError("number of classes", where=stem, found=classes, expected="at least 1")
    value = end.name
    others = tuple(i for i in range(1, len(shape)) if i != channel)
    if others:
        pooled = TensorType((shape[0], wide), dtype)
        node = Node(
            fresh(taken, "mean"),
            "aten.mean.dim",
            (("self", Ref(value)), ("dim", others)),
            pooled,
            stem,
        )
        nodes.append(node)
        value = node.name
    weight = Param(f"{stem}.weight", TensorType((classes, wide), dtype))
    bias = Param(f"{stem}.bias", TensorType((classes,), dtype))
    params += [weight, bias]
    args: tuple[tuple[str, Value], ...] = (
        ("input", Ref(value)),
        ("weight", Leaf(weight.name)),
        ("bias", Leaf(bias.name)),
    )
    result = TensorType((shape[0], classes), dtype)
    nodes.append(Node(fresh(taken, "linear"), "aten.linear", args, result, stem))
    return Ref(nodes[-1].name)


def _attached(
    head: ArchGraph,
    end: Node,
    stem: str,
    name: str,
    taken: set[str],
    nodes: list[Node],
    params: list[Param],
    updates: list[tuple[str, Value]],
) -> Value:
    """A head's operators and leaves behind a node."""
    entries = [n for n in head.nodes if n.op == "input"]
    results = [i for i in walk(head.outputs) if isinstance(i, Ref)]
    if len(entries) != 1 or len(results) != 1 or entries[0].type != end.type:
        raise RewriteError(
            "head does not take what the section makes",
            where=name,
            found=", ".join(str(n.type) for n in entries) or "no input",
            expected=str(end.type),
        )
    rename = {entries[0].name: end.name}

    def change(value: Value) -> Value:
        match value:
            case Ref(old):
                return Ref(rename[old])
            case Leaf(old):
                return Leaf(f"{stem}.{old}")
            case _:
                return value

    for node in head.nodes:
        if node.op == "input":
            continue
        rename[node.name] = fresh(taken, node.name)
        nodes.append(
            dataclasses.replace(
                node,
                name=rename[node.name],
                args=tuple((k, replace(v, change)) for k, v in node.args),
                scope=f"{stem}.{node.scope}" if node.scope else stem,
            )
        )
    params += [dataclasses.replace(p, name=f"{stem}.{p.name}", aliases=()) for p in head.params]
    updates += [(f"{stem}.{k}", replace(v, change)) for k, v in head.updates]
    return replace(head.outputs, change)


def _main_unchanged(graph: ArchGraph, rewritten: Rewritten, added: Collection[str]) -> None:
    from archgraph.rewrite.laws import same_function

    before = any(p.name.startswith(f"{PREFIX}.") for p in graph.params)

    def main(value: Value) -> Value:
        """What the architecture returned before its new exits."""
        assert isinstance(value, Record)
        rest = tuple((k, v) for k, v in value.fields if k not in added)
        return Record(rest, value.name) if before else rest[0][1]

    outputs = rewritten.graph.outputs
    if isinstance(outputs, Mode):
        outputs = Mode(main(outputs.train), main(outputs.eval))
    else:
        outputs = main(outputs)
    only = Rewritten(rewritten.graph.replace(outputs=outputs), rewritten.transfer)
    same_function(graph, only)
