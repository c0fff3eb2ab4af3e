"""The data of one graph on a page, as JSON values: sections, blocks, operators and their costs.

Costs are computed here for each operator; the page only adds them up. Repeated rows are stored once
(:mod:`archgraph.viewer.distinct`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from archgraph.analysis.cost import cost
from archgraph.analysis.structure import structure
from archgraph.display.collect import graph_facts
from archgraph.display.contents import Contents
from archgraph.display.cover import Cover
from archgraph.display.dot import wrapped_lines
from archgraph.display.hierarchy import Fold, folds
from archgraph.display.labels import LabelLine, node_family, operator_label, shape_label
from archgraph.display.pieces import pieces
from archgraph.display.scene import Box, Scene, blocks_of, scene
from archgraph.graph.ir import ArchGraph, Leaf, Node, Ref, show, walk
from archgraph.graph.sizes import counted_at
from archgraph.graph.values import refs
from archgraph.ops.idioms import idioms
from archgraph.plain import Json
from archgraph.viewer.distinct import Distinct, numbered, stepping


@dataclass(frozen=True)
class Anatomy:
    """A graph, divided into the sections, blocks and operators that a page shows.

    Attributes:
        graph: The architecture.
        scene: Boxes and arrows of the picture, with all repeated blocks.
        sections: Name and blocks of each section, in the order of the page. A block is its name and
            the names of its operators.
        folds: Repeated equal blocks, which the page shows once.
        contents: Describes blocks in words.
        operators: Names of all operators: first those outside blocks, then block by block.
    """

    graph: ArchGraph
    scene: Scene
    sections: tuple[tuple[str, tuple[tuple[str, tuple[str, ...]], ...]], ...]
    folds: tuple[Fold, ...]
    contents: Contents
    operators: tuple[str, ...]

    @property
    def blocks(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The blocks of all sections, with their operators."""
        return tuple(block for _, blocks in self.sections for block in blocks)


def anatomy(graph: ArchGraph, cover: Cover | None = None) -> Anatomy:
    """Divide a graph into the parts that a page shows.

    Args:
        graph: The architecture.
        cover: Coverage of its parameters. Blocks with different coverage are not merged into one.
    """
    parts = structure(graph).sections
    framing = [(s.name, [(b.name, b.nodes) for b in s.blocks]) for s in parts]
    grouped = pieces(graph, framing, "block")
    inside = blocks_of(framing, grouped)
    sections = tuple(
        (name, tuple((block, tuple(nodes)) for block, nodes in blocks if nodes))
        for name, blocks in inside
    )
    # Block by block, so that a block's operators are a range of numbers.
    within = {n: None for _, blocks in sections for _, nodes in blocks for n in nodes}
    outside = [node.name for node in graph.nodes if node.name not in within]
    return Anatomy(
        graph,
        # The script of the page merges repeated blocks itself.
        scene(graph, framing, detail="block", fold=False),
        tuple(section for section in sections if section[1]),
        folds(graph, inside, grouped.feeds, cover.parts if cover else None),
        Contents(graph, grouped.feeds),
        (*outside, *within),
    )


def described(parts: Anatomy) -> dict[str, Json]:
    """Return the data of a graph for its page, as JSON values."""
    graph, about, spent = parts.graph, graph_facts(parts.graph), cost(parts.graph)
    return {
        "name": graph.name or "model",
        "totals": {
            "parameters": spent.parameters,
            "macs": spent.macs,
            "bytes": spent.bytes,
            "activations": spent.activations,
            "at": counted_at(graph),
            "operators": len(graph.nodes),
            "reach": about.reach,
        },
        **_operators(parts),
        **_boxes(parts),
        "axes": _axes(parts),
        "leaves": [
            [p.name, p.role, list(p.shape), list(about.leaves[p.name].layout)] for p in graph.params
        ],
        "sections": [
            [name, len(blocks), _words(parts, [nodes for _, nodes in blocks])]
            for name, blocks in parts.sections
        ],
        "blocks": _blocks(parts),
        "folds": _folds(parts),
    }


def _operators(parts: Anatomy) -> dict[str, Json]:
    """Return a table of the operators as columns, and the tables to which columns refer."""
    graph, about, spent = parts.graph, graph_facts(parts.graph), cost(parts.graph)
    number = numbered(parts.operators)
    leaf = numbered(param.name for param in graph.params)
    axis = numbered(about.axes)
    box = {name: i for i, b in enumerate(parts.scene.boxes) for name in b.nodes}
    nodes = [graph.node[name] for name in parts.operators]
    kinds, lists, places = Distinct(), Distinct(), Distinct()
    # Relative numbers, so that repeated blocks have equal rows.
    feeds = [tuple(i - number[u] for u in dict.fromkeys(n.uses())) for i, n in enumerate(nodes)]
    leaves = stepping([leaf[k] for k in dict.fromkeys(n.leaves())] for n in nodes)
    within = stepping([axis[a] for a in about.met[n.name]] for n in nodes)
    columns = {
        "name": list(parts.operators),
        "kind": [kinds.add(_kind(graph, node)) for node in nodes],
        "place": [places.add((node.scope, node.source)) for node in nodes],
        "box": [box.get(name, -1) for name in parts.operators],
        "feeds": [lists.add(one) for one in feeds],
        "leaves": [lists.add(one) for one in leaves],
        "axes": [lists.add(one) for one in within],
        **{
            figure: [getattr(spent.nodes[name], figure) for name in parts.operators]
            for figure in ("parameters", "macs", "bytes")
        },
    }
    tables = {"kinds": kinds.rows, "lists": lists.rows, "places": places.rows}
    # Operators without users, such as counters of training steps.
    used = {*refs(graph.outputs), *(name for node in nodes for name in node.uses())}
    idle = [i for i, name in enumerate(parts.operators) if name not in used]
    return {"operators": columns, "idle": idle, **tables}


def _kind(graph: ArchGraph, node: Node) -> tuple[Json, ...]:
    """Return operator, label, shapes, attributes and family; equal operators share this row."""
    arguments = tuple(
        (name, show(value))
        for name, value in node.args
        if not any(isinstance(item, Ref | Leaf) for item in walk(value))
    )
    label = node.name if node.op == "input" else operator_label(graph, node).text
    flow = ", ".join(shape_label(kind) for kind in node.types)
    shapes = tuple(map(str, node.types))
    return node.op, label, flow, shapes, arguments, node_family(graph, node)


def _boxes(parts: Anatomy) -> dict[str, Json]:
    """Return the boxes of the picture and the arrows between them."""
    labels, links = Distinct(), Distinct()
    number = numbered(box.name for box in parts.scene.boxes)
    boxes = [
        [
            ("operator", "input", "output").index(box.kind),
            labels.add(tuple((line.text, int(line.strong)) for line in _lines(parts.graph, box))),
            int(box.training),
        ]
        for box in parts.scene.boxes
    ]
    arrows = sorted((number[a.head], number[a.tail], a) for a in parts.scene.links)
    return {
        "boxes": boxes,
        "labels": labels.rows,
        "links": [
            [head, links.add((head - tail, a.label, int(a.training) + 2 * int(a.mask)))]
            for head, tail, a in arrows
        ],
        "arrows": links.rows,
    }


def _lines(graph: ArchGraph, box: Box) -> tuple[LabelLine, ...]:
    """Return the text lines of a box; the box of an idiom of several operators shows its size."""
    one = idioms(graph).get(box.nodes[-1]) if box.parameters else None
    size = [LabelLine(f"{box.size} parameters")] if one is not None and one.several else []
    return (*box.lines, *size)


def _axes(parts: Anatomy) -> list[list[Json]]:
    """List name, size, role, block, spans, half size, saving and pin of each axis."""
    block = numbered(name for name, _ in parts.blocks)
    return [
        [axis.name, axis.size, axis.role, block.get(axis.block, -1), list(axis.spans), axis.halved,
         axis.saving and [axis.saving.parameters, axis.saving.macs],
         None if axis.pin is None else asdict(axis.pin)]
        for axis in graph_facts(parts.graph).axes.values()
    ]  # fmt: skip


def _blocks(parts: Anatomy) -> list[list[Json]]:
    """List each block: name, kind, number of operators, why it stays, the saving, its contents."""
    about = graph_facts(parts.graph).blocks
    return [
        [b.name, b.kind, len(nodes), b.reason, b.saving and [b.saving.parameters, b.saving.macs],
         _words(parts, [nodes])]
        for b, nodes in ((about[name], nodes) for name, nodes in parts.blocks)
    ]  # fmt: skip


def _folds(parts: Anatomy) -> list[list[Json]]:
    """List each fold: first block, blocks in it, repetitions, name, if widths differ, contents."""
    block, nodes = numbered(name for name, _ in parts.blocks), dict(parts.blocks)
    return [
        [block[one.blocks[0][0]], len(one.blocks[0]), one.times, one.name, int(one.growing),
         _words(parts, [nodes[name] for name in one.blocks[0]])]
        for one in parts.folds
    ]  # fmt: skip


def _words(parts: Anatomy, blocks: list[tuple[str, ...]], letters: int = 40) -> list[str]:
    """Describe blocks in lines of at most so many letters."""
    return [line.text for line in wrapped_lines(parts.contents.lines(blocks), letters)]
