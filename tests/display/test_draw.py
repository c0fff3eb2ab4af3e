"""The DOT text: complete, nested, the same every time; never coordinates, which engines choose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pygraphviz
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archgraph.display import colours
from archgraph.display.cover import Cover, percent
from archgraph.display.picture import draw, render
from archgraph.display.scene import scene
from archgraph.errors import RunError
from archgraph.graph.ir import ArchGraph

Net = Callable[..., tuple[ArchGraph, list[tuple[str, list[tuple[str, list[str]]]]]]]


@pytest.fixture(autouse=True)
def _structure(monkeypatch: pytest.MonkeyPatch):
    """Sections by module name: pictures are tested apart from the analysis that finds them."""

    def found(graph: ArchGraph):
        sections: dict[str, dict[str, list[str]]] = {}
        for node in graph.nodes:
            if node.scope.startswith("layer"):
                section = node.scope.split(".")[0]
                block = ".".join(node.scope.split(".")[:2])
                sections.setdefault(section, {}).setdefault(block, []).append(node.name)
        return SimpleNamespace(
            sections=[
                SimpleNamespace(
                    name=name,
                    blocks=[SimpleNamespace(name=b, nodes=tuple(n)) for b, n in blocks.items()],
                )
                for name, blocks in sections.items()
            ]
        )

    monkeypatch.setattr("archgraph.display.picture.structure", found)


shapes = st.lists(st.tuples(st.integers(1, 2), st.sampled_from([4, 8])), min_size=1, max_size=3)
checked = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)


def nodes_of(dot: pygraphviz.AGraph) -> dict[str, list[str]]:
    """Names of the graph's nodes by DOT node, as the tooltips tell them."""
    found = {}
    for item in dot.nodes():
        lines = (item.attr["tooltip"] or "").split("\\n" if "\\n" in item.attr["tooltip"] else "\n")
        found[str(item)] = [line[1:].split(":")[0] for line in lines if line.startswith("%")]
    return found


@checked
@given(shape=shapes, detail=st.sampled_from(["block", "node"]), aux=st.booleans())
def test_every_node_appears_once(residual: Net, shape, detail, aux: bool):
    graph, _ = residual(*zip(*shape, strict=True), aux=aux)
    dot = pygraphviz.AGraph(string=draw(graph, detail=detail, fold=False))
    told = [name for names in nodes_of(dot).values() for name in names]
    assert sorted(told) == sorted(n.name for n in graph.nodes)


@checked
@given(shape=shapes, detail=st.sampled_from(["block", "node"]))
def test_clusters_nest_as_the_structure(residual: Net, shape, detail):
    graph, sections = residual(*zip(*shape, strict=True))
    dot = pygraphviz.AGraph(string=draw(graph, detail=detail, fold=False))
    names = nodes_of(dot)
    outer = dot.subgraphs()
    assert len(outer) == len(sections)
    for frame, (section, blocks) in zip(outer, sections, strict=True):
        assert section in frame.graph_attr["label"]
        if len(blocks) == 1:
            # One frame for a section of one block: two would say the same.
            (block, nodes) = blocks[0]
            assert block in frame.graph_attr["label"] and not frame.subgraphs()
            assert sorted(n for item in frame.nodes() for n in names[str(item)]) == sorted(nodes)
            continue
        assert len(frame.subgraphs()) == len(blocks)
        for inner, (block, nodes) in zip(frame.subgraphs(), blocks, strict=True):
            assert block in inner.graph_attr["label"]
            assert sorted(n for item in inner.nodes() for n in names[str(item)]) == sorted(nodes)


@checked
@given(shape=shapes, aux=st.booleans(), detail=st.sampled_from(["block", "node"]))
def test_equal_graphs_have_equal_pictures(residual: Net, shape, aux: bool, detail):
    one, _ = residual(*zip(*shape, strict=True), aux=aux)
    other, _ = residual(*zip(*shape, strict=True), aux=aux)
    assert one is not other
    assert draw(one, detail=detail) == draw(other, detail=detail)


def test_edges_carry_shapes_and_training_is_dashed(residual: Net):
    graph, _ = residual((1,), (8,), aux=True)
    dot = pygraphviz.AGraph(string=draw(graph))
    labels = {(edge.attr["label"] or "").strip() for edge in dot.edges()}
    assert {"3×32×32", "8×32×32", "10"} <= labels
    dashed = [e for e in dot.edges() if e.attr["style"] == "dashed"]
    assert len(dashed) == 2
    assert sum("dashed" in (n.attr["style"] or "") for n in dot.nodes()) == 2


def test_names_are_text_not_markup(residual: Net):
    graph, _ = residual((1,), (8,))
    named = graph.replace(name='<B> & "quoted" \\N')
    picture = draw(named)
    assert "&lt;B&gt; &amp;" in picture
    assert render(picture, "svg").startswith(b"<?xml")


def test_cover_paints_and_tells_every_block(residual: Net):
    graph, sections = residual((2, 1), (8, 16))
    weak = [n for n in graph.param if n.startswith("layer1.1")]
    # Nine of ten clients lack the weak block.
    parts = {name: (1.0, 0.0 if name in weak else 1.0) for name in graph.param}
    text = draw(graph, cover=Cover((1, 9), parts))
    dot = pygraphviz.AGraph(string=text)
    blocks = {b.graph_attr["label"]: b for f in dot.subgraphs() for b in (f.subgraphs() or [f])}
    assert sum("1 of 10 clients" in label for label in blocks) == 1
    assert sum("10 of 10 clients" in label for label in blocks) == 2
    weak_fill = colours.blend(colours.SCALE, 0.1)
    inside = [
        b for label, b in blocks.items() if "1 of 10 clients" in label and "layer1.1" in label
    ]
    assert {n.attr["fillcolor"] for n in inside[0].nodes()} == {weak_fill}
    # In a box per block, boxes say it: the mean over a section would hide its weak block.
    overview = pygraphviz.AGraph(string=draw(graph, cover=Cover((1, 9), parts), detail="section"))
    told = [node.attr["label"] for node in overview.nodes() if "clients" in node.attr["label"]]
    assert ["1 of 10" in label for label in told if "layer1" in label] == [False, True]
    assert not any("clients" in frame.graph_attr["label"] for frame in overview.subgraphs())
    # White is 0 %: a part without weights outside all blocks differs in its border.
    parts_alone = pygraphviz.AGraph(string=draw(graph, cover=Cover((1, 9), parts), detail="node"))
    thin = [node.attr["tooltip"] for node in parts_alone.nodes() if node.attr["penwidth"]]
    assert ["aten.mean" in tip for tip in thin] == [True] and "thin border: no weights" in text
    assert "share of the weights, mean over all clients" in text
    assert "share of the weights" not in draw(graph)
    assert scene(graph, sections).groups


def test_files_by_ending(residual: Net, tmp_path: Path):
    graph, _ = residual((1,), (8,))
    text = draw(graph, tmp_path / "a" / "net.dot")
    assert (tmp_path / "a" / "net.dot").read_text() == text
    draw(graph, tmp_path / "net.svg")
    assert b"<svg" in (tmp_path / "net.svg").read_bytes()
    draw(graph, tmp_path / "net.png")
    assert (tmp_path / "net.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "net.png", "net.svg"]


def test_a_file_is_written_whole_or_not_at_all(residual: Net, tmp_path: Path):
    graph, _ = residual((1,), (8,))
    with pytest.raises(RunError, match=r"is not a picture format; found \.bmp; expected \.dot or"):
        draw(graph, tmp_path / "net.bmp")
    (tmp_path / "file").write_text("kept")
    with pytest.raises(RunError, match="cannot write the file"):
        draw(graph, tmp_path / "file" / "net.dot")
    assert (tmp_path / "file").read_text() == "kept"
    with pytest.raises(RunError, match="Graphviz cannot draw this"):
        render("digraph {", "svg")


@given(st.floats(0, 1))
def test_percent_never_rounds_to_0_or_100(share: float):
    text = percent(share)
    assert (text == "0 %") == (share == 0)
    assert (text == "100 %") == (share == 1)
