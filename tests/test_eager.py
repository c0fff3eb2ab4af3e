"""Torch's compiler is not imported before it is used, and then everything is as torch has it."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch

from archgraph.eager import step_optimiser

WITHOUT = """
import sys, torch
from archgraph.eager import step_optimiser, without_compiler
without_compiler()
net = torch.nn.Linear(3, 2)
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
optimiser.zero_grad()
net(torch.ones(4, 3)).sum().backward()
step_optimiser(optimiser)
torch.empty(4, 3, device="meta").mean(0)
assert "torch._dynamo" not in sys.modules
import torch._dynamo
hidden = torch.optim.Optimizer.add_param_group
fn = dict(zip(hidden.__code__.co_freevars, hidden.__closure__))["fn"].cell_contents
assert "__dynamo_disable" not in vars(fn)
optimiser.zero_grad()
compiled = torch.compile(net, backend="eager")
assert torch.equal(compiled(torch.ones(4, 3)), net(torch.ones(4, 3)))
optimiser.step()
torch.optim.SGD(net.parameters(), lr=0.1)
assert vars(fn)["__dynamo_disable"] is not fn
"""


def test_the_compiler_is_imported_only_when_something_asks_for_it():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 1e-2}),
        (torch.optim.SGD, {}),
        (torch.optim.Adam, {"weight_decay": 1e-2}),
    ],
)
def test_a_step_has_the_bits_of_the_optimisers_own(kind, options):
    torch.manual_seed(0)
    nets = [torch.nn.Linear(5, 3)]
    nets.append(copy.deepcopy(nets[0]))
    optimisers = [kind(net.parameters(), lr=0.1, **options) for net in nets]
    for _ in range(3):
        inputs = torch.randn(4, 5)
        for net, optimiser in zip(nets, optimisers, strict=True):
            optimiser.zero_grad()
            net(inputs).square().sum().backward()
        step_optimiser(optimisers[0])
        optimisers[1].step()
    assert all(map(torch.equal, nets[0].parameters(), nets[1].parameters()))
    assert all(p.requires_grad for p in nets[0].parameters())
