"""Gates of a study's settings: judged before its runs, recorded beside them.

A setting is what the rows of a column share. Its gate says whether methods could show anything in
it (:func:`archgraph.studies.references.gate`); cells of a setting that fails are not run, and their
claims do not count.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pydantic
from pydantic import ConfigDict

from archgraph.engine.experiment import Experiment
from archgraph.engine.local import execute
from archgraph.engine.world import prepare
from archgraph.errors import RunError, SpecError
from archgraph.graph.ir import Ref
from archgraph.language.consent import allowed
from archgraph.plain import Json
from archgraph.processes.isolation import one_thread
from archgraph.record.condense import condensed
from archgraph.reports.comparison import compare_logs
from archgraph.reports.measures import SHARES
from archgraph.reports.runs import Log, within_budget
from archgraph.studies.cell import address
from archgraph.studies.records import SUFFIX, add_line, origin, read_lines
from archgraph.studies.references import (
    FITTED,
    UNGATED,
    best_reference,
    gate,
    gate_setting,
    largest_model,
    standard_error,
)
from archgraph.studies.spec import StudyCell, StudyFigure, StudySizeName, StudySpec, cells
from archgraph.tables import Table

FOLDER = "gates"
"""Where gates are recorded, below the records of runs."""

# Figures of the same kind as a reference: which of its figures, how it was fitted, and measures.
# The worst tenth of the clients and tests on a client's own classes alone have no reference.
_ALIKE = (
    ("pooled", "pooled", r"((validation_)?(worst|average|global)_|(models|clients)\..*\.){}"),
    ("own_matched", "one client", r"(validation_)?local_matched|tier\..*\.matched"),
)


class GateRecord(pydantic.BaseModel):
    """A gate as it was judged.

    Attributes:
        covers: Addresses of all cells of the setting, without their seeds: any change of a cell
            leaves it without a gate.
        study: Name of the study.
        column: The column without attack.
        seed: Seed of central training and of the methods, none of the study's.
        data: Name of the data set.
        figure: ``accuracy`` or ``perplexity``.
        tested: Number of held-out examples.
        references: By trivial model: ``pooled``; ``mean`` and ``best`` of one client's; on each
            client's own mixture ``matched`` and ``own_matched``.
        comparisons: What was compared: ``what``, ``figure``, ``than``, ``reference``, ``passed``.
        methods: Figures of all methods that were run, in order; empty: the best alone is known.
        origin: Processor, threads, versions, commit and date.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    covers: list[str]
    study: str
    column: str
    seed: int
    data: str
    figure: str
    tested: int
    references: dict[str, dict[str, float]]
    comparisons: list[dict[str, Json]]
    methods: dict[str, float] = {}
    origin: dict[str, Json]

    @property
    def passed(self) -> bool:
        """Whether the setting is fit to be run."""
        return all(one["passed"] for one in self.comparisons)

    @property
    def setting(self) -> str:
        """What tables call the setting."""
        return self.column or self.data

    def better(self, figure: float, other: float) -> bool:
        """Return whether a figure is better than another one; one that is not a number never is."""
        return figure > other if self.figure in SHARES else figure < other

    def reference(self, measure: str) -> tuple[str, float] | None:
        """Return the best gating reference of a measure's kind, and its figure.

        Figures on all test data have the best pooled one, those on clients' own mixtures of classes
        the best that is fitted to one client; None: no reference is of the measure's kind.
        """
        there = next(iter(self.references.values()))
        for key, fitted, measures in _ALIKE:
            if key in there and re.fullmatch(measures.format(self.figure), measure):
                name, figure = best_reference(self.references, key, more=self.figure in SHARES)
                return f"{name}, {fitted} ({self.setting})", figure
        return None

    def tried(self) -> Iterator[tuple[str, float, Sequence[Mapping[str, Json]]]]:
        """Yield all that was tried, in order: what, its figure, the references to be passed."""
        central, *of_methods = self.comparisons
        # JSON has null for what is not a number: of training that diverged.
        reached = math.nan if central["figure"] is None else central["figure"]
        yield central["what"], reached, [central]
        methods = self.methods or {one["what"]: one["figure"] for one in of_methods}
        yield from ((name, figure, of_methods) for name, figure in methods.items())

    def text(self, figure: float) -> str:
        """Write a figure as tables do: accuracy in per cent."""
        return f"{100 * figure:.2f}" if self.figure in SHARES else f"{figure:.1f}"


def setting_of(name: str) -> str:
    """Return a run's address without its seed.

    Example:
        >>> setting_of("heterofl-2c53dcd3-seed4")
        'heterofl-2c53dcd3'
    """
    return name.rpartition("-seed")[0]


def read_gates(folder: str | os.PathLike[str]) -> dict[str, GateRecord]:
    """Return the gates below a folder of records, by the addresses that they cover.

    A later line of the same cell replaces an earlier one.

    Raises:
        RunError: If a line is damaged.
    """
    files = sorted((Path(folder) / FOLDER).glob(f"*{SUFFIX}"))
    every = [gate for path in files for _, gate in read_lines(path, GateRecord)]
    return {name: gate for gate in every for name in gate.covers}


def judge_gates(
    spec: StudySpec,
    seed: int,
    *,
    size: StudySizeName = "small",
    records: str | os.PathLike[str],
    chosen: frozenset[tuple[str, str]],
    data_root: str | os.PathLike[str] | None = None,
    python: bool = False,
    notify: Callable[[str], object] = lambda line: None,
) -> tuple[GateRecord, ...]:
    """Judge the settings of a study that have no gate yet, and record them.

    1. Columns that are equal without attack, but for rows that are left out, are one setting.
    2. The largest model of the first row whose model has one result is trained centrally.
    3. If it passes, rows are run until one passes: the best method is at least as good.

    Args:
        spec: The study.
        seed: None of the study's.
        size: The size.
        records: Folder of what finished runs leave; gates are recorded below it.
        chosen: Row and column of the cells whose settings are judged, by all of their rows.
        data_root: Folder of the data. Default: what ``ARCHGRAPH_DATA`` names.
        python: Consent to run the Python code that the study's files name.
        notify: Hears a line about every gate.

    Returns:
        The gates that were judged.

    Raises:
        RunError: If the seed is one of the study's, or no reference is known for the task.
        SpecError: If methods would be judged by what no reference has, such as seconds.
    """
    if seed in spec.sizes[size].seeds:
        raise RunError("is a seed of the study", where="gate", found=seed, hint="choose another")
    known, judged = read_gates(records), []
    with allowed(python), one_thread():
        for setting in _settings(cells(spec, size)):
            if chosen.isdisjoint(setting.cells) or all(name in known for name in setting.covers):
                continue
            _check_figures(spec, setting.rows[0])
            record = _judged(spec, setting, seed, data_root, notify)
            stem = Path(spec.document_of(("study",)).file).stem
            add_line(Path(records) / FOLDER / f"{stem}{SUFFIX}", record)
            verdict = "passes its gate" if record.passed else "does not pass its gate"
            notify(f"{record.setting}: {verdict}")
            judged.append(record)
    return tuple(judged)


def _check_figures(spec: StudySpec, cell: StudyCell) -> None:
    """Check that methods are judged by what references have: seconds would pass any of them."""
    for name in spec.gates:
        if cell.figures[name].quantity not in (*SHARES, "perplexity"):
            raise SpecError(
                "no trivial reference has such a figure",
                where=f"{spec.study}: gate",
                found=cell.figures[name].measure,
                hint="name figures of accuracy or perplexity: gate: [accuracy]",
            )


@dataclasses.dataclass(frozen=True)
class _Setting:
    """The rows of a column without attack; cells under any attack, and their addresses."""

    rows: tuple[StudyCell, ...]
    cells: frozenset[tuple[str, str]]
    covers: tuple[str, ...]


def _settings(every: Iterable[StudyCell]) -> list[_Setting]:
    columns: dict[str, list[StudyCell]] = {}
    names: dict[str, set[str]] = {}
    clean: dict[str, set[str]] = {}
    for cell in every:
        if (spec := cell.experiment) is not None:
            columns.setdefault(cell.column, []).append(cell)
            names.setdefault(cell.column, set()).add(setting_of(address(spec)))
            without = spec.model_copy(update={"attack": None})
            clean.setdefault(cell.column, set()).add(setting_of(address(without)))
    alike: dict[frozenset[str], list[str]] = {}  # 1
    for column, of in clean.items():
        # A column from which rows are left out is a part of the one that has them.
        most = max((more for more in clean.values() if of <= more), key=len)
        alike.setdefault(frozenset(most), []).append(column)
    settings = []
    for without_attack, same in alike.items():
        # A study of attacks alone has no clean column: its first one stands for it.
        full = [column for column in same if clean[column] == without_attack]
        first = next((column for column in full if names[column] == without_attack), full[0])
        covers = without_attack.union(*(names[column] for column in same))
        keys = frozenset(cell.key for column in same for cell in columns[column])
        settings.append(_Setting(tuple(columns[first]), keys, tuple(sorted(covers))))
    return settings


def _judged(
    spec: StudySpec,
    setting: _Setting,
    seed: int,
    data_root: str | os.PathLike[str] | None,
    notify: Callable[[str], object],
) -> GateRecord:
    names, rows = spec.gates, setting.rows
    personal = any("matched" in rows[0].figures[name].measure for name in names)

    def prepared(cell: StudyCell) -> Experiment:
        assert cell.experiment is not None
        return prepare(gate_setting(cell.experiment, seed), data_root=data_root)

    # Of models with several exits no single one is trained centrally.
    candidates = (prepared(cell) for cell in rows)
    alone = next((e for e in candidates if isinstance(largest_model(e)[1].outputs, Ref)), None)
    judged = gate(alone or prepared(rows[0]), personal=personal)  # 2
    if judged.passed:
        for cell in rows:  # 3
            tested = dataclasses.replace(prepared(cell).validating, selection=None)
            run = execute(tested, progress=False)
            log = Log(Path(cell.row), f"name: {cell.row}\n", tuple(condensed(run.rounds)), {
                **run.experiment.facts, "evaluate": {}, "rounds": len(run.rounds)
            })  # fmt: skip
            values = [_figure(log, cell.figures[name]) for name in names]
            mean = sum(values) / len(values)
            judged = dataclasses.replace(judged, methods={**judged.methods, cell.row: mean})
            notify(f"{cell.row}: {judged.references.text(mean)}")
            if judged.passed:
                break
    known = judged.references
    return GateRecord(
        covers=list(setting.covers),
        study=spec.study,
        column=rows[0].column,
        seed=judged.seed,
        data=known.data,
        figure=known.figure,
        tested=known.tested,
        references=known.summary(),
        comparisons=[one._asdict() for one in judged.comparisons],
        methods=dict(judged.methods),
        origin=origin(),
    )


def _figure(log: Log, figure: StudyFigure) -> float:
    """Return a figure of a method's run, as the study reads it; NaN: it is below the budget."""
    if figure.within is not None:
        log = within_budget(log, figure.within)
    if not log.rounds:
        return math.nan
    compared = compare_logs([log], tiers=True, last=figure.last, unfinished=True)
    return compared.groups[0].figures[figure.measure].mean


def gate_tables(gates: Iterable[GateRecord]) -> tuple[Table, ...]:
    """Tabulate gates, and what trivial models reach in each setting; without empty tables."""
    distinct = {tuple(one.covers): one for one in gates}.values()
    tried = tuple(
        (f"{one.study}, {one.setting}", _tested(one), what, one.text(figure),
         ", ".join(f"{one.text(c['reference'])} ({c['than']})" for c in against),
         "yes" if all(one.better(figure, c["reference"]) for c in against) else "no")
        for one in distinct
        for what, figure, against in one.tried()
    )  # fmt: skip
    alike: dict[tuple[str, ...], list[str]] = {}  # settings with the same examples
    for one in distinct:
        for name, row in one.references.items():
            cells = (one.text(row[key]) if key in row else "" for key in FITTED)
            alike.setdefault((name, *cells), []).append(f"{one.study}, {one.setting}")
    note = "without attack; ±: standard error of an accuracy as high as the best pooled reference"
    if any(len(one.comparisons) > 1 and not one.methods for one in distinct):
        note += "; of older gates the rows that were tried before the best one are not recorded"
    heads = ("setting", "held-out training examples", "tried, in order", "figure", "to be passed")
    tables = (
        Table("Gates", (*heads, "passed"), tried, frozenset({3}), note=note),
        Table("Trivial references", ("setting", "", *FITTED.values()),
              tuple((", ".join(of), *row) for row, of in alike.items()),
              frozenset(range(2, 2 + len(FITTED))), note=f"{', '.join(UNGATED)} gate nothing"),
    )  # fmt: skip
    return tuple(table for table in tables if table.rows)


def _tested(gate: GateRecord) -> str:
    error, best = "", gate.reference(f"global_{gate.figure}")
    if best is not None and gate.figure in SHARES:
        error = f" (± {standard_error(best[1], gate.tested):.1f})"
    return f"{gate.tested}{error}, seed {gate.seed}"
