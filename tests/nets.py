"""Networks for tests: random ones for laws, foreign ones that were not written for archgraph."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn

import archgraph as ag
from archgraph.capture.trace import Traced
from archgraph.graph.ir import ArchGraph, Leaf, Value, replace

SIZE = 6  # pixels of the random networks' images


class Parts(nn.Module):
    """Named parts; a bare tensor becomes a buffer, other values attributes."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        super().__init__()
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, (nn.Parameter, nn.Buffer)):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)


def captured(model: nn.Module, *args: Any, **options: Any) -> Traced:
    """Trace a model without comparing it with its graph: for tests of what graphs are used for."""
    return ag.trace(model, *args, verify=False, **options)


def with_parts(
    parts: Callable[..., Mapping[str, Any]] = dict,
) -> Callable[[Callable[..., Any]], Any]:
    """Make a class of modules of a forward function, whose arguments make the module's parts."""

    def enter(forward: Callable[..., Any]) -> Any:
        def start(self: Parts, *args: Any, **kwargs: Any) -> None:
            Parts.__init__(self, parts(*args, **kwargs))

        # PyTorch finds the lines of a model by this name.
        forward.__code__ = forward.__code__.replace(co_name="forward")
        names = ("__doc__", "__module__", "__qualname__")
        known = {name: getattr(forward, name) for name in names}
        return type(forward.__name__, (Parts,), {**known, "__init__": start, "forward": forward})

    return enter


def tied_head(words: int = 7, width: int = 4) -> Any:
    """An embedding whose table is the weight of the last layer."""
    layers = {"embed": nn.Embedding(words, width), "head": nn.Linear(width, words, bias=False)}
    net: Any = nn.Sequential(OrderedDict(layers))
    net.head.weight = net.embed.weight
    return net


@with_parts(
    lambda c, hidden, groups=1: {
        "conv1": nn.Conv2d(c, hidden, 3, padding=1, groups=groups),
        "norm": nn.BatchNorm2d(hidden),
        "conv2": nn.Conv2d(hidden, c, 1),
    }
)
def Residual(self, x):
    return x + self.conv2(torch.relu(self.norm(self.conv1(x))))


@with_parts(
    lambda c, out: {
        "body": nn.Sequential(nn.Conv2d(c, out, 3, padding=1), nn.BatchNorm2d(out)),
        "shortcut": nn.Conv2d(c, out, 1),
    }
)
def Projected(self, x):
    return torch.relu(self.body(x) + self.shortcut(x))


@with_parts(lambda c, a, b: {"a": nn.Conv2d(c, a, 1), "b": nn.Conv2d(c, b, 3, padding=1)})
def Inception(self, x):
    return torch.cat([self.a(x), torch.relu(self.b(x))], 1)


@with_parts(
    lambda c, growth: {
        "norm": nn.BatchNorm2d(c),
        "conv": nn.Conv2d(c, growth, 3, padding=1),
    }
)
def Dense(self, x):
    return torch.cat([x, self.conv(self.norm(x))], 1)


@with_parts(
    lambda c, hidden: {
        "down": nn.Conv2d(c, hidden, 1),
        "up": nn.Conv2d(hidden, c, 1),
    }
)
def SqueezeExcite(self, x):
    gate = torch.relu(self.down(x.mean((2, 3), keepdim=True)))
    return x * torch.sigmoid(self.up(gate))


@with_parts(lambda groups: {"groups": groups})
def Shuffle(self, x):
    b, c, h, w = x.shape
    x = x.view(b, self.groups, c // self.groups, h, w).transpose(1, 2)
    return x.reshape(b, c, h, w)


@with_parts(lambda c: {"conv": nn.Conv2d(c, 2 * c, 1)})
def Gated(self, x):
    a, b = self.conv(x).chunk(2, dim=1)
    return a * torch.sigmoid(b)


@with_parts(
    lambda c, heads: {
        "heads": heads,
        "qkv": nn.Linear(c, 3 * c),
        "proj": nn.Linear(c, c),
    }
)
def Attention(self, x):
    b, c, h, w = x.shape
    t = x.flatten(2).transpose(1, 2)
    qkv = self.qkv(t).reshape(b, h * w, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
    q, k, v = qkv.unbind(0)
    t = nn.functional.scaled_dot_product_attention(q, k, v)
    t = self.proj(t.transpose(1, 2).reshape(b, h * w, c))
    return x + t.transpose(1, 2).reshape(b, c, h, w)


@with_parts(lambda c: {"gamma": nn.Parameter(torch.full((c, 1, 1), 0.1))})
def LayerScale(self, x):
    return x * self.gamma


def stage(draw: Callable[..., Any], c: int) -> tuple[nn.Module, int]:
    """One random piece of a network on ``c`` channels, and the channels that it gives."""
    kind = draw(st.integers(0, 11))
    width = 4 * draw(st.integers(1, 3))
    match kind:
        case 0:
            return nn.Sequential(nn.Conv2d(c, width, 3, padding=1), nn.BatchNorm2d(width)), width
        case 1:
            return nn.Sequential(nn.Conv2d(c, width, 1), nn.ReLU(), nn.Dropout(0.1)), width
        case 2:
            return Residual(c, width), c
        case 3:
            return Residual(c, c, groups=draw(st.sampled_from([2, c]))), c
        case 4:
            return Projected(c, width), width
        case 5:
            other = 4 * draw(st.integers(1, 2))
            return Inception(c, width, other), width + other
        case 6:
            return Dense(c, width), c + width
        case 7:
            return SqueezeExcite(c, width // 2), c
        case 8:
            return Shuffle(draw(st.sampled_from([2, 4]))), c
        case 9:
            return Gated(c), c
        case 10:
            return LayerScale(c), c
        case _:
            return Attention(c, draw(st.sampled_from([1, 2, 4]))), c


@st.composite
def networks(draw: Callable[..., Any], stages: int = 4) -> nn.Module:
    """A random convolutional network on images of 3 × 6 × 6 with 5 classes."""
    c = 4 * draw(st.integers(1, 3))
    parts: list[nn.Module] = [nn.Conv2d(3, c, 3, padding=1)]
    for _ in range(draw(st.integers(1, stages))):
        part, c = stage(draw, c)
        parts.append(part)
    if draw(st.booleans()):
        parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 5)]
    else:
        parts += [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(c * (SIZE // 2) ** 2, 5)]
    torch.manual_seed(0)
    return nn.Sequential(*parts)


def image(batch: int = 2) -> torch.Tensor:
    """A seeded batch for the random networks."""
    return torch.randn(batch, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


@dataclass(frozen=True)
class Foreign:
    """A model from another library, and an example input for it."""

    model: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


def _vision(name: str, size: int = 64, **options: Any) -> Foreign:
    import torchvision

    torch.manual_seed(0)
    model = getattr(torchvision.models, name)(num_classes=10, **options)
    return Foreign(model, (torch.randn(2, 3, size, size),))


def _bert() -> Foreign:
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        vocab_size=50, max_position_embeddings=16,
    )  # fmt: skip
    ids = torch.randint(0, 50, (2, 12))
    mask = torch.ones_like(ids)
    return Foreign(
        transformers.BertForSequenceClassification(config),
        (),
        {"input_ids": ids, "attention_mask": mask},
    )


def _vit() -> Foreign:
    import transformers

    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        image_size=16, patch_size=4,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config)
    return Foreign(model, (), {"pixel_values": torch.randn(2, 3, 16, 16)})


FOREIGN: dict[str, Callable[[], Foreign]] = {
    "resnet18": lambda: _vision("resnet18"),
    "vgg16_bn": lambda: _vision("vgg16_bn"),
    "mobilenet_v2": lambda: _vision("mobilenet_v2"),
    "densenet121": lambda: _vision("densenet121"),
    "googlenet": lambda: _vision("googlenet", init_weights=False),
    "vit_b_16": lambda: _vision("vit_b_16", image_size=64),
    "swin_t": lambda: _vision("swin_t"),
    "bert": _bert,
    "vit": _vit,
}


def renamed(graph: ArchGraph, random: Random) -> ArchGraph:
    """The same network as someone else would have written it: other names, in another order."""
    modules = sorted({part for p in graph.params for part in p.name.split(".")[:-1]})
    words = dict(
        zip(modules, random.sample([f"m{i}" for i in range(99)], len(modules)), strict=True)
    )

    def path(name: str) -> str:
        return ".".join(words.get(part, part) for part in name.split("."))

    def leaf(name: str) -> str:
        prefix, _, last = name.rpartition(".")
        return f"{path(prefix)}.{last}" if prefix else last

    def change(value: Value) -> Value:
        return Leaf(leaf(value.name)) if isinstance(value, Leaf) else value

    params = [dataclasses.replace(p, name=leaf(p.name)) for p in graph.params]
    random.shuffle(params)
    nodes = tuple(
        dataclasses.replace(
            n, args=tuple((k, replace(v, change)) for k, v in n.args), scope=path(n.scope)
        )
        for n in graph.nodes
    )
    updates = tuple((leaf(k), replace(v, change)) for k, v in graph.updates)
    outputs = replace(graph.outputs, change)
    return graph.replace(params=tuple(params), nodes=nodes, updates=updates, outputs=outputs)
