"""Models with weights as folders, models of runs by name, files by their endings."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner

import archgraph as ag
from archgraph.cli import app
from archgraph.errors import GraphError, SpecError
from tests.nets import FOREIGN
from tests.zoo.handmade import HANDMADE


@pytest.fixture
def traced():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 5))
    return ag.trace(net, torch.randn(2, 3, 8, 8))


def same(one, other):
    return one.graph == other.graph and all(
        torch.equal(tensor, other.state[name]) for name, tensor in one.state.items()
    )


@pytest.mark.sample(24)
@pytest.mark.parametrize("name", HANDMADE)
def test_handmade_models_come_back(name, tmp_path):
    made = HANDMADE[name]()
    model = ag.trace(made.model, *made.args, **made.kwargs)
    ag.save(model, tmp_path / "model")
    back = ag.load(tmp_path / "model")
    assert back.graph == model.graph
    assert back.state.keys() == model.state.keys()
    for key, tensor in model.state.items():
        torch.testing.assert_close(back.state[key], tensor, rtol=0, atol=0, equal_nan=True)


@pytest.mark.full
def test_a_transformer_comes_back_with_the_names_of_its_results(tmp_path):
    bert = FOREIGN["bert"]()
    graph, state = ag.trace(bert.model.eval(), *bert.args, **bert.kwargs)
    ag.save(ag.build(graph, state), tmp_path / "bert")  # a built module has its weights
    result = ag.build(*ag.load(tmp_path / "bert")).eval()(**bert.kwargs)
    expected = bert.model(**bert.kwargs)
    assert set(result) == set(expected)
    torch.testing.assert_close(result["logits"], expected["logits"], rtol=0, atol=1e-6)


def test_every_ending(traced, tmp_path):
    export = functools.partial(ag.export, traced.graph, traced.state)
    x = torch.randn(7, 3, 8, 8)
    expected = ag.build(*traced).eval()(x)
    program = torch.export.load(export(tmp_path / "m.pt2")).module()
    torch.testing.assert_close(program(x), expected, rtol=0, atol=1e-6)
    tensors = load_file(export(tmp_path / "m.safetensors"))
    assert tensors.keys() == traced.state.keys()
    assert same(ag.load(export(tmp_path / "m")), traced)
    assert ag.load(export(tmp_path / "m.onnx")).graph == traced.graph
    before = sorted(tmp_path.iterdir())
    with pytest.raises(SpecError, match=r"unknown ending; found \.bin; expected \.onnx"):
        export(tmp_path / "m.bin")
    assert sorted(tmp_path.iterdir()) == before


def test_what_cannot_be_saved_says_why(traced, tmp_path):
    with pytest.raises(SpecError, match="a folder needs weights, but a graph has none"):
        ag.save(traced.graph, f"{tmp_path}/")
    with pytest.raises(SpecError, match="an architecture is written as YAML"):
        ag.save(traced, tmp_path / "m.safetensors")
    with pytest.raises(GraphError):
        ag.save(nn.Linear(2, 2), tmp_path / "m")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    with pytest.raises(SpecError, match="contains other files"):
        ag.save(traced, tmp_path / "notes")
    assert (tmp_path / "notes" / "a.txt").read_text() == "mine"


def test_a_damaged_folder_is_refused(traced, tmp_path):
    folder = tmp_path / "m"
    ag.save(traced, folder)
    ag.save(traced, folder)  # again: it replaces itself
    mark = json.loads((folder / "archgraph.json").read_text())
    (folder / "archgraph.json").write_text(json.dumps({**mark, "format": 99}))
    with pytest.raises(SpecError, match="has another format"):
        ag.load(folder)
    (folder / "archgraph.json").write_text(json.dumps(mark))
    (folder / "model.safetensors").write_bytes(b"12345678901234567890")
    with pytest.raises(SpecError, match="is not a complete model"):
        ag.load(folder)


def test_models_of_a_run_by_name(tmp_path):
    experiment = tmp_path / "e.yaml"
    model = Path(__file__).parents[2] / "specs" / "models" / "digits_cnn.yaml"
    experiment.write_text(f"""\
archgraph: 1
name: small
family:
  {{archgraph: 1, name: f, model: {model}, clients: [{{name: half, take: 0.5}}, {{name: whole}}]}}
data: {{dataset: digits, limit: 90}}
strategy: {{heterofl: {{}}}}
rounds: 1
local: {{batch: 16, lr: 0.05}}
""")
    run = ag.run(str(experiment), out=tmp_path / "mine")
    half = ag.load(f"{tmp_path}/mine:half")
    assert set(ag.load(tmp_path / "mine")) == {"global", "half", "whole"}
    (model_of_run,) = (m for m in run.models if m.name == "half")
    assert half.graph == model_of_run.graph
    weights = {n for n in half.state if "running" not in n and "num_batches" not in n}
    assert all(torch.equal(half.state[n], model_of_run.state[n]) for n in weights)
    with pytest.raises(SpecError, match="did you mean 'half'"):
        ag.load(f"{tmp_path}/mine:hal")
    ag.save(half, tmp_path / "half")
    for words in (["show", f"{tmp_path}/mine:half"], ["show", f"{tmp_path}/half"]):
        shown = CliRunner().invoke(app, words)
        assert shown.exit_code == 0 and "total" in shown.output, shown.output
