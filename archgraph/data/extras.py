"""Packages that only some data needs."""

from __future__ import annotations

import importlib
from typing import Any

from archgraph.errors import DataError


def extra(module: str, name: str, where: str) -> Any:
    """Import a module of an optional package.

    Args:
        module: Name of the module.
        name: Extra of archgraph that installs it.
        where: Key that asks for it, for errors.

    Raises:
        DataError: If it cannot be imported; says what to install.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(
            f"needs the package {module.partition('.')[0]}",
            where=where,
            found=str(error),
            hint=f"pip install 'archgraph[{name}]'",
        ) from error
