"""Files of other programs: rows of operators, whole networks, what is refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import archgraph as ag
from archgraph.capture.trace import Traced
from archgraph.graph.sizes import other_sizes
from archgraph.rewrites.laws import random_inputs
from tests.capture.test_open_sizes import CASES
from tests.nets import captured, with_parts
from tests.onnx.files import FLOAT, INT, assert_like_onnxruntime, node, onnx, onnxruntime, written

# Rows without a published case that is read: compared below.
ELSEWHERE = {"Upsample", "GRU"}


@with_parts(
    lambda before, width, stride: {
        "conv1": torch.nn.Conv2d(before, width, 3, stride, 1, bias=False),
        "bn1": torch.nn.BatchNorm2d(width),
        "conv2": torch.nn.Conv2d(width, width, 3, 1, 1, bias=False),
        "bn2": torch.nn.BatchNorm2d(width),
        "skip": torch.nn.Conv2d(before, width, 1, stride) if stride > 1 else None,
    }
)
def Block(self, x):
    """Two convolutions beside the identity or a projection."""
    y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
    return torch.relu(y + (x if self.skip is None else self.skip(x)))


@with_parts(
    lambda: {
        "stem": torch.nn.Conv2d(1, 8, 3, padding=1),
        "layer1": Block(8, 8, 1),
        "layer2": Block(8, 16, 2),
        "head": torch.nn.Linear(16, 10),
    }
)
def Residual(self, image):
    """A small ResNet."""
    x = self.layer2(self.layer1(torch.relu(self.stem(image))))
    return self.head(x.mean((2, 3)))


@pytest.fixture(scope="module")
def residual() -> Traced:
    torch.manual_seed(0)
    model = Residual()
    model(torch.randn(8, 1, 8, 8))  # statistics of its own
    return captured(model.eval(), torch.randn(2, 1, 8, 8))


@pytest.fixture(scope="module")
def foreign(residual, tmp_path_factory) -> Path:
    """The file without what archgraph wrote about it."""
    path = tmp_path_factory.mktemp("onnx") / "foreign.onnx"
    ag.export(residual.graph, residual.state, path, verify=False)
    model = onnx.load(path)
    del model.metadata_props[:]
    onnx.save(model, path)
    return path


def test_rows_equal_the_published_cases():
    from archgraph.onnx.operators import ROWS
    from tests.onnx.conformance import outcomes

    found = outcomes(["simple", "node"], each=4)
    assert [o.name for o in found if o.word == "different"] == []
    covered = {kind for o in found if o.word == "equal" for kind in o.kinds}
    assert {*ROWS} - covered <= ELSEWHERE


def test_a_file_of_another_program_has_names_axes_and_blocks(residual, foreign: Path):
    graph, state = ag.load(foreign)
    trained = {p.name for p in residual.graph.params if p.role == "parameter"}
    assert {p.name for p in graph.params if p.role == "parameter"} == trained
    assert {*state} == {n for n in residual.state if not n.endswith("num_batches_tracked")}
    assert len(ag.axes(graph).free) == len(ag.axes(residual.graph).free)
    names = [b.name for b in ag.structure(graph).blocks]
    assert names == [b.name for b in ag.structure(residual.graph).blocks]
    for batch in (1, 3):
        assert_like_onnxruntime(foreign, torch.randn(batch, 1, 8, 8))


def test_half_of_it_trains(foreign: Path):
    graph, state = ag.load(foreign)
    half = ag.take(graph, 0.5, verify=True)
    model = ag.build(half, half.transfer.pull(state)).train()
    image = torch.randn(4, 1, 8, 8)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model(image).square().mean().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    still = {n for n, v in model.state_dict().items() if torch.equal(v, before[n])}
    assert still == set()


@pytest.mark.sample(2)
@pytest.mark.parametrize("strategy", ["fedfa", "heterofl", "nefl"])
def test_a_family_of_such_a_file_trains(strategy: str, foreign: Path, tmp_path: Path):
    (tmp_path / "family.yaml").write_text(
        f"archgraph: 1\nname: f\nmodel: {foreign}\n"
        "clients:\n  - {name: whole, count: 1}\n  - {name: half, count: 1, take: 0.5}\n"
    )
    (tmp_path / "run.yaml").write_text(
        "archgraph: 1\nname: r\nfamily: family.yaml\ndata: {dataset: digits}\n"
        f"strategy: {{{strategy}: {{}}}}\nrounds: 2\nlocal: {{epochs: 1, batch: 64, lr: 0.05}}\n"
    )
    found = ag.run(tmp_path / "run.yaml", out=tmp_path / "run")
    assert len(found.rounds) == 2


@pytest.mark.full
def test_optimised_files_are_read(residual, tmp_path: Path):
    path = ag.export(residual.graph, residual.state, tmp_path / "o.onnx", optimize=True)
    ag.take(assert_like_onnxruntime(path, torch.randn(3, 1, 8, 8)), 0.5, verify=True)


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([node("NonZero", ["x"], ["y"], name="a")], r"NonZero a: is an operator whose result's"),
        ([node("Own", ["x"], ["y"], domain="mine")], r"Own #0: is an operator of another domain"),
        ([node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])], r"is a quantised operator"),
        ([node("Einsum", ["x"], ["y"], equation="bchw->bchh")], r"cannot be captured"),
        ([node("Softmax", ["x"], ["y"], axis=5)], r"cannot be computed.*out of range"),
        ([node("DFT", ["x"], ["y"])], r"is not a supported operator"),
    ],
    ids=["size", "domain", "quantised", "equation", "axis", "none"],
)
def test_what_is_refused_is_named(nodes, words, tmp_path: Path):
    with pytest.raises(ag.SpecError, match=words):
        ag.load(written(tmp_path / "x.onnx", nodes))


def test_no_node_names_a_line_of_this_package(tmp_path: Path):
    graph, _ = ag.load(written(tmp_path / "x.onnx", [node("Relu", ["x"], ["y"])], ["n", 2]))
    assert {n.source for n in graph.nodes} == {""}


def test_a_node_that_cannot_be_captured_is_named(tmp_path: Path):
    stored = {"three": np.arange(3, dtype=np.float32)}
    nodes = [node("Mul", ["x", "three"], ["y"], name="scaled")]
    with pytest.raises(
        ag.SpecError, match=r"x\.onnx: Mul scaled: cannot be captured; found The size"
    ):
        ag.load(written(tmp_path / "x.onnx", nodes, ["n", 2], constants=stored))


def test_a_constant_that_cannot_be_computed_is_refused(tmp_path: Path):
    stored = {"to": [0, -1]}
    nodes = [node("Softmax", ["to"], ["s"], axis=1), node("Mul", ["x", "s"], ["y"])]
    with pytest.raises(
        ag.SpecError, match=r"x\.onnx: cannot be captured; found cannot .*Dimension out of range"
    ):
        ag.load(written(tmp_path / "x.onnx", nodes, ["n", 2], constants=stored))


def test_a_result_that_takes_too_much_memory_is_refused_before_anything_runs(tmp_path: Path):
    stored = {"pads": [0, 0, 0, 2**27]}
    path = written(
        tmp_path / "x.onnx", [node("Pad", ["x", "pads"], ["y"])], ["n", 3], constants=stored
    )
    with pytest.raises(
        ag.SpecError, match=r"too large to compare two examples.*268,435,462 elements;"
    ):
        ag.load(path)


def test_what_follows_from_constants_is_computed_once_and_bounded(tmp_path: Path):
    def file(*sizes: int) -> Path:
        fill = onnx.helper.make_tensor("v", 1, [1], [0.5])
        nodes = [
            node("ConstantOfShape", ["sizes"], ["weight"], value=fill),
            node("MatMul", ["x", "weight"], ["y"]),
        ]
        return written(tmp_path / "x.onnx", nodes, ["n", 3], {"sizes": sizes})

    graph, state = ag.load(file(3, 5))
    assert [p.role for p in graph.params] == ["parameter"]
    assert [value.tolist() for value in state.values()] == [[[0.5] * 5] * 3]
    with pytest.raises(ag.SpecError, match=r"ConstantOfShape: is too large"):
        ag.load(file(2**20, 2**20))


def test_sequences_of_known_length_are_tensors(tmp_path: Path):
    nodes = [
        node("SplitToSequence", ["x"], ["s"], axis=1, keepdims=0),
        node("SequenceAt", ["s", "i"], ["a"]),
        node("SequenceAt", ["s", "j"], ["b"]),
        node("SequenceConstruct", ["a", "b"], ["t"]),
        node("ConcatFromSequence", ["t"], ["y"], axis=1, new_axis=1),
    ]
    assert_like_onnxruntime(
        written(tmp_path / "x.onnx", nodes, constants={"i": 1, "j": -1}), torch.randn(2, 3, 4, 4)
    )
    nodes[1] = node("SequenceAt", ["s", "n"], ["y"])
    with pytest.raises(
        ag.SpecError, match="SequenceAt: is outside a sequence; found 3; expected from -3 to 2"
    ):
        ag.load(written(tmp_path / "x.onnx", nodes[:2], constants={"n": 3}, rank=3))


def test_sizes_that_a_file_leaves_open_stay_open_or_are_given(tmp_path: Path):
    path = written(tmp_path / "x.onnx", [node("Relu", ["x"], ["y"])], ["n", "length", 4])
    assert str(ag.load(path).graph.nodes[-1].type) == "float32[batch, length, 4]"
    with pytest.raises(
        ag.SpecError, match=r"(?s)input x: does not have a size.*1 to 16,777,216 elements"
    ):
        ag.load(path, {"length": 2**22})
    graph, _ = ag.load(path, {"length": 5})
    assert graph.nodes[0].type.shape[1:] == (5, 4)
    two = written(tmp_path / "x.onnx", [node("Relu", ["x"], ["y"])], ["n", None, None])
    assert str(ag.load(two).graph.nodes[-1].type) == "float32[batch, x_1, x_2]"
    stored = {"w": np.ones((7, 3), np.float32)}
    fixed = written(
        tmp_path / "x.onnx", [node("MatMul", ["x", "w"], ["y"])], ["n", "width"], constants=stored
    )
    with pytest.raises(ag.SpecError, match="set the open sizes of the file: width=N"):
        ag.load(fixed)
    assert ag.load(fixed, {"width": 7}).graph.nodes[-1].type.shape[1:] == (3,)


def test_a_map_of_a_size_takes_more_examples_than_the_file(tmp_path: Path):
    nearest = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    nodes = [node("Resize", ["x", "", "", "sizes"], ["y"], **nearest)]
    sizes = {"sizes": np.array([1, 3, 8, 8])}
    path = written(tmp_path / "x.onnx", nodes, [1, 3, 4, 4], constants=sizes)
    graph, _ = ag.load(path, {"batch": "open"})
    assert str(graph.nodes[-1].type) == "float32[batch, 3, 8, 8]"


@pytest.mark.parametrize("by", ["factor", "size"])
def test_a_map_made_smaller_and_larger_again_is_joined_with_what_it_was(by: str, tmp_path: Path):
    nearest = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    target = ["", "twice"] if by == "factor" else ["", "", "shape"]
    half = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    nodes = [
        node("MaxPool", ["x"], ["map"], **half),
        node("MaxPool", ["map"], ["small"], **half),
        node("Shape", ["map"], ["shape"]),
        node("Resize", ["small", *target], ["large"], **nearest),
        node("Concat", ["large", "map"], ["y"], axis=1),
    ]
    sizes = {"twice": np.array([1, 1, 2, 2], np.float32)} if by == "factor" else {}
    path = written(tmp_path / "x.onnx", nodes, ["n", 3, "height", "width"], constants=sizes)
    expected = onnxruntime.InferenceSession(path)
    if by == "factor":  # fits where both are four times a number, or one less: no range says so
        hint = "also accepts 64; set the open sizes of the file: height=N, width=N"
        with pytest.raises(ag.SpecError, match=hint):
            ag.load(path)
        graph, state = ag.load(path, {"height": 8, "width": 11})
        tried: tuple[tuple[int, int], ...] = ((8, 11),)
    else:
        graph, state = ag.load(path)
        tried = ((6, 8), (5, 9), (64, 31))
    for height, width in tried:
        x = torch.randn(2, 3, height, width)
        (theirs,) = expected.run(None, {"x": x.numpy()})
        assert torch.equal(ag.build(graph, state).eval()(x), torch.from_numpy(theirs))


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of PyTorch's own
@pytest.mark.parametrize("name", ["tokens", "pixels"])
def test_open_sizes_of_pytorchs_files_stay_open(name: str, tmp_path: Path):
    make, args, axes = CASES[name]
    torch.manual_seed(0)
    opened = dict.fromkeys((0, *next(iter(axes.values()))), torch.export.Dim.AUTO)
    path = tmp_path / "net.onnx"
    torch.onnx.export(
        make().eval(), args, path, dynamic_shapes=(opened,), dynamo=True, verbose=False
    )
    graph, state = ag.load(path)
    module, session = ag.build(graph, state).eval(), onnxruntime.InferenceSession(path)
    (key,) = (item.name for item in session.get_inputs())
    assert len(other_sizes(graph)) == len(opened) - 1
    for sizes in ({}, other_sizes(graph)):
        (x,) = random_inputs(graph, 3, sizes=sizes).values()
        (theirs,) = session.run(None, {key: x.numpy()})
        assert torch.allclose(module(x), torch.from_numpy(theirs), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["tokens", pytest.param("pixels", marks=pytest.mark.full)])
def test_open_sizes_are_written(name: str, tmp_path: Path):
    make, args, axes = CASES[name]
    graph, state = captured(make(), *args, open=axes)
    path = ag.export(graph, state, tmp_path / "net.onnx")  # compared at two sizes
    (item,) = onnxruntime.InferenceSession(path).get_inputs()
    names = [size if isinstance(size, int) else str(size) for size in graph.nodes[0].shape]
    assert item.shape == names
    assert ag.load(path).graph == graph
    numbers = other_sizes(graph)
    assert ag.load(path, numbers).graph == ag.fix_sizes(graph, numbers)
    with pytest.raises(ag.SpecError, match=r"net\.onnx: no such open size; found 'depth'"):
        ag.load(path, {"depth": 3})


@pytest.mark.full
def test_the_length_of_a_recurrent_layer_is_a_number_in_a_file(tmp_path: Path):
    axes = {"input": {0: "length", 1: "batch"}}
    graph, state = captured(torch.nn.LSTM(3, 4), torch.zeros(5, 2, 3), open=axes)
    with pytest.raises(
        ag.GraphError, match=r"open size; found length.*fix_sizes\(graph, \{'length': N"
    ):
        ag.export(graph, state, tmp_path / "net.onnx")
    fixed = ag.fix_sizes(graph, {"length": 6})
    assert ag.load(ag.export(fixed, state, tmp_path / "net.onnx")).graph == fixed


def test_equal_values_are_chosen_in_order(tmp_path: Path):
    nodes = [node("TopK", ["x", "k"], ["v", "y"], axis=1)]
    path = written(tmp_path / "x.onnx", nodes, ["n", 40], {"k": [2]}, kinds=(FLOAT, INT))
    graph, state = ag.load(path)
    made = ag.build(graph, state)(torch.zeros(2, 40))
    assert made.tolist() == [[0, 1], [0, 1]]


@pytest.mark.parametrize("way", ["forward", "reverse", "bidirectional"])
def test_a_gated_recurrent_layer(way: str, tmp_path: Path):
    rng = np.random.default_rng(0)
    ways = 2 if way == "bidirectional" else 1
    shapes = {"w": (ways, 15, 4), "r": (ways, 15, 5), "b": (ways, 30)}
    stored = {n: rng.standard_normal(s, np.float32) for n, s in shapes.items()}
    options = {"hidden_size": 5, "direction": way, "linear_before_reset": 1}
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        node("GRU", ["t", *shapes], ["y"], **options),
    ]
    assert_like_onnxruntime(
        written(tmp_path / "x.onnx", nodes, ["n", 3, 4], stored, rank=4), torch.randn(2, 3, 4)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "applies the reset gate before.*linear_before_reset=0"),
        ({"linear_before_reset": 1, "layout": 1}, "unsupported option; found layout=1"),
    ],
)
def test_recurrent_layers_of_another_form_are_refused(options, message, tmp_path: Path):
    shapes = {"w": (1, 3, 1), "r": (1, 3, 1)}
    path = written(
        tmp_path / "x.onnx",
        [node("GRU", ["x", *shapes], ["y"], hidden_size=1, **options)],
        ["n", 4, 1],
        {n: np.ones(s, "f") for n, s in shapes.items()},
        rank=4,
    )
    with pytest.raises(ag.SpecError, match=f"(?s)GRU.*{message}"):
        ag.load(path)


def test_a_known_part_of_a_shape(tmp_path: Path):
    nodes = [
        node("Shape", ["b"], ["s"], start=1),
        node("Concat", ["a", "s"], ["d"], axis=0),
        node("Reshape", ["x", "d"], ["y"]),
    ]
    stored = {"a": [-1], "b": [[1, 2, 3, 4]]}
    assert_like_onnxruntime(
        written(tmp_path / "x.onnx", nodes, ["n", 4], stored), torch.randn(2, 4)
    )


def test_rows_whose_published_cases_are_not_read(tmp_path: Path):
    weight = {"w": np.arange(1, 5, dtype=np.float32)}
    assert_like_onnxruntime(
        written(
            tmp_path / "x.onnx", [node("LayerNormalization", ["x", "w"], ["y"])], constants=weight
        ),
        torch.randn(2, 3, 4, 4),
    )


def test_an_operator_of_opset_9(tmp_path: Path):
    stored = {"s": np.array([1, 1, 2, 2], np.float32)}
    path = written(
        tmp_path / "x.onnx", [node("Upsample", ["x", "s"], ["y"])], opset=9, constants=stored
    )
    graph, state = ag.load(path)
    x = torch.randn(2, 3, 4, 4)
    assert torch.equal(ag.build(graph, state)(x), x.repeat_interleave(2, 2).repeat_interleave(2, 3))
