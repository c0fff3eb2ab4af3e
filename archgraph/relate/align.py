"""Align: relate two graphs that were written separately, part by part, leaf by leaf, axis by axis.

Sections are aligned in order, blocks within sections, operators and leaves within blocks: two
blocks belong together when they have one form (:mod:`archgraph.analysis.forms`), whatever their
names and widths.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from archgraph.analysis.axes import axes, positions
from archgraph.analysis.forms import (
    Form,
    Forms,
    differ,
    factor,
    forms,
    forms_by_widths,
    nearest,
)
from archgraph.analysis.structure import Block
from archgraph.analysis.widths import Pairs, Widths, alike, axes_of, flat, stated
from archgraph.errors import RewriteError
from archgraph.graph.ir import ArchGraph, Param
from archgraph.layout.layouts import AxisRef, Layout, Prod, Sum, leaves
from archgraph.states import DimMap, Entry, Transfer, signature

Side: TypeAlias = Literal["client", "whole"]
# Blocks of both graphs that belong together, as ranges.
Match: TypeAlias = tuple[range, range]
# The sizes of a result that are no channels; None where there are some.
Grid: TypeAlias = tuple[object, ...]

# What a pair of blocks has in common, first things first: operators at one resolution, operators,
# the name, shapes of leaves.
_PLACE, _OPERATOR, _NAME = 10**14, 10**8, 10**4
_MERGED = 8  # blocks of one graph that may be one block of another


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A part of one graph without a counterpart in the other.

    Attributes:
        part: Name of a section, block or leaf.
        side: Which graph has it.
        reason: Why it has none.
    """

    part: str
    side: Side
    reason: str

    def __str__(self) -> str:
        return f"{self.side} {self.part}: {self.reason}"


@dataclass(frozen=True)
class Alignment:
    """What of two graphs belongs together, and why the rest does not.

    Attributes:
        client: The first graph.
        whole: The second graph.
        sections: Pairs of section names (client's, whole's), in order; a section of one may have
            parts in several of the other.
        blocks: Pairs of block names.
        nodes: Pairs of operators; those that act in training alone are not compared.
        leaves: Pairs of leaves, constants included.
        unmatched: What has no counterpart, in order, the client's first.
    """

    client: ArchGraph = field(repr=False)
    whole: ArchGraph = field(repr=False)
    sections: Pairs
    blocks: Pairs
    nodes: Pairs
    leaves: Pairs
    unmatched: tuple[Unmatched, ...]

    @property
    def score(self) -> float:
        """Share of what is matched, 0 to 1: 2·m / (a + b).

        ``a`` and ``b`` are the numbers of entries of the two states, ``m`` the number of pairs of
        them; of operators where neither graph has a state. Widths do not count: a model and its
        narrow sister have score 1.
        """
        if not self.client.state_names and not self.whole.state_names:
            total = len(self.client.nodes) + len(self.whole.nodes)
            return 2 * len(self.nodes) / max(total, 1)
        state = set(self.client.state_names)
        pairs = sum(name in state for name, _ in self.leaves)
        return 2 * pairs / (len(state) + len(self.whole.state_names))

    @functools.cached_property
    def widths(self) -> Widths:
        """The sizes that the client gives the whole's axes."""
        return Widths(self.client, self.whole, self.leaves, self.blocks, self.nodes)

    @functools.cached_property
    def transfer(self) -> Transfer:
        """From the whole's states to the client's: blocks left out, a prefix of every axis.

        Raises:
            RewriteError: If the whole does not contain the client: names the first part of the
                client without a counterpart, or the first leaf whose shape no cut gives.
        """
        place = self.client.name or "client graph"
        for item in self.unmatched:
            if item.side == "client":
                raise RewriteError(
                    "has no counterpart in the larger graph",
                    where=f"{place}: {item.part}",
                    hint=item.reason,
                )
        kept = self.widths.kept(place)
        solved, pairs = axes(self.whole), dict(self.leaves)
        entries = {
            slot.name: Entry(
                pairs[slot.name],
                tuple(
                    DimMap.of(positions(layout, kept), full)
                    for layout, full in zip(
                        solved.of(pairs[slot.name]),
                        self.whole.param[pairs[slot.name]].shape,
                        strict=True,
                    )
                ),
            )
            for slot in signature(self.client)
        }
        return Transfer(signature(self.whole), signature(self.client), entries)

    def __str__(self) -> str:
        lines = [f"score {self.score:.2f}: {len(self.leaves)} leaves in {len(self.blocks)} blocks"]
        lines += [f"{a} = {b}" for a, b in self.blocks]
        groups = itertools.groupby(self.unmatched, lambda u: (u.side, u.reason))
        for (side, reason), items in groups:
            lines.append(f"{side} {', '.join(i.part for i in items)}: {reason}")
        return "\n".join(lines)


def align(client: ArchGraph, whole: ArchGraph) -> Alignment:
    """Find what of two graphs belongs together, whoever wrote them.

    Sections are aligned in order, then blocks in order within them; two blocks match when they
    have one form: the same operators, wired alike, with the same arguments, constants and kernels;
    widths of free axes, factors that are roots of widths, rates and what only training does aside.
    Operands of one form are told apart by name, in graphs without common names by width. As much as
    can is matched, first of all at the same resolution; then equal names count (in sections of one
    name), then equal shapes, then what comes first. Where that leaves more of the client's blocks
    over, or more that could not be left out, blocks are aligned as one run, sections aside.

    Args:
        client: A graph, usually the smaller one.
        whole: Another one.

    Returns:
        The alignment; ``transfer`` is the map from the whole's states to the client's, if the
        whole contains the client.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> def net(*widths):
        ...     layers = []
        ...     for a, b in zip((3, *widths), widths):
        ...         layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
        ...     layers += [torch.nn.Linear(widths[-1], 2)]
        ...     return trace(torch.nn.Sequential(*layers), torch.zeros(1, 3)).graph
        >>> found = align(net(4), net(8, 8))
        >>> found.blocks, found.score
        ((('0', '0'), ('2', '4')), 0.8)
        >>> print(*align(net(4, 4), net(8, 8, 8)).unmatched)
        whole 4: the other graph has fewer blocks of this form (linear > relu)
        >>> {name: str(entry) for name, entry in found.transfer.entries.items()}["2.weight"]
        '4.weight[:, :4]'
    """
    for graph in (client, whole):
        if not isinstance(graph, ArchGraph):
            raise RewriteError("not a graph to align", found=type(graph), expected="an ArchGraph")
    return _Aligner(client, whole).alignment()


# -- which blocks belong together ---------------------------------------------------------------


class _Aligner:
    """Two graphs while they are aligned."""

    def __init__(self, client: ArchGraph, whole: ArchGraph) -> None:
        self.client, self.whole = client, whole
        both = client.param.keys() & whole.param.keys()
        strangers = 2 * len(both) < min(len(client.params), len(whole.params))
        read = forms_by_widths if strangers else forms
        self.mine, self.theirs = read(client), read(whole)
        self.left, self.right = self.mine.structure.blocks, self.theirs.structure.blocks
        self.axes = axes(client), axes(whole)
        self.nodes: dict[str, str] = {}
        self.leaves: dict[str, str] = {}
        self.taken: dict[str, str] = {}  # leaves of the whole that have a counterpart, and which
        self.refused: dict[tuple[int, int], str] = {}  # blocks of one form, and why no match
        self._looks: dict[int, int] = {}
        self._kinds: dict[object, int] = {}
        self._verdicts: dict[tuple[int, int], tuple[int, str]] = {}

    def alignment(self) -> Alignment:
        """The alignment."""
        whole = self.mine.whole, self.theirs.whole
        if whole[0].lines == whole[1].lines and not self._obstacle(*whole):
            self._pair(*whole)
            matches = self._by_nodes()
        else:
            matches = [m for m in self._matches() if self._accept(m)]
        self._rest()
        pairs = [(self.left[i], self.right[j]) for a, b in matches for i, j in _spread(a, b)]
        return Alignment(
            self.client,
            self.whole,
            tuple(dict.fromkeys((a.section, b.section) for a, b in pairs)),
            tuple((a.name, b.name) for a, b in pairs),
            tuple(self.nodes.items()),
            tuple(self.leaves.items()),
            tuple(self._unmatched(matches)),
        )

    def _by_nodes(self) -> list[Match]:
        """Blocks of two graphs of one form: those that hold the same operators."""
        at = {n: j for j, b in enumerate(self.right) for n in b.nodes}
        found = []
        for i, block in enumerate(self.left):
            places = Counter(at[self.nodes[n]] for n in block.nodes if n in self.nodes)
            if places:
                j = places.most_common(1)[0][0]
                found.append((range(i, i + 1), range(j, j + 1)))
        return found

    def _matches(self) -> list[Match]:
        """The blocks that belong together: by sections, or as one run where that gives more."""
        left, right = _sections(self.mine), _sections(self.theirs)
        names = [s.name for s in self.mine.structure.sections]
        others = [s.name for s in self.theirs.structure.sections]
        inner = [
            [self._run(a, b, names[i] == others[j]) for j, b in enumerate(right)]
            for i, a in enumerate(left)
        ]
        table = [[value for value, _ in line] for line in inner]
        total, chosen = _sequence(len(left), len(right), lambda i, j: ((table[i][j], 1, 1),))
        found = [match for i, j, _, _ in chosen for match in inner[i][j][1]]
        flat, run = self._run(range(len(self.left)), range(len(self.right)), False)
        better = self._fixed(run) < self._fixed(found) or self._lacking(run) < self._lacking(found)
        return run if flat > total and better else found

    def _lacking(self, matches: Sequence[Match]) -> int:
        """Number of the client's blocks without a counterpart."""
        covered = _covered(matches, 0)
        return sum(i not in covered and _works(self.mine, b) for i, b in enumerate(self.left))

    def _fixed(self, matches: Sequence[Match]) -> int:
        """Number of blocks without a counterpart that could not be left out either."""
        mine, theirs = _covered(matches, 0), _covered(matches, 1)
        left = sum(not b.removable and i not in mine for i, b in enumerate(self.left))
        return left + sum(not b.removable and j not in theirs for j, b in enumerate(self.right))

    def _run(self, a: range, b: range, named: bool) -> tuple[int, list[Match]]:
        """Align two runs of blocks: what they have in common, and the matches."""

        def options(i: int, j: int) -> Iterator[tuple[int, int, int]]:
            pieces = self._pieces(a[i], a.stop, b[j], b.stop)
            if pieces is None:
                return
            ends = a[i] + pieces[0], b[j] + pieces[1]
            value = self._value(range(a[i], ends[0]), range(b[j], ends[1]))
            if value:
                if self._alike_grids(ends[0] - 1, ends[1] - 1):
                    value += value // _OPERATOR * _PLACE
                if named and self.left[a[i]].name == self.right[b[j]].name:
                    value += _NAME
                yield value, *pieces

        total, chosen = _sequence(len(a), len(b), options)
        return total, [(range(a[i], a[i] + m), range(b[j], b[j] + n)) for i, j, m, n in chosen]

    def _pieces(self, i: int, end: int, j: int, stop: int) -> tuple[int, int] | None:
        """Numbers of blocks that may belong together, for as many operators are in them.

        One and one, unless the graphs are cut into blocks at other places.
        """
        m = n = 1
        size, other = self._sizes[0][i], self._sizes[1][j]
        while size != other:
            if max(m, n) > _MERGED:
                return None
            if size < other:
                if i + m == end or not self._joined(self.left, i + m):
                    return None
                size, m = size + self._sizes[0][i + m], m + 1
            else:
                if j + n == stop or not self._joined(self.right, j + n):
                    return None
                other, n = other + self._sizes[1][j + n], n + 1
        return m, n

    def _alike_grids(self, i: int, j: int) -> bool:
        """Whether two blocks make results of the same resolution."""
        return self._grids is not None and _agree(self._grids[0][i], self._grids[1][j])

    @functools.cached_property
    def _grids(self) -> tuple[list[Grid], list[Grid]] | None:
        """Pixels or tokens of each block's result; None where the graphs' inputs differ."""
        graphs = self.client, self.whole
        inputs = [[n.types for n in g.nodes if n.op == "input"] for g in graphs]
        if inputs[0] != inputs[1]:
            return None
        return (
            [_grid(self.axes[0].value[b.exit][0]) for b in self.left],
            [_grid(self.axes[1].value[b.exit][0]) for b in self.right],
        )

    @functools.cached_property
    def _sizes(self) -> tuple[list[int], list[int]]:
        """Operators of each block's form."""
        return (
            [len(self.mine.part(b.entry, b.exit).nodes) for b in self.left],
            [len(self.theirs.part(b.entry, b.exit).nodes) for b in self.right],
        )

    @staticmethod
    def _joined(blocks: Sequence[Block], index: int) -> bool:
        return blocks[index].entry == blocks[index - 1].exit

    def _forms(self, match: Match) -> tuple[Form, Form]:
        a, b = match
        return (
            self.mine.part(self.left[a[0]].entry, self.left[a[-1]].exit),
            self.theirs.part(self.right[b[0]].entry, self.right[b[-1]].exit),
        )

    def _value(self, a: range, b: range) -> int:
        """What two runs of blocks have in common; 0 where they do not match."""
        x, y = self._forms((a, b))
        key = self._look(0, x), self._look(1, y)
        if key not in self._verdicts:
            value, reason = 0, ""
            if x.lines == y.lines and x.lines:
                shapes = zip(_shapes(self.client, x), _shapes(self.whole, y), strict=True)
                value = _OPERATOR * len(x.lines) + sum(s == t for s, t in shapes)
                reason = self._obstacle(x, y)
            self._verdicts[key] = value, reason
        value, reason = self._verdicts[key]
        if reason:
            self.refused.setdefault((a[0], b[0]), self._obstacle(x, y))
            return 0
        return value

    def _look(self, side: Literal[0, 1], form: Form) -> int:
        """A number for a form and the layouts of its leaves, names of axes aside."""
        if id(form) not in self._looks:  # forms are kept, and hashing them takes longer
            layouts = (self.axes[side].of(leaf) for leaf in form.leaves)
            looks = tuple(tuple(_look(d, self._free[side]) for d in dims) for dims in layouts)
            shapes = _shapes((self.client, self.whole)[side], form)
            key = form.lines, shapes, looks, self._facts(side, form)
            known = self._kinds.setdefault(key, len(self._kinds))
            self._looks[id(form)] = known
        return self._looks[id(form)]

    def _facts(self, side: Literal[0, 1], form: Form) -> Hashable:
        """What else :meth:`_obstacle` looks at."""
        graph, solved = (self.client, self.whole)[side], self.axes[side]
        constants = tuple(graph.param[leaf].value for leaf in form.leaves)
        told = []
        for name in form.nodes:
            node = graph.node[name]
            sizes = [flat(solved.attributes.get((name, key))) for key, _ in node.args]
            looks = tuple(_look(d, self._free[side]) for found in sizes for d in found)
            types = [graph.node[used].types for used in itertools.islice(node.uses(), 1)]
            told.append((factor(node), node.types, *types, looks))
        return constants, tuple(told)

    @functools.cached_property
    def _free(self) -> tuple[frozenset[str], frozenset[str]]:
        return (
            frozenset(a.name for a in self.axes[0].free),
            frozenset(a.name for a in self.axes[1].free),
        )

    def _obstacle(self, mine: Form, theirs: Form) -> str:
        """Why two parts of one form cannot be cuts of one another; empty: they can."""
        for a, b in zip(mine.leaves, theirs.leaves, strict=True):
            if self.client.param[a].dtype != self.whole.param[b].dtype:
                return f"{a} is {self.client.param[a].dtype}, not {self.whole.param[b].dtype}"
            for dim, (x, y) in enumerate(zip(self.axes[0].of(a), self.axes[1].of(b), strict=True)):
                for u, v in alike(x, y):
                    if _fit(u, v, *self._free):
                        continue
                    return f"dimension {dim} is {x} in {a} and {y} in {b}"
            one, other = self.client.param[a], self.whole.param[b]
            if one.shape == other.shape and "constant" in (one.role, other.role):
                if one.value != other.value:
                    return f"{a} holds other numbers than {b}"
        for a, b in zip(mine.nodes, theirs.nodes, strict=True):
            for key, x, y in stated(self.client, a, self.whole, b):
                if not all(_fit(u, v, *self._free) for u, v in alike(x, y)) and self._level(a, b):
                    return f"{key} is {x} in %{a} and {y} in %{b}"
            numbers = factor(self.client.node[a]), factor(self.whole.node[b])
            if numbers[0] != numbers[1] and not self._roots(mine, theirs, numbers):
                return f"the factor is {numbers[0]} in %{a} and {numbers[1]} in %{b}"
        return ""

    def _level(self, a: str, b: str) -> bool:
        """Whether what two operators take has one resolution."""
        grids = []
        for side, graph, name in ((0, self.client, a), (1, self.whole, b)):
            node = graph.node[name]
            used = next(node.uses(), None)
            if used is None:
                return False
            grids.append(_grid(self.axes[side].value[used][0]))
        return _agree(*grids)

    def _roots(self, mine: Form, theirs: Form, factors: tuple[float | None, float | None]) -> bool:
        """Whether two factors are the roots of a width of each graph's (attention's scale)."""
        f, g = factors
        if f is None or g is None or f <= 0 or g <= 0:
            return False
        pairs = (
            (x.size, y.size)
            for a, b in zip(mine.nodes, theirs.nodes, strict=True)
            for x, y in zip(self.axes[0].value[a][0], self.axes[1].value[b][0], strict=False)
        )
        return any(
            math.isclose(f, m**power, rel_tol=1e-6) and math.isclose(g, n**power, rel_tol=1e-6)
            for m, n in pairs
            for power in (0.5, -0.5)
            if isinstance(m, int) and isinstance(n, int) and m > 0 < n
        )

    # -- what follows from it -------------------------------------------------------------------

    def _accept(self, match: Match) -> bool:
        """Pair a match's operators and leaves, unless that contradicts earlier pairs."""
        mine, theirs = self._forms(match)
        reason = self._contradiction(mine, theirs)
        a, b = self.left[match[0][0]], self.right[match[1][0]]
        source, target = self._origin(a.entry, 0), self._origin(b.entry, 1)
        if not reason and self.nodes.get(source, target) != target:
            reason = f"takes what %{source} makes, its counterpart {b.name} takes %{target}"
        if reason:
            self.refused[match[0][0], match[1][0]] = reason
            return False
        if len(mine.far) == len(theirs.far):
            for x, y in zip(mine.far, theirs.far, strict=True):
                source, target = self._origin(x, 0), self._origin(y, 1)
                if self.nodes.get(source, target) != target:
                    self.refused[match[0][0], match[1][0]] = (
                        f"takes %{source}, its counterpart {b.name} takes %{target}"
                    )
                    return False
        self._pair(mine, theirs)
        for left, right in zip(_inputs(self.client), _inputs(self.whole), strict=False):
            self.nodes.setdefault(left, right)
        return True

    def _contradiction(self, mine: Form, theirs: Form) -> str:
        for a, b in zip(mine.leaves, theirs.leaves, strict=True):
            if self.leaves.get(a, b) != b:
                return f"shares {a} with a block whose counterpart has {self.leaves[a]}, not {b}"
            if self.taken.get(b, a) != a:
                return f"has {a} where its counterpart shares {b} with that of {self.taken[b]}"
        return ""

    def _pair(self, mine: Form, theirs: Form) -> None:
        self.nodes.update(zip(mine.nodes, theirs.nodes, strict=True))
        for a, b in zip(mine.leaves, theirs.leaves, strict=True):
            self.leaves[a], self.taken[b] = b, a

    def _origin(self, name: str, side: Literal[0, 1]) -> str:
        """What a value is without the blocks that have no counterpart."""
        of = (self.mine, self.theirs)[side]
        matched = self.nodes.keys() if side == 0 else set(self.nodes.values())
        ends = self._ends[side]
        name = of.through(name)
        while name in ends and name not in matched and ends[name] != name:
            name = of.through(ends[name])
        return name

    @functools.cached_property
    def _ends(self) -> tuple[dict[str, str], dict[str, str]]:
        """Entries of the blocks by exit."""
        return (
            {self.mine.through(b.exit): b.entry for b in self.left},
            {self.theirs.through(b.exit): b.entry for b in self.right},
        )

    def _rest(self) -> None:
        """Pair leaves that evaluation does not use (counters) by their modules, then by name."""
        modules = {
            a.rpartition(".")[0]: b.rpartition(".")[0]
            for a, b in self.leaves.items()
            if self.client.param[a].role != "constant"
        }
        used = set(self.mine.whole.leaves)
        self.taken |= {name: "" for name in self.theirs.whole.leaves if name not in self.taken}
        for param in self.client.params:
            if param.name in used or param.name in self.leaves or param.role == "constant":
                continue
            prefix, _, last = param.name.rpartition(".")
            names = [param.name]
            if prefix in modules:
                names.insert(0, f"{modules[prefix]}.{last}" if modules[prefix] else last)
            for name in names:
                other = self.whole.param.get(name)
                if other is not None and name not in self.taken and _same_kind(param, other):
                    self.leaves[param.name], self.taken[name] = name, param.name
                    break

    # -- reasons --------------------------------------------------------------------------------

    def _unmatched(self, matches: Sequence[Match]) -> Iterator[Unmatched]:
        yield from self._missing("client", matches)
        lost = self._leaves_of(self.client, self.left, _covered(matches, 0))
        for param in self.client.params:
            if (
                param.role != "constant"
                and param.name not in self.leaves
                and (param.name not in lost)
            ):
                yield Unmatched(
                    param.name,
                    "client",
                    "evaluation does not use it, and no leaf "
                    "of its module or name is left in the other graph",
                )
        yield from self._missing("whole", matches)

    @staticmethod
    def _leaves_of(graph: ArchGraph, blocks: Sequence[Block], covered: set[int]) -> set[str]:
        """Leaves of blocks that have no counterpart."""
        nodes = (n for i, b in enumerate(blocks) if i not in covered for n in b.nodes)
        used = {leaf for n in nodes for leaf in graph.node[n].leaves()}
        modules = {leaf.rpartition(".")[0] for leaf in used}
        return used | {p.name for p in graph.params if p.name.rpartition(".")[0] in modules}

    def _missing(self, side: Side, matches: Sequence[Match]) -> Iterator[Unmatched]:
        """Blocks of one graph without a counterpart; whole sections as one."""
        mine = side == "client"
        covered = _covered(matches, 0 if mine else 1)
        blocks = self.left if mine else self.right
        of = self.mine if mine else self.theirs
        for section, members in zip(of.structure.sections, _sections(of), strict=True):
            gone = [i for i in members if i not in covered and _works(of, blocks[i])]
            reasons = {i: self._reason(side, i, matches) for i in gone}
            if len(gone) == len(members) > 1 and len(set(reasons.values())) == 1:
                yield Unmatched(section.name, side, next(iter(reasons.values())))
                continue
            for i, reason in reasons.items():
                yield Unmatched(blocks[i].name, side, reason)

    def _reason(self, side: Side, index: int, matches: Sequence[Match]) -> str:
        mine = side == "client"
        for (i, j), reason in self.refused.items():
            if (i if mine else j) == index:
                return reason
        of, other = (self.mine, self.theirs) if mine else (self.theirs, self.mine)
        block = (self.left if mine else self.right)[index]
        form = of.part(block.entry, block.exit)
        # What it could have been matched with: what lies between its neighbours' counterparts.
        near = [other.part(b.entry, b.exit) for b in other.structure.blocks]
        covered = _covered(matches, 1 if mine else 0)
        same = [i for i, f in enumerate(near) if f.lines == form.lines]
        left = [i for i in same if i not in covered]
        if left:
            name = other.structure.blocks[left[0]].name
            return f"{name} of the other graph has this form ({form}), but lies elsewhere"
        if same:
            return f"the other graph has fewer blocks of this form ({form})"
        best = nearest(form, near)
        text = f" ({differ(form, best)})" if best is not None else ""
        return f"no block of the other graph has this form{text}"


def _works(of: Forms, block: Block) -> bool:
    """Whether a block computes anything."""
    return bool(of.part(block.entry, block.exit).nodes)


def _sections(of: Forms) -> list[range]:
    """Blocks of each section, by number."""
    found, begin = [], 0
    for section in of.structure.sections:
        found.append(range(begin, begin + len(section.blocks)))
        begin += len(section.blocks)
    return found


def _sequence(
    m: int, n: int, options: Callable[[int, int], Iterable[tuple[int, int, int]]]
) -> tuple[int, list[tuple[int, int, int, int]]]:
    """Align two sequences: the largest total value, and the matches; of equal ones the first.

    Args:
        m: Length of the first.
        n: Length of the second.
        options: By position in both: value of a match, and how many items of each it takes.
    """
    best = [[0] * (n + 1) for _ in range(m + 1)]
    step: dict[tuple[int, int], tuple[int, int]] = {}
    for i in reversed(range(m)):
        for j in reversed(range(n)):
            top = max(best[i + 1][j], best[i][j + 1])
            for value, p, q in options(i, j):
                total = value + best[i + p][j + q]
                if value and total >= top:
                    top = total
                    step[i, j] = p, q
            best[i][j] = top
    found = []
    i = j = 0
    while i < m and j < n:
        p, q = step.get((i, j), (0, 0))
        if p:
            found.append((i, j, p, q))
            i, j = i + p, j + q
        elif best[i][j + 1] == best[i][j]:
            j += 1
        else:
            i += 1
    return best[0][0], found


def _grid(layouts: Sequence[Layout]) -> Grid:
    return tuple(None if axes_of(d) else d.size for d in layouts)


def _agree(a: Grid, b: Grid) -> bool:
    """Whether two results have the same resolution."""
    return len(a) == len(b) and all(
        x == y for x, y in zip(a, b, strict=True) if x is not None and y is not None
    )


def _covered(matches: Iterable[Match], side: Literal[0, 1]) -> set[int]:
    return {i for match in matches for i in match[side]}


def _spread(a: range, b: range) -> Iterator[tuple[int, int]]:
    """Pairs of a run and a run one of which is single."""
    for k in range(max(len(a), len(b))):
        yield a[min(k, len(a) - 1)], b[min(k, len(b) - 1)]


def _inputs(graph: ArchGraph) -> list[str]:
    return [n.name for n in graph.nodes if n.op == "input"]


def _shapes(graph: ArchGraph, form: Form) -> tuple[tuple[int, ...], ...]:
    return tuple(graph.param[leaf].shape for leaf in form.leaves)


def _same_kind(a: Param, b: Param) -> bool:
    return (a.role, a.dtype, len(a.shape)) == (b.role, b.dtype, len(b.shape))


# -- axes ---------------------------------------------------------------------------------------


def _fit(mine: Layout, theirs: Layout, free: frozenset[str], other: frozenset[str]) -> bool:
    """Whether one of two dimensions can be a cut of the other."""
    if mine.size == theirs.size:
        return True
    if theirs.size == 1:
        return _cuttable(mine, free)
    return _cuttable(theirs, other) and (mine.size == 1 or bool(axes_of(mine)))


def _cuttable(layout: Layout, free: frozenset[str]) -> bool:
    return any(isinstance(leaf, AxisRef) and leaf.name in free for leaf in leaves(layout))


def _look(layout: Layout, free: frozenset[str]) -> object:
    """A layout without the names of its axes."""
    match layout:
        case AxisRef(name, size):
            return "free" if name in free else size
        case Prod(parts) | Sum(parts):
            return (type(layout).__name__, *(_look(p, free) for p in parts))
        case _:
            return layout.size
