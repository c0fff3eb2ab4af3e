"""The batched traversal against a loop over nodes, and what must not change it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

import archgraph as ag
from archgraph.hypernet import GatedGNN, Vocabulary, sweeps, to_batch, to_data
from tests.examples import at_most
from tests.hypernet.test_graphs import graphs, two_operators

WIDTH = 8


def network(steps=1, reach=1):
    torch.manual_seed(0)
    return GatedGNN(WIDTH, steps, virtual=reach > 1).double()


def distances(start, neighbours):
    """Shortest paths against the edges, breadth first."""
    found = {start: 0}
    front = [start]
    for length in range(1, len(neighbours)):
        front = sorted({u for v in front for u in neighbours[v]} - found.keys())
        found |= dict.fromkeys(front, length)
    return found


def naive(gnn, features, graph, reach=1):
    """Eqs. 6-7 node by node, in the graph's own order and then in its reverse."""
    place = {n.name: i for i, n in enumerate(graph.nodes)}
    before = [sorted({place[u] for u in n.uses()}) for n in graph.nodes]
    after = [[i for i, ups in enumerate(before) if j in ups] for j in range(len(before))]
    h = list(features)
    for _ in range(gnn.steps):
        for order, neighbours in ((range(len(h)), before), (reversed(range(len(h))), after)):
            heard = [distances(v, neighbours) for v in range(len(h))]
            for v in order:
                message = torch.zeros(WIDTH, dtype=features.dtype)
                for u, s in heard[v].items():
                    if s == 1:
                        message = message + gnn.message(h[u])
                    elif 1 < s <= reach:
                        message = message + gnn.virtual(h[u]) / s
                h[v] = gnn.cell(message[None], h[v][None])[0]
    return torch.stack(h)


def gradients(gnn, features, result):
    """Gradients of a fixed function of the result, which tells every number apart."""
    weights = torch.linspace(-1, 1, result.numel(), dtype=result.dtype).view_as(result)
    return torch.autograd.grad((result * weights).sum(), [features, *gnn.parameters()])


@pytest.mark.sample(4)
@at_most(2)
@given(graph=graphs)
@pytest.mark.parametrize(("steps", "reach"), [(1, 1), (2, 1), (1, 3), (2, 50)])
def test_equals_a_loop_over_nodes_forward_and_gradients(graph, steps, reach):
    several = [graph, two_operators(), graph]
    gnn, batch = network(steps, reach), to_batch(several, Vocabulary.of(several), reach)
    features = torch.randn(batch.num_nodes, WIDTH, dtype=torch.float64, requires_grad=True)
    found = gnn(features, *sweeps(batch))
    parts = features.split([len(g.nodes) for g in several])
    expected = torch.cat([naive(gnn, x, g, reach) for x, g in zip(parts, several, strict=True)])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    for a, b in zip(
        gradients(gnn, features, found), gradients(gnn, features, expected), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_single_precision_stays_within_a_millionth_on_a_deep_network():
    graph = ag.load("specs/models/recipfl_resnet18.yaml")
    gnn = network().float()
    features = torch.randn(len(graph.nodes), WIDTH, requires_grad=True)
    found = gnn(features, *sweeps(to_data(graph, Vocabulary.of([graph]))))
    expected = naive(gnn, features, graph)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@at_most(2)
@given(graph=graphs)
def test_the_order_of_nodes_of_a_level_changes_nothing(graph):
    data = to_data(graph, Vocabulary.of([graph]))
    gnn = network()
    features = torch.randn(data.num_nodes, WIDTH, dtype=torch.float64)
    # Sorted by level with ties shuffled: nodes of a level change places among themselves.
    shuffled = torch.randperm(data.num_nodes)
    order = shuffled[torch.argsort(data.level_forward[shuffled], stable=True)]
    place = torch.argsort(order)
    moved = data.clone()
    moved.edge_index = place[data.edge_index]
    moved.level_forward, moved.level_backward = (
        data.level_forward[order],
        data.level_backward[order],
    )
    expected = gnn(features, *sweeps(data))
    found = gnn(features[order], *sweeps(moved))
    torch.testing.assert_close(found, expected[order], rtol=0, atol=1e-12)


@at_most(2)
@given(graph=graphs)
def test_clients_do_not_see_one_another(graph):
    other = two_operators()
    words = Vocabulary.of([graph, other])
    gnn = network()
    a = torch.randn(len(graph.nodes), WIDTH, dtype=torch.float64)
    b = torch.randn(len(other.nodes), WIDTH, dtype=torch.float64)
    alone = gnn(a, *sweeps(to_data(graph, words))), gnn(b, *sweeps(to_data(other, words)))
    there = gnn(torch.cat([a, b]), *sweeps(to_batch([graph, other], words)))
    back = gnn(torch.cat([b, a]), *sweeps(to_batch([other, graph], words)))
    torch.testing.assert_close(there, torch.cat(alone), rtol=0, atol=1e-12)
    torch.testing.assert_close(back, torch.cat(alone[::-1]), rtol=0, atol=1e-12)


def test_virtual_edges_are_the_shortest_paths_up_to_their_reach():
    """LeNet-5 is a chain: n - s pairs of nodes are s apart."""
    graph = ag.load("specs/models/lenet5.yaml")
    nodes = len(graph.nodes)
    data = to_data(graph, Vocabulary.of([graph]), 4)
    assert torch.bincount(data.distance).tolist() == [0, 0, nodes - 2, nodes - 3, nodes - 4]
    assert "virtual_index" not in to_data(graph, Vocabulary.of([graph]))


def test_a_node_hears_the_whole_graph_after_one_step():
    """Forward and backward, so even an input depends on the output's features."""
    graph = ag.load("specs/models/lenet5.yaml")
    plans = sweeps(to_data(graph, Vocabulary.of([graph])))
    features = torch.randn(len(graph.nodes), WIDTH, dtype=torch.float64, requires_grad=True)
    for node in (0, len(graph.nodes) - 1):
        heard = torch.autograd.grad(network()(features, *plans)[node].sum(), features)[0]
        assert (heard.abs().sum(1) > 0).all()
