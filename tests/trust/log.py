"""What a run of the mutants has found so far, so that an interrupted one can go on."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Log:
    """Findings by kind and name, one per line of a file, with the files that each depends on.

    A finding counts as long as each of these files has the SHA-256 that it had then.

    Example:
        >>> log = Log(None)
        >>> log.add("test", "tests/a.py::test_b", ["README.md"], seconds=1.0)
        >>> log.known("test")["tests/a.py::test_b"]["seconds"]
        1.0
        >>> list(log.known("test")["tests/a.py::test_b"]["files"])
        ['README.md']
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._found: dict[tuple[str, str], dict[str, Any]] = {}
        if file is not None and file.exists():
            for line in map(json.loads, file.read_text().splitlines()):
                if all(sha256(path) == digest for path, digest in line["files"].items()):
                    self._found[line["kind"], line["name"]] = line

    def add(self, kind: str, name: str, files: Iterable[str], **facts: Any) -> None:
        """Take note of a finding; files are paths from the root of the repository."""
        line = {
            "kind": kind,
            "name": name,
            **facts,
            "files": {path: sha256(path) for path in files},
        }
        text = json.dumps(line)
        self._found[kind, name] = json.loads(text)  # the same whether it was read or not
        if self._file is not None:
            with self._file.open("a") as file:
                file.write(text + "\n")

    def known(self, kind: str) -> Mapping[str, dict[str, Any]]:
        """The findings of a kind that still count, by name."""
        return {name: line for (what, name), line in self._found.items() if what == kind}


@functools.cache
def sha256(path: str) -> str | None:
    """Digest of a file; None: it is not there."""
    file = ROOT / path
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None
