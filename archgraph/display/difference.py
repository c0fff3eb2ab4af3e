"""A table of the differences between two graphs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from archgraph.analysis.structure import structure
from archgraph.display.hierarchy import between
from archgraph.relate.correspondence import Correspondence, PartDifference
from archgraph.tables import Table, plural

SEVERAL = {"block": "blocks", "operator": "operators", "leaf": "leaves", "axis": "axes"}


def correspondence_table(matched: Correspondence) -> Table:
    """Return the differences between two graphs as a table. Equal neighbouring rows are merged.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> from archgraph.relate.correspond import correspond
        >>> nets = (
        ...     torch.nn.Sequential(torch.nn.Linear(3, n), torch.nn.Linear(n, 2)) for n in (4, 2)
        ... )
        >>> a, b = (trace(net, torch.zeros(1, 3)).graph for net in nets)
        >>> correspondence_table(correspond(a, b)).rows
        (('narrower', 'axis', '0.out', '0.out', '4', '2'),)
    """
    alike = itertools.groupby(
        matched.differences,
        lambda d: (d.kind, d.level, bool(d.a), bool(d.b), d.before, d.after),
    )
    rows = tuple(_row(list(items)) for _, items in alike)
    a, b = matched.a.name, matched.b.name
    heads = (a, b) if a and b and a != b else ("A", "B")
    how = "read off the transfer" if matched.exact else "aligned by structure"
    blocks = [len({pair[i] for pair in matched.blocks}) for i in (0, 1)]
    total = [len(structure(graph).blocks) for graph in (matched.a, matched.b)]
    return Table(
        f"{heads[0]} → {heads[1]}",
        ("difference", "part", f"in {heads[0]}", f"in {heads[1]}", "before", "after"),
        rows,
        right=frozenset({4, 5}),
        note=f"{blocks[0]} of {total[0]} blocks correspond to {blocks[1]} of {total[1]}, {how}",
    )


def _row(items: Sequence[PartDifference]) -> tuple[str, ...]:
    """Merge equal differences into one row."""
    first = items[0]
    part = first.level if len(items) == 1 else plural(len(items), first.level, SEVERAL[first.level])
    names = (_ranges([item.a for item in items]), _ranges([item.b for item in items]))
    sizes = ("" if v is None else str(v) for v in (first.before, first.after))
    return (first.kind, part, *names, *sizes)


def _ranges(names: Sequence[str]) -> str:
    """Join names; consecutively numbered names become a range.

    >>> _ranges(["a.3", "a.4", "a.5", "b.2", "b.3"]), _ranges(["a.0", "a.2"]), _ranges([""])
    ('a.3–5, b.2–3', 'a.0, a.2', '–')
    """
    runs: list[list[str]] = []
    for name in names:
        if runs and _follows(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(dict.fromkeys(between(run[0], run[-1]) for run in runs)) or "–"


def _follows(name: str, other: str) -> bool:
    """Return whether the second name equals the first one, or has one number larger by 1."""
    numbers = re.finditer(r"\d+", name)
    nexts = (f"{name[: n.start()]}{int(n[0]) + 1}{name[n.end() :]}" for n in numbers)
    return other in (name, *nexts)
