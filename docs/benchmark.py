"""Write the figure and the tables of the benchmark's page: `python docs/benchmark.py`.

They are computed from the tracked records in ``docs/measured/benchmark``; nothing is run.
"""

from __future__ import annotations

import functools
import html
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

import archgraph as ag
from archgraph.display import colours
from archgraph.language.experiment import ExperimentSpec
from archgraph.reports.plots import panels, picture
from archgraph.studies import study
from archgraph.studies.outcomes import Paired
from archgraph.studies.study_tables import p_text

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "docs" / "measured" / "benchmark"
STATIC = ROOT / "docs" / "_static"
FIGURE = "accuracy"
# How the clients of a family are smaller than the whole network.
SMALLER = {
    "benchmark_whole": "not at all",
    "benchmark_width": "width",
    "benchmark_depth": "depth",
    "benchmark_exits": "depth, exits",
    "benchmark_levels": "both, exits",
    "benchmark_both": "both",
}
COLUMNS = ("small", "large", "TMACs", "MB down", "MB up")
HEADS = ("method", "smaller by", "rate", "accuracy, %", "small", "large", "parameters, k",
         "memory, MB", "TMACs", "MB down", "MB up")  # fmt: skip


def main() -> None:
    """Write the figure and both tables."""
    benchmark = Benchmark(ROOT / "specs/benchmark/fashion_mnist.yaml")
    for name, text in benchmark.files().items():
        (STATIC / name).write_text(text)


class Benchmark:
    """A table of the benchmark as measured.

    Args:
        file: Its study.
        records: Folder of the records of its runs.

    Attributes:
        result: The study's result.
        cells: Dict from row to its cell.
        means: Dict from measured row to its accuracies in per cent.
        bound: Mean accuracy of the better trivial row.
        below: Methods whose mean is below it.
    """

    def __init__(self, file: Path, records: Path = RECORDS) -> None:
        self.result = study(file, records=records, only_read=True)
        self.cells = {one.cell.row: one.cell for one in self.result.runs}
        values = {row: self.values(row, FIGURE) for row in self.cells}
        self.means = {row: Paired(tuple(of)) for row, of in values.items() if of}
        trivial = {row for row in self.means if self.cells[row].trivial}
        self.bound = max(self.means[row].mean for row in trivial)
        methods = self.means.keys() - trivial
        self.below = {row for row in methods if self.means[row].mean < self.bound}

    def files(self) -> dict[str, str]:
        """Return a dict from file name to content."""
        return {
            "benchmark.svg": self.svg(),
            "benchmark.html": self.table(),
            "benchmark-comparisons.html": self.comparisons(),
        }

    def values(self, row: str, figure: str) -> list[float]:
        """Return a figure of a row by seed; empty if it has none."""
        return list(self.result.values(row, self.cells[row].column, figure).values())

    def svg(self) -> str:
        """Draw the accuracies of all rows, and the differences of all comparisons.

        1. Left: a dot per seed, the mean, and its 95 % interval over the seeds.
        2. Right: the mean of each paired difference and its 95 % interval. Comparisons with a row
           below the better trivial row are not drawn.
        """
        rows, pairs = [*self.means], self.compared()
        figure, (left, right) = panels(9.6, 2, ratios=(1.25, 1))
        figure.set_figheight(1.0 + 0.26 * max(len(rows), 2 * len(pairs)))
        for place, row in enumerate(rows):  # 1
            ink = colours.LINE if row in self.below else colours.INK
            _interval(left, place, self.means[row], ink)
            dots = self.means[row].differences
            left.plot(dots, [place] * len(dots), ".", color=colours.SERIES[4], ms=4, zorder=1)
        left.axvline(self.bound, color=colours.SERIES[1], lw=1, ls="--")
        left.set_xlabel("accuracy, %: mean over the clients' own models", fontsize=9)
        for place, (_, paired, *_) in enumerate(pairs):  # 2
            _interval(right, place, paired, colours.INK)
        right.axvline(0, color=colours.LINE, lw=1)
        right.set_xlabel("paired difference, percentage points", fontsize=9)
        _names(left, rows)
        _names(right, [name for name, *_ in pairs])
        return picture(figure, salt="benchmark").decode()

    def compared(self) -> list[tuple[str, Paired, float | None, float | None]]:
        """Return name, differences, corrected p and detectable difference of each comparison."""
        return [
            (" − ".join(one.names), one.paired, one.p, one.detectable)
            for one in self.result.differences
            if one.figure == FIGURE and one.paired and not self.below & {*one.names}
        ]

    def table(self) -> str:
        """Return the table of all rows; those below the better trivial row are grey."""
        lines = []
        for row, paired in self.means.items():
            cell, spec = self.cells[row], self.cells[row].experiment
            error = paired.interval
            shown = f"{paired.mean:.2f}" + (f" ± {paired.mean - error[0]:.2f}" if error else "")
            costs = [_mean(self.values(row, column)) for column in COLUMNS]
            size = ("", "") if cell.trivial else sizes(spec)
            what = "" if cell.trivial else SMALLER[family(spec)]
            rate = "" if cell.trivial else f"{spec.local.lr:g}"
            texts = (row, what, rate, shown, *costs[:2], *size, *costs[2:])
            lines.append((row in self.below, texts))
        return _html(HEADS, lines)

    def comparisons(self) -> str:
        """Return the table of comparisons."""
        lines = []
        for name, paired, p, detectable in self.compared():
            low, high = paired.interval or (paired.mean, paired.mean)
            verdict = "above 0" if low > 0 else "below 0" if high < 0 else "contains 0"
            texts = (name, f"{paired.mean:+.2f}", f"{low:+.2f} … {high:+.2f}", verdict,
                     "" if p is None else p_text(p),
                     "" if detectable is None else f"{detectable:.2f}")  # fmt: skip
            lines.append((False, texts))
        heads = ("first − second", "difference", "95 % interval", "interval", "p (Holm)",
                 "detectable")  # fmt: skip
        return _html(heads, lines)


def family(spec: ExperimentSpec) -> str:
    """Return the name of an experiment's family."""
    assert not isinstance(spec.family, str)
    return str(spec.family.name)


@functools.cache
def _sizes(name: str) -> tuple[str, str]:
    clients = ag.resolve(ag.load_family(ROOT / f"specs/families/{name}.yaml")).clients
    costs = [ag.cost(kind.graph) for kind in clients]
    memory = (cost.training(batch=25, optimizer="momentum").total / 1e6 for cost in costs)
    parameters = " · ".join(f"{cost.parameters / 1e3:.0f}" for cost in costs)
    return parameters, " · ".join(f"{of:.1f}" for of in memory)


def sizes(spec: ExperimentSpec) -> tuple[str, str]:
    """Return parameters and memory of a training step of small, medium and large clients."""
    return _sizes(family(spec))


def _mean(values: Sequence[float]) -> str:
    if not values:
        return ""
    mean = sum(values) / len(values)
    return f"{mean:.1f}" if mean < 100 else f"{mean:.0f}"


def _interval(panel: Axes, place: int, paired: Paired, ink: str) -> None:
    """Draw a mean and its interval."""
    low, high = paired.interval or (paired.mean, paired.mean)
    panel.plot([low, high], [place, place], color=ink, lw=1.5, zorder=2)
    panel.plot([paired.mean], [place], "o", color=ink, ms=4.5, zorder=3)


def _names(panel: Axes, names: Sequence[str]) -> None:
    """Name the lines of a panel, the first at the top."""
    panel.set_yticks(range(len(names)), names)
    panel.set_ylim(len(names) - 0.5, -0.5)
    panel.grid(axis="x", color=colours.BLOCK, lw=0.8)


def _html(heads: Sequence[str], lines: Sequence[tuple[bool, Sequence[str]]]) -> str:
    """Return a table; lines that are marked are grey."""
    head = "".join(f"<th>{html.escape(text)}</th>" for text in heads)
    rows = []
    for grey, texts in lines:
        cells = "".join(f"<td>{html.escape(text)}</td>" for text in texts)
        rows.append(f"<tr{' class=below' if grey else ''}>{cells}</tr>")
    return "\n".join((
        '<div class="table-wrapper"><table class="docutils benchmark"><thead>',
        f"<tr>{head}</tr></thead><tbody>", *rows, "</tbody></table></div>",
    ))  # fmt: skip


if __name__ == "__main__":
    main()
