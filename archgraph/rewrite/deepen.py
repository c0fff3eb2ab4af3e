"""Deeper without changing the function: new blocks start as the identity (Net2DeeperNet)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NoReturn

from archgraph.analysis.structure import Block, structure
from archgraph.errors import RewriteError
from archgraph.ir import ArchGraph, Leaf, Node, Ref, in_mode, walk
from archgraph.ops.growth import Start, growth, offset
from archgraph.rewrite.depth import graft
from archgraph.transfer import Entry, Rewritten, Transfer


def deepen(
    graph: ArchGraph,
    depths: Mapping[str, int],
    *,
    like: ArchGraph | None = None,
    verify: bool = False,
) -> Rewritten:
    """Lengthen sections by blocks that, to begin with, return what they take.

    A new block has the form of the section's last one. In a residual block the last layer of every
    branch starts at zero; in a chain each layer starts as the identity (a one on the diagonal or in
    the kernel's centre), which needs an activation that changes nothing when it is applied twice.

    Args:
        graph: The architecture.
        depths: Number of blocks to reach, by section; a section that is not named stays.
        like: An architecture whose names the new blocks take, as in :func:`graft`.
        verify: Run the law (two forwards in float64).

    Raises:
        RewriteError: For a depth below the section's own, or a block that cannot be the identity,
            with the reason.
        GraphError: For a section that does not exist; names the nearest.

    Example:
        >>> import torch
        >>> from archgraph.trace import trace
        >>> net = torch.nn.Sequential()
        >>> for i in range(3):
        ...     _ = net.append(torch.nn.Linear(4, 4)).append(torch.nn.ReLU())
        >>> _ = net.append(torch.nn.Linear(4, 2))
        >>> deep = deepen(trace(net, torch.zeros(1, 4)).graph, {"0": 4}, verify=True)
        >>> [str(e) for e in deep.transfer.entries.values() if e.init is not None]
        ['eye()', 'zeros()']

    Source: Chen et al., *Net2Net*, ICLR 2016, §2.3; FedADP, §III.
    """
    deep = graft(graph, depths, like=like)
    known = {b.name for b in structure(graph).blocks}
    starts: dict[str, Start] = {}
    for block in structure(deep.graph).blocks:
        if block.name not in known:
            starts |= _Identity(deep.graph, block).starts()
    target = {slot.name: slot for slot in deep.transfer.target}
    entries = dict(deep.transfer.entries)
    for leaf, (name, args) in starts.items():
        entries[leaf] = Entry.initialised(target[leaf], name, **args)
    transfer = Transfer(deep.transfer.source, deep.transfer.target, entries)
    rewritten = dataclasses.replace(deep, transfer=transfer)
    if verify:
        from archgraph.rewrite.laws import same_function

        same_function(graph, rewritten)
    return rewritten


class _Identity:
    """How the leaves of a block start so that it returns what it takes."""

    def __init__(self, graph: ArchGraph, block: Block) -> None:
        self.graph = graph
        self.block = block
        self.inside = set(block.nodes)

    def starts(self) -> dict[str, Start]:
        """Initialisers by leaf.

        Raises:
            RewriteError: If the block cannot be the identity.
        """
        if self.block.sums:
            return self._residual()
        if self.block.kind == "chain":
            return self._chain(self.block.exit, self.block.entry)
        self._refuse(f"is {self.block.kind}: it has no form of the identity")

    def _residual(self) -> dict[str, Start]:
        found: dict[str, Start] = {}
        entry = self.block.entry
        for merge, shortcut in self.block.sums:
            found |= self._chain(shortcut, entry)
            node = self.graph.node[merge]
            others = [
                i.name
                for _, v in node.args
                for i in walk(in_mode(v, False))
                if isinstance(i, Ref) and i.name != shortcut
            ]
            for other in others:
                found |= self._zero(other)
            entry = merge
        return found | self._chain(self.block.exit, entry)

    def _zero(self, name: str) -> dict[str, Start]:
        """The last layers of a branch at zero, behind operators that keep zeros.

        Where branches are added or joined inside it (parallel attention and feed-forward), each of
        them is.
        """
        if name not in self.inside:
            self._refuse("has a branch without weights")
        node = self.graph.node[name]
        fact = growth(node.op)
        given = [v for a in fact.affine if (v := node.arg(a)) is not None]
        names = [v.name for v in given if isinstance(v, Leaf)]
        if given:
            shared = any(self.graph.leaf_users[n] != (node.name,) for n in names)
            if len(names) != len(given) or shared:
                self._refuse(f"shares the weights of {node.op} %{name}")
            return {n: ("zeros", {}) for n in names}
        operands = [i for _, v in node.args for i in walk(in_mode(v, False))]
        refs = [i.name for i in operands if isinstance(i, Ref)]
        leaves = [i.name for i in operands if isinstance(i, Leaf)]
        if fact.scales == "one" and len(refs) == len(leaves) == 1:  # a layer scale, a step size
            return {leaves[0]: ("zeros", {})}
        if fact.scales == "all" and not leaves and not offset(node):
            return {leaf: how for ref in refs for leaf, how in self._zero(ref).items()}
        kept = fact.keeps_zero or fact.scales in ("one", "first")
        if not refs or not kept or (leaves and fact.scales != "first"):
            self._refuse(f"has {node.op} %{name} behind the last layer of its branch")
        return self._zero(refs[0])

    def _chain(self, name: str, entry: str) -> dict[str, Start]:
        """Operators from an entry to a result, each of them the identity."""
        found: dict[str, Start] = {}
        while name != entry:
            node = self.graph.node[name]
            fact = growth(node.op)
            if fact.idempotent:
                if not self._did(node, self.block.entry):
                    self._refuse(f"has {node.op} %{name}, which its input has not been through")
            elif fact.identity is None:
                self._refuse(f"has {node.op} %{name}, which has no form of the identity")
            else:
                start = fact.identity(self.graph, node)
                if isinstance(start, str):
                    self._refuse(f"has {node.op} %{name}, which {start}")
                else:
                    for argument, how in start.items():
                        leaf = node.arg(argument)
                        if isinstance(leaf, Leaf):
                            found[leaf.name] = how
            operands = [i for _, v in node.args for i in walk(in_mode(v, False))]
            refs = [i.name for i in operands if isinstance(i, Ref)]
            if len(refs) != 1:
                self._refuse(f"has {node.op} %{name}, which takes {len(refs)} results")
            name = refs[0]
        return found

    def _did(self, node: Node, entry: str) -> bool:
        """Whether a value has been through an operator of the same arguments already."""
        wanted = [(k, v) for k, v in node.args if not isinstance(v, Ref)]
        name = entry
        while True:
            before = self.graph.node[name]
            if before.op == node.op:
                return [(k, v) for k, v in before.args if not isinstance(v, Ref)] == wanted
            refs = list(before.uses())
            if len(refs) != 1 or not growth(before.op).picks:
                return False
            name = refs[0]

    def _refuse(self, reason: str) -> NoReturn:
        raise RewriteError(
            "block cannot start as the identity",
            where=self.block.name,
            found=reason,
            hint="graft() repeats the last block with its weights",
        )
