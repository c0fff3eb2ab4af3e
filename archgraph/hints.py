"""Hints for error messages: similar valid names, and packages to install."""

from __future__ import annotations

import difflib
import importlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

from archgraph.errors import ArchGraphError, ErrorFacts, GraphError

# Name on the package index, where "archgraph" is a different project.
DISTRIBUTION = "archgraph-torch"

# Maximum number of names that an error lists.
LISTED = 20


def listed(names: Iterable[object], most: int = 3, separator: str = ", ") -> str:
    """Join the first names, and append the number of further names.

    >>> listed(["a", "b", "c", "d", "e"]), listed("ab")
    ('a, b, c and 2 more', 'a, b')
    """
    first, *rest = [*map(str, names)] or [""]
    first = separator.join((first, *rest[: most - 1]))
    return f"{first} and {len(rest) + 1 - most} more" if len(rest) >= most else first


def nearest(name: str, names: Iterable[str], *, cutoff: float = 0.6, count: int = 1) -> str | None:
    """Suggest the most similar valid names; return None if no name is similar enough.

    Args:
        name: The unknown name.
        names: The valid names.
        cutoff: Minimum similarity of a suggestion, from 0 (any) to 1 (equal).
        count: Maximum number of suggestions.

    >>> nearest("kernal", ["kernel", "stride"]), nearest("x", ["kernel"])
    ("did you mean 'kernel'?", None)
    >>> nearest("conv", ["conv1", "conv2"], count=3)
    "did you mean 'conv2' or 'conv1'?"
    """
    similar = difflib.get_close_matches(name, list(names), n=count, cutoff=cutoff)
    suggestions = [*map(repr, similar)]
    several = ", ".join(suggestions[:-1]) + " or " if len(suggestions) > 1 else ""
    return f"did you mean {several}{suggestions[-1]}?" if suggestions else None


def unknown(name: str, names: Iterable[str], *, cutoff: float = 0.6) -> ErrorFacts:
    """Return keyword arguments for an error about an unknown name, with similar names as hint.

    >>> unknown("kernal", ["kernel", "stride"])["expected"]
    'one of kernel, stride'
    >>> unknown("x", map(str, range(99)))["expected"][-20:]
    ', 18, 19 and 79 more'
    >>> unknown("x", [])
    {'found': "'x'", 'expected': None, 'hint': 'there are none'}
    """
    known = list(dict.fromkeys(names))
    return {
        "found": repr(name),
        "expected": f"one of {listed(known, LISTED)}" if known else None,
        "hint": nearest(name, known, cutoff=cutoff) if known else "there are none",
    }


# Patterns in the messages of import errors, with hints.
_CURES = (
    (
        r"operator torchvision::\w+ does not exist",
        "this torchvision was built for another torch: install both from the same index, in "
        "matching versions, e.g. torch 2.13 and torchvision 0.28",
    ),
    (
        r"undefined symbol|DLL load failed|cannot open shared object file",
        "a compiled part of the package was built for another version of a library: install both "
        "again from the same index",
    ),
)

# Modules that archgraph's extras install.
EXTRAS = {
    "datasets": "data",
    "dp_accounting": "privacy",
    "flwr": "flower",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "onnxscript": "onnx",
    "pyarrow": "data",
    "ray": "flower",
    "scipy": "stats",
    "tensorboard": "tensorboard",
    "tokenizers": "data",
    "torch_geometric": "hypernet",
    "torchmetrics": "metrics",
    "transformers": "hf",
}

# What each extra is for.
FEATURES = {
    "data": "Parquet files, data sets of Hugging Face, texts with a tokenizer",
    "hf": "models of transformers, and tokenizers that are folders",
    "onnx": "ONNX files",
    "metrics": "metrics of torchmetrics",
    "tensorboard": "the tracker `tensorboard`",
    "privacy": "differential privacy",
    "stats": "matching networks (strategy `matched`), studies with `compare`, softmax regression",
    "hypernet": "hypernetworks: the strategy `recipfl`",
    "flower": "Flower: simulations and machines",
}


def import_cause(error: BaseException) -> tuple[BaseException, str | None]:
    """Return the cause of an import error, and a hint on how to fix it.

    Some packages import their submodules only on first use. Their import errors do not contain the
    reason, which is in the ``__cause__`` or ``__context__`` of the error.
    """
    chain = [error]
    while (behind := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(behind)
    for pattern, hint in _CURES:
        for cause in chain:
            if re.search(pattern, str(cause)):
                return cause, hint
    missing = next((e for e in chain if isinstance(e, ModuleNotFoundError) and e.name), None)
    if missing is None:
        return error, None
    package = str(missing.name).partition(".")[0]
    if package in EXTRAS:
        return missing, install_command(package)
    return missing, "install it, or run archgraph in the folder that contains it"


def optional_module(
    name: str, *members: str, kind: type[ArchGraphError] = GraphError, where: str | None = None
) -> ModuleType:
    """Import a module of an optional package.

    Args:
        name: Name of the module.
        *members: Names to look up in the module, because some packages import their submodules only
            when a name is looked up.
        kind: Class of the error.
        where: Location for the error, such as the key of a file that needs the module.

    Raises:
        ArchGraphError: If the module cannot be imported. The hint shows how to install its package.
    """
    try:
        module = importlib.import_module(name)
        all(getattr(module, member) for member in members)
    except (ImportError, RuntimeError) as error:
        cause, hint = import_cause(error)
        package = name.partition(".")[0]
        raise kind(f"needs the package {package}", where=where, found=cause, hint=hint) from error
    return module


def install_command(package: str, release: str = "") -> str:
    """Return the command that installs an optional package with its extra.

    Args:
        package: Name of the imported package, one of `EXTRAS`.
        release: Version of archgraph to install; empty for the newest.

    >>> install_command("onnx", "0.1.0")
    "pip install 'archgraph-torch[onnx]==0.1.0'"
    """
    pinned = f"=={release}" if release else ""
    return f"pip install '{DISTRIBUTION}[{EXTRAS[package]}]{pinned}'"


def version() -> str:
    """Return the version of the running code.

    The version ends in "+local" if the running code is not the installed package, for example a
    checkout on `PYTHONPATH`.
    """
    from importlib import metadata

    try:
        installed = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "0+local"
    source = json.loads(installed.read_text("direct_url.json") or "{}")
    folder = Path(str(installed.locate_file("")))
    if source.get("dir_info", {}).get("editable"):
        folder = Path(unquote(urlsplit(source["url"]).path))
    same = folder.resolve() == Path(__file__).resolve().parents[1]
    return installed.version if same else f"{installed.version}+local"
