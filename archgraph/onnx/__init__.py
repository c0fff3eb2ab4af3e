"""ONNX files: export of a graph with its weights, and import of any file.

Writing (``export``): PyTorch's exporter converts the built module in evaluation. ``names`` sets
readable names, ``mark`` writes the graph as text into the metadata, and ``session`` compares the
file in onnxruntime with PyTorch before it is moved to its path.

Reading (``read``): if ``mark`` finds a graph, and the operators are unchanged, this graph is used,
and only weights are read from the file. The nodes of other files (``imported``) become a module:

1. ``network``: each node is a step, computed by a row of ``operators``. Values that follow from
   constants are folded (``operators/known.py``). ``fusion`` replaces layers that are decomposed
   into several nodes by one step, using ``patterns``.
2. The module is captured in evaluation (:func:`archgraph.capture.trace.trace_own`).
3. ``batches`` compares graph and nodes at other open sizes. A file for a fixed batch size is read
   for all sizes if its examples do not depend on each other.

- No code in a file is executed; ``tensors`` reads external weights only from the file's own folder.
- A row computes exactly what ONNX specifies, or raises. Only the capture creates graph nodes.

The extra ``onnx`` installs the packages, which are imported on first use.
"""

from __future__ import annotations

from archgraph.errors import RunError
from archgraph.hints import optional_module


def require_packages(*names: str) -> None:
    """Import packages of the extra ``onnx``.

    Raises:
        RunError: If one is not installed; names the command that installs it.
    """
    for name in names:
        optional_module(name, kind=RunError, where="ONNX files")
