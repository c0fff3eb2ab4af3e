"""Figures that are given to a page are those that it shows, and wrong ones are refused."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
import torch

from archgraph.analysis.structure import structure
from archgraph.display.collect import graph_facts
from archgraph.errors import GraphError, RejectedUpdate
from archgraph.rewrites.take import take
from archgraph.states import signature
from archgraph.viewer import view
from archgraph.viewer.document import decode_data
from archgraph.viewer.values import BINS, value_rows


def test_a_part_has_the_mean_importance_of_what_it_uses(net):
    given: dict[str, Any] = {
        "stem.weight": 0.5,
        "layers.0.linear1.out": torch.arange(16.0),
        "layers.1.linear1.weight": [2.0],
        "mean": 4.0,
    }
    data = decode_data(view(net, importance=given))
    assert data["overlays"] == {"importance": ["importance", "amount", 0.0, 7.5]}
    graph = data["graphs"][0]
    figures, ops = graph["figures"]["importance"], graph["operators"]["name"]
    means = dict(zip(given, (0.5, 7.5, 2.0, 4.0), strict=True))
    assert math.isclose(figures["whole"], statistics.fmean(means.values()))
    for name, value in zip(ops, figures["operators"], strict=True):
        fact = graph_facts(net).operators[name]
        told = [means[k] for k in (name, *fact.leaves, *fact.axes) if k in means]
        assert value == (statistics.fmean(told) if told else None), name
    blocks = dict(zip([b[0] for b in graph["blocks"]], figures["blocks"], strict=True))
    assert (blocks["layers.0"], blocks["layers.1"], blocks["layers.2"]) == (7.5, 2.0, None)


def test_importance_that_nothing_has_is_refused(net):
    with pytest.raises(GraphError, match=r"importance: no such leaf.*stem\.weigth.*stem\.weight"):
        view(net, importance={"stem.weigth": 1.0})
    wrong: tuple[Any, ...] = ([1.0, 2.0], float("nan"), "much")
    for numbers in wrong:
        with pytest.raises(GraphError, match=r"importance of stem\.out.*finite numbers, 1 or 8 of"):
            view(net, importance={"stem.out": numbers})
    with pytest.raises(GraphError, match="importance is empty"):
        view(net, importance={})


def weights(graph, seed):
    """Weights at random."""
    draw = torch.Generator().manual_seed(seed)
    shapes = {slot.name: slot.shape for slot in signature(graph)}
    return {k: torch.randn(shape, generator=draw) for k, shape in shapes.items()}


def cosine(x, y):
    x, y = (torch.cat([one.flatten().double() for one in many]) for many in (x, y))
    return float(torch.nn.functional.cosine_similarity(x, y, 0))


def test_similarity_is_the_cosine_of_what_the_transfer_matches(family):
    graph, narrow = family.graph, family.clients[1]
    states = {"global": weights(graph, 0)}
    states |= {f"narrow/{client}": weights(narrow.graph, client) for client in (1, 2)}
    data = decode_data(view(family, states=states))
    assert data["overlays"] == {"similarity": ["similarity of weights", "scale", -1.0, 1.0]}
    pets, full, half, _ = data["graphs"]
    assert "figures" not in full
    pulled = narrow.transfer.pull(states["global"])
    figures = half["figures"]["similarity"]
    for i, block in enumerate(structure(narrow.graph).blocks):
        used = dict.fromkeys(k for n in block.nodes for k in narrow.graph.node[n].leaves())
        leaves = [k for k in used if narrow.graph.param[k].role == "parameter"]
        each = [
            cosine([pulled[k] for k in leaves], [states[f"narrow/{client}"][k] for k in leaves])
            for client in (1, 2)
        ]
        assert math.isclose(figures["blocks"][i], statistics.fmean(each), abs_tol=1e-9)
    assert math.isclose(pets["figures"]["similarity"]["whole"], figures["whole"], abs_tol=1e-9)
    relu = half["operators"]["name"].index(
        next(n.name for n in narrow.graph.nodes if not [*n.leaves()])
    )
    assert figures["operators"][relu] is None
    same = decode_data(view(family, states={"global": states["global"], "narrow": pulled}))
    figure = same["graphs"][2]["figures"]["similarity"]["whole"]
    assert math.isclose(figure, 1.0) and same["overlays"]["similarity"][2:] == [0.0, 1.0]


def test_two_rewrites_of_one_graph_are_alike_where_both_have_it(net):
    half, most = take(net, 0.5), take(net, 0.75)
    whole = weights(net, 0)
    states = {"net": half.transfer.pull(whole), "net (2)": most.transfer.pull(whole)}
    data = decode_data(view([half, most], states=states))
    assert all(math.isclose(g["figures"]["similarity"]["whole"], 1.0) for g in data["graphs"])
    names = dict(zip(reversed(states), states.values(), strict=True))
    aligned = decode_data(view([most.graph, half.graph], states=names))
    assert math.isclose(aligned["graphs"][1]["figures"]["similarity"]["whole"], 1.0)


def test_weights_that_cannot_be_compared_are_refused(net, family):
    state = weights(net, 0)
    with pytest.raises(GraphError, match=r"similarity needs weights .* weights of 1 of 4 graphs"):
        view(family, states=dict.fromkeys(("full", "full/3"), state))
    with pytest.raises(GraphError, match=r"states: no such graph.*'wide'.*narrow"):
        view(family, states={"global": state, "wide": state})
    with pytest.raises(RejectedUpdate, match="stem"):
        view(family, states={"global": state, "narrow": state})


def test_values_of_weights_are_told_by_parameter(net):
    state = weights(net, 0)
    name = "layers.1.linear1.weight"
    state[name][:4] = 0.0
    rows = decode_data(view(net, states={"net": state}))["graphs"][0]["values"]
    leaves = [param.name for param in net.params]
    low, high, mean, deviation, zeros, norm, counts = rows[leaves.index(name)]
    value = state[name].double()
    told = value.min(), value.max(), value.mean(), value.std(correction=0), 0.25, value.norm()
    assert [low, high, mean, deviation, zeros, norm] == pytest.approx([*map(float, told)], rel=1e-3)
    assert sum(counts) == value.numel() and len(counts) == BINS
    # Of several versions all values together.
    both = value_rows(net, [state, {k: v + 1 for k, v in state.items()}])[leaves.index(name)]
    assert both[2] == pytest.approx(float(value.mean()) + 0.5, rel=1e-3)
    with pytest.raises(RejectedUpdate, match="stem"):
        view(net, states={"net": {"stem.weight": torch.zeros(3)}})
