"""Two architectures side by side: which parts belong together, and why the rest does not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from archgraph.analysis.structure import structure
from archgraph.errors import RewriteError
from archgraph.relate.align import Alignment
from archgraph.tables import Table


def alignment_tables(found: Alignment) -> Iterator[Table]:
    """Pairs of blocks, then what has no counterpart with the reason, then a verdict.

    Args:
        found: As :func:`archgraph.relate.align.align` finds it.

    Example:
        >>> import torch
        >>> from archgraph.relate.align import align
        >>> from archgraph.capture.trace import trace
        >>> net = trace(torch.nn.Linear(3, 2), torch.zeros(1, 3)).graph
        >>> [table.rows for table in alignment_tables(align(net, net))]
        [(('weight', 'weight', 'weight', '2'),)]
    """
    mine = {b.name: b for b in structure(found.client).blocks}
    leaves = {name for name, _ in found.leaves}
    rows = []
    before = ("", "")
    for a, b in found.blocks:
        used = {leaf for n in mine[a].nodes for leaf in found.client.node[n].leaves()}
        theirs = structure(found.whole).block(b)
        sections = mine[a].section, theirs.section
        title = "" if sections == before else " = ".join(dict.fromkeys(sections))
        rows.append((title, a, b, str(len(used & leaves))))
        before = sections
    yield Table(
        title=f"{found.client.name or 'A'} in {found.whole.name or 'B'}: score {found.score:.2f}",
        columns=("section", "block of A", "block of B", "leaves"),
        rows=tuple(rows),
        right=frozenset({3}),
        note=f"score: share of leaves matched; {_verdict(found)}",
    )
    groups = itertools.groupby(found.unmatched, lambda item: (item.side, item.reason))
    apart = tuple(
        ("A" if side == "client" else "B", ", ".join(item.part for item in items), reason)
        for (side, reason), items in groups
    )
    if apart:
        yield Table("without a counterpart", ("in", "part", "why"), apart)


def _verdict(found: Alignment) -> str:
    lacking = [item.part for item in found.unmatched if item.side == "client"]
    if lacking:
        return f"B does not contain A: it lacks {lacking[0]}"
    try:
        return f"B contains A: {len(found.transfer.target)} entries of A's state come out of B's"
    except RewriteError as error:
        return f"B does not contain A: {error}"
