"""A table of the sections and blocks of a graph."""

from __future__ import annotations

from collections.abc import Sequence

from archgraph.analysis.cost import cost
from archgraph.analysis.structure import Block, structure
from archgraph.display.labels import dimensions, shape_label
from archgraph.graph.ir import ArchGraph, Node
from archgraph.graph.sizes import counted_at
from archgraph.ops.idioms import idiom_counts
from archgraph.tables import Table, count, plural


def summary_table(graph: ArchGraph) -> Table:
    """Return a table of sections and blocks with their output shapes, parameters and MACs.

    1. A block has one row. Neighbouring operators outside blocks (stem, head) share a row.
    2. A section with several blocks has a row of its own before its first block. A section with one
       block shares the row of this block.
    3. The last row is the total.

    Example:
        >>> from archgraph.graph.ir import BATCH, Ref, TensorType
        >>> kind = TensorType((BATCH, 8), "float32")
        >>> x, y = (
        ...     Node("x", "input", type=kind),
        ...     Node("y", "aten.relu", (("self", Ref("x")),), kind),
        ... )
        >>> summary_table(ArchGraph((("x", Ref("x")),), (), (x, y), Ref("y"))).rows[-1]
        ('total', '', '8', '0', '0', '')
    """
    sections = {section.name: section.blocks for section in structure(graph).sections}
    rows: list[tuple[str, ...]] = []
    strong: list[int] = []
    begun: set[str] = set()
    for block, nodes in _runs(graph):  # 1
        if block is None:
            end = shape_label(nodes[-1].types[0])
            rows.append((_stretch(nodes), "", end, *_numbers(graph, nodes), ""))
            continue
        blocks, name = sections[block.section], f"  {block.name}"
        if len(blocks) == 1:  # 2
            prefix = "" if block.name == block.section else f"{block.section}: "
            name = f"{prefix}{block.name}"
            strong.append(len(rows))
        elif block.section not in begun:
            begun.add(block.section)
            strong.append(len(rows))
            inside = _numbers(graph, [graph.node[n] for b in blocks for n in b.nodes])
            many, end = plural(len(blocks), "block"), _result(graph, blocks[-1].exit)
            rows.append((block.section, many, end, *inside, ""))
        numbers, can = _numbers(graph, nodes), "removable" if block.removable else ""
        rows.append((name, block.kind, _result(graph, block.exit), *numbers, can))
    strong.append(len(rows))  # 3
    spent, result = cost(graph), [_result(graph, name) for name in graph.output_refs()][:1]
    rows.append(("total", "", "".join(result), count(spent.parameters), count(spent.macs), ""))
    return Table(
        title=graph.name or "architecture",
        columns=("part", "kind", "result", "parameters", "MACs", ""),
        rows=tuple(rows),
        right=frozenset({3, 4}),
        strong=frozenset(strong),
        note=_note(graph),
    )


def _note(graph: ArchGraph) -> str:
    """Return the note below the table: inputs, units of the columns, number of idioms."""
    at = f" of {sizes}" if (sizes := counted_at(graph)) else ""
    inputs = ", ".join(f"{n.name} {dimensions(n.shape)}" for n in graph.nodes if n.op == "input")
    note = f"inputs: {inputs}; shapes without the batch axis; MACs per example{at}"
    known = [f"{many} {name}" for name, many in idiom_counts(graph).most_common()]
    return f"{note}\nidioms: {', '.join(known)}" if known else note


def _stretch(nodes: Sequence[Node]) -> str:
    """Return the name of a row for operators outside blocks: the first and the last operator."""
    first, last = (node.scope or node.name for node in (nodes[0], nodes[-1]))
    return first if first == last else f"{first} … {last}"


def _runs(graph: ArchGraph) -> list[tuple[Block | None, list[Node]]]:
    """Return lists of operators in order: those of a block, or neighbours outside blocks."""
    owner = {name: block for block in structure(graph).blocks for name in block.nodes}
    runs: dict[str | int, tuple[Block | None, list[Node]]] = {}
    for node in graph.nodes:
        if node.op == "input":
            continue
        block = owner.get(node.name)
        # The key of operators outside blocks is the number of lists before them.
        stretch = len(runs) - (len(runs) - 1 in runs)
        runs.setdefault(block.name if block else stretch, (block, []))[1].append(node)
    return list(runs.values())


def _numbers(graph: ArchGraph, nodes: Sequence[Node]) -> tuple[str, str]:
    """Return parameters and MACs of some operators as texts."""
    spent = cost(graph).of(tuple(node.name for node in nodes))
    return count(spent.parameters), count(spent.macs)


def _result(graph: ArchGraph, name: str) -> str:
    return shape_label(graph.node[name].types[0])
