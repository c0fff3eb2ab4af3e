"""The signature of forward: nested structures of values for its arguments and results."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._pytree import PyTree

from archgraph.capture.examples import ExampleInputs, OpenAxes, example_tensors
from archgraph.capture.export import Captured
from archgraph.capture.spell import OneMode
from archgraph.errors import TraceError
from archgraph.graph.ir import Leaf, Mode, Node, Polynomial, Record, Ref, Value, walk
from archgraph.graph.sizes import OpenSize, is_size_name
from archgraph.graph.values import BATCH_WORD
from archgraph.hints import unknown
from archgraph.ops.schema import to_value


def with_signature(model: nn.Module, captured: Captured, spelt: OneMode) -> OneMode:
    """Add forward's arguments and results as nested structures, and all notes, to a capture."""
    program, notes = captured.program, [*captured.notes, *spelt.notes]
    inputs = {n.name for n in spelt.nodes if n.op == "input"}
    users: list[Value] = [
        Ref(spec.arg.name) if spec.arg.name in inputs else None
        for spec in program.graph_signature.input_specs
        if spec.kind.name == "USER_INPUT"
    ]
    spec = program.call_spec
    assert spec.in_spec is not None and spec.out_spec is not None
    args, kwargs = pytree.tree_unflatten(users, spec.in_spec)
    signature = inspect.signature(model.forward)
    bound = signature.bind(*args, **kwargs)
    examples = signature.bind(*captured.inputs[0], **captured.inputs[1])
    for key in bound.arguments:
        leaves = pytree.tree_leaves(examples.arguments[key])
        fixed = [repr(x) for x in leaves if x is not None and not isinstance(x, Tensor)]
        if fixed and examples.arguments[key] is not signature.parameters[key].default:
            notes.append(f"argument {key} is fixed in the graph: {', '.join(fixed)}")
    result = [
        (name, tree(item))
        for key, value in bound.arguments.items()
        for name, item in _spread(signature, key, value)
    ]
    # The graph's arguments are only the tensors; the numbers among them are in its operators.
    tensors = tuple((k, v) for k, v in result if any(isinstance(i, Ref) for i in walk(v)))
    assert isinstance(spelt.outputs, tuple)
    outputs = tree(pytree.tree_unflatten(list(spelt.outputs), spec.out_spec))
    return dataclasses.replace(
        spelt,
        inputs=tensors,
        nodes=_saying(spelt.nodes, captured.sizes()),
        outputs=outputs,
        fixed=captured.fixed,
        notes=tuple(notes),
        decided=captured.observed.buffers,
    )


def _saying(nodes: tuple[Node, ...], sizes: Mapping[str, OpenSize]) -> tuple[Node, ...]:
    """Add the valid range of each open size to the first input that has this size."""
    left, said = dict(sizes), []
    for node in nodes:
        here = [n for n in left if node.op == "input" and Polynomial.of(n) in node.shape]
        args = tuple(pair for name in here for pair in left.pop(name).argument())
        said.append(dataclasses.replace(node, args=args) if args else node)
    return tuple(said)


def forward_arguments(
    model: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]
) -> dict[str, object]:
    """Return the arguments of a call of a model, with the names of the graph's inputs."""
    signature = inspect.signature(model.forward)
    bound = signature.bind(*args, **kwargs).arguments
    return dict(pair for k, v in bound.items() for pair in _spread(signature, k, v))


def open_axes(
    model: nn.Module, inputs: ExampleInputs, stated: Mapping[str, Mapping[int, str]]
) -> OpenAxes:
    """Return the open axes of each input tensor.

    Args:
        model: The model.
        inputs: Its example inputs.
        stated: Dict from input to a dict from dimension to the name of its size. The key of a
            nested input is its path (``images.0``, ``batch.mask``).

    Raises:
        TraceError: If an input or axis does not exist, a name is invalid or has two sizes, or the
            size in the example is one.
    """
    if not isinstance(stated, Mapping):
        expected = "{input: {dimension: name}}"
        raise TraceError("open: not names of inputs", found=stated, expected=expected)
    if not stated:
        return ()
    indices = _indices(model, inputs)
    tensors = example_tensors(inputs)
    axes: list[dict[int, str]] = [{} for _ in tensors]
    sizes: dict[str, int] = {}
    for label, names in stated.items():
        if label not in indices:
            raise TraceError("open: no such input", **unknown(label, indices))
        tensor, mine = tensors[indices[label]], axes[indices[label]]
        if not isinstance(names, Mapping) or not all(type(axis) is int for axis in names):
            expected = "{dimension: name}, as {1: 'length'}"
            raise TraceError(
                "not names of dimensions", where=f"open: {label}", found=names, expected=expected
            )
        for axis, name in names.items():
            where = f"open: {label}, axis {axis}"
            size = _open_size(tensor, axis, name, where)
            if sizes.setdefault(name, size) != size:
                message = f"{name} has two sizes in the example"
                raise TraceError(message, where=where, found=size, expected=sizes[name])
            if mine.setdefault(axis % tensor.dim(), name) != name:
                raise TraceError("an axis has two names", where=where, found=name)
    return axes


def _indices(model: nn.Module, inputs: ExampleInputs) -> dict[str, int]:
    """Return a dict from the path of each input tensor to its index."""
    count = itertools.count()
    args, kwargs = pytree.tree_map_only(Tensor, lambda x: _Place(next(count)), inputs)
    return {
        ".".join((key, *map(_step, path))): leaf.index
        for key, value in forward_arguments(model, args, kwargs).items()
        for path, leaf in pytree.tree_leaves_with_path(value)
        if isinstance(leaf, _Place)
    }


def _open_size(tensor: Tensor, axis: int, name: str, where: str) -> int:
    """Return the example's size of an axis that may be open.

    Raises:
        TraceError: If the axis does not exist, its name is invalid, or its size is one.
    """
    if not -tensor.dim() <= axis < tensor.dim():
        shape = list(tensor.shape)
        raise TraceError("no such axis", where=where, found=f"a tensor of shape {shape}")
    if not isinstance(name, str) or not is_size_name(name):
        expected = "an identifier that is not a reserved word"
        raise TraceError("not a valid name", where=where, found=repr(name), expected=expected)
    size = tensor.shape[axis]
    if size < 2 and name != BATCH_WORD:
        hint = "an axis of size 1 would be treated as a broadcast axis"
        message = f"the example's {name} must be at least 2"
        raise TraceError(message, where=where, found=size, hint=hint)
    return size


@dataclass(frozen=True)
class _Place:
    """Placeholder for an input tensor, with its index."""

    index: int


def _step(key: pytree.KeyEntry) -> str:
    """Return a step into a structure in the notation of paths."""
    parts = (getattr(key, name, None) for name in ("key", "idx", "name"))
    return str(next(part for part in parts if part is not None))


def _spread(signature: inspect.Signature, key: str, value: PyTree) -> Iterator[tuple[str, PyTree]]:
    """Return the named arguments of an argument: several for ``*args`` and ``**kwargs``."""
    match signature.parameters[key].kind:
        case inspect.Parameter.VAR_KEYWORD:
            yield from value.items()
        case inspect.Parameter.VAR_POSITIONAL:
            for index, item in enumerate(value):
                label = f"{key}_{index}"
                while label in signature.parameters:
                    label += "_"
                yield label, item
        case _:
            yield key, value


def tree(value: PyTree) -> Value:
    """Convert a Python structure of values: dicts become records, lists become tuples."""
    if isinstance(value, (Ref, Leaf, Mode, Polynomial)) or value is None:
        return value
    if isinstance(value, Mapping):
        return Record(tuple((str(k), tree(v)) for k, v in value.items() if v is not None))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
        return Record(tuple((k, tree(v)) for k, v in fields if v is not None))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        pairs = zip(value._fields, value, strict=True)
        return Record(tuple((k, tree(v)) for k, v in pairs), type(value).__name__)
    if isinstance(value, (tuple, list)):
        return tuple(tree(v) for v in value)
    return to_value(value)
