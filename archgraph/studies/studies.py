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
    """Run studies one after the other.

    Args:
        paths: Study files, or folders that contain study files.
        run: Function that runs one study.
        size: The size to run. Studies that do not define this size are not run.

    Returns:
        Two dicts from the name of a study that was not run. The first contains studies that do not
        define the size, with their notes. The second contains studies whose data is missing, with
        the error.

    Raises:
        SpecError: If a file does not exist or is invalid.
        RunError: If no study defines the size, or two files have the same name.
        DataError: If the data of all studies is missing.
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
    """Return the files of the studies that define a size.

    Raises:
        RunError: If there are none, or two files have the same name.
    """
    having = [path for path, spec in specs.items() if size in spec.sizes]
    if not having:
        raise RunError(
            f"no study defines the size {size}",
            where=", ".join(map(str, specs)),
            expected=" or ".join(sorted({name for spec in specs.values() for name in spec.sizes})),
        )
    stems = [path.stem for path in having]
    if twice := [path for path in having if stems.count(path.stem) > 1]:
        raise RunError(
            "would write to the same files: rename one of them", where=" and ".join(map(str, twice))
        )
    return having
