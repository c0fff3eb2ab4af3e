"""Laws of the correspondence: all of both graphs is in it, once, and it says what transfers say."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import archgraph as ag
from archgraph.layout.layouts import AxisRef, leaves
from archgraph.relate.correspond import correspond
from archgraph.relate.correspondence import Correspondence
from archgraph.rewrites.cut import cut_axes
from tests.examples import at_most
from tests.nets import captured, image, networks, renamed


def rewritten(graph: ag.ArchGraph, seed: int) -> ag.Rewritten:
    """Some blocks left out, then axes cut to random sizes."""
    rng = np.random.default_rng(seed)
    gone = [b.name for b in ag.structure(graph).blocks if b.removable and rng.random() < 0.5]
    short = ag.skip(graph, gone) if gone else ag.Rewritten.identity(graph)
    sizes = {a.name: rng.integers(1, a.size + 1) for a in ag.axes(short.graph).free if not a.spans}
    return short >> cut_axes(short.graph, {name: np.arange(n) for name, n in sizes.items()})


def parts(found: Correspondence, kind: str, level: str, side: str) -> list[str]:
    return [getattr(d, side) for d in found.differences if (d.kind, d.level) == (kind, level)]


def everything_once(found: Correspondence) -> None:
    """Every operator, block and entry of both graphs has a partner or is a difference."""
    for index, (graph, alone) in enumerate([(found.a, ["missing"]), (found.b, ["new", "copied"])]):
        side = "ab"[index]
        names = {b.name for b in ag.structure(graph).blocks}
        lost = [n for kind in alone for n in parts(found, kind, "block", side)]
        assert {pair[index] for pair in found.blocks} | set(lost) == names
        assert not {pair[index] for pair in found.blocks} & set(lost)
        nodes = [pair[index] for pair in found.nodes]
        apart = [
            n
            for d in found.differences
            if d.kind in alone and d.level in ("block", "operator")
            for n in getattr(d, f"nodes_{side}")
        ]
        copied = {n for d in found.differences if d.kind == "copied" for n in d.nodes_a}
        assert sorted([*nodes, *apart]) == sorted(graph.node) or (side == "a" and copied)
    assert len({b for _, b in found.nodes}) == len(found.nodes)


@given(networks(), st.integers(0, 2**32 - 1))
@at_most(3)
def test_it_says_what_the_transfer_says(net, seed):
    graph = captured(net, image(), train=False).graph
    small = rewritten(graph, seed)
    found = correspond(graph, small, small.transfer)
    everything_once(found)
    entries = small.transfer.entries
    assert {b: a for a, b in found.leaves} == {name: e.source for name, e in entries.items()}
    for a, b in found.nodes:
        mine, theirs = graph.node[a], small.graph.node[b]
        assert mine.op == theirs.op
        assert [entries[k].source for k in theirs.leaves() if k in entries] == [
            k for k in mine.leaves() if k in graph.state_names
        ]
    assert {d.kind for d in found.differences} <= {"missing", "narrower"}
    cut_to = {d.a: (d.before, d.after) for d in found.differences if d.level == "axis"}
    sizes: dict[str, tuple[object, object]] = {}
    for a, b in found.leaves:
        for before, after in zip(ag.axes(graph).of(a), ag.axes(small.graph).of(b), strict=True):
            parts_a, parts_b = list(leaves(before)), list(leaves(after))
            if len(parts_a) == len(parts_b):  # else a term of a concatenation went with its block
                pairs = zip(parts_a, parts_b, strict=True)
                sizes |= {x.name: (x.size, y.size) for x, y in pairs if isinstance(x, AxisRef)}
    plain = {a.name for a in ag.axes(graph).all}
    assert {k: pair for k, pair in cut_to.items() if k in plain} == {
        name: pair for name, pair in sizes.items() if pair[0] != pair[1]
    }
    assert bool(found.differences) == (graph != small.graph)
    json.dumps(found.plain())


@given(networks(stages=2), st.randoms(use_true_random=False))
@at_most(2)
def test_equal_graphs_have_no_difference_whatever_their_names(net, random):
    graph = captured(net, image(), train=False).graph
    for other, way in ((graph, ag.Transfer.identity(graph)), (renamed(graph, random), None)):
        found = correspond(graph, other, way)
        everything_once(found)
        assert not found.differences and len(found.nodes) == len(graph.nodes)


@given(networks(stages=2), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
@at_most(2)
def test_two_clients_correspond_through_what_both_come_from(net, one, two):
    graph = captured(net, image(), train=False).graph
    a, b = rewritten(graph, one), rewritten(graph, two)
    there = correspond(a, b, (a.transfer, b.transfer))
    back = correspond(b, a, (b.transfer, a.transfer))
    everything_once(there)
    assert {(y, x) for x, y in back.leaves} == set(there.leaves)
    turned = {"missing": "new", "new": "missing", "narrower": "wider", "wider": "narrower"}
    assert {(turned[d.kind], d.level, d.b, d.a) for d in back.differences} == {
        (d.kind, d.level, d.a, d.b) for d in there.differences
    }


def chain(*widths: int) -> ag.ArchGraph:
    layers: list[nn.Module] = []
    for before, after in zip((3, *widths), widths, strict=False):
        layers += [nn.Linear(before, after), nn.ReLU()]
    layers += [nn.Linear(widths[-1], 2)]
    return captured(nn.Sequential(*layers), torch.zeros(1, 3)).graph


def test_copies_name_where_their_values_come_from():
    graph = chain(4, 4)
    sections = {s.name: len(s.blocks) + 1 for s in ag.structure(graph).sections}
    longer = ag.graft(graph, {"0": sections["0"]})
    found = correspond(graph, longer, longer.transfer)
    (copy,) = found.differences
    assert (copy.kind, copy.level, copy.a) == ("copied", "block", "2")
    assert copy.nodes_b and copy.nodes_a == ("linear_1",)
    everything_once(found)


def test_new_parts_and_wider_axes():
    graph = chain(4, 4)
    wide = ag.widen(graph, sizes={"0.out": 6})
    (axis,) = correspond(graph, wide, wide.transfer).differences
    assert (axis.kind, axis.a, axis.before, axis.after) == ("wider", "0.out", 4, 6)
    scaled = ag.add_scaler(graph, 0.5)
    found = correspond(graph, scaled, scaled.transfer)
    assert {(d.kind, d.level) for d in found.differences} == {("new", "operator")}
    other = correspond(chain(4), chain(8, 8))
    assert not other.exact
    assert {(d.kind, d.level) for d in other.differences} == {("new", "block"), ("wider", "axis")}


def test_other_arguments_are_a_change():
    nets = [nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(s), nn.Linear(4, 2)) for s in (0.1, 0.2)]
    a, b = (captured(net, torch.zeros(1, 3)).graph for net in nets)
    (found,) = correspond(a, b, ag.Transfer.identity(a)).differences
    assert (found.kind, found.before, found.after) == (
        "changed", "negative_slope=0.1", "negative_slope=0.2",
    )  # fmt: skip


def test_a_transfer_of_other_graphs_is_refused():
    small = ag.take(chain(4, 4), 0.5)
    with pytest.raises(ag.RewriteError, match="does not lead from one graph to the other"):
        correspond(chain(8, 8), small, small.transfer)
