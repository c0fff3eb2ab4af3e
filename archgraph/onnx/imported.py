"""Import of ONNX files that other programs wrote, by tracing a module of their nodes."""

from __future__ import annotations

import copy
import dataclasses
import keyword
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch

from archgraph.capture.trace import Traced, trace_own
from archgraph.errors import SpecError, TraceError
from archgraph.graph.ir import ArchGraph
from archgraph.graph.sizes import is_size_name
from archgraph.graph.values import BATCH_WORD
from archgraph.hints import unknown
from archgraph.limits import LIMITS
from archgraph.onnx.batches import are_apart, check_batches, check_range, check_sizes, give_sizes
from archgraph.onnx.network import STEP, OnnxModule
from archgraph.onnx.tensors import dtype_of

if TYPE_CHECKING:
    import onnx

OPEN = "open"  # stands for any size
RequestedSizes: TypeAlias = Mapping[str, int | str]  # from name to a number or OPEN
OPEN_EXAMPLES = (24, 64, 224)  # values of open sizes to try for the capture
EXAMPLES = 2  # batch size for the capture; a size of 1 could broadcast


@dataclass(frozen=True)
class Dimensions:
    """The dimensions of a file's inputs.

    Attributes:
        shapes: Dict from each input to its shape. The size of a dynamic dimension is a name; that
            of the batch is ``batch``.
        examples: Dict from dimensions that the user made dynamic to their sizes in the file.
        batch: Batch size of the file; None for any size.
        note: A note for the user if the batch is not the first dimension.
    """

    shapes: Mapping[str, Sequence[int | str]]
    examples: Mapping[str, int]
    batch: int | None
    note: str = ""

    @property
    def opened(self) -> tuple[str, ...]:
        """The names of dynamic sizes other than the batch size."""
        words = (s for shape in self.shapes.values() for s in shape if isinstance(s, str))
        return tuple(dict.fromkeys(word for word in words if word != BATCH_WORD))

    @property
    def fixed(self) -> str:
        """The reason why the batch size is fixed; empty if the batch size is dynamic."""
        if self.batch is None or any(BATCH_WORD in shape for shape in self.shapes.values()):
            return ""
        return f"the batch size is fixed: the file is for {self.batch}"

    def axes(self) -> dict[str, dict[int, str]]:
        """Return a dict from each input to its dynamic axes, without a batch on the first axis."""
        return {
            label: {
                axis: size
                for axis, size in enumerate(shape)
                if isinstance(size, str) and (axis or size != BATCH_WORD)
            }
            for label, shape in self.shapes.items()
        }


def capture_file(
    proto: onnx.ModelProto, path: Path, sizes: RequestedSizes
) -> tuple[ArchGraph, dict[str, torch.Tensor]]:
    """Read the graph and the weights of a file that another program wrote.

    Args:
        proto: The content of the file.
        path: The file.
        sizes: Dict from the name of a dynamic dimension to a number (which fixes the size), or from
            the name of a fixed dimension to ``"open"`` (which makes it dynamic).

    Raises:
        SpecError: If a node is not supported, or a dimension cannot be dynamic. The error names the
            node or the dimension.
    """
    where, folder = str(path), path.parent
    if proto.functions:
        import onnx.inliner

        _check_functions(proto, where)
        proto = onnx.inliner.inline_local_functions(proto)
    module = OnnxModule(proto, folder, where)
    inputs = _inputs(proto, {*module.leaves, *module.known})
    module.inputs = tuple(item.name for item in inputs)
    by_name = dict(zip(_argument_names(module.inputs), inputs, strict=True))
    for second in (True, False):
        try:
            dims = _dimensions(by_name, sizes, second=second)
        except SpecError as error:
            raise error.within(where) from error
        if second and not dims.note:
            continue
        try:
            traced = _captured(proto, module, by_name, where, dims)
            if not second or are_apart(traced.graph, traced.state, where):
                break
        except SpecError:
            if not second:
                raise
    check_batches(traced.graph, traced.state, module, path, dims.batch)
    # Source lines would point to the operator table; scopes are the names in the file.
    nodes = tuple(dataclasses.replace(node, source="") for node in traced.graph.nodes)
    return traced.graph.replace(
        nodes=nodes, notes=(*traced.graph.notes, *filter(None, (dims.note,)))
    ), traced.state


def _inputs(proto: onnx.ModelProto, weights: Collection[str]) -> list[onnx.ValueInfoProto]:
    """Return the inputs of a file. Old files also list weights as inputs; omit these."""
    inputs = [item for item in proto.graph.input if item.name not in weights]
    for item in inputs:
        for dim in item.type.tensor_type.shape.dim:
            if dim.dim_value < 0:  # PaddlePaddle writes open sizes as -1
                dim.ClearField("dim_value")
    return inputs


def _captured(
    proto: onnx.ModelProto,
    module: OnnxModule,
    inputs: Mapping[str, onnx.ValueInfoProto],
    where: str,
    dims: Dimensions,
) -> Traced:
    """Capture the nodes of a file.

    1. Keep open dimensions open, under their names.
    2. Try several sizes for the example; use the first size that all layers accept.
    3. Compare the results of graph and nodes at other sizes that the nodes accept.

    Raises:
        SpecError: If the nodes cannot be captured, or a dimension cannot stay open.
    """
    name, opened = proto.graph.name or "OnnxModule", dims.opened
    axes = dims.axes() if any(dims.axes().values()) else {}  # 1.
    refusal: SpecError | None = None
    for value in OPEN_EXAMPLES if opened else OPEN_EXAMPLES[:1]:  # 2.
        numbers = {**dict.fromkeys(opened, value), **dims.examples, BATCH_WORD: EXAMPLES}
        examples = {
            label: _example(
                item, [numbers[s] if isinstance(s, str) else s for s in dims.shapes[label]], where
            )
            for label, item in inputs.items()
        }
        try:
            traced = trace_own(module, examples, name, open=axes, fixed=dims.fixed)
        except TraceError as error:
            refusal = refusal or _cause(error, module, where)
            continue
        check_sizes(traced.graph, traced.state, module, where, dims.batch)  # 3.
        check_range(traced.graph, module, where, OPEN_EXAMPLES, dims.batch)
        return traced
    assert refusal is not None
    if left := sorted({*opened} - {*dims.examples}):
        refusal.hint = give_sizes(left)
    raise refusal


def _dimensions(
    inputs: Mapping[str, onnx.ValueInfoProto], sizes: RequestedSizes, *, second: bool = False
) -> Dimensions:
    """Return the dimensions of a file's inputs, with the requested sizes.

    1. The first dimension of the first input is the batch. If it has a name, all dimensions of this
       name are the batch. If it is a number, so are the first dimensions of this number. If the
       dimension has neither, so are all first dimensions that have neither.
    2. An open dimension has its name in the file. Without a name, it is called ``input_axis``, with
       the name of the input and the number of the axis.
    3. A fixed dimension stays fixed unless the user requests it to be open.

    If ``second`` is true and the first dimension is a fixed number above 1, a second dimension with
    a name is the batch instead.

    Raises:
        SpecError: If a requested dimension does not exist, or has another size in the file.
    """
    declared = _declared(inputs)
    asked = {_word(name): size for name, size in sizes.items()}
    # A requested batch size is that of the first dimension.
    lead, note = _lead(declared, second and BATCH_WORD not in asked)
    if lead in asked:
        asked.setdefault(BATCH_WORD, asked.pop(str(lead)))
    shapes: dict[str, list[int | str]] = {}
    examples: dict[str, int] = {}
    words: dict[str, None] = {}
    batch = lead if isinstance(lead, int) else None
    for label, dims in declared.items():
        shape = shapes.setdefault(label, [])
        for axis, dim in enumerate(dims):
            word, is_batch = _word_of(dim, label, axis, lead)  # 1., 2.
            words[word] = None
            size = asked.get(word, dim if isinstance(dim, int) else OPEN)  # 3.
            _check_size(word, size, dim)
            if isinstance(dim, int) and size == OPEN and not is_batch:
                examples[word] = dim
            if is_batch and isinstance(size, int):
                batch = size
            shape.append(word if isinstance(size, str) else size)
    for word in asked.keys() - words.keys():
        raise SpecError("has no such size", **unknown(word, words))
    return Dimensions(shapes, examples, batch, note)


def _declared(inputs: Mapping[str, onnx.ValueInfoProto]) -> dict[str, list[int | str]]:
    """Return a dict from each input to its dimensions: numbers, or names that may be empty."""
    return {
        label: [
            dim.dim_value if dim.HasField("dim_value") else _word(dim.dim_param)
            for dim in item.type.tensor_type.shape.dim
        ]
        for label, item in inputs.items()
    }


def _lead(declared: Mapping[str, list[int | str]], second: bool) -> tuple[int | str | None, str]:
    """Return the batch dimension of the first input, with a note if it is the second dimension."""
    first, behind = (*next(iter(declared.values()), []), None, None)[:2]
    if second and isinstance(first, int) and first > 1 and isinstance(behind, str) and behind:
        note = f"the batch is {behind}, the second dimension; the first one is {first} in the file"
        return behind, note
    return first, ""


def _word_of(dim: int | str, label: str, axis: int, lead: int | str | None) -> tuple[str, bool]:
    """Return the name of a dimension, and whether the dimension is the batch."""
    name = dim if isinstance(dim, str) else ""
    if dim == lead and (axis == 0 or name):
        return BATCH_WORD, True
    return name or f"{label}_{axis}", False


def _check_size(word: str, size: int | str, dim: int | str) -> None:
    """Check the requested size of a dimension.

    Raises:
        SpecError: If it is neither a size nor ``"open"``, or the file has another number.
    """
    if size != OPEN and (type(size) is not int or size < 0):
        raise SpecError("is not a size", where=word, found=repr(size), expected=f"N ≥ 1, or {OPEN}")
    if isinstance(dim, int) and size not in (OPEN, dim):
        raise SpecError(
            "has another size in the file",
            where=word,
            found=size,
            expected=dim,
            hint=f"`{word}: {OPEN}` opens the dimension, if the file allows this",
        )


def _word(text: str) -> str:
    """Convert the name of a dimension to an identifier; empty for a name such as ``?``."""
    word = re.sub(r"\W", "_", text)
    if not word.strip("_"):
        return ""
    word = f"_{word}" if word[:1].isdigit() else word
    return word if not word or is_size_name(word) else f"{word}_"


def _cause(error: TraceError, module: OnnxModule, where: str) -> SpecError:
    """Return an error that names the node at which a capture failed.

    The original error names the line of archgraph that computes the node.
    """
    step = ""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, SpecError):
            return copy.copy(cause)  # an error must not be its own cause
        notes = getattr(cause, "__notes__", ())
        step = next((n.removeprefix(STEP) for n in notes if n.startswith(STEP)), step)
        cause = cause.__cause__ or cause.__context__
    reason = error.message.removeprefix(f"{type(module).__name__} cannot be captured: ")
    if error.found and not step:
        reason += f", {error.found}"
    where = f"{where}: {step}" if step else where
    return SpecError("cannot be captured", where=where, found=reason[:500])


def _check_functions(proto: onnx.ModelProto, where: str) -> None:
    """Raise an error if the functions of a file expand to more nodes than a graph may have.

    If each function calls the next function twice, a small file expands to a huge number of nodes.
    """
    bodies = {(f.domain, f.name): f for f in proto.functions}
    sizes: dict[tuple[str, str], float] = {}

    def size(key: tuple[str, str], above: frozenset[tuple[str, str]]) -> float:
        if key not in bodies:
            return 1
        if key in above or len(above) > LIMITS.value_depth:  # recursion, or too deep
            return math.inf
        if key not in sizes:
            inside = above | {key}
            sizes[key] = sum(size((n.domain, n.op_type), inside) for n in bodies[key].node)
        return sizes[key]

    nodes = sum(size((n.domain, n.op_type), frozenset()) for n in proto.graph.node)
    if nodes > LIMITS.nodes:
        raise SpecError(
            "has functions with too many nodes",
            where=where,
            found=f"{nodes:,}",
            expected=f"at most {LIMITS.nodes:,}",
        )


def _argument_names(names: tuple[str, ...]) -> list[str]:
    """Return a distinct name of a Python argument for each name of an input."""
    words: list[str] = []
    for name in names:
        word = re.sub(r"\W", "_", name) or "_"
        word = f"_{word}" if word[0].isdigit() or keyword.iskeyword(word) else word
        while word in words:
            word += "_"
        words.append(word)
    return words


def _example(item: onnx.ValueInfoProto, shape: Sequence[int], where: str) -> torch.Tensor:
    """Create an example input with the type in the file."""
    where, kind = f"{where}: input {item.name}", item.type.tensor_type
    if item.type.WhichOneof("value") != "tensor_type":
        raise SpecError("is not a tensor", where=where)
    try:
        dtype = dtype_of(kind.elem_type)
    except SpecError as error:
        raise error.within(where) from error
    elements = math.prod(shape) if min(shape, default=0) >= 0 else 0
    if not 0 < elements <= LIMITS.onnx_example_elements:
        raise SpecError(
            "does not have a size that can be captured",
            where=where,
            found=shape,
            expected=f"1 to {LIMITS.onnx_example_elements:,} elements",
        )
    if dtype.is_floating_point:
        return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    return torch.ones(shape, dtype=dtype)
