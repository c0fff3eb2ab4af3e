"""One share cuts at most one factor of every product of axes: a law, and closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import archgraph as ag
from archgraph.graph.ir import ArchGraph, Size
from archgraph.graph.polynomial import Polynomial
from archgraph.layout.layouts import AxisRef, Layout, Prod, Sum
from tests.examples import at_most
from tests.nets import Attention, Shuffle, captured, image, networks, with_parts


def polynomial(layout: Layout) -> Polynomial | Size:
    """Return the size of a dimension as a polynomial of its axes, free or not."""
    match layout:
        case AxisRef(name):
            return Polynomial.of(name)
        case Prod(factors):
            return math.prod(map(polynomial, factors))
        case Sum(terms):
            return sum(map(polynomial, terms))
        case _:
            return layout.size


def check_share(graph: ArchGraph, small: ag.Rewritten, share: float, cut: set[str]) -> None:
    """Check the law of a bare share on a graph and what it became.

    1. No monomial of any dimension of any leaf holds two axes that are cut.
    2. Every dimension has the value of its polynomial at the cut sizes, each rounded up.
    3. An axis stays whole beside one that is cut, or because it is a rank.
    """
    solved = ag.axes(graph)
    sizes = {axis.name: axis.size for axis in solved.all}
    after = sizes | {name: max(math.ceil(round(share * sizes[name], 9)), 1) for name in cut}
    beside = set(cut)
    for leaf, layouts in solved.leaf.items():
        for dim, layout in enumerate(layouts):
            size = Polynomial({}) + polynomial(layout)
            for monomial in size.terms:
                assert len(cut.intersection(monomial)) <= 1, (leaf, dim, str(layout))
                beside |= {*monomial} if cut.intersection(monomial) else set()
            assert small.graph.param[leaf].shape[dim] == size.value(after), (leaf, dim)
    assert {a.name for a in solved.free if a.role != "rank"} <= beside


def notes(small: ag.Rewritten) -> dict[str, str]:
    """Return the lines with which `describe` begins, by axis."""
    lines = small.transfer.describe().splitlines()
    begin = next(i for i, line in enumerate(lines) if "entries taken" in line)
    return dict(line.removeprefix("axis ").split(": ", 1) for line in lines[:begin])


@given(networks(), st.sampled_from([0.25, 0.4, 0.5]))
@at_most(6)
def test_a_share_cuts_one_factor_of_every_product(net, share):
    graph = captured(net, image(), train=False).graph
    small = ag.take(graph, share, verify=True)  # mask ≡ take
    widths = ag.widths(graph, small.transfer)
    cut = {a.name for a in ag.axes(graph).free if widths[a.name] < a.size}
    check_share(graph, small, share, cut)
    assert cut == {name for name, note in notes(small).items() if "→" in note}


def shapes(graph: ArchGraph) -> dict[str, tuple[Size, ...]]:
    """Return the shapes of all leaves."""
    return {param.name: param.shape for param in graph.params}


def language_model(name: str, **sizes: int) -> ArchGraph:
    """Trace a small language model of transformers, of two layers with four heads of 16."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**sizes, vocab_size=50, use_cache=False)
    model = getattr(transformers, f"{name}ForCausalLM" if name == "Llama" else f"{name}LMHeadModel")
    return captured(model(config).eval(), torch.randint(0, 50, (2, 7)), train=False).graph


@pytest.mark.parametrize(
    ("groups", "key"),
    [(2, (16, 32)), (1, (16, 32))],  # one of two groups; all queries share one head of keys
    ids=["grouped", "multi-query"],
)
def test_llama_keeps_the_size_of_its_heads(groups, key):
    graph = language_model(
        "Llama", hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=groups,
    )  # fmt: skip
    attention = "model.layers.0.self_attn"
    half = ag.take(graph, 0.5, verify=True)
    after = shapes(half.graph)
    assert after[f"{attention}.q_proj.weight"] == after[f"{attention}.o_proj.weight"] == (32, 32)
    assert after[f"{attention}.k_proj.weight"] == after[f"{attention}.v_proj.weight"] == key
    wide = shapes(ag.widen(graph, 2.0, approximate=True).graph)
    assert wide[f"{attention}.q_proj.weight"] == (128, 128)
    narrow = ag.narrow(graph, 0.5)
    assert shapes(narrow.graph) == after and notes(narrow) == notes(half)


def test_packed_queries_keys_and_values_lose_whole_heads():
    graph = language_model("GPT2", n_embd=64, n_layer=2, n_head=4, n_positions=16)
    half = ag.take(graph, 0.5, verify=True)
    after = shapes(half.graph)
    assert after["transformer.h.0.attn.c_attn.weight"] == (32, 3 * 2 * 16)
    assert after["transformer.h.0.attn.c_proj.weight"] == (32, 32)
    rows = half.transfer.entries["transformer.h.0.attn.c_attn.weight"].dims[1]
    assert rows is not None
    assert rows.positions.tolist() == [64 * part + i for part in range(3) for i in range(32)]


def chain(*layers: nn.Module) -> ArchGraph:
    """Trace layers between a convolution of three colours to eight channels and one to two."""
    net = nn.Sequential(nn.Conv2d(3, 8, 1), *layers, nn.Conv2d(8, 2, 1))
    return captured(net, torch.randn(2, 3, 6, 6), train=False).graph


def test_groups_of_a_convolution_stay_and_become_narrower():
    half = ag.take(chain(nn.Conv2d(8, 8, 3, groups=4), nn.ReLU()), 0.5, verify=True)  # ResNeXt
    assert [shapes(half.graph)[f"{i}.weight"][:2] for i in (0, 1, 3)] == [(4, 3), (4, 1), (2, 4)]


def test_groups_that_are_shuffled_become_narrower_on_both_sides():
    graph = chain(nn.Conv2d(8, 8, 1, groups=2), Shuffle(2), nn.Conv2d(8, 8, 3, groups=2))
    half = ag.take(graph, 0.5, verify=True)
    assert [shapes(half.graph)[f"{i}.weight"][:2] for i in (1, 3)] == [(4, 2), (4, 2)]


@with_parts(
    lambda: {
        "enter": nn.Conv2d(3, 8, 3, padding=1),
        "first": nn.GroupNorm(4, 8),
        "down": nn.Conv2d(8, 16, 2, stride=2),
        "second": nn.GroupNorm(4, 16),
        "up": nn.ConvTranspose2d(16, 8, 2, stride=2),
        "leave": nn.Conv2d(16, 2, 1),
    }
)
def Hourglass(self, x):
    """A U-Net of one level with group norms."""
    x = self.first(self.enter(x))
    return self.leave(torch.cat([x, self.up(self.second(self.down(x)))], 1))


def test_groups_of_group_norms_stay():
    graph = captured(Hourglass(), torch.randn(2, 3, 8, 8), train=False).graph
    half = ag.take(graph, 0.5, verify=True)
    assert [node.arg("num_groups") for node in half.graph.nodes if "group_norm" in node.op] == [
        4,
        4,
    ]
    after = shapes(half.graph)
    assert after["down.weight"][:2] == (8, 4) and after["leave.weight"][:2] == (2, 8)


# ------------------------------------------------------------------------------- entries


def attention(share: object, **more: object) -> tuple[int, int]:
    """Return how many of four heads, and of their two channels, a choice leaves."""
    graph = captured(Attention(8, 4), torch.randn(2, 8, 3, 3), train=False).graph
    solved, small = ag.axes(graph), ag.take(graph, share, allow_nothing=True, **more)  # type: ignore[arg-type]
    roles = {a.name: a.role for a in solved.free}
    left = {roles[n]: size for n, size in ag.widths(graph, small.transfer).items() if n in roles}
    return left["heads"], left["head_dim"]


@pytest.mark.parametrize(
    ("share", "left"),
    [
        (0.5, (2, 2)),
        ({"*": 0.5}, (2, 2)),
        ({"qkv": 0.5}, (2, 2)),
        ({"head_dim": 0.5}, (4, 1)),  # the only factor that is named
        ({"heads": 0.5, "head_dim": 0.5}, (2, 1)),  # entries do not know one another
        ({"qkv.head_dim": 0.5}, (4, 1)),
        ({"head_dim": 0.5, "*": 0.5}, (2, 2)),  # a later entry overrides an earlier one
        ({"*": 0.5, "qkv": 1.0}, (4, 2)),
        ({"*": 0.3}, (2, 2)),  # rounded up
    ],
)
def test_the_rule_holds_of_each_entry(share, left):
    assert attention(share) == left


def test_sizes_and_positions_reach_each_factor():
    assert attention(None, sizes={"qkv": 1}) == (1, 1)
    assert attention(None, positions={"heads": [1, 3], "head_dim": [1]}) == (2, 1)
    assert attention(0.5, sizes={"head_dim": 1}) == (2, 1)


def test_factors_that_stay_whole_are_said_beside_what_is_cut():
    graph = captured(Attention(8, 4), torch.randn(2, 8, 3, 3), train=False).graph
    assert notes(ag.take(graph, 0.5))["qkv.head_dim"] == "2, kept (qkv.heads is cut)"
    assert notes(ag.take(graph, {"head_dim": 0.5}))["qkv.heads"] == "4, kept (qkv.head_dim is cut)"


def test_shares_of_ranks_are_asked_for_by_name():
    graph = ag.add_lora(chain(nn.Conv2d(8, 8, 1)), 4).graph
    rank = next(a for a in ag.axes(graph).free if a.role == "rank")
    assert ag.widths(graph, ag.take(graph, 0.5).transfer)[rank.name] == 4
    assert ag.widths(graph, ag.take(graph, {"rank": 0.5}).transfer)[rank.name] == 2


@pytest.mark.parametrize("shape", ["uniform", "nested"])
def test_budgets_are_met_by_whole_heads_unless_they_stay(shape):
    graph = ag.load("specs/models/tiny_vit.yaml")

    def left(small: ag.Rewritten, role: str) -> set[int]:
        return {a.size for a in ag.axes(small.graph).all if a.role == role}

    small = ag.fit(graph, macs=0.4, shape=shape)
    assert left(small, "head_dim") == left(small, "value_dim") == {8}
    assert max(left(small, "heads")) < 4
    kept = ag.fit(graph, macs=0.4, shape=shape, keep="heads")
    assert left(kept, "heads") == {4} and max(left(kept, "head_dim")) < 8
