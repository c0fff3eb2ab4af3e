"""Figures that are given to a page are those that it shows, and wrong ones are refused."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
import torch

from archgraph.display.collect import graph_facts
from archgraph.errors import GraphError
from archgraph.viewer import view
from archgraph.viewer.document import decode_data


def test_a_part_has_the_mean_importance_of_what_it_uses(net):
    given: dict[str, Any] = {
        "stem.weight": 0.5,
        "layers.0.linear1.out": torch.arange(16.0),
        "layers.1.linear1.weight": [2.0],
        "mean": 4.0,
    }
    data = decode_data(view(net, importance=given))
    assert data["overlays"] == {"importance": ["importance", 0.0, 7.5]}
    graph = data["graphs"][0]
    figures, ops = graph["figures"]["importance"], graph["operators"]["name"]
    means = dict(zip(given, (0.5, 7.5, 2.0, 4.0), strict=True))
    assert math.isclose(figures["whole"], statistics.fmean(means.values()))
    for name, value in zip(ops, figures["operators"], strict=True):
        parts = (name, *net.node[name].leaves(), *graph_facts(net).met[name])
        told = [means[k] for k in dict.fromkeys(parts) if k in means]
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
