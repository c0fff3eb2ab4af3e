"""Many studies: one page of what was measured, and of what was not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from archgraph.engine.verdicts import files
from archgraph.errors import DataError, RunError
from archgraph.language.study import StudySizeName, StudySpec, load_study
from archgraph.papers.study import StudyResult
from archgraph.papers.study_tables import study_markdown
from archgraph.tables import Table

_VERDICTS = ("holds", "does not hold", "undecided", "not measured")


@dataclass(frozen=True)
class Studies:
    """What came of several studies in one size.

    Attributes:
        size: The size.
        results: Of the studies that have it, by file.
        others: The studies that do not have it, or whose data are not there, by file.
        lacking: What data to fetch for these, by file.
    """

    size: StudySizeName
    results: Mapping[Path, StudyResult]
    others: Mapping[Path, StudySpec]
    lacking: Mapping[Path, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Of all finished runs, each counted once."""
        each = {k: v for result in self.results.values() for k, v in result.seconds.items()}
        return sum(each.values())

    def summary(self) -> Table:
        """A line for each study: its runs and its claims."""
        rows = []
        for result in self.results.values():
            told = [one.verdict.partition(":")[0] for one in result.findings]
            many = len({one.folder for one in result.runs})
            counts = [str(told.count(verdict)) for verdict in _VERDICTS]
            cells = f"{result.done} of {len(result.runs)}"
            minutes = f"{sum(result.seconds.values()) / 60:.0f}"
            rows.append((result.spec.study, cells, str(many), minutes, *counts))
        return Table(
            f"Studies, size {self.size}",
            ("study", "cells done", "runs", "minutes", *(f"claims: {v}" for v in _VERDICTS)),
            tuple(rows),
            frozenset(range(1, 4 + len(_VERDICTS))),
            note="a run that several studies share is counted in each; minutes: of one process, "
            "added up over the runs; a claim counts once for each pair of cells that it compares",
        )

    def left(self) -> Table:
        """The studies that are not run in this size, and what they need."""
        rows = tuple(
            (spec.study, self.lacking.get(path) or needs(spec))
            for path, spec in self.others.items()
        )
        return Table(f"Not run in size {self.size}", ("study", "why"), rows)

    def _begun_not(self) -> list[str]:
        """The studies of this size of which no run is done, in a sentence."""
        names = [result.spec.study for result in self.results.values() if not result.done]
        return [f"No run is done yet of: {'; '.join(names)}."] if names else []

    def markdown(self) -> str:
        """A page: the summary, every table with a figure, and what is left."""
        parts = [
            "# Published tables, measured",
            "Tables of the papers that files in `specs/studies/` describe, as far as their runs of "
            f"size {self.size} are done: measured beside printed, with the claims judged. "
            "{doc}`studies` explains files and verdicts. Written by `make studies`, which goes on "
            f"where it stopped. All finished runs together took {self.seconds / 3600:.1f} hours of "
            "one process.",
            self.summary().markdown(),
            *self._begun_not(),
            *(study_markdown(result).rstrip() for result in self.results.values() if result.done),
        ]
        if self.others:
            parts += [f"## {self.left().title}", self.left().markdown()]
        return "\n\n".join(parts) + "\n"


def needs(spec: StudySpec) -> str:
    """What a study that lacks a size says about the sizes it has."""
    return " ".join(size.about for size in spec.sizes.values() if size.about) or spec.about


def studies(
    paths: Iterable[str | os.PathLike[str]],
    run: Callable[[Path], StudyResult],
    *,
    size: StudySizeName = "small",
) -> Studies:
    """Run studies one after the other.

    Args:
        paths: Study files, or folders of them.
        run: Runs one of them.
        size: The size; studies that do not have it are listed and not run.

    Raises:
        SpecError: If a file is not there or cannot be understood.
        RunError: If none of them has the size, or two have the same name.
        DataError: If the data of none of them are there; else those that lack data are listed.
    """
    found = {path: load_study(path) for path in files(paths)}
    having = [path for path, spec in found.items() if size in spec.sizes]
    if not having:
        raise RunError(
            f"no study of this size, {size}",
            where=", ".join(map(str, found)),
            expected=" or ".join(sorted({name for spec in found.values() for name in spec.sizes})),
        )
    stems = [path.stem for path in having]
    twice = [path for path in having if stems.count(path.stem) > 1]
    if twice:
        raise RunError(
            "would be written into the same files",
            where=" and ".join(map(str, twice)),
            expected="studies of different names",
        )
    results: dict[Path, StudyResult] = {}
    lacking: dict[Path, str] = {}
    for path in having:
        try:
            results[path] = run(path)
        except DataError as error:
            lacking[path] = str(error)
            if len(lacking) == len(having):
                raise
    others = {path: spec for path, spec in found.items() if path not in results}
    return Studies(size, results, others, lacking)
