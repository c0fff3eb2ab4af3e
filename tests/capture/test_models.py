"""What models are made of: parametrisations, precision, regions, signatures, devices."""

from __future__ import annotations

import importlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import archgraph as ag
from archgraph.graph.ir import BATCH, Node, Record
from tests.capture.faithful import assert_faithful, tensors
from tests.nets import captured, with_parts

X = torch.randn(2, 3)
IMAGE = torch.randn(2, 3, 6, 6)


class Net(nn.Module):
    """Two layers and a forward to be written in one line."""

    rate = 0.0

    def __init__(self, body: Callable[[Any, torch.Tensor], Any], **parts: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head = nn.Linear(3, 4), nn.Linear(4, 2)
        for name, part in parts.items():
            self.add_module(name, part)
        self.body = [body]

    def forward(self, x: torch.Tensor) -> Any:
        return self.body[0](self, x)


# -- precision ----------------------------------------------------------------------------------


def cast_region(net, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = net.head(net.layer(x).relu())
    return y.float()


def cast_region_of_mixed_operators(net, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = nn.functional.layer_norm(net.layer(x), (4,))
        z = torch.cat([y, net.layer(x)], 1) @ y.new_ones(8, 2)
        with torch.autocast("cpu", enabled=False):
            w = net.layer(x)
    return z.softmax(-1), w * nn.functional.mse_loss(z, z * 2)


def cast_region_switched_off(net, x):
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        return net.head(net.layer(x))


def cast_region_without_gradient(net, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = net.layer(x)
        with torch.no_grad():
            z = net.head(y)
        y = net.head(y)
    return y.float() + z.float().mean()


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "body",
    [
        cast_region, cast_region_of_mixed_operators, cast_region_switched_off,
        cast_region_without_gradient,
    ],
)  # fmt: skip
def test_autocast_regions_become_casts(body):
    graph = assert_faithful(Net(body), X).graph
    casts = [n for n in graph.nodes if n.op == "aten.to.dtype"]
    assert bool(casts) == (body is not cast_region_switched_off)


def test_the_callers_autocast_and_no_grad_stay_out_of_the_graph():
    net = Net(lambda net, x: net.head(net.layer(x)))
    graph = captured(net, X).graph
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        assert ag.trace(net, X).graph == graph
    with torch.inference_mode():
        assert ag.trace(net, X).graph == graph


# -- regions ------------------------------------------------------------------------------------


def no_grad(net, x):
    with torch.no_grad():
        y = net.layer(x)
        with torch.enable_grad():
            z = net.head(y)
    return z - y.mean()


def inference_mode(net, x):
    with torch.inference_mode():
        y = net.layer(x)
    return net.head(y.clone())


@pytest.mark.parametrize("body", [no_grad, inference_mode])
def test_gradient_regions(body):
    assert_faithful(Net(body), X)


def test_condition_on_a_tensor_runs_both_branches():
    def body(net, x):
        return torch.cond(x.sum() > 0, lambda x: net.layer(x).relu(), lambda x: -net.layer(x), (x,))

    traced = assert_faithful(Net(body), X)
    assert [n.op for n in traced.graph.nodes][-1] == "aten.where.self"
    assert any("runs both branches" in note for note in traced.notes)


def test_folding_goes_through_regions():
    """Rotary tables: computed from a buffer alone, under ``no_grad`` and autocast."""

    @with_parts(lambda: {"inverse": nn.Buffer(torch.tensor([1.0, 0.1]), persistent=False)})
    def Rotary(self, x, position):
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            angle = self.inverse[None, :, None].float() @ position[:, None, :].float()
            angle = torch.cat([angle, angle], 1).transpose(1, 2)
            return angle.cos().to(x.dtype), angle.sin().to(x.dtype)

    def body(net, x):
        cos, sin = net.rotary(x, torch.arange(x.shape[1])[None])
        return net.head(x) * cos.unsqueeze(0)[0, :, :, :2] + sin[..., :2]

    graph = assert_faithful(Net(body, rotary=Rotary()), torch.randn(2, 5, 4)).graph
    assert [n.op for n in graph.nodes] == [
        "input", "aten.linear", "aten.mul.Tensor", "aten.add.Tensor",
    ]  # fmt: skip


# -- modules and constants ----------------------------------------------------------------------


def lifted_constants(net, x):
    return net.layer(x) * torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.arange(4)


def modules_made_inside(net, x):
    return nn.Sequential(nn.ReLU(), nn.Flatten())(net.layer(x))


def a_layer_made_inside(net, x):
    return nn.Linear(4, 4)(net.layer(x))


def a_norm_made_inside(net, x):
    return nn.BatchNorm1d(4)(torch.cat([net.layer(x)] * 2))


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "body", [lifted_constants, modules_made_inside, a_layer_made_inside, a_norm_made_inside]
)
def test_constants_and_modules_made_in_forward(body):
    assert_faithful(Net(body), X)


class Elsewhere(nn.Module):
    """Leaves that forward reads past the tables of its modules."""

    def __init__(self, hold: Callable[[Elsewhere], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight, self.layer = nn.Parameter(torch.randn(3, 3)), nn.Linear(3, 3)
        self.held: Any
        self.register_buffer("count", torch.zeros(3))
        self.__dict__["held"] = hold(self)

    def forward(self, x):
        held = self.held() if callable(self.held) else self.held
        weight, shift, count = held.values() if isinstance(held, dict) else held
        count.add_(1)
        return self.layer(x) @ weight.T + shift


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "hold",
    [
        lambda net: {"w": net.weight, "s": net.layer.bias, "c": net.count},
        lambda net: [net.weight, net.layer.bias, net.count],
        lambda net: (lambda w, *rest: lambda: (w, *rest))(net.weight, net.layer.bias, net.count),
    ],
    ids=["dict", "list", "closure"],
)
def test_leaves_read_past_the_module_are_leaves(hold):
    graph = assert_faithful(Elsewhere(hold), X).graph
    assert not [p for p in graph.params if p.role == "constant"]


def test_the_data_of_a_parameter_is_not_the_parameter():
    with pytest.raises(ag.TraceError, match="shares memory with a tensor that changes"):
        ag.trace(Elsewhere(lambda net: [net.weight.data, net.layer.bias, net.count]), X)


def test_frozen_parameters_stay_frozen():
    net = Net(lambda net, x: net.head(net.layer(x).relu()))
    net.layer.requires_grad_(False)
    assert [p.name for p in assert_faithful(net, X).graph.params if not p.trainable] == [
        "layer.weight", "layer.bias",
    ]  # fmt: skip
    assert_faithful(net.requires_grad_(False), X)


def test_eval_capture_alone_counts_batches_too():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.1))
    assert captured(net, X, train=False).graph == captured(net, X).graph


# -- signatures ---------------------------------------------------------------------------------


@dataclass
class Batched:
    a: torch.Tensor
    b: torch.Tensor | None = None


@dataclass
class Answer:
    main: torch.Tensor
    inner: Batched
    size: int = 3


class Pair(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "example",
    [Batched(X, X + 1), Pair(X, X + 1), {"a": X, "b": X + 1}],
    ids=["dataclass", "namedtuple", "dict"],
)
def test_structured_inputs(example):
    def body(net, x):
        a, b = (x["a"], x["b"]) if isinstance(x, dict) else (x.a, x.b)
        return net.layer(a) * net.layer(b)

    graph = assert_faithful(Net(body), example).graph
    assert isinstance(graph.inputs[0][1], Record)
    assert not any("the graph is valid for" in note for note in graph.notes)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "make",
    [
        lambda y, x: Answer(y, Batched(y * 2)),
        lambda y, x: Pair(y, x),
        lambda y, x: {"y": y, "none": None, "list": [x, (y, None)]},
        lambda y, x: OrderedDict(out=y),
        lambda y, x: (y, None, 3, "text", True),
    ],
    ids=["dataclass", "namedtuple", "dict", "ordered", "tuple"],
)
def test_structured_outputs(make):
    net = Net(lambda net, x: make(net.layer(x), x))
    traced = assert_faithful(net, X)
    found, expected = ag.build(*traced)(X), net(X)
    if isinstance(expected, Answer):
        assert torch.equal(found.inner.a, expected.inner.a) and found.size == 3
    assert len(tensors(found)) == len(tensors(expected))


@with_parts(lambda: {"layer": nn.Linear(3, 4)})
def Signature(self, *xs, scale=None, **named):
    total = sum(self.layer(x) for x in xs) + named["offset"]
    return total if scale is None else total * scale


def test_starred_and_keyword_arguments():
    graph = assert_faithful(Signature(), X, X + 1, offset=torch.randn(2, 4)).graph
    assert [k for k, _ in graph.inputs] == ["xs_0", "xs_1", "offset"]
    scaled = assert_faithful(Signature(), X, offset=torch.randn(2, 4), scale=torch.randn(2, 4))
    assert [k for k, _ in scaled.graph.inputs] == ["xs_0", "scale", "offset"]


def test_numbers_given_as_input_are_fixed_and_noted():
    net = Signature()
    traced = ag.trace(net, X, offset=torch.zeros(2, 4), scale=3.0)
    assert "argument scale is fixed in the graph: 3.0" in traced.notes
    offset = torch.zeros(2, 4)
    torch.testing.assert_close(
        ag.build(*traced)(X, offset=offset), net(X, offset=offset, scale=3.0)
    )


@with_parts(lambda: {"layer": nn.Linear(3, 3)})
def Two(self, x, other):
    return self.layer(x) @ other.view(2, other.shape[0] // 2, 3).sum(1).t()


def test_an_independent_leading_axis_keeps_its_size():
    net, other = Two(), torch.randn(6, 3)
    graph, state = ag.trace(net, torch.randn(4, 3), other)
    assert [n.shape for n in graph.nodes[:2]] == [(BATCH, 3), (6, 3)]
    for batch in (1, 2, 5):
        x = torch.randn(batch, 3)
        torch.testing.assert_close(ag.build(graph, state)(x, other), net(x, other))


def test_a_leading_axis_that_follows_from_the_batch_fixes_it():
    @with_parts(lambda: {"layer": nn.Linear(3, 3)})
    def Doubled(self, x, other):
        return torch.cat(2 * [self.layer(x)]) + other

    traced = ag.trace(Doubled(), torch.randn(3, 3), torch.randn(6, 3))
    assert [n.shape for n in traced.graph.nodes[:2]] == [(3, 3), (6, 3)]
    assert traced.notes[0].startswith("the batch size is fixed at that of the example")


def test_a_leading_axis_of_one_stays_one_beside_a_larger_batch():
    @with_parts()
    def Scaled(self, x, scale):
        return x * scale

    graph = captured(Scaled(), torch.randn(4, 3), torch.randn(1, 3)).graph
    assert [n.shape for n in graph.nodes[:2]] == [(BATCH, 3), (1, 3)]


# -- devices ------------------------------------------------------------------------------------


WITHOUT_MEMORY = "the model is on the meta device: its state has no values, and it was not verified"


def test_a_model_without_memory_gives_the_same_graph():
    def make():
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.1), nn.Linear(4, 2))

    with torch.device("meta"):
        net = make()
    graph, state = traced = ag.trace(net, X)
    assert graph == captured(make(), X).graph
    assert all(t.is_meta for t in state.values())
    assert traced.notes == (WITHOUT_MEMORY,)
    built = ag.build(graph, state)
    assert built(X.to("meta")).shape == (2, 2)


@with_parts(
    lambda: {
        "a": nn.Linear(3, 8),
        "norm": nn.BatchNorm1d(8),
        "out": nn.Linear(8, 2),
        "rates": nn.Buffer(torch.arange(8.0), persistent=False),
        "offsets": torch.arange(8.0) * 0.25,
    }
)
def Tables(self, x):
    """Parameters, buffers in the state and outside of it."""
    return self.out(self.norm(self.a(x)) * self.rates + self.offsets)


@pytest.mark.parametrize("example", ["cpu", "meta"])
@pytest.mark.parametrize("buffers", ["cpu", "meta"])
def test_buffers_and_examples_may_have_memory_or_not(buffers, example):
    with torch.device("meta"):
        net = Tables()
    if buffers == "cpu":
        for module, real in zip(net.modules(), Tables().modules(), strict=True):
            module._buffers.update(real._buffers)
    before = {name: id(buffer) for name, buffer in net.named_buffers()}
    graph, state = ag.trace(net, X.to(example))
    assert {name: id(buffer) for name, buffer in net.named_buffers()} == before
    assert (graph == captured(Tables(), X).graph) == (buffers == "cpu")
    assert ("rates" in state) == (buffers == "meta")  # without values it is no constant
    assert all(tensor.is_meta for tensor in state.values())
    half = ag.take(graph, 0.5)
    built = ag.build(half.graph, half.transfer.pull(state))
    assert built(X.to("meta")).shape == (2, 2) and built.get_parameter("a.weight").shape == (4, 3)


def test_a_state_without_values_is_not_merged_or_exported(tmp_path):
    with torch.device("meta"):
        net = nn.Linear(3, 2)
    graph, state = ag.trace(net, X)
    with pytest.raises(ag.ArchGraphError, match=r"weight: not a dense tensor; .* on meta"):
        ag.Merger(graph, state)
    with pytest.raises(ag.GraphError, match="the state has no values to export; found meta"):
        ag.export(graph, state, tmp_path / "net.onnx")


@pytest.mark.parametrize(("depth", "width"), [(3, 64), (8, 128), (6, 512)])
def test_memory_of_models_without_any_is_not_compared(depth, width):
    with torch.device("meta"):
        net = nn.Sequential(*[nn.Linear(width, width) for _ in range(depth)])
        net[1].weight = net[0].weight
    graph, _ = ag.trace(net, torch.randn(2, width))
    assert len(graph.state_names) == 2 * depth - 1


def test_constants_follow_the_state_to_its_device():
    def body(net, x):
        return net.layer(x) + torch.arange(4.0, device=x.device)

    with torch.device("meta"):
        net = Net(body)
    graph, state = ag.trace(net, X)
    assert ag.build(graph, state)(X.to("meta")).is_meta
    torch.manual_seed(0)
    assert captured(Net(body), X).graph == graph


# -- places and notes ---------------------------------------------------------------------------


def _helper(x):
    return x * torch.sigmoid(x)


def test_operators_know_their_line():
    graph = captured(Net(lambda net, x: _helper(net.layer(x))), X).graph
    line = _helper.__code__.co_firstlineno + 1
    assert {n.source for n in graph.nodes if n.op == "aten.mul.Tensor"} == {
        f"test_models.py:{line}"
    }
    bare = graph.replace(
        nodes=tuple(Node(n.name, n.op, n.args, n.type, n.scope) for n in graph.nodes)
    )
    assert bare == graph and hash(bare) == hash(graph)
    assert str(bare) == str(graph)


def test_what_only_training_does_is_noted():
    def body(net, x):
        y = net.layer(x)
        if net.training:
            y = y * (torch.rand(y.shape[0], 1) < 0.8) / 0.8
        return y

    (note,) = assert_faithful(Net(body), X).notes
    assert note.startswith("only in training: rand, lt, mul, div at test_models.py:")


def test_a_batch_that_only_training_fixes_leaves_training_to_eval():
    def body(net, x):
        y = net.layer(x)
        return y * torch.rand(len(y), 1) if net.training else y

    with pytest.warns(UserWarning, match="in training the batch size is fixed at that of the exam"):
        traced = ag.trace(Net(body), X, strict=False)
    assert traced.graph.nodes[0].shape == (BATCH, 3)


def test_a_batch_that_only_evaluation_fixes_is_fixed_in_training_too():
    def body(net, x):
        y = net.layer(x)
        return y if net.training else torch.stack([y[i] for i in range(len(y))])

    traced = assert_faithful(Net(body), X, batches=(2,))
    assert traced.graph.nodes[0].shape == (2, 3)
    assert traced.notes[0].startswith("the batch size is fixed at that of the example")


def branch_on_the_batch(net, x):
    if 1 < x.shape[0] < 3:
        return net.layer(x)
    return -net.layer(x)


FIXED: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "view": lambda net, x: net.layer(x).view(2, 2, 2).flatten(1),
    "expand": lambda net, x: net.layer(x) + torch.zeros(1, 4).expand(2, 4),
    "buffer": lambda net, x: net.layer(x) + net.rows,
    "number": lambda net, x: net.layer(x) * int(x.shape[0]),
    "loop": lambda net, x: torch.stack(list(net.layer(x))),
    "branch": branch_on_the_batch,
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", list(FIXED))
def test_a_fixed_batch_is_noted_with_the_line_that_fixes_it(name):
    net, body = Net(FIXED[name]), FIXED[name].__code__
    net.register_buffer("rows", torch.ones(2, 4))
    graph, _ = traced = ag.trace(net, X)
    assert graph.nodes[0].shape == (2, 3)
    note = next(n for n in traced.notes if n.startswith("the batch size is fixed"))
    first = body.co_firstlineno
    lines = [*range(first, first + 2)] if name == "branch" else [first]
    assert any(f"test_models.py:{line}" in note for line in lines), note


def test_a_batch_that_a_helper_of_another_file_fixes(tmp_path, monkeypatch):
    (tmp_path / "anchors_of_two.py").write_text("def add(x, rows):\n    return x + rows\n")
    monkeypatch.syspath_prepend(tmp_path)
    helper = importlib.import_module("anchors_of_two")
    net = Net(lambda net, x: helper.add(net.layer(x), net.rows))
    net.register_buffer("rows", torch.ones(2, 4))
    (note,) = ag.trace(net, X).notes
    assert f"{helper.__file__}:2" in note


def test_a_batch_of_one_that_is_fixed_stays_one():
    graph, _ = ag.trace(Net(FIXED["number"]), X[:1])
    assert graph.nodes[0].shape == (1, 3)


# -- refusals -----------------------------------------------------------------------------------


def branch(net, x):
    if x.max() > 1:
        return net.layer(x)
    return net.layer(-x)


def loop(net, x):
    for _ in range(int(x.abs().sum())):
        x = x + 1
    return net.layer(x)


def item(net, x):
    return net.layer(x) * x.max().item()


def picked_rows(net, x):
    return net.layer(x[x[:, 0] > 0])


def numpy(net, x):
    return net.layer(torch.from_numpy(x.detach().numpy()))


def batched_function(net, x):
    return torch.vmap(lambda v: v * 2)(net.layer(x))


@pytest.mark.parametrize(
    ("body", "line", "pattern"),
    [
        (branch, 1, r"branches on the values of a tensor; found if x.max\(\) > 1:.*torch.where"),
        (loop, 1, r"branches on the values of a tensor; found for _ in range.*torch.cond"),
        (item, 1, r"a number depends on the values of a tensor.*avoid .item\(\)"),
        (picked_rows, 1, r"a size depends on the values of a tensor.*torch.where"),
        (numpy, 1, r"leaves torch for numpy.*found return net.layer.*use torch functions"),
        (batched_function, 1, r"torch.vmap"),
    ],
)
def test_refusals_name_the_line_and_what_to_do(body, line, pattern):
    place = body.__code__.co_firstlineno + line
    with pytest.raises(ag.TraceError, match=rf"test_models.py:{place}\b.*{pattern}"):
        ag.trace(Net(body), X)


def test_models_that_are_not_ready_are_refused():
    with pytest.raises(
        ag.TraceError, match=r"0.weight: has no values yet: run the lazy module once"
    ):
        ag.trace(nn.Sequential(nn.LazyLinear(4)), X)
    with pytest.raises(ag.TraceError, match="trace the original module"):
        ag.trace(torch.jit.script(nn.Linear(3, 4)), X)


def test_a_random_branch_in_training_is_reported():
    """Layer drop: whether a layer runs is drawn, and Python decides by it."""

    def body(net, x):
        y = net.layer(x)
        if net.training and torch.rand(()) < 0.5:
            return y
        return y.relu()

    net = Net(body)
    message = r"test_models.py:\d+.*train mode could not be captured.*branches.*train=False"
    with pytest.raises(ag.TraceError, match=message):
        ag.trace(net, X)
    with pytest.warns(UserWarning, match=message):
        traced = ag.trace(net, X, strict=False)
    assert traced.graph == captured(net, X, train=False).graph
    torch.testing.assert_close(ag.build(*traced).eval()(X), net.eval()(X))


def dropped(net, x):
    for _ in range(2):
        draw = torch.rand([])
        skip = net.training and draw < net.rate
        if not skip:
            x = F.dropout(net.layer(x)[:, :3], 0.5, net.training)
    return x


def dropped_by_item(net, x):
    if net.training and torch.rand(1).item() > 1 - net.rate:
        return x
    return F.dropout(net.layer(x), 0.5, net.training)


def dropped_by_uniform(net, x):
    if net.training and torch.empty(1).uniform_(0, 1) < net.rate:
        return x
    return F.dropout(net.layer(x), 0.5, net.training)


def clamped(net, x):
    y = net.layer(x)
    if torch.isinf(y).any() or torch.isnan(y).any():
        y = y.clamp(-1, 1)
    return F.dropout(y, 0.5, net.training)


def counted(net, x):
    y = net.layer(x)
    if (torch.isnan(y) | torch.isinf(y)).sum() > 0 or (y != y).any().item():
        raise ValueError("not a number")
    return y if torch.isfinite(y).all() else y.nan_to_num()


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("body", "why"),
    [
        (dropped, "draws that never occur"),
        (dropped_by_item, ""),  # nothing is left out: Python compares a number
        (dropped_by_uniform, "draws that never occur"),
        (clamped, "non-finite numbers"),
        (counted, "non-finite numbers"),
    ],
)
def test_a_branch_that_can_go_only_one_way_is_left_out(body, why):
    """The draws themselves stay, so that dropout draws what it draws in the model."""
    net = Net(body)
    notes = assert_faithful(net, X).notes
    assert all(n.startswith(f"the graph omits a branch for {why} (") for n in notes)
    assert bool(notes) == bool(why)
    assert net.layer.weight.isfinite().all()  # tensors decide for themselves again


class Causal(nn.Module):
    """Torch's own layers compare a mask with a causal one to find out whether it is causal."""

    causal: bool | None

    def __init__(self, held: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        sizes: dict[str, Any] = {"d_model": 4, "nhead": 2, "dim_feedforward": 8}
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(**sizes), 1, enable_nested_tensor=False
        )
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**sizes), 1)
        if held:
            self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(5))

    def forward(self, x, empty):
        x = x.transpose(0, 1)
        held = getattr(self, "mask", None)
        mask = nn.Transformer.generate_square_subsequent_mask(5) if held is None else held
        y = self.encoder(x, mask=mask, src_key_padding_mask=empty)
        return self.decoder(x, y, tgt_mask=mask)


@pytest.mark.full
@pytest.mark.parametrize("held", [False, True], ids=["made", "held"])
def test_causal_masks_of_torchs_layers(held):
    """A mask that forward makes is known; of one that is held in a buffer, a note says so."""
    given = torch.randn(2, 5, 4), torch.zeros(2, 5)
    traced = assert_faithful(Causal(held), *given, tolerance=1e-5, batches=(2, 3))
    notes = [n for n in traced.notes if n.startswith("a branch depends on the values of mask: ")]
    assert len(notes) == held and len(traced.notes) == held


@pytest.mark.full
def test_a_mask_that_is_given_needs_a_word_on_whether_it_is_causal():
    class Given(Causal):
        def forward(self, x, mask):
            return self.encoder(x, mask=mask, is_causal=self.causal)

    net, given = Given(False), (torch.randn(5, 2, 4), torch.zeros(5, 5))
    net.causal = None
    with pytest.raises(ag.TraceError, match=r"pass is_causal \(or tgt_is_causal\) in the call"):
        ag.trace(net, *given)
    net.causal = False
    ag.trace(net, *given)


@pytest.mark.full
def test_a_causal_mask_of_the_length_that_is_the_first_axis_fixes_that():
    def body(net, x):
        mask = nn.Transformer.generate_square_subsequent_mask(len(x))
        return net.encoder(x, mask=mask)

    layer = nn.TransformerEncoderLayer(4, 2, 8)
    net = Net(body, encoder=nn.TransformerEncoder(layer, 1, enable_nested_tensor=False))
    traced = assert_faithful(net, torch.randn(5, 2, 4), tolerance=1e-5, batches=(5,))
    assert traced.graph.nodes[0].shape == (5, 2, 4)


@with_parts(
    lambda started: {
        "layer": nn.Linear(3, 2),
        "started": torch.tensor(started),
        "scale": torch.ones(2),
    }
)
def Starting(self, x):
    """The first call decides what a later one does."""
    y = self.layer(x)
    if self.training and not self.started:
        self.scale.copy_(y.detach().std(0))
        self.started.fill_(True)
    return y / self.scale


def test_a_branch_on_a_buffer_holds_for_what_it_holds():
    (note,) = assert_faithful(Starting(True), X).notes
    assert note.startswith("a branch depends on the values of started: the graph contains")
    with pytest.raises(ag.TraceError, match=r"values of started, which it changes"):
        ag.trace(Starting(False), X)


@pytest.mark.parametrize("rate", [0.5, 1e-9])
def test_a_branch_that_a_draw_can_take_is_refused(rate):
    net = Net(dropped)
    net.rate = rate
    with pytest.raises(ag.TraceError, match="branches on the values of a tensor"):
        ag.trace(net, X)


@with_parts(lambda asks: {"layer": nn.Linear(3, 2), "asks": asks})
def ByBatch(self, x):
    """Forward goes by the number of examples."""
    return self.layer(x) * 2 if self.asks(x.shape[0]) else self.layer(x)


@pytest.mark.sample(3)
@pytest.mark.parametrize("batch", [3, 4, 8])
def test_a_branch_on_the_batch_size_limits_it(batch):
    """Within the sizes of one branch the batch is free; for others the built module refuses."""
    net, few = ByBatch(lambda n: n > 4), batch <= 4
    traced = ag.trace(net, torch.randn(batch, 3))
    (note,) = traced.notes
    assert note.startswith(f"the graph is valid for batch {'< 5' if few else '>= 5'};")
    assert "size()[0]" in note
    assert ag.parse(str(traced.graph)) == traced.graph
    for built in (ag.build(*traced), ag.build(ag.take(traced.graph, 1.0).graph, traced.state)):
        assert ag.trace(built, torch.randn(batch, 3)).graph == traced.graph
        for size in range(1, 9):
            x = torch.randn(size, 3)
            if (size <= 4) == few:
                torch.testing.assert_close(built(x), net(x), rtol=0, atol=0)
            else:
                with pytest.raises(ag.GraphError, match=f"input x.*found {size}"):
                    built(x)


@pytest.mark.sample(3)
@pytest.mark.parametrize("batch", [3, 70, 300])
def test_a_branch_on_the_batch_size_that_computes_the_same_leaves_it_free(batch):
    def body(net, x):
        y = net.layer(x)
        if y.shape[0] >= 64:
            y = y.contiguous()
        return y.clone() if y.shape[0] % 2 else y

    traced = assert_faithful(Net(body), torch.randn(batch, 3), batches=(2, 65))
    assert not traced.notes


@pytest.mark.parametrize(
    "rows",
    [
        lambda y: y[: y.shape[0] // 2],
        lambda y: y[1:] - y[:-1],
        lambda y: y[-3:],
        lambda y: y + y[2],
        lambda y: y.chunk(2)[0],
    ],
)
def test_what_no_batch_of_one_has_fixes_the_batch(rows):
    net, x = Net(lambda net, x: rows(net.layer(x))), torch.randn(6, 3)
    traced = ag.trace(net, x)
    assert "the batch size is fixed at that of the example: at other sizes %" in traced.notes[0]
    torch.testing.assert_close(ag.build(*traced)(x), net(x), rtol=0, atol=0)


def test_a_branch_at_a_size_that_its_guard_does_not_name_ends_the_range():
    graph, _ = ag.trace(ByBatch(lambda n: 7 * n % 2100 == 0), torch.randn(3, 3))
    assert graph.notes[0].startswith("the graph is valid for batch < 300;")


def test_a_part_that_forward_casts_to_what_it_is_stays():
    def body(net, x):
        net.layer = net.layer.to(torch.float32)
        return net.layer(x)

    assert not assert_faithful(Net(body), X).notes


def test_ranges_of_both_modes_are_laid_over_one_another():
    net: Any = ByBatch(lambda n: n > 8 if net.training else n < 4)
    traced = ag.trace(net, torch.randn(5, 3))
    assert dict(traced.graph.nodes[0].args) == {"min": 4, "max": 8}


@pytest.mark.sample(3)
@pytest.mark.parametrize("batch", [3, 4, 8])
def test_a_branch_on_the_parity_of_the_batch_size_fixes_it(batch):
    net, x = ByBatch(lambda n: n % 2 == 0), torch.randn(batch, 3)
    graph, state = traced = ag.trace(net, x)
    assert graph.nodes[0].shape == (batch, 3)
    assert any(n.startswith("the batch size is fixed") and "size()[0]" in n for n in traced.notes)
    torch.testing.assert_close(ag.build(graph, state)(x), net(x), rtol=0, atol=0)


@with_parts(
    lambda: {
        "conv": nn.Conv2d(4, 4, 3, padding=1),
        "norm": nn.BatchNorm2d(4, momentum=None),
    }
)
def Residual(self, x: torch.Tensor) -> torch.Tensor:
    """A block whose norm averages over all batches."""
    return x + self.norm(self.conv(x)).relu()


@pytest.mark.sample(4)
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("mode", [True, False])
def test_a_norm_without_momentum_averages_over_all_batches(train, mode):
    net: Any = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, momentum=None), Residual(), Residual(),
        nn.BatchNorm2d(4, momentum=None, track_running_stats=False), nn.Flatten(),
        nn.Linear(144, 2),
    ).train(mode)  # fmt: skip
    graph, state = ag.trace(net, IMAGE, train=train)
    built: Any = ag.build(graph, state)
    assert built.training is mode
    assert ag.trace(built, IMAGE, train=train).graph == graph == ag.parse(str(graph))
    for part in (built[1], built[2].norm, built[4]):
        assert type(part) is nn.BatchNorm2d and part.momentum is None
    for step in range(4):
        x = torch.randn(5, 3, 6, 6) + step
        for module in (built, net):
            module.train().zero_grad()
            module(x).square().mean().backward()
            for parameter in module.parameters():
                parameter.data -= 0.1 * parameter.grad
    for name, value in net.state_dict().items():
        torch.testing.assert_close(built.state_dict()[name], value, rtol=0, atol=0)
    half = ag.take(graph, 0.5, verify=True)
    small: Any = ag.build(half.graph, half.transfer.pull(ag.state_of(built)))
    assert small[2].norm.num_batches_tracked == 4 and small[2].norm.momentum is None
    merger = ag.Merger(graph, ag.state_of(built))
    merger.add(half.transfer, ag.state_of(small))
    assert merger.result()[0]["1.num_batches_tracked"] == 4


class NormWithActivation(nn.BatchNorm1d):
    """A norm that no layer of torch's computes alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).relu()


def test_a_norm_without_momentum_that_is_more_than_a_layer_is_not_trained():
    net: Any = nn.Sequential(nn.Linear(3, 4), NormWithActivation(4, momentum=None), nn.Linear(4, 2))
    with pytest.raises(ag.TraceError, match=r"1: a norm with momentum=None cannot be trained"):
        ag.trace(net, X)
    built = ag.build(*ag.trace(net, X, train=False))
    torch.testing.assert_close(built.eval()(X), net.eval()(X), rtol=0, atol=0)
    with pytest.raises(ag.GraphError, match=r"1: .*give the norm a momentum"):
        built.train()(X)
    net[1].momentum = 0.1  # the advice
    assert_faithful(net, X, batches=(2, 5))


def test_whole_numbers_for_a_layer_of_floats_are_refused():
    with pytest.raises(ag.TraceError, match=r"different dtypes; found input int64, weight float32"):
        ag.trace(nn.Linear(3, 2), torch.zeros(4, 3).long())
