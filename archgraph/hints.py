"""What an error advises: the valid names that are most like an unknown one, what to install."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from archgraph.errors import ErrorFacts

# Names that an error lists; of more it says how many there are.
LISTED = 20


def listed(names: Iterable[object], most: int = 3, separator: str = ", ") -> str:
    """Return the first names, and how many more there are.

    >>> listed(["a", "b", "c", "d", "e"]), listed("ab")
    ('a, b, c and 2 more', 'a, b')
    """
    first, *rest = [*map(str, names)] or [""]
    first = separator.join((first, *rest[: most - 1]))
    return f"{first} and {len(rest) + 1 - most} more" if len(rest) >= most else first


def nearest(name: str, names: Iterable[str], *, cutoff: float = 0.6, count: int = 1) -> str | None:
    """Suggest the most similar valid names; None if none is similar enough.

    Args:
        name: What was written.
        names: The valid names.
        cutoff: How similar a name has to be, from 0 (anything) to 1 (equal).
        count: At most so many.

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
    """Return the parts of an error about an unknown name: found, expected, and the nearest.

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


# What the error of a package that cannot be imported says, and what to do.
_CURES = (
    (
        r"operator torchvision::\w+ does not exist",
        "this torchvision was built for another torch: install the two from one index, in the "
        "versions that belong together (torch 2.13 and torchvision 0.28, say)",
    ),
    (
        r"undefined symbol|DLL load failed|cannot open shared object file",
        "a compiled part of the package was built for another version of what it loads: install "
        "both again, from one index",
    ),
)

# Modules that an extra of archgraph brings.
EXTRAS = {
    "datasets": "data",
    "dp_accounting": "privacy",
    "flwr": "flower",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "onnxscript": "onnx",
    "pyarrow": "data",
    "tensorboard": "tensorboard",
    "tokenizers": "data",
    "torch_geometric": "hypernet",
    "torchmetrics": "metrics",
    "transformers": "hf",
}


def import_cause(error: BaseException) -> tuple[BaseException, str | None]:
    """Return the error behind one from an import, and what to do about it.

    Packages that import their parts late say that one cannot be imported; why is the error behind.
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
    extra = EXTRAS.get(str(missing.name).partition(".")[0])
    install = f"pip install 'archgraph[{extra}]'" if extra else "install it"
    return missing, f"{install}, or run archgraph in the folder that holds it"
