"""Two captures of one model, in eval and in train mode, become one: what differs is a ``Mode``."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from archgraph.errors import TraceError
from archgraph.graph.ir import (
    TRAINING,
    Constant,
    Leaf,
    Mode,
    Node,
    Param,
    Ref,
    TensorType,
    Value,
    in_mode,
    replace,
    same,
    walk,
)
from archgraph.ops import table
from archgraph.ops.schema import canonical_args, schema


@dataclass
class Draft:
    """A canonical capture of one mode; names are fx's, unique within the capture."""

    inputs: tuple[tuple[str, Value], ...]
    nodes: list[Node]
    outputs: Value
    updates: dict[str, Value]
    constants: dict[Constant, Param]


def live_flags(draft: Draft, params: Iterable[Param]) -> Draft:
    """Eval capture alone: let the flags of norms and dropouts follow the module's mode.

    A counter beside a norm's statistics (a whole number that forward leaves alone in eval mode)
    counts the norm's batches in training.
    """
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
            kept = (node.arg(name) for name in row.statistics)
            for path in dict.fromkeys(
                v.name.rpartition(".")[0] for v in kept if isinstance(v, Leaf)
            ):
                counter = counters.get(path)
                if counter is not None:
                    before = in_mode(updates[counter], True) if counter in updates else None
                    label = f"{node.name}~count"
                    args = (("self", before or Leaf(counter)), ("other", 1))
                    type_ = TensorType((), "int64")
                    nodes.append(
                        Node(label, "aten.add.Tensor", args, type_, node.scope, node.source)
                    )
                    updates[counter] = Mode(Ref(label), None)
        nodes.append(node)
    return dataclasses.replace(draft, nodes=nodes, updates=updates)


def same_inputs(evaluated: Draft, trained: Draft, notes: Mapping[str, None]) -> None:
    """Both captures must take the same inputs, the batch axis free in both or in neither."""
    ours, theirs = ([n for n in d.nodes if n.op == "input"] for d in (evaluated, trained))
    if ours != theirs:
        found = next((n for n in notes if n.startswith("the batch size is fixed")), str(theirs[0]))
        raise TraceError(f"in training {found}")


def reconcile(evaluated: Draft, trained: Draft, notes: dict[str, None]) -> Draft:
    """Lay two captures over one another; what differs becomes a ``Mode``."""

    def key(node: Node) -> tuple[Any, ...]:
        return node.op, node.scope, tuple(node.leaves()), str(node.type)

    a, b = evaluated.nodes, trained.nodes
    keys_a, keys_b = [key(n) for n in a], [key(n) for n in b]
    merged: list[tuple[Node | None, Node | None]] = []
    if keys_a == keys_b:
        merged = list(zip(a, b, strict=True))
    else:
        matcher = difflib.SequenceMatcher(a=keys_a, b=keys_b, autojunk=False)
        for tag, i1, i2, j1, j2 in matcher.get_opcodes():
            if tag == "equal":
                merged += zip(a[i1:i2], b[j1:j2], strict=True)
            else:
                merged += [(n, None) for n in a[i1:i2]] + [(None, n) for n in b[j1:j2]]
    notes |= dict.fromkeys(_one_mode_only(merged, trained))
    names: dict[tuple[bool, str], str] = {}
    for index, (left, right) in enumerate(merged):
        label = f"~{index}"  # no argument of forward can be called so
        if left is not None and left.op == "input":
            label = left.name
        if left is not None:
            names[False, left.name] = label
        if right is not None:
            names[True, right.name] = label
    constants = dict(evaluated.constants)
    labels: dict[str, str] = {}
    for value, param in trained.constants.items():
        if value not in constants:
            taken = {p.name for p in constants.values()}
            label = param.name
            while label in taken:
                label += "_train"
            constants[value] = dataclasses.replace(param, name=label)
        labels[param.name] = constants[value].name

    def rename(value: Value, training: bool) -> Value:
        def one(item: Value) -> Value:
            if isinstance(item, Ref):
                return Ref(names[training, item.name])
            if isinstance(item, Leaf) and training and item.name in labels:
                return Leaf(labels[item.name])
            return item

        return replace(value, one)

    def join(left: Value, right: Value) -> Value:
        if same(left, right):
            return left
        if isinstance(left, tuple) and isinstance(right, tuple) and len(left) == len(right):
            return tuple(join(x, y) for x, y in zip(left, right, strict=True))
        return Mode(right, left)

    nodes = []
    for left, right in merged:
        if left is None or right is None:
            node, training = (left, False) if left is not None else (right, True)
            assert node is not None
            args = tuple((k, rename(v, training)) for k, v in node.args)
            nodes.append(dataclasses.replace(node, name=names[training, node.name], args=args))
            continue
        la = {k: rename(v, False) for k, v in left.args}
        ra = {k: rename(v, True) for k, v in right.args}
        together: dict[str, Value] = {}
        for k in [*la, *(k for k in ra if k not in la)]:
            default = schema(left.op).by_name[k].default if left.op.startswith("aten.") else None
            together[k] = join(la.get(k, default), ra.get(k, default))
        args = (
            canonical_args(left.op, together)
            if left.op.startswith("aten.")
            else tuple(together.items())
        )
        nodes.append(dataclasses.replace(left, name=names[False, left.name], args=args))
    outputs_eval = rename(evaluated.outputs, False)
    outputs_train = rename(trained.outputs, True)
    outputs = (
        outputs_eval if same(outputs_eval, outputs_train) else Mode(outputs_train, outputs_eval)
    )
    updates: dict[str, Value] = {}
    for k in [*evaluated.updates, *(k for k in trained.updates if k not in evaluated.updates)]:
        left_value = rename(evaluated.updates[k], False) if k in evaluated.updates else None
        right_value = rename(trained.updates[k], True) if k in trained.updates else None
        updates[k] = join(left_value, right_value)
    inputs = tuple((k, rename(v, False)) for k, v in evaluated.inputs)
    return Draft(inputs, nodes, outputs, updates, constants)


def _one_mode_only(merged: list[tuple[Node | None, Node | None]], trained: Draft) -> Iterator[str]:
    """Branches that only one mode has, each with its place."""
    made = {n.name: n for n in trained.nodes}
    live: set[str] = set()  # what reaches the output; the rest only moves buffers
    pending = [i.name for i in walk(trained.outputs) if isinstance(i, Ref)]
    while pending:
        name = pending.pop()
        if name not in live:
            live.add(name)
            pending += made[name].uses()

    def mode(pair: tuple[Node | None, Node | None]) -> str:
        left, right = pair
        if left is not None:
            return "" if right is not None else "evaluation"
        return "training" if right is not None and right.name in live else ""

    for which, group in itertools.groupby(merged, mode):
        nodes = [left or right for left, right in group]
        if not which:
            continue
        first = nodes[0]
        assert first is not None
        found = ", ".join(dict.fromkeys(table.base(n.op) for n in nodes if n is not None))
        scope = f" in {first.scope}" if first.scope else ""
        place = f" at {first.source}" if first.source else ""
        yield f"only in {which}: {found}{scope}{place}"
