"""Studies: run what stands behind a published table, and put what was measured beside it."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from archgraph.data import DATASETS, ROOT_VARIABLE
from archgraph.data.files import lacking
from archgraph.data.source import source
from archgraph.engine.pretrained import lacking_weights
from archgraph.errors import ArchGraphError, DataError, RunError, SpecError
from archgraph.language.consent import allowed, consent_given
from archgraph.language.data import NamedData
from archgraph.language.experiment import ExperimentSpec
from archgraph.plain import digest
from archgraph.processes.process import Died, Tell
from archgraph.processes.workers import Workers
from archgraph.reports.comparison import Figure, RunGroup, comparison
from archgraph.reports.measures import SHARES
from archgraph.reports.runs import seconds
from archgraph.studies.cell import SIGNS, address, finished, run_cell
from archgraph.studies.paired import Paired, paired
from archgraph.studies.spec import (
    StudyCell,
    StudyClaim,
    StudyFigure,
    StudySizeName,
    StudySpec,
    cells,
    load_study,
)
from archgraph.studies.weight_measures import FinalWeights, of_weights
from archgraph.tables import plural


@dataclass(frozen=True)
class StudyRun:
    """One run of a study.

    Attributes:
        cell: Whose run it is.
        seed: Its seed.
        folder: Its run folder, which other studies may share.
    """

    cell: StudyCell
    seed: int
    folder: Path


@dataclass(frozen=True)
class StudyFinding:
    """What came of one claim in one place of the table.

    Attributes:
        claim: What is claimed, in words.
        where: The column; of columns that are compared, the row and the rest of their names.
        figure: By which figure.
        paired: Differences by seed; None: a cell is missing.
    """

    claim: str
    where: str
    figure: str
    paired: Paired | None

    @property
    def verdict(self) -> str:
        """Holds, does not hold, undecided (which way, and after how many seeds) or not measured."""
        if self.paired is None:
            return "not measured"
        if self.paired.verdict != "undecided":
            return self.paired.verdict
        if self.paired.std is None:
            return "undecided: one seed"
        needed = self.paired.needed
        against = " against it" if self.paired.mean < 0 else ""
        many = f"{needed} seeds" if needed else "more than 1000 seeds"
        return f"undecided: {many} would decide{against}"


@dataclass(frozen=True)
class StudyResult:
    """A table as measured.

    Attributes:
        spec: The study.
        size: In which size.
        runs: All of its runs, finished or not.
        waiting: Cells whose strategy is not there yet.
        groups: The finished runs of a cell, by row and column.
        failed: Why a run ended, by its folder.
    """

    spec: StudySpec
    size: StudySizeName
    runs: tuple[StudyRun, ...]
    waiting: tuple[StudyCell, ...]
    groups: Mapping[tuple[str, str], Mapping[str, RunGroup]]
    failed: Mapping[Path, str] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """Finished runs, as far as they were when they were read."""
        read = {
            cell: {log.folder for group in of.values() for log in group.runs}
            for cell, of in self.groups.items()
        }
        return sum(r.folder in read.get((r.cell.row, r.cell.column), ()) for r in self.runs)

    @property
    def seconds(self) -> dict[Path, float]:
        """Seconds that each finished run took, by its folder."""
        logs = (log for of in self.groups.values() for group in of.values() for log in group.runs)
        return {log.folder: sum(seconds(log.figures).values()) for log in logs}

    @property
    def stamp(self) -> str:
        """Stands for the runs of this size, what is read from them, and the claims."""
        runs = {f"{one.cell.row} | {one.cell.column} | {one.folder.name}" for one in self.runs}
        said = self.spec.model_dump(mode="json", include={"figures", "published", "claims"})
        return digest({"runs": sorted(runs), **said})[:SIGNS]

    def values(self, row: str, column: str, figure: str) -> dict[int, float]:
        """Return a figure of a cell by seed, as papers print it; empty if there is none yet.

        Shares are in per cent.
        """
        group = self.groups.get((row, column), {}).get(figure)
        if group is None:
            return {}
        measure = self._figures[row, column][figure].measure
        measured = group.figures.get(measure)
        if measured is None:
            return {}
        # `worst_accuracy`, `tier.small.matched`: the last word says what is counted.
        factor = 100 if measure.replace(".", "_").split("_")[-1] in SHARES else 1
        pairs = zip(group.seeds, measured.values, strict=True)
        return {seed: factor * value / self.spec.read[figure].unit for seed, value in pairs}

    @functools.cached_property
    def _figures(self) -> Mapping[tuple[str, str], Mapping[str, StudyFigure]]:
        """Figures that are read from the runs of a cell."""
        return {(one.cell.row, one.cell.column): one.cell.figures for one in self.runs}

    @functools.cached_property
    def findings(self) -> tuple[StudyFinding, ...]:
        """Findings about each claim, in each place of the table that this size has."""
        there = {(r.cell.row, r.cell.column) for r in self.runs}
        there |= {(cell.row, cell.column) for cell in self.waiting}
        return tuple(
            self._finding(claim, first, second, figure)
            for claim in self.spec.claims
            for first, second, figure in self.spec.compared(claim)
            if {first, second} <= there
        )

    def _finding(
        self, claim: StudyClaim, first: tuple[str, str], second: tuple[str, str], figure: str
    ) -> StudyFinding:
        # Seeds that only one of the two has tell nothing about the difference.
        ours, theirs = self.values(*first, figure), self.values(*second, figure)
        common = [seed for seed in ours if seed in theirs]
        if claim.better in self.spec.rows:
            other, where = second[0], first[1]
        else:
            columns = self.spec.combined()
            other = next(name for name in claim.others if name in columns[second[1]])
            same = (part for part in columns[first[1]] if part not in ("", claim.better))
            where = "; ".join((first[0], *same))
        more = self.spec.read[figure].better == "more"
        statistic = paired([ours[s] for s in common], [theirs[s] for s in common], more=more)
        title = f"{claim.better} better than {other}"
        return StudyFinding(title, where, figure, statistic if common else None)


def study(
    file: str | os.PathLike[str] | StudySpec,
    *,
    size: StudySizeName = "small",
    workers: int = 1,
    out: str | os.PathLike[str] = "runs/studies",
    data_root: str | os.PathLike[str] | None = None,
    python: bool = False,
    only_read: bool = False,
    only: Sequence[str] = (),
    seeds: Sequence[int] = (),
    notify: Callable[[str], object] = lambda line: None,
) -> StudyResult:
    """Run what is missing of a study, and put what was measured beside what was published.

    Every run is an ordinary run folder under ``out/runs``, named after what decides its figures:
    equal runs of several studies are one. Runs that are done are not run again and those that were
    cut off go on after their last checkpoint, so the same call goes on where it stopped.

    Args:
        file: A study file, or what was read from one.
        size: ``paper`` as published, or ``small``.
        workers: Processes of one thread each; the figures do not depend on it.
        out: Folder of runs and tables.
        data_root: Folder of the data. Default: what ``ARCHGRAPH_DATA`` names.
        python: Consent to run the Python code that the study's files name.
        only_read: Run nothing: the table of the runs that are there.
        only: Run these cells only: patterns of rows, columns or ``ROW | COLUMN``, as in
            ``leave_out``; empty: all.
        seeds: Run these seeds of the study only; empty: all.
        notify: Hears a line about every run.

    Raises:
        SpecError: If the study cannot be understood, one of its cells is not an experiment, or
            ``only`` or ``seeds`` does not match any of it.
        DataError: If no run can begin since data sets are not there; names all that are missing.
        RunError: If the tables cannot be written. A run that fails does not end the study: see
            :attr:`StudyResult.failed`.
    """
    if workers < 1:
        raise RunError(f"needs at least one worker, not {workers}")
    spec = file if isinstance(file, StudySpec) else load_study(file)
    with allowed(python):
        # Workers are processes of their own: the consent of this one is handed to them.
        python, every = consent_given(), cells(spec, size)
        asked = chosen_cells(spec, size, only, seeds)
        runs = _runs(every, spec.sizes[size].seeds, Path(out) / "runs")
    chosen = [
        one
        for one in runs
        if (one.cell.row, one.cell.column) in asked and (not seeds or one.seed in seeds)
    ]
    failed = {} if only_read else dict(_missing(chosen, workers, data_root, python, notify))
    waiting = tuple(cell for cell in every if cell.experiment is None)
    # Several measures of a run read the same weights.
    weights = functools.cache(lambda folder: FinalWeights(folder, data_root, python))
    return StudyResult(spec, size, runs, waiting, _groups(runs, weights), failed)


def _runs(every: Sequence[StudyCell], seeds: Sequence[int], root: Path) -> tuple[StudyRun, ...]:
    """Return the runs, all of the first seed first: a table is complete as soon as it can be."""
    runs = []
    for seed in seeds:
        known: dict[int, tuple[ExperimentSpec, Path]] = {}  # cells of one run share its experiment
        for cell in every:
            if cell.experiment is None:
                continue
            if id(cell.experiment) not in known:
                spec = cell.experiment.model_copy(update={"seed": seed})
                known[id(cell.experiment)] = spec, root / address(spec)
            spec, folder = known[id(cell.experiment)]
            runs.append(StudyRun(dataclasses.replace(cell, experiment=spec), seed, folder))
    return tuple(runs)


def chosen_cells(
    spec: StudySpec, size: StudySizeName, only: Sequence[str], seeds: Sequence[int]
) -> frozenset[tuple[str, str]]:
    """Return row and column of the cells of a size that are asked for.

    Raises:
        SpecError: If there are none, or a seed is not one of the study's.
    """
    there = spec.sizes[size].seeds
    for seed in seeds:
        if seed not in there:
            known = ", ".join(map(str, there))
            raise SpecError(f"{seed} is not a seed of this study, which has {known}", where="seed")
    every = frozenset((cell.row, cell.column) for cell in cells(spec, size))
    chosen = every & spec.matching(only) if only else every
    if not chosen:
        raise SpecError(
            f"does not match any cell of size {size}", where=spec.study, found=", ".join(only)
        )
    return chosen


def _missing(
    runs: Sequence[StudyRun],
    workers: int,
    data_root: str | os.PathLike[str] | None,
    python: bool,
    notify: Callable[[str], object],
) -> Iterator[tuple[Path, str]]:
    """Run what is not done; yield which runs failed, and why."""
    left: dict[Path, StudyRun] = {}
    for one in runs:
        if one.cell.experiment is not None and not finished(one.folder, one.cell.experiment):
            left.setdefault(one.folder, one)
    total, data = len({one.folder for one in runs}), None if data_root is None else Path(data_root)
    done, lacks = total - len(left), _lacking(left.values(), data)
    if done:
        notify(f"{done} of {plural(total, 'run')} done before")
    if lacks:
        error = _missing_files(lacks.values())
        if len(lacks) == total:  # nothing of the study can be shown
            raise error
        notify(str(error))
        yield from ((folder, f"there is no {', no '.join(of)}") for folder, of in lacks.items())
    listed = [one for folder, one in left.items() if folder not in lacks]
    # As they end: what is done is said at once; figures depend on no order of runs.
    ended = Workers(workers, always=True).calls(
        functools.partial(_run, data_root=data, python=python), listed, as_they_end=True
    )
    for number, (one, result) in enumerate(ended, done + len(lacks) + 1):
        trouble = result.reason if isinstance(result, Died) else result
        name = ", ".join(filter(None, (one.cell.row, one.cell.column, f"seed {one.seed}")))
        notify(f"{number} of {total}: {name}: {trouble or 'done'}")
        if trouble:
            yield one.folder, trouble


def _lacking(left: Iterable[StudyRun], root: Path | None) -> dict[Path, dict[str, str]]:
    """Return runs whose known data set or weights are missing: their names, what to fetch."""
    # Cells share a few data sets, and looking for one reads its folder.
    asked = functools.cache(lambda name, folder: lacking(source(name), folder))
    runs: dict[Path, dict[str, str]] = {}
    for one in left:
        assert one.cell.experiment is not None
        data, weights = one.cell.experiment.data, one.cell.experiment.weights
        missing = {}
        if isinstance(data, NamedData) and data.dataset in DATASETS:
            missing[data.dataset] = asked(data.dataset, root or data.root)
        if weights is not None:
            missing[Path(weights.file).name] = lacking_weights(weights)
        if lacked := {name: what for name, what in missing.items() if what is not None}:
            runs[one.folder] = lacked
    return runs


def _missing_files(lacks: Iterable[Mapping[str, str]]) -> DataError:
    files = {name: what for each in lacks for name, what in each.items()}
    return DataError(
        "what its runs need is not there",
        found=f"no {', no '.join(files)}",
        expected="; ".join(f"{name}: {what}" for name, what in files.items()),
        hint="put the original files into these folders, of data sets below the one that --data or "
        f"{ROOT_VARIABLE} names; nothing is downloaded",
    )


def _run(one: StudyRun, tell: Tell, *, data_root: Path | None, python: bool) -> str | None:
    """Run a cell; return what went wrong, if something did."""
    assert one.cell.experiment is not None
    try:
        run_cell(one.cell.experiment, one.folder, data_root=data_root, python=python)
    except ArchGraphError as error:
        return str(error)
    except Exception as error:  # a fault in one run must not lose the others
        return f"{type(error).__name__}: {error}"
    return None


def _groups(
    runs: Sequence[StudyRun], weights: Callable[[Path], FinalWeights]
) -> dict[tuple[str, str], dict[str, RunGroup]]:
    """Return the finished runs of a cell together; those of equal cells are read once."""
    # Seeds of one cell are one group: `address` tells apart all that `comparison` does.
    read = functools.cache(lambda paths, last: comparison(paths, tiers=True, last=last).groups[0])
    cells: dict[tuple[str, str], tuple[StudyCell, list[Path]]] = {}
    for one in runs:
        experiment = one.cell.experiment
        if experiment is not None and finished(one.folder, experiment):
            cells.setdefault((one.cell.row, one.cell.column), (one.cell, []))[1].append(one.folder)
    return {
        key: {
            name: _measured(read(tuple(folders), figure.last), figure.measure, weights)
            for name, figure in cell.figures.items()
        }
        for key, (cell, folders) in cells.items()
    }


def _measured(group: RunGroup, measure: str, weights: Callable[[Path], FinalWeights]) -> RunGroup:
    """Add to runs what a measure reads from their final weights, if it does."""
    if not of_weights(measure):
        return group
    read = [weights(log.folder) for log in group.runs]
    # Models of one run start from common weights: the second one is that of the next seed.
    others = [*read[1:], read[0]] if len(read) > 1 else [None]
    values = [run.read(measure, other) for run, other in zip(read, others, strict=True)]
    known = tuple(value for value in values if value is not None)
    figures = {measure: Figure(known)} if len(known) == len(values) else {}
    return dataclasses.replace(group, figures={**group.figures, **figures})
