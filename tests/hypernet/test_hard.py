"""What other hypernetworks leave unset without a word, case by case: each tensor by its slot."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from archgraph.hypernet import entries
from tests.nets import Foreign, captured, tied_head, with_parts
from tests.zoo.hypernet import examine


@with_parts(
    lambda: {
        "gamma": nn.Parameter(torch.full((4,), 1e-6)),
        "layer": nn.Linear(4, 4),
    }
)
def LayerScale(self, x):
    """ConvNeXt's: a residual branch times a small vector."""
    return x + self.gamma * self.layer(x)


@with_parts(
    lambda: {
        "table": nn.Parameter(torch.zeros(9, 2)),
        "mix": nn.Linear(4, 8),
        "index": torch.arange(5)[:, None] - torch.arange(5) + 4,
    }
)
def RelativePositions(self, x):
    """Swin's: a table that a fixed index reads, added to the scores of attention."""
    q, k = self.mix(x).unflatten(-1, (2, 4)).transpose(1, 2).chunk(2, -1)
    return ((q @ k.mT) + self.table[self.index].permute(2, 0, 1)).softmax(-1)


@with_parts(
    lambda: {
        "token": nn.Parameter(torch.zeros(1, 1, 4)),
        "head": nn.Linear(4, 2),
    }
)
def ClassToken(self, x):
    """A vision transformer's: one more position than the input has."""
    return self.head(torch.cat([self.token.expand(len(x), -1, -1), x], 1))


@with_parts(
    lambda: {
        "kernel": nn.Parameter(torch.ones(3, 2, 3)),
        "matrix": nn.Parameter(torch.ones(3, 2)),
        "gain": nn.Parameter(torch.tensor(0.5)),
    }
)
def Functional(self, x):
    """Parameters that no module of PyTorch owns."""
    return functional.conv1d(x, self.kernel).transpose(1, 2) @ self.matrix * self.gain


@with_parts(lambda: {"layer": nn.Linear(4, 4)})
def Shared(self, x):
    """One module called twice: seen by modules, this graph has a cycle."""
    return self.layer(torch.relu(self.layer(x)))


@with_parts(
    lambda: {
        "lstm": nn.LSTM(4, 3, num_layers=2, bidirectional=True, batch_first=True),
    }
)
def Recurrent(self, x):
    """Two layers of an LSTM, in both directions."""
    return self.lstm(x)[0]


def lstm_slots():
    """Four tensors stand in one list; each layer and direction has such a list."""
    ends = [f"l{layer}{way}" for layer in (0, 1) for way in ("", "_reverse")]
    kinds = (("weight_ih", 2), ("weight_hh", 2), ("bias_ih", 1), ("bias_hh", 1))
    return {
        f"lstm.{kind}_{end}": f"lstm.params.{place}:{rank}"
        for end in ends
        for place, (kind, rank) in enumerate(kinds)
    }


def module(prefix, op, rank):
    """Slots of a module with a weight of some rank and a bias."""
    return {f"{prefix}.weight": f"{op}.weight:{rank}", f"{prefix}.bias": f"{op}.bias:1"}


def alone(layer):
    """A layer that stands in a sequence of one."""
    return lambda: nn.Sequential(layer())


IMAGE, SIGNAL, VECTORS = (2, 4, 6, 6), (2, 2, 9), (2, 5, 4)
COUNTS = {f"0.{k}": "buffer" for k in ("running_mean", "running_var", "num_batches_tracked")}

# The model, its input, the slot of each generated tensor, and what stays.
CASES = {
    "GroupNorm": (alone(lambda: nn.GroupNorm(2, 4)), IMAGE, module("0", "group_norm", 1), {}),
    "BatchNorm1d": (alone(lambda: nn.BatchNorm1d(2)), SIGNAL, module("0", "batch_norm", 1), COUNTS),
    "Conv1d": (alone(lambda: nn.Conv1d(2, 3, 3)), SIGNAL, module("0", "conv1d", 3), {}),
    "ConvTranspose1d": (
        alone(lambda: nn.ConvTranspose1d(2, 3, 2, 2)), SIGNAL,
        module("0", "conv_transpose1d", 3), {},
    ),
    "ConvTranspose2d": (
        alone(lambda: nn.ConvTranspose2d(4, 3, 2, 2)), IMAGE,
        module("0", "conv_transpose2d", 4), {},
    ),
    "layer scale": (
        LayerScale, VECTORS, {"gamma": "mul.self:1", **module("layer", "linear", 2)}, {},
    ),
    "relative positions": (
        RelativePositions, VECTORS,
        {"table": "index.self:2", **module("mix", "linear", 2)}, {"index": "buffer"},
    ),
    "class token": (
        ClassToken, VECTORS, {"token": "expand.self:3", **module("head", "linear", 2)}, {},
    ),
    "functional parameters": (
        Functional, SIGNAL,
        {"kernel": "conv1d.weight:3", "matrix": "matmul.other:2", "gain": "mul.other:0"}, {},
    ),
    "shared module": (Shared, VECTORS, module("layer", "linear", 2), {}),
    "tied weights": (tied_head, None, {"embed.weight": "embedding.weight:2"}, {}),
    "LSTM": (Recurrent, VECTORS, lstm_slots(), {}),
}  # fmt: skip


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", CASES)
def test_every_tensor_has_its_slot_and_passes_the_zoos_examination(name):
    make, shape, slots, stays = CASES[name]
    torch.manual_seed(0)
    example = torch.randn(shape) if shape else torch.randint(7, (2, 5))
    graph, state = captured(make(), example)
    assert {e.name: str(e.slot) for e in entries(graph)} == slots
    report = examine(Foreign(make(), (example,)), name=name)
    assert report.failures == () and report.finite
    assert report.generated == len(slots) and sum(report.local.values()) == len(stays)
    assert sorted([*slots, *stays]) == sorted(state)
