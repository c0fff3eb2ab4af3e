"""Operators put on the branches of residual blocks: what step sizes and adapters share."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from archgraph.analysis.structure import Block, structure
from archgraph.errors import RewriteError
from archgraph.graph.ir import ArchGraph, Mode, Node, Param, Ref, Value, in_mode, refs
from archgraph.ops.check import check
from archgraph.rewrites.insert import initialised, last_leaf, with_leaves
from archgraph.states import Rewritten

#: What :func:`archgraph.add_step_sizes` calls its leaves, inside their block.
STEP_SIZE = "step_size"


@dataclass(frozen=True, slots=True)
class Branch:
    """The operand of a residual block's sum that is not the shortcut.

    Attributes:
        block: The block.
        merge: The sum.
        value: The operand as the sum takes it: a ``Mode`` where training drops it at random.
        node: What makes it in evaluation.
        path: What a new leaf or module of the branch is called.
    """

    block: Block
    merge: Node
    value: Value
    node: Node
    path: str

    def summed(self, value: Value) -> Node:
        """Return the sum with another value of the branch."""
        args = tuple((k, value if v == self.value else v) for k, v in self.merge.args)
        return dataclasses.replace(self.merge, args=args)


# Operators to put behind a branch, the last of which makes its new value, and their leaves.
Inserted = tuple[Sequence[Node], Sequence[Param]]


def residuals(graph: ArchGraph, blocks: str | Iterable[str] | None) -> tuple[Block, ...]:
    """Return the blocks by name or pattern; by default all that add to their input.

    Raises:
        GraphError: For a block that does not exist; names the nearest.
    """
    parts = structure(graph)
    return tuple(b for b in parts.blocks if b.sums) if blocks is None else parts.matching(blocks)


def on_branches(
    graph: ArchGraph,
    blocks: Sequence[Block],
    name: str,
    make: Callable[[Branch], Inserted],
    zero: Callable[[str], bool] = lambda leaf: False,
    *,
    allow_nothing: bool = False,
) -> Rewritten:
    """Put operators on every branch of some residual blocks, right before the sums.

    Args:
        graph: The architecture.
        blocks: Some of its blocks.
        name: What a new leaf or module is called, inside its block.
        make: What to put on a branch.
        zero: Whether a new leaf starts at zero.
        allow_nothing: Accept that there are no blocks.

    Raises:
        RewriteError: For a block that is not residual, or that has a leaf of a new one's name; if
            there are no blocks, unless ``allow_nothing``.
    """
    if not blocks and allow_nothing:
        return Rewritten.identity(graph)
    if not blocks:
        raise RewriteError(
            f"changes nothing: no branch gets its {name.replace('_', ' ')}",
            found="no residual block",
            hint="`show` lists the blocks; leave the rewrite out, or in Python allow_nothing=True",
        )
    in_use = {leaf for p in graph.params for leaf in (p.name, *p.aliases)}
    nodes = {node.name: [node] for node in graph.nodes}
    added: list[tuple[str, Param]] = []
    for block in blocks:
        last = last_leaf(graph, block)  # new leaves follow it, as in a model that was written so
        for branch in _branches(graph, block, name):
            new, params = make(branch)
            if again := [p.name for p in params if p.name in in_use]:
                raise RewriteError(
                    f"block already has its {name.replace('_', ' ')}",
                    where=block.name,
                    found=again[0],
                )
            nodes[branch.merge.name] = [*new, branch.summed(Ref(new[-1].name))]
            added += [(last, p) for p in params]
    changed = graph.replace(
        nodes=tuple(itertools.chain.from_iterable(nodes.values())),
        params=with_leaves(graph, added),
    )
    check(changed)
    return initialised(graph, changed, {p.name for _, p in added if zero(p.name)})


def _branches(graph: ArchGraph, block: Block, name: str) -> Iterator[Branch]:
    """Yield the branches of a residual block, numbered if several (a transformer's two)."""
    if not block.sums:
        raise RewriteError("not a residual block", where=block.name, found=block.kind)
    owner = block.name
    while owner in graph.param:  # a block that is called by its weight: no leaf is inside a leaf
        owner += "_"
    for number, (merge, shortcut) in enumerate(block.sums, 1):
        node = graph.node[merge]
        operands = [v for _, v in node.args if isinstance(v, (Ref, Mode))]
        others = [v for v in operands if shortcut not in refs(v)]
        if len(operands) != 2 or len(others) != 1:
            values = f"%{merge} adds {len(operands)} values"
            raise RewriteError(
                "residual block with several branches", where=block.name, found=values
            )
        path = f"{owner}.{name}" + (f"_{number}" if len(block.sums) > 1 else "")
        # Training may drop the branch at random; what makes it shows in evaluation alone.
        maker = refs(in_mode(others[0], False))[0]
        yield Branch(block, node, others[0], graph.node[maker], path)


def is_branch_leaf(leaf: str, name: str) -> bool:
    """Return whether a leaf is one that :func:`on_branches` put on a branch under a name."""
    last = leaf.rpartition(".")[2]
    return last == name or last.removeprefix(f"{name}_").isdecimal()
