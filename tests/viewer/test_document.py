"""The data of a page: every figure is the library's, equal rows are stored once, text is safe."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest

from archgraph.analysis.cost import cost
from archgraph.analysis.structure import structure
from archgraph.display.collect import graph_facts
from archgraph.display.cover import coverage
from archgraph.display.labels import count_parameters
from archgraph.errors import GraphError
from archgraph.federation.family import resolve
from archgraph.graph.ir import BATCH, ArchGraph, Node, Ref, TensorType
from archgraph.language import load_family
from archgraph.relate.correspond import correspond
from archgraph.rewrites.take import take
from archgraph.viewer import view
from archgraph.viewer.document import decode_data
from benchmarks import bench_view
from benchmarks.bench_view import made


def tiny(name: str, many: int = 1) -> ArchGraph:
    """A chain of activations."""
    kind = TensorType((BATCH, 8), "float32")
    nodes = [Node("x", "input", type=kind)]
    for i in range(many):
        nodes.append(Node(f"relu_{i}", "aten.relu", (("self", Ref(nodes[-1].name)),), kind))
    return ArchGraph((("x", Ref("x")),), (), tuple(nodes), Ref(nodes[-1].name), name=name)


def unstepped(column, lists):
    """Lists of numbers as the page reads them."""
    fresh, found = 0, []
    for at in column:
        numbers = [n + fresh for n in lists[at]]
        fresh = max([fresh, *(n + 1 for n in numbers)])
        found.append(numbers)
    return found


def test_figures_of_operators_and_axes_are_those_of_the_library(net):
    data = decode_data(view(net))["graphs"][0]
    spent, about = cost(net), graph_facts(net)
    ops = data["operators"]
    assert set(ops["name"]) == set(net.node) and len(ops["name"]) == len(net.nodes)
    for i, name in enumerate(ops["name"]):
        one = spent.nodes[name]
        assert (ops["parameters"][i], ops["macs"][i], ops["bytes"][i]) == (
            one.parameters,
            one.macs,
            one.bytes,
        )
        assert data["kinds"][ops["kind"][i]][0] == net.node[name].op
    assert data["totals"]["parameters"] == spent.parameters == sum(ops["parameters"])
    assert data["totals"]["macs"] == spent.macs == sum(ops["macs"])
    for row, fact in zip(data["axes"], about.axes.values(), strict=True):
        assert row[:3] == [fact.name, fact.size, fact.role]
        saving, pin = fact.saving, fact.pin
        assert row[6] == (None if saving is None else [saving.parameters, saving.macs])
        if row[7] is not None:
            assert pin is not None and (row[7]["why"], row[7]["remedy"]) == (pin.why, pin.remedy)


def test_axes_leaves_and_sources_of_each_operator_are_told(net):
    data = decode_data(view(net))["graphs"][0]
    ops, about = data["operators"], graph_facts(net)
    axes, leaves = (unstepped(ops[k], data["lists"]) for k in ("axes", "leaves"))
    for i, name in enumerate(ops["name"]):
        assert [data["axes"][n][0] for n in axes[i]] == list(about.met[name])
        assert [data["leaves"][n][0] for n in leaves[i]] == list(
            dict.fromkeys(net.node[name].leaves())
        )
        used = [ops["name"][i - back] for back in data["lists"][ops["feeds"][i]]]
        assert used == list(dict.fromkeys(net.node[name].uses()))


def test_blocks_of_the_page_are_those_of_the_structure_in_order(net):
    data = decode_data(view(net))["graphs"][0]
    assert [s[0] for s in data["sections"]] == [s.name for s in structure(net).sections]
    assert [b[0] for b in data["blocks"]] == [b.name for b in structure(net).blocks]
    assert [(f[2], f[3]) for f in data["folds"]] == [(3, "layers.0–2")]


def test_clients_tell_their_cost_sizes_and_lacking_blocks(family):
    data = decode_data(view(family))["graphs"][0]
    blocks = [block[0] for block in data["blocks"]]
    for one, row in zip(family.clients, data["clients"], strict=True):
        spent = cost(one.graph)
        assert row[:3] == [one.name, spent.parameters, spent.macs]
    _, narrow, short = data["clients"]
    sizes = {data["axes"][axis][0]: size for axis, size in narrow[3]}
    assert sizes["layers.0.linear1.out"] == 8 and narrow[4] == []
    assert [blocks[i] for i in short[4]] == ["layers.2"] and short[3] == []


def test_who_feeds_a_block_and_with_which_positions(family):
    pages = decode_data(view(family))["graphs"]
    assert [g["name"] for g in pages] == ["pets", "full", "narrow", "short"]
    whole, feeding = pages[0], pages[0]["feeding"]
    cover, graph = coverage(family), family.graph
    for i, block in enumerate(structure(graph).blocks):
        leaves = dict.fromkeys(k for n in block.nodes for k in graph.node[n].leaves())
        sizes = {k: count_parameters(graph, (k,)) for k in leaves if k in cover}
        reach, row = cover.reach(sizes), feeding["blocks"][i]
        assert (reach is None) == (row < 0)
        if reach is not None:
            clients, weights, shares = feeding["rows"][row]
            assert (clients, weights) == (reach.clients, reach.weights)
            assert tuple(shares) == cover.shares(sizes)
            counted = sum(n * s for (_, n), s in zip(feeding["clients"], shares, strict=True))
            assert math.isclose(counted, reach.total * reach.weights)
    last = [b[0] for b in whole["blocks"]].index("layers.2")
    assert feeding["rows"][feeding["blocks"][last]][2][2] == 0.0  # `short` lacks it
    told = dict(zip([leaf[0] for leaf in whole["leaves"]], feeding["positions"], strict=True))
    rows = feeding["texts"][told["layers.0.linear1.weight"]]
    assert rows == ["[:, :]", "[:8, :4]", "[:, :]"]
    axes = dict(zip([axis[0] for axis in whole["axes"]], feeding["axes"], strict=True))
    assert feeding["texts"][axes["layers.0.linear1.out"]][1] == "8 of 16 [:8]"


def test_blocks_that_clients_lack_do_not_fold(family):
    assert [f[2:4] for f in decode_data(view(family))["graphs"][0]["folds"]] == [[2, "layers.0–1"]]


def test_a_family_as_read_is_shown_as_when_resolved(family):
    clients = [{"name": "half", "take": 0.5}]
    spec = load_family({"name": "pets", "model": family.graph, "clients": clients})
    graphs = decode_data(view(spec))["graphs"]
    assert graphs == decode_data(view(resolve(spec)))["graphs"]
    assert [g["name"] for g in graphs] == ["pets", "half"]


def test_equal_rows_are_stored_once():
    few, many = (decode_data(view(tiny("a", n)))["graphs"][0] for n in (10, 1000))
    assert len(few["kinds"]) == len(many["kinds"]) == 2
    assert len(many["labels"]) < 4 and len(many["lists"]) < 6


def test_a_page_of_5000_operators_is_below_a_megabyte():
    """The page itself, and five times what 1,000 operators take."""
    empty, page = (len(view(made(blocks))) for blocks in (1, 200))
    assert empty + 5 * (page - empty) < 1_000_000


@pytest.mark.parametrize(
    "name",
    ["</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", '"&amp;\u2028'],
    ids=["script", "image", "entity"],
)
def test_a_name_cannot_leave_its_place(name):
    text = view(tiny(name))
    assert decode_data(text)["graphs"][0]["name"] == name
    assert len(re.findall(r"<script", text)) == 3 and "alert(1)<" not in text
    assert "onerror=alert" not in text.replace("&lt;img src=x onerror=alert(1)&gt;", "")


def test_graphs_may_be_named_and_nothing_is_refused(net, tmp_path):
    path = tmp_path / "a" / "page.html"
    text = view({"before": net, "after": take(net, 0.5)}, path, title="cut")
    assert path.read_text() == text and "<title>cut</title>" in text
    assert [g["name"] for g in decode_data(text)["graphs"]] == ["before", "after"]
    assert len(decode_data(view([net, net]))["graphs"]) == 2
    with pytest.raises(GraphError, match="nothing to show"):
        view([])


def test_graphs_of_one_name_are_told_apart(net):
    text = view([net, take(net, 0.5), net])
    assert [g["name"] for g in decode_data(text)["graphs"]] == ["net", "net (2)", "net (3)"]


def test_the_comparison_with_another_viewer_says_what_it_lacks(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    bench_view.compared([tmp_path / "net.onnx"])
    assert capsys.readouterr().out == "skipped: netron is not installed\n"


def test_pairs_of_operators_are_those_of_the_correspondence(family):
    data = decode_data(view(family))
    graphs, pairs = data["graphs"], data["pairs"]
    assert set(pairs) == {"0 1", "0 2", "0 3"} and all(pair["exact"] for pair in pairs.values())
    for i, member in enumerate(family.clients, 1):
        found = correspond(family.graph, member.graph, member.transfer)
        a, b = (graphs[k]["operators"]["name"] for k in (0, i))
        told = {(a[x], b[y]) for y, x in enumerate(pairs[f"0 {i}"]["partner"]) if x >= 0}
        assert told == set(found.nodes)
        rows = [(d.kind, d.level, d.a, d.b, d.before, d.after) for d in found.differences]
        assert [tuple(row[:6]) for row in pairs[f"0 {i}"]["differences"]] == rows
        for row, one in zip(pairs[f"0 {i}"]["differences"], found.differences, strict=True):
            assert [a[n] for n in row[6]] == list(one.nodes_a)
            assert [b[n] for n in row[7]] == list(one.nodes_b)


def test_a_rewrite_of_the_first_graph_is_compared_through_its_transfer(net):
    small = take(net, 0.5)
    exact = [decode_data(view([net, one]))["pairs"]["0 1"]["exact"] for one in (small, small.graph)]
    assert exact == [1, 0]
    assert decode_data(view([small, net]))["pairs"]["0 1"]["exact"] == 0
    other = take(net, 0.75)
    assert (
        decode_data(view([other, small]))["pairs"]["0 1"]["exact"] == 1
    )  # both are rewrites of `net`
    assert (
        decode_data(view([other.graph, small]))["pairs"]["0 1"]["exact"] == 0
    )  # not of one another


def test_a_page_opens_with_the_first_graph_of_everything_it_shows(net, family):
    """Of a family the global one: its clients' are added on the page."""

    def start(*shown):
        return decode_data(view(list(shown)))["start"]

    assert start(family) == start(net) == [0]
    clients = len(family.clients)
    assert start(family, net) == [0, clients + 1]
    assert start(net, family) == [0, 1]
    assert start(*4 * [net]) == [0, 1, 2, 3] and start(*5 * [net]) == [0]
    alone = dataclasses.replace(family, graph=ArchGraph((), (), (), ()))
    assert not alone.has_global and start(alone) == list(range(clients))


def test_a_graph_that_takes_long_is_announced(net, monkeypatch):
    heard: list[str] = []
    view([net, net], notify=heard.append)
    assert heard == []
    monkeypatch.setattr("archgraph.viewer.show.LARGE", len(net.nodes))
    view([net, net], notify=heard.append)
    assert heard == 2 * [f"net: {len(net.nodes)} operators"]
