"""Merge adapters and step sizes into a network's weights, so that its original class loads them.

The product of a low-rank adapter is added to its layer's weight. A step size is multiplied into the
weights of the layer before it.
"""

from __future__ import annotations

from torch import Tensor

from archgraph.analysis.side_branches import SideBranch, low_rank_branches, product_of, without
from archgraph.capture.trace import Traced
from archgraph.errors import RewriteError
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import (
    ArchGraph,
    Leaf,
    Mode,
    Node,
    Ref,
    Value,
    in_mode,
    replace,
    walk,
)
from archgraph.graph.passes import renumber
from archgraph.module.build import state_dict
from archgraph.ops.check import check
from archgraph.ops.table import offset, row
from archgraph.rewrites.branches import STEP_SIZE, is_branch_leaf
from archgraph.rewrites.insert import following, tidied
from archgraph.states import State


@takes_graph
def fold(graph: ArchGraph, state: State) -> Traced:
    """Merge low-rank adapters and step sizes into the weights and remove them from the network.

    The network computes the same function in evaluation. The parameters of the result have the
    names of the traced model, so the traced model can load the state with ``strict=True``. Factors
    that apply only in training (HeteroFL's scaler) are removed. Bottleneck adapters remain, because
    they are not linear and cannot be merged.

    Args:
        graph: The architecture.
        state: State of the architecture.

    Raises:
        GraphError: If the state does not match the architecture.
        RewriteError: If a weight that would change is tied to another layer; if a step size
            multiplies a value that is not the result of a layer.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> from archgraph.rewrites.lora import add_lora
        >>> net, x = torch.nn.Linear(3, 2), torch.ones(1, 3)
        >>> graph, state = trace(net, x)
        >>> adapted = add_lora(graph, 1)
        >>> tuned = adapted.transfer.pull(state) | {"lora.up.weight": torch.ones(2, 1)}
        >>> net.load_state_dict(fold(adapted.graph, tuned).state)
        <All keys matched successfully>
    """
    state_dict(graph, state)  # checks that it is the graph's state
    folding = _Folding(graph, dict(state))
    folding.adapters()
    folding.step_sizes()
    new = renumber(folding.graph)
    check(new)
    return Traced(new, {name: folding.state[name] for name in new.state_names})


class _Folding:
    """A graph and its state while adapters and step sizes are merged into weights."""

    def __init__(self, graph: ArchGraph, state: dict[str, Tensor]) -> None:
        self.graph = graph
        self.state = state

    def _changed(self, leaf: str, value: Tensor) -> None:
        self.state[leaf] = value.to(self.state[leaf].dtype)

    def _without(self, nodes: dict[str, Value], leaves: set[str]) -> None:
        """Remove leaves and operators; ``nodes`` maps each operator to its replacement."""
        # In order, since a replacement may itself be removed.
        stand_in: dict[str, Value] = {}
        instead = following(stand_in)
        for name, value in nodes.items():
            stand_in[name] = replace(value, instead)
        rest = tuple(n.mapped(instead) for n in self.graph.nodes if n.name not in stand_in)
        params = tuple(p for p in self.graph.params if p.name not in leaves)
        new = self.graph.mapped(instead).replace(nodes=rest, params=params)
        self.graph = tidied(self.graph, new)

    def adapters(self) -> None:
        """Add each low-rank adapter to its layer's weight."""
        # The second adapter of a layer is found after the first one is removed.
        while branches := low_rank_branches(self.graph):
            done: dict[str, SideBranch] = {}
            for branch in branches:
                if not branch.weight:
                    raise _refused(
                        branch.down,
                        "the weight that it adapts is computed, or an operator comes first",
                    )
                first = done.setdefault(branch.weight, branch)
                layers = {b.layer for b in branches if _pair(b) == _pair(first)}
                users = set(self.graph.leaf_users[branch.weight])
                if _pair(branch) != _pair(first) or users != layers:
                    raise _refused(branch.weight, "the weight is also used without the adapter")
                if first is branch:
                    old = self.state[branch.weight].double()
                    up, down = (self.state[n].double() for n in (branch.up, branch.down))
                    self._changed(
                        branch.weight, old + branch.scale * product_of(branch, up, down, old.shape)
                    )
            gone = {leaf for b in branches for leaf in (b.down, b.up)}
            params = tuple(p for p in self.graph.params if p.name not in gone)
            self.graph = without(self.graph, branches)[0].replace(params=params)

    def step_sizes(self) -> None:
        """Multiply step sizes into weights, and drop factors that apply only in training."""
        gone: dict[str, Value] = {}
        leaves: set[str] = set()
        for node in self.graph.nodes:
            if row(node.op).growth.scales != "one" or node.arg("self") is None:
                continue
            factor, value = node.arg("other"), node.arg("self")
            if isinstance(factor, Leaf) and is_branch_leaf(factor.name, STEP_SIZE):
                self._scale(in_mode(value, False), self.state[factor.name].double(), factor.name)
                leaves.add(factor.name)
                gone[node.name] = value
            elif isinstance(factor, Mode) and factor.eval == 1:
                gone[node.name] = value
        self._without(gone, leaves)

    def _scale(self, value: Value, factor: Tensor, where: str) -> None:
        """Multiply the weights of the layers that compute a result by a factor.

        1. For a leaf without other users, multiply the leaf. For a layer, multiply its weight and
           bias.
        2. For an operator that scales with its operands, continue with the operands.
        """
        if isinstance(value, Leaf) and value.name in self.state:  # 1
            updated = value.name in dict(self.graph.updates)
            if updated or len(self.graph.leaf_users[value.name]) != 1:
                raise _refused(where, f"{value.name} is also used elsewhere")
            if not self.state[value.name].is_floating_point():
                raise _refused(where, f"{value.name} has integers")
            self._changed(value.name, self.state[value.name].double() * factor)
            return
        if not isinstance(value, Ref):
            raise _refused(where, "its operand is not the result of a layer")
        node = self.graph.node[value.name]
        if len(self.graph.users[node.name]) != 1 or node.name in self.graph.output_refs():
            raise _refused(where, f"the result of {node.scope or node.name} is also used elsewhere")
        growth = row(node.op).growth
        if growth.affine:
            for name in self._weights(node, where):
                self._changed(name, self.state[name].double() * factor)
        elif operands := _multiplying(node):  # 2
            for operand in operands:
                self._scale(operand, factor, where)
        else:
            raise _refused(where, f"{node.op} does not scale with its operand")

    def _weights(self, node: Node, where: str) -> list[str]:
        """Return the weight and bias of a layer; raise if other layers use them as well."""
        growth = row(node.op).growth
        values = [v for argument in growth.affine if (v := node.arg(argument)) is not None]
        names = [value.name for value in values if isinstance(value, Leaf)]
        alone = all(self.graph.leaf_users[name] == (node.name,) for name in names)
        if not isinstance(growth.weight(node), Leaf) or len(names) != len(values) or not alone:
            raise _refused(where, f"{node.scope or node.name} has no weights of its own")
        return names


def _multiplying(node: Node) -> list[Value]:
    """Return the operands whose multiplication by a factor multiplies the result by this factor."""
    scales = row(node.op).growth.scales
    if not scales or (scales == "all" and offset(node)):
        return []
    values = [item for _, v in node.args for item in walk(in_mode(v, False))]
    operands = [v for v in dict.fromkeys(values) if isinstance(v, Ref | Leaf)]
    if scales == "all":
        return [*operands]
    if scales == "one":  # for a product, a result rather than a leaf
        operands.sort(key=lambda v: isinstance(v, Leaf))
    return [v for v in operands[:1] if values.count(v) == 1]  # a square would scale twice


def _refused(where: str, reason: str) -> RewriteError:
    return RewriteError("cannot be folded into weights", where=where, found=reason)


def _pair(branch: SideBranch) -> tuple[str, str, float]:
    return branch.down, branch.up, branch.scale
