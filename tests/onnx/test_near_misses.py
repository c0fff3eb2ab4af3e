"""Files whose result was once another one than onnxruntime's, and files that ended badly."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import archgraph as ag
from tests.nets import captured
from tests.onnx.files import FLOAT, INT, assert_like_onnxruntime, node, onnx, written


def real(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("opset", "axis", "mask"), [(13, 1, None), (11, 1, None), (13, 2, (3, 1, 4, 6)), (13, -1, None)]
)
def test_attention_over_another_axis_than_the_last(opset, axis, mask, tmp_path: Path):
    """Keys are a weight of two axes, or a mask has more than the scores: the last is not two."""
    nodes = [
        node("Transpose", ["k"], ["t"], perm=[1, 0] if mask is None else [0, 2, 1]),
        node("MatMul", ["x", "t"], ["s"]),
        *([node("Add", ["s", "m"], ["a"])] if mask else []),
        node("Softmax", ["a" if mask else "s"], ["p"], axis=axis),
        node("MatMul", ["p", "v"], ["y"]),
    ]
    constants = {"k": real(6, 8), "v": real(6, 8)} if mask is None else {
        "k": real(1, 6, 8), "v": real(1, 6, 8), "m": real(*mask)}  # fmt: skip
    path = written(
        tmp_path / "a.onnx", nodes, ["N", 4, 8], constants, opset=opset, rank=len(mask or "abc")
    )
    assert_like_onnxruntime(path, torch.randn(3, 4, 8))


FOLDED: dict[str, tuple[Any, ...]] = {
    "division drops what is behind the point": (node("Div", ["a", "b"], ["c"]), [-7, 7, -8], [2]),
    "division by less than 0": (node("Div", ["a", "b"], ["c"]), [-7, 7, -8], [-2]),
    "rest of the sign of the divisor": (node("Mod", ["a", "b"], ["c"]), [-7, 7, -9], [3]),
    "rest of the sign of the dividend": (node("Mod", ["a", "b"], ["c"], fmod=1), [-7, 7, -9], [3]),
    "sum over no axes is over all": (node("ReduceSum", ["a", "b"], ["c"]), [[1, 2], [3, 4]], []),
    "sum over none": (
        node("ReduceSum", ["a", "b"], ["c"], noop_with_empty_axes=1), [[1, 2], [3, 4]], [],
    ),
    "product over none": (
        node("ReduceProd", ["a", "b"], ["c"], noop_with_empty_axes=1), [[1, 2], [3, 4]], [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDED)
def test_whole_numbers_are_folded_as_the_file_says(name: str, tmp_path: Path):
    folded, a, b = FOLDED[name]
    nodes = [folded, node("Cast", ["c"], ["f"], to=FLOAT), node("Mul", ["x", "f"], ["y"])]
    constants = {"a": np.array(a, np.int64), "b": np.array(b, np.int64)}
    size = 2 if np.ndim(a) == 2 else 3
    path = written(tmp_path / "f.onnx", nodes, ["N", size], constants)
    assert_like_onnxruntime(path, torch.randn(2, size))


def test_a_power_has_the_type_of_its_base(tmp_path: Path):
    nodes = [node("Pow", ["a", "x"], ["y"])]
    path = written(tmp_path / "p.onnx", nodes, ["N", 4], {"a": np.float32(2.5)}, kinds=(INT, FLOAT))
    assert_like_onnxruntime(path, torch.randint(0, 4, (3, 4)))
    path = written(tmp_path / "p.onnx", nodes, ["N", 4], {"a": np.int64(2)}, kinds=(FLOAT, INT))
    assert_like_onnxruntime(path, torch.rand(3, 4) * 3)


@pytest.mark.parametrize("length", [3, 4, 5, 6])
@pytest.mark.parametrize("pads", [[0, 1], [1, 0], [0, 0]])
def test_a_window_that_begins_behind_the_end_is_none(length: int, pads: list[int], tmp_path: Path):
    at = {"kernel_shape": [2], "strides": [2], "pads": pads, "ceil_mode": 1}
    path = written(tmp_path / "m.onnx", [node("MaxPool", ["x"], ["y"], **at)], ["N", 2, length])
    assert_like_onnxruntime(path, torch.randn(3, 2, length))


MEETS: dict[str, tuple[Any, ...]] = {
    "the largest of whole numbers": (
        [node("ReduceMax", ["x"], ["m"], keepdims=0), node("Sub", ["x", "m"], ["d"]),
         node("Cast", ["d"], ["y"], to=FLOAT)], [1, 4], {}, INT,
    ),
    "a bound that small numbers do not reach": (
        [node("Abs", ["x"], ["a"]), node("ReduceMax", ["a"], ["m"], keepdims=0),
         node("Max", ["m", "ten"], ["b"]), node("Div", ["x", "b"], ["y"])],
        [1, 4], {"ten": np.float32(10)}, FLOAT,
    ),
    "a batch that is squeezed": (
        [node("Squeeze", ["x"], ["s"]), node("Unsqueeze", ["s", "zero"], ["y"])],
        [1, 1, 4], {"zero": np.array([0])}, FLOAT,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MEETS)
def test_a_file_for_one_example_is_not_taken_for_more(name: str, tmp_path: Path):
    """It is a graph for one; opened on request, examples that meet are an error."""
    nodes, shape, constants, kind = MEETS[name]
    rank = 2 if "squeezed" in name else None
    path = written(tmp_path / "b.onnx", nodes, shape, constants, kinds=(kind, FLOAT), rank=rank)
    with pytest.raises(ag.SpecError, match=r"(depends on other examples|cannot|not of size 1)"):
        ag.load(path, {"batch": "open"})
    x = torch.ones(shape, dtype=torch.int64 if kind == INT else torch.float32)
    assert_like_onnxruntime(path, x)


@pytest.mark.full
def test_functions_are_read_by_a_process_that_has_read_none(tmp_path: Path):
    path = written(tmp_path / "f.onnx", [node("Twice", ["x"], ["y"], domain="own")], ["N", 4])
    model = onnx.load(path)
    body = [node("Add", ["a", "a"], ["b"])]
    opsets = [onnx.helper.make_opsetid("", 18)]
    model.functions.append(onnx.helper.make_function("own", "Twice", ["a"], ["b"], body, opsets))
    model.opset_import.append(onnx.helper.make_opsetid("own", 1))
    path.write_bytes(model.SerializeToString())
    code = f"import archgraph as ag; print(len(ag.load({str(path)!r}).graph.nodes))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("2", 0), done.stderr


def test_functions_that_double_are_refused_before_they_are_written_out(tmp_path: Path):
    path = written(tmp_path / "f.onnx", [node("F30", ["x"], ["y"], domain="own")], ["N", 4])
    model = onnx.load(path)
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("own", 1)]
    for at in range(31):
        kind, of = ("Relu", "") if at == 0 else (f"F{at - 1}", "own")
        body = [node(kind, ["a"], ["m"], domain=of), node(kind, ["m"], ["b"], domain=of)]
        model.functions.append(
            onnx.helper.make_function("own", f"F{at}", ["a"], ["b"], body, opsets)
        )
    model.opset_import.append(onnx.helper.make_opsetid("own", 1))
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ag.SpecError, match=r"functions with too many nodes; found 2,147,483,648"):
        ag.load(path)


def test_long_names_and_wrong_sizes_end_in_an_error_of_ours_or_none(tmp_path: Path):
    weights = {".".join("a" * 1500): real(4)}
    path = written(tmp_path / "n.onnx", [node("Mul", ["x", *weights], ["y"])], ["N", 4], weights)
    assert_like_onnxruntime(path, torch.randn(2, 4))
    deep = [node("Relu", ["x"], ["y"], name="/" + "/".join("a" * 1500))]
    assert_like_onnxruntime(written(tmp_path / "n.onnx", deep, ["N", 4]), torch.randn(2, 4))
    with pytest.raises(ag.ArchGraphError, match="does not have a size that can be captured"):
        ag.load(written(tmp_path / "n.onnx", [node("Relu", ["x"], ["y"])], ["N", 2**62 + 1, 4]))


def test_a_long_expression_of_the_batch_is_refused(tmp_path: Path):
    nodes = [node("Shape", ["x"], ["s"]), node("Gather", ["s", "zero"], ["d0"])]
    for at in range(12):
        nodes += [
            node("Mul", [f"d{at}", f"d{at}"], [f"q{at}"]),
            node("Add", [f"q{at}", f"d{at}"], [f"d{at + 1}"]),
        ]
    nodes += [node("Cast", ["d12"], ["f"], to=FLOAT), node("Mul", ["x", "f"], ["y"])]
    path = written(tmp_path / "l.onnx", nodes, ["N", 4], {"zero": np.array(0)})
    with pytest.raises(ag.SpecError, match="expression of the batch size that is too long"):
        ag.load(path)


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", ["val_0", "val_1", "matmul", "relu", "w"])
def test_a_weight_may_have_a_name_of_the_exporter(name: str, tmp_path: Path):
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_parameter(name, torch.nn.Parameter(torch.randn(4, 4)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.layer_norm((x @ getattr(self, name)).relu() + 1, [4])

    graph, state = captured(Net(), torch.randn(2, 4))
    ag.export(graph, state, tmp_path / "n.onnx")
    again, weights = ag.load(tmp_path / "n.onnx")
    assert again == graph
    assert torch.equal(weights[name], state[name])


@pytest.mark.parametrize("step", [-1, -2, -3])
def test_a_slice_that_runs_backwards(step: int, tmp_path: Path):
    ends = {
        "a": np.array([2**62]),
        "b": np.array([-(2**62)]),
        "c": np.array([1]),
        "d": np.array([step]),
    }
    path = written(tmp_path / "s.onnx", [node("Slice", ["x", *ends], ["y"])], ["N", 7], ends)
    assert_like_onnxruntime(path, torch.randn(3, 7))


def test_what_the_exporter_writes_with_control_flow_is_refused(tmp_path: Path):
    graph, state = captured(torch.nn.EmbeddingBag(10, 6).eval(), torch.randint(0, 10, (2, 7)))
    with pytest.raises(ag.ArchGraphError, match="cannot be expressed in ONNX; found If"):
        ag.export(graph, state, tmp_path / "e.onnx")


def test_a_block_that_is_called_by_its_weight_gets_leaves_beside_it(tmp_path: Path):
    nodes = [
        node("MatMul", ["x", "k1"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("MatMul", ["b", "k2"], ["c"]),
        node("Add", ["c", "x"], ["r"]),
        node("MatMul", ["r", "k3"], ["y"]),
    ]
    weights = {"k1": real(4, 4), "k2": real(4, 4), "k3": real(4, 4)}
    graph, _ = ag.load(written(tmp_path / "k.onnx", nodes, ["N", 4], weights))
    for changed in (ag.add_step_sizes(graph).graph, ag.add_adapters(graph, 2).graph):
        new = {p.name for p in changed.params} - set(weights)
        assert new and not any(name.startswith(("k1.", "k2.", "k3.")) for name in new)


def test_a_weight_whose_name_goes_on_behind_that_of_another(tmp_path: Path):
    """A leaf holds no leaves: in a module, `k.x` cannot be inside of `k`."""
    nodes = [node("MatMul", ["x", "k"], ["a"]), node("MatMul", ["a", "k.x"], ["y"])]
    weights = {"k": real(4, 4), "k.x": real(4, 4)}
    path = written(tmp_path / "k.onnx", nodes, ["N", 4], weights)
    assert_like_onnxruntime(path, torch.randn(3, 4))
    assert [*ag.load(path).state] == ["k", "k_x"]


@pytest.mark.parametrize(
    ("at", "found"),
    [
        (
            {"coordinate_transformation_mode": "tf_crop_and_resize"},
            "linear, tf_crop_and_resize",
        ),
        ({"antialias": 1}, "resizes in a way for which PyTorch does not have an operator"),
        ({"keep_aspect_ratio_policy": "not_larger"}, "found keep_aspect_ratio_policy='not_larger'"),
    ],
)
def test_what_resizing_does_not_know_is_refused(at: Any, found: str, tmp_path: Path):
    nodes = [node("Resize", ["x", "", "", "s"], ["y"], mode="linear", axes=[2, 3], **at)]
    path = written(tmp_path / "r.onnx", nodes, ["N", 2, 9, 10], {"s": np.array([1, 5])})
    with pytest.raises(ag.SpecError, match=found):
        ag.load(path)


@pytest.mark.parametrize(
    ("mode", "place"),
    [
        *itertools.product(("linear", "cubic"), ("align_corners", "half_pixel")),
        ("nearest", "asymmetric"),
    ],
)
def test_resizing_to_a_size(mode: str, place: str, tmp_path: Path):
    at = {"mode": mode, "coordinate_transformation_mode": place, "nearest_mode": "floor"}
    nodes = [node("Resize", ["x", "", "", "s"], ["y"], axes=[2, 3], **at)]
    path = written(tmp_path / "r.onnx", nodes, ["N", 2, 9, 7], {"s": np.array([13, 22])})
    assert_like_onnxruntime(path, torch.randn(3, 2, 9, 7))


def test_neither_infinity_is_looked_for(tmp_path: Path):
    nodes = [
        node("IsInf", ["x"], ["i"], detect_positive=0, detect_negative=0),
        node("Cast", ["i"], ["y"], to=FLOAT),
    ]
    path = written(tmp_path / "i.onnx", nodes, ["N", 3])
    assert_like_onnxruntime(path, torch.tensor([[1.0, torch.inf, -torch.inf], [0, -1, torch.inf]]))


@pytest.mark.parametrize("mask", [None, "float", "bool"])
@pytest.mark.parametrize("causal", [0, 1])
def test_attention_with_groups_of_heads(mask: str | None, causal: int, tmp_path: Path):
    nodes = [
        node("Attention", ["x", "k", "v", *["m"] * (mask is not None)], ["y"], is_causal=causal)
    ]
    constants = {"k": real(3, 2, 6, 8), "v": real(3, 2, 6, 8)}
    if mask is not None:
        allowed = np.tri(5, 6, 2, dtype=bool)
        constants["m"] = allowed if mask == "bool" else np.where(allowed, 0, -3).astype("f")
    path = written(tmp_path / "a.onnx", nodes, [3, 4, 5, 8], constants, opset=23)
    assert_like_onnxruntime(path, torch.randn(3, 4, 5, 8))


@pytest.mark.parametrize(
    ("results", "at", "found"),
    [
        (["y", "k2"], {}, "unsupported form of attention"),
        (["y"], {"softcap": 2.0}, "softcap=2.0"),
    ],
)
def test_attention_of_another_form_is_refused(results: Any, at: Any, found: str, tmp_path: Path):
    nodes = [node("Attention", ["x", "k", "v"], results, **at)]
    constants = {"k": real(3, 2, 6, 8), "v": real(3, 2, 6, 8)}
    path = written(tmp_path / "a.onnx", nodes, [3, 4, 5, 8], constants, opset=23)
    with pytest.raises(ag.SpecError, match=found):
        ag.load(path)
