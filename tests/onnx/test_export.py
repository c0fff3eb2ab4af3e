"""Out and back: the file computes what the graph does, and becomes the same graph again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import typer.main
from click.testing import CliRunner, Result

import archgraph as ag
from archgraph import cli
from archgraph.capture.trace import Traced
from archgraph.language.loading import load_model
from archgraph.language.yaml import read_document
from tests.nets import captured, with_parts
from tests.onnx.files import onnx


class Net(torch.nn.Module):
    """Tied weights, a counter, a constant, a part that only training uses, two named results."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 6, 1)
        self.conv = torch.nn.Conv2d(6, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.first = torch.nn.Linear(8, 8)
        self.tied = torch.nn.Linear(8, 8)
        self.tied.weight = self.first.weight
        self.helper = torch.nn.Linear(8, 2)

    def forward(self, image, scale):
        x = torch.relu(self.norm(self.conv(self.stem(image)))).mean((2, 3))
        x = self.tied(torch.relu(self.first(x))) * scale + torch.arange(8.0)
        result = {"linear": x, "wide": x.flatten()}
        if self.training:
            result["helper"] = self.helper(x)
        return result


@pytest.fixture(scope="module")
def traced() -> Traced:
    torch.manual_seed(0)
    return captured(Net(), torch.randn(2, 3, 6, 6), torch.randn(2, 8))


@pytest.fixture(scope="module")
def file(traced, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "net.onnx"
    return ag.export(traced.graph, traced.state, path)


def same(state, other) -> bool:
    return list(state) == list(other) and all(torch.equal(state[k], other[k]) for k in state)


def test_it_comes_back_as_the_same_graph_and_weights(traced, file: Path):
    graph, state = ag.load(file)
    assert graph == traced.graph and graph.name == traced.graph.name
    assert same({k: traced.state[k] for k in graph.state_names}, state)
    assert [p.name for p in file.parent.iterdir()] == ["net.onnx"]


def test_names_of_weights_inputs_results_and_the_batch(traced, file: Path):
    model = onnx.load(file)
    assert set(traced.graph.state_names) <= {t.name for t in model.graph.initializer}
    assert [i.name for i in model.graph.input] == ["image", "scale"]
    assert [o.name for o in model.graph.output] == ["linear_", "wide"]  # a node is called linear
    sizes = [d.dim_param or d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    assert sizes == ["batch", 3, 6, 6]
    assert [d.dim_param for d in model.graph.output[1].type.tensor_type.shape.dim] == ["8*batch"]
    onnx.checker.check_model(file, full_check=True)


def test_weights_beside_the_file_and_only_in_its_folder(traced, file: Path, tmp_path: Path):
    path = ag.export(traced.graph, traced.state, tmp_path / "n.onnx", weights="beside")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["n.onnx", "n.onnx.data"]
    graph, state = ag.load(path)
    assert graph == traced.graph and same(ag.load(file).state, state)
    whole = onnx.load(path, load_external_data=False)

    def refused(words: str, **entries: str) -> None:
        proto = onnx.ModelProto()
        proto.CopyFrom(whole)
        item = next(t for t in proto.graph.initializer if t.name == "conv.weight")
        for entry in item.external_data:
            entry.value = entries.get(entry.key, entry.value)
        (tmp_path / "bad.onnx").write_bytes(proto.SerializeToString())
        with pytest.raises(ag.SpecError, match=words):
            ag.load(tmp_path / "bad.onnx")

    outside = tmp_path.parent / "outside.data"
    outside.write_bytes((tmp_path / "n.onnx.data").read_bytes())
    refused("conv.weight|outside", location="../outside.data")
    refused("conv.weight|outside", location=str(outside))
    refused("has 4 bytes instead of", length="4")
    refused("ends before", offset=str(10**9))
    (tmp_path / "n.onnx.data").rename(tmp_path / "elsewhere.data")
    lacks = r"n\.onnx: lacks the file with its weights; expected .*n\.onnx\.data; copy that file"
    with pytest.raises(ag.SpecError, match=lacks):
        ag.load(path)
    (tmp_path / "elsewhere.data").rename(tmp_path / "n.onnx.data")
    assert ag.load(path).graph == traced.graph


def test_new_weights_are_read_and_other_operators_are_refused(traced, file: Path, tmp_path: Path):
    model = onnx.load(file)
    weight = next(t for t in model.graph.initializer if t.name == "conv.bias")
    weight.CopyFrom(onnx.numpy_helper.from_array(torch.ones(8).numpy(), "conv.bias"))
    onnx.save(model, tmp_path / "trained.onnx")
    assert ag.load(tmp_path / "trained.onnx").state["conv.bias"].tolist() == [1.0] * 8

    relu = next(n for n in model.graph.node if n.op_type == "Relu")
    relu.op_type = "Sigmoid"
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.raises(ag.SpecError, match="other operators than the graph"):
        ag.load(tmp_path / "other.onnx")


def test_constants_of_the_architecture_are_part_of_the_fingerprint(file: Path, tmp_path: Path):
    model = onnx.load(file)
    names = set(ag.load(file).graph.state_names)
    for item in model.graph.initializer:
        if item.name not in names and item.raw_data:
            item.raw_data = bytes(len(item.raw_data))
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.raises(ag.SpecError, match="other operators than the graph"):
        ag.load(tmp_path / "other.onnx")


@pytest.mark.full
def test_a_client_and_the_parts_of_a_split(traced, tmp_path: Path):
    small = ag.take(traced.graph, 0.5)
    graph, state = ag.load(
        ag.export(small, small.transfer.pull(traced.state), tmp_path / "small.onnx")
    )
    assert graph == small.graph and state["conv.weight"].shape == (8, 3, 3, 3)
    for number, part in enumerate(ag.split(_chain(), before=["2"])):
        weights = ag.initial_state(part.graph, number)
        assert ag.load(ag.export(part, weights, tmp_path / f"{number}.onnx")).graph == part.graph


def _chain():
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    return captured(net, torch.zeros(2, 4)).graph


@pytest.mark.full
def test_optimised_files_are_read_as_files_of_another_program(traced, tmp_path: Path):
    path = ag.export(traced.graph, traced.state, tmp_path / "o.onnx", optimize=True)
    kinds = [n.op_type for n in onnx.load(path).graph.node]
    assert "BatchNormalization" not in kinds
    assert len(ag.load(path).graph.nodes) < len(traced.graph.nodes)


def test_what_computes_something_else_is_not_written(traced, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("archgraph.onnx.session.outputs", lambda m, i: [torch.ones(2, 8)] * 2)
    with pytest.raises(ag.GraphError, match="computes something else in onnxruntime"):
        ag.export(traced.graph, traced.state, tmp_path / "x.onnx")
    assert [*tmp_path.iterdir()] == []


@with_parts(
    lambda: {
        "table": torch.nn.Embedding(3, 4),
        "out": torch.nn.Linear(4, 2),
    }
)
def Features(self, x):
    """A category and bytes among numbers."""
    return self.out(self.table(x[:, 0].long()) + x[:, 1:].to(torch.uint8) / 255)


def test_inputs_that_become_whole_numbers_are_compared(tmp_path: Path):
    graph, state = captured(Features(), torch.rand(2, 5) * 3)
    assert ag.load(ag.export(graph, state, tmp_path / "features.onnx")).graph.params


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_convolution_without_bias_has_none(rank: int, tmp_path: Path):
    kind = getattr(torch.nn, f"Conv{rank}d")
    net = torch.nn.Sequential(kind(2, 3, 3, bias=False, stride=2), kind(3, 4, 1, padding=1))
    graph, state = captured(net, torch.zeros(2, 2, *[7] * rank))
    ag.export(graph, state, tmp_path / "net.onnx")
    model = onnx.load(tmp_path / "net.onnx")
    assert [(n.op_type, len(n.input)) for n in model.graph.node] == [("Conv", 2), ("Conv", 3)]


def test_operators_that_onnx_lacks_are_named(tmp_path: Path):
    @with_parts()
    def Special(self, x):
        return torch.special.bessel_j0(x)

    graph, state = captured(Special(), torch.zeros(2, 3))
    with pytest.raises(ag.GraphError, match=r"cannot be expressed in ONNX.*bessel_j0"):
        ag.export(graph, state, tmp_path / "x.onnx")


def test_what_is_not_an_onnx_file(tmp_path: Path):
    for content in (b"", b"\x00" * 40, b"not a model", b"\x0a\xff\xff\xff\xff\x0f"):
        (tmp_path / "x.onnx").write_bytes(content)
        with pytest.raises(ag.SpecError, match="is not an ONNX file"):
            ag.load(tmp_path / "x.onnx")
    with pytest.raises(ag.SpecError, match="is not a file"):
        ag.load(tmp_path / "none.onnx")


def test_without_the_packages_it_says_what_to_install(traced, file, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    for call in (
        lambda: ag.load(file),
        lambda: ag.export(traced.graph, traced.state, tmp_path / "x.onnx"),
    ):
        with pytest.raises(ag.RunError, match=r"archgraph-torch\[onnx\]"):
            call()


def call(*args: str | Path) -> Result:
    return CliRunner().invoke(typer.main.get_command(cli.app), [str(a) for a in args])


def test_commands_and_families_take_it_as_a_model(file: Path, tmp_path: Path):
    for words in (["show"], ["explain"], ["draw"], ["check"], ["rewrite", "--take", "0.5"]):
        result = call(words[0], file, *words[1:])
        assert result.exit_code == 0, result.output
    assert call("match", file, file).exit_code == 0
    assert call("compare", file, file).output.endswith("\nthe same architecture\n")
    (tmp_path / "family.yaml").write_text(
        f"archgraph: 1\nname: f\nmodel: {file}\n"
        "clients:\n  - {name: whole, count: 1}\n  - {name: half, count: 1, take: 0.5}\n"
    )
    family = ag.resolve(ag.load_family(tmp_path / "family.yaml"))
    graph, state = ag.load(file)
    assert family.graph == graph and same(dict(family.state or {}), state)
    assert family.models["half"] != graph


def test_the_command_writes_one(tmp_path: Path):
    path = tmp_path / "m.yaml"
    ag.save(_chain(), path)
    assert call("export", path, "-o", tmp_path / "m.onnx").exit_code == 0
    graph, state = ag.load(tmp_path / "m.onnx")
    assert graph == _chain() and same(state, ag.initial_state(graph, 0))
    refused = call("show", tmp_path / "m.onnx", "--choose", "depth=2")
    assert refused.exit_code == 2 and "no such open size" in refused.output
    assert load_model(read_document(tmp_path / "m.onnx"))[0] == graph
