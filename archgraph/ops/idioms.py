"""Idioms: common names for groups of operators, or for one operator with certain arguments.

Each row of the table has a pattern and a name. Patterns consist of operators, constants and their
connections. They do not depend on the names of models or parameters. A group is not an idiom if its
intermediate values are used elsewhere, because it then computes more than the idiom's result.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from archgraph.graph.ir import ArchGraph, Leaf, Node, Ref, Size, Value, per_graph, walk
from archgraph.ops.patterns import (
    Applied,
    Either,
    Pattern,
    PatternMatch,
    PatternReader,
    Variable,
    either,
    op,
)
from archgraph.ops.table import base, row


@dataclass(frozen=True, eq=False)
class IdiomMatch:
    """An occurrence of an idiom in a graph.

    Attributes:
        graph: The graph.
        idiom: The idiom's row in the table.
        nodes: Operators of the occurrence. The last operator computes the result.
        values: Values of the pattern's variables.
    """

    graph: ArchGraph
    idiom: Idiom
    nodes: tuple[str, ...]
    values: Mapping[str, Value]

    @property
    def several(self) -> bool:
        """Whether the occurrence has more than one operator."""
        return len(self.nodes) > 1

    def shape(self, name: str) -> tuple[Size, ...]:
        """Return the shape of a variable's value; empty for a number."""
        value, graph = self.values[name], self.graph
        if isinstance(value, Leaf):
            return graph.param[value.name].shape
        return graph.node[value.name].shape if isinstance(value, Ref) else ()

    def axes(self, name: str) -> set[int]:
        """Return the dimensions of ``x`` that a variable lists, counted from the front."""
        listed, rank = walk(self.values[name]), len(self.shape("x")) or 1
        return {axis % rank for axis in listed if isinstance(axis, int)}


Condition: TypeAlias = Callable[[IdiomMatch], bool]


@dataclass(frozen=True)
class Idiom:
    """A group of operators with a common name: a row of the table.

    Attributes:
        name: The usual name in the field.
        pattern: Pattern of the result.
        where: A further condition on a match.
        family: One of :data:`archgraph.ops.table.FAMILIES`; empty for the family of the operators.
        implied: Arguments that follow from the name. Labels omit these arguments.
    """

    name: str
    pattern: Pattern
    where: Condition = lambda matched: True
    family: str = ""
    implied: frozenset[str] = frozenset()


# -- norms ----------------------------------------------------------------------------------------
_square = either(op.pow("x", 2.0), op.mul("x", "x"), op.square("x"))
_mean = op.mean(_square, dim="dim", keepdim=True)
_variance = op.add(_mean, Variable("eps", "number"))
_rms_norm = either(
    op.mul("x", either(op.rsqrt(_variance), op.reciprocal(op.sqrt(_variance)))),
    op.mul("x", op.pow(_variance, -0.5)),
    op.div("x", op.sqrt(_variance)),
)
_gain = Variable("w", "leaf")


def _last(matched: IdiomMatch) -> bool:
    return matched.axes("dim") == {len(matched.shape("x")) - 1}


# -- activations and gates ------------------------------------------------------------------------
def _half(gate: Pattern) -> Pattern:
    """Return a pattern for half of ``x * gate``, wherever the factor 0.5 is applied."""
    return either(
        op.mul(op.mul("x", gate), 0.5),
        op.mul(op.mul("x", 0.5), gate),
        op.mul("x", op.mul(gate, 0.5)),
    )


_scaled = either(op.div("x", math.sqrt(2)), op.mul("x", math.sqrt(0.5)))
_cube = either(op.pow("x", 3.0), op.mul(op.mul("x", "x"), "x"))
_inside = either(
    op.mul(op.add("x", op.mul(_cube, 0.044715)), math.sqrt(2 / math.pi)),
    op.mul(
        op.mul("x", math.sqrt(2 / math.pi)),
        op.add(op.mul(op.mul("x", 0.044715), "x"), 1.0),
    ),
)
# These are also the spellings in ONNX files.
SPELT_GELU = _half(op.add(op.erf(_scaled), 1.0))
SPELT_GELU_TANH = _half(op.add(op.tanh(_inside), 1.0))
SPELT_SILU = op.mul("x", op.sigmoid("x"))
_gelu = either(op.gelu("x"), SPELT_GELU)
_gelu_tanh = either(op.gelu("x", approximate="mode"), SPELT_GELU_TANH)
_silu = either(op.silu("x"), SPELT_SILU)


def _gate(matched: IdiomMatch) -> bool:
    """Return whether both factors are tensors of the same shape. Otherwise one is a scale."""
    return matched.shape("x") == matched.shape("other") != ()


def _halves_of_one(matched: IdiomMatch) -> bool:
    """Return whether one operator computes both factors from one value, as in GLU."""
    factors = (matched.values[name] for name in ("x", "other"))
    nodes = [matched.graph.node[value.name] for value in factors if isinstance(value, Ref)]
    sources = {(node.op, node.args[:1]) for node in nodes}
    return _gate(matched) and len(nodes) == 2 and len(sources) == 1 and nodes[0].op != "input"


# -- rotary embedding -----------------------------------------------------------------------------
def _part(index: int, **positions: Pattern) -> Pattern:
    """Return a pattern for half of the last dimension: a slice or one of two split parts."""
    parts = op.split_with_sizes("x", ("half", "half"), dim="dim")
    return either(op.slice("x", dim="dim", **positions), op.getitem(parts, index))


_start = either(0, None)
_low, _high = _part(0, start=_start, end="half"), _part(1, start="half", end="end")
_even = op.slice("x", dim="dim", start=_start, end="end", step=2)
_odd = op.slice("x", dim="dim", start=1, end="end", step=2)
_turned = either(
    op.cat((op.neg(_high), _low), dim=-1),
    Applied("reshape", (op.stack((op.neg(_odd), _even), dim=-1),), None),
)
_rotary = either(
    op.add(op.mul("x", "cos"), op.mul(_turned, "sin")),
    op.cat(
        (
            op.sub(op.mul(_low, "cos"), op.mul(_high, "sin")),
            op.add(op.mul(_high, "cos"), op.mul(_low, "sin")),
        ),
        dim=-1,
    ),
)


def _halves(matched: IdiomMatch) -> bool:
    """Return whether the last dimension is rotated, as two halves or as adjacent pairs."""
    size = matched.shape("x")[-1]
    return _last(matched) and matched.values.get("half", size // 2) == size // 2


# -- attention ------------------------------------------------------------------------------------
def _repeated(heads: str) -> Pattern:
    """Return a pattern for heads of keys or values, repeated for the queries that share them."""
    stretched = Applied("expand", (op.unsqueeze(heads, dim=either(2, -3)),), None)
    return either(
        Applied("reshape", (stretched,), None),
        op.repeat_interleave(heads, "times", dim=either(1, -3)),
    )


_product = op.matmul("query", Applied("transpose", (_repeated("key"),), None))
_scores = either(op.mul(_product, "scale"), op.div(_product, "scale"), _product)
_softmax = Applied("softmax", (either(op.add(_scores, "mask"), _scores),), None)
_grouped_query = either(
    *(
        Applied("scaled_dot_product_attention", ("query", *keys), None)
        for keys in ((_repeated("key"), _repeated("value")), ("key", "value"))
    ),
    op.matmul(either(_softmax, Applied("dropout", (_softmax,), None)), _repeated("value")),
)


def _shared(matched: IdiomMatch) -> bool:
    """Return whether several query heads share one key head."""
    query, key = matched.shape("query"), matched.shape("key")
    return len(query) == len(key) == 4 and query[1] != key[1]


# -- convolutions ---------------------------------------------------------------------------------
_CONVOLUTIONS, _WEIGHTS = "conv1d conv2d conv3d", "conv1d conv2d conv3d linear"
_convolution = Applied(_CONVOLUTIONS, ("x", "w"), None)
_ACTIVATIONS = "relu relu6 leaky_relu elu gelu silu mish hardswish hardtanh"


def _moved(x: Pattern) -> Pattern:
    """Return a pattern for a value after at most two operators that change its shape."""
    once = Applied("reshape unsqueeze", (x,), None)
    return either(x, once, Applied("reshape unsqueeze", (once,), None))


def _layer(x: Pattern, weight: str) -> Applied:
    return Applied(_WEIGHTS, (x, Variable(weight, "leaf")), None)


_pool = either(
    Applied(
        "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d",
        ("x", either((1,), (1, 1), (1, 1, 1))),
    ),
    Applied("mean", ("x", "dim"), None),
)
_squeezed = Applied(_ACTIVATIONS, (_layer(_moved(_pool), "down"),), None)
_excitation = Applied("sigmoid hardsigmoid", (_layer(_squeezed, "up"),))


def _pooled(matched: IdiomMatch) -> bool:
    """Return whether the mean is over all dimensions except the batch and the channels."""
    everywhere = set(range(2, len(matched.shape("x"))))
    return bool(everywhere) and ("dim" not in matched.values or matched.axes("dim") == everywhere)


def _groups(matched: IdiomMatch) -> Value:
    return matched.graph.node[matched.nodes[-1]].arg("groups", 1)


def _depthwise(matched: IdiomMatch) -> bool:
    return matched.shape("w")[1] == 1 and _groups(matched) != 1


def _pointwise(matched: IdiomMatch) -> bool:
    kernel = matched.shape("w")[2:]
    return all(size == 1 for size in kernel) and _groups(matched) == 1


# -------------------------------------------------------------------------------------------------

# The first match wins: larger idioms precede those that are part of them.
IDIOMS = (
    Idiom("squeeze-and-excite", op.mul("x", _moved(_excitation)), _pooled),
    Idiom("rotary embedding", _rotary, _halves, "attention"),
    Idiom("grouped-query attention", _grouped_query, _shared, "attention"),
    Idiom("RMSNorm", op.mul(_rms_norm, either(_gain, op.add(_gain, 1.0))), _last, "norm"),
    Idiom("RMSNorm", _rms_norm, _last, "norm"),
    Idiom("RMSNorm", Applied("rms_norm", ("x",), None), family="norm"),
    Idiom("SiLU gate", op.mul(_silu, "other"), _gate, "activation"),
    Idiom("GELU gate", op.mul(either(_gelu, _gelu_tanh), "other"), _gate, "activation"),
    Idiom("GELU", _gelu, family="activation"),
    Idiom("GELU (tanh)", _gelu_tanh, family="activation"),
    Idiom("SiLU", _silu, family="activation"),
    Idiom("GLU", op.mul(op.sigmoid("x"), "other"), _halves_of_one, "activation"),
    Idiom("GLU", Applied("glu", ("x",), None), family="activation"),
    Idiom("depthwise conv", _convolution, _depthwise, implied=frozenset({"groups"})),
    Idiom("pointwise conv", _convolution, _pointwise, implied=frozenset({"kernel"})),
)


def _results(pattern: Pattern) -> set[str]:
    """Return the operators that may compute the result of a pattern."""
    if isinstance(pattern, Either):
        return {kind for way in pattern.ways for kind in _results(way)}
    return set(pattern.kind.split()) if isinstance(pattern, Applied) else set()


@functools.cache
def _rows(kind: str) -> list[Idiom]:
    """Return the rows whose result an operator may compute."""
    return [one for one in IDIOMS if kind in _results(one.pattern)]


@per_graph
def idioms(graph: ArchGraph) -> Mapping[str, IdiomMatch]:
    """Find the idioms of a graph. The result is cached with the graph.

    The operators are visited from last to first. The first row that matches an operator is the
    idiom that ends at this operator. An operator belongs to at most one idiom, and only operators
    of the same idiom read its intermediate results.

    Returns:
        Dict from the name of each operator in an idiom to the idiom.

    Example:
        >>> from archgraph.graph.ir import BATCH, TensorType
        >>> kind = TensorType((BATCH, 8), "float32")
        >>> x = Node("x", "input", type=kind)
        >>> y = Node("gate", "aten.sigmoid", (("self", Ref("x")),), kind)
        >>> z = Node("z", "aten.mul.Tensor", (("self", Ref("x")), ("other", Ref("gate"))), kind)
        >>> known = idioms(ArchGraph((("x", Ref("x")),), (), (x, y, z), Ref("z")))
        >>> {name: one.idiom.name for name, one in known.items()}
        {'gate': 'SiLU', 'z': 'SiLU'}
    """
    reader = _GraphReader(graph)
    known: dict[str, IdiomMatch] = {}
    for node in reversed(graph.nodes):
        ways = (one for one in reader.idioms(node) if known.keys().isdisjoint(one.nodes))
        if one := next(ways, None):
            known |= dict.fromkeys(one.nodes, one)
    return known


def idiom_counts(graph: ArchGraph) -> Counter[str]:
    """Return a dict from the name of each idiom in a graph to its number of occurrences."""
    return Counter(one.idiom.name for one in dict.fromkeys(idioms(graph).values()))


class _GraphReader(PatternReader[Value, Node]):
    """Reader that matches values of a graph with patterns, and skips casts inside an idiom."""

    def __init__(self, graph: ArchGraph) -> None:
        self.graph, self.outputs = graph, {*graph.output_refs()}

    def idioms(self, node: Node) -> Iterator[IdiomMatch]:
        """Yield the idioms whose result an operator computes, in the order of the table."""
        for idiom in _rows(base(node.op)):
            for matched in self.matches(idiom.pattern, Ref(node.name), PatternMatch[Value, Node]()):
                nodes = (*reversed([*matched.steps]),)
                one = IdiomMatch(self.graph, idiom, nodes, matched.values)
                read = {user for name in nodes[:-1] for user in self.graph.users[name]}
                closed = read <= {*nodes} and self.outputs.isdisjoint(nodes[:-1])
                if closed and idiom.where(one):
                    yield one

    def applied(
        self, operand: Value, pattern: Applied
    ) -> tuple[list[Value], dict[str, Value], dict[str, Node]] | None:
        """Return operands, options and nodes of a value that the pattern's operator computes."""
        steps: dict[str, Node] = {}
        kinds, arity = pattern.kind.split(), len(pattern.inputs)
        while isinstance(operand, Ref):
            node = steps[operand.name] = self.graph.node[operand.name]
            if base(node.op) in kinds:
                options = dict.fromkeys(pattern.options or ()) | dict(node.args[arity:])
                return [value for _, value in node.args[:arity]], options, steps
            operand = node.args[0][1] if row(node.op).casts else None
        return None

    def admitted(self, kind: str, operand: Value) -> Value:
        """Return the number or leaf that a variable matches."""
        number = self.number(operand) if kind == "number" else None
        return operand if kind == "leaf" and isinstance(operand, Leaf) else number

    def number(self, operand: Value) -> float | None:
        """Return a value as a number; None if the value is not a number."""
        return float(operand) if isinstance(operand, int | float) else None

    def items(self, operand: Value) -> tuple[Value, ...] | None:
        """Return the items of a tuple; None for other values."""
        return operand if isinstance(operand, tuple) else None
