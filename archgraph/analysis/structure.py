"""Find the blocks and sections of an architecture, and decide which blocks are removable.

The main stream is divided into pieces (:mod:`archgraph.analysis.stream`). A block is a piece with
layers, together with the elementwise operators after it. The module hierarchy determines the names
of blocks, which of two blocks an operator between them belongs to, and which pieces form one block.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from archgraph.analysis.blocks import Drafts
from archgraph.analysis.draft import BlockDraft, BlockKind, all_items
from archgraph.analysis.modules import unique
from archgraph.analysis.precision import Casts
from archgraph.analysis.removal import Removal
from archgraph.analysis.sections import Group, SectionKind, sections
from archgraph.analysis.unadapted import Unadapted
from archgraph.errors import GraphError
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph, per_graph
from archgraph.hints import unknown
from archgraph.tables import Table, plural

Named = TypeVar("Named", "Block", "Section")


@dataclass(frozen=True, slots=True, repr=False)
class Block:
    """A block of a network: operators with one input value and one output value.

    Attributes:
        name: Module that contains the block (``layer1.0``), or the module of its first layer.
        section: Name of the section that contains the block.
        nodes: Operators of the block in topological order. Each operator of the graph is in exactly
            one block.
        entry: Node whose value is the block's input.
        exit: Node that computes the block's output.
        removable: Whether the block can be skipped: the value of :attr:`bypass` can replace its
            output.
        reason: Why the block is not removable; empty if it is removable.
        kind: ``residual``, ``chain`` (no shortcut or branches), ``parallel`` (several branches),
            ``dense``, or ``head`` (computes an additional output).
        merge: Operator that adds or concatenates the branches; empty for a chain.
        shortcut: For a residual block, the value that the branch is added to: the input, or its
            projection. For a dense block, the value to which new features are concatenated.
        sums: For each residual branch in the block, the name of the addition and of the shortcut
            that it adds. A Transformer layer has two.
        uses: Number of times that the block's layers run in a forward pass. Removing the block
            removes all of these iterations. If the user's sections name an iteration (``layer~2``),
            it is a block of its own.
        terms: For a dense block, the results that ``merge`` concatenates to the input.
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
    sums: tuple[tuple[str, str], ...] = ()
    uses: int = 1
    terms: tuple[str, ...] = ()

    @property
    def bypass(self) -> str:
        """Node whose value replaces the block's output if the block is skipped.

        A dense block may change its input (``x = relu(x); cat(x, f(x))``). Then the changed input,
        here ``relu(x)``, replaces the output.
        """
        return self.shortcut if self.kind == "dense" and self.shortcut else self.entry

    def __str__(self) -> str:
        state = "removable" if self.removable else self.reason
        times = f" × {self.uses}" if self.uses > 1 else ""
        return f"{self.name}{times}: {self.kind}, {plural(len(self.nodes), 'operator')}; {state}"

    def __repr__(self) -> str:
        return f"<Block {self}>"


@dataclass(frozen=True, slots=True, repr=False)
class Section:
    """Consecutive blocks: a stage of similar blocks, or a stem, transition or head.

    All blocks of a stage have the same layers and the same output type. The first may have another
    input type.

    Attributes:
        name: Module that contains exactly these blocks, or else the name of the first block.
        blocks: Blocks of the section, in topological order.
        kind: ``stem``, ``stage``, ``transition`` (leads from one stage to the next), or ``head``.
    """

    name: str
    blocks: tuple[Block, ...]
    kind: SectionKind = "stage"

    def __str__(self) -> str:
        return "\n".join([f"{self.name} ({self.kind})", *(f"  {b}" for b in self.blocks)])

    def __repr__(self) -> str:
        return f"<Section {self.name} ({self.kind}): {plural(len(self.blocks), 'block')}>"


@dataclass(frozen=True, repr=False)
class Structure:
    """The sections and blocks of a graph.

    Attributes:
        sections: Stem, stages with the transitions in between, and head, from input to output.
        cuts: Names of the nodes that every path from the input to the output passes.
    """

    sections: tuple[Section, ...]
    cuts: tuple[str, ...]

    @property
    def blocks(self) -> tuple[Block, ...]:
        """All blocks in topological order."""
        return tuple(b for s in self.sections for b in s.blocks)

    def block(self, name: str) -> Block:
        """Return the block with a name.

        Raises:
            GraphError: If no block has the name; suggests the nearest name.
        """
        return _find(name, self.blocks, "block")

    def section(self, name: str) -> Section:
        """Return the section with a name.

        Raises:
            GraphError: If no section has the name; suggests the nearest name.
        """
        return _find(name, self.sections, "section")

    def matching(self, patterns: str | Iterable[str]) -> tuple[Block, ...]:
        """Return the blocks that match names or patterns (``layer*.1``), in topological order.

        Raises:
            GraphError: If a pattern matches no block; suggests the nearest name.
        """
        known = [b.name for b in self.blocks]
        chosen: set[str] = set()
        for pattern in [patterns] if isinstance(patterns, str) else patterns:
            matches = [n for n in known if n == pattern] or fnmatch.filter(known, pattern)
            if not matches:
                _missing(pattern, known, "block")
            chosen.update(matches)
        return tuple(b for b in self.blocks if b.name in chosen)

    def nodes(self, name: str) -> tuple[str, ...]:
        """Return the operators of the section with a name, or else of the block with this name.

        Raises:
            GraphError: If no section or block has the name; suggests the nearest name.
        """
        parts = {s.name: tuple(n for b in s.blocks for n in b.nodes) for s in self.sections}
        for block in self.blocks:
            parts.setdefault(block.name, block.nodes)
        if name not in parts:
            _missing(name, list(parts), "section or block")
        return parts[name]

    def end(self, name: str) -> str:
        """Return the operator that computes the output of a section, or else of a block.

        This operator need not be the last one of the section: operators of a side branch may follow
        it.

        Raises:
            GraphError: If no section or block has the name; suggests the nearest name.
        """
        inside = set(self.nodes(name))
        return [block.exit for block in self.blocks if inside.issuperset(block.nodes)][-1]

    def __str__(self) -> str:
        return "\n".join(map(str, self.sections))

    def __repr__(self) -> str:
        sections = plural(len(self.sections), "section")
        return f"<Structure: {sections}, {plural(len(self.blocks), 'block')}>"

    def _repr_html_(self) -> str:
        rows = tuple(
            (b.section, b.name, b.kind, str(len(b.nodes)), b.reason or "removable")
            for b in self.blocks
        )
        columns = ("section", "block", "kind", "operators", "removable")
        return Table(repr(self).strip("<>"), columns, rows, frozenset({3}))._repr_html_()


def _find(name: str, items: Sequence[Named], kind: str) -> Named:
    for item in items:
        if item.name == name:
            return item
    _missing(name, [i.name for i in items], kind)


def _missing(name: str, known: Sequence[str], kind: str, where: str | None = None) -> NoReturn:
    raise GraphError(f"no such {kind}", where=where, **unknown(name, known, cutoff=0.5))


@takes_graph
@per_graph
def structure(graph: ArchGraph) -> Structure:
    """Find the blocks and sections of a graph.

    A block consists of operators with one input value and one output value. A section is a sequence
    of blocks, such as a stage of a ResNet.

    Args:
        graph: Any graph. If the user has set the sections of the graph (``graph.sections``), these
            sections are returned.

    Returns:
        The structure, which is cached with the graph.

    Raises:
        GraphError: If the user's sections name a block that the graph does not have.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
        >>> print(structure(trace(net, torch.zeros(1, 4)).graph))
        0 (stage)
          0: chain, 2 operators; dimension 1 is 4 in its input and 0.out[4] in its output
          1: chain, 1 operator; removable
        head (head)
          2: chain, 1 operator; removable
    """
    drafts, casts, groups = _found(graph)
    judge = Removal(graph, drafts, casts)
    return Structure(
        tuple(
            Section(name, tuple(_block(drafts, judge, d, name) for d in g.blocks), g.kind)
            for name, g in groups
        ),
        drafts.cuts,
    )


def section_blocks(graph: ArchGraph) -> list[tuple[str, tuple[str, ...]]]:
    """Return the names of a graph's sections, each with the names of its blocks.

    This function is faster than :func:`structure`, because it does not decide which blocks are
    removable.

    Raises:
        GraphError: See :func:`structure`.
    """
    return [(name, tuple(d.name for d in g.blocks)) for name, g in _found(graph)[-1]]


@per_graph
def _found(graph: ArchGraph) -> tuple[Drafts, Casts, Sequence[tuple[str, Group]]]:
    """Return the drafts of a graph's blocks, its casts, and its sections with their names."""
    # Without casts, so that a model has the same blocks in bfloat16 as in float32.
    casts = Casts(graph)
    adapters = Unadapted(casts.plain)
    drafts = Drafts(adapters.plain)
    built = [d for chain in drafts.chains for d in chain]
    for section, blocks in graph.sections:
        for name in blocks:
            if not any(d.user_block == name for d in built):
                _missing(name, [".".join(d.path) for d in built], "block", f"section {section}")
    # A tower is placed where its first operator is, between the sections of the main stream.
    groups = sorted(
        sections(drafts),
        key=lambda g: min((drafts.order[n] for d in g.blocks for n in d.stream), default=0),
    )
    adapters.restore(drafts)
    casts.restore(drafts)
    return drafts, casts, tuple(zip(unique(g.name for g in groups), groups, strict=True))


def passes_on(graph: ArchGraph, block: Block) -> bool:
    """Return whether a dense block without its new features returns its input (:attr:`bypass`).

    Otherwise, skipping the block keeps its concatenation, without the new features.
    """
    merge, passed = graph.node[block.merge], graph.node[block.bypass]
    rest = [name for name in all_items(merge) if name not in block.terms]
    if passed.dtype != graph.node[block.exit].dtype:
        return False
    return rest == [passed.name] or (passed.op == merge.op and rest == all_items(passed))


def _block(drafts: Drafts, judge: Removal, draft: BlockDraft, section: str) -> Block:
    """Build a block from its draft."""
    nodes = tuple(sorted([*draft.stream, *draft.extra], key=drafts.order.__getitem__))
    entry, end, last = drafts.entry(draft), drafts.exit(draft), draft.last
    reason = judge.obstacle(draft, nodes, entry, end)
    region = last if last and len(draft.heads) == 1 and last.kind != "step" else None
    shortcut = region.shortcut if region else ""
    # A cast of the input is not a projection.
    if region and judge.casts.of(shortcut) == judge.casts.of(region.entry):
        shortcut = region.entry
    return Block(
        draft.name,
        section,
        nodes,
        entry,
        end,
        not reason,
        reason,
        draft.kind,
        region.exit if region else "",
        shortcut,
        tuple((p.exit, p.shortcut) for p in draft.pieces if p.kind == "residual"),
        draft.uses,
        draft.terms(drafts.graph),
    )
