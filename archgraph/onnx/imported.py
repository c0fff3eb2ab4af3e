"""Files of other programs: the nodes become a module, and the capture of it is the graph."""

from __future__ import annotations

import copy
import dataclasses
import keyword
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from archgraph.capture.trace import Traced, trace_own
from archgraph.errors import SpecError, TraceError
from archgraph.graph.ir import ArchGraph
from archgraph.graph.sizes import is_size_name
from archgraph.limits import LIMITS
from archgraph.onnx.batches import check_batches, check_sizes
from archgraph.onnx.network import STEP, OnnxModule
from archgraph.onnx.tensors import dtype_of

if TYPE_CHECKING:
    import onnx

OPEN_EXAMPLES = (24, 64, 224)  # values at which sizes that stay open are captured
EXAMPLES = 2  # the batch of a capture: a size of 1 would be taken for one that broadcasts


def capture_file(
    proto: onnx.ModelProto, folder: Path, where: str, sizes: Mapping[str, int]
) -> tuple[ArchGraph, dict[str, torch.Tensor]]:
    """Read the graph and the weights of a file that another program wrote.

    Args:
        proto: The file.
        folder: Where it is, for weights beside it.
        where: Its name, for errors.
        sizes: Sizes of its free dimensions, other than the batch.

    Raises:
        SpecError: If a node has no row, or a size is missing; names it.
    """
    if proto.functions:
        import onnx.inliner

        _check_functions(proto, where)
        proto = onnx.inliner.inline_local_functions(proto)
    module = OnnxModule(proto, folder, where)
    # Older files list their weights among the inputs, too.
    inputs = [i for i in proto.graph.input if i.name not in {*module.leaves, *module.known}]
    for dim in (d for item in inputs for d in item.type.tensor_type.shape.dim):
        if dim.dim_value < 0:  # so PaddlePaddle writes what is free
            dim.ClearField("dim_value")
    module.inputs = tuple(item.name for item in inputs)
    names = _argument_names(module.inputs)
    traced = _captured(proto, module, dict(zip(names, inputs, strict=True)), where, sizes)
    first = [*inputs[0].type.tensor_type.shape.dim] if inputs else []
    stated = bool(first) and (not first[0].HasField("dim_value") or first[0].dim_value != 1)
    check_batches(traced.graph, traced.state, module, where, stated=stated)
    # Lines of the operator table say nothing to who has the file; the scopes are its names.
    nodes = tuple(dataclasses.replace(node, source="") for node in traced.graph.nodes)
    return traced.graph.replace(nodes=nodes), traced.state


def _captured(
    proto: onnx.ModelProto,
    module: OnnxModule,
    inputs: Mapping[str, onnx.ValueInfoProto],
    where: str,
    sizes: Mapping[str, int],
) -> Traced:
    """Capture the nodes of a file.

    1. Dimensions that the file leaves open, beside the batch, stay open.
    2. An example has to fit through all layers: the first value that does is one.
    3. At other values, the graph computes what the nodes do.

    Raises:
        SpecError: If they cannot be captured; says why no dimension can stay open.
    """
    name, free = proto.graph.name or "OnnxModule", _free_sizes(inputs, sizes)
    opened = {word for word, value in free.items() if value is None}
    axes = {
        label: {axis: word for axis, word in enumerate(_dims(label, item)) if word in opened}
        for label, item in inputs.items()
    }
    refusal: SpecError | None = None
    for value in OPEN_EXAMPLES if opened else OPEN_EXAMPLES[:1]:  # 2.
        numbers = {word: value if size is None else size for word, size in free.items()}
        examples = {k: _example(k, item, numbers, where) for k, item in inputs.items()}
        try:
            traced = trace_own(module, examples, name, open=axes if opened else {})
        except TraceError as error:
            refusal = refusal or _cause(error, module, where)
            continue
        check_sizes(traced.graph, traced.state, module, where)  # 3.
        return traced
    assert refusal is not None
    if opened:
        words = ", ".join(f"{word}=N" for word in sorted(opened))
        refusal.hint = f"say sizes that the file leaves open: {words}"
    raise refusal


def _dims(label: str, item: onnx.ValueInfoProto) -> list[str]:
    """Return the names of the dimensions that an input leaves open; empty for the others."""
    return [
        "" if dim.HasField("dim_value") else _word(dim.dim_param) or f"{label}_{axis}"
        for axis, dim in enumerate(item.type.tensor_type.shape.dim)
    ]


def _word(text: str) -> str:
    """Make an identifier of a dimension's name."""
    word = re.sub(r"\W", "_", text)
    word = f"_{word}" if word[:1].isdigit() else word
    return word if not word or is_size_name(word) else f"{word}_"


def _cause(error: TraceError, module: OnnxModule, where: str) -> SpecError:
    """Return the error of the node behind a failed capture.

    The node says more to who has the file than the line of ours that computes it.
    """
    step = ""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, SpecError):
            return copy.copy(cause)  # the same one would be its own cause
        notes = getattr(cause, "__notes__", ())
        step = next((n.removeprefix(STEP) for n in notes if n.startswith(STEP)), step)
        cause = cause.__cause__ or cause.__context__
    reason = error.message.removeprefix(f"{type(module).__name__} cannot be captured: ")
    if error.found and not step:
        reason += f", {error.found}"
    where = f"{where}: {step}" if step else where
    return SpecError("cannot be captured", where=where, found=reason[:500])


def _check_functions(proto: onnx.ModelProto, where: str) -> None:
    """Refuse functions that call functions for more nodes than a graph may have.

    Each that calls the next one twice doubles the nodes: a small file would fill the memory.
    """
    bodies = {(f.domain, f.name): f for f in proto.functions}
    sizes: dict[tuple[str, str], float] = {}

    def size(key: tuple[str, str], above: frozenset[tuple[str, str]]) -> float:
        if key not in bodies:
            return 1
        if key in above or len(above) > LIMITS.value_depth:  # it calls itself, or many others
            return math.inf
        if key not in sizes:
            inside = above | {key}
            sizes[key] = sum(size((n.domain, n.op_type), inside) for n in bodies[key].node)
        return sizes[key]

    nodes = sum(size((n.domain, n.op_type), frozenset()) for n in proto.graph.node)
    if nodes > LIMITS.nodes:
        limit = f"at most {LIMITS.nodes:,}"
        raise SpecError(
            "has functions of too many nodes", where=where, found=f"{nodes:,}", expected=limit
        )


def _argument_names(names: tuple[str, ...]) -> list[str]:
    """Convert names of inputs to distinct names of Python's arguments."""
    words: list[str] = []
    for name in names:
        word = re.sub(r"\W", "_", name) or "_"
        word = f"_{word}" if word[0].isdigit() or keyword.iskeyword(word) else word
        while word in words:
            word += "_"
        words.append(word)
    return words


def _free_sizes(
    inputs: Mapping[str, onnx.ValueInfoProto], sizes: Mapping[str, int]
) -> dict[str, int | None]:
    """Return the sizes of the free dimensions, by name; None for those that stay open.

    The batch is the first input's first; a first dimension without a name is the batch, too.
    """
    free = [
        (word, axis, bool(dim.dim_param))
        for label, item in inputs.items()
        for axis, (word, dim) in enumerate(
            zip(_dims(label, item), item.type.tensor_type.shape.dim, strict=True)
        )
        if word
    ]
    stated = {_word(name): size for name, size in sizes.items()}
    batch = next((word for word, axis, _ in free if axis == 0), "")
    examples = {
        word: EXAMPLES if word == batch or (axis == 0 and not has_name) else None
        for word, axis, has_name in free[::-1]
    }
    return {word: stated.get(word, size) for word, size in examples.items()}


def _example(
    label: str, item: onnx.ValueInfoProto, free: Mapping[str, int], where: str
) -> torch.Tensor:
    """Create an example input of the type that the file states."""
    where, kind = f"{where}: input {item.name}", item.type.tensor_type
    if item.type.WhichOneof("value") != "tensor_type":
        raise SpecError("is not a tensor", where=where)
    try:
        dtype = dtype_of(kind.elem_type)
    except SpecError as error:
        raise error.within(where) from error
    shape = [
        free[word] if word else dim.dim_value
        for word, dim in zip(_dims(label, item), kind.shape.dim, strict=True)
    ]
    elements = math.prod(shape) if min(shape, default=0) >= 0 else 0
    if not 0 < elements <= LIMITS.onnx_example_elements:
        limit = f"1 to {LIMITS.onnx_example_elements:,} elements"
        raise SpecError("has no size to capture", where=where, found=shape, expected=limit)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    return torch.ones(shape, dtype=dtype)
