"""Axes of small networks: closed forms, reasons, names."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import archgraph as ag
from archgraph.layout.layouts import Prod, Sum
from tests.nets import captured, with_parts


def solved(net, *inputs):
    return ag.axes(captured(net, *inputs, train=False).graph)


IMAGE = torch.randn(2, 4, 6, 6)


def test_a_chain_has_one_axis_per_hidden_layer():
    found = solved(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(2, 3))
    assert [(a.name, a.size) for a in found.free] == [("0.out", 8)]
    assert found["2.out"].reason == "dimension 1 of the model's output"
    assert "not a channel axis (aten.linear %linear in 0" in found["0.in"].reason


def test_reasons_name_the_users_line():
    @with_parts(
        lambda: {
            "w": nn.Parameter(torch.randn(4, 6)),
            "v": nn.Parameter(torch.randn(6, 2)),
        }
    )
    def Net(self, x):
        return (x @ self.w).flip(-1) @ self.v

    reason = solved(Net(), torch.randn(2, 4))["w.1"].reason
    assert "order of its positions matters" in reason
    assert "test_axes.py:" in reason


def test_axes_of_one_owner_and_side_have_ordinals():
    """Weights that are computed are named after their user: here two layers in one module."""

    @with_parts(
        lambda: {
            "a": nn.Parameter(torch.randn(8, 6)),
            "b": nn.Parameter(torch.randn(4, 8)),
        }
    )
    def Pair(self, x):
        x = nn.functional.linear(x, self.a.tanh())
        return nn.functional.linear(x.relu(), self.b.tanh())

    found = solved(nn.Sequential(Pair(), nn.Linear(4, 2)), torch.randn(2, 6))
    assert [(a.name, a.size) for a in found.free] == [("0.out", 8), ("0.out~2", 4)]


def test_residual_streams_share_one_axis():
    @with_parts(
        lambda: {
            "stem": nn.Conv2d(4, 8, 1),
            "a": nn.Conv2d(8, 8, 1),
            "head": nn.Conv2d(8, 3, 1),
        }
    )
    def Net(self, x):
        x = self.stem(x)
        return self.head(x + self.a(x))

    found = solved(Net(), IMAGE)
    assert [(a.name, a.size) for a in found.free] == [("stem.out", 8)]
    assert found.of("a.weight")[0] == found.of("a.weight")[1] == found.of("stem.weight")[0]


def test_grouped_convolutions_cut_groups_and_their_insides():
    net = nn.Sequential(nn.Conv2d(4, 8, 1), nn.Conv2d(8, 12, 3, groups=4), nn.Conv2d(12, 2, 1))
    found = solved(net, IMAGE)
    assert [(a.size) for a in found.free] == [4, 2, 3]
    assert isinstance(found.of("1.weight")[0], Prod)


def test_concatenation_is_a_sum_with_its_parts():
    @with_parts(
        lambda: {
            "a": nn.Conv2d(4, 3, 1),
            "b": nn.Conv2d(4, 5, 1),
            "head": nn.Conv2d(8, 2, 1),
        }
    )
    def Net(self, x):
        return self.head(torch.cat([self.a(x), self.b(x)], 1))

    layout = solved(Net(), IMAGE).of("head.weight")[1]
    assert isinstance(layout, Sum) and str(layout) == "a.out[3] + b.out[5]"


def test_flattening_multiplies_by_the_pixels():
    net = nn.Sequential(nn.Conv2d(4, 5, 1), nn.Flatten(), nn.Linear(180, 2))
    assert str(solved(net, IMAGE).of("2.weight")[1]) == "0.out[5] × 36"


def test_attention_axes_have_roles():
    @with_parts(
        lambda: {
            **{name: nn.Linear(6, 8) for name in "qkv"},
            "o": nn.Linear(8, 6),
        }
    )
    def Net(self, x):
        b, n, _ = x.shape
        q, k, v = (m(x).view(b, n, 2, 4).transpose(1, 2) for m in (self.q, self.k, self.v))
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.o(y.transpose(1, 2).reshape(b, n, 8))

    graph = captured(Net(), torch.randn(2, 5, 6), train=False).graph
    found = ag.axes(graph)
    assert [(a.name, a.role) for a in found.free] == [
        ("q.heads", "heads"),
        ("q.head_dim", "head_dim"),
        ("v.value_dim", "value_dim"),
    ]
    small = ag.take(graph, sizes={"head_dim": 2}).graph
    node = next(n for n in small.nodes if "attention" in n.op)
    assert node.arg("scale") == 0.5  # the wide network's 1/√4: its function, not the narrow one's
    assert small.param["o.weight"].shape == (6, 8) and small.param["q.weight"].shape == (4, 6)


def test_norms_over_an_axis_are_reported_and_leave_it_free():
    net = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    (axis,) = solved(net, torch.randn(2, 3)).free
    assert axis.spans == ("layer norm in 1",)


def test_an_operator_without_a_row_pins_and_reports():
    @with_parts(lambda: {"a": nn.Linear(4, 4), "b": nn.Linear(4, 2)})
    def Net(self, x):
        return self.b(torch.linalg.matrix_exp(self.a(x)))

    found = solved(Net(), torch.randn(2, 4, 4))
    assert not found.free
    assert any("no rule for this operator" in a.reason for a in found.pinned)


def test_patterns_roles_and_prefixes_find_axes():
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))
    found = solved(net, torch.randn(2, 3))
    assert [a.name for a in found.match("0")] == ["0.out"]
    assert [a.name for a in found.match("*.out")] == ["0.out", "2.out"]
    assert len(found.match("channels")) == 2
    with pytest.raises(ag.AxisError, match=r"cannot be cut"):
        found.match("4.out")
    with pytest.raises(
        ag.AxisError,
        match=r"no such axis; found '2\.uot'; expected one of .*2\.out.*; did you mean '2\.out'",
    ):
        found.match("2.uot")
    with pytest.raises(ag.AxisError) as error:
        found.match("5.out")
    assert error.value.expected == "one of 0.out, 2.out"  # what can be cut
    assert error.value.hint == "did you mean '4.out'?"  # whose error says why it cannot


@pytest.fixture(scope="module")
def perceptron() -> ag.ArchGraph:
    net = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 2))
    return captured(net, torch.randn(2, 3), train=False).graph


@given(percent=st.integers(1, 100), blank=st.sampled_from(["", " "]))
def test_a_percentage_is_the_share_of_its_digits(perceptron, percent: int, blank: str):
    graph = perceptron
    text, share = f"{percent}{blank}%", percent / 100
    assert ag.take(graph, text, allow_nothing=True) == ag.take(graph, share, allow_nothing=True)
    assert ag.take(graph, {"*": text}, allow_nothing=True).graph.digest == (
        ag.take(graph, {"*": share}, allow_nothing=True).graph.digest
    )


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"sizes": 0}, "size out of range; found 0; expected a whole number from 1 to 8"),
        ({"sizes": 9}, "size out of range; found 9; expected a whole number from 1 to 8"),
        ({"sizes": 2.0}, r"size out of range; found 2\.0"),
        ({"sizes": True}, "size out of range; found True"),
        ({"shares": 0}, "not a share; found 0; expected a number in"),
        ({"shares": 0.0}, r"not a share; found 0\.0; expected a number in"),
        ({"shares": 1.5}, r"not a share; found 1\.5; .*sizes="),
        ({"shares": 2}, "not a share; found 2; .*sizes="),
        ({"shares": [0, 1]}, "not a share; .*positions="),
        ({"positions": []}, "not empty"),
        ({"positions": [1, 1]}, "distinct"),
        ({"positions": [8]}, "outside the axis; found 8, of 0 to 7"),
        ({"positions": [-1]}, "outside the axis; found -1"),
        ({"positions": 3}, "must be a list of whole numbers"),
    ],
)
def test_impossible_choices_are_refused(choice, message, perceptron):
    with pytest.raises(ag.RewriteError, match=message):
        words: dict[str, Any] = {word: {"0.out": value} for word, value in choice.items()}
        ag.take(perceptron, **words)


def test_a_choice_does_not_depend_on_how_a_number_is_typed():
    net = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 2))
    graph = captured(net, torch.randn(2, 3), train=False).graph
    forms: list[Any] = [1, 1.0, np.float32(1), {"*": 1}, {"0.out": 1.0}]
    for everything in forms:
        assert ag.take(graph, everything).graph == graph
        assert ag.widen(graph, everything).graph == graph
        assert ag.narrow(graph, everything).graph == graph
    one = ag.take(graph, sizes={"*": 1}).graph
    assert one.param["0.weight"].shape == (1, 3)
    numpys: Any = np.int64(1)
    assert one == ag.take(graph, sizes={"*": numpys}).graph
    assert one == ag.take(graph, positions={"0.out": [0]}).graph
    both = ag.take(graph, 0.5, sizes={"0.out": 3}, positions={"0.out": range(2)})
    assert both.graph.param["0.weight"].shape == (2, 3)  # positions win over sizes over shares


def test_shares_round_up_and_rolled_windows_keep_their_order():
    net = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    graph, state = captured(net, torch.randn(2, 3), train=False)
    assert ag.take(graph, 0.5).graph.param["0.weight"].shape == (3, 3)
    assert ag.take(graph, 0.5, rounding="floor").graph.param["0.weight"].shape == (2, 3)
    rolled = ag.take(graph, positions={"0.out": [4, 0, 1]})
    expected = state["0.weight"][[4, 0, 1]]
    assert torch.equal(rolled.transfer.pull(state)["0.weight"], expected)


def test_constants_on_an_axis_are_cut_with_it():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)
            self.register_buffer("scale", torch.arange(4.0), persistent=False)

        def forward(self, x):
            return self.b(self.a(x) * self.scale)

    graph = captured(Net(), torch.randn(2, 3), train=False).graph
    small = ag.take(graph, positions={"a.out": [1, 3]}, verify=True).graph
    value = small.param["scale"].value
    assert value is not None
    assert np.frombuffer(value.data, dtype=np.float32).tolist() == [1.0, 3.0]


@with_parts(lambda then: {"a": nn.Linear(3, 8), "b": nn.Linear(8, 2), "then": then})
def Noisy(self, x):
    t = self.a(x)
    t = t + torch.randn_like(t) if self.training else t
    return self.b(self.then(t))


@pytest.mark.parametrize(
    "then",
    [
        lambda t: t.softmax(-1),
        lambda t: torch.cat([t, t], 0),
        lambda t: torch.stack([t, t]).sum(0),
        lambda t: t.reshape(-1, 2, 4).flatten(1),
        lambda t: torch.max(t, t * 2),
    ],
)
def test_axes_see_through_training_only_branches(then):
    graph = captured(Noisy(then), torch.randn(2, 3)).graph
    small = ag.take(graph, 0.5)
    assert ag.build(small.graph)(torch.randn(2, 3)) is not None


def test_reflected_padding_keeps_its_axis():
    @with_parts(lambda: {"a": nn.Linear(3, 8), "b": nn.Linear(10, 2)})
    def Net(self, x):
        return self.b(nn.functional.pad(self.a(x), (1, 1), mode="reflect"))

    assert not solved(Net(), torch.randn(2, 4, 3)).free


def test_a_share_in_single_precision_is_the_decimal_that_it_prints():
    net = nn.Sequential(nn.Linear(3, 10), nn.ReLU(), nn.Linear(10, 2))
    graph = captured(net, torch.zeros(1, 3)).graph
    assert ag.take(graph, cast(float, np.float32(0.3))).graph == ag.take(graph, 0.3).graph
    assert ag.widen(graph, cast(float, np.float32(1.1))).graph == ag.widen(graph, 1.1).graph
