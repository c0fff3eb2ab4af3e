"""Many studies: pages of what was measured, one for each paper, and of what was not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from archgraph.errors import DataError, RunError, SpecError
from archgraph.files import write
from archgraph.language.checking import yaml_files
from archgraph.studies.earlier import EarlierStudy, earlier_studies
from archgraph.studies.spec import StudySizeName, StudySpec, load_study
from archgraph.studies.study import StudyResult, chosen_cells
from archgraph.studies.study_tables import study_markdown
from archgraph.tables import Table

INDEX = "index.md"
# Behind the figures of a study that come from an earlier page.
RETAINED = " *"
_VERDICTS = ("holds", "does not hold", "undecided", "not measured")


@dataclass(frozen=True)
class Studies:
    """What came of several studies in one size.

    Attributes:
        size: The size.
        results: Of the studies that have it, by file.
        others: The studies that do not have it, or whose data are not there, by file.
        lacking: What data to fetch for these, by file.
        earlier: What pages that were written before say, by the names of the studies.
    """

    size: StudySizeName
    results: Mapping[Path, StudyResult]
    others: Mapping[Path, StudySpec]
    lacking: Mapping[Path, str] = field(default_factory=dict)
    earlier: Mapping[str, EarlierStudy] = field(default_factory=dict)

    @property
    def retained(self) -> Mapping[str, EarlierStudy]:
        """The studies of :attr:`earlier` of which more was done then than is there now.

        Of a study that has changed since, only while nothing is there.
        """
        now = {result.spec.study: result for result in self.results.values()}
        return {
            name: old
            for name, old in self.earlier.items()
            if (one := now.get(name)) is not None
            and old.size == self.size
            and (old.done > one.done if old.stamp == one.stamp else not one.done)
        }

    @property
    def seconds(self) -> float:
        """Time of all finished runs, each counted once; of retained studies as the pages say."""
        each: dict[Path, float] = {}
        for result in self.results.values():
            if (one := self.retained.get(result.spec.study)) is not None:
                folders = {run.folder for run in result.runs}
                each.update(dict.fromkeys(folders, 60 * one.minutes / max(len(folders), 1)))
        for result in self.results.values():  # what is measured replaces what was read
            each.update(result.seconds)
        return sum(each.values())

    def summary(self) -> Table:
        """Tabulate the studies, a line for each: its runs and its claims."""
        rows = []
        for result in self.results.values():
            if (one := self.retained.get(result.spec.study)) is not None and one.row:
                name, done, *rest = one.row
                rows.append((name, done.removesuffix(RETAINED) + RETAINED, *rest))
                continue
            verdicts = [one.verdict.partition(":")[0] for one in result.findings]
            many = len({one.folder for one in result.runs})
            counts = [str(verdicts.count(verdict)) for verdict in _VERDICTS]
            cells = f"{result.done} of {len(result.runs)}"
            minutes = f"{sum(result.seconds.values()) / 60:.0f}"
            rows.append((result.spec.study, cells, str(many), minutes, *counts))
        note = (
            "a run that several studies share is counted in each; minutes: of one process, "
            "added up over the runs; a claim counts once for each pair of cells that it compares"
        )
        if self.retained:
            note += f";{RETAINED}: as these pages had it, the runs are no longer there"
        heads = ("study", "cells done", "runs", "minutes", *(f"claims: {v}" for v in _VERDICTS))
        right = frozenset(range(1, len(heads)))
        return Table(f"Studies, size {self.size}", heads, tuple(rows), right, note=note)

    def left(self) -> Table:
        """Tabulate the studies that are not run in this size, and what they need."""
        rows = tuple(
            (spec.study, self.lacking.get(path) or needs(spec))
            for path, spec in self.others.items()
        )
        return Table(f"Not run in size {self.size}", ("study", "why"), rows)

    def _begun_not(self) -> list[str]:
        """Name the studies of this size of which no run is done, in a sentence."""
        names = [result.spec.study for result in self._results(known=False)]
        return [f"No run is done yet of: {'; '.join(names)}."] if names else []

    def _hours(self) -> str:
        hours = self.seconds / 3600
        return f"about {hours:.0f} hours" if self.retained else f"{hours:.1f} hours"

    def _results(self, *, known: bool) -> list[StudyResult]:
        """Return the results of which something is known, or those of which nothing is."""
        every = self.results.values()
        return [one for one in every if bool(one.done or one.spec.study in self.retained) == known]

    def pages(self) -> Mapping[str, str]:
        """Return the pages as Markdown, by file name.

        ``index.md`` is the summary; every other page has all tables of one paper with a figure.
        """
        papers: dict[str, list[StudyResult]] = {}
        for result in self._results(known=True):
            papers.setdefault(result.spec.paper, []).append(result)
        links = ", ".join(f"[{paper}]({_file(paper)})" for paper in papers)
        index = [
            "# Published tables, measured",
            "Tables of the papers that files in `specs/studies/` describe, as far as their runs of "
            f"size {self.size} are done: measured beside printed, with the claims judged. "
            "{doc}`/studies` explains files and verdicts. Written by `make studies`, which goes on "
            f"where it stopped. All finished runs together took {self._hours()} of one process.",
            *([f"One page for each paper: {links}."] if links else []),
            self.summary().markdown(),
            *self._begun_not(),
        ]
        if self.others:
            index += [f"## {self.left().title}", self.left().markdown()]
        texts = {}
        for paper, results in papers.items():
            parts = [study_markdown(one, self.retained.get(one.spec.study)) for one in results]
            texts[_file(paper)] = [f"# {paper}, measured", *map(str.rstrip, parts)]
        return {name: "\n\n".join(parts) + "\n" for name, parts in (*texts.items(), (INDEX, index))}

    def write(self, folder: str | os.PathLike[str]) -> tuple[Path, ...]:
        """Write the pages into a folder, and return their paths, the summary last.

        Raises:
            RunError: If they cannot be written.
        """
        return tuple(write(Path(folder) / name, text) for name, text in self.pages().items())


def written_before(folder: str | os.PathLike[str]) -> str:
    """Return the text of all pages in a folder of :meth:`Studies.write`, the summary first.

    Empty if there is no such folder.
    """
    files = sorted(Path(folder).glob("*.md"), key=lambda file: (file.name != INDEX, file.name))
    return "\n\n".join(file.read_text(errors="replace") for file in files)


def _file(paper: str) -> str:
    return f"{paper.lower()}.md"


def needs(spec: StudySpec) -> str:
    """Return what a study that lacks a size says about the sizes it has."""
    return " ".join(size.about for size in spec.sizes.values() if size.about) or spec.about


def without_part(
    paths: Iterable[str | os.PathLike[str]],
    size: StudySizeName,
    only: Sequence[str],
    seeds: Sequence[int],
) -> frozenset[Path]:
    """Return the studies that have none of the cells and seeds that are asked for.

    Raises:
        SpecError: If all are such, or a file cannot be understood.
    """
    having = {path: spec for path in yaml_files(paths) if size in (spec := load_study(path)).sizes}
    without: dict[Path, SpecError] = {}
    for path, spec in having.items():
        try:
            chosen_cells(spec, size, only, seeds)
        except SpecError as error:
            without[path] = error
    # A misspelt cell is in none of them.
    if having and len(without) == len(having):
        raise next(iter(without.values()))
    return frozenset(without)


def studies(
    paths: Iterable[str | os.PathLike[str]],
    run: Callable[[Path], StudyResult],
    *,
    size: StudySizeName = "small",
    pages: str = "",
) -> Studies:
    """Run studies one after the other.

    Args:
        paths: Study files, or folders of them.
        run: Runs one of them.
        size: The size; studies that do not have it are listed and not run.
        pages: What was written before (:func:`written_before`): studies keep what it says while
            fewer of their runs are there than were then.

    Raises:
        SpecError: If a file is not there or cannot be understood.
        RunError: If none of them has the size, or two have the same name.
        DataError: If the data of none of them are there; else those that lack data are listed.
    """
    specs = {path: load_study(path) for path in yaml_files(paths)}
    having = [path for path, spec in specs.items() if size in spec.sizes]
    if not having:
        raise RunError(
            f"no study of this size, {size}",
            where=", ".join(map(str, specs)),
            expected=" or ".join(sorted({name for spec in specs.values() for name in spec.sizes})),
        )
    stems = [path.stem for path in having]
    twice = [path for path in having if stems.count(path.stem) > 1]
    if twice:
        files = " and ".join(map(str, twice))
        raise RunError("would be written into the same files: rename one", where=files)
    results: dict[Path, StudyResult] = {}
    lacking: dict[Path, str] = {}
    for path in having:
        try:
            results[path] = run(path)
        except DataError as error:
            lacking[path] = str(error)
            if len(lacking) == len(having):
                raise
    others = {path: spec for path, spec in specs.items() if path not in results}
    return Studies(size, results, others, lacking, earlier_studies(pages))
