"""Deepen sections without changing the function: new blocks start as the identity."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NoReturn

from archgraph.analysis.structure import Block, structure
from archgraph.errors import GraphError, RewriteError
from archgraph.graph.argument import GraphLike, graph_of, takes_graph
from archgraph.graph.ir import ArchGraph, Leaf, Node, Ref, Value, in_mode, walk
from archgraph.ops import zeros
from archgraph.ops.starts import Start
from archgraph.ops.table import growth, multiplied, offset, row
from archgraph.rewrites.graft import grafted
from archgraph.rewrites.insert import initialised
from archgraph.rewrites.laws import same_function
from archgraph.rewrites.sections import integer_depths
from archgraph.rewrites.skip import skip
from archgraph.states import Entry, Rewritten


@takes_graph
def deepen(
    graph: ArchGraph,
    depths: Mapping[str, int],
    *,
    like: GraphLike | None = None,
    verify: bool = False,
) -> Rewritten:
    """Add blocks that start as the identity to the end of sections (Net2DeeperNet).

    A new block has the same layers as the section's last block. In a residual block, the weights of
    the last layer of every branch start at zero. In a block without shortcut, each layer starts as
    the identity, with ones on the diagonal of its matrix or at the centre of its kernel. The
    activation of such a block must be idempotent, such as ReLU.

    If no block of the section can be repeated, the new block has the layers of a block of ``like``.
    In this case, the graph must be the result of removing blocks from ``like``.

    Args:
        graph: The architecture.
        depths: Dict from section to its new number of blocks. Sections that are not in the dict are
            unchanged.
        like: An architecture from which the names of the new blocks are taken, as in :func:`graft`.
        verify: Check that the function is the same (three forward passes in float64).

    Raises:
        RewriteError: If a depth is below the section's present depth; if a block cannot compute the
            identity (the message gives the reason).
        GraphError: If a section does not exist. The message suggests the nearest name.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential()
        >>> for i in range(3):
        ...     _ = net.append(torch.nn.Linear(4, 4)).append(torch.nn.ReLU())
        >>> _ = net.append(torch.nn.Linear(4, 2))
        >>> deep = deepen(trace(net, torch.zeros(1, 4)).graph, {"0": 4}, verify=True)
        >>> [str(e) for e in deep.transfer.entries.values() if e.init is not None]
        ['eye()', 'zeros()']

    Source: Chen et al., *Net2Net*, ICLR 2016, §2.3; FedADP, §III.
    """
    depths = integer_depths(depths)
    like = None if like is None else graph_of(like)
    try:
        deep, blocks = grafted(graph, depths, like)
    except (GraphError, RewriteError):
        # The section has no block to repeat (perhaps all were removed), but `like` may have.
        restored = None if like is None else _restored(graph, depths, like)
        if restored is None:
            raise
        deep, blocks = restored
    starts: dict[str, Start] = {}
    for block in blocks:
        starts |= _Identity(deep.graph, block).starts()
    _covered(graph, deep.graph, blocks, starts)
    entries = dict(deep.transfer.entries)
    for slot in deep.transfer.target:
        if slot.name in starts:
            name, args = starts[slot.name]
            # Other new leaves keep their entries: weights of a copy or of a fresh model.
            entries[slot.name] = Entry.initialised(slot, name, **args)
    rewritten = Rewritten.between(graph, deep.graph, entries)
    if verify:
        same_function(graph, rewritten)
    return rewritten


def _restored(
    graph: ArchGraph, depths: Mapping[str, int], like: ArchGraph
) -> tuple[Rewritten, tuple[Block, ...]] | None:
    """Restore blocks of ``like`` that the graph lacks, initialised as in a fresh model.

    Returns the restored graph and the blocks; None if the graph is not ``like`` without some of its
    blocks.
    """
    parts = structure(like)
    missing: list[str] = []
    others: list[str] = []
    for section in parts.sections:
        gone = [b.name for b in section.blocks if _lacks(graph, like, b)]
        add = depths.get(section.name, 0) - (len(section.blocks) - len(gone))
        missing += gone[: max(add, 0)]
        others += gone[max(add, 0) :]
        if section.name in depths and not 0 <= add <= len(gone):
            return None
    if not missing or not depths.keys() <= {s.name for s in parts.sections}:
        return None
    try:
        model = skip(like, others).graph
        before = skip(model, missing).graph
    except (GraphError, RewriteError):
        return None
    # Ignore sections: they are the user's names and do not change the computation.
    same = before.replace(sections=()) == graph.replace(sections=())
    # Layers after a dense block also have the width that it appends.
    shared = graph.param.keys() & model.param.keys()
    fits = all(graph.param[name].type == model.param[name].type for name in shared)
    if not same or not fits:
        return None
    restored = initialised(graph, model)
    return restored, tuple(b for b in structure(restored.graph).blocks if b.name in missing)


def _covered(
    before: ArchGraph, after: ArchGraph, blocks: Iterable[Block], starts: Iterable[str]
) -> None:
    """Raise if a new leaf is used outside the new blocks, or if an old leaf is in ``starts``."""
    inside = {n for block in blocks for n in block.nodes}
    for param in after.params:
        if param.name in before.param or param.role == "constant":
            continue
        if not inside.issuperset(after.leaf_users[param.name]):
            raise RewriteError("a new leaf is outside the new blocks", where=param.name)
    for leaf in starts:
        if leaf in before.param:
            raise RewriteError("a new block shares weights with an old one", where=leaf)


def _lacks(graph: ArchGraph, like: ArchGraph, block: Block) -> bool:
    """Return whether a graph contains none of the leaves of a block of ``like``."""
    used = {leaf for n in block.nodes for leaf in like.node[n].leaves()}
    weights = {leaf for leaf in used if like.param[leaf].role != "constant"}
    return bool(weights) and not any(leaf in graph.param for leaf in weights)


def _operands(node: Node) -> list[Ref | Leaf]:
    """Return the results and leaves that an operator uses in evaluation."""
    values = (i for _, v in node.args for i in walk(in_mode(v, False)))
    return [i for i in values if isinstance(i, (Ref, Leaf))]


def _all_of(node: Node) -> Sequence[Value] | None:
    """Return the operands that must all be zero for a zero result; None if there are none."""
    fact = growth(node.op)
    affine = [v for argument in fact.affine if (v := node.arg(argument)) is not None]
    if affine and isinstance(fact.weight(node), Leaf):
        return affine
    listed = (item for argument in fact.nothing for item in walk(node.arg(argument)))
    if operands := [item for item in listed if isinstance(item, (Ref, Leaf))]:
        return operands
    return _operands(node) if fact.scales == "all" and not offset(node) else None


class _Identity:
    """Finds initial values for the leaves of a block with which the block computes the identity."""

    def __init__(self, graph: ArchGraph, block: Block) -> None:
        self.graph = graph
        self.block = block
        self.inside = set(block.nodes)

    def starts(self) -> dict[str, Start]:
        """Return a dict from leaf to its initialiser."""
        if self.block.sums:
            return self._residual()
        if self.block.kind == "chain":
            return self._chain(self.block.exit, self.block.entry)
        self._refuse(f"is {self.block.kind}: it has no identity form")

    def _residual(self) -> dict[str, Start]:
        identity: dict[str, Start] = {}
        zero: dict[str, Start] = {}
        entry = self.block.entry
        for merge, shortcut in self.block.sums:
            identity |= self._chain(shortcut, entry)
            node = self.graph.node[merge]
            if multiplied(node, Ref(shortcut)):
                self._refuse(f"has {node.op} %{merge}, which multiplies its shortcut")
            for other in _operands(node):
                if isinstance(other, Ref) and other.name != shortcut:
                    zero |= self._zero(other.name)
            entry = merge
        self._numbers(zero)
        return identity | zero | self._chain(self.block.exit, entry)

    def _numbers(self, zero: Collection[str]) -> None:
        """Raise if an operator may return NaN when leaves are zero, such as a division by zero.

        The check ends at each addition of a branch, because the sum has its usual values.
        """
        sums = {merge for merge, _ in self.block.sums}
        nothing: set[str] = set()
        for name in self.block.nodes:
            node = self.graph.node[name]
            gone = [i.name in (nothing if isinstance(i, Ref) else zero) for i in _operands(node)]
            if name in sums or not any(gone):
                continue
            nothing.add(name)
            fact = growth(node.op)
            # 0 / x is 0; x / 0 and 0 / 0 are not finite.
            if not fact.finite and (fact.scales != "first" or any(gone[1:])):
                self._refuse(f"has {node.op} %{name}, which may be NaN for a branch of zeros")

    def _zero(self, name: str) -> dict[str, Start]:
        """Return the leaves that must start at zero so that a result of a branch is zero.

        1. A result that is always zero (the initial state of a recurrent layer) needs no leaf.
        2. A layer needs zeros in its weight and bias. A sum needs zeros in all of its terms
           (parallel attention and feed-forward).
        3. A product needs zeros in one of its factors.
        4. An operator that maps zeros to zeros needs zeros in its operand.
        """
        node = self.graph.node[name]
        if row(node.op).zero is zeros.always:  # 1
            return {}
        if name not in self.inside:
            self._refuse("has a branch without weights")
        fact, operands, together = growth(node.op), _operands(node), _all_of(node)
        if together is not None:  # 2
            return {k: how for v in together for k, how in self._nothing(node, v).items()}
        if fact.scales == "one" or fact.bilinear:  # 3
            # Leaves first: a leaf at zero leaves the computation of the other operand unchanged.
            for item in sorted(operands, key=lambda i: isinstance(i, Ref)):
                try:
                    return self._nothing(node, item)
                except RewriteError:
                    continue
        elif fact.scales == "first" or fact.keeps_zero:  # 4
            if operands and isinstance(operands[0], Ref):
                return self._zero(operands[0].name)
        self._refuse(f"has {node.op} %{name} after the last layer of its branch")

    def _nothing(self, node: Node, value: Value) -> dict[str, Start]:
        """Return the leaves that must start at zero so that an operand of an operator is zero."""
        if isinstance(value, Ref):
            return self._zero(value.name)
        if (
            not isinstance(value, Leaf)
            or self.graph.leaf_users[value.name] != (node.name,)
            or self.graph.param[value.name].role != "parameter"
        ):
            self._refuse(f"shares the weights of {node.op} %{node.name}")
        return {value.name: ("zeros", {})}

    def _chain(self, name: str, entry: str) -> dict[str, Start]:
        """Return initialisers with which the operators from an entry to a result do nothing."""
        identity: dict[str, Start] = {}
        while name != entry:
            node = self.graph.node[name]
            fact = growth(node.op)
            if fact.idempotent:
                if not self._did(node, self.block.entry):
                    self._refuse(f"has {node.op} %{name}, which was not applied to its input")
            elif fact.identity is None:
                self._refuse(f"has {node.op} %{name}, which has no identity form")
            elif isinstance(start := fact.identity(self.graph, node), str):
                self._refuse(f"has {node.op} %{name}, which {start}")
            else:
                starts = {node.arg(argument): how for argument, how in start.items()}
                identity |= {k.name: how for k, how in starts.items() if isinstance(k, Leaf)}
            results = [i.name for i in _operands(node) if isinstance(i, Ref)]
            if len(results) != 1:
                self._refuse(f"has {node.op} %{name}, which takes {len(results)} results")
            name = results[0]
        return identity

    def _did(self, node: Node, entry: str) -> bool:
        """Return whether the same operator, with the same arguments, was already applied before."""
        expected = [(k, v) for k, v in node.args if not isinstance(v, Ref)]
        name = entry
        while True:
            before = self.graph.node[name]
            if before.op == node.op:
                return [(k, v) for k, v in before.args if not isinstance(v, Ref)] == expected
            refs = list(before.uses())
            # Operators that only select values (max pooling) return values of the activation.
            if len(refs) != 1 or not growth(before.op).picks:
                return False
            name = refs[0]

    def _refuse(self, reason: str) -> NoReturn:
        raise RewriteError(
            "block cannot start as the identity",
            where=self.block.name,
            found=reason,
            hint="graft repeats the last block",
        )
