"""Export of a graph and its weights as an ONNX file, with PyTorch's exporter.

By default, each weight keeps its name. With ``optimize``, norms are folded into other weights.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import torch

from archgraph.capture.export import export_program
from archgraph.capture.surroundings import quiet
from archgraph.errors import ArchGraphError, GraphError, RunError, SpecError, os_reason
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import BATCH_WORD, ArchGraph, Leaf, Polynomial, Record, Ref, Value, refs
from archgraph.graph.passes import specialise
from archgraph.graph.sizes import open_sizes
from archgraph.module.build import build, state_of
from archgraph.onnx import require_packages
from archgraph.onnx.mark import marks
from archgraph.onnx.names import name_all
from archgraph.onnx.session import check_file
from archgraph.rewrites.laws import random_inputs
from archgraph.states import State

if TYPE_CHECKING:
    import os

    import onnx_ir

WEIGHTS_SUFFIX = ".data"  # suffix of a separate file for weights
CONTROL = ("If", "Loop", "Scan")
WeightsIn = Literal["inside", "beside"]
# A value of onnxscript. PyTorch reads the annotations of translations, and would reject values of
# other types than a narrower annotation.
OnnxValue: TypeAlias = Any


@takes_graph
def export_onnx(
    graph: ArchGraph,
    state: State,
    path: str | os.PathLike[str],
    *,
    weights: WeightsIn = "inside",
    optimize: bool = False,
    verify: bool = True,
) -> Path:
    """Export a graph in evaluation mode, with its weights, as an ONNX file.

    The batch size is dynamic. Weights keep their names from the state. :func:`archgraph.load`
    restores the same graph and state from the file.

    Args:
        graph: The graph, for example a global model, a client's model, or a part of a split model.
        state: Dict from name to parameter or buffer.
        path: Path of the file. An existing file is replaced.
        weights: ``"inside"`` to store the weights in the same file, or ``"beside"`` to store them
            in a second file with the suffix ``.data``. Models of 2 GiB and more need ``"beside"``.
        optimize: Whether to fold constants and merge operators for deployment. Weights then lose
            their names, and the file cannot be loaded as the same graph.
        verify: Whether to run the file in onnxruntime with two batch sizes, and compare the results
            with PyTorch, before the file is moved to its path.

    Raises:
        GraphError: If the graph cannot be expressed in ONNX, or the results of the file differ from
            PyTorch. No file is written then.
        SpecError: If the path does not end in ``.onnx``.
        RunError: If the packages of the extra ``onnx`` are not installed, or the file cannot be
            written.

    Example:
        >>> import archgraph as ag
        >>> graph, state = ag.trace(torch.nn.Linear(3, 2), torch.zeros(1, 3))
        >>> export_onnx(graph, state, "linear.onnx")  # doctest: +SKIP
        >>> ag.load("linear.onnx").graph == graph  # doctest: +SKIP
        True
    """
    target = Path(path)
    if target.suffix.lower() != ".onnx":
        hint = "to write only weights, use `archgraph export MODEL -o FILE.safetensors`"
        raise SpecError("must end in .onnx", where=str(path), hint=hint)
    require_packages("onnx", "onnxscript", *(["onnxruntime"] if verify else []))
    if weights not in get_args(WeightsIn):
        raise GraphError("unknown option for weights", found=weights, expected="inside or beside")
    if any(tensor.is_meta for tensor in state.values()):
        hint = "load weights into the model before tracing it"
        raise GraphError("the state has no values to export", found="meta device", hint=hint)
    module = build(graph, state).eval()
    model = _converted(_evaluated(graph), state, optimize)
    if not optimize:
        _complete(model, graph, state_of(module))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".draft-{target.name}-") as at:
            draft = Path(at) / target.name
            _write(model, draft, graph, beside=weights == "beside", mark=not optimize)
            if verify:
                check_file(draft, module, str(target))
            # Move the weights first, so that the model is never without them.
            for file in sorted(Path(at).iterdir(), key=lambda f: f.name == target.name):
                file.replace(target.parent / file.name)
    except OSError as error:
        raise RunError(
            "cannot write the file", where=str(target), found=os_reason(error)
        ) from error
    return target


def _evaluated(graph: ArchGraph) -> ArchGraph:
    """Return a graph for evaluation only, without results that are not tensors.

    Raises:
        GraphError: If the graph writes into buffers.
    """
    graph = specialise(graph, training=False)
    if graph.updates:
        raise GraphError(
            "cannot be expressed in ONNX: evaluation writes into buffers",
            found=", ".join(name for name, _ in graph.updates[:3]),
        )
    return graph.replace(outputs=_tensors(graph.outputs))


def _tensors(value: Value) -> Value:
    """Remove values that are not tensors from nested results; in tuples, replace them by None."""
    match value:
        case tuple():
            return tuple(map(_tensors, value))
        case Record():
            return Record(tuple((k, _tensors(v)) for k, v in value.fields))
        case Ref() | Leaf():
            return value
        case _:
            return None


def _converted(graph: ArchGraph, state: State, optimize: bool) -> onnx_ir.Model:
    """Convert a graph for evaluation to an ONNX model with PyTorch's exporter."""
    names = {Polynomial.of(name) for name in open_sizes(graph)}
    inputs = [name for _, value in graph.inputs for name in refs(value)]
    stated = [
        {axis: str(size) for axis, size in enumerate(graph.node[name].shape) if size in names}
        for name in inputs
    ]
    program = export_program(build(graph, state).eval(), (), random_inputs(graph), stated=stated)
    if BATCH_WORD in open_sizes(graph) and BATCH_WORD not in program.names.values():
        raise GraphError("cannot be exported with an open batch size", found=program.fixed)
    where = graph.name or None
    try:
        with quiet(), torch.no_grad():  # with gradients, attention would change its strides
            exported = torch.onnx.export(
                program.program,
                dynamo=True,
                optimize=optimize,
                verbose=False,
                custom_translation_table=_translations(),
            )
    except Exception as error:  # the exporter raises many kinds of errors
        raise GraphError("cannot be expressed in ONNX", where=where, found=_cause(error)) from error
    assert exported is not None
    for node in exported.model.graph:
        if node.op_type in CONTROL:  # onnxruntime may abort the process on control flow
            raise GraphError(
                "cannot be expressed in ONNX",
                where=where,
                found=f"{node.op_type}: control flow could not be read again",
            )
    name_all(exported.model, graph, program.names)
    _check_open(exported.model, open_sizes(graph))
    return exported.model


def _check_open(model: onnx_ir.Model, names: Iterable[str]) -> None:
    """Raise an error if the exporter fixed an open size, for example by unrolling an LSTM."""
    shapes = [value.shape or () for value in model.graph.inputs]
    dims = {str(getattr(dim, "value", dim)) for shape in shapes for dim in shape}
    for name in names:
        if name not in dims:
            hint = f"set it first: ag.fix_sizes(graph, {{{name!r}: N}})"
            raise GraphError("cannot be exported with an open size", found=name, hint=hint)


def _translations() -> dict[Callable[..., object], Callable[..., object]]:
    """Return a dict from operator to the translation that replaces a wrong one of PyTorch.

    onnxscript 0.7 adds a bias of zeros to a convolution without a bias. For a three-dimensional
    convolution, this bias wrongly has two dimensions (microsoft/onnxscript issue 2931).
    """
    aten = torch.ops.aten
    operators = (aten.conv1d.default, aten.conv2d.default, aten.conv3d.default)
    return {operator: _convolution(rank) for rank, operator in enumerate(operators, 1)}


def _convolution(rank: int) -> Callable[..., object]:
    """Return the translation of a convolution with ``rank`` spatial axes."""
    from onnxscript import opset18 as op

    def convolution(
        x: OnnxValue,
        weight: OnnxValue,
        bias: OnnxValue | None = None,
        stride: Sequence[int] = (1,),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        groups: int = 1,
    ) -> OnnxValue:
        strides, pads, dilations = ([*v] * (rank // len(v)) for v in (stride, padding, dilation))
        tensors = (x, weight) if bias is None else (x, weight, bias)
        return op.Conv(*tensors, group=groups, strides=strides, pads=pads * 2, dilations=dilations)

    return convolution


def _cause(error: BaseException) -> str:
    """Return the original cause of a failed conversion, as one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}"[:300]


def _complete(model: onnx_ir.Model, graph: ArchGraph, state: State) -> None:
    """Add tensors that only training uses, so that the file contains the complete state."""
    import onnx_ir
    from onnx_ir import tensor_adapters

    for name in graph.state_names:
        if name not in model.graph.initializers:
            value = tensor_adapters.TorchTensor(state[name].detach().contiguous(), name=name)
            model.graph.register_initializer(
                onnx_ir.Value(
                    name=name,
                    shape=onnx_ir.Shape(value.shape),
                    type=onnx_ir.TensorType(value.dtype),
                    const_value=value,
                )
            )


def _write(model: onnx_ir.Model, path: Path, graph: ArchGraph, *, beside: bool, mark: bool) -> None:
    """Write a model and check the file."""
    import onnx
    import onnx_ir

    model.producer_name, model.graph.name = "archgraph", graph.name or "graph"
    data = f"{path.name}{WEIGHTS_SUFFIX}" if beside else None
    try:
        onnx_ir.save(model, path, external_data=data)
        if mark:
            proto = onnx.load(path, load_external_data=False)
            onnx.helper.set_model_props(proto, marks(graph, proto, str(path)))
            path.write_bytes(proto.SerializeToString())
        onnx.checker.check_model(path)
    except ArchGraphError:
        raise
    except onnx.checker.ValidationError as error:
        raise GraphError("is not valid ONNX", found=str(error).split("\n")[0]) from error
    except ValueError as error:  # protobuf: more than 2 GiB in one message
        raise GraphError(
            "is too large for one ONNX file", found=str(error), hint='use weights="beside"'
        ) from error
