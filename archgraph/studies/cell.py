"""The run of a cell: the name of its folder, and whether the run has finished."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from archgraph.engine.facts import NOT_FACTS, code_of, family_of, settled
from archgraph.federation import configure
from archgraph.language import ExperimentSpec
from archgraph.language.data import NamedData
from archgraph.plain import Json, digest
from archgraph.record.folder import read_metrics
from archgraph.record.proof import sha256
from archgraph.studies.origin import SIGNS, versions


def address(spec: ExperimentSpec, trivial: str = "") -> str:
    """Return the name of an experiment's run folder, which equal experiments of all studies share.

    It depends on everything that affects the results: the settings, including the defaults, the
    tests, the user's code, and the versions in :func:`archgraph.studies.origin.versions`. It does
    not depend on the names of the experiment and its files, or on its trackers.

    Args:
        spec: The experiment.
        trivial: Name of a trivial model (:mod:`archgraph.studies.trivial`) that is fitted to the
            experiment's examples in place of a run; empty for a run.

    Raises:
        SpecError: If the strategy is unknown, or its options are invalid.
    """
    with spec.locating("strategy"):
        strategy = configure(spec.strategy_name, spec.strategy_options)
    values = settled(spec, strategy, every=not spec.data.known)
    for name in (*NOT_FACTS, "seed"):
        values.pop(name, None)
    values |= _of_files(spec, values)
    family = family_of(spec)
    clients = family.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"name"})
    for member in (clients, *clients["clients"]):
        if member.get("model") not in (None, "join"):
            member["model"] = "below"  # the contents of these files are in `models`
    models = [source.data for source in family.sources()]
    settings: Mapping[str, Json] = {**values, "family": clients, "models": models}
    if code := code_of(spec, strategy):
        settings = {**settings, "code": code}
    if trivial:
        settings = {**settings, "trivial": trivial}
    # Strategy and seed make the name readable; the digest identifies the run.
    name = trivial or spec.strategy_name.rpartition(":")[2]
    return f"{name}-{digest(settings)[:SIGNS]}-seed{spec.seed}{versions()}"


def _of_files(spec: ExperimentSpec, values: Mapping[str, Json]) -> dict[str, Json]:
    """Return the content of the experiment's files, because their paths depend on the machine."""
    contents: dict[str, Json] = {}
    if spec.weights is not None:
        more = spec.weights.model_dump(mode="json", exclude={"file", "published", "sha256"})
        content = spec.weights.sha256 or _content(Path(spec.weights.file))
        contents["weights"] = {"of": content, **more}
    if not spec.data.known:  # the user's own
        places = {key: getattr(spec.data, key) for key in spec.data.located}
        files = {k: _content(Path(at)) for k, at in places.items() if isinstance(at, str)}
        contents["data"] = {**values["data"], **files}
    if isinstance(spec.data, NamedData) and spec.data.tokenizer is not None:
        file = Path(spec.data.tokenizer)
        contents["tokenizer"] = _content(file / "tokenizer.json" if file.is_dir() else file)
    return contents


def _content(path: Path) -> str:
    """Return the digest of a file, or of all files of a folder; if it is missing, its name."""
    if path.is_dir():
        files = sorted(inside for inside in path.rglob("*") if inside.is_file())
        return digest({one.relative_to(path).as_posix(): _content(one) for one in files})
    if not path.is_file():
        return path.name
    state = path.stat()
    return _sum(path, state.st_size, state.st_mtime_ns)


@functools.lru_cache(maxsize=1 << 16)
def _sum(path: Path, size: int, changed: int) -> str:
    """Return the digest of a file; cached, since cells and seeds share their data."""
    return sha256(path)


def finished(folder: Path, spec: ExperimentSpec) -> bool:
    """Return whether the run of an experiment in a folder has finished."""
    if not (folder / "run.yaml").is_file():
        return False
    lines = read_metrics(folder)
    return bool(lines) and (lines[-1]["round"] >= spec.rounds or bool(lines[-1].get("stopped")))
