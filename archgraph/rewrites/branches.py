"""Insert operators on the branches of residual blocks, for step sizes and adapters."""

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

#: Name of the leaves that :func:`archgraph.add_step_sizes` adds, inside their block.
STEP_SIZE = "step_size"


@dataclass(frozen=True, slots=True)
class Branch:
    """The residual branch of a block: the value that is added to the shortcut.

    Attributes:
        block: The block.
        merge: Operator that adds the branch to the shortcut.
        value: The argument of ``merge`` that contains the branch. A ``Mode`` (one value for
            training and one for evaluation) if training drops the branch at random.
        node: Operator that computes the branch in evaluation.
        path: Name for a new parameter or module on the branch.
    """

    block: Block
    merge: Node
    value: Value
    node: Node
    path: str

    def summed(self, value: Value) -> Node:
        """Return the addition with another value in place of the branch."""
        args = tuple((k, value if v == self.value else v) for k, v in self.merge.args)
        return dataclasses.replace(self.merge, args=args)


# Operators to append to a branch, the last of which computes its new value, and their leaves.
Inserted = tuple[Sequence[Node], Sequence[Param]]


def residuals(graph: ArchGraph, blocks: str | Iterable[str] | None) -> tuple[Block, ...]:
    """Return the blocks that match names or patterns. Default: all residual blocks.

    Raises:
        GraphError: If a block does not exist. The message suggests the nearest name.
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
    """Append operators to every branch of some residual blocks.

    Args:
        graph: The architecture.
        blocks: Residual blocks of the architecture.
        name: Name for the new parameter or module of each branch, inside the branch's block.
        make: Function from a branch to its new operators and parameters.
        zero: Function that returns whether the new parameter with a given name starts at zero.
        allow_nothing: If True, accept an empty ``blocks``.

    Raises:
        RewriteError: If a block is not residual; if a block already has a parameter with the name
            of a new parameter; if ``blocks`` is empty and ``allow_nothing`` is False.
    """
    if not blocks and allow_nothing:
        return Rewritten.identity(graph)
    if not blocks:
        raise RewriteError(
            f"changes nothing: no branch gets its {name.replace('_', ' ')}",
            found="no residual block",
            hint="`show` lists the blocks; omit the rewrite, or in Python pass allow_nothing=True",
        )
    in_use = {leaf for p in graph.params for leaf in (p.name, *p.aliases)}
    nodes = {node.name: [node] for node in graph.nodes}
    added: list[tuple[str, Param]] = []
    for block in blocks:
        last = last_leaf(graph, block)  # new leaves follow it in the state dict
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
    """Yield the branches of a residual block, numbered if there are several (Transformers)."""
    if not block.sums:
        raise RewriteError("not a residual block", where=block.name, found=block.kind)
    owner = block.name
    while owner in graph.param:  # a block that is named after its weight: leaves cannot nest
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
        # Training may drop the branch at random; evaluation shows the operator that computes it.
        maker = refs(in_mode(others[0], False))[0]
        yield Branch(block, node, others[0], graph.node[maker], path)


def is_branch_leaf(leaf: str, name: str) -> bool:
    """Return whether :func:`on_branches` added this parameter when it was called with ``name``."""
    last = leaf.rpartition(".")[2]
    return last == name or last.removeprefix(f"{name}_").isdecimal()
