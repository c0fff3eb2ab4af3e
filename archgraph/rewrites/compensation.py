"""Compute factors on parameters that preserve the function when positions are repeated.

If positions are repeated, an operator that sums products over the axis adds every copy. To
compensate, one factor of each product is divided by the number of copies. This factor is a weight
of the operator if possible. Otherwise, the layers that compute an operand are divided
(:class:`_Upstream`). Other operators along an axis (norms, softmaxes) cannot be compensated: some
return the same result if every position is repeated equally often, others never do.

Source: Chen et al., *Net2Net*, ICLR 2016, §2.2, for a sum over a weight; FedADP, Algorithm 2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from archgraph.analysis.axes import Contraction
from archgraph.analysis.positions import touched
from archgraph.graph.ir import Leaf, Node, Ref
from archgraph.graph.passes import reachable
from archgraph.layout.layouts import AxisRef, Layout, Prod, leaves
from archgraph.ops.operator import Growth
from archgraph.ops.table import growth, offset
from archgraph.rewrites.copies import Copies
from archgraph.rewrites.moves import MovedFactors, Refusal, moved_from
from archgraph.states.dimension_map import Vector

# One factor per new position, by leaf and dimension.
Factors = dict[tuple[str, int], Vector]


def compensation(copies: Copies) -> tuple[Factors, dict[str, str]]:
    """Return factors that undo the effect of copies, and the axes that cannot be compensated.

    The first dict maps the name of a parameter, buffer or constant and a dimension to one factor
    per new position. The second dict maps each axis that cannot be compensated to the reason.
    """
    solved = copies.solved
    work = _Compensation(copies)
    refused: dict[str, str] = {}

    def refuse(layout: Layout, reason: str) -> None:
        for leaf in leaves(layout):
            if isinstance(leaf, AxisRef) and leaf.name in copies.index:
                refused.setdefault(leaf.name, reason)

    for name, layout in solved.runs:
        if touched(layout, copies.index):
            if reason := _runs_over(copies, copies.graph.node[name], layout):
                refuse(layout, reason)
    for contraction in solved.contractions:
        if touched(contraction.layout, copies.index):
            try:
                work.divide(contraction)
            except Refusal as refusal:
                refuse(contraction.layout, str(refusal))
    return work.factors, refused


def _runs_over(copies: Copies, node: Node, layout: Layout) -> str:
    """Return why copies change the result of an operator along a layout; empty if they do not."""
    kind = growth(node.op).repeated(node)
    where = f"{node.op} in {node.scope}" if node.scope else f"{node.op} %{node.name}"
    if kind == "never":
        return f"{where} runs over this axis"
    # Equal parts differ in their last bits, since they add up to exactly one.
    if kind == "uniform" and any(np.ptp(part) > 1e-12 for part in _factor_parts(copies, layout)):
        return (
            f"{where} runs over this axis, so every position must be copied equally often: "
            "choose a multiple of the old size"
        )
    return ""


def _factor_parts(copies: Copies, layout: Layout) -> list[Vector]:
    """Return the parts of the copies along each factor of a layout, without the batch."""
    factors = layout.factors if isinstance(layout, Prod) else (layout,)
    return [copies.parts(factor) for factor in factors if isinstance(factor.size, int)]


class _Compensation:
    """Collects factors; each contraction adds its own."""

    def __init__(self, copies: Copies) -> None:
        self.copies, self.graph = copies, copies.graph
        self.factors: Factors = {}
        self.sums: dict[str, list[Contraction]] = {}
        for contraction in copies.solved.contractions:
            self.sums.setdefault(contraction.node, []).append(contraction)

    def divide(self, contraction: Contraction) -> None:
        """Divide one factor of each product in a sum: a leaf if possible, otherwise an operand."""
        weights = [(v.name, dim) for v, dim in contraction.operands if isinstance(v, Leaf)]
        axes = self.copies.axes_in(contraction.layout)
        # Divide only the first possible leaf: a second one would divide the product twice.
        if any(self._divide_leaf(name, dim, axes) for name, dim in weights):
            return
        problems = []
        for value, dim in contraction.operands:
            if isinstance(value, Ref):
                try:
                    # Divide only the first possible operand: it compensates for all copies.
                    self._settle(_Upstream(self.copies, contraction, self.sums).factors(value, dim))
                    return
                except Refusal as refusal:
                    problems.append(str(refusal))
        if not problems:
            twice = any(_squares(contraction, name) for name, _ in weights)
            shared = "other operators use its weight as well"
            problems = ["it multiplies a weight by itself" if twice else shared]
        node = self.graph.node[contraction.node]
        where = f" in {node.scope}" if node.scope else ""
        raise Refusal(f"{node.op}{where} sums over this axis: {'; '.join(dict.fromkeys(problems))}")

    def _divide_leaf(self, name: str, dim: int, axes: set[str]) -> bool:
        """Divide a leaf along a dimension if all its users sum over these axes of the leaf."""
        if self.graph.param[name].role == "constant":  # a transfer does not change its values
            return False
        for user in self.graph.leaf_users[name]:
            uses = [*self.graph.node[user].operands()].count(Leaf(name))
            sums = [
                c for c in self.sums.get(user, ()) for o in c.operands if o == (Leaf(name), dim)
            ]
            if len(sums) != uses or any(_squares(c, name) for c in sums):
                return False
        part = self.copies.parts(self.copies.solved.of(name)[dim], axes)
        # Two sums may divide the same leaf only by the same numbers.
        before = self.factors.setdefault((name, dim), part)
        return np.array_equal(before, part)

    def _settle(self, factors: Factors) -> None:
        """Add factors; raise if the same positions already compensate for another sum."""
        # Check all of them before writing any, so that a refused operand leaves no factors.
        for key, factor in factors.items():
            before = self.factors.get(key)
            if before is not None and ((before != 1) & (factor != 1)).any():
                raise Refusal(f"{key[0]} already compensates for another sum")
        for key, factor in factors.items():
            self.factors[key] = self.factors.get(key, np.ones(len(factor))) * factor


def _squares(contraction: Contraction, name: str) -> bool:
    """Return whether a leaf is multiplied by itself, so that dividing it would count twice."""
    return sum(v == Leaf(name) for v, _ in contraction.operands) > 1


class _Upstream:
    """Finds the leaves whose division divides an operand of a contraction.

    The search walks backwards from the operand:

    - At a layer with a weight, it divides the layer's leaves and stops.
    - At an elementwise product with a weight (in a norm), it divides this weight.
    - At an operator whose result scales with its operands, it continues with the operands.
    - Where operators only move values of a layer, :mod:`archgraph.rewrites.moves` finds the
      channels to divide.

    At the end, no operator outside these paths may use a value on them.

    Attributes:
        axes: Axes with copies that the contraction sums over.
        inside: Operators on the paths, whose results are divided.
        moved: Dict from each result that is a layer's result in another order to the dimension to
            divide.
        beside: Operands of operators in ``inside`` that are not divided.
        divided: Factors on the leaves so far.
    """

    def __init__(
        self, copies: Copies, contraction: Contraction, sums: Mapping[str, Sequence[Contraction]]
    ) -> None:
        self.copies, self.graph = copies, copies.graph
        self.contraction, self.sums = contraction, sums
        self.axes = copies.axes_in(contraction.layout)
        self.inside: set[str] = set()
        self.moved: dict[str, int] = {}
        self.beside: set[str] = set()
        self.divided: Factors = {}

    def factors(self, operand: Ref, dim: int) -> Factors:
        """Return the factors that divide an operand along a dimension."""
        start = operand.name
        pending: list[tuple[str, int | None]] = [(start, dim)]
        while pending:
            name, at = pending.pop()
            if name not in self.inside and name not in self.moved:
                pending += self._before(name, at)
        if self.moved:
            moved = MovedFactors(self.copies, self.axes)
            for name, at in self.moved.items():
                moved.divide(name, at)
            moved.check(next(iter(self.moved)), self.inside | {self.contraction.node})
            for key, factor in moved.factors.items():
                self.divided[key] = self.divided.get(key, np.ones(len(factor))) * factor
        self._check_uses(start)
        return self.divided

    def _before(self, name: str, at: int | None) -> list[tuple[str, int | None]]:
        """Divide the leaves of an operator, and return its operands that must be divided as well.

        Each operand comes with the dimension to divide, or None if it is unknown.
        """
        node = self.graph.node[name]
        fact = growth(node.op)
        if fact.moves and at is not None and moved_from(self.graph, name):
            self.moved[name] = at
            return []
        self.inside.add(name)
        operands = list(node.operands())
        if fact.affine and isinstance(fact.weight(node), Leaf):
            # The path ends: the layer's input is not divided, so it must not be on the path.
            self._divide_layer(node, fact.affine)
            self.beside |= {i.name for i in operands if isinstance(i, Ref)}
            return []
        follow = self._carriers(node, fact, operands)
        self.beside |= {i.name for i in Counter(operands) - Counter(follow) if isinstance(i, Ref)}
        before: list[tuple[str, int | None]] = []
        for item in follow:
            if isinstance(item, Leaf):
                self._divide_operand(node, item.name)
                continue
            missing = len(node.shape) - len(self.graph.node[item.name].shape)
            aligned = at - missing if fact.pointwise and at is not None and at >= missing else None
            before.append((item.name, aligned))
        return before

    def _carriers(
        self, node: Node, fact: Growth, operands: Sequence[Ref | Leaf]
    ) -> Sequence[Ref | Leaf]:
        """Return the operands to which an operator passes a factor on."""
        if fact.scales == "all" and not offset(node):
            return operands
        if fact.scales == "first":
            return operands[:1]
        if fact.scales == "one":
            return self._one_factor(node, operands)
        if fact.bilinear and len(bringing := self._bringing(node, operands)) == 1:
            return bringing
        raise Refusal(f"{node.op} %{node.name} does not scale with its operands")

    def _one_factor(self, node: Node, operands: Sequence[Ref | Leaf]) -> Sequence[Ref | Leaf]:
        """Return the operand of a product to divide: an unshared weight, or the learned result."""
        weights = [i for i in operands if isinstance(i, Leaf) and self._can_divide(node, i)]
        learned = [i for i in operands if isinstance(i, Ref) and self._has_weights(i.name)]
        if weights or len(learned) < 2:
            return weights[:1] or learned or operands[:1]
        if shifted := [leaf for item in learned for leaf in self._shifted(item.name)]:
            raise Refusal(f"{shifted[0]} is added to a number, which would have to be divided too")
        raise Refusal(f"{node.op} %{node.name} multiplies two results")

    def _bringing(self, node: Node, operands: Sequence[Ref | Leaf]) -> list[Ref | Leaf]:
        """Return the operands of a product that have the axes; empty if it sums over the axes."""

        def has(layouts: Iterable[Layout]) -> bool:
            return any(self.copies.axes_in(layout) & self.axes for layout in layouts)

        if has(c.layout for c in self.sums.get(node.name, ())):
            return []
        solved = self.copies.solved
        return [
            i
            for i in operands
            if has(solved.of(i.name) if isinstance(i, Leaf) else solved.value[i.name][0])
        ]

    def _can_divide(self, node: Node, leaf: Leaf) -> bool:
        """Return whether an unshared leaf multiplies the axes in exactly one dimension."""
        layouts = self.copies.solved.of(leaf.name)
        dims = [d for d in layouts if self.copies.axes_in(d) & self.axes]
        return (
            len(dims) == 1
            and self.axes <= self.copies.axes_in(dims[0])
            and self.graph.param[leaf.name].role != "constant"
            and self.copies.only_user(node, leaf.name)
        )

    def _shifted(self, name: str) -> list[str]:
        """Return the leaf to which a number is added on the way to a result; empty if none is."""
        node, is_shifted = self.graph.node[name], False
        while len(operands := [*node.operands()]) == 1:
            is_shifted |= growth(node.op).scales == "all" and offset(node)
            if isinstance(operands[0], Leaf):
                return [operands[0].name] if is_shifted else []
            node = self.graph.node[operands[0].name]
        return []

    def _divide_layer(self, node: Node, affine: Mapping[str, int]) -> None:
        """Divide a layer's weight and bias."""
        for argument, dim in affine.items():
            value = node.arg(argument)
            if value is None:
                continue
            if not isinstance(value, Leaf) or not self.copies.only_user(node, value.name):
                raise Refusal(f"{node.op} %{node.name} shares its {argument}")
            layout = self.copies.solved.of(value.name)[dim]
            if not self.axes <= self.copies.axes_in(layout):
                raise Refusal(f"{node.op} %{node.name} does not produce this axis")
            self.divided[value.name, dim] = self.copies.parts(layout, self.axes)

    def _divide_operand(self, node: Node, name: str) -> None:
        """Divide a leaf that an operator passes on unchanged."""
        left = set(self.axes)
        if self.graph.param[name].role != "constant" and self.copies.only_user(node, name):
            for dim, layout in enumerate(self.copies.solved.of(name)):
                if here := self.copies.axes_in(layout) & self.axes:
                    left -= here
                    self.divided[name, dim] = self.copies.parts(layout, self.axes)
        if left:
            raise Refusal(f"{node.op} %{node.name} takes {name}")

    def _check_uses(self, start: str) -> None:
        """Check that the operand is used once, and values on the paths nowhere else."""
        if both_ways := sorted(self.beside & {*self.inside, *self.moved}):
            raise Refusal(f"%{both_ways[0]} reaches it in two ways")
        users = {u for n in self.inside for u in self.graph.users[n]} - self.inside
        others = sorted(users - {self.contraction.node})
        if others or self.inside & set(self.graph.output_refs()):
            raise Refusal(f"%{start} is also used by %{(others or ['the output'])[0]}")
        if sum(v == Ref(start) for v, _ in self.contraction.operands) != 1:
            node = self.graph.node[self.contraction.node]
            raise Refusal(f"{node.op} %{node.name} takes %{start} twice")

    def _has_weights(self, name: str) -> bool:
        """Return whether a result depends on parameters."""
        node, param = self.graph.node, self.graph.param
        before = reachable([name], lambda name: node[name].uses())
        return any(param[leaf].role == "parameter" for n in before for leaf in node[n].leaves())
