"""What a picture of a graph shows: boxes, links and the clusters that hold them.

A :class:`Scene` knows nothing of DOT or colours; :mod:`archgraph.display.picture` gives it its
looks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from archgraph.graph.ir import (
    ArchGraph,
    Batch,
    Node,
    Record,
    Ref,
    Size,
    TensorType,
    Value,
    in_mode,
    walk,
)
from archgraph.ops import row, zeros
from archgraph.tables import count

Detail = Literal["block", "node"]
BoxKind = Literal["operator", "input", "output"]

# Arguments worth a place in a label when they differ from one: operator schemas use these names
# for the same thing everywhere, so no operator has to be known.
SHOWN = ("stride", "dilation", "groups")
# Words that a label line holds before it is shortened.
WORDS = 4


@dataclass(frozen=True, slots=True)
class LabelLine:
    """One line of a box's label; a strong line is an operator with a weight matrix or kernel."""

    text: str
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Box:
    """One box of the picture.

    Attributes:
        name: Unique in the scene; an operator box is named after its first node.
        kind: What it is.
        nodes: Names of the graph's nodes that it stands for, in topological order.
        lines: Its label.
        leaves: Names of the leaves that its nodes use.
        parameters: Number of trainable and frozen parameter elements in those leaves.
        training: Whether it takes part in training only.
    """

    name: str
    kind: BoxKind
    nodes: tuple[str, ...]
    lines: tuple[LabelLine, ...]
    leaves: tuple[str, ...] = ()
    parameters: int = 0
    training: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """An arrow: a value of shape `label` (no batch axis) goes from one box to another."""

    tail: str
    head: str
    label: str
    training: bool = False


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster: a section (holding blocks) or a block (holding boxes)."""

    name: str
    groups: tuple[Cluster, ...] = ()
    boxes: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Scene:
    """A picture's contents: boxes in topological order, links, and clusters over the boxes."""

    name: str
    boxes: tuple[Box, ...]
    links: tuple[Link, ...]
    groups: tuple[Cluster, ...]

    @property
    def box(self) -> Mapping[str, Box]:
        """Boxes by name."""
        return {b.name: b for b in self.boxes}


def dimensions(shape: Sequence[Size]) -> str:
    """A shape with `×`, without its batch axis; other multiples of the batch show as `n`.

    >>> dimensions((Batch(), 64, 32, 32)), dimensions((Batch(4), 49, 96)), dimensions((10,))
    ('64×32×32', '4n×49×96', '10')
    """
    rest = shape[1:] if shape and shape[0] == Batch() else shape
    return "×".join(str(s).replace("batch", "n").replace("*n", "n") for s in rest)


def shape_label(kind: TensorType) -> str:
    """Shape of a value, with its dtype where that is not a floating one.

    >>> shape_label(TensorType((Batch(), 10), "float32"))
    '10'
    >>> shape_label(TensorType((Batch(), 128), "int64"))
    '128 int64'
    """
    dtype = "" if "float" in kind.dtype else kind.dtype
    return " ".join(filter(None, (dimensions(kind.shape), dtype)))


def plain(op: str) -> str:
    """An operator's name in words.

    >>> plain("aten.max_pool2d"), plain("aten.add.Tensor"), plain("getitem")
    ('max pool2d', 'add', 'getitem')
    """
    parts = op.split(".")
    return (parts[1] if len(parts) > 1 else parts[0]).strip("_").replace("_", " ")


def _repeat(value: Value) -> str:
    """`(3, 3)` as `3×3`; a scalar as it is."""
    return "×".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _ones(value: Value) -> bool:
    return all(item == 1 for item in walk(value))


def kernel_of(graph: ArchGraph, node: Node) -> tuple[int, ...]:
    """Shape of the matrix or kernel that the node mixes values with; empty if it has none."""
    if not row(node.op).weighted:
        return ()
    shapes = (graph.param[name].shape for name in node.leaves() if is_parameter(graph, name))
    return max(shapes, key=len, default=())


def is_parameter(graph: ArchGraph, name: str) -> bool:
    """Whether a leaf is a parameter (not a buffer or a constant)."""
    return graph.param[name].role == "parameter"


def describe(graph: ArchGraph, node: Node) -> LabelLine:
    """An operator's label: its name, kernel, result channels, and what differs from one."""
    kernel = kernel_of(graph, node)
    words = [plain(node.op)]
    if len(kernel) > 2:
        words.append(_repeat(kernel[2:]))
    elif (size := node.arg("kernel_size")) is not None:
        square = (size, size) if isinstance(size, int) else size
        words.append(_repeat(square))
    text = " ".join(words)
    if kernel and len(node.shape) > 1:
        channels = node.shape[1] if len(kernel) > 2 else node.shape[-1]
        text += f" → {channels}"
    for name in SHOWN:
        value = node.arg(name)
        if value not in (None, ()) and not _ones(value):
            same = isinstance(value, tuple) and len(set(value)) == 1
            text += f", {name} {value[0] if same and isinstance(value, tuple) else _repeat(value)}"
    return LabelLine(text, strong=bool(kernel))


def _shorten(words: Sequence[str]) -> str:
    kept = [w for i, w in enumerate(words) if i == 0 or w != words[i - 1]]
    if len(kept) > WORDS:
        kept = [*kept[: WORDS - 2], "…", kept[-1]]
    return " · ".join(kept)


def _label(graph: ArchGraph, names: Sequence[str]) -> tuple[LabelLine, ...]:
    """Lines of a box: mixing operators one to a line, the rest joined."""
    lines: list[LabelLine] = []
    words: list[str] = []
    told = [name for name in names if graph.node[name].op != "getitem"] or names
    for line in (describe(graph, graph.node[name]) for name in told):
        if not line.strong:
            words.append(line.text)
            continue
        if words:
            lines.append(LabelLine(_shorten(words)))
        lines.append(line)
        words = []
    if words:
        lines.append(LabelLine(_shorten(words)))
    return tuple(lines)


def _reach(graph: ArchGraph, roots: Value, *, training: bool | None) -> set[str]:
    """Nodes that a value needs; `training=None` follows both branches of every `Mode`."""

    def refs(value: Value) -> Iterator[str]:
        chosen = value if training is None else in_mode(value, training)
        return (item.name for item in walk(chosen) if isinstance(item, Ref))

    seen: set[str] = set()
    pending = list(refs(roots))
    while pending:
        name = pending.pop()
        if name not in seen:
            seen.add(name)
            pending.extend(refs(tuple(value for _, value in graph.node[name].args)))
    return seen


def _aside(graph: ArchGraph, in_eval: Collection[str]) -> set[str]:
    """Nodes that stand beside all blocks: inputs, and heads that only training has."""
    aside: set[str] = set()
    for node in reversed(graph.nodes):
        if node.op == "input" or (
            node.name not in in_eval and aside.issuperset(graph.users[node.name])
        ):
            aside.add(node.name)
    return aside


def _results(value: Value, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Ref]]:
    """Every result inside the output tree with the keys that lead to it."""
    match value:
        case Ref():
            yield path, value
        case tuple():
            for index, item in enumerate(value):
                yield from _results(item, (*path, str(index)))
        case Record():
            for key, item in value.fields:
                yield from _results(item, (*path, key))


def _outputs(graph: ArchGraph) -> Iterator[tuple[str, str, bool]]:
    """Name, node and whether it is training's only, for every output."""
    both = [dict(_results(in_mode(graph.outputs, mode))) for mode in (False, True)]
    for path, ref in both[0].items():
        yield ".".join(path) or "output", ref.name, False
    for path, ref in both[1].items():
        if ref not in both[0].values():
            yield ".".join(path) or "output", ref.name, True


def _feeds(graph: ArchGraph, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """What each operator uses, drawn as few arrows.

    Where an operator gathers several values of which another one of its kind gathers the first
    (the concatenations of a dense block), one arrow comes from there instead of one from each.
    """
    feeds = {name: tuple(dict.fromkeys(graph.node[name].uses())) for name in names}
    seen: dict[tuple[str, str, tuple[str, ...]], str] = {}
    for name in names:
        node = graph.node[name]
        lists = [(k, v) for k, v in node.args if isinstance(v, tuple) and v]
        lists = [(k, v) for k, v in lists if all(isinstance(item, Ref) for item in v)]
        if len(lists) != 1:
            continue
        key, value = lists[0]
        items = tuple(item.name for item in walk(value) if isinstance(item, Ref))
        kind = f"{node.op} {node.with_args(**{key: ()}).args}"
        for length in range(len(items) - 1, 0, -1):
            source = seen.get((kind, key, items[:length]))
            if source is not None:
                rest = set(feeds[name]) - set(items[:length]) | set(items[length:])
                feeds[name] = (source, *(used for used in feeds[name] if used in rest))
                break
        seen.setdefault((kind, key, items), name)
    return feeds


def _chains(
    graph: ArchGraph,
    feeds: Mapping[str, Sequence[str]],
    owner: Mapping[str, int],
    training: Collection[str],
) -> list[list[str]]:
    """Maximal runs of operators with one producer and one user, within one block."""
    ends = set(graph.output_refs())
    users: dict[str, list[str]] = {}
    for name, before in feeds.items():
        for used in before:
            users.setdefault(used, []).append(name)
    chains: dict[str, list[str]] = {}
    result: list[list[str]] = []
    for name, before in feeds.items():
        tail = before[0] if len(before) == 1 else None
        if (
            tail is not None
            and graph.node[tail].op != "input"
            and len(users[tail]) == 1
            and tail not in ends
            and owner.get(tail) == owner.get(name)
            and (tail in training) == (name in training)
        ):
            chains[name] = chains[tail]
            chains[name].append(name)
        else:
            chains[name] = [name]
            result.append(chains[name])
    return result


def _split(graph: ArchGraph, chain: Sequence[str]) -> Iterator[list[str]]:
    """Cut a chain so that every piece has at most one mixing operator.

    Operators follow the mixing operator that feeds them (conv, norm, relu); where the chain
    starts with others, they precede the one that they feed (norm, relu, conv).
    """
    mixing = [i for i, name in enumerate(chain) if kernel_of(graph, graph.node[name])]
    if len(mixing) < 2:
        yield list(chain)
        return
    cuts = mixing[1:] if mixing[0] == 0 else [i + 1 for i in mixing[:-1]]
    for start, stop in zip([0, *cuts], [*cuts, len(chain)], strict=True):
        yield list(chain[start:stop])


def scene(
    graph: ArchGraph,
    sections: Sequence[tuple[str, Sequence[tuple[str, Sequence[str]]]]],
    *,
    detail: Detail = "block",
) -> Scene:
    """What to draw of a graph.

    Args:
        graph: The architecture.
        sections: Sections in order: name and blocks, a block being a name and its node names.
            Nodes that no block holds stand outside all clusters, and so do inputs and heads that
            only training has.
        detail: `node` shows every operator; `block` folds operators without a weight matrix or
            kernel into the operator that feeds them, and leaves out what only updates buffers.

    Example:
        >>> from archgraph.graph.ir import ArchGraph, Batch, Node, Ref, TensorType
        >>> kind = TensorType((Batch(), 8), "float32")
        >>> x = Node("x", "input", type=kind)
        >>> y = Node("relu", "aten.relu", (("self", Ref("x")),), kind)
        >>> picture = scene(ArchGraph((("x", Ref("x")),), (), (x, y), Ref("relu")), [])
        >>> [box.name for box in picture.boxes], picture.links[0].label
        (['x', 'relu', 'output'], '8')
    """
    needed = _reach(graph, graph.outputs, training=None)
    in_eval = _reach(graph, graph.outputs, training=False)
    shown = [
        n.name
        for n in graph.nodes
        if detail == "node"
        # what is made of zeros, as first states are, says nothing in an overview
        or (n.name in needed and row(n.op).zero is not zeros.always)
        or n.op == "input"
    ]
    training = {n for n in shown if n not in in_eval and graph.node[n].op != "input"}
    blocks = [(b, nodes) for _, members in sections for b, nodes in members]
    framed = set(shown) - _aside(graph, in_eval)
    owner = {n: i for i, (_, nodes) in enumerate(blocks) for n in nodes if n in framed}

    operators = [name for name in shown if graph.node[name].op != "input"]
    feeds = _feeds(graph, operators)
    if detail == "block":
        drawn = set(shown)
        feeds = {name: tuple(u for u in used if u in drawn) for name, used in feeds.items()}
    if detail == "node":
        pieces = [[name] for name in operators]
    else:
        chains = _chains(graph, feeds, owner, training)
        pieces = [piece for chain in chains for piece in _split(graph, chain)]
    pieces = [[name] for name in shown if graph.node[name].op == "input"] + pieces
    order = {n.name: i for i, n in enumerate(graph.nodes)}
    pieces.sort(key=lambda piece: order[piece[0]])

    boxes = [_box(graph, piece, training) for piece in pieces]
    holder = {name: box.name for box in boxes for name in box.nodes}
    links: dict[tuple[str, str], Link] = {}
    for name in operators:
        node = graph.node[name]
        steady = {
            item.name
            for _, value in node.args
            for item in walk(in_mode(value, False))
            if isinstance(item, Ref)
        }
        once = set(node.uses())
        for used in feeds[name]:
            tail, head = holder[used], holder[name]
            if tail == head:
                continue
            label = shape_label(graph.node[used].types[0])
            if len(graph.node[used].types) > 1:
                label = shape_label(node.types[0]) if node.op == "getitem" else ""
            aside = used in once - steady or name in training or used in training
            previous = links.get((tail, head))
            if previous is None or (previous.training and not aside):
                links[tail, head] = Link(tail, head, label, aside)

    taken = set(graph.node)
    for label, source, aside in _outputs(graph):
        name = label
        while name in taken:
            name = f"{name} (output)"
        taken.add(name)
        boxes.append(Box(name, "output", (), (LabelLine(label, strong=True),), training=aside))
        kind = shape_label(graph.node[source].types[0])
        links[holder[source], name] = Link(holder[source], name, kind, aside)
    return Scene(
        graph.name, tuple(boxes), tuple(links.values()), _groups(graph, sections, boxes, owner)
    )


def _box(graph: ArchGraph, names: Sequence[str], training: Collection[str]) -> Box:
    leaves = tuple(dict.fromkeys(leaf for name in names for leaf in graph.node[name].leaves()))
    entry = graph.node[names[0]].op == "input"
    return Box(
        name=names[0],
        kind="input" if entry else "operator",
        nodes=tuple(names),
        lines=(LabelLine(names[0], strong=True),) if entry else _label(graph, names),
        leaves=leaves,
        parameters=parameters(graph, leaves),
        training=names[0] in training,
    )


def parameters(graph: ArchGraph, leaves: Collection[str]) -> int:
    """Number of parameter elements in some leaves."""
    return sum(math.prod(graph.param[name].shape) for name in leaves if is_parameter(graph, name))


def _groups(
    graph: ArchGraph,
    sections: Sequence[tuple[str, Sequence[tuple[str, Sequence[str]]]]],
    boxes: Sequence[Box],
    owner: Mapping[str, int],
) -> tuple[Cluster, ...]:
    members: dict[int, list[Box]] = {}
    for box in boxes:
        if box.nodes and box.nodes[0] in owner:
            members.setdefault(owner[box.nodes[0]], []).append(box)
    groups = []
    index = 0
    for section, blocks in sections:
        inner = []
        for block, nodes in blocks:
            mine = members.get(index, [])
            held = (n for n in nodes if n in owner)
            leaves = tuple(dict.fromkeys(k for n in held for k in graph.node[n].leaves()))
            index += 1
            if mine:
                note = count(parameters(graph, leaves))
                inner.append(Cluster(block, (), tuple(b.name for b in mine), leaves, note))
        leaves = tuple(dict.fromkeys(k for group in inner for k in group.leaves))
        if inner:
            groups.append(
                Cluster(section, tuple(inner), (), leaves, count(parameters(graph, leaves)))
            )
    return tuple(groups)
