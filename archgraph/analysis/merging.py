"""Which pieces of the stream are one building block, by the module hierarchy.

Attention and feed-forward of a Transformer's layer are one block, since users and papers count
layers, and NeFL leaves out whole ones. A file's sections may name the halves.
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
    """Puts the working pieces of a chain together.

    Attributes:
        claims: Names of the user's blocks, by module.
    """

    def __init__(self, graph: ArchGraph, modules: Modules) -> None:
        self.modules, self.stream, self.node = modules, modules.stream, graph.node
        # Names that differ in their ordinal only are the uses of one module, in order.
        self.claims: dict[Path, list[str]] = {}
        for name in (name for _, blocks in graph.sections for name in blocks):
            self.claims.setdefault(path_of(name.partition("~")[0]), []).append(name)

    def merged(self, heads: Sequence[Piece]) -> list[BlockDraft]:
        """Return the working pieces, with those of one building block put together.

        Pieces that are used again and again, one round after the other, are one block. Otherwise a
        module merges its pieces as :meth:`_is_block` says.
        """
        working = [[n for n in h.nodes if n in self.stream.heavy] for h in heads]
        works = [[self.modules.place(n) for n in names] for names in working]
        claimed = [self._claim(paths) for paths in works]
        uses = self._rounds(working, claimed)
        group = self._groups(heads, working, [common(w) for w in works], claimed, uses)
        drafts: list[BlockDraft] = []
        for i, head in enumerate(heads):
            # The user's block decides, where there is one.
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
        """Return, for each piece, the first one of its block.

        Modules are asked from the innermost, all of one class at once: what is a list once is a
        list everywhere. One is asked only if its pieces are neighbours and contain all its work.
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
        """Return modules by their class, the innermost first."""
        classes: dict[object, list[Path]] = {}
        for module in sorted(modules, key=len, reverse=True):
            classes.setdefault((len(module), self.modules.class_of(module)), []).append(module)
        return classes.values()

    def _holds(self, module: Path, index: Sequence[int], working: Sequence[Sequence[str]]) -> bool:
        """Return whether some pieces are neighbours and contain all work of a module."""
        work = self.modules.count(n for i in index for n in working[i])
        return index[-1] - index[0] == len(index) - 1 and self.modules.work[module] == work

    def _blocks(self, members: Mapping[Path, Sequence[tuple[Piece, Path]]]) -> list[Path]:
        """Return the modules of one class that are building blocks."""
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
        """Return runs of pieces that share weights: first one, length and times."""
        keys = [
            tuple((self.node[n].op, self.modules.weights(n)) for n in names) for names in working
        ]
        again: dict[int, int] = {}
        last: dict[object, int] = {}
        for i in reversed(range(len(keys))):  # backwards: each finds the next of its kind
            if keys[i] in last:
                again[i] = last[keys[i]]
            last[keys[i]] = i
        rounds: dict[int, tuple[int, int]] = {}
        i = 0
        while i < len(keys):
            end = again.get(i, i)
            size = end - i  # a round is as long as it takes until its first piece comes again
            while size and end < len(keys) and keys[end] == keys[end - size]:
                end += 1
            times = (end - i) // size if size else 0  # what is left of a round does not count
            # The user's sections name each use: then each is a block of its own.
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
        """Return whether the pieces that a module holds are one building block.

        Several such modules are those of one class: another place, the same children. Plain layers
        are one block if several such modules are inside a list and not lists themselves; regions
        beside plain layers, if there are several; residual regions, if they are an item of a list
        and not lists themselves (attention and feed-forward). Items of a list are stages' blocks
        if they are equal, or if other modules do not repeat them (``twin``).
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
        """Return the operators of a piece from the first layer to the last, the shortcut aside."""
        inside = set(head.nodes) - {head.exit}
        ends = [p for p in self.stream.preds[head.exit] if p in inside and p != head.shortcut]
        # Without its projection, the first block of a stage looks like the others.
        body = self.stream.ancestors(ends, inside) if head.kind == "residual" else set(head.nodes)
        nodes = [n for n in head.nodes if n in body]
        layers = [i for i, n in enumerate(nodes) if n in self.stream.heavy]
        if not layers:
            return ()
        return tuple(base(self.node[n].op) for n in nodes[layers[0] : layers[-1] + 1])

    def _claim(self, paths: Sequence[Path]) -> str:
        """Return the user's block that contains a piece's work: that of the innermost module."""
        best: Path = ()
        for module in self.claims:
            if len(module) > len(best) and any(under(p, module) for p in paths):
                best = module
        if not best:
            return ""
        # Each use of the module takes the next name; the last one stays for all that follow.
        names = self.claims[best]
        return names.pop(0) if len(names) > 1 else names[0]
