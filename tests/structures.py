"""Small models whose blocks and sections are known, and random ones for the laws of depth."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import archgraph as ag
from archgraph.analysis.axes import axes
from archgraph.analysis.choice import chosen_axes
from archgraph.graph.ir import ArchGraph
from archgraph.rewrites.compensation import compensation
from archgraph.rewrites.copies import Copies, copied_positions
from tests.nets import captured, with_parts

PIXELS = 8


def graph_of(model: nn.Module, *args: Any, train: bool = False, **kwargs: Any) -> ArchGraph:
    """Graph of a model; without arguments for an image."""
    if not args and not kwargs:
        args = (torch.randn(2, 3, PIXELS, PIXELS, generator=torch.Generator().manual_seed(0)),)
    return captured(model, *args, train=train, **kwargs).graph


def parts(graph: ArchGraph) -> dict[str, list[str]]:
    """Block names by section."""
    return {s.name: [b.name for b in s.blocks] for s in ag.structure(graph).sections}


def refusals(graph: ArchGraph, factor: float = 1.5) -> dict[str, str]:
    """Why free axes cannot be widened by a factor, each alone; those that can are left out."""
    solved, reasons = axes(graph), dict[str, str]()
    for axis in solved.free:
        index = copied_positions(*chosen_axes(solved, {axis: factor}, grow=True), 0)
        reasons |= compensation(Copies(graph, index))[1]
    return reasons


class Basic(nn.Module):
    """Post-activation residual block, with a projection where the shape changes."""

    def __init__(self, c: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        same = stride == 1 and c == out
        self.short = nn.Identity() if same else nn.Conv2d(c, out, 1, stride)

    def forward(self, x):
        return torch.relu(self.conv2(torch.relu(self.bn1(self.conv1(x)))) + self.short(x))


@with_parts(
    lambda c, out, stride=1: {
        "bn1": nn.BatchNorm2d(c),
        "conv1": nn.Conv2d(c, out, 3, stride, 1),
        "bn2": nn.BatchNorm2d(out),
        "conv2": nn.Conv2d(out, out, 3, 1, 1),
        "short": nn.Conv2d(c, out, 1, stride) if stride != 1 or c != out else None,
    }
)
def PreAct(self, x):
    """Pre-activation residual block: the projection starts after the first norm."""
    h = torch.relu(self.bn1(x))
    y = self.conv2(torch.relu(self.bn2(self.conv1(h))))
    return y + (x if self.short is None else self.short(h))


@with_parts(
    lambda c, out, stride=1: {
        "conv": nn.Sequential(
            nn.Conv2d(c, 2 * c, 1),
            nn.ReLU6(),
            nn.Conv2d(2 * c, 2 * c, 3, stride, 1, groups=2 * c),
            nn.ReLU6(),
            nn.Conv2d(2 * c, out, 1),
        ),
        "same": stride == 1 and c == out,
    }
)
def Inverted(self, x):
    """Inverted bottleneck: a shortcut only where the shape stays."""
    return x + self.conv(x) if self.same else self.conv(x)


@with_parts(lambda c, out, stride=1: {"conv": nn.Conv2d(c, out, 3, stride, 1)})
def ConvReLU(self, x):
    """A plain layer."""
    return torch.relu(self.conv(x))


@with_parts(
    lambda c, out, stride=1: {
        "a": nn.Conv2d(c, out // 2, 1, stride),
        "b": nn.Sequential(nn.Conv2d(c, 4, 1), nn.Conv2d(4, out - out // 2, 3, stride, 1)),
    }
)
def Branches(self, x):
    """Two branches, one after the other in one result."""
    return torch.cat([self.a(x), self.b(x)], 1)


@with_parts(
    lambda c, growth: {
        "norm": nn.BatchNorm2d(c),
        "conv": nn.Conv2d(c, growth, 3, padding=1),
    }
)
def DenseLayer(self, xs):
    """Appends to the stream."""
    return self.conv(torch.relu(self.norm(torch.cat(xs, 1))))


@with_parts(
    lambda layers=3, growth=4: {
        "stem": nn.Conv2d(3, 8, 3, padding=1),
        "dense": nn.ModuleList([DenseLayer(8 + i * growth, growth) for i in range(layers)]),
        "squeeze": nn.Conv2d(8 + layers * growth, 8, 1),
        "block": Basic(8, 8),
        "fc": nn.Linear(8, 5),
    }
)
def DenseNet(self, x):
    """One dense block that repeats its lists, as DenseNet does, and a transition."""
    xs = [self.stem(x)]
    for layer in self.dense:
        xs.append(layer(xs))
    return self.fc(self.block(self.squeeze(torch.cat(xs, 1))).mean((2, 3)))


class Net(nn.Module):
    """Stem, stages of a kind of block, head."""

    def __init__(
        self, kind: Callable[..., nn.Module], depths: tuple[int, ...], widths: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 3, padding=1)
        c = widths[0]
        for i, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            blocks = []
            for k in range(depth):
                blocks.append(kind(c, width, 2 if i and not k else 1))
                c = width
            self.add_module(f"stage{i + 1}", nn.Sequential(*blocks))
        self.depth = len(depths)
        self.fc = nn.Linear(c, 5)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        for i in range(self.depth):
            x = getattr(self, f"stage{i + 1}")(x)
        return self.fc(x.mean((2, 3)))


@functools.cache
def net_graph(
    kind: Callable[..., nn.Module], depths: tuple[int, ...], widths: tuple[int, ...]
) -> ArchGraph:
    """Graph of a network of stages in evaluation, traced once."""
    return graph_of(Net(kind, depths, widths))


class Layer(nn.Module):
    """Transformer layer, pre-norm or post-norm."""

    def __init__(self, c: int, post: bool = False) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(c), nn.LayerNorm(c)
        self.qkv, self.proj = nn.Linear(c, 3 * c), nn.Linear(c, c)
        self.up, self.down = nn.Linear(c, 2 * c), nn.Linear(2 * c, c)
        self.post = post

    def attend(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.proj(F.scaled_dot_product_attention(q, k, v))

    def forward(self, x):
        if self.post:
            x = self.norm1(x + self.attend(x))
            return self.norm2(x + self.down(F.gelu(self.up(x))))
        x = x + self.attend(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Encoder(nn.Module):
    """Patches, layers, a final norm, a classifier."""

    def __init__(self, layers: int = 3, post: bool = False) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 4, 4)
        self.place = nn.Parameter(torch.zeros(4, 8))
        self.layers = nn.ModuleList([Layer(8, post) for _ in range(layers)])
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2) + self.place
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


@with_parts(
    lambda: {
        "conv1": nn.Conv2d(3, 6, 3, padding=1),
        "conv2": nn.Conv2d(6, 16, 3),
        "fc1": nn.Linear(16, 12),
        "fc2": nn.Linear(12, 8),
        "fc3": nn.Linear(8, 5),
    }
)
def LeNet(self, x):
    """Convolutions, then linear layers; everything functional else."""
    x = F.max_pool2d(torch.relu(self.conv1(x)), 2)
    x = torch.flatten(F.max_pool2d(torch.relu(self.conv2(x)), 2), 1)
    return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


@with_parts(
    lambda: {
        "a": nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8)),
        "b": nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8)),
        "body": nn.ModuleList(
            nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))
            for _ in range(3)
        ),
        "kind": nn.Linear(16, 5),
        "value": nn.Linear(16, 1),
    }
)
def TwoInputs(self, left, right):
    """Two towers, a residual body, two named outputs."""
    x = torch.cat([self.a(left), self.b(right)], 1)
    for block in self.body:
        x = x + block(x)
    return {"kind": self.kind(x), "value": self.value(x)}


@with_parts(
    lambda: {
        "stem": nn.Conv2d(3, 8, 3, padding=1),
        "stages": nn.ModuleList(nn.Sequential(Basic(8, 8), Basic(8, 8)) for _ in range(3)),
        "exits": nn.ModuleList(nn.Linear(8, 5) for _ in range(3)),
    }
)
def Exits(self, x):
    """An exit after each stage (DepthFL); one of them in training only."""
    x, found = self.stem(x), []
    for i, (stage, leave) in enumerate(zip(self.stages, self.exits, strict=True)):
        x = stage(x)
        if self.training or i != 1:
            found.append(leave(x.mean((2, 3))))
    return tuple(found)


@with_parts(
    lambda: {
        "first": nn.Linear(6, 8),
        "layer": nn.Linear(8, 8),
        "last": nn.Linear(8, 5),
    }
)
def Shared(self, x):
    """One layer used three times."""
    x = torch.relu(self.first(x))
    for _ in range(3):
        x = torch.relu(self.layer(x))
    return self.last(x)


@with_parts(
    lambda: {
        "table": nn.Embedding(9, 8),
        "body": nn.ModuleList(nn.Linear(8, 8) for _ in range(2)),
    }
)
def Tied(self, x):
    """An embedding whose table is the classifier's weight."""
    x = self.table(x)
    for layer in self.body:
        x = x + torch.relu(layer(x))
    return x @ self.table.weight.T


@with_parts(lambda c, out: {"weight": nn.Parameter(torch.randn(out, c))})
def TransposedLayer(self, x):
    return x @ self.weight.T


@with_parts(
    lambda: {
        "first": TransposedLayer(6, 8),
        "last": TransposedLayer(8, 5),
        "layers": nn.ModuleList(TransposedLayer(8, 8) for _ in range(2)),
    }
)
def Transposed(self, x):
    """Layers whose weights are computed: transposed before the product."""
    x = self.first(x)
    for layer in self.layers:
        x = x + torch.relu(layer(x))
    return self.last(x)


class UNet(nn.Module):
    """Levels of two layers down to a quarter of the resolution and up again."""

    @staticmethod
    def level(c: int, out: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(c, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(),
            nn.Conv2d(out, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(),
        )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(self.level(c, out) for c, out in ((3, 4), (4, 8), (8, 16)))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(2 * c, c, 2, 2) for c in (8, 4))
        self.up = nn.ModuleList(self.level(2 * c, c) for c in (8, 4))
        self.out = nn.Conv2d(4, 2, 1)

    def forward(self, x):
        x = self.down[0](x)
        seen = []
        for level in self.down[1:]:
            seen.append(x)
            x = level(F.max_pool2d(x, 2))
        for grow, level in zip(self.grow, self.up, strict=True):
            x = level(torch.cat([seen.pop(), grow(x)], 1))
        return self.out(x)


@with_parts(
    lambda tokens, c: {
        "norm1": nn.LayerNorm(c),
        "norm2": nn.LayerNorm(c),
        "tokens": nn.Sequential(nn.Linear(tokens, 6), nn.GELU(), nn.Linear(6, tokens)),
        "channels": nn.Sequential(nn.Linear(c, 12), nn.GELU(), nn.Linear(12, c)),
    }
)
def MixerLayer(self, x):
    x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
    return x + self.channels(self.norm2(x))


@with_parts(
    lambda: {
        "patch": nn.Conv2d(3, 8, 4, 4),
        "layers": nn.ModuleList(MixerLayer(4, 8) for _ in range(3)),
        "head": nn.Linear(8, 5),
    }
)
def Mixer(self, x):
    """Layers that mix positions, then channels."""
    x = self.patch(x).flatten(2).transpose(1, 2)
    for layer in self.layers:
        x = layer(x)
    return self.head(x.mean(1))


@with_parts(
    lambda: {
        "stem": nn.Conv2d(3, 8, 3, padding=1),
        "body": nn.Sequential(Basic(8, 8), Basic(8, 8)),
        "last": nn.Conv2d(8, 8, 3, padding=1),
        "out": nn.Conv2d(8, 3, 1),
    }
)
def LongSkip(self, x):
    """Residual blocks under a shortcut over all of them."""
    x = self.stem(x)
    return self.out(x + self.last(self.body(x)))


@with_parts(
    lambda: {
        "source": nn.Embedding(9, 8),
        "target": nn.Embedding(9, 8),
        "body": nn.Transformer(8, 2, 2, 2, 16, batch_first=True),
        "out": nn.Linear(8, 9),
    }
)
def EncoderDecoder(self, source, target):
    """A transformer with a source and a target."""
    return self.out(self.body(self.source(source), self.target(target)))


@with_parts(
    lambda: {
        "stem": nn.Conv2d(3, 8, 3, padding=1),
        "time": nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 8)),
        "blocks": nn.ModuleList(Basic(8, 8) for _ in range(3)),
        "scale": nn.ModuleList(nn.Linear(8, 8) for _ in range(3)),
        "out": nn.Conv2d(8, 3, 1),
    }
)
def Conditioned(self, x, time):
    """Residual blocks steered by a second input."""
    time, x = self.time(time), self.stem(x)
    for block, scale in zip(self.blocks, self.scale, strict=True):
        x = block(x * scale(time)[:, :, None, None])
    return self.out(x)


BLOCKS: dict[str, Callable[..., nn.Module]] = {
    "basic": Basic,
    "preact": PreAct,
    "inverted": Inverted,
    "plain": ConvReLU,
    "branches": Branches,
}


@st.composite
def models(draw: Callable[..., Any]) -> nn.Module:
    """A random network of stages; every stage has a kind of block, a depth and a width."""
    kinds = [BLOCKS[draw(st.sampled_from(sorted(BLOCKS)))] for _ in range(2)]
    c = 4 * draw(st.integers(1, 2))
    layers: list[nn.Module] = [nn.Conv2d(3, c, 3, padding=1), nn.ReLU()]
    for i, kind in enumerate(kinds):
        width = 4 * draw(st.integers(1, 2))
        stage = []
        for k in range(draw(st.integers(1, 3))):
            stage.append(kind(c, width, 2 if i and not k else 1))
            c = width
        layers.append(nn.Sequential(*stage))
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 5)]
    torch.manual_seed(0)
    return nn.Sequential(*layers)
