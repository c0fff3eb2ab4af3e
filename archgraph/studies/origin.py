"""The origin of a record: the program and the machine that computed its results."""

from __future__ import annotations

import ast
import datetime
import functools
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from archgraph.engine.bits import BITS
from archgraph.hints import version
from archgraph.plain import Json, digest
from archgraph.record.proof import notes

# Number of characters of a digest in folder names and in tables.
SIGNS = 16
UNCOMMITTED = "uncommitted changes"
_FOLDER = Path(__file__).parents[1]
_MARK = "-bits"


def versions() -> str:
    """Return the last part of a run's address: the versions of programs that affect results.

    Builds of torch for different devices have the same version here; records name the build.
    """
    torch_release, numpy_release = (m.__version__.partition("+")[0] for m in (torch, np))
    return f"{_MARK}{BITS}-torch{torch_release}-numpy{numpy_release}"


def settings_part(address: str) -> str:
    """Return a run's address without the versions.

    >>> settings_part("fedavg-1f2e-seed0-bits1-torch2.13.0-numpy2.4.6")
    'fedavg-1f2e-seed0'
    """
    return address.partition(_MARK)[0]


@functools.cache
def program() -> dict[str, Json]:
    """Return version, digest and commit of the code that this process runs.

    ``code`` is the digest of the syntax trees of all modules, without docstrings. It is recorded
    for information, and does not identify a run.
    """
    # By name: the folder of strategies is a link in the repository.
    files = {*_FOLDER.rglob("*.py"), *(_FOLDER / "strategies").glob("*.py")}
    trees = {file.relative_to(_FOLDER).as_posix(): _without_docstrings(file) for file in files}
    return {
        "numpy": np.__version__,
        "archgraph": version(),
        "bits": BITS,
        "code": digest(trees)[:SIGNS],
        "commit": _commit(),
    }


def _without_docstrings(file: Path) -> str:
    tree = ast.parse(file.read_bytes())
    for node in ast.walk(tree):
        match node:
            case ast.AST(body=[ast.Expr(value=ast.Constant()) as first, *_] as body):  # type: ignore[misc]
                body.remove(first)
    return ast.unparse(tree)


def _commit() -> str:
    """Return the commit of this code; empty for code outside a repository (an installed wheel)."""
    # With the name of a file, because a wheel may be installed inside another repository.
    commit = _git("rev-parse", "HEAD", "HEAD:./__init__.py")
    changed = commit and _git("status", "--porcelain", "--", ".", "../strategies")
    return UNCOMMITTED if changed else (commit or "")[:12]


@functools.cache
def in_history(commit: str) -> bool:
    """Return whether a commit is the current commit of this repository or an ancestor of it."""
    return _git("merge-base", "--is-ancestor", commit, "HEAD") is not None


def _git(*words: str) -> str | None:
    """Return the output of git; None if it fails or does not exist."""
    command = ["git", "-C", str(_FOLDER), *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


def origin(
    environments: Sequence[Mapping[str, Json]], program: Mapping[str, Json]
) -> dict[str, Json]:
    """Return the origin of a run: machine, program and date.

    Args:
        environments: The environments of the run in order; see
            :func:`archgraph.record.proof.environment`.
        program: Result of :func:`program` in the process of the run; empty if unknown.
    """
    facts = {k: v for k, v in environments[-1].items() if k not in ("since", "rounds", "code")}
    resumed = {"resumed": moved} if (moved := [*notes(environments)]) else {}
    return {**facts, **resumed, **program, "date": datetime.date.today().isoformat()}
