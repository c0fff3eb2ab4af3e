"""The mark: what an ONNX file that we wrote says about the graph that it was made of.

The graph stands in the file's metadata as text, beside a fingerprint of the operators that it
became. Whoever changes the operators breaks the fingerprint: the text is no longer what the file
computes. Weights may change; they are read from the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from archgraph.errors import SpecError
from archgraph.graph.ir import ArchGraph
from archgraph.graph.text import parse
from archgraph.onnx.tensors import stored_tensor
from archgraph.ops.check import check

if TYPE_CHECKING:
    import onnx

GRAPH, FINGERPRINT = "archgraph.graph", "archgraph.fingerprint"


def marks(graph: ArchGraph, proto: onnx.ModelProto, where: str) -> dict[str, str]:
    """Return the metadata by which a file becomes its graph again."""
    return {GRAPH: graph.text(), FINGERPRINT: _fingerprint(proto, graph.state_names, where)}


def marked_graph(proto: onnx.ModelProto, where: str) -> ArchGraph | None:
    """Return the graph that a file was exported from; None if archgraph did not write it.

    Raises:
        SpecError: If the file's operators are not those that the graph became, or the graph is
            not one.
    """
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    if GRAPH not in metadata:
        return None
    graph = parse(metadata[GRAPH], file=where)
    check(graph)
    if metadata.get(FINGERPRINT) != _fingerprint(proto, graph.state_names, where):
        raise SpecError(
            "has other operators than the graph in its metadata became",
            where=where,
            hint="it was changed after archgraph wrote it: export the graph again",
        )
    return graph


def _fingerprint(proto: onnx.ModelProto, weights: Collection[str], where: str) -> str:
    """SHA-256 of all that a file computes, without the values of the weights.

    Constants count by their values, wherever they stand.
    """
    digest = hashlib.sha256()
    names = set(weights)
    main = proto.graph
    for part in (*proto.opset_import, *main.input, *main.output, *main.node, *proto.functions):
        digest.update(part.SerializeToString(deterministic=True))
    for item in main.initializer:
        digest.update(repr((item.name, item.data_type, [*item.dims])).encode())
        if item.name not in names:
            # In the bytes that it has here: the file may store them in another field, or beside it.
            value = stored_tensor(item, Path(where).parent, where)
            digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
