"""The corresponding parts of two graphs and every difference between them, as a value."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from archgraph.analysis.widths import Pairs
from archgraph.graph.ir import ArchGraph

PartKind: TypeAlias = Literal["missing", "new", "copied", "narrower", "wider", "changed"]
PartLevel: TypeAlias = Literal["block", "operator", "leaf", "axis"]


@dataclass(frozen=True, slots=True)
class PartDifference:
    """One difference of a graph B from a graph A.

    Attributes:
        kind: Kind of difference. ``missing``: only A has the part. ``new``: only B has the part.
            ``copied``: B has a further copy of a part of A. ``narrower`` and ``wider``: an axis is
            smaller or larger in B. ``changed``: an operator has other arguments.
        level: Kind of part: block, operator, leaf (parameter or buffer) or axis.
        a: Name of the part in A; empty if A lacks the part.
        b: Name of the part in B; empty if B lacks the part.
        before: Size of the axis or arguments of the operator in A.
        after: Size of the axis or arguments of the operator in B.
        nodes_a: Names of the affected operators of A.
        nodes_b: Names of the affected operators of B.
    """

    kind: PartKind
    level: PartLevel
    a: str = ""
    b: str = ""
    before: int | str | None = None
    after: int | str | None = None
    nodes_a: tuple[str, ...] = ()
    nodes_b: tuple[str, ...] = ()


@dataclass(frozen=True)
class Correspondence:
    """The corresponding parts of two graphs, and every difference.

    Attributes:
        a: The first graph.
        b: The second graph.
        exact: True if the correspondence was derived from a transfer, False if the graphs were
            aligned by structure.
        blocks: Pairs of block names (A's, B's) in the order of B.
        nodes: Pairs of operator names (A's, B's).
        leaves: Pairs of parameters or buffers (A's, B's), without copies.
        differences: All differences: of blocks, then of operators, leaves and axes.
    """

    a: ArchGraph
    b: ArchGraph
    exact: bool
    blocks: Pairs
    nodes: Pairs
    leaves: Pairs
    differences: tuple[PartDifference, ...]

    def plain(self) -> dict[str, Any]:
        """Return the correspondence as JSON values."""
        return {
            "a": self.a.name,
            "b": self.b.name,
            "exact": self.exact,
            "blocks": [list(pair) for pair in self.blocks],
            "nodes": [list(pair) for pair in self.nodes],
            "leaves": [list(pair) for pair in self.leaves],
            "differences": [dataclasses.asdict(item) for item in self.differences],
        }

    def __repr__(self) -> str:
        return (
            f"<Correspondence {self.a.name or 'A'} → {self.b.name or 'B'}: "
            f"{len(self.blocks)} pairs of blocks, {len(self.differences)} differences>"
        )
