"""The packages of the extra ``onnx``, which nothing else needs."""

from __future__ import annotations

import importlib

from archgraph.errors import RunError


def needed(*modules: str) -> None:
    """Import packages that ONNX files need.

    Raises:
        RunError: If one is not installed; says what to install.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise RunError(
                f"ONNX files need the package {module}",
                found=str(error),
                hint="pip install 'archgraph[onnx]'",
            ) from error
