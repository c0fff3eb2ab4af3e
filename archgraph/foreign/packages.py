"""Optional packages, imported by the functions that need them."""

from __future__ import annotations

import importlib
from types import ModuleType

from archgraph.errors import GraphError
from archgraph.hints import import_cause


def imported(name: str, *members: str) -> ModuleType:
    """Import a package.

    Args:
        name: Its name.
        *members: Names that have to be there: some packages import their parts late.

    Raises:
        GraphError: If it cannot be imported; says what to install.
    """
    try:
        module = importlib.import_module(name)
        all(getattr(module, member) for member in members)
    except (ImportError, RuntimeError) as error:
        cause, hint = import_cause(error)
        raise GraphError(f"{name} cannot be imported", found=cause, hint=hint) from error
    return module
