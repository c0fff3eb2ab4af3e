"""The law of skipping on every removable block of every model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import archgraph as ag
from tests.nets import Foreign
from tests.zoo.collection import GROUPS, Entry
from tests.zoo.exam import Level, dropout_off
from tests.zoo.report import Checks, Findings
from tests.zoo.tables import Found, failures, grid, not_examined, told

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
    verdict = "pass" if report.ok else "FAIL"
    head = f"{verdict} {entry.group}/{entry.name} ({seconds:.0f} s): {report.removable} removable"
    return told(report, head)


def table(found: Found, level: Level, models: int) -> str:
    """The page: blocks by group, and what is wrong."""
    heads = ("group", "models", "blocks", "removable", "wrong")
    rows = []
    for group in (*GROUPS, "all"):
        own = [r for e, r in found if group in (e.group, "all")]
        sums = (sum(getattr(r, name) for r in own) for name in heads[2:])
        rows.append((group, str(len(own)), *(f"{number:,}" for number in sums)))
    parts = [
        "# Skipping on the zoo",
        "Written by `python -m tests.zoo --exam skips`; do not edit.",
        "Every removable block is left out alone, and the network compared in float64 with the "
        "unchanged one whose branches are multiplied by zero where they are added.",
        grid(heads, rows),
        *not_examined(found, models),
        *failures(found),
    ]
    return "\n\n".join(parts) + "\n"
