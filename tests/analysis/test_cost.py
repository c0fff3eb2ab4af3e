"""Cost against independent oracles: torch's flop counter and the parameters themselves."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import archgraph as ag
from tests.nets import FOREIGN, captured, with_parts


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "densenet121", "googlenet"])
def test_macs_are_half_the_flops_of_torch(name):
    foreign = FOREIGN[name]()
    graph = captured(foreign.model, *foreign.args, train=False).graph
    model = foreign.model.eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(foreign.args[0][:1])
    found = ag.cost(graph)
    assert 2 * found.macs == counter.get_total_flops()
    assert found.parameters == sum(p.numel() for p in model.parameters())
    state = model.state_dict().values()
    assert found.bytes == sum(t.numel() * t.element_size() for t in state)


def test_attention_costs_scores_and_mixing():
    @with_parts()
    def Attend(self, q, k):
        return nn.functional.scaled_dot_product_attention(q, k, k)

    graph = captured(Attend(), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8)).graph
    assert ag.cost(graph).macs == 2 * 3 * 5 * 7 * 8


def test_tied_parameters_count_once_and_costs_add_up():
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False))
    net.get_submodule("2").weight = net.get_submodule("0").weight
    graph = captured(net, torch.randn(2, 4)).graph
    found = ag.cost(graph)
    assert found.parameters == 16 and found.macs == 32
    total = found.of(tuple(n.name for n in graph.nodes))
    assert (total.parameters, total.macs, total.bytes) == (16, 32, found.activations)
