"""Submodels for a budget: never above it, as wide as it allows, one within the other."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

import archgraph as ag
from archgraph.budgets.amounts import MEASURES, limit_of
from tests.examples import at_most
from tests.nets import FOREIGN, captured, image, networks
from tests.structures import graph_of, models
from tests.zoo.handmade import HANDMADE

COUNTED = ["parameters", "macs", "bytes", "activations"]
graphs = st.one_of(models().map(graph_of), networks().map(lambda net: graph_of(net, image())))
budgets = st.dictionaries(
    st.sampled_from(COUNTED), st.sampled_from([0.8, 0.5, 0.25, 0.1]), min_size=1, max_size=2
)


def fitted(graph: ag.ArchGraph, **options: Any) -> ag.Rewritten:
    """Return a submodel; a budget below the smallest one is no example."""
    try:
        return ag.fit(graph, **options)
    except ag.RewriteError as error:
        if error.message == "no submodel is within the budget":
            assume(False)
        raise


@functools.cache
def foreign_graph(name: str) -> ag.ArchGraph:
    """Return the graph of a model of another library, traced once."""
    foreign = FOREIGN[name]()
    return captured(foreign.model, *foreign.args, train=False).graph


def sizes(graph: ag.ArchGraph) -> dict[str, int]:
    return {axis.name: axis.size for axis in ag.axes(graph).free}


@given(graphs, budgets, st.sampled_from(["free", "nested", "uniform"]), st.booleans())
@at_most(4)
def test_no_budget_is_exceeded_and_the_submodel_obeys_the_laws(graph, shares, shape, depth):
    skip = "*" if depth else ()
    small = fitted(graph, **shares, shape=shape, skip=skip, verify=True).graph
    before, after = ag.cost(graph), ag.cost(small)
    for measure, share in shares.items():
        assert getattr(after, measure) <= share * getattr(before, measure)


@given(graphs, budgets)
@at_most(4)
def test_a_free_submodel_has_no_axis_that_could_be_wider(graph, shares):
    small = fitted(graph, **shares)
    costs, chosen, full = ag.cost(graph).polynomial, sizes(small.graph), sizes(graph)
    kept = {name: chosen.get(name, size) for name, size in full.items()}
    for name in full:
        if kept[name] < full[name]:
            wider = costs.at({**kept, name: kept[name] + 1})
            limits = ((m, share * getattr(ag.cost(graph), m)) for m, share in shares.items())
            assert any(getattr(wider, measure) > limit for measure, limit in limits)


@given(graphs, budgets)
@at_most(3)
def test_a_uniform_submodel_has_the_largest_share_that_fits(graph, shares):
    small, full = fitted(graph, **shares, shape="uniform").graph, sizes(graph)
    kept = {name: sizes(small).get(name, size) for name, size in full.items()}
    wider = [k + 1 for k in kept.values()]
    # The next share is the least that gives any axis one position more.
    share = min((k / full[n] for n, k in zip(full, wider, strict=True) if k <= full[n]), default=1)
    larger = {n: -(-round(share * size, 9) // 1) for n, size in full.items()}
    next_one = ag.cost(graph).polynomial.at({n: int(size) for n, size in larger.items()})
    limits = ((m, s * getattr(ag.cost(graph), m)) for m, s in shares.items())
    assert kept == full or any(getattr(next_one, m) > limit for m, limit in limits)


@given(graphs, budgets, budgets, st.sampled_from(["nested", "uniform"]))
@at_most(3)
def test_of_two_submodels_one_lies_within_the_other(graph, first, second, shape):
    a, b = fitted(graph, **first, shape=shape), fitted(graph, **second, shape=shape)
    x, y = sizes(a.graph), sizes(b.graph)
    larger, smaller = (a, b) if sum(x.values()) >= sum(y.values()) else (b, a)
    assert larger.transfer >> ag.nested(larger.transfer, smaller.transfer) == smaller.transfer


def test_ranks_of_adapters_stay():
    net = nn.Sequential(nn.Linear(9, 16), nn.ReLU(), nn.Linear(16, 3))
    adapted = ag.add_lora(graph_of(net, torch.zeros(1, 9)), 4)
    small = ag.fit(adapted.graph, macs=0.5, verify=True).graph
    assert [a.size for a in ag.axes(small).all if a.role == "rank"] == [4, 4]


def test_sizes_at_which_an_operator_cannot_run_are_passed_over():
    made = HANDMADE["lstm_projected"]()
    graph = captured(made.model, *made.args, **made.kwargs).graph
    with pytest.raises(ag.RewriteError, match="a projection of 5 units to the same number"):
        ag.take(graph, sizes={"lstm.cell": 5, "lstm.hidden": 5})
    for number in range(20, 100, 4):  # .6 leads through these sizes
        small = ag.fit(graph, parameters=number / 100).graph
        assert ag.cost(small).parameters <= number / 100 * ag.cost(graph).parameters


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", ["resnet18", pytest.param("mobilenet_v2", marks=pytest.mark.full)])
@pytest.mark.parametrize("measure", COUNTED)
def test_budgets_of_foreign_models_are_used(name, measure):
    graph = foreign_graph(name)
    for share in (0.5, 0.25):
        small = fitted(graph, **{measure: share}).graph
        used = getattr(ag.cost(small), measure) / getattr(ag.cost(graph), measure) / share
        assert 0.98 <= used <= 1


@given(graphs, st.sampled_from([0.8, 0.5]), st.sampled_from(["momentum", "adam"]), st.booleans())
@at_most(3)
def test_a_training_step_stays_within_its_memory(graph, share, optimizer, depth):
    skip = "*" if depth else ()
    small = fitted(graph, memory=share, batch=16, optimizer=optimizer, skip=skip).graph
    full, after = (ag.cost(g).training(16, optimizer).total for g in (graph, small))
    assert after <= share * full


# ------------------------------------------------------------------------------- closed forms


@functools.cache
def perceptron(*widths: int) -> ag.ArchGraph:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return captured(nn.Sequential(*layers[:-1]), torch.zeros(1, widths[0])).graph


def test_one_hidden_layer_takes_what_the_budget_leaves():
    graph = perceptron(3, 8, 2)  # 5 n multiply–accumulates, 6 n + 2 parameters
    assert sizes(ag.fit(graph, macs=27).graph) == {"0.out": 5}
    assert sizes(ag.fit(graph, macs=27, parameters=26).graph) == {"0.out": 4}
    assert sizes(ag.fit(graph, macs="50%").graph) == {"0.out": 4}
    assert ag.fit(graph, macs=1_000).graph == graph


def test_layers_that_cost_the_same_stay_alike():
    kept = sizes(ag.fit(perceptron(64, 64, 64, 64, 64), macs=0.25).graph)
    assert max(kept.values()) - min(kept.values()) <= 1


def test_multiples_are_kept_but_by_heads_and_short_axes():
    kept = sizes(ag.fit(perceptron(8, 12, 64, 64, 2), macs=0.4, multiple=8).graph)
    assert kept["2.out"] % 8 == kept["4.out"] % 8 == 0 and kept["0.out"] < 12


def test_what_is_named_stays():
    graph = perceptron(8, 32, 32, 32, 2)
    assert sizes(ag.fit(graph, macs=0.5, keep="2.out").graph)["2.out"] == 32
    kept = sizes(ag.fit(graph, macs=0.7, keep=["0.*", "4.*"]).graph)
    assert kept["0.out"] == kept["4.out"] == 32 and kept["2.out"] < 32


def test_blocks_are_left_out_where_that_is_allowed():
    graph = foreign_graph("resnet18")
    blocks = {b.name for b in ag.structure(graph).blocks}
    small = ag.fit(graph, macs=0.1, skip="*").graph
    gone = blocks - {b.name for b in ag.structure(small).blocks}
    assert gone
    others = ag.fit(graph, macs=0.1, skip="*", keep=sorted(gone)).graph
    assert gone <= {b.name for b in ag.structure(others).blocks}


# ------------------------------------------------------------------------------- importance


def test_the_best_positions_stay():
    graph = perceptron(3, 4, 2)
    scores = ag.Importance({"0.out": [0.1, 0.4, 0.2, 0.3]})
    for shape in ("uniform", "nested", "free"):
        small = ag.fit(graph, macs=0.5, shape=shape, importance=scores)
        assert small == ag.take(graph, positions={"0.out": [1, 3]})


def test_one_share_of_the_scores_of_every_axis_stays():
    graph = perceptron(8, 10, 10, 2)
    few, all_alike = [1.0] * 2 + [0.01] * 8, [1.0] * 10
    scores = ag.Importance({"0.out": few, "2.out": all_alike})
    kept = sizes(ag.fit(graph, macs=0.6, shape="nested", importance=scores).graph)
    assert kept == {"0.out": 2, "2.out": 9} or kept["0.out"] < kept["2.out"]
    assert sizes(ag.fit(graph, macs=0.6, shape="uniform", importance=scores).graph) == {
        "0.out": 7,
        "2.out": 7,
    }


def test_blocks_go_in_the_order_of_their_scores():
    graph = foreign_graph("resnet18")
    alike = {axis.name: [1.0] * axis.size for axis in ag.axes(graph).free}
    removable = [b.name for b in ag.structure(graph).blocks if b.removable]
    for first in removable[:2]:
        influence = {name: float(name != first) for name in removable}
        scores = ag.Importance(alike, influence)
        small = ag.fit(graph, macs=0.2, skip="layer1.*", importance=scores).graph
        stay = {b.name for b in ag.structure(small).blocks}
        assert {"layer1.0", "layer1.1"} - stay <= {first}


def test_a_family_names_the_file_of_scores(tmp_path):
    graph = perceptron(8, 10, 10, 2)
    alike = {"0.out": [1.0] * 9 + [2.0], "2.out": [1.0] * 10}
    scores = ag.Importance(alike)
    expected = ag.fit(graph, macs=0.7, importance=scores)
    assert ag.rewrite(graph, fit={"macs": 0.7, "importance": scores}) == expected
    ag.save(graph, tmp_path / "net.yaml")
    scores.save(tmp_path / "scores.safetensors")
    (tmp_path / "family.yaml").write_text(
        "model: net.yaml\nclients: [{name: a, fit: {macs: 70%, importance: scores.safetensors}}]\n"
    )
    (client,) = ag.resolve(ag.load_family(tmp_path / "family.yaml")).clients
    assert client.transfer == expected.transfer
    assert client.transfer.entries["0.weight"].dims[0] is not None


# ------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("measure", "budget", "limit"),
    [
        ("macs", 0.5, 1500),
        ("macs", "0.5", 1500),
        ("macs", "12.5%", 375),
        ("macs", 1, 3000),
        ("parameters", "1.5k", 1500),
        ("parameters", 2e6, 2_000_000),
        ("bytes", "2kB", 2000),
        ("bytes", "2 KiB", 2048),
        ("activations", "1MB", 1_000_000),
        ("macs", 0.1, 300),
    ],
)
def test_amounts(measure, budget, limit):
    assert limit_of(MEASURES[measure], budget, 3000) == limit


@pytest.mark.parametrize(
    "budget", [0, -1, "", "ten", "110%", "5 apples", "10MB", True, None, "nan"]
)
def test_what_is_no_budget_is_refused(budget):
    with pytest.raises(ag.RewriteError, match=r"^macs: "):
        limit_of(MEASURES["macs"], budget, 3000)


@pytest.mark.parametrize(
    ("measure", "budget", "meant"),
    [
        ("macs", "10m", "10M"),
        ("macs", "10MB", "10M"),
        ("macs", "1.5 GiB", "1.5G"),
        ("parameters", "2K", "2k"),
        ("bytes", "50mb", "50MB"),
        ("bytes", "5KB", "5kB"),
        ("bytes", "5 kib", "5KiB"),
        ("bytes", "10M", "10MB"),
        ("memory", "1g", "1GB"),
    ],
)
def test_a_unit_in_another_case_is_suggested(measure, budget, meant):
    with pytest.raises(ag.RewriteError, match=rf"unknown unit.*; did you mean {meant}\?$"):
        limit_of(MEASURES[measure], budget, 3000)
    limit_of(MEASURES[measure], meant, 3000)


@pytest.mark.parametrize("name", ["digits_cnn", "tiny_vit"])
def test_an_explanation_has_the_least_budgets_exactly(name):
    graph = ag.load(f"specs/models/{name}.yaml")
    fit: Any = ag.fit
    full, ranges = ag.cost(graph), ag.explain(graph).budgets
    assert list(ranges) == ["parameters", "macs", "bytes", "activations", "memory"]
    for measure, one in ranges.items():
        step = {"batch": 32} if measure == "memory" else {}
        whole = full.training(32, "sgd").total if step else getattr(full, measure)
        assert one.full == whole and one.without_blocks <= one.least < one.full
        # Amounts as text: a number up to 1 is a share.
        for least, skip in ((one.least, ()), (one.without_blocks, "*")):
            unit = "B" if MEASURES[measure].unit else ""
            if measure != "memory":  # whose bound is searched, up to 5 % above the total
                small = fit(graph, **{measure: f"{least}{unit}"}, skip=skip).graph
                assert getattr(ag.cost(small), measure) == least
            with pytest.raises(ag.RewriteError, match="no submodel is within the budget"):
                fit(graph, **{measure: f"{least - 1}{unit}"}, **step, skip=skip)
    assert ag.explain(graph, ag.axes(graph).free[0].name).budgets == {}


def test_errors_say_what_is_possible():
    graph = perceptron(3, 8, 2)
    with pytest.raises(
        ag.RewriteError, match=r"^no budget; expected one or more of parameters, macs"
    ):
        ag.fit(graph)
    with pytest.raises(
        ag.RewriteError,
        match=r"^macs: no submodel is within the budget; found 5 for the smallest; "
        r"expected at most 4; a budget above 1 is a cost, not a fraction$",
    ):
        ag.fit(graph, macs=4)
    with pytest.raises(
        ag.RewriteError, match=r"^parameters, macs: .*found 8 parameters, 5 macs for the smallest"
    ):
        ag.fit(graph, macs=4, parameters=7)
    with pytest.raises(ag.RewriteError, match=r"^unknown shape; found wide"):
        fitted(graph, macs=0.5, shape="wide")
    with pytest.raises(ag.RewriteError, match=r"^multiple: "):
        ag.fit(graph, macs=0.5, multiple=0)
    with pytest.raises(ag.GraphError, match=r"nowhere"):
        ag.fit(graph, macs=0.5, keep="nowhere")
    with pytest.raises(ag.GraphError, match=r"nowhere"):
        ag.fit(graph, macs=0.5, skip="nowhere")
    with pytest.raises(ag.RewriteError, match=r"^skip: 0: block cannot be removed"):
        ag.fit(graph, macs=0.5, skip=["0"])
    with pytest.raises(ag.RewriteError, match=r"^memory: needs the batch size of a training step"):
        ag.fit(graph, memory="20MB")
    with pytest.raises(ag.SpecError, match=r"fit: is a budget without a measure; found 10M"):
        ag.rewrite(graph, fit="10M")
