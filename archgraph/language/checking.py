"""Check whether files are valid, and collect the errors of invalid files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from archgraph.errors import ArchGraphError, SpecError
from archgraph.language.consent import allowed
from archgraph.language.kinds import NOT_IMPORTED, Cache, file_kinds, kind_of
from archgraph.language.yaml import read_document

ENDINGS = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of checking one file.

    Attributes:
        path: The file.
        kind: Kind of the file (:mod:`archgraph.language.kinds`), or ``file`` if the file cannot be
            read.
        error: The first mistake, if any.
        note: A summary of the file.
    """

    path: Path
    kind: str
    error: ArchGraphError | None = None
    note: str = ""

    @property
    def good(self) -> bool:
        """Whether the file can be used."""
        return self.error is None

    @property
    def unseen(self) -> bool:
        """Whether only keys and values were checked, because Python code was not allowed to run."""
        return self.note.endswith(NOT_IMPORTED)


def verdicts(paths: Iterable[str | os.PathLike[str]], *, python: bool = False) -> Iterator[Verdict]:
    r"""Check files, and yield one :class:`Verdict` per file, in the order of the files.

    The check builds all graphs, including those of all clients of a family, and configures
    strategies. It finds every mistake that a run would report before its first round. Your own data
    is read. Data sets that archgraph knows by name, such as ``mnist``, are not read: the check uses
    zeros of the same shape in place of their examples.

    Args:
        paths: Files, or folders. In a folder, all YAML files are checked, also in its subfolders.
        python: Whether the Python code that files name may be run. If False, only keys and values
            are checked in files that name Python code.

    Raises:
        SpecError: If a path does not exist, or a folder does not contain a YAML file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = (Path(folder) / "a.yaml").write_text("archgraph: 1\n")
        ...     [verdict.good for verdict in verdicts([folder])]
        [False]
    """
    cache: Cache = {}
    for path in list(yaml_files(paths)):
        kind = "file"
        try:
            kind = kind_of(read_document(path).data) or "model"
            with allowed(python):
                verdict = Verdict(path, kind, note=file_kinds()[kind].check(path, cache))
        except ArchGraphError as error:
            verdict = Verdict(path, kind, error)
        yield verdict  # outside: consent ends with the check, before the caller continues


def yaml_files(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Path]:
    """Yield the files, and the YAML files in the folders, without repetition.

    Raises:
        SpecError: If a path does not exist, or a folder does not contain a YAML file.
    """
    yielded: set[Path] = set()
    for path in map(Path, paths):
        if not path.exists():
            raise SpecError("does not exist", where=str(path), expected="a file or a folder")
        files = [path]
        if path.is_dir():
            # Sorted, so that the order is the same on every machine.
            files = sorted(p for p in path.rglob("*") if p.suffix in ENDINGS and p.is_file())
            if not files:
                raise SpecError("holds no YAML file", where=str(path))
        for file in files:
            if file.resolve() not in yielded:
                yielded.add(file.resolve())
                yield file
