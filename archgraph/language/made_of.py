"""What a capture is made of, as one name: code, configuration, buffers, versions.

Values of parameters are no part of it. What cannot be told for certain has no name.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import io
import json
import pickle
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch

from archgraph.capture.places import is_users
from archgraph.limits import LIMITS

_OWN = "archgraph"
_INSTALLED = ("site-packages", "dist-packages")
_PLAIN = (str, int, float, bool, type(None), torch.dtype)
_OWN_WAYS = frozenset({"__getstate__", "__reduce__", "__reduce_ex__", "__getnewargs__"})
# What code may ask that is written nowhere; searched for, since a false alarm costs a capture only.
_ENVIRONMENT = re.compile(rb"environ|getenv")
_OUTSIDE = ModuleType("outside")
_VERSION = "2"  # of this rule and of the files


def made_of(
    model: torch.nn.Module, inputs: Mapping[str, torch.Tensor], way: Mapping[str, Any], since: float
) -> str | None:
    """A name for all that decides what a capture gives; None where something cannot be told.

    Args:
        model: The model.
        inputs: Example inputs by name.
        way: How it is captured: plain values.
        since: Code that was changed after this time (seconds of the epoch) may be another one than
            that which runs.
    """
    try:
        described, modules = _described(model)
        code = [*_code(modules, since)]
    except Exception:  # whatever pickling a user's object raises, or reading its code
        return None
    shapes = {name: (tuple(x.shape), str(x.dtype)) for name, x in inputs.items()}
    versions = (_VERSION, sys.version, torch.__version__, str(torch.get_default_dtype()))
    facts = repr((versions, code, shapes, sorted(way.items())))
    return hashlib.sha256(facts.encode("utf-8", "surrogatepass") + described).hexdigest()


class _Unknown(Exception):
    """Something of a model cannot be told."""


class _Description(pickle.Pickler):
    """A model's modules and attributes as bytes; of parameters what they are, not their values.

    The bytes are hashed and never read.
    """

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, protocol=4)
        self.seen: dict[int, tuple[int, torch.Tensor]] = {}
        self.modules: set[str] = set()

    def reducer_override(self, value: Any) -> Any:
        """Functions and classes by name, and in which module; nothing that describes itself."""
        if isinstance(value, type | FunctionType):
            self.modules.add(value.__module__)
        elif any(map(_tells_its_own_way, type(value).mro())):
            raise _Unknown
        return NotImplemented

    def persistent_id(self, value: Any) -> Any:
        """Tensors by what they are, and sets in an order that every process has."""
        if type(value) in (set, frozenset):
            if not all(type(item) in _PLAIN for item in value):
                raise _Unknown
            return ("set", *sorted(map(repr, value)))
        if not isinstance(value, torch.Tensor):
            return None
        if value.is_meta or type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise _Unknown
        first = self.seen.setdefault(id(value), (len(self.seen), value))[0]
        kind = str(value.dtype), tuple(value.shape), value.stride(), value.requires_grad
        if isinstance(value, torch.nn.Parameter):
            return ("parameter", first, *kind)
        if value.numel() > LIMITS.example_elements:
            raise _Unknown
        numbers = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return ("tensor", first, *kind, hashlib.sha256(numbers.tobytes()).hexdigest())


def _tells_its_own_way(kind: type) -> bool:
    """Whether a class of the user's own says of its instances what is pickled: it may leave out."""
    if not _OWN_WAYS & vars(kind).keys():
        return False
    file = _file(kind.__module__)
    installed = file is not None and any(part in _INSTALLED for part in file.parts)
    return file is not None and not installed and is_users(str(file))


def _described(model: torch.nn.Module) -> tuple[bytes, set[str]]:
    """A model as bytes, and the modules of all classes and functions that it holds."""
    stream = io.BytesIO()
    description = _Description(stream)
    description.dump(model)
    return stream.getvalue(), description.modules


def _code(modules: set[str], since: float) -> Iterator[tuple[str, str]]:
    """The files in which some modules are written and those that they import, with what is in them.

    Of installed packages it is the size and the time of the file and of its package's first file.
    """
    yield from (
        (str(path), _stamp(path)) for path in sorted(Path(__file__).parents[1].rglob("*.py"))
    )
    left, done = sorted(modules, reverse=True), set(modules)
    while left:
        name = left.pop()
        file = _file(name)
        if file is None or name.partition(".")[0] == _OWN or not is_users(str(file)):
            continue
        if file.stat().st_mtime >= since:
            raise _Unknown
        if any(part in _INSTALLED for part in file.parts):
            top = _file(name.partition(".")[0])
            yield from ((str(one), _stamp(one)) for one in (file, top) if one is not None)
            continue
        text = file.read_bytes()
        if _ENVIRONMENT.search(text):
            raise _Unknown
        yield str(file), hashlib.sha256(text).hexdigest()
        yield name, repr(sorted(_constants(vars(sys.modules.get(name, _OUTSIDE)))))
        more = {*_imported(ast.parse(text), name, file)} - done
        left += sorted(more, reverse=True)
        done |= more


def _constants(names: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Plain values of a module, which it may have read from a file."""
    for name, value in names.items():
        if not name.startswith("__"):
            with contextlib.suppress(TypeError, ValueError):  # not plain
                yield name, json.dumps(value, sort_keys=True)


def _stamp(path: Path) -> str:
    stat = path.stat()
    return f"{stat.st_size} {stat.st_mtime_ns}"


def _file(name: str) -> Path | None:
    """The file of a module, loaded or not; None where it has none."""
    module = sys.modules.get(name)
    if isinstance(module, ModuleType):
        found = getattr(module, "__file__", None)
    else:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            return None
        found = spec.origin if spec is not None and spec.has_location else None
    return Path(found) if found and found.endswith(".py") else None


def _imported(tree: ast.AST, name: str, file: Path) -> Iterator[str]:
    """Modules that some code imports anywhere, and packages around them."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for item in node.names:
                yield from _with_packages(item.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join(filter(None, [*above, base]))
            yield from _with_packages(base)
            yield from (f"{base}.{item.name}" for item in node.names if base)


def _with_packages(name: str) -> Iterator[str]:
    parts = name.split(".")
    yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))
