"""Laws of growth on random networks: the function stays, and what was widened narrows back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import archgraph as ag
from archgraph.ops.infer import infer
from archgraph.rewrites.laws import same_function
from tests.examples import at_most
from tests.nets import captured, image, networks, with_parts
from tests.structures import refusals

# float64 round-off of a few layers of a hundred terms each
TIGHT = 1e-10


def graph_of(net):
    return captured(net, image(), train=False).graph


def sizes(graph, seed):
    """A larger size for a random half of the axes that can be widened."""
    rng = np.random.default_rng(seed)
    refused = refusals(graph)
    free = [a for a in ag.axes(graph).free if a.name not in refused]
    return {a.name: a.size + int(rng.integers(1, a.size + 1)) for a in free if rng.random() < 0.7}


@given(networks(), st.integers(0, 2**32 - 1))
@at_most(4)
def test_widening_keeps_the_function(net, seed):
    graph = graph_of(net)
    wide = ag.widen(graph, sizes=sizes(graph, seed), seed=seed % 7)
    ag.check(wide.graph)
    assert infer(wide.graph) == wide.graph
    assert same_function(graph, wide, tolerance=TIGHT) <= TIGHT


@with_parts(
    lambda net, correction: {
        "first": torch.nn.Conv2d(3, 4, 1),
        "last": torch.nn.Conv2d(4, 3, 1),
        "net": net,
        "correction": correction,
    }
)
def Standardised(self, x):
    """A network whose input is widened, then freed of mean and spread by hand."""
    x = self.first(x)
    spread, mean = torch.var_mean(x, dim=1, keepdim=True, correction=self.correction)
    return self.net(self.last((x - mean) * torch.rsqrt(spread + 0.1)))


@given(networks(), st.integers(0, 1), st.integers(2, 3))
@at_most(4)
def test_whole_factors_keep_the_function(net, correction, factor):
    """What runs over an axis bears copies that are equally many, or it is refused."""
    graph = graph_of(Standardised(net, correction))
    refused = refusals(graph, float(factor))
    assert ("first.out" in refused) == bool(correction)
    chosen = {a.name: float(factor) for a in ag.axes(graph).free if a.name not in refused}
    assert same_function(graph, ag.widen(graph, chosen), tolerance=TIGHT) <= TIGHT


@given(networks(), st.integers(0, 2**32 - 1))
@at_most(4)
def test_narrowing_undoes_widening(net, seed):
    graph = graph_of(net)
    state = ag.initial_state(graph)
    chosen = sizes(graph, seed)
    wide = ag.widen(graph, sizes=chosen, seed=3)
    small = {name: ag.axes(graph)[name].size for name in chosen}
    back = ag.narrow(wide.graph, sizes=small, mode="net2net", seed=3)
    assert back.graph == graph
    both = wide.transfer.then(back.transfer)
    assert all(entry.unchanged for entry in both.entries.values())
    again = both.pull(state)
    for name, tensor in state.items():
        torch.testing.assert_close(again[name], tensor, rtol=0, atol=0)


@given(networks(), st.integers(0, 2**32 - 1))
@at_most(4)
def test_deepening_keeps_the_function_or_says_why_not(net, seed):
    graph = graph_of(net)
    for section in ag.structure(graph).sections:
        try:
            deep = ag.deepen(graph, {section.name: len(section.blocks) + 1 + seed % 2})
        except ag.RewriteError as error:
            assert error.found
            continue
        assert same_function(graph, deep, tolerance=TIGHT) <= TIGHT


@given(networks(), st.integers(0, 2**32 - 1))
@at_most(4)
def test_chained_parts_are_the_whole(net, seed):
    graph, state = captured(net, image(), train=False)
    names = [b.name for b in ag.structure(graph).blocks]
    if len(names) < 2:
        return
    rng = np.random.default_rng(seed)
    cuts = [str(n) for n in rng.permutation(names[:-1])[: 1 + seed % 3]]
    try:
        parts = ag.split(graph, after=cuts)
    except ag.RewriteError as error:
        assert "empty" in str(error)
        return
    assert ag.chain(parts) == graph
    x = image(3)
    value: object = (x,)
    for part in parts:
        made = ag.build(part.graph, part.transfer.pull(state)).eval()
        value = made(*value) if isinstance(value, tuple) else made(value)
    torch.testing.assert_close(value, net.eval()(x), rtol=0, atol=0)


@pytest.mark.parametrize(
    "rewrite",
    [
        lambda g: ag.add_step_sizes(g, allow_nothing=True),
        lambda g: ag.add_adapters(g, 2, allow_nothing=True),
    ],
    ids=["steps", "adapt"],
)
@given(net=networks())
@at_most(3)
def test_what_is_put_on_branches_changes_nothing_at_first(rewrite, net):
    graph = graph_of(net)
    changed = rewrite(graph)
    sums = sum(len(b.sums) for b in ag.structure(graph).blocks)
    assert len(changed.graph.params) >= len(graph.params) + sums
    assert same_function(graph, changed, tolerance=0) == 0
