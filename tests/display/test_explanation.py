"""Graphs in words: differences are empty exactly for equal graphs; tables add up; savings hold."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import json
import math
import sys
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import archgraph
from archgraph import trace
from archgraph.display import explain, summary_table
from archgraph.display.explanation_tables import numbered_runs
from archgraph.display.facts import AxisFact
from archgraph.display.pricing import Saving
from archgraph.errors import ArchGraphError
from archgraph.graph.ir import ArchGraph
from tests.examples import at_most
from tests.nets import FOREIGN, Dense, image, networks


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


def test_a_summary_adds_up(graphs):
    table = summary_table(graphs[8, 2])
    rows = {row[0].strip(): row for row in table.rows}
    assert list(rows) == ["stem", "body", "body.0", "body.1", "head", "total"]
    total = sum(p.numel() for p in Small(8, 2).parameters())
    assert rows["total"][3] == f"{total / 1000:.1f}k"
    assert rows["total"][2] == "5"
    assert all(len(row) == len(table.columns) for row in table.rows)


# -- explanations --------------------------------------------------------------------------------


class Shared(torch.nn.Module):
    """One block used three times, a projection in between, a counter that is never read."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.block = torch.nn.Linear(6, 8), torch.nn.Linear(8, 8)
        self.outside = torch.nn.Linear(8, 4)
        self.unused = torch.nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inside(x)
        for _ in range(3):
            x = x + self.block(x).relu()
        return self.outside(x)


def dense() -> torch.nn.Module:
    body = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), Dense(8, 4), Dense(12, 4))
    tail = (torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(16, 5))
    return torch.nn.Sequential(*body, *tail)


def foreign(name: str) -> ArchGraph:
    item = FOREIGN[name]()
    return trace(item.model, *item.args, **item.kwargs, verify=False).graph


MODELS: dict[str, Callable[[], ArchGraph]] = {
    "small": small,
    "shared": lambda: trace(Shared(), torch.zeros(2, 6)).graph,
    "dense": lambda: trace(dense(), image()).graph,
    "resnet18": lambda: foreign("resnet18"),
    "bert": lambda: foreign("bert"),
    "vit": lambda: foreign("vit"),
}
LARGE = {"resnet18", "bert", "vit"}


@functools.cache
def made(name: str) -> ArchGraph:
    return MODELS[name]()


@pytest.fixture(
    scope="module",
    params=[pytest.param(n, marks=[pytest.mark.full] * (n in LARGE)) for n in MODELS],
)
def model(request: pytest.FixtureRequest) -> ArchGraph:
    return made(request.param)


@pytest.fixture(scope="module")
def resnet() -> ArchGraph:
    return made("resnet18")


def saved(before: ArchGraph, after: ArchGraph) -> tuple[int, int]:
    a, b = archgraph.cost(before), archgraph.cost(after)
    return a.parameters - b.parameters, a.macs - b.macs


def figures(saving: Saving | None) -> tuple[int, int]:
    assert saving is not None
    return saving.parameters, saving.macs


def savings_are_exact(graph: ArchGraph) -> None:
    """The law: every figure is what the rewrite itself saves."""
    found = explain(graph)
    assert figures(found.about.halving) == saved(graph, archgraph.take(graph, 0.5).graph)
    for axis in found.free:
        small = archgraph.take(graph, {archgraph.axes(graph)[axis.name]: 0.5}).graph
        assert figures(axis.saving) == saved(graph, small), axis.name
        assert axis.halved == -(-axis.size // 2)
    for group in (*found.roles, *found.sections):
        chosen = {archgraph.axes(graph)[name]: 0.5 for name in group.axes}
        assert figures(group.saving) == saved(graph, archgraph.take(graph, chosen).graph)
    for block in found.blocks:
        if block.removable:
            short = archgraph.skip(graph, block.name).graph
            assert figures(block.saving) == saved(graph, short), block.name
        else:
            assert block.saving is None and block.reason


def test_savings_are_those_of_the_rewrites(model):
    savings_are_exact(model)


@at_most(3)
@given(network=networks())
def test_savings_are_exact_on_random_networks(network):
    savings_are_exact(trace(network, image()).graph)


def test_savings_have_their_share(resnet):
    found = explain(resnet)
    whole = archgraph.cost(resnet)
    for axis in found.free:
        assert axis.saving is not None
        assert axis.saving.parameters_share == axis.saving.parameters / whole.parameters
        assert axis.saving.macs_share == axis.saving.macs / whole.macs
    assert {n for g in found.sections for n in g.axes} == {a.name for a in found.free}
    assert {n for g in found.roles for n in g.axes} == {a.name for a in found.free}
    on_free = {leaf for a in found.free for leaf, _ in a.members}
    numel = sum(math.prod(p.shape) for p in resnet.params if p.name in on_free)
    numel -= sum(
        math.prod(p.shape) for p in resnet.params if p.name in on_free and p.role != "parameter"
    )
    assert found.about.reach == numel / whole.parameters


def test_a_shared_block_counts_its_parameters_once_and_every_use():
    (shared,) = (b for b in explain(made("shared")).blocks if b.removable)
    assert figures(shared.saving) == (8 * 8 + 8, 3 * 8 * 8)


@pytest.mark.full
def test_the_work_of_an_explanation_grows_with_the_network_not_with_its_square(residual):
    def calls(depth: int) -> int:
        """How many Python functions are called for three sections of `depth` blocks."""
        graph, _ = residual([depth] * 3, [8, 16, 32])
        archgraph.axes(graph), archgraph.structure(graph), archgraph.cost(graph)
        count = 0

        def called(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(called)
        try:
            explanation = explain(graph)
            explanation.tables()
        finally:
            sys.setprofile(None)
        assert len(explanation.free) > 3 * depth
        return count

    assert calls(40) < 2.5 * calls(20)


def test_every_pinned_axis_tells_operator_place_and_remedy(model):
    found = explain(model)
    assert found.pinned
    for axis in found.pinned:
        pin = axis.pin
        assert pin is not None and axis.saving is None
        assert pin.why and pin.place and pin.remedy
        assert "%" not in pin.why and "%" not in pin.remedy  # the place is told apart
        if pin.operator is None:
            assert pin.node is None and not model.leaf_users[axis.members[0][0]]
        else:
            assert pin.node is not None and model.node[pin.node].op == pin.operator


def test_pins_name_what_stands_in_the_way():
    found = explain(made("shared"))
    pins = {a.name: a.pin for a in found.pinned}
    assert {k: (p.why, p.operator, p.place) for k, p in pins.items() if p is not None} == {
        "inside.in": ("meets a dimension that is not a channel axis", "aten.linear", "inside"),
        "outside.out": ("dimension 1 of the model's output", "aten.linear", "outside"),
        "unused.0": ("no operator uses it", None, "unused"),
    }
    inside = pins["inside.in"]
    assert (
        inside is not None and inside.remedy == "another input, since the caller chooses its size"
    )
    assert inside.source is not None and "test_explanation.py:" in inside.source


def test_what_moves_with_an_axis(graphs):
    (axis,) = explain(graphs[8, 2], "stem.out").axes
    assert set(axis.members) == {
        ("stem.weight", 0),
        ("stem.bias", 0),
        ("head.weight", 1),
        *((f"body.{i}.weight", d) for i in (0, 1) for d in (0, 1)),
        *((f"body.{i}.bias", 0) for i in (0, 1)),
    }
    assert axis.spans == () and axis.role == "channels" and axis.block == "stem"
    graph = graphs[8, 2]
    uses = {graph.node[n].op for n, axes in explain(graph).about.met.items() if "stem.out" in axes}
    assert uses >= {"aten.conv2d", "aten.linear"}
    free, leaves = explain(graph, "stem.out").tables()
    assert free.rows[0][:3] == ("stem.out", "8", "channels")
    row = "body.*.bias ×2", "8", "stem.out[8]"
    assert row in leaves.rows and len(leaves.rows) == 6


def test_an_explanation_is_plain_and_keeps_its_keys(model):
    found = explain(model)
    plain = found.plain()
    assert json.loads(json.dumps(plain)) == plain
    assert list(plain) == [
        "model", "asked", "parameters", "macs", "reach", "halving",
        "axes", "roles", "sections", "blocks", "leaves", "budgets",
    ]  # fmt: skip
    axis = plain["axes"][0]
    assert list(axis) == [f.name for f in dataclasses.fields(AxisFact)]
    assert list(plain["halving"]) == ["parameters", "macs", "parameters_share", "macs_share"]
    assert [a["name"] for a in plain["axes"]] == [a.name for a in archgraph.axes(model).all]
    assert [b["name"] for b in plain["blocks"]] == [
        b.name for b in archgraph.structure(model).blocks
    ]
    one = explain(model, found.axes[0].name).plain()
    assert one["asked"] == found.axes[0].name and axis in one["axes"]


def test_everything_is_told_in_five_tables(resnet):
    titles = [table.title for table in explain(resnet).tables()]
    assert titles == [
        f"{resnet.name}: savings from halving",
        "Budgets",
        "Free axes: savings from halving",
        "Pinned axes",
        "Blocks: savings from skipping",
    ]
    overview, _, free, *_ = explain(resnet).tables()
    assert overview.rows[0][:2] == ("all free axes", "12")
    assert ("layer1.*.conv1.out", "2", "64", "channels") in [row[:4] for row in free.rows]


def test_a_run_is_told_one_by_one_when_asked_for(model):
    """Every pattern in a table names its members."""
    found = explain(model)
    for table in found.tables():
        if table.title.startswith("Free") and "axes" in table.columns:
            for row in table.rows:
                members = explain(model, row[0]).free
                assert len(members) >= int(row[1] or 1)
                assert {a.size for a in members} >= {int(row[2])}


def test_parts_by_name(resnet):
    def names(name: str, kind: str) -> list[str]:
        return [part.name for part in getattr(explain(resnet, name), kind)]

    assert names("layer1.0", "blocks") == ["layer1.0"]
    assert "layer1.0.conv1.out" in names("layer1.0", "axes")
    assert "layer1.0.bn1.weight" in names("layer1.0", "leaves")
    assert names("layer1", "blocks") == ["layer1.0", "layer1.1"]
    assert names("layer1", "sections") == ["layer1"] and names("layer1", "leaves") == []
    assert names("fc.weight", "leaves") == ["fc.weight"]
    assert names("fc.weight", "axes") == ["layer4.0.conv2.out", "fc.out"]
    assert names("channels", "axes") == [a.name for a in archgraph.axes(resnet).free]
    assert names("channels", "roles") == ["channels"]
    assert names("layer1.0.conv1", "leaves") == ["layer1.0.conv1.weight"]
    assert names("layer*.1", "blocks") == [f"layer{i}.1" for i in (1, 2, 3, 4)]
    assert set(names("*.bias", "leaves")) == {
        p.name for p in resnet.params if p.name.endswith(".bias")
    }


def test_every_part_has_tables_that_add_up(model):
    about = explain(model).about
    kinds = (about.axes, about.roles, about.sections, about.blocks, about.leaves)
    for name in [name for kind in kinds for name in list(kind)[:40]]:
        tables = explain(model, name).tables()
        assert tables, name
        for table in tables:
            assert table.rows and table.title
            assert {len(row) for row in table.rows} == {len(table.columns)}
            assert all(0 <= i < len(table.columns) for i in table.right | table.short)


def test_a_wrong_name_gives_the_nearest(graphs):
    with pytest.raises(ArchGraphError) as caught:
        explain(graphs[8, 2], "hed.weight")
    assert str(caught.value).startswith(
        "hed.weight: no axis, section, block or leaf has this name; did you mean 'head.weight'"
    )
    assert " or " in str(caught.value)
    with pytest.raises(ArchGraphError, match="without a name, everything is explained"):
        explain(graphs[8, 2], "qqqqqqqq")


@given(
    names=st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 3)).map(
            lambda p: f"{p[0]}.{p[1]}.c{p[2]}"
        ),
        unique=True,
        max_size=12,
    )
)
def test_runs_divide_names_and_their_patterns_match(names):
    found = numbered_runs(names, [0] * len(names))
    assert sorted(i for _, members in found for i in members) == list(range(len(names)))
    assert [members[0] for _, members in found] == sorted(members[0] for _, members in found)
    for pattern, members in found:
        assert all(fnmatch.fnmatchcase(names[i], pattern) for i in members)
        assert len(members) == 1 or pattern.count("*") == 1
