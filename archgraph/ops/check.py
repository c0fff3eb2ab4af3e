"""Check that a graph is valid: the properties on which every other module relies."""

from __future__ import annotations

import contextlib
import functools
import itertools
import keyword
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import torch

from archgraph.errors import GraphError
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import (
    BATCH_WORD,
    ArchGraph,
    Atom,
    Leaf,
    Mode,
    Node,
    Param,
    Polynomial,
    Record,
    Ref,
    TensorType,
    Value,
    in_mode,
    nested,
    show,
    size_at,
    walk,
)
from archgraph.graph.passes import specialise
from archgraph.graph.sizes import example_sizes, is_size_name, open_sizes, probed_sizes
from archgraph.limits import LIMITS
from archgraph.ops.infer import call_type, pattern
from archgraph.ops.kernels import shortened, tensor_types
from archgraph.ops.opaque import opaque_axes
from archgraph.ops.operator import unknown_axes
from archgraph.ops.schema import LEFT_OUT, canonical_args, op_schema, torch_dtype
from archgraph.ops.table import known, row
from archgraph.ops.types import Args, ResultType


@takes_graph
def check(graph: ArchGraph) -> None:
    """Check that a graph is valid.

    - Names are unique, and the names of parameters, buffers and constants can be attributes of a
      module.
    - An operator comes after the operators whose results it uses.
    - Every operator is an ATen operator without side effects. The names and types of its arguments
      are those of its schema.
    - The shape and dtype of every result are those that the operator computes on meta tensors, in
      training and in evaluation.
    - Constants have a value.
    - Sizes and counts are within :data:`archgraph.limits.LIMITS`.
    - Inputs and outputs are nodes of the graph.
    - Updates assign to buffers of the same shape.

    Raises:
        GraphError: If the graph is not valid. The message has the location, the actual and the
            expected value.

    Example:
        >>> from archgraph.graph.ir import Node
        >>> check(ArchGraph((), (), (Node("y", "aten.relu", (("self", Ref("x")),)),), Ref("y")))
        Traceback (most recent call last):
        archgraph.errors.GraphError: %y: uses a result that no earlier operator computes; found %x
    """
    _bound(len(graph.nodes), LIMITS.nodes, "too many operators")
    _bound(len(graph.params), LIMITS.leaves, "too many parameters and buffers")
    _check_leaves(graph)
    values = example_sizes(graph)
    sizes = {name: values[name] for name in open_sizes(graph)}
    seen: dict[str, Node] = {}
    for node in graph.nodes:
        with _at(f"%{node.name}"):
            _require(node.name not in seen, "two operators with the same name")
            _check_depth(node.scope)
            _check_uses((v for _, v in node.args), seen, graph, sizes)
            for type_ in node.types:
                _check_type(type_, sizes)
            _check_operator(node, seen)
        seen[node.name] = node
    types: dict[Ref | Leaf, ResultType] = {Ref(n.name): n.type for n in graph.nodes}
    types |= {Leaf(p.name): p.type for p in graph.params}
    _check_inputs(graph)
    with _at("outputs"):
        _check_outputs(graph, seen, sizes)
    _check_updates(graph, seen, types, sizes)
    with _at("sections"):
        _unique([name for name, _ in graph.sections], "two sections with the same name")
    # Last, since kernels only run on a graph that has passed the checks above.
    _check_types(graph, types)


@contextlib.contextmanager
def _at(where: str) -> Iterator[None]:
    """Add a location to errors."""
    try:
        yield
    except GraphError as error:
        raise error.within(where) from None


def _require(fact: object, message: str, actual: object = None, expected: object = None) -> None:
    if not fact:
        raise GraphError(message, found=actual, expected=expected)


def _bound(number: int, limit: int, message: str, actual: object = None, unit: str = "") -> None:
    _require(number <= limit, message, actual or number, f"at most {limit}{unit}")


def _unique(names: list[str], message: str) -> None:
    _require(len(set(names)) == len(names), message, names)


# -- leaves -----------------------------------------------------------------------------------
def _check_leaves(graph: ArchGraph) -> None:
    names = Counter(name for param in graph.params for name in (param.name, *param.aliases))
    for name, count in names.items():
        with _at(name):
            _require(count == 1, "two tensors with the same name")
            _check_name(name)
            # A module's attribute cannot be both a tensor and a module.
            for owner in itertools.accumulate(name.split(".")[:-1], "{}.{}".format):
                _require(owner not in names, "tensor and module with the same path", owner)
    for param in graph.params:
        with _at(param.name):
            _check_leaf(param)
    total = sum(math.prod(param.shape) for param in graph.params)
    _bound(total, LIMITS.elements, "tensors too large in total", unit=" elements")


def _check_depth(path: str) -> None:
    _bound(path.count(".") + 1, LIMITS.module_depth, "modules nested too deeply")


def _check_name(name: str) -> None:
    """Check that the name of a parameter can be a path of attributes in generated code."""
    _check_depth(name.rpartition(".")[0])
    possible = all(name.split(".")) and name.isprintable() and not set(name) & {'"', "\\"}
    expected = "printable words joined by dots, without quotes and backslashes"
    _require(possible, "tensor with an invalid name", expected=expected)


def _check_leaf(param: Param) -> None:
    type_, value = param.type, param.value
    sound = all(isinstance(s, int) and s >= 0 for s in type_.shape)
    _require(sound, "tensor with an invalid size", type_)
    elements = math.prod(param.shape)
    _bound(elements, LIMITS.leaf_elements, "tensor too large", type_, " elements")
    _check_type(type_, {})
    dtype = torch_dtype(param.dtype)
    trainable = dtype.is_floating_point or dtype.is_complex or not param.trainable
    expected = "a floating-point type, or 'frozen'"
    _require(trainable, "parameter that cannot be trained", type_, expected)
    _require(value is not None or param.role != "constant", "constant without a value")
    if value is not None:
        other = TensorType(value.shape, value.dtype)
        _require(other == type_, "initial value with the wrong type", other, type_)
        size, actual = elements * dtype.itemsize, len(value.data)
        _require(actual == size, "initial value with the wrong number of bytes", actual, size)


def _check_type(type_: TensorType, sizes: Mapping[str, int]) -> None:
    """Check the sizes and dtype of a tensor; ``sizes`` has example values of open sizes."""
    torch_dtype(type_.dtype)
    _bound(len(type_.shape), LIMITS.rank, "too many dimensions")
    elements = 1
    for size in type_.shape:
        _check_size(size, sizes)
        # A dimension may be empty, but an open size is at least 1.
        least = 1 if isinstance(size, Polynomial) else 0
        actual = size_at(size, sizes)
        _require(actual >= least, "negative size", type_)
        _bound(actual, LIMITS.size, "size too large", type_)
        elements *= actual
    _bound(elements, LIMITS.elements, "tensor too large", type_, " elements")


def _check_size(value: Value, sizes: Mapping[str, int]) -> None:
    if isinstance(value, Polynomial):
        missing = sorted(value.names - sizes.keys())
        message = "a size depends on an open size that no input has"
        _require(not missing, message, f"{value}", ", ".join(sizes) or "a number")
        possible = all(abs(factor) <= LIMITS.size for factor in value.terms.values())
        _require(possible, "size with too large a factor", value, f"at most {LIMITS.size}")


# -- operators --------------------------------------------------------------------------------
def _check_uses(
    values: Iterable[Value], seen: Collection[str], graph: ArchGraph, sizes: Mapping[str, int]
) -> None:
    for item in (item for value in values for item in walk(value)):
        if isinstance(item, Ref):
            _require(item.name in seen, "uses a result that no earlier operator computes", item)
        elif isinstance(item, Leaf):
            _require(item.name in graph.param, "uses a tensor that does not exist", item)
        _check_size(item, sizes)


def _check_operator(node: Node, seen: Mapping[str, Node]) -> None:
    args, names = dict(node.args), [name for name, _ in node.args]
    _require(len(args) == len(names), "argument given twice", names)
    if node.op == "input":
        _require(not isinstance(node.type, tuple), "an input must be a single tensor")
        _check_ranges(node, args)
        return
    if node.op == "getitem":
        _require(names == ["source", "index"], "getitem takes source and index")
        _check_getitem(node, args["source"], args["index"], seen)
        return
    expected = "an ATen operator that does not work in place"
    _require(known(node.op) and pure(node.op), "unknown operator", node.op, expected)
    canonical = [name for name, _ in canonical_args(node.op, args)]
    _require(names == canonical, "arguments not in canonical form", names, canonical)
    types = _argument_types(node.op)
    for name, value in node.args:
        if not _fits(value, types[name], seen):
            actual = shortened(show(value))
            _require(False, f"argument {name!r} has the wrong type", actual, types[name])


def _check_ranges(node: Node, args: Mapping[str, Value]) -> None:
    """Check the ranges of an input's open sizes: ``min`` and ``max`` of the batch, and others."""
    for key, value in args.items():
        of_batch = key in ("min", "max")
        name = BATCH_WORD if of_batch else key
        _require(Polynomial.of(name) in node.shape, "range of a size that the input lacks", key)
        facts = (
            {key: value} if of_batch else dict(value.fields) if isinstance(value, Record) else {}
        )
        keys = {"min", "max"} if of_batch else {"example", "min", "max"}
        sound = facts and facts.keys() <= keys and all(type(v) is int for v in facts.values())
        _require(sound, f"the range of {name} needs integers", value, ", ".join(sorted(keys)))
        numbers = [v for v in (facts.get(k) for k in ("min", "example", "max")) if type(v) is int]
        in_order = sorted(numbers) == numbers and (of_batch or (numbers and numbers[0] >= 1))
        _require(in_order, f"invalid range of {name}", value, "1 ≤ min ≤ example ≤ max")


def _check_getitem(node: Node, source: Value, index: Value, seen: Mapping[str, Node]) -> None:
    results = seen[source.name].type if isinstance(source, Ref) else None
    if not isinstance(results, tuple):
        raise GraphError(
            "getitem takes one of several results",
            found=source,
            expected="an operator with several results",
        )
    if type(index) is not int or not -len(results) <= index < len(results):
        raise GraphError("no such result", found=index, expected=f"0 to {len(results) - 1}")
    _same_type(node, results[index])


@functools.cache
def pure(op: str) -> bool:
    """Return whether an operator is a function from tensors to tensors without side effects."""
    schema = op_schema(op).overload._schema
    name = f"{schema.name}.{schema.overload_name}".rstrip(".")
    kinds = {str(r.type) for r in schema.returns}
    return bool(
        kinds
        and kinds <= {"Tensor", "List[Tensor]"}
        and torch._C._dispatch_has_kernel(name)
        # Its name appears in generated code.
        and not any(map(keyword.iskeyword, op.split(".")))
    )


@functools.cache
def _argument_types(op: str) -> Mapping[str, str]:
    """Return a dict from arguments to their types; enumerations have their own names."""
    types = {a.name: str(a.real_type) for a in op_schema(op).overload._schema.arguments}
    number = LEFT_OUT.get(op)
    return types if number is None else {**types, number: f"Optional[{types[number]}]"}


def _is_number(value: Value) -> bool:
    return isinstance(value, (bool, float)) or _is_integer(value)


def _is_integer(value: Value) -> bool:
    small = type(value) is int and abs(value) <= LIMITS.integer
    return small or isinstance(value, Polynomial)


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
    """Return whether a value fits an argument type; the value of one mode may be missing."""
    if isinstance(value, Mode):
        return all(b is None or _fits(b, kind, seen) for b in (value.train, value.eval))
    if kind.startswith("Optional["):
        return value is None or _fits(value, kind[9:-1], seen)
    if kind.startswith("List["):
        inner = kind[5:-1]
        if isinstance(value, tuple):
            return all(_fits(item, inner, seen) for item in value)
        # PyTorch accepts one number for a list of numbers, as in ``stride=2``, but not one tensor.
        return inner in ("int", "float", "bool") and _fits(value, inner, seen)
    if kind == "Tensor":
        if isinstance(value, Ref):
            return not isinstance(seen[value.name].type, tuple)
        # PyTorch accepts a number for a tensor without dimensions.
        return isinstance(value, Leaf) or _is_number(value)
    return kind in _PLAIN and _PLAIN[kind](value)


# -- inputs, outputs, updates -----------------------------------------------------------------
def _check_inputs(graph: ArchGraph) -> None:
    inputs = sorted(n.name for n in graph.nodes if n.op == "input")
    names = sorted(i.name for _, v in graph.inputs for i in walk(v) if isinstance(i, Ref))
    _require(names == inputs, "forward's arguments and the input operators differ", names, inputs)
    with _at("inputs"):
        _unique([key for key, _ in graph.inputs], "two arguments with the same name")
        for key, value in graph.inputs:
            possible = key.isidentifier() and not keyword.iskeyword(key) and key != "self"
            _require(possible, "argument of forward must be an identifier", key)
            _check_tree(value, (Leaf, Polynomial, Atom, Mode))
    for name, size in open_sizes(graph).items():
        with _at(name):
            _require(is_size_name(name), "not a valid name for an open size")
            _require(name not in graph.param, "an open size and a tensor have the same name")
            said = [at for at, _ in size.axes if graph.node[at].arg(name) is not None]
            message = "exactly one input must give the example of an open size"
            expected = f"{name}={{'example': …}}"
            _require(name == BATCH_WORD or len({*said}) == 1, message, said or "none", expected)


def _check_tree(value: Value, forbidden: tuple[type, ...]) -> None:
    """Check that the names in the structure of inputs or outputs are valid and unique."""
    for item in nested(value):
        _require(not isinstance(item, forbidden), "not allowed here", item)
        if isinstance(item, Record):
            keys = [key for key, _ in item.fields]
            _unique(keys, "two results with the same name")
            # A dict may have any keys, a named tuple only those that collections.namedtuple allows.
            for name in (item.name, *keys) if item.name else ():
                possible = name.isidentifier() and not keyword.iskeyword(name) and name[0] != "_"
                expected = "an identifier without a leading underscore"
                _require(possible, "invalid name in a named tuple", name, expected)


def _check_outputs(graph: ArchGraph, seen: Mapping[str, Node], sizes: Mapping[str, int]) -> None:
    _check_uses((graph.outputs,), seen, graph, sizes)
    _check_tree(graph.outputs, (Atom,))
    for item in walk(graph.outputs):
        several = isinstance(item, Ref) and isinstance(seen[item.name].type, tuple)
        _require(not several, "several results where one is expected", item)
    for training, mode in ((True, "training"), (False, "evaluation")):
        items = walk(in_mode(graph.outputs, training))
        tensors = any(isinstance(i, (Ref, Leaf)) for i in items)
        _require(tensors, f"the graph returns no tensor in {mode}")


def _check_updates(
    graph: ArchGraph,
    seen: Mapping[str, Node],
    types: Mapping[Ref | Leaf, ResultType],
    sizes: Mapping[str, int],
) -> None:
    _unique([buffer for buffer, _ in graph.updates], "buffer updated twice")
    buffers = {p.name: p for p in graph.params if p.role == "buffer"}
    for buffer, value in graph.updates:
        with _at(f"update {buffer}"):
            _require(buffer in buffers, "update of something that is not a buffer")
            _check_uses((value,), seen, graph, sizes)
            for item in (in_mode(value, training) for training in (True, False)):
                type_ = types[item] if isinstance(item, (Ref, Leaf)) else None
                fits = isinstance(type_, TensorType) and type_.shape == buffers[buffer].type.shape
                actual = show(item) if type_ is None else _printed(type_)
                # None: this mode does not change the buffer.
                message, expected = "update with the wrong shape", buffers[buffer]
                _require(fits or item is None, message, actual, expected)


# -- types ------------------------------------------------------------------------------------
def _check_types(graph: ArchGraph, types: Mapping[Ref | Leaf, ResultType]) -> None:
    """Check the declared type of every operator against the computed type, in each mode."""
    sizes = probed_sizes(graph)
    modes = (True, False) if any(n.moded for n in graph.nodes) else ()
    runs = {m: set(specialise(graph, training=m).node) for m in modes}
    for node in graph.nodes:
        if node.op in ("input", "getitem") or not computable(node.op):
            continue
        moded = node.moded
        # A node that runs equally in both modes has one type; an unreachable one is still checked.
        for training in (True, False) if moded else (True,):
            if moded and node.name not in runs[training] and node.name in runs[not training]:
                continue
            args = {k: pattern(in_mode(v, training), types) for k, v in node.args}
            type_ = (
                None
                if _walks(node.op, args, {**sizes, BATCH_WORD: 1})
                else call_type(node, args, sizes)
            )
            with _at(f"%{node.name}"):
                _same_type(node, node.type if type_ is None else type_)


def _same_type(node: Node, expected: ResultType) -> None:
    if node.type != expected:
        message, actual = f"{node.op} computes another type than declared", _printed(node.type)
        raise GraphError(message, found=actual, expected=_printed(expected))


def _printed(types: ResultType) -> str:
    return shortened(f"({', '.join(map(str, types))})" if isinstance(types, tuple) else str(types))


@functools.cache
def computable(op: str) -> bool:
    """Return whether the type of an operator's result can be computed.

    This is the case for operators with a row in the table, and for PyTorch's core operators. Other
    operators are kernels of a backend or of autograd. Some of these kernels read the data of their
    arguments, which meta tensors do not have. The declared types of these operators are not
    checked, and all their axes are pinned.
    """
    return row(op).rule is not unknown_axes or torch.Tag.core in op_schema(op).overload.tags


def _walks(op: str, args: Args, examples: Mapping[str, int]) -> bool:
    """Return whether inference would run one step for each index of a long dimension."""
    sizes = (s for t in tensor_types(args.values()) for s in t.shape)
    return row(op).rule is opaque_axes and any(size_at(s, examples) > LIMITS.steps for s in sizes)
