"""Export of a graph with its weights to an ONNX file, and import of ONNX files.

Export (``export``): PyTorch's exporter converts the built module in evaluation mode. ``names`` sets
readable names, ``mark`` stores the graph as text in the metadata, and ``session`` compares the
results of the file in onnxruntime with those of PyTorch before the file is moved to its path.

Import (``read``): If the metadata contains a graph and the operators of the file are unchanged,
this graph is used, and only the weights are read from the file. For other files (``imported``), the
nodes become a PyTorch module, which is captured as a graph:

1. ``network`` builds the module. The table in ``operators`` has a row for each supported ONNX
   operator, with a function that computes the operator in PyTorch. Values that only depend on
   constants are computed at once (``operators/known.py``). ``fusion`` replaces layers that the file
   decomposes into several nodes, and finds these nodes with ``patterns``.
2. The module is captured in evaluation mode (:func:`archgraph.capture.trace.trace_own`).
3. ``batches`` compares the graph with the nodes at other sizes. A file for a fixed batch size can
   be used for all batch sizes if the examples of a batch do not affect each other.

- No code in a file is executed. ``tensors`` reads external weights only from the folder of the
  file.
- A row computes exactly what ONNX specifies, or raises an error.

The extra ``onnx`` installs the required packages, which are imported on first use.
"""

from __future__ import annotations

from archgraph.errors import RunError
from archgraph.hints import optional_module


def require_packages(*names: str) -> None:
    """Import packages of the extra ``onnx``.

    Raises:
        RunError: If a package is not installed. The hint shows the command that installs it.
    """
    for name in names:
        optional_module(name, kind=RunError, where="ONNX files")
