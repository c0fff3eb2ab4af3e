"""Folds, attention, rows: what a picture shows once, at the side, or further down."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from archgraph.analysis.axes import axes
from archgraph.capture.trace import trace
from archgraph.display.dot import Drawing
from archgraph.display.labels import lines_of
from archgraph.display.picture import draw, render
from archgraph.display.pieces import masks_of, pieces
from archgraph.display.scene import Scene, scene
from archgraph.errors import RunError
from archgraph.graph.ir import BATCH, ArchGraph, Node, Ref, TensorType, Value

Net = Callable[..., tuple[ArchGraph, Sequence[tuple[str, Sequence[tuple[str, Sequence[str]]]]]]]


def folds(picture: Scene) -> dict[str, int]:
    return {group.name: group.times for group in picture.clusters() if group.times > 1}


@given(depth=st.integers(1, 6), pre=st.booleans())
def test_equal_neighbours_are_shown_once_with_their_number(residual: Net, depth: int, pre: bool):
    graph, sections = residual((depth, depth), (8, 16), pre=pre)
    expected = {f"layer1.0–{depth - 1}": depth} if depth > 1 else {}
    # The first block of the second stage halves the picture.
    expected |= {f"layer2.1–{depth - 1}": depth - 1} if depth > 2 else {}
    picture = scene(graph, sections)
    assert folds(picture) == expected
    whole = scene(graph, sections, fold=False)
    assert not folds(whole)
    # What is inside is shown once: nothing leads from the fold back to itself.
    order = {box.name: i for i, box in enumerate(picture.boxes)}
    assert all(order[link.tail] < order[link.head] for link in picture.links)
    # The size of a section is that of all of its blocks.
    sizes = {g.name: g.note for g in whole.groups}
    assert all(sizes[g.name] == g.note for g in picture.groups if g.name in sizes)


def test_a_section_of_alternating_blocks_alone_is_drawn(residual: Net):
    graph, ((section, blocks),) = residual((3,), (8,))
    # Residual blocks start with a convolution; here each one is two blocks that take turns.
    halves = [half for name, n in blocks for half in ((f"{name}.a", n[:1]), (f"{name}.b", n[1:]))]
    picture = scene(graph, [(section, halves)])
    assert [(g.name, g.times, len(g.groups)) for g in picture.groups] == [
        ("layer1.0.a – layer1.2.b", 3, 2)
    ]
    text = Drawing(picture, {}, lambda box: "").source("")
    assert text.count("tooltip=") == len(picture.boxes) + len([*picture.clusters()])


def test_blocks_that_are_marked_apart_do_not_fold(residual: Net):
    graph, sections = residual((4,), (8,))
    marks = {name: 0.5 if "1.2" in name or "1.3" in name else 1.0 for name in graph.param}
    assert folds(scene(graph, sections, marks=marks)) == {"layer1.0–1": 2, "layer1.2–3": 2}
    assert folds(scene(graph, sections, marks={"layer1.0": 0.5})) == {"layer1.1–3": 3}


def test_a_value_that_leaves_in_the_middle_keeps_its_block_apart(residual: Net):
    graph, sections = residual((4,), (8,))
    middle = dict(sections[0][1])["layer1.1"][-1]
    graph = graph.replace(outputs=(graph.outputs, Ref(middle)))
    picture = scene(graph, sections)
    assert folds(picture) == {"layer1.0–1": 2, "layer1.2–3": 2}
    assert sum(box.kind == "output" for box in picture.boxes) == 2


def attention(layers: int) -> tuple[ArchGraph, list[tuple[str, list[tuple[str, list[str]]]]]]:
    """Layers of masked attention with a sum around each; the first block holds the mask."""
    wide, split = (TensorType((BATCH, *s), "float32") for s in ((5, 8), (2, 5, 4)))
    mask = TensorType((BATCH, 5), "bool")
    nodes = [Node("x", "input", type=wide), Node("keep", "input", type=mask)]
    # An addition in a mask is not a join.
    nodes.append(Node("not", "aten.add.Tensor", (("self", Ref("keep")), ("other", 1)), mask))
    cut: Value = (BATCH, 2, 5, 4)
    blocks, last = [], "x"
    for i in range(layers):
        made = [
            Node(f"{part}{i}", "aten.reshape", (("self", Ref(last)), ("shape", cut)), split)
            for part in ("query", "key", "value")
        ]
        heads = (*((n.name[:-1], Ref(n.name)) for n in made), ("attn_mask", Ref("not")))
        made.append(Node(f"attend{i}", "aten.scaled_dot_product_attention", heads, split))
        back = (("self", Ref(f"attend{i}")), ("shape", (BATCH, 5, 8)))
        made.append(Node(f"join{i}", "aten.reshape", back, wide))
        both = (("self", Ref(f"join{i}")), ("other", Ref(last)))
        made.append(Node(f"sum{i}", "aten.add.Tensor", both, wide))
        last = made[-1].name
        nodes += made
        blocks.append((f"layer.{i}", ["not"] * (not i) + [n.name for n in made]))
    inputs = (("x", Ref("x")), ("keep", Ref("keep")))
    return ArchGraph(inputs, (), tuple(nodes), Ref(last)), [("layers", blocks)]


@pytest.mark.parametrize("layers", [1, 3])
def test_attention_is_one_box_that_tells_its_heads_and_masks_stand_aside(layers: int):
    picture = scene(*attention(layers))
    (box,) = [box for box in picture.boxes if "attend0" in box.nodes]
    assert [line.text for line in box.lines] == ["attention, 2 heads of 4"]
    assert box.nodes == ("query0", "key0", "value0", "attend0", "join0")
    assert len(box.folded) == (layers - 1) * len(box.nodes)
    assert folds(picture) == ({"layer.0–2": 3} if layers > 1 else {})
    assert picture.box["not"].family == ""
    (mask,) = [link for link in picture.links if link.mask]
    assert (mask.tail, mask.head) == ("not", box.name)
    assert "not" not in {name for group in picture.clusters() for name in group.boxes}


class Biased(nn.Module):
    """Attention with a bias that is computed from a parameter or an input."""

    def __init__(self, learned: bool) -> None:
        super().__init__()
        self.inner, self.bias = nn.Linear(8, 8), nn.Parameter(torch.zeros(5, 5))
        self.learned = learned

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        bias = ((self.bias if self.learned else places) * 2).exp()
        return nn.functional.scaled_dot_product_attention(self.inner(x), x, x, attn_mask=bias)


def test_a_learned_bias_is_part_of_a_block_and_not_a_mask():
    inputs = torch.zeros(1, 5, 8), torch.zeros(5, 5)
    masks = [masks_of(trace(Biased(learned), *inputs).graph) for learned in (False, True)]
    assert set(masks[0]) == {"mul", "exp"} and not masks[1]


class Spelt(nn.Module):
    """Attention written as products and a softmax, with a mask that is a constant."""

    mask: torch.Tensor

    def __init__(self, einsum: bool) -> None:
        super().__init__()
        self.einsum = einsum
        self.inner, self.outer = nn.Linear(8, 24), nn.Linear(8, 8)
        self.register_buffer("mask", torch.ones(5, 5).tril().log())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.inner(x).reshape(-1, 5, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) if self.einsum else q @ k.transpose(-2, -1)
        mixed = (scores / 2 + self.mask).softmax(-1)
        values = torch.einsum("bhqk,bhkd->bqhd", mixed, v) if self.einsum else mixed @ v
        return self.outer((values if self.einsum else values.transpose(1, 2)).reshape(-1, 5, 8))


@pytest.mark.parametrize("einsum", [False, True], ids=["matmul", "einsum"])
def test_attention_that_is_spelt_out_is_one_box_too(einsum: bool):
    graph = trace(Spelt(einsum), torch.zeros(1, 5, 8)).graph
    (weighed,) = axes(graph).attention
    assert axes(graph).attention[weighed] == (2, 4)
    boxes = scene(graph, [("all", [("all", [n.name for n in graph.nodes[1:]])])]).boxes
    words = [[line.text for line in box.lines if line.strong] for box in boxes[1:-1]]
    assert words == [["linear → 24"], ["attention, 2 heads of 4"], ["linear → 8"]]
    (box,) = [box for box in boxes if weighed in box.nodes]
    assert any(graph.node[n].op == "aten.softmax.int" for n in box.nodes)


def laid_out(text: str) -> Any:
    return json.loads(render(text, "json"))


@settings(max_examples=4)
@given(depths=st.lists(st.integers(1, 3), min_size=2, max_size=3), pre=st.booleans())
def test_no_arrow_runs_through_a_title(residual: Net, depths, pre: bool):
    graph, sections = residual(depths, [8] * len(depths), pre=pre)
    page = laid_out(
        Drawing(scene(graph, sections, fold=False), {}, lambda box: "").source("<<B>residual</B>>")
    )
    titles = []
    for frame in (o for o in page["objects"] if o["name"].startswith("cluster")):
        x, y = map(float, frame["lp"].split(","))
        w, h = 36 * float(frame["lwidth"]), 36 * float(frame["lheight"])
        titles.append((x - w, y - h, x + w, y + h))
    assert titles
    for edge in page["edges"]:
        points = [p.split(",")[-2:] for p in edge["pos"].split()]
        ends = [(float(x), float(y)) for x, y in points]
        for (x0, y0), (x1, y1) in itertools.pairwise(ends[1:]):
            for part in range(9):
                x, y = x0 + (x1 - x0) * part / 8, y0 + (y1 - y0) * part / 8
                assert not any(a < x < c and b < y < d for a, b, c, d in titles), edge["pos"]


def test_a_label_that_graphviz_cannot_read_is_an_error(residual: Net):
    with pytest.raises(RunError, match="Graphviz cannot draw this"):
        render("digraph { a [label=<<FONT></FONT>>] }", "svg")
    graph, _ = residual((1,), (8,))
    notes = [("clients", "number"), ("", "3")]
    assert render(draw(graph, notes=notes))


class Attending(torch.nn.Module):
    """Queries, keys and values by layers of their own, as BERT has them."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (torch.nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = [
            layer(x).unflatten(-1, (2, 4)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        ]
        mixed = torch.nn.functional.scaled_dot_product_attention(*heads)
        return self.out(mixed.transpose(1, 2).flatten(2)) + x


def test_what_feeds_attention_stands_before_it():
    graph = trace(Attending(), torch.zeros(1, 5, 8)).graph
    found = pieces(graph, [("all", [("all", [n.name for n in graph.nodes])])], "block")
    place = {name: i for i, box in enumerate(found.boxes) for name in box}
    for name, before in found.feeds.items():
        assert all(place[used] <= place[name] for used in before)
    words = [lines_of(graph, box)[0].text for box in found.boxes]
    assert words[1:5] == [*["linear → 8"] * 3, "attention, 2 heads of 4"]
