"""Federated runs whose global model is an ONNX file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import archgraph as ag
from tests.nets import captured, with_parts
from tests.onnx.files import node, written

EXPERIMENT = """
archgraph: 1
name: {strategy}
family:
  model: digits.onnx
  clients:
    - {{name: whole, count: 2}}
    - {{name: half, count: 2, {half}}}
data: {{dataset: digits, limit: 160}}
strategy: {{{strategy}: {{}}}}
local: {{epochs: 1, batch: 16, lr: 0.05}}
rounds: 2
"""
STRATEGIES = {"fedfa": "take: 0.5", "heterofl": "take: 0.5", "nefl": "skip: ['2']"}


@with_parts(
    lambda: {
        "conv": nn.Conv2d(8, 8, 3, padding=1),
        "norm": nn.BatchNorm2d(8),
    }
)
def Residual(self, x):
    return x + torch.relu(self.norm(self.conv(x)))


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), Residual(), Residual(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    traced = captured(net, torch.randn(2, 1, 8, 8))
    folder = tmp_path_factory.mktemp("onnx")
    return ag.export(traced.graph, traced.state, folder / "digits.onnx", verify=False)


@pytest.mark.sample(3)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_rounds_begin_with_the_weights_of_the_file(strategy: str, file: Path):
    text = EXPERIMENT.format(strategy=strategy, half=STRATEGIES[strategy])
    (file.parent / f"{strategy}.yaml").write_text(text)
    experiment = ag.load_experiment(file.parent / f"{strategy}.yaml")
    run = ag.run(experiment, out=file.parent / strategy, progress=False)
    assert [(line["rejected"], line["failed"]) for line in run.rounds] == [([], [])] * 2
    world, (graph, state) = run.experiment.world, ag.load(file)
    assert world.graph == graph and world.tier("half").graph != graph
    assert all(torch.equal(world.state[name], state[name]) for name in state)
    trained = run.server.group("global")
    assert any(not torch.equal(trained[name], state[name]) for name in state)


def test_a_file_for_one_example_is_opened_in_a_family(tmp_path: Path):
    """As it is, a run says what to write; with an open batch it runs, and so does the command."""
    weights = {"w": torch.randn(64, 8).numpy(), "v": torch.randn(8, 10).numpy()}
    steps = [
        ("Flatten", "x", "a"),
        ("MatMul", "aw", "b"),
        ("Relu", "b", "c"),
        ("MatMul", "cv", "y"),
    ]
    nodes = [node(*step) for step in steps]
    written(tmp_path / "net.onnx", nodes, [1, 1, 8, 8], weights, rank=2)
    text = EXPERIMENT.format(strategy="heterofl", half="take: 0.5").replace(
        "digits.onnx", "net.onnx"
    )
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ag.RunError, match=r"fixed batch size.*\{onnx: FILE, sizes"):
        ag.run(tmp_path / "run.yaml", out=tmp_path / "out")
    opened = text.replace("net.onnx", "{onnx: net.onnx, sizes: {batch: open}}")
    (tmp_path / "run.yaml").write_text(opened)
    ag.run(tmp_path / "run.yaml", out=tmp_path / "out")
    assert ag.load(tmp_path / "out")["half"].graph.params[0].shape in ((64, 4), (4, 64))
