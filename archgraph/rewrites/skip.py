"""Remove blocks (NeFL, FedADP)."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from archgraph.analysis.axes import axes
from archgraph.analysis.positions import Kept, appended
from archgraph.analysis.structure import Block, Structure, passes_on, structure
from archgraph.errors import RewriteError
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph, Ref, Value
from archgraph.graph.passes import prune, renumber
from archgraph.ops.check import check
from archgraph.rewrites import laws
from archgraph.rewrites.cut import cut_axes
from archgraph.rewrites.insert import following, tidied
from archgraph.rewrites.sections import with_sections
from archgraph.rewrites.silenced import silenced
from archgraph.states import Rewritten, State


@takes_graph
def skip(
    graph: ArchGraph,
    blocks: str | Iterable[str] = (),
    *,
    keep: Mapping[str, Sequence[int]] | None = None,
    keep_projection: bool = False,
    verify: bool = False,
) -> Rewritten:
    """Remove blocks of a network. The input of a removed block replaces the block's output.

    A dense block (DenseNet) returns its input concatenated with new features. If a dense block is
    removed, its new features are removed, and all layers that read these features become narrower.
    Operations of the block on the input alone (such as a ReLU) are kept.

    Args:
        graph: The architecture.
        blocks: Names or patterns of the blocks to remove (``layer2.1``, ``layer*.1``).
        keep: Dict from section to a list with one number per block, as in NeFL's tables: 1 keeps
            the block, 0 removes it. Projection shortcuts of the removed blocks are kept.
        keep_projection: If True, keep the projection shortcuts of all removed blocks. Blocks whose
            input and output differ in shape can then be removed as well (NeFL).
        verify: Check the result with three forward passes in float64. The reference is the original
            network in which the residual branches of the removed blocks are multiplied by zero, and
            the other layers of these blocks are replaced by the identity.

    Raises:
        RewriteError: If a block cannot be removed. The message gives the reason.
        GraphError: If a block does not exist. The message suggests the nearest name.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
        >>> [p.name for p in skip(trace(net, torch.zeros(1, 4)).graph, "1").graph.params]
        ['0.weight', '0.bias', '2.weight', '2.bias']
    """
    parts = structure(graph)
    flagged = _flagged(parts, keep or {})
    chosen = (*parts.matching(blocks), *flagged)
    if not chosen:
        return Rewritten.identity(graph)
    bodies = [b for b in chosen if _projects(b) and (keep_projection or b in flagged)]
    gone = [block for block in chosen if block not in bodies]
    for block in gone:
        _check_removable(block)
    names = [(s.name, tuple(b.name for b in s.blocks if b not in gone)) for s in parts.sections]
    rewritten = with_sections(_without(graph, bodies, gone), graph, parts, names)
    if verify:
        _verify(graph, rewritten, [(block, block in bodies) for block in chosen])
    return rewritten


def _projects(block: Block) -> bool:
    """Return whether the shortcut of a block is a projection of its input."""
    return bool(block.sums) and block.shortcut not in ("", block.entry)


def _check_removable(block: Block) -> None:
    """Raise if a block cannot be removed."""
    if not block.removable:
        body = (
            "to keep only its projection shortcut, use skip: {keep: {SECTION: [0, …]}} "
            "(in Python: keep_projection=True)"
        )
        raise RewriteError(
            "block cannot be removed",
            where=block.name,
            found=block.reason,
            hint=body if _projects(block) else None,
        )


def _verify(graph: ArchGraph, rewritten: Rewritten, blocks: Sequence[tuple[Block, bool]]) -> None:
    """Compare with the original without the blocks' effect (:mod:`archgraph.rewrites.silenced`)."""
    selection = _terms(graph, [block for block, _ in blocks])
    others = [(block, body) for block, body in blocks if not block.terms]

    def without(wide: ArchGraph, state: State) -> laws.GraphAndState:
        if selection:
            wide, state = laws.masked(wide, state, selection)
        return silenced(wide, others), state

    spanned = any(axes(graph)[name].spans for name in selection)  # mask ≡ take does not hold there
    message = "the network is not the original with these blocks at zero"
    laws.check_law(graph, rewritten, None if spanned else without, message)


def _flagged(parts: Structure, keep: Mapping[str, Sequence[int]]) -> list[Block]:
    """Return the blocks with a 0 in ``keep``."""
    gone = []
    for name, flags in keep.items():
        blocks = parts.section(name).blocks
        if len(flags) != len(blocks) or not set(flags) <= {0, 1}:
            ends = f"{blocks[0].name} to {blocks[-1].name}"
            expected = f"{len(blocks)} numbers, 0 or 1, for {ends}"
            raise RewriteError(
                "needs one flag per block", where=name, found=list(flags), expected=expected
            )
        gone += [block for block, flag in zip(blocks, flags, strict=True) if not flag]
    return gone


def _terms(graph: ArchGraph, blocks: Iterable[Block]) -> Kept:
    """Return the axes of the features that dense blocks append, with no positions to keep."""
    names = appended(axes(graph), (term for block in blocks for term in block.terms))
    return dict.fromkeys(names, np.zeros(0, dtype=np.int64))


def _without(graph: ArchGraph, bodies: Iterable[Block], gone: Collection[Block]) -> Rewritten:
    """Remove blocks, and the operators and leaves that become unused.

    1. If the projection shortcut of a block is kept, it replaces the block's addition.
    2. Otherwise, the block's input replaces its output. The features of a dense block are dropped
       from all concatenations. If its output is more than a concatenation of its input and these
       features, the block's own concatenation is kept without them.
    """
    bypass = {b.merge: Ref(b.shortcut) for b in bodies}  # 1
    bypass |= {b.exit: Ref(b.bypass) for b in gone if not b.terms or passes_on(graph, b)}  # 2
    terms = {term for block in gone for term in block.terms}

    def drop(value: Value) -> Value:
        if not isinstance(value, tuple):
            return value
        return tuple(v for v in value if not (isinstance(v, Ref) and v.name in terms))

    dropped = graph.replace(
        nodes=tuple(
            dataclasses.replace(n, args=tuple((k, drop(v)) for k, v in n.args)) for n in graph.nodes
        )
    )
    # Use the original's axes, because the selection contains their names.
    bypassed = cut_axes(dropped.mapped(following(bypass)), _terms(graph, gone), axes(graph))
    new = renumber(tidied(graph, prune(bypassed.graph)))
    check(new)
    entries = {name: bypassed.transfer.entries[name] for name in new.state_names}
    return Rewritten.between(graph, new, entries)
