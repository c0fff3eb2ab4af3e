"""The run folder: settings, measurements, and checkpoints for resuming after a crash.

::

    run.yaml                  the resolved experiment, including all defaults
    facts.json                everything that determines the results; digests of files
    clients.json              the clients, with their examples per class
    models/weak.yaml          each architecture
    metrics.jsonl             one line per round, on disk before the next round begins
    changes.jsonl             the changes of each round; see :mod:`archgraph.record.changes`
    checkpoints/round-000007/ server.json, groups/000000.safetensors, clients/000012.safetensors

A checkpoint is complete or absent; see :mod:`archgraph.record.checkpoint`. The line of a round is
written before its checkpoint. A run that was killed between the two repeats this round, with
bit-identical results. A run that was killed before its folder was complete starts again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from safetensors import SafetensorError

from archgraph.errors import RunError, os_reason
from archgraph.files import write
from archgraph.hints import listed
from archgraph.plain import Json, differences, digest
from archgraph.record import changes
from archgraph.record.checkpoint import Checkpoint, Writer, each, read_checkpoint, reading
from archgraph.record.lines import parsed
from archgraph.record.proof import changed_code, environment, expect, notes

DRAFT = ".draft-"
# This file exists while a run starts; other files in the folder then belong to the run, and may be
# replaced.
BEGINNING = f"{DRAFT}run"
# Locks of this process. Forked workers close them, since a lock that a worker holds would outlive
# this process.
_LOCKS: set[int] = set()
# A checkpoint, its `server.json`, the digests of its files, and the lines up to its round.
_Read = tuple[Checkpoint, dict[str, Json], dict[str, str], bytes]
BestRound = Callable[[Sequence[Mapping[str, Json]]], int | None]


def _let_go() -> None:
    while _LOCKS:
        os.close(_LOCKS.pop())


os.register_at_fork(after_in_child=_let_go)


@dataclass
class RunRecord:
    """An open run folder; a context manager that holds the folder's lock.

    Create one with :meth:`create` or :meth:`resume`.

    Attributes:
        folder: The run folder.
        identity: Digest of the experiment's facts, without the number of rounds, which may
            increase.
        keep: Number of latest checkpoints to keep.
        environments: Environments in which the run was computed, in order.
        pinned: A round whose checkpoint is also kept.
    """

    folder: Path
    identity: str
    keep: int
    environments: list[dict[str, Json]] = field(default_factory=list)
    pinned: int | None = None
    _lock: int | None = None
    _metrics: IO[bytes] | None = None

    def __post_init__(self) -> None:
        self._writer = Writer(self.identity)
        # SHA-256 of the lines so far.
        self._bytes, self._digest = 0, hashlib.sha256()

    @property
    def notes(self) -> tuple[str, ...]:
        """Reasons why the results may differ from those of an uninterrupted run."""
        return tuple(notes(self.environments))

    @classmethod
    def create(
        cls,
        folder: Path,
        text: str,
        facts: Mapping[str, Json],
        *,
        files: Mapping[str, str] | None = None,
        keep: int = 2,
        device: str = "cpu",
    ) -> RunRecord:
        """Start a run in a new or empty folder, or replace the run in a folder.

        Only the latest checkpoints are kept.

        Raises:
            RunError: If another process is writing the run, or the folder cannot be written.
        """
        here = _here(1, facts, device)
        record = cls(folder, identity(facts), keep, [here])
        with record._opening():
            write(folder / BEGINNING, "")
            for past in _written(
                folder
            ):  # of a run that is overwritten, or that was killed while it started
                if past.name != BEGINNING:
                    _remove(past)
            (folder / "checkpoints").mkdir(exist_ok=True)
            for name, content in (files or {}).items():
                write(folder / name, content)
            write(folder / "facts.json", json.dumps(facts, indent=1))
            # Written last: a folder with this file is a run folder.
            write(folder / "run.yaml", text)
            record._metrics = (folder / "metrics.jsonl").open("ab")
            _remove(folder / BEGINNING)
        return record

    @classmethod
    def resume(
        cls,
        folder: Path,
        text: str,
        facts: Mapping[str, Json],
        *,
        after: int | None = None,
        best: BestRound | None = None,
        keep: int = 2,
        device: str = "cpu",
    ) -> tuple[RunRecord, Checkpoint | None, list[dict[str, Json]]]:
        """Open a run folder to resume the run.

        Return the record, its last checkpoint, and the lines up to the round of the checkpoint.
        Later lines are removed.

        Args:
            folder: The run folder.
            text: The resolved experiment as YAML.
            facts: Facts of the experiment that started the run; the number of rounds may be larger
                now.
            after: Resume after this round: its checkpoint is used, and later checkpoints are
                removed.
            best: Function that takes the lines so far and returns the round whose checkpoint is
                kept.
            keep: Number of latest checkpoints to keep.
            device: Device of the resumed run.

        Raises:
            RunError: If the folder does not contain a run of this experiment, the checkpoint does
                not exist, or a file changed since the checkpoint was written.
        """
        record = cls(folder, identity(facts), keep)
        with record._opening():
            # Another experiment raises an error before a file of this run changes.
            prolonged = record._prolonged(facts)
            for leftover in _leftovers(folder):
                _remove(leftover)
            rounds = record._rounds()
            chosen = max(rounds, default=None) if after is None else after
            checkpoint, lines = None, b""
            if chosen is not None:
                checkpoint, stored, digests, lines = record._proved(chosen)
                record._writer.after(checkpoint, digests)
                record.environments = stored["environments"]
                selected = best(parsed(lines, folder / "metrics.jsonl")) if best else None
                if selected is not None and selected not in rounds:
                    raise RunError(
                        f"cannot resume after round {chosen}: the checkpoint of the best round "
                        "up to then was removed",
                        where=str(folder),
                        found=f"checkpoints of {listed(rounds)}, not of {selected}",
                        hint="resume after a later round, or run the experiment again",
                    )
            done = chosen or 0
            here = _here(done + 1, facts, device)
            if not record.environments or list(notes([record.environments[-1], here])):
                record.environments = [*record.environments, here]
            # All checks have passed; from here on, the folder is changed.
            (folder / "checkpoints").mkdir(exist_ok=True)
            if prolonged:
                write(folder / "run.yaml", text)
                write(folder / "facts.json", json.dumps(facts, indent=1))
            # The latest first, so that the last remaining checkpoint is complete after an
            # interrupt.
            for later in reversed([n for n in rounds if chosen is not None and n > chosen]):
                _remove(record._path(later))
            write(folder / "metrics.jsonl", lines)
            changes.keep_until(folder, done)
            record._metrics = (folder / "metrics.jsonl").open("ab")
            record._count(lines)
        return record, checkpoint, parsed(lines, folder / "metrics.jsonl")

    @classmethod
    def last(
        cls, folder: Path, facts: Mapping[str, Json], best: BestRound | None = None
    ) -> Checkpoint:
        """Read the last checkpoint of a run, which may still be running.

        Args:
            folder: The run folder.
            facts: Facts of the experiment that began the run.
            best: Function that takes all lines and returns the round to read. Default: the last
                round.

        Raises:
            RunError: If there is no checkpoint, or it is damaged or belongs to another experiment.
        """
        record = cls(folder, identity(facts), keep=1)
        rounds = record._rounds()
        if not rounds:
            raise RunError(
                "no checkpoint",
                where=str(folder),
                hint="a run writes its first checkpoint before round 1",
            )
        checkpoint, *_, lines = record._proved(rounds[-1])
        number = best(parsed(lines, folder / "metrics.jsonl")) if best is not None else None
        return checkpoint if number in (None, rounds[-1]) else record.at(number or 0)

    def at(self, number: int) -> Checkpoint:
        """Read the checkpoint of a round.

        Raises:
            RunError: If there is no checkpoint of this round, or it is damaged.
        """
        return self._proved(number)[0]

    def line(self, values: Mapping[str, Json], change: Mapping[str, Json] | None = None) -> None:
        """Append the line of one round to ``metrics.jsonl`` and flush it.

        Args:
            values: The line.
            change: Changes of the round, for ``changes.jsonl``. Default: nothing is written there.
        """
        assert self._metrics is not None
        line = json.dumps(values).encode() + b"\n"
        with _writing(self.folder):
            if change is not None:
                # Written first: if the run is killed in between, resuming removes the extra line.
                changes.append(self.folder, change)
            self._metrics.write(line)
            self._metrics.flush()
            os.fsync(self._metrics.fileno())
        self._count(line)

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint atomically, and then remove all but the latest checkpoints.

        Files whose tensors have not changed since the last call are links to the previous
        checkpoint.
        """
        beside = {
            "metrics": {"bytes": self._bytes, "sha256": self._digest.hexdigest()},
            "environments": self.environments,
        }
        path = self._path(checkpoint.round)
        with _writing(self.folder):
            last = max(self._rounds(), default=None)
            previous = None if last is None else self._path(last)
            self._writer.save(checkpoint, path, previous, beside)
            for past in sorted(self._rounds())[: -self.keep]:
                if past != self.pinned:
                    _remove(self._path(past))
        return path

    def close(self) -> None:
        """Close the files, remove incomplete files, and release the lock."""
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        if self._lock is not None:
            for path in list(_leftovers(self.folder)):
                if path.name != BEGINNING:  # with this mark, the next start begins the run again
                    _remove(path)
            _LOCKS.discard(self._lock)
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> RunRecord:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _opening(self) -> Iterator[None]:
        """Lock the folder, and release it if the context fails."""
        self.acquire()
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            with _writing(self.folder):
                yield
            undo.pop_all()

    def acquire(self, busy: str = "another process is writing this run") -> None:
        """Lock the folder itself, so that no lock file remains after a crash.

        Raises:
            RunError: If another process holds the lock, with the message ``busy``.
        """
        with _writing(self.folder):
            lock = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise RunError(busy, where=str(self.folder)) from error
        self._lock = lock
        _LOCKS.add(lock)

    def _count(self, lines: bytes) -> None:
        """Count the lines of `metrics.jsonl` and update their digest, for the next checkpoint."""
        self._bytes += len(lines)
        self._digest.update(lines)

    def _proved(self, number: int) -> _Read:
        """Read a checkpoint and the lines up to its round, and check that neither has changed.

        Raises:
            RunError: If a file has changed; names the file, and the last intact checkpoint.
        """
        rounds = self._rounds()
        if number not in rounds:
            present = ", ".join(map(str, rounds)) or "none"
            where = str(self.folder)
            raise RunError(
                "no checkpoint of this round", where=where, found=present, expected=number
            )
        try:
            return self._read(number)
        except RunError as error:
            if error.hint:  # of another version of archgraph: an earlier checkpoint does not help
                raise
            raise error.within("", hint=self._earlier(rounds, number)) from error

    def _read(self, number: int) -> _Read:
        checkpoint, stored, digests = read_checkpoint(self._path(number), self.identity)
        metrics = self.folder / "metrics.jsonl"
        with reading(metrics):
            content = metrics.read_bytes() if metrics.is_file() else b""
        # Later lines belong to rounds after the checkpoint, which are repeated.
        lines = content[: stored["metrics"]["bytes"]]
        expect(metrics, hashlib.sha256(lines).hexdigest(), stored["metrics"]["sha256"])
        return checkpoint, stored, digests, lines

    def _earlier(self, rounds: list[int], number: int) -> str:
        """Return the advice for a checkpoint that cannot be used."""
        for earlier in reversed([n for n in rounds if n < number]):
            with contextlib.suppress(RunError):
                self._read(earlier)
                return f"resume from an earlier checkpoint (--resume-from {earlier})"
        return "no earlier checkpoint is intact: restore the file, or start again (--overwrite)"

    def _path(self, number: int) -> Path:
        return self.folder / "checkpoints" / f"round-{number:06d}"

    def _rounds(self) -> list[int]:
        """Return the rounds that have a checkpoint, in order."""
        names = [p.name for p in (self.folder / "checkpoints").glob("round-*") if p.is_dir()]
        numbers = [name.removeprefix("round-") for name in names]
        return sorted(int(number) for number in numbers if number.isdecimal())

    def _prolonged(self, facts: Mapping[str, Json]) -> bool:
        """Return whether the run gets more rounds; raise an error for another experiment."""
        where, rounds = str(self.folder / "facts.json"), _rounds(facts)
        try:
            recorded = json.loads(Path(where).read_bytes())
            same, before = identity(recorded) == self.identity, recorded.get("rounds")
            modules = changed_code(recorded, facts)
        except (OSError, ValueError, RecursionError, TypeError, AttributeError) as error:
            hint = "restore the file, or choose another folder (--out)"
            raise RunError(
                "cannot identify the experiment of this run", where=where, found=error, hint=hint
            ) from error
        if not same or not isinstance(before, int):
            way = "resume with the original experiment"
            way = f"undo the changes in {modules}" if modules else way
            raise RunError(
                "the folder holds another experiment",
                where=where,
                found=listed(differences({**recorded, "code": None}, {**facts, "code": None})),
                hint=f"{way}, or choose a new folder",
            )
        if before > rounds:
            raise RunError(
                "the run was started with more rounds",
                where="rounds",
                found=rounds,
                expected=f"{before} or more",
                hint="resume with at least as many rounds, or choose a new folder",
            )
        return before < rounds


def identity(facts: Mapping[str, Json]) -> str:
    """Return the digest of the facts that must stay the same when a run is resumed."""
    return digest(_lasting(facts))


def _lasting(facts: Mapping[str, Json]) -> dict[str, Json]:
    """Return the facts whose change makes resuming impossible."""
    return {name: value for name, value in facts.items() if name not in ("rounds", "code")}


def _here(since: int, facts: Mapping[str, Json], device: str) -> dict[str, Json]:
    """Return the environment and code of the rounds from ``since`` on."""
    code = facts.get("code", {})
    return {"since": since, "rounds": _rounds(facts), "code": code, **environment(device)}


def _rounds(facts: Mapping[str, Json]) -> int:
    return int(facts["rounds"])


def read_metrics(folder: Path) -> list[dict[str, Json]]:
    """Return the complete lines of ``metrics.jsonl``. A truncated last line is ignored.

    Raises:
        RunError: If another line is damaged.
    """
    path = folder / "metrics.jsonl"
    return parsed(path.read_bytes(), path) if path.is_file() else []


def saved_rounds(folder: Path) -> list[int]:
    """Return the rounds of a run that have a checkpoint, in order."""
    return RunRecord(folder, "", keep=1)._rounds()


def resumable(folder: Path) -> bool:
    """Return whether the run can be resumed; False if it was killed before its first checkpoint.

    Raises:
        RunError: If the folder does not contain a run.
    """
    if folder.is_dir() and _unbegun(folder):
        return False
    if not (folder / "run.yaml").is_file():
        hint = "start the run without resume"
        raise RunError("no run to resume", where=str(folder), found="no run.yaml", hint=hint)
    return True


def _unbegun(folder: Path) -> bool:
    """Return whether a folder contains nothing, only drafts, or a run killed before it started."""
    names = {path.name for path in folder.iterdir()}
    return BEGINNING in names or all(name.startswith(DRAFT) for name in names)


@contextlib.contextmanager
def reserved(folder: Path, *, overwrite: bool = False) -> Iterator[None]:
    """Check that a run can be written to a folder, and create the folder.

    If the ``with`` block raises an error, a folder that was created is removed if it is empty.

    Raises:
        RunError: If the folder is not empty, is not a folder, or cannot be written.
    """
    undo = contextlib.ExitStack()
    with _writing(folder):
        if folder.is_dir():
            run = all((folder / name).is_file() for name in ("run.yaml", "facts.json"))
            if not _unbegun(folder) and not (run and overwrite):
                raise RunError(
                    "the run folder is not empty",
                    where=str(folder),
                    found="a run" if run else "files, but not a run",
                    hint=("resume it (--resume), replace it (--overwrite), or " if run else "")
                    + "choose another folder (--out)",
                )
        else:
            missing = [p for p in (folder, *folder.parents) if not p.exists()]
            for path in reversed(missing):
                path.mkdir()
                undo.callback(_remove_empty, path)
        # Only a write reveals missing permissions and exceeded quotas.
        tempfile.TemporaryFile(dir=folder).close()
    with undo:
        yield
        undo.pop_all()


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not empty, since the run has started
        folder.rmdir()


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Convert errors of the file system to an error that names the run folder."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise RunError(
            "cannot write the run folder",
            where=str(folder),
            found=os_reason(error),
            hint="choose a writable folder on a disk with free space",
        ) from error


def run_folder(path: str | os.PathLike[str]) -> Path:
    """Return the path of a run folder.

    Raises:
        RunError: If the path is not a run folder.
    """
    folder = Path(path)
    if not (folder / "run.yaml").is_file():
        raise RunError("not a run folder", where=str(folder), found="no run.yaml")
    return folder


def goes_on(folder: Path) -> bool:
    """Return whether a process is writing the run now."""
    with reading(folder):
        lock = os.open(folder, os.O_RDONLY)
    try:
        # A shared lock fails only while a run holds the exclusive lock.
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def _written(folder: Path) -> Iterator[Path]:
    """Yield the paths that a run has written to its folder."""
    yield from _leftovers(folder)
    yield from (folder / "checkpoints").glob("round-*")
    yield from (folder / "models").glob("*.yaml")
    names = ["run.yaml", "facts.json", "clients.json", "metrics.jsonl", changes.FILE]
    names += ["metrics.csv", "tensorboard"]  # of trackers
    yield from (folder / name for name in names if (folder / name).exists())


def _leftovers(folder: Path) -> Iterator[Path]:
    """Yield the drafts that remain after a crash."""
    for path in (folder, folder / "models", folder / "checkpoints"):
        yield from path.glob(f"{DRAFT}*")


def _remove(path: Path) -> None:
    """Remove a file, or a folder atomically."""
    if path.is_dir():
        # Renamed first, so that a partly removed checkpoint does not look like a checkpoint.
        if not path.name.startswith(DRAFT):
            path = path.rename(path.with_name(f"{DRAFT}{path.name}"))
        try:
            each(Path.unlink, [inside for inside in path.glob("*/*") if inside.is_file()])
            shutil.rmtree(path)
        except KeyboardInterrupt:  # an interrupt does not leave a part of the file either
            shutil.rmtree(path, ignore_errors=True)
            raise
    else:
        path.unlink()
