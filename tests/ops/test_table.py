"""The operator table: spellings, facts that a schema defaults, zeros, reasons, costs, roles."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import archgraph as ag
from archgraph.ops.operator import Operator, rows
from archgraph.ops.table import (
    ROWS,
    base,
    counters,
    initialiser,
    macs,
    normalisation,
    row,
    variances,
)
from tests.nets import captured, with_parts
from tests.ops.examples import C, Example, Net, aten, heads, image, joined, tokens

SPELLINGS = {
    "concat": image("cat", lambda m, a: torch.concat([a, a], 1)),
    "concatenate": image("cat", lambda m, a: torch.concatenate([a, a], 1)),
    "swapaxes": image("transpose", lambda m, a: a.swapaxes(1, 2)),
    "swapdims": image("transpose", lambda m, a: aten.swapdims(a, 1, 2)),
    "moveaxis": image("movedim", lambda m, a: a.moveaxis((1, 2), (2, 1))),
    "broadcast_to": image("expand", lambda m, a: torch.broadcast_to(a[:, :, :1], (2, C, 6, 6))),
    "linalg_matmul": tokens("matmul", lambda m, a: torch.linalg.matmul(a, a.mT)),
    "negative": image("neg", lambda m, a: torch.negative(a)),
    "arctan": image("atan", lambda m, a: torch.arctan(a)),
    "multiply": image("mul", lambda m, a: torch.multiply(a, a)),
    "divide": image("div", lambda m, a: torch.divide(a, 2.5, rounding_mode="floor")),
    "true_divide": image("div", lambda m, a: torch.true_divide(a, a + 3)),
    "subtract": image("sub", lambda m, a: torch.subtract(a, a, alpha=3)),
    "greater": image("gt", lambda m, a: torch.greater(a, 0.1)),
    "not_equal": image("ne", lambda m, a: torch.not_equal(a, a.relu())),
    "clip": image("clamp", lambda m, a: torch.clip(a, -0.1, 0.2)),
    "expm1": image("expm1", lambda m, a: torch.special.expm1(a)),
    "fliplr": tokens("flip", lambda m, a: torch.fliplr(a)),
    "flipud": tokens("flip", lambda m, a: torch.flipud(a.movedim(1, 0)).movedim(0, 1)),
    "tile": image("repeat", lambda m, a: a.tile(2, 1)),
    "narrow": image("slice", lambda m, a: a.narrow(-3, -3, 3)),
    "hsplit": image("split_with_sizes", lambda m, a: a.hsplit((3,))[1]),
    "dsplit": image("split_with_sizes", lambda m, a: a.dsplit(2)[1]),
    "tensor_split": image("split_with_sizes", lambda m, a: a.tensor_split(3, 1)[1]),
    "ravel": tokens("reshape", lambda m, a: a[0].ravel()[None]),
    "atleast_3d": tokens("matmul", lambda m, a: torch.atleast_3d(a) @ a.mT),
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings_become_one_operator(name):
    net = Net(SPELLINGS[name])
    x = net.input()
    graph, state = captured(net, x, train=False)
    used = {base(n.op) for n in graph.nodes}
    assert SPELLINGS[name].key in used and name not in used - {SPELLINGS[name].key}
    torch.testing.assert_close(ag.build(graph, state)(x), net(x), rtol=0, atol=0)


def test_spellings_name_operators_that_exist():
    for old, found in ROWS.items():
        for name in (old, found.alias) if found.alias else ():
            packet, _, overload = name.partition(".")
            if packet == "true_divide" and "mode" in overload:
                continue  # the table is regular, ATen is not
            assert hasattr(torch.ops.aten, packet), name


def test_an_operator_has_one_row():
    with pytest.raises(ValueError, match="operator mm has two rows"):
        rows({"bmm mm": Operator()}, {"mm": Operator()})
    with pytest.raises(ValueError, match="operator mm has two rows"):
        rows({"bmm mm": Operator(), "mm mv": Operator()})


def test_rows_name_operators_that_exist():
    for name, found in ROWS.items():
        packet, _, overload = name.partition(".")
        if name in ("input", "getitem"):
            continue
        if found.functional:  # in-place operators are named without their underscore
            packet += "" if hasattr(torch.ops.aten, packet) and not overload else "_"
        assert hasattr(getattr(torch.ops.aten, packet), overload or "overloads"), name


def spans(call, operands=1, **params):
    example = Example("", call, "tokens", operands, params=params)
    net = Net(example)
    solved = ag.axes(captured(net, net.input(), train=False).graph)
    return [bool(solved[f"make.{i}.out"].spans) for i in range(operands)]


def test_sums_are_exact_only_over_zeros():
    assert spans(lambda m, a: a.sum(-1)) == [False]
    assert spans(lambda m, a: a.relu().mul(3).neg().sum(-1)) == [False]
    assert spans(lambda m, a: (a * a.sigmoid()).sum(-1)) == [False]
    assert spans(lambda m, a: (a.sigmoid() * m.w).sum(-1), w=(C,)) == [False]  # a masked leaf
    assert spans(lambda m, a: (a.sigmoid() + m.w).sum(-1), w=(C,)) == [True]
    assert spans(lambda m, a: (a + 1).sum(-1)) == [True]
    assert spans(lambda m, a: torch.where(a > 0, a, 1.0).sum(-1)) == [True]
    assert spans(lambda m, a: torch.where(a > 0, a, 0.0).sum(-1)) == [False]
    assert spans(lambda m, a: a.masked_fill(a > 0, 0).sum(-1)) == [False]
    assert spans(lambda m, a: a.masked_fill(a > 0, 1).sum(-1)) == [True]
    assert spans(lambda m, a: a.clamp(0.1, 1).sum(-1)) == [True]
    assert spans(lambda m, a: F.hardtanh(a).sum(-1)) == [False]
    assert spans(lambda m, a: F.threshold(a, 0.1, 0.2).sum(-1)) == [True]
    assert spans(lambda m, a: F.layer_norm(a.mT, (5,), m.w, m.b).sum(1), w=(5,), b=(5,)) == [True]
    assert spans(lambda m, a: F.layer_norm(a.mT, (5,), m.w).sum(1), w=(5,)) == [False]


def test_outer_products_of_an_axis_with_itself_need_both_sides():
    # position (i, j) with i kept and j dropped is x[i] + x[j] = x[i], not zero
    assert spans(lambda m, a: (a[..., None] + a[..., None, :]).sum(-1)) == [True]
    assert spans(lambda m, a: (a[..., None] * a[..., None, :]).sum(-1)) == [False]
    assert spans(lambda m, a: (a[..., None] * a.exp()[..., None, :]).sum(-1)) == [True]


def test_reasons_name_operator_place_and_remedy():
    net = Net(tokens("flip", lambda m, a: a.flip(-1)))
    solved = ag.axes(captured(net, net.input(), train=False).graph)
    reason = solved["make.0.out"].reason
    assert "aten.flip %flip" in reason and "test_table.py:" in reason
    assert reason.endswith("a linear layer or convolution between would free it")


@pytest.mark.parametrize(
    "attend",
    [
        lambda m, q, k, v: joined((heads(q) @ heads(k).mT * 0.5).softmax(-1) @ heads(v)),
        lambda m, q, k, v: torch.einsum(
            "nhqk,nhkd->nqhd",
            torch.einsum("nhqd,nhkd->nhqk", heads(q), heads(k))
            .masked_fill(torch.ones(5, 5).triu(1).bool(), -1e9)
            .softmax(-1),
            heads(v),
        ).flatten(2),
        lambda m, q, k, v: joined(F.scaled_dot_product_attention(heads(q), heads(k), heads(v))),
    ],
    ids=["matmul", "einsum", "fused"],
)
def test_attention_has_roles_however_it_is_spelt(attend):
    net = Net(tokens("", attend, operands=3))
    solved = ag.axes(captured(net, net.input(), train=False).graph)
    roles = [(a.name, a.role) for a in solved.free if a.name.startswith("make")]
    assert roles == [
        ("make.0.heads", "heads"),
        ("make.0.head_dim", "head_dim"),
        ("make.2.value_dim", "value_dim"),
    ]


def test_bilinear_layers_start_and_cost_as_torch_says():
    @with_parts(lambda: {"a": nn.Bilinear(3, 4, 5)})
    def Two(self, x, y):
        return self.a(x, y)

    graph, _ = captured(Two(), torch.rand(2, 3), torch.rand(2, 4))
    found = initialiser(graph, graph.param["a.weight"])
    assert found is not None and found.kind == "uniform" and found.scale == pytest.approx(3**-0.5)
    assert macs(graph, graph.nodes[-1]) == 5 * (3 * 4 + 4)


def test_an_unknown_operator_has_the_empty_row():
    assert row("aten.matrix_exp") == Operator()


def test_variances_and_counters_are_told_from_other_buffers():
    net = nn.Sequential(nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3), nn.InstanceNorm1d(3))
    graph = captured(net, torch.zeros(4, 2, 5)).graph
    assert variances(graph) == ("1.running_var",)
    assert counters(graph) == {"1.num_batches_tracked": 1}


@with_parts(
    lambda: {
        "table": nn.Parameter(torch.randn(1, 4, 8)),
        "norm": nn.LayerNorm(8),
        "fc": nn.Linear(8, 8),
    }
)
def Placed(self, x):
    """A norm of a table of positions, which is a leaf."""
    return self.fc(x) + self.norm(self.table)


def test_what_a_norm_is_of_is_none_of_its_leaves():
    graph = captured(Placed(), torch.zeros(2, 4, 8)).graph
    assert normalisation(graph) == ("norm.weight", "norm.bias")
