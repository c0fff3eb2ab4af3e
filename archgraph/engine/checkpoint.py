"""A checkpoint as a folder of tensors: complete or absent, and as large as what changed.

::

    round-000007/server.json                 round, plain values, the groups in order of their files
    round-000007/groups/000000.safetensors   the server's tensors, a file per group
    round-000007/clients/000012.safetensors  what a client keeps

A group holds the tensors whose names agree before the first slash. What did not change since the
checkpoint before is a link to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from archgraph.errors import RunError
from archgraph.files import sync, write
from archgraph.plain import Json
from archgraph.states.state import State

FORMAT = 2
# Files that are brought to the disk, or removed from it, together.
AT_ONCE = 4

# Of a file: its place in the checkpoint, and its tensors without keeping them alive: which objects,
# and how often each had been changed in place.
Saved = tuple[str, dict[str, tuple["weakref.ref[torch.Tensor]", int]]]


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
    tensors: State
    values: Mapping[str, Json]
    kept: Mapping[int, State]


@dataclass
class Writer:
    """Writes checkpoints one after the other; what did not change becomes a link.

    Attributes:
        identity: Digest of the experiment; a checkpoint of another one is refused.
    """

    identity: str
    # Files of the last checkpoint, by group or client.
    _saved: dict[str | int, Saved] = field(default_factory=dict)

    def after(self, checkpoint: Checkpoint) -> None:
        """Note what the last checkpoint holds, as it was loaded or written."""
        self._saved = {
            key: (name, {k: (weakref.ref(v), _changes(v)) for k, v in tensors.items()})
            for key, (name, tensors) in _files(checkpoint).items()
        }

    def save(self, checkpoint: Checkpoint, place: Path, previous: Path | None) -> None:
        """Write a checkpoint beside its place, bring it to the disk and rename it.

        Args:
            checkpoint: What to write. Files whose tensors are the same objects as at the last call,
                unchanged, are linked.
            place: Folder that will hold it.
            previous: Folder of the last checkpoint, if there is one.
        """
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=place.parent))
        folders = [draft / "groups", draft / "clients"]
        try:
            for folder in folders:
                folder.mkdir()
            written: list[Path] = []
            for key, (name, tensors) in _files(checkpoint).items():
                past, seen = self._saved.get(key, ("", {}))
                same = previous is not None and past and _same_tensors(tensors, seen)
                source = previous / past if previous is not None and same else None
                written += _put(draft / name, tensors, source)
            each(sync, written)
            values = {
                "format": FORMAT,
                "experiment": self.identity,
                "round": checkpoint.round,
                "groups": list(_groups(checkpoint.tensors)),
                "values": checkpoint.values,
            }
            write(draft / "server.json", json.dumps(values))
            for folder in (*folders, draft):
                sync(folder)
            draft.chmod(0o755)
            draft.replace(place)
            sync(place.parent)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        self.after(checkpoint)


def load(place: Path, identity: str) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        RunError: If it is damaged, of another version or of another experiment.
    """
    number = int(place.name.removeprefix("round-"))
    with reading(place):
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
    with reading(place):
        experiment, done, plain = values["experiment"], values["round"], values["values"]
        tensors: dict[str, torch.Tensor] = {}
        for at in range(len(values["groups"])):
            tensors |= load_file(place / _file("groups", at))
        kept = {
            int(path.stem): load_file(path)
            for path in sorted((place / "clients").glob("*.safetensors"))
        }
    if experiment != identity or done != number:
        raise RunError(
            "checkpoint of another experiment",
            where=str(place),
            found=f"round {done} of {str(experiment)[:12]}",
            expected=f"round {number} of {identity[:12]}",
            hint="it was copied here from another run; delete it",
        )
    return Checkpoint(number, tensors, plain, kept)


@contextlib.contextmanager
def reading(place: Path) -> Iterator[None]:
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


def _file(part: str, number: int) -> str:
    """Place of a file in a checkpoint; a number is a safe name, whatever it stands for."""
    return f"{part}/{number:06d}.safetensors"


def _files(checkpoint: Checkpoint) -> dict[str | int, tuple[str, State]]:
    """Place and tensors of each file, by the group or client whose they are."""
    groups = _groups(checkpoint.tensors)
    return {
        **{name: (_file("groups", i), group) for i, (name, group) in enumerate(groups.items())},
        **{client: (_file("clients", client), kept) for client, kept in checkpoint.kept.items()},
    }


def _groups(tensors: State) -> dict[str, dict[str, torch.Tensor]]:
    """State by the part of their names before the first slash, under their whole names.

    >>> {name: list(group) for name, group in _groups({"a/x": 0, "b": 1, "a/y/z": 2}).items()}
    {'a': ['a/x', 'a/y/z'], 'b': ['b']}
    """
    groups: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        groups.setdefault(name.partition("/")[0], {})[name] = tensor
    return groups


def _same_tensors(
    tensors: State, seen: Mapping[str, tuple[weakref.ref[torch.Tensor], int]]
) -> bool:
    """Whether tensors are the very ones that were seen; changes in place that torch counts show."""
    return tensors.keys() == seen.keys() and all(
        seen[name][0]() is tensor
        and not tensor.is_inference()
        and seen[name][1] == _changes(tensor)
        for name, tensor in tensors.items()
    )


def _changes(tensor: torch.Tensor) -> int:
    """How often a tensor was changed in place; of those made to infer torch does not count."""
    return 0 if tensor.is_inference() else tensor._version


def _save(path: Path, tensors: State) -> None:
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


def _put(target: Path, tensors: State, source: Path | None) -> list[Path]:
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


def each(action: Callable[[Path], object], paths: Iterable[Path]) -> None:
    """Do something with every file, several at a time: a disk does a thousand as fast as a few."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in pool.map(action, paths):
            pass
