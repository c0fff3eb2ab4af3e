"""Gates of a study's settings: judged before its runs, recorded beside them.

A setting is what the rows of a column share. Its gate says whether methods could show anything in
it (:func:`archgraph.studies.references.gate`); cells of a setting that fails are not run, and their
claims do not count.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pydantic
from pydantic import ConfigDict

from archgraph.engine.experiment import Experiment
from archgraph.engine.local import execute
from archgraph.engine.world import prepare
from archgraph.errors import RunError
from archgraph.graph.ir import Ref
from archgraph.language import ExperimentSpec
from archgraph.language.consent import allowed, consent_given
from archgraph.plain import Json
from archgraph.processes.isolation import one_thread
from archgraph.record.condense import condensed
from archgraph.reports.comparison import compare_logs
from archgraph.reports.measures import SHARES
from archgraph.reports.runs import Log
from archgraph.studies.cell import address
from archgraph.studies.records import SUFFIX, add_line, origin, read_lines
from archgraph.studies.references import SettingGate, gate, gate_setting, largest_model
from archgraph.studies.spec import StudyCell, StudySizeName, StudySpec, cells
from archgraph.tables import Table

FOLDER = "gates"
"""Where gates are recorded, below the records of runs."""


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
    origin: dict[str, Json]

    @property
    def passed(self) -> bool:
        """Whether the setting is fit to be run."""
        return all(one["passed"] for one in self.comparisons)

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

    1. Columns that are equal without attack are one setting.
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
    """
    if seed in spec.sizes[size].seeds:
        raise RunError("is a seed of the study", where="gate", found=seed, hint="choose another")
    known, judged = read_gates(records), []
    with allowed(python), one_thread():
        python = consent_given()
        for setting in _settings(cells(spec, size)):
            if chosen.isdisjoint(setting.cells) or all(name in known for name in setting.covers):
                continue
            record = _judged(spec, setting, seed, data_root, python, notify)
            stem = Path(spec.document_of(("study",)).file).stem
            add_line(Path(records) / FOLDER / f"{stem}{SUFFIX}", record)
            verdict = "passes its gate" if record.passed else "does not pass its gate"
            notify(f"{record.column or record.data}: {verdict}")
            judged.append(record)
    return tuple(judged)


@dataclasses.dataclass(frozen=True)
class _Setting:
    """The rows of a column without attack; cells under any attack, and their addresses."""

    rows: tuple[StudyCell, ...]
    cells: frozenset[tuple[str, str]]
    covers: tuple[str, ...]


def _settings(every: Iterable[StudyCell]) -> list[_Setting]:
    columns: dict[str, list[StudyCell]] = {}
    for cell in every:
        if cell.experiment is not None:
            columns.setdefault(cell.column, []).append(cell)
    alike: dict[frozenset[str], list[list[StudyCell]]] = {}  # 1
    for of in columns.values():
        clean = (one.experiment.model_copy(update={"attack": None}) for one in of if one.experiment)
        alike.setdefault(frozenset(map(_named, clean)), []).append(of)
    settings = []
    for names, of_columns in alike.items():
        # A study of attacks alone has no clean column: its first one stands for it.
        first = next((of for of in of_columns if _named(of[0].experiment) in names), of_columns[0])
        attacked = {_named(one.experiment) for of in of_columns for one in of if one.experiment}
        every_cell = frozenset((one.row, one.column) for of in of_columns for one in of)
        settings.append(_Setting(tuple(first), every_cell, tuple(sorted(attacked | names))))
    return settings


def _named(spec: ExperimentSpec | None) -> str:
    assert spec is not None
    return setting_of(address(spec))


def _judged(
    spec: StudySpec,
    setting: _Setting,
    seed: int,
    data_root: str | os.PathLike[str] | None,
    python: bool,
    notify: Callable[[str], object],
) -> GateRecord:
    names, rows = spec.gates, setting.rows
    personal = any("matched" in rows[0].figures[name].measure for name in names)

    def prepared(cell: StudyCell) -> Experiment:
        assert cell.experiment is not None
        return prepare(gate_setting(cell.experiment, seed), data_root=data_root, python=python)

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
            values = [
                compare_logs([log], tiers=True, last=cell.figures[name].last)
                .groups[0]
                .figures[cell.figures[name].measure]
                .mean
                for name in names
            ]
            figure = sum(values) / len(values)
            judged = dataclasses.replace(judged, methods={**judged.methods, cell.row: figure})
            notify(f"{cell.row}: {judged.references.text(figure)}")
            if judged.passed:
                break
    return _record(spec.study, rows[0].column, setting.covers, judged)


def _record(study: str, column: str, covers: Sequence[str], judged: SettingGate) -> GateRecord:
    known = judged.references
    return GateRecord(
        covers=list(covers),
        study=study,
        column=column,
        seed=judged.seed,
        data=known.data,
        figure=known.figure,
        tested=known.tested,
        references=known.summary(),
        comparisons=[one._asdict() for one in judged.comparisons],
        origin=origin(),
    )


def gate_tables(gates: Iterable[GateRecord]) -> tuple[Table, ...]:
    """Tabulate gates, and what trivial models reach in each setting; without empty tables."""
    distinct = list({id(one): one for one in gates}.values())
    compared = tuple(
        (one.column or one.data, c["what"], one.text(c["figure"]), c["than"],
         one.text(c["reference"]), "yes" if c["passed"] else "no")
        for one in distinct
        for c in one.comparisons
    )  # fmt: skip
    titles = {
        "pooled": "pooled",
        "mean": "one client, mean",
        "best": "one client, best",
        "matched": "own mixture, pooled",
        "own_matched": "own mixture, one client",
    }
    keys = [key for key in titles if any(key in row for g in distinct for row in _rows(g))]
    references = tuple(
        (one.column or one.data, name, *(one.text(row[k]) if k in row else "" for k in keys))
        for one in distinct
        for name, row in one.references.items()
    )
    seeds = ", ".join(sorted({str(one.seed) for one in distinct}))
    tested = ", ".join(sorted({str(one.tested) for one in distinct}))
    note = f"seed {seeds}, {tested} held-out training examples, without attack"
    heads = ("setting", "", "figure", "reference", "its figure", "passed")
    tables = (
        Table("Gates", heads, compared, frozenset({2, 4}), note=note),
        Table("Trivial references", ("setting", "", *(titles[k] for k in keys)), references,
              frozenset(range(2, 2 + len(keys))), note=note),
    )  # fmt: skip
    return tuple(table for table in tables if table.rows)


def _rows(gate: GateRecord) -> Iterable[Mapping[str, float]]:
    return gate.references.values()
