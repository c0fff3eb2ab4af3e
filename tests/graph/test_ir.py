"""Graph values: equality, hashing, views, pruning, numbering."""

from __future__ import annotations

import copy
import pickle

import networkx as nx
import pytest
import torch
from torch import nn

from archgraph.graph.ir import BATCH, TRAINING, Mode, Record, Ref, in_mode, same_value, show, walk
from archgraph.graph.passes import prune, renumber
from tests.nets import captured


@pytest.fixture(scope="module")
def graph():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    return captured(net, torch.randn(2, 3)).graph


def test_equal_graphs_share_hash_and_digest(graph):
    other = copy.deepcopy(graph)
    assert other == graph and hash(other) == hash(graph) and other.digest == graph.digest
    assert (
        graph.replace(name="other") == graph and graph.replace(name="other").digest == graph.digest
    )
    assert pickle.loads(pickle.dumps(graph)) == graph


def test_any_change_is_another_graph(graph):
    changed = graph.replace(nodes=(*graph.nodes[:-1], graph.nodes[-1].with_args(bias=None)))
    assert changed != graph and changed.digest != graph.digest


def test_graphs_are_frozen(graph):
    with pytest.raises(AttributeError):
        graph.name = "other"
    with pytest.raises(nx.NetworkXError):
        graph.nx.add_node("new")


def test_networkx_view_is_the_same_dag(graph):
    assert nx.is_directed_acyclic_graph(graph.nx)
    assert set(graph.nx.edges) == {(u, n.name) for n in graph.nodes for u in n.uses()}
    assert graph.users["input"] == ("linear",)
    assert graph.leaf_users["3.weight"] == ("linear_1",)


def test_prune_drops_dead_operators_their_leaves_and_their_counters(graph):
    cut = prune(graph.replace(outputs=Ref("linear")))
    assert [n.op for n in cut.nodes] == ["input", "aten.linear"]
    assert set(cut.param) == {"0.weight", "0.bias"} and cut.updates == ()


def test_renumbering_is_canonical(graph):
    assert renumber(graph) == graph
    renamed = graph.replace(
        nodes=tuple(n if n.op == "input" else _rename(n) for n in graph.nodes),
        outputs=Ref("z_" + graph.outputs.name),
        updates=tuple((k, Mode(Ref("z_" + v.train.name), None)) for k, v in graph.updates),
    )
    assert renamed != graph and renumber(renamed) == graph


def _rename(node):
    import dataclasses

    from archgraph.graph.ir import replace

    def one(value):
        return Ref("z_" + value.name) if isinstance(value, Ref) and value.name != "input" else value

    args = tuple((k, replace(v, one)) for k, v in node.args)
    return dataclasses.replace(node, name="z_" + node.name, args=args)


def test_values():
    tree = Record((("a", (Ref("x"), 1)), ("b", Mode(Ref("y"), None))))
    assert [show(v) for v in walk(tree)] == ["%x", "1", "%y", "None"]
    assert in_mode(tree, False) == Record((("a", (Ref("x"), 1)), ("b", None)))
    assert (
        not same_value(1, True)
        and not same_value(1, 1.0)
        and same_value(TRAINING, Mode(True, False))
    )
    assert str(3 * BATCH // 2) == "batch + batch // 2"
