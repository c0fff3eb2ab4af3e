"""The laws of a graph: what every other module may rely on."""

from __future__ import annotations

import functools
import keyword
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NoReturn

import torch

from archgraph.errors import GraphError
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import (
    ArchGraph,
    Atom,
    Batch,
    Leaf,
    Mode,
    Node,
    Param,
    Record,
    Ref,
    TensorType,
    Value,
    in_mode,
    show,
    size_at,
    walk,
)
from archgraph.graph.passes import specialise
from archgraph.limits import LIMITS
from archgraph.ops.infer import (
    ResultType,
    pattern,
    place,
    result_type,
    shortened,
    tensor_types,
)
from archgraph.ops.opaque import opaque_axes
from archgraph.ops.operator import unknown
from archgraph.ops.schema import canonical_args, schema, torch_dtype
from archgraph.ops.table import known, row


@takes_graph
def check(graph: ArchGraph) -> None:
    """Accept a graph, or name the first law that it breaks.

    Laws: names are unique, and leaves can be attributes of a module; operators come after what
    they use; every operator is a pure function of tensors in the ATen table, with arguments that
    its schema has, of the types that it says; every result has the type that the operator gives
    (inferred on meta tensors, in both modes); constants have their value; sizes and counts are
    within :data:`archgraph.limits.LIMITS`; inputs and outputs are nodes of the graph; updates
    assign buffers of their shape.

    Raises:
        GraphError: With the place, what was found and what was expected.

    Example:
        >>> from archgraph.graph.ir import Node
        >>> check(ArchGraph((), (), (Node("y", "aten.relu", (("self", Ref("x")),)),), Ref("y")))
        Traceback (most recent call last):
        archgraph.errors.GraphError: %y: uses a result that no earlier operator makes; found %x
    """
    _bound(len(graph.nodes), LIMITS.nodes, "too many operators")
    _bound(len(graph.params), LIMITS.leaves, "too many leaves")
    _check_leaves(graph)
    seen: dict[str, Node] = {}
    for node in graph.nodes:
        where = f"%{node.name}"
        if node.name in seen:
            raise GraphError("two operators of one name", where=where)
        _check_depth(node.scope, where)
        _check_uses((v for _, v in node.args), seen, graph.param, where)
        for type_ in node.types:
            _check_type(type_, where)
        _check_operator(node, seen, where)
        seen[node.name] = node
    _check_inputs(graph)
    _check_outputs(graph, seen)
    _check_updates(graph, seen)
    _unique([name for name, _ in graph.sections], "two sections of one name", "sections")
    _check_types(graph)


def _bound(
    number: int,
    limit: int,
    message: str,
    where: str | None = None,
    found: object = None,
    unit: str = "",
) -> None:
    if number > limit:
        found = number if found is None else found
        raise GraphError(message, where=where, found=found, expected=f"at most {limit}{unit}")


def _unique(names: list[str], message: str, where: str) -> None:
    if len(set(names)) != len(names):
        raise GraphError(message, where=where, found=names)


# -- leaves -----------------------------------------------------------------------------------
def _check_leaves(graph: ArchGraph) -> None:
    names: set[str] = set()
    total = 0
    for param in graph.params:
        for name in (param.name, *param.aliases):
            if name in names:
                raise GraphError("leaf defined twice", where=name)
            names.add(name)
            _check_name(name)
        total += _check_leaf(param)
    _bound(total, LIMITS.elements, "leaves too large together", unit=" elements")
    for name in names:
        parts = name.split(".")
        for i in range(1, len(parts)):
            if (owner := ".".join(parts[:i])) in names:
                raise GraphError("leaf inside another leaf", where=name, found=owner)


def _check_depth(path: str, where: str) -> None:
    depth = path.count(".") + 1
    _bound(depth, LIMITS.module_depth, "too many modules inside modules", where)


def _check_name(name: str) -> None:
    """Check that a leaf's name is an attribute path of a module; generated code contains it."""
    _check_depth(name.rpartition(".")[0], name)
    parts = name.split(".")
    possible = all(parts) and name.isprintable() and not set(name) & {'"', "\\"}
    if not possible:
        raise GraphError(
            "leaf with an impossible name",
            where=name,
            expected="printable words joined by dots, without quotes and backslashes",
        )


def _check_leaf(param: Param) -> int:
    """Check a leaf and return its number of elements."""
    if not all(isinstance(s, int) and s >= 0 for s in param.type.shape):
        raise GraphError("leaf with an impossible size", where=param.name, found=param.type)
    elements = math.prod(param.shape)
    _bound(elements, LIMITS.leaf_elements, "leaf too large", param.name, param.type, " elements")
    _check_type(param.type, param.name)
    dtype = torch_dtype(param.dtype)
    if param.trainable and not (dtype.is_floating_point or dtype.is_complex):
        raise GraphError(
            "parameter that cannot be trained",
            where=param.name,
            found=param.type,
            expected="a floating-point type, or 'frozen'",
        )
    value = param.value
    if param.role == "constant" and value is None:
        raise GraphError("constant without a value", where=param.name)
    if value is not None and (value.shape != param.shape or value.dtype != param.dtype):
        raise GraphError(
            "initial value of another type",
            where=param.name,
            found=f"{value.dtype}{list(value.shape)}",
            expected=str(param.type),
        )
    if value is not None and len(value.data) != elements * dtype.itemsize:
        raise GraphError(
            "initial value with the wrong number of bytes",
            where=param.name,
            found=len(value.data),
            expected=elements * dtype.itemsize,
        )
    return elements


def _check_type(type_: TensorType, where: str) -> None:
    """Sizes and element type of a tensor."""
    torch_dtype(type_.dtype)
    _bound(len(type_.shape), LIMITS.rank, "too many dimensions", where)
    elements = 1
    for size in type_.shape:
        factor = size.factor if isinstance(size, Batch) else size
        if factor < 0 or (isinstance(size, Batch) and factor == 0):
            raise GraphError("negative size", where=where, found=type_)
        _bound(factor, LIMITS.size, "size too large", where, type_)
        _check_batch(size, where)
        elements *= factor
    _bound(elements, LIMITS.elements, "tensor too large", where, type_, " elements")


def _check_batch(value: Value, where: str) -> None:
    if isinstance(value, Batch) and not (
        1 <= value.power <= LIMITS.batch_power and abs(value.factor) <= LIMITS.size
    ):
        raise GraphError(
            "size that no batch has",
            where=where,
            found=value,
            expected=f"a power of 1 to {LIMITS.batch_power}, a factor of at most {LIMITS.size}",
        )


# -- operators --------------------------------------------------------------------------------
def _check_uses(
    values: Iterable[Value], seen: Collection[str], leaves: Collection[str], where: str
) -> None:
    for value in values:
        for item in walk(value):
            if isinstance(item, Ref) and item.name not in seen:
                raise GraphError(
                    "uses a result that no earlier operator makes", where=where, found=item
                )
            if isinstance(item, Leaf) and item.name not in leaves:
                raise GraphError("uses a leaf that does not exist", where=where, found=item.name)
            _check_batch(item, where)


def _check_operator(node: Node, seen: Mapping[str, Node], where: str) -> None:
    if node.op == "input":
        limits = dict(node.args)
        named = limits.keys() <= {"min", "max"} and len(limits) == len(node.args)
        if not named or not all(type(v) is int for v in limits.values()):
            raise GraphError("an input has no arguments but min and max, batch sizes", where=where)
        if isinstance(node.type, tuple) or (limits and node.shape[:1] != (Batch(),)):
            raise GraphError("an input is one tensor, limited only in its batch", where=where)
        return
    if node.op == "getitem":
        _check_getitem(node, seen, where)
        return
    if not known(node.op) or not pure(node.op):
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
        raise error.within(where) from None
    found, expected = [k for k, _ in node.args], [k for k, _ in canonical]
    if found != expected:
        raise GraphError(
            "arguments not in canonical form", where=where, found=found, expected=expected
        )
    types = _argument_types(node.op)
    for name, value in node.args:
        if not _fits(value, types[name], seen):
            raise GraphError(
                f"argument {name!r} has a wrong type",
                where=where,
                found=shortened(show(value)),
                expected=types[name],
            )


def _check_getitem(node: Node, seen: Mapping[str, Node], where: str) -> None:
    if [k for k, _ in node.args] != ["source", "index"]:
        raise GraphError("getitem takes source and index", where=where)
    source, index = (v for _, v in node.args)
    made = seen[source.name].type if isinstance(source, Ref) else None
    if not isinstance(made, tuple):
        raise GraphError(
            "getitem takes one of several results",
            where=where,
            found=show(source),
            expected="an operator with several results",
        )
    if type(index) is not int or not -len(made) <= index < len(made):
        raise GraphError(
            "no such result", where=where, found=show(index), expected=f"0 to {len(made) - 1}"
        )
    if node.type != made[index]:
        _other_type(node, made[index])


@functools.cache
def pure(op: str) -> bool:
    """Return whether an operator is a kernel from tensors to tensors, not of the interpreter."""
    found = schema(op).overload._schema
    name = f"{found.name}.{found.overload_name}".rstrip(".")
    kinds = {str(r.type) for r in found.returns}
    return bool(
        kinds
        and kinds <= {"Tensor", "List[Tensor]"}
        and torch._C._dispatch_has_kernel(name)
        # Its name is written into code.
        and not any(map(keyword.iskeyword, op.split(".")))
    )


@functools.cache
def _argument_types(op: str) -> Mapping[str, str]:
    """Types of an operator's arguments; enumerations under their own name."""
    return {a.name: str(a.real_type) for a in schema(op).overload._schema.arguments}


def _is_tensor(value: Value, seen: Mapping[str, Node]) -> bool:
    if isinstance(value, Ref):
        return not isinstance(seen[value.name].type, tuple)
    # A number stands for a tensor of no dimensions.
    return isinstance(value, Leaf) or _is_number(value)


def _is_number(value: Value) -> bool:
    return isinstance(value, (bool, float)) or _is_integer(value)


def _is_integer(value: Value) -> bool:
    if isinstance(value, Batch):
        return True
    return type(value) is int and abs(value) <= LIMITS.integer


def _is_enumeration(kind: type) -> Callable[[Value], bool]:
    def test(value: Value) -> bool:
        return isinstance(value, Atom) and isinstance(getattr(torch, value.name, None), kind)

    return test


_PLAIN: dict[str, Callable[[Value], bool]] = {
    "int": _is_integer,
    "float": lambda v: _is_number(v) and not isinstance(v, bool),
    "number": _is_number,
    "bool": lambda v: isinstance(v, bool),
    "str": lambda v: isinstance(v, str),
    "ScalarType": _is_enumeration(torch.dtype),
    "MemoryFormat": _is_enumeration(torch.memory_format),
    "Layout": _is_enumeration(torch.layout),
}


def _fits(value: Value, kind: str, seen: Mapping[str, Node]) -> bool:
    """Return whether a value can be an argument of a type; a branch of a mode may be empty."""
    if isinstance(value, Mode):
        return all(b is None or _fits(b, kind, seen) for b in (value.train, value.eval))
    if kind.startswith("Optional["):
        return value is None or _fits(value, kind[9:-1], seen)
    if kind.startswith("List["):
        inner = kind[5:-1]
        if isinstance(value, tuple):
            return all(_fits(item, inner, seen) for item in value)
        return inner in ("int", "float", "bool") and _fits(value, inner, seen)
    if kind == "Tensor":
        return _is_tensor(value, seen)
    return kind in _PLAIN and _PLAIN[kind](value)


# -- inputs, outputs, updates -----------------------------------------------------------------
def _check_inputs(graph: ArchGraph) -> None:
    inputs = sorted(n.name for n in graph.nodes if n.op == "input")
    named = sorted(i.name for _, v in graph.inputs for i in walk(v) if isinstance(i, Ref))
    if named != inputs:
        raise GraphError(
            "forward's arguments and the input operators differ", found=named, expected=inputs
        )
    keys = [k for k, _ in graph.inputs]
    for key in keys:
        if not key.isidentifier() or keyword.iskeyword(key) or key == "self":
            raise GraphError("argument of forward must be an identifier", where="inputs", found=key)
    _unique(keys, "two arguments of one name", "inputs")
    for _, value in graph.inputs:
        _check_tree(value, "inputs", (Leaf, Batch, Atom, Mode))
    sizes = [
        i
        for values in (
            *((v for _, v in n.args) for n in graph.nodes),
            (graph.outputs, *(v for _, v in graph.updates)),
        )
        for v in values
        for i in walk(v)
        if isinstance(i, Batch)
    ]
    batched = any(n.op == "input" and n.shape[:1] == (Batch(),) for n in graph.nodes)
    if sizes and not batched:
        raise GraphError(
            "a size depends on the batch, but no input has a batch axis", found=sizes[0]
        )


def _check_tree(value: Value, where: str, forbidden: tuple[type, ...] = ()) -> None:
    """Check what is passed in or handed back: names of its parts must be possible and unique."""
    for item in _trees(value):
        if isinstance(item, forbidden):
            raise GraphError("impossible here", where=where, found=show(item))
        if not isinstance(item, Record):
            continue
        keys = [k for k, _ in item.fields]
        _unique(keys, "two results of one name", where)
        for name in (item.name, *keys) if item.name else ():
            if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
                raise GraphError(
                    "name that a named tuple cannot have",
                    where=where,
                    found=name,
                    expected="an identifier without a leading underscore",
                )


def _trees(value: Value) -> Iterator[Value]:
    """Yield a value and all values inside it."""
    yield value
    inner = value if isinstance(value, tuple) else ()
    if isinstance(value, Mode):
        inner = (value.train, value.eval)
    elif isinstance(value, Record):
        inner = tuple(v for _, v in value.fields)
    for item in inner:
        yield from _trees(item)


def _check_outputs(graph: ArchGraph, seen: Mapping[str, Node]) -> None:
    _check_uses((graph.outputs,), seen, graph.param, "outputs")
    _check_tree(graph.outputs, "outputs", (Atom,))
    for item in walk(graph.outputs):
        if isinstance(item, Ref) and isinstance(seen[item.name].type, tuple):
            raise GraphError("several results where one is meant", where="outputs", found=item)
    for training in (True, False):
        made = walk(in_mode(graph.outputs, training))
        if not any(isinstance(i, (Ref, Leaf)) for i in made):
            mode = "training" if training else "evaluation"
            raise GraphError(f"the graph returns no tensor in {mode}", where="outputs")


def _check_updates(graph: ArchGraph, seen: Mapping[str, Node]) -> None:
    assigned: set[str] = set()
    for buffer, value in graph.updates:
        if buffer not in graph.param or graph.param[buffer].role != "buffer":
            raise GraphError("update of something that is not a buffer", where=buffer)
        if buffer in assigned:
            raise GraphError("buffer updated twice", where=buffer)
        assigned.add(buffer)
        where = f"update {buffer}"
        _check_uses((value,), seen, graph.param, where)
        shape = graph.param[buffer].type.shape
        for training in (True, False):
            item = in_mode(value, training)
            if item is None:
                continue
            found: Any = show(item)
            if isinstance(item, (Ref, Leaf)):
                held = (seen if isinstance(item, Ref) else graph.param)[item.name].type
                if isinstance(held, TensorType) and held.shape == shape:
                    continue
                found = held if isinstance(held, TensorType) else "several results"
            raise GraphError(
                "update of another shape", where=where, found=found, expected=graph.param[buffer]
            )


# -- types ------------------------------------------------------------------------------------
def _check_types(graph: ArchGraph) -> None:
    """Every operator's written type is the one that it gives, in each mode that it runs in."""
    types: dict[Ref | Leaf, ResultType] = {Ref(n.name): n.type for n in graph.nodes}
    types |= {Leaf(p.name): p.type for p in graph.params}
    runs = {m: set(specialise(graph, training=m).node) for m in (True, False)}
    for node in graph.nodes:
        if node.op in ("input", "getitem"):
            continue
        flat = [v for _, v in node.args]
        moded = any(isinstance(i, Mode) for v in flat for i in _trees(v))
        for training in (True, False) if moded else (True,):
            if moded and node.name not in runs[training] and node.name in runs[not training]:
                continue
            args = tuple((k, pattern(in_mode(v, training), types)) for k, v in node.args)
            if not computable(node.op) or _walks(node.op, args):
                continue
            try:
                found = result_type(node.op, args)
            except GraphError as error:
                raise error.within(place(node)) from error
            if found is not None and found != node.type:
                _other_type(node, found)


def _other_type(node: Node, found: ResultType) -> NoReturn:
    def shown(types: ResultType) -> str:
        return shortened(
            f"({', '.join(map(str, types))})" if isinstance(types, tuple) else str(types)
        )

    raise GraphError(
        f"{node.op} gives another type than written",
        where=f"%{node.name}",
        found=shown(node.type),
        expected=shown(found),
    )


@functools.cache
def computable(op: str) -> bool:
    """Return whether an operator's type may be computed: one with a rule, or of PyTorch's core set.

    Others are kernels of one backend or of autograd; some read their arguments' data, which meta
    tensors do not have. Their written type stands, and what touches them is pinned.
    """
    return row(op).rule is not unknown or torch.Tag.core in schema(op).overload.tags


def _walks(op: str, args: tuple[tuple[str, Any], ...]) -> bool:
    """Return whether inference would go through a long dimension position by position."""
    if row(op).rule is not opaque_axes:
        return False
    found = (s for t in tensor_types(v for _, v in args) for s in t.shape)
    return any(size_at(s, 1) > LIMITS.steps for s in found)
