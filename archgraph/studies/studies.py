"""Many studies: pages of what was measured, one for each paper, and of what was not."""

from __future__ import annotations

import functools
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from archgraph.errors import DataError, RunError, SpecError
from archgraph.files import write
from archgraph.language.checking import yaml_files
from archgraph.studies.claims import Judged, judge
from archgraph.studies.outcomes import OUTCOMES
from archgraph.studies.spec import StudySizeName, StudySpec, load_study
from archgraph.studies.study import StudyResult, chosen_cells
from archgraph.studies.study_tables import study_markdown
from archgraph.tables import Table

INDEX = "index.md"
# Primary claims of one paper that are judged: more of them would need more seeds.
PRIMARY = 3


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

    @functools.cached_property
    def judged(self) -> Mapping[str, Sequence[Judged]]:
        """The claims of each study, by its name, judged together with those of all others."""
        results = self.results.values()
        judged = iter(judge([finding for result in results for finding in result.findings]))
        # In the order in which they were handed over: so many for each study.
        return {
            result.spec.study: tuple(itertools.islice(judged, len(result.findings)))
            for result in results
        }

    @property
    def seconds(self) -> float:
        """Time of all finished runs, each counted once."""
        return sum({k: v for one in self.results.values() for k, v in one.seconds.items()}.values())

    def verdicts(self) -> Table:
        """Tabulate the primary claims that have a verdict, those that hold first."""
        rows = [
            (one.finding.study, one.finding.claim, one.finding.where, one.finding.figure,
             f"{one.finding.paired.mean:+.4g}", one.text)
            for outcome in OUTCOMES
            for judged in self.judged.values()
            for one in judged
            if one.outcome == outcome != "not counted" and one.finding.paired is not None
        ]  # fmt: skip
        heads = ("study", "claim", "where", "by", "difference", "verdict")
        return Table("What holds, and what does not", heads, tuple(rows), frozenset({4}))

    def uncounted(self) -> Table:
        """Tabulate the claims that left the count, each with its rule."""
        rows = [
            (one.finding.study, one.finding.claim, one.finding.where, one.note)
            for judged in self.judged.values()
            for one in judged
            if one.outcome == "not counted"
        ]
        return Table("Not counted", ("study", "claim", "where", "rule"), tuple(dict.fromkeys(rows)))

    def summary(self) -> Table:
        """Tabulate the studies, a line for each: its runs and its claims."""
        rows = []
        for result in self.results.values():
            judged = self.judged[result.spec.study]
            outcomes = [one.outcome for one in judged]
            rows.append(
                (
                    result.spec.study,
                    f"{result.done} of {len(result.runs)}",
                    str(len({one.folder for one in result.runs})),
                    f"{sum(result.seconds.values()) / 60:.0f}",
                    *(str(outcomes.count(outcome)) for outcome in OUTCOMES),
                    str(sum(one.note == "exploratory" for one in judged)),
                )
            )
        heads = ("study", "cells done", "runs", "minutes", *OUTCOMES, "exploratory")
        note = (
            "a run that several studies share is counted in each; minutes: of one process, added "
            "up over the runs; a claim counts once for each pair of cells that it compares"
        )
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

    def _results(self, *, known: bool) -> list[StudyResult]:
        """Return the results of which something is known, or those of which nothing is."""
        return [one for one in self.results.values() if bool(one.done) == known]

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
            "where it stopped. All finished runs together took "
            f"{self.seconds / 3600:.1f} hours of one process.",
            *([f"One page for each paper: {links}."] if links else []),
            *(
                text
                for table in (self.verdicts(), self.uncounted(), self.summary())
                if table.rows
                for text in (f"## {table.title}", table.markdown())
            ),
            *self._begun_not(),
        ]
        if self.others:
            index += [f"## {self.left().title}", self.left().markdown()]
        texts = {}
        for paper, results in papers.items():
            parts = [study_markdown(one, self.judged[one.spec.study]) for one in results]
            texts[_file(paper)] = [f"# {paper}, measured", *map(str.rstrip, parts)]
        return {name: "\n\n".join(parts) + "\n" for name, parts in (*texts.items(), (INDEX, index))}

    def write(self, folder: str | os.PathLike[str]) -> tuple[Path, ...]:
        """Write the pages into a folder, and return their paths, the summary last.

        Raises:
            RunError: If they cannot be written.
        """
        return tuple(write(Path(folder) / name, text) for name, text in self.pages().items())


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
) -> Studies:
    """Run studies one after the other.

    Args:
        paths: Study files, or folders of them.
        run: Runs one of them.
        size: The size; studies that do not have it are listed and not run.

    Raises:
        SpecError: If a file is not there or cannot be understood, or a paper has more than three
            primary claims.
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
    primary = Counter(
        spec.paper for spec in specs.values() for claim in spec.claims if claim.primary
    )
    for paper, many in primary.items():
        if many > PRIMARY:
            raise SpecError(
                f"has {many} primary claims: name at most {PRIMARY} before the runs, and leave the "
                "others exploratory",
                where=paper,
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
    others = {path: spec for path, spec in specs.items() if path not in results}
    return Studies(size, results, others, lacking)
