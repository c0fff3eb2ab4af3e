"""Verification of checkpoints: digests of files, and the environment of the computation."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from archgraph.errors import RunError
from archgraph.machine import processor
from archgraph.plain import Json, differences


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def prove(folder: Path, files: Mapping[str, str]) -> None:
    """Check that a checkpoint's folder contains these files, and no other files with tensors.

    Args:
        folder: The folder.
        files: Dict from the path of each file in the folder to its SHA-256.

    Raises:
        RunError: If a file is missing, was added, or has another content; names the file.
    """
    paths = (folder / "server.json", *folder.glob("*/*.safetensors"))
    present = {path.relative_to(folder).as_posix() for path in paths}
    for name in sorted({*files, *present}):
        expect(folder / name, sha256(folder / name) if name in present else None, files.get(name))


def expect(path: Path, actual: str | None, expected: str | None) -> None:
    """Compare the digest of a file with the expected digest; None stands for a missing file.

    Raises:
        RunError: If the digests differ.
    """
    if actual != expected:
        now, then = ("no file" if x is None else f"SHA-256 {x[:12]}…" for x in (actual, expected))
        message = "changed since the checkpoint was written"
        raise RunError(message, where=str(path), found=now, expected=then)


def environment(device: str = "cpu") -> dict[str, Json]:
    """Return the computing environment, which may affect the last bits of results.

    It is not part of an experiment's identity.

    >>> list(environment())
    ['torch', 'threads', 'device', 'processor', 'instructions']
    """
    gpu = torch.device(device).type == "cuda"
    return {
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if gpu else device,
        "processor": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


def changed_code(before: Mapping[str, Json], after: Mapping[str, Json]) -> str:
    """Return the names of the user's modules whose digests (``code``) differ.

    >>> changed_code({"code": {"a": "1f", "b": "2e"}}, {"code": {"a": "1f", "b": "77"}})
    'b'
    """
    then, now = before.get("code"), after.get("code") or {}
    if then is None:  # an older record
        return ""
    return ", ".join(name for name in sorted({*then, *now}) if then.get(name) != now.get(name))


def notes(environments: Sequence[Mapping[str, Json]]) -> Iterator[str]:
    """Yield a note for each time that a run was resumed in another environment.

    Args:
        environments: The environments in order. Each contains the first round that was computed in
            it (`since`), and the digests of the user's modules (`code`), which older records lack.

    Example:
        >>> list(notes([{"since": 1, "threads": 1}, {"since": 4, "threads": 2}]))
        ['from round 4, threads: 2 instead of 1: the last digits of results may differ']
        >>> list(
        ...     notes([{"since": 1, "code": {"mine": "1f"}}, {"since": 4, "code": {"mine": "2e"}}])
        ... )
        ['mine changed: rounds before 4 ran the old code']
    """
    apart = {"since": None, "code": None}
    for before, after in itertools.pairwise(environments):
        start = f"from round {after['since']}"
        if changed := ", ".join(differences({**after, **apart}, {**before, **apart})):
            yield f"{start}, {changed}: the last digits of results may differ"
        if modules := changed_code(before, after):
            yield f"{modules} changed: rounds before {after['since']} ran the old code"
        elif before.get("code") is None and after.get("code"):
            yield f"your code is recorded only {start}; earlier rounds may have run other code"
