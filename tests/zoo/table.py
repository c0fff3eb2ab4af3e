"""The zoo's reports as text: a line on the terminal, the page ``docs/measured/zoo.md``."""

from __future__ import annotations

import re
import statistics

from tests.zoo.collection import Entry
from tests.zoo.exam import AXES, LAW, Report
from tests.zoo.tables import Found, by_group, each_group, escaped, grid, not_examined, told

COLUMNS = (
    "model", "parameters", "nodes", "layers back", "axes free / pinned / spanned",
    "blocks / removable / sections", "mask ≡ take", "share", "trace s", "axes s", "structure s",
    "verdict",
)  # fmt: skip


def line(entry: Entry, report: Report, seconds: float) -> str:
    """One model in one line, its failures below."""
    verdict = "pass" if report.ok else "FAIL"
    gap = f", law {report.gap:.0e}" if report.gap is not None else ""
    size = f", {report.memory / 2**30:.1f} GiB" if report.memory else ""
    head = f"{verdict} {entry.group}/{entry.name} ({seconds:.0f} s{size}{gap})"
    return told(report, head)


def table(found: Found, level: str, models: int) -> str:
    """The page: a table per group, a summary, failures and what was left out.

    Args:
        found: What was examined.
        level: ``quick`` or ``full``.
        models: How many models were to be examined.
    """
    singles = f"{AXES} random axes alone, the first, the last and a random removable block"
    if level == "full":
        singles = f"{4 * AXES} random axes alone, every removable block"
    parts = [
        "# The zoo",
        "Written by `make zoo`; do not edit.",
        "Every model is traced and examined without a line of code about it: values, gradients and "
        "statistics of the built module against the original in both modes; the built module "
        "traced again, text and YAML; parameters and multiply–accumulates against PyTorch's own "
        f"counts; half of every free axis, {singles} and both together: built, run, trained for a "
        "step; and mask ≡ take in float64 on a random half of all free axes that no norm or "
        f"softmax spans (allowed: {LAW:g}).",
        "*Layers back*: of the layers of `torch.nn` that are called and own their weights, those "
        "that the built module has again with the same options. *Spanned* axes are free, but a "
        "norm, softmax or reduction runs over them. *Share*: parameters on at least one free axis. "
        "Processor seconds on one core.",
        summary(found),
    ]
    parts += [*not_examined(found, models), *by_group(found, COLUMNS, _row)]
    failed = [(e, r) for e, r in found if not r.ok]
    if failed:
        parts.append("## Failures\n\n" + "\n".join(_failures(e, r) for e, r in failed))
    notes = [
        f"- {e.group}/{e.name}: {text}"
        for e, r in found
        for text in (*(f"no {check}: {reason}" for check, reason in r.left_out), *r.notes)
    ]
    if notes:
        packages = r"\S*/site-packages/"  # where they lie is this machine's affair
        texts = [re.sub(packages, "", escaped(note)) for note in notes]
        parts.append("## Left out and noted\n\n" + "\n".join(texts))
    return "\n\n".join(parts) + "\n"


def summary(found: Found) -> str:
    """Pass rate and median share by group."""
    rows = []
    for group, own in each_group(found):
        passed = sum(r.ok for r in own)
        shares = [r.share for r in own if r.share is not None]
        share = f"{statistics.median(shares):.2%}" if shares else ""
        rows.append((group, str(len(own)), str(passed), f"{passed / len(own):.1%}", share))
    return grid(("group", "models", "pass", "rate", "median share"), rows)


def _row(entry: Entry, report: Report) -> tuple[str, ...]:
    def seconds(check: str, digits: int) -> str:
        return f"{report.seconds[check]:.{digits}f}" if check in report.seconds else ""

    gap = "" if report.gap is None else f"{report.gap:.0e}" if report.gap else "0"
    return (
        entry.name,
        f"{report.parameters:,}",
        str(report.nodes),
        f"{report.returned} / {report.layers}",
        f"{report.free} / {report.pinned} / {report.spanned}",
        f"{report.blocks} / {report.removable} / {report.sections}",
        gap,
        "" if report.share is None else f"{report.share:.2%}",
        seconds("trace", 1),
        seconds("axes", 2),
        seconds("structure", 2),
        "pass" if report.ok else "**fail**",
    )


def _failures(entry: Entry, report: Report) -> str:
    heads = [f"- {entry.group}/{entry.name}"]
    return "\n".join([*heads, *(escaped(f"  - {f.check}: {f.error}") for f in report.failures)])
