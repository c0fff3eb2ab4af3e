"""A checkpoint: a folder of tensor files, which is either complete or absent.

::

    round-000007/SHA256SUMS                  digest of each file below, for `sha256sum -c`
    round-000007/server.json                 round, JSON values, groups
    round-000007/groups/000000.safetensors   the server's tensors, a file per group
    round-000007/clients/000012.safetensors  a client's private tensors

A group contains the tensors whose names agree up to the first slash. Files that did not change
since the previous checkpoint are hard links to its files.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import shutil
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch
from pydantic import BaseModel
from safetensors import SafetensorError

from archgraph.errors import RunError
from archgraph.files import sync, write
from archgraph.plain import Json
from archgraph.record.proof import prove, sha256
from archgraph.states import wire
from archgraph.states.state import State

T = TypeVar("T")

FORMAT = 5
SUMS = "SHA256SUMS"
# Number of files that are synced or removed in parallel.
AT_ONCE = 4

# A file's path in the checkpoint, its SHA-256, weak references to its tensors, and marks that
# reveal changes in place.
Saved = tuple[str, str, dict[str, tuple["weakref.ref[torch.Tensor]", int]]]


class _Lines(BaseModel, strict=True):
    """Length and SHA-256 of the first lines of ``metrics.jsonl``."""

    bytes: int
    sha256: str


class _Server(BaseModel, strict=True):
    """The content of ``server.json`` except its version."""

    experiment: str
    round: int
    groups: list[str]
    values: dict[str, Json]
    metrics: _Lines
    environments: list[dict[str, Json]]


@dataclass(frozen=True)
class Checkpoint:
    """Everything that a run needs to resume after a round.

    Attributes:
        round: Number of completed rounds.
        tensors: Dict from name to tensor of the server.
        values: Dict from name to JSON value of the server.
        private: Dict from client to its private state.
    """

    round: int
    tensors: State
    values: Mapping[str, Json]
    private: Mapping[int, State]

    def copy(self) -> Checkpoint:
        """Return a deep copy, which is not affected by later changes in place."""
        private = {client: _cloned(state) for client, state in self.private.items()}
        values = copy.deepcopy(dict(self.values))
        return Checkpoint(self.round, _cloned(self.tensors), values, private)


def _cloned(tensors: State) -> State:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


@dataclass
class Writer:
    """Writes the checkpoints of a run. Unchanged files become links to the previous checkpoint.

    Attributes:
        identity: Digest of the experiment, which each checkpoint contains.
    """

    identity: str
    # Dict from group or client to its file in the last checkpoint.
    _saved: dict[str | int, Saved] = field(default_factory=dict)

    def after(self, checkpoint: Checkpoint, digests: Mapping[str, str]) -> None:
        """Record the content and the SHA-256 digests of the last checkpoint.

        A file that is linked later keeps its digest, without being read again.
        """
        self._saved = {}
        for key, (name, state) in _files(checkpoint).items():
            # Weak references, so that tensors that the strategy drops are freed.
            seen = {k: (weakref.ref(tensor), _mark(key, tensor)) for k, tensor in state.items()}
            self._saved[key] = name, digests[name], seen

    def save(
        self,
        checkpoint: Checkpoint,
        path: Path,
        previous: Path | None,
        beside: Mapping[str, Json],
    ) -> None:
        """Write a checkpoint next to its path, sync it to disk and rename it.

        Args:
            checkpoint: The checkpoint. A file is linked if its tensors are the same objects as at
                the last call and have not changed.
            path: Folder of the new checkpoint.
            previous: Folder of the last checkpoint, if any.
            beside: Additional values for ``server.json``.
        """
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=path.parent))
        folders = [draft / "groups", draft / "clients"]
        try:
            for folder in folders:
                folder.mkdir()
            digests: dict[str, str] = {}
            written: list[str] = []
            for key, (name, tensors) in _files(checkpoint).items():
                past, known, seen = self._saved.get(key, ("", "", {}))
                # In the order of the files.
                digests[name] = known
                same = past and _same_tensors(key, tensors, seen)
                if previous is None or not same or not _link(draft / name, previous / past):
                    wire.save_tensors(draft / name, tensors)
                    written.append(name)
            # In threads, because digests and syncs mostly wait for the disk.
            digests.update(zip(written, each(_settle, (draft / n for n in written)), strict=True))
            values = {
                "format": FORMAT,
                "experiment": self.identity,
                "round": checkpoint.round,
                "groups": list(_groups(checkpoint.tensors)),
                "values": checkpoint.values,
                **beside,
            }
            digests["server.json"] = sha256(write(draft / "server.json", json.dumps(values)))
            sums = (f"{digest}  {name}\n" for name, digest in digests.items())
            write(draft / SUMS, "".join(sums))
            # The folders are synced, too: they contain the names of the files.
            for folder in (*folders, draft):
                sync(folder)
            draft.chmod(0o755)  # mkdtemp makes private folders
            # The content is on disk before the folder gets its name.
            draft.replace(path)
            sync(path.parent)
        finally:
            shutil.rmtree(draft, ignore_errors=True)  # was renamed, unless writing failed
        self.after(checkpoint, digests)


def read_checkpoint(
    path: Path, identity: str
) -> tuple[Checkpoint, dict[str, Json], dict[str, str]]:
    """Read a checkpoint, the content of its ``server.json``, and the SHA-256 of each file.

    Raises:
        RunError: If a file has changed, or the checkpoint belongs to another version, experiment or
            round.
    """
    number = int(path.name.removeprefix("round-"))
    server = path / "server.json"
    with reading(server):
        values = dict(json.loads(server.read_bytes()))
        version = values["format"]
    if version != FORMAT:
        raise RunError(
            "checkpoint of another version",
            where=str(server),
            found=version,
            expected=FORMAT,
            hint="resume with the version of archgraph that wrote it",
        )
    with reading(server):
        # A digest is not a signature: if it was replaced, too, the content may be anything.
        _Server.model_validate(values)
    if (values["experiment"], values["round"]) != (identity, number):
        raise RunError(
            "checkpoint of another experiment or round",
            where=str(server),
            found=f"round {values['round']} of {values['experiment'][:12]}",
            expected=f"round {number} of {identity[:12]}",
        )
    with reading(path / SUMS):
        lines = (path / SUMS).read_text(encoding="utf-8").splitlines()
        digests = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    with reading(path):
        prove(path, digests)
        tensors: dict[str, torch.Tensor] = {}
        for at in range(len(values["groups"])):
            tensors |= wire.load_tensors(path / _file("groups", at))
        clients = [Path(name) for name in sorted(digests) if name.startswith("clients/")]
        private = {int(name.stem): wire.load_tensors(path / name) for name in clients}
    return Checkpoint(number, tensors, values["values"], private), values, digests


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert errors about the files of a checkpoint to an error that names the checkpoint."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise RunError(
            "damaged checkpoint", where=str(path), found=f"{type(error).__name__}: {error}"
        ) from error


def _file(part: str, number: int) -> str:
    """Return the path of a file in a checkpoint. Files are numbered, since names may be unsafe."""
    return f"{part}/{number:06d}.safetensors"


def _files(checkpoint: Checkpoint) -> dict[str | int, tuple[str, State]]:
    """Return a dict from group or client to the path and the tensors of its file."""
    groups = _groups(checkpoint.tensors)
    return {
        **{name: (_file("groups", i), group) for i, (name, group) in enumerate(groups.items())},
        **{i: (_file("clients", i), state) for i, state in checkpoint.private.items()},
    }


def _groups(tensors: State) -> dict[str, dict[str, torch.Tensor]]:
    """Group tensors by the part of their names before the first slash.

    >>> {name: list(group) for name, group in _groups({"a/x": 0, "b": 1, "a/y/z": 2}).items()}
    {'a': ['a/x', 'a/y/z'], 'b': ['b']}
    """
    groups: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        groups.setdefault(name.partition("/")[0], {})[name] = tensor
    return groups


def _same_tensors(
    key: str | int, tensors: State, seen: Mapping[str, tuple[weakref.ref[torch.Tensor], int]]
) -> bool:
    """Return whether a file's tensors are the same objects as before, and unchanged."""
    return list(tensors) == list(seen) and all(
        seen[name][0]() is tensor and seen[name][1] == _mark(key, tensor)
        for name, tensor in tensors.items()
    )


def _mark(key: str | int, tensor: torch.Tensor) -> int:
    """Return a value that changes if a tensor is changed in place.

    For a tensor of a group, it is the CRC-32 of the values, because a strategy may write its
    tensors in ways that torch does not count (``.data``, NumPy). Private tensors of clients leave
    the engine only as copies, so torch's version counter is enough for them.
    """
    if isinstance(key, int):
        return tensor._version
    return zlib.crc32(wire.raw(tensor))


def _link(target: Path, source: Path) -> bool:
    """Link to a file that already contains the tensors; return whether this succeeded."""
    with contextlib.suppress(OSError):
        os.link(source, target)
        return True
    return False


def _settle(path: Path) -> str:
    """Sync a file that was just written, and return its SHA-256."""
    digest = sha256(path)  # fast, since the system still caches the file
    sync(path)
    return digest


def each(action: Callable[[Path], T], paths: Iterable[Path]) -> list[T]:
    """Apply a function to every file, in parallel threads, and return the results in order."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(action, paths))
