"""Names of an exported model: of its inputs, results, weights and batch, and of nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from archgraph.graph.ir import ArchGraph, Leaf, Record, Ref, Value

if TYPE_CHECKING:
    import onnx_ir

BATCH = "batch"
LINES_OF_CODE = "pkg.torch.onnx.stack_trace"  # with paths of the machine that exports


def named(key: str, value: Value) -> Iterator[str]:
    """Names of the tensors of an argument or result: ``x``, or ``x.0`` and ``x.mask`` inside."""
    match value:
        case tuple():
            for index, item in enumerate(value):
                yield from named(f"{key}.{index}", item)
        case Record():
            for name, item in value.fields:
                yield from named(f"{key}.{name}" if key else name, item)
        case Ref() | Leaf():
            yield key


def name_all(model: onnx_ir.Model, graph: ArchGraph, batch: str | None) -> None:
    """Name what a person who runs the file looks at.

    Each result becomes a value of its own first: one that is also an input, a weight or another
    result would rename that.

    Args:
        model: The model as PyTorch's exporter leaves it.
        graph: What it was made of, in evaluation.
        batch: The exporter's symbol of the batch; None where the batch is fixed.
    """
    _sizes(model, batch)
    _weights(model, graph)
    inputs = [name for key, value in graph.inputs for name in named(key, value)]
    outputs = [*named("" if isinstance(graph.outputs, Record) else "output", graph.outputs)]
    results = _own_results(model)
    ends = {id(v) for v in (*model.graph.inputs, *results)}
    values = [v for n in model.graph for v in n.outputs] + [*model.graph.initializers.values()]
    taken = {v.name for v in values if id(v) not in ends} | set(graph.state_names)
    for value in (v for n in model.graph for v in n.outputs if id(v) not in ends):
        while value.name in graph.state_names:  # a name of the exporter's own for a weight
            value.name = _free(f"{value.name}_", taken)
            taken.add(value.name)
    for value, name in zip([*model.graph.inputs, *results], [*inputs, *outputs], strict=True):
        while name in taken:
            name += "_"
        taken.add(name)
        value.name = name
    for node in model.graph.all_nodes():
        node.metadata_props.pop(LINES_OF_CODE, None)


def _free(name: str, taken: set[str | None]) -> str:
    while name in taken:
        name += "_"
    return name


def _sizes(model: onnx_ir.Model, batch: str | None) -> None:
    """Call the batch axis what it is; sizes that are numbers in letters become numbers."""
    import onnx_ir

    symbol = re.compile(rf"\b{re.escape(batch)}\b") if batch else None

    def size(found: int | onnx_ir.SymbolicDim) -> int | str:
        if isinstance(found, int):
            return found
        text = str(found.value)
        return int(text) if text.isdecimal() else symbol.sub(BATCH, text) if symbol else text

    for value in [*model.graph.inputs, *(v for n in model.graph.all_nodes() for v in n.outputs)]:
        if value.shape is not None:
            value.shape = onnx_ir.Shape([size(d) for d in value.shape])


def _weights(model: onnx_ir.Model, graph: ArchGraph) -> None:
    """Give tied weights the names that they have in a state."""
    for param in graph.params:
        for alias in param.aliases:
            if alias in model.graph.initializers and param.name not in model.graph.initializers:
                model.graph.initializers[alias].name = param.name


def _own_results(model: onnx_ir.Model) -> list[onnx_ir.Value]:
    """Return the results, copied where they are not computed by an operator or appear twice."""
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
