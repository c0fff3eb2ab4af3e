"""Operators and leaves that belong together, without contradiction."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import archgraph as ag
from tests.nets import captured, with_parts
from tests.relate.networks import Mine, flat


def test_counters_follow_their_norms() -> None:
    whole = captured(Mine((1, 1), (4, 4)), torch.zeros(1, 3, 32, 32)).graph
    net = nn.ModuleDict({"inner": Mine((1, 1), (4, 4))})
    net.forward = lambda x: net["inner"](x)
    found = ag.align(captured(net, torch.zeros(1, 3, 32, 32)).graph, whole)
    assert dict(found.leaves)["inner.start.1.num_batches_tracked"] == "start.1.num_batches_tracked"
    assert found.score == 1 and found.transfer


def test_weights_are_shared_in_both_or_in_neither() -> None:
    @with_parts(
        lambda again: {
            "a": nn.Linear(3, 3),
            "b": nn.Linear(3, 3),
            "c": nn.Linear(3, 3),
            "d": nn.Linear(3, 2),
            "again": again,
        }
    )
    def Twice(self, x):
        x = torch.tanh(self.b(torch.relu(self.a(torch.sin(x)))))
        return self.d(torch.relu((self.a if self.again else self.c)(x)))

    graphs = [captured(Twice(again), torch.zeros(1, 3)).graph for again in (True, False)]
    for pair in (graphs, graphs[::-1]):
        found = ag.align(*pair)
        assert len(set(dict(found.leaves).values())) == len(found.leaves)
        assert any("shares a.weight" in u.reason for u in found.unmatched)


@pytest.mark.parametrize("shuffle", [False, True])
def test_inputs_are_not_taken_apart_in_different_ways(shuffle: bool) -> None:
    @with_parts(lambda count: {"count": count, "last": nn.Linear(6 if shuffle else 2, 2)})
    def Net(self, x):
        if shuffle:
            return self.last(x.view(-1, self.count, 6 // self.count).mT.reshape(-1, 6))
        return self.last(x[:, self.count : self.count + 2])

    found = ag.align(flat(Net(2)), flat(Net(3)))
    assert not found.leaves and ag.align(flat(Net(2)), flat(Net(2))).transfer
    assert ("shape is 2 in %" if shuffle else "start is 2 in %slice and 3 in %slice") in str(found)


def test_blocks_of_one_form_belong_together_only_if_their_inputs_do() -> None:
    @with_parts(
        lambda far: {
            "layers": nn.ModuleList(nn.Linear(6, 6) for _ in range(4)),
            "last": nn.Linear(6, 2),
            "far": far,
        }
    )
    def Net(self, x):
        """A chain of residual blocks whose last takes an earlier result as well."""
        results = [x]
        for layer in self.layers:
            results.append(results[-1] + layer(results[-1]).relu())
        return self.last(results[-1] + results[self.far])

    found = ag.align(flat(Net(1)), flat(Net(2)))
    assert [u.part for u in found.unmatched] == ["layers.3", "layers.3"]
    assert "takes %add, its counterpart layers.3 takes %add_1" in found.unmatched[0].reason
    assert ag.align(flat(Net(1)), flat(Net(1))).score == 1


@with_parts(
    lambda swapped: {
        "one": nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.Tanh()),
        "two": nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 6), nn.Sigmoid()),
        "last": nn.Linear(6, 2),
        "swapped": swapped,
    }
)
def Towers(self, x, y):
    """Two towers of unlike layers, one for each input, or for the other one."""
    x, y = (y, x) if self.swapped else (x, y)
    return self.last(self.one(x) + self.two(y))


def test_a_block_behind_another_result_is_another_block() -> None:
    graphs = [
        captured(Towers(swapped), torch.zeros(1, 6), torch.zeros(1, 6)).graph
        for swapped in (False, True)
    ]
    reasons = {u.part: u.reason for u in ag.align(*graphs).unmatched if u.side == "client"}
    assert reasons["last"] == "takes %relu, its counterpart last takes %x"
    assert ag.align(graphs[0], graphs[0]).score == 1
