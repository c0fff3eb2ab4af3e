"""A module that computes what the nodes of an ONNX file say; capturing it makes the graph.

Each node is one row of the operator table, called inside the module whose name the node's stands
for, so that blocks and sections have names. What is known while the file is read (shapes, axes,
constants) is folded on the way.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from archgraph.errors import ArchGraphError, SpecError
from archgraph.hints import unknown
from archgraph.limits import LIMITS
from archgraph.onnx.fusion import fuse
from archgraph.onnx.operators import ROWS
from archgraph.onnx.operators.known import FOLDS, tensor_of
from archgraph.onnx.operators.row import Attributes, OnnxRow
from archgraph.onnx.tensors import tensor

if TYPE_CHECKING:
    import onnx

DOMAINS = ("", "ai.onnx")
KNOWN_ELEMENTS = 4096  # whole numbers of an initializer that may be a shape or axes
STEP = "at the node "  # beginning of a note on an error
NAME_SCOPES = "pkg.torch.onnx.name_scopes"  # where PyTorch's exporter writes a node's modules
# Why operators without a row are refused; the others have none yet.
REFUSED = {
    name: reason
    for reason, names in {
        "control flow, which a graph does not have": "If Loop Scan",
        "a quantised operator": "QLinearConv QLinearMatMul QuantizeLinear DequantizeLinear "
        "ConvInteger MatMulInteger DynamicQuantizeLinear",
        "an operator on sequences that are mapped, or on values that may be missing": "SequenceMap "
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


@dataclass(frozen=True)
class OnnxStep:
    """A node of the file: its row, and where its inputs, attributes and module are."""

    name: str
    kind: str
    row: OnnxRow | None
    attributes: Mapping[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    module: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".strip()


class OnnxPart(torch.nn.Module):
    """A module of the file's hierarchy: it holds leaves, and calls what stands in it."""

    def forward(self, compute: Callable[..., Any], at: Attributes, *inputs: Any) -> Any:
        """Compute a row."""
        return compute(at, *inputs)


class OnnxModule(OnnxPart):
    """The network of an ONNX file."""

    def __init__(self, proto: onnx.ModelProto, folder: Path, where: str) -> None:
        """Read a file's nodes and tensors; refuse what has no row."""
        super().__init__()
        self.where = where
        self.at = ""  # the step that is computed
        main = proto.graph
        self.opset = max((o.version for o in proto.opset_import if o.domain in DOMAINS), default=1)
        constants = [n for n in main.node if n.op_type == "Constant" and n.domain in DOMAINS]
        self.steps = [
            _step(node, where, i, self.opset)
            for i, node in enumerate(main.node)
            if node not in constants
        ]
        stored = {item.name: tensor(item, folder, where) for item in main.initializer}
        for item in main.sparse_initializer:
            raise SpecError(
                "is sparse", where=f"{where}: {item.values.name}", expected="dense tensors"
            )
        self.known: dict[str, Any] = {}
        for node in constants:
            value = _constant(node, folder, where)
            if isinstance(value, torch.Tensor) and value.dim() and value.numel() > 1:
                stored[node.output[0]] = value
            else:
                self.known[node.output[0]] = np.asarray(value)
        self.results = [item.name for item in main.output]
        self.leaves: dict[str, str] = {}
        asked = {s.inputs[i] for s in self.steps if s.row for i in s.row.known if i < len(s.inputs)}
        asked |= {n for s in self.steps if s.row is None for n in s.inputs}
        for name, value in stored.items():
            small = not value.is_floating_point() and value.numel() <= KNOWN_ELEMENTS
            if name in asked or small or not value.dim():
                self.known[name] = (
                    value.numpy() if value.dtype != torch.bfloat16 else value.float().numpy()
                )
        self._fold(stored, asked)
        self.steps = _read(self.steps, self.results)
        self.steps = fuse(self.steps, self.results, self.known, stored, self.opset)
        self._place({name: value for name, value in stored.items() if name not in self.known})
        for step in self.steps:
            self._part(step.module)

    def _fold(self, stored: dict[str, torch.Tensor], asked: Collection[str]) -> None:
        """Compute what follows from constants alone; tensors of numbers among it are weights."""
        rest, held = [], 0
        read = {name for step in self.steps for name in step.inputs} | {*self.results}
        for step in self.steps:
            if step.kind in FOLDS and not read & {*step.outputs}:
                continue
            given = [self.known.get(name) for name in step.inputs]
            at = Attributes(step.attributes, self.opset, len(step.outputs))
            if step.kind == "Shape" and step.inputs[0] in stored:
                given = [np.empty(tuple(stored[step.inputs[0]].shape), bool)]
            elif step.kind not in FOLDS or any(v is None for v in given) or not given:
                rest.append(step)
                continue
            try:
                value = np.asarray(FOLDS[step.kind](at, *given))
            except ArchGraphError as error:
                raise error.within(f"{self.where}: {step}") from error
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                place, found = f"{self.where}: {step}", str(error)[:200]
                raise SpecError("cannot be computed", where=place, found=found) from error
            held += value.nbytes
            if held > LIMITS.folded_bytes:
                raise SpecError(
                    "computes too much from constants",
                    where=f"{self.where}: {step}",
                    found=f"{held:,} bytes",
                    expected=f"at most {LIMITS.folded_bytes:,}",
                )
            name = step.outputs[0]
            if value.dtype.kind == "f" and value.size > 1 and value.any() and name not in asked:
                stored[name] = tensor_of(value)
            else:
                self.known[name] = value
        self.steps = rest

    def _place(self, stored: Mapping[str, torch.Tensor]) -> None:
        """Make of each tensor a parameter, a buffer or a constant."""
        buffers = {
            s.inputs[i] for s in self.steps if s.row for i in s.row.buffers if i < len(s.inputs)
        }
        for name, value in stored.items():
            path = _path(name)
            while not self._free(path):
                path += "_"
            part, last = self._part(path.rpartition(".")[0]), path.rpartition(".")[2]
            if not value.is_floating_point():
                part.register_buffer(last, value, persistent=False)
            elif name in buffers:
                part.register_buffer(last, value)
            else:
                part._parameters[last] = torch.nn.Parameter(value)
            self.leaves[name] = path

    def _free(self, path: str) -> bool:
        *before, last = path.split(".")
        at: torch.nn.Module = self
        for part in before:
            if part in at._parameters or part in at._buffers:
                return False
            if part not in at._modules:
                return True
            at = at._modules[part]  # type: ignore[assignment]  # Parts only
        return not any(last in table for table in (at._parameters, at._buffers, at._modules))

    def _part(self, path: str) -> OnnxPart:
        at: OnnxPart = self
        for name in filter(None, path.split(".")):
            if name in at._parameters or name in at._buffers:
                return at
            if name not in at._modules:
                at._modules[name] = OnnxPart()
            at = at._modules[name]  # type: ignore[assignment]  # Parts only
        return at

    def _leaf(self, path: str) -> Any:
        part, last = self._part(path.rpartition(".")[0]), path.rpartition(".")[2]
        return part._parameters[last] if last in part._parameters else part._buffers[last]

    def forward(self, **inputs: torch.Tensor) -> Any:  # type: ignore[override]
        """Results by name, or the only one."""
        env: dict[str, Any] = {
            "": None,
            **self.known,
            **dict(zip(self.inputs, inputs.values(), strict=True)),
        }
        env |= {name: self._leaf(path) for name, path in self.leaves.items()}
        last = {name: at for at, step in enumerate(self.steps) for name in step.inputs if name}
        for at, step in enumerate(self.steps):
            self.at = str(step)
            try:
                results = self._results(step, [env[name] for name in step.inputs])
            except ArchGraphError as error:
                raise error.within(f"{self.where}: {step}") from error
            except Exception as error:  # whatever torch raises; a capture may go on after it
                error.add_note(f"{STEP}{step}")
                raise
            env |= dict(zip(step.outputs, results, strict=False))
            for name in {*step.inputs}:  # what nobody reads again needs no memory
                if last.get(name) == at and name not in self.results:
                    del env[name]
        made = {name: self._result(name, env[name]) for name in self.results}
        return next(iter(made.values())) if len(made) == 1 else made

    def _result(self, name: str, value: Any) -> Any:
        if isinstance(value, list):
            raise SpecError("is a sequence", where=f"{self.where}: {name}", expected="a tensor")
        return tensor_of(value) if isinstance(value, np.ndarray) else value

    def _results(self, step: OnnxStep, given: list[Any]) -> tuple[Any, ...]:
        outputs = max((i + 1 for i, name in enumerate(step.outputs) if name), default=0)
        at = Attributes(step.attributes, self.opset, outputs, self.training)
        fold = FOLDS.get(step.kind)
        row = step.row
        types = row.types if row else ()
        if fold is not None and all(
            v is None or isinstance(v, np.ndarray) or i in types for i, v in enumerate(given)
        ):
            return (np.asarray(fold(at, *given)),)
        assert row is not None
        for i, value in enumerate(given):
            if value is None:
                continue
            if i in row.zeros and isinstance(value, np.ndarray) and not np.any(value):
                given[i] = None
                continue
            if i in row.known:
                if isinstance(value, torch.Tensor):
                    raise SpecError(
                        "depends on numbers that are computed from the input",
                        found=step.inputs[i],
                        expected="constants, or what follows from shapes",
                    )
            elif isinstance(value, np.ndarray):
                scalar = row.numbers and value.ndim == 0 and len(given) > 1
                if scalar and step.kind != "Gather":
                    value = value.item()
                    given[i] = value
                elif not (scalar and i == 1):
                    given[i] = tensor_of(value)
        results = (
            self._part(step.module)(row.compute, at, *given)
            if step.module
            else row.compute(at, *given)
        )
        return results if isinstance(results, tuple) else (results,)

    inputs: tuple[str, ...] = ()


def _read(steps: Sequence[OnnxStep], results: Iterable[str]) -> list[OnnxStep]:
    """Return the steps that the results are computed from."""
    read, kept = {*results}, []
    for step in reversed(steps):
        if read & {*step.outputs}:
            read |= {*step.inputs}
            kept.append(step)
    return kept[::-1]


@functools.cache
def _taken() -> frozenset[str]:
    """Attributes that every module has: no part of it can have their names."""
    return frozenset(dir(OnnxPart()))


def _path(name: str) -> str:
    """Convert a name to a path of attributes.

    >>> _path("block.0/half"), _path("block.half")
    ('block.0_half', 'block.half_')
    """
    parts = [re.sub(r"[^\w:-]+", "_", part) for part in name.split(".", LIMITS.module_depth - 1)]
    return ".".join(f"{part}_" if part in _taken() or not part else part for part in parts)


def _step(node: onnx.NodeProto, where: str, index: int, opset: int) -> OnnxStep:
    """Read a node, if there is a row for it.

    Raises:
        SpecError: If not; says why.
    """
    import onnx

    name = node.name or f"#{index}"
    place = f"{where}: {node.op_type} {name}"
    if node.domain not in DOMAINS:
        raise SpecError(
            "is an operator of another domain", where=place, found=node.domain, expected="ai.onnx"
        )
    row = ROWS.get(node.op_type)
    if row is None and node.op_type not in FOLDS:
        reason = REFUSED.get(node.op_type)
        raise SpecError(
            f"is {reason}" if reason else "is an operator without a row",
            where=place,
            **({} if reason else unknown(node.op_type, ROWS)),
        )
    if row is not None and opset < row.since:
        raise SpecError(
            "is of an opset before those that are read",
            where=place,
            found=opset,
            expected=f"at least {row.since}",
        )
    attributes = {}
    for item in node.attribute:
        if item.type in (item.GRAPH, item.GRAPHS, item.SPARSE_TENSOR, item.TYPE_PROTO):
            raise SpecError("has an attribute that is not read", where=place, found=item.name)
        value = onnx.helper.get_attribute_value(item)
        if item.type == item.TENSOR:
            value = onnx.numpy_helper.to_array(value)
        elif item.type == item.FLOAT:
            value = float(str(np.float32(value)))  # 0.1, not 0.10000000149
        elif item.type == item.STRING:
            value = value.decode("utf-8", "replace")
        elif item.type == item.STRINGS:
            value = [v.decode("utf-8", "replace") for v in value]
        attributes[item.name] = value
    return OnnxStep(
        node.name,
        node.op_type,
        row,
        attributes,
        tuple(node.input),
        tuple(node.output),
        _module_of(node),
    )


def _module_of(node: onnx.NodeProto) -> str:
    """Return the module in which a node stands, according to what exporters write."""
    for entry in node.metadata_props:
        if entry.key == NAME_SCOPES:
            scopes = re.findall(r"'([^']*)'", entry.value)
            return _path(scopes[-2]) if len(scopes) > 1 and scopes[-2] else ""
    if "/" not in node.name:
        return ""
    path = ""
    for part in node.name.strip("/").split("/")[:-1]:
        path = part if part.startswith(f"{path}.") or not path else f"{path}.{part}"
    return _path(path) if path else ""


def _constant(node: onnx.NodeProto, folder: Path, where: str) -> Any:
    """Return the value of a constant node."""
    import onnx

    for item in node.attribute:
        if item.name == "value":
            return tensor(item.t, folder, f"{where}: {node.output[0]}")
        if item.name in ("value_float", "value_floats"):
            return np.asarray(onnx.helper.get_attribute_value(item), np.float32)
        if item.name in ("value_int", "value_ints"):
            return np.asarray(onnx.helper.get_attribute_value(item), np.int64)
    kinds = ", ".join(item.name for item in node.attribute)
    raise SpecError(
        "is a constant of a kind that is not read", where=f"{where}: {node.output[0]}", found=kinds
    )
