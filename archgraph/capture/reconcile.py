"""Merge the captures of a model in eval and in train mode: differences become a ``Mode``.

Features of a single mode, such as dropout inside attention, stochastic depth or auxiliary heads,
therefore do not need special treatment.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TypeAlias

from archgraph.capture.spell import OneMode
from archgraph.errors import TraceError
from archgraph.graph.ir import (
    TRAINING,
    Constant,
    Leaf,
    Mode,
    Node,
    Param,
    Record,
    Ref,
    TensorType,
    Value,
    in_mode,
    refs,
    replace,
    same_value,
)
from archgraph.graph.passes import reachable
from archgraph.ops import table
from archgraph.ops.schema import canonical_args, op_schema

_ENDS = {"min": max, "max": min}  # for the ends of a range of batch sizes: the one valid for both
NodePair: TypeAlias = tuple[Node | None, Node | None]  # of evaluation and of training


def live_flags(draft: OneMode, params: Iterable[Param]) -> OneMode:
    """Let the flags of norms and dropouts in an eval capture follow the module's mode.

    If forward does not use an integer buffer of a norm in eval mode, this buffer counts the norm's
    batches in training.
    """
    _refuse_undecided(draft, draft)
    used = {leaf for n in draft.nodes for leaf in n.leaves()} | set(draft.updates)
    counters = {
        p.name.rpartition(".")[0]: p.name
        for p in params
        if p.role == "buffer" and p.type == TensorType((), "int64") and p.name not in used
    }
    nodes, updates = [], dict(draft.updates)
    for node in draft.nodes:
        row = table.row(node.op)
        if row.training_flag is not None and node.arg(row.training_flag) is False:
            node = node.with_args(**{row.training_flag: TRAINING})
            leaves = [v.name for v in map(node.arg, row.statistics) if isinstance(v, Leaf)]
            for path in dict.fromkeys(name.rpartition(".")[0] for name in leaves):
                if path in counters:
                    nodes.append(_count(node, counters[path], updates))
        nodes.append(node)
    return dataclasses.replace(draft, nodes=tuple(nodes), updates=updates)


def _count(norm: Node, counter: str, updates: dict[str, Value]) -> Node:
    """Return the operator that adds one to a norm's counter in training."""
    before = in_mode(updates[counter], True) if counter in updates else None
    label = f"{norm.name}~count"
    updates[counter] = Mode(Ref(label), None)
    args = (("self", before or Leaf(counter)), ("other", 1))
    type_ = TensorType((), "int64")
    return Node(label, "aten.add.Tensor", args, type_, norm.scope, norm.source)


def same_inputs(evaluated: OneMode, trained: OneMode) -> None:
    """Raise if two captures have different inputs, or if only one has an open batch."""
    ours, theirs = ([n for n in d.nodes if n.op == "input"] for d in (evaluated, trained))
    if [(n.name, n.type) for n in ours] != [(n.name, n.type) for n in theirs]:
        raise TraceError(f"in training {trained.fixed or theirs[0]}")


def reconcile(evaluated: OneMode, trained: OneMode) -> OneMode:
    """Merge two captures; differences become a ``Mode``.

    1. Match the calls of both captures in order. Calls match if operator, module, parameters and
       type are equal. Matching calls get the same name.
    2. Matching calls become one node, whose arguments are merged one by one. Other calls belong to
       one mode only. Random numbers that are drawn in training, but that no result needs, are only
       drawn in training.
    3. Merge outputs and updates of buffers in the same way.
    """
    _refuse_undecided(evaluated, trained)
    merged = _matched(evaluated.nodes, trained.nodes)  # 1
    constants, labels = _all_constants(evaluated, trained)
    names: dict[tuple[bool, str], str] = {}
    for index, (left, right) in enumerate(merged):
        # No argument of forward can have the name "~0".
        label = left.name if left is not None and left.op == "input" else f"~{index}"
        names |= {(t, n.name): label for t, n in ((False, left), (True, right)) if n is not None}

    def rename(value: Value, training: bool) -> Value:
        def one(item: Value) -> Value:
            if isinstance(item, Ref):
                return Ref(names[training, item.name])
            if isinstance(item, Leaf) and training and item.name in labels:
                return Leaf(labels[item.name])
            return item

        return replace(value, one)

    def renamed(node: Node, training: bool) -> Node:
        moved = node.mapped(lambda item: rename(item, training))
        return dataclasses.replace(moved, name=names[training, node.name])

    nodes = []  # 2
    drawn = _only_drawn(trained)
    for left, right in merged:
        if right is None:
            assert left is not None, "a pair has at least one node"
            nodes.append(renamed(left, False))
        elif right.name in drawn:
            node = renamed(right, True)
            (name, value), *rest = node.args
            args = ((name, Mode(value, None)), *rest)
            nodes.append(dataclasses.replace(node, args=args))
        else:
            node = renamed(right, True)
            nodes.append(node if left is None else _joined(renamed(left, False), node))
    # 3
    before, after = rename(evaluated.outputs, False), rename(trained.outputs, True)
    updates = {
        k: _join(rename(evaluated.updates.get(k), False), rename(trained.updates.get(k), True))
        for k in {**evaluated.updates, **trained.updates}
    }
    return OneMode(
        tuple((k, rename(v, False)) for k, v in evaluated.inputs),
        tuple(nodes),
        before if same_value(before, after) else Mode(after, before),
        updates,
        constants,
        evaluated.fixed,
        (*evaluated.notes, *trained.notes, *_one_mode_only(merged, trained)),
    )


def _refuse_undecided(evaluated: OneMode, trained: OneMode) -> None:
    """Raise if forward branches on a buffer that it changes, so that calls may differ."""
    changed = evaluated.updates.keys() | trained.updates.keys()
    for name, where in {**evaluated.decided, **trained.decided}.items():
        if name in changed:
            raise TraceError(
                f"forward branches on the values of {name}, which it changes, and a graph contains "
                "a single branch; use torch.where, or trace a submodule that does not branch",
                where=where,
            )


def _only_drawn(trained: OneMode) -> set[str]:
    """Return draws in training that no result needs, but that change the numbers of later draws."""
    by_name = {n.name: n for n in trained.nodes}
    ends = refs((trained.outputs, *trained.updates.values()))
    live = reachable(ends, lambda name: by_name[name].uses())
    return {n.name for n in trained.nodes if n.name not in live and table.draws(n.op) and n.args}


def _matched(a: Sequence[Node], b: Sequence[Node]) -> list[NodePair]:
    """Pair the operators of both captures, in order."""

    def key(node: Node) -> Hashable:
        return node.op, node.scope, tuple(node.leaves()), str(node.type)

    keys_a, keys_b = [key(n) for n in a], [key(n) for n in b]
    if keys_a == keys_b:  # the case for most models
        return list(zip(a, b, strict=True))
    merged: list[NodePair] = []
    # Without the junk heuristic, which would ignore frequent operators of a deep network.
    matcher = difflib.SequenceMatcher(a=keys_a, b=keys_b, autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            merged += zip(a[i1:i2], b[j1:j2], strict=True)
        else:
            merged += [(n, None) for n in a[i1:i2]] + [(None, n) for n in b[j1:j2]]
    return merged


def _all_constants(
    evaluated: OneMode, trained: OneMode
) -> tuple[dict[Constant, Param], dict[str, str]]:
    """Return the constants of both captures, and new names for the constants in training."""
    constants = dict(evaluated.constants)
    labels: dict[str, str] = {}
    for value, param in trained.constants.items():
        if value not in constants:
            used = {p.name for p in constants.values()}
            label = param.name
            while label in used:
                label += "_train"
            constants[value] = dataclasses.replace(param, name=label)
        labels[param.name] = constants[value].name
    return constants, labels


def _join(left: Value, right: Value) -> Value:
    """Merge a value of the eval capture and a value of the train capture."""
    if same_value(left, right):
        return left
    if isinstance(left, tuple) and isinstance(right, tuple) and len(left) == len(right):
        return tuple(_join(x, y) for x, y in zip(left, right, strict=True))
    return Mode(right, left)


def _joined(left: Node, right: Node) -> Node:
    """Merge a node of the eval capture and a node of the train capture."""
    ours, theirs = dict(left.args), dict(right.args)
    if left.op == "input":
        return dataclasses.replace(left, args=_both_hold(left.args, right.args))
    aten = left.op.startswith("aten.")
    defaults = {a.name: a.default for a in op_schema(left.op).args} if aten else {}
    together = {
        k: _join(ours.get(k, defaults.get(k)), theirs.get(k, defaults.get(k)))
        for k in {**ours, **theirs}
    }
    args = canonical_args(left.op, together) if aten else tuple(together.items())
    return dataclasses.replace(left, args=args)


def _both_hold(
    left: tuple[tuple[str, Value], ...], right: tuple[tuple[str, Value], ...]
) -> tuple[tuple[str, Value], ...]:
    """Return the conditions of an input on open sizes for which both captures are valid."""
    said: dict[str, Value] = {}
    for key, value in (*left, *right):
        before = said.get(key, value)
        if isinstance(before, Record) and isinstance(value, Record):
            said[key] = Record(_both_hold(before.fields, value.fields))
        else:
            said[key] = _ENDS.get(key, min)(before, value)  # type: ignore[type-var]  # integers
    order = [key for key in _ENDS if key in said]
    return tuple((key, said[key]) for key in (*(k for k in said if k not in _ENDS), *order))


def _one_mode_only(merged: list[NodePair], trained: OneMode) -> Iterator[str]:
    """Yield a description of each branch that exists in only one mode, with its location."""
    by_name = {n.name: n for n in trained.nodes}
    # Operators that reach the output; the others only update buffers.
    live = reachable(refs(trained.outputs), lambda name: by_name[name].uses())

    def mode(pair: NodePair) -> str:
        left, right = pair
        if left is not None:
            return "" if right is not None else "evaluation"
        return "training" if right is not None and right.name in live else ""

    for which, group in itertools.groupby(merged, mode):
        nodes = [node for pair in group for node in pair if node is not None]
        if not which:
            continue
        first = nodes[0]
        operators = ", ".join(dict.fromkeys(table.base(n.op) for n in nodes))
        scope = f" in {first.scope}" if first.scope else ""
        line = f" at {first.source}" if first.source else ""
        yield f"only in {which}: {operators}{scope}{line}"
