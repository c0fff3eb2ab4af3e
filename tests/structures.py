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

PIXELS = 8


def graph_of(model: nn.Module, *args: Any, train: bool = False, **kwargs: Any) -> ArchGraph:
    """Graph of a model; without arguments for an image."""
    if not args and not kwargs:
        args = (torch.randn(2, 3, PIXELS, PIXELS, generator=torch.Generator().manual_seed(0)),)
    graph: ArchGraph = ag.trace(model, *args, train=train, verify=False, **kwargs).graph
    return graph


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


class PreAct(nn.Module):
    """Pre-activation residual block: the projection starts after the first norm."""

    def __init__(self, c: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(c), nn.Conv2d(c, out, 3, stride, 1)
        self.bn2, self.conv2 = nn.BatchNorm2d(out), nn.Conv2d(out, out, 3, 1, 1)
        self.short = nn.Conv2d(c, out, 1, stride) if stride != 1 or c != out else None

    def forward(self, x):
        h = torch.relu(self.bn1(x))
        y = self.conv2(torch.relu(self.bn2(self.conv1(h))))
        return y + (x if self.short is None else self.short(h))


class Inverted(nn.Module):
    """Inverted bottleneck: a shortcut only where the shape stays."""

    def __init__(self, c: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(c, 2 * c, 1),
            nn.ReLU6(),
            nn.Conv2d(2 * c, 2 * c, 3, stride, 1, groups=2 * c),
            nn.ReLU6(),
            nn.Conv2d(2 * c, out, 1),
        )
        self.same = stride == 1 and c == out

    def forward(self, x):
        return x + self.conv(x) if self.same else self.conv(x)


class ConvReLU(nn.Module):
    """A plain layer."""

    def __init__(self, c: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(c, out, 3, stride, 1)

    def forward(self, x):
        return torch.relu(self.conv(x))


class Branches(nn.Module):
    """Two branches, one after the other in one result."""

    def __init__(self, c: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.a = nn.Conv2d(c, out // 2, 1, stride)
        self.b = nn.Sequential(nn.Conv2d(c, 4, 1), nn.Conv2d(4, out - out // 2, 3, stride, 1))

    def forward(self, x):
        return torch.cat([self.a(x), self.b(x)], 1)


class DenseLayer(nn.Module):
    """Appends to the stream."""

    def __init__(self, c: int, growth: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(c), nn.Conv2d(c, growth, 3, padding=1)

    def forward(self, xs):
        return self.conv(torch.relu(self.norm(torch.cat(xs, 1))))


class DenseNet(nn.Module):
    """One dense block that repeats its lists, as DenseNet does, and a transition."""

    def __init__(self, layers: int = 3, growth: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.dense = nn.ModuleList([DenseLayer(8 + i * growth, growth) for i in range(layers)])
        self.squeeze = nn.Conv2d(8 + layers * growth, 8, 1)
        self.block = Basic(8, 8)
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
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


class LeNet(nn.Module):
    """Convolutions, then linear layers; everything functional else."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 16, 3)
        self.fc1, self.fc2, self.fc3 = nn.Linear(16, 12), nn.Linear(12, 8), nn.Linear(8, 5)

    def forward(self, x):
        x = F.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = torch.flatten(F.max_pool2d(torch.relu(self.conv2(x)), 2), 1)
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


class TwoInputs(nn.Module):
    """Two towers, a residual body, two named outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8))
        self.b = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8))
        self.body = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))
            for _ in range(3)
        )
        self.kind, self.value = nn.Linear(16, 5), nn.Linear(16, 1)

    def forward(self, left, right):
        x = torch.cat([self.a(left), self.b(right)], 1)
        for block in self.body:
            x = x + block(x)
        return {"kind": self.kind(x), "value": self.value(x)}


class Exits(nn.Module):
    """An exit after each stage (DepthFL); one of them in training only."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.stages = nn.ModuleList(nn.Sequential(Basic(8, 8), Basic(8, 8)) for _ in range(3))
        self.exits = nn.ModuleList(nn.Linear(8, 5) for _ in range(3))

    def forward(self, x):
        x, found = self.stem(x), []
        for i, (stage, leave) in enumerate(zip(self.stages, self.exits, strict=True)):
            x = stage(x)
            if self.training or i != 1:
                found.append(leave(x.mean((2, 3))))
        return tuple(found)


class Shared(nn.Module):
    """One layer used three times."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x):
        x = torch.relu(self.first(x))
        for _ in range(3):
            x = torch.relu(self.layer(x))
        return self.last(x)


class Tied(nn.Module):
    """An embedding whose table is the classifier's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 8)
        self.body = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x):
        x = self.table(x)
        for layer in self.body:
            x = x + torch.relu(layer(x))
        return x @ self.table.weight.T


class Transposed(nn.Module):
    """Layers whose weights are computed: transposed before the product."""

    class Layer(nn.Module):
        def __init__(self, c: int, out: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(out, c))

        def forward(self, x):
            return x @ self.weight.T

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = self.Layer(6, 8), self.Layer(8, 5)
        self.layers = nn.ModuleList(self.Layer(8, 8) for _ in range(2))

    def forward(self, x):
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


class Mixer(nn.Module):
    """Layers that mix positions, then channels."""

    class Layer(nn.Module):
        def __init__(self, tokens: int, c: int) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(c), nn.LayerNorm(c)
            self.tokens = nn.Sequential(nn.Linear(tokens, 6), nn.GELU(), nn.Linear(6, tokens))
            self.channels = nn.Sequential(nn.Linear(c, 12), nn.GELU(), nn.Linear(12, c))

        def forward(self, x):
            x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
            return x + self.channels(self.norm2(x))

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 4, 4)
        self.layers = nn.ModuleList(self.Layer(4, 8) for _ in range(3))
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


class LongSkip(nn.Module):
    """Residual blocks under a shortcut over all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.body = nn.Sequential(Basic(8, 8), Basic(8, 8))
        self.last, self.out = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 3, 1)

    def forward(self, x):
        x = self.stem(x)
        return self.out(x + self.last(self.body(x)))


class EncoderDecoder(nn.Module):
    """A transformer with a source and a target."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(9, 8), nn.Embedding(9, 8)
        self.body = nn.Transformer(8, 2, 2, 2, 16, batch_first=True)
        self.out = nn.Linear(8, 9)

    def forward(self, source, target):
        return self.out(self.body(self.source(source), self.target(target)))


class Conditioned(nn.Module):
    """Residual blocks steered by a second input."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 8))
        self.blocks = nn.ModuleList(Basic(8, 8) for _ in range(3))
        self.scale = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.out = nn.Conv2d(8, 3, 1)

    def forward(self, x, time):
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
