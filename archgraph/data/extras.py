"""Packages that only some data needs."""

from __future__ import annotations

import importlib
from types import ModuleType

from archgraph.errors import DataError
from archgraph.hints import EXTRAS


def optional_module(name: str, where: str) -> ModuleType:
    """Import a module of an optional package.

    Args:
        name: Name of the module.
        where: Key that asks for it, for errors.

    Raises:
        DataError: If it cannot be imported; says what to install.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        hint = f"pip install 'archgraph[{EXTRAS[package]}]'"
        raise DataError(
            f"needs the package {package}", where=where, found=str(error), hint=hint
        ) from error
