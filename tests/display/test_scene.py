"""Laws of what a picture shows."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from archgraph.analysis.cost import cost
from archgraph.analysis.structure import structure
from archgraph.display import summary_table
from archgraph.display.labels import dimensions, kernel_of
from archgraph.display.pieces import Detail, pieces
from archgraph.display.scene import Scene, scene
from archgraph.graph.ir import BATCH, ArchGraph, Leaf, Node, Param, Ref, TensorType
from archgraph.graph.passes import specialise
from archgraph.tables import count
from archgraph.viewer.anatomy import anatomy, described
from tests.nets import captured

Net = Callable[..., tuple[ArchGraph, Sequence[tuple[str, Sequence[tuple[str, Sequence[str]]]]]]]

shapes = st.lists(st.tuples(st.integers(1, 3), st.sampled_from([4, 8, 16])), min_size=1, max_size=3)
details = st.sampled_from(["section", "block", "node"])


def made(residual: Net, shape: list[tuple[int, int]], detail: Detail, aux: bool, pre: bool):
    depths, widths = zip(*shape, strict=True)
    graph, sections = residual(depths, widths, aux=aux, pre=pre)
    return graph, sections, scene(graph, sections, detail=detail)


@given(shape=shapes, detail=details, aux=st.booleans(), pre=st.booleans())
def test_every_node_is_in_one_box(residual: Net, shape, detail: Detail, aux: bool, pre: bool):
    graph, _, picture = made(residual, shape, detail, aux, pre)
    held = [name for box in picture.boxes for name in (*box.nodes, *box.folded)]
    assert sorted(held) == sorted(n.name for n in graph.nodes)
    assert len({box.name for box in picture.boxes}) == len(picture.boxes)


@given(shape=shapes, detail=details, aux=st.booleans(), pre=st.booleans())
def test_links_are_the_edges_between_boxes(
    residual: Net, shape, detail: Detail, aux: bool, pre: bool
):
    graph, sections, _ = made(residual, shape, detail, aux, pre)
    picture = scene(graph, sections, detail=detail, fold=False)
    holder = {name: box.name for box in picture.boxes for name in box.nodes}
    expected = {
        (holder[used], holder[node.name])
        for node in graph.nodes
        for used in node.uses()
        if holder[used] != holder[node.name]
    }
    outputs = {box.name for box in picture.boxes if box.kind == "output"}
    assert {(k.tail, k.head) for k in picture.links if k.head not in outputs} == expected
    assert len(outputs) == 1 + aux
    assert {k.head for k in picture.links} >= outputs


@given(shape=shapes, aux=st.booleans(), pre=st.booleans())
def test_a_box_holds_one_mixing_operator_at_most_and_folds_the_rest(
    residual: Net, shape, aux: bool, pre: bool
):
    graph, _, picture = made(residual, shape, "block", aux, pre)
    for box in picture.boxes:
        assert sum(bool(kernel_of(graph, graph.node[n])) for n in box.nodes) <= 1
    convolutions = sum(n.op in {"aten.conv2d", "aten.linear"} for n in graph.nodes)
    adds = sum(n.op.startswith("aten.add") for n in graph.nodes)
    inputs_and_outputs = 2 + aux
    # Before a shortcut splits off, norm and relu of a pre-activation block stay alone.
    alone = adds if pre else 0
    assert len(picture.boxes) <= convolutions + adds + inputs_and_outputs + alone


@given(shape=shapes, detail=st.sampled_from(["block", "node"]), pre=st.booleans())
def test_frames_nest_as_the_structure(residual: Net, shape, detail: Detail, pre: bool):
    graph, sections, _ = made(residual, shape, detail, False, pre)
    picture = scene(graph, sections, detail=detail, fold=False)
    for group, (section, blocks) in zip(picture.groups, sections, strict=True):
        # One frame for a section of one block: two would say the same.
        assert group.name == (section if len(blocks) > 1 else blocks[0][0])
        frames = group.groups if len(blocks) > 1 else (group,)
        assert [inner.name for inner in frames] == [name for name, _ in blocks]
        for inner, (_, nodes) in zip(frames, blocks, strict=True):
            held = {n for name in inner.boxes for n in picture.box[name].nodes}
            assert held == set(nodes)


@given(shape=shapes, fold=st.booleans(), per_section=st.booleans(), pre=st.booleans())
def test_a_box_that_stands_for_blocks_counts_them(
    residual: Net, shape, fold: bool, per_section: bool, pre: bool
):
    graph, sections = residual(*zip(*shape, strict=True), pre=pre)
    picture = scene(graph, sections, detail="section", fold=fold, per_section=per_section)
    assert sum(box.parameters for box in picture.boxes) == cost(graph).parameters
    for name, blocks in sections:
        inside = {n for _, nodes in blocks for n in nodes}
        boxes = [box for box in picture.boxes if not inside.isdisjoint(box.nodes)]
        assert {n for box in boxes for n in box.nodes} == inside
        # A frame around one box would repeat its title.
        frames = [group.boxes for group in picture.groups if group.name == name]
        assert frames == ([tuple(box.name for box in boxes)] if len(boxes) > 1 else [])
        assert len(boxes) > 1 or boxes[0].lines[0].text == name
        assert not per_section or len(boxes) == 1
        for box in boxes:
            (line,) = [line.text for line in box.lines[1:]]
            text = r"(\d+ )?residual blocks? of conv2d 3×3 · 3×3(, shortcut conv2d 3×3)?"
            match = re.fullmatch(text, line)
            assert match is not None, line
            stands_for = [nodes for _, nodes in blocks if set(nodes) <= set(box.nodes)]
            assert int(match[1] or 1) == len(stands_for)
            assert bool(match[2]) == (len(stands_for) == 1 and "down" in str(box.leaves))


@given(shape=shapes, detail=details)
def test_what_eval_does_not_need_is_marked(residual: Net, shape, detail: Detail):
    graph, _, picture = made(residual, shape, detail, True, False)
    needed = {n.name for n in specialise(graph, training=False).nodes}
    for box in picture.boxes:
        if box.kind == "operator":
            assert box.training == (not set(box.nodes) <= needed)
    (aside,) = [box for box in picture.boxes if box.kind == "output" and box.training]
    assert aside.name == "aux (training)" and aside.lines[0].text == "aux"
    assert all(link.training for link in picture.links if link.head == aside.name)


def test_labels_say_what_the_operator_does(residual: Net):
    graph, sections = residual((1, 1), (8, 16))
    boxes = scene(graph, sections).box
    assert [line.text for line in boxes["conv2d_1"].lines] == [
        "conv2d 3×3 → 8",
        "batch norm · relu",
    ]
    assert boxes["conv2d_3"].lines[0].text == "conv2d 3×3 → 16, stride 2"
    assert boxes["conv2d_3"].parameters == 16 * 8 * 9 + 2 * 16
    links = {(k.tail, k.head): k.label for k in scene(graph, sections).links}
    assert links["x", "conv2d"] == "3×32×32"
    assert links["conv2d_3", "conv2d_4"] == "16×16×16"


def test_an_output_may_share_the_name_of_a_node():
    kind = TensorType((BATCH, 8), "float32")
    nodes = (
        Node("output", "input", (), kind),
        Node("relu", "aten.relu", (("self", Ref("output")),), kind),
    )
    graph = ArchGraph((("output", Ref("output")),), (), nodes, Ref("relu"))
    picture: Scene = scene(graph, [])
    assert [box.kind for box in picture.boxes] == ["input", "operator", "output"]
    assert len({box.name for box in picture.boxes}) == 3


@pytest.mark.parametrize("detail", ["section", "block", "node"])
def test_a_counter_shares_the_box_of_what_it_counts_for(detail: Detail):
    kind = TensorType((BATCH, 8), "float32")
    number = TensorType((), "int64")
    graph = ArchGraph(
        inputs=(("x", Ref("x")),),
        params=(Param("seen", number, role="buffer"),),
        nodes=(
            Node("x", "input", (), kind),
            Node("add", "aten.add.Tensor", (("self", Leaf("seen")), ("other", 1)), number),
            Node("relu", "aten.relu", (("self", Ref("x")),), kind),
        ),
        outputs=Ref("relu"),
        updates=(("seen", Ref("add")),),
    )
    picture = scene(graph, [], detail=detail)
    assert [box.name for box in picture.boxes] == ["x", "relu", "output (output)"]
    assert picture.box["relu"].nodes == ("add", "relu")


def test_an_initial_state_of_zeros_belongs_to_its_user():
    kind = TensorType((BATCH, 8), "float32")
    nodes = (
        Node("x", "input", (), kind),
        Node("zeros", "aten.zeros", (("size", (BATCH, 8)),), kind),
        Node("relu", "aten.relu", (("self", Ref("x")),), kind),
        Node("sum", "aten.add.Tensor", (("self", Ref("relu")), ("other", Ref("zeros"))), kind),
    )
    host = pieces(ArchGraph((("x", Ref("x")),), (), nodes, Ref("sum")), [], "block").host
    assert host == {"x": "x", "zeros": "sum", "relu": "relu", "sum": "sum"}


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (1e3 - 1, "999"), (999_949, "999.9k"), (999_950, "1M")]
)
def test_counts_never_show_four_digits_before_the_unit(number: float, text: str):
    assert count(number) == text


def test_shapes_name_multiples_of_the_batch():
    assert dimensions((BATCH * BATCH, 3)) == "batch**2×3"


@given(layers=st.integers(1, 8), detail=details)
def test_growing_concatenations_are_drawn_as_a_stream(layers: int, detail: Detail):
    nodes = [Node("x", "input", (), TensorType((BATCH, 4), "float32"))]
    features = [Ref("x")]
    for index in range(layers):
        width = TensorType((BATCH, 4 * (index + 1)), "float32")
        nodes.append(
            Node(f"cat{index}", "aten.cat", (("tensors", tuple(features)), ("dim", 1)), width)
        )
        kind = TensorType((BATCH, 4), "float32")
        nodes.append(Node(f"relu{index}", "aten.relu", (("self", Ref(f"cat{index}")),), kind))
        features.append(Ref(f"relu{index}"))
    graph = ArchGraph((("x", Ref("x")),), (), tuple(nodes), features[-1])
    picture = scene(graph, [], detail=detail)
    assert len(picture.links) <= 3 * layers + 1
    assert all(
        {f"cat{i}", f"relu{i}"} <= {k.tail for k in picture.links if k.head == f"cat{i + 1}"}
        for i in range(layers - 1)
    )
    other = nodes[-2].with_args(dim=0)
    apart = graph.replace(nodes=(*nodes[:-2], other, nodes[-1]))
    tails = {k.tail for k in scene(apart, [], detail="node").links if k.head == other.name}
    assert tails == {ref.name for ref in features[:-1]}


def test_a_head_that_only_training_has_stands_beside_the_blocks(residual: Net):
    graph, sections = residual((1,), (8,), aux=True)
    held = dict(sections[0][1])["layer1.0"]
    whole = [n.name for n in graph.nodes if n.scope == "aux"]
    picture = scene(graph, [("layer1", [("layer1.0", [*held, *whole, "x"])])])
    inside = {n for name in picture.groups[0].boxes for n in picture.box[name].nodes}
    assert inside == set(held)
    assert not any(leaf.startswith("aux") for leaf in picture.groups[0].leaves)


class Tied(nn.Module):
    """A table of words whose transpose is the head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.middle = nn.Embedding(10, 6), nn.Linear(6, 6)
        self.head = nn.Linear(6, 10, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.middle(self.words(x)).relu())


def test_tied_weights_count_once_where_they_are_used_first():
    graph = captured(Tied(), torch.zeros(2, 4, dtype=torch.int64)).graph
    framing = structure(graph).sections
    sections = [(s.name, [(b.name, b.nodes) for b in s.blocks]) for s in framing]
    for detail, per_section in itertools.product(get_args(Detail), (False, True)):
        boxes = scene(graph, sections, detail=detail, per_section=per_section).boxes
        assert sum(box.parameters for box in boxes) == cost(graph).parameters == 102
        (head,) = [box for box in boxes if "linear_1" in box.nodes]
        assert head.size == "0" and head.lines[-1].text == "linear → 10, tied"
    page: Any = described(anatomy(graph))
    assert sum(page["operators"]["parameters"]) == page["totals"]["parameters"] == 102
    parts = [row for row in summary_table(graph).rows[:-1] if not row[0].startswith(" ")]
    assert sum(int(row[3]) for row in parts) == 102 and parts[-1][3] == "0"
