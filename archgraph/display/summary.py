"""The sections and blocks of a graph as one table."""

from __future__ import annotations

from collections.abc import Iterable

from archgraph.analysis.cost import cost
from archgraph.analysis.structure import Block, structure
from archgraph.display.labels import count_parameters, dimensions, shape_label
from archgraph.graph.ir import ArchGraph, Node
from archgraph.graph.sizes import counted_at
from archgraph.tables import Table, count, plural


def summary_table(graph: ArchGraph) -> Table:
    """Tabulate sections and blocks with the shapes of their results, parameters and MACs.

    1. Operators are gathered in order: those of a block at its first one, neighbours outside all
       blocks (stem, head) in a row of their own.
    2. The first block of a section with several blocks is preceded by a row for the section. A
       section of one block is a single row.
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
    spent = cost(graph)
    structured = structure(graph)
    owner = {name: block for block in structured.blocks for name in block.nodes}
    runs: list[tuple[Block | None, list[Node]]] = []
    members: dict[str, list[Node]] = {}
    for node in graph.nodes:  # 1
        if node.op == "input":
            continue
        block = owner.get(node.name)
        if block is not None and block.name in members:
            members[block.name].append(node)
        elif block is None and runs and runs[-1][0] is None:
            runs[-1][1].append(node)
        else:
            runs.append((block, [node]))
            if block is not None:
                members[block.name] = runs[-1][1]

    def numbers(nodes: Iterable[Node]) -> tuple[str, str]:
        nodes = tuple(nodes)
        # Each leaf once: operators of a row may share it.
        leaves = dict.fromkeys(leaf for node in nodes for leaf in node.leaves())
        macs = sum(spent.nodes[node.name].macs for node in nodes if node.name in spent.nodes)
        return count(count_parameters(graph, tuple(leaves))), count(macs)

    rows: list[tuple[str, ...]] = []
    strong: set[int] = set()
    begun: set[str] = set()
    blocks_of = {section.name: section.blocks for section in structured.sections}
    for block, nodes in runs:  # 2
        if block is None:
            first, last = nodes[0].scope or nodes[0].name, nodes[-1].scope or nodes[-1].name
            name = first if first == last else f"{first} … {last}"
            rows.append((name, "", shape_label(nodes[-1].types[0]), *numbers(nodes), ""))
            continue
        shape = shape_label(graph.node[block.exit].types[0])
        can = "removable" if block.removable else ""
        name, blocks = f"  {block.name}", blocks_of[block.section]
        if len(blocks) == 1:
            alike = block.name == block.section
            name = block.name if alike else f"{block.section}: {block.name}"
            strong.add(len(rows))
        elif block.section not in begun:
            begun.add(block.section)
            inside = numbers(graph.node[n] for b in blocks for n in b.nodes)
            end = shape_label(graph.node[blocks[-1].exit].types[0])
            strong.add(len(rows))
            rows.append((block.section, plural(len(blocks), "block"), end, *inside, ""))
        rows.append((name, block.kind, shape, *numbers(nodes), can))
    strong.add(len(rows))  # 3
    ends = [graph.node[name] for name in graph.output_refs()]
    result = shape_label(ends[0].types[0]) if ends else ""
    rows.append(("total", "", result, count(spent.parameters), count(spent.macs), ""))
    at = f" of {sizes}" if (sizes := counted_at(graph)) else ""
    inputs = ", ".join(f"{n.name} {dimensions(n.shape)}" for n in graph.nodes if n.op == "input")
    return Table(
        title=graph.name or "architecture",
        columns=("part", "kind", "result", "parameters", "MACs", ""),
        rows=tuple(rows),
        right=frozenset({3, 4}),
        strong=frozenset(strong),
        note=f"inputs: {inputs}; shapes without the batch axis; MACs per example{at}",
    )
