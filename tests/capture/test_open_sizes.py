"""Sizes that stay open: captured by name, held to their ranges, right wherever they are used."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import archgraph as ag
from archgraph.capture.trace import Traced
from archgraph.graph.ir import BATCH
from archgraph.graph.sizes import open_sizes, other_sizes
from archgraph.rewrites.laws import random_inputs, relative_difference
from tests.nets import captured, with_parts


@with_parts(
    lambda: {
        "embed": nn.Embedding(30, 16),
        "positions": nn.Embedding(24, 16),
        "layer": nn.TransformerEncoderLayer(16, 4, 32, batch_first=True),
        "head": nn.Linear(16, 5),
        "order": torch.arange(24),
    }
)
def Tokens(self, ids: Tensor) -> Tensor:
    """A transformer layer over tokens with learned positions, of which there are 24."""
    x = self.embed(ids) + self.positions(self.order[: ids.shape[1]])
    return self.head(self.layer(x).mean(1))


@with_parts(
    lambda: {
        "stem": nn.Conv2d(3, 8, 3, 2, 1),
        "down": nn.Conv2d(8, 12, 3, 2, 1),
        "norm": nn.BatchNorm2d(8),
        "token": nn.Parameter(torch.randn(1, 1, 12)),
        "mix": nn.TransformerEncoderLayer(12, 2, 24, batch_first=True),
        "head": nn.Linear(12, 4),
    }
)
def Pixels(self, image: Tensor) -> Tensor:
    """Strided convolutions, whose maps become tokens with a class token before them."""
    x = self.down(self.norm(self.stem(image)).relu())
    x = x.flatten(2).transpose(1, 2)
    x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
    return self.head(self.mix(x)[:, 0])


@with_parts(
    lambda: {
        "embed": nn.Embedding(20, 8),
        "lstm": nn.LSTM(8, 16, 2),
        "head": nn.Linear(16, 20),
    }
)
def Words(self, ids: Tensor, state: tuple[Tensor, Tensor]) -> Any:
    """A recurrent language model, sequence first, whose state is given and returned."""
    x, state = self.lstm(self.embed(ids), state)
    return self.head(x), state


STATE = (torch.zeros(2, 3, 16), torch.zeros(2, 3, 16))
CASES: dict[str, tuple[Any, tuple[Any, ...], dict[str, dict[int, str]]]] = {
    "tokens": (Tokens, (torch.zeros(2, 11).long(),), {"ids": {1: "length"}}),
    "pixels": (Pixels, (torch.zeros(2, 3, 19, 26),), {"image": {2: "height", 3: "width"}}),
    "words": (
        Words,
        (torch.zeros(7, 3).long(), STATE),
        {"ids": {0: "length", 1: "batch"}, "state.0": {1: "batch"}, "state.1": {1: "batch"}},
    ),
}


@pytest.fixture(
    scope="module", params=[pytest.param("pixels", marks=pytest.mark.full), "tokens", "words"]
)
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, Traced]:
    make, args, axes = CASES[request.param]
    torch.manual_seed(0)
    model = make()
    return model, ag.trace(model, *args, open=axes)


def values(graph: ag.ArchGraph) -> list[dict[str, int]]:
    """Example, other and least values of the open sizes."""
    sizes = {name: size for name, size in open_sizes(graph).items() if name != "batch"}
    example = {name: size.example for name, size in sizes.items()}
    return [example, other_sizes(graph), {name: max(size.low, 1) for name, size in sizes.items()}]


def results(module: nn.Module, inputs: dict[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
    """Results and gradients of all parameters, in order."""
    module.zero_grad()
    outputs = list(torch.utils._pytree.tree_leaves(module(**inputs)))
    sum(o.square().mean() for o in outputs).backward()
    return [o.detach() for o in outputs], [
        p.grad for p in module.parameters() if p.grad is not None
    ]


def test_the_graph_is_the_model_at_several_sizes(case: tuple[nn.Module, Traced]) -> None:
    model, (graph, state) = case
    built = ag.build(graph, state).eval()
    for sizes in values(graph):
        inputs = random_inputs(graph, 4, sizes=sizes)
        pairs = zip(results(built, inputs), results(model.eval(), inputs), strict=True)
        for ours, theirs in pairs:
            assert relative_difference(ours, theirs) <= 1e-6, sizes


def test_the_graph_reads_back_and_is_saved(case: tuple[nn.Module, Traced], tmp_path: Path) -> None:
    _, traced = case
    assert ag.parse(traced.graph.text()) == traced.graph
    ag.save(traced, tmp_path / "net")
    assert ag.load(tmp_path / "net").graph == traced.graph


@pytest.mark.full
@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["tokens", "pixels"])
def test_costs_are_those_of_the_model_traced_at_the_sizes(name: str) -> None:
    make, args, axes = CASES[name]
    graph = captured(make(), *args, open=axes).graph
    for sizes in values(graph)[:2]:
        inputs = random_inputs(graph, 2, sizes=sizes)
        fixed = ag.cost(captured(make(), **inputs).graph)
        ours = ag.cost(graph, sizes)
        for measure in ("parameters", "macs", "bytes", "activations"):
            assert getattr(ours, measure) == getattr(fixed, measure), (measure, sizes)
        assert ours.polynomial.at().macs == fixed.macs
        assert ours.training(4).total == fixed.training(4).total


def test_axes_and_cuts_are_those_of_fixed_sizes(case: tuple[nn.Module, Traced]) -> None:
    model, (graph, _) = case
    axes = {
        node.name.replace("_", "."): {node.shape.index(BATCH): "batch"}
        for node in graph.nodes
        if node.op == "input"
    }
    fixed = captured(model, **random_inputs(graph, 2), open=axes).graph
    free = {axis.name: axis.size for axis in ag.axes(graph).free}
    assert free and free == {axis.name: axis.size for axis in ag.axes(fixed).free}
    cut = ag.take(graph, 0.5, verify=True)  # at the example's sizes and at others
    assert open_sizes(cut.graph) == open_sizes(graph)
    assert ag.cost(cut.graph).macs == ag.cost(ag.take(fixed, 0.5).graph).macs


def test_a_size_of_a_capture_is_the_batch_where_it_is_said() -> None:
    graph = captured(Words(), *CASES["words"][1], open=CASES["words"][2]).graph
    assert [str(n.type) for n in graph.nodes if n.op == "input"] == [
        "int64[length, batch]", "float32[2, batch, 16]", "float32[2, batch, 16]",
    ]  # fmt: skip
    inputs = random_inputs(graph, 5, sizes={"length": 1})
    assert [tuple(t.shape) for t in torch.utils._pytree.tree_leaves(inputs)] == [
        (1, 5), (2, 5, 16), (2, 5, 16),
    ]  # fmt: skip


@with_parts(lambda: {"map": nn.Linear(4, 3)})
def Longer(self, x: Tensor) -> Tensor:
    """A batch with one more example than was given."""
    return self.map(torch.cat([x, x[:1]]))


def test_a_size_may_be_a_sum() -> None:
    graph, state = captured(Longer(), torch.zeros(2, 4))
    assert str(graph.nodes[-1].type) == "float32[batch + 1, 3]"
    assert ag.build(graph, state)(torch.zeros(5, 4)).shape == (6, 3)
    assert ag.take(graph, 1.0, allow_nothing=True).graph == graph


@with_parts(
    lambda layer: {
        "layer": layer,
        "head": nn.Linear((layer.proj_size or layer.hidden_size) * (1 + layer.bidirectional), 3),
    }
)
def Sequences(self, x: Tensor) -> Tensor:
    """A recurrent layer in PyTorch's default order, and a linear map of each of its results."""
    result: Tensor = self.head(self.layer(x)[0])
    return result


RECURRENT = {
    "rnn": lambda: nn.RNN(4, 6),
    "relu": lambda: nn.RNN(4, 6, 2, "relu"),
    "gru": lambda: nn.GRU(4, 6, 2),
    "gru both ways": lambda: nn.GRU(4, 6, bidirectional=True),
    "lstm both ways": lambda: nn.LSTM(4, 6, 2, bidirectional=True),
    "lstm projected": lambda: nn.LSTM(4, 6, proj_size=3),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("layer", RECURRENT)
def test_recurrent_layers_take_sequences_first(layer: str) -> None:
    net = Sequences(RECURRENT[layer]())
    graph, state = ag.trace(net, torch.zeros(5, 3, 4), open={"x": {0: "length", 1: "batch"}})
    assert str(graph.node["x"].type) == "float32[length, batch, 4]"
    built = ag.build(graph, state)
    for length, batch in ((5, 3), (9, 2), (1, 1)):
        inputs = {"x": torch.randn(length, batch, 4)}
        for ours, theirs in zip(results(built, inputs), results(net, inputs), strict=True):
            assert relative_difference(ours, theirs) <= 1e-6
    ag.take(graph, 0.5, verify=True)


@pytest.mark.full
def test_what_is_out_of_range_or_unequal_is_refused() -> None:
    # Only a capture that is verified holds for a length of one.
    graph, state = ag.trace(Tokens(), torch.zeros(2, 11).long(), open={"ids": {1: "length"}})
    assert open_sizes(graph)["length"].range == "24 or less"
    built = ag.build(graph, state)
    with pytest.raises(ag.GraphError, match="length; found 25; expected 24 or less"):
        built(torch.zeros(2, 25).long())
    with pytest.raises(
        ag.GraphError, match="length: the graph is not valid for this size; found 25"
    ):
        ag.cost(graph, {"length": 25})
    with pytest.raises(ag.GraphError, match=r"no such open size.*did you mean 'length'"):
        ag.cost(graph, {"lenght": 5})
    net = captured(
        Add(), torch.zeros(2, 5, 4), torch.zeros(2, 5, 4), open={n: {1: "n"} for n in ("x", "y")}
    )
    with pytest.raises(ag.GraphError, match="input y: has a different n than input x; found 4"):
        ag.build(*net)(torch.zeros(1, 3, 4), torch.zeros(1, 4, 4))


@with_parts(lambda: {"scale": nn.Parameter(torch.ones(4))})
def Add(self, x: Tensor, y: Tensor) -> Tensor:
    """A sum of two inputs."""
    return x * self.scale + y


@with_parts(lambda: {"map": nn.Linear(7, 3)})
def Fixed(self, x: Tensor) -> Tensor:
    """A length that a linear map fixes."""
    return self.map(x)


@with_parts()
def Even(self, x: Tensor) -> Tensor:
    """A length that has to be even."""
    return x.view(len(x), x.shape[1] // 2, 2).sum(2)


@with_parts()
def Blocks(self, x: Tensor) -> Tensor:
    """Beside a batch of one size."""
    return x.reshape(2, -1, 2)


X = torch.zeros(2, 5, 4)


@pytest.mark.parametrize(
    ("model", "args", "axes", "message"),
    [
        (
            Fixed(),
            (torch.zeros(2, 7),),
            {"x": {1: "n"}},
            r"sizes.py:\d+: n cannot be",
        ),
        (
            Even(),
            (torch.zeros(2, 6),),
            {"x": {1: "n"}},
            "n cannot be open: forward accepts 4, 8, 10, but not",
        ),
        (
            Blocks(),
            (torch.zeros(2, 12),),
            {"x": {1: "n"}},
            "n cannot be open: forward accepts 8, 10, 14, but not every size",
        ),
        (Add(), (X, X), {"x": {1: "a"}, "y": {1: "b"}}, "a and b cannot both be open"),
        (Add(), (X, X), {"x": {1: "n"}, "y": {1: "n"}, "z": {1: "n"}}, "open: no such input"),
        (Add(), (X, X), {"x": {3: "n"}}, "open: x, axis 3: no such axis"),
        (Add(), (X, X), {"x": {1: "n", 2: "n"}}, "n has two sizes in the example; found 4"),
        (Add(), (X, X), {"x": {1: "a b"}}, "not a valid name; found 'a b'"),
        (Add(), (X, X), {"x": {1: "max"}}, "not a valid name; found 'max'"),
        (Add(), (X[:, :1], X), {"x": {1: "n"}}, "the example's n must be at least 2"),
    ],
)
def test_what_cannot_be_open_says_why(model: nn.Module, args: Any, axes: Any, message: str) -> None:
    with pytest.raises(ag.TraceError, match=message):
        ag.trace(model, *args, open=axes)


@with_parts()
def Named(self, open: Tensor, more: dict[str, list[Tensor]]) -> Tensor:
    """An input of the name that the option has, and nested ones."""
    return open + more["mask"][0]


def test_inputs_are_reached_by_position_and_path() -> None:
    axes = {"open": {1: "n"}, "more.mask.0": {1: "n"}}
    graph = captured(Named(), X, {"mask": [X]}, open=axes).graph
    assert {str(n.type) for n in graph.nodes} == {"float32[batch, n, 4]"}


SPEC = """
archgraph: 1
inputs: {ids: {shape: [length], dtype: int64}}
open: {length: {example: 16, to: 64}}
sections:
  - name: body
    steps:
      - embedding: {count: 100, width: 32}
      - positional_embedding
      - attention: {heads: 4}
      - mean: 1
"""


def test_sizes_are_open_in_yaml(tmp_path: Path) -> None:
    file = tmp_path / "net.yaml"
    file.write_text(SPEC)
    graph = ag.load(file)
    assert open_sizes(graph)["length"].range == "64 or less"
    ag.take(graph, 0.5, verify=True)
    assert ag.cost(graph, {"length": 64}).macs > ag.cost(graph).macs
    file.write_text(SPEC.replace(", to: 64", ""))
    with pytest.raises(ag.SpecError, match="needs the largest value of a size; found length"):
        ag.load(file)
    file.write_text(SPEC.replace("open: {length", "open: {long"))
    with pytest.raises(ag.SpecError, match="is not listed under open; found length"):
        ag.load(file)
    file.write_text(SPEC.replace("example: 16", "example: 65"))
    with pytest.raises(ag.SpecError, match="is out of its range; found 65; expected 1 to 64"):
        ag.load(file)


def scaled(net: Any, doubled: bool) -> Tensor:
    return net * 2.0 if doubled else net


@with_parts(lambda doubles: {"map": nn.Linear(4, 4), "doubles": doubles})
def Branch(self, x: Tensor) -> Tensor:
    """A map whose result is doubled where its sizes say so."""
    y: Tensor = self.map(x)
    return y * 2.0 if self.doubles(*x.shape[:-1]) else y


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("doubles", "shape"),
    [
        (lambda b, h, w: h == w, (2, 10, 20)),
        (lambda b, h, w: h * w % 6 == 0, (2, 5, 7)),
        (lambda b, h, w: b == h, (2, 7, 9)),
        (lambda b, h, w: b < h, (2, 7, 9)),
        (lambda b, h, w: h * w == 1, (2, 5, 6)),
        (lambda b, h, w: h % 3 == 0, (2, 1000, 5)),
        (lambda b, h, w: h // 2 == 500, (2, 600, 5)),
    ],
)
def test_a_branch_is_refused_or_outside_of_the_range(doubles: Any, shape: Any) -> None:
    net = Branch(doubles)
    try:
        graph, state = ag.trace(net, torch.zeros(*shape, 4), open={"x": {1: "h", 2: "w"}})
    except ag.TraceError:
        return
    built, sizes = ag.build(graph, state), open_sizes(graph)
    right = 0
    for h, w, b in itertools.product(
        (1, 2, 3, 7, 9, 12, 600, 1000, 1002), (1, 2, 5, 9, 12), (2, 7)
    ):
        holds = all(
            sizes[n].low <= v <= sizes[n].high for n, v in (("h", h), ("w", w), ("batch", b))
        )
        if holds:
            x = torch.randn(b, h, w, 4)
            assert torch.equal(built(x), net(x)), (b, h, w)
            right += 1
    assert right


@pytest.mark.parametrize(
    "small, large",
    [
        (lambda a, b: {"a": a, "b": b}, lambda a, b: {"b": a, "a": b}),
        (lambda a, b: {"small": a}, lambda a, b: {"large": a}),
        (lambda a, b: (a, b), lambda a, b: [a, b]),
    ],
)
def test_results_that_are_nested_otherwise_end_the_range(small: Any, large: Any) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> Any:
            a, b = self.linear(x), x * 2
            return small(a, b) if x.shape[0] < 8 else large(a, b)

    traced = ag.trace(Net().eval(), torch.randn(4, 4))
    assert "the graph is valid for batch < 8" in traced.graph.notes[0]


def test_what_is_nested_under_a_strange_key_keeps_its_range() -> None:
    @with_parts(lambda: {"map": nn.Linear(4, 4)})
    def Nested(self, x: dict[str, Tensor]) -> Tensor:
        y = x["a[0]"]
        return scaled(self.map(y), y.shape[1] > 10)

    graph = ag.trace(Nested(), {"a[0]": torch.zeros(2, 5, 4)}, open={"x.a[0]": {1: "n"}}).graph
    assert open_sizes(graph)["n"].range == "10 or less"


@with_parts(lambda: {"map": nn.Linear(4, 4)})
def Half(self, x: Tensor) -> Any:
    """Results whose sizes are differences, and a size among the results."""
    y = self.map(x)
    return y.roll(-(x.shape[1] // 2), 1), y.chunk(2, 1)[1], y.roll(-x.shape[1], 1), x.shape[1]


def test_sizes_with_a_minus_and_sizes_as_results(tmp_path: Path) -> None:
    net = Half()
    traced = captured(net, torch.zeros(2, 5, 4), open={"x": {1: "n"}})
    assert ag.parse(traced.graph.text()) == traced.graph
    ag.save(traced, tmp_path / "net")
    assert ag.load(tmp_path / "net").graph == traced.graph
    x = torch.randn(3, 9, 4)
    for ours, theirs in zip(ag.build(*traced)(x), net(x), strict=True):
        assert torch.equal(ours, theirs) if isinstance(theirs, Tensor) else ours == theirs == 9


def test_values_that_no_size_has_are_refused() -> None:
    graph = captured(Add(), X, X, open={n: {1: "n"} for n in ("x", "y")}).graph
    number: Any = np.int64(512)
    ours, theirs = (ag.cost(graph, {"n": value}) for value in (number, 512))
    assert ours.activations == theirs.activations
    for value in (0, 2.5, True, "5", None):
        with pytest.raises(ag.GraphError, match="is not valid for this size"):
            ag.cost(graph, {"n": value})  # type: ignore[dict-item]  # the mistakes that are tested
    wrong: Any
    for wrong in (
        {"x": {"1": "n"}},
        {"x": "n"},
        {"x": ["n"]},
        ["n"],
        {"x": {1: 5}},
        {"x": {1: "lambda"}},
        {"x": {1: "a", -2: "b"}},
    ):
        with pytest.raises(ag.TraceError, match="open: "):
            ag.trace(Add(), X, X, open=wrong)


@pytest.mark.parametrize("pool", [nn.MaxPool1d(3, 2), nn.MaxPool1d(2, 1, ceil_mode=True)])
def test_a_length_stays_open_below_max_pool1d(pool: nn.Module):
    """torch makes it a number on the processor."""
    graph, state = captured(pool, torch.randn(2, 3, 11), open={"input": {2: "length"}})
    for length in (8, 11, 30):
        x = torch.randn(4, 3, length)
        torch.testing.assert_close(ag.build(graph, state)(x), pool(x), rtol=0, atol=0)
