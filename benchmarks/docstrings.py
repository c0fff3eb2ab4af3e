"""Docstrings of public names, drawn at random, for a reader to judge.

``python -m benchmarks.docstrings --seed 1`` prints a hundred with their names. Public are the names
in the reference: those that packages export in ``__init__.pyi``, all strategies, and the
methods of both without a leading underscore.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import inspect
import random
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]


def documented() -> Iterator[tuple[str, str]]:
    """Yield name and docstring of exported names and public methods."""
    stubs = [stub.parent.relative_to(ROOT).parts for stub in ROOT.glob("archgraph/**/__init__.pyi")]
    modules = [importlib.import_module(".".join(parts)) for parts in sorted(stubs)]
    named = [
        (f"{module.__name__}.{n}", getattr(module, n)) for module in modules for n in dir(module)
    ]
    entries = importlib.metadata.entry_points(group="archgraph.strategies")
    named += sorted((entry.value, entry.load()) for entry in entries)
    for name, value in named:
        inner = vars(value) if inspect.isclass(value) else {}
        for key, one in {"": value, **inner}.items():
            shown = inspect.isroutine(one) or inspect.isclass(one) or isinstance(one, property)
            if shown and one.__doc__ and not key.startswith("_"):
                yield f"{name} {key}", inspect.cleandoc(one.__doc__)


def main() -> None:
    """Print docstrings drawn without replacement."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", type=int, required=True)
    seed = options.parse_args().seed
    for name, text in random.Random(seed).sample([*documented()], 100):
        print(f"=== {name}\n{text}\n")


if __name__ == "__main__":
    main()
