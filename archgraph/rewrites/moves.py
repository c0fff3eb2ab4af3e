"""Apply factors to layers whose results are reordered or split before they are used.

For example, one layer computes packed queries, keys and values, but only the queries must be
divided. To find the channels of the queries, the layer's channels are numbered, and the operators
between the layer and the queries are run on these numbers. The number at each position of the
queries is then the channel to divide.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import torch

from archgraph.graph.ir import ArchGraph, Leaf, Node, Polynomial, Ref, Value, size_at
from archgraph.graph.sizes import example_sizes
from archgraph.layout.layouts import Layout
from archgraph.ops.schema import op_schema
from archgraph.ops.table import growth
from archgraph.rewrites.copies import Copies
from archgraph.states.dimension_map import Vector

# An operator's result for numbered channels; several tensors for a split.
Sent: TypeAlias = "torch.Tensor | list[torch.Tensor] | tuple[torch.Tensor, ...]"


class Refusal(Exception):
    """Raised if a factor cannot be applied, with the reason."""


def moved_from(graph: ArchGraph, name: str) -> tuple[list[Node], Node] | None:
    """Return the layer whose values a result contains, and the operators that moved the values.

    Returns None if other operators change the values, or if nothing moves them.
    """
    path = [graph.node[name]]
    while growth(path[-1].op).moves:
        operands = list(path[-1].operands())
        if len(operands) != 1 or not isinstance(operands[0], Ref):
            return None
        path.append(graph.node[operands[0].name])
    layer = path.pop()
    return (path, layer) if path and isinstance(growth(layer.op).weight(layer), Leaf) else None


class MovedFactors:
    """Factors for layers whose results are moved before an operator uses them.

    Attributes:
        factors: Dict from the name of a parameter and a dimension to one factor per new position
            (index along this dimension).
    """

    def __init__(self, copies: Copies, axes: set[str]) -> None:
        self.copies, self.axes = copies, axes
        self.factors: dict[tuple[str, int], Vector] = {}
        self._on: set[str] = set()  # operators on the paths
        # Dict from layer to its numbered result, and the numbers of the channels that arrive.
        self._arrived: dict[str, tuple[torch.Tensor, set[int]]] = {}

    def divide(self, start: str, dim: int) -> None:
        """Divide the channels of the layer whose values an operand contains.

        1. Number the channels of the layer, and run the operators on the numbers.
        2. Each position of the operand along ``dim`` then contains a channel's number. This channel
           gets the factor of the position.
        3. Multiply the weight and bias of the layer by the factors of its channels.

        Raises:
            Refusal: If the layer has other users, or if one channel would get several factors.
        """
        way = moved_from(self.copies.graph, start)
        assert way is not None
        path, layer = way
        self._on |= {n.name for n in path}
        layout, at = self._channels(layer)
        size = len(self.copies.positions(layout))
        numbered = self._numbered(layer.name, at, size)  # 1
        sent: Sent = numbered
        # From the layer on, in the wide graph, where copies have positions of their own.
        for node in path[::-1]:
            sent = self._sent(self._wide.node[node.name], sent)
        assert isinstance(sent, torch.Tensor)
        target = self.copies.solved.value[start][0][dim]
        if not isinstance(target.size, int):
            raise Refusal(f"%{start} combines channels with the batch in one dimension")
        part, factor = self.copies.parts(target, self.axes), np.ones(size)
        if sent.numel():  # 2
            # One column per position of the operand: all channels in the column get its factor.
            numbers = sent.movedim(dim, -1).reshape(-1, sent.shape[dim])
            for column, value in zip(numbers.T.numpy(), part, strict=True):
                factor[column] = value
        self._arrived.setdefault(layer.name, (numbered, set()))[1].update(sent.reshape(-1).tolist())
        self._settle(layer, factor)  # 3

    def _channels(self, layer: Node) -> tuple[Layout, int]:
        """Return the layout of a layer's channels, and their dimension in its result."""
        fact, solved = growth(layer.op), self.copies.solved
        weight = fact.weight(layer)
        assert isinstance(weight, Leaf)
        layout = solved.of(weight.name)[next(iter(fact.affine.values()))]
        at = [i for i, d in enumerate(solved.value[layer.name][0]) if d == layout]
        weights = [v for a in fact.affine if (v := layer.arg(a)) is not None]
        alone = all(isinstance(v, Leaf) and self.copies.only_user(layer, v.name) for v in weights)
        if len(at) != 1 or not alone:
            raise Refusal(f"{layer.op} %{layer.name} shares its weights")
        return layout, at[0]

    def _settle(self, layer: Node, factor: Vector) -> None:
        """Multiply the leaves of a layer; raise if a channel already has another factor."""
        for argument, d in growth(layer.op).affine.items():
            if isinstance(leaf := layer.arg(argument), Leaf):
                before = self.factors.get((leaf.name, d), np.ones(len(factor)))
                if ((before != 1) & (factor != 1) & (before != factor)).any():
                    raise Refusal(f"{layer.op} %{layer.name} takes a position twice")
                self.factors[leaf.name, d] = np.where(factor == 1, before, factor)

    def check(self, start: str, ends: set[str]) -> None:
        """Check that only the operators in ``ends`` use the divided channels.

        Args:
            start: The operand to name in the message.
            ends: Operators that may use the channels.

        Raises:
            Refusal: If other operators use the channels as well.
        """
        for layer, (numbered, arrived) in self._arrived.items():
            if any(arrived & other for other in self._others(layer, numbered, ends)):
                raise Refusal(f"%{start} is also used elsewhere")

    @property
    def _wide(self) -> ArchGraph:
        return self.copies.rewritten.graph

    def _numbered(self, layer: str, dim: int, size: int) -> torch.Tensor:
        """Return a tensor whose values are its positions along a dimension."""
        sizes = example_sizes(self._wide)
        shape = [size_at(s, sizes) for s in self._wide.node[layer].types[0].shape]
        view = [size if i == dim else 1 for i in range(len(shape))]
        # Contiguous, since a moving operator may be a view().
        return torch.arange(size).reshape(view).expand(shape).contiguous()

    def _others(self, layer: str, numbered: torch.Tensor, ends: set[str]) -> Iterator[set[int]]:
        """Yield the numbers of the channels that operators outside the paths use."""
        users = self.copies.graph.users
        pending: list[tuple[str, str, Sent]] = [(layer, u, numbered) for u in users[layer]]
        while pending:
            giver, name, sent = pending.pop()
            if name in ends and giver in self._on:
                continue
            node = self._wide.node[name]
            if growth(node.op).moves and name not in ends:
                moved = self._sent(node, sent)
                pending += [(name, user, moved) for user in users[name]]
            else:
                parts = (sent,) if isinstance(sent, torch.Tensor) else sent
                yield {i for p in parts for i in p.reshape(-1).tolist()}

    def _sent(self, node: Node, sent: Sent) -> Sent:
        """Run an operator that only moves values on channel numbers, with a batch size of one."""
        if node.op == "getitem":
            index = node.arg("index")
            assert isinstance(index, int)
            return sent[index]

        sizes = example_sizes(self._wide)

        def real(value: Value) -> Any:
            match value:
                case Ref():
                    return sent
                case Polynomial():
                    return size_at(value, sizes)
                case tuple():
                    return [real(v) for v in value]
                case _:
                    return value

        called = op_schema(node.op)
        positional, keywords = called.call_args({k: real(v) for k, v in node.args})
        result: Sent = called.overload(*positional, **keywords)
        return result
