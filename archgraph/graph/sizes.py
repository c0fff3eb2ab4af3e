"""Open (dynamic) sizes of a graph: the input dimensions that have them, and their ranges."""

from __future__ import annotations

import contextlib
import dataclasses
import keyword
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass

from archgraph.errors import GraphError
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph, Leaf, Record, Value, per_graph, replace, walk
from archgraph.graph.polynomial import Polynomial, Quotient, Size
from archgraph.graph.values import BATCH_WORD, RESERVED, TensorType
from archgraph.hints import unknown


@dataclass(frozen=True, slots=True)
class OpenSize:
    """An open (dynamic) size: a dimension that may differ from input to input.

    Attributes:
        name: Name in shapes.
        example: Value in the traced example; 1 for the batch.
        low: Smallest value for which the graph is valid.
        high: Largest value for which the graph is valid; infinite if there is no limit.
        axes: The dimensions that have this size, as pairs of input and dimension.
    """

    name: str
    example: int
    low: int
    high: float
    axes: tuple[tuple[str, int], ...]

    @property
    def probe(self) -> int:
        """A large value, for which derived sizes are not 1 or equal by chance."""
        return int(min(self.high, 16 * self.example + 7))

    def argument(self) -> tuple[tuple[str, Value], ...]:
        """Return the range and the example value, as arguments of the first input with the size."""
        bounds = (("min", self.low, self.low > 0), ("max", self.high, self.high < math.inf))
        ends = tuple((key, int(value)) for key, value, is_bound in bounds if is_bound)
        if self.name == BATCH_WORD:
            return ends
        return ((self.name, Record((("example", self.example), *ends))),)

    @property
    def range(self) -> str:
        """The range of values as text: ``2 to 512``, ``2 or more``, ``512 or less``."""
        if self.high == math.inf:
            return f"{max(self.low, 1)} or more"
        return f"{self.low} to {self.high}" if self.low else f"{self.high} or less"


@per_graph
def open_sizes(graph: ArchGraph) -> Mapping[str, OpenSize]:
    """Return a dict from names to open sizes, in the order of the inputs."""
    inputs = [node for node in graph.nodes if node.op == "input"]
    axes: dict[str, list[tuple[str, int]]] = {}
    for node in inputs:
        for dim, size in enumerate(node.types[0].shape if node.types else ()):
            if name := single_name(size):
                axes.setdefault(name, []).append((node.name, dim))
    written: dict[str, Mapping[str, Value]] = {BATCH_WORD: {}}
    for node in inputs:
        for key, value in node.args:
            if isinstance(value, Record):
                written[key] = dict(value.fields)
            else:
                written[BATCH_WORD] = {**written[BATCH_WORD], key: value}
    sizes = {}
    for name, places in axes.items():
        facts = written.get(name, {})
        example, low, high = (facts.get(key) for key in ("example", "min", "max"))
        sizes[name] = OpenSize(
            name,
            example if isinstance(example, int) else 1,
            low if isinstance(low, int) else 0,
            high if isinstance(high, int) else math.inf,
            tuple(places),
        )
    return sizes


def single_name(size: Size) -> str:
    """Return the name of a size that is one open size; empty for numbers and other expressions."""
    match [*size.terms.items()] if isinstance(size, Polynomial) else []:
        case [((str(name),), 1)] if not isinstance(name, Quotient):
            return name
    return ""


@per_graph
def example_sizes(graph: ArchGraph, batch: int = 1) -> Mapping[str, int]:
    """Return the values of all open sizes in the traced example, with the given batch size."""
    values = {name: size.example for name, size in open_sizes(graph).items()}
    return {**values, BATCH_WORD: batch}


def counted_at(graph: ArchGraph) -> str:
    r"""Return the values of open sizes for which costs are counted, as text, without the batch.

    >>> from archgraph.graph.text import parse
    >>> text = "%x: float32[batch, n] = input(n={'example': 7})\nforward x = %x\nreturn %x"
    >>> counted_at(parse(text))
    'n 7'
    """
    sizes = (size for name, size in open_sizes(graph).items() if name != BATCH_WORD)
    return ", ".join(f"{size.name} {size.example}" for size in sizes)


@per_graph
def probed_sizes(graph: ArchGraph) -> Mapping[str, int]:
    """Return values of the open sizes except the batch, for computing types."""
    return {n: s.probe for n, s in open_sizes(graph).items() if n != BATCH_WORD}


def other_sizes(graph: ArchGraph) -> dict[str, int]:
    """Return other valid values than the example's for open sizes, except the batch."""
    others = {}
    for name, size in open_sizes(graph).items():
        longer, shorter = size.example + 1 + size.example // 3, size.example - 1
        if name != BATCH_WORD:
            others[name] = longer if longer <= size.high else max(shorter, size.low, 1)
    return others


def at_sizes(graph: ArchGraph, sizes: Mapping[str, int]) -> ArchGraph:
    """Return the graph with other example values of open sizes, for which costs are counted.

    Args:
        graph: The graph.
        sizes: Dict from open sizes to values. Other sizes keep their example values.

    Raises:
        GraphError: If the graph has no open size with a name, or if a value is out of range.
    """
    known = {k: v for k, v in open_sizes(graph).items() if k != BATCH_WORD}
    changed = {}
    for name, value in sizes.items():
        if name not in known:
            raise GraphError("no such open size", **unknown(name, known))
        size = known[name]
        number = -1
        with contextlib.suppress(TypeError):
            number = -1 if isinstance(value, bool) else operator.index(value)
        if not max(size.low, 1) <= number <= size.high:
            raise GraphError(
                "the graph is not valid for this size",
                where=name,
                found=value,
                expected=size.range,
            )
        changed[name] = dataclasses.replace(size, example=number)
    return with_open_sizes(graph, {**open_sizes(graph), **changed})


@takes_graph
def fix_sizes(graph: ArchGraph, sizes: Mapping[str, int] | None = None) -> ArchGraph:
    """Replace open (dynamic) sizes of a graph by numbers; the batch size stays open.

    Args:
        graph: The architecture, or an object with an attribute ``graph``.
        sizes: Dict from the names of open sizes to values. Default: fix all open sizes except the
            batch size to their values in the traced example.

    Raises:
        GraphError: If a name in ``sizes`` is not an open size of the graph, or if a value is out of
            range.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net, x = torch.nn.Linear(3, 2), torch.zeros(1, 7, 3)
        >>> graph = trace(net, x, open={"input": {1: "length"}}).graph
        >>> print(graph.nodes[-1].type, fix_sizes(graph, {"length": 5}).nodes[-1].type)
        float32[batch, length, 2] float32[batch, 5, 2]
    """
    known = open_sizes(at_sizes(graph, sizes or {}))
    names = known.keys() - {BATCH_WORD} if sizes is None else sizes
    numbers: dict[str, Size] = {name: known[name].example for name in names}

    def fixed(value: Value) -> Value:
        return value.replaced(numbers) if isinstance(value, Polynomial) else value

    def typed(type_: TensorType) -> TensorType:
        return TensorType(tuple(fixed(s) for s in type_.shape), type_.dtype)  # type: ignore[misc]  # sizes stay sizes

    numbered, nodes = graph.mapped(fixed), []
    for node in numbered.nodes:
        types = tuple(map(typed, node.types))
        type_ = types if isinstance(node.type, tuple) else types[0]
        nodes.append(dataclasses.replace(node, type=type_))
    return with_open_sizes(numbered.replace(nodes=tuple(nodes)), known)


def with_open_sizes(graph: ArchGraph, sizes: Mapping[str, OpenSize]) -> ArchGraph:
    """Return the graph with the ranges of ``sizes`` as arguments of its inputs."""
    said: dict[str, list[tuple[str, Value]]] = {}
    for name, known in open_sizes(graph).items():
        said.setdefault(known.axes[0][0], []).extend(sizes[name].argument())
    nodes = (
        dataclasses.replace(n, args=tuple(said.get(n.name, ()))) if n.op == "input" else n
        for n in graph.nodes
    )
    return graph.replace(nodes=tuple(nodes))


_GUARD_WORDS = frozenset({"min", "max", "Min", "Max", "abs", "math", "torch"})  # used in guards


def is_size_name(name: str) -> bool:
    """Return whether a name is allowed for open sizes: an identifier that is not a reserved word.

    >>> is_size_name("length"), is_size_name("2d"), is_size_name("max")
    (True, False, False)
    """
    possible = name.isidentifier() and name.isascii() and not keyword.iskeyword(name)
    return possible and (name == BATCH_WORD or name not in RESERVED | _GUARD_WORDS)


def with_size_words(graph: ArchGraph) -> ArchGraph:
    """Return a parsed graph in which the names of open sizes have been converted to sizes."""
    leaves = {Leaf(name) for name in open_sizes(graph) if name != BATCH_WORD}

    def size(value: Value) -> Value:
        return Polynomial.of(value.name) if isinstance(value, Leaf) and value in leaves else value

    def sized(value: Value) -> Value:  # most values contain none and are returned unchanged
        return replace(value, size) if not leaves.isdisjoint(walk(value)) else value

    if not leaves:
        return graph
    nodes = (
        dataclasses.replace(n, args=tuple((k, sized(v)) for k, v in n.args)) for n in graph.nodes
    )
    return graph.replace(nodes=tuple(nodes), outputs=sized(graph.outputs))
