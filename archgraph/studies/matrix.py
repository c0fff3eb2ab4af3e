"""Which strategy runs on which model: every cell of a file as a run, and the table of them."""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pydantic
from pydantic import ConfigDict

from archgraph.engine.facts import family_of
from archgraph.engine.local import execute
from archgraph.engine.world import begun, prepare
from archgraph.errors import ArchGraphError
from archgraph.federation import Family, resolve
from archgraph.language import ExperimentSpec
from archgraph.language.consent import allowed
from archgraph.processes.process import Died, attempted
from archgraph.studies.records import add_line, read_lines
from archgraph.studies.spec import cells, load_study
from archgraph.tables import Table, plural

_SIGNS: Mapping[str, str] = {"runs": "✓", "refused": "–", "fails": "✗"}


class MatrixCell(pydantic.BaseModel):
    """What came of a strategy on a model.

    Attributes:
        strategy: Row of the file.
        model: Column of the file.
        outcome: ``runs``: to the end, with every client and finite figures. ``refused``: before
            the first round, with a reason. ``fails``: anything else.
        reason: Why it does not run.
        seconds: Of all that was done for it.
    """

    model_config = ConfigDict(frozen=True)

    strategy: str
    model: str
    outcome: Literal["runs", "refused", "fails"]
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class MatrixResult:
    """The cells so far, row by row.

    Attributes:
        title: The file's.
        about: What it says about itself.
        cells: Of every cell that was run.
        due: How many cells the file has.
    """

    title: str
    about: str
    cells: tuple[MatrixCell, ...]
    due: int

    def count(self, outcome: str) -> int:
        """Cells of an outcome."""
        return sum(cell.outcome == outcome for cell in self.cells)

    def tables(self) -> tuple[Table, ...]:
        """Tabulate strategies (rows) and models (columns); below, why cells do not run."""
        models = tuple(dict.fromkeys(cell.model for cell in self.cells))
        # Many cells have one reason: a sign and its number stand in the cell.
        numbers: dict[str, int] = {}
        signs: dict[str, dict[str, str]] = {}
        for cell in self.cells:
            sign = _SIGNS[cell.outcome]
            if cell.reason:
                sign += f" {numbers.setdefault(cell.reason, len(numbers) + 1)}"
            signs.setdefault(cell.strategy, {})[cell.model] = sign
        rows = tuple((name, *(of.get(m, "") for m in models)) for name, of in signs.items())
        counts = ", ".join(f"{self.count(outcome)} {outcome}" for outcome in _SIGNS)
        note = f"{counts} of {plural(self.due, 'cell')}"
        first = Table("Strategies on models", ("strategy", *models), rows, note=note)
        reasons = tuple((str(number), reason) for reason, number in numbers.items())
        return (first, Table("Why not", ("", "reason"), reasons)) if reasons else (first,)

    def markdown(self) -> str:
        """Format a page: title, what the file says about itself, the tables."""
        tables = (table.markdown() for table in self.tables())
        return "\n\n".join((f"# {self.title}", self.about, *tables)) + "\n"


def matrix(
    file: str | os.PathLike[str],
    *,
    log: str | os.PathLike[str] | None = None,
    only: Sequence[str] = (),
    data_root: str | os.PathLike[str] | None = None,
    python: bool = False,
    notify: Callable[[MatrixCell], object] = lambda cell: None,
) -> MatrixResult:
    """Run every cell of a file of strategies (rows) and models (columns), one after the other.

    Args:
        file: A study file, of which the rows are strategies.
        log: A file to which every cell is added as it ends; what it holds is not run again, except
            what failed.
        only: Rows and columns to run; empty: all.
        data_root: Folder of the data. Default: what ``ARCHGRAPH_DATA`` names.
        python: Consent to run the Python code that the file's models name.
        notify: Hears every cell that is run.

    Raises:
        SpecError: If the file cannot be understood.
        RunError: If a line of the log is damaged.
        OSError: If the log cannot be written.
    """
    spec, path = load_study(file), None if log is None else Path(log)
    logged = read_lines(path, MatrixCell) if path is not None and path.exists() else ()
    done = {(one.strategy, one.model): one for _, one in logged if one.outcome != "fails"}
    families: dict[str, Family] = {}
    with allowed(python):
        every = cells(spec, "paper")
        # By column: cells of one model share its capture.
        columns = list(spec.combined())
        for cell in sorted(every, key=lambda cell: columns.index(cell.column)):
            row, column = key = cell.key
            if key in done or (only and not {*key} & {*only}) or cell.experiment is None:
                continue
            began = time.perf_counter()
            outcome, reason = _tried(cell.experiment, families, data_root)
            seconds = round(time.perf_counter() - began, 1)
            done[key] = MatrixCell(
                strategy=row, model=column, outcome=outcome, reason=reason, seconds=seconds
            )
            if path is not None:  # at once: hours of cells outlive what ends the next one
                add_line(path, done[key])
            notify(done[key])
    ordered = (done.get(cell.key) for cell in every)
    return MatrixResult(spec.study, spec.about, tuple(filter(None, ordered)), len(every))


def _tried(
    spec: ExperimentSpec, families: dict[str, Family], data_root: str | os.PathLike[str] | None
) -> tuple[Literal["runs", "refused", "fails"], str]:
    """Return what came of an experiment; families of the same text are resolved once."""
    text = family_of(spec).model_dump_json(by_alias=True)
    try:
        if text not in families:
            families[text] = resolve(family_of(spec))
        experiment = prepare(spec, data_root=data_root, family=families[text])
        begun(experiment)
    # Only what is said on purpose is a refusal; anything else before the first round is a fault.
    except ArchGraphError as error:
        return "refused", _plain(error)
    run = attempted(functools.partial(execute, experiment, progress=False))
    if isinstance(run, Died):  # a fault in one cell must not lose the others
        return "fails", _plain(run.reason)
    return ("fails", "; ".join(run.troubles)) if run.troubles else ("runs", "")


def _plain(error: Exception | str) -> str:
    """Drop from a message the line of the file, which the cells of a row share."""
    return re.sub(r"^\S+\.yaml:\d+: (strategy: )?", "", " ".join(str(error).split()))
