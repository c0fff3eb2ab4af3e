"""The run folder: what was asked, what was measured, and where to go on after a crash.

::

    run.yaml                  the experiment as resolved, every default written out
    facts.json                what decides its numbers, by content
    models/weak.yaml          each architecture
    metrics.jsonl             one line per round, on disk before the next round begins
    checkpoints/round-000007/ server.json, groups/000000.safetensors, clients/000012.safetensors

The server's tensors are a file per group (the part of their names before the first slash), whose
names ``server.json`` lists in the order of the files. What did not change since the checkpoint
before is a link to it, so that a checkpoint costs what changed.

A checkpoint is complete or absent: it is written beside its place, synchronised and renamed. The
line of a round is written before its checkpoint, so a run that died between the two repeats that
round, to the same bits.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from archgraph.errors import RunError
from archgraph.files import sync, write
from archgraph.plain import Json, differences, digest

FORMAT = 2
# Files that are brought to the disk, or removed from it, together.
AT_ONCE = 4

Tensors = Mapping[str, torch.Tensor]
# Of tensors as they were: which objects, and how often each had been changed in place.
Seen = dict[str, tuple["weakref.ref[torch.Tensor]", int]]


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on after a round.

    Attributes:
        round: Rounds that are done.
        tensors: The server's tensors.
        values: The server's plain values.
        kept: What each client kept, by client.
    """

    round: int
    tensors: Tensors
    values: Mapping[str, Json]
    kept: Mapping[int, Tensors]


@dataclass
class Record:
    """An open run folder; a context manager that holds the folder's lock.

    Create one with :meth:`create` or :meth:`resume`.
    """

    folder: Path
    identity: str
    keep: int
    _lock: int | None = None
    _metrics: IO[bytes] | None = None
    _changed: set[int] = field(default_factory=set)
    # The groups of the last checkpoint in the order of their files.
    _saved: dict[str, Seen] = field(default_factory=dict)

    @classmethod
    def create(
        cls,
        folder: Path,
        text: str,
        facts: Json,
        *,
        files: Mapping[str, str] | None = None,
        keep: int = 2,
    ) -> Record:
        """Begin a run in an empty or new folder.

        Args:
            folder: The run folder.
            text: The experiment as resolved, YAML.
            facts: All that decides the run's numbers; a checkpoint of other facts is refused.
            files: Further files by their place in the folder.
            keep: Checkpoints to keep, the latest ones.

        Raises:
            RunError: If the folder holds something or cannot be written.
        """
        record = cls(folder, digest(facts), keep)
        record._acquire()
        try:
            with _writing(folder):
                (folder / "checkpoints").mkdir()
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
    ) -> tuple[Record, Checkpoint | None, list[dict[str, Json]]]:
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
            checkpoint = None if last is None else record._load(last)
            if checkpoint is not None:
                record._saved = _all_seen(_groups(checkpoint.tensors))
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
        return record._load(rounds[-1])

    def line(self, values: Mapping[str, Json]) -> None:
        """Append the line of one round to ``metrics.jsonl`` and flush it."""
        assert self._metrics is not None
        with _writing(self.folder):
            self._metrics.write(json.dumps(values).encode() + b"\n")
            self._metrics.flush()
            os.fsync(self._metrics.fileno())

    def changed(self, client: int) -> None:
        """Note that what a client keeps differs from the last checkpoint."""
        self._changed.add(client)

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint: complete or not at all; then forget all but the last few.

        Files of groups whose tensors are the same objects as at the last call, and of clients that
        kept what they had, are links to those of the previous checkpoint.
        """
        parent = self.folder / "checkpoints"
        previous = max(self._rounds(), default=None)
        old = None if previous is None else self._path(previous)
        groups = _groups(checkpoint.tensors)
        with _writing(self.folder):
            draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=parent))
            written: list[Path] = []
            try:
                (draft / "groups").mkdir()
                before = {name: number for number, name in enumerate(self._saved)}
                for number, (name, group) in enumerate(groups.items()):
                    same = name in before and _same_tensors(group, self._saved[name])
                    source = _file(old, "groups", before[name]) if same and old else None
                    written += _put(_file(draft, "groups", number), group, source)
                (draft / "clients").mkdir()
                for client, tensors in checkpoint.kept.items():
                    same = client not in self._changed
                    source = _file(old, "clients", client) if same and old else None
                    written += _put(_file(draft, "clients", client), tensors, source)
                _each(sync, written)
                values = {
                    "format": FORMAT,
                    "experiment": self.identity,
                    "round": checkpoint.round,
                    "groups": list(groups),
                    "values": checkpoint.values,
                }
                write(draft / "server.json", json.dumps(values))
                for folder in (draft / "groups", draft / "clients", draft):
                    sync(folder)
                place = self._path(checkpoint.round)
                draft.chmod(0o755)
                draft.replace(place)
                sync(parent)
            except BaseException:
                shutil.rmtree(draft, ignore_errors=True)
                raise
            self._changed.clear()
            self._saved = _all_seen(groups)
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

    def __enter__(self) -> Record:
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
            found = json.loads((self.folder / "facts.json").read_bytes())
        except (OSError, ValueError) as error:
            raise RunError(
                "cannot tell what this run is", where=str(self.folder / "facts.json"), found=error
            ) from error
        if digest(found) != self.identity:
            changed = list(differences(found, facts))
            raise RunError(
                "the folder holds another experiment",
                where=str(self.folder),
                found=", ".join(changed[:3]) + (" ..." if len(changed) > 3 else ""),
                hint="resume with the experiment that began it, or choose a new folder",
            )

    def _load(self, number: int) -> Checkpoint:
        place = self._path(number)
        with _reading(place):
            values = json.loads((place / "server.json").read_bytes())
            version = values["format"]
        if version != FORMAT:
            raise RunError(
                "checkpoint of another version",
                where=str(place),
                found=version,
                expected=FORMAT,
                hint="go on with the version of archgraph that wrote it",
            )
        with _reading(place):
            experiment, done, plain = values["experiment"], values["round"], values["values"]
            tensors: dict[str, torch.Tensor] = {}
            for at in range(len(values["groups"])):
                tensors |= load_file(_file(place, "groups", at))
            kept = {
                int(path.stem): load_file(path)
                for path in sorted((place / "clients").glob("*.safetensors"))
            }
        if experiment != self.identity or done != number:
            raise RunError(
                "checkpoint of another experiment",
                where=str(place),
                found=f"round {done} of {str(experiment)[:12]}",
                expected=f"round {number} of {self.identity[:12]}",
                hint="it was copied here from another run; delete it",
            )
        return Checkpoint(number, tensors, plain, kept)


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
def reserved(folder: Path) -> Iterator[None]:
    """Make sure that a run can be written to a folder, before any work; remove it if that fails.

    Raises:
        RunError: If the folder is not empty, is not a folder, or cannot be written.
    """
    made: list[Path] = []
    with _writing(folder):
        if folder.is_dir():
            if any(folder.iterdir()):
                raise RunError(
                    "the run folder is not empty",
                    where=str(folder),
                    hint="resume it, or choose another folder",
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


@contextlib.contextmanager
def _reading(place: Path) -> Iterator[None]:
    """Turn what goes wrong with the files of a checkpoint into an error that names it."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise RunError(
            "damaged checkpoint",
            where=str(place),
            found=f"{type(error).__name__}: {error}",
            hint="delete this folder to go on from the checkpoint before it",
        ) from error


def _file(checkpoint: Path, part: str, number: int) -> Path:
    """Where a group or what a client kept is; a number is a safe name, whatever it stands for."""
    return checkpoint / part / f"{number:06d}.safetensors"


def _groups(tensors: Tensors) -> dict[str, dict[str, torch.Tensor]]:
    """Tensors by the part of their names before the first slash, under their whole names.

    >>> {name: list(group) for name, group in _groups({"a/x": 0, "b": 1, "a/y/z": 2}).items()}
    {'a': ['a/x', 'a/y/z'], 'b': ['b']}
    """
    groups: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        groups.setdefault(name.partition("/")[0], {})[name] = tensor
    return groups


def _all_seen(groups: Mapping[str, Tensors]) -> dict[str, Seen]:
    """Which tensors there are, without keeping them alive."""
    return {
        group: {name: (weakref.ref(tensor), _changes(tensor)) for name, tensor in tensors.items()}
        for group, tensors in groups.items()
    }


def _same_tensors(tensors: Tensors, seen: Seen) -> bool:
    """Whether tensors are the very ones that were seen, unchanged since.

    A strategy never changes them in place (``ServerState``); changes that torch counts are seen.
    """
    return tensors.keys() == seen.keys() and all(
        seen[name][0]() is tensor
        and not tensor.is_inference()
        and seen[name][1] == _changes(tensor)
        for name, tensor in tensors.items()
    )


def _changes(tensor: torch.Tensor) -> int:
    """How often a tensor was changed in place; of those made to infer torch does not count."""
    return 0 if tensor.is_inference() else tensor._version


def _leftovers(folder: Path) -> Iterator[Path]:
    """Drafts that a crash left behind."""
    yield from folder.glob(".draft-*")
    yield from (folder / "checkpoints").glob(".draft-*")


def _remove(path: Path) -> None:
    """Remove a file, or a folder in one step as seen from outside."""
    if path.is_dir():
        if not path.name.startswith(".draft-"):
            path = path.rename(path.with_name(f".draft-{path.name}"))
        _each(Path.unlink, [inside for inside in path.glob("*/*") if inside.is_file()])
        shutil.rmtree(path)
    else:
        path.unlink()


def _save(path: Path, tensors: Tensors) -> None:
    """Write tensors as safetensors."""
    owned: dict[str, torch.Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous()
        # The format refuses tensors that share their memory: each is written on its own.
        if flat.untyped_storage().data_ptr() in storages:
            flat = flat.clone()
        storages.add(flat.untyped_storage().data_ptr())
        owned[name] = flat
    save_file(owned, path)


def _put(target: Path, tensors: Tensors, source: Path | None) -> list[Path]:
    """Link a file that holds these tensors already, if there is one; else write them.

    Returns:
        Files that are yet to be brought to the disk.
    """
    if source is not None and source.is_file():
        try:
            os.link(source, target)
            return []
        except OSError:  # a file system without links
            shutil.copyfile(source, target)
    else:
        _save(target, tensors)
    return [target]


def _each(action: Callable[[Path], object], paths: Iterable[Path]) -> None:
    """Do something with every file, several at a time: a disk does a thousand as fast as a few."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in pool.map(action, paths):
            pass
