"""Graphs in words: differences are empty exactly for equal graphs; tables add up."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from archgraph import trace
from archgraph.errors import ArchGraphError
from archgraph.ir import ArchGraph, renumber
from archgraph.view import diff, explain, summary


class Small(torch.nn.Module):
    def __init__(self, width: int = 8, depth: int = 2) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, width, 3, padding=1)
        blocks = [torch.nn.Conv2d(width, width, 3, padding=1) for _ in range(depth)]
        self.body = torch.nn.ModuleList(blocks)
        self.head = torch.nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).relu()
        for block in self.body:
            x = x + block(x).relu()
        return self.head(x.mean((2, 3)))


def small(width: int = 8, depth: int = 2) -> ArchGraph:
    return trace(Small(width, depth), torch.zeros(2, 3, 8, 8)).graph


@pytest.fixture(scope="module")
def graphs() -> dict[tuple[int, int], ArchGraph]:
    return {(w, d): small(w, d) for w in (4, 8) for d in (1, 2)}


sizes = st.tuples(st.sampled_from([4, 8]), st.sampled_from([1, 2]))


@given(a=sizes, b=sizes)
def test_a_difference_is_empty_exactly_for_equal_graphs(graphs, a, b):
    assert bool(diff(graphs[a], graphs[b])) == (graphs[a] != graphs[b])
    back = diff(graphs[b], graphs[a])
    turned = {(c.name, c.after, c.before) for c in back.leaves}
    assert {(c.name, c.before, c.after) for c in diff(graphs[a], graphs[b]).leaves} == turned


def test_names_of_operators_make_no_difference(graphs):
    graph = graphs[8, 2]
    nodes = {n.name: f"other_{n.name}" for n in graph.nodes if n.op != "input"}
    text = str(graph)
    for old, new in sorted(nodes.items(), key=lambda item: -len(item[0])):
        text = text.replace(f"%{old}:", f"%{new}:").replace(f"%{old},", f"%{new},")
        text = text.replace(f"%{old})", f"%{new})").replace(f"return %{old}", f"return %{new}")
    from archgraph import parse

    renamed = parse(text)
    assert renamed != graph
    assert renumber(renamed) == renumber(graph)
    assert not diff(graph, renamed)


def test_a_wider_model_differs_in_leaves_and_shapes(graphs):
    found = diff(graphs[4, 1], graphs[8, 1])
    assert ("head.weight", "5, 4", "5, 8") in {
        (c.name, (c.before or "")[-5:-1], (c.after or "")[-5:-1]) for c in found.leaves
    }
    assert all("float32" in (c.before or "") for c in found.nodes)
    assert [table.title for table in found.tables()] == ["Leaves", "Operators"]


def test_a_block_more_shows_as_added(graphs):
    found = diff(graphs[8, 1], graphs[8, 2])
    assert [(c.name, c.before is None) for c in found.leaves] == [
        ("body.1.weight", True),
        ("body.1.bias", True),
    ]
    added = [c for c in found.nodes if c.before is None]
    assert any("body.1" in c.name for c in added)


def test_sections_and_outputs_count_as_well(graphs):
    graph = graphs[8, 1]
    named = dataclasses.replace(graph, sections=(("all", ("body.0",)),))
    assert [c.name for c in diff(graph, named).ends] == ["section all"]


def test_a_summary_adds_up(graphs):
    table = summary(graphs[8, 2])
    rows = {row[0].strip(): row for row in table.rows}
    assert list(rows) == ["stem", "body", "body.0", "body.1", "head", "total"]
    total = sum(p.numel() for p in Small(8, 2).parameters())
    assert rows["total"][3] == f"{total / 1000:.1f}k"
    assert rows["total"][2] == "5"
    assert all(len(row) == len(table.columns) for row in table.rows)


def test_an_explanation_gives_a_reason_for_every_no(graphs):
    found = explain(graphs[8, 2])
    assert found.free and found.pinned and found.blocks
    assert all(axis["reason"] for axis in found.pinned)
    assert all(block["removable"] or block["reason"] for block in found.blocks)
    assert json.loads(json.dumps(found.plain())) == found.plain()
    titles = [table.title for table in found.tables()]
    assert titles == ["Free axes", "Pinned axes", "Blocks"]


def test_one_part_can_be_asked_for(graphs):
    graph = graphs[8, 2]
    block = explain(graph).blocks[0]["name"]
    assert {b["name"] for b in explain(graph, block).blocks} == {block}
    leaf = explain(graph, "head.weight")
    assert [p["name"] for p in leaf.leaves] == ["head.weight"]
    assert len(leaf.leaves[0]["layout"]) == 2
    assert {p["name"] for p in explain(graph, "*.bias").leaves} == {
        p.name for p in graph.params if p.name.endswith(".bias")
    }
    with pytest.raises(ArchGraphError) as caught:
        explain(graph, "hed.weight")
    assert str(caught.value) == (
        "hed.weight: no axis, section, block or leaf of this name; did you mean head.weight?"
    )
