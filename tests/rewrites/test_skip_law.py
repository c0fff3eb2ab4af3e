"""The law of skipping does not depend on where a block is said to begin and to end."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import archgraph as ag
from archgraph.analysis.structure import Block, structure
from archgraph.rewrites.silenced import silenced
from tests.nets import captured, with_parts
from tests.structures import graph_of, parts

WIDTH = 16


@with_parts(
    lambda: {
        **{name: nn.Linear(WIDTH, WIDTH) for name in ("q", "k", "v", "out")},
    }
)
def Attention(self, queries, tokens):
    heads = (self.q(queries), self.k(tokens), self.v(tokens))
    return self.out(F.scaled_dot_product_attention(*heads))


def _layer(post: bool) -> dict[str, Any]:
    return {
        "post": post,
        "attention": Attention(),
        "norm1": nn.LayerNorm(WIDTH),
        "norm2": nn.LayerNorm(WIDTH),
        "mlp": nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH)),
    }


@with_parts(_layer)
def Layer(self, queries, tokens):
    """Queries attend to tokens; a feed-forward follows."""
    if self.post:
        hidden = self.norm1(queries + self.attention(queries, tokens))
        return self.norm2(hidden + self.mlp(hidden))
    hidden = queries + self.attention(self.norm1(queries), tokens)
    return hidden + self.mlp(self.norm2(hidden))


def _pooler(spelling: str = "repeat", post: bool = False, layer: Any = Layer) -> dict[str, Any]:
    return {
        "spelling": spelling,
        "embed": nn.Linear(8, WIDTH),
        "queries": nn.Parameter(torch.randn(3, WIDTH)),
        "position": nn.Parameter(torch.randn(3, WIDTH)),
        "layer": layer(post),
        "head": nn.Linear(WIDTH, 4),
    }


@with_parts(_pooler)
def Pooler(self, x):
    """Learned queries, as Perceivers and poolers have them."""
    batch, queries = x.shape[0], 1 * self.queries
    if self.spelling == "position":
        queries = queries + self.position
    if self.spelling == "repeat":
        queries = queries[None].repeat(batch, 1, 1)
    else:
        queries = queries.unsqueeze(0).expand(batch, -1, -1)
    return self.head(self.layer(queries, self.embed(x)).mean(1))


@with_parts(_layer)
def BiasedLayer(self, queries, tokens):
    """What is added behind the attention is not what the attention reads."""
    hidden = self.attention(tokens, tokens) + queries
    return hidden + self.mlp(self.norm2(hidden))


@with_parts(lambda: _pooler(layer=BiasedLayer))
def Biased(self, x):
    position = self.position.repeat(2, 1)
    return self.head(self.layer(position, self.embed(x) + position).mean(1))


def feed_forward(graph: ag.ArchGraph) -> Block:
    """The block with the feed-forward alone."""
    (block,) = (
        b
        for b in structure(graph).blocks
        if any("layer.mlp.0.weight" in graph.node[n].leaves() for n in b.nodes)
    )
    return block


@pytest.mark.sample(3)
@pytest.mark.parametrize("post", [False, True])
@pytest.mark.parametrize("spelling", ["repeat", "expand", "position"])
def test_a_feed_forward_goes_without_the_sum_before_it(spelling, post):
    model, x = Pooler(spelling, post).eval(), torch.randn(2, 5, 8)
    graph, state = captured(model, x)
    block = feed_forward(graph)
    assert block.removable
    short = ag.skip(graph, block.name, verify=True)
    silent = copy.deepcopy(model)
    silent.layer.mlp.register_forward_hook(lambda _, inputs, output: 0 * output)
    if post:
        silent.layer.norm2.register_forward_hook(lambda _, inputs, output: inputs[0])
    built = ag.build(short.graph, short.transfer.pull(state)).eval()
    torch.testing.assert_close(built(x), silent(x), rtol=1e-5, atol=1e-6)


def test_a_sum_between_two_blocks_stays():
    graph = graph_of(Biased(), torch.randn(2, 6, 8))
    block = feed_forward(graph)
    short = ag.skip(graph, block.name, verify=True)
    assert len([n for n in short.graph.nodes if n.op == "aten.add.Tensor"]) == 2
    (before,) = (b for b in structure(graph).blocks if block.entry in b.nodes)
    assert before.name != block.name
    assert not before.removable and "which adds a value that is used elsewhere" in before.reason


def test_the_law_sees_a_block_that_takes_a_sum_along(monkeypatch):
    """A block that is said to begin too early: before the sum with the queries."""
    graph = graph_of(Biased(), torch.randn(2, 6, 8))
    block = feed_forward(graph)
    total = graph.node[block.entry]
    early = dataclasses.replace(block, entry=next(total.uses()), nodes=(total.name, *block.nodes))
    right = silenced(graph, [(block, False)])
    assert silenced(graph, [(early, False)]) == right

    found = structure(graph)
    section = dataclasses.replace(found.section(block.section), blocks=(early,))
    wrong = dataclasses.replace(found, sections=(section,))
    monkeypatch.setattr("archgraph.rewrites.skip.structure", lambda _: wrong)
    monkeypatch.setattr("archgraph.rewrites.skip.with_sections", lambda new, *_: new)
    with pytest.raises(ag.RewriteError, match="not the original with these blocks at zero"):
        ag.skip(graph, early.name, verify=True)


def test_the_law_multiplies_branches_by_zero_in_the_unchanged_graph():
    graph = graph_of(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.zeros(2, 3, 8))
    blocks = [b for b in structure(graph).blocks if b.removable]
    silent = silenced(graph, [(block, False) for block in blocks])
    zeros = [n for n in silent.nodes if n.op == "aten.mul.Tensor" and n.arg("other") == 0]
    assert len(zeros) == sum(len(block.sums) for block in blocks) == 2
    assert silent.params == graph.params


@with_parts(
    lambda: {
        "to_image": Attention(),
        "to_tokens": Attention(),
        "norm1": nn.LayerNorm(WIDTH),
        "norm2": nn.LayerNorm(WIDTH),
    }
)
def TwoWay(self, tokens, image, position):
    """Two streams that read each other in turn (SAM's mask decoder)."""
    tokens = self.norm1(tokens + self.to_image(tokens + position, image))
    return tokens, self.norm2(image + self.to_tokens(image, tokens + position))


@with_parts(
    lambda: {
        "tokens": nn.Parameter(torch.randn(1, 3, WIDTH)),
        "image": nn.Linear(8, WIDTH),
        "layers": nn.ModuleList(TwoWay() for _ in range(3)),
        "score": nn.Linear(WIDTH, 2),
        "mask": nn.Linear(WIDTH, 1),
    }
)
def Decoder(self, x):
    start = tokens = self.tokens.repeat(x.shape[0], 1, 1)
    image = self.image(x)
    for layer in self.layers:
        tokens, image = layer(tokens, image, start)
    return self.score(tokens), self.mask(image)


def test_streams_that_read_each_other_have_blocks_of_their_own():
    graph = graph_of(Decoder(), torch.randn(2, 5, 8))
    blocks = {b.name: b for b in structure(graph).blocks}
    for layer in range(3):
        for half in ("to_image", "to_tokens"):
            block = blocks[f"layers.{layer}.{half}"]
            assert block.kind == "residual" and block.removable
            ag.skip(graph, block.name, verify=True)


@with_parts(
    lambda: {
        "source": nn.Embedding(20, WIDTH),
        "target": nn.Embedding(20, WIDTH),
        "net": nn.Transformer(WIDTH, 4, 2, 3, 32, batch_first=True),
        "head": nn.Linear(WIDTH, 20),
    }
)
def EncoderDecoder(self, source, target):
    """The encoder's input also makes the mask, which the decoder reads, too."""
    mask = source == 0
    inputs = self.source(source), self.target(target)
    keys = {"src_key_padding_mask": mask, "memory_key_padding_mask": mask}
    return self.head(self.net(*inputs, **keys))


def test_an_encoder_whose_input_makes_a_mask_has_sections():
    tokens = torch.arange(1, 9).view(2, 4)
    graph = graph_of(EncoderDecoder(), tokens, tokens)
    found = parts(graph)
    assert found["net.encoder.layers"] == ["net.encoder.layers.0", "net.encoder.layers.1"]
    assert len(found["net.decoder.layers"]) == 3
    for depths in ({"net.encoder.layers": 1}, {"net.decoder.layers": 2}):
        short = parts(ag.shorten(graph, depths, verify=True).graph)
        (section,) = depths
        assert {k: len(v) for k, v in short.items() if "layers" in k} == {
            k: len(v) for k, v in found.items() if "layers" in k
        } | depths
        assert short[section] == found[section][: depths[section]]


@with_parts(
    lambda: {
        "source": nn.Embedding(20, WIDTH),
        "target": nn.Embedding(20, WIDTH),
        "encode": nn.Sequential(
            *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3))
        ),
        "attention": Attention(),
        "head": nn.Linear(WIDTH, 20),
    }
)
def PlainEncoder(self, source, target):
    """An encoder of plain layers, and a mask that its input makes."""
    memory, queries = self.encode(self.source(source)), self.target(target)
    memory = memory * (source != 0)[..., None]
    hidden = queries + self.attention(queries, memory)
    return self.head(hidden + self.attention(hidden, memory))


def test_a_mask_that_an_input_makes_does_not_end_its_stream():
    tokens = torch.arange(1, 9).view(2, 4)
    graph = graph_of(PlainEncoder(), tokens, tokens)
    removable = [b.name for b in structure(graph).blocks if b.removable]
    assert {"encode.0.0", "encode.1.0"} < {*removable}
