"""Costs of submodels without making them are those of the submodels that are made."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import archgraph as ag
from archgraph.analysis.cost_polynomial import MEASURES, CostPolynomial
from archgraph.graph.polynomial import Polynomial
from tests.examples import at_most
from tests.nets import FOREIGN, captured, image, networks, with_parts
from tests.structures import graph_of, models

NAMES = ("a", "b", "c")
POLYNOMIALS = st.dictionaries(
    st.lists(st.sampled_from(NAMES), max_size=2).map(lambda names: tuple(sorted(names))),
    st.integers(-9, 9).filter(bool),
    max_size=4,
).map(Polynomial)
SIZES = st.fixed_dictionaries(dict.fromkeys(NAMES, st.integers(0, 7)))
graphs = st.one_of(models().map(graph_of), networks().map(lambda net: graph_of(net, image())))


@given(POLYNOMIALS, POLYNOMIALS, st.integers(-5, 5), SIZES)
def test_values_of_sums_and_products_are_sums_and_products_of_values(a, b, number, sizes):
    x, y = a.value(sizes), b.value(sizes)
    assert (a + b).value(sizes) == x + y and (a * b).value(sizes) == x * y
    assert (number + a).value(sizes) == number + x and (number * a).value(sizes) == number * x
    assert a + b == b + a and a * b == b * a and hash(a * b) == hash(b * a)
    assert a + -1 * a == Polynomial({}) and str(a + -1 * a) == "0"
    assert (a + b).names <= a.names | b.names


def agree(graph: ag.ArchGraph, costs: CostPolynomial, data: st.DataObject) -> bool:
    """Draw a submodel, and compare its cost; False where no such submodel can be made."""
    axes = [axis for axis in ag.axes(graph).free if axis.size > 1]
    chosen = data.draw(st.lists(st.sampled_from(axes), unique_by=lambda a: a.name)) if axes else []
    sizes = {axis.name: data.draw(st.integers(1, axis.size - 1)) for axis in chosen}
    blocks = list(costs.blocks)
    gone = data.draw(st.lists(st.sampled_from(blocks), unique=True)) if blocks else []
    small = graph
    try:
        if sizes:
            positions = {name: range(size) for name, size in sizes.items()}
            small = ag.take(small, positions=positions).graph
        if gone:
            small = ag.skip(small, gone).graph
    except ag.ArchGraphError:
        return False
    found, made = costs.at(sizes, gone), ag.cost(small)
    assert [getattr(found, m) for m in MEASURES] == [getattr(made, m) for m in MEASURES]
    return bool(sizes or gone)


@given(graphs, st.data())
@at_most(4)
def test_random_submodels_of_random_networks(graph, data):
    costs, whole = ag.cost(graph).polynomial, ag.cost(graph)
    assert [getattr(costs.at(), m) for m in MEASURES] == [getattr(whole, m) for m in MEASURES]
    agree(graph, costs, data)


@pytest.mark.parametrize("name", ["resnet18", pytest.param("densenet121", marks=pytest.mark.full)])
def test_submodels_of_foreign_models(name):
    foreign = FOREIGN[name]()
    graph = captured(foreign.model, *foreign.args).graph
    costs = ag.cost(graph).polynomial
    sizes = {axis.name: axis.size // 2 for axis in ag.axes(graph).free[::3] if axis.size > 1}
    gone = list(costs.blocks)[::2]
    small = ag.take(graph, positions={name: range(size) for name, size in sizes.items()}).graph
    small = ag.skip(small, gone).graph
    found, made = costs.at(sizes, gone), ag.cost(small)
    assert [getattr(found, m) for m in MEASURES] == [getattr(made, m) for m in MEASURES]


@with_parts(lambda: {"a": nn.Conv2d(8, 4, 1), "b": nn.Conv2d(8, 4, 3, padding=1)})
def Branches(self, x):
    """Half of the channels each: as many as enter, by chance."""
    return torch.cat([self.a(x), self.b(x)], 1).relu()


def test_a_block_that_is_as_wide_as_what_enters_by_chance_alone():
    net = nn.Sequential(nn.Conv2d(3, 8, 1), Branches(), Branches(), nn.Conv2d(8, 2, 1))
    graph = captured(net, image()).graph
    costs = ag.cost(graph).polynomial
    assert list(costs.equal) == ["1", "2"]
    assert costs.at(skipped=["2"]).macs == ag.cost(ag.skip(graph, ["2"]).graph).macs
    assert costs.at({"1.a.out": 3, "2.a.out": 3}, ["2"]).macs < costs.at(skipped=["2"]).macs
    with pytest.raises(ag.GraphError, match="cannot be skipped at these sizes"):
        costs.at({"2.a.out": 1}, ["2"])


def test_names_that_are_not_there():
    graph = captured(nn.Sequential(nn.Conv2d(3, 8, 1), Branches()), image()).graph
    with pytest.raises(ag.AxisError, match="no such free axis"):
        ag.cost(graph).polynomial.at({"0.outs": 3})
    with pytest.raises(ag.GraphError, match="no such removable block"):
        ag.cost(graph).polynomial.at(skipped=["0"])
