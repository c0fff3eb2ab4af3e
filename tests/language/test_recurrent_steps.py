"""The steps lstm, gru and rnn are torch's layers: values, gradients, graph, initial values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from archgraph.capture.trace import trace
from archgraph.errors import SpecError
from archgraph.module.build import build
from tests.language.test_lower import TOKENS, assert_lawful, assert_traces_to_itself, model

pytestmark = [
    # PyTorch has no fast path for projections.
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN"),
]


class First(nn.Module):
    """A layer's sequence, or the last hidden state of each of its directions."""

    def __init__(self, kind: Any, returns: str, **options: Any) -> None:
        super().__init__()
        self.layer, self.returns = kind(8, 6, batch_first=True, **options), returns

    def forward(self, x):
        y, end = self.layer(x)
        if self.returns == "sequence":
            return y
        hidden = end[0] if isinstance(end, tuple) else end
        ways = 1 + self.layer.bidirectional
        ends = [hidden[i - ways] for i in range(ways)]
        return torch.cat(ends, -1) if ways > 1 else ends[0]


BOTH = {"bidirectional": True, "layers": 2, "dropout": 0.4}
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "lstm": (6, nn.LSTM, {}),
    "lstm projected": (
        {"hidden": 6, "layers": 2, "projection": 4, "dropout": 0.4},
        nn.LSTM,
        {"proj_size": 4, "num_layers": 2, "dropout": 0.4},
    ),
    "gru both ways": (
        {"hidden": 6, "bias": False, "returns": "last", **BOTH},
        nn.GRU,
        {"bias": False, "bidirectional": True, "num_layers": 2, "dropout": 0.4},
    ),
    "rnn relu": (
        {"hidden": 6, "activation": "relu", "returns": "last"},
        nn.RNN,
        {"nonlinearity": "relu"},
    ),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", CASES)
def test_a_recurrent_step_is_torchs_layer(name: str) -> None:
    options, kind, given = CASES[name]
    step = name.split()[0]
    graph = model({step: options}, inputs={"x": TOKENS})
    assert_lawful(graph)
    returns = options.get("returns", "sequence") if isinstance(options, dict) else "sequence"
    torch.manual_seed(1)
    reference = First(kind, returns, **given)
    state = {f"s.{step}.{k}": v for k, v in reference.layer.state_dict().items()}
    module = build(graph, state)
    assert set(module.state_dict()) == set(state)
    x = torch.randn(3, *TOKENS)
    for training in (False, True):
        torch.manual_seed(2)
        expected = reference.train(training)(x)
        torch.manual_seed(2)
        torch.testing.assert_close(module.train(training)(x), expected, rtol=0, atol=1e-6)
    # The graph that torch's own layer is captured as.
    captured = trace(reference, x).graph
    assert [n.op for n in captured.nodes] == [n.op for n in graph.nodes]
    assert_traces_to_itself(graph)
    fresh = build(graph, seed=0).state_dict()
    assert all(0.1 < float(v.abs().max()) <= 6**-0.5 for v in fresh.values())


@pytest.mark.parametrize(
    ("options", "shape", "message"),
    [
        ({"hidden": 4, "projection": 4}, TOKENS, "is not smaller than what it projects; found 4"),
        (4, [8], "has the wrong shape; found [batch, 8]; expected [batch, position, feature]"),
        ({"hidden": 4, "num_layers": 2}, TOKENS, "num_layers"),
        ({"hidden": 4, "dropout": 1.0}, TOKENS, "dropout"),
    ],
)
def test_mistakes_are_located(options: Any, shape: list[int], message: str) -> None:
    with pytest.raises(SpecError) as refusal:
        model({"lstm": options}, inputs={"x": shape})
    assert message in str(refusal.value)
