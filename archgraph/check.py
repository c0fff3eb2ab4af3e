"""The laws of a graph: what every other module may rely on."""

from __future__ import annotations

from collections.abc import Container

from archgraph.errors import GraphError
from archgraph.ir import ArchGraph, Leaf, Mode, Node, Record, Ref, Value, walk
from archgraph.ops.schema import canonical_args, schema
from archgraph.ops.table import known

MAX_NODES = 1_000_000
MAX_ELEMENTS = 2**40


def check(graph: ArchGraph) -> None:
    """Accept a graph, or name the first law that it breaks.

    Laws: names are unique; operators come after what they use; every operator is in the ATen
    table with arguments that its schema has; every used leaf exists; constants have their value;
    sizes are positive and bounded; inputs and outputs are nodes of the graph; updates assign
    buffers.

    Raises:
        GraphError: With the place, what was found and what was expected.

    Example:
        >>> from archgraph.ir import Node
        >>> check(ArchGraph((), (), (Node("y", "aten.relu", (("self", Ref("x")),)),), Ref("y")))
        Traceback (most recent call last):
        archgraph.errors.GraphError: %y: uses a result that no earlier operator makes; found %x
    """
    if len(graph.nodes) > MAX_NODES:
        raise GraphError("too many operators", found=len(graph.nodes), expected=f"≤ {MAX_NODES}")
    leaves: set[str] = set()
    for param in graph.params:
        for name in (param.name, *param.aliases):
            if name in leaves:
                raise GraphError("leaf defined twice", where=name)
            leaves.add(name)
        elements = 1
        for size in param.type.shape:
            if not isinstance(size, int) or size < 0:
                raise GraphError("leaf with an impossible size", where=param.name, found=param.type)
            elements *= size
        if elements > MAX_ELEMENTS:
            raise GraphError("leaf too large", where=param.name, found=param.type)
        if param.role == "constant" and param.value is None:
            raise GraphError("constant without a value", where=param.name)
        if param.value is not None and (
            param.value.shape != param.shape or param.value.dtype != param.dtype
        ):
            raise GraphError(
                "initial value of another type",
                where=param.name,
                found=f"{param.value.dtype}{list(param.value.shape)}",
                expected=str(param.type),
            )
    owners = graph.param
    seen: set[str] = set()
    for node in graph.nodes:
        where = f"%{node.name}"
        if node.name in seen:
            raise GraphError("two operators of one name", where=where)
        _check_uses(node.args, seen, owners, where)
        _check_operator(node, where)
        seen.add(node.name)
    inputs = {n.name for n in graph.nodes if n.op == "input"}
    named = [i.name for _, v in graph.inputs for i in walk(v) if isinstance(i, Ref)]
    if sorted(named) != sorted(inputs):
        raise GraphError(
            "forward's arguments and the input operators differ",
            found=sorted(named),
            expected=sorted(inputs),
        )
    _check_uses((("outputs", graph.outputs),), seen, owners, "outputs")
    if not any(isinstance(i, (Ref, Leaf)) for i in walk(graph.outputs)):
        raise GraphError("the graph returns no tensor", where="outputs")
    for buffer, value in graph.updates:
        if buffer not in owners or owners[buffer].role != "buffer":
            raise GraphError("update of something that is no buffer", where=buffer)
        _check_uses(((buffer, value),), seen, owners, f"update {buffer}")


def _check_uses(
    args: tuple[tuple[str, Value], ...], seen: set[str], leaves: Container[str], where: str
) -> None:
    for _, value in args:
        for item in walk(value):
            if isinstance(item, Ref) and item.name not in seen:
                raise GraphError(
                    "uses a result that no earlier operator makes", where=where, found=item
                )
            if isinstance(item, Leaf) and item.name not in leaves:
                raise GraphError("uses a leaf that does not exist", where=where, found=item.name)


def _check_operator(node: Node, where: str) -> None:
    for type_ in node.types:
        for size in type_.shape:
            if isinstance(size, int) and size < 0:
                raise GraphError("negative size", where=where, found=type_)
    if node.op == "input":
        if node.args or isinstance(node.type, tuple):
            raise GraphError("an input is one tensor without arguments", where=where)
        return
    if node.op == "getitem":
        if [k for k, _ in node.args] != ["source", "index"]:
            raise GraphError("getitem takes source and index", where=where)
        return
    if not known(node.op):
        raise GraphError(
            "unknown operator",
            where=where,
            found=node.op,
            expected="an ATen operator that changes nothing in place",
        )
    given = dict(node.args)
    if len(given) != len(node.args):
        raise GraphError("argument given twice", where=where, found=[k for k, _ in node.args])
    try:
        canonical = canonical_args(node.op, given)
    except GraphError as error:
        raise GraphError(
            error.message, where=where, found=error.found, expected=error.expected
        ) from None
    order = [a.name for a in schema(node.op).args]
    if [k for k, _ in canonical] != [k for k, _ in node.args if k in order]:
        raise GraphError(
            "arguments not in canonical form",
            where=where,
            found=[k for k, _ in node.args],
            expected=[k for k, _ in canonical],
        )
    for _, value in node.args:
        for item in walk(value):
            if isinstance(item, (Record, Mode)):
                raise GraphError("impossible argument", where=where, found=item)
