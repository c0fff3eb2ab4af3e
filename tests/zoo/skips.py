"""The law of skipping on every removable block of every model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import archgraph as ag
from tests.nets import Foreign
from tests.zoo.collection import Entry
from tests.zoo.exam import Level, dropout_off
from tests.zoo.report import Checks, Findings
from tests.zoo.tables import Row, told

LARGE = 3_000_000  # parameters; above, a quarter of every width has the same blocks


@dataclass(frozen=True, kw_only=True)
class Report(Findings):
    """What one examination found; plain values only, so that it travels as JSON."""

    blocks: int = 0
    removable: int = 0
    wrong: int = 0


def examine(foreign: Foreign, level: Level = "quick", name: str = "") -> Report:
    """Leave out every removable block, each alone, and compare as ``verify`` does.

    Args:
        foreign: The model and its example inputs.
        level: Makes no difference.
        name: Makes no difference.
    """
    exam = Checks()
    dropout_off(foreign.model)
    figures: dict[str, Any] = {"parameters": sum(p.numel() for p in foreign.model.parameters())}
    graph = None
    with exam.check("trace"):
        traced = ag.trace(foreign.model, *foreign.args, train=False, verify=False, **foreign.kwargs)
        graph = traced.graph
    if graph is None:
        return exam.report(Report, **figures)
    blocks = ag.structure(graph).blocks
    removable = [b.name for b in blocks if b.removable]
    if figures["parameters"] > LARGE:
        small = ag.take(graph, 0.25, allow_nothing=True).graph
        names = [b.name for b in ag.structure(small).blocks if b.removable]
        graph = small if names == removable else graph
    notes = []
    for block in removable:
        with exam.check(f"skip {block}"):
            try:
                ag.skip(graph, block, verify=True)
            except ag.RewriteError as error:  # the only block that mixes positions, say
                if "no longer depends on the input" not in str(error):
                    raise
                notes.append(f"without {block} {error.message}")
    wrong = sum(f.check != "trace" for f in exam.failures)
    figures |= {"blocks": len(blocks), "removable": len(removable), "wrong": wrong}
    return exam.report(Report, **figures, notes=tuple(notes))


def line(entry: Entry, report: Report, seconds: float) -> str:
    """One model in one line, its failures below."""
    head = f"{report.verdict} {entry.group}/{entry.name} ({seconds:.0f} s)"
    return told(report, f"{head}: {report.removable} removable")


def figures(report: Report) -> Row:
    """Return how many blocks there are, and how many the law was wrong for."""
    return {"blocks": report.blocks, "removable": report.removable, "wrong": report.wrong}
