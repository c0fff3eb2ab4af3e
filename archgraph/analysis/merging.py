"""Merge consecutive pieces of a network's main path into blocks, following the module hierarchy.

:mod:`archgraph.analysis.stream` divides the main path, from the input to the output, into pieces.

The attention and feed-forward parts of a Transformer layer are one block, because users and papers
count layers, and NeFL skips complete layers. The user's sections can name both parts separately.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from archgraph.analysis.draft import BlockDraft, draft
from archgraph.analysis.modules import Modules, Path, common, is_numbered, path_of, siblings, under
from archgraph.analysis.stream import Piece
from archgraph.graph.ir import ArchGraph
from archgraph.ops.table import base


class Merging:
    """Merges consecutive pieces with layers into blocks.

    Attributes:
        claims: Dict from module to the names of the user's blocks in the module.
    """

    def __init__(self, graph: ArchGraph, modules: Modules) -> None:
        self.modules, self.stream, self.node = modules, modules.stream, graph.node
        # Names that differ only in the number after ~ are successive uses of one module.
        self.claims: dict[Path, list[str]] = {}
        for name in (name for _, blocks in graph.sections for name in blocks):
            self.claims.setdefault(path_of(name.partition("~")[0]), []).append(name)

    def merged(self, heads: Sequence[Piece]) -> list[BlockDraft]:
        """Return drafts of blocks for pieces with layers.

        Pieces that share their weights and run repeatedly, as iterations of a loop, are one block.
        Otherwise :meth:`_is_block` decides which modules are one block.
        """
        working = [[n for n in h.nodes if n in self.stream.heavy] for h in heads]
        works = [[self.modules.place(n) for n in names] for names in working]
        claimed = [self._claim(paths) for paths in works]
        uses = self._rounds(working, claimed)
        group = self._groups(heads, working, [common(w) for w in works], claimed, uses)
        drafts: list[BlockDraft] = []
        for i, head in enumerate(heads):
            # The user's block decides if there is one.
            same = i > 0 and claimed[i] == claimed[i - 1]
            before = drafts.pop().heads if same and (claimed[i] or group[i] == group[i - 1]) else []
            drafts.append(draft(self.modules, [*before, head], [], claimed[i]))
            if group[i] in uses and not claimed[i]:
                drafts[-1].uses = uses[group[i]][1]
        return drafts

    def _groups(
        self,
        heads: Sequence[Piece],
        working: Sequence[Sequence[str]],
        paths: Sequence[Path],
        claimed: Sequence[str],
        uses: Mapping[int, tuple[int, int]],
    ) -> list[int]:
        """Return, for each piece, the index of the first piece of its block.

        Inner modules are considered before outer ones, and all modules of one class together: if
        one of them is a list, all of them are. A module is considered only if its pieces are
        neighbours and contain all of its layers.
        """
        group = list(range(len(heads)))
        merged = set[int]()
        for begin, (size, times) in uses.items():
            run = range(begin, begin + size * times)
            group[begin : run.stop] = [begin] * len(run)
            merged.update(run)
        inside: dict[Path, list[int]] = {}
        for i, path in enumerate(paths):
            for size in range(1, len(path) + 1):
                inside.setdefault(path[:size], []).append(i)
        for modules in self._classes(m for m in inside if len(inside[m]) > 1):
            members = {
                m: [(heads[i], paths[i]) for i in inside[m]]
                for m in modules
                if not any(claimed[i] or i in merged for i in inside[m])
                and self._holds(m, inside[m], working)
            }
            for m in self._blocks(members):
                merged.update(inside[m])
                group[inside[m][0] : inside[m][-1] + 1] = [inside[m][0]] * len(inside[m])
        return group

    def _classes(self, modules: Iterable[Path]) -> Iterable[list[Path]]:
        """Group modules by their class, innermost first."""
        classes: dict[object, list[Path]] = {}
        for module in sorted(modules, key=len, reverse=True):
            classes.setdefault((len(module), self.modules.class_of(module)), []).append(module)
        return classes.values()

    def _holds(self, module: Path, index: Sequence[int], working: Sequence[Sequence[str]]) -> bool:
        """Return whether some pieces are neighbours and contain all layers of a module."""
        work = self.modules.count(n for i in index for n in working[i])
        return index[-1] - index[0] == len(index) - 1 and self.modules.work[module] == work

    def _blocks(self, members: Mapping[Path, Sequence[tuple[Piece, Path]]]) -> list[Path]:
        """Return the modules of one class that are one block each."""
        looks = {m: tuple(self._look(h) for h, _ in pieces) for m, pieces in members.items()}
        alike = Counter(looks.values())
        blocks = []
        for m, pieces in members.items():
            kinds, paths = [h.kind for h, _ in pieces], [path for _, path in pieces]
            twin = alike[looks[m]] > 1
            if "dense" not in kinds and self._is_block(m, kinds, paths, looks[m], twin):
                blocks.append(m)
        lists = {m for m, pieces in members.items() if any(h.kind == "residual" for h, _ in pieces)}
        return blocks if lists.issubset(blocks) else [m for m in blocks if m not in lists]

    def _rounds(
        self, working: Sequence[Sequence[str]], claimed: Sequence[str]
    ) -> dict[int, tuple[int, int]]:
        """Find pieces that run in several rounds with the same weights.

        Returns a dict from the index of the first piece to the number of pieces in a round and the
        number of rounds.
        """
        keys = [
            tuple((self.node[n].op, self.modules.weights(n)) for n in names) for names in working
        ]
        again: dict[int, int] = {}
        last: dict[object, int] = {}
        for i in reversed(range(len(keys))):  # backwards: each piece finds the next equal one
            if keys[i] in last:
                again[i] = last[keys[i]]
            last[keys[i]] = i
        rounds: dict[int, tuple[int, int]] = {}
        i = 0
        while i < len(keys):
            end = again.get(i, i)
            size = end - i  # a round ends where its first piece is used again
            while size and end < len(keys) and keys[end] == keys[end - size]:
                end += 1
            times = (end - i) // size if size else 0  # an incomplete last round does not count
            # The user's sections may name each use, which makes each a block of its own.
            if times > 1 and not any(claimed[i:end]):
                rounds[i] = size, times
                i += size * times
            else:
                i += 1
        return rounds

    def _is_block(
        self,
        module: Path,
        kinds: Sequence[str],
        paths: Sequence[Path],
        looks: Sequence[tuple[str, ...]],
        twin: bool,
    ) -> bool:
        """Return whether the pieces of a module are one block.

        Below, ``several`` is True if the graph has more than one module of the class
        (:meth:`Modules.class_of`).

        - Single layers are one block if there are several modules of the class, the module is in a
          list, and the module is not a list itself.
        - Parallel branches and single layers are one block if there are several modules of the
          class.
        - Residual branches (attention and feed-forward) are one block if the module is an item of a
          list. If its pieces are in several items of an inner list, neighbouring pieces must
          differ, and another module must have equal pieces (``twin``).
        """
        several = self.modules.classes[self.modules.class_of(module)] > 1
        if "residual" in kinds:
            numbered = is_numbered(module[-1]) and (several or set(kinds) == {"residual"})
            pairs = itertools.pairwise(zip(paths, looks, strict=True))
            repeats = [look == after for (a, look), (b, after) in pairs if siblings(a, b)]
            return numbered and not any(repeats) and (twin or not repeats)
        listed = all(len(p) > len(module) and p[len(module)].isdigit() for p in paths)
        item = any(part.isdigit() for part in module)
        return several and (set(kinds) == {"parallel", "step"} or (item and not listed))

    def _look(self, head: Piece) -> tuple[str, ...]:
        """Return the operators of a piece from its first to its last layer, without shortcut."""
        inside = set(head.nodes) - {head.exit}
        ends = [p for p in self.stream.preds[head.exit] if p in inside and p != head.shortcut]
        # Without its projection, the first block of a stage equals the others.
        body = self.stream.ancestors(ends, inside) if head.kind == "residual" else set(head.nodes)
        nodes = [n for n in head.nodes if n in body]
        layers = [i for i, n in enumerate(nodes) if n in self.stream.heavy]
        if not layers:
            return ()
        return tuple(base(self.node[n].op) for n in nodes[layers[0] : layers[-1] + 1])

    def _claim(self, paths: Sequence[Path]) -> str:
        """Return the user's block of the innermost module with layers of a piece; else empty."""
        best: Path = ()
        for module in self.claims:
            if len(module) > len(best) and any(under(p, module) for p in paths):
                best = module
        if not best:
            return ""
        # Each use of the module takes the next name; the last name serves all further uses.
        names = self.claims[best]
        return names.pop(0) if len(names) > 1 else names[0]
