"""Digests of the modules of user code that files name."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import itertools
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from archgraph.errors import is_installed
from archgraph.language.consent import consent_given
from archgraph.plain import digest


def users_code(names: Iterable[str]) -> dict[str, str]:
    """Return digests of the user's modules that contain the named Python objects.

    The digests ignore comments. The modules that these modules import, and the packages that
    contain them, are included. Installed packages, including archgraph, are omitted, because
    records contain their versions. Without consent, the result is empty.

    >>> users_code(["torch.nn:Linear"])
    {}
    """
    left, code = [name.partition(":")[0] for name in names], dict[str, str]()
    while left and consent_given():
        module = left.pop()
        file = None if module in code else _file(module)
        if file is None:
            continue
        left.append(module.rpartition(".")[0])  # its package runs before it
        content = file.read_bytes()
        try:
            tree = ast.parse(content)
        except (SyntaxError, ValueError):  # compiled, or only imported where it can be
            code[module] = hashlib.sha256(content).hexdigest()
            continue
        code[module] = digest(ast.unparse(tree))
        package = module if file.stem == "__init__" else module.rpartition(".")[0]
        left += _imports(tree, package)
    return dict(sorted(code.items()))


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield the modules that a module may import, and imported names that may be modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            around = package.split(".")[: 1 - node.level or None] if node.level else []
            of = ".".join([*around, *filter(None, [node.module])])
            yield from (of, *(f"{of}.{alias.name}" for alias in node.names))


def _file(module: str) -> Path | None:
    """Return the file of a module of the user's; None if it is installed, or has no file."""
    file = ""
    # The outermost package first: to look for a module in one imports it.
    for name in itertools.accumulate(module.split("."), "{}.{}".format):
        loaded = sys.modules.get(name)
        try:
            # `__main__` has a file, but cannot be looked up.
            source = loaded if hasattr(loaded, "__file__") else importlib.util.find_spec(name)
        except (Exception, SystemExit):  # no such module, or its package fails: a run reports it
            return None
        file = getattr(source, "__file__", None) or getattr(source, "origin", None) or ""
        # A folder without __init__.py is a package without a file.
        folders = getattr(source, "submodule_search_locations", None) or ()
        if source is None or any(map(is_installed, filter(None, (file, *folders)))):
            return None
    return Path(file) if Path(file).is_file() else None
