"""Low-rank adapters: same function at the start, ranks as axes, folded into weights again."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import archgraph as ag
from archgraph.analysis.side_branches import side_branches
from tests import structures as nets
from tests.examples import at_most
from tests.nets import FOREIGN, captured, image, networks, with_parts
from tests.structures import graph_of, models

graphs = st.one_of(models().map(graph_of), networks().map(lambda net: graph_of(net, image())))


def randomised(rewritten, state, seed=0):
    """The state of a rewritten graph, with every float changed."""
    generator = torch.Generator().manual_seed(seed)
    pulled = rewritten.transfer.pull(state)
    return {
        name: t + 0.1 * torch.randn(t.shape, generator=generator, dtype=t.dtype).abs()
        if t.is_floating_point()
        else t
        for name, t in pulled.items()
    }


def answer(graph, state, *args, **kwargs):
    with torch.no_grad():
        result = ag.build(graph, state).eval()(*args, **kwargs)
    return torch.cat([t.flatten() for t in torch.utils._pytree.tree_leaves(result)])


def double(tree):
    return torch.utils._pytree.tree_map(
        lambda t: t.double() if torch.is_tensor(t) and t.is_floating_point() else t, tree
    )


@given(graphs, st.integers(1, 3))
@at_most(4)
def test_the_function_is_the_same_and_structure_stays(graph, rank):
    adapted = ag.add_lora(graph, rank, allow_nothing=True, verify=True).graph
    before, after = ag.structure(graph), ag.structure(adapted)
    assert [(s.name, s.kind) for s in after.sections] == [(s.name, s.kind) for s in before.sections]
    for old, new in zip(before.blocks, after.blocks, strict=True):
        assert (new.name, new.kind, new.removable) == (old.name, old.kind, old.removable)
    assert sorted(n for b in after.blocks for n in b.nodes) == sorted(n.name for n in adapted.nodes)


@given(graphs)
@at_most(3)
def test_a_share_leaves_ranks_alone_and_a_rank_leaves_widths_alone(graph):
    adapted = ag.add_lora(graph, 3, allow_nothing=True).graph
    half = ag.take(adapted, 0.5, allow_nothing=True, verify=True).graph
    ranks = {a.size for a in ag.axes(adapted).all if a.role == "rank"}
    assert {a.size for a in ag.axes(half).all if a.role == "rank"} == ranks
    lower = ag.rank(adapted, 2, allow_nothing=True, verify=True)
    widths = [(a.name, a.size) for a in ag.axes(adapted).all if a.role != "rank"]
    assert [(a.name, a.size) for a in ag.axes(lower.graph).all if a.role != "rank"] == widths
    assert all(p.shape == lower.graph.param[p.name].shape for p in graph.params)


@pytest.mark.parametrize("scaling", ["alpha_over_r", "rsqrt"])
def test_a_lower_rank_is_the_masked_adapter_at_the_models_scale(scaling):
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)).double()
    x = torch.randn(3, 6, dtype=torch.float64)
    graph, state = captured(net, x)
    adapted = ag.add_lora(graph, 4, "0", alpha=6, scaling=scaling)
    tuned = randomised(adapted, state)
    small = ag.rank(adapted.graph, 3)
    masked = tuned | {"0.lora.up.weight": tuned["0.lora.up.weight"] * torch.tensor([1, 1, 1, 0])}
    result = answer(small.graph, small.transfer.pull(tuned), x)
    torch.testing.assert_close(result, answer(adapted.graph, masked, x), rtol=0, atol=1e-15)
    # By hand: the scale of the whole rank, not of the client's.
    scale = 6 / 4 if scaling == "alpha_over_r" else 6 / math.sqrt(4)
    change = tuned["0.lora.up.weight"][:, :3] @ tuned["0.lora.down.weight"][:3]
    first = x @ (tuned["0.weight"] + scale * change).T + tuned["0.bias"]
    expected = torch.tanh(first) @ tuned["2.weight"].T + tuned["2.bias"]
    torch.testing.assert_close(result, expected.flatten(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("scaling", ["alpha_over_r", "rsqrt"])
def test_a_client_may_have_a_scale_of_its_own(scaling):
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Conv1d(1, 4, 3)).double()
    x = torch.randn(3, 6, dtype=torch.float64)
    graph, state = captured(nn.Sequential(net[0], net[1], nn.Unflatten(1, (1, 5)), net[2]), x)
    both = ag.add_lora(graph, 4, "0", alpha=6) >> (lambda g: ag.add_lora(g, 2, "3"))
    tuned = randomised(both, state)
    small = ag.rank(both.graph, 3, alpha=12, scaling=scaling)
    assert small.transfer == ag.rank(both.graph, 3).transfer
    scales = [12 / (r if scaling == "alpha_over_r" else math.sqrt(r)) for r in (3, 2)]
    assert [b.scale for b in side_branches(small.graph)] == pytest.approx(scales, rel=1e-12)
    folded = ag.fold(small.graph, small.transfer.pull(tuned))
    for layer, scale, rank in (("0", scales[0], 3), ("3", scales[1], 2)):
        up, down = (tuned[f"{layer}.lora.{end}.weight"] for end in ("up", "down"))
        product = up.flatten(1)[:, :rank] @ down.flatten(1)[:rank]
        expected = tuned[f"{layer}.weight"].flatten(1) + scale * product
        actual = folded.state[f"{layer}.weight"].flatten(1)
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    # The rank may stay.
    assert [b.scale for b in side_branches(ag.rank(both.graph, alpha=8).graph)] == [2, 4]
    with pytest.raises(ag.RewriteError, match="changes nothing"):
        ag.rank(both.graph, 4)
    with pytest.raises(ag.RewriteError, match="alpha out of range; found 0"):
        ag.rank(both.graph, 2, alpha=0)


@pytest.mark.parametrize("name", [pytest.param("resnet18", marks=pytest.mark.full), "bert"])
def test_the_authors_class_loads_what_is_folded(name):
    foreign = FOREIGN[name]()
    model = foreign.model.double().eval()
    args, kwargs = double(foreign.args), double(foreign.kwargs)
    graph, state = captured(model, *args, **kwargs)
    plus = ag.add_lora(graph, 3, alpha=2) >> ag.add_step_sizes
    tuned = randomised(plus, state)
    folded = ag.fold(plus.graph, tuned)
    assert folded.graph == graph
    model.load_state_dict(ag.state_dict(folded.graph, folded.state), strict=True)
    expected = answer(plus.graph, tuned, *args, **kwargs)
    result = answer(folded.graph, folded.state, *args, **kwargs)
    assert (result - expected).abs().max() <= 1e-12 * expected.abs().max()


def test_adapters_belong_to_their_block():
    graph = nets.net_graph(nets.Basic, (3, 2), (8, 12))
    for adapted in (ag.add_lora(graph, 2).graph, ag.add_adapters(graph, 2).graph):
        assert [s.name for s in ag.structure(adapted).sections] == [
            s.name for s in ag.structure(graph).sections
        ]
        shorter = ag.shorten(adapted, {"stage1": 1}, verify=True).graph
        gone = {p.name for p in adapted.params} - {p.name for p in shorter.params}
        assert any("lora" in name or "adapter" in name for name in gone)
        ag.graft(shorter, {"stage1": 3}, verify=True)
    both = ag.add_lora(ag.add_adapters(graph, 2).graph, 2, verify=True).graph
    assert [b.name for b in ag.structure(both).blocks] == [
        b.name for b in ag.structure(graph).blocks
    ]


def test_adapters_of_peft_are_known_by_their_form():
    peft = pytest.importorskip("peft", reason="PEFT is not installed")
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
    config = peft.LoraConfig(r=3, lora_alpha=6, target_modules=["0", "2"], lora_dropout=0.1)
    x = torch.randn(2, 6)
    graph, state = captured(peft.get_peft_model(net, config).eval(), x)
    assert [(b.scale, b.low_rank) for b in side_branches(graph)] == [(2.0, True), (2.0, True)]
    assert [a.size for a in ag.axes(graph).all if a.role == "rank"] == [3, 3]
    other = ag.rank(graph, 2, alpha=8).graph
    assert [(b.scale, b.low_rank) for b in side_branches(other)] == [(4.0, True), (4.0, True)]
    folded = ag.fold(graph, state)
    assert len(folded.graph.params) == 4
    torch.testing.assert_close(answer(folded.graph, folded.state, x), answer(graph, state, x))


@pytest.mark.sample(2)
@pytest.mark.parametrize("add", [ag.add_adapters, ag.add_lora])
def test_sections_of_a_bert_stay_when_it_has_adapters(add):
    """The sum of an adapter opened the region of its block: `encoder.layer` was gone."""
    foreign = FOREIGN["bert"]()
    graph = captured(foreign.model.eval(), *foreign.args, **foreign.kwargs).graph
    before, after = ag.structure(graph).sections, ag.structure(add(graph, 2).graph).sections
    assert any(s.name.endswith("encoder.layer") for s in before)
    assert [(s.name, [b.name for b in s.blocks]) for s in after] == [
        (s.name, [b.name for b in s.blocks]) for s in before
    ]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.mix = nn.Linear(4, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.table.weight

    def forward(self, index):
        return self.head(self.mix(self.mix(self.table(index))))


def test_tied_weights_get_no_adapter_and_a_layer_called_twice_has_one():
    graph, state = captured(Tied().double(), torch.tensor([[1, 2]]))
    with pytest.raises(ag.RewriteError, match="tied to that of another layer"):
        ag.add_lora(graph, 2, "table*")
    adapted = ag.add_lora(graph, 2, verify=True)
    new = [p.name for p in adapted.graph.params if p.name not in graph.param]
    assert new == ["mix.lora.down.weight", "mix.lora.up.weight"]
    tuned = randomised(adapted, state)
    folded = ag.fold(adapted.graph, tuned)
    x = torch.tensor([[1, 2]])
    torch.testing.assert_close(
        answer(folded.graph, folded.state, x), answer(adapted.graph, tuned, x), rtol=0, atol=1e-12
    )


@with_parts(lambda: {"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
def Shows(self, x):
    """A residual block whose branch is a result, too."""
    branch = self.b(torch.relu(self.a(x)))
    return x + branch, branch


def test_an_embedding_gets_an_adapter_under_its_full_name_alone():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(7, 6, padding_idx=1), nn.ReLU(), nn.Linear(6, 3))
    words = torch.randint(7, (4, 5))
    graph, state = captured(net, words)
    for patterns in (None, "*"):
        assert not [
            n for n in ag.add_lora(graph, 2, patterns).graph.param if n.startswith("0.lora")
        ]
    adapted = ag.add_lora(graph, 3, "0", alpha=6, verify=True)
    full = {k: torch.randn_like(v) if "lora" in k else v
            for k, v in adapted.transfer.pull(state).items()}  # fmt: skip
    change = 2.0 * (full["0.lora.down.weight"] @ full["0.lora.up.weight"].T)
    expected = net[2](torch.relu(net[0](words) + change[words]))
    torch.testing.assert_close(ag.build(adapted.graph, full)(words), expected)
    folded = ag.fold(adapted.graph, full)
    torch.testing.assert_close(folded.state["0.weight"], state["0.weight"] + change)
    narrow = ag.rank(adapted.graph, 1, verify=True).graph
    shapes = [p.shape for p in narrow.params if "lora" in p.name]
    assert shapes == [(7, 1), (6, 1)]
    assert dict(adapted.graph.node["embedding_1"].args)["padding_idx"] == 1


def test_a_step_size_of_a_result_that_is_also_used_elsewhere_is_not_folded():
    graph, state = captured(Shows(), torch.randn(2, 4))
    stepped = ag.add_step_sizes(graph)
    with pytest.raises(ag.RewriteError, match="the result of b is also used elsewhere"):
        ag.fold(stepped.graph, stepped.transfer.pull(state))


@with_parts(
    lambda end: {
        "up": nn.Linear(8, 8),
        "down": nn.Linear(8, 8, bias=False),
        "halves": nn.ModuleList(nn.Linear(8, 4) for _ in range(2)),
        "shift": nn.Parameter(torch.randn(8)),
        "count": torch.arange(8),
        "end": end,
    }
)
def Ending(self, x):
    """A residual block whose branch ends as it is told."""
    return x + self.end(self, x, self.down(torch.relu(self.up(x))))


# How a branch ends, and why its step size cannot be folded; empty where it can.
ENDS = {
    "shift": (lambda net, x, y: y + net.shift, ""),
    "minus": (lambda net, x, y: y - net.shift, ""),
    "factor": (lambda net, x, y: torch.add(y, net.shift, alpha=2), ""),
    "cat": (lambda net, x, y: torch.cat([half(x) for half in net.halves], 1), ""),
    "twice": (lambda net, x, y: torch.cat(2 * [net.halves[0](x)], 1), ""),
    "number": (lambda net, x, y: 0.1 * y / 3, ""),
    "order": (lambda net, x, y: y[:, torch.arange(8).flip(0)], ""),
    "constant": (lambda net, x, y: y + torch.ones(8), "is not the result of a layer"),
    "gate": (lambda net, x, y: (y + net.shift) * net.shift.sigmoid(), "also used elsewhere"),
    "clamp": (lambda net, x, y: y.clamp(max=1.0), "does not scale with its operand"),
    "square": (lambda net, x, y: y * y, "does not scale with its operand"),
    "integers": (lambda net, x, y: y + net.count, "has integers"),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_step_size_is_folded_into_all_that_makes_the_branch_or_refused(end):
    torch.manual_seed(0)
    (ends, why), x = ENDS[end], torch.randn(4, 8)
    graph, state = captured(nn.Sequential(Ending(ends), Ending(ends), nn.Linear(8, 3)).eval(), x)
    stepped = ag.add_step_sizes(graph)
    sizes = dict(stepped.transfer.pull(state))
    sizes |= {name: v.fill_(0.3) for name, v in sizes.items() if name.endswith("step_size")}
    if why:
        with pytest.raises(ag.RewriteError, match=why):
            ag.fold(stepped.graph, sizes)
        return
    folded = ag.fold(stepped.graph, sizes)
    torch.testing.assert_close(answer(*folded, x), answer(stepped.graph, sizes, x))


@with_parts(
    lambda alpha, beta: {
        "weight": nn.Parameter(torch.randn(4, 3)),
        "bias": nn.Parameter(torch.randn(3)),
        "alpha": alpha,
        "beta": beta,
    }
)
def Scaled(self, x):
    """A product with a factor, as ``addmm`` can have one."""
    return torch.addmm(self.bias, x, self.weight, alpha=self.alpha, beta=self.beta)


class BesideScaled(nn.Module):
    """A low-rank branch and the layer beside it, one of which a sum multiplies by a number."""

    def __init__(self, first: str, alpha: float) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(4, 5), nn.Linear(5, 3)
        self.down, self.up = nn.Linear(4, 2, bias=False), nn.Linear(2, 5, bias=False)
        self.first, self.alpha = first, alpha

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [self.base(x), self.up(self.down(x))]
        if self.first == "branch":
            parts.reverse()
        return self.head(torch.add(*parts, alpha=self.alpha))


@pytest.mark.parametrize(
    ("first", "alpha", "scales"), [("base", 2, [2]), ("branch", 1, [1]), ("branch", 2, [])]
)
def test_a_branch_has_the_factor_that_the_sum_gives_it_and_no_other(first, alpha, scales):
    torch.manual_seed(0)
    net, x = BesideScaled(first, alpha), torch.randn(6, 4)
    graph, state = ag.trace(net, x)
    assert [b.scale for b in side_branches(graph)] == scales
    if scales:
        graph, state = ag.fold(graph, state)
    torch.testing.assert_close(ag.build(graph, state)(x), net(x))


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 1.0), (1.0, 2.0)])
def test_a_product_with_a_factor_gets_no_adapter(alpha, beta):
    """Folded, its adapter had the factor, too."""
    graph, _ = captured(Scaled(alpha, beta), torch.randn(2, 4))
    with pytest.raises(ag.RewriteError, match="its product has a factor"):
        ag.add_lora(graph, 2, "weight")


def test_what_cannot_be_says_why():
    layers = [nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 3)]
    graph, state = captured(nn.Sequential(*layers), torch.zeros(2, 4, 4, 4))
    for options, text in (
        ({"rank": 0}, "rank out of range"),
        ({"rank": 2, "where": "0"}, "convolves in groups"),
        ({"rank": 2, "alpha": -1.0}, "alpha out of range"),
        ({"rank": 2, "scaling": "none"}, "unknown scaling"),
    ):
        with pytest.raises(ag.RewriteError, match=text):
            ag.add_lora(graph, **options)
    with pytest.raises(ag.GraphError, match="matches no linear map"):
        ag.add_lora(graph, 2, "fc")
    adapted = ag.add_lora(graph, 2)
    with pytest.raises(ag.RewriteError, match="already has a low-rank adapter"):
        ag.add_lora(adapted.graph, 2, "2")
    with pytest.raises(ag.RewriteError, match=r"larger rank than 2; found rank 2; .*largest"):
        ag.rank(adapted.graph, 2)
    with pytest.raises(ag.GraphError):
        ag.fold(adapted.graph, state)
