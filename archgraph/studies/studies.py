"""Many studies: pages of what was measured, one for each paper, and of what was not."""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from archgraph.errors import DataError, RunError, SpecError
from archgraph.files import write
from archgraph.language.checking import yaml_files
from archgraph.reports.plots import save_figure
from archgraph.studies.claims import Judged, judge
from archgraph.studies.gates import gate_tables
from archgraph.studies.outcomes import OUTCOMES
from archgraph.studies.pictures import (
    column_picture,
    columns_of,
    curves_of,
    differences_picture,
    drawable,
)
from archgraph.studies.spec import StudySizeName, StudySpec, load_study
from archgraph.studies.study import StudyResult, chosen_cells
from archgraph.studies.study_tables import (
    NOTE,
    compared_cells,
    gates_of,
    marks_note,
    study_markdown,
)
from archgraph.tables import Table, plural

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
        judged: dict[str, list[Judged]] = {result.spec.study: [] for result in results}
        for one in judge([finding for result in results for finding in result.findings]):
            judged[one.finding.study].append(one)
        return judged

    @property
    def seconds(self) -> float:
        """Time of all finished runs, each counted once."""
        return sum({k: v for one in self.results.values() for k, v in one.seconds.items()}.values())

    def claims(self) -> Table:
        """Tabulate the primary claims: what holds, what does not, what nobody can say yet.

        1. A line for each comparison: those that hold first, then those against, equivalent and
           undecided; of these first those whose published difference lies outside the interval.
        2. A line for what is not measured of each study.
        """
        order = {outcome: number for number, outcome in enumerate(OUTCOMES)}
        tabled = [(result, one) for result, one in self._primary if one.tabled]
        tabled.sort(key=lambda row: (order[row[1].outcome or "undecided"], not row[1].outside))  # 1
        lines = [
            (_link(result), of.claim, ", ".join(filter(None, (of.where, of.figure))),
             *compared_cells(one, 2), one.text)
            for result, one in tabled
            for of in [one.finding]
        ]  # fmt: skip
        waiting: dict[tuple[str, str], list[str]] = {}
        for result, one in self._primary:
            if not one.tabled:  # 2
                waiting.setdefault((_link(result), one.text), []).append(one.finding.claim)
        for (study, text), of in waiting.items():
            many, names = plural(len(of), "comparison"), ", ".join(dict.fromkeys(of))
            lines.append((study, names, many, "", "", "", "", text))
        note = (
            "p: corrected (Holm) over all primary claims of a study and all that share its runs; "
            "of an equivalence the larger one of its two one-sided tests; intervals are of each "
            "comparison alone"
        )
        return Table(
            "What holds, what does not, and what nobody can say yet",
            ("study", "claim", "where", "difference", "95 % interval", "published", "p", "verdict"),
            tuple(lines),
            frozenset({3, 4, 5, 6}),
            note="; ".join(filter(None, (note, marks_note(one for _, one in tabled)))),
        )

    def verdicts(self) -> str:
        """Count the primary comparisons by their verdict, in two sentences; empty without one."""
        primary = [one for _, one in self._primary]
        if not primary:
            return ""
        many = Counter[str](one.outcome or "not measured" for one in primary)
        trivial = sum(one.outcome == "holds" and bool(one.finding.below) for one in primary)
        others = ", ".join(f"{many[text]} are {text}" for text in (*OUTCOMES[1:], "not measured"))
        return (
            f"Of the {len(primary)} comparisons that primary claims make, {many['holds']} hold, "
            f"{others}. Of those that hold, {trivial} are against a method below its trivial "
            "reference (†)."
        )

    @functools.cached_property
    def _primary(self) -> list[tuple[StudyResult, Judged]]:
        """The primary comparisons, each pair of cells once."""
        return [
            (result, one)
            for result in self.results.values()
            for one in self.judged[result.spec.study]
            if one.finding.primary and not one.elsewhere
        ]

    def uncounted(self) -> Table:
        """Tabulate the claims that left the count, measured or not, each with its rule."""
        left: dict[tuple[str, str], list[str]] = {}
        for one in itertools.chain(*self.judged.values()):
            if one.outcome == "not counted":
                left.setdefault((one.finding.study, one.note), []).append(one.finding.claim)
        rows = (
            (study, ", ".join(dict.fromkeys(claims)), str(len(claims)), rule)
            for (study, rule), claims in left.items()
        )
        heads = ("study", "claims", "comparisons", "rule")
        return Table("Not counted", heads, tuple(rows), frozenset({2}))

    def summary(self) -> Table:
        """Tabulate the studies, a line for each: its runs and its claims."""
        rows = []
        begun = [result for result in self.results.values() if result.done]
        for result in begun or self.results.values():
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

    def pages(self) -> Mapping[str, str]:
        """Return the pages as Markdown, by file name.

        ``index.md`` is the summary; every other page has all tables of one paper with a figure.
        """
        papers: dict[str, list[tuple[Path, StudyResult]]] = {}
        for path, result in self.results.items():
            if result.done:
                papers.setdefault(result.spec.paper, []).append((path, result))
        gates = [gate for result in self.results.values() for gate in gates_of(result)]
        unfit = gate_tables(gate for gate in gates if not gate.passed)[:1]
        links = ", ".join(f"[{paper}]({_file(paper)})" for paper in papers)
        waiting = [one.spec.study for one in self.results.values() if not one.done]
        index = [
            "# Published tables, measured",
            self.verdicts(),
            "Tables of the papers that files in `specs/studies/` describe, and studies of our own "
            "(`specs/ablations/`), as far as their runs of "
            f"size {self.size} are done. "
            "{doc}`/studies` explains files and verdicts. Written by `make studies`, which goes on "
            "where it stopped. All finished runs together took "
            f"{self.seconds / 3600:.1f} hours of one process.",
            f"One page for each paper: {links}." if links else "",
            *_sections(self.claims(), *unfit, self.uncounted(), self.summary()),
            f"No run is done yet of: {'; '.join(waiting)}." if waiting else "",
            *_sections(self.left()),
        ]
        texts = {}
        for paper, results in papers.items():
            parts = [
                study_markdown(
                    one,
                    self.judged[one.spec.study],
                    {name: title for name, (title, _) in self._pictures(path).items()},
                    alone=False,
                )
                for path, one in results
            ]
            gates = [gate for _, one in results for gate in gates_of(one)]
            if any(one.tabled for _, of in results for one in self.judged[of.spec.study]):
                parts.append(f"## How claims are judged\n\n{NOTE}.")
            parts += _sections(*gate_tables(gates))
            texts[_file(paper)] = [f"# {paper}, measured", *map(str.rstrip, parts)]
        texts[INDEX] = [text for text in index if text]
        return {name: "\n\n".join(parts) + "\n" for name, parts in texts.items()}

    def _pictures(self, path: Path) -> dict[str, tuple[str, Callable[[], Figure]]]:
        """Return a study's pictures: what each shows, and how it is drawn, by file name."""
        result = self.results[path]
        judged = self.judged[result.spec.study]
        pictures: dict[str, tuple[str, Callable[[], Figure]]] = {}
        for number, (column, compared) in enumerate(columns_of(result).items()):
            curves = curves_of(result, column, compared)
            if any(len(of) > 1 for rows in curves.values() for of in rows.values()):
                title = ": ".join(filter(None, (result.spec.study, column)))
                drawn = functools.partial(column_picture, compared, curves, result.spec.read, title)
                pictures[f"{path.stem}-{number}.svg"] = f"{title}, over the rounds and costs", drawn
        if differences := drawable(judged):
            title = f"{result.spec.study}: differences with their intervals"
            draw = functools.partial(differences_picture, differences, result.spec.study)
            pictures[f"{path.stem}-differences.svg"] = title, draw
        return pictures

    def write(self, folder: str | os.PathLike[str]) -> tuple[Path, ...]:
        """Write pages and pictures into a folder, and return their paths, the summary last.

        Raises:
            RunError: If they cannot be written.
        """
        pictures = [
            save_figure(draw(), Path(folder) / name)
            for path, result in self.results.items()
            if result.done
            for name, (_, draw) in self._pictures(path).items()
        ]
        texts = (write(Path(folder) / name, text) for name, text in self.pages().items())
        return (*pictures, *texts)


def _sections(*tables: Table) -> list[str]:
    """Write tables below headings; without empty ones."""
    return [f"## {table.title}\n\n{table.markdown()}" for table in tables if table.rows]


def _link(result: StudyResult) -> str:
    """Return the name of a study as a link to its page, if it has one."""
    name = result.spec.study
    return f"[{name}]({_file(result.spec.paper)})" if result.done else name


def _file(paper: str) -> str:
    return re.sub(r"\W+", "_", paper.lower()) + ".md"


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
        SpecError: If a file is not there or cannot be understood, two studies have the same name,
            or a paper has more than three primary claims.
        RunError: If none of them has the size, or two files have the same name.
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
    names = [specs[path].study for path in having]
    if twice := [path for path in having if names.count(specs[path].study) > 1]:
        # Claims are judged by the name of their study.
        files, name = " and ".join(map(str, twice)), specs[twice[0]].study
        raise SpecError("is the name of two studies: rename one", where=files, found=name)
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
