"""The reports of cuts as text: a line on the terminal, a row of ``docs/measured/zoo.csv``."""

from __future__ import annotations

from tests.zoo.collection import Entry
from tests.zoo.exam import Report
from tests.zoo.tables import Row, rounded, told


def line(entry: Entry, report: Report, seconds: float) -> str:
    """One model in one line, its failures below."""
    gap = f", law {report.gap:.0e}" if report.gap is not None else ""
    size = f", {report.memory / 2**30:.1f} GiB" if report.memory else ""
    head = f"{report.verdict} {entry.group}/{entry.name} ({seconds:.0f} s{size}{gap})"
    return told(report, head)


def figures(report: Report) -> Row:
    """Return what the examination counted and timed."""
    return {
        "nodes": report.nodes,
        "layers": report.layers,
        "layers returned": report.returned,
        "free axes": report.free,
        "pinned axes": report.pinned,
        "spanned axes": report.spanned,
        "blocks": report.blocks,
        "removable blocks": report.removable,
        "sections": report.sections,
        "mask minus take": rounded(report.gap),
        "share on free axes": "" if report.share is None else round(report.share, 4),
        **{f"{check} s": report.seconds.get(check, "") for check in ("trace", "axes", "structure")},
    }
