"""Names of the inputs, results, weights and dynamic sizes of an exported model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from archgraph.graph.ir import ArchGraph, Leaf, Record, Ref, Value

if TYPE_CHECKING:
    import onnx_ir

LINES_OF_CODE = "pkg.torch.onnx.stack_trace"  # contains paths of the exporting machine


def tensor_names(key: str, value: Value) -> Iterator[str]:
    """Yield a name for each tensor in an argument or a result, such as ``x.0`` or ``x.mask``."""
    match value:
        case tuple():
            for index, item in enumerate(value):
                yield from tensor_names(f"{key}.{index}", item)
        case Record():
            for name, item in value.fields:
                yield from tensor_names(f"{key}.{name}" if key else name, item)
        case Ref() | Leaf():
            yield key


def name_all(model: onnx_ir.Model, graph: ArchGraph, sizes: Mapping[str, str]) -> None:
    """Set the names of inputs, results, weights and dynamic sizes.

    A result that is also an input, a weight or another result is copied first, so that both can
    have their own name.

    Args:
        model: The result of PyTorch's exporter.
        graph: The exported graph, for evaluation.
        sizes: Dict from the exporter's symbol of a dynamic size to the name of the size.
    """
    _sizes(model, sizes)
    _weights(model, graph)
    inputs = [name for key, value in graph.inputs for name in tensor_names(key, value)]
    root = "" if isinstance(graph.outputs, Record) else "output"
    ends = [*model.graph.inputs, *_distinct_results(model)]
    is_end = {id(value) for value in ends}
    inner = [v for node in model.graph for v in node.outputs if id(v) not in is_end]
    used = {v.name for v in (*inner, *model.graph.initializers.values())} | {*graph.state_names}
    for value in inner:
        if value.name in graph.state_names:  # the exporter may have used the name of a weight
            value.name = _unused(f"{value.name}_", used)
    for value, name in zip(ends, [*inputs, *tensor_names(root, graph.outputs)], strict=True):
        value.name = _unused(name, used)
    for node in model.graph.all_nodes():
        node.metadata_props.pop(LINES_OF_CODE, None)


def _unused(name: str, used: set[str | None]) -> str:
    """Return a name that is not in ``used``, and add it."""
    while name in used:
        name += "_"
    used.add(name)
    return name


def _sizes(model: onnx_ir.Model, names: Mapping[str, str]) -> None:
    """Replace symbols of open sizes by names, and fixed sizes that are texts by numbers."""
    import onnx_ir

    def size(dim: int | onnx_ir.SymbolicDim) -> int | str:
        if isinstance(dim, int):
            return dim
        text = str(dim.value)
        words = re.sub(r"\w+", lambda word: names.get(word.group(), word.group()), text)
        return int(text) if text.isdecimal() else words

    for value in [*model.graph.inputs, *(v for n in model.graph.all_nodes() for v in n.outputs)]:
        if value.shape is not None:
            value.shape = onnx_ir.Shape([size(d) for d in value.shape])


def _weights(model: onnx_ir.Model, graph: ArchGraph) -> None:
    """Give tied weights the names that they have in a state."""
    for param in graph.params:
        for alias in param.aliases:
            if alias in model.graph.initializers and param.name not in model.graph.initializers:
                model.graph.initializers[alias].name = param.name


def _distinct_results(model: onnx_ir.Model) -> list[onnx_ir.Value]:
    """Return the results; copy results that are not computed by an operator or appear twice."""
    import onnx_ir

    others = {id(v) for v in (*model.graph.inputs, *model.graph.initializers.values())}
    for index, value in enumerate(model.graph.outputs):
        if id(value) in others:
            copy = onnx_ir.node("Identity", [value])
            copy.outputs[0].shape, copy.outputs[0].type = value.shape, value.type
            model.graph.append(copy)
            model.graph.outputs[index] = value = copy.outputs[0]
        others.add(id(value))
    return [*model.graph.outputs]
