"""The origin of a record: the program that computed its figures, and the machine."""

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

# Characters of a digest in the name of a folder and in tables.
SIGNS = 16
UNCOMMITTED = "uncommitted changes"
_FOLDER = Path(__file__).parents[1]
_MARK = "-bits"


def versions() -> str:
    """Return the end of an address: the versions that decide figures, apart from settings.

    Builds of one torch for several devices have one version: records name the build.
    """
    torch_release, numpy_release = (m.__version__.partition("+")[0] for m in (torch, np))
    return f"{_MARK}{BITS}-torch{torch_release}-numpy{numpy_release}"


def settings_part(address: str) -> str:
    """Return an address without its versions.

    >>> settings_part("fedavg-1f2e-seed0-bits1-torch2.13.0-numpy2.4.6")
    'fedavg-1f2e-seed0'
    """
    return address.partition(_MARK)[0]


@functools.cache
def program() -> dict[str, Json]:
    """Return version, digest and commit of the code that this process runs.

    ``code`` is the digest of the syntax trees of all modules, without docstrings. It does not
    decide anything.
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
    """Return the commit of this code; empty if it is not in a repository, as an installed wheel."""
    # With a file of ours: a wheel may be installed within another repository.
    commit = _git("rev-parse", "HEAD", "HEAD:./__init__.py")
    changed = commit and _git("status", "--porcelain", "--", ".", "../strategies")
    return UNCOMMITTED if changed else (commit or "")[:12]


@functools.cache
def in_history(commit: str) -> bool:
    """Return whether a commit is the current one of this repository, or one before it."""
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
    """Return the origin of a run: machine, program, date.

    Args:
        environments: Where it was computed, one after the other; see
            :func:`archgraph.record.proof.environment`.
        program: Result of :func:`program` in its process; empty if it is not known.
    """
    facts = {k: v for k, v in environments[-1].items() if k not in ("since", "rounds", "code")}
    resumed = {"resumed": moved} if (moved := [*notes(environments)]) else {}
    return {**facts, **resumed, **program, "date": datetime.date.today().isoformat()}
