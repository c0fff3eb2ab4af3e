"""Structure: the blocks of an architecture, the sections they form, and which may be left out.

The chain of cut nodes (:mod:`archgraph.analysis.stream`) gives the pieces. A block is a piece that
does work, together with the pointwise operators after it. The module hierarchy names blocks, claims
what stands between two of them, and merges the pieces of one building block without a shortcut.
"""

from __future__ import annotations

import difflib
import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NoReturn, TypeVar

from archgraph.analysis.axes import axes
from archgraph.analysis.stream import Piece, Stream
from archgraph.errors import GraphError
from archgraph.ir import (
    ArchGraph,
    Batch,
    Leaf,
    Mode,
    Node,
    Ref,
    TensorType,
    Value,
    per_graph,
    specialise,
    walk,
)
from archgraph.layout import AxisRef, Layout, Prod, Sum, leaves
from archgraph.ops.table import base, row

BlockKind = Literal["residual", "chain", "parallel", "dense", "head"]
SectionKind = Literal["stem", "stage", "head"]
Path = tuple[str, ...]
Named = TypeVar("Named", "Block", "Section")


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a graph with one value in and one value out.

    Attributes:
        name: Module that holds it (``layer1.0``), or its first layer's.
        section: Name of its section.
        nodes: Its operators in topological order; every operator of the graph is in one block.
        entry: Node whose value it consumes.
        exit: Node whose value it makes.
        removable: Whether the entry's value can stand in for the exit's.
        reason: Why not.
        kind: ``residual``, ``chain``, ``parallel``, ``dense``, or ``head`` (a further output).
        merge: Operator that ends its region; empty for a chain.
        shortcut: Operand of a residual's sum that carries the entry: the entry itself or the end
            of its projection.
    """

    name: str
    section: str
    nodes: tuple[str, ...]
    entry: str
    exit: str
    removable: bool
    reason: str
    kind: BlockKind
    merge: str = ""
    shortcut: str = ""

    def __str__(self) -> str:
        state = "removable" if self.removable else self.reason
        return f"{self.name}: {self.kind}, {len(self.nodes)} operators; {state}"


@dataclass(frozen=True, slots=True)
class Section:
    """A run of blocks with the same body and the same result; the first may be a transition."""

    name: str
    blocks: tuple[Block, ...]
    kind: SectionKind = "stage"

    def __str__(self) -> str:
        return "\n".join([f"{self.name} ({self.kind})", *(f"  {b}" for b in self.blocks)])


@dataclass(frozen=True)
class Structure:
    """Sections in order, and the cut nodes of the main stream.

    Attributes:
        sections: Stem, stages and head, from input to output.
        cuts: Names of the nodes on every path from the input to the output.
    """

    sections: tuple[Section, ...]
    cuts: tuple[str, ...]

    @property
    def blocks(self) -> tuple[Block, ...]:
        """All blocks in topological order."""
        return tuple(b for s in self.sections for b in s.blocks)

    def block(self, name: str) -> Block:
        """Block by name.

        Raises:
            GraphError: Names the nearest block.
        """
        return _find(name, self.blocks, "block")

    def section(self, name: str) -> Section:
        """Section by name.

        Raises:
            GraphError: Names the nearest section.
        """
        return _find(name, self.sections, "section")

    def __str__(self) -> str:
        return "\n".join(map(str, self.sections))


def _find(name: str, items: Sequence[Named], kind: str) -> Named:
    for item in items:
        if item.name == name:
            return item
    _missing(name, [i.name for i in items], kind)


def _missing(name: str, known: Sequence[str], kind: str, where: str | None = None) -> NoReturn:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    raise GraphError(
        f"no such {kind}", where=where, found=name, expected=near[0] if near else ", ".join(known)
    )


@per_graph
def structure(graph: ArchGraph) -> Structure:
    """Find the blocks and sections of a graph.

    Args:
        graph: Any graph; ``graph.sections`` (the user's own) override what is found.

    Returns:
        The structure; cached with the graph.

    Raises:
        GraphError: If the user's sections name a block that the graph does not have.

    Example:
        >>> import torch
        >>> from archgraph.trace import trace
        >>> net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
        >>> print(structure(trace(net, torch.zeros(1, 4)).graph))
        0 (stage)
          0: chain, 2 operators; removable
          1: chain, 1 operators; removable
        head (head)
          2: chain, 1 operators; removable
    """
    return _Finder(graph).structure()


# -- module paths -------------------------------------------------------------------------------


def _path(scope: str) -> Path:
    return tuple(scope.split(".")) if scope else ()


def _common(paths: Iterable[Path]) -> Path:
    """The innermost module that holds all."""
    shared: Path | None = None
    for path in paths:
        if shared is None:
            shared = path
            continue
        size = 0
        for a, b in zip(shared, path, strict=False):
            if a != b:
                break
            size += 1
        shared = shared[:size]
    return shared or ()


def _under(path: Path, module: Path) -> bool:
    return path[: len(module)] == module


def _numbered(part: str) -> bool:
    return part[-1:].isdigit()


# -- blocks -------------------------------------------------------------------------------------


@dataclass
class _Draft:
    """A block while it is put together: consecutive pieces, of which ``heads`` do the work."""

    heads: list[Piece]
    pieces: list[Piece]
    path: Path  # innermost module of its work
    given: str = ""  # the user's name for it
    extra: list[str] = field(default_factory=list)  # what hangs on it or only serves it
    kind: BlockKind = "chain"
    name: str = ""
    unit: Path = ()
    full: tuple[str, ...] = ()
    spine: tuple[str, ...] = ()
    out: tuple[object, ...] = ()

    @property
    def last(self) -> Piece | None:
        return self.heads[-1] if self.heads else None

    @property
    def whole(self) -> bool:
        """Whether it is more than a single layer: what stages are made of."""
        return len(self.heads) > 1 or self.kind in ("residual", "parallel", "dense")

    @property
    def stream(self) -> list[str]:
        return [n for p in self.pieces for n in p.nodes]


class _Finder:
    """Blocks and sections of one graph."""

    def __init__(self, graph: ArchGraph) -> None:
        self.graph = graph
        self.eval = specialise(graph, training=False)
        self.stream = Stream(self.eval)
        self.order = {n.name: i for i, n in enumerate(graph.nodes)}
        self.places: dict[str, Path] = {}
        chains = (*self.stream.towers, self.stream.pieces)
        self.work: Counter[Path] = Counter()  # heavy operators of the stream, by module
        self.held: Counter[Path] = Counter()  # and norms
        self.children: dict[Path, set[str]] = {}
        for name in (n for pieces in chains for p in pieces for n in p.nodes):
            if not self._holds(name):
                continue
            place = self.place(name)
            for size in range(len(place) + 1):
                self.work[place[:size]] += name in self.stream.heavy
                self.held[place[:size]] += 1
                if size < len(place):
                    self.children.setdefault(place[:size], set()).add(place[size])
        self.classes = Counter(map(self._class, self.children))
        self.given = [(s, b) for s, blocks in graph.sections for b in blocks]

    def structure(self) -> Structure:
        """Draft, assign what stands beside the stream, judge, and group."""
        drafts: list[list[_Draft]] = []
        for pieces in (*self.stream.towers, self.stream.pieces):
            drafts.append(self._drafts(pieces))
        flat = [d for chain in drafts for d in chain]
        for section, name in self.given:
            if not any(d.given == name for d in flat):
                _missing(name, [".".join(d.path) for d in flat], "block", f"section {section}")
        ends = self._assign(flat)
        self._name(flat)
        for draft in flat:
            self._describe(draft)
        sections: list[tuple[str, SectionKind, list[_Draft]]] = []
        for chain in drafts:
            sections += self._sections(chain, main=chain is drafts[-1])
        if ends:
            if not sections or sections[-1][1] != "head":
                sections.append(("head", "head", []))
            sections[-1][2].extend(ends)
        names = _unique(s[0] for s in sections)
        cuts = tuple(p.exit for p in self.stream.pieces)
        return Structure(
            tuple(
                Section(name, tuple(self._block(d, name) for d in members), kind)
                for name, (_, kind, members) in zip(names, sections, strict=True)
            ),
            cuts,
        )

    def place(self, name: str) -> Path:
        """Module of an operator: that of its leaves where it is more exact than the call's."""
        if name not in self.places:
            node = self.graph.node[name]
            scope = _path(node.scope)
            owners = [
                _path(leaf)[:-1]
                for leaf in node.leaves()
                if self.graph.param[leaf].role != "constant"
            ]
            inner = _common(owners)
            self.places[name] = inner if owners and _under(inner, scope) else scope
        return self.places[name]

    def _class(self, module: Path) -> tuple[Path, frozenset[str]]:
        """What two modules of one class share: their place but for numbers, and their children."""
        pattern = tuple(re.sub(r"\d+", "*", part) for part in module)
        return pattern, frozenset(self.children.get(module, ()))

    # -- from pieces to blocks --------------------------------------------------------------

    def _drafts(self, pieces: Sequence[Piece]) -> list[_Draft]:
        """Blocks of a chain: its working pieces, merged by modules, and what is between them."""
        heads = [p for p in pieces if p.heavy]
        if not heads:
            return [self._draft([], list(pieces))] if pieces else []
        drafts = self._merged(heads)
        index = {p.exit: i for i, p in enumerate(pieces)}
        begin = [index[d.heads[0].exit] for d in drafts]
        end = [index[d.heads[-1].exit] for d in drafts]
        for d, i, j in zip(drafts, begin, end, strict=True):
            d.pieces = list(pieces[i : j + 1])
        first = list(pieces[: begin[0]])
        lead: list[_Draft] = []
        if first and _identity(drafts[0]) and any(not self._is_input(p) for p in first):
            lead = [self._draft([], first)]
        else:
            drafts[0].pieces[:0] = first
        for k in range(1, len(drafts)):
            between = pieces[end[k - 1] + 1 : begin[k]]
            cut = self._divide(between, drafts[k - 1], drafts[k])
            drafts[k - 1].pieces += between[:cut]
            drafts[k].pieces[:0] = between[cut:]
        rest = pieces[end[-1] + 1 :]
        cut = self._divide(rest, drafts[-1], None)
        drafts[-1].pieces += rest[:cut]
        tail = [self._draft([], list(rest[cut:]))] if rest[cut:] else []
        return [*lead, *drafts, *tail]

    def _is_input(self, piece: Piece) -> bool:
        return self.graph.node[piece.exit].op == "input"

    def _draft(self, heads: list[Piece], pieces: list[Piece], given: str = "") -> _Draft:
        work = [self.place(n) for p in heads for n in p.nodes if n in self.stream.heavy]
        path = _common(work if heads else [self.place(n) for p in pieces for n in p.nodes])
        kinds = [p.kind for p in heads]
        last = heads[-1] if heads else None
        if last is not None and last.kind in ("residual", "parallel"):
            outer = self.place(last.exit)
            path = outer if outer and _under(path, outer) else path
        kind: BlockKind = "chain"
        for candidate in ("dense", "parallel", "residual"):
            if candidate in kinds:
                kind = candidate
        return _Draft(heads, pieces, _path(given) or path, given, kind=kind)

    def _merged(self, heads: Sequence[Piece]) -> list[_Draft]:
        """Working pieces, with those of one building block put together.

        A module merges its pieces if it occurs more than once (another place, the same children),
        holds no residual region, and either is an item of a list and more than a list itself, or
        holds a region beside plain layers.
        """
        works = [[self.place(n) for n in h.nodes if n in self.stream.heavy] for h in heads]
        claimed = [self._claim(paths) for paths in works]
        inside: dict[Path, list[int]] = {}
        for i, paths in enumerate(works):
            path = _common(paths)
            for size in range(1, len(path) + 1):
                inside.setdefault(path[:size], []).append(i)
        group = list(range(len(heads)))
        merged: set[int] = set()
        for module in sorted(inside, key=len, reverse=True):
            found = inside[module]
            kinds = {heads[i].kind for i in found}
            if (
                len(found) < 2
                or found[-1] - found[0] != len(found) - 1
                or any(claimed[i] or i in merged for i in found)
                or kinds & {"residual", "dense"}
                or self.work[module] != sum(len(works[i]) for i in found)
                or self.classes[self._class(module)] < 2
            ):
                continue
            paths = [_common(works[i]) for i in found]
            listed = all(len(p) > len(module) and p[len(module)].isdigit() for p in paths)
            if kinds == {"parallel", "step"} or (module[-1].isdigit() and not listed):
                merged.update(found)
                for i in found:
                    group[i] = found[0]
        drafts: list[_Draft] = []
        for i, head in enumerate(heads):
            joins = i > 0 and (
                (claimed[i] and claimed[i] == claimed[i - 1])
                or (not claimed[i] and not claimed[i - 1] and group[i] == group[i - 1])
            )
            if joins:
                drafts[-1] = self._draft([*drafts[-1].heads, head], [], claimed[i])
            else:
                drafts.append(self._draft([head], [], claimed[i]))
        return drafts

    def _claim(self, paths: Sequence[Path]) -> str:
        """The user's block that a piece's work belongs to: the one with the innermost module."""
        best, size = "", 0
        for _, name in self.given:
            module = _path(name)
            if len(module) > size and any(_under(p, module) for p in paths):
                best, size = name, len(module)
        return best

    def _divide(self, between: Sequence[Piece], left: _Draft, right: _Draft | None) -> int:
        """How many of the pieces between two blocks belong to the first of them."""
        module = self._outer(right) if right is not None else ()
        for i, piece in enumerate(between):
            place = _common(self.place(n) for n in piece.nodes)
            mine = bool(left.path) and _under(place, left.path)
            theirs = bool(module) and _under(place, module)
            if mine != theirs:
                if theirs:
                    return i
                continue
            rows = [row(self.graph.node[n].op) for n in piece.nodes]
            if all(r.pointwise for r in rows):
                continue
            # A norm after a plain layer is part of it; after a region it prepares what follows,
            # unless that is a residual region: those take the stream as it is.
            if right is None:
                keeps = not left.whole
            elif _identity(right):
                keeps = True
            elif all(r.normalises for r in rows):
                keeps = not left.whole
            else:
                keeps = not left.whole and right.whole
            if not keeps:
                return i
        return len(between)

    def _outer(self, draft: _Draft) -> Path:
        """Module whose operators in front of a block belong to it: its own, or the one around."""
        own = sum(n in self.stream.heavy for p in draft.heads for n in p.nodes)
        around = draft.path[:-1]
        return around if around and self.work[around] == own else draft.path

    # -- beside the stream ------------------------------------------------------------------

    def _assign(self, drafts: list[_Draft]) -> list[_Draft]:
        """Give every operator beside the stream to a block; further outputs become blocks.

        What depends on the stream hangs on the last block that it needs; what only serves the
        stream belongs to the first block that it serves; a counter goes with its module.
        """
        graph = self.graph
        owner = {n: i for i, d in enumerate(drafts) for n in d.stream}
        ends: list[_Draft] = []
        below = dict.fromkeys(owner)  # the stream and all that depends on it, in order
        for n in graph.nodes:
            if n.name not in below and any(u in below for u in n.uses()):
                below[n.name] = None
        for output in self.stream.outputs:
            nodes = [n for n in self.stream._ancestors((output,)) if n in below and n not in owner]
            if not nodes:
                continue
            nodes.sort(key=self.order.__getitem__)
            taken = [u for n in nodes for u in self.eval.node[n].uses() if u in owner]
            piece = Piece(tuple(nodes), max(taken, key=self.order.__getitem__), output)
            work = [self.place(n) for n in nodes if n in self.stream.heavy]
            path = _common(work or [self.place(n) for n in nodes])
            ends.append(_Draft([piece], [piece], path, kind="head"))
            owner.update(dict.fromkeys(nodes, len(drafts) + len(ends) - 1))
        drafts += ends
        if not drafts:
            drafts.append(_Draft([], [], ()))
        serving: list[Node] = []
        for n in graph.nodes:
            if n.name in owner:
                continue
            if n.name in below:
                owner[n.name] = max(owner[u] for u in n.uses() if u in below)
            else:
                serving.append(n)
        alone: list[Node] = []
        for n in reversed(serving):
            users = [owner[u] for u in graph.users[n.name] if u in owner]
            if users:
                owner[n.name] = min(users)
            else:
                alone.append(n)
        for n in reversed(alone):  # a chain of counters keeps its order
            used = [owner[u] for u in n.uses() if u in owner]
            owner[n.name] = max([self._nearest(n, owner), *used]) if n.op != "input" else 0
        for n in graph.nodes:
            draft = drafts[owner[n.name]]
            if n.name not in draft.stream:
                draft.extra.append(n.name)
        return ends

    def _nearest(self, node: Node, owner: Mapping[str, int]) -> int:
        """Block of the operator next to a free one, first of all in its own module."""
        place, index = self.place(node.name), self.order[node.name]
        nodes = self.graph.nodes
        best: tuple[int, int] | None = None
        for distance in range(1, len(nodes)):
            for other in (index + distance, index - distance):
                if not 0 <= other < len(nodes) or nodes[other].name not in owner:
                    continue
                shared = len(_common((place, self.place(nodes[other].name))))
                if best is None or shared > best[0]:
                    best = shared, owner[nodes[other].name]
                if best[0] == len(place) or distance > 16:
                    return best[1]
        return best[1] if best is not None else 0

    # -- names and looks --------------------------------------------------------------------

    def _name(self, drafts: list[_Draft]) -> None:
        names = []
        for i, d in enumerate(drafts):
            nodes = [n for n in d.stream if n in self.stream.heavy]
            path = d.path
            if d.given:
                d.unit = path
                names.append(d.given)
                continue
            if path and self.work[path] == len(nodes):
                held = [self.place(n) for n in d.stream if self._holds(n)]
                around = _common(held)
                if around and _under(path, around) and self.held[around] == len(held):
                    path = around
                while (
                    len(path) > 1 and not _numbered(path[-1]) and self.work[path[:-1]] == len(nodes)
                ):
                    path = path[:-1]
                d.unit = path
            else:
                d.unit = path
                first = self.place(nodes[0]) if nodes else ()
                path = first[: len(path) + 1] if _under(first, path) else path
                d.unit = d.unit or path
            names.append(".".join(path) or ("input" if i == 0 and nodes == [] else "output"))
        shared = {d.unit for d in drafts if d.unit}
        for d, name in zip(drafts, _unique(names), strict=True):
            d.name = name
            outer = (d.unit[:size] for size in range(1, len(d.unit)))
            d.unit = next((p for p in outer if p in shared), d.unit)

    def _holds(self, name: str) -> bool:
        return name in self.stream.heavy or row(self.graph.node[name].op).normalises

    def _describe(self, draft: _Draft) -> None:
        """What two blocks are compared by."""
        nodes = sorted([*draft.stream, *draft.extra], key=self.order.__getitem__)
        draft.full = _body(self.graph, nodes)
        draft.spine = tuple(
            base(self.graph.node[n].op) for n in self._spine(draft) if self._holds(n)
        )
        end = self.graph.node[self._exit(draft)]
        shape: tuple[object, ...] = end.shape
        if draft.kind == "dense" and draft.last is not None:
            # A dense block widens the stream: only the rest of its shape stays.
            grown = self.graph.node[draft.last.entry].shape if draft.last.entry else ()
            shape = tuple(
                s if i < len(grown) and s == grown[i] else "grows" for i, s in enumerate(end.shape)
            )
        draft.out = (draft.kind == "dense", end.dtype, shape)

    def _spine(self, draft: _Draft) -> list[str]:
        """The way through a block with most work on it."""
        nodes = draft.stream
        inside: dict[str, tuple[int, str]] = {}
        for name in nodes:
            before = [p for p in self.stream.preds[name] if p in inside]
            best = max(before, key=lambda p: inside[p][0], default="")
            most = inside[best][0] if best else 0
            inside[name] = most + (name in self.stream.heavy), best
        way, name = [], nodes[-1] if nodes else ""
        while name:
            way.append(name)
            name = inside[name][1]
        return way[::-1]

    def _exit(self, draft: _Draft) -> str:
        return draft.pieces[-1].exit if draft.pieces else self.graph.nodes[-1].name

    def _entry(self, draft: _Draft) -> str:
        for piece in draft.pieces:
            if piece.entry:
                return piece.entry
            if self._is_input(piece):
                return piece.exit
        inputs = [n for n in draft.extra if self.graph.node[n].op == "input"]
        return self.stream.source or (inputs or [self.graph.nodes[0].name])[0]

    def _block(self, draft: _Draft, section: str) -> Block:
        nodes = tuple(sorted([*draft.stream, *draft.extra], key=self.order.__getitem__))
        entry, end = self._entry(draft), self._exit(draft)
        reason = self._obstacle(draft, nodes, entry, end)
        last = draft.last
        region = last is not None and len(draft.heads) == 1 and last.kind != "step"
        return Block(
            draft.name,
            section,
            nodes,
            entry,
            end,
            not reason,
            reason,
            draft.kind,
            last.exit if region and last is not None else "",
            last.shortcut if region and last is not None else "",
        )

    def _obstacle(self, draft: _Draft, nodes: Sequence[str], entry: str, end: str) -> str:
        """Why a block cannot be left out; empty where it can."""
        graph = self.graph
        if draft.kind == "head":
            return f"makes the output %{end}"
        if not draft.stream or entry == end:
            return "holds nothing that could be left out"
        if any(p.joins for p in draft.pieces):
            return f"ends a long connection in %{draft.pieces[-1].exit}"
        members = set(nodes)
        terms = self._terms(draft)
        if terms:
            reason = self._kept_term(terms, members)
            if reason:
                return reason
        else:
            a, b = graph.node[entry].type, graph.node[end].type
            if a != b:
                return f"changes {_show(a)} to {_show(b)}"
            solved = axes(graph).value
            for i, (x, y) in enumerate(zip(solved[entry][0], solved[end][0], strict=True)):
                if not _alike(x, y, {}):
                    return f"dimension {i} is {x} before it and {y} after it"
        inner = {n for n in draft.stream if n not in (entry, end)}
        outputs = {i.name for i in walk(graph.outputs) if isinstance(i, Ref)}
        leaking = inner - {n for n in inner if graph.node[n].op == "input"}
        for name in nodes:
            if name != end and any(u in leaking for u in graph.node[name].uses()):
                leaking.add(name)
        for name in nodes:
            if name not in leaking:
                continue
            if name in outputs:
                return f"%{name} inside it is an output"
            outside = [u for u in graph.users[name] if u not in members]
            if name in terms:  # every later list that it is a term of drops it
                outside = [u for u in outside if not _lists(graph.node[u], name, terms[name])]
            if outside:
                return f"%{name} inside it is also used by %{outside[0]}"
        return ""

    def _terms(self, draft: _Draft) -> dict[str, str]:
        """What a dense block appends to the stream: operand and the operator that appends it."""
        last = draft.last
        if last is None or last.kind != "dense" or len(draft.heads) > 1:
            return {}
        end = self.graph.node[last.exit]
        if last.exit != draft.pieces[-1].exit:
            return {}
        return {n: end.op for n in last.nodes if n != last.exit and _lists(end, n, end.op)}

    def _kept_term(self, terms: Mapping[str, str], members: set[str]) -> str:
        """Why the width that a dense block adds cannot be taken away; empty where it can."""
        solved = axes(self.graph)
        free = {a.name: a for a in solved.all}
        for name in terms:
            found = [leaf for d in solved.value[name][0] for leaf in leaves(d)]
            own = [leaf for leaf in found if isinstance(leaf, AxisRef)]
            if not own:
                return f"appends %{name}, whose width no parameter of its own decides"
            for ref in own:
                if not free[ref.name].free:
                    return f"appends {ref}, which is pinned: {free[ref.name].reason}"
                for leaf in self._alone.get(ref.name, ()):
                    if not members.issuperset(self.graph.leaf_users[leaf]):
                        return f"appends {ref}, which {leaf} needs"
        return ""

    @functools.cached_property
    def _alone(self) -> Mapping[str, list[str]]:
        """Leaves with a dimension that would be empty without an axis, by axis."""
        found: dict[str, list[str]] = {}
        for leaf, dims in axes(self.graph).leaf.items():
            for name in {n for d in dims for n in _only(d)}:
                found.setdefault(name, []).append(leaf)
        return found

    # -- sections ---------------------------------------------------------------------------

    def _sections(
        self, drafts: list[_Draft], *, main: bool
    ) -> list[tuple[str, SectionKind, list[_Draft]]]:
        """Sections of a chain: the user's, else stem, stages and head."""
        owner = {b: s for s, b in self.given}
        mine = [i for i, d in enumerate(drafts) if d.given]
        if mine:
            result: list[tuple[str, SectionKind, list[_Draft]]] = []
            if drafts[: mine[0]]:
                result.append(("stem", "stem", drafts[: mine[0]]))
            rest: list[_Draft] = []
            for d in drafts[mine[0] : mine[-1] + 1]:
                if not d.given:
                    rest.append(d)
                    continue
                result += self._stages(rest)
                rest = []
                if result and result[-1][0] == owner[d.given]:
                    result[-1][2].append(d)
                else:
                    result.append((owner[d.given], "stage", [d]))
            if drafts[mine[-1] + 1 :]:
                result.append(("head", "head", drafts[mine[-1] + 1 :]))
            return result
        begin, end = self._middle(drafts)
        if not main:
            if not any(d.whole for d in drafts):
                return [(".".join(_common(d.unit for d in drafts)) or "stem", "stem", drafts)]
            end = len(drafts)
        stem, head = drafts[:begin], drafts[end:]
        result = [("stem", "stem", stem)] if stem else []
        result += self._stages(drafts[begin:end])
        return [*result, ("head", "head", head)] if head else result

    def _middle(self, drafts: list[_Draft]) -> tuple[int, int]:
        """Where the stages begin and end.

        Between the first and the last building block; in a plain chain from the start to where
        the image or sequence collapses, or to the last layer.
        """
        whole = [i for i, d in enumerate(drafts) if d.whole]
        if whole:
            return whole[0], whole[-1] + 1
        begin = 0 if drafts and drafts[0].heads else min(1, len(drafts))
        ranks = [len(self.graph.node[self._exit(d)].shape) for d in drafts]
        falls = [i for i in range(begin + 1, len(ranks)) if ranks[i] < ranks[i - 1]]
        end = falls[-1] if falls else max(len(drafts) - 1, begin)
        return begin, end if len(drafts) > 1 else len(drafts)

    def _stages(self, drafts: Sequence[_Draft]) -> list[tuple[str, SectionKind, list[_Draft]]]:
        """Maximal runs of blocks with the same result and repeating bodies, named by module."""
        items: list[list[_Draft]] = []  # blocks of one module stay together
        for d in drafts:
            last = items[-1][-1] if items else None
            if last is not None and d.unit and last.unit == d.unit and last.out == d.out:
                items[-1].append(d)
            else:
                items.append([d])
        runs: list[list[list[_Draft]]] = []
        while items:
            size = max(_repeats(items, 1), _repeats(items, 2), _repeats(items, 4))
            runs += self._split(items[:size])
            items = items[size:]
        sections = [[d for item in run for d in item] for run in runs]
        names = []
        for blocks in sections:
            units = [d.unit for d in blocks]
            path = _common(units)
            if path in units and path and _numbered(path[-1]):
                path = path[:-1]
            others = [d.unit for d in drafts if d not in blocks]
            own = path and not any(_under(u, path) for u in others)
            names.append(".".join(path) if own else blocks[0].name)
        return [(n, "stage", b) for n, b in zip(names, sections, strict=True)]

    def _split(self, run: list[list[_Draft]]) -> list[list[list[_Draft]]]:
        """A run over several modules that each repeat a body is one section per module."""
        path = _common(item[0].unit for item in run)
        parts: list[list[list[_Draft]]] = []
        names: list[Path] = []
        for item in run:
            child = item[0].unit[: len(path) + 1]
            if parts and child == names[-1]:
                parts[-1].append(item)
            else:
                parts.append([item])
                names.append(child)
        repeat = any(
            _bodies(a) == _bodies(b) for part in parts for a, b in zip(part, part[1:], strict=False)
        )
        return parts if len(parts) > 1 and repeat else [run]


def _identity(draft: _Draft) -> bool:
    """Whether a block starts with a residual region whose shortcut is the stream itself."""
    first = draft.heads[0] if draft.heads else None
    return first is not None and first.kind == "residual" and first.shortcut == first.entry


def _bodies(item: Sequence[_Draft]) -> list[tuple[str, ...]]:
    return [d.full for d in item]


def _repeats(items: Sequence[Sequence[_Draft]], period: int) -> int:
    """How many items at the front repeat with a period; 1 where only the first stands alone."""
    size = 1
    while size < len(items):
        same_result = all(d.out == items[0][0].out for d in items[size])
        before = items[size - period] if size >= period else None
        if not same_result or (
            before is not None and not _similar(before, items[size], size == period)
        ):
            break
        size += 1
    return size if period == 1 or size >= 2 * period else 1


def _similar(before: Sequence[_Draft], after: Sequence[_Draft], first: bool) -> bool:
    """Whether two items have one body; the last item may be cut short, the first a transition."""
    if len(after) > len(before):
        return False
    return all(
        a.full == b.full
        or (a.spine == b.spine and (first or (a.unit[:-1] == b.unit[:-1] and len(a.unit) > 1)))
        for a, b in zip(before, after, strict=False)
    )


def _unique(names: Iterable[str]) -> list[str]:
    seen: Counter[str] = Counter()
    result = []
    for name in names:
        seen[name] += 1
        result.append(name if seen[name] == 1 else f"{name}~{seen[name]}")
    return result


def _show(type_: TensorType | tuple[TensorType, ...]) -> str:
    return ", ".join(map(str, type_)) if isinstance(type_, tuple) else str(type_)


def _alike(a: Layout, b: Layout, names: dict[str, str]) -> bool:
    """Whether two layouts are equal but for the names of their axes."""
    match a, b:
        case AxisRef(), AxisRef():
            return a.size == b.size and names.setdefault(a.name, b.name) == b.name
        case Prod(x), Prod(y):
            return len(x) == len(y) and all(_alike(i, j, names) for i, j in zip(x, y, strict=True))
        case Sum(x), Sum(y):
            return len(x) == len(y) and all(_alike(i, j, names) for i, j in zip(x, y, strict=True))
        case _:
            return a == b


def _only(layout: Layout) -> set[str]:
    """Axes without which a dimension is empty: not those that are one term of several."""
    match layout:
        case AxisRef(name):
            return {name}
        case Prod(factors):
            return {n for f in factors for n in _only(f)}
        case _:
            return set()


def _lists(node: Node, name: str, op: str) -> bool:
    """Whether an operator uses a result only as an item of a list."""
    plain = [v for _, v in node.args if not isinstance(v, tuple)]
    return (
        node.op == op
        and not any(i == Ref(name) for v in plain for i in walk(v))
        and any(Ref(name) in v for _, v in node.args if isinstance(v, tuple))
    )


def _body(graph: ArchGraph, nodes: Sequence[str]) -> tuple[str, ...]:
    """Operators and wiring of a block, sizes and names aside."""
    local = {name: i for i, name in enumerate(n for n in nodes)}

    def look(value: Value) -> str:
        match value:
            case Ref(name):
                return f"%{local[name]}" if name in local else "%"
            case Leaf(name):
                leaf = graph.param[name]
                return f"{leaf.role}{len(leaf.shape)}"
            case tuple():
                return f"({','.join(map(look, value))})"
            case Mode():
                return f"train({look(value.train)},{look(value.eval)})"
            case bool() | None | str():
                return repr(value)
            case int() | Batch():
                return "n"
            case _:
                return type(value).__name__

    lines = []
    for name in nodes:
        node = graph.node[name]
        if node.op != "input":
            lines.append(f"{node.op} {' '.join(f'{k}={look(v)}' for k, v in node.args)}")
    return tuple(lines)
