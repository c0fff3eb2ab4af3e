"""Several studies, one after the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from archgraph.errors import DataError, RunError
from archgraph.language.checking import yaml_files
from archgraph.studies.spec import StudySizeName, StudySpec, load_study


def studies(
    paths: Iterable[str | os.PathLike[str]], run: Callable[[Path], object], size: StudySizeName
) -> tuple[dict[str, str], dict[str, str]]:
    """Run studies one after the other; return those that lack the size or data, and what they need.

    Args:
        paths: Study files, or folders of them.
        run: Runs one of them.
        size: The size; studies that do not have it are not run.

    Raises:
        SpecError: If a file does not exist or cannot be understood.
        RunError: If none of them has the size, or two files have the same name.
        DataError: If the data of all of them is missing.
    """
    specs = {path: load_study(path) for path in yaml_files(paths)}
    having = _having(specs, size)
    left = {
        spec.study: " ".join(one.about for one in spec.sizes.values() if one.about) or spec.about
        for spec in specs.values()
        if size not in spec.sizes
    }
    lacking: dict[str, str] = {}
    for path in having:
        try:
            run(path)
        except DataError as error:
            lacking[specs[path].study] = str(error)
            if len(lacking) == len(having):
                raise
    return left, lacking


def _having(specs: Mapping[Path, StudySpec], size: StudySizeName) -> list[Path]:
    """Return the files of the studies that have a size.

    Raises:
        RunError: If there are none, or two of the same name.
    """
    having = [path for path, spec in specs.items() if size in spec.sizes]
    if not having:
        raise RunError(
            f"no study of this size, {size}",
            where=", ".join(map(str, specs)),
            expected=" or ".join(sorted({name for spec in specs.values() for name in spec.sizes})),
        )
    stems = [path.stem for path in having]
    if twice := [path for path in having if stems.count(path.stem) > 1]:
        raise RunError(
            "would be written into the same files: rename one", where=" and ".join(map(str, twice))
        )
    return having
