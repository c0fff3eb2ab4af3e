"""What an exported file must not hide: names, copies, precision, batches, buffers, chance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.capture.trace import Traced
from archgraph.data import load_dataset
from tests.cli.terminal import call, refused
from tests.nets import captured, with_parts
from tests.onnx.files import onnx, onnxruntime, open_session, run_session

RUN = """\
name: exported
archgraph: 1
family:
  model:
    archgraph: 1
    name: net
    inputs: {image: [1, 8, 8]}
    sections:
      - name: body
        steps: [{conv: {out: 16, kernel: 3}}, batch_norm, relu, {max_pool: 2}]
      - name: head
        steps: [flatten, {linear: 10}]
  clients: [{name: whole, count: 2}, {name: half, count: 2, take: 0.5}]
data: {dataset: digits}
strategy: {heterofl: {}}
rounds: 2
local: {lr: 0.1, batch: 20, epochs: 2}
seed: 0
"""


class Results(nn.Module):
    """An input with the name of a weight; results that are an input, a weight, twice the same."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))
        self.register_buffer("table", torch.randn(3, 32), persistent=False)

    def forward(self, weight, unused):
        y = weight @ self.weight
        return y, y, (weight, self.weight), 3, y @ self.table


def traced(model: nn.Module, *inputs: torch.Tensor) -> Traced:
    torch.manual_seed(0)
    return captured(model, *inputs)


def written(found: Traced, path: Path, **options: Any) -> Path:
    return ag.export(found.graph, found.state, path, **options)


@pytest.fixture(scope="module")
def results():
    return traced(Results(), torch.randn(2, 3), torch.randn(2, 1))


def test_results_rename_neither_inputs_nor_weights(results, tmp_path: Path):
    path = written(results, tmp_path / "r.onnx")
    model = onnx.load(path)
    assert [i.name for i in model.graph.input] == ["weight_", "unused"]
    names = ["output.0", "output.1", "output.2.0", "output.2.1", "output.4"]
    assert [o.name for o in model.graph.output] == names
    again, state = ag.load(path)
    assert again == results.graph
    # The weight that is read is the one that the file computes with.
    new = onnx.numpy_helper.from_array(torch.zeros(3, 3).numpy(), "weight")
    next(t for t in model.graph.initializer if t.name == "weight").CopyFrom(new)
    onnx.save(model, tmp_path / "zeros.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "zeros.onnx")
    given = {"weight_": torch.ones(5, 3).numpy(), "unused": torch.ones(5, 1).numpy()}
    found = session.run(None, given)
    assert not found[0].any() and found[2].all() and not found[3].any()
    assert not ag.load(tmp_path / "zeros.onnx").state["weight"].any() and state["weight"].any()


@pytest.mark.full
def test_a_file_does_not_say_on_which_machine_it_was_made(tmp_path: Path):
    graph, state = traced(nn.LSTM(3, 2, batch_first=True), torch.randn(2, 4, 3))
    content = ag.export(graph, state, tmp_path / "l.onnx").read_bytes()
    assert b".py" not in content and str(tmp_path).encode() not in content
    assert ag.export(graph, state, tmp_path / "again.onnx").read_bytes() == content


@pytest.mark.full
def test_a_batch_that_is_fixed_is_a_number_in_the_file(tmp_path: Path):
    @with_parts()
    def Fixed(self, x):
        return x.view(2, 3) + torch.arange(2.0)[:, None]

    path = written(traced(Fixed(), torch.randn(2, 3)), tmp_path / "f.onnx")
    assert [d.dim_value for d in onnx.load(path).graph.input[0].type.tensor_type.shape.dim] == [
        2,
        3,
    ]
    with pytest.raises(Exception, match="invalid dimensions"):
        onnxruntime.InferenceSession(path).run(None, {"x": torch.ones(4, 3).numpy()})


@pytest.mark.full
def test_buffers_that_evaluation_writes_and_chance_are_named(tmp_path: Path):
    @with_parts(lambda: {"seen": torch.zeros(())})
    def Counter(self, x):
        self.seen += 1
        return x * self.seen

    @with_parts()
    def Chance(self, x):
        return nn.functional.dropout(x, 0.5, training=True)

    for verify in (True, False):
        with pytest.raises(ag.GraphError, match=r"writes into buffers.*seen"):
            written(traced(Counter(), torch.ones(2, 3)), tmp_path / "c.onnx", verify=verify)
    chance = traced(Chance(), torch.ones(2, 3))
    with pytest.raises(ag.GraphError, match=r"draws random numbers.*verify=False"):
        written(chance, tmp_path / "c.onnx")
    assert [*tmp_path.iterdir()] == []
    written(chance, tmp_path / "c.onnx", verify=False)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_precisions(dtype, tmp_path: Path):
    kind = getattr(torch, dtype)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(kind)
    graph, state = traced(net, torch.randn(2, 6, dtype=kind))
    path = ag.export(graph, state, tmp_path / "n.onnx")
    again = ag.load(path)
    assert again.graph == graph and again.state["0.weight"].dtype == kind


def test_double_precision_is_compared_as_such(tmp_path: Path, monkeypatch):
    from archgraph.onnx import session

    graph, state = traced(nn.Linear(3, 2).double(), torch.randn(2, 3, dtype=torch.float64))
    run = session.run_session
    monkeypatch.setattr(session, "run_session", lambda *a: [t.float().double() for t in run(*a)])
    with pytest.raises(ag.GraphError, match="computes something else"):
        ag.export(graph, state, tmp_path / "n.onnx")


@pytest.mark.full
def test_weights_have_the_graphs_types_those_of_training_too(tmp_path: Path):
    @with_parts(lambda: {"head": nn.Linear(3, 2), "helper": nn.Linear(3, 2)})
    def Net(self, x):
        return (self.head(x), self.helper(x)) if self.training else self.head(x)

    graph, state = traced(Net(), torch.randn(2, 3))
    double = {name: tensor.double() for name, tensor in state.items()}
    again = ag.load(ag.export(graph, double, tmp_path / "n.onnx"))
    assert again.graph == graph and torch.equal(again.state["helper.bias"], state["helper.bias"])


def test_constants_beside_the_file_are_part_of_its_fingerprint(results, tmp_path: Path):
    path = written(results, tmp_path / "r.onnx", weights="beside")
    assert ag.load(path).graph == results.graph
    data = tmp_path / "r.onnx.data"
    data.write_bytes(bytes(data.stat().st_size))
    with pytest.raises(ag.SpecError, match="other operators than the graph"):
        ag.load(path)


def test_places_and_types_that_are_not_known_are_named(results, tmp_path: Path):
    with pytest.raises(ag.GraphError, match=r"nowhere; expected inside or beside"):
        written(results, tmp_path / "r.onnx", weights="nowhere")

    graph, state = traced(nn.Linear(3, 2).bfloat16(), torch.randn(2, 3).bfloat16())
    with pytest.raises(
        ag.GraphError, match=r"^.*n\.onnx: cannot be run by onnxruntime.*verify=False"
    ):
        ag.export(graph, state, tmp_path / "n.onnx")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.full
def test_complex_weights_come_back(tmp_path: Path):
    @with_parts(
        lambda: {
            "weight": nn.Parameter(torch.randn(5, dtype=torch.complex64)),
        }
    )
    def Filter(self, x):
        return torch.fft.irfft(torch.fft.rfft(x) * self.weight, 8)

    graph, state = traced(Filter(), torch.randn(2, 8))
    again = ag.load(ag.export(graph, state, tmp_path / "f.onnx"))
    assert again.graph == graph and torch.equal(again.state["weight"], state["weight"])


def test_what_counts_as_the_same():
    from archgraph.onnx.session import distance

    small, one, nan = torch.tensor([3e-5]), torch.ones(2), torch.tensor([float("nan"), 1.0])
    assert distance([small + 1e-7, nan], [small, nan], 1e-4) == 0
    assert distance([one * 1.001], [one], 1e-4) == pytest.approx(1e-3, rel=1e-3)
    assert distance([one], [nan], 1e-4) == distance([one[:1]], [one], 1e-4) == float("inf")


@pytest.mark.sample(2)
@pytest.mark.parametrize("bias", [False, True])
def test_convolutions_of_volumes(bias: bool, tmp_path: Path):
    net = nn.Conv3d(4, 6, (1, 3, 3), stride=2, padding=(0, 1, 1), groups=2, bias=bias)
    graph, state = traced(net, torch.randn(2, 4, 4, 6, 6))
    assert ag.load(ag.export(graph, state, tmp_path / "c.onnx")).graph == graph


@pytest.mark.full
def test_what_onnxruntime_cannot_run_is_refused(results, tmp_path: Path, monkeypatch):
    def fails(*given):
        raise RuntimeError("no kernel\nfor it")

    monkeypatch.setattr("archgraph.onnx.session.run_session", fails)
    with pytest.raises(
        ag.GraphError, match=r"r\.onnx: cannot be run by onnxruntime; found no kernel;"
    ):
        written(results, tmp_path / "r.onnx")


@pytest.mark.full
def test_a_model_of_a_run_is_exported_as_it_was_tested(tmp_path: Path):
    """HeteroFL computes running statistics before a test: those of the state are the start's."""
    (tmp_path / "run.yaml").write_text(RUN)
    run = ag.run(tmp_path / "run.yaml", out=tmp_path / "run", progress=False)
    for name in ("global", "half"):
        path = tmp_path / f"{name}.onnx"
        done = call("export", f"{tmp_path / 'run'}:{name}", "-o", path)
        assert done.exit_code == 0, done.output
        test = load_dataset("digits").test
        inputs, targets = test.batch(slice(None))
        right = run_session(open_session(path), [inputs])[0].argmax(1) == targets
        measured = run.rounds[-1]["evaluation"]["models"][name]["accuracy"]
        assert float(right.float().mean()) == pytest.approx(measured, abs=2e-3)
        assert measured > 0.3


def test_rewrite_does_not_write_yaml_into_an_onnx_file(results, tmp_path: Path):
    path = written(results, tmp_path / "r.onnx")
    before = path.read_bytes()
    done = call("rewrite", path, "--take", "0.5", "-o", path)
    refused(done, "an architecture is written as YAML, without weights")
    assert path.read_bytes() == before
