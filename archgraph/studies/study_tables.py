"""The tables of a study as text, LaTeX and CSV: measured and published values, differences."""

from __future__ import annotations

import dataclasses
import itertools
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from archgraph.files import write
from archgraph.plain import Json
from archgraph.reports.sheets import NOTHING, as_csv
from archgraph.studies.origin import UNCOMMITTED, in_history
from archgraph.studies.outcomes import POWER
from archgraph.studies.study import StudyResult
from archgraph.tables import Table, plural

# Maximum number of columns of a table, and of characters per line in the text file.
WIDE, ACROSS = 16, 160
NOTE = (
    "95 % confidence interval of a paired t test over the common seeds; p: two-sided, with "
    "Holm's correction over all differences of the same metric; detectable: the smallest true "
    f"difference that this number of seeds finds in {100 * POWER:.0f} % of cases at the "
    "corrected level"
)


def study_tables(result: StudyResult) -> tuple[Table, ...]:
    """Return the tables of values, differences and missing runs, without empty tables."""
    tables = (
        *_figures(result),
        *_outdated(result),
        _differences(result),
        _repeated(result),
        _missing(result),
    )
    return tuple(table for table in tables if table.rows)


def study_text(result: StudyResult) -> str:
    """Format all tables as text, after the study's notes and the origin of its runs."""
    seeds = plural(len({one.seed for one in result.runs}), "seed")
    of = plural(len({one.folder for one in result.runs}), "run")
    done = f"Size {result.size}, {seeds}, {result.done} of {len(result.runs)} cells done ({of})."
    about = result.spec.about, result.spec.sizes[result.size].about, done, _where(result)
    tables = (table.text(ACROSS) for table in study_tables(result))
    return "\n\n".join(filter(None, (result.spec.study, *about, *tables))) + "\n"


def study_csv(result: StudyResult) -> str:
    """Format the values as CSV, with a line for each cell and metric."""
    rows = []
    for row, column in _cells(result):
        for figure in result.spec.figures:
            values = list(result.values(row, column, figure).values())
            mean = statistics.fmean(values) if values else None
            std = statistics.stdev(values) if len(values) > 1 else None
            printed = result.spec.printed(row, column, figure)
            listed = " ".join(map(repr, values))  # unrounded
            rows.append([row, column, figure, len(values), mean, std, printed, listed])
    heads = ("row", "column", "figure", "seeds", "mean", "std", "published", "values")
    return as_csv(heads, rows)


def study_latex(result: StudyResult) -> str:
    """Format values and differences for LaTeX (booktabs), with notes as comments."""
    texts = [table.latex() for table in _figures(result)]
    if (differences := _differences(result)).rows:
        texts.append(differences.latex(len(differences.columns)))
    return "\n\n".join(texts) + "\n"


def write_study(result: StudyResult, name: str, folder: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Write the tables as text, LaTeX and CSV; return the paths of the files.

    Raises:
        RunError: If they cannot be written.
    """
    texts = {"txt": study_text(result), "tex": study_latex(result), "csv": study_csv(result)}
    file = Path(folder) / f"{name}-{result.size}"
    return tuple(write(file.with_name(f"{file.name}.{end}"), text) for end, text in texts.items())


def _cells(result: StudyResult) -> list[tuple[str, str]]:
    """Return the cells of this size, row by row."""
    return list(dict.fromkeys(one.cell.key for one in result.runs))


def _where(result: StudyResult) -> str:
    """Describe the machines of the finished runs."""
    runs = {one.address: one for one in result.runs if one.address in result.records}
    where: dict[str, list[str]] = {}
    for name in runs:
        of = result.records[name].origin
        device = [of["device"]] if of["device"] != "cpu" else []
        machine = ", ".join(map(str, (*device, of["processor"], of["instructions"])))
        threads, resumed = plural(of["threads"], "thread"), of.get("resumed", ())
        versions = f"torch {of['torch']}, numpy {of.get('numpy', 'unknown')}"
        where.setdefault(", ".join((machine, threads, versions, *resumed)), []).append(_code(of))
    machines = (
        f"{machine} ({plural(len(codes), 'run')}, {'; '.join(sorted(set(codes)))})"
        for machine, codes in where.items()
    )
    return f"Computed on {'; '.join(machines)}." if where else ""


def _code(origin: Mapping[str, Json]) -> str:
    """Describe the program of a run: a commit only if it is in this repository's history."""
    code, commit = origin.get("code", "unknown"), origin.get("commit")
    if not commit:  # an installed archgraph, or the record of a run that was killed
        return f"code {code}, archgraph {origin.get('archgraph', 'unknown')}"
    return f"code {code}, " + (f"commit {commit}" if in_history(commit) else UNCOMMITTED)


def _figures(result: StudyResult) -> Iterator[Table]:
    """Yield a table for each first part of the combined column names.

    For column names without parts, yield one table, or one per column if there are too many
    columns.
    """
    there = _cells(result)
    present = {column for _, column in there}
    parts = {c: names for c, names in result.spec.combined().items() if c in present}
    several = len(result.spec.parts) > 1 or len(parts) * len(result.spec.figures) > WIDE
    seeds = len({one.seed for one in result.runs})
    for first in dict.fromkeys(names[0] if several else "" for names in parts.values()):
        columns = [c for c, names in parts.items() if not several or names[0] == first]
        # The title contains the first part. The name of a single metric is omitted.
        short = {c: c.removeprefix(first).removeprefix(", ") if several else c for c in columns}
        with_figure = len(result.spec.figures) > 1 or len(result.spec.combined()) == 1
        places = list(itertools.product(columns, result.spec.figures))
        heads = [", ".join(filter(None, (short[c], f if with_figure else ""))) for c, f in places]
        of = dict.fromkeys(row for row, column in there if column in columns)
        rows = tuple(line for row in of for line in _lines(result, row, places, seeds))
        yield Table(
            ", ".join(filter(None, (result.spec.study, first))),
            ("", *heads),
            rows,
            right=frozenset(range(1, len(heads) + 1)),
            note=_measured(rows, seeds),
        )


def _outdated(result: StudyResult) -> Iterator[Table]:
    """Yield tables of the runs that only other versions have recorded."""
    for versions, others in result.outdated.items():
        for table in _figures(others):
            title = (
                f"{table.title}, recorded with {versions}: not compared; --again repeats these runs"
            )
            yield dataclasses.replace(table, title=title)


def _repeated(result: StudyResult) -> Table:
    """Return the table of repeated first rounds."""
    runs = {one.address: one for one in reversed(result.runs)}
    rows = (
        (runs[name].cell.row, runs[name].cell.column, str(runs[name].seed), text or "repeats")
        for name, text in result.repeated.items()
    )
    return Table("Repeated first rounds", ("row", "column", "seed", "figures"), tuple(rows))


def _measured(rows: Sequence[tuple[str, ...]], seeds: int) -> str:
    """Describe the number of seeds over which the cells of a table are means."""
    some = any(", n " in text for line in rows for text in line)
    mean = f"mean ± standard deviation over {plural(seeds, 'seed')}"
    end = ", or n of them where a cell says so" if some else ""
    return f"measured: {'one seed' if seeds == 1 else mean}{end}"


def _lines(
    result: StudyResult, row: str, places: Sequence[tuple[str, str]], seeds: int
) -> Iterator[tuple[str, ...]]:
    """Yield the measured values of a row and, if any, its published values."""
    yield (row, *(_cell(result, row, column, figure, seeds) for column, figure in places))
    printed = [result.spec.printed(row, column, figure) for column, figure in places]
    if any(value is not None for value in printed):
        yield f"{row}, published", *(NOTHING if one is None else f"{one:g}" for one in printed)


def _cell(result: StudyResult, row: str, column: str, figure: str, seeds: int) -> str:
    values = list(result.values(row, column, figure).values())
    digits = result.spec.read[figure].digits
    if not values:
        return NOTHING
    text = _number(statistics.fmean(values), digits)
    text += f" ± {_number(statistics.stdev(values), digits)}" if len(values) > 1 else ""
    if bounded := result.bounded(row, column, figure):
        text = f"≥ {text}; {bounded} of {len(values)} never"
    return text + f", n {len(values)}" * (len(values) < seeds)


def p_text(p: float) -> str:
    """Write a p value with three digits.

    Example:
        >>> p_text(0.0394), p_text(2e-5)
        ('0.039', '< 0.001')
    """
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _number(value: float, digits: int) -> str:
    """Format a number with ``digits`` decimals, or with four digits in total above 1,000."""
    return f"{value:.{digits}f}" if abs(value) < 1000 else f"{value:.4g}"


def _differences(result: StudyResult) -> Table:
    rows = []
    for one in result.differences:
        text = [NOTHING] * 5
        if (paired := one.paired) is not None:
            digits = result.spec.read[one.figure].digits
            low, high = paired.interval or (None, None)
            text = [
                f"{paired.mean:+.{digits}f}",
                NOTHING if low is None else f"{low:+.{digits}f} … {high:+.{digits}f}",
                str(len(paired.differences)),
                NOTHING if one.p is None else p_text(one.p),
                NOTHING if one.detectable is None else f"{one.detectable:.{digits}f}",
            ]
        rows.append((" − ".join(one.names), one.where, one.figure, *text))
    heads = ("", "where", "by", "difference", "interval", "seeds", "p", "detectable")
    return Table("Differences", heads, tuple(rows), frozenset(range(3, 8)), note=NOTE)


def _missing(result: StudyResult) -> Table:
    rows = []
    for figure in result.spec.figures if result.done else ():
        if not any(result.values(*cell, figure) for cell in _cells(result)):
            measures = {one.cell.figures[figure].measure for one in result.runs}
            rows.append((f"figure {figure}", "", f"no run has {' or '.join(sorted(measures))}"))
    for one in result.runs:
        if one.folder in result.failed:
            column = ", ".join(filter(None, (one.cell.column, f"seed {one.seed}")))
            rows.append((one.cell.row, column, result.failed[one.folder]))
    return Table("Not measured", ("row", "column", "why"), tuple(dict.fromkeys(rows)))
