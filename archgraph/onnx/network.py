"""A module that computes the nodes of an ONNX file, to be captured as a graph.

Each node is computed by a row of the operator table. The name of the node determines the submodule
that computes it, so that blocks and sections of the graph have names. Values that are known when
the file is read (shapes, axes, constants) are computed at once.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from archgraph.errors import ArchGraphError, SpecError
from archgraph.hints import unknown
from archgraph.limits import LIMITS
from archgraph.module.plan import ancestors
from archgraph.onnx.fusion import fuse
from archgraph.onnx.operators import ROWS
from archgraph.onnx.operators.known import FOLDS, SIZED_BY, known_tensor, symbolic
from archgraph.onnx.operators.row import Attributes, Known, OnnxRow, OnnxSetting, OnnxStep
from archgraph.onnx.patterns import as_array
from archgraph.onnx.tensors import stored_tensor

if TYPE_CHECKING:
    import onnx

DOMAINS = ("", "ai.onnx")
KNOWN_ELEMENTS = 4096  # maximum number of elements of an integer tensor that may be a shape or axes
STEP = "at the node "  # start of a note on an error
NAME_SCOPES = "pkg.torch.onnx.name_scopes"  # where PyTorch's exporter stores module names
# Reasons why some operators cannot be supported.
REFUSED = {
    name: reason
    for reason, names in {
        "control flow, which a graph does not have": "If Loop Scan",
        "a quantised operator": "QLinearConv QLinearMatMul QuantizeLinear DequantizeLinear "
        "ConvInteger MatMulInteger DynamicQuantizeLinear",
        "a map over a sequence, or an operator on optional values": "SequenceMap "
        "Optional OptionalGetElement OptionalHasElement",
        "an operator on text or files": "StringConcat StringNormalizer StringSplit RegexFullMatch "
        "TfIdfVectorizer ImageDecoder",
        "random in evaluation": "Bernoulli Multinomial RandomNormal RandomNormalLike "
        "RandomUniform RandomUniformLike",
        "an operator whose result's size depends on the data": "NonZero NonMaxSuppression Unique "
        "Compress",
    }.items()
    for name in names.split()
}


class OnnxPart(torch.nn.Module):
    """A submodule of the network of an ONNX file, which contains tensors and computes nodes."""

    def forward(self, compute: Callable[..., object], at: Attributes, *inputs: object) -> object:
        """Compute a node."""
        return compute(at, *inputs)


class OnnxModule(OnnxPart):
    """The network of an ONNX file.

    Attributes:
        inputs: Names of the file's inputs, in the order of ``forward``'s arguments.
        steps: The nodes to compute. Constant and unused nodes are removed, and decomposed operators
            are fused.
        known: Dict from name to constant, as NumPy arrays.
        leaves: Dict from the name of each tensor that is not in ``known`` to the path of its
            parameter or buffer.
    """

    def __init__(self, proto: onnx.ModelProto, folder: Path, where: str) -> None:
        """Read the nodes and tensors of a file.

        1. Read constant nodes and initializers as values. Read the other nodes as steps, if the
           results depend on them.
        2. Treat a value as a constant if it is a scalar or a small integer tensor, or if the row of
           a node requires a constant.
        3. Compute steps that only depend on constants.
        4. Replace decomposed operators by one step.
        5. Register the remaining values as parameters, buffers or constants.
        """
        super().__init__()
        main = proto.graph
        self.inputs: tuple[str, ...] = ()
        self.where = where
        self.opset = max((o.version for o in proto.opset_import if o.domain in DOMAINS), default=1)
        self.results = [item.name for item in main.output]
        self.steps: list[OnnxStep] = []
        self.known: dict[str, Known] = {}
        self.leaves: dict[str, str] = {}
        stored = self._read(main, folder)  # 1.
        # 2.
        needed = {n for s in self.steps for n in (s.inputs_at(s.row.known) if s.row else s.inputs)}
        for name, tensor in stored.items():
            small = not tensor.is_floating_point() and tensor.numel() <= KNOWN_ELEMENTS
            if name in needed or small or not tensor.dim():
                self.known[name] = as_array(tensor)
        # 3.
        self._fold(stored, needed)
        # 4.
        self.steps = fuse(self.steps, self.results, self.known, stored, self.opset)
        # 5.
        self._place({name: value for name, value in stored.items() if name not in self.known})
        for step in self.steps:
            self._part(step.module)

    def _read(self, main: onnx.GraphProto, folder: Path) -> dict[str, Tensor]:
        """Read the steps on which the results depend, and the constants; return the tensors."""
        where = self.where
        stored = {item.name: stored_tensor(item, folder, where) for item in main.initializer}
        if main.sparse_initializer:
            raise SpecError("has sparse tensors", where=where, expected="dense ones")
        steps = []
        for index, node in enumerate(main.node):
            if node.op_type != "Constant" or node.domain not in DOMAINS:
                steps.append(_step(node, where, index, self.opset))
                continue
            value = _constant(node, folder, where)
            if isinstance(value, Tensor) and value.dim() and value.numel() > 1:
                stored[node.output[0]] = value
            else:
                self.known[node.output[0]] = np.asarray(value)
        self.steps = _read_steps(steps, self.results)
        return stored

    def _fold(self, stored: dict[str, Tensor], needed: Collection[str]) -> None:
        """Compute values that only depend on constants; floating-point tensors become weights."""
        rest, total = [], 0
        for step in self.steps:
            values = [self.known.get(name) for name in step.inputs]
            if step.kind == "Shape" and step.inputs[0] in stored:
                # An empty array has the shape of the weight.
                values = [np.empty(tuple(stored[step.inputs[0]].shape), bool)]
            elif step.kind not in FOLDS or any(v is None for v in values) or not values:
                rest.append(step)
                continue
            value = self._computed(step, values)
            total += value.nbytes
            if total > LIMITS.folded_bytes:
                raise SpecError(
                    "computes too much from constants",
                    where=f"{self.where}: {step}",
                    found=f"{total:,} bytes",
                    expected=f"at most {LIMITS.folded_bytes:,}",
                )
            name = step.outputs[0]
            # Zeros stay constants, since rows omit a bias of zeros.
            if value.dtype.kind == "f" and value.size > 1 and value.any() and name not in needed:
                stored[name] = known_tensor(value)
            else:
                self.known[name] = value
        self.steps = rest

    def _computed(self, step: OnnxStep, values: Sequence[Known | None]) -> Known:
        """Compute a step from known values.

        Raises:
            ArchGraphError: If the step cannot be computed. The error names the step.
        """
        where = f"{self.where}: {step}"
        try:
            return np.asarray(FOLDS[step.kind](step.at(self.opset), *values))
        except ArchGraphError as error:
            raise error.within(where) from error
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise SpecError("cannot be computed", where=where, found=str(error)[:200]) from error

    def _place(self, stored: Mapping[str, Tensor]) -> None:
        """Register each tensor as a parameter, a buffer or a constant."""
        buffers = {n for s in self.steps if s.row for n in s.inputs_at(s.row.buffers)}
        leaves: set[str] = set()
        modules: set[str] = set()
        for name, value in stored.items():
            path = _path(name)
            if leaves.intersection(ancestors(path)):  # a tensor cannot contain another tensor
                path = path.replace(".", "_")
            while path in leaves | modules:
                path += "_"
            leaves.add(path)
            modules |= {*ancestors(path)[1:]}
            self.leaves[name] = path
            part, last = self._part(path.rpartition(".")[0]), path.rpartition(".")[2]
            if value.is_floating_point() and name not in buffers:
                # Not register_parameter, which rejects the names of attributes.
                part._parameters[last] = torch.nn.Parameter(value)
            else:
                part.register_buffer(last, value, persistent=value.is_floating_point())

    def _part(self, path: str) -> OnnxPart:
        """Return the submodule at a path; its parent if the path is that of a tensor."""
        at: OnnxPart = self
        for name in filter(None, path.split(".")):
            if name in at._parameters or name in at._buffers:
                return at
            at = cast(OnnxPart, at._modules.setdefault(name, OnnxPart()))
        return at

    def forward(self, **inputs: Tensor) -> object:  # type: ignore[override]
        """Compute the network; return a dict from name to result, or the only result."""
        env: dict[str, object] = {"": None, **self.known}
        env |= zip(self.inputs, inputs.values(), strict=True)
        # Not getattr, since a tensor may have the name of an attribute.
        tensors = dict(self.named_parameters()) | dict(self.named_buffers())
        env |= {name: tensors[path] for name, path in self.leaves.items()}
        last = {name: i for i, step in enumerate(self.steps) for name in step.inputs if name}
        for i, step in enumerate(self.steps):
            try:
                results = self._compute(step, [env[name] for name in step.inputs])
            except ArchGraphError as error:
                raise error.within(f"{self.where}: {step}") from error
            except Exception as error:  # PyTorch may raise any error; a capture may continue
                error.add_note(f"{STEP}{step}")
                raise
            env |= zip(step.outputs, results, strict=False)
            for name in {*step.inputs}:  # free values after their last use
                if last.get(name) == i and name not in self.results:
                    del env[name]
        by_name = {name: self._result(name, env[name]) for name in self.results}
        return next(iter(by_name.values())) if len(by_name) == 1 else by_name

    def _result(self, name: str, value: object) -> object:
        if isinstance(value, list):
            raise SpecError("is a sequence", where=f"{self.where}: {name}", expected="a tensor")
        return known_tensor(value) if isinstance(value, np.ndarray) else value

    def _compute(self, step: OnnxStep, values: list[object]) -> Sequence[object]:
        """Compute a step: as a constant if its inputs are known, otherwise with its row."""
        row, at = step.row, step.at(self.opset, self.training)
        types = row.types if row else ()
        is_known = all(
            v is None or isinstance(v, np.ndarray) or i in types for i, v in enumerate(values)
        )
        # An array that contains an open size becomes a tensor.
        sizes = values[slice(*SIZED_BY[step.kind])] if step.kind in SIZED_BY else ()
        if step.kind in FOLDS and is_known and not any(map(symbolic, sizes)):
            return (np.asarray(FOLDS[step.kind](at, *values)),)
        assert row is not None  # operators without a row are constants, or were rejected
        inputs = [self._input(step, row, i, value, values) for i, value in enumerate(values)]
        if step.module:
            results = self._part(step.module)(row.compute, at, *inputs)
        else:
            results = row.compute(at, *inputs)
        return results if isinstance(results, tuple) else (results,)

    def _input(
        self, step: OnnxStep, row: OnnxRow, i: int, value: object, values: Sequence[object]
    ) -> object:
        """Return an input in the form that its row expects: None, array, number or tensor."""
        if i in row.known and isinstance(value, Tensor):
            raise SpecError(
                "depends on numbers that are computed from the input", found=step.inputs[i]
            )
        if not isinstance(value, np.ndarray):
            return value
        if i in row.zeros and not np.any(value):
            return None
        if i in row.known:
            return value
        if row.numbers and value.ndim == 0 and len(values) > 1:
            if step.kind != "Gather":
                return value.item()
            if i == 1:  # selects one row or column; its type distinguishes it from an index
                return value
        return known_tensor(value)


def _read_steps(steps: Sequence[OnnxStep], results: Iterable[str]) -> list[OnnxStep]:
    """Return the steps on which the results depend."""
    read, needed = {*results}, []
    for step in reversed(steps):
        if read & {*step.outputs}:
            read |= {*step.inputs}
            needed.append(step)
    return needed[::-1]


@functools.cache
def _reserved() -> frozenset[str]:
    """Return the attributes of ``nn.Module``, whose names submodules cannot have."""
    return frozenset(dir(OnnxPart()))


def _path(name: str) -> str:
    """Convert a name in the file to a path of attributes.

    >>> _path("block.0/half"), _path("block.half")
    ('block.0_half', 'block.half_')
    """
    parts = [re.sub(r"[^\w:-]+", "_", part) for part in name.split(".", LIMITS.module_depth - 1)]
    return ".".join(f"{part}_" if part in _reserved() or not part else part for part in parts)


def _step(node: onnx.NodeProto, where: str, index: int, opset: int) -> OnnxStep:
    """Read a node.

    Raises:
        SpecError: If its operator is not supported. The error contains the reason.
    """
    name = node.name or f"#{index}"
    where = f"{where}: {node.op_type} {name}"
    row = ROWS.get(node.op_type)
    if node.domain not in DOMAINS:
        raise SpecError(f"is an operator of another domain, {node.domain}", where=where)
    if node.op_type in REFUSED:
        raise SpecError(f"is {REFUSED[node.op_type]}", where=where)
    if row is None and node.op_type not in FOLDS:
        raise SpecError("is not a supported operator", where=where, **unknown(node.op_type, ROWS))
    if row is not None and opset < row.since:
        raise SpecError(f"has opset {opset}, but is supported from opset {row.since}", where=where)
    return OnnxStep(
        node.name,
        node.op_type,
        row,
        {item.name: _setting(item, where) for item in node.attribute},
        (*node.input,),
        (*node.output,),
        _module_of(node),
    )


def _setting(item: onnx.AttributeProto, where: str) -> OnnxSetting:
    """Return the value of an attribute."""
    import onnx

    if item.type in (item.GRAPH, item.GRAPHS, item.SPARSE_TENSOR, item.TYPE_PROTO):
        raise SpecError("has an attribute of an unsupported type", where=where, found=item.name)
    value = onnx.helper.get_attribute_value(item)
    if item.type == item.TENSOR:
        return onnx.numpy_helper.to_array(value)
    if item.type == item.FLOAT:
        return float(str(np.float32(value)))  # 0.1 instead of 0.10000000149
    if item.type == item.STRING:
        return value.decode("utf-8", "replace")
    if item.type == item.STRINGS:
        return [v.decode("utf-8", "replace") for v in value]
    return value


def _module_of(node: onnx.NodeProto) -> str:
    """Return the module of a node, from the exporter's metadata or the name of the node."""
    for entry in node.metadata_props:
        if entry.key == NAME_SCOPES:
            scopes = re.findall(r"'([^']*)'", entry.value)  # the last part is the node itself
            return _path(scopes[-2]) if len(scopes) > 1 and scopes[-2] else ""
    path = ""
    for part in node.name.strip("/").split("/")[:-1]:
        # PyTorch's old exporter repeats the parent: /layer1/layer1.0/conv1/Conv
        path = part if part.startswith(f"{path}.") or not path else f"{path}.{part}"
    return _path(path) if path else ""


def _constant(node: onnx.NodeProto, folder: Path, where: str) -> Tensor | Known:
    """Return the value of a constant node."""
    import onnx

    where = f"{where}: {node.output[0]}"
    for item in node.attribute:
        if item.name == "value":
            return stored_tensor(item.t, folder, where)
        if item.name.startswith(("value_float", "value_int")):
            dtype = np.float32 if "float" in item.name else np.int64
            return np.asarray(onnx.helper.get_attribute_value(item), dtype)
    raise SpecError(
        "is a constant of an unsupported type",
        where=where,
        found=", ".join(item.name for item in node.attribute),
    )
