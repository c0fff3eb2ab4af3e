"""Capture: canonical form, modes, signatures, and clear refusals."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.graph.ir import TRAINING, Leaf, Mode, Record
from archgraph.graph.passes import specialise
from tests.nets import tied_head, with_parts


class Pair(NamedTuple):
    main: torch.Tensor
    aux: torch.Tensor


def ops(graph):
    return [n.op for n in graph.nodes if n.op != "input"]


@with_parts(lambda: {"user": nn.Linear(3, 4), "item": nn.Linear(5, 4)})
def Tower(self, user, extra):
    """Two inputs, one of them nested; a dict of outputs."""
    a, b = self.user(user), self.item(extra["item"])
    return {"score": (a * b).sum(-1), "towers": (a, b)}


def test_inputs_and_outputs_keep_names_and_nesting():
    net = Tower()
    x, y = torch.randn(2, 3), torch.randn(2, 5)
    graph, state = ag.trace(net, x, extra={"item": y})
    assert [k for k, _ in graph.inputs] == ["user", "extra"]
    assert isinstance(graph.outputs, Record) and graph.outputs.fields[0][0] == "score"
    found, expected = ag.build(graph, state)(x, extra={"item": y}), net(x, {"item": y})
    torch.testing.assert_close(found["score"], expected["score"], rtol=0, atol=0)
    torch.testing.assert_close(found.towers[1], expected["towers"][1], rtol=0, atol=0)


def test_tied_weights_have_one_owner_and_two_names():
    net, tokens = tied_head(), torch.randint(0, 7, (2, 4))
    graph, state = ag.trace(net, tokens)
    assert list(state) == ["embed.weight"]
    assert graph.param["embed.weight"].aliases == ("head.weight",)
    built = ag.build(graph, state)
    tied = dict(built.named_parameters(remove_duplicate=False))
    assert tied["head.weight"] is tied["embed.weight"]
    built.load_state_dict(net.state_dict(), strict=True)
    torch.testing.assert_close(built(tokens), net(tokens), rtol=0, atol=0)


@with_parts(
    lambda: {
        "body": nn.Linear(3, 4),
        "main": nn.Linear(4, 2),
        "aux": nn.Linear(4, 2),
    }
)
def Auxiliary(self, x):
    x = self.body(x).relu()
    return Pair(self.main(x), self.aux(x)) if self.training else self.main(x)


def test_training_may_return_more():
    net = Auxiliary()
    graph, state = ag.trace(net, torch.randn(2, 3))
    assert isinstance(graph.outputs, Mode)
    built, x = ag.build(graph, state), torch.randn(3, 3)
    assert type(built.train()(x)).__name__ == "Pair"
    torch.testing.assert_close(built(x).aux, net.train()(x).aux, rtol=0, atol=0)
    torch.testing.assert_close(built.eval()(x), net.eval()(x), rtol=0, atol=0)
    assert len(specialise(graph, training=False).nodes) < len(graph.nodes)


def test_flags_follow_the_mode():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    for train in (True, False):
        graph = ag.trace(net, torch.randn(2, 3), train=train).graph
        assert next(n for n in graph.nodes if "batch_norm" in n.op).arg("training") == TRAINING
        assert next(n for n in graph.nodes if "dropout" in n.op).arg("train") == TRAINING


@with_parts()
def Attend(self, q):
    p = 0.25 if self.training else 0.0
    return nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=p)


def test_numbers_that_differ_between_modes_follow_them():
    node = ag.trace(Attend(), torch.randn(2, 4, 8)).graph.nodes[-1]
    assert node.arg("dropout_p") == Mode(0.25, 0.0)
    assert node.arg("scale") == 1 / math.sqrt(8)


@with_parts()
def Mask(self, x):
    """Builds a constant by writing through views: nothing of it depends on the input."""
    mask = x.new_zeros(3, 3)
    mask[1:, :2] = 5.0
    return x @ mask


def test_constants_fold_with_writes_through_their_views():
    graph, state = ag.trace(Mask(), torch.randn(2, 3))
    assert ops(graph) == ["aten.matmul"]
    x = torch.randn(4, 3)
    torch.testing.assert_close(ag.build(graph, state)(x), Mask()(x), rtol=0, atol=0)


@with_parts(lambda: {name: nn.Linear(3, 3) for name in ("a", "b", "spare")})
def Frozen(self, x):
    with torch.no_grad():
        y = self.a(x)
    return self.b(y) + self.b(x.detach())


def test_frozen_unused_and_detached_parts_stay_so():
    net = Frozen()
    net.a.requires_grad_(False)
    graph, state = ag.trace(net, torch.randn(2, 3))
    built, x = ag.build(graph, state), torch.randn(4, 3, requires_grad=True)
    built.load_state_dict(net.state_dict(), strict=True)
    built(x).sum().backward()
    assert x.grad is None or not x.grad.any()
    assert [n for n, p in built.named_parameters() if not p.requires_grad] == ["a.weight", "a.bias"]
    assert Leaf("spare.weight").name in graph.param


class ReadOnly(OrderedDict[str, object]):
    """As libraries keep the configuration of a model."""

    def update(self, *args, **kwargs):
        raise TypeError("read-only")

    def clear(self):
        raise TypeError("read-only")


@with_parts(
    lambda: {
        "layer": nn.Linear(3, 4),
        "config": ReadOnly(a=1, b=torch.ones(2)),
        "cache": [torch.ones(2)],
        "table": {"a": 1},
    }
)
def Configured(self, x):
    y = self.layer(x)
    self.cache.append(y.detach())
    self.table["y"] = y.detach()
    return y


def test_containers_of_a_model_are_as_before_also_those_that_are_read_only():
    net = Configured()
    config, first = dict(net.config), net.cache[0]
    ag.trace(net, torch.randn(2, 3))
    assert net.config.keys() == config.keys() and net.config["b"] is config["b"]
    assert len(net.cache) == 1 and net.cache[0] is first
    assert net.table == {"a": 1}


def test_not_a_module():
    with pytest.raises(ag.TraceError, match=r"not a torch\.nn\.Module; found function"):
        ag.trace(lambda x: x, torch.zeros(1))  # type: ignore[arg-type]  # the fault under test


def test_inputs_that_forward_does_not_take_are_named():
    with pytest.raises(ag.TraceError, match=r"do not fit forward.*expected forward\(input"):
        ag.trace(nn.Linear(3, 3), wrong=torch.randn(2, 3))


@with_parts(lambda: {"b": torch.ones(3)})
def Copies(self, x):
    """Writes in place to copies; the originals are used afterwards."""
    t = x * 2
    y = t.clone()
    y += 1
    z = t.transpose(0, 1).contiguous()
    z.mul_(3)
    old = self.b.clone()
    self.b.mul_(0.5)
    return t * y + z.sum() + old + self.b


def test_writing_to_a_copy_leaves_the_original():
    net, x = Copies(), torch.randn(4, 3)
    graph, state = ag.trace(net, x)
    built = ag.build(graph, state)
    torch.testing.assert_close(built(x), net(x), rtol=1e-6, atol=1e-5)  # sums in another order
    torch.testing.assert_close(built(x), net(x), rtol=1e-6, atol=1e-5)
    assert torch.equal(built.state_dict()["b"], net.state_dict()["b"])


def test_any_argument_name_will_do():
    @with_parts(lambda: {"drop": nn.Dropout(0.5)})
    def Net(self, n2, train, evaluate):
        return self.drop(n2 + train) * evaluate

    x = [torch.randn(2, 3) for _ in range(3)]
    graph, state = ag.trace(Net(), *x)
    built, net = ag.build(graph, state).eval(), Net().eval()
    torch.testing.assert_close(built(*x), net(*x), rtol=0, atol=0)
    assert ag.trace(built, *x).graph == graph


def test_one_tensor_given_twice_is_two_inputs():
    @with_parts()
    def Net(self, a, b):
        return a - 2 * b

    x = torch.randn(2, 3)
    graph, state = ag.trace(Net(), x, x)
    y = torch.randn(2, 3)
    torch.testing.assert_close(ag.build(graph, state)(x, y), x - 2 * y, rtol=0, atol=0)


def test_in_place_dropout():
    net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5, inplace=True))
    graph, state = ag.trace(net, torch.randn(2, 3))
    x = torch.randn(4, 3)
    torch.testing.assert_close(ag.build(graph, state).eval()(x), net.eval()(x), rtol=0, atol=0)


def test_a_norm_that_no_output_depends_on_is_noted():
    @with_parts(lambda: {"body": nn.Linear(3, 4), "aux": nn.BatchNorm1d(4)})
    def Net(self, x):
        hidden = self.body(x)
        self.aux(hidden)
        return hidden

    graph, _ = ag.trace(Net(), torch.randn(2, 3))
    assert graph.notes == (
        "aux: no output depends on this norm: aux.running_mean and aux.running_var change in the "
        "model's train mode, but not in the graph",
    )


def test_inputs_in_a_tuple():
    with pytest.raises(
        ag.TraceError, match=r"one by one, ag\.trace\(model, x, y\), not in a tuple$"
    ):
        ag.trace(nn.Linear(3, 2), (torch.randn(2, 3),))
    with pytest.raises(ag.TraceError, match=r"Bilinear: .* do not fit forward.*one by one"):
        ag.trace(nn.Bilinear(3, 3, 2), [torch.randn(2, 3), torch.randn(2, 3)])
    graph, _ = ag.trace(nn.Identity(), (torch.randn(2, 3),))  # whose forward does take one
    assert len(graph.inputs) == 1


class Elsewhere(nn.Module):
    """Layers and weights that PyTorch does not register, beside some that it does."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [nn.Linear(6, 6)]
        self.more: dict[str, Any] = {
            "a": ((nn.Linear(6, 6, bias=False),), nn.Parameter(torch.ones(6)))
        }
        self.unused, self.mask = [nn.Linear(6, 6)], [torch.ones(6)]
        self.o = nn.Linear(6, 6)
        self.again: list[Any] = [self.o, self.o.weight]
        self.inner = nn.Sequential(nn.ReLU())
        self.inner.__dict__["own"] = nn.Linear(6, 6, bias=False)

    def forward(self, x):
        x = self.again[0](self.hidden[0](x)) * self.mask[0]
        (layer,), scale = self.more["a"]
        return self.inner(self.inner.__dict__["own"](layer(x) * scale))


def test_weights_that_are_not_registered_are_noted_by_their_place():
    graph, state = ag.trace(Elsewhere(), torch.randn(3, 6))
    assert set(state) == {"o.weight", "o.bias"}
    (note,) = graph.notes
    names = note.partition(":")[0]
    assert names == (
        "inner.own.weight, hidden[0].weight, hidden[0].bias, more['a'][0][0].weight and 1 more"
    )
    assert "not trained" in note and "nn.ModuleList" in note
    assert ag.trace(nn.Linear(6, 3), torch.randn(3, 6)).graph.notes == ()
