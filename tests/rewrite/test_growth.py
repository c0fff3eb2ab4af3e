"""Wider, deeper, in parts, with step sizes, adapters and exits: closed forms and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.errors import ArchGraphError, AxisError, GraphError, RewriteError
from archgraph.rewrite.deepen import _covered
from archgraph.rewrite.graft import grafted
from archgraph.rewrite.laws import same_function
from archgraph.rewrite.widen import refusals
from tests import structures as nets
from tests.structures import graph_of


def mlp(hidden=4):
    return nn.Sequential(nn.Linear(3, hidden), nn.ReLU(), nn.Linear(hidden, 2))


def traced(net, *args):
    return ag.trace(net, *args, train=False)


# -- widen ------------------------------------------------------------------------------------


def test_copies_share_what_goes_out():
    graph, state = traced(mlp(), torch.zeros(1, 3))
    wide = ag.widen(graph, positions={"0.out": [0, 1, 2, 3, 1, 1]})
    found = wide.transfer.pull(state)
    torch.testing.assert_close(
        found["0.weight"], state["0.weight"][[0, 1, 2, 3, 1, 1]], rtol=0, atol=0
    )
    parts = torch.tensor([1, 1 / 3, 1, 1, 1 / 3, 1 / 3])
    expected = state["2.weight"][:, [0, 1, 2, 3, 1, 1]] * parts
    torch.testing.assert_close(found["2.weight"], expected, rtol=1e-6, atol=0)  # thirds in float32


def test_copies_depend_on_seed_and_sizes_alone():
    graph = traced(mlp(), torch.zeros(1, 3)).graph
    one, two = (ag.widen(graph, sizes={"0.out": 7}).transfer for _ in range(2))
    assert one == two
    assert one != ag.widen(graph, sizes={"0.out": 7}, seed=1).transfer


class Packed(nn.Module):
    """Queries, keys and values in one projection; scores written out."""

    def __init__(self, bias=True) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(6, 36, bias=bias), nn.Linear(12, 6)
        self.offset = nn.Parameter(torch.randn(1, 3, 1, 4))

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 3, 4).permute(2, 0, 3, 1, 4)
        scores = (q + self.offset) @ k.transpose(-2, -1) * 0.5
        y = scores.softmax(-1) @ v
        return x + self.out(y.transpose(1, 2).reshape(*x.shape[:2], 12))


def test_heads_and_their_size_widen():
    graph = traced(Packed(), torch.randn(2, 5, 6)).graph
    assert refusals(graph) == {}
    wide = ag.widen(graph, sizes={"heads": 5, "head_dim": 6}, verify=True)
    assert wide.graph.param["qkv.weight"].shape == (3 * 5 * 6, 6)


def test_a_norm_over_an_axis_needs_as_many_copies_of_each():
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    graph = traced(net, torch.zeros(1, 3)).graph
    with pytest.raises(RewriteError, match=r"0\.out: cannot be widened exactly.*layer_norm in 1"):
        ag.widen(graph, 1.5)
    assert same_function(graph, ag.widen(graph, 3.0), tolerance=1e-12) <= 1e-12
    assert ag.widen(graph, 1.5, approximate=True).graph.param["1.weight"].shape == (6,)


class Tied(nn.Module):
    """The table that makes the stream also reads it."""

    def __init__(self, between: nn.Module) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(7, 4), between

    def forward(self, x):
        return nn.functional.linear(self.norm(self.embed(x)), self.embed.weight)


def test_a_tied_head_is_made_up_for_in_front_of_it():
    words = torch.randint(0, 7, (2, 5))
    graph = traced(Tied(nn.LayerNorm(4)), words).graph
    wide = ag.widen(graph, 2.0, verify=True)
    assert wide.graph.param["embed.weight"].shape == (7, 8)
    graph = traced(Tied(nn.Tanh()), words).graph
    assert list(refusals(graph)) == ["embed.out"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"sizes": {"0.out": 3}}, r"impossible size; found 3; .* from 4; take and narrow make"),
        ({"positions": {"0.out": [0, 1, 2]}}, r"every old position must occur; found no 3"),
        ({"positions": {"0.out": [0, 1, 2, 3, 4]}}, r"position outside the axis; found 4"),
        ({"factors": {"0.out": 0}}, r"not a factor; found 0; expected a number from 1 on"),
        ({"factors": {"0.out": 0.5}}, r"not a factor; found 0\.5; expected a number from 1 on"),
        ({"factors": {"0.out": "6"}}, r"not a factor; found 6"),
        ({"factors": {"0.out": float("nan")}}, r"not a factor"),
        ({"positions": {"0.out": [0.0, 1.0, 2.0, 3.0]}}, r"list of whole numbers"),
        ({"positions": {"0.out": [[0], [1, 2]]}}, r"list of whole numbers"),
        ({"factors": True}, r"cannot choose axes; found True; expected a factor, or one by axis"),
        ({"factors": "0.out"}, r"cannot choose axes"),
        ({"sizes": {"2.out": 5}}, r"output"),
        ({"sizes": {"0.aut": 5}}, r"expected 0\.out"),
        ({}, r"no axes are chosen"),
    ],
)
def test_impossible_growth(spec, message):
    graph = traced(mlp(), torch.zeros(1, 3)).graph
    with pytest.raises((RewriteError, AxisError), match=message):
        ag.widen(graph, **spec)


def test_narrow_as_printed():
    graph, state = traced(mlp(5), torch.zeros(1, 3))
    small = ag.narrow(graph, sizes={"0.out": 3})
    found = small.transfer.pull(state)
    torch.testing.assert_close(found["0.weight"], state["0.weight"][:3], rtol=0, atol=0)
    # FedADP, Algorithm 3: each kept column gets a third of the sum of the two that go
    expected = state["2.weight"][:, :3] + state["2.weight"][:, 3:].sum(1, keepdim=True) / 3
    torch.testing.assert_close(found["2.weight"], expected, rtol=1e-6, atol=1e-7)
    with pytest.raises(RewriteError, match="impossible size"):
        ag.narrow(graph, sizes={"0.out": 6})
    with pytest.raises(RewriteError, match="unknown mode; found papr; expected paper, net2net"):
        ag.narrow(graph, sizes={"0.out": 3}, mode="papr")  # type: ignore[arg-type]  # wrong on purpose


class Between(nn.Module):
    """Something of a test's own between two layers."""

    def __init__(self, function) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 4)
        self.p, self.w = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(2, 4))
        self.function = function

    def forward(self, x):
        return self.function(self, self.a(x))


def between(function):
    return traced(Between(function), torch.randn(5, 3)).graph


@pytest.mark.parametrize(
    ("spread", "exact"),
    [
        (lambda h: h.std(-1, keepdim=True), False),
        (lambda h: h.var(-1, keepdim=True, unbiased=False), True),
        (lambda h: h.var(-1, keepdim=True, correction=1), False),
        (lambda h: torch.std_mean(h, dim=-1, keepdim=True)[0], False),
        (lambda h: torch.var_mean(h, dim=-1, keepdim=True, correction=0)[0], True),
    ],
)
def test_only_a_variance_by_their_number_bears_copies(spread, exact):
    graph = between(lambda m, h: m.b((h - h.mean(-1, keepdim=True)) / (spread(h) + 1)))
    reason = refusals(graph, 2.0).get("a.out", "")
    if exact:
        ag.widen(graph, {"a.out": 2.0}, verify=True)
    assert reason.endswith("runs over it") is not exact


TIMES = {
    "einsum": lambda m, h: m.b(h) @ torch.einsum("oi,pi->op", m.w, m.w),
    "dot": lambda m, h: m.b(h) * torch.dot(m.p, m.p),
    "square": lambda m, h: nn.functional.linear(h.tanh(), m.w * m.w),
    "quotient": lambda m, h: h.tanh() @ (m.p / m.p),
    "gram": lambda m, h: h.tanh() @ nn.functional.linear(m.c.weight, m.c.weight),
    "residual": lambda m, h: nn.functional.linear(h + m.c(h), m.w) @ m.w @ m.p,
    "results": lambda m, h: torch.einsum("bi,bi->b", h / h, m.c(h).tanh()),
}


@pytest.mark.parametrize("function", TIMES.values(), ids=TIMES)
def test_what_is_multiplied_by_itself_is_not_divided_twice(function):
    graph = between(function)
    refused = refusals(graph, 2.0)
    assert refused
    for axis in ag.axes(graph).free:
        if axis.name not in refused:
            ag.widen(graph, {axis.name: 2.0}, verify=True)


def test_widths_are_numbers_of_any_kind():
    graph = traced(mlp(), torch.zeros(1, 3)).graph
    size: Any = np.int64(6)
    factor: Any = np.float32(1.5)
    wide = ag.widen(graph, sizes={"0.out": 6}).graph
    assert ag.widen(graph, sizes={"0.out": size}).graph == wide
    assert ag.widen(graph, {"0.out": factor}).graph == wide
    few: Any = np.int32(3)
    small = ag.narrow(graph, sizes={"0.out": few})
    assert small.graph.param["0.weight"].shape == (3, 3)


# -- deepen -----------------------------------------------------------------------------------


def plain(activation, norm=True):
    layers: list[nn.Module] = [nn.Conv2d(3, 4, 3, padding=1), activation()]
    for _ in range(3):
        layers.append(nn.Conv2d(4, 4, 3, padding=1))
        if norm:
            layers.append(nn.BatchNorm2d(4))
        layers.append(activation())
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 2))


def deepened(net, *args):
    graph = traced(net, *args).graph
    section = max(ag.structure(graph).sections, key=lambda s: len(s.blocks))
    return graph, ag.deepen(graph, {section.name: len(section.blocks) + 2}, verify=True)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.ReLU6])
def test_a_chain_starts_as_the_identity(activation):
    graph, deep = deepened(plain(activation), torch.randn(2, 3, 8, 8))
    made = [e for e in deep.transfer.entries.values() if e.init is not None]
    assert len(made) >= 2 * 6 and len(deep.graph.params) > len(graph.params)


def test_a_residual_block_starts_with_its_last_layer_at_zero():
    _, deep = deepened(nets.Net(nets.Basic, (2, 3), (8, 12)), torch.randn(2, 3, 8, 8))
    made = {k for k, e in deep.transfer.entries.items() if e.init is not None}
    assert made == {f"stage2.{i}.bn2.{k}" for i in (3, 4) for k in ("weight", "bias")} or made == {
        f"stage2.{i}.conv2.weight" for i in (3, 4)
    }


def test_activations_that_do_more_the_second_time_are_refused():
    with pytest.raises(RewriteError, match=r"cannot start as the identity; found has aten\.gelu"):
        deepened(plain(nn.GELU), torch.randn(2, 3, 8, 8))


def test_what_stands_in_front_of_the_first_block_is_copied_with_it():
    """The copies of a norm and an activation in front of the first layer are the identity, too."""
    layers = [nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU()]
    _, deep = deepened(nn.Sequential(*layers, nn.Linear(6, 3)), torch.randn(4, 6))
    fresh = {k for k, e in deep.transfer.entries.items() if e.source != k}
    counters = {k for k in fresh if k.endswith("num_batches_tracked")}
    assert fresh - counters == {k for k, e in deep.transfer.entries.items() if e.init is not None}
    net = nn.Sequential(nn.Tanh(), nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    with pytest.raises(RewriteError, match=r"cannot start as the identity; found has aten\.tanh"):
        deepened(net, torch.randn(4, 6))


def test_nothing_new_may_lie_outside_of_the_new_blocks():
    layers = [nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU()]
    graph = traced(nn.Sequential(*layers, nn.Linear(6, 3)), torch.randn(4, 6)).graph
    deep, blocks = grafted(graph, {"0": 4})
    _covered(graph, deep.graph, blocks, [])
    with pytest.raises(RewriteError, match="a new leaf lies outside the new blocks"):
        _covered(graph, deep.graph, (), [])
    with pytest.raises(RewriteError, match=r"2\.weight: a new block shares weights"):
        _covered(graph, deep.graph, blocks, ["2.weight"])


class Branch(nn.Module):
    """A residual block that a test writes."""

    def __init__(self, function) -> None:
        super().__init__()
        self.a, self.b, self.function = nn.Linear(6, 6), nn.Linear(6, 6), function

    def forward(self, x):
        return self.function(self, x)


def branched(function):
    blocks = (Branch(function) for _ in range(3))
    return deepened(nn.Sequential(nn.Linear(3, 6), *blocks, nn.Linear(6, 2)), torch.randn(4, 3))


def rms(y):
    return torch.rsqrt(y.square().mean(-1, keepdim=True))


KEPT = {
    "scaled branch": lambda m, x: torch.add(x, m.a(x), alpha=0.5),
    "gate of itself": lambda m, x: (
        x + (lambda y: y * m.b(y.mean(1, keepdim=True) + y).sigmoid())(m.a(x))
    ),
    "numerator": lambda m, x: x + m.a(x) / (1 + x.abs()),
    "norm of a sum": lambda m, x: (lambda y: y + m.b(y * rms(y)))(x + m.a(x)),
}
LOST = {
    "scaled shortcut": (lambda m, x: torch.add(m.a(x), x, alpha=0.5), "multiplies its shortcut"),
    "norm": (lambda m, x: x + (lambda y: y / y.norm(dim=-1, keepdim=True))(m.a(x)), "NaN"),
    "sum": (lambda m, x: x + (lambda y: y / y.sum(-1, keepdim=True))(m.a(x)), "NaN"),
    "root": (lambda m, x: x + (lambda y: y * rms(y))(m.a(x)), "NaN"),
}  # fmt: skip


@pytest.mark.parametrize("function", KEPT.values(), ids=KEPT)
def test_branches_that_can_be_zero(function):
    branched(function)


@pytest.mark.parametrize(("function", "reason"), LOST.values(), ids=LOST)
def test_branches_that_zeros_would_break(function, reason):
    with pytest.raises(RewriteError, match=f"cannot start as the identity; found .*{reason}"):
        branched(function)


@pytest.mark.parametrize("depths", [{"0": 4.5}, {"0": True}, {"0": None}, ["0"], "0", 4])
@pytest.mark.parametrize("rewrite", [ag.deepen, ag.graft, ag.shorten])
def test_depths_are_whole_numbers_by_section(rewrite, depths):
    graph = traced(plain(nn.ReLU), torch.randn(2, 3, 8, 8)).graph
    with pytest.raises(RewriteError, match=r"impossible depth|not depths"):
        rewrite(graph, depths)


@pytest.mark.parametrize("parts", ["graph", "rewritten", "module", "modules"])
def test_only_architectures_are_chained(parts):
    net = mlp()
    graph = traced(net, torch.zeros(1, 3)).graph
    given = {"graph": graph, "rewritten": ag.take(graph, 0.5), "module": net, "modules": [net]}
    with pytest.raises(ArchGraphError, match=r"not parts to chain|trace it first"):
        ag.chain(given[parts])


class Side(nn.Module):
    """Attention and feed-forward side by side: a branch that is a sum."""

    def __init__(self, offset=0.0) -> None:
        super().__init__()
        self.norm, self.offset = nn.LayerNorm(6), offset
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        h = self.norm(x)
        return x + (self.a(h) + self.b(h).relu() + self.offset)


def side_by_side(offset=0.0):
    return nn.Sequential(nn.Linear(3, 6), *(Side(offset) for _ in range(3)), nn.Linear(6, 2))


def test_all_parts_of_a_branch_start_at_zero():
    _, deep = deepened(side_by_side(), torch.randn(2, 3))
    zero = {k for k, e in deep.transfer.entries.items() if e.init is not None}
    assert {k.split(".", 1)[1] for k in zero} == {
        f"{n}.{k}" for n in "ab" for k in ("weight", "bias")
    }


def test_a_branch_that_is_not_zero_at_zero_is_refused():
    with pytest.raises(RewriteError, match=r"has aten\.add\.Tensor .* behind the last layer"):
        deepened(side_by_side(1.0), torch.randn(2, 3))


# -- parts, step sizes, exits -----------------------------------------------------------------


def test_split_says_what_is_wrong():
    graph = graph_of(nets.Net(nets.Basic, (2, 2), (8, 12)))
    with pytest.raises(GraphError, match=r"no such section or block; found stage9; expected stage"):
        ag.split(graph, after="stage9")
    with pytest.raises(RewriteError, match="cut leaves a part empty"):
        ag.split(graph, before="stem")
    with pytest.raises(RewriteError, match="a part does not take what the one before it returns"):
        ag.chain([p.graph for p in reversed(ag.split(graph, after="stage1").parts)])


def test_extractor_and_classifier_carry_their_own_leaves():
    graph = graph_of(nets.Net(nets.Basic, (2, 2), (8, 12)))
    parts = ag.split(graph, after="stage1", before="head")
    names = [set(p.graph.state_names) for p in parts]
    assert set.union(*names) == set(graph.state_names)
    assert sum(map(len, names)) == len(graph.state_names)
    assert parts[0].graph.inputs == graph.inputs


def test_step_sizes_start_where_they_are_told_and_learn():
    graph, state = traced(nets.Net(nets.Basic, (2, 2), (8, 12)), torch.randn(2, 3, 8, 8))
    stepped = ag.add_step_sizes(graph, "stage1.*", initial={"stage1.1": 2.0})
    pulled = stepped.transfer.pull(state)
    starts = {k: float(v) for k, v in pulled.items() if k.endswith("step_size")}
    assert starts == {"stage1.0.step_size": 1.0, "stage1.1.step_size": 2.0}
    net = ag.build(stepped.graph, pulled)
    net(torch.randn(2, 3, 8, 8)).square().sum().backward()
    learned = {n: p.grad for n, p in net.named_parameters() if n.endswith("step_size")}
    assert all(g is not None and g.abs() > 0 for g in learned.values())
    fixed = ag.add_step_sizes(graph, learnable=False).graph
    assert not any(p.trainable for p in fixed.params if p.name.endswith("step_size"))
    with pytest.raises(RewriteError, match="has a step size already"):
        ag.add_step_sizes(stepped.graph, "stage1.1")
    with pytest.raises(RewriteError, match=r"stem: not a residual block"):
        ag.add_step_sizes(graph, "stem")


def test_a_transformer_layer_has_two_step_sizes():
    graph = graph_of(nets.Encoder(2))
    names = [p.name for p in ag.add_step_sizes(graph, verify=True).graph.params if not p.shape]
    assert names == [f"layers.{i}.step_size_{j}" for i in range(2) for j in (1, 2)]


def test_adapters_start_at_zero():
    graph, state = traced(nets.Net(nets.Basic, (2, 2), (8, 12)), torch.randn(2, 3, 8, 8))
    adapted = ag.add_adapters(graph, 3, verify=True)
    pulled = adapted.transfer.pull(state)
    assert pulled["stage1.0.adapter.down.weight"].shape == (3, 8, 1, 1)
    assert pulled["stage1.0.adapter.down.weight"].abs().max() > 0
    assert not pulled["stage1.0.adapter.up.weight"].any()
    with pytest.raises(RewriteError, match="width of the adapters"):
        ag.add_adapters(graph, 0)


def test_exits_leave_the_main_output():
    graph, state = traced(nets.Net(nets.Basic, (2, 2), (8, 12)), torch.randn(2, 3, 8, 8))
    head = traced(
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)),
        torch.randn(2, 8, 8, 8),
    ).graph
    early = ag.add_exits(graph, {"stage1": head, "stage2.0": 7}, verify=True)
    net = ag.build(early.graph, early.transfer.pull(state)).eval()
    x = torch.randn(3, 3, 8, 8)
    found = net(x)
    assert {k: v.shape for k, v in found.items()} == {
        "main": (3, 5), "stage1": (3, 5), "stage2.0": (3, 7)
    }  # fmt: skip
    torch.testing.assert_close(found["main"], ag.build(graph, state).eval()(x), rtol=0, atol=0)
    assert "exits.stage2_0.weight" in early.graph.state_names
    with pytest.raises(RewriteError, match="head does not take what the section makes"):
        ag.add_exits(graph, {"stage2": head})
    with pytest.raises(ArchGraphError, match="no such section or block"):
        ag.add_exits(graph, {"stage7": 3})


def test_further_exits_join_those_that_are_there():
    graph = graph_of(nets.Net(nets.Basic, (2, 2), (8, 12)))
    one = ag.add_exits(graph, {"stage1": 4}).graph
    both = ag.add_exits(one, {"stage2": 4}, verify=True).graph
    assert both.outputs == ag.add_exits(graph, {"stage1": 4, "stage2": 4}).graph.outputs
    for heads in ({"stage1": 3}, {"stage2.0": 2, "stage2_0": 2}, {"stage2": 2.5}, {"stage2": 0}):
        with pytest.raises(ArchGraphError):
            ag.add_exits(one, heads)  # type: ignore[arg-type]  # nonsense on purpose


class Stream(nn.Module):
    """Channels that are the input's own: nothing about them can be cut."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x).relu()
        return x


@pytest.mark.parametrize("shape", [(2, 6), (2, 5, 6), (2, 4, 5, 6)])
def test_an_exit_needs_channels_not_a_free_axis(shape):
    graph = ag.trace(Stream(), torch.randn(shape), train=False).graph
    early = ag.add_exits(graph, {"layers.0": 4}, verify=True)
    wide = 6 if len(shape) < 4 else 4  # of images, the dimension after the batch
    assert early.graph.param["exits.layers_0.weight"].shape == (4, wide)


class Folded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(4, 4), nn.Linear(8, 2)

    def forward(self, x):
        return self.c(self.b(self.a(x).view(-1, 4)).relu().view(x.shape[0], -1))


def test_a_cut_where_the_batch_is_folded_is_refused():
    graph = ag.trace(Folded(), torch.randn(3, 6), train=False).graph
    with pytest.raises(RewriteError, match="cut through values whose first size is not the batch"):
        ag.split(graph, after="a")


@pytest.mark.parametrize("start", [float("nan"), float("inf"), "a", None])
def test_step_sizes_are_finite_numbers(start):
    graph = graph_of(nets.Net(nets.Basic, (2, 2), (8, 12)))
    with pytest.raises(RewriteError, match="step size"):
        ag.add_step_sizes(graph, initial=start)


@pytest.mark.parametrize(
    "spec", [True, "0.out", None, {"0.out": [True, False]}, {"0.out": [0.5]}, {"0.out": "x"}]
)
def test_nonsense_to_take_is_one_message(spec):
    with pytest.raises(RewriteError, match=r"found|no axes are chosen"):
        ag.take(traced(mlp(), torch.zeros(1, 3)).graph, spec)


# -- what real models have --------------------------------------------------------------------


class Transposed(nn.Module):
    """Layers written as products with a transposed weight, and with the bias first."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Parameter(torch.randn(8, 4)), nn.Parameter(torch.randn(4, 8))
        self.bias, self.last = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        y = nn.functional.gelu(x @ self.up.T) @ self.down.T
        return torch.addmm(self.bias, y, self.last) @ torch.ones(4, 2)


def test_products_with_transposed_weights_widen():
    graph = traced(Transposed(), torch.randn(3, 4)).graph
    free = [a.name for a in ag.axes(graph).free]
    assert len(free) >= 2 and refusals(graph) == {}
    for name in free:
        ag.widen(graph, {name: 1.5}, verify=True)
    ag.widen(graph, 1.5, verify=True)


class Rotated(nn.Module):
    """Packed queries, keys and values; the first two turned by halves (rotary positions)."""

    def __init__(self, shared=False) -> None:
        super().__init__()
        self.qkv, self.out, self.shared = nn.Linear(6, 48), nn.Linear(16, 6), shared
        self.angle: torch.Tensor
        self.register_buffer("angle", torch.randn(5, 4).repeat(1, 2))

    def turned(self, x):
        half = torch.cat((-x[..., 4:], x[..., :4]), -1)
        return x * self.angle.cos() + half * self.angle.sin()

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        scores = self.turned(q) @ self.turned(k).transpose(-2, -1)
        if self.shared:  # queries are wanted elsewhere too
            scores = scores + q.sum(-1, keepdim=True) + k.sum(-1).unsqueeze(-2)
        y = scores.softmax(-1) @ v
        return x + self.out(y.transpose(1, 2).reshape(*x.shape[:2], 16))


def test_rotated_packed_queries_widen():
    graph = traced(Rotated(), torch.randn(2, 5, 6)).graph
    assert refusals(graph) == {}
    assert same_function(graph, ag.widen(graph, 1.5), tolerance=1e-12) <= 1e-12
    reasons = refusals(traced(Rotated(shared=True), torch.randn(2, 5, 6)).graph)
    assert any("head_dim" in axis for axis in reasons)


class Watched(Packed):
    """Packed queries and keys whose largest entries are added to the scores they make."""

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 3, 4).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT + q.amax(-1, keepdim=True) + k.amax(-1).unsqueeze(-2)
        return x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(*x.shape[:2], 12))


def test_what_is_also_used_elsewhere_is_not_divided():
    """A maximum tolerates copies, but not that the queries are divided for the product's sake."""
    graph = traced(Watched(), torch.randn(2, 5, 6)).graph
    (reason,) = (why for axis, why in refusals(graph).items() if "head_dim" in axis)
    assert "is also used elsewhere" in reason


class Scaled(nn.Module):
    """A residual branch behind a scale that is reshaped on its way."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.scale = nn.Conv2d(4, 4, 1), nn.Parameter(torch.rand(4))

    def forward(self, x):
        return x + self.scale.unsqueeze(-1).unsqueeze(-1) * self.conv(x).sigmoid()


def test_a_reshaped_scale_starts_at_zero():
    net = nn.Sequential(nn.Conv2d(3, 4, 1), *(Scaled() for _ in range(3)), nn.Conv2d(4, 2, 1))
    _, deep = deepened(net, torch.randn(2, 3, 4, 4))
    zero = [k for k, e in deep.transfer.entries.items() if e.init is not None]
    assert len(zero) == 2 and all(k.endswith("scale") for k in zero)


def test_parts_keep_the_order_of_inputs_and_those_that_nothing_uses():
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, late, unused, early):
            return self.b(self.a(early).relu()) + late

    graph = traced(Late(), torch.zeros(2, 4), torch.zeros(2, 3), torch.zeros(2, 4)).graph
    parts = ag.split(graph, after="a")
    assert [k for k, _ in parts[0].graph.inputs] == ["early"]
    assert ag.chain(parts) == graph


def test_a_transposed_convolution_does_not_sum_over_its_groups():
    net = nn.Sequential(
        nn.Conv2d(3, 8, 1),
        nn.Conv2d(8, 16, 3, padding=1, groups=4),
        nn.ConvTranspose2d(16, 8, 2, stride=2, groups=4),
        nn.Conv2d(8, 2, 1),
    )
    graph = ag.trace(net, torch.zeros(2, 3, 4, 4)).graph
    for axis in ag.axes(graph).free:
        ag.widen(graph, {axis.name: 2.0}, verify=True)
