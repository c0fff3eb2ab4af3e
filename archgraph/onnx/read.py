"""Reading of ONNX files as graphs with weights, without executing code from the file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from archgraph.errors import GraphError, SpecError, os_reason
from archgraph.graph.ir import ArchGraph, Param
from archgraph.graph.sizes import fix_sizes
from archgraph.limits import LIMITS
from archgraph.onnx import require_packages
from archgraph.onnx.imported import RequestedSizes, capture_file
from archgraph.onnx.mark import marked_graph
from archgraph.onnx.tensors import file_beside, stored_tensor

if TYPE_CHECKING:
    import onnx


def read_onnx(
    path: str | os.PathLike[str], sizes: RequestedSizes | None = None
) -> tuple[ArchGraph, dict[str, torch.Tensor]]:
    """Read the graph and the weights of an ONNX file.

    Args:
        path: The file. If :func:`archgraph.export` wrote it, the same graph is restored.
        sizes: Dict from the name of a dynamic dimension to a number, which fixes the size. For
            files of other programs, a fixed dimension becomes dynamic with the value ``"open"``.

    Raises:
        SpecError: If the file cannot be read. The error names the node or dimension.
        RunError: If the extra ``onnx`` is not installed.
    """
    require_packages("onnx")
    where, folder = str(path), Path(path).parent
    proto = _proto(Path(path))
    try:
        graph = marked_graph(proto, where)
        if graph is None:
            return capture_file(proto, Path(path), sizes or {})
        if sizes:
            graph = fix_sizes(graph, sizes)  # type: ignore[arg-type]  # "open" is not a number
    except GraphError as error:
        raise error.within(where, kind=SpecError) from error
    stored = {item.name: item for item in proto.graph.initializer}
    # The graph's text contains the constants.
    params = [param for param in graph.params if param.role != "constant"]
    if missing := [param.name for param in params if param.name not in stored]:
        raise SpecError("lacks a weight", where=where, expected=missing[0])
    return graph, {p.name: _weight(stored[p.name], p, folder, where) for p in params}


def _weight(proto: onnx.TensorProto, param: Param, folder: Path, where: str) -> torch.Tensor:
    """Read a weight, and check that its type is that in the graph."""
    value = stored_tensor(proto, folder, where)
    if param.dtype.startswith("complex") and value.shape == (*param.shape, 2):
        value = torch.view_as_complex(value)  # ONNX does not have complex arithmetic
    dtype = str(value.dtype).removeprefix("torch.")
    if (tuple(value.shape), dtype) != (param.shape, param.dtype):
        raise SpecError(
            "has a weight of another type",
            where=f"{where}: {param.name}",
            found=f"{dtype}{[*value.shape]}",
            expected=param.type,
        )
    return value


def _proto(path: Path) -> onnx.ModelProto:
    """Read the content of a file, without weights in other files."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        if not path.is_file():
            raise SpecError("is not a file", where=str(path))
        if (size := path.stat().st_size) > LIMITS.onnx_bytes:
            raise SpecError(
                "is too large", where=str(path), found=f"{size} bytes", expected=LIMITS.onnx_bytes
            )
        # Weights in other files are read later, and only from the folder of the file.
        proto = onnx.load(path, load_external_data=False)
        for tensor in proto.graph.initializer:
            file_beside(tensor, path.parent, str(path))
        onnx.checker.check_model(path)
    except OSError as error:
        raise SpecError("cannot be read", where=str(path), found=os_reason(error)) from error
    except (DecodeError, onnx.checker.ValidationError, RuntimeError, ValueError) as error:
        raise SpecError(
            "is not an ONNX file",
            where=str(path),
            found=(str(error).strip() or type(error).__name__).split("\n")[0][:300],
        ) from error
    return proto
