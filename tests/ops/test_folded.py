"""Operators with several activations: what is folded into the batch of one is in that of all.

A free axis of all inputs, their heads, is folded into the batch. Cutting it equals masking the
author's model, copies of it keep the function, and a network for a budget runs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import archgraph as ag
from archgraph.layout.layouts import AxisRef, leaves
from archgraph.ops.infer import infer
from archgraph.ops.operator import unknown_axes
from archgraph.ops.table import ROWS, base
from archgraph.rewrites.laws import NOTHING
from tests.nets import captured, with_parts
from tests.ops.folded import (
    APART,
    ONE_ACTIVATION,
    PINNED,
    RANDOM,
    SPANNED,
    SUMMED,
    USES,
    Folded,
    Use,
    input_of,
)
from tests.ops.test_rows import OPERATORS

POSITIONS = ([2, 0], [3], [1, 2, 0])  # of the axes of a use, in turn


def tensors(op):
    """Arguments of an overload that are tensors; a list of them counts as several."""
    types = [str(a.type) for a in op._schema.arguments if not a.is_out]
    return sum(2 if "List[" in t else 1 for t in types if "Tensor" in t)


def overloads(name):
    packet, _, overload = name.partition(".")
    found = getattr(torch.ops.aten, packet, None)
    for each in [overload] if overload else found.overloads() if found is not None else ():
        op = getattr(found, each, None)
        apart = not overload and f"{name}.{each}" in ROWS  # it has a row of its own
        if (
            op is not None
            and not apart
            and not op._schema.is_mutable
            and "out" not in each.split("_")
        ):
            yield op


def test_every_row_that_takes_several_tensors_is_tried_or_says_why_not():
    several = {
        name
        for name, row in ROWS.items()
        if row.rule is not unknown_axes and any(tensors(op) > 1 for op in overloads(name))
    }
    tried = {use.key for use in USES} - {"affine_grid_generator"}  # a tensor, and its batch
    assert several == tried | set(ONE_ACTIVATION)


def folded_in(name):
    """A pointwise operator without a row, of activations in its domain."""
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload)
    required = [a for a in op._schema.arguments if not a.has_default_value()]
    number = packet.startswith(("bitwise", "gcd", "lcm", "__"))

    def call(*inputs):
        given = iter((a > 0).int() if number else a.abs() + 1 for a in inputs)
        return op(*(next(given) if str(a.type) == "Tensor" else 2 for a in required))

    return Use(
        name.removesuffix(".default"), 0, call, sum(str(a.type) == "Tensor" for a in required)
    )


POINTWISE = [use for use in map(folded_in, OPERATORS) if use.count > 1 and use.key not in ROWS]
CHUNKS = [USES[i : i + 9] for i in range(0, len(USES), 9)] + [POINTWISE]


def difference(a, b):
    assert a.shape == b.shape
    a, b = a.detach(), b.detach()
    return float((a - b).abs().max() / b.abs().max().clamp_min(1e-12))


def masked(model, rewritten, state):
    """The author's model with nothing at all positions that a cut drops."""
    kept, _ = rewritten.transfer.push(rewritten.transfer.pull(state))
    wide = copy.deepcopy(model)
    wide.load_state_dict({k: v + NOTHING * (state[k] - v) for k, v in kept.items()})
    return wide


def runs_as(rewritten, state, model, x, compared):
    """A rewritten network runs, has the types that it says, and gives what a model gives."""
    ag.check(rewritten.graph)
    assert infer(rewritten.graph) == rewritten.graph
    results = ag.build(rewritten.graph, rewritten.transfer.pull(state)).eval()(x)
    for use, result, expected in zip(model.uses, results, model(x), strict=True):
        if str(use) in compared:
            assert difference(result, expected) < 1e-9, str(use)


def kind_of(solved, use, number):
    """What the heads of a use are, and their axes."""
    leaves_of = [solved.of(f"make.{number}.{i}.weight")[0] for i in range(use.count)]
    refs = [solved[a.name] for d in leaves_of for a in leaves(d) if isinstance(a, AxisRef)]
    names = list(dict.fromkeys(a.name for a in refs if a.free))
    if not all(a.free for a in refs):
        return "pinned", names
    if any(a.spans for a in refs):
        return "spanned", names
    return "free" if len(set(leaves_of)) == 1 and len(names) == 1 else "apart", names


def expected_kind(use):
    kinds = {"pinned": PINNED, "spanned": SPANNED, "apart": APART}
    return next((kind for kind, listed in kinds.items() if str(use) in listed), "free")


@pytest.mark.sample(15)
@pytest.mark.parametrize("uses", CHUNKS, ids=lambda uses: f"{uses[0]}..{uses[-1]}")
@pytest.mark.filterwarnings("ignore:torch.chain_matmul is deprecated")
def test_what_is_folded_into_the_batch_is_one_axis_of_all_inputs(uses):
    model, x = Folded(uses).double().eval(), input_of()
    graph, state = captured(model, x, train=False)
    ops = {n.op for n in graph.nodes}
    names = {op.removeprefix("aten.") for op in ops} | set(map(base, ops))
    assert {use.key for use in uses} <= names
    solved = ag.axes(graph)
    kinds = {use: kind_of(solved, use, i) for i, use in enumerate(uses)}
    assert {str(u): k for u, (k, _) in kinds.items()} == {str(u): expected_kind(u) for u in uses}

    exact = {str(u) for u, (k, _) in kinds.items() if k != "spanned" and u.key not in RANDOM}
    cut = {n: p for _, names in kinds.values() for n, p in zip(names, POSITIONS, strict=False)}
    small = ag.take(graph, positions=cut)
    runs_as(small, state, masked(model, small, state), x, exact)

    grown = [
        n for u, (k, ns) in kinds.items() for n in ns if k != "spanned" and str(u) not in SUMMED
    ]
    wide = ag.widen(graph, dict.fromkeys(grown, 1.5))
    runs_as(wide, state, model, x, exact)

    affordable = ag.fit(graph, macs=0.8)
    runs_as(affordable, state, masked(model, affordable, state), x, exact)
    if not isinstance(graph.nodes[0].shape[0], int):  # of another batch
        runs_as(small, state, masked(model, small, state), input_of(1, batch=3), exact)
        runs_as(wide, state, model, input_of(1, batch=3), exact)


SIDES, COUNT, POINTS = (4, 2), 4, 2  # scales of a picture, heads, points of a head in a scale


@with_parts(
    lambda: {
        "value": nn.Linear(16, 12),
        "weights": nn.Linear(8, COUNT * len(SIDES) * POINTS),
        "out": nn.Linear(12, 5),
        "offsets": nn.Linear(8, 2 * COUNT * len(SIDES) * POINTS),
    }
)
def DeformableAttention(self, queries, pictures):
    """Of several scales, with offsets from queries that are not the values.

    Source: Zhu et al., *Deformable DETR*, ICLR 2021, eq. 3.
    """
    batch, count, _ = queries.shape
    values = self.value(pictures).view(batch, -1, COUNT, 3)
    shape = batch, count, COUNT, len(SIDES), POINTS
    grids = self.offsets(queries).view(*shape, 2).tanh()
    weights = self.weights(queries).view(batch, count, COUNT, -1).softmax(-1)
    sampled = []
    for scale, part in enumerate(values.split([n * n for n in SIDES], 1)):
        side = SIDES[scale]
        picture = part.flatten(2).transpose(1, 2).reshape(batch * COUNT, -1, side, side)
        grid = grids[:, :, :, scale].transpose(1, 2).flatten(0, 1)
        sampled.append(F.grid_sample(picture, grid, align_corners=False))
    weights = weights.transpose(1, 2).reshape(batch * COUNT, 1, count, -1)
    mixed = (torch.stack(sampled, -2).flatten(-2) * weights).sum(-1)
    return self.out(mixed.view(batch, -1, count).transpose(1, 2))


@with_parts(
    lambda mask: {
        "mask": mask,
        **{name: nn.Linear(8, 8) for name in ("q", "k", "v", "out")},
        "of_head": nn.Linear(8, 4),
        "of_all": nn.Linear(8, 5),
    }
)
def MaskedAttention(self, x):
    """Heads in the batch, and a mask that is made in one of several ways for each of them."""
    batch, count, _ = x.shape
    q, k, v = (
        layer(x).view(batch, count, 4, 2).transpose(1, 2).flatten(0, 1)
        for layer in (self.q, self.k, self.v)
    )
    mask = self.mask(self, x)
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return self.out(mixed.view(batch, 4, count, 2).transpose(1, 2).flatten(2))


MASKS = {
    "per head": lambda m, x: m.of_head(x).transpose(1, 2).flatten(0, 1)[:, None],
    "repeated": lambda m, x: m.of_all(x)[:, None].repeat(1, 4, 1, 1).flatten(0, 1),
    "expanded": lambda m, x: m.of_all(x)[:, None].expand(-1, 4, -1, -1).flatten(0, 1),
    "interleaved": lambda m, x: m.of_all(x).repeat_interleave(4, 0) > -1,
}


@with_parts(
    lambda: {
        **{name: nn.Linear(8, 8) for name in ("first", "second", "both")},
        "out": nn.Linear(8, 3),
    }
)
def TwoBranches(self, x):
    """Two branches in one batch, as for guidance without a classifier, with heads in it."""
    first, second, both = (
        layer(x).view(*x.shape[:2], 4, 2).transpose(1, 2).flatten(0, 1)
        for layer in (self.first, self.second, self.both)
    )
    one, other = (torch.cat([first, second]) * both.repeat(2, 1, 1)).chunk(2)
    mixed = (one - 2 * other).view(x.shape[0], 4, -1, 2).transpose(1, 2)
    return self.out(mixed.flatten(2))


@with_parts(
    lambda: {
        "make": nn.Linear(8, 8),
        "run": nn.GRU(2, 3, batch_first=True),
        "out": nn.Linear(12, 3),
    }
)
def FoldedSequences(self, x):
    """A recurrent layer over the tokens of each head, from first states of zeros."""
    heads = self.make(x).view(*x.shape[:2], 4, 2).transpose(1, 2).flatten(0, 1)
    steps, _ = self.run(heads)
    return self.out(steps.reshape(x.shape[0], 4, -1, 3).transpose(1, 2).flatten(2))


def masked_attention(mask):
    return MaskedAttention(mask), torch.randn(2, 5, 8)


NETS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "deformable": lambda: (DeformableAttention(), torch.randn(2, 5, 8), torch.randn(2, 20, 16)),
    **{f"mask {name}": partial(masked_attention, mask) for name, mask in MASKS.items()},
    "branches": lambda: (TwoBranches(), torch.randn(2, 5, 8)),
    "sequences": lambda: (FoldedSequences(), torch.randn(2, 5, 8)),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", NETS)
def test_heads_in_the_batch_of_several_tensors_are_cut_copied_and_matched(name):
    model, *inputs = NETS[name]()
    model, inputs = model.double().eval(), [x.double() for x in inputs]
    graph, state = captured(model, *inputs, train=False)
    (heads,) = (a for a in ag.axes(graph).free if a.size == 4)

    def gives(rewritten, expected):
        net = ag.build(rewritten.graph, rewritten.transfer.pull(state)).eval()
        assert difference(net(*inputs), expected(*inputs)) < 1e-9

    for small in (ag.take(graph, positions={heads.name: [2, 0]}), ag.fit(graph, macs=0.5)):
        gives(small, masked(model, small, state))
    gives(ag.widen(graph, 1.5), model)
    turned = ag.take(graph, positions={heads.name: [2, 0, 3, 1]}).transfer.pull(state)
    ordered = ag.match(graph, state, turned).order.pull(turned)
    assert all(torch.equal(ordered[key], value) for key, value in state.items())
