"""Tools for models work on what is built, whole and cut: adapters, privacy, quantisation."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import archgraph as ag
from archgraph.capture.trace import Traced
from tests.nets import captured, with_parts

CUTS = ("whole", "half")


@with_parts(
    lambda width, heads: {
        **{name: nn.Linear(width, width) for name in ("query", "key", "value")},
        "out": nn.Linear(width, width),
        "heads": heads,
    }
)
def Attention(self, x):
    q, k, v = (
        f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        for f in (self.query, self.key, self.value)
    )
    return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@with_parts(
    lambda width: {
        "norm1": nn.LayerNorm(width),
        "attn": Attention(width, 4),
        "norm2": nn.LayerNorm(width),
        "mlp": nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)),
    }
)
def Layer(self, x):
    x = x + self.attn(self.norm1(x))
    return x + self.mlp(self.norm2(x))


@with_parts(
    lambda: {
        "embed": nn.Conv2d(3, 32, 4, stride=4),
        "layers": nn.ModuleList(Layer(32) for _ in range(2)),
        "head": nn.Linear(32, 10),
    }
)
def Transformer(self, x):
    x = self.embed(x).flatten(2).transpose(1, 2)
    for layer in self.layers:
        x = layer(x)
    return self.head(x.mean(1))


@with_parts(
    lambda: {
        "features": nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.GroupNorm(4, 16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.GroupNorm(4, 16),
            nn.ReLU(),
        ),
        "fc": nn.Linear(16 * 64, 10),
    }
)
def Convolutional(self, x):
    return self.fc(self.features(x).flatten(1))


X = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))
Y = torch.arange(6)


@functools.cache
def traced(kind: Any) -> Traced:
    """A traced model."""
    torch.manual_seed(0)
    return captured(kind(), X)


def built(kind: Any, cut: str) -> tuple[Any, Any]:
    """A built module, and what was built once more."""
    graph, state = traced(kind)
    if cut == "half":
        small = ag.take(graph, 0.5)
        graph, state = small.graph, small.transfer.pull(state)
    return ag.build(graph, state), ag.build(graph, state)


@pytest.mark.parametrize("cut", CUTS)
def test_adapters_of_peft_train_and_merge(cut):
    peft = pytest.importorskip("peft")
    net, other = built(Transformer, cut)
    config = peft.LoraConfig(r=4, target_modules=["query", "value", "mlp.0"])
    model = peft.get_peft_model(net, config)
    torch.testing.assert_close(model(X), other(X), rtol=0, atol=1e-6)
    optimiser = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        F.cross_entropy(model(X), Y).backward()
        optimiser.step()
    trained = {k for k, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert len(trained) == 2 * 2 * 3 and all("lora_" in k for k in trained)
    with pytest.raises(ag.GraphError, match=r"layers\.0\.attn\.query\.weight.*base_layer.*merge"):
        ag.state_of(net)
    expected = model.eval()(X)
    merged = model.merge_and_unload()
    state = ag.state_of(merged)
    torch.testing.assert_close(ag.build(merged.arch, state).eval()(X), expected)
    assert not torch.equal(state["layers.0.attn.query.weight"], other.layers[0].attn.query.weight)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("kind", [Convolutional, Transformer])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_opacus_gives_gradients_per_example(kind, cut):
    grad_sample = pytest.importorskip("opacus.grad_sample")
    net, other = built(kind, cut)
    model = grad_sample.GradSampleModule(net, loss_reduction="sum")
    F.cross_entropy(model(X), Y, reduction="sum").backward()
    for index in (0, 4):
        other.zero_grad()
        F.cross_entropy(other(X[index : index + 1]), Y[index : index + 1]).backward()
        for name, parameter in other.named_parameters():
            sample = dict(net.named_parameters())[name].grad_sample[index]
            torch.testing.assert_close(sample, parameter.grad, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("cut", CUTS)
def test_captum_explains_a_layer(cut):
    attr = pytest.importorskip("captum.attr")
    net, _ = built(Convolutional, cut)
    seen: dict[str, Any] = {}
    net.features[4].register_forward_hook(lambda m, i, o: seen.update(value=o))
    scores = attr.LayerGradCam(net, net.features[4]).attribute(X, target=3)
    value = seen["value"]
    gradient = torch.autograd.grad(net(X)[:, 3].sum(), seen["value"])[0]
    expected = (gradient.mean((2, 3), keepdim=True) * value).sum(1, keepdim=True)
    torch.testing.assert_close(scores, expected.detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_torch_and_torchao_quantise_linear_layers(cut):
    net, _ = built(Transformer, cut)
    expected = net.eval()(X)
    spread = float(expected.std())
    small = torch.ao.quantization.quantize_dynamic(copy.deepcopy(net), {nn.Linear})
    assert "quantized.dynamic" in type(small.layers[0].mlp[0]).__module__
    assert 0 < float((small(X) - expected).abs().max()) < 0.2 * spread
    quantization = pytest.importorskip("torchao.quantization")
    quantization.quantize_(net, quantization.Int8WeightOnlyConfig())
    assert type(net.layers[0].mlp[0].weight).__name__ != "Parameter"
    assert 0 < float((net(X) - expected).abs().max()) < 0.2 * spread


@pytest.mark.parametrize("weights_on", ["processor", "disk", "both"])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("make", [Convolutional, Transformer])
def test_accelerate_offloads_weights(make, cut, weights_on, tmp_path):
    accelerate = pytest.importorskip("accelerate")
    net, other = built(make, cut)
    net, device = net.eval(), torch.device("cpu")
    if weights_on == "processor":
        accelerate.cpu_offload(net, execution_device=device)
    elif weights_on == "disk":
        accelerate.disk_offload(net, str(tmp_path), execution_device=device)
    else:
        layers = [name for name, layer in net.named_children() if [*layer.parameters()]]
        places = dict.fromkeys(layers, "cpu") | {layers[0]: "disk"}
        accelerate.dispatch_model(net, places, "cpu", offload_dir=str(tmp_path), force_hooks=True)
    assert any(parameter.is_meta for parameter in net.parameters())
    torch.testing.assert_close(net(X), other.eval()(X), rtol=0, atol=0)


@pytest.mark.parametrize("cut", CUTS)
def test_torch_compile_and_export(cut):
    net, other = built(Convolutional, cut)
    program = torch.export.export(net.eval(), (X,))
    torch.testing.assert_close(program.module()(X), other.eval()(X), rtol=0, atol=0)
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), other(X), rtol=0, atol=0)
