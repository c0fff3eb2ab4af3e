"""Laws of alignment: names do not matter, joins are least, meets greatest, whoever comes first."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import archgraph as ag
from archgraph.rewrites.cut import cut_axes
from tests.examples import at_most
from tests.nets import captured, image, networks, renamed, with_parts

SMALL = torch.rand(2, 6, 4, 4, generator=torch.Generator().manual_seed(0))


@functools.cache
def stack(depths: tuple[int, ...], widths: tuple[int, ...], block: int = 0) -> ag.ArchGraph:
    """Stages of convolutions with pools between them, as users write them."""
    layers: list[nn.Module] = []
    before = 3
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        layers += [nn.MaxPool2d(2)] * (stage > 0)
        for _ in range(depth):
            norm = [nn.BatchNorm2d(width)] * block
            layers += [nn.Conv2d(before, width, 3, padding=1), *norm, nn.ReLU()]
            before = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 4)]
    return captured(nn.Sequential(*layers), torch.zeros(1, 3, 8, 8), train=False).graph


def shapes(graph: ag.ArchGraph) -> list[tuple[int, ...]]:
    return sorted(p.shape for p in graph.params)


def depths(graph: ag.ArchGraph) -> list[int]:
    return [len(s.blocks) for s in ag.structure(graph).sections]


stacks = st.builds(
    stack,
    st.tuples(*[st.integers(1, 3)] * 3),
    st.tuples(*[st.sampled_from([2, 4, 6])] * 3),
)


@given(networks(), st.randoms(use_true_random=False))
@at_most(3)
def test_names_and_order_of_definition_do_not_matter(net, random):
    graph, state = captured(net, image(), train=False)
    other = renamed(graph, random)
    found = ag.align(other, graph)
    assert found.score == 1 and not found.unmatched
    pulled = found.transfer.pull(state)
    a, b = ag.build(graph, state).eval(), ag.build(other, pulled).eval()
    torch.testing.assert_close(a(image()), b(image()), rtol=0, atol=0)


@given(stacks, stacks)
@at_most(2)
def test_the_join_is_the_least_that_contains_both(a, b):
    joined = ag.join([a, b])
    one, other = ({p.name: p.shape for p in g.params} for g in (a, b))
    wide = [max(x, y) for x, y in zip(_widths(a), _widths(b), strict=True)]
    deep = [max(x, y) for x, y in zip(depths(a), depths(b), strict=True)]
    assert shapes(joined.graph) == shapes(stack(tuple(deep[:3]), tuple(wide)))
    assert depths(joined.graph) == deep
    state = ag.initial_state(joined.graph, seed=1)
    for graph, transfer, sizes in zip((a, b), joined.transfers, (one, other), strict=True):
        pulled = transfer.pull(state)
        assert {k: tuple(v.shape) for k, v in pulled.items()} == sizes
        assert all(entry.selects for entry in transfer.entries.values())
        ag.build(graph, pulled)(torch.zeros(2, 3, 8, 8))
    whole = [t.coverage for t in joined.transfers]
    for name in joined.graph.state_names:
        assert 0 < max(c.share(name) for c in whole) <= 1


def _widths(graph: ag.ArchGraph) -> list[int]:
    found = ag.structure(graph).sections[:3]
    sizes = (graph.node[s.blocks[-1].exit].shape[1] for s in found)
    return [size for size in sizes if isinstance(size, int)]


@given(stacks, stacks)
@at_most(2)
def test_the_meet_is_the_greatest_that_both_contain(a, b):
    met = ag.meet([a, b])
    thin = [min(x, y) for x, y in zip(_widths(a), _widths(b), strict=True)]
    flat = [min(x, y) for x, y in zip(depths(a), depths(b), strict=True)]
    assert shapes(met.graph) == shapes(stack(tuple(flat[:3]), tuple(thin)))
    for graph, transfer in zip((a, b), met.transfers, strict=True):
        ag.build(met.graph, transfer.pull(ag.initial_state(graph)))(torch.zeros(2, 3, 8, 8))


@given(stacks, stacks)
@at_most(2)
def test_join_and_meet_absorb_one_another(a, b):
    assert ag.join([a]).graph == a == ag.join([a, a]).graph
    assert ag.meet([a]).graph == a == ag.meet([a, a]).graph
    assert shapes(ag.join([a, ag.meet([a, b]).graph]).graph) == shapes(a)
    assert shapes(ag.meet([a, ag.join([a, b]).graph]).graph) == shapes(a)


@given(stacks, stacks, stacks)
@at_most(2)
def test_the_order_does_not_matter(a, b, c):
    once = ag.join([a, b, c])
    assert shapes(ag.join([c, a, b]).graph) == shapes(once.graph)
    assert shapes(ag.join([ag.join([a, b]).graph, c]).graph) == shapes(once.graph)
    assert shapes(ag.meet([c, b, a]).graph) == shapes(ag.meet([a, b, c]).graph)
    assert [t.target for t in ag.join([c, a, b]).transfers] == [
        once.transfers[i].target for i in (2, 0, 1)
    ]


# -- counts -------------------------------------------------------------------------------------


@with_parts(
    lambda heads, size: {
        "heads": heads,
        "size": size,
        "inside": nn.Linear(6, 3 * heads * size),
        "out": nn.Linear(heads * size, 6),
        "head": nn.Linear(6, 2),
    }
)
def Heads(self, x):
    """Attention with as many heads, of as many channels each."""
    x = x.flatten(2).transpose(1, 2)
    n, t, _ = x.shape
    parts = self.inside(x).reshape(n, t, 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
    q, k, v = parts.unbind(0)
    y = F.scaled_dot_product_attention(q, k, v, scale=0.5)
    x = x + self.out(y.transpose(1, 2).reshape(n, t, self.heads * self.size))
    return self.head(x.mean(1))


@with_parts(
    lambda groups, size: {
        "first": nn.Conv2d(6, groups * size, 3, padding=1),
        "norm": nn.GroupNorm(groups, groups * size),
        "last": nn.Linear(groups * size, 2),
    }
)
def Groups(self, x):
    """A norm of as many groups, of as many channels each."""
    return self.last(F.relu(self.norm(self.first(x))).mean((2, 3)))


@with_parts(
    lambda groups, size: {
        "first": nn.Conv2d(6, groups * size, 3, padding=1),
        "groups": groups,
        "next": nn.Conv2d(groups * size, 5, 1),
        "last": nn.Linear(5, 2),
    }
)
def Shuffled(self, x):
    """Channels shuffled between groups, as ShuffleNet does."""
    x = F.relu(self.first(x))
    n, c, h, w = x.shape
    x = x.view(n, self.groups, c // self.groups, h, w).transpose(1, 2).reshape(n, c, h, w)
    return self.last(F.relu(self.next(x)).mean((2, 3)))


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", [Heads, Groups, Shuffled])
def test_contained_is_what_has_no_more_groups_and_no_larger_ones(kind):
    counts = [(1, 16), (4, 4), (2, 8), (8, 2), (2, 4), (4, 2), (1, 4)]
    graphs = {c: captured(kind(*c), SMALL, train=False).graph for c in counts}
    for (one, client), (other, whole) in itertools.product(graphs.items(), repeat=2):
        found = ag.align(client, whole)
        assert found.score == 1
        if any(a > b for a, b in zip(one, other, strict=True)):
            with pytest.raises(ag.RewriteError, match=r"wider|no cut of the larger"):
                _ = found.transfer
            continue
        # The client computes what the whole's cut computes.
        small = cut_axes(whole, found.widths.selection("client"))
        state = ag.initial_state(whole, seed=3)
        a = ag.build(client, found.transfer.pull(state)).eval()
        b = ag.build(small.graph, small.transfer.pull(state)).eval()
        torch.testing.assert_close(a(SMALL), b(SMALL))
    met, joined = ag.meet(graphs.values()), ag.join(graphs.values())
    sizes = [captured(kind(*c), SMALL, train=False).graph for c in ((1, 2), (8, 16))]
    assert [shapes(met.graph), shapes(joined.graph)] == [shapes(g) for g in sizes]
