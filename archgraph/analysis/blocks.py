"""From the pieces of the main stream to blocks, by the module hierarchy.

Drafts are put together here; what they mean is said in :mod:`archgraph.analysis.structure`.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from archgraph.analysis.stream import Piece, Stream
from archgraph.graph.ir import ArchGraph, Batch, Leaf, Mode, Node, Ref, Value
from archgraph.graph.passes import specialise
from archgraph.ops.table import base, row

BlockKind = Literal["residual", "chain", "parallel", "dense", "head"]
Path = tuple[str, ...]

# -- module paths -------------------------------------------------------------------------------


def path_of(scope: str) -> Path:
    """Module path of a scope.

    >>> path_of("layer1.0"), path_of("")
    (('layer1', '0'), ())
    """
    return tuple(scope.split(".")) if scope else ()


def common(paths: Iterable[Path]) -> Path:
    """The innermost module that holds all.

    >>> common([("layer1", "0", "conv1"), ("layer1", "0", "bn1")])
    ('layer1', '0')
    """
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


def under(path: Path, module: Path) -> bool:
    """Whether a path lies in a module."""
    return path[: len(module)] == module


def numbered(part: str) -> bool:
    """Whether a module is one of several that are told apart by a number."""
    return part[-1:].isdigit()


def siblings(a: Path, b: Path) -> bool:
    """Whether two modules lie in different items of one list.

    >>> siblings(("layer1", "0", "conv"), ("layer1", "1")), siblings(("up", "0"), ("down", "0"))
    (True, False)
    """
    size = len(common((a, b)))
    if len(a) <= size or len(b) <= size:
        return False
    x, y = a[size], b[size]
    return numbered(x) and numbered(y) and re.sub(r"\d+", "*", x) == re.sub(r"\d+", "*", y)


def unique(names: Iterable[str]) -> list[str]:
    """Names, with an ordinal where one occurs again.

    >>> unique(["l", "l", "m"])
    ['l', 'l~2', 'm']
    """
    seen: Counter[str] = Counter()
    result = []
    for name in names:
        seen[name] += 1
        result.append(name if seen[name] == 1 else f"{name}~{seen[name]}")
    return result


# -- blocks -------------------------------------------------------------------------------------


@dataclass(eq=False)
class Draft:
    """A block while it is put together.

    Attributes:
        heads: The pieces that do its work.
        pieces: All its pieces; consecutive.
        path: Innermost module of its work.
        given: The user's name for it, if any.
        uses: How often its layers are used, one round after the other.
        extra: Operators beside the stream that hang on it or only serve it.
        kind: As in :class:`archgraph.analysis.structure.Block`.
        name: Its name.
        unit: Module that it is, or is a part of.
        full: Operators and wiring, sizes aside.
        spine: Layers and norms on the way with most work.
        out: What the blocks of a section have in common: dtype and shape of the result.
    """

    heads: list[Piece]
    pieces: list[Piece]
    path: Path
    given: str = ""
    uses: int = 1
    extra: list[str] = field(default_factory=list)
    kind: BlockKind = "chain"
    name: str = ""
    unit: Path = ()
    full: tuple[str, ...] = ()
    spine: tuple[str, ...] = ()
    out: tuple[object, ...] = ()

    @property
    def last(self) -> Piece | None:
        """Its last piece that does work."""
        return self.heads[-1] if self.heads else None

    @property
    def whole(self) -> bool:
        """Whether it is more than a single layer: what stages are made of."""
        return len(self.heads) > 1 or self.kind in ("residual", "parallel", "dense")

    @property
    def stream(self) -> list[str]:
        """Its operators in the stream, in topological order."""
        return [n for p in self.pieces for n in p.nodes]


class Drafts:
    """Drafts of one graph's blocks.

    Attributes:
        chains: Drafts of each tower and of the main stream, in topological order.
        ends: Drafts of further outputs; they come last.
    """

    def __init__(self, graph: ArchGraph) -> None:
        self.graph, self.node = graph, graph.node
        self.eval = specialise(graph, training=False)
        self.stream = Stream(self.eval)
        self.order = {n.name: i for i, n in enumerate(graph.nodes)}
        self.places: dict[str, Path] = {}
        chains = (*self.stream.towers, self.stream.pieces)
        self.work: Counter[Path] = Counter()  # heavy operators of the stream, by module
        self.held: Counter[Path] = Counter()  # and norms
        self.children: dict[Path, set[str]] = {}
        seen: set[tuple[str, ...]] = set()
        for name in (n for pieces in chains for p in pieces for n in p.nodes):
            if not self.holds(name) or self.weights(name) in seen:
                continue
            seen.add(self.weights(name))
            place = self.place(name)
            for size in range(len(place) + 1):
                self.work[place[:size]] += name in self.stream.heavy
                self.held[place[:size]] += 1
                if size < len(place):
                    self.children.setdefault(place[:size], set()).add(place[size])
        self.classes = Counter(map(self._class, self.children))
        # Names that differ in their ordinal only are the uses of one module, in order.
        self.claims: dict[Path, list[str]] = {}
        for name in (name for _, blocks in graph.sections for name in blocks):
            self.claims.setdefault(path_of(name.partition("~")[0]), []).append(name)
        self.chains = [self._chain(pieces) for pieces in chains]
        flat = [d for chain in self.chains for d in chain]
        self.ends = self._assign(flat)
        self._name(flat)
        for draft in flat:
            self._describe(draft)

    def place(self, name: str) -> Path:
        """Module of an operator: that of its leaves where it is more exact than the call's."""
        if name not in self.places:
            node = self.node[name]
            scope = path_of(node.scope)
            owners = [
                path_of(leaf)[:-1]
                for leaf in node.leaves()
                if self.graph.param[leaf].role != "constant"
            ]
            inner = common(owners)
            self.places[name] = inner if owners and under(inner, scope) else scope
        return self.places[name]

    def _class(self, module: Path) -> tuple[Path, frozenset[str]]:
        """What two modules of one class share: their place but for numbers, and their children."""
        pattern = tuple(re.sub(r"\d+", "*", part) for part in module)
        return pattern, frozenset(self.children.get(module, ()))

    # -- from pieces to blocks --------------------------------------------------------------

    def _chain(self, pieces: Sequence[Piece]) -> list[Draft]:
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
        lead: list[Draft] = []
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
        return self.node[piece.exit].op == "input"

    def _draft(self, heads: list[Piece], pieces: list[Piece], given: str = "") -> Draft:
        work = [self.place(n) for p in heads for n in p.nodes if n in self.stream.heavy]
        if not heads:
            nodes = [n for p in pieces for n in p.nodes]
            learned = [n for n in nodes if any(self.node[n].leaves())]
            work = [self.place(n) for n in learned or nodes]
        path = common(work)
        kinds = [p.kind for p in heads]
        last = heads[-1] if heads else None
        if last is not None and last.kind in ("residual", "parallel"):
            outer = self.place(last.exit)
            path = outer if outer and under(path, outer) else path
        kind: BlockKind = "chain"
        for candidate in ("dense", "parallel", "residual"):
            if candidate in kinds:
                kind = candidate
        return Draft(heads, pieces, path_of(given.partition("~")[0]) or path, given, kind=kind)

    def _merged(self, heads: Sequence[Piece]) -> list[Draft]:
        """Working pieces, with those of one building block put together.

        Pieces that are used again and again, one round after the other, are one block. Else a
        module merges its pieces as :meth:`_is_block` says.
        """
        working = [[n for n in h.nodes if n in self.stream.heavy] for h in heads]
        works = [[self.place(n) for n in names] for names in working]
        claimed = [self._claim(paths) for paths in works]
        paths = [common(w) for w in works]
        group = list(range(len(heads)))
        uses = self._rounds(working, claimed)
        for begin, (size, times) in uses.items():
            group[begin : begin + size * times] = [begin] * (size * times)
        merged = {i for i, first in enumerate(group) if i != first or first in uses}
        inside: dict[Path, list[int]] = {}
        for i, path in enumerate(paths):
            for size in range(1, len(path) + 1):
                inside.setdefault(path[:size], []).append(i)
        classes: dict[object, list[Path]] = {}
        for module in sorted((m for m in inside if len(inside[m]) > 1), key=len, reverse=True):
            classes.setdefault((len(module), self._class(module)), []).append(module)
        for modules in classes.values():
            found = [
                m
                for m in modules
                if not any(claimed[i] or i in merged for i in inside[m])
                and inside[m][-1] - inside[m][0] == len(inside[m]) - 1
                and self.work[m] == self.count(n for i in inside[m] for n in working[i])
            ]
            looks = {m: tuple(self._look(heads[i]) for i in inside[m]) for m in found}
            alike = Counter(looks.values())
            verdicts = {
                m: self._is_block(
                    m,
                    [heads[i].kind for i in inside[m]],
                    [paths[i] for i in inside[m]],
                    looks[m],
                    alike[looks[m]] > 1,
                )
                for m in found
            }
            layers = [m for m in found if any(heads[i].kind == "residual" for i in inside[m])]
            if not all(verdicts[m] for m in layers):  # what is a list once is a list everywhere
                verdicts |= dict.fromkeys(layers, False)
            for m in found:
                if verdicts[m]:
                    merged.update(inside[m])
                    for i in inside[m]:
                        group[i] = inside[m][0]
        drafts: list[Draft] = []
        for i, head in enumerate(heads):
            joins = i > 0 and (
                (claimed[i] and claimed[i] == claimed[i - 1])
                or (not claimed[i] and not claimed[i - 1] and group[i] == group[i - 1])
            )
            if joins:
                drafts[-1] = self._draft([*drafts[-1].heads, head], [], claimed[i])
            else:
                drafts.append(self._draft([head], [], claimed[i]))
            if group[i] in uses and not claimed[i]:
                drafts[-1].uses = uses[group[i]][1]
        return drafts

    def _rounds(
        self, working: Sequence[Sequence[str]], claimed: Sequence[str]
    ) -> dict[int, tuple[int, int]]:
        """Pieces that follow one another with the same weights: first one, length and times."""
        keys = [tuple((self.node[n].op, self.weights(n)) for n in names) for names in working]
        again: dict[int, int] = {}
        last: dict[object, int] = {}
        for i in reversed(range(len(keys))):
            if keys[i] in last:
                again[i] = last[keys[i]]
            last[keys[i]] = i
        found: dict[int, tuple[int, int]] = {}
        i = 0
        while i < len(keys):
            end = again.get(i, i)
            size = end - i
            while size and end < len(keys) and keys[end] == keys[end - size]:
                end += 1
            times = (end - i) // size if size else 0
            if times > 1 and not any(claimed[i:end]):
                found[i] = size, times
                i += size * times
            else:
                i += 1
        return found

    def _is_block(
        self,
        module: Path,
        kinds: Sequence[str],
        paths: Sequence[Path],
        looks: Sequence[tuple[str, ...]],
        twin: bool,
    ) -> bool:
        """Whether the pieces that a module holds are one building block.

        Several such modules are those of one class: another place, the same children. Plain layers
        are one block if several such modules are inside a list and no list themselves; regions
        beside plain layers, if there are several; residual regions, if they are an item of a list
        and no list themselves (attention and feed-forward). Items of a list are stages' blocks
        if they are equal, or if no other module repeats them (``twin``).
        """
        several = self.classes[self._class(module)] > 1
        if "dense" in kinds:
            return False
        if "residual" in kinds:
            if not numbered(module[-1]) or not (several or set(kinds) == {"residual"}):
                return False
            items = [i for i in range(len(paths) - 1) if siblings(paths[i], paths[i + 1])]
            return not any(looks[i] == looks[i + 1] for i in items) and (twin or not items)
        listed = all(len(p) > len(module) and p[len(module)].isdigit() for p in paths)
        item = any(part.isdigit() for part in module)
        return several and (set(kinds) == {"parallel", "step"} or (item and not listed))

    def _look(self, head: Piece) -> tuple[str, ...]:
        """Operators of a piece from the first layer to the last, the shortcut aside."""
        inside = set(head.nodes) - {head.exit}
        ends = [p for p in self.stream.preds[head.exit] if p in inside and p != head.shortcut]
        body = self.stream.ancestors(ends, inside) if head.kind == "residual" else set(head.nodes)
        nodes = [n for n in head.nodes if n in body]
        layers = [i for i, n in enumerate(nodes) if n in self.stream.heavy]
        if not layers:
            return ()
        return tuple(base(self.node[n].op) for n in nodes[layers[0] : layers[-1] + 1])

    def _claim(self, paths: Sequence[Path]) -> str:
        """The user's block that a piece's work belongs to: the one with the innermost module."""
        best: Path = ()
        for module in self.claims:
            if len(module) > len(best) and any(under(p, module) for p in paths):
                best = module
        if not best:
            return ""
        names = self.claims[best]
        return names.pop(0) if len(names) > 1 else names[0]

    def _divide(self, between: Sequence[Piece], left: Draft, right: Draft | None) -> int:
        """How many of the pieces between two blocks belong to the first of them."""
        module = self._outer(right) if right is not None else ()
        for i, piece in enumerate(between):
            place = common(self.place(n) for n in piece.nodes)
            mine = bool(left.path) and under(place, left.path)
            theirs = bool(module) and under(place, module)
            if mine != theirs:
                if theirs:
                    return i
                continue
            rows = [row(self.node[n].op) for n in piece.nodes]
            if all(r.pointwise for r in rows) and not (left.whole and self._reshapes(piece)):
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

    def _reshapes(self, piece: Piece) -> bool:
        """Whether a piece prepares the stream for what needs another shape of it."""
        node = self.node
        return bool(piece.entry) and node[piece.entry].shape != node[piece.exit].shape

    def _outer(self, draft: Draft) -> Path:
        """Module whose operators in front of a block belong to it: the outermost without others."""
        own = self.count(n for p in draft.heads for n in p.nodes if n in self.stream.heavy)
        path = draft.path
        while len(path) > 1 and self.work[path[:-1]] == own:
            path = path[:-1]
        return path

    # -- beside the stream ------------------------------------------------------------------

    def _assign(self, drafts: list[Draft]) -> list[Draft]:
        """Give every operator beside the stream to a block; further outputs become blocks.

        What serves the stream belongs to the first block that it serves; what else depends on the
        stream hangs on the last block that it needs; a counter goes with its module.
        """
        graph = self.graph
        owner = {n: i for i, d in enumerate(drafts) for n in d.stream}
        streamed = set(owner)
        ends: list[Draft] = []
        below = dict.fromkeys(owner)  # the stream and all that depends on it, in order
        for n in graph.nodes:
            if n.name not in below and any(u in below for u in n.uses()):
                below[n.name] = None
        live = self.stream.live
        for output in self.stream.outputs:
            found = self.stream.ancestors((output,))
            nodes = [n for n in found if n in below and n not in owner and n not in live]
            if not nodes:
                continue
            nodes.sort(key=self.order.__getitem__)
            taken = [u for n in nodes for u in self.eval.node[n].uses() if u in owner]
            entry = max(taken, key=self.order.__getitem__, default="")
            piece = Piece(tuple(nodes), entry, output)
            work = [self.place(n) for n in nodes if n in self.stream.heavy]
            path = common(work or [self.place(n) for n in nodes])
            ends.append(Draft([piece], [piece], path, kind="head"))
            owner.update(dict.fromkeys(nodes, len(drafts) + len(ends) - 1))
            streamed.update(nodes)
        drafts += ends
        if not drafts:
            drafts.append(Draft([], [], ()))
        alone = self._serve([n for n in graph.nodes if n.name not in owner], owner)
        for n in alone:
            if n.name in below:
                owner[n.name] = max(owner[u] for u in n.uses() if u in below)
        alone = self._serve([n for n in alone if n.name not in owner], owner)
        for n in alone:  # a chain of counters keeps its order
            used = [owner[u] for u in n.uses() if u in owner]
            owner[n.name] = max([self._nearest(n, owner), *used]) if n.op != "input" else 0
        for n in graph.nodes:
            if n.name not in streamed:
                drafts[owner[n.name]].extra.append(n.name)
        return ends

    def _serve(self, nodes: Sequence[Node], owner: dict[str, int]) -> list[Node]:
        """Give operators to the first block that they serve; returns those that serve none."""
        alone: list[Node] = []
        for n in reversed(nodes):
            users = [owner[u] for u in self.graph.users[n.name] if u in owner]
            if users:
                owner[n.name] = min(users)
            else:
                alone.append(n)
        return alone[::-1]

    def _nearest(self, node: Node, owner: Mapping[str, int]) -> int:
        """Block of the operator next to a free one, first of all in its own module."""
        place, index = self.place(node.name), self.order[node.name]
        nodes = self.graph.nodes
        best: tuple[int, int] | None = None
        for distance in range(1, len(nodes)):
            for other in (index + distance, index - distance):
                if not 0 <= other < len(nodes) or nodes[other].name not in owner:
                    continue
                shared = len(common((place, self.place(nodes[other].name))))
                if best is None or shared > best[0]:
                    best = shared, owner[nodes[other].name]
                if best[0] == len(place) or distance > 16:
                    return best[1]
        return best[1] if best is not None else 0

    # -- names and looks --------------------------------------------------------------------

    def _name(self, drafts: list[Draft]) -> None:
        names = []
        for i, d in enumerate(drafts):
            nodes = [n for n in d.stream if n in self.stream.heavy]
            path = d.path
            if d.given:
                d.unit = path
                names.append(d.given)
                continue
            work = self.count(nodes)
            if path and self.work[path] == work:
                held = [n for n in d.stream if self.holds(n)]
                around = common(map(self.place, held))
                if around and under(path, around) and self.held[around] == self.count(held):
                    path = around
                while len(path) > 1 and not numbered(path[-1]) and self.work[path[:-1]] == work:
                    path = path[:-1]
                d.unit = path
            else:
                d.unit = path
                first = self.place(nodes[0]) if nodes else ()
                path = first[: len(path) + 1] if under(first, path) else path
                d.unit = d.unit or path
            leaf = next((leaf for n in nodes for leaf in self.stream.weights(n)), "")
            names.append(".".join(path) or leaf or ("output" if i else "input"))
        shared = {d.unit for d in drafts if d.unit and d.heads}
        for a, b in itertools.pairwise(drafts):  # a module that contains a list is not a block's
            if siblings(a.unit, b.unit):
                shared -= {a.unit[:size] for size in range(len(common((a.unit, b.unit))) + 1)}
        for d, name in zip(drafts, unique(names), strict=True):
            d.name = name
            outer = (d.unit[:size] for size in range(1, len(d.unit)))
            d.unit = next((p for p in outer if p in shared), d.unit)

    def weights(self, name: str) -> tuple[str, ...]:
        """What tells a layer apart, however often it is used: its leaves, also computed ones."""
        return self.stream.weights(name) or (f"%{name}",)

    def count(self, names: Iterable[str]) -> int:
        """Number of layers; one that is used several times counts once."""
        return len({self.weights(n) for n in names})

    def holds(self, name: str) -> bool:
        """Whether an operator is a layer or a norm."""
        return name in self.stream.heavy or row(self.node[name].op).normalises

    def _describe(self, draft: Draft) -> None:
        """What two blocks are compared by."""
        nodes = sorted([*draft.stream, *draft.extra], key=self.order.__getitem__)
        draft.full = _body(self.graph, nodes)
        draft.spine = tuple(base(self.node[n].op) for n in self._spine(draft) if self.holds(n))
        end = self.node[self.exit(draft)]
        shape: tuple[object, ...] = end.shape
        if draft.kind in ("dense", "parallel") and draft.last is not None:
            # What joins branches has a width of its own: only the rest of its shape counts.
            parts = [self.node[n].shape for n in self._joined(draft.last)]
            made = self.node[draft.last.exit].shape
            wide = {
                i for p in parts if len(p) == len(made) for i, s in enumerate(p) if s != made[i]
            }
            shape = tuple("wide" if i in wide else s for i, s in enumerate(end.shape))
        draft.out = (draft.kind == "dense", end.dtype, shape)

    def _joined(self, piece: Piece) -> list[str]:
        """What the end of a region takes as items of a list."""
        lists = [v for _, v in self.node[piece.exit].args if isinstance(v, tuple)]
        return [i.name for v in lists for i in v if isinstance(i, Ref)]

    def _spine(self, draft: Draft) -> list[str]:
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

    def exit(self, draft: Draft) -> str:
        """Node whose value a block makes."""
        return draft.pieces[-1].exit if draft.pieces else self.graph.nodes[-1].name

    def entry(self, draft: Draft) -> str:
        """Node whose value a block consumes."""
        for piece in draft.pieces:
            if piece.entry:
                return piece.entry
            if self._is_input(piece):
                return piece.exit
        inputs = [n for n in draft.extra if self.node[n].op == "input"]
        return self.stream.source or (inputs or [self.graph.nodes[0].name])[0]


def _identity(draft: Draft) -> bool:
    """Whether a block starts with a residual region whose shortcut is the stream itself."""
    first = draft.heads[0] if draft.heads else None
    return first is not None and first.kind == "residual" and first.shortcut == first.entry


def _body(graph: ArchGraph, nodes: Sequence[str]) -> tuple[str, ...]:
    """Operators and wiring of a block, sizes and names aside."""
    local = {name: i for i, name in enumerate(nodes)}
    params, node_of = graph.param, graph.node

    def look(value: Value) -> str:
        match value:
            case Ref(name):
                return f"%{local[name]}" if name in local else "%"
            case Leaf(name):
                leaf = params[name]
                return f"{leaf.role}{len(leaf.type.shape)}"
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
        node = node_of[name]
        if node.op != "input":
            lines.append(f"{node.op} {' '.join(f'{k}={look(v)}' for k, v in node.args)}")
    return tuple(lines)
