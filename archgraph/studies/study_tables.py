"""A study as tables, Markdown, LaTeX, CSV and a page: measured beside published, claims judged."""

from __future__ import annotations

import dataclasses
import html
import itertools
import os
import shlex
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from archgraph.files import write
from archgraph.reports.parts import closed_page, embedded
from archgraph.reports.runs_page import runs_charts
from archgraph.reports.sheets import NOTHING, as_csv
from archgraph.studies.claims import SEEDS, Judged, judge
from archgraph.studies.gates import GateRecord, gate_tables
from archgraph.studies.outcomes import LEVEL, POWER
from archgraph.studies.pictures import columns_of
from archgraph.studies.study import StudyResult
from archgraph.tables import Table, plural

# Columns of a table of figures, and of letters in a file of tables.
WIDE, ACROSS = 16, 160
# Marks of figures below their reference, and of published differences.
BELOW = "† mean worse than the best trivial reference of its kind on held-out training examples"
OUTSIDE = "‡ published difference of the same two cells outside the measured interval"
NOTE = (
    "95 % interval and two-sided p of a paired t test over the seeds; positive: as claimed. "
    "Primary claims have a verdict, with p corrected (Holm) over all of the study and all that "
    f"share its runs, level {LEVEL:g}, at least {SEEDS} seeds: holds, against, equivalent (two "
    "one-sided tests within the margin, corrected in the same way), undecided. Detectable: the "
    f"true difference that so many seeds find in {100 * POWER:.0f} % of cases, of a primary "
    f"comparison at level {LEVEL:g} divided by the number of comparisons corrected together"
)


def study_tables(
    result: StudyResult, judged: Sequence[Judged] | None = None, *, alone: bool = True
) -> tuple[Table, ...]:
    """Tabulate setup, measured beside published, claims, what is missing; without empty tables.

    Args:
        result: What was measured.
        judged: The study's claims as judged among those of other studies. Default: by themselves.
        alone: With its gates and the note on claims, which a page of several studies has once.
    """
    judged = judge(result.findings) if judged is None else judged
    claims = _claims(result, judged)
    if alone:
        claims = dataclasses.replace(claims, note=". ".join(filter(None, (claims.note, NOTE))))
    gates = gate_tables(gates_of(result)) if alone else ()
    tables = (result.setup, *_figures(result), claims, *gates, _missing(result))
    return tuple(table for table in tables if table.rows)


def gates_of(result: StudyResult) -> list[GateRecord]:
    """Return the gates of a study's settings, in the order of its runs."""
    return [gate for one in result.runs if (gate := result.gates.get(one.setting)) is not None]


def study_csv(result: StudyResult) -> str:
    """Format the figures as CSV, a line for each cell and figure."""
    rows = []
    for row, column in _cells(result):
        for figure in result.spec.figures:
            values = list(result.values(row, column, figure).values())
            mean = statistics.fmean(values) if values else None
            std = statistics.stdev(values) if len(values) > 1 else None
            printed = result.spec.printed(row, column, figure)
            listed = " ".join(map(repr, values))  # to the last bit
            rows.append([row, column, figure, len(values), mean, std, printed, listed])
    heads = ("row", "column", "figure", "seeds", "mean", "std", "published", "values")
    return as_csv(heads, rows)


def study_markdown(
    result: StudyResult,
    judged: Sequence[Judged] | None = None,
    pictures: Mapping[str, str] | None = None,
    *,
    alone: bool = True,
) -> str:
    """Format the tables as Markdown, under the study's name; see :func:`study_tables`.

    Args:
        result: What was measured.
        judged: As in :func:`study_tables`.
        pictures: Files that are shown below the tables, and what each shows.
        alone: As in :func:`study_tables`.
    """
    texts = [f"## {result.spec.study}", *filter(None, _about(result))]
    for table in study_tables(result, judged, alone=alone):
        texts += [f"**{table.title}**", table.markdown()]
    texts += [f"![{title}]({file})" for file, title in (pictures or {}).items()]
    return "\n\n".join((*texts, *_findings(result))) + "\n"


def study_latex(result: StudyResult) -> str:
    """Format figures and claims for LaTeX with the package booktabs, notes as comments."""
    tables = (*_figures(result), _claims(result, judge(result.findings)))
    return "\n\n".join(table.latex() for table in tables if table.rows) + "\n"


def study_page(result: StudyResult) -> str:
    """Format the tables as an HTML page, with the curves of every column."""
    body = [f"<h1>{html.escape(result.spec.study)}</h1>"]
    body += [f"<p>{html.escape(text)}</p>" for text in filter(None, _about(result))]
    for table in study_tables(result):
        body += [f"<h2>{html.escape(table.title)}</h2>", table.html()]
        body += [f"<p>{html.escape(table.note)}</p>"] if table.note else []
    body += [f"<p>{html.escape(text)}</p>" for text in _findings(result)]
    for column, compared in columns_of(result).items():
        drawn = "".join(map(embedded, runs_charts(compared)))
        body += [f"<h2>{html.escape(column or 'Over the rounds')}</h2>"]
        body += [f'<div class="charts">{drawn}</div>']
    return closed_page(result.spec.study, body)


def write_study(result: StudyResult, name: str, folder: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Write the tables as text, Markdown, LaTeX, CSV and a page; return the paths of the files.

    Raises:
        RunError: If they cannot be written.
    """
    texts = {
        "txt": "\n\n".join((*(t.text(ACROSS) for t in study_tables(result)), *_findings(result)))
        + "\n",
        "md": study_markdown(result),
        "tex": study_latex(result),
        "csv": study_csv(result),
        "html": study_page(result),
    }
    return tuple(
        write(Path(folder) / f"{name}-{result.size}.{ending}", text)
        for ending, text in texts.items()
    )


def _cells(result: StudyResult) -> list[tuple[str, str]]:
    """Return the cells of this size, row by row."""
    there = {cell.key for cell in (*(one.cell for one in result.runs), *result.waiting)}
    every = itertools.product(result.spec.rows, result.spec.combined())
    return [cell for cell in every if cell in there]


def _about(result: StudyResult) -> tuple[str, ...]:
    seeds = plural(len({one.seed for one in result.runs}), "seed")
    of = plural(len({one.folder for one in result.runs}), "run")
    done = f"Size {result.size}, {seeds}, {result.done} of {len(result.runs)} cells done ({of})."
    about = result.spec.about, result.spec.sizes[result.size].about
    return *about, done, _where(result), _again(result)


def _where(result: StudyResult) -> str:
    """Say on what the finished runs were computed: digits repeat on one processor only."""
    runs = {one.address: one for one in result.runs if one.address in result.records}
    where: dict[str, list[str]] = {}
    for name in runs:
        of = result.records[name].origin
        device = [of["device"]] if of["device"] != "cpu" else []
        machine = ", ".join(map(str, (*device, of["processor"], of["instructions"])))
        threads = plural(of["threads"], "thread")
        code = f"commit {of['commit']}" if of["commit"] else f"archgraph {of['archgraph']}"
        where.setdefault(f"{machine}, {threads}, torch {of['torch']}", []).append(code)
    machines = (
        f"{machine} ({plural(len(commits), 'run')}, {', '.join(sorted(set(commits)))})"
        for machine, commits in where.items()
    )
    return f"Computed on {'; '.join(machines)}." if where else ""


def _again(result: StudyResult) -> str:
    """Say which file the table is of, how one run of it is repeated, and how it is had as data."""
    file = result.spec.document_of(("study",)).file
    run = next((one for one in result.runs if one.address in result.records), None)
    if run is None:
        return ""
    size = "" if result.size == "small" else f" --size {result.size}"
    cell = " | ".join(filter(None, (run.cell.row, run.cell.column)))
    command = f"archgraph study {shlex.quote(file)}{size}"
    return (
        f"Described by `{file}`. One run again: `{command} --only {shlex.quote(cell)} --seed "
        f"{run.seed} --out repeat`. As CSV and LaTeX: `{command} --only-read`, with the "
        "`--records` of these runs."
    )


def _findings(result: StudyResult) -> tuple[str, ...]:
    """Return what the file says about this size's figures, once there are any."""
    return result.spec.sizes[result.size].findings if result.done else ()


def _figures(result: StudyResult) -> Iterator[Table]:
    """Yield a table for each value of the first part of column names.

    Of names without parts one table, or one for each column where there would be too many.
    """
    there = _cells(result)
    present = {column for _, column in there}
    parts = {c: names for c, names in result.spec.combined().items() if c in present}
    several = len(result.spec.parts) > 1 or len(parts) * len(result.spec.figures) > WIDE
    seeds = len({one.seed for one in result.runs})
    for first in dict.fromkeys(names[0] if several else "" for names in parts.values()):
        columns = [c for c, names in parts.items() if not several or names[0] == first]
        # The title says the first part; a single figure needs no name.
        short = {c: c.removeprefix(first).removeprefix(", ") if several else c for c in columns}
        with_figure = len(result.spec.figures) > 1 or len(result.spec.combined()) == 1
        heads = [
            ", ".join(filter(None, (short[c], figure if with_figure else "")))
            for c, figure in itertools.product(columns, result.spec.figures)
        ]
        rows = tuple(
            (row, *(_cell(result, row, c, f, seeds) for c in columns for f in result.spec.figures))
            for row in result.spec.rows
            if any((row, c) in there for c in columns)
        )
        title = ", ".join(filter(None, (result.spec.study, first)))
        note = f"measured: mean ± standard deviation over {plural(seeds, 'seed')}"
        if seeds == 1:
            note = "measured: one seed"
        if any(", n " in text for line in rows for text in line):
            note += ", or n of them where a cell says so"
        note += "; in brackets: published" if result.spec.published else ""
        each = itertools.product(result.spec.rows, columns, result.spec.figures)
        if above := dict.fromkeys(filter(None, (result.reference_above(*one) for one in each))):
            names = "; ".join(f"{name}, {_number(value, 2)}" for name, value in above)
            note += f". {BELOW}: {names}"
        yield Table(title, ("", *heads), rows, frozenset(range(1, len(heads) + 1)), note=note)


def _cell(result: StudyResult, row: str, column: str, figure: str, seeds: int) -> str:
    values = list(result.values(row, column, figure).values())
    printed = result.spec.printed(row, column, figure)
    text, digits = NOTHING, result.spec.read[figure].digits
    if values:
        text = _number(statistics.fmean(values), digits)
        text += f" ± {_number(statistics.stdev(values), digits)}" if len(values) > 1 else ""
        if bounded := result.bounded(row, column, figure):
            text = f"≥ {text}; {bounded} of {len(values)} never"
        text += f", n {len(values)}" * (len(values) < seeds)
        text += " †" * (result.reference_above(row, column, figure) is not None)
    return text if printed is None else f"{text} ({printed:g})"


def p_text(p: float) -> str:
    """Write a p value with three digits.

    Example:
        >>> p_text(0.0394), p_text(2e-5)
        ('0.039', '< 0.001')
    """
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _number(value: float, digits: int) -> str:
    """Write so many digits behind the point, four in all for what is larger than a thousand."""
    return f"{value:.{digits}f}" if abs(value) < 1000 else f"{value:.4g}"


def compared_cells(one: Judged, digits: int) -> tuple[str, str, str, str]:
    """Write the difference of a comparison, its interval, the published one and p."""
    paired, published = one.finding.paired, one.finding.published
    assert paired is not None
    low, high = paired.interval or (None, None)
    return (
        f"{paired.mean:+.{digits}f}",
        NOTHING if low is None else f"{low:+.{digits}f} … {high:+.{digits}f}",
        NOTHING if published is None else f"{published:+.{digits}f}{' ‡' * one.outside}",
        NOTHING if one.p is None else p_text(one.p),
    )


def marks_note(judged: Iterable[Judged]) -> str:
    """Explain the marks that a table of comparisons has."""
    listed = list(judged)
    below = f"{BELOW}, which is beside it"
    used = {below: any(j.finding.below for j in listed), OUTSIDE: any(j.outside for j in listed)}
    return "; ".join(text for text, there in used.items() if there)


def _claims(result: StudyResult, judged: Sequence[Judged]) -> Table:
    rows, tabled = [], [one for one in judged if one.tabled]
    printed = any(one.finding.published is not None for one in tabled)
    for one in tabled:
        finding, paired = one.finding, one.finding.paired
        assert paired is not None
        digits = result.spec.read[finding.figure].digits
        *differences, published, p = compared_cells(one, digits)
        rest = (
            NOTHING if x is None else f"{x:.{digits}f}" for x in (paired.margin, one.detectable)
        )
        cells = (*differences, *[published] * printed, str(len(paired.differences)), p, *rest)
        rows.append((finding.claim, finding.where, finding.figure, *cells, one.text))
    heads = (
        "difference",
        "interval",
        *["published"] * printed,
        "seeds",
        "p",
        "margin",
        "detectable",
    )
    heads *= bool(tabled)
    for (primary, text), many in Counter(
        (one.finding.primary, one.text) for one in judged if not one.tabled
    ).items():
        name = plural(many, f"{'primary ' * primary}comparison")
        rows.append((name, *[""] * (2 + len(heads)), text))
    right = frozenset(range(3, 3 + len(heads)))
    heads = ("claim", "where", "by", *heads, "verdict")
    return Table("Claims", heads, tuple(rows), right, note=marks_note(tabled))


def _missing(result: StudyResult) -> Table:
    rows = [(*cell.key, f"waits for {cell.waits}") for cell in result.waiting]
    for figure in result.spec.figures if result.done else ():
        if not any(result.values(*cell, figure) for cell in _cells(result)):
            measures = {one.cell.figures[figure].measure for one in result.runs}
            rows.append((f"figure {figure}", "", f"no run has {' or '.join(sorted(measures))}"))
    for one in result.runs:
        gate = result.gates.get(one.setting)
        if one.folder in result.failed:
            column = ", ".join(filter(None, (one.cell.column, f"seed {one.seed}")))
            rows.append((one.cell.row, column, result.failed[one.folder]))
        elif gate is not None and not gate.passed and one.address not in result.records:
            rows.append((*one.cell.key, "its setting does not pass its gate"))
    return Table("Not measured", ("row", "column", "why"), tuple(dict.fromkeys(rows)))
