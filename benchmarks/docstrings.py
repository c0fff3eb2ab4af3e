"""Docstrings of public names, drawn at random, for a reader to judge.

``python -m benchmarks.docstrings --seed 1 --count 100`` prints them with their names. Public are
modules, classes, functions and methods without a leading underscore.
"""

from __future__ import annotations

import argparse
import ast
import random
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEFINED = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def documented(tree: ast.Module | DEFINED, name: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the docstring of a definition and of the public ones in it."""
    if text := ast.get_docstring(tree):
        yield name, text
    for inner in tree.body if not isinstance(tree, ast.FunctionDef) else ():
        if isinstance(inner, DEFINED) and not inner.name.startswith("_"):
            yield from documented(inner, f"{name}.{inner.name}")


def main() -> None:
    """Print docstrings drawn without replacement."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", type=int, required=True)
    options.add_argument("--count", type=int, default=100)
    args = options.parse_args()
    rooms = [ROOT / "archgraph", ROOT / "strategies"]
    files = sorted(file for room in rooms for file in room.glob("**/*.py"))
    every = [
        pair
        for file in files
        if "/_" not in str(file.relative_to(ROOT)) or file.name == "__init__.py"
        for pair in documented(ast.parse(file.read_text()), ".".join(file.relative_to(ROOT).parts))
    ]
    for name, text in random.Random(args.seed).sample(every, args.count):
        print(f"=== {name}\n{text}\n")


if __name__ == "__main__":
    main()
