"""ONNX files: a graph and its weights become one, and one that we wrote becomes them again.

Writing, ``export``: PyTorch's exporter converts the built module in evaluation; ``names`` names
what people look at, ``mark`` puts the graph as text into the metadata, and ``session`` compares the
file in onnxruntime with PyTorch before it gets its name.

Reading, ``read``: where ``mark`` finds a graph, and the operators are still those that it became,
it is the graph; only weights come from the file. The nodes of other files (``imported``) become a
module:

1. ``network``: each node is a step, computed by a row of ``operators``. What follows from constants
   is folded (``operators/known.py``); ``fusion`` replaces spelt-out layers by one step, by the
   expressions in ``patterns``.
2. The module is captured in evaluation (:func:`archgraph.capture.trace.trace_own`).
3. ``batches`` compares graph and nodes at other open sizes. A file for one batch size is read for
   all of them if its examples do not depend on one another.

- Nothing of a file is executed; ``tensors`` reads weights beside it from its own folder only.
- A row computes exactly what ONNX says, or refuses. Nothing else translates to graph nodes:
  folding, inlining and spelling are the capture's.

The extra ``onnx`` brings the packages, which are imported on first use.
"""

from __future__ import annotations

from archgraph.errors import RunError
from archgraph.hints import optional_module


def require_packages(*names: str) -> None:
    """Import packages of the extra ``onnx``.

    Raises:
        RunError: If one is not installed; says what to install.
    """
    for name in names:
        optional_module(name, kind=RunError, where="ONNX files")
