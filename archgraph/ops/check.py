"""The laws of a graph: what every other module may rely on."""

from __future__ import annotations

import functools
import itertools
import keyword
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NoReturn

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
from archgraph.ops.infer import call_type, pattern, shortened, tensor_types
from archgraph.ops.opaque import opaque_axes
from archgraph.ops.operands import nested
from archgraph.ops.operator import unknown_axes
from archgraph.ops.schema import canonical_args, op_schema, torch_dtype
from archgraph.ops.table import known, row
from archgraph.ops.types import Args, ResultType


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
        _require(node.name not in seen, "two operators of one name", where)
        _check_depth(node.scope, where)
        _check_uses((v for _, v in node.args), seen, graph.param, where)
        for type_ in node.types:
            _check_type(type_, where)
        _check_operator(node, seen, where)
        seen[node.name] = node
    types: dict[Value, ResultType] = {Ref(n.name): n.type for n in graph.nodes}
    types |= {Leaf(p.name): p.type for p in graph.params}
    _check_inputs(graph)
    _check_outputs(graph, seen)
    _check_updates(graph, seen, types)
    _unique([name for name, _ in graph.sections], "two sections of one name", "sections")
    # Last: kernels run on what has been found sound above.
    _check_types(graph, types)


def _require(
    fact: object,
    message: str,
    where: str | None = None,
    found: object = None,
    expected: object = None,
) -> None:
    if not fact:
        raise GraphError(message, where=where, found=found, expected=expected)


def _bound(
    number: int,
    limit: int,
    message: str,
    where: str | None = None,
    found: object = None,
    unit: str = "",
) -> None:
    actual = number if found is None else found
    _require(number <= limit, message, where, actual, f"at most {limit}{unit}")


def _unique(names: list[str], message: str, where: str) -> None:
    _require(len(set(names)) == len(names), message, where, names)


# -- leaves -----------------------------------------------------------------------------------
def _check_leaves(graph: ArchGraph) -> None:
    names = Counter(name for param in graph.params for name in (param.name, *param.aliases))
    for name, count in names.items():
        _require(count == 1, "leaf defined twice", name)
        _check_name(name)
        # A module's attribute cannot be a tensor and a module at once.
        for owner in itertools.accumulate(name.split(".")[:-1], "{}.{}".format):
            _require(owner not in names, "leaf inside another leaf", name, owner)
    total = sum(map(_check_leaf, graph.params))
    _bound(total, LIMITS.elements, "leaves too large together", unit=" elements")


def _check_depth(path: str, where: str) -> None:
    depth = path.count(".") + 1
    _bound(depth, LIMITS.module_depth, "too many modules inside modules", where)


def _check_name(name: str) -> None:
    """Check that a leaf's name is an attribute path of a module; generated code contains it."""
    _check_depth(name.rpartition(".")[0], name)
    _require(
        all(name.split(".")) and name.isprintable() and not set(name) & {'"', "\\"},
        "leaf with an impossible name",
        where=name,
        expected="printable words joined by dots, without quotes and backslashes",
    )


def _check_leaf(param: Param) -> int:
    """Check a leaf and return its number of elements."""
    name, type_, value = param.name, param.type, param.value
    sound = all(isinstance(s, int) and s >= 0 for s in type_.shape)
    _require(sound, "leaf with an impossible size", name, type_)
    elements = math.prod(param.shape)
    _bound(elements, LIMITS.leaf_elements, "leaf too large", name, type_, " elements")
    _check_type(type_, name)
    dtype = torch_dtype(param.dtype)
    trainable = dtype.is_floating_point or dtype.is_complex or not param.trainable
    expected = "a floating-point type, or 'frozen'"
    _require(trainable, "parameter that cannot be trained", name, type_, expected)
    _require(value is not None or param.role != "constant", "constant without a value", name)
    if value is not None:
        other = TensorType(value.shape, value.dtype)
        _require(other == type_, "initial value of another type", name, other, type_)
        size, actual = elements * dtype.itemsize, len(value.data)
        _require(actual == size, "initial value with the wrong number of bytes", name, actual, size)
    return elements


def _check_type(type_: TensorType, where: str) -> None:
    """Sizes and element type of a tensor."""
    torch_dtype(type_.dtype)
    _bound(len(type_.shape), LIMITS.rank, "too many dimensions", where)
    elements = 1
    for size in type_.shape:
        # A dimension may be empty, but no multiple of the batch is.
        factor, least = (size.factor, 1) if isinstance(size, Batch) else (size, 0)
        _require(factor >= least, "negative size", where, type_)
        _bound(factor, LIMITS.size, "size too large", where, type_)
        _check_batch(size, where)
        elements *= factor
    _bound(elements, LIMITS.elements, "tensor too large", where, type_, " elements")


def _check_batch(value: Value, where: str) -> None:
    if isinstance(value, Batch):
        possible = 1 <= value.power <= LIMITS.batch_power and abs(value.factor) <= LIMITS.size
        expected = f"a power of 1 to {LIMITS.batch_power}, a factor of at most {LIMITS.size}"
        _require(possible, "size that no batch has", where, value, expected)


# -- operators --------------------------------------------------------------------------------
def _check_uses(
    values: Iterable[Value], seen: Collection[str], leaves: Collection[str], where: str
) -> None:
    for item in (item for value in values for item in walk(value)):
        if isinstance(item, Ref):
            message = "uses a result that no earlier operator makes"
            _require(item.name in seen, message, where, item)
        elif isinstance(item, Leaf):
            _require(item.name in leaves, "uses a leaf that does not exist", where, item)
        _check_batch(item, where)


def _check_operator(node: Node, seen: Mapping[str, Node], where: str) -> None:
    if node.op == "input":
        return _check_input(node, where)
    if node.op == "getitem":
        return _check_getitem(node, seen, where)
    expected = "an ATen operator that changes nothing in place"
    _require(known(node.op) and pure(node.op), "unknown operator", where, node.op, expected)
    args = dict(node.args)
    names = [name for name, _ in node.args]
    _require(len(args) == len(names), "argument given twice", where, names)
    try:
        canonical = [name for name, _ in canonical_args(node.op, args)]
    except GraphError as error:
        raise error.within(where) from None
    _require(names == canonical, "arguments not in canonical form", where, names, canonical)
    types = _argument_types(node.op)
    for name, value in node.args:
        if not _fits(value, types[name], seen):
            message, found = f"argument {name!r} has a wrong type", shortened(show(value))
            raise GraphError(message, where=where, found=found, expected=types[name])


def _check_input(node: Node, where: str) -> None:
    limits = dict(node.args)
    sound = limits.keys() <= {"min", "max"} and len(limits) == len(node.args)
    sound = sound and all(type(v) is int for v in limits.values())
    _require(sound, "an input has no arguments but min and max, batch sizes", where)
    sound = not isinstance(node.type, tuple) and (not limits or node.shape[:1] == (Batch(),))
    _require(sound, "an input is one tensor, limited only in its batch", where)


def _check_getitem(node: Node, seen: Mapping[str, Node], where: str) -> None:
    names = [name for name, _ in node.args]
    _require(names == ["source", "index"], "getitem takes source and index", where)
    source, index = (value for _, value in node.args)
    results = seen[source.name].type if isinstance(source, Ref) else None
    if not isinstance(results, tuple):
        message, expected = "getitem takes one of several results", "an operator with several"
        raise GraphError(message, where=where, found=show(source), expected=f"{expected} results")
    if type(index) is not int or not -len(results) <= index < len(results):
        expected = f"0 to {len(results) - 1}"
        raise GraphError("no such result", where=where, found=show(index), expected=expected)
    if node.type != results[index]:
        _other_type(node, results[index])


@functools.cache
def pure(op: str) -> bool:
    """Return whether an operator is a kernel from tensors to tensors, not of the interpreter."""
    schema = op_schema(op).overload._schema
    name = f"{schema.name}.{schema.overload_name}".rstrip(".")
    kinds = {str(r.type) for r in schema.returns}
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
    return {a.name: str(a.real_type) for a in op_schema(op).overload._schema.arguments}


def _is_number(value: Value) -> bool:
    return isinstance(value, (bool, float)) or _is_integer(value)


def _is_integer(value: Value) -> bool:
    small = type(value) is int and abs(value) <= LIMITS.integer
    return small or isinstance(value, Batch)


def _is_enumeration(kind: type) -> Callable[[Value], bool]:
    return lambda v: isinstance(v, Atom) and isinstance(getattr(torch, v.name, None), kind)


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
        # One number stands for a list of it, as in ``stride=2``; one tensor does not.
        return inner in ("int", "float", "bool") and _fits(value, inner, seen)
    if kind == "Tensor":
        if isinstance(value, Ref):
            return not isinstance(seen[value.name].type, tuple)
        # A number stands for a tensor of no dimensions.
        return isinstance(value, Leaf) or _is_number(value)
    return kind in _PLAIN and _PLAIN[kind](value)


# -- inputs, outputs, updates -----------------------------------------------------------------
def _check_inputs(graph: ArchGraph) -> None:
    inputs = sorted(n.name for n in graph.nodes if n.op == "input")
    names = sorted(i.name for _, v in graph.inputs for i in walk(v) if isinstance(i, Ref))
    message = "forward's arguments and the input operators differ"
    _require(names == inputs, message, found=names, expected=inputs)
    keys = [key for key, _ in graph.inputs]
    for key in keys:
        possible = key.isidentifier() and not keyword.iskeyword(key) and key != "self"
        _require(possible, "argument of forward must be an identifier", "inputs", key)
    _unique(keys, "two arguments of one name", "inputs")
    for _, value in graph.inputs:
        _check_tree(value, "inputs", (Leaf, Batch, Atom, Mode))
    values = [v for n in graph.nodes for _, v in n.args]
    values += [graph.outputs, *(v for _, v in graph.updates)]
    size = next((i for v in values for i in walk(v) if isinstance(i, Batch)), None)
    batched = any(n.op == "input" and n.shape[:1] == (Batch(),) for n in graph.nodes)
    message = "a size depends on the batch, but no input has a batch axis"
    _require(size is None or batched, message, found=size)


def _check_tree(value: Value, where: str, forbidden: tuple[type, ...]) -> None:
    """Check what is passed in or handed back: names of its parts must be possible and unique."""
    for item in nested(value):
        _require(not isinstance(item, forbidden), "impossible here", where, item)
        if isinstance(item, Record):
            keys = [key for key, _ in item.fields]
            _unique(keys, "two results of one name", where)
            for name in (item.name, *keys) if item.name else ():
                possible = name.isidentifier() and not keyword.iskeyword(name) and name[0] != "_"
                expected = "an identifier without a leading underscore"
                _require(possible, "name that a named tuple cannot have", where, name, expected)


def _check_outputs(graph: ArchGraph, seen: Mapping[str, Node]) -> None:
    _check_uses((graph.outputs,), seen, graph.param, "outputs")
    _check_tree(graph.outputs, "outputs", (Atom,))
    for item in walk(graph.outputs):
        several = isinstance(item, Ref) and isinstance(seen[item.name].type, tuple)
        _require(not several, "several results where one is meant", "outputs", item)
    for training, mode in ((True, "training"), (False, "evaluation")):
        items = walk(in_mode(graph.outputs, training))
        tensors = any(isinstance(i, (Ref, Leaf)) for i in items)
        _require(tensors, f"the graph returns no tensor in {mode}", "outputs")


def _check_updates(
    graph: ArchGraph, seen: Mapping[str, Node], types: Mapping[Value, ResultType]
) -> None:
    buffers = {p.name: p for p in graph.params if p.role == "buffer"}
    for buffer, value in graph.updates:
        _require(buffer in buffers, "update of something that is not a buffer", buffer)
        where, expected = f"update {buffer}", buffers[buffer]
        _check_uses((value,), seen, graph.param, where)
        for item in (in_mode(value, training) for training in (True, False)):
            type_ = types.get(item)
            fits = isinstance(type_, TensorType) and type_.shape == expected.type.shape
            # None: this mode leaves the buffer alone.
            actual = show(item) if type_ is None else _printed(type_)
            _require(fits or item is None, "update of another shape", where, actual, expected)
    _unique([buffer for buffer, _ in graph.updates], "buffer updated twice", "updates")


# -- types ------------------------------------------------------------------------------------
def _check_types(graph: ArchGraph, types: Mapping[Value, ResultType]) -> None:
    """Every operator's written type is the one that it gives, in each mode that it runs in."""
    runs = {m: set(specialise(graph, training=m).node) for m in (True, False)}
    for node in graph.nodes:
        if node.op in ("input", "getitem") or not computable(node.op):
            continue
        moded = any(isinstance(i, Mode) for _, v in node.args for i in nested(v))
        # What both modes compute alike has one type; what neither reaches is still checked.
        for training in (True, False) if moded else (True,):
            if moded and node.name not in runs[training] and node.name in runs[not training]:
                continue
            args = {k: pattern(in_mode(v, training), types) for k, v in node.args}
            type_ = None if _walks(node.op, args) else call_type(node, args)
            if type_ is not None and type_ != node.type:
                _other_type(node, type_)


def _other_type(node: Node, expected: ResultType) -> NoReturn:
    message, where = f"{node.op} gives another type than written", f"%{node.name}"
    raise GraphError(message, where=where, found=_printed(node.type), expected=_printed(expected))


def _printed(types: ResultType) -> str:
    return shortened(f"({', '.join(map(str, types))})" if isinstance(types, tuple) else str(types))


@functools.cache
def computable(op: str) -> bool:
    """Return whether an operator's type may be computed: one with a rule, or of PyTorch's core set.

    Others are kernels of one backend or of autograd; some read their arguments' data, which meta
    tensors do not have. Their written type stands, and what touches them is pinned.
    """
    return row(op).rule is not unknown_axes or torch.Tag.core in op_schema(op).overload.tags


def _walks(op: str, args: Args) -> bool:
    """Return whether inference would go through a long dimension position by position."""
    sizes = (s for t in tensor_types(args.values()) for s in t.shape)
    return row(op).rule is opaque_axes and any(size_at(s, 1) > LIMITS.steps for s in sizes)
