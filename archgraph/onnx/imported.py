"""Files of other programs: the nodes become a module, and the capture of it is the graph."""

from __future__ import annotations

import dataclasses
import keyword
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from archgraph.capture.trace import trace_own
from archgraph.errors import SpecError, TraceError
from archgraph.graph.ir import ArchGraph
from archgraph.limits import LIMITS
from archgraph.onnx.batches import check_batches
from archgraph.onnx.network import STEP, OnnxModule
from archgraph.onnx.tensors import DTYPES
from archgraph.ops.schema import torch_dtype

if TYPE_CHECKING:
    import onnx

EXAMPLES = 2  # the batch of a capture


def imported(
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
    import onnx

    if proto.functions:
        import onnx.inliner

        _check_functions(proto, where)
        proto = onnx.inliner.inline_local_functions(proto)
    module = OnnxModule(proto, folder, where)
    stored = {*module.leaves, *module.known}
    given = [item for item in proto.graph.input if item.name not in stored]
    for dim in (d for item in given for d in item.type.tensor_type.shape.dim):
        if dim.dim_value < 0:  # so PaddlePaddle writes what is free
            dim.ClearField("dim_value")
    names = _names([item.name for item in given])
    module.inputs = tuple(item.name for item in given)
    free = _free(given, where, sizes)
    examples = {name: _example(i, free, where) for name, i in zip(names, given, strict=True)}
    try:
        traced = trace_own(module, examples, proto.graph.name or "OnnxModule")
    except TraceError as error:
        step = ""
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, SpecError):  # of a node
                raise cause from None
            notes = getattr(cause, "__notes__", ())
            step = next((n.removeprefix(STEP) for n in notes if n.startswith(STEP)), step)
            cause = cause.__cause__ or cause.__context__
        # The node says more to who has the file than the line of ours that computes it.
        place = f"{where}: {step}" if step else where
        said = error.message.removeprefix(f"{type(module).__name__} cannot be captured: ")
        found = said if step or not error.found else f"{said}, {error.found}"
        raise SpecError("cannot be captured", where=place, found=found[:500]) from error
    first = [*given[0].type.tensor_type.shape.dim] if given else []
    stated = bool(first) and (not first[0].HasField("dim_value") or first[0].dim_value != 1)
    check_batches(traced.graph, traced.state, module, where, stated=stated)
    # Lines of the operator table say nothing to who has the file; the scopes are its names.
    nodes = tuple(dataclasses.replace(node, source="") for node in traced.graph.nodes)
    return traced.graph.replace(nodes=nodes), traced.state


def _check_functions(proto: onnx.ModelProto, where: str) -> None:
    """Refuse functions that call functions for more nodes than a graph may have."""
    bodies = {(f.domain, f.name): f for f in proto.functions}
    sizes: dict[tuple[str, str], float] = {}

    def size(key: tuple[str, str], above: frozenset[tuple[str, str]]) -> float:
        if key not in bodies:
            return 1
        if key in above or len(above) > LIMITS.value_depth:
            return math.inf
        if key not in sizes:
            inside = above | {key}
            sizes[key] = sum(size((n.domain, n.op_type), inside) for n in bodies[key].node)
        return sizes[key]

    nodes = sum(size((n.domain, n.op_type), frozenset()) for n in proto.graph.node)
    if nodes > LIMITS.nodes:
        raise SpecError(
            "has functions of too many nodes",
            where=where,
            found=f"{nodes:,}",
            expected=f"at most {LIMITS.nodes:,}",
        )


def _names(names: list[str]) -> list[str]:
    """Names of inputs as names of Python's arguments."""
    made: list[str] = []
    for name in names:
        word = re.sub(r"\W", "_", name) or "_"
        word = f"_{word}" if word[0].isdigit() or keyword.iskeyword(word) else word
        while word in made:
            word += "_"
        made.append(word)
    return made


def _free(given: list[Any], where: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes of the free dimensions, by name; the batch is the first input's first."""
    batch = ""
    asked: list[str] = []
    for item in given:
        for place, dim in enumerate(item.type.tensor_type.shape.dim):
            if dim.HasField("dim_value"):
                continue
            name = dim.dim_param or f"{item.name}.{place}"
            if place == 0 and (not batch or not dim.dim_param):
                batch = batch or name
                asked.append(name)
                continue
            asked.append(name)
    lacking = [
        n for n in dict.fromkeys(asked) if n != batch and n not in sizes and not n.endswith(".0")
    ]
    if lacking:
        raise SpecError(
            "leaves sizes open beside the batch",
            where=where,
            found=", ".join(lacking),
            hint="say them: " + ", ".join(f"{name}=N" for name in lacking),
        )
    return {**dict.fromkeys(asked, EXAMPLES), **sizes}


def _example(item: Any, free: Mapping[str, int], where: str) -> torch.Tensor:
    """Create an example input of the type that the file states."""
    kind = item.type.tensor_type
    dtype = DTYPES.get(kind.elem_type)
    if item.type.WhichOneof("value") != "tensor_type" or dtype is None:
        raise SpecError("is not a tensor that PyTorch has", where=f"{where}: input {item.name}")
    shape = [
        dim.dim_value if dim.HasField("dim_value") else free[dim.dim_param or f"{item.name}.{i}"]
        for i, dim in enumerate(kind.shape.dim)
    ]
    elements = math.prod(shape) if min(shape, default=0) >= 0 else 0
    if not 0 < elements <= LIMITS.onnx_example_elements:
        raise SpecError(
            "has no size to capture",
            where=f"{where}: input {item.name}",
            found=shape,
            expected=f"1 to {LIMITS.onnx_example_elements:,} elements",
        )
    if torch_dtype(dtype).is_floating_point:
        return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(torch_dtype(dtype))
    return torch.ones(shape, dtype=torch_dtype(dtype))
