"""Describe the computation of parts of graphs, without names and widths.

Such a description is called a form. Two parts with the same form are the same network up to the
sizes of their axes. Their operators and parameters correspond in the order of the form.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from archgraph.analysis.axes import axes
from archgraph.analysis.structure import Structure, structure
from archgraph.graph.ir import (
    ArchGraph,
    Atom,
    Leaf,
    Node,
    Polynomial,
    Ref,
    Value,
    in_mode,
    per_graph,
    refs,
)
from archgraph.graph.passes import reachable
from archgraph.ops.schema import op_schema
from archgraph.ops.table import base, growth, row

_WORDS = 8  # operators of a form that are named in full
_OPERANDS = ("self", "other")  # arguments of a binary operator


@dataclass(frozen=True, slots=True)
class Form:
    """The computation of a part of a graph, with its operators, parameters and buffers.

    Attributes:
        lines: One line per operator, in an order that does not depend on how the graph was written.
        nodes: The operators, in this order.
        leaves: The parameters, buffers and constants, in order of first use.
        far: Results of other blocks that the part uses, except its input, in order of first use.
    """

    lines: tuple[str, ...]
    nodes: tuple[str, ...]
    leaves: tuple[str, ...]
    far: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """Names of the operators, in order."""
        names = (line.partition("(")[0] for line in self.lines)
        return tuple(word for word in names if word not in ("input", "return"))

    def __str__(self) -> str:
        words = self.words
        if len(words) > _WORDS:
            words = (*words[: _WORDS - 1], f"… {len(words) - _WORDS + 1} more")
        return " > ".join(words) or "nothing"


def differ(a: Form, b: Form) -> str:
    """Describe how two forms differ, for messages."""
    if a.words != b.words:
        return " vs ".join(_apart(a.words, b.words))
    if len(a.lines) != len(b.lines):
        return f"only one computes an output: {a}"
    for x, y in zip(a.lines, b.lines, strict=True):
        if x != y:
            word, _, mine = x.partition("(")
            theirs = y.partition("(")[2]
            left, right = (text.removesuffix(")").split("; ") for text in (mine, theirs))
            only = [p for p in left if p not in right], [p for p in right if p not in left]
            one, other = (", ".join(p) or "default" for p in only)
            return f"{word} with {one} vs {other}"
    return "nothing"


def factor(node: Node) -> float | None:
    """Return the number by which an operator multiplies or divides; None if there is none.

    Attention layers of different widths divide by different numbers: the square roots of their
    widths. Comparisons that ignore widths therefore also ignore this number.
    """
    if growth(node.op).scales not in ("one", "first"):
        return None
    numbers = (v for k, v in node.args if k in _OPERANDS and isinstance(v, (int, float)))
    return next(map(float, numbers), None)


def _apart(a: tuple[str, ...], b: tuple[str, ...]) -> Iterator[str]:
    """Yield the text of two lists of words; for long lists, only the words around a difference."""
    pairs = list(zip(a, b, strict=False))
    begin = next((i for i, (x, y) in enumerate(pairs) if x != y), len(pairs))
    begin = max(begin - 2, 0) if max(len(a), len(b)) > _WORDS else 0
    for words in (a, b):
        excerpt = words[begin : begin + _WORDS]
        before, after = ["…"] * (begin > 0), ["…"] * (begin + _WORDS < len(words))
        yield " > ".join([*before, *excerpt, *after]) or "nothing"


def _natural(name: str) -> list[str | int]:
    """Return the sort key of a name that sorts numbers by value: 9 comes before 10."""
    return [int(p) if i % 2 else p for i, p in enumerate(re.split(r"(\d+)", name))]


def nearest_form(form: Form, others: Sequence[Form]) -> Form | None:
    """Return the form in ``others`` that has the most operators in common with ``form``."""

    def alike(other: Form) -> tuple[bool, float]:
        matcher = difflib.SequenceMatcher(None, form.words, other.words, autojunk=False)
        return form.words == other.words, matcher.ratio()

    return max(others, key=alike, default=None)


class Forms:
    """The forms of the parts of one graph.

    Operands of a sum that compute the same are ordered by the names of their parameters, or with
    ``by_widths`` by the shapes of their parameters.

    Attributes:
        graph: The graph.
        structure: Blocks and sections of the graph.
    """

    def __init__(self, graph: ArchGraph, by_widths: bool) -> None:
        self.graph, self.by_widths = graph, by_widths
        self.structure: Structure = structure(graph)
        self._sizes = axes(graph).attributes
        self._at = {n.name: i for i, n in enumerate(graph.nodes)}
        outputs = map(self.through, refs(in_mode(graph.outputs, False)))
        self.outputs = tuple(dict.fromkeys(outputs))
        self._inputs = [n.name for n in graph.nodes if n.op == "input"]
        exits = {b.exit for b in self.structure.blocks} - set(self._inputs)
        self._behind = reachable(exits, graph.users.__getitem__)
        self._known: dict[tuple[str, str], Form] = {}

    def part(self, entry: str, end: str) -> Form:
        """Return the form of the part of the graph between two results."""
        entry, end = self.through(entry), self.through(end)
        if (entry, end) not in self._known:
            between = self.graph.nodes[self._at[entry] : self._at[end] + 1]
            names = {node.name for node in between}
            inside = reachable([entry], self.graph.users.__getitem__, names)
            far = self._behind - inside - {end}
            self._known[entry, end] = _Reading(self, entry, (end,), far).form()
        return self._known[entry, end]

    @functools.cached_property
    def whole(self) -> Form:
        """Form of the whole graph."""
        return _Reading(self, "", self.outputs, set()).form()

    def through(self, name: str) -> str:
        """Go back from a result past operators that act only in training (dropout)."""
        while True:
            node = self.graph.node[name]
            fact, used = row(node.op), next(node.uses(), None)
            acts = not fact.training_flag or fact.normalises or len(node.types) > 1
            if acts or used is None:  # None: an operator on a leaf
                return name
            name = used

    def _args(self, node: Node) -> Iterator[tuple[str, Value, bool]]:
        """Yield name and value in evaluation of each argument, and whether it has sizes of axes."""
        for key, value in node.args:
            yield key, in_mode(value, False), (node.name, key) in self._sizes


@per_graph
def forms(graph: ArchGraph, by_widths: bool = False) -> Forms:
    """Return the forms of a graph's parts, cached with the graph.

    Args:
        graph: The graph.
        by_widths: If True, order equal operands by shapes before names, for comparing graphs with
            unrelated names.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        >>> print(forms(trace(net, torch.zeros(1, 3)).graph).whole)
        linear > relu > linear
    """
    return Forms(graph, by_widths)


class _Reading:
    """Computes the form of a part of a graph."""

    def __init__(self, of: Forms, entry: str, ends: Sequence[str], far: set[str]) -> None:
        self.of, self.graph, self.entry = of, of.graph, entry
        self.ends = [of.through(end) for end in ends]
        region = reachable(self.ends, self._uses, of._at.keys() - far - {entry})
        self.key: dict[str, str] = {}  # equal keys for equal computations
        for name in sorted(region, key=of._at.__getitem__):
            # A digest, since the line of an operator would repeat the lines of all its operands.
            text = self._line(name, self._keyed, lambda leaf: "")
            self.key[name] = hashlib.blake2b(text.encode(), digest_size=12).hexdigest()

    def form(self) -> Form:
        """Compute the form."""
        number: dict[str, int] = {}
        leaf: dict[str, int] = {}
        far: dict[str, None] = {}
        lines = []

        def ref(name: str) -> str:
            if name in number:
                return f"%{number[name]}"
            if name != self.entry:
                far.setdefault(name)
            return self._keyed(name)

        def numbered(name: str) -> str:
            return str(leaf.setdefault(name, len(leaf)))

        for name in self._order():
            lines.append(self._line(name, ref, numbered))
            number[name] = len(number)
        # State which outputs the part computes, so that the last layer matches no hidden layer.
        outputs = [i for i, name in enumerate(self.of.outputs) if name in self.ends]
        if outputs:
            lines.append(f"return({'; '.join(map(str, outputs))})")
        return Form(tuple(lines), tuple(number), tuple(leaf), tuple(far))

    def _keyed(self, name: str) -> str:
        if name == self.entry:
            return "the model's input" if name in self.of._inputs else "the block before"
        return self.key.get(name, "far")

    def _order(self) -> Iterator[str]:
        """Yield the operators, operands first; several operands are sorted by their keys."""
        visited: set[str] = set()
        # An explicit stack, since networks are deeper than Python's recursion limit.
        for end in self.ends:
            stack = [(end, iter(self._results(self._sorted(end))))] if end in self.key else []
            visited.update(name for name, _ in stack)
            while stack:
                name, rest = stack[-1]
                used = next((u for u in rest if u in self.key and u not in visited), None)
                if used is None:
                    yield name
                    stack.pop()
                else:
                    visited.add(used)
                    stack.append((used, iter(self._results(self._sorted(used)))))

    def _uses(self, name: str) -> list[str]:
        return self._results(self.of._args(self.graph.node[name]))

    def _results(self, args: Iterable[tuple[str, Value, bool]]) -> list[str]:
        return [self.of.through(name) for _, value, _ in args for name in refs(value)]

    def _sorted(self, name: str) -> list[tuple[str, Value, bool]]:
        """Return the arguments; operands of a sum or product are sorted by their keys."""
        node = self.graph.node[name]
        args = list(self.of._args(node))
        if growth(node.op).scales == "one" or (row(node.op).merges and node.arg("alpha", 1) == 1):
            places = [i for i, (_, v, _) in enumerate(args) if isinstance(v, (Ref, Leaf))]
            values = self._ranked([args[i][1] for i in places])
            for i, value in zip(places, values, strict=True):
                args[i] = (args[i][0], value, args[i][2])
        return args

    def _ranked(self, values: Sequence[Value]) -> list[Value]:
        """Sort operands by their keys; those with equal keys by names or shapes of their leaves."""
        ranked: list[Value] = []
        for _, group in itertools.groupby(sorted(values, key=self._rank), self._rank):
            tied = list(group)
            if len(tied) > 1:
                below = [self._beneath(value) for value in tied]
                # Leaves that all of them depend on do not distinguish them.
                common = below[0].intersection(*below[1:])
                private = [leaves - common for leaves in below]
                order = sorted(range(len(tied)), key=lambda i: self._marks(private[i]))
                tied = [tied[i] for i in order]
            ranked += tied
        return ranked

    def _rank(self, value: Value) -> str:
        return self._keyed(self.of.through(value.name)) if isinstance(value, Ref) else ""

    def _marks(self, leaves: set[str]) -> tuple[object, object]:
        names = sorted(_natural(leaf) for leaf in leaves)
        shapes = sorted(self.graph.param[leaf].shape for leaf in leaves)
        return (shapes, names) if self.of.by_widths else (names, shapes)

    def _beneath(self, value: Value) -> set[str]:
        """Return the leaves of the part from which an operand is computed."""
        if isinstance(value, Leaf):
            return {value.name}
        assert isinstance(value, Ref)
        below = reachable([self.of.through(value.name)], self._uses, self.key)
        return {leaf for name in below for leaf in self.graph.node[name].leaves()}

    def _line(self, name: str, ref: Callable[[str], str], leaf: Callable[[str], str]) -> str:
        node = self.graph.node[name]
        if node.op == "input":
            rank = len(node.shape)
            return f"input({self.of._inputs.index(name)}; {node.dtype}; {rank} dimensions)"
        arguments = []
        left_out = row(node.op).rates
        number = factor(node)
        for key, value, sizes in self._sorted(name):
            if key in left_out or (key in _OPERANDS and number is not None and value == number):
                continue
            if sizes and isinstance(op_schema(node.op).by_name[key].default, int):
                continue  # a number of groups, which is omitted where it is 1
            text = self._show(value, sizes, ref, leaf)
            if text:
                arguments.append(f"{key}={text}")
        return f"{base(node.op)}({'; '.join(arguments)})"

    def _show(
        self, value: Value, sizes: bool, ref: Callable[[str], str], leaf: Callable[[str], str]
    ) -> str:
        """Format an argument; without ``sizes``, omit widths of axes."""
        match value:
            case Ref(name):
                return ref(self.of.through(name))
            case Leaf(name):
                param = self.graph.param[name]
                return f"{param.role} {leaf(name)} of rank {len(param.shape)}"
            case bool() | str() | Atom():  # before int, since bool is a subclass of int
                return str(value)
            case int() | Polynomial() if sizes:
                return "n"
            case int():
                return str(value)
            case float():
                return str(int(value) if value.is_integer() else value)
            case Polynomial():
                return "batch"
            case tuple():
                items = [self._show(v, sizes, ref, leaf) for v in value]
                # The list of all earlier results in a dense block grows with depth: keep one term.
                runs = (list(run) for _, run in itertools.groupby(items))
                terms = (t for run in runs for t in (run[:1] if run[0] == "far" else run))
                return f"({', '.join(terms)})"
            case _:
                return ""
