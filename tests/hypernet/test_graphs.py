"""Graphs as data: levels, edges, words, and who owns which tensor."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given
from torch import nn

import archgraph as ag
from archgraph.graph.ir import Leaf, walk
from archgraph.hypernet import Vocabulary, entries, local, sweeps, to_batch, to_data
from tests.examples import at_most
from tests.nets import captured, image, networks, with_parts


@with_parts(
    lambda: {
        "token": nn.Parameter(torch.zeros(1, 1, 8)),
        "table": nn.Parameter(torch.zeros(9, 8)),
        "gain": nn.Parameter(torch.tensor(0.5)),
        "gamma": nn.Parameter(torch.full((8,), 1e-2)),
        "kernel": nn.Parameter(torch.randn(8, 8)),
        "frozen": nn.Parameter(torch.ones(8), requires_grad=False),
        "idle": nn.Parameter(torch.ones(3)),
        "conv1d": nn.Conv1d(8, 8, 3, padding=1),
        "norm1d": nn.BatchNorm1d(8),
        "up": nn.ConvTranspose1d(8, 8, 2, stride=2),
        "group": nn.GroupNorm(2, 8),
        "shared": nn.Linear(8, 8),
        "layer": nn.LayerNorm(8),
        "lstm": nn.LSTM(8, 6, batch_first=True),
        "head": nn.Linear(6, 3),
    }
)
def Everything(self, x):
    """What other hypernetworks leave unset without a word."""
    x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
    x = x + self.table[torch.arange(x.shape[1])]
    x = self.shared(torch.relu(self.shared(x))) * self.gamma + self.frozen
    x = self.group(self.up(self.norm1d(self.conv1d(x.transpose(1, 2))))).transpose(1, 2)
    return self.head(self.lstm(self.layer(x @ self.kernel) * self.gain)[0][:, -1])


graphs = networks().map(lambda net: captured(net, image()).graph)


@functools.cache
def two_operators() -> ag.ArchGraph:
    return captured(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.zeros(1, 2)).graph


@functools.cache
def of_everything() -> ag.ArchGraph:
    return captured(Everything(), torch.randn(2, 5, 8)).graph


@pytest.fixture
def graph() -> ag.ArchGraph:
    return of_everything()


def longest(edges, count):
    """Longest path to each node, by relaxing every edge as often as there are nodes."""
    level = [0] * count
    for _ in range(count):
        for a, b in edges:
            level[b] = max(level[b], level[a] + 1)
    return level


@at_most(2)
@given(graph=graphs)
def test_levels_are_longest_paths_from_either_end(graph):
    data = to_data(graph, Vocabulary.of([graph]))
    place = {n.name: i for i, n in enumerate(graph.nodes)}
    edges = {(place[u], place[n.name]) for n in graph.nodes for u in n.uses()}
    assert sorted(map(tuple, data.edge_index.T.tolist())) == sorted(edges)
    assert data.level_forward.tolist() == longest(edges, len(place))
    assert data.level_backward.tolist() == longest({(b, a) for a, b in edges}, len(place))


@at_most(2)
@given(graph=graphs)
def test_a_sweep_delivers_every_edge_once_and_never_ahead_of_its_sender(graph):
    other = two_operators()
    batch = to_batch([graph, other, graph], Vocabulary.of([graph, other]), 3)
    edges, pairs = (batch.edge_index, None), (batch.virtual_index, batch.distance)
    for way, plan in enumerate(sweeps(batch)):
        nodes = [list(part) for part in plan.order.split([x.size for x in plan.levels])]
        for kind, (index, distance) in enumerate((edges, pairs)):
            seen = []
            for number, level in enumerate(plan.levels):
                found, senders = level.messages[kind], []
                for home, rows in found.sources:
                    assert home < number
                    senders += nodes[home] if rows is None else [nodes[home][r] for r in rows]
                assert sorted(set(found.edge_index[0].tolist())) == list(range(len(senders)))
                ends = [(int(senders[a]), int(nodes[number][b])) for a, b in found.edge_index.T]
                apart = [1] * len(ends) if found.distance is None else found.distance.tolist()
                seen += [(*pair, length) for pair, length in zip(ends, apart, strict=True)]
            lengths = torch.ones(len(index[0])) if distance is None else distance
            expected = torch.cat([index.flip(0) if way else index, lengths[None].long()])
            assert sorted(seen) == sorted(map(tuple, expected.T.tolist()))
        assert torch.equal(plan.order[plan.position], torch.arange(batch.num_nodes))


def test_batching_shifts_edges_but_not_levels_or_words(graph):
    words = Vocabulary.of([graph])
    one, two = to_data(graph, words, 2), to_batch([graph, graph], words, 2)
    count = len(graph.nodes)
    for key in ("edge_index", "virtual_index"):
        assert torch.equal(two[key][:, one[key].shape[1] :], one[key] + count)
    for key in ("word", "level_forward", "level_backward", "distance"):
        assert torch.equal(two[key], one[key].repeat(2))


def test_unknown_operators_count_as_one_of_their_kind():
    words = Vocabulary(("conv2d", "relu"))
    ops = ["aten.conv2d", "aten.relu", "aten.linear", "aten.layer_norm", "aten.add.Tensor"]
    assert [words.index(op) for op in [*ops, "aten.tanh", "aten.sort"]] == [0, 1, 2, 3, 4, 5, 6]
    assert len(words) == 7


def test_every_trainable_tensor_has_one_owner_that_uses_it(graph):
    found = entries(graph)
    trainable = {p.name for p in graph.params if p.role == "parameter" and p.trainable}
    assert [e.name for e in found] == [n for n in graph.state_names if n in trainable - {"idle"}]
    for entry in found:
        node = graph.node[graph.nodes[entry.node].name]
        value = node.arg(entry.slot.argument.split(".")[0])
        assert Leaf(entry.name) in walk(value)
        assert entry.slot.rank == len(entry.shape)
    # Gates' weights of an LSTM are four tensors of one argument: four decoders.
    assert len({e.slot for e in found if e.slot.op == "lstm"}) == 4


def test_what_stays_local_says_why(graph):
    rules = {"frozen": "frozen", "idle": "unused"}
    rules |= {f"norm1d.{k}": "buffer" for k in ("running_mean", "running_var")}
    rules |= {"norm1d.num_batches_tracked": "buffer"}
    assert dict(local(graph)) == rules


def test_complex_parameters_stay_local():
    @with_parts(lambda: {"filter": nn.Parameter(torch.ones(3, dtype=torch.complex64))})
    def Spectral(self, x):
        return torch.view_as_real(torch.view_as_complex(x) * self.filter)

    graph, _ = captured(Spectral(), torch.ones(2, 3, 2))
    assert local(graph) == {"filter": "not real"}


def test_forms_follow_the_operator_table(graph):
    form = {e.name: (e.form, round(e.scale, 6)) for e in entries(graph)}
    assert form["conv1d.weight"] == ("weight", round((2 / 24) ** 0.5, 6))
    assert form["lstm.weight_hh_l0"] == ("weight", round((2 / 6) ** 0.5, 6))
    for name in ("group.weight", "layer.weight", "norm1d.weight", "gamma", "gain"):
        assert form[name] == ("factor", 1.0), name
    for name in ("group.bias", "conv1d.bias", "lstm.bias_ih_l0"):
        assert form[name] == ("shift", 1.0), name
    assert form["kernel"] == ("weight", 0.02)
    factor, shift, weight = (
        next(e for e in entries(graph) if e.name == name)
        for name in ("gain", "conv1d.bias", "kernel")
    )
    p = torch.tensor([-1.0, 0.0, 3.0])
    torch.testing.assert_close(factor.formed(p), 2 / (1 + torch.exp(-p / 2)))
    torch.testing.assert_close(shift.formed(p), torch.tanh(p / 5))
    torch.testing.assert_close(weight.formed(p), 0.02 * p)


def test_nothing_to_read_in_an_empty_architecture():
    empty = ag.ArchGraph(inputs=(), params=(), nodes=(), outputs=())
    with pytest.raises(ag.GraphError, match="without operators"):
        to_data(empty, Vocabulary(()))
