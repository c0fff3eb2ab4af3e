"""Docstrings of public names, drawn at random, for a reader to judge.

``python -m benchmarks.docstrings --seed 1 --count 100`` prints them with their names. Public are
the names in the reference: those that packages export in ``__init__.pyi``, all strategies, and the
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


def exported() -> Iterator[tuple[str, object]]:
    """Yield the full name and the value of each exported name and strategy."""
    for stub in sorted(ROOT.glob("archgraph/**/__init__.pyi")):
        module = importlib.import_module(".".join(stub.parent.relative_to(ROOT).parts))
        yield from ((f"{module.__name__}.{name}", getattr(module, name)) for name in dir(module))
    for entry in sorted(importlib.metadata.entry_points(group="archgraph.strategies")):
        yield entry.value, entry.load()


def documented() -> dict[str, str]:
    """Return a dict from name to docstring, for exported names and public methods."""
    found = {}
    for name, value in exported():
        inner = vars(value) if inspect.isclass(value) else {}
        methods = {f"{name}.{key}": of for key, of in inner.items() if not key.startswith("_")}
        for full, one in {name: value, **methods}.items():
            if (inspect.isroutine(one) or inspect.isclass(one) or isinstance(one, property)) and (
                text := inspect.cleandoc(one.__doc__ or "")
            ):
                found[full] = text
    return found


def main() -> None:
    """Print docstrings drawn without replacement."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", type=int, required=True)
    options.add_argument("--count", type=int, default=100)
    args = options.parse_args()
    for name, text in random.Random(args.seed).sample([*documented().items()], args.count):
        print(f"=== {name}\n{text}\n")


if __name__ == "__main__":
    main()
