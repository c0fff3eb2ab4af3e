"""Explain which axes and blocks of a graph can be cut, why others cannot, and the savings."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pydantic_core import to_jsonable_python

from archgraph.budgets.report import BudgetRange, budget_ranges, range_table
from archgraph.display import explanation_tables as tables
from archgraph.display.collect import graph_facts
from archgraph.display.facts import (
    AxisFact,
    BlockFact,
    Facts,
    GroupFact,
    LeafFact,
)
from archgraph.display.pricing import Saving
from archgraph.errors import ArchGraphError
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph
from archgraph.hints import nearest
from archgraph.plain import Json
from archgraph.tables import Table, count

# Dict from a kind (axes, blocks, …) to names.
NamesByKind: TypeAlias = Mapping[str, Collection[str]]
# Maximum number of suggestions for an unknown name.
NEAREST = 3
# Kinds of parts, which are also attributes of :class:`Facts` and :class:`Explanation`.
KINDS = ("axes", "roles", "sections", "blocks", "leaves")


@dataclass(frozen=True, repr=False)
class Explanation:
    """The result of :func:`explain` for a graph, or for one part of a graph.

    Attributes:
        model: Name of the graph.
        asked: Name of the explained part; None for the complete graph.
        about: Facts about the complete graph.
        axes: Axes of the part.
        roles: Free axes of the part, grouped by role.
        sections: Free axes of the part, grouped by section.
        blocks: Blocks of the part.
        leaves: Parameters and buffers of the part; for an axis, those that have this axis. Empty
            for the complete graph.
        budgets: Dict from a measure (such as ``macs``) to the cost of the complete graph and of its
            smallest submodel. Empty for a part.
    """

    model: str
    asked: str | None
    about: Facts
    axes: tuple[AxisFact, ...] = ()
    roles: tuple[GroupFact, ...] = ()
    sections: tuple[GroupFact, ...] = ()
    blocks: tuple[BlockFact, ...] = ()
    leaves: tuple[LeafFact, ...] = ()
    budgets: Mapping[str, BudgetRange] = dataclasses.field(default_factory=dict)

    @property
    def free(self) -> tuple[AxisFact, ...]:
        """The free axes, which can be cut."""
        return tuple(a for a in self.axes if a.free)

    @property
    def pinned(self) -> tuple[AxisFact, ...]:
        """The pinned axes, which cannot be cut; each has a pin, the reason."""
        return tuple(a for a in self.axes if not a.free)

    def plain(self) -> dict[str, Json]:
        """Return the explanation as a dict of JSON values.

        The keys are ``model``, ``asked``, ``parameters``, ``macs``, ``reach`` (fraction of the
        parameters that have a free axis), ``halving`` (savings from halving every free axis),
        ``axes``, ``roles``, ``sections``, ``blocks``, ``leaves`` and ``budgets``. The items of a
        list have the fields of the classes in :mod:`archgraph.display.facts`.
        """
        overall = {k: getattr(self.about, k) for k in ("parameters", "macs", "reach", "halving")}
        parts = {k: getattr(self, k) for k in (*KINDS, "budgets")}
        return to_jsonable_python({"model": self.model, "asked": self.asked, **overall, **parts})

    def _repr_html_(self) -> str:
        return "".join(table._repr_html_() for table in self.tables())

    def __repr__(self) -> str:
        return (
            f"Explanation({self.model!r}, {len(self.free)} free and {len(self.pinned)} pinned axes)"
        )

    def tables(self) -> tuple[Table, ...]:
        """Return the explanation as tables; omit empty tables.

        If the complete graph is explained, names that differ only in a number share a row.
        """
        each = self.asked is not None
        if self.asked is None:
            first = [self._overview(), range_table(self.budgets)]
        else:
            first = [self._halves()]
        parts = (
            *first,
            tables.free_axes(self.free, self._together, each),
            tables.pinned_axes(self.pinned, each),
            tables.block_savings(self.blocks, each),
            tables.leaf_layouts(self.leaves),
        )
        return tuple(table for table in parts if table.rows)

    def _overview(self) -> Table:
        about, table = self.about, self._halves()
        can = sum(b.removable for b in self.blocks)
        reach = math.floor(1000 * about.reach) / 10  # round down, so that 100% means all parameters
        note = (
            f"{count(about.parameters)} parameters, {reach:g}% of them on a free axis; "
            f"{count(about.macs)} MACs per example; axes: {len(self.free)} free, "
            f"{len(self.pinned)} pinned; blocks: {can} of {len(self.blocks)} removable"
        )
        return dataclasses.replace(
            table,
            title=f"{self.model or 'architecture'}: savings from halving",
            rows=(
                ("all free axes", str(len(self.free)), *tables.savings(about.halving)),
                *table.rows,
            ),
            note=note,
        )

    def _halves(self) -> Table:
        """Return a table of the savings from halving all axes of a role or a section."""
        # The row of a single role would repeat the row of all free axes.
        roles = self.roles if len(self.roles) > 1 or self.asked is not None else ()
        groups = [(f"role {g.name}", g) for g in roles]
        groups += [(f"section {g.name}", g) for g in self.sections if g.axes]
        return Table(
            "Savings from halving",
            ("halving", "axes", *tables.SAVES),
            tuple((name, str(len(g.axes)), *tables.savings(g.saving)) for name, g in groups),
            right=frozenset({1, 2, 3}),
            short=frozenset({0}),
        )

    def _together(self, chosen: Sequence[AxisFact]) -> Saving | None:
        names = (axis.name for axis in chosen)
        return chosen[0].saving if len(chosen) == 1 else self.about.pricing.halving(names)


@takes_graph
def explain(graph: ArchGraph, name: str | None = None) -> Explanation:
    """Explain which axes and blocks of a graph can be cut, and what cutting them saves.

    Args:
        graph: The architecture.
        name: Name of an axis, section, block, parameter, buffer, role or module to explain, or a
            pattern such as ``layer1.*``. Default: all axes and blocks.

    Returns:
        The explanation. Its method `tables()` returns tables, and its method `plain()` returns JSON
        values.

    Raises:
        ArchGraphError: If nothing in the graph has this name. The message lists similar names.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> explanation = explain(trace(net, torch.zeros(1, 3)).graph)
        >>> [(a.name, a.saving.parameters) for a in explanation.free]
        [('0.out', 24)]
        >>> [(a.name, a.pin.why) for a in explanation.pinned][-1]
        ('2.out', "dimension 1 of the model's output")
    """
    about = graph_facts(graph)
    if name is None:
        parts: NamesByKind = {k: getattr(about, k) for k in ("axes", "roles", "sections", "blocks")}
    else:
        parts = _named(about, name)
        if not any(parts.values()):
            parts = {kind: _matching(getattr(about, kind), name) for kind in KINDS}
        if not any(parts.values()):
            known = dict.fromkeys(name for kind in KINDS for name in getattr(about, kind))
            raise ArchGraphError(
                "no axis, section, block or leaf has this name",
                where=name,
                hint=nearest(name, known, cutoff=0.5, count=NEAREST)
                or "without a name, everything is explained",
            )
    # List each part once, in the order of the graph.
    chosen = {
        kind: tuple(fact for n, fact in getattr(about, kind).items() if n in parts.get(kind, ()))
        for kind in KINDS
    }
    return Explanation(
        graph.name, name, about, **chosen, budgets=budget_ranges(graph) if name is None else {}
    )


def _named(about: Facts, word: str) -> NamesByKind:
    """Return the parts with exactly this name, and the axes and parameters that belong to them."""
    parts = {kind: [word] * (word in getattr(about, kind)) for kind in KINDS}
    blocks = [b for b in about.blocks.values() if word in (b.name, b.section)]
    owners = [getattr(about, kind)[word] for kind in ("leaves", "roles") if parts[kind]]
    leaves = [leaf for a in parts["axes"] for leaf, _ in about.axes[a].members]
    if not parts["sections"]:
        leaves += [leaf for b in blocks for leaf in b.leaves]
    parts["axes"] += [axis for owner in (*blocks, *owners) for axis in owner.axes]
    parts["blocks"] = [b.name for b in blocks]
    parts["leaves"] += leaves
    return parts


def _matching(names: Iterable[str], word: str) -> list[str]:
    return [n for n in names if n.startswith(f"{word}.") or fnmatch.fnmatchcase(n, word)]
