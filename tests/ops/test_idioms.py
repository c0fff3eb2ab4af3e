"""Idioms: each is recognised however it is spelt, and what only looks like it is not."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, TypeAlias

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archgraph.graph.ir import ArchGraph, Node, Ref
from archgraph.ops.idioms import IDIOMS, idiom_counts, idioms
from tests.nets import captured

Function: TypeAlias = Callable[..., Any]


class Spelt(nn.Module):
    """A function with the weights and numbers that idioms need, of random sizes."""

    def __init__(self, function: Function, rng: Random) -> None:
        super().__init__()
        self.function = function
        self.width = width = 2 * rng.randint(2, 5)
        self.eps = 10 ** rng.uniform(-8, -3)
        self.groups = rng.randint(2, 3)
        self.weight = nn.Parameter(torch.ones(width))
        narrow, bias = rng.randint(1, width), rng.random() < 0.5
        self.down, self.up = nn.Linear(width, narrow, bias), nn.Linear(narrow, width, bias)
        self.gate = nn.Linear(width, narrow, bias)
        self.conv_down, self.conv_up = nn.Conv2d(width, narrow, 1), nn.Conv2d(narrow, width, 1)
        self.depthwise = nn.Conv2d(width, 2 * width, 3, rng.randint(1, 2), groups=width)
        self.paired = nn.Conv2d(width, width, 3, groups=width // 2)
        self.cos, self.sin = (torch.randn(5, width, generator=_noise()) for _ in range(2))

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self, *inputs)


def _noise() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _mean_square(net: Spelt, x: Tensor) -> Tensor:
    return x.pow(2).mean(-1, keepdim=True) + net.eps


def _in_double(net: Spelt, x: Tensor) -> Tensor:
    exact = x.double()
    return (1 + net.weight) * (exact * _mean_square(net, exact) ** -0.5).float()


def _tanh(x: Tensor, cube: Tensor) -> Tensor:
    return torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * cube))


def _gated_halves(net: Spelt, x: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    return low * torch.sigmoid(high)


def _turned(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def _chunked(net: Spelt, x: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    cos, sin = net.cos.chunk(2, -1)[0], net.sin.chunk(2, -1)[0]
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def _neighbours(net: Spelt, x: Tensor) -> Tensor:
    turned = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    return x * net.cos + turned * net.sin


def _shared(x: Tensor, times: int) -> Tensor:
    batch, heads, length, width = x.shape
    wide = x[:, :, None].expand(batch, heads, times, length, width)
    return wide.reshape(batch, heads * times, length, width)


def _spelt_attention(net: Spelt, x: Tensor) -> Tensor:
    query, key = x.repeat(1, net.groups, 1, 1), x
    scores = query @ _shared(key, net.groups).transpose(2, 3) * 0.3
    return F.dropout(torch.softmax(scores, -1), 0.1, net.training) @ _shared(x, net.groups)


def _fused_attention(net: Spelt, x: Tensor) -> Tensor:
    query = x.repeat(1, net.groups, 1, 1)
    key, value = (_shared(one, net.groups) for one in (x, x + 1))
    return F.scaled_dot_product_attention(query, key, value)


SEQUENCE, HEADS, IMAGE = (lambda w: (2, 5, w)), (lambda w: (2, 2, 5, w)), (lambda w: (2, w, 6, 6))

# Name, shape of an input for a width, number of inputs, spelling.
SPELLINGS: list[tuple[str, Callable[[int], tuple[int, ...]], int, Function]] = [
    ("RMSNorm", SEQUENCE, 1, lambda net, x: net.weight * (x * torch.rsqrt(_mean_square(net, x)))),
    ("RMSNorm", SEQUENCE, 1, lambda net, x: x / torch.sqrt((x * x).mean(-1, True) + net.eps)),
    ("RMSNorm", SEQUENCE, 1, _in_double),
    ("RMSNorm", SEQUENCE, 1, lambda net, x: F.rms_norm(x, (net.width,), net.weight, net.eps)),
    ("GELU", SEQUENCE, 1, lambda net, x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))),
    ("GELU", SEQUENCE, 1, lambda net, x: x * (0.5 * (torch.erf(x * math.sqrt(0.5)) + 1))),
    ("GELU", SEQUENCE, 1, lambda net, x: F.gelu(x)),
    ("GELU (tanh)", SEQUENCE, 1, lambda net, x: 0.5 * x * (1 + _tanh(x, x**3))),
    ("GELU (tanh)", SEQUENCE, 1, lambda net, x: x * (1 + _tanh(x, x * x * x)) * 0.5),
    (
        "GELU (tanh)",
        SEQUENCE,
        1,
        lambda net, x: 0.5 * x * (1 + torch.tanh(x * 0.7978845608 * (1 + 0.044715 * x * x))),
    ),
    ("GELU (tanh)", SEQUENCE, 1, lambda net, x: F.gelu(x, approximate="tanh")),
    ("SiLU", SEQUENCE, 1, lambda net, x: x * torch.sigmoid(x)),
    ("SiLU", SEQUENCE, 1, lambda net, x: F.silu(x)),
    ("SiLU gate", SEQUENCE, 2, lambda net, x, y: F.silu(x) * y),
    ("SiLU gate", SEQUENCE, 2, lambda net, x, y: y * (torch.sigmoid(x) * x)),
    ("GELU gate", SEQUENCE, 2, lambda net, x, y: y * F.gelu(x, approximate="tanh")),
    ("GLU", SEQUENCE, 1, lambda net, x: torch.sigmoid(net.down(x)) * net.gate(x)),
    ("GLU", SEQUENCE, 1, _gated_halves),
    ("GLU", SEQUENCE, 1, lambda net, x: F.glu(x)),
    ("rotary embedding", HEADS, 1, lambda net, x: x * net.cos + _turned(x) * net.sin),
    ("rotary embedding", HEADS, 1, _chunked),
    ("rotary embedding", HEADS, 1, _neighbours),
    (
        "squeeze-and-excite",
        IMAGE,
        1,
        lambda net, x: (
            F.hardsigmoid(net.conv_up(F.relu(net.conv_down(F.adaptive_avg_pool2d(x, 1))))) * x
        ),
    ),
    (
        "squeeze-and-excite",
        IMAGE,
        1,
        lambda net, x: x * net.up(F.silu(net.down(x.mean((2, 3))))).sigmoid()[:, :, None, None],
    ),
    ("depthwise conv", IMAGE, 1, lambda net, x: net.depthwise(x)),
    ("pointwise conv", IMAGE, 1, lambda net, x: net.conv_down(x)),
    ("grouped-query attention", HEADS, 1, _fused_attention),
    ("grouped-query attention", HEADS, 1, _spelt_attention),
]

NEAR_MISSES: dict[str, tuple[Callable[[int], tuple[int, ...]], int, list[Function]]] = {
    "RMSNorm": (
        SEQUENCE,
        2,
        [
            lambda net, x, y: y * torch.rsqrt(_mean_square(net, x)),  # of another value
            lambda net, x, y: x * torch.rsqrt(x.pow(2).mean(1, True) + net.eps),
            lambda net, x, y: x * torch.rsqrt(x.mean(-1, True) + net.eps),
            lambda net, x, y: x * torch.rsqrt(x.pow(2).mean(-1, True) + y[:, :, :1]),
            lambda net, x, y: x * torch.sqrt(_mean_square(net, x)),
        ],
    ),
    "GELU": (
        SEQUENCE,
        2,
        [
            lambda net, x, y: 0.5 * y * (1 + torch.erf(x / math.sqrt(2))),
            lambda net, x, y: x * (1 + torch.erf(x / math.sqrt(2))),
            lambda net, x, y: F.gelu(x, approximate="tanh"),
        ],
    ),
    "GELU (tanh)": (
        SEQUENCE,
        2,
        [
            lambda net, x, y: F.gelu(x),
            lambda net, x, y: 0.5 * x * (1 + _tanh(y, x**3)),
            lambda net, x, y: (
                0.5 * x * (1 + torch.tanh(0.79788456 * 0.044715 * x**3))
            ),  # without x +
        ],
    ),
    "SiLU gate": (
        SEQUENCE,
        2,
        [
            lambda net, x, y: F.silu(x) * y[:, :, :1],
            lambda net, x, y: F.silu(x) * 2.0,
            lambda net, x, y: F.silu(x) * net.weight,
            lambda net, x, y: F.silu(x) + y,
        ],
    ),
    "GLU": (
        SEQUENCE,
        2,
        [
            lambda net, x, y: y * torch.sigmoid(x),  # as in an LSTM
            lambda net, x, y: net.gate(y) * torch.sigmoid(net.down(x)),
            lambda net, x, y: net.down(x)[:, :, :1] * torch.sigmoid(net.gate(x)),
        ],
    ),
    "rotary embedding": (
        HEADS,
        2,
        [
            lambda net, x, y: x * net.cos + _turned(y) * net.sin,
            lambda net, x, y: x * net.cos - _turned(x) * net.sin,
            lambda net, x, y: x * net.cos + torch.cat((x[..., 2:], x[..., :2]), -1) * net.sin,
            lambda net, x, y: x * net.cos + torch.cat((-x[..., 1:], x[..., :1]), -1) * net.sin,
            lambda net, x, y: x * net.cos + torch.cat((-x[:, 1:], x[:, :1]), 1) * net.sin,
        ],
    ),
    "squeeze-and-excite": (
        IMAGE,
        2,
        [
            lambda net, x, y: (
                y * torch.sigmoid(net.conv_up(F.relu(net.conv_down(x.mean((2, 3), True)))))
            ),
            lambda net, x, y: (
                x * torch.sigmoid(net.conv_up(F.relu(net.conv_down(x.mean(2, True)))))
            ),
            lambda net, x, y: x * torch.sigmoid(net.conv_up(F.relu(net.conv_down(x)))),
            lambda net, x, y: x * torch.sigmoid(net.conv_up(net.conv_down(x.mean((2, 3), True)))),
            lambda net, x, y: (
                x + torch.sigmoid(net.conv_up(F.relu(net.conv_down(x.mean((2, 3), True)))))
            ),
        ],
    ),
    "depthwise conv": (IMAGE, 1, [lambda net, x: net.paired(x), lambda net, x: net.conv_down(x)]),
    "pointwise conv": (IMAGE, 1, [lambda net, x: net.depthwise(x)]),
    "grouped-query attention": (
        HEADS,
        1,
        [
            lambda net, x: F.scaled_dot_product_attention(x, x, x),
            lambda net, x: F.scaled_dot_product_attention(
                x.repeat(1, 2, 1, 1), x.repeat(1, 2, 1, 1), _shared(x, 2)
            ),
        ],
    ),
}


@functools.cache
def spelt(number: int) -> ArchGraph:
    """Trace a spelling with random sizes."""
    _, shape, many, function = SPELLINGS[number]
    net = Spelt(function, Random(number))
    return captured(net, *(torch.randn(shape(net.width)) for _ in range(many))).graph


def found(graph: ArchGraph, name: str) -> int:
    return idiom_counts(graph)[name]


every_spelling = pytest.mark.parametrize(
    "number", range(len(SPELLINGS)), ids=[f"{i} {one[0]}" for i, one in enumerate(SPELLINGS)]
)


def test_every_row_has_a_law() -> None:
    names = {idiom.name for idiom in IDIOMS}
    assert {name for name, *_ in SPELLINGS} == names
    assert {*NEAR_MISSES} == names - {"SiLU", "GELU gate"}  # parts, or made of the same parts


@every_spelling
def test_random_sizes_are_recognised(number: int) -> None:
    graph = spelt(number)
    assert found(graph, SPELLINGS[number][0]) == 1
    (result,) = graph.output_refs()
    assert idioms(graph)[result].idiom.name == SPELLINGS[number][0]


@every_spelling
def test_operands_of_sums_and_products_come_in_any_order(number: int) -> None:
    graph, rng = spelt(number), Random(number)
    inside = idioms(graph)
    nodes = []
    for node in graph.nodes:
        if node.name in inside and node.op in ("aten.add.Tensor", "aten.mul.Tensor"):
            first, other = (value for _, value in node.args)
            if rng.random() < 0.7:
                node = replace(node, args=(("self", other), ("other", first)))
        nodes.append(node)
    swapped = graph.replace(nodes=tuple(nodes))
    assert {*idioms(swapped)} == {*inside}


@every_spelling
def test_a_result_inside_that_is_read_from_outside_makes_it_none(number: int) -> None:
    graph, name = spelt(number), SPELLINGS[number][0]
    (result,) = graph.output_refs()
    for inner in idioms(graph)[result].nodes[:-1]:
        if graph.node[inner].op == "aten.split_with_sizes":  # its results are read one by one
            continue
        reader = Node("reader", "aten.neg", (("self", Ref(inner)),), graph.node[inner].type)
        for read, nodes in ((inner, graph.nodes), ("reader", (*graph.nodes, reader))):
            more = graph.replace(nodes=nodes, outputs=(graph.outputs, Ref(read)))
            largest = idioms(more).get(result)
            assert largest is None or largest.idiom.name != name or inner not in largest.nodes


@every_spelling
def test_another_constant_makes_it_another_function(number: int) -> None:
    graph, name = spelt(number), SPELLINGS[number][0]
    eps = Spelt(SPELLINGS[number][3], Random(number)).eps
    numbers = [
        (node, key, value)
        for node in graph.nodes
        if node.name in idioms(graph)
        for key, value in node.args
        if isinstance(value, float) and key not in ("p", "scale") and value not in (eps, 0.3)
    ]
    assert numbers or name not in ("GELU", "GELU (tanh)") or len(graph.nodes) == 2
    for node, key, value in numbers:
        changed = node.with_args(**{key: value * 1.001})
        nodes = tuple(changed if one is node else one for one in graph.nodes)
        assert not found(graph.replace(nodes=nodes), name), (node, key)


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_are_none(name: str) -> None:
    shape, many, functions = NEAR_MISSES[name]
    for function in functions:
        net = Spelt(function, Random(1))
        graph = captured(net, *(torch.randn(shape(net.width)) for _ in range(many))).graph
        assert not found(graph, name), str(graph)


@pytest.mark.slow
def test_models_have_as_many_as_their_papers_say() -> None:
    import torchvision
    import transformers

    ids = torch.zeros(2, 4, dtype=torch.int64)
    small = {"vocab_size": 11, "use_cache": False}
    llama = transformers.LlamaConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        **small,
    )
    gpt2 = transformers.GPT2Config(n_embd=16, n_layer=12, n_head=2, **small)
    image = torch.zeros(2, 3, 32, 32)
    expected = [
        (transformers.LlamaForCausalLM(llama), ids, {
            "RMSNorm": 13, "rotary embedding": 12, "grouped-query attention": 6, "SiLU gate": 6,
        }),
        (transformers.GPT2LMHeadModel(gpt2), ids, {"GELU (tanh)": 12}),
        (torchvision.models.mobilenet_v3_large(), image, {
            "squeeze-and-excite": 8, "depthwise conv": 15, "pointwise conv": 30,
        }),
    ]  # fmt: skip
    for model, example, counts in expected:
        graph = captured(model, example, train=False, strict=False).graph
        assert idiom_counts(graph) == counts
