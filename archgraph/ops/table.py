"""The operator table: what a row says of an operator, and what follows for a graph."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

import torch

from archgraph.errors import GraphError
from archgraph.graph.ir import ArchGraph, Leaf, Mode, Node, Param, Ref, Value, walk
from archgraph.ops import (
    convolutions,
    creation,
    embeddings,
    indexing,
    noise,
    norms,
    opaque,
    pointwise,
    pooling,
    products,
    recurrent,
    reductions,
    shapes,
)
from archgraph.ops.calls import Call, Spelling
from archgraph.ops.layers import TorchLayer
from archgraph.ops.operator import Growth, Operator, Rows
from archgraph.ops.pointwise import PLAIN
from archgraph.ops.schema import schema
from archgraph.ops.starts import SMALL, Initialiser, Shapes

# The families of operators, one file each. Keys of their rows are names without namespace; without
# overload where all overloads are alike.
FAMILIES = (
    convolutions,
    creation,
    embeddings,
    indexing,
    noise,
    norms,
    opaque,
    pointwise,
    pooling,
    products,
    recurrent,
    reductions,
    shapes,
)
ROWS: Rows = {key: operator for family in FAMILIES for key, operator in family.ROWS.items()}
assert len(ROWS) == sum(len(family.ROWS) for family in FAMILIES), "an operator has two rows"


def base(op: str) -> str:
    """Return an operator's name without namespace and overload.

    >>> base("aten.add.Tensor"), base("getitem")
    ('add', 'getitem')
    """
    return op.split(".")[1] if "." in op else op


@functools.cache
def row(op: str) -> Operator:
    """Return an operator's row; pointwise ATen operators share one, unknown ones pin and report.

    >>> row("aten.conv2d").weighted, row("aten.tanh").pointwise
    (True, True)
    """
    listed = _listed(op)
    if listed is None and op.startswith("aten."):
        return PLAIN if torch.Tag.pointwise in schema(op).overload.tags else Operator()
    return listed or Operator()


@functools.cache
def _listed(op: str) -> Operator | None:
    """Return the row of an overload itself, or the one that all overloads of its operator share."""
    rows = (ROWS.get(name) for name in (op.removeprefix("aten."), base(op)))
    return next((row for row in rows if row is not None and not row.alias), None)


def call_row(op: str) -> Operator:
    """Return what is said of calls of an operator, which may be one that is not in graphs."""
    return _listed(op) or Operator()


def growth(op: str) -> Growth:
    """Return what an operator does with repeated positions.

    >>> growth("aten.relu").idempotent, growth("aten.softmax.int").repeats
    (True, 'never')
    """
    return row(op).growth


def known(op: str) -> bool:
    """Return whether a graph from a file may contain the operator."""
    if op in ("input", "getitem"):
        return True
    try:
        schema(op)
    except GraphError:
        return False
    return True


# -- calls ------------------------------------------------------------------------------------
def canonical(call: Spelling) -> Call:
    """Return one spelling for calls that say the same thing, with every silent size written out."""
    exact = ROWS.get(call.op.removeprefix("aten."))
    if exact is not None and exact.alias:
        target = f"aten.{exact.alias}"
        names = dict(zip(schema(call.op).by_name, schema(target).by_name, strict=False))
        args = {names[k]: v for k, v in call.args.items()}
        sizes = {names[k]: v for k, v in call.sizes.items()}
        call = Spelling(target, args, sizes, call.shapes)
    spelling = call_row(call.op).spelling
    return spelling(call) if spelling is not None else (call.op, call.args)


def is_identity(op: str, given: Mapping[str, Value]) -> bool:
    """Return whether a call whose result has its input's type returns the input itself."""
    unchanged = call_row(op).unchanged
    return unchanged(given) if callable(unchanged) else unchanged


def functional(op: str) -> str:
    """Return an in-place operator's functional form of another name; empty for all others."""
    exact = ROWS.get(op.removeprefix("aten."))
    return exact.functional if exact is not None else ""


def draws(op: str) -> bool:
    """Return whether an operator draws random numbers.

    >>> draws("aten.rand"), draws("aten.relu")
    (True, False)
    """
    return torch.Tag.nondeterministic_seeded in schema(op).overload.tags if "." in op else False


def impossible(node: Node) -> str:
    """Return why an operator cannot run at a node's sizes; empty where it can."""
    known = row(node.op).impossible
    return known(node) if known is not None else ""


# -- leaves and operators of a graph ------------------------------------------------------------
def initialiser(graph: ArchGraph, param: Param) -> Initialiser | None:
    """Return how a leaf starts, by the operator that uses it; None where no operator says.

    A leaf that forward itself assigns (a counter) starts at zero.
    """
    for user in graph.leaf_users.get(param.name, ()):
        node = graph.node[user]
        init = row(node.op).init
        for argument, value in node.args:
            used = any(isinstance(i, Leaf) and i.name == param.name for i in walk(value))
            if used and argument in init:
                start = init[argument]
                if isinstance(start, Initialiser):
                    return start
                return start(param.shape, _leaf_shapes(graph, node))
    if any(buffer == param.name for buffer, _ in graph.updates):
        return Initialiser("zeros")
    if param.role == "parameter":
        return SMALL if len(param.shape) > 1 else Initialiser("zeros")
    return None


def _leaf_shapes(graph: ArchGraph, node: Node) -> Shapes:
    """Shapes of the leaves that an operator uses, by argument (``params.0`` in a list).

    ``weight`` is what it multiplies.
    """
    shapes = {
        argument if item is value else f"{argument}.{place}": graph.param[item.name].shape
        for argument, value in node.args
        for place, item in enumerate(walk(value))
        if isinstance(item, Leaf)
    }
    if "mat2" in shapes or "other" in shapes:
        shapes.setdefault("weight", shapes.get("mat2", shapes.get("other", ())))
    return shapes


def statistics(graph: ArchGraph) -> tuple[str, ...]:
    """Return the running statistics of norms, and the counters that forward advances."""
    arguments = (node.arg(argument) for node in graph.nodes for argument in row(node.op).statistics)
    names = dict.fromkeys(value.name for value in arguments if isinstance(value, Leaf))
    return tuple(names | {buffer: None for buffer, _ in graph.updates})


def variances(graph: ArchGraph) -> tuple[str, ...]:
    """Return the buffers that are running variances of a norm."""
    arguments = (node.arg(argument) for node in graph.nodes for argument in row(node.op).variances)
    return tuple(dict.fromkeys(value.name for value in arguments if isinstance(value, Leaf)))


def counters(graph: ArchGraph) -> dict[str, int]:
    """Return the integer buffers that each forward pass of training advances, and by how much."""
    found = {}
    for buffer, value in graph.updates:
        value = value.train if isinstance(value, Mode) else value
        node = graph.node[value.name] if isinstance(value, Ref) else None
        if node is not None and base(node.op) == "add" and node.arg("self") == Leaf(buffer):
            step = node.arg("other")
            if isinstance(step, int) and node.dtype.startswith("int"):
                found[buffer] = step
    return found


def normalisation(graph: ArchGraph) -> tuple[str, ...]:
    """Return all leaves of norm operators: affine parameters, statistics and their counters."""
    names = dict.fromkeys(
        leaf for node in graph.nodes if row(node.op).normalises for leaf in node.leaves()
    )
    return tuple(names | dict.fromkeys(statistics(graph)))


def macs(graph: ArchGraph, node: Node) -> int:
    """Return an operator's multiply–accumulates for one example (0 where it has none)."""
    count = row(node.op).macs
    return count(graph, node) if count is not None else 0


def layer(graph: ArchGraph, node: Node) -> TorchLayer | None:
    """Return the layer of ``torch.nn`` that computes an operator; None where there is none."""
    rule = row(node.op).layer
    found = rule(graph, node) if rule is not None and not _by_mode(node) else None
    return found


def _by_mode(node: Node) -> bool:
    """Return whether a mode decides a number among the arguments, which no layer can say."""
    operands = (v for k, v in node.args if k != row(node.op).training_flag)
    moded = (m for v in operands for m in _modes(v))
    return any(not isinstance(v, Ref) for m in moded for v in (m.train, m.eval))


def _modes(value: Value) -> Iterator[Mode]:
    if isinstance(value, Mode):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _modes(item)


def offset(node: Node) -> bool:
    """Return whether an operator adds or pads with numbers, which a factor would not reach."""
    numbers = (v for k, v in node.args if k in ("other", "value") and isinstance(v, (int, float)))
    return any(number != 0 for number in numbers)


def multiplied(node: Node, value: Value) -> bool:
    """Return whether an operator multiplies an operand by a number before it adds it."""
    return node.arg("alpha", 1) != 1 and node.arg("other") == value
