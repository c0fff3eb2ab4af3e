"""The permanent record of a finished run of a study: one line of text.

Tables, differences and plots are computed only from these lines. They remain available if run
folders are deleted, and a metric that is added later needs no new runs. A file holds the runs of
one study. Other studies that share a run read its record there.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pydantic
from pydantic import ConfigDict

from archgraph.engine.clients import read_clients
from archgraph.engine.experiment import Experiment
from archgraph.errors import RunError
from archgraph.plain import Json
from archgraph.record.changes import FILE
from archgraph.record.condense import condensed, rounded
from archgraph.record.folder import saved_rounds
from archgraph.record.lines import brief
from archgraph.record.proof import environment
from archgraph.reports.comparison import settings_of
from archgraph.reports.runs import Log, read_run
from archgraph.studies.origin import origin

SUFFIX = ".jsonl"
NEAR = 1e-3
"""Largest relative difference between first rounds on different machines that counts as equal."""


class StudyRecord(pydantic.BaseModel):
    """The results of a finished run, and the settings that led to them.

    Attributes:
        run: Hash of the seed and of all settings that affect the results; names the run folder.
        study: Name of the study that ran it.
        row: Row of the run in the study's table.
        column: Column of the run in the study's table.
        seed: Seed of the run.
        settings: All settings that affect the results except the seed, as plain values.
        clients: Dict from tier to number of clients.
        rounds: Metrics of the tested rounds (:func:`archgraph.record.condense.condensed`).
        first: Results of round 1, as returned by :func:`first_round`.
        origin: Processor, threads, versions, digest of the program, commit and date of the run.
    """

    # Lines of earlier versions contain more.
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    run: str
    study: str
    row: str
    column: str
    seed: int
    settings: dict[str, Json]
    clients: dict[str, int]
    rounds: list[dict[str, Json]]
    first: dict[str, Json] = {}
    origin: dict[str, Json]

    @property
    def versions(self) -> str:
        """The versions of programs that affect the results."""
        keys = ("bits", "torch", "numpy")
        return ", ".join(f"{key} {self.origin.get(key, 'unknown')}" for key in keys)

    @functools.cached_property
    def log(self) -> Log:
        """The run as a ``Log``, for tables and plots. The run folder may have been deleted."""
        # A run.yaml with the names only, since nothing else of it is read.
        name = ", ".join(filter(None, (self.study, self.row, self.column)))
        return Log(
            Path(self.run),
            f"name: {name}\n",
            tuple(self.rounds),
            {**self.settings, "seed": self.seed},
        )


def record_of(
    folder: Path, study: str, row: str, column: str, code: Mapping[str, Json] | None = None
) -> StudyRecord:
    """Return the record of a finished run folder.

    Args:
        folder: The run folder, named after the run's address.
        study: Name of the study.
        row: Row of the cell.
        column: Column of the cell.
        code: The program that ran it (:func:`archgraph.studies.origin.program`). Default: unknown.

    Raises:
        RunError: If the folder is damaged.
    """
    log = read_run(folder)
    settings = settings_of(log)
    seed = settings.pop("seed")
    clients = Counter(client.tier for client in read_clients(folder) if client.of is None)
    server = f"checkpoints/round-{max(saved_rounds(folder)):06d}/server.json"
    environments = json.loads((folder / server).read_bytes())["environments"]
    changes = folder / FILE
    change = next(iter(changes.read_text().splitlines()), None) if changes.is_file() else None
    return StudyRecord(
        run=folder.name,
        study=study,
        row=row,
        column=column,
        seed=seed,
        settings=settings,
        clients=dict(clients),
        rounds=list(condensed(log.rounds)),
        first=first_round(log.rounds[0], None if change is None else json.loads(change)),
        origin=origin(environments, code or {}),
    )


def first_round(line: Mapping[str, Json], change: Mapping[str, Json] | None) -> dict[str, Json]:
    """Return the losses of clients and tested models, and the norms of the changes, in round 1.

    A repetition of the run can be compared with these values.

    Args:
        line: The round's line in ``metrics.jsonl``.
        change: Changes of the global model in this round; None if unknown or without a global
            model.
    """
    models = (line.get("evaluation") or {}).get("models", {}).values()
    tests = [v for m in models for v in m.values() if isinstance(v, int | float)]
    norms = {} if change is None else {"norm": change["norm"]}
    losses = [client.get("loss") for client in line.get("clients", ())]
    return rounded({"loss": losses, "test": tests, **norms})


def unlike(record: StudyRecord, first: Mapping[str, Json], origin: Mapping[str, Json]) -> str:
    """Describe how a repeated first round differs from the record; empty if they agree.

    Values must be equal on the same machine. On other machines, and for runs that were resumed on
    another machine, they must agree within :data:`NEAR`.

    Args:
        record: The record.
        first: The repeated first round.
        origin: Origin of the repetition.
    """
    then, now = (
        np.array([*itertools.chain(*(figures.get(key, ()) for key in record.first))], float)
        for figures in (record.first, first)
    )
    moved = "resumed" in record.origin or any(
        record.origin.get(key) != origin[key] for key in origin
    )
    if not then.size or then.shape != now.shape:
        return "the record has no first round" if not then.size else "other clients or parameters"
    differ = ~np.isclose(now, then, NEAR if moved else 0, 0, equal_nan=True)
    return f"{differ.sum()} of {then.size} figures differ" if differ.any() else ""


def trivial_record(
    experiment: Experiment,
    trivial: str,
    run: str,
    study: str,
    row: str,
    column: str,
    code: Mapping[str, Json],
) -> StudyRecord:
    """Return the record of a trivial model: one test, in the last round.

    Args:
        experiment: The experiment whose examples the model is fitted to.
        trivial: Name of the model.
        run: Address of the model's run.
        study: Name of the study.
        row: Row of the cell.
        column: Column of the cell.
        code: The program that fits the model.

    Raises:
        RunError: If the model cannot predict the experiment's targets.
    """
    from archgraph.studies.trivial import trivial_test

    rounds = experiment.world.rounds
    settings = {**experiment.facts, "strategy": {trivial: {}}, "evaluate": {}, "rounds": rounds}
    settings.pop("seed")
    line = {"round": rounds, "evaluation": trivial_test(experiment, trivial)}
    return StudyRecord(
        run=run,
        study=study,
        row=row,
        column=column,
        seed=experiment.world.seed,
        settings=settings,
        clients=dict(Counter(client.name for client in experiment.world.participants)),
        rounds=list(condensed([line])),
        first=first_round(line, None),
        origin=origin([environment()], code),
    )


def read_records(folder: str | os.PathLike[str]) -> dict[str, StudyRecord]:
    """Return a dict from hash of a run to its record, from all files of a folder.

    Raises:
        RunError: If a line is damaged, or two records of one run have different results.
    """
    records: dict[str, StudyRecord] = {}
    for path in sorted(Path(folder).glob(f"*{SUFFIX}")):
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            where = f"{path}:{number}"
            try:
                record = StudyRecord.model_validate_json(text)
            except ValueError as error:
                raise RunError("damaged line", where=where, found=brief(error)) from error
            before = records.setdefault(record.run, record)
            if _figures(before) != _figures(record):
                raise RunError(
                    "two records of the same run have different results",
                    where=where,
                    found=record.run,
                    hint="delete one of the two lines; results are reproducible on the same "
                    "processor model only",
                )
    return records


def _figures(record: StudyRecord) -> Json:
    """Return the values that must be equal in all records of a run: all except seconds."""
    return [{**line, "seconds": None} for line in record.rounds]


def add_line(path: Path, line: StudyRecord) -> None:
    """Append a record to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # One write of a complete line: a killed process does not leave a partial one.
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line.model_dump(mode="json"), ensure_ascii=False) + "\n")
