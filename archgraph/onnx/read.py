"""Reading: an ONNX file becomes a graph and its weights. Nothing of a file is executed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from archgraph.errors import GraphError, SpecError
from archgraph.graph.ir import ArchGraph
from archgraph.limits import LIMITS
from archgraph.onnx.imported import imported
from archgraph.onnx.mark import marked
from archgraph.onnx.needed import needed
from archgraph.onnx.tensors import tensor

if TYPE_CHECKING:
    import onnx


def read(
    path: str | os.PathLike[str], sizes: Mapping[str, int] | None = None
) -> tuple[ArchGraph, dict[str, torch.Tensor]]:
    """Read the graph and the weights of an ONNX file.

    Args:
        path: The file; one that :func:`archgraph.export` wrote becomes the same graph again.
        sizes: Sizes of dimensions that a file of another program leaves open beside the batch.

    Raises:
        SpecError: If it cannot be understood, with the name of what is not.
        RunError: If the extra ``onnx`` is not installed.
    """
    needed("onnx")
    where, folder = str(path), Path(path).parent
    proto = _proto(Path(path))
    try:
        graph = marked(proto, where)
    except GraphError as error:
        raise SpecError(error.message, where=f"{where}: {error.where}", **error.facts) from error
    if graph is None:
        return imported(proto, folder, where, sizes or {})
    if sizes:
        raise SpecError("has no choices", where=where, found=", ".join(sizes), expected="none")
    stored = {item.name: item for item in proto.graph.initializer}
    state = {}
    for param in graph.params:
        if param.role == "constant":
            continue
        if param.name not in stored:
            raise SpecError("lacks a weight", where=where, expected=param.name)
        value = tensor(stored[param.name], folder, where)
        if param.dtype.startswith("complex") and value.shape == (*param.shape, 2):
            value = torch.view_as_complex(value)  # ONNX has no arithmetic of complex numbers
        type_ = tuple(value.shape), str(value.dtype).removeprefix("torch.")
        if type_ != (param.shape, param.dtype):
            raise SpecError(
                "has a weight of another type",
                where=f"{where}: {param.name}",
                found=f"{type_[1]}{[*type_[0]]}",
                expected=str(param.type),
            )
        state[param.name] = value
    return graph, state


def _proto(path: Path) -> onnx.ModelProto:
    """Read the message in a file, without weights that are stored beside it."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        size = path.stat().st_size if path.is_file() else None
        if size is None:
            raise SpecError("is not a file", where=str(path))
        if size > LIMITS.onnx_bytes:
            raise SpecError(
                "is too large", where=str(path), found=f"{size} bytes", expected=LIMITS.onnx_bytes
            )
        proto = onnx.load(path, load_external_data=False)
        onnx.checker.check_model(path)
    except OSError as error:
        raise SpecError("cannot be read", where=str(path), found=error.strerror) from error
    except (DecodeError, onnx.checker.ValidationError, RuntimeError, ValueError) as error:
        found = (str(error).strip() or type(error).__name__).split("\n")[0][:300]
        raise SpecError("is not an ONNX file", where=str(path), found=found) from error
    return proto
