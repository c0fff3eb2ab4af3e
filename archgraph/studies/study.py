"""Studies: run the experiments of a table, and compute its values and differences."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from archgraph.data import DATASETS, ROOT_VARIABLE
from archgraph.data.files import lacking
from archgraph.data.source import source
from archgraph.engine.local import run
from archgraph.engine.pretrained import lacking_weights
from archgraph.engine.rounds import Loop
from archgraph.engine.side_by_side import side_by_side
from archgraph.engine.world import first_state, prepare
from archgraph.errors import DataError, RunError, SpecError
from archgraph.language.consent import allowed, consent_given
from archgraph.language.data import NamedData
from archgraph.language.experiment import ExperimentSpec
from archgraph.plain import Json
from archgraph.record.changes import Changes
from archgraph.record.folder import RunRecord
from archgraph.record.proof import environment
from archgraph.reports.comparison import Figure, Figures, RunGroup, compare_logs
from archgraph.reports.measures import SHARES, right_answers
from archgraph.reports.runs import Log, within_budget
from archgraph.studies.cell import address, finished
from archgraph.studies.origin import program, settings_part
from archgraph.studies.outcomes import LEVEL, Paired, holm, resampled
from archgraph.studies.records import (
    SUFFIX,
    StudyRecord,
    add_line,
    first_round,
    read_records,
    record_of,
    trivial_record,
    unlike,
)
from archgraph.studies.spec import (
    StudyCell,
    StudyFigure,
    StudySizeName,
    StudySpec,
    cells,
    load_study,
)
from archgraph.studies.trivial import trivial_test
from archgraph.tables import plural

if TYPE_CHECKING:
    from numpy.typing import NDArray

SMALL = 2000
"""Smaller test sets are resampled together with the seeds."""


@dataclass(frozen=True)
class StudyRun:
    """One run of a study.

    Attributes:
        cell: The cell, with the seed of the run.
        seed: Seed of the run.
        folder: The run folder, which other studies may share.
    """

    cell: StudyCell
    seed: int
    folder: Path

    @property
    def address(self) -> str:
        """Name of the run folder, with a digest of everything that affects the results."""
        return self.folder.name


@dataclass(frozen=True)
class StudyDifference:
    """The difference between two cells in one metric, between runs with the same seeds.

    Attributes:
        names: The two rows or columns. The difference is the first minus the second.
        where: The column of the two rows; for two columns, the row and the common parts of the
            columns' names.
        figure: Name of the metric, as in ``figures``.
        paired: The differences of all seeds; None if the runs of a cell are missing.
        p: p value, with Holm's correction over all differences of the study in this metric, also
            those that are not measured yet; None for a single seed.
        detectable: The smallest true difference that a test with this number of seeds finds with
            probability 80 % at the corrected level.
    """

    names: tuple[str, str]
    where: str
    figure: str
    paired: Paired | None
    p: float | None = None
    detectable: float | None = None


@dataclass(frozen=True)
class StudyResult:
    """The results of a study in one size.

    Attributes:
        spec: The study.
        size: The size.
        runs: All runs of the size, finished or not.
        records: Dict from the address of a finished run to its record.
        failed: Dict from the folder of a failed run to its error.
        repeated: Dict from the address of a run whose first round was repeated (``check``) to a
            description of the differences, which is empty if there are none.
    """

    spec: StudySpec
    size: StudySizeName
    runs: tuple[StudyRun, ...]
    records: Mapping[str, StudyRecord]
    failed: Mapping[Path, str] = field(default_factory=dict)
    repeated: Mapping[str, str] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """Number of finished runs. A run that several cells share is counted once per cell."""
        return len(self._finished)

    @property
    def _finished(self) -> list[StudyRun]:
        return [one for one in self.runs if one.address in self.records]

    @property
    def outdated(self) -> Mapping[str, StudyResult]:
        """Results of other versions: dict from versions to a result.

        A result contains the runs that have a record by these versions, but not by the current
        versions.
        """
        recorded: dict[str, list[str]] = {}
        for name in self.records:
            recorded.setdefault(settings_part(name), []).append(name)
        runs = [
            dataclasses.replace(one, folder=one.folder.with_name(name))
            for one in self.runs
            if one.address not in self.records
            for name in recorded.get(settings_part(one.address), ())
        ]
        versions = [self.records[one.address].versions for one in runs]
        return {
            text: dataclasses.replace(
                self, runs=tuple(one for one, of in zip(runs, versions, strict=True) if of == text)
            )
            for text in dict.fromkeys(versions)
        }

    @functools.cached_property
    def groups(self) -> Mapping[tuple[str, str], Mapping[str, RunGroup]]:
        """Dict from (row, column) to a dict from metric to the finished runs of the cell."""
        # Several cells may share their runs.
        read = functools.cache(self._compared)
        cells: dict[tuple[str, str], tuple[StudyCell, list[str]]] = {}
        for one in self._finished:
            cells.setdefault(one.cell.key, (one.cell, []))[1].append(one.address)
        return {
            key: {
                name: self._measured(group, figure)
                for name, figure in cell.figures.items()
                if (group := read(tuple(names), figure.last, figure.within)) is not None
            }
            for key, (cell, names) in cells.items()
        }

    def _compared(
        self, names: Sequence[str], last: float | None, within: float | None
    ) -> RunGroup | None:
        # Runs with the same address form one group, even if they recorded different facts.
        first, *_ = logs = [self.records[name].log for name in names]
        logs = [_with_settings(log, first) for log in logs]
        if within is not None:
            logs = [within_budget(log, within) for log in logs]
            if not all(
                log.rounds for log in logs
            ):  # a run used less than the budget, or more before its first test
                return None
        compared = functools.partial(compare_logs, tiers=True, last=last, unfinished=True)
        if not _end_apart(logs):
            return compared(logs).groups[0]
        # Tests are counted separately for each run, so that a run that ends early does not remove
        # tests of other runs.
        return _side_by_side([compared([log]).groups[0] for log in logs])

    def _measured(self, group: RunGroup, figure: StudyFigure) -> RunGroup:
        """Add metrics over all tests, if the measure needs them."""
        if figure.target is None:
            return group
        values = [self._epochs_to(log.folder.name, *figure.target)[0] for log in group.runs]
        known = tuple(value for value in values if value is not None)
        figures = {figure.measure: Figure(known)} if len(known) == len(values) else {}
        return dataclasses.replace(group, figures={**group.figures, **figures})

    def values(self, row: str, column: str, figure: str) -> dict[int, float]:
        """Return a dict from seed to the value of a metric in a cell; empty if there is none yet.

        Fractions, such as accuracies, are in per cent.
        """
        group = self.groups.get((row, column), {}).get(figure)
        read = self._figures.get((row, column), {}).get(figure)
        if group is None or read is None or read.measure not in group.figures:
            return {}
        scale, measured = 100 if read.quantity in SHARES else 1, group.figures[read.measure]
        pairs = zip(group.seeds, measured.values, strict=True)
        return {seed: scale * value / read.unit for seed, value in pairs}

    def bounded(self, row: str, column: str, figure: str) -> int:
        """Count the runs of a cell that never reach the target of a metric."""
        group = self.groups.get((row, column), {}).get(figure)
        target = self._figures[row, column][figure].target if group is not None else None
        if group is None or target is None:
            return 0
        return sum(not self._epochs_to(log.folder.name, *target)[1] for log in group.runs)

    @functools.cached_property
    def _epochs_to(self) -> Callable[[str, float, str], tuple[float | None, bool]]:
        """A cached :func:`_epochs_to`, by the address of the run."""
        return functools.cache(lambda name, *asked: _epochs_to(self.records[name].log, *asked))

    @functools.cached_property
    def _figures(self) -> Mapping[tuple[str, str], Mapping[str, StudyFigure]]:
        """Dict from (row, column) to the metrics of the cell."""
        return {one.cell.key: one.cell.figures for one in self.runs}

    @functools.cached_property
    def differences(self) -> tuple[StudyDifference, ...]:
        """The differences between the pairs in ``compare``, in every column or row.

        1. Group the differences by metric, since each metric is a separate question.
        2. Correct the p values of each group. A difference that is not measured yet counts as p =
           1, so that the result does not depend on which runs finish first.
        """
        every: list[StudyDifference] = []
        for figure in self.spec.figures:  # 1
            of = [
                self._difference(pair, first, second, figure)
                for pair in self.spec.compare
                for first, second in self.spec.compared(pair)
                if {first, second} <= self._figures.keys()
            ]
            known = [None if one.paired is None else one.paired.p for one in of]
            p = holm({i: 1.0 if value is None else value for i, value in enumerate(known)})  # 2
            every += [
                one
                if one.paired is None
                else dataclasses.replace(
                    one,
                    p=None if known[i] is None else p[i],
                    detectable=one.paired.detectable(LEVEL / len(of)),
                )
                for i, one in enumerate(of)
            ]
        return tuple(every)

    def _difference(
        self, pair: Sequence[str], first: tuple[str, str], second: tuple[str, str], figure: str
    ) -> StudyDifference:
        ours, theirs = self.values(*first, figure), self.values(*second, figure)
        # Only seeds that both cells have contribute to the difference.
        common = [seed for seed in ours if seed in theirs]
        where = first[1]
        if first[0] == second[0]:
            same = (part for part in self.spec.combined()[first[1]] if part not in ("", pair[0]))
            where = ", ".join((first[0], *same))
        deviation = None
        right, other_right = (self._answered(*cell, figure, common) for cell in (first, second))
        if right is not None and other_right is not None and right.shape[1] < SMALL:
            deviation = resampled(right, other_right)
        paired = Paired(tuple(ours[seed] - theirs[seed] for seed in common), deviation)
        return StudyDifference((pair[0], pair[1]), where, figure, paired if common else None)

    def _answered(
        self, row: str, column: str, figure: str, seeds: Sequence[int]
    ) -> NDArray[np.float64] | None:
        """Return which test examples a metric's models classify correctly, ``[seed, example]``."""
        group = self.groups.get((row, column), {}).get(figure)
        if group is None:
            return None
        read = self._figures[row, column][figure]
        logs = dict(zip(group.seeds, group.runs, strict=True))
        tests = dict.fromkeys(seeds, group.tests)
        if _end_apart(group.runs):
            each = (compare_logs([logs[s]], last=read.last, unfinished=True) for s in seeds)
            tests = {s: of.groups[0].tests for s, of in zip(seeds, each, strict=True)}
        rows = [right_answers(logs[seed], tests[seed], read.measure) for seed in seeds]
        known = [row for row in rows if row is not None]
        return np.stack(known) if known and len(known) == len(rows) else None


def _end_apart(logs: Sequence[Log]) -> bool:
    """Return whether runs end after different rounds, because of patience or budgets."""
    return len({log.done for log in logs}) > 1


def _side_by_side(groups: Sequence[RunGroup]) -> RunGroup:
    """Merge groups of one run each to one group. Its runs may count different tests."""
    groups = sorted(groups, key=lambda group: group.seeds)

    def figure(key: str) -> Figure | None:
        values = [group.figures[key].mean for group in groups if key in group.figures]
        return Figure(tuple(values)) if len(values) == len(groups) else None

    listed = {key: known for key in groups[0].figures if (known := figure(key)) is not None}
    return dataclasses.replace(
        groups[0],
        runs=tuple(log for group in groups for log in group.runs),
        seeds=tuple(seed for group in groups for seed in group.seeds),
        tests=tuple(sorted({number for group in groups for number in group.tests})),
        figures=Figures(listed, figure),
    )


def _with_settings(log: Log, other: Log) -> Log:
    """Return a run with the settings of a run with another seed."""
    settings = {**(other.settings or {}), "seed": (log.settings or {})["seed"]}
    # A run that already has these settings is returned as is, with its cached values.
    return log if settings == log.settings else dataclasses.replace(log, settings=settings)


def _epochs_to(log: Log, target: float, measure: str) -> tuple[float | None, bool]:
    """Return T·E until a test reaches the target, and whether a test reaches it.

    If none does, return the whole T·E. Return None if a test lacks the measure.
    """
    tested = [n for n, line in enumerate(log.rounds, start=1) if line.get("evaluation")]
    for number in tested:
        until = dataclasses.replace(log, rounds=log.rounds[:number])
        figures = compare_logs([until], tiers=True, unfinished=True).groups[0].figures
        if measure not in figures or "epochs" not in figures:
            return None, False
        if figures[measure].mean >= target:
            return figures["epochs"].mean, True
    return (figures["epochs"].mean, False) if tested else (None, False)


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
    again: bool = False,
    check: bool = False,
    records: str | os.PathLike[str] | None = None,
    notify: Callable[[str], object] = lambda line: None,
) -> StudyResult:
    """Run the experiments of a study that have not been run yet, and return all results.

    Every run has a folder under ``out/runs``. The name of the folder contains a hash of all
    settings that affect the results. A run that several studies contain is therefore executed only
    once. A finished run adds a line to a file in ``records``
    (:class:`~archgraph.studies.records.StudyRecord`). All results of the study are computed from
    these lines. Run folders may therefore be deleted, and recorded runs are not repeated.
    Interrupted runs resume after their last checkpoint, so the same call continues an interrupted
    study.

    Args:
        file: A study file, or the result of ``load_study``.
        size: ``paper`` for the published settings, or ``small`` for the settings for two CPU cores.
        workers: Number of processes, with one thread each. The results do not depend on this
            number.
        out: Folder for runs and tables.
        data_root: Folder of the data sets. Default: the environment variable ``ARCHGRAPH_DATA``.
        python: If True, allow running the Python code to which the study's files refer.
        only_read: Run nothing, and return the results of the recorded runs.
        only: Run only the experiments that match one of these patterns. A pattern is a row, a
            column, or ``ROW | COLUMN``, as in the key ``leave_out`` of a study file. Default: all.
        seeds: Run only these seeds of the study. Default: all.
        again: Repeat runs that were recorded with another version of torch or numpy, or with a
            version of archgraph that computes other results.
        check: Only repeat the first round of one recorded run per row, and compare the results with
            the record; see :attr:`StudyResult.repeated`.
        records: Folder for the records of finished runs. Default: ``out/records``.
        notify: Function that is called with lines of text about the progress of the runs.

    Raises:
        SpecError: If the study or one of its experiments is invalid; if ``only`` matches no
            experiment; if ``seeds`` contains a number that is not a seed of the study.
        DataError: If no run can start because data sets are missing. The message names all missing
            data sets.
        RunError: If the tables cannot be written. A failed run does not raise an error; see
            :attr:`StudyResult.failed`.
    """
    if workers < 1:
        raise RunError(f"needs at least one worker, not {workers}")
    spec = file if isinstance(file, StudySpec) else load_study(file)
    with allowed(python):
        # Workers are separate processes, which receive the consent of this process.
        python, every = consent_given(), cells(spec, size)
        asked = chosen_cells(spec, size, only, seeds)
        runs = _runs(every, spec.sizes[size].seeds, Path(out) / "runs")
    chosen = [one for one in runs if one.cell.key in asked and (not seeds or one.seed in seeds)]
    ledger = _Ledger(spec, Path(out) / "records" if records is None else Path(records))
    for one in runs:  # A study may have been killed before it recorded a finished run.
        if one.address not in ledger.records and finished(one.folder, one.cell.experiment):
            ledger.add(record_of(one.folder, spec.study, *one.cell.key), written=not only_read)
    data, failed, repeated = None if data_root is None else Path(data_root), {}, {}
    if check:
        repeated = dict(_repeated(chosen, ledger, workers, data, python, notify))
    elif not only_read:
        left = _left(chosen, ledger, again=again)
        failed = dict(_missing(chosen, left, ledger, workers, data, python, notify))
    return StudyResult(spec, size, runs, ledger.records, failed, repeated)


class _Ledger:
    """The records of a study while it runs."""

    def __init__(self, spec: StudySpec, folder: Path) -> None:
        self.spec, name = spec, Path(spec.document_of(("study",)).file).stem
        self.file = folder / f"{name}{SUFFIX}"
        self.records = read_records(folder)

    def add(self, record: StudyRecord, *, written: bool = True) -> None:
        """Add the record of a finished run, and write it to the file if requested."""
        self.records = {**self.records, record.run: record}
        if written:
            add_line(self.file, record)


def _runs(every: Sequence[StudyCell], seeds: Sequence[int], root: Path) -> tuple[StudyRun, ...]:
    """Return the runs, sorted by seed, so that all cells have a value as soon as possible."""
    runs = []
    for seed in seeds:
        known: dict[int, tuple[ExperimentSpec, Path]] = {}  # cells of one run share its experiment
        for cell in every:
            if id(cell.experiment) not in known:
                spec = cell.experiment.model_copy(update={"seed": seed})
                known[id(cell.experiment)] = spec, root / address(spec, cell.trivial)
            spec, folder = known[id(cell.experiment)]
            runs.append(StudyRun(dataclasses.replace(cell, experiment=spec), seed, folder))
    return tuple(runs)


def chosen_cells(
    spec: StudySpec, size: StudySizeName, only: Sequence[str], seeds: Sequence[int]
) -> frozenset[tuple[str, str]]:
    """Return the (row, column) pairs of the requested cells of a size.

    Raises:
        SpecError: If no cell matches, or the study does not contain a seed.
    """
    there = spec.sizes[size].seeds
    for seed in seeds:
        if seed not in there:
            known = ", ".join(map(str, there))
            raise SpecError(
                f"{seed} is not a seed of this study; its seeds are {known}", where="seed"
            )
    every = frozenset(cell.key for cell in cells(spec, size))
    chosen = every & spec.matching(only) if only else every
    if not chosen:
        raise SpecError(
            f"does not match any cell of size {size}", where=spec.study, found=", ".join(only)
        )
    return chosen


def _missing(
    runs: Sequence[StudyRun],
    left: Mapping[Path, StudyRun],
    ledger: _Ledger,
    workers: int,
    data: Path | None,
    python: bool,
    notify: Callable[[str], object],
) -> Iterator[tuple[Path, str]]:
    """Perform the missing runs; yield the folders of failed runs with their errors.

    1. Report runs whose files are missing. Raise an error if no run has its files.
    2. Perform the other runs, and record each run when it ends.
    """
    total = len({one.folder for one in runs})
    done, lacks = total - len(left), _lacking(left.values(), data)
    if done:
        notify(f"{done} of {plural(total, 'run')} already done")
    if lacks:  # 1
        error = _missing_files(lacks.values())
        if len(lacks) == total:  # nothing of the study can be shown
            raise error
        notify(str(error))
        yield from ((folder, f"there is no {', no '.join(of)}") for folder, of in lacks.items())
    listed = [one for folder, one in left.items() if folder not in lacks]
    code = program() if listed else {}  # reads all modules
    call = functools.partial(
        _run, study=ledger.spec.study, data_root=data, python=python, code=code
    )
    # In the order in which they end, so that finished runs are reported at once. Results do not
    # depend on this order.
    began, root = time.monotonic(), runs[0].folder.parent
    # The folder of all runs is locked like a run, since two studies could run the same cells.
    with RunRecord(root, "", keep=1) as lock:
        if listed:
            root.mkdir(parents=True, exist_ok=True)
            lock.acquire("another study is running in this folder")
        for number, (one, result) in enumerate(side_by_side(call, listed, workers), 1):  # 2
            trouble = result if isinstance(result, str) else ""
            name = ", ".join(filter(None, (*one.cell.key, f"seed {one.seed}")))
            minutes = (time.monotonic() - began) / number * (len(listed) - number) / 60
            rest = f"; about {minutes:.0f} min left" if minutes >= 1 else ""
            notify(f"{total - len(listed) + number} of {total}: {name}: {trouble or 'done'}{rest}")
            if isinstance(result, str):
                yield one.folder, result
            else:  # at once, so that a killed study keeps its finished runs
                ledger.add(StudyRecord.model_validate(result))


def _left(runs: Sequence[StudyRun], ledger: _Ledger, *, again: bool) -> dict[Path, StudyRun]:
    """Return the unfinished runs, one per folder.

    Args:
        runs: All runs.
        ledger: The records.
        again: Whether to also return the runs that only other versions have recorded.
    """
    done = {name if again else settings_part(name) for name in ledger.records}
    left: dict[Path, StudyRun] = {}
    for one in runs:
        if not done & {one.address, settings_part(one.address)}:
            left.setdefault(one.folder, one)
    return left


def _repeated(
    runs: Sequence[StudyRun],
    ledger: _Ledger,
    workers: int,
    data: Path | None,
    python: bool,
    notify: Callable[[str], object],
) -> Iterator[tuple[str, str]]:
    """Repeat the first round of one recorded run per row; yield its address and difference.

    A row without a run that these versions recorded counts as different.
    """
    recorded = [one for one in reversed(runs) if one.address in ledger.records]
    rows = {one.cell.row: one for one in recorded}  # the first run of each row
    for one in {one.cell.row: one for one in runs if one.cell.row not in rows}.values():
        yield one.address, "no run is recorded with these versions"
    call = functools.partial(_first_round, data_root=data, python=python)
    for one, result in side_by_side(call, rows.values(), workers):
        record = ledger.records[one.address]
        trouble = result if isinstance(result, str) else unlike(record, *result)
        notify(f"{one.cell.row}: {trouble or 'repeats'}")
        yield one.address, trouble


def _lacking(left: Iterable[StudyRun], root: Path | None) -> dict[Path, dict[str, str]]:
    """Return a dict from run to its missing data sets and weights, with what to download."""
    # Cached, because cells share data sets, and a check reads the folder of a data set.
    asked = functools.cache(lambda name, folder: lacking(source(name), folder))
    runs: dict[Path, dict[str, str]] = {}
    for one in left:
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
        "data or weights of its runs are missing",
        found=f"no {', no '.join(files)}",
        expected="; ".join(f"{name}: {what}" for name, what in files.items()),
        hint="put the original files into these folders (data sets: inside the folder in "
        f"--data or {ROOT_VARIABLE}); nothing is downloaded",
    )


def _run(
    one: StudyRun, study: str, data_root: Path | None, python: bool, code: Mapping[str, Json]
) -> dict[str, Json]:
    """Run or resume a cell; return its record as plain values."""
    spec, folder = one.cell.experiment, one.folder
    if one.cell.trivial:
        experiment = prepare(spec, data_root=data_root, python=python)
        record = trivial_record(
            experiment, one.cell.trivial, folder.name, study, *one.cell.key, code
        )
    else:
        begun = folder.is_dir() and any(folder.iterdir())
        run(spec, out=folder, resume=begun, data_root=data_root, python=python, progress=False)
        record = record_of(folder, study, *one.cell.key, code)
    return record.model_dump(mode="json")


def _first_round(
    one: StudyRun, data_root: Path | None, python: bool
) -> tuple[dict[str, Json], dict[str, Json]]:
    """Repeat the first round of a cell; return its results and the machine."""
    experiment = prepare(one.cell.experiment, data_root=data_root, python=python)
    here = environment(experiment.world.device)
    if one.cell.trivial:
        return first_round({"evaluation": trivial_test(experiment, one.cell.trivial)}, None), here
    with contextlib.closing(Loop(experiment)) as loop:
        loop.start(first_state(experiment))
        before = loop.server
        loop.round()
        change = Changes(experiment.world.graph).line(1, before, loop.server)
        return first_round(loop.lines[0], change), here
