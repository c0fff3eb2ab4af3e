"""Texts for the boxes and arrows of a picture, such as `conv2d 3×3 → 64`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from archgraph.analysis.axes import axes
from archgraph.graph.ir import BATCH, ArchGraph, Node, Ref, Size, TensorType, walk
from archgraph.ops.idioms import IdiomMatch, idioms
from archgraph.ops.table import FAMILIES, growth, operator_family, row

# Arguments that a label contains if they are not 1. They have the same meaning in all operators.
SHOWN = ("stride", "dilation", "groups")
# Maximum number of operator names in a line of a label.
WORDS = 4


@dataclass(frozen=True, slots=True)
class LabelLine:
    """One line of a box's label; it is bold for an operator with a weight matrix or kernel."""

    text: str
    strong: bool = False


def dimensions(shape: Sequence[Size]) -> str:
    """Return a shape as text with `×`, without its batch axis.

    >>> from archgraph.graph.polynomial import Polynomial
    >>> height = Polynomial.of("height")
    >>> dimensions((BATCH, 64, height // 2, height)), dimensions((4 * BATCH, 96)), dimensions((10,))
    ('64×(height // 2)×height', '4*batch×96', '10')
    """
    rest = shape[1:] if shape and shape[0] == BATCH else shape
    texts = [str(size) for size in rest]
    alone = len(rest) == 1
    return "×".join(t if alone or " " not in t else f"({t})" for t in texts)


def shape_label(kind: TensorType) -> str:
    """Return the shape of a value as text, followed by its dtype if it is not floating-point.

    >>> shape_label(TensorType((BATCH, 10), "float32"))
    '10'
    >>> shape_label(TensorType((BATCH, 128), "int64"))
    '128 int64'
    """
    dtype = "" if "float" in kind.dtype else kind.dtype
    return " ".join(filter(None, (dimensions(kind.shape), dtype)))


def operator_words(op: str) -> str:
    """Return the name of an operator in words.

    >>> (
    ...     operator_words("aten.max_pool2d"),
    ...     operator_words("aten.add.Tensor"),
    ...     operator_words("getitem"),
    ... )
    ('max pool2d', 'add', 'getitem')
    """
    parts = op.split(".")
    return (parts[1] if len(parts) > 1 else parts[0]).strip("_").replace("_", " ")


def _product(sizes: Sequence[object]) -> str:
    """Return `(3, 3)` as `3×3`."""
    return "×".join(map(str, sizes))


def kernel_of(graph: ArchGraph, node: Node) -> tuple[int, ...]:
    """Return the shape of an operator's weight matrix or kernel; empty if it has none."""
    if not row(node.op).weighted:
        return ()
    shapes = (graph.param[name].shape for name in node.leaves() if is_parameter(graph, name))
    # The weight has more dimensions than the bias.
    return max(shapes, key=len, default=())


def count_parameters(graph: ArchGraph, leaves: Collection[str]) -> int:
    """Return the total number of elements of those leaves that are parameters."""
    return sum(math.prod(graph.param[name].shape) for name in leaves if is_parameter(graph, name))


def is_parameter(graph: ArchGraph, name: str) -> bool:
    """Return whether a name belongs to a parameter (not to a buffer or a constant)."""
    return graph.param[name].role == "parameter"


def attends(graph: ArchGraph, node: Node) -> bool:
    """Return whether an operator is attention, or the last product of decomposed attention."""
    return row(node.op).attends is not None or node.name in axes(graph).attention


def node_family(graph: ArchGraph, node: Node) -> str:
    """Return the family of an operator, one of ``archgraph.ops.table.FAMILIES``; may be empty."""
    one = idioms(graph).get(node.name)
    if one is not None and one.idiom.family:
        return one.idiom.family
    return "attention" if attends(graph, node) else operator_family(node.op)


def main_family(graph: ArchGraph, names: Iterable[str]) -> str:
    """Return the family of several operators: the one that comes first in ``FAMILIES``."""
    inside = {node_family(graph, graph.node[name]) for name in names}
    return next((name for name in FAMILIES if name in inside), "")


def mask_of(node: Node) -> str:
    """Return the name of an attention operator's mask; empty if there is none."""
    known = row(node.op).attends
    value = node.arg(known[1]) if known is not None else None
    return value.name if isinstance(value, Ref) else ""


def attention_label(graph: ArchGraph, node: Node) -> LabelLine:
    """Return the label of an attention operator: the number of heads and their width."""
    one = idioms(graph).get(node.name)
    name = one.idiom.name if one else "attention"
    spelt = axes(graph).attention.get(node.name)
    if spelt is not None:
        return LabelLine(f"{name}, {spelt[0]} heads of {spelt[1]}", strong=True)
    known = row(node.op).attends
    query = node.arg(known[0]) if known is not None else None
    shape = graph.node[query.name].shape if isinstance(query, Ref) else node.shape
    heads = f"{shape[-3]} heads of {shape[-1]}" if len(shape) > 3 else f"width {shape[-1]}"
    return LabelLine(f"{name}, {heads}", strong=True)


def _operator_name(graph: ArchGraph, node: Node, brief: bool) -> tuple[str, Collection[str]]:
    """Return the name of an operator, and the arguments that the name implies."""
    one = idioms(graph).get(node.name)
    if one is not None and not one.several and not brief:
        return one.idiom.name, one.idiom.implied
    return (kernel_of(graph, node) and row(node.op).words) or operator_words(node.op), ()


def _tied(graph: ArchGraph, node: Node) -> bool:
    """Return whether an earlier operator of another kind uses the same parameter (weight tying)."""
    leaves = (leaf for leaf in node.leaves() if is_parameter(graph, leaf))
    return any(graph.node[graph.leaf_users[leaf][0]].op != node.op for leaf in leaves)


def _argument(node: Node, name: str) -> str:
    """Return an argument as text; empty if it is 1."""
    sizes = [size for size in walk(node.arg(name)) if size is not None]
    distinct = sizes[:1] if len(set(sizes)) == 1 else sizes
    return f", {name} {_product(distinct)}" if any(size != 1 for size in sizes) else ""


def operator_label(graph: ArchGraph, node: Node, *, brief: bool = False) -> LabelLine:
    """Return the label of an operator: name, kernel size, output channels, other arguments.

    Args:
        graph: The architecture.
        node: The operator.
        brief: Whether the label only contains name and kernel size.
    """
    if attends(graph, node):
        return attention_label(graph, node)
    kernel = kernel_of(graph, node)
    text, implied = _operator_name(graph, node, brief)
    if len(kernel) > 2:  # output channels, input channels, kernel size
        text += "" if "kernel" in implied else f" {_product(kernel[2:])}"
    elif (size := node.arg("kernel_size")) is not None:
        text += f" {_product(size if isinstance(size, tuple) else (size, size))}"
    if brief:
        return LabelLine(text, strong=bool(kernel))
    if kernel and len(node.shape) > 1:
        # Convolutions have channels after the batch axis, linear layers on the last axis.
        text += f" → {node.shape[1] if len(kernel) > 2 else node.shape[-1]}"
    if kernel and _tied(graph, node):
        text += ", tied"
    arguments = (_argument(node, name) for name in SHOWN if name not in implied)
    return LabelLine(text + "".join(arguments), strong=bool(kernel))


def abbreviated(words: Sequence[str]) -> str:
    """Join the first words of a list; of equal neighbours, keep one."""
    shortened = [w for i, w in enumerate(words) if i == 0 or w != words[i - 1]]
    if len(shortened) > WORDS:
        shortened = [*shortened[: WORDS - 2], "…", shortened[-1]]
    return " · ".join(shortened)


def lines_of(graph: ArchGraph, names: Sequence[str]) -> tuple[LabelLine, ...]:
    """Return the lines of a box: one line for each operator with weights, and a line for the rest.

    Several operators that form a known function (an idiom, such as a decomposed RMSNorm) have one
    name. Reshapes and transposes before or after attention or an idiom are omitted.
    """
    lines: list[LabelLine] = []
    known, inside = idioms(graph), {*names}
    complete = {n: known[n] for n in names if n in known and inside.issuperset(known[n].nodes)}
    every = [
        _label(graph, graph.node[n], complete.get(n)) for n in _labelled(graph, names, complete)
    ]
    for strong, group in itertools.groupby(every, key=lambda line: line.strong):
        alike = list(group)
        lines += alike if strong else [LabelLine(abbreviated([line.text for line in alike]))]
    return tuple(lines)


def _labelled(
    graph: ArchGraph, names: Sequence[str], complete: Mapping[str, IdiomMatch]
) -> list[str]:
    """Return the operators of a box that its label names; for an idiom, the last operator."""
    serving = any(attends(graph, graph.node[n]) for n in names)
    serving = serving or any(one.several for one in complete.values())
    moving = {n for n in names if serving and growth(graph.node[n].op).moves} - complete.keys()
    inner = {n for n, one in complete.items() if n != one.nodes[-1]}
    labelled = [n for n in names if n not in moving | inner and graph.node[n].op != "getitem"]
    # If only such operators are in the box, name them.
    return labelled or list(names)


def _label(graph: ArchGraph, node: Node, one: IdiomMatch | None) -> LabelLine:
    """Return the label of an operator, or of the idiom whose last operator it is."""
    if one is None or not one.several or attends(graph, node):
        return operator_label(graph, node)
    weighted = any(kernel_of(graph, graph.node[name]) for name in one.nodes)
    channels = f" → {node.shape[1]}" if weighted else ""
    return LabelLine(one.idiom.name + channels, strong=weighted)
