"""Wrappers: parametrisations, parallel, lazy, scripted and compiled modules, hooks on states."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils import checkpoint

from tests.capture.hostile.table import PLACE, Net, body, module, net
from tests.nets import with_parts


@with_parts()
def Symmetric(self, weight: torch.Tensor) -> torch.Tensor:
    """A parametrisation."""
    return weight.triu() + weight.triu(1).mT


@net(refused=None)
def parametrised(net):
    parametrize.register_parametrization(net.layer, "weight", Symmetric())


@module(refused=r"0\.weight: has no values yet: run the lazy")
def lazy() -> nn.Module:
    """No weights yet."""
    return nn.Sequential(nn.LazyLinear(4))


@module()
def quantisation_stubs() -> nn.Module:
    """Stubs pass through."""
    return nn.Sequential(nn.Identity(), nn.Linear(3, 3), nn.Identity())


@module()
def data_parallel() -> nn.Module:
    """DataParallel on a machine without several devices runs its module."""
    return nn.DataParallel(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), device_ids=[])


@module()
def recurrent() -> nn.Module:
    """Weights of a recurrent layer may lie in one memory."""
    return nn.GRUCell(3, 3)


@net()
def weight_norm(net):
    parametrizations.weight_norm(net.layer)


@net()
def weight_norm_of_old(net):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        nn.utils.weight_norm(net.layer)


@net()
def spectral_norm(net):
    parametrizations.spectral_norm(net.layer)


@net()
def spectral_norm_of_old(net):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        nn.utils.spectral_norm(net.layer)


@net()
def orthogonal(net):
    parametrizations.orthogonal(net.layer)


@net()
def parametrised_twice(net):
    parametrize.register_parametrization(net.layer, "weight", Symmetric())
    parametrize.register_parametrization(net.layer, "weight", Symmetric())


@net()
def pruned(net):
    prune.l1_unstructured(net.layer, "weight", amount=3)


@module()
def quantisation_aware() -> nn.Module:
    """Stubs and an identity where quantisation would observe."""
    stub, back = torch.ao.quantization.QuantStub(), torch.ao.quantization.DeQuantStub()
    return nn.Sequential(stub, nn.Linear(3, 3), back)


@module(refused=r"fake_quantize\.py:\d+ in forward: .*cannot be captured")
def fake_quantised() -> nn.Module:
    """Observes and rounds."""
    return nn.Sequential(torch.ao.quantization.FakeQuantize(), nn.Linear(3, 3))


@module(refused=r"^0: a scripted module has no Python code to capture")
def scripted_submodule() -> nn.Module:
    """A scripted layer inside."""
    return nn.Sequential(torch.jit.script(nn.Linear(3, 3)), nn.ReLU())


@module()
def compiled() -> nn.Module:
    """Compiled, without a backend that would write code."""
    made: Any = torch.compile(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), backend="eager")
    return made


@module()
def compiled_submodule() -> nn.Module:
    """A compiled layer inside."""
    layer: Any = torch.compile(nn.Linear(3, 3), backend="eager")
    return nn.Sequential(layer, nn.ReLU())


@module()
def traced_by_fx() -> nn.Module:
    """A graph module."""
    return torch.fx.symbolic_trace(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))


@net(
    lambda net, x: functional_call(
        net.layer, {"weight": net.head.weight, "bias": net.layer.bias * 2}, x
    )
)
def called_with_other_weights(net):
    pass


@body(refused=r"hostile/\w+\.py:\d+: forward uses function transforms")
def mapped_over_the_batch(net, x):
    return torch.vmap(net.layer)(x)


@body()
def gradient_in_forward(net, x):
    with torch.enable_grad():
        y = net.layer(x)
        return net.head(torch.autograd.grad(y.square().sum(), y, create_graph=True)[0] + y)


@body()
def checkpointed(net, x):
    return net.head(checkpoint.checkpoint(net.layer, x, use_reentrant=False))


@body(refused=r"layer\.weight: the gradients of the model and its graph differ.*reentrant")
def checkpointed_by_reentering(net, x):
    return net.head(checkpoint.checkpoint(net.layer, x, use_reentrant=True))


@body()
def checkpointed_by_reentering_behind_a_layer(net, x):
    y = net.layer(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns where no gradients are recorded
        return checkpoint.checkpoint(net.head, y, use_reentrant=True)


@module()
class SharedTwice(nn.Module):
    """One module under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = self.first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


@module()
class AlwaysEvaluating(nn.Module):
    """Its dropout never drops, whatever mode the whole is in."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.dropout, self.norm = nn.Linear(3, 3), nn.Dropout(0.5), nn.BatchNorm1d(3)

    def train(self, mode: bool = True) -> AlwaysEvaluating:
        super().train(mode)
        self.norm.eval()
        self.dropout.eval()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.norm(self.layer(x)))


@module()
class EvaluatingForward(nn.Module):
    """Its forward sets the mode of a part."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.norm.eval()
        return self.norm(self.layer(x))


@module()
class ModeByOneself(nn.Module):
    """Asks a flag of its own that ``train`` sets."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.noisy = nn.Linear(3, 3), True

    def train(self, mode: bool = True) -> ModeByOneself:
        self.noisy = mode
        return super().train(mode)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * (2 if self.noisy else 1)


@module()
class Properties(nn.Module):
    """Weights behind a property and behind ``__getattr__``."""

    def __init__(self) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.randn(3, 3))

    @property
    def weight(self) -> torch.Tensor:
        return self.raw.exp()

    def __getattr__(self, name: str) -> Any:
        found: Any = super().__getattr__("raw" if name == "bias" else name)
        return found[0] if name == "bias" else found

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


@module()
class Listed(nn.Module):
    """Lists and dicts of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.ParameterList([nn.Parameter(torch.randn(3)) for _ in range(3)])
        self.named = nn.ParameterDict({"scale": nn.Parameter(torch.tensor(2.0))})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ torch.stack(list(self.rows)) * self.named["scale"]


@net(lambda net, x: net.layers[0](x) + net.layer(x))
def layers_in_a_plain_list(net):
    net.layers = [nn.Linear(3, 3)]


@net(lambda net, x: net.layer(x) @ net.weight)
def parameter_beside_the_plain_list(net):
    object.__setattr__(net, "weight", nn.Parameter(torch.randn(3, 3)))


@net(refused=rf"layer\.weight: is missing from the model's state_dict.*{PLACE}")
def state_without_an_entry(net):
    def drop(module, state, prefix, local):
        del state[prefix + "layer.weight"]
        return state

    net._register_state_dict_hook(drop)


@net(refused=rf"layer\.weight: is missing from the model's state_dict.*{PLACE}")
def state_under_other_names(net):
    def rename(module, state, prefix, local):
        state[prefix + "w"] = state.pop(prefix + "layer.weight")
        return state

    net._register_state_dict_hook(rename)


@net(refused=rf"layer\.weight: is missing from the model's state_dict.*{PLACE}")
def state_with_other_values(net):
    def double(module, state, prefix, local):
        state[prefix + "layer.weight"] = state[prefix + "layer.weight"] * 2
        return state

    net._register_state_dict_hook(double)


class Tagged(torch.Tensor):
    """A tensor of another class that computes as all do."""


class Doubling(torch.Tensor):
    """A tensor that doubles what linear gives."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 2 if func is nn.functional.linear else result


@net()
def parameter_of_another_class(net):
    net.layer.weight = nn.Parameter(net.layer.weight.detach().as_subclass(Tagged))


@net(refused=rf"layer\.weight: is a Doubling, which defines its own arithmetic.*{PLACE}")
def parameter_that_computes_otherwise(net):
    net.layer.weight = nn.Parameter(net.layer.weight.detach().as_subclass(Doubling))


@module(refused=r"layer\.weight: is missing from the model's state_dict, parameters\(\)")
class HiddenWeights(Net):
    """Its weights are not among its parameters."""

    def parameters(self, recurse: bool = True) -> Any:
        return (p for p in super().parameters(recurse) if p.dim() == 1)


@module()
class DoubledCall(Net):
    """Its call does more than its forward."""

    def __call__(self, x: torch.Tensor) -> Any:
        return super().__call__(x) * 2


class DoubledLayer(nn.Linear):
    """A layer whose call does more than its forward."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return super().__call__(x) * 2


@net()
def call_of_a_layer_doubled(net):
    net.layer = DoubledLayer(3, 3)


@net()
def forward_of_an_instance(net):
    net.forward = lambda x: net.head(net.layer(x) * 3)


@net()
def forward_of_a_layer_replaced(net):
    forward = net.layer.forward
    net.layer.forward = lambda x: forward(x) * 2
