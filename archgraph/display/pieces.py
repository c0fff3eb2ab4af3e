"""Grouping of operators into the boxes of a picture, and the arrows between operators."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from archgraph.display.hierarchy import Sections
from archgraph.display.labels import attends, is_parameter, kernel_of, mask_of
from archgraph.graph.ir import ArchGraph, Node, Ref, Value, in_mode
from archgraph.graph.passes import reachable
from archgraph.graph.values import refs
from archgraph.ops import zeros
from archgraph.ops.idioms import idioms
from archgraph.ops.table import growth, row

Detail = Literal["section", "block", "node"]


@dataclass(frozen=True, slots=True)
class Pieces:
    """The operators of a graph, grouped into boxes.

    Attributes:
        boxes: Operators or input of each box, in topological order of the last operators.
        feeds: Dict from each visible operator to the operators whose values it reads.
        owner: Dict from an operator to the index of its block.
        host: Dict from each operator to a visible operator. A visible operator maps to itself; a
            hidden operator (such as a counter of training steps) maps to the operator whose box it
            shares.
        training: Operators that are used only in training.
        masks: Dict from each operator that only computes an attention mask to the operator that
            returns the mask.
    """

    boxes: tuple[tuple[str, ...], ...]
    feeds: Mapping[str, tuple[str, ...]]
    owner: Mapping[str, int]
    host: Mapping[str, str]
    training: frozenset[str]
    masks: Mapping[str, str]


def pieces(graph: ArchGraph, sections: Sections, detail: Detail) -> Pieces:
    """Group the operators of a graph into boxes.

    - With the detail `node`, each operator has its own box.
    - With `block`, operators without weights share the box of the operator before them. Attention
      and the operators that split its heads are one box. Several operators that form a known
      function (an idiom, such as a decomposed RMSNorm) are one box. The computation of a mask is
      also one box.
    - With `section`, each block is one box. Masks are omitted: their inputs lead to the attention.
    """
    # Other operators are only used in training: early exits and auxiliary losses.
    in_eval = reach(graph, graph.outputs, training=False)
    visible, masks = _shown(graph, detail), masks_of(graph)
    beside = aside_of(graph, in_eval) | masks.keys()
    feeds = feeds_of(graph, visible)
    if detail == "section":
        feeds = _past_masks(feeds, masks)
        visible = [name for name in visible if name not in masks]
    masks = {} if detail == "node" else masks
    blocks = [nodes for _, members in sections for _, nodes in members]
    framed = set(visible) - beside
    owner = {n: i for i, nodes in enumerate(blocks) for n in nodes if n in framed}
    training = frozenset(feeds.keys() - in_eval)
    grouping = _Boxes(graph, feeds, owner, training, masks)
    boxes = [[name] for name in feeds]
    if detail != "node":
        boxes = grouping.folded(per_block=detail == "section")
    boxes += [[name] for name in visible if graph.node[name].op == "input"]
    order = {node.name: i for i, node in enumerate(graph.nodes)}
    # Only the last operator of a box has users in other boxes, so this order is topological.
    boxes.sort(key=lambda box: order[box[-1]])
    return Pieces(tuple(map(tuple, boxes)), feeds, owner, _hosts(graph, visible), training, masks)


def _past_masks(
    feeds: Mapping[str, Sequence[str]], masks: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """Return the operators that feed each operator, with each mask replaced by its inputs."""
    past: dict[str, tuple[str, ...]] = {}
    for name, before in feeds.items():
        sources = (past.get(used, ()) if used in masks else (used,) for used in before)
        past[name] = tuple(dict.fromkeys(itertools.chain(*sources)))
    return {name: before for name, before in past.items() if name not in masks}


def _shown(graph: ArchGraph, detail: Detail) -> list[str]:
    """Return the inputs and the operators from which the outputs are computed.

    Operators that create zeros, such as initial states, are omitted unless the detail is `node`.
    """
    needed = reach(graph, graph.outputs, training=None)
    drawn = [n for n in graph.nodes if n.op == "input" or n.name in needed]
    return [n.name for n in drawn if detail == "node" or row(n.op).zero is not zeros.always]


def _hosts(graph: ArchGraph, visible: Sequence[str]) -> dict[str, str]:
    """Map each operator to a visible one: itself, or its first user's, or the next one."""
    host = {name: name for name in visible}
    following = visible[-1] if visible else ""
    for node in reversed(graph.nodes):
        following = node.name if node.name in host else following
        users = (host[user] for user in graph.users[node.name])
        host.setdefault(node.name, next(users, following))
    return {node.name: host[node.name] for node in graph.nodes}


def reach(graph: ArchGraph, roots: Value, *, training: bool | None) -> set[str]:
    """Return the operators from which a value is computed.

    Args:
        graph: The graph.
        roots: The value.
        training: Whether to follow the branch of training or of evaluation. None for both.
    """

    def used(value: Value) -> list[str]:
        return refs(value if training is None else in_mode(value, training))

    return reachable(used(roots), lambda name: used(tuple(v for _, v in graph.node[name].args)))


def aside_of(graph: ArchGraph, in_eval: Collection[str]) -> set[str]:
    """Return the operators outside all blocks: inputs, and heads that are used only in training."""
    aside: set[str] = set()
    for node in reversed(graph.nodes):
        if node.op == "input" or (
            node.name not in in_eval and aside.issuperset(graph.users[node.name])
        ):
            aside.add(node.name)
    return aside


def feeds_of(graph: ArchGraph, visible: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return a dict from each visible operator to the operators whose values it reads.

    If an earlier operator already concatenates the first values of an operator's list (as in a
    dense block), one arrow from the earlier operator replaces the arrows from these values.
    """
    drawn = frozenset(visible)
    names = [name for name in visible if graph.node[name].op != "input"]
    feeds = {
        n: tuple(dict.fromkeys(filter(drawn.__contains__, graph.node[n].uses()))) for n in names
    }
    first: dict[tuple[str, str, tuple[str, ...]], str] = {}
    for name in names:
        node = graph.node[name]
        lists = [
            (key, tuple(refs(value)))
            for key, value in node.args
            if isinstance(value, tuple) and all(isinstance(item, Ref) for item in value)
        ]
        if len(lists) != 1:
            continue
        key, items = lists[0]
        # Compare operators without their lists.
        kind = f"{node.op} {node.with_args(**{key: ()}).args}"
        # The longest common beginning leaves the fewest arrows.
        common = max((n for n in range(len(items)) if (kind, key, items[:n]) in first), default=0)
        if common:
            rest = set(feeds[name]) - set(items[:common]) | set(items[common:])
            before = (used for used in feeds[name] if used in rest)
            feeds[name] = (first[kind, key, items[:common]], *before)
        first.setdefault((kind, key, items), name)
    return feeds


def masks_of(graph: ArchGraph) -> dict[str, str]:
    """Return a dict from each operator that only computes a mask to the operator that returns it.

    Values that depend on a parameter, such as a learned position bias, are not masks. They belong
    to the block that computes them.
    """
    ends = set(graph.output_refs())
    learned = reachable(
        [n for k, users in graph.leaf_users.items() if is_parameter(graph, k) for n in users],
        graph.users.__getitem__,
    )
    masks: dict[str, str] = {}
    # Backwards: whether a node leads only to a mask depends on its users.
    for node in reversed(graph.nodes):
        users = graph.users[node.name]
        if node.op == "input" or node.name in learned | ends or not users:
            continue
        # Operators that only use it as the mask of attention.
        masked = [
            mask_of(user) == node.name and list(user.uses()).count(node.name) == 1
            for user in map(graph.node.__getitem__, users)
        ]
        if all(yes or user in masks for yes, user in zip(masked, users, strict=True)):
            masks[node.name] = node.name if any(masked) else masks[next(iter(users))]
    return masks


@dataclass(frozen=True, slots=True)
class _Boxes:
    """Groups operators into boxes."""

    graph: ArchGraph
    feeds: Mapping[str, tuple[str, ...]]
    owner: Mapping[str, int]
    training: Collection[str]
    masks: Mapping[str, str]

    def folded(self, per_block: bool) -> list[list[str]]:
        """Return the boxes, as lists of operators.

        Args:
            per_block: Whether all operators of a block share one box.
        """
        boxes: dict[int, list[str]] = {}
        settled, rest = self.settled(), list[str]()
        for name in self.feeds:
            part = self.owner.get(name) if per_block else None
            (rest if part is None else boxes.setdefault(part, [])).append(name)
        result = list(boxes.values())
        for chain in self.chains(rest, settled):
            # A head that only training has is also one box.
            aside = per_block and chain[0] in self.training
            alone = aside or settled.get(chain[0]) == chain[-1]
            result += [chain] if alone else self.split(chain)
        return result

    def settled(self) -> dict[str, str]:
        """Return a dict from each operator of a special box to the last operator of this box.

        1. A mask, an idiom of several operators within one block, and attention are special boxes.
        2. Operators that only move values into these boxes belong to them. Before attention, this
           applies to all operators without weights.
        """
        graph = self.graph
        boxes = {
            name: one.nodes[-1]
            for name, one in idioms(graph).items()
            if one.several and all(self.together(n, name) for n in one.nodes)
        }
        boxes |= self.masks
        for name in reversed([*self.feeds]):
            node = graph.node[name]
            if attends(graph, node):  # 1
                boxes.setdefault(name, name)
            users = {boxes.get(user, "") for user in graph.users[name]}
            if len(users) == 1 and self.serves(node, users.pop()):
                boxes.setdefault(name, boxes[graph.users[name][0]])  # 2
        return boxes

    def serves(self, node: Node, last: str) -> bool:
        """Return whether an operator belongs to the only box that uses it, which ends in `last`."""
        if not last or not self.together(node.name, last):
            return False
        weighted = any(is_parameter(self.graph, leaf) for leaf in node.leaves())
        attention = attends(self.graph, self.graph.node[last])
        return growth(node.op).moves or (attention and not weighted)

    def chains(self, names: Sequence[str], settled: Mapping[str, str]) -> list[list[str]]:
        """Return maximal chains, in which each operator is the only user of the one before it."""
        ends = set(self.graph.output_refs())
        users = Counter(itertools.chain(*self.feeds.values()))
        chains: dict[str, list[str]] = {}
        for name in names:
            before = self.feeds[name]
            tail = before[0] if len(before) == 1 else None
            if name in settled:
                chains[name] = chains.setdefault(settled[name], [])
            elif (
                tail in chains
                and users[tail] == 1
                and tail not in ends
                and (tail not in settled or attends(self.graph, self.graph.node[tail]))
                and self.together(tail, name)
            ):
                chains[name] = chains[tail]
            else:
                chains[name] = []
            chains[name].append(name)
        return list({id(chain): chain for chain in chains.values()}.values())

    def together(self, one: str, other: str) -> bool:
        """Return whether two operators are in the same block and in the same modes."""
        same = self.owner.get(one) == self.owner.get(other)
        return same and (one in self.training) == (other in self.training)

    def split(self, chain: Sequence[str]) -> Iterator[list[str]]:
        """Cut a chain so that each piece has at most one operator with weights, or one attention.

        Other operators belong to the preceding operator with weights (conv, norm, relu). At the
        start of a chain, they belong to the following one (norm, relu, conv).
        """
        nodes = [self.graph.node[name] for name in chain]
        attention = {n.name for n in nodes if attends(self.graph, n)}
        mixing = [i for i, n in enumerate(nodes) if n.name in attention or kernel_of(self.graph, n)]
        leads = not mixing or mixing[0] == 0 or nodes[mixing[0]].name in attention
        cuts = mixing[1:] if leads else [i + 1 for i in mixing[:-1]]
        for start, stop in zip([0, *cuts], [*cuts, len(chain)], strict=True):
            yield list(chain[start:stop])
