"""The run folder: what was asked, what was measured, and where to go on after a crash.

::

    run.yaml                  the experiment as resolved, every default written out
    facts.json                what decides its numbers, by content
    models/weak.yaml          each architecture
    metrics.jsonl             one line per round, on disk before the next round begins
    checkpoints/round-000007/ server.json, groups/000000.safetensors, clients/000012.safetensors

A checkpoint is complete or absent; see :mod:`archgraph.engine.checkpoint`. The line of a round is
written before its checkpoint, so a run that died between the two repeats that round, to the same
bits.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from safetensors import SafetensorError

from archgraph.engine.checkpoint import Checkpoint, Writer, each, load
from archgraph.errors import RunError
from archgraph.files import write
from archgraph.plain import Json, differences, digest


@dataclass
class RunRecord:
    """An open run folder; a context manager that holds the folder's lock.

    Create one with :meth:`create` or :meth:`resume`.
    """

    folder: Path
    identity: str
    keep: int
    _lock: int | None = None
    _metrics: IO[bytes] | None = None

    def __post_init__(self) -> None:
        self._writer = Writer(self.identity)

    @classmethod
    def create(
        cls,
        folder: Path,
        text: str,
        facts: Json,
        *,
        files: Mapping[str, str] | None = None,
        keep: int = 2,
    ) -> RunRecord:
        """Begin a run in an empty or new folder, or in place of the run that is there.

        A checkpoint of other facts is refused later; so many checkpoints stay, the latest ones.

        Raises:
            RunError: If another process is writing the run, or the folder cannot be written.
        """
        record = cls(folder, digest(facts), keep)
        record._acquire()
        try:
            with _writing(folder):
                for past in _written(folder):  # a run that is overwritten
                    _remove(past)
                (folder / "checkpoints").mkdir(exist_ok=True)
                for name, content in (files or {}).items():
                    write(folder / name, content)
                write(folder / "facts.json", json.dumps(facts, indent=1))
                # The last: a folder with it is a run.
                write(folder / "run.yaml", text)
                record._metrics = (folder / "metrics.jsonl").open("ab")
        except BaseException:
            record.close()
            raise
        return record

    @classmethod
    def resume(
        cls, folder: Path, facts: Json, *, keep: int = 2
    ) -> tuple[RunRecord, Checkpoint | None, list[dict[str, Json]]]:
        """Open a run folder to go on: the record, its last checkpoint and the lines until then.

        A line that a crash cut off is dropped, and so are the lines of rounds after the checkpoint.

        Raises:
            RunError: If there is no run, or one of another experiment, or its checkpoint is
                damaged.
        """
        resumable(folder)
        record = cls(folder, digest(facts), keep)
        record._acquire()
        try:
            record._same(facts)
            for leftover in _leftovers(folder):
                _remove(leftover)
            last = max(record._rounds(), default=None)
            checkpoint = None if last is None else load(record._path(last), record.identity)
            if checkpoint is not None:
                record._writer.after(checkpoint)
            lines = read_metrics(folder, until=last or 0)
            with _writing(folder):
                text = "".join(json.dumps(line) + "\n" for line in lines)
                write(folder / "metrics.jsonl", text)
                record._metrics = (folder / "metrics.jsonl").open("ab")
        except BaseException:
            record.close()
            raise
        return record, checkpoint, lines

    @classmethod
    def last(cls, folder: Path, facts: Json) -> Checkpoint:
        """The last checkpoint of a run, which may still be going on.

        Raises:
            RunError: If there is none, or it is damaged or of another experiment.
        """
        record = cls(folder, digest(facts), keep=1)
        rounds = record._rounds()
        if not rounds:
            raise RunError(
                "no checkpoint", where=str(folder), hint="a run writes its first before round 1"
            )
        return load(record._path(rounds[-1]), record.identity)

    def line(self, values: Mapping[str, Json]) -> None:
        """Append the line of one round to ``metrics.jsonl`` and flush it."""
        assert self._metrics is not None
        with _writing(self.folder):
            self._metrics.write(json.dumps(values).encode() + b"\n")
            self._metrics.flush()
            os.fsync(self._metrics.fileno())

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint: complete or not at all; then forget all but the last few.

        Files whose tensors are the same objects as at the last call are links to those of the
        previous checkpoint.
        """
        with _writing(self.folder):
            previous = max(self._rounds(), default=None)
            place = self._path(checkpoint.round)
            self._writer.save(checkpoint, place, None if previous is None else self._path(previous))
            for past in sorted(self._rounds())[: -self.keep]:
                _remove(self._path(past))
        return place

    def close(self) -> None:
        """Close the files and release the lock."""
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> RunRecord:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _acquire(self) -> None:
        """Lock the folder itself, so that no lock file is left behind and none outlives a crash."""
        with _writing(self.folder):
            lock = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise RunError("another process is writing this run", where=str(self.folder)) from error
        self._lock = lock

    def _path(self, number: int) -> Path:
        return self.folder / "checkpoints" / f"round-{number:06d}"

    def _rounds(self) -> list[int]:
        """Rounds that have a checkpoint, in order."""
        names = [p.name for p in (self.folder / "checkpoints").glob("round-*") if p.is_dir()]
        return sorted(int(name.removeprefix("round-")) for name in names)

    def _same(self, facts: Json) -> None:
        try:
            recorded = json.loads((self.folder / "facts.json").read_bytes())
        except (OSError, ValueError) as error:
            raise RunError(
                "cannot tell what this run is", where=str(self.folder / "facts.json"), found=error
            ) from error
        if digest(recorded) != self.identity:
            changed = list(differences(recorded, facts))
            raise RunError(
                "the folder holds another experiment",
                where=str(self.folder),
                found=", ".join(changed[:3]) + (" ..." if len(changed) > 3 else ""),
                hint="resume with the experiment that began it, or choose a new folder",
            )


def read_metrics(folder: Path, until: int | None = None) -> list[dict[str, Json]]:
    """Complete lines of ``metrics.jsonl``, by default all; a last line that was cut off is dropped.

    Raises:
        RunError: If any other line is not JSON.
    """
    path = folder / "metrics.jsonl"
    if not path.is_file():
        return []
    lines: list[dict[str, Json]] = []
    # What follows the last newline was cut off; without a cut it is empty.
    for number, text in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            line = json.loads(text)
            if until is None or line["round"] <= until:
                lines.append(line)
        except (ValueError, KeyError, TypeError) as error:
            raise RunError("damaged line", where=f"{path}:{number}", found=error) from error
    return lines


def resumable(folder: Path) -> None:
    """Check that a folder holds a run.

    Raises:
        RunError: If it does not.
    """
    if not (folder / "run.yaml").is_file():
        raise RunError(
            "no run to resume",
            where=str(folder),
            found="no run.yaml",
            hint="start it without resume",
        )


@contextlib.contextmanager
def reserved(folder: Path, *, overwrite: bool = False) -> Iterator[None]:
    """Make sure that a run can be written to a folder, before any work; remove it if that fails.

    Raises:
        RunError: If the folder is not empty, is not a folder, or cannot be written.
    """
    made: list[Path] = []
    with _writing(folder):
        if folder.is_dir():
            past = all((folder / name).is_file() for name in ("run.yaml", "facts.json"))
            if any(folder.iterdir()) and not (past and overwrite):
                raise RunError(
                    "the run folder is not empty",
                    where=str(folder),
                    found="a run" if past else "files, but not a run",
                    hint="go on with it (--resume), replace it (--overwrite), or choose another "
                    "folder (--out)"
                    if past
                    else "choose another folder (--out)",
                )
        else:
            missing = [p for p in (folder, *folder.parents) if not p.exists()]
            for path in reversed(missing):
                path.mkdir()
                made.append(path)
        tempfile.TemporaryFile(dir=folder).close()
    try:
        yield
    except BaseException:
        for path in reversed(made):
            with contextlib.suppress(OSError):  # not empty: the run has begun
                path.rmdir()
        raise


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn what the file system says into an error that names the run folder."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise RunError(
            "cannot write the run folder",
            where=str(folder),
            found=getattr(error, "strerror", None) or str(error),
            hint="choose a folder that can be written, on a disk with space",
        ) from error


def _written(folder: Path) -> Iterator[Path]:
    """What a run has written to its folder."""
    yield from _leftovers(folder)
    yield from (folder / "checkpoints").glob("round-*")
    yield from (folder / "models").glob("*.yaml")
    names = ("run.yaml", "facts.json", "metrics.jsonl")
    yield from (folder / name for name in names if (folder / name).exists())


def _leftovers(folder: Path) -> Iterator[Path]:
    """Drafts that a crash left behind."""
    yield from folder.glob(".draft-*")
    yield from (folder / "checkpoints").glob(".draft-*")


def _remove(path: Path) -> None:
    """Remove a file, or a folder in one step as seen from outside."""
    if path.is_dir():
        if not path.name.startswith(".draft-"):
            path = path.rename(path.with_name(f".draft-{path.name}"))
        each(Path.unlink, [inside for inside in path.glob("*/*") if inside.is_file()])
        shutil.rmtree(path)
    else:
        path.unlink()
