"""Small models written by hand, each for one thing that is hard about real ones.

A case is a forward function and the parts it uses; :func:`case` makes an ``nn.Module`` class of
them. Beside each model stands what a person would expect of it when every axis is halved: a tool
that is sound because it pins everything fails.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

from tests.nets import Foreign, Parts, with_parts


@dataclass(frozen=True)
class Expected:
    """What a person expects of a case.

    Attributes:
        half: Leading sizes of parameters when every free axis is halved: at most these, and where
            a size is the original one, nothing is cut.
        share: Least share of the parameters' elements with a free axis.
        spanned: Most free axes that a norm, softmax or reduction may run over.
        because: Why less than usual is free, or why axes are spanned.
    """

    half: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    share: float = 0.9
    spanned: int = 0
    because: str = ""


HANDMADE: dict[str, Callable[[], Foreign]] = {}
EXPECTED: dict[str, Expected] = {}


def case(
    parts: Callable[[], Mapping[str, Any]],
    *args: Any,
    half: Mapping[str, tuple[int, ...]] | None = None,
    share: float = 0.9,
    spanned: int = 0,
    because: str = "",
    **kwargs: Any,
) -> Callable[[Callable[..., Any]], type[Parts]]:
    """Enter a model into the collection under its forward function's name."""

    def enter(forward: Callable[..., Any]) -> type[Parts]:
        name = forward.__name__
        assert name not in HANDMADE, f"two cases are called {name}"
        model = with_parts(parts)(forward)
        model.__name__ = name.title().replace("_", "")

        def make() -> Foreign:
            torch.manual_seed(0)
            return Foreign(model(), args, kwargs)

        HANDMADE[name] = make
        EXPECTED[name] = Expected(half or {}, share, spanned, because)
        return model

    return enter


def _seeded(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def image(channels: int = 3, size: int = 8) -> torch.Tensor:
    """Two square images."""
    return _seeded(2, channels, size, size)


def vector(size: int = 6) -> torch.Tensor:
    """Two vectors."""
    return _seeded(2, size)


def tokens(size: int = 8, length: int = 5) -> torch.Tensor:
    """Two sequences of vectors."""
    return _seeded(2, length, size)


def words(count: int = 11, length: int = 5) -> torch.Tensor:
    """Two sequences of word numbers."""
    return torch.randint(0, count, (2, length), generator=torch.Generator().manual_seed(0))


def conv(inputs: int, outputs: int, kernel: int = 1, **options: Any) -> nn.Conv2d:
    """A convolution that keeps the picture's size at stride one."""
    return nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, **options)


def weight(*shape: int) -> nn.Parameter:
    """A bare parameter with values of natural scale."""
    return nn.Parameter(torch.randn(shape) * 0.3)


def heads_of(x: torch.Tensor, heads: int) -> torch.Tensor:
    """(batch, length, heads · size) → (batch, heads, length, size)."""
    b, n, c = x.shape
    return x.view(b, n, heads, c // heads).transpose(1, 2)


def heads_back(x: torch.Tensor) -> torch.Tensor:
    """(batch, heads, length, size) → (batch, length, heads · size)."""
    return x.transpose(1, 2).flatten(2)


# -- 1. channel shuffle -----------------------------------------------------------------------


def shuffle(x: torch.Tensor, groups: int) -> torch.Tensor:
    """Channel shuffle as ShuffleNet writes it."""
    b, c, h, w = x.shape
    return x.view(b, groups, c // groups, h, w).transpose(1, 2).contiguous().view(b, c, h, w)


@case(lambda: {"a": conv(3, 8), "b": conv(8, 4)}, image(), half={"a.weight": (2,)})
def channel_shuffle_by_view(self, x):
    """Two factors of the channel axis change places."""
    return self.b(shuffle(self.a(x), 2))


@case(
    lambda: {"a": conv(3, 8), "mix": nn.ChannelShuffle(2), "b": conv(8, 4)},
    image(),
    half={"a.weight": (4,)},
)
def channel_shuffle_module(self, x):
    """The same as one operator."""
    return self.b(self.mix(self.a(x)))


@case(
    lambda: {
        "stem": conv(3, 12),
        "a": conv(12, 8, groups=2),
        "dw": conv(8, 8, 3, groups=8),
        "b": conv(8, 12, groups=2),
        "head": conv(12, 2),
    },
    image(),
    half={"a.weight": (1, 3), "stem.weight": (3,), "b.weight": (3, 1)},
)
def shuffle_unit(self, x):
    """Grouped, shuffled, depthwise, grouped, with a residual: groups of both sides are tied."""
    x = self.stem(x)
    y = self.b(self.dw(shuffle(self.a(x).relu(), 2)))
    return self.head((x + y).relu())


@case(
    lambda: {
        "stem": conv(3, 8),
        "branch": nn.Sequential(conv(4, 4), nn.BatchNorm2d(4), nn.ReLU()),
        "head": conv(8, 2),
    },
    image(),
    half={"stem.weight": (4,), "branch.0.weight": (2, 2)},
)
def shuffle_of_halves(self, x):
    """Half of the channels passes by, then both halves interleave."""
    a, b = self.stem(x).chunk(2, 1)
    return self.head(shuffle(torch.cat([a, self.branch(b)], 1), 2))


# -- 2. pixel shuffle, space to depth ---------------------------------------------------------


@case(
    lambda: {
        "a": conv(3, 16),
        "up": nn.PixelShuffle(2),
        "b": conv(4, 6),
        "down": nn.PixelUnshuffle(2),
        "c": conv(24, 2),
    },
    image(),
    half={"a.weight": (8,), "b.weight": (3, 2), "c.weight": (2, 12)},
)
def pixel_shuffle_and_back(self, x):
    """One channel is four before the shuffle."""
    return self.c(self.down(self.b(self.up(self.a(x)))))


@case(
    lambda: {"stem": conv(3, 4), "a": conv(16, 8), "b": conv(8, 2)},
    image(),
    half={"stem.weight": (2,), "a.weight": (4, 8)},
)
def focus_slices(self, x):
    """Four strided slices of one tensor are concatenated (YOLO's focus layer)."""
    x = self.stem(x)
    rows = x[..., ::2, :], x[..., 1::2, :]
    x = torch.cat([r[..., start::2] for start in (0, 1) for r in rows], 1)
    return self.b(self.a(x).relu())


@case(
    lambda: {"a": conv(3, 4), "b": conv(16, 2)},
    image(),
    half={"a.weight": (2,), "b.weight": (2, 8)},
)
def space_to_depth_by_view(self, x):
    """Pixels become factors of the channel axis through a six-dimensional view."""
    x = self.a(x)
    b, c, h, w = x.shape
    x = x.view(b, c, h // 2, 2, w // 2, 2).permute(0, 3, 5, 1, 2, 4)
    return self.b(x.reshape(b, 4 * c, h // 2, w // 2))


@case(
    lambda: {"a": conv(3, 16), "b": conv(4, 2)},
    image(),
    half={"a.weight": (8,), "b.weight": (2, 2)},
)
def depth_to_space_by_view(self, x):
    """The way back, with the block as the outer factor."""
    x = self.a(x)
    b, _, h, w = x.shape
    x = x.reshape(b, 2, 2, -1, h, w).permute(0, 3, 4, 1, 5, 2)
    return self.b(x.reshape(b, -1, 2 * h, 2 * w))


# -- 3. gates, splits and concatenations ------------------------------------------------------


@case(
    lambda: {"a": conv(3, 12), "b": conv(6, 2)},
    image(),
    half={"a.weight": (6,), "b.weight": (2, 3)},
)
def glu_by_chunk(self, x):
    """Two halves of one layer's outputs are one axis."""
    value, gate = self.a(x).chunk(2, 1)
    return self.b(value * gate.sigmoid())


@case(
    lambda: {"a": conv(3, 12), "b": conv(6, 2)},
    image(),
    half={"a.weight": (6,), "b.weight": (2, 3)},
)
def glu_by_slices(self, x):
    """The same with literal bounds."""
    y = self.a(x)
    return self.b(y[:, :6] * torch.sigmoid(y[:, 6:]))


@case(
    lambda: {"a": nn.Linear(6, 20), "b": nn.Linear(10, 2)},
    vector(),
    half={"a.weight": (10,), "b.weight": (2, 5)},
)
def glu_function(self, x):
    """The same as one operator."""
    return self.b(F.glu(self.a(x)))


@case(
    lambda: {
        "gate": nn.Linear(8, 12, bias=False),
        "up": nn.Linear(8, 12, bias=False),
        "down": nn.Linear(12, 3),
    },
    tokens(),
    half={"gate.weight": (6,), "up.weight": (6,), "down.weight": (3, 6)},
)
def swiglu(self, x):
    """Two layers' outputs are multiplied (Llama's feed-forward)."""
    return self.down(F.silu(self.gate(x)) * self.up(x))


@case(
    lambda: {
        "a": conv(3, 12),
        "blocks": nn.ModuleList(conv(6, 6, 3) for _ in range(2)),
        "b": conv(24, 4),
    },
    image(),
    half={"a.weight": (6,), "blocks.1.weight": (3, 3), "b.weight": (4, 12)},
)
def c2f(self, x):
    """A list grows by what each block makes of its last entry (YOLO)."""
    y = list(self.a(x).chunk(2, 1))
    y.extend(block(y[-1]) for block in self.blocks)
    return self.b(torch.cat(y, 1))


@case(
    lambda: {"a": conv(3, 10), "c": conv(4, 4, 3), "b": conv(10, 2)},
    image(),
    half={"a.weight": (5,), "c.weight": (2, 2)},
)
def uneven_split(self, x):
    """Four and six channels take different ways."""
    p, q = self.a(x).split([4, 6], 1)
    return self.b(torch.cat([q, self.c(p)], 1))


@case(
    lambda: {
        "one": conv(3, 6),
        "two": conv(3, 4),
        "block": nn.Sequential(conv(6, 6, 3), nn.BatchNorm2d(6), nn.SiLU()),
        "join": conv(10, 8),
        "head": conv(8, 2),
    },
    image(),
    half={"one.weight": (3,), "two.weight": (2,), "join.weight": (4, 5)},
)
def cross_stage_partial(self, x):
    """Two projections of the same input, one through a residual block, are concatenated."""
    a = self.one(x)
    return self.head(self.join(torch.cat([a + self.block(a), self.two(x)], 1)).relu())


@case(
    lambda: {
        "a": conv(3, 16),
        "steps": nn.ModuleList(conv(4, 4, 3) for _ in range(3)),
        "b": conv(16, 16),
        "head": conv(16, 2),
    },
    image(),
    half={"a.weight": (8,), "steps.0.weight": (2, 2), "b.weight": (8, 8)},
)
def res2net(self, x):
    """Parts of a split are chained, concatenated, and added to what was split."""
    z = self.a(x)
    parts = torch.split(z, 4, 1)
    done = [self.steps[0](parts[0]).relu()]
    for step, part in zip(self.steps[1:], parts[1:], strict=False):
        done.append(step(done[-1] + part).relu())
    return self.head(self.b(torch.cat([*done, parts[3]], 1)) + z)


# -- 4. patch merging -------------------------------------------------------------------------


@case(
    lambda: {
        "embed": nn.Linear(3, 6),
        "norm": nn.LayerNorm(24),
        "reduce": nn.Linear(24, 12, bias=False),
        "head": nn.Linear(12, 3),
    },
    _seeded(2, 8, 8, 3),
    half={"embed.weight": (3,), "norm.weight": (12,), "reduce.weight": (6, 12)},
    spanned=1,
    because="a norm over four times the channels",
)
def patch_merging(self, x):
    """Strided slices on the last axis, and a norm over four of each channel (Swin)."""
    x = self.embed(x)
    quarters = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
    return self.head(self.reduce(self.norm(torch.cat(quarters, -1))))


@case(
    lambda: {"embed": nn.Linear(3, 6), "reduce": nn.Linear(24, 10), "head": nn.Linear(10, 3)},
    _seeded(2, 8, 8, 3),
    half={"embed.weight": (3,), "reduce.weight": (5, 12)},
)
def patch_merging_by_view(self, x):
    """The same through a view and a permutation."""
    x = self.embed(x)
    b, h, w, c = x.shape
    x = x.view(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 4, 2, 5).flatten(3)
    return self.head(self.reduce(x).relu())


@case(
    lambda: {"a": conv(3, 4), "embed": nn.Linear(16, 10), "head": nn.Linear(10, 3)},
    image(),
    half={"a.weight": (2,), "embed.weight": (5, 8)},
)
def patches_by_unfold(self, x):
    """`F.unfold` makes a channel four times, the channel as the outer factor."""
    patches = F.unfold(self.a(x), 2, stride=2).transpose(1, 2)
    return self.head(self.embed(patches).relu().mean(1))


@case(
    lambda: {"a": conv(3, 16), "b": conv(4, 2)},
    image(size=4),
    half={"a.weight": (8,), "b.weight": (2, 2)},
)
def fold_of_patches(self, x):
    """`F.fold` sums patches to a picture; one channel was four."""
    return self.b(F.fold(self.a(x).flatten(2), (8, 8), 2, stride=2))


@case(
    lambda: {"a": conv(3, 4), "embed": nn.Linear(16, 10), "head": nn.Linear(10, 3)},
    image(),
    half={"a.weight": (2,), "embed.weight": (5, 8)},
)
def patches_by_tensor_unfold(self, x):
    """`Tensor.unfold` twice, then the windows join the channels."""
    x = self.a(x).unfold(2, 2, 2).unfold(3, 2, 2)
    x = x.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
    return self.head(self.embed(x).relu().mean(1))


# -- 5. sizes as literals ---------------------------------------------------------------------


@case(
    lambda: {"a": conv(3, 4), "b": nn.Linear(256, 2)},
    image(),
    half={"a.weight": (2,), "b.weight": (2, 128)},
)
def view_with_literal(self, x):
    """The flat size is a number in the code."""
    return self.b(self.a(x).view(-1, 256))


@case(
    lambda: {"a": conv(3, 6), "b": nn.Linear(6, 4), "head": nn.Linear(4, 2), "n": 64, "c": 6},
    image(),
    half={"a.weight": (3,), "b.weight": (2, 3)},
)
def view_with_attributes(self, x):
    """Tokens and channels are attributes, as Swin's input resolution is."""
    x = self.a(x).flatten(2).transpose(1, 2)
    x = x.reshape(x.shape[0], self.n, self.c)
    return self.head(self.b(x).relu().mean(1))


@case(
    lambda: {"a": nn.Linear(6, 32), "b": conv(8, 4, 3), "head": conv(4, 2)},
    vector(),
    half={"a.weight": (16,), "b.weight": (2, 4)},
)
def view_makes_a_picture(self, x):
    """A vector becomes channels and pixels (a generator's first layer)."""
    return self.head(self.b(self.a(x).view(-1, 8, 2, 2)).relu())


# -- 6. flattening with pixels outside --------------------------------------------------------


@case(
    lambda: {"a": conv(3, 4), "b": nn.Linear(256, 2)},
    image(),
    half={"a.weight": (2,), "b.weight": (2, 128)},
)
def flatten_after_nhwc(self, x):
    """A channel's positions in the flat axis lie four apart."""
    return self.b(self.a(x).permute(0, 2, 3, 1).flatten(1))


@case(
    lambda: {"a": conv(3, 6, 4, stride=4), "norm": nn.LayerNorm(6), "b": nn.Linear(54, 2)},
    image(),
    half={"a.weight": (3,), "b.weight": (2, 27)},
    spanned=1,
    because="layer norm over the channels",
)
def channels_last_norm(self, x):
    """Norm over channels in NHWC, back, then flat (ConvNeXt)."""
    x = self.norm(self.a(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    return self.b(x.contiguous().flatten(1))


# -- 7. attention -----------------------------------------------------------------------------


@case(
    lambda: {"qkv": nn.Linear(8, 48), "out": nn.Linear(16, 8), "head": nn.Linear(8, 3)},
    tokens(),
    half={"qkv.weight": (12,), "out.weight": (8, 4)},
)
def attention_fused(self, x):
    """One layer gives q, k and v; 48 = 3 · 4 · 4, softmax spelt out."""
    b, n, _ = x.shape
    q, k, v = self.qkv(x).reshape(b, n, 3, 4, 4).permute(2, 0, 3, 1, 4)
    a = (q @ k.transpose(-2, -1) * 4**-0.5).softmax(-1)
    return self.head(x + self.out((a @ v).transpose(1, 2).reshape(b, n, 16)))


@case(
    lambda: {"qkv": nn.Linear(8, 48), "out": nn.Linear(16, 3)},
    tokens(),
    half={"qkv.weight": (12,), "out.weight": (3, 4)},
)
def attention_chunked(self, x):
    """The fused layer is cut with `chunk`, then seen as heads (GPT-2)."""
    q, k, v = (heads_of(t, 4) for t in self.qkv(x).chunk(3, -1))
    return self.out(heads_back(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


@case(
    lambda: {"qkv": nn.Linear(8, 48), "out": nn.Linear(16, 3)},
    tokens(),
    half={"qkv.weight": (12,), "out.weight": (3, 4)},
)
def attention_heads_outside(self, x):
    """Heads are the outer factor, q, k and v the middle one (BLOOM, GPT-NeoX)."""
    b, n, _ = x.shape
    q, k, v = self.qkv(x).view(b, n, 4, 12).transpose(1, 2).chunk(3, -1)
    return self.out(heads_back(F.scaled_dot_product_attention(q, k, v)))


@case(
    lambda: {
        "q": nn.Linear(8, 12),
        "k": nn.Linear(8, 12),
        "v": nn.Linear(8, 20),
        "out": nn.Linear(20, 3),
    },
    tokens(),
    half={"q.weight": (4,), "v.weight": (6,), "out.weight": (3, 6)},
)
def attention_wide_values(self, x):
    """Values have another size per head than queries and keys."""
    q, k, v = (heads_of(f(x), 4) for f in (self.q, self.k, self.v))
    a = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1)
    return self.out(heads_back(a @ v))


@case(
    lambda: {
        "q": nn.Linear(8, 16),
        "kv": nn.Linear(6, 32),
        "out": nn.Linear(16, 8),
        "head": nn.Linear(8, 3),
    },
    tokens(),
    _seeded(2, 4, 6),
    half={"q.weight": (4,), "kv.weight": (8,)},
)
def cross_attention(self, x, memory):
    """Queries and keys come from two inputs of different widths."""
    b, n, _ = memory.shape
    k, v = self.kv(memory).view(b, n, 2, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
    y = F.scaled_dot_product_attention(heads_of(self.q(x), 4), k, v)
    return self.head(x + self.out(heads_back(y)))


def _grouped_query() -> dict[str, Any]:
    return {
        "q": nn.Linear(16, 32),
        "k": nn.Linear(16, 16),
        "v": nn.Linear(16, 16),
        "out": nn.Linear(32, 3),
    }


GROUPED_QUERY = {"q.weight": (8,), "k.weight": (4,), "v.weight": (4,), "out.weight": (3, 8)}


@case(_grouped_query, tokens(16), half=GROUPED_QUERY)
def grouped_query_repeat_interleave(self, x):
    """Each of four key heads serves two of eight query heads."""
    q, k, v = heads_of(self.q(x), 8), heads_of(self.k(x), 4), heads_of(self.v(x), 4)
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    return self.out(heads_back(F.scaled_dot_product_attention(q, k, v)))


@case(_grouped_query, tokens(16), half=GROUPED_QUERY)
def grouped_query_expand(self, x):
    """The same by `expand` and `reshape` (Llama)."""

    def repeated(t):
        t = heads_of(t, 4)
        b, h, n, d = t.shape
        return t[:, :, None].expand(b, h, 2, n, d).reshape(b, 2 * h, n, d)

    q, k, v = heads_of(self.q(x), 8), repeated(self.k(x)), repeated(self.v(x))
    a = (q @ k.transpose(-1, -2) / math.sqrt(4)).softmax(-1)
    return self.out(heads_back(a @ v))


@case(_grouped_query, tokens(16), half=GROUPED_QUERY)
def grouped_query_flag(self, x):
    """The same as a flag of the attention operator."""
    q, k, v = heads_of(self.q(x), 8), heads_of(self.k(x), 4), heads_of(self.v(x), 4)
    return self.out(heads_back(F.scaled_dot_product_attention(q, k, v, enable_gqa=True)))


@case(
    lambda: {
        "q": nn.Linear(16, 32),
        "k": nn.Linear(16, 4),
        "v": nn.Linear(16, 4),
        "out": nn.Linear(32, 3),
    },
    tokens(16),
    half={"q.weight": (8,), "k.weight": (2,), "v.weight": (2,)},
)
def multi_query(self, x):
    """One key head is broadcast to all query heads."""
    q, k, v = heads_of(self.q(x), 8), heads_of(self.k(x), 1), heads_of(self.v(x), 1)
    a = (q @ k.transpose(-1, -2) * 0.5).softmax(-1)
    return self.out(heads_back(a @ v))


def _separate(**more: Any) -> dict[str, Any]:
    return {
        "q": nn.Linear(16, 16),
        "k": nn.Linear(16, 16),
        "v": nn.Linear(16, 16),
        "out": nn.Linear(16, 3),
        **more,
    }


SEPARATE = {"q.weight": (4,), "k.weight": (4,), "v.weight": (4,), "out.weight": (3, 4)}


def _angles(length: int, pairs: int) -> torch.Tensor:
    return torch.arange(float(length))[:, None] * torch.arange(1.0, pairs + 1)[None]


@case(
    lambda: _separate(
        cos=_angles(5, 2).cos().repeat(1, 2),
        sin=_angles(5, 2).sin().repeat(1, 2),
    ),
    tokens(16),
    half=SEPARATE,
)
def rotary_halves(self, x):
    """Each head's first half turns with its second; caches lie on the head's axis."""

    def turned(t):
        t = heads_of(t, 4)
        return t * self.cos + torch.cat([-t[..., 2:], t[..., :2]], -1) * self.sin

    y = F.scaled_dot_product_attention(turned(self.q(x)), turned(self.k(x)), heads_of(self.v(x), 4))
    return self.out(heads_back(y))


@case(
    lambda: _separate(cos=_angles(5, 2).cos(), sin=_angles(5, 2).sin()), tokens(16), half=SEPARATE
)
def rotary_pairs(self, x):
    """Neighbours turn together: even and odd positions are stacked and flattened (GPT-J)."""

    def turned(t):
        even, odd = heads_of(t, 4)[..., ::2], heads_of(t, 4)[..., 1::2]
        cos, sin = self.cos, self.sin
        return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)

    a = (turned(self.q(x)) @ turned(self.k(x)).mT / 2).softmax(-1)
    return self.out(heads_back(a @ heads_of(self.v(x), 4)))


@case(
    lambda: _separate(inverse=1.0 / torch.tensor([1.0, 10.0])),
    tokens(16),
    half=SEPARATE,
)
def rotary_computed(self, x):
    """Angles are computed in forward from the sequence's length."""
    angles = torch.arange(x.shape[1], device=x.device)[:, None] * self.inverse
    angles = torch.cat([angles, angles], -1)

    def turned(t):
        t = heads_of(t, 4)
        first, second = t.chunk(2, -1)
        return t * angles.cos() + torch.cat([-second, first], -1) * angles.sin()

    y = F.scaled_dot_product_attention(turned(self.q(x)), turned(self.k(x)), heads_of(self.v(x), 4))
    return self.out(heads_back(y))


@case(_separate, tokens(16), half=SEPARATE)
def attention_by_einsum(self, x):
    """Heads are letters of an einsum."""
    q, k, v = (f(x).unflatten(-1, (4, 4)) for f in (self.q, self.k, self.v))
    a = (torch.einsum("bnhd,bmhd->bhnm", q, k) / 2).softmax(-1)
    return self.out(torch.einsum("bhnm,bmhd->bnhd", a, v).flatten(2))


@case(_separate, tokens(16), half=SEPARATE)
def attention_by_bmm(self, x):
    """Heads join the batch, as in OPT and BART."""
    b, n, _ = x.shape
    q, k, v = (heads_of(f(x), 4).reshape(b * 4, n, 4) for f in (self.q, self.k, self.v))
    a = (torch.bmm(q, k.transpose(1, 2)) * 0.5).softmax(-1)
    y = torch.bmm(a, v).view(b, 4, n, 4)
    return self.out(heads_back(y))


@case(lambda: _separate(mask=torch.ones(5, 5).tril().bool()), tokens(16), half=SEPARATE)
def attention_causal_buffer(self, x):
    """A mask in a buffer, applied with `masked_fill` and sliced to the length (GPT-2)."""
    q, k, v = (heads_of(f(x), 4) for f in (self.q, self.k, self.v))
    n = x.shape[1]
    a = (q @ k.transpose(-1, -2) / 2).masked_fill(~self.mask[:n, :n], float("-inf"))
    return self.out(heads_back(a.softmax(-1) @ v))


@case(_separate, tokens(16), torch.ones(2, 5), half=SEPARATE)
def attention_additive_mask(self, x, keep):
    """A mask of the batch becomes a large negative bias (BERT)."""
    bias = (1.0 - keep[:, None, None, :]) * -1e4
    q, k, v = (heads_of(f(x), 4) for f in (self.q, self.k, self.v))
    return self.out(heads_back(F.scaled_dot_product_attention(q, k, v, attn_mask=bias)))


@case(lambda: _separate(scale=weight(4, 1, 1)), tokens(16), half=SEPARATE)
def attention_cosine(self, x):
    """Queries and keys of length one, and a learned scale per head (Swin v2)."""
    q, k, v = (heads_of(f(x), 4) for f in (self.q, self.k, self.v))
    a = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
    a = (a * self.scale.clamp(max=math.log(100.0)).exp()).softmax(-1)
    return self.out(heads_back(a @ v))


@case(
    lambda: _separate(before=nn.Linear(4, 4), after=nn.Linear(4, 4)),
    tokens(16),
    half={"q.weight": (4,), "v.weight": (4,), "before.weight": (2, 2)},
)
def attention_talking_heads(self, x):
    """A linear layer mixes the heads of the scores, before and after softmax."""
    q, k, v = (heads_of(f(x), 4) for f in (self.q, self.k, self.v))
    a = self.before((q @ k.transpose(-1, -2) / 2).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    a = self.after(a.softmax(-1).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    return self.out(heads_back(a @ v))


@case(
    lambda: _separate(norm_q=nn.LayerNorm(4), norm_k=nn.RMSNorm(4)),
    tokens(16),
    half=SEPARATE,
    spanned=1,
    because="norms over each head's positions",
)
def attention_normed_heads(self, x):
    """Norms over each head's positions (ViT-22B, Qwen3)."""
    q, k = self.norm_q(heads_of(self.q(x), 4)), self.norm_k(heads_of(self.k(x), 4))
    y = F.scaled_dot_product_attention(q, k, heads_of(self.v(x), 4))
    return self.out(heads_back(y))


@case(
    _separate,
    tokens(16),
    half=SEPARATE,
    spanned=1,
    because="positions of a head are summed after elu + 1",
)
def linear_attention_elu(self, x):
    """elu + 1 instead of softmax: zeros become ones, so a masked position still counts."""
    q, k, v = (heads_of(f(x), 4) for f in (self.q, self.k, self.v))
    q, k = F.elu(q) + 1, F.elu(k) + 1
    state = torch.einsum("bhnd,bhne->bhde", k, v)
    scale = 1 / torch.einsum("bhnd,bhd->bhn", q, k.sum(2))
    return self.out(heads_back(torch.einsum("bhnd,bhde,bhn->bhne", q, state, scale)))


@case(
    _separate,
    tokens(16),
    half=SEPARATE,
    spanned=1,
    because="positions of a head are summed after exp",
)
def linear_attention_exp(self, x):
    """exp as the feature map, the other order of products."""
    q, k, v = (heads_of(f(x), 4) for f in (self.q, self.k, self.v))
    q, k = q.exp(), k.exp()
    y = q @ (k.transpose(-1, -2) @ v) / (q @ k.sum(2, keepdim=True).mT)
    return self.out(heads_back(y))


@case(
    _separate,
    tokens(16),
    half=SEPARATE,
    spanned=1,
    because="a softmax over each head's positions",
)
def linear_attention_softmax(self, x):
    """Softmax of queries over the head, of keys over the tokens (efficient attention)."""
    q, k, v = (heads_of(f(x), 4) for f in (self.q, self.k, self.v))
    return self.out(heads_back(q.softmax(-1) @ (k.softmax(-2).mT @ v)))


@case(
    lambda: {
        "qkv": nn.Linear(8, 24),
        "out": nn.Linear(8, 8),
        "table": weight(9, 2),
        "index": (torch.arange(4)[:, None] - torch.arange(4)[None] + 4),
        "head": nn.Linear(8, 3),
    },
    _seeded(2, 4, 4, 8),
    half={"qkv.weight": (6,), "table": (9, 1), "out.weight": (8, 2)},
    share=0.85,
    because="the head reads the input's width",
)
def window_attention_shifted(self, x):
    """Roll, cut into windows, attend with a position table by heads, and all the way back."""
    b, h, w, c = x.shape
    y = torch.roll(x, (-1, -1), (1, 2))
    y = y.view(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
    q, k, v = self.qkv(y).reshape(-1, 4, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
    bias = self.table[self.index.view(-1)].view(4, 4, -1).permute(2, 0, 1).contiguous()
    a = (q * 0.5 @ k.transpose(-2, -1) + bias.unsqueeze(0)).softmax(-1)
    y = self.out((a @ v).transpose(1, 2).reshape(-1, 4, 8))
    y = y.view(b, h // 2, w // 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
    return self.head(x + torch.roll(y, (1, 1), (1, 2)))


@case(
    lambda: {
        "qkv": nn.Linear(8, 24, bias=False),
        "q_bias": weight(8),
        "v_bias": weight(8),
        "out": nn.Linear(8, 2),
    },
    tokens(),
    half={"qkv.weight": (6,), "q_bias": (2,), "out.weight": (2, 2)},
)
def attention_split_bias(self, x):
    """Bias of q and v are parameters, that of k is zero; all are concatenated (BEiT)."""
    b, n, _ = x.shape
    bias = torch.cat([self.q_bias, torch.zeros_like(self.v_bias, requires_grad=False), self.v_bias])
    q, k, v = F.linear(x, self.qkv.weight, bias).reshape(b, n, 3, 2, 4).permute(2, 0, 3, 1, 4)
    return self.out(heads_back(F.scaled_dot_product_attention(q, k, v)))


@case(
    lambda: {"query": weight(1, 3, 12), "kv": nn.Linear(8, 24), "out": nn.Linear(12, 2)},
    tokens(),
    half={"query": (1, 2, 4), "kv.weight": (8,), "out.weight": (2, 4)},
    spanned=1,
    because="the latents themselves are an axis, over which a mean runs",
)
def attention_learned_queries(self, x):
    """Three learned latents ask (Perceiver)."""
    k, v = self.kv(x).chunk(2, -1)
    q = self.query.expand(x.shape[0], -1, -1)
    q, k, v = (heads_of(t, 3) for t in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v)
    return self.out(heads_back(y).mean(1))


@case(
    lambda: {
        "q": nn.Linear(8, 12),
        "down": nn.Linear(8, 6),
        "k": nn.Linear(6, 12),
        "v": nn.Linear(6, 15),
        "out": nn.Linear(15, 2),
    },
    tokens(),
    half={"q.weight": (4,), "down.weight": (3,), "v.weight": (6,)},
)
def attention_latent(self, x):
    """Keys and values come through a narrow layer (DeepSeek)."""
    latent = self.down(x)
    q, k, v = (heads_of(t, 3) for t in (self.q(x), self.k(latent), self.v(latent)))
    return self.out(heads_back(F.scaled_dot_product_attention(q, k, v)))


@case(
    lambda: {"qkv": conv(6, 24), "pe": conv(8, 8, 3, groups=8), "out": conv(8, 2)},
    image(6, 4),
    half={"qkv.weight": (6,), "out.weight": (2, 2)},
)
def attention_on_pictures(self, x):
    """Heads of a convolution; a depthwise position encoding of the values (YOLO)."""
    b, _, h, w = x.shape
    q, k, v = self.qkv(x).view(b, 2, 12, h * w).split([4, 4, 4], 2)
    a = (q.transpose(-2, -1) @ k * 0.5).softmax(-1)
    y = (v @ a.transpose(-2, -1)).view(b, 8, h, w) + self.pe(v.reshape(b, 8, h, w))
    return self.out(y)


@case(
    lambda: {
        "q": nn.Linear(8, 12),
        "k": nn.Linear(8, 12),
        "v": nn.Linear(8, 12),
        "out": nn.Linear(12, 2),
    },
    tokens(),
    half={"v.weight": (4,), "q.weight": (4,), "out.weight": (2, 4)},
    spanned=1,
    because="softmax over the keys' channels",
)
def attention_over_channels(self, x):
    """Channels attend to channels: softmax runs over a channel axis (XCiT, Restormer)."""
    q, k, v = (heads_of(f(x), 3).transpose(-1, -2) for f in (self.q, self.k, self.v))
    a = (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-1, -2)).softmax(-1)
    return self.out(heads_back((a @ v).transpose(-1, -2)))


# -- 8. nn.MultiheadAttention and nn.Transformer ----------------------------------------------


@case(
    lambda: {
        "embed": nn.Linear(8, 16),
        "attend": nn.MultiheadAttention(16, 4, batch_first=True),
        "head": nn.Linear(16, 3),
    },
    tokens(),
    half={"embed.weight": (8,), "attend.in_proj_weight": (12, 8), "head.weight": (3, 8)},
)
def multihead(self, x):
    """Packed in-projection through the fast path."""
    x = self.embed(x)
    return self.head(x + self.attend(x, x, x, need_weights=False)[0])


@case(
    lambda: {
        "embed": nn.Linear(8, 16),
        "attend": nn.MultiheadAttention(16, 4, batch_first=True),
        "head": nn.Linear(16, 3),
    },
    tokens(),
    half={"embed.weight": (8,), "attend.in_proj_weight": (12, 8)},
    spanned=1,
    because="the weights that come out are a mean over the heads",
)
def multihead_weights(self, x):
    """Averaged attention weights are an output."""
    x = self.embed(x)
    y, weights = self.attend(x, x, x)
    return self.head(x + y), weights


@case(
    lambda: {
        "attend": nn.MultiheadAttention(12, 3, kdim=8, vdim=6, batch_first=True),
        "head": nn.Linear(12, 3),
    },
    tokens(12),
    tokens(8),
    tokens(6),
    half={"attend.q_proj_weight": (4,), "attend.k_proj_weight": (4,), "attend.v_proj_weight": (4,)},
)
def multihead_separate(self, query, key, value):
    """Three projections, since keys and values have other widths."""
    return self.head(self.attend(query, key, value, need_weights=False)[0])


@case(
    lambda: {
        "embed": nn.Linear(8, 12),
        "attend": nn.MultiheadAttention(12, 3, batch_first=True, add_bias_kv=True),
        "head": nn.Linear(12, 3),
    },
    tokens(),
    torch.zeros(2, 5, dtype=torch.bool),
    half={"embed.weight": (6,), "attend.out_proj.weight": (6, 4)},
)
def multihead_padding(self, x, padding):
    """Keys are left out by a mask of the batch, and one learned key is added."""
    x = self.embed(x)
    return self.head(self.attend(x, x, x, key_padding_mask=padding, need_weights=False)[0])


@case(
    lambda: {
        "embed": nn.Embedding(11, 16),
        "body": nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True), 2
        ),
        "head": nn.Linear(16, 3),
    },
    words(),
    half={"embed.weight": (11, 8), "body.layers.1.linear1.weight": (16, 8)},
    spanned=1,
    because="layer norms over the model's width",
)
def transformer_encoder(self, x):
    """PyTorch's own encoder, which has a fast path of its own in eval mode."""
    return self.head(self.body(self.embed(x)))


@case(
    lambda: {
        "a": nn.Linear(6, 16),
        "b": nn.Linear(8, 16),
        "body": nn.TransformerDecoderLayer(
            16, 4, 24, dropout=0.0, batch_first=True, norm_first=True
        ),
        "head": nn.Linear(16, 3),
    },
    tokens(6),
    _seeded(2, 4, 8),
    half={"a.weight": (8,), "body.linear1.weight": (12, 8), "b.weight": (8,)},
    spanned=1,
    because="layer norms over the model's width",
)
def transformer_decoder(self, x, memory):
    """Self and cross attention, norms first; the memory has its own axis."""
    return self.head(self.body(self.a(x), self.b(memory)))


# -- 9. grouped convolutions ------------------------------------------------------------------


@case(
    lambda: {
        "a": conv(3, 8),
        "g": conv(8, 16, 3, groups=4),
        "d": conv(16, 32, 3, groups=16),
        "t": nn.ConvTranspose2d(32, 16, 2, 2, groups=4),
        "head": conv(16, 2),
    },
    image(),
    half={"g.weight": (4,), "d.weight": (4,), "t.weight": (4,), "head.weight": (2, 4)},
)
def grouped_chain(self, x):
    """1 < groups < channels, a depthwise multiplier of 2, transposed in groups."""
    return self.head(self.t(self.d(self.g(self.a(x)))))


@case(
    lambda: {
        "stem": conv(3, 12),
        "a": conv(12, 8),
        "g": conv(8, 8, 3, groups=2),
        "b": conv(8, 12),
        "norm": nn.BatchNorm2d(12),
        "head": conv(12, 2),
    },
    image(),
    half={"stem.weight": (6,), "a.weight": (2, 6), "b.weight": (6, 2)},
)
def resnext(self, x):
    """A residual block with a grouped middle."""
    x = self.stem(x)
    y = self.norm(self.b(self.g(self.a(x).relu()).relu()))
    return self.head((x + y).relu())


@case(
    lambda: {
        "a": nn.Conv1d(3, 8, 1),
        "g": nn.Conv1d(8, 12, 3, padding=1, groups=2),
        "t": nn.ConvTranspose1d(12, 8, 2, 2, groups=4),
        "head": nn.Conv1d(8, 2, 1),
    },
    _seeded(2, 3, 10),
    half={"a.weight": (2,), "g.weight": (2,), "head.weight": (2, 1)},
)
def grouped_conv1d(self, x):
    """The same in one dimension; four groups after two."""
    return self.head(self.t(self.g(self.a(x)).relu()))


@case(
    lambda: {
        "a": conv(3, 8),
        "two": conv(8, 12, groups=2),
        "three": conv(12, 6, groups=3),
        "head": conv(6, 2),
    },
    image(),
    half={"a.weight": (4,), "head.weight": (2, 3)},
    share=0.6,
    because="12 channels are 2 × 6 and 3 × 4: no part of one is a part of the other",
)
def groups_that_do_not_divide(self, x):
    """Three groups after two of the same axis."""
    return self.head(self.three(self.two(self.a(x))).relu())


@case(
    lambda: {
        "a": nn.Conv3d(2, 6, 3, padding=1),
        "norm": nn.BatchNorm3d(6),
        "g": nn.Conv3d(6, 6, 1, groups=3),
        "t": nn.ConvTranspose3d(6, 4, 2, 2),
        "head": nn.Linear(4, 2),
    },
    _seeded(2, 2, 4, 4, 4),
    half={"a.weight": (2,), "t.weight": (2, 2), "head.weight": (2, 2)},
)
def conv3d(self, x):
    """Three dimensions, grouped, transposed, pooled to one number."""
    x = self.t(self.g(self.norm(self.a(x)).relu()))
    return self.head(F.adaptive_avg_pool3d(x, 1).flatten(1))


@case(
    lambda: {
        "a": conv(3, 6),
        "d": conv(6, 18, 3, groups=6),
        "b": conv(18, 5),
        "head": conv(5, 2),
    },
    image(),
    half={"a.weight": (3,), "d.weight": (6,), "b.weight": (3, 6)},
)
def depthwise_multiplier(self, x):
    """Each channel has three filters of its own (separable convolution)."""
    return self.head(self.b(self.d(self.a(x)).relu()).relu())


# -- 10. norms --------------------------------------------------------------------------------


@case(
    lambda: {
        "a": conv(3, 8),
        "group": nn.GroupNorm(2, 8),
        "instance": nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
        "b": conv(8, 6),
        "plain": nn.InstanceNorm2d(6),
        "head": conv(6, 2),
    },
    image(),
    half={"a.weight": (2,), "group.weight": (2,), "b.weight": (3, 2)},
    spanned=1,
    because="group norm runs over the positions of a group",
)
def group_and_instance_norm(self, x):
    """Groups of a norm are a factor of the channels; instance norm with and without statistics."""
    return self.head(self.plain(self.b(self.instance(self.group(self.a(x))).relu())))


@case(
    lambda: {
        "embed": nn.Linear(8, 12),
        "layer": nn.LayerNorm(12),
        "root": nn.RMSNorm(12),
        "head": nn.Linear(12, 2),
    },
    tokens(),
    half={"embed.weight": (6,), "layer.weight": (6,), "root.weight": (6,)},
    spanned=1,
    because="norms over the model's width",
)
def layer_and_rms_norm(self, x):
    """`normalized_shape` follows the width."""
    return self.head(self.root(self.layer(self.embed(x))).mean(1))


@case(
    lambda: {"embed": nn.Linear(8, 12), "scale": weight(12), "head": nn.Linear(12, 2)},
    tokens(),
    half={"embed.weight": (6,), "scale": (6,)},
    spanned=1,
    because="a mean over the model's width",
)
def rms_norm_spelt(self, x):
    """RMS norm written with `pow`, `mean` and `rsqrt` (Llama)."""
    x = self.embed(x)
    return self.head(self.scale * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)))


@case(
    lambda: {"a": conv(3, 8), "gain": weight(8), "bias": weight(8), "head": conv(8, 2)},
    image(),
    half={"a.weight": (4,), "gain": (4,)},
    spanned=1,
    because="mean and variance over the channels",
)
def layer_norm_spelt(self, x):
    """Mean and variance over channels, first in NCHW (ConvNeXt)."""
    x = self.a(x)
    mean = x.mean(1, keepdim=True)
    variance = (x - mean).pow(2).mean(1, keepdim=True)
    x = (x - mean) / torch.sqrt(variance + 1e-6)
    return self.head(self.gain[:, None, None] * x + self.bias[:, None, None])


@case(
    lambda: {"a": conv(3, 6), "norm": nn.LayerNorm([6, 8, 8]), "head": conv(6, 2)},
    image(),
    half={"a.weight": (3,), "norm.weight": (3, 8, 8)},
    spanned=1,
    because="a norm over channels and pixels",
)
def layer_norm_over_pixels(self, x):
    """Three dimensions are normalised together."""
    return self.head(self.norm(self.a(x)).relu())


@case(
    lambda: {
        "stem": nn.Sequential(conv(3, 8, 3), nn.GroupNorm(4, 8), nn.ReLU()),
        "body": nn.Sequential(
            nn.GroupNorm(4, 8),
            nn.ReLU(),
            conv(8, 12, 3),
            nn.GroupNorm(1, 12),
            nn.ReLU(),
            conv(12, 8, 3),
        ),
        "down": nn.Sequential(conv(8, 16, 1, stride=2), nn.GroupNorm(16, 16)),
        "head": nn.Linear(16, 2),
    },
    image(),
    half={"stem.0.weight": (2,), "body.2.weight": (6, 2), "down.0.weight": (8, 2)},
    spanned=2,
    because="group norm runs over the positions of a group",
)
def group_norm_resnet(self, x):
    """Norms with 4 groups, with one, and with one per channel, around a residual."""
    x = self.stem(x)
    return self.head(self.down(x + self.body(x)).relu().mean((2, 3)))


@case(
    lambda: {"a": conv(3, 6), "gamma": weight(6), "beta": weight(6), "head": conv(6, 2)},
    image(),
    half={"a.weight": (3,), "gamma": (3,)},
    spanned=1,
    because="each channel is divided by the mean over all",
)
def response_norm(self, x):
    """Global response norm: a channel's norm relative to the mean of all (ConvNeXt v2)."""
    x = self.a(x).permute(0, 2, 3, 1)
    size = torch.norm(x, p=2, dim=(1, 2), keepdim=True)
    scale = size / (size.mean(-1, keepdim=True) + 1e-6)
    return self.head((self.gamma * (x * scale) + self.beta + x).permute(0, 3, 1, 2))


@case(
    lambda: {"a": nn.Linear(8, 12), "norm": nn.BatchNorm1d(12), "head": nn.Linear(12, 2)},
    tokens(),
    half={"a.weight": (6,), "norm.running_var": (6,)},
)
def batch_norm_of_tokens(self, x):
    """Batch norm on a transposed sequence."""
    return self.head(self.norm(self.a(x).transpose(1, 2)).transpose(1, 2).relu())


@case(
    lambda: {"a": nn.Linear(6, 12), "head": nn.Linear(12, 3, bias=False)},
    vector(),
    half={"a.weight": (6,), "head.weight": (3, 6)},
)
def normalised_features(self, x):
    """Features and class weights of length one (cosine classifier): zeros add nothing."""
    return 8.0 * F.linear(F.normalize(self.a(x)), F.normalize(self.head.weight))


# -- 11. concatenations -----------------------------------------------------------------------


@case(
    lambda: {"a": conv(3, 4), "b": conv(3, 6), "head": conv(14, 2)},
    image(),
    half={"a.weight": (2,), "b.weight": (3,), "head.weight": (2, 7)},
)
def concatenated_twice(self, x):
    """The same tensor stands at two places of a concatenation."""
    a = self.a(x)
    return self.head(torch.cat([a, self.b(x), a], 1))


@case(
    lambda: {
        "stem": conv(3, 6),
        "layers": nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(6 + 4 * i), nn.ReLU(), conv(6 + 4 * i, 4, 3))
            for i in range(3)
        ),
        "transition": conv(18, 8),
        "head": conv(8, 2),
    },
    image(),
    half={"stem.weight": (3,), "layers.2.2.weight": (2, 7), "transition.weight": (4, 9)},
)
def dense_block(self, x):
    """Every layer reads all before it."""
    found = [self.stem(x)]
    for layer in self.layers:
        found.append(layer(torch.cat(found, 1)))
    return self.head(self.transition(torch.cat(found, 1)).relu())


@case(
    lambda: {
        "a": conv(3, 4),
        "b": conv(3, 8),
        "c": conv(3, 6),
        "d": conv(3, 6),
        "head": conv(12, 2),
    },
    image(),
    half={"a.weight": (2,), "b.weight": (4,), "c.weight": (3,), "d.weight": (3,)},
)
def sum_of_concatenations(self, x):
    """4 + 8 meets 6 + 6: common cuts are at 4 and 6."""
    return self.head(torch.cat([self.a(x), self.b(x)], 1) + torch.cat([self.c(x), self.d(x)], 1))


@case(
    lambda: {"z": conv(3, 6), "a": conv(3, 10), "b": conv(10, 4), "head": conv(4, 2)},
    image(),
    half={"z.weight": (3,), "a.weight": (5,), "b.weight": (2, 5)},
)
def partial_add(self, x):
    """A slice is added to, then put back."""
    a = self.a(x)
    y = torch.cat([a[:, :6] + self.z(x), a[:, 6:]], 1)
    return self.head(self.b(y).relu())


@case(
    lambda: {"z": conv(3, 12), "a": conv(12, 10), "b": conv(14, 4), "head": conv(4, 2)},
    image(),
    half={"z.weight": (6,), "a.weight": (5, 6), "b.weight": (2, 7)},
)
def dual_path(self, x):
    """One part adds, the other grows (DPN)."""
    x = self.z(x)
    y = self.a(x)
    sum_, dense = x[:, :8] + y[:, :8], torch.cat([x[:, 8:], y[:, 8:]], 1)
    return self.head(self.b(torch.cat([sum_, dense], 1)).relu())


@case(
    lambda: {"a": conv(3, 4), "b": conv(3, 4), "c": conv(4, 6), "head": conv(6, 2)},
    image(),
    half={"a.weight": (2,), "b.weight": (2,), "c.weight": (3, 2)},
    spanned=1,
    because="the gate is a mean over channels",
)
def stacked_and_summed(self, x):
    """Branches are stacked on a new axis, weighted and summed (selective kernels)."""
    y = torch.stack([self.a(x), self.b(x)], 1)
    gate = y.mean((2, 3, 4)).softmax(1)
    return self.head(self.c((y * gate[:, :, None, None, None]).sum(1)).relu())


@case(
    lambda: {"a": conv(3, 6), "pool": nn.MaxPool2d(3, 1, 1), "b": conv(24, 8), "head": conv(8, 2)},
    image(),
    half={"a.weight": (3,), "b.weight": (4, 12), "head.weight": (2, 4)},
)
def pyramid_of_pools(self, x):
    """A tensor and three pools of it share one axis, four times in a row (SPPF)."""
    found = [self.a(x).relu()]
    for _ in range(3):
        found.append(self.pool(found[-1]))
    return self.head(self.b(torch.cat(found, 1)).relu())


# -- 12. residuals with what is fixed ---------------------------------------------------------


@case(
    lambda: {"a": conv(8, 6), "b": conv(6, 8), "c": conv(8, 4), "head": conv(4, 2)},
    image(8),
    half={"a.weight": (3,), "b.weight": (8, 3), "c.weight": (2, 8)},
)
def residual_with_input(self, x):
    """The network's input fixes the width of what is added to it."""
    return self.head(self.c(x + self.b(self.a(x).relu())).relu())


def _frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


@case(
    lambda: {"a": _frozen(conv(3, 8, 3)), "b": conv(3, 8), "head": conv(8, 2)},
    image(),
    half={"a.weight": (4,), "b.weight": (4,)},
)
def residual_with_frozen(self, x):
    """Half of a sum is not trained."""
    return self.head((self.a(x) + self.b(x)).relu())


@case(
    lambda: {"a": conv(3, 8, 3), "b": conv(8, 8), "head": conv(8, 2)},
    image(),
    half={"a.weight": (4,), "b.weight": (4, 4)},
)
def residual_with_detached(self, x):
    """A branch passes no gradient back."""
    x = self.a(x)
    return self.head(x.detach() + self.b(x).relu())


@case(
    lambda: {
        "features": nn.Sequential(conv(3, 6, 3), nn.ReLU(), conv(6, 8, 3), nn.ReLU()),
        "a": conv(8, 8),
        "head": nn.Linear(8, 2),
    },
    image(),
    half={"features.0.weight": (3,), "features.2.weight": (4, 3), "a.weight": (4, 4)},
)
def extractor_without_gradients(self, x):
    """Features are computed under `no_grad` (federated fine-tuning)."""
    with torch.no_grad():
        x = self.features(x)
    return self.head((x + self.a(x)).mean((2, 3)))


# -- 13. buffers and tables -------------------------------------------------------------------


@case(
    lambda: {
        "a": conv(3, 6),
        "scale": _seeded(6).abs() + 0.5,
        "shift": _seeded(6, 1, 1),
        "head": conv(6, 2),
    },
    image(),
    half={"a.weight": (3,), "scale": (3,), "shift": (3, 1, 1)},
    spanned=1,
    because="a masked divisor is zero, and so is what it divides",
)
def buffers_on_channels(self, x):
    """Frozen statistics, stored flat and stored with two more dimensions."""
    x = (self.a(x) - self.shift) / self.scale.reshape(1, -1, 1, 1)
    return self.head(x.relu())


@case(
    lambda: {
        "embed": nn.Linear(8, 12),
        "position": weight(1, 9, 12),
        "wave": torch.cat([_angles(9, 6).sin(), _angles(9, 6).cos()], 1),
        "head": nn.Linear(12, 2),
    },
    tokens(),
    # Rows beyond the sequence, which nothing reads, may go: five stay and half of four.
    half={"embed.weight": (6,), "position": (1, 7, 6), "wave": (9, 6)},
)
def positions_learned_and_fixed(self, x):
    """Position tables are longer than the sequence and cut to it."""
    n = x.shape[1]
    return self.head((self.embed(x) + self.position[:, :n] + self.wave[:n]).relu())


@case(
    lambda: {
        "word": nn.Embedding(11, 8),
        "place": nn.Embedding(7, 8),
        "ids": torch.arange(7)[None],
        "norm": nn.LayerNorm(8),
        "head": nn.Linear(8, 2),
    },
    words(),
    half={"word.weight": (11, 4), "place.weight": (7, 4), "norm.weight": (4,)},
    spanned=1,
    because="layer norm over the model's width",
)
def positions_by_embedding(self, x):
    """Position numbers are a buffer, cut to the length (BERT)."""
    ids = self.ids[:, : x.shape[1]]
    return self.head(self.norm(self.word(x) + self.place(ids)))


@case(
    lambda: _separate(table=nn.Embedding(4, 4), index=torch.randint(0, 4, (5, 5))),
    tokens(16),
    half={**SEPARATE, "table.weight": (4, 2)},
)
def relative_positions_by_embedding(self, x):
    """A bias per head, looked up by bucket (T5)."""
    bias = self.table(self.index).permute(2, 0, 1).unsqueeze(0)
    q, k, v = (heads_of(f(x), 4) for f in (self.q, self.k, self.v))
    return self.out(heads_back((q @ k.transpose(-1, -2) + bias).softmax(-1) @ v))


@case(
    lambda: _separate(
        small=nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 4, bias=False)),
        offsets=_seeded(9, 2),
        index=(torch.arange(5)[:, None] - torch.arange(5)[None] + 4),
    ),
    tokens(16),
    half={**SEPARATE, "small.0.weight": (3,), "small.2.weight": (2, 3)},
)
def relative_positions_by_network(self, x):
    """The table comes out of a small network (Swin v2)."""
    table = self.small(self.offsets).view(-1, 4)
    bias = 16 * table[self.index.view(-1)].view(5, 5, -1).permute(2, 0, 1).sigmoid()
    q, k, v = (heads_of(f(x), 4) for f in (self.q, self.k, self.v))
    return self.out(heads_back((q @ k.mT / 2 + bias[None]).softmax(-1) @ v))


@case(
    lambda: _separate(table=weight(9, 4)),
    tokens(16),
    half={**SEPARATE, "table": (9, 2)},
)
def relative_positions_by_key(self, x):
    """Queries meet a table of relative keys, shared by all heads (Shaw, Wav2Vec2's kin)."""
    q, k, v = (heads_of(f(x), 4) for f in (self.q, self.k, self.v))
    index = torch.arange(5)[:, None] - torch.arange(5)[None] + 4
    places = torch.einsum("bhld,lrd->bhlr", q, self.table[index])
    return self.out(heads_back(((q @ k.mT + places) / 2).softmax(-1) @ v))


@case(
    lambda: _separate(table=weight(9, 16), height=weight(1, 4, 5, 4)),
    tokens(16),
    half={**SEPARATE, "table": (7, 4), "height": (1, 2, 5, 2)},
)
def position_tables_by_heads(self, x):
    """A table is viewed as heads (Transformer-XL); another has an axis for them (BoTNet)."""
    q, k, v = (heads_of(f(x), 4) for f in (self.q, self.k, self.v))
    places = self.table.view(9, 4, 4).transpose(0, 1)[:, :5]
    a = (q + self.height) @ (k + places).transpose(-2, -1) / 2
    return self.out(heads_back(a.softmax(-1) @ v))


@case(
    lambda: {"a": conv(3, 6), "average": torch.zeros(6), "head": conv(6, 2)},
    image(),
    half={"a.weight": (3,), "average": (3,)},
)
def buffer_written_in_training(self, x):
    """A moving average that forward itself updates."""
    x = self.a(x)
    if self.training:
        self.average.mul_(0.9).add_(0.1 * x.detach().mean((0, 2, 3)))
    return self.head((x - self.average[:, None, None]).relu())


# -- 14. bare parameters ----------------------------------------------------------------------


@case(
    lambda: {"a": conv(3, 8), "gamma": weight(8), "b": conv(8, 8, 3), "head": conv(8, 2)},
    image(),
    half={"a.weight": (4,), "gamma": (4,), "b.weight": (4, 4)},
)
def layer_scale(self, x):
    """A parameter is viewed onto the channel axis."""
    x = self.a(x)
    return self.head(x + self.gamma.view(1, -1, 1, 1) * self.b(x))


@case(
    lambda: {
        "embed": nn.Linear(8, 12),
        "cls": weight(1, 1, 12),
        "position": weight(1, 6, 12),
        "mix": nn.Linear(12, 12),
        "head": nn.Linear(12, 2),
    },
    tokens(),
    half={"embed.weight": (6,), "cls": (1, 1, 6), "position": (1, 6, 6), "mix.weight": (6, 6)},
)
def class_token(self, x):
    """A token is expanded over the batch, put in front, and read at the end."""
    x = torch.cat([self.cls.expand(x.shape[0], -1, -1), self.embed(x)], 1) + self.position
    return self.head((x + self.mix(x).relu())[:, 0])


@case(
    lambda: {
        "a": weight(6, 3, 3, 3),
        "bias": weight(6),
        "b": weight(4, 6, 1, 1),
        "c": weight(2, 4),
    },
    image(),
    half={"a": (3, 3), "bias": (3,), "b": (2, 3), "c": (2, 2)},
)
def functional_convolution(self, x):
    """`F.conv2d` and `F.linear` on bare parameters."""
    x = F.conv2d(x, self.a, self.bias, padding=1).relu()
    return F.linear(F.conv2d(x, self.b).mean((2, 3)), self.c)


@case(
    lambda: {"a": conv(3, 8), "mix": weight(8, 6), "head": conv(6, 2)},
    image(),
    half={"a.weight": (4,), "mix": (4, 3), "head.weight": (2, 3)},
)
def einsum_weight(self, x):
    """A weight as an operand of einsum."""
    return self.head(torch.einsum("bchw,cd->bdhw", self.a(x), self.mix).relu())


@case(
    lambda: {"up": weight(8, 12), "bias": weight(12), "down": weight(12, 3)},
    tokens(),
    half={"up": (8, 6), "bias": (6,), "down": (6, 3)},
)
def matmul_weights(self, x):
    """`x @ w + b` on bare parameters."""
    return torch.tanh(x @ self.up + self.bias) @ self.down


@case(
    lambda: {"a": conv(3, 6), "norm": nn.PReLU(6), "one": nn.PReLU(), "head": conv(6, 2)},
    image(),
    half={"a.weight": (3,), "norm.weight": (3,)},
)
def prelu(self, x):
    """An activation with a slope per channel, and one for all."""
    return self.head(self.one(self.norm(self.a(x))))


@case(
    lambda: {"per_head": weight(4, 8, 4), "out": weight(4, 4, 3)},
    tokens(),
    half={"per_head": (2, 8, 2), "out": (2, 2, 3)},
)
def weights_with_head_axis(self, x):
    """Weights with an axis of their own for the heads (JAX style)."""
    y = torch.einsum("bnc,hcd->bhnd", x, self.per_head)
    y = F.scaled_dot_product_attention(y, y, y)
    return torch.einsum("bhnd,hdo->bno", y, self.out)


# -- 15. padding and repeating channels -------------------------------------------------------


@case(
    lambda: {"z": conv(3, 4), "a": conv(4, 8, 3, stride=2), "head": conv(8, 2)},
    image(),
    half={"z.weight": (2,), "a.weight": (4, 2)},
    because="channels that are added to padding have no partner to follow",
)
def shortcut_padded(self, x):
    """Option A of ResNet: half of the pixels, zeros for the new channels."""
    x = self.z(x)
    return self.head((self.a(x) + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2))).relu())


@case(
    lambda: {"z": conv(3, 4), "a": conv(4, 8, 3), "head": conv(8, 2)},
    image(),
    half={"z.weight": (2,), "a.weight": (4, 2)},
    because="channels that are added to zeros have no partner to follow",
)
def shortcut_with_zeros(self, x):
    """The same by concatenating `new_zeros`."""
    x = self.z(x)
    b, _, h, w = x.shape
    return self.head((self.a(x) + torch.cat([x, x.new_zeros(b, 4, h, w)], 1)).relu())


@case(
    lambda: {"z": conv(3, 4), "a": conv(4, 8), "head": conv(8, 2)},
    image(),
    half={"z.weight": (2,), "a.weight": (4, 2)},
)
def repeated_channels(self, x):
    """Every channel appears twice, far apart."""
    x = self.z(x)
    return self.head(self.a(x) + x.repeat(1, 2, 1, 1))


@case(
    lambda: {"z": conv(3, 4), "a": conv(4, 12), "head": conv(12, 2)},
    image(),
    half={"z.weight": (2,), "a.weight": (6, 2), "head.weight": (2, 6)},
)
def tiled_channels(self, x):
    """`tile` leaves out the batch axis; copies lie far apart."""
    x = self.z(x)
    return self.head(self.a(x).relu() * x.tile(3, 1, 1))


@case(
    lambda: {"z": conv(3, 4), "a": conv(4, 12), "head": conv(12, 2)},
    image(),
    half={"z.weight": (2,), "a.weight": (6, 2), "head.weight": (2, 6)},
)
def interleaved_channels(self, x):
    """`repeat_interleave`: copies lie side by side."""
    x = self.z(x)
    return self.head(self.a(x).relu() * x.repeat_interleave(3, dim=1))


@case(
    lambda: {"z": conv(3, 4), "a": conv(4, 12), "head": conv(12, 2)},
    image(),
    share=0.0,
    because="channel c lies at c, c + 4, c + 8 and at 3c, 3c + 1, 3c + 2: no cut fits both",
)
def tiled_and_interleaved(self, x):
    """`tile` and `repeat_interleave`: far apart and side by side."""
    x = self.z(x)
    y = self.a(x).relu() * x.tile(3, 1, 1)
    return self.head(y + x.repeat_interleave(3, dim=1))


@case(
    lambda: {"z": conv(3, 5), "cheap": conv(5, 5, 3, groups=5), "head": conv(8, 2)},
    image(),
    half={"z.weight": (3,), "head.weight": (2, 5)},
)
def ghost_slice(self, x):
    """More channels than wanted, cut by a slice (GhostNet)."""
    x = self.z(x)
    return self.head(torch.cat([x, self.cheap(x)], 1)[:, :8])


@case(
    lambda: {"z": nn.Linear(6, 4), "a": nn.Linear(12, 5), "head": nn.Linear(5, 2)},
    vector(),
    half={"z.weight": (2,), "a.weight": (3, 4)},
)
def expanded_and_flattened(self, x):
    """A vector is expanded on a new axis, which then joins the channels."""
    x = self.z(x).unsqueeze(1).expand(-1, 3, -1).reshape(-1, 12)
    return self.head(self.a(x).relu())


@case(
    lambda: {"z": conv(3, 6), "a": conv(6, 4), "head": conv(4, 2)},
    image(),
    half={"a.weight": (2,)},
    share=0.4,
    because="rolling by one moves every channel to its neighbour's place",
)
def rolled_channels(self, x):
    """A shift along the channel axis: positions are not interchangeable."""
    x = self.z(x)
    return self.head(self.a(x + x.roll(1, 1)).relu())


# -- 16. token mixing -------------------------------------------------------------------------


@case(
    lambda: {
        "embed": nn.Conv2d(3, 12, 4, 4),
        "norms": nn.ModuleList(nn.LayerNorm(12) for _ in range(3)),
        "spatial": nn.Sequential(nn.Linear(4, 10), nn.GELU(), nn.Linear(10, 4)),
        "channel": nn.Sequential(nn.Linear(12, 20), nn.GELU(), nn.Linear(20, 12)),
        "head": nn.Linear(12, 2),
    },
    image(),
    half={"spatial.0.weight": (5, 4), "channel.0.weight": (10, 6), "embed.weight": (6,)},
    spanned=1,
    because="layer norms over the model's width",
)
def mlp_mixer(self, x):
    """A perceptron over tokens and one over channels: independent axes."""
    x = self.embed(x).flatten(2).transpose(1, 2)
    x = x + self.spatial(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
    x = x + self.channel(self.norms[1](x))
    return self.head(self.norms[2](x).mean(1))


@case(
    lambda: {
        "up": nn.Linear(8, 20),
        "norm": nn.LayerNorm(10),
        "over": nn.Conv1d(5, 5, 1),
        "down": nn.Linear(10, 8),
        "head": nn.Linear(8, 2),
    },
    tokens(),
    half={"up.weight": (10,), "down.weight": (8, 5)},
    share=0.8,
    spanned=1,
    because="layer norm over the gate's channels; the kernel over tokens and the head are whole",
)
def spatial_gating(self, x):
    """Tokens are a convolution's channels (gMLP)."""
    u, v = F.gelu(self.up(x)).chunk(2, -1)
    return self.head(x + self.down(u * self.over(self.norm(v))))


@case(
    lambda: {
        "embed": nn.Linear(8, 6),
        "grow": nn.Linear(5, 7),
        "back": nn.Linear(7, 4),
        "head": nn.Linear(24, 2),
    },
    tokens(),
    half={
        "embed.weight": (3,),
        "grow.weight": (4, 5),
        "back.weight": (2, 4),
        "head.weight": (2, 6),
    },
)
def tokens_become_features(self, x):
    """The token axis gets a width of its own, then joins the channels."""
    x = self.back(self.grow(self.embed(x).transpose(1, 2)).relu())
    return self.head(x.flatten(1))


# -- 17. shared modules -----------------------------------------------------------------------


@case(
    lambda: {"stem": conv(3, 8), "block": conv(8, 8, 3), "head": conv(8, 2)},
    image(),
    half={"stem.weight": (4,), "block.weight": (4, 4)},
)
def shared_three_times(self, x):
    """One module, three calls: its input and output are one axis."""
    x = self.stem(x)
    for _ in range(3):
        x = self.block(x).relu()
    return self.head(x)


def _tied() -> dict[str, Any]:
    embed, head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
    head.weight = embed.weight
    return {"embed": embed, "mix": nn.Linear(8, 8), "head": head}


@case(_tied, words(), half={"embed.weight": (11, 4), "mix.weight": (4, 4)})
def tied_embedding(self, x):
    """Embedding and classifier are one parameter."""
    x = self.embed(x)
    return self.head(x + self.mix(x).tanh())


@case(
    lambda: {"encode": nn.Linear(6, 8), "inner": nn.Linear(8, 4)},
    vector(),
    half={"encode.weight": (4, 6), "inner.weight": (2, 4)},
)
def tied_autoencoder(self, x):
    """The decoder is the encoder's transpose."""
    z = self.inner(self.encode(x).relu())
    y = F.linear(z, self.inner.weight.t()).relu()
    return F.linear(y, self.encode.weight.t())


@case(
    lambda: {
        "embed": nn.Embedding(11, 6),
        "widen": nn.Linear(6, 16),
        "attend": nn.MultiheadAttention(16, 4, batch_first=True),
        "norm": nn.LayerNorm(16),
        "feed": nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16)),
        "head": nn.Linear(16, 3),
    },
    words(),
    half={"embed.weight": (11, 3), "widen.weight": (8, 3), "feed.0.weight": (12, 8)},
    spanned=1,
    because="layer norms over the model's width",
)
def shared_transformer_block(self, x):
    """A factorised embedding and one block used three times (ALBERT)."""
    x = self.widen(self.embed(x))
    for _ in range(3):
        x = self.norm(x + self.attend(x, x, x, need_weights=False)[0])
        x = self.norm(x + self.feed(x))
    return self.head(x)


@case(
    lambda: {
        "levels": nn.ModuleList([conv(3, 6, 3), conv(6, 8, 3, stride=2)]),
        "sides": nn.ModuleList([conv(6, 4), conv(8, 4)]),
        "tower": conv(4, 4, 3),
        "head": conv(4, 2),
    },
    image(),
    half={"levels.0.weight": (3,), "sides.1.weight": (2, 4), "tower.weight": (2, 2)},
)
def shared_head_over_levels(self, x):
    """A pyramid whose head is shared by all resolutions (RetinaNet)."""
    a = self.levels[0](x).relu()
    b = self.levels[1](a).relu()
    top = self.sides[1](b)
    low = self.sides[0](a) + F.interpolate(top, scale_factor=2.0, mode="nearest")
    return [self.head(self.tower(level).relu()) for level in (low, top)]


@case(
    lambda: {
        "body": nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5)),
        "head": nn.Linear(10, 2),
    },
    vector(),
    _seeded(2, 6) * 2,
    half={"body.0.weight": (4,), "body.2.weight": (3, 4), "head.weight": (2, 6)},
)
def siamese(self, x, other):
    """The same body for two inputs; difference and product are concatenated."""
    a, b = self.body(x), self.body(other)
    return self.head(torch.cat([(a - b).abs(), a * b], -1))


# -- 18. linear layers by another name --------------------------------------------------------


@with_parts(lambda outputs, inputs: {"weight": weight(inputs, outputs), "bias": weight(outputs)})
def TransposedLinear(self, x):
    """GPT-2's `Conv1D`: a linear layer with its weight the other way round."""
    size = (*x.size()[:-1], self.weight.shape[1])
    return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(size)


@case(
    lambda: {
        "attn": TransposedLinear(24, 8),
        "proj": TransposedLinear(8, 8),
        "up": TransposedLinear(20, 8),
        "down": TransposedLinear(8, 20),
        "head": nn.Linear(8, 3),
    },
    tokens(),
    half={"attn.weight": (8, 6), "proj.weight": (2, 8), "up.weight": (8, 10)},
)
def transposed_linear(self, x):
    """GPT-2's block: `addmm` on flattened tokens, split by its width."""
    q, k, v = (heads_of(t, 2) for t in self.attn(x).split(8, dim=2))
    y = heads_back(F.scaled_dot_product_attention(q, k, v))
    x = x + self.proj(y)
    return self.head(x + self.down(F.gelu(self.up(x))))


class ScaledLinear(nn.Linear):
    """A subclass with one more parameter and a forward of its own."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.gain = weight(outputs)

    def forward(self, input):
        return super().forward(input) * self.gain.exp()


class PaddedConv(nn.Conv2d):
    """A subclass that pads by itself, as "same" convolutions of TensorFlow ports do."""

    def forward(self, input):
        input = F.pad(input, (0, 1, 0, 1))
        return F.conv2d(input, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


@case(
    lambda: {"a": PaddedConv(3, 6, 2, stride=2), "b": ScaledLinear(6, 8), "c": ScaledLinear(8, 2)},
    image(),
    half={"a.weight": (3,), "b.weight": (4, 3), "b.gain": (4,), "c.weight": (2, 4)},
)
def subclasses(self, x):
    """User subclasses of Linear and Conv2d."""
    return self.c(self.b(self.a(x).mean((2, 3))).relu())


@with_parts(
    lambda inputs, outputs, rank: {
        "base": nn.Linear(inputs, outputs).requires_grad_(False),
        "down": weight(rank, inputs),
        "up": weight(outputs, rank),
    }
)
def LowRank(self, x):
    """A frozen linear layer and a trained update of low rank (LoRA)."""
    return self.base(x) + (x @ self.down.T) @ self.up.T * 0.5


@case(
    lambda: {"a": LowRank(6, 10, 4), "head": nn.Linear(10, 2)},
    vector(),
    half={"a.base.weight": (5,), "a.down": (2, 6), "a.up": (5, 2)},
)
def low_rank_update(self, x):
    """Frozen weights, and an inner axis of their own for what is trained."""
    return self.head(self.a(x).relu())


# -- 19. parametrised weights -----------------------------------------------------------------


@case(
    lambda: {
        "a": nn.utils.parametrizations.weight_norm(nn.Linear(6, 12)),
        "b": nn.utils.parametrizations.weight_norm(nn.Linear(12, 8)),
        "head": nn.Linear(8, 2),
    },
    vector(),
    half={"a.parametrizations.weight.original1": (6, 6), "head.weight": (2, 4)},
)
def weight_norm(self, x):
    """Length and direction as parametrisations."""
    return self.head(self.b(self.a(x).relu()).relu())


def _old_weight_norm(module: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # old checkpoints still come this way
        return torch.nn.utils.weight_norm(module)


@case(
    lambda: {"a": _old_weight_norm(conv(3, 8, 3)), "head": conv(8, 2)},
    image(),
    half={"a.weight_v": (4, 3), "a.weight_g": (4, 1), "head.weight": (2, 4)},
)
def weight_norm_by_hook(self, x):
    """The same as a hook that sets the weight before forward."""
    return self.head(self.a(x).relu())


@case(
    lambda: {
        "a": nn.utils.parametrizations.spectral_norm(nn.Linear(6, 12)),
        "head": nn.Linear(12, 2),
    },
    vector(),
    half={"a.parametrizations.weight.original": (6, 6), "head.weight": (2, 6)},
)
def spectral_norm(self, x):
    """Two buffers, on either side of the weight, are updated in training."""
    return self.head(self.a(x).relu())


@case(
    lambda: {
        "a": conv(3, 8, 3),
        "gain": weight(8, 1, 1, 1),
        "b": conv(8, 6, 3),
        "head": conv(6, 2),
    },
    image(),
    half={"a.weight": (4,), "gain": (4,), "b.weight": (3, 4)},
    spanned=1,
    because="the second layer's weights are standardised over its inputs",
)
def standardised_convolution(self, x):
    """Weights are standardised in forward (NFNet, BiT)."""
    for layer, gain in ((self.a, self.gain), (self.b, 1.0)):
        w = layer.weight
        deviation = (w.var((1, 2, 3), keepdim=True, unbiased=False) + 1e-5).sqrt()
        w = (w - w.mean((1, 2, 3), keepdim=True)) / deviation * gain
        x = F.conv2d(x, w, layer.bias, padding=1).relu()
    return self.head(x)


@case(
    lambda: {
        "stem": conv(3, 8),
        "wide": conv(8, 8, 3, bias=False),
        "point": conv(8, 8, bias=False),
        "norm": nn.BatchNorm2d(8),
        "head": conv(8, 2),
    },
    image(),
    half={"stem.weight": (4,), "wide.weight": (4, 4), "point.weight": (4, 4)},
)
def branches_merged_in_weights(self, x):
    """Two kernels are added before one convolution (RepVGG, re-parametrised)."""
    kernel = self.wide.weight + F.pad(self.point.weight, (1, 1, 1, 1))
    x = self.stem(x)
    return self.head((self.norm(F.conv2d(x, kernel, padding=1)) + x).relu())


@case(
    lambda: {
        "a": conv(3, 6, 3, bias=False),
        "norm": nn.BatchNorm2d(6),
        "head": conv(6, 2),
    },
    image(),
    half={"a.weight": (3,), "norm.weight": (3,)},
)
def norm_folded_in_forward(self, x):
    """The norm's statistics scale the kernel (quantisation-aware training)."""
    norm = self.norm
    scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    bias = norm.bias - norm.running_mean * scale
    return self.head(
        F.conv2d(x, self.a.weight * scale.reshape(-1, 1, 1, 1), bias, padding=1).relu()
    )


class Symmetric(nn.Module):
    """A parametrisation: the symmetric matrix with this upper triangle."""

    def forward(self, w):
        return w.triu() + w.triu(1).transpose(-1, -2)


def _symmetric() -> nn.Module:
    layer = nn.Linear(8, 8)
    nn.utils.parametrize.register_parametrization(layer, "weight", Symmetric())
    return layer


@case(
    lambda: {"a": nn.Linear(6, 8), "s": _symmetric(), "head": nn.Linear(8, 2)},
    vector(),
    share=0.0,
    because="a triangle is told by positions: rows and columns would have to stay in order",
)
def symmetric_weight(self, x):
    """A user's parametrisation ties both sides of a matrix."""
    return self.head(self.s(self.a(x)).relu())


def _masked(module: nn.Module) -> nn.Module:
    return prune.random_unstructured(module, "weight", amount=0.25)


@case(
    lambda: {"a": _masked(nn.Linear(6, 8)), "head": nn.Linear(8, 2)},
    vector(),
    half={"a.weight_orig": (4, 6), "a.weight_mask": (4, 6), "head.weight": (2, 4)},
)
def masked_weight(self, x):
    """`torch.nn.utils.prune`: a mask in a buffer times the weight, by hook."""
    return self.head(self.a(x).relu())


# -- 20. recurrent layers ---------------------------------------------------------------------


@case(
    lambda: {
        "embed": nn.Embedding(11, 6),
        "lstm": nn.LSTM(6, 8, batch_first=True, bidirectional=True),
        "a": nn.Linear(16, 10),
        "head": nn.Linear(10, 3),
    },
    words(),
    half={"embed.weight": (11, 3), "lstm.weight_hh_l0_reverse": (16, 4), "a.weight": (5, 8)},
)
def lstm_tagger(self, x):
    """Both directions, four gates in one weight."""
    return self.head(self.a(self.lstm(self.embed(x))[0]).relu())


@case(
    lambda: {
        "before": nn.Linear(8, 6),
        "up": nn.Linear(8, 12),
        "lstm": nn.LSTM(6, 8, proj_size=5, batch_first=True),
        "head": nn.Linear(17, 3),
    },
    tokens(),
    half={"lstm.weight_hh_l0": (16, 3), "lstm.weight_hr_l0": (3, 4), "head.weight": (3, 9)},
)
def lstm_projected(self, x):
    """Hidden and output sizes differ; a wide path passes by."""
    y, (hidden, _) = self.lstm(self.before(x))
    return self.head(torch.cat([y + hidden[-1][:, None], self.up(x).relu()], -1))


@case(
    lambda: {
        "gru": nn.GRU(8, 6, 2, batch_first=True),
        "a": nn.Linear(6, 8),
        "head": nn.Linear(8, 3),
    },
    tokens(),
    half={"gru.weight_hh_l0": (9, 3), "gru.weight_ih_l1": (9, 3), "a.weight": (4, 3)},
)
def gru_classifier(self, x):
    """Two layers, three gates; the last step is read."""
    return self.head(self.a(self.gru(x)[0][:, -1]).relu())


@case(
    lambda: {
        "embed": nn.Embedding(11, 6),
        "rnn": nn.RNN(6, 8, batch_first=True, nonlinearity="relu"),
        "head": nn.Linear(8, 3),
    },
    words(),
    half={"embed.weight": (11, 3), "rnn.weight_hh_l0": (4, 4), "head.weight": (3, 4)},
)
def plain_rnn(self, x):
    """One gate; its last state is read."""
    return self.head(self.rnn(self.embed(x))[1][0])


@case(
    lambda: {"x": nn.Linear(8, 24), "h": nn.Linear(6, 24), "head": nn.Linear(6, 3), "size": 6},
    tokens(length=3),
    half={"x.weight": (12, 8), "h.weight": (12, 3), "head.weight": (3, 3)},
)
def lstm_spelt(self, x):
    """The cell as Python: four gates by `chunk`, unrolled over the tokens."""
    hidden = memory = x.new_zeros(x.shape[0], self.size)
    for step in x.unbind(1):
        i, f, g, o = (self.x(step) + self.h(hidden)).chunk(4, 1)
        memory = f.sigmoid() * memory + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * memory.tanh()
    return self.head(hidden)


@case(
    lambda: {"cell": nn.GRUCell(8, 6), "a": nn.Linear(6, 8), "head": nn.Linear(8, 3)},
    tokens(length=3),
    half={"cell.weight_hh": (9, 3), "a.weight": (4, 3), "head.weight": (3, 4)},
)
def gru_cell_loop(self, x):
    """PyTorch's cell in a loop."""
    hidden = torch.zeros(x.shape[0], 6)
    for t in range(x.shape[1]):
        hidden = self.cell(x[:, t], hidden)
    return self.head(self.a(hidden).relu())


@case(
    lambda: {"gates": conv(7, 16, 3), "head": conv(4, 2)},
    _seeded(2, 3, 3, 6, 6),
    half={"gates.weight": (8, 5), "head.weight": (2, 2)},
)
def convolutional_lstm(self, frames):
    """Input and hidden state are concatenated; four gates are split (ConvLSTM)."""
    b, _, _, h, w = frames.shape
    hidden = memory = torch.zeros(b, 4, h, w)
    for t in range(frames.shape[1]):
        i, f, o, g = self.gates(torch.cat([frames[:, t], hidden], 1)).split(4, 1)
        memory = f.sigmoid() * memory + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * memory.tanh()
    return self.head(hidden)


@case(
    lambda: {
        "inner": nn.Linear(8, 24),
        "conv": nn.Conv1d(12, 12, 3, padding=2, groups=12),
        "low": nn.Linear(12, 10),
        "rate": nn.Linear(2, 12),
        "decay": weight(12, 4),
        "skip": weight(12),
        "out": nn.Linear(12, 8),
        "head": nn.Linear(8, 3),
    },
    tokens(length=3),
    half={"inner.weight": (12,), "conv.weight": (6,), "decay": (6, 2), "out.weight": (8, 6)},
)
def selective_state_space(self, x):
    """A scan whose step, input and output matrices depend on the input (Mamba)."""
    u, gate = self.inner(x).chunk(2, -1)
    u = F.silu(self.conv(u.transpose(1, 2))[..., : x.shape[1]]).transpose(1, 2)
    rate, into, outof = self.low(u).split([2, 4, 4], -1)
    rate = F.softplus(self.rate(rate))
    state, found = 0.0, []
    for t in range(x.shape[1]):
        keep = torch.exp(-rate[:, t, :, None] * self.decay.exp())
        state = keep * state + rate[:, t, :, None] * into[:, t, None] * u[:, t, :, None]
        found.append((state * outof[:, t, None]).sum(-1))
    y = (torch.stack(found, 1) + u * self.skip) * F.silu(gate)
    return self.head(x + self.out(y))


# -- 21. Python in forward --------------------------------------------------------------------


@case(
    lambda: {
        "stem": conv(3, 6),
        "blocks": nn.ModuleList(nn.Sequential(conv(6, 6, 3), nn.BatchNorm2d(6)) for _ in range(2)),
        "acts": nn.ModuleDict({"soft": nn.SiLU(), "hard": nn.Hardswish()}),
        "head": conv(6, 2),
        "kinds": ("soft", "hard"),
    },
    image(),
    half={"stem.weight": (3,), "blocks.1.0.weight": (3, 3)},
)
def loops_and_dictionaries(self, x):
    """A loop over modules, an activation chosen by name."""
    x = self.stem(x)
    for kind, block in zip(self.kinds, self.blocks, strict=True):
        x = x + self.acts[kind](block(x))
    return self.head(x)


@case(
    lambda: {"a": conv(3, 6), "head": nn.Linear(6, 2)},
    image(),
    half={"a.weight": (3,), "head.weight": (2, 3)},
)
def modules_made_in_forward(self, x):
    """Modules without parameters are made where they are used."""
    x = nn.ReLU(inplace=True)(self.a(x))
    x = nn.AvgPool2d(kernel_size=x.shape[2:])(x)
    return self.head(nn.Flatten()(nn.Dropout(0.0)(x)))


@case(
    lambda: {"a": nn.Linear(6, 8), "head": nn.Linear(8, 2)},
    vector(),
    half={"a.weight": (5,), "head.weight": (2, 5)},
)
def slice_assignment(self, x):
    """A part is written in place: `y[:, :3] = …`."""
    y = self.a(x).clone()
    y[:, :3] = y[:, :3] * 2
    return self.head(y)


@case(
    lambda: {"a": nn.Linear(6, 3), "b": nn.Linear(6, 5), "head": nn.Linear(8, 2)},
    vector(),
    half={"a.weight": (2,), "b.weight": (3,), "head.weight": (2, 5)},
)
def slices_filled(self, x):
    """An empty tensor is filled part by part."""
    y = torch.zeros(x.shape[0], 8)
    y[:, :3] = self.a(x).relu()
    y[:, 3:] = self.b(x).tanh()
    return self.head(y)


@case(
    lambda: {"a": conv(3, 6, 3), "head": conv(6, 2)},
    image(),
    half={"a.weight": (3,), "head.weight": (2, 3)},
)
def pixels_written(self, x):
    """The border is zeroed in place, the middle scaled by an augmented assignment."""
    y = self.a(x).clone()
    y[:, :, 0, :] = 0
    y[:, :, 1:-1, 1:-1] *= 0.5
    y += 0.1
    return self.head(y.relu_())


@case(
    lambda: {"a": nn.Linear(8, 6), "fill": weight(6), "head": nn.Linear(6, 2)},
    tokens(),
    torch.tensor([[False, True, False, False, True], [True, False, False, False, False]]),
    half={"a.weight": (3,), "fill": (3,), "head.weight": (2, 3)},
)
def masked_tokens(self, x, gone):
    """`masked_fill`, `where` with a learned token, and a mean over what is left (MAE)."""
    x = torch.where(gone[..., None], self.fill, self.a(x)).relu()
    x = x.masked_fill(gone.unsqueeze(-1), 0.0)
    return self.head(x.sum(1) / (~gone).sum(1, keepdim=True).clamp(min=1))


@case(
    lambda: {"a": nn.Linear(8, 6), "fill": weight(6), "head": nn.Linear(6, 2)},
    tokens(),
    half={"a.weight": (3,), "fill": (3,), "head.weight": (2, 3)},
)
def index_put(self, x):
    """Rows are replaced by a list of indices."""
    y = self.a(x).clone()
    y[:, [0, 3]] = self.fill
    return self.head(y.relu().sum(1))


@case(
    lambda: {
        "user": nn.Sequential(nn.Embedding(11, 6), nn.Flatten(), nn.Linear(30, 8)),
        "item": nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 8)),
        "head": nn.Linear(8, 2),
    },
    {"user": words(), "item": vector()},
    half={"user.0.weight": (11, 3), "user.2.weight": (4, 15), "item.2.weight": (4, 5)},
)
def two_towers(self, batch):
    """A dictionary goes in and a dictionary comes out; towers meet in a product."""
    user, item = self.user(batch["user"]), self.item(batch["item"])
    return {"score": (user * item).sum(-1), "logits": self.head(user + item)}


@case(
    lambda: {"a": nn.Linear(8, 6), "b": nn.Linear(6, 4), "head": nn.Linear(6, 2)},
    half={"a.weight": (3,), "head.weight": (2, 3)},
    share=0.6,
    because="a layer of a branch that the example does not take is not used",
    values=tokens(),
    scale=_seeded(2, 1, 1),
)
def keyword_arguments(self, *, values, bias=None, scale=None, return_tuple=True):
    """Only keywords, some left out; an option decides the output's form."""
    x = self.a(values)
    if bias is not None:
        x = x + self.b(bias)
    y = self.head(x if scale is None else x * scale)
    return (y, y.softmax(-1)) if return_tuple else y


@dataclass
class Prediction:
    """An output of named fields."""

    logits: torch.Tensor
    hidden: torch.Tensor | None = None


torch.export.register_dataclass(Prediction)


class Scored(NamedTuple):
    """An output that is a named tuple."""

    best: torch.Tensor
    prediction: Prediction


@case(
    lambda: {"a": nn.Linear(6, 8), "head": nn.Linear(8, 3)},
    vector(),
    half={"a.weight": (4,), "head.weight": (3, 4)},
)
def dataclass_output(self, x):
    """A dataclass inside a named tuple; one field is empty."""
    y = self.head(self.a(x).relu())
    return Scored(y.amax(-1), Prediction(y))


@case(
    lambda: {"a": nn.Linear(6, 8), "b": nn.Linear(8, 8), "head": nn.Linear(8, 2)},
    vector(),
    half={"a.weight": (4,), "b.weight": (4, 4)},
)
def checkpointed(self, x):
    """A part is computed again in the backward pass."""
    x = self.a(x)
    x = x + checkpoint(lambda t: self.b(t).relu(), x, use_reentrant=False)
    return self.head(x)


@case(
    lambda: {"a": conv(3, 6), "small": conv(6, 4), "head": nn.Linear(4, 2)},
    image(),
    half={"a.weight": (3,), "small.weight": (2, 3)},
)
def branches_on_shapes(self, x):
    """Sizes decide the way, in Python and in `torch.where`."""
    x = self.a(x)
    if x.shape[-1] > 4:
        x = F.max_pool2d(x, 2)
    x = self.small(x)
    scale = torch.where(torch.tensor(x.shape[-1] > 2), 0.5, 2.0)
    return self.head((x * scale).mean((2, 3)))


@case(
    lambda: {"a": nn.Linear(6, 8), "b": nn.Linear(5, 8), "head": nn.Linear(8, 2)},
    [vector(), vector(5)],
    half={"a.weight": (4,), "b.weight": (4,)},
)
def list_of_inputs(self, xs):
    """Tensors come in a list."""
    first, second = xs
    return self.head(torch.stack([self.a(first), self.b(second)]).sum(0).relu())


# -- 22. outer products -----------------------------------------------------------------------


@case(
    lambda: {"a": nn.Linear(6, 8), "b": nn.Linear(6, 6), "head": nn.Linear(48, 2)},
    vector(),
    half={"a.weight": (4,), "b.weight": (3,), "head.weight": (2, 12)},
)
def outer_product(self, x):
    """48 = 8 × 6 in the head."""
    return self.head((self.a(x)[:, :, None] * self.b(x)[:, None, :]).flatten(1))


@case(
    lambda: {"a": conv(3, 4), "b": conv(3, 6), "c": nn.Linear(24, 5), "head": nn.Linear(5, 2)},
    image(),
    half={"a.weight": (2,), "b.weight": (3,), "c.weight": (3, 6)},
)
def bilinear_pooling(self, x):
    """Channels of two maps meet over the pixels (B-CNN)."""
    y = torch.einsum("bchw,bdhw->bcd", self.a(x), self.b(x)) / 64
    return self.head(self.c(y.reshape(-1, 24)).relu())


@case(
    lambda: {
        "a": nn.Linear(5, 4),
        "b": nn.Linear(6, 7),
        "join": nn.Bilinear(4, 7, 8),
        "head": nn.Linear(8, 2),
    },
    vector(5),
    vector(6),
    half={"a.weight": (2,), "b.weight": (4,), "join.weight": (4, 2, 4), "head.weight": (2, 4)},
)
def bilinear(self, x, y):
    """`nn.Bilinear`: three axes in one weight."""
    return self.head(self.join(self.a(x), self.b(y)).relu())


@case(
    lambda: {"a": nn.Linear(6, 8), "head": nn.Linear(36, 2)},
    vector(),
    half={"a.weight": (8,)},
    share=0.0,
    because="pairs of channels are numbered by a triangle: no cut of 8 is one of 36",
)
def triangle_of_pairs(self, x):
    """The upper triangle of an outer product (factorisation machines)."""
    x = self.a(x)
    rows, columns = torch.triu_indices(8, 8)
    return self.head((x[:, :, None] * x[:, None])[:, rows, columns])


# -- 23. gates --------------------------------------------------------------------------------


@case(
    lambda: {
        "a": conv(3, 8, 3),
        "down": conv(8, 4),
        "up": conv(4, 8),
        "head": conv(8, 2),
    },
    image(),
    half={"a.weight": (4,), "down.weight": (2, 4), "up.weight": (4, 2)},
)
def squeeze_excite(self, x):
    """A gate per channel by pooling and two convolutions."""
    x = self.a(x)
    gate = self.up(self.down(x.mean((2, 3), keepdim=True)).relu())
    return self.head(x * gate.sigmoid())


@case(
    lambda: {
        "a": conv(3, 8, 3),
        "down": nn.Linear(8, 4, bias=False),
        "up": nn.Linear(4, 8, bias=False),
        "head": conv(8, 2),
    },
    image(),
    half={"a.weight": (4,), "down.weight": (2, 4), "up.weight": (4, 2)},
)
def squeeze_excite_linear(self, x):
    """The same with linear layers, `view` and `expand_as`."""
    x = self.a(x)
    b, c, _, _ = x.size()
    gate = self.up(self.down(F.adaptive_avg_pool2d(x, 1).view(b, c)).relu()).sigmoid()
    return self.head(x * gate.view(b, c, 1, 1).expand_as(x))


@case(
    lambda: {"a": conv(3, 8), "gate": conv(8, 1), "head": conv(8, 2)},
    image(),
    half={"a.weight": (4,), "gate.weight": (1, 4)},
)
def gate_of_one_channel(self, x):
    """One channel gates all: a broadcast, not a depthwise layer."""
    x = self.a(x)
    return self.head(x * torch.sigmoid(self.gate(x)))


@case(
    lambda: {
        "a": conv(3, 8),
        "down": conv(8, 4),
        "up": conv(4, 8),
        "place": conv(2, 1, 3),
        "head": conv(8, 2),
    },
    image(),
    half={"a.weight": (4,), "down.weight": (2, 4), "up.weight": (4, 2)},
    spanned=1,
    share=0.85,
    because="mean and maximum over the channels; two maps for the gate of pixels",
)
def channel_and_place_gates(self, x):
    """Two pools share a perceptron; mean and maximum over channels gate the pixels (CBAM)."""
    x = self.a(x)
    pools = F.adaptive_avg_pool2d(x, 1), F.adaptive_max_pool2d(x, 1)
    x = x * sum(self.up(self.down(p).relu()) for p in pools).sigmoid()
    y = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
    return self.head(x * self.place(y).sigmoid())


@case(
    lambda: {
        "a": conv(3, 8),
        "gate": nn.Conv1d(1, 1, 3, padding=1, bias=False),
        "b": conv(8, 6),
        "head": conv(6, 2),
    },
    image(),
    half={"b.weight": (3, 8), "head.weight": (2, 3)},
    share=0.6,
    because="a convolution slides over the channel axis: neighbours matter",
)
def gate_by_sliding(self, x):
    """A convolution over the channels as if they were pixels (ECA)."""
    x = self.a(x)
    gate = self.gate(x.mean((2, 3))[:, None]).sigmoid()
    return self.head(self.b(x * gate.transpose(1, 2)[..., None]).relu())


@case(
    lambda: {"a": conv(3, 8), "film": nn.Linear(5, 16), "head": conv(8, 2)},
    image(),
    vector(5),
    half={"a.weight": (4,), "film.weight": (8,)},
)
def film(self, x, condition):
    """A second input scales and shifts the channels."""
    scale, shift = self.film(condition).chunk(2, -1)
    return self.head(self.a(x) * (1 + scale[..., None, None]) + shift[..., None, None])


@case(
    lambda: {
        "embed": nn.Linear(8, 12),
        "ada": nn.Linear(5, 36),
        "f": nn.Linear(12, 12),
        "head": nn.Linear(12, 2),
    },
    tokens(),
    vector(5),
    half={"embed.weight": (6,), "ada.weight": (18,), "f.weight": (6, 6)},
    spanned=1,
    because="layer norm over the model's width",
)
def adaptive_layer_norm(self, x, condition):
    """Shift, scale and gate from a condition around a norm without weights (DiT)."""
    x = self.embed(x)
    shift, scale, gate = self.ada(F.silu(condition)).unsqueeze(1).chunk(3, dim=2)
    y = F.layer_norm(x, (12,)) * (1 + scale) + shift
    return self.head(x + gate * self.f(y))


@case(
    lambda: {
        "kernels": weight(3, 6, 4, 3, 3),
        "choose": nn.Linear(4, 3),
        "stem": conv(3, 4),
        "head": conv(6, 2),
    },
    image(),
    half={"stem.weight": (2,), "kernels": (2, 3, 2), "head.weight": (2, 3)},
    spanned=1,
    because="a softmax over the kernels",
)
def kernels_mixed_by_batch(self, x):
    """One mixture of three kernels for the whole batch (dynamic convolution)."""
    x = self.stem(x)
    share = self.choose(x.mean((0, 2, 3))).softmax(-1)
    kernel = (share[:, None, None, None, None] * self.kernels).sum(0)
    return self.head(F.conv2d(x, kernel, padding=1).relu())


@case(
    lambda: {
        "stem": conv(3, 8),
        "reduce": nn.Linear(8, 4),
        "up": nn.Linear(4, 16),
        "one": conv(8, 8),
        "two": conv(8, 8, 3),
        "head": conv(8, 2),
    },
    image(),
    half={"stem.weight": (4,), "one.weight": (4, 4), "reduce.weight": (2, 4), "up.weight": (8, 2)},
)
def selective_kernels(self, x):
    """Two branches share a softmax per channel: 16 = 2 · 8 (SKNet)."""
    x = self.stem(x)
    a, b = self.one(x), self.two(x)
    gate = self.up(self.reduce((a + b).mean((2, 3))).relu()).view(-1, 2, 8).softmax(1)
    return self.head(a * gate[:, 0, :, None, None] + b * gate[:, 1, :, None, None])


@case(
    lambda: {
        "route": nn.Linear(8, 4),
        "up": weight(4, 8, 12),
        "down": weight(4, 12, 8),
        "head": nn.Linear(8, 2),
    },
    tokens(),
    half={"up": (2, 8, 6), "down": (2, 6, 8)},
    spanned=1,
    because="a softmax over the experts",
)
def experts_with_soft_gate(self, x):
    """Every expert answers; a softmax weighs them."""
    share = self.route(x).softmax(-1)
    hidden = torch.einsum("bnc,ech->bneh", x, self.up).relu()
    y = torch.einsum("bneh,ehc,bne->bnc", hidden, self.down, share)
    return self.head(x + y)


@case(
    lambda: {
        "route": nn.Linear(8, 3),
        "experts": nn.ModuleList(
            nn.Sequential(nn.Linear(8, 10), nn.GELU(), nn.Linear(10, 6)) for _ in range(3)
        ),
        "head": nn.Linear(6, 2),
    },
    tokens(),
    half={"experts.0.0.weight": (5,), "experts.2.2.weight": (3, 5), "head.weight": (2, 3)},
)
def experts_stacked(self, x):
    """A list of experts, stacked and weighed by a softmax."""
    share = self.route(x).softmax(-1).unsqueeze(-1)
    return self.head((torch.stack([f(x) for f in self.experts], 2) * share).sum(2).relu())


@case(
    lambda: {
        "route": nn.Linear(8, 4),
        "experts": nn.ModuleList(
            nn.Sequential(nn.Linear(8, 10), nn.GELU(), nn.Linear(10, 8)) for _ in range(4)
        ),
        "head": nn.Linear(8, 2),
    },
    tokens(),
    half={"experts.0.0.weight": (5,), "experts.3.2.weight": (8, 5)},
    share=0.85,
    because="the router and the head read the input's width",
)
def experts_top_two(self, x):
    """The two best experts count; the others' shares are zeroed by a scatter (Mixtral)."""
    best, index = self.route(x).softmax(-1).topk(2, dim=-1)
    share = torch.zeros(*x.shape[:-1], 4).scatter(-1, index, best / best.sum(-1, keepdim=True))
    return self.head(x + sum(f(x) * share[..., i : i + 1] for i, f in enumerate(self.experts)))


# -- 24. heads and branches of training -------------------------------------------------------


@case(
    lambda: {
        "a": conv(3, 6, 3),
        "aux": nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)
        ),
        "b": conv(6, 8, 3),
        "head": nn.Linear(8, 2),
    },
    image(),
    half={"a.weight": (3,), "b.weight": (4, 3), "aux.2.weight": (3, 3), "aux.4.weight": (2, 3)},
)
def auxiliary_head(self, x):
    """A second output in training only (GoogLeNet)."""
    x = self.a(x).relu()
    y = self.head(self.b(x).relu().mean((2, 3)))
    return (y, self.aux(x)) if self.training else y


@case(
    lambda: {
        "a": conv(3, 8, 3),
        "blocks": nn.ModuleList(nn.Sequential(conv(8, 8, 3), nn.BatchNorm2d(8)) for _ in range(2)),
        "head": nn.Linear(8, 2),
        "drop": 0.3,
    },
    image(),
    half={"a.weight": (4,), "blocks.1.0.weight": (4, 4)},
)
def stochastic_depth(self, x):
    """A branch is dropped for some examples while training."""
    x = self.a(x)
    for block in self.blocks:
        y = block(x)
        if self.training:
            keep = torch.rand(x.shape[0], 1, 1, 1) >= self.drop
            y = y * keep / (1 - self.drop)
        x = (x + y).relu()
    return self.head(x.mean((2, 3)))


@case(
    lambda: {
        "mean": nn.Linear(6, 4),
        "spread": nn.Linear(6, 4),
        "decode": nn.Linear(4, 8),
        "head": nn.Linear(8, 6),
    },
    vector(),
    half={"mean.weight": (4,), "decode.weight": (4, 4), "head.weight": (6, 4)},
    share=0.5,
    because="mean and spread are outputs",
)
def variational_autoencoder(self, x):
    """Noise in training, the mean in evaluation; three outputs."""
    mean, spread = self.mean(x), self.spread(x)
    z = mean + torch.randn_like(mean) * (0.5 * spread).exp() if self.training else mean
    return self.head(self.decode(z).relu()), mean, spread


@case(
    lambda: {
        "stages": nn.ModuleList([conv(3, 6, 3), conv(6, 8, 3), conv(8, 10, 3)]),
        "heads": nn.ModuleList(nn.Linear(c, 2) for c in (6, 8, 10)),
    },
    image(),
    half={"stages.1.weight": (4, 3), "heads.1.weight": (2, 4), "heads.2.weight": (2, 5)},
)
def several_outputs(self, x):
    """An exit after every stage."""
    found = []
    for stage, head in zip(self.stages, self.heads, strict=True):
        x = F.max_pool2d(stage(x).relu(), 2)
        found.append(head(x.mean((2, 3))))
    return tuple(found)


@case(
    lambda: {
        "a": conv(3, 6, 3),
        "drop": nn.Dropout2d(0.2),
        "b": conv(6, 4),
        "flat": nn.Dropout(0.5),
        "head": nn.Linear(4, 2),
    },
    image(),
    half={"a.weight": (3,), "b.weight": (2, 3)},
)
def dropouts(self, x):
    """Whole channels and single values are dropped, and a bit of noise is added, in training."""
    x = self.drop(self.a(x).relu())
    if self.training:
        x = x + 0.1 * torch.randn_like(x)
    return self.head(self.flat(self.b(x).mean((2, 3))))


# -- whole networks ---------------------------------------------------------------------------


def _double(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(conv(inputs, outputs, 3, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


@case(
    lambda: {
        "down": nn.ModuleList([_double(3, 4), _double(4, 6), _double(6, 8)]),
        "up": nn.ModuleList([nn.ConvTranspose2d(8, 6, 2, 2), nn.ConvTranspose2d(6, 4, 2, 2)]),
        "merge": nn.ModuleList([_double(12, 6), _double(8, 4)]),
        "head": conv(4, 2),
    },
    image(),
    half={"down.1.0.weight": (3, 2), "up.0.weight": (4, 3), "merge.0.0.weight": (3, 6)},
)
def unet(self, x):
    """Each level of the way down is concatenated on the way up."""
    levels: list[torch.Tensor] = []
    for block in self.down:
        x = block(F.max_pool2d(x, 2) if levels else x)
        levels.append(x)
    x = levels.pop()
    for up, merge in zip(self.up, self.merge, strict=True):
        x = merge(torch.cat([levels.pop(), up(x)], 1))
    return self.head(x)


@case(
    lambda: {
        "first": nn.Conv1d(3, 8, 1),
        "filter": nn.ModuleList(nn.Conv1d(8, 6, 2, dilation=2**i) for i in range(3)),
        "gate": nn.ModuleList(nn.Conv1d(8, 6, 2, dilation=2**i) for i in range(3)),
        "back": nn.ModuleList(nn.Conv1d(6, 8, 1) for _ in range(3)),
        "skip": nn.ModuleList(nn.Conv1d(6, 10, 1) for _ in range(3)),
        "head": nn.Sequential(nn.ReLU(), nn.Conv1d(10, 7, 1), nn.ReLU(), nn.Conv1d(7, 2, 1)),
    },
    _seeded(2, 3, 20),
    half={
        "first.weight": (4,),
        "filter.1.weight": (3, 4),
        "skip.2.weight": (5, 3),
        "head.1.weight": (4, 5),
    },
    share=0.85,
    because="the last residual layer's output goes nowhere",
)
def wavenet(self, x):
    """Causal padding, tanh times sigmoid, a residual and a skip sum of their own."""
    x, skips = self.first(x), []
    for i in range(3):
        y = F.pad(x, (2**i, 0))
        y = torch.tanh(self.filter[i](y)) * torch.sigmoid(self.gate[i](y))
        skips.append(self.skip[i](y))
        x = x + self.back[i](y)
    return self.head(sum(skips))


@case(
    lambda: {
        "encode": nn.Sequential(
            conv(3, 6, 3, stride=2), nn.ReLU(), conv(6, 8, 3, stride=2), nn.ReLU()
        ),
        "decode": nn.Sequential(
            nn.ConvTranspose2d(8, 6, 3, 2, 1, 1),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.ConvTranspose2d(6, 3, 4, 2, 1),
            nn.Tanh(),
        ),
    },
    image(),
    half={"encode.2.weight": (4, 3), "decode.0.weight": (4, 3), "decode.3.weight": (3, 3)},
)
def autoencoder(self, x):
    """Transposed convolutions lead back to the picture."""
    return self.decode(self.encode(x))


@case(
    lambda: {"a": conv(3, 6), "b": conv(6, 4), "head": conv(4, 2)},
    image(),
    half={"a.weight": (3,), "b.weight": (2, 3)},
)
def interpolations(self, x):
    """Nearest by factor, bilinear by size, and a grid's sampling."""
    x = F.interpolate(self.a(x), scale_factor=2)
    x = F.interpolate(self.b(x), size=(8, 8), mode="bilinear", align_corners=False)
    return self.head(x)


@case(
    lambda: {"a": conv(3, 6), "place": nn.Linear(6, 6), "b": conv(6, 4), "head": nn.Linear(4, 2)},
    image(),
    half={"a.weight": (3,), "place.weight": (6, 3), "b.weight": (2, 3)},
)
def spatial_transformer(self, x):
    """A predicted affine grid samples the features."""
    x = self.a(x)
    grid = F.affine_grid(self.place(x.mean((2, 3))).view(-1, 2, 3), x.shape, align_corners=False)
    return self.head(self.b(F.grid_sample(x, grid, align_corners=False)).mean((2, 3)))


@case(
    lambda: {
        "bag": nn.EmbeddingBag(11, 6, mode="mean"),
        "a": nn.Linear(6, 8),
        "head": nn.Linear(8, 2),
    },
    words(),
    half={"bag.weight": (11, 3), "a.weight": (4, 3)},
)
def embedding_bag(self, x):
    """Look-up and mean in one operator (fastText)."""
    return self.head(self.a(self.bag(x)).relu())


@case(
    lambda: {"code": nn.Embedding(7, 6), "a": nn.Linear(8, 6), "head": nn.Linear(6, 3)},
    tokens(),
    half={"a.weight": (3,), "code.weight": (7, 3), "head.weight": (3, 3)},
)
def vector_quantiser(self, x):
    """The nearest code word replaces a vector; gradients pass straight through (VQ-VAE)."""
    x = self.a(x)
    distance = (x.unsqueeze(-2) - self.code.weight).pow(2).sum(-1)
    y = F.embedding(distance.argmin(-1), self.code.weight)
    return self.head(x + (y - x).detach())


@case(
    lambda: {
        "make": nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 24)),
        "stem": nn.Linear(6, 6),
        "head": nn.Linear(4, 2),
    },
    vector(),
    vector(5),
    half={
        "make.0.weight": (4,),
        "make.2.weight": (6, 4),
        "stem.weight": (3,),
        "head.weight": (2, 2),
    },
)
def generated_weights(self, x, context):
    """A small network makes another one's weights, per example: 24 = 4 · 6."""
    w = self.make(context).view(-1, 4, 6)
    return self.head(torch.bmm(w, self.stem(x).relu().unsqueeze(-1)).squeeze(-1).relu())


@case(
    lambda: {
        "style": nn.Linear(5, 4),
        "w": weight(6, 4, 3, 3),
        "stem": conv(3, 4),
        "head": conv(6, 2),
    },
    image(),
    vector(5),
    half={"style.weight": (2,), "w": (3, 2), "stem.weight": (2,)},
)
def modulated_convolution(self, x, style):
    """A kernel per example, as groups of one big convolution (StyleGAN 2)."""
    x = self.stem(x)
    b, c, h, w = x.shape
    kernel = self.w * (1 + self.style(style)).view(b, 1, c, 1, 1)
    kernel = kernel * torch.rsqrt(kernel.pow(2).sum((2, 3, 4), keepdim=True) + 1e-8)
    x = F.conv2d(x.reshape(1, b * c, h, w), kernel.view(b * 6, c, 3, 3), padding=1, groups=b)
    return self.head(x.view(b, 6, h, w).relu())


@case(
    lambda: {
        "a": nn.Linear(8, 12),
        "b": nn.Linear(12, 12),
        "head": nn.Linear(12, 2),
        "links": torch.rand(5, 5).softmax(-1),
    },
    tokens(),
    half={"a.weight": (6,), "b.weight": (6, 6)},
)
def graph_convolution(self, x):
    """A fixed adjacency matrix from the left, weights from the right."""
    x = (self.links @ self.a(x)).relu()
    return self.head((self.links @ self.b(x)).relu().mean(1))


@case(
    lambda: {
        "embed": nn.Linear(8, 6),
        "norm": nn.LayerNorm(6),
        "up": nn.Linear(6, 10),
        "down": nn.Linear(10, 6),
        "head": nn.Linear(6, 2),
    },
    tokens(),
    half={"up.weight": (5,), "down.weight": (6, 5)},
    share=0.6,
    because="a Fourier transform mixes the channels",
)
def fourier_mixing(self, x):
    """A Fourier transform over tokens and channels (FNet)."""
    x = self.embed(x)
    x = self.norm(x + torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real)
    return self.head(x + self.down(F.gelu(self.up(x))))


@case(
    lambda: {
        "a": nn.Linear(6, 8).bfloat16(),
        "norm": nn.LayerNorm(8),
        "b": nn.Linear(8, 4).bfloat16(),
        "head": nn.Linear(4, 2),
    },
    vector(),
    half={"a.weight": (4,), "b.weight": (2, 4)},
    spanned=1,
    because="layer norm over the width",
)
def mixed_precision_weights(self, x):
    """Layers in bfloat16, norm and head in float32."""
    x = self.norm(self.a(x.bfloat16()).float())
    return self.head(self.b(x.to(torch.bfloat16)).relu().float())


@case(
    lambda: {"body": nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).half()},
    vector().half(),
    half={"body.0.weight": (4,), "body.2.weight": (2, 4)},
)
def half_precision(self, x):
    """All weights and inputs in float16."""
    return self.body(x)


@case(
    lambda: {
        "classes": nn.Linear(8, 3),
        "text": nn.Linear(6, 8),
        "image": nn.Linear(5, 8),
        "scale": nn.Parameter(torch.tensor(1.0)),
    },
    vector(),
    vector(5),
    half={"text.weight": (4,), "image.weight": (4,)},
)
def contrastive_pair(self, text, picture):
    """Every text meets every picture of the batch (CLIP): a matrix of batch by batch."""
    a, b = F.normalize(self.text(text), dim=-1), F.normalize(self.image(picture), dim=-1)
    return self.scale.exp() * a @ b.t(), self.classes(a)


@case(
    lambda: {"a": conv(3, 8), "primary": conv(8, 12, 3, stride=2), "routes": weight(48, 2, 5, 4)},
    image(),
    half={"a.weight": (4,), "primary.weight": (4, 4), "routes": (32, 2, 5, 2)},
    share=0.6,
    because="classes and their vectors are outputs",
)
def capsules(self, x):
    """12 = 3 · 4 capsule types and lengths; every capsule votes by a matrix of its own."""
    u = self.primary(self.a(x).relu()).view(-1, 3, 4, 16).transpose(2, 3).flatten(1, 2)
    u = u / (1 + u.pow(2).sum(-1, keepdim=True)).sqrt()
    return torch.einsum("bik,icok->bco", u, self.routes) / 48


@case(
    lambda: {
        "stem": nn.Conv1d(1, 6, 5, 2, 2),
        "blocks": nn.Sequential(
            nn.Conv1d(6, 8, 3, 2, 1),
            nn.GroupNorm(8, 8),
            nn.GELU(),
            nn.Conv1d(8, 8, 3, 2, 1),
            nn.GELU(),
        ),
        "norm": nn.LayerNorm(8),
        "project": nn.Linear(8, 12),
        "place": _old_weight_norm(nn.Conv1d(12, 12, 4, padding=2, groups=3)),
        "head": nn.Linear(12, 3),
    },
    _seeded(2, 1, 32),
    half={"stem.weight": (3,), "blocks.0.weight": (4, 3), "project.weight": (4, 4)},
    spanned=1,
    because="layer norm over the features",
)
def speech_features(self, x):
    """Strided convolutions, then a grouped convolution over positions (Wav2Vec 2)."""
    x = self.project(self.norm(self.blocks(self.stem(x)).transpose(1, 2)))
    y = self.place(x.transpose(1, 2))[:, :, :-1]
    return self.head((x + F.gelu(y).transpose(1, 2)).mean(1))


@case(
    lambda: {
        "expand": nn.Sequential(conv(8, 24, bias=False), nn.BatchNorm2d(24), nn.ReLU6()),
        "depth": nn.Sequential(
            conv(24, 24, 3, groups=24, bias=False), nn.BatchNorm2d(24), nn.ReLU6()
        ),
        "project": nn.Sequential(conv(24, 8, bias=False), nn.BatchNorm2d(8)),
        "stem": conv(3, 8),
        "head": conv(8, 2),
    },
    image(),
    half={"stem.weight": (4,), "expand.0.weight": (12, 4), "depth.0.weight": (12, 1)},
)
def inverted_bottleneck(self, x):
    """Wide inside, narrow at the residual (MobileNet v2)."""
    x = self.stem(x)
    return self.head(x + self.project(self.depth(self.expand(x))))
