"""Look up operators in the operator table, and compute properties of graphs from the table."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping

import torch

from archgraph.errors import GraphError
from archgraph.graph.ir import (
    ArchGraph,
    Leaf,
    Mode,
    Node,
    Param,
    Ref,
    Value,
    nested,
    per_graph,
    walk,
)
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
from archgraph.ops.backward import Backward
from archgraph.ops.layers import TorchLayer
from archgraph.ops.operands import Amount, Counted
from archgraph.ops.operator import Call, Growth, Operator, Spelling, rows
from archgraph.ops.pointwise import PLAIN
from archgraph.ops.schema import op_schema
from archgraph.ops.starts import SMALL, Initialiser, Shapes

# The families of operators, one file each. Keys of their rows are names without namespace, and
# without overload if all overloads have the same facts.
ROWS = rows(
    convolutions.ROWS,
    creation.ROWS,
    embeddings.ROWS,
    indexing.ROWS,
    noise.ROWS,
    norms.ROWS,
    opaque.ROWS,
    pointwise.ROWS,
    pooling.ROWS,
    products.ROWS,
    recurrent.ROWS,
    reductions.ROWS,
    shapes.ROWS,
)


FAMILIES = (
    "attention", "convolution", "linear", "recurrent", "embedding", "norm", "pooling", "join",
    "activation",
)  # fmt: skip
"""Families of operators. A part with operators of several families is named after the first family
in this order."""

_FAMILIES = {
    name: family
    for family, listed in {
        "convolution": convolutions.ROWS, "linear": products.ROWS, "recurrent": recurrent.ROWS,
        "embedding": embeddings.ROWS, "norm": norms.ROWS,
        "activation": pointwise.CURVES_AND_GATES,
    }.items()
    for names in listed
    for name in names.split()
}  # fmt: skip


def base(op: str) -> str:
    """Return an operator's name without namespace and overload.

    >>> base("aten.add.Tensor"), base("getitem")
    ('add', 'getitem')
    """
    return op.split(".")[1] if "." in op else op


@functools.cache
def row(op: str) -> Operator:
    """Return the row of an operator.

    Elementwise ATen operators without an own row share a row. The row of unknown operators forbids
    cutting any axis.

    >>> row("aten.conv2d").weighted, row("aten.tanh").pointwise
    (True, True)
    """
    listed = _listed(op)
    if listed is None and op.startswith("aten."):
        return PLAIN if torch.Tag.pointwise in op_schema(op).overload.tags else Operator()
    return listed or Operator()


@functools.cache
def _listed(op: str) -> Operator | None:
    """Return the row of an overload, or the row that all overloads of its operator share."""
    listed = (ROWS.get(name) for name in (op.removeprefix("aten."), base(op)))
    # A graph contains no aliases: the facts are in the row of the actual operator.
    return next((row for row in listed if row is not None and not row.alias), None)


def operator_family(op: str) -> str:
    """Return an operator's family, one of :data:`FAMILIES`; empty if it does not have a family.

    >>> [operator_family(f"aten.{op}") for op in ("conv2d", "add.Tensor", "max_pool2d")]
    ['convolution', 'join', 'pooling']
    >>> operator_family("aten.upsample_nearest2d.vec"), operator_family("aten.where.self")
    ('', '')
    """
    said = row(op)
    if said.family or said.merges or said.attends is not None:
        return said.family or ("join" if said.merges else "attention")
    return _FAMILIES.get(base(op), "")


def call_row(op: str) -> Operator:
    """Return the row of an operator, which may be one that only occurs during captures."""
    return _listed(op) or Operator()


def growth(op: str) -> Growth:
    """Return the effect of repeated channels on an operator.

    >>> growth("aten.relu").idempotent, growth("aten.softmax.int").repeats
    (True, 'never')
    """
    return row(op).growth


def known(op: str) -> bool:
    """Return whether a graph from a file may contain the operator."""
    with contextlib.suppress(GraphError):
        return op in ("input", "getitem") or bool(op_schema(op))
    return False


# -- calls ------------------------------------------------------------------------------------
def canonical(call: Spelling) -> Call:
    """Return the canonical form of a call, in which implicit sizes are explicit."""
    if alias := ROWS.get(call.op.removeprefix("aten."), Operator()).alias:
        target = f"aten.{alias}"
        # Arguments correspond by position; names differ (swapaxes' `axis0` is transpose's `dim0`).
        names = dict(zip(op_schema(call.op).by_name, op_schema(target).by_name, strict=False))
        args = {names[k]: v for k, v in call.args.items()}
        sizes = {names[k]: v for k, v in call.sizes.items()}
        call = Spelling(target, args, sizes, call.shapes)
    spelling = call_row(call.op).spelling
    return spelling(call) if spelling is not None else (call.op, call.args)


def is_identity(op: str, args: Mapping[str, Value]) -> bool:
    """Return whether a call returns its input itself; input and result must have the same type."""
    unchanged = call_row(op).unchanged
    return unchanged(args) if callable(unchanged) else unchanged


def functional(op: str) -> str:
    """Return the name of the functional form of an in-place operator; empty if it is the same."""
    return ROWS.get(op.removeprefix("aten."), Operator()).functional


def draws(op: str) -> bool:
    """Return whether an operator draws random numbers.

    >>> draws("aten.rand"), draws("aten.relu")
    (True, False)
    """
    return torch.Tag.nondeterministic_seeded in op_schema(op).overload.tags if "." in op else False


def impossible(node: Node) -> str:
    """Return the reason why an operator cannot run at a node's sizes; empty if it can run."""
    known = row(node.op).impossible
    return known(node) if known is not None else ""


# -- leaves and operators of a graph ------------------------------------------------------------
def initialiser(graph: ArchGraph, param: Param) -> Initialiser | None:
    """Return the initialiser of a parameter or buffer, from the operator that uses it.

    None if the operator does not define an initialiser. A buffer that forward assigns, such as a
    counter, starts at zero.
    """
    for user in graph.leaf_users.get(param.name, ()):
        node = graph.node[user]
        for argument, value in node.args:
            start = row(node.op).init.get(argument)
            # The first operator with an initialiser decides.
            if start is not None and Leaf(param.name) in walk(value):
                shapes = _leaf_shapes(graph, node)
                return start if isinstance(start, Initialiser) else start(param.shape, shapes)
    if any(buffer == param.name for buffer, _ in graph.updates):
        return Initialiser("zeros")
    if param.role == "parameter":
        return SMALL if len(param.shape) > 1 else Initialiser("zeros")
    return None


def _leaf_shapes(graph: ArchGraph, node: Node) -> Shapes:
    """Return a dict from arguments to the shapes of the parameters that an operator uses.

    The key of a parameter in a list is, for example, ``params.0``. ``weight`` is the parameter with
    which the operator multiplies.
    """
    shapes = {
        argument if item is value else f"{argument}.{index}": graph.param[item.name].shape
        for argument, value in node.args
        for index, item in enumerate(walk(value))
        if isinstance(item, Leaf)
    }
    factors = [shapes[name] for name in ("weight", "mat2", "other") if name in shapes]
    return {**shapes, "weight": factors[0]} if factors else shapes


@per_graph
def statistics(graph: ArchGraph) -> tuple[str, ...]:
    """Return the running statistics of norms, and the counters that forward increments."""
    values = (node.arg(argument) for node in graph.nodes for argument in row(node.op).statistics)
    counted = (buffer for buffer, _ in graph.updates)
    return tuple(dict.fromkeys((*(v.name for v in values if isinstance(v, Leaf)), *counted)))


@per_graph
def variances(graph: ArchGraph) -> tuple[str, ...]:
    """Return the buffers that are running variances of a norm."""
    values = (node.arg(argument) for node in graph.nodes for argument in row(node.op).variances)
    return tuple(dict.fromkeys(value.name for value in values if isinstance(value, Leaf)))


@per_graph
def counters(graph: ArchGraph) -> Mapping[str, int]:
    """Return a dict from integer buffers to the step by which forward increments them."""
    steps = {}
    for buffer, value in graph.updates:
        value = value.train if isinstance(value, Mode) else value
        node = graph.node[value.name] if isinstance(value, Ref) else None
        if node is not None and base(node.op) == "add" and node.arg("self") == Leaf(buffer):
            step = node.arg("other")
            if isinstance(step, int) and node.dtype.startswith("int"):
                steps[buffer] = step
    return steps


def normalisation(graph: ArchGraph) -> tuple[str, ...]:
    """Return all parameters and buffers of norms: weights, biases, statistics and counters."""
    norms = (n for n in graph.nodes if row(n.op).normalises)
    # The first operand is the normalised one: it may be a leaf, too.
    leaves = (v.name for n in norms for v in [*n.operands()][1:] if isinstance(v, Leaf))
    return tuple(dict.fromkeys((*leaves, *statistics(graph))))


def counted_macs(operator: Counted) -> Amount:
    """Return the multiply–accumulates of an operator for one example."""
    count = row(operator.node.op).macs
    return count(operator) if count is not None else 0


def macs(graph: ArchGraph, node: Node) -> int:
    """Return an operator's multiply–accumulates for one example, at the sizes of a graph."""
    count = counted_macs(Counted.of(graph, node))
    assert isinstance(count, int)  # since its sizes are
    return count


def backward(node: Node) -> Backward:
    """Return the tensors that autograd saves for an operator.

    If the row of an operator does not list them, all operands and results are counted as saved.

    >>> backward(Node("y", "aten.relu")).results, backward(Node("y", "aten.special_erfcx")).checked
    ((0,), False)
    """
    known = row(node.op).backward
    if known is None:
        operands = {name: "" for name, _ in node.args}
        return Backward(operands, tuple(range(len(node.types))), checked=False)
    return known if isinstance(known, Backward) else known(node)


def layer(graph: ArchGraph, node: Node) -> TorchLayer | None:
    """Return the ``torch.nn`` layer that computes an operator; None if there is none."""
    operator = row(node.op)
    if operator.layer is None:
        return None
    # A layer's numbers cannot depend on the mode, except the flag that selects its own mode.
    values = (i for k, v in node.args if k != operator.training_flag for i in nested(v))
    branches = (v for m in values if isinstance(m, Mode) for v in (m.train, m.eval))
    return operator.layer(graph, node) if all(isinstance(v, Ref) for v in branches) else None


def offset(node: Node) -> bool:
    """Return whether an operator adds a nonzero constant, or pads with a nonzero constant."""
    numbers = (v for k, v in node.args if k in ("other", "value") and isinstance(v, (int, float)))
    return any(number != 0 for number in numbers)


def multiplied(node: Node, value: Value) -> bool:
    """Return whether an operator multiplies an operand by a number before adding the operand."""
    return node.arg("alpha", 1) != 1 and node.arg("other") == value
