"""ONNX files: a graph and its weights become one, and one that we wrote becomes them again.

The extra ``onnx`` brings the packages, which are imported on first use.
"""

from __future__ import annotations

import importlib

from archgraph.errors import RunError


def require_packages(*names: str) -> None:
    """Import packages of the extra ``onnx``.

    Raises:
        RunError: If one is not installed; says what to install.
    """
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise RunError(
                f"ONNX files need the package {name}",
                found=str(error),
                hint="pip install 'archgraph[onnx]'",
            ) from error
