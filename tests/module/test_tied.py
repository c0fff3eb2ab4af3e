"""Tied weights go home: what archgraph returns loads into the model that it was traced from."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import archgraph as ag
from tests.nets import captured
from tests.zoo.collection import entry


class Tied(nn.Module):
    """Two layers with one weight, and an embedding that is the classifier's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 7)
        self.second.weight, self.head.weight = self.first.weight, self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.first(self.embedding(ids)).relu()))


def _tied() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    torch.manual_seed(0)
    return Tied(), (torch.randint(0, 7, (2, 3)),), {}


def _foreign(name: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    made = entry(f"transformers/{name}").make()
    return made.model, made.args, made.kwargs


MAKERS = {"handmade": _tied, "gpt2": lambda: _foreign("gpt2"), "t5": lambda: _foreign("t5")}


@pytest.mark.parametrize("name", ["handmade", "gpt2", pytest.param("t5", marks=pytest.mark.full)])
def test_a_state_goes_home_after_training(name):
    net, args, kwargs = MAKERS[name]()
    graph, state = captured(net.eval(), *args, **kwargs, train=False)
    keys = net.state_dict().keys()
    assert keys - state.keys() and ag.state_dict(graph, state).keys() == keys
    built = ag.build(graph, state).eval()
    optimiser = torch.optim.SGD(built.parameters(), 0.1)
    results = built(*args, **kwargs)
    (results if isinstance(results, torch.Tensor) else results["logits"]).square().mean().backward()
    optimiser.step()
    for trained in (ag.state_dict(graph, ag.state_of(built)), built.state_dict()):
        net.load_state_dict(trained)
        found, expected = net(*args, **kwargs), built(*args, **kwargs)
        if not isinstance(found, torch.Tensor):
            found, expected = found["logits"], expected["logits"]
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_state_that_does_not_fit_is_refused():
    net, args, _ = _tied()
    graph, state = captured(net, *args)
    with pytest.raises(ag.GraphError, match=r"embedding\.weight: the state lacks this tensor"):
        ag.state_dict(graph, {k: v for k, v in state.items() if k != "embedding.weight"})
    with pytest.raises(ag.GraphError, match=r"first\.bias.*found \(3,\); expected \(4,\)"):
        ag.state_dict(graph, {**state, "first.bias": torch.zeros(3)})


def test_tied_tensors_of_different_values_are_refused():
    """Either could be meant; a state with equal ones under all names is as good as one without."""
    net, args, _ = _tied()
    graph, state = captured(net, *args)
    full = {name: value.clone() for name, value in net.state_dict().items()}
    full["first.weight"][0, 0] = full["second.weight"][0, 0] = torch.nan
    other = full | {"head.weight": torch.zeros(7, 4)}
    message = r"head\.weight: differs from embedding"
    built = ag.build(graph, full)
    for use in (ag.build, ag.state_dict, lambda _, state: ag.load_state(built, state)):
        use(graph, full)
        with pytest.raises(ag.GraphError, match=message):
            use(graph, other)
    assert ag.build(graph, state)


class Scaled(nn.Module):
    """A weight with three names, and a buffer with two."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4, bias=False) for _ in range(3))
        self.b.weight = self.c.weight = self.a.weight
        scale = torch.arange(4.0) + 1
        self.register_buffer("scale", scale)
        self.c.register_buffer("scale", scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.b(self.a(x) * self.scale)) * self.c.scale


def _assigned(net: nn.Module, name: str, value: torch.Tensor) -> None:
    others = {key: tensor.clone() for key, tensor in net.state_dict().items()}
    net.load_state_dict({**others, name: value}, assign=True)


def _new_parameter(net: nn.Module, name: str, value: torch.Tensor) -> None:
    path, _, last = name.rpartition(".")
    kind = (
        nn.Parameter
        if isinstance(getattr(net.get_submodule(path), last), nn.Parameter)
        else nn.Buffer
    )
    setattr(net.get_submodule(path), last, kind(value))


def _new_layer(net: nn.Module, name: str, value: torch.Tensor) -> None:
    path = name.rpartition(".")[0]
    layer = copy.deepcopy(net.get_submodule(path))
    with torch.no_grad():
        layer.get_parameter("weight").copy_(value)
    net.set_submodule(path, layer)


UNTIED = [
    (untie, name, others)
    for untie, names in (
        (_assigned, ("b.weight", "c.weight", "a.weight", "c.scale")),
        (_new_parameter, ("b.weight", "c.weight", "c.scale")),
        (_new_layer, ("b.weight", "c.weight")),
    )
    for name in names
    for others in ["scale" if "scale" in name else "weight"]
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("untie", "name", "kind"), UNTIED)
def test_a_tied_tensor_that_was_untied_is_refused_by_both_names(untie, name, kind, tmp_path):
    """Else one of the two tensors is lost, silently; equal values under both names lose nothing."""
    x = torch.randn(2, 4)
    graph, state = captured(Scaled(), x)
    net = ag.build(graph, state)
    old = net.state_dict()[name].clone()
    untie(net, name, old.clone())  # equal values
    assert torch.equal(ag.state_of(net)[f"a.{kind}" if kind == "weight" else kind], old)
    ag.load_state(net, {key: 2 * value for key, value in state.items()})
    torch.testing.assert_close(ag.build(graph, ag.state_of(net))(x), net(x))
    untie(net, name, torch.randn(old.shape))
    for use in (ag.state_of, lambda module: ag.save(module, tmp_path / "model")):
        with pytest.raises(ag.GraphError, match=rf"{kind}: differs from .*{kind}: .* tied"):
            use(net)
    assert not (tmp_path / "model").exists()
    again, kept = captured(net, x)  # the first way out: a tensor for each
    torch.testing.assert_close(ag.build(again, kept)(x), net(x))
    path, _, last = name.rpartition(".")
    other = net.get_parameter("a.weight") if kind == "weight" else net.get_buffer("scale")
    target = net.get_submodule(path)
    if target is not net.a:  # the second: one tensor for both
        setattr(target, last, other)
        torch.testing.assert_close(ag.build(graph, ag.state_of(net))(x), net(x))


def test_a_tied_layer_that_was_replaced_by_another_kind_is_refused():
    graph, state = captured(Scaled(), torch.randn(2, 4))
    net = ag.build(graph, state)
    net.b = nn.Identity()
    with pytest.raises(ag.GraphError, match=r"b\.weight: the module no longer has this tensor"):
        ag.state_of(net)
