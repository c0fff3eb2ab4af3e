"""Every advice of a refusal works: the module that follows it is traced, and equals its graph."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops import while_loop
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

import archgraph as ag
from tests.capture.faithful import tensors

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
STEPS = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Two layers and a forward to be written in one line; ``prepare`` is run once."""

    def __init__(self, body: Callable[..., Any], prepare: Callable[[Any], Any]) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 4), nn.Linear(4, 2)
        self.body = (body,)
        prepare(self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.body[0](self, *args, **kwargs)


@dataclass(frozen=True)
class Advice:
    """What is refused, in which words, and what follows the advice; both get the same inputs.

    Attributes:
        refused: Forward that is refused, of the module and inputs.
        words: What the refusal says.
        followed: Forward that follows the advice.
        prepare: Run on the module that is refused.
        prepared: Run on the module that follows the advice.
        inputs: Of both.
        instead: Of the module that follows the advice, if they differ.
        options: Of the trace that is refused.
        followed_options: Of the trace of the module that follows the advice.
    """

    refused: Callable[..., Any]
    words: str
    followed: Callable[..., Any]
    prepare: Callable[[Any], Any] = lambda net: None
    prepared: Callable[[Any], Any] = lambda net: None
    inputs: tuple[Any, ...] = (X,)
    instead: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    followed_options: dict[str, Any] = field(default_factory=dict)


def plain(net: Any, x: torch.Tensor) -> Any:
    return net.b(net.a(x))


def branching(net: Any, x: torch.Tensor) -> Any:
    return plain(net, x) if x.sum() > 0 else plain(net, -x)


def normal(net: Any, x: torch.Tensor, **options: Any) -> Any:
    hidden = net.a(x)
    return net.b(torch.distributions.Normal(hidden, torch.ones(4), **options).rsample())


def flat(net: Any, x: torch.Tensor) -> Any:
    return net.b(net.a(x).reshape(4, 20)[:, :4])


def packed(net: Any, x: torch.Tensor) -> Any:
    sequence = pack_padded_sequence(x, torch.tensor([5, 4, 3, 2]), batch_first=True)
    return net.b(pad_packed_sequence(net.rnn(sequence)[0], batch_first=True)[0])


def padded(net: Any, x: torch.Tensor) -> Any:
    mask = torch.arange(5) < torch.tensor([5, 4, 3, 2])[:, None]
    return net.b(torch.where(mask[..., None], net.rnn(x)[0], 0))


def recurrent(net: Any) -> None:
    net.rnn = nn.GRU(6, 4, batch_first=True)


class Straight(torch.autograd.Function):
    """Rounds, with the gradient of the identity."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0]


def straight(net: Any, x: torch.Tensor) -> Any:
    y = net.a(x)
    return net.b(y + (y.round() - y).detach())


def counted(net: Any, x: torch.Tensor) -> Any:
    net.calls = net.calls + 1
    return plain(net, x) * net.calls


def norm(net: Any) -> None:
    net.n = nn.BatchNorm1d(4)


def counter(net: Any) -> None:
    net.register_buffer("calls", torch.tensor(0.0))


def lengths(net: Any, x: torch.Tensor) -> Any:
    return net.b(net.a(x[:, :5]).sum(1))


def encoder(net: Any) -> None:
    layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True, dropout=0.0)
    net.e = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


def halves(net: Any, x: torch.Tensor) -> Any:
    first, second = net.a(x).split(2, 1)
    first += second
    return net.b(torch.cat([first, second], 1))


def each(net: Any, x: torch.Tensor) -> Any:
    return torch.vmap(lambda row: plain(net, row))(x)


class Flagged(nn.Module):
    """Another type of state."""

    def get_extra_state(self) -> Any:
        return {"flag": 1}

    def set_extra_state(self, state: Any) -> None:
        pass


def hooked(net: Any) -> None:
    net.a.register_full_backward_hook(lambda module, given, result: None)


def shared_memory(net: Any) -> None:
    net.part = nn.Parameter(net.a.weight.detach()[:2])


def parameter_view(net: Any) -> None:
    net.twice = (net.a.weight * 2,)


class Own:
    """A type that torch does not know."""


@torch.library.custom_op("advice::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


twice.register_fake(torch.empty_like)
twice.register_autograd(lambda ctx, grad: grad * 2)


def _step(i: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return i + 1, y * 2


def gradient_doubled(net: Any, x: torch.Tensor) -> Any:
    hidden = net.a(x)
    hidden.register_hook(lambda gradient: gradient * 2)
    return net.b(hidden)


def written(net: Any, x: torch.Tensor) -> Any:
    hidden = net.a(x)
    hidden.as_strided((4, 1), (4, 1)).add_(1)
    return net.b(hidden)


def longer(net: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    return plain(net, x[:, :3]) * (1 if x.shape[1] > y.shape[1] else 2)


MASK = torch.zeros(5, 5).masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)

ADVICE: dict[str, Advice] = {
    "branch": Advice(
        branching, "torch.where",
        lambda net, x: torch.where(x.sum() > 0, plain(net, x), plain(net, -x)),
    ),
    "branch by a number": Advice(
        lambda net, x, n: plain(net, x) if n > 0 else plain(net, -x), "pass the value as an",
        lambda net, x, n: plain(net, x) if n > 0 else plain(net, -x),
        inputs=(X, torch.tensor(1.0)), instead=(X, 1.0),
    ),
    "causal mask": Advice(
        lambda net, x, m: plain(net, net.e(x, mask=m)), "pass is_causal",
        lambda net, x, m: plain(net, net.e(x, mask=m, is_causal=True)),
        encoder, encoder, (STEPS, MASK),
    ),
    "distribution": Advice(
        normal, "validate_args=False", lambda net, x: normal(net, x, validate_args=False),
    ),
    "packed sequence": Advice(
        packed, "pass the padded sequence to the layer", padded, recurrent, recurrent, (STEPS,),
    ),
    "numpy": Advice(
        lambda net, x: plain(net, x) * torch.from_numpy(x.detach().numpy()).sum(),
        "use torch functions instead",
        lambda net, x: plain(net, x) * x.sum(),
    ),
    "item": Advice(
        lambda net, x: plain(net, x) * x.sum().item(), "avoid .item",
        lambda net, x: plain(net, x) * x.sum(),
    ),
    "size by values": Advice(
        lambda net, x: plain(net, x)[x[:, 0] > 0].sum(0), "keep the shape and mask instead",
        lambda net, x: torch.where(x[:, :1] > 0, plain(net, x), 0).sum(0),
    ),
    "device": Advice(
        lambda net, x: plain(net, x + torch.ones(6, device="meta")), "device=x.device",
        lambda net, x: plain(net, x + torch.ones(6, device=x.device)),
    ),
    "operator that export does not take": Advice(
        lambda net, x: plain(net, x) + torch.histogram(x.detach(), 1)[0],
        r"forward accepts these inputs, but .* support aten\.histogram\.bin_ct: .* other operators",
        lambda net, x: plain(net, x) + x.numel(),
    ),
    "line that export does not take": Advice(
        lambda net, x: plain(net, x) * (x.data_ptr() > 0),
        "forward accepts these inputs, but torch.export does not support this line", plain,
    ),
    "type that torch does not know": Advice(
        lambda net, x: (plain(net, x), Own()), "use tensors, tuples, dicts", plain,
    ),
    "operator outside of ATen": Advice(
        lambda net, x: plain(net, twice(x)), "write it with torch functions",
        lambda net, x: plain(net, x * 2),
    ),
    "loop": Advice(
        lambda net, x: while_loop(lambda i, y: i < 3, _step, (torch.tensor(0), plain(net, x)))[1],
        "unroll it", lambda net, x: plain(net, x) * 8,
    ),
    "hook in forward": Advice(
        gradient_doubled, "remove the code that changes gradients in forward", plain,
    ),
    "checkpoint that loses gradients": Advice(
        lambda net, x: net.b(checkpoint(net.a, x, use_reentrant=True)), "use_reentrant=False",
        lambda net, x: net.b(checkpoint(net.a, x, use_reentrant=False)),
    ),
    "time": Advice(
        lambda net, x, t: plain(net, x) * (1 + time.time() % 1), "pass changing values as inputs",
        lambda net, x, t: plain(net, x) * t, inputs=(X, torch.tensor(0.5)),
    ),
    "write to a view": Advice(
        written, "instead of x \\+= y on the view",
        lambda net, x: net.b(torch.cat([net.a(x)[:, :1] + 1, net.a(x)[:, 1:]], 1)),
    ),
    "two sizes that are compared": Advice(
        longer, "keep one of them fixed", longer, inputs=(STEPS, STEPS[:, :3]),
        options={"open": {"args_0": {1: "m"}, "args_1": {1: "n"}}},
        followed_options={"open": {"args_0": {1: "m"}}},
    ),
    "root of a size, as a tensor": Advice(
        lambda net, x: plain(net, x) * x.shape[1] ** 0.5, "compute with it as a tensor",
        lambda net, x: plain(net, x) * torch.tensor(x.shape[1]).sqrt(), inputs=(STEPS,),
        options={"open": {"args_0": {1: "length"}}},
        followed_options={"open": {"args_0": {1: "length"}}},
    ),
    "inputs that do not fit": Advice(
        plain, "pass example inputs that forward accepts", plain,
        inputs=(torch.randn(4, 7),), instead=(X,),
    ),
    "gradient inside": Advice(
        lambda net, x: plain(net, x) + torch.func.grad(lambda y: y.square().sum())(x).sum(),
        "trace a submodule that does not",
        lambda net, x: plain(net, x) + (2 * x).sum(),
    ),
    "batched function": Advice(
        each, "write out the batch axis", plain,
    ),
    "views made at once": Advice(
        halves, "index the tensor instead of splitting it",
        lambda net, x: net.b(
            torch.cat([net.a(x)[:, :2] + net.a(x)[:, 2:], net.a(x)[:, 2:]], 1)
        ),
    ),
    "tensor changed in place": Advice(
        lambda net, x: plain(net, x) + net.memory[0].add_(1), "make it a persistent buffer",
        lambda net, x: plain(net, x) + net.memory.add_(1),
        lambda net: setattr(net, "memory", [torch.zeros(2)]),
        lambda net: net.register_buffer("memory", torch.zeros(2)),
    ),
    "generator": Advice(
        lambda net, x: plain(net, x) + torch.rand(2, generator=torch.Generator().manual_seed(3)),
        "use torch's global random numbers",
        lambda net, x: plain(net, x) + torch.rand(2),
    ),
    "parameter written": Advice(
        lambda net, x: (net.a.weight.data.mul_(0.5), plain(net, x))[1],
        "use .detach\\(\\) instead of .data",
        lambda net, x: net.b(F.linear(x, net.a.weight * 0.5, net.a.bias)),
    ),
    "buffer that decides": Advice(
        lambda net, x: plain(net, x) * (2 if net.calls.add_(1) > 3 else 1), "use torch.where",
        lambda net, x: plain(net, x) * torch.where(net.calls.add_(1) > 3, 2.0, 1.0),
        counter, counter,
    ),
    "own gradient": Advice(
        lambda net, x: net.b(Straight.apply(net.a(x))), "passes the gradient straight", straight,
    ),
    "checkpoint around a norm": Advice(
        lambda net, x: net.b(checkpoint(lambda y: net.n(net.a(y)), x, use_reentrant=False)),
        "call the norm outside of the checkpoint",
        lambda net, x: net.b(net.n(checkpoint(net.a, x, use_reentrant=False))),
        norm, norm,
    ),
    "attribute": Advice(
        counted, "make it a buffer", lambda net, x: plain(net, x) * net.calls.add_(1),
        lambda net: setattr(net, "calls", 0), counter,
    ),
    "hook": Advice(plain, "remove it before tracing", plain, hooked),
    "extra state": Advice(
        plain, "keep it in buffers", plain, lambda net: net.add_module("f", Flagged()), counter,
    ),
    "memory of two": Advice(
        lambda net, x: plain(net, x) + F.linear(x, net.part), "compute part in forward",
        lambda net, x: plain(net, x) + F.linear(x, net.a.weight[:2]), shared_memory,
    ),
    "computed before": Advice(
        lambda net, x: net.b(F.linear(x, net.twice[0])), "compute it in forward",
        lambda net, x: net.b(F.linear(x, net.a.weight * 2)), parameter_view,
    ),
    "inputs in a tuple": Advice(
        lambda net, x, y: plain(net, x + y), "pass the inputs one by one",
        lambda net, x, y: plain(net, x + y), inputs=((X, X),), instead=(X, X),
    ),
    "whole numbers": Advice(
        plain, "in the model's dtype", lambda net, x: plain(net, x.float()),
        inputs=(torch.ones(4, 6, dtype=torch.long),),
    ),
    "example without values": Advice(
        plain, "zeros_like", plain,
        inputs=(X.to("meta"),), instead=(torch.zeros_like(X.to("meta"), device="cpu"),),
    ),
    "random numbers of Python": Advice(
        lambda net, x: plain(net, x) * random.random(), "use torch's random numbers",
        lambda net, x: plain(net, x) * torch.rand(()),
    ),
    "two names of one size": Advice(
        lambda net, x, y: plain(net, x + y), "give both axes the same name",
        lambda net, x, y: plain(net, x + y), inputs=(STEPS, STEPS),
        options={"open": {"args_0": {1: "m"}, "args_1": {1: "n"}}},
        followed_options={"open": {"args_0": {1: "m"}, "args_1": {1: "m"}}},
    ),
    "number asked of a size": Advice(
        lambda net, x: net.b(net.a(x) + net.table), "remove it from `open`",
        lambda net, x: net.b(net.a(x) + net.table),
        lambda net: net.register_buffer("table", torch.ones(5, 4)),
        lambda net: net.register_buffer("table", torch.ones(5, 4)),
        (STEPS,), options={"open": {"args_0": {1: "length"}}},
    ),
    "root of a size": Advice(
        lambda net, x: plain(net, x) * x.shape[1] ** 0.5, "remove the size from `open`",
        lambda net, x: plain(net, x) * x.shape[1] ** 0.5,
        inputs=(STEPS,), options={"open": {"args_0": {1: "length"}}},
    ),
    "size of one": Advice(
        lambda net, x: plain(net, x).sum(1), "must be at least 2",
        lambda net, x: plain(net, x).sum(1), inputs=(STEPS[:, :1],), instead=(STEPS[:, :2],),
        options={"open": {"args_0": {1: "length"}}},
        followed_options={"open": {"args_0": {1: "length"}}},
    ),
    "training alone": Advice(
        lambda net, x: branching(net, x) if net.training else plain(net, x), "torch.where",
        lambda net, x: torch.where(x.sum() > 0, plain(net, x), plain(net, -x))
        if net.training
        else plain(net, x),
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _checked_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    # torch's compiler, which its loops use, switches the check off for the whole process.
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)


def _run(module: nn.Module, inputs: Any, training: bool) -> list[torch.Tensor]:
    module.train(training).zero_grad()
    torch.manual_seed(1)
    outputs = tensors(module(*inputs))
    sum(t.square().mean() for t in outputs).backward()  # type: ignore[union-attr]  # a tensor
    return [*outputs, *(p.grad for p in module.parameters() if p.grad is not None)]


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", list(ADVICE))
def test_advice_works_when_it_is_followed(name):
    advice = ADVICE[name]
    torch.manual_seed(0)
    with pytest.raises(ag.TraceError, match=advice.words):
        ag.trace(Net(advice.refused, advice.prepare), *advice.inputs, **advice.options)
    torch.manual_seed(0)
    net, inputs = Net(advice.followed, advice.prepared), advice.instead or advice.inputs
    built = ag.build(*ag.trace(net, *inputs, **advice.followed_options))
    given = [x for x in inputs if isinstance(x, torch.Tensor)]
    for training in (False, True, True):
        expected = _run(net, inputs, training)
        actual = _run(built, given, training)
        for a, b in zip(actual, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_refusal_can_be_told_from_others_by_its_kind():
    for body in (branching, normal):
        with pytest.raises(ag.Inexpressible):
            ag.trace(Net(body, lambda net: None), X)
    with pytest.raises(ag.TraceError) as caught:
        ag.trace(Net(plain, hooked), X)
    assert not isinstance(caught.value, ag.Inexpressible)
