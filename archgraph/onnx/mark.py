"""Metadata of an exported ONNX file, from which its graph is restored.

The metadata contain the graph as text, and a fingerprint of the exported operators. If another
program changes the operators, the fingerprint does not match, and reading the file raises an error.
Weights may change, since they are read from the file.
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
    """Return the metadata from which a graph can be restored."""
    return {GRAPH: graph.text(), FINGERPRINT: _fingerprint(proto, graph.state_names, where)}


def marked_graph(proto: onnx.ModelProto, where: str) -> ArchGraph | None:
    """Return the graph in the metadata of a file; None if archgraph did not write the file.

    Raises:
        SpecError: If the file's operators have changed since the export, or the text is not a
            graph.
    """
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    if GRAPH not in metadata:
        return None
    graph = parse(metadata[GRAPH], file=where)
    check(graph)
    if metadata.get(FINGERPRINT) != _fingerprint(proto, graph.state_names, where):
        raise SpecError(
            "has other operators than the graph in its metadata",
            where=where,
            hint="it was changed after archgraph wrote it: export the graph again",
        )
    return graph


def _fingerprint(proto: onnx.ModelProto, weights: Collection[str], where: str) -> str:
    """Return the SHA-256 of the operators and constants of a file, without its weights.

    The result does not depend on where constants are stored.
    """
    digest = hashlib.sha256()
    names = set(weights)
    main = proto.graph
    for part in (*proto.opset_import, *main.input, *main.output, *main.node, *proto.functions):
        digest.update(part.SerializeToString(deterministic=True))
    for item in main.initializer:
        digest.update(repr((item.name, item.data_type, [*item.dims])).encode())
        if item.name not in names:
            # Use the bytes in memory, since the file may store them in another field or file.
            value = stored_tensor(item, Path(where).parent, where)
            digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
