"""What a box that stands for blocks says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from archgraph import load
from archgraph.analysis.structure import structure
from archgraph.capture.trace import trace
from archgraph.display.contents import Contents, names_of, repeats
from archgraph.display.pieces import Detail, pieces
from archgraph.display.scene import Scene, blocks_of, scene
from archgraph.federation.family import resolve
from archgraph.graph.ir import BATCH, ArchGraph, Leaf, Node, Param, Ref, TensorType, Value
from archgraph.language import load_family
from archgraph.viewer.anatomy import anatomy, described

SPECS = Path(__file__).parents[2] / "specs"
# A term: a convolution, several terms one after the other (`·`), or side by side (`|`).
Term = tuple[str, tuple["Term", ...]]
CONV: Term = ("conv", ())
terms = st.recursive(
    st.just(CONV),
    lambda inner: st.tuples(
        st.sampled_from("·|"), st.lists(inner, min_size=2, max_size=3).map(tuple)
    ),
    max_leaves=8,
)


class Writer:
    """Builds a graph and its text from a term; every convolution has a kernel of its own."""

    def __init__(self) -> None:
        self.params: list[Param] = []
        self.nodes = [Node("x", "input", type=TensorType((BATCH, 2, 64, 64), "float32"))]

    def add(self, op: str, channels: int, **args: Value) -> str:
        name = f"n{len(self.nodes)}"
        kind = TensorType((BATCH, channels, 64, 64), "float32")
        self.nodes.append(Node(name, op, tuple(args.items()), kind))
        return name

    def term(self, term: Term, source: str, channels: int, joint: str = "") -> tuple[str, int, str]:
        """Write a term behind a value; returns its value, its channels and its text."""
        kind, inner = term
        if kind == "conv":
            many = len(self.params)
            size = (2 * many + 1, 2 * many + 1)
            self.params.append(Param(f"w{many}", TensorType((2, channels, *size), "float32")))
            weight, padding = Leaf(f"w{many}"), (many, many)
            value = self.add("aten.conv2d", 2, input=Ref(source), weight=weight, padding=padding)
            return value, 2, f"conv2d {size[0]}×{size[1]}"
        texts, values = [], []
        for each in inner:
            value, out, text = self.term(each, source, channels, kind)
            texts.append(text)
            values.append((value, out))
            if kind == "·":
                source, channels = value, out
        if kind == "|":
            channels = sum(out for _, out in values)
            tensors = tuple(Ref(value) for value, _ in values)
            source = self.add("aten.cat", channels, tensors=tensors, dim=1)
        text = f" {kind} ".join(texts)
        # Branches that are nothing but branches are branches of the same value.
        return source, channels, f"({text})" if kind == "|" != joint else text


@settings(max_examples=40)
@given(term=terms)
def test_a_block_reads_as_the_layers_that_made_it(term: Term):
    writer = Writer()
    value, _, text = writer.term(term, "x", 2)
    graph = ArchGraph((("x", Ref("x")),), tuple(writer.params), tuple(writer.nodes), Ref(value))
    feeds = {node.name: tuple(node.uses()) for node in graph.nodes[1:]}
    contents = Contents(graph, feeds)
    path = contents.path(list(feeds))
    assert path is not None and len(names_of(path)) == len(writer.params)
    assert contents.text(path) == text


def test_branches_that_share_layers_are_counted():
    writer = Writer()
    first, _, _ = writer.term(CONV, "x", 2)
    one, _, _ = writer.term(CONV, first, 2)
    other = writer.add("aten.cat", 4, tensors=(Ref(first), Ref(one)), dim=1)
    shared, out, _ = writer.term(CONV, other, 4)
    last = writer.add("aten.cat", 4 + out, tensors=(Ref(one), Ref(shared)), dim=1)
    graph = ArchGraph((("x", Ref("x")),), tuple(writer.params), tuple(writer.nodes), Ref(last))
    feeds = {node.name: tuple(node.uses()) for node in graph.nodes[1:]}
    (line,) = Contents(graph, feeds).lines([list(feeds)])
    assert line.text == "1 × conv2d 1×1, 1 × conv2d 3×3, 1 × conv2d 5×5"


@given(texts=st.lists(st.sampled_from("abc"), max_size=12))
def test_runs_cover_a_list_and_repeat_their_beginning(texts: list[str]):
    runs = list(repeats(texts))
    assert [start for start, _, _ in runs] == [0, *(stop for _, stop, _ in runs)][: len(runs)]
    assert not texts or runs[-1][1] == len(texts)
    for start, stop, period in runs:
        times, rest = divmod(stop - start, period)
        assert not rest and texts[start:stop] == texts[start : start + period] * times
    # What stands alone does not repeat.
    alone = [start for start, stop, _ in runs if stop == start + 1]
    assert all(texts[start : start + 1] != texts[start + 1 : start + 2] for start in alone)


def sections_of(graph: ArchGraph) -> list[tuple[str, list[tuple[str, tuple[str, ...]]]]]:
    parts = structure(graph).sections
    return [(part.name, [(block.name, block.nodes) for block in part.blocks]) for part in parts]


def words(picture: Scene) -> dict[str, list[str]]:
    """Lines of each box by its title."""
    boxes = [box for box in picture.boxes if box.kind == "operator"]
    return {box.lines[0].text: [line.text for line in box.lines[1:]] for box in boxes}


@pytest.mark.parametrize(
    ("name", "per_section", "expected"),
    [
        ("resnet18", True, {"layer2": ["2 residual blocks of conv2d 3×3 · 3×3"]}),
        (
            "resnet18",
            False,
            {
                "layer1": ["2 residual blocks of conv2d 3×3 · 3×3"],
                "layer2.0": ["residual block of conv2d 3×3 · 3×3, shortcut conv2d 1×1"],
            },
        ),
        ("recipfl_densenet121", True, {"dense3": ["24 dense layers of conv2d 1×1 · 3×3"]}),
        ("digits_vit", False, {"encoder": ["2 × (attention, 4 heads of 8 · feed-forward of 64)"]}),
        (
            "small_mobilenet",
            True,
            {
                "stage1": [
                    "conv2d 1×1 · 3×3 depthwise · conv2d 1×1",
                    "residual block of conv2d 1×1 · 3×3 depthwise · conv2d 1×1",
                ]
            },
        ),
        ("vgg_mnist", True, {"stage5": ["conv2d 3×3 → 768", "3 × conv2d 3×3 → 512"]}),
    ],
)
def test_sections_of_models(name: str, per_section: bool, expected: dict[str, list[str]]):
    graph = load(SPECS / "models" / f"{name}.yaml")
    picture = scene(graph, sections_of(graph), detail="section", per_section=per_section)
    assert expected.items() <= words(picture).items()
    assert not picture.groups or not per_section


@pytest.mark.parametrize(
    ("name", "section", "fold", "block"),
    [
        # A fold has the words of one repetition: its number stands beside them.
        ("digits_vit", "2 × (attention, 4 heads of 8 · feed-forward of 64)",
         "attention, 4 heads of 8 · feed-forward of 64", "feed-forward of 64"),
        ("resnet18", "2 residual blocks of conv2d 3×3 · 3×3",
         "residual block of conv2d 3×3 · 3×3", "residual block of conv2d 3×3 · 3×3"),
    ],
)  # fmt: skip
def test_parts_of_a_page_say_what_they_hold(name: str, section: str, fold: str, block: str):
    page: Any = described(anatomy(load(SPECS / "models" / f"{name}.yaml")))
    assert section in [" ".join(words) for _, _, words in page["sections"]]
    assert fold in [" ".join(row[-1]) for row in page["folds"]]
    assert any(" ".join(row[-1]).endswith(block) for row in page["blocks"])
    assert all(len(line) <= 40 for row in page["sections"] for line in row[-1])


def test_a_section_is_not_named_after_its_first_block_alone():
    graph = trace(nn.Sequential(*(nn.Linear(8, 8) for _ in range(3))), torch.zeros(2, 8)).graph
    blocks = [(f"mix4{letter}", [n.name]) for letter, n in zip("abc", graph.nodes[1:], strict=True)]
    sections = [("mix4a", blocks[:2]), ("mix4c", blocks[2:])]
    assert [title for title, _ in blocks_of(sections, pieces(graph, sections, "block"))] == [
        "mix4a–b",
        "mix4c",
    ]
    unlike = [("mix4a", [blocks[0], ("head", blocks[1][1])]), sections[1]]
    assert blocks_of(unlike, pieces(graph, unlike, "block"))[0][0] == "mix4a"
    picture = scene(graph, sections, detail="section", per_section=True)
    assert words(picture).keys() == {"mix4a–b", "mix4c"}


@pytest.mark.parametrize("detail", ["section", "block", "node"])
@pytest.mark.parametrize("per_section", [False, True])
def test_every_exit_has_a_box_and_an_arrow_of_its_own(detail: Detail, per_section: bool):
    graph = resolve(load_family(SPECS / "families" / "digits_exits.yaml")).graph
    picture = scene(graph, sections_of(graph), detail=detail, per_section=per_section)
    outputs = [box.name for box in picture.boxes if box.kind == "output"]
    arrows = [link for link in picture.links if link.head in outputs]
    assert [link.head for link in arrows] == outputs and len(outputs) == 3
    assert len({link.tail for link in arrows}) == 3
    assert not any(picture.box[link.tail].folded for link in arrows)


def test_every_exit_of_a_page_has_an_arrow_of_its_own():
    graph = resolve(load_family(SPECS / "families" / "digits_exits.yaml")).graph
    page: Any = described(anatomy(graph))
    outputs = [i for i, (kind, _, _) in enumerate(page["boxes"]) if kind == 2]
    tails = [head - page["arrows"][row][0] for head, row in page["links"] if head in outputs]
    assert len(outputs) == len(tails) == len(set(tails)) == 3
    assert len({page["boxes"][i][1] for i in outputs}) == 3


class Residual(nn.Module):
    """Two layers and a sum, with or without a layer in the shortcut."""

    def __init__(self, projected: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.shortcut = nn.Linear(8, 8) if projected else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).relu()) + self.shortcut(x)


@pytest.mark.parametrize(
    ("projected", "text"),
    [
        (False, "feed-forward of 16"),
        (True, "residual block of linear · linear, shortcut linear"),
    ],
)
def test_only_a_residual_block_without_a_layer_in_its_shortcut_is_a_network(
    projected: bool, text: str
):
    graph = trace(Residual(projected), torch.zeros(2, 8)).graph
    feeds = {node.name: tuple(node.uses()) for node in graph.nodes[1:]}
    assert [line.text for line in Contents(graph, feeds).lines([list(feeds)])] == [text]


class Decoder(nn.Module):
    """Attention to itself with a learned bias, attention to another sequence, and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(8))
        self.memory, self.bias = nn.Linear(8, 8), nn.Embedding(5, 5)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        attend = nn.functional.scaled_dot_product_attention
        q, k, v, out, query, key, value, last = self.layers
        other, bias = self.memory(other), self.bias(torch.arange(5))
        x = x + out(attend(q(x), k(x), v(x), attn_mask=bias))
        x = x + last(attend(query(x), key(other), value(other)))
        return x + self.down(self.up(x).relu())


def test_keys_and_values_of_another_sequence_and_a_learned_bias_belong_to_attention():
    graph = trace(Decoder(), torch.zeros(2, 5, 8), torch.zeros(2, 5, 8)).graph
    feeds = {node.name: tuple(node.uses()) for node in graph.nodes[2:]}
    (memory,) = [name for name, used in feeds.items() if used == ("other",)]
    contents = Contents(graph, feeds)
    contents.entries = {"x"}
    (line,) = contents.lines([[name for name in feeds if name != memory]])
    assert line.text == "attention, width 8 · attention, width 8 · feed-forward of 16"


def test_of_many_unlike_blocks_the_first_and_the_last_are_listed():
    layers = nn.Sequential(*(nn.Linear(size, size + 1) for size in range(8, 15)))
    graph = trace(layers, torch.zeros(2, 8)).graph
    feeds = {node.name: tuple(node.uses()) for node in graph.nodes[1:]}
    lines = [line.text for line in Contents(graph, feeds).lines([[name] for name in feeds])]
    assert lines == ["linear → 9", "linear → 10", "… 4 more blocks …", "linear → 15"]


def test_shapes_of_blocks_that_grow_are_ranges():
    graph = load(SPECS / "models" / "recipfl_densenet121.yaml")
    labels = {link.label for link in scene(graph, sections_of(graph), detail="node").links}
    assert {"24–84×32×32", "192–372×4×4"} <= labels
