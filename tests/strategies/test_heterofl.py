"""HeteroFL in closed form: prefixes, rates, masks, label rows, dynamic tiers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import archgraph as ag
from archgraph.federation import Tier, rate_of
from archgraph.strategies.heterofl import HeteroFL


@pytest.fixture(scope="module")
def tiers(lab):
    return {
        "full": ag.Rewritten.identity(lab.graph),
        "half": ag.take(lab.graph, 0.5),
        "quarter": ag.take(lab.graph, 0.25),
    }


def constant(task) -> dict[str, Tensor]:
    """Client c returns c + 1 everywhere."""
    return {k: torch.full_like(v, task.client + 1) for k, v in task.state.items()}


def test_every_entry_is_the_mean_over_those_that_cover_it(lab, tiers):
    world = lab.make_world(lab.graph, lab.state, tiers, ["full", "half", "quarter"])
    after, tasks = lab.one_round(HeteroFL(), world, constant)
    weight = after["layer2.2.conv1.weight"]  # 12 × 12: prefixes 12, 6, 3
    assert torch.equal(weight[:3, :3], torch.full_like(weight[:3, :3], 2.0))
    assert torch.equal(weight[3:6, :6], torch.full_like(weight[3:6, :6], 1.5))
    assert torch.equal(weight[:3, 3:6], torch.full_like(weight[:3, 3:6], 1.5))
    assert torch.equal(weight[6:], torch.ones_like(weight[6:]))
    assert torch.equal(weight[:, 6:], torch.ones_like(weight[:, 6:]))
    for name, width in (("full", 12), ("half", 6), ("quarter", 3)):
        client = list(tiers).index(name)
        sent = tasks[client].state["layer2.2.conv1.weight"]
        assert torch.equal(sent, lab.state["layer2.2.conv1.weight"][:width, :width])


def test_static_statistics_are_left_alone_and_recomputed(lab, tiers):
    world = lab.make_world(lab.graph, lab.state, tiers, ["full", "half"])
    after, _ = lab.one_round(HeteroFL(), world, constant)
    own = [k for k in lab.state if "running" in k or "tracked" in k]
    assert own and all(torch.equal(after[k], lab.state[k]) for k in own)
    models = list(HeteroFL().evaluated(world, HeteroFL().init(world)))
    assert {m.statistics for m in models} == {"recompute"}


def test_stored_statistics_and_a_scaler_exclude_one_another(lab, tiers):
    world = lab.make_world(lab.graph, lab.state, tiers, ["full", "half"])
    for norm in ("averaged", "local"):
        with pytest.raises(
            ag.RunError, match=r"heterofl: tier half: tests would use running statistics"
        ):
            HeteroFL(norm=norm).init(world)
        assert HeteroFL(norm=norm, scaler=False).init(world)
    alone = lab.make_world(lab.graph, lab.state, {"full": tiers["full"]}, ["full"])
    assert HeteroFL(norm="averaged").init(alone)  # at rate 1 nothing is scaled
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5))
    graph, state = ag.trace(net, torch.zeros(2, 4))
    narrow = lab.make_world(graph, state, {"half": ag.take(graph, 0.5)}, ["half"])
    assert HeteroFL(norm="averaged").init(narrow)  # no statistics


# ---------------------------------------------------------------- rates and the scaler


@pytest.mark.parametrize("rate", [1.0, 0.5, 0.25])
def test_the_rate_is_read_off_the_transfer(lab, rate):
    made = ag.take(lab.graph, rate)
    assert rate_of(Tier("t", made.graph, made.transfer)) == rate


def test_rounding_up_distorts_the_measured_rate_least_on_the_largest_axis(lab):
    made = ag.take(lab.graph, 0.3)  # 4 → 2, 8 → 3, 12 → 4
    assert rate_of(Tier("t", made.graph, made.transfer)) == 4 / 12
    net = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 5))
    graph = ag.trace(net, torch.zeros(2, 4)).graph
    made = ag.take(graph, 0.3)  # the largest axis first: 12 → 4, then 5 → 2
    assert rate_of(Tier("t", made.graph, made.transfer)) == 4 / 12


def test_the_scaler_divides_by_the_rate_in_training_only(lab, tiers):
    world = lab.make_world(lab.graph, lab.state, tiers, ["full", "half"])
    strategy = HeteroFL()
    state = strategy.init(world)
    whole, half = (strategy.send(world, state, c, 1) for c in (0, 1))
    assert whole.graph == lab.graph
    assert half.graph == ag.add_scaler(tiers["half"].graph, 0.5).graph != tiers["half"].graph
    x = torch.randn(3, 1, 8, 8)
    scaled = ag.build(half.graph, half.state)
    plain = ag.build(tiers["half"].graph, half.state)
    assert torch.equal(scaled.eval()(x), plain.eval()(x))
    assert not torch.allclose(scaled.train()(x), plain.train()(x))
    assert HeteroFL(scaler=False).send(world, state, 1, 1).graph == tiers["half"].graph


def test_given_rates_override_the_measured_ones(lab, tiers):
    world = lab.make_world(lab.graph, lab.state, tiers, ["half"])
    strategy = HeteroFL(rates={"half": 0.75})
    task = strategy.send(world, strategy.init(world), 0, 1)
    assert task.graph == ag.add_scaler(tiers["half"].graph, 0.75).graph
    with pytest.raises(ag.RunError, match=r"unknown tier; found 'hlaf'; .*did you mean 'half'"):
        HeteroFL(rates={"hlaf": 0.5}).init(world)


# ---------------------------------------------------------------- labels


def test_label_rows_are_the_classifier_found_through_the_graph(lab):
    assert ag.label_rows(lab.graph, 5) == ("fc.weight", "fc.bias")
    assert ag.label_rows(ag.take(lab.graph, 0.5).graph, 5) == ("fc.weight", "fc.bias")


def test_label_rows_of_a_net_whose_inner_layers_have_as_many_units_as_classes():
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5))
    graph = ag.trace(model, torch.randn(2, 5)).graph
    assert ag.label_rows(graph, 5) == ("4.weight", "4.bias")


def test_label_rows_look_through_what_follows_the_classifier():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Conv2d(1, 5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x).relu().mean((2, 3)).log_softmax(1)

    graph = ag.trace(Net(), torch.randn(2, 1, 8, 8)).graph
    assert ag.label_rows(graph, 5) == ("head.weight", "head.bias")


@pytest.mark.parametrize("tied", [False, True])
def test_label_rows_include_token_embeddings(tied):
    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(11, 6)
            self.places = nn.Embedding(4, 6)
            self.mix = nn.Linear(6, 6)
            self.decoder = nn.Linear(6, 11)
            if tied:
                self.decoder.weight = self.tokens.weight

        def forward(self, x: Tensor) -> Tensor:
            places = self.places(torch.arange(x.shape[1], device=x.device))
            return self.decoder(self.mix(self.tokens(x) + places).relu())

    graph = ag.trace(Text(), torch.zeros(2, 4, dtype=torch.long)).graph
    expected = {"tokens.weight", "decoder.bias"} | (set() if tied else {"decoder.weight"})
    assert set(ag.label_rows(graph, 11)) == expected


def test_an_opaque_operators_rows_are_no_labels():
    """A cell's gates are not classes, though they are as many."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTM(3, 2, batch_first=True)
            self.head = nn.Linear(2, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.cell(x)[0][:, -1])

    graph = ag.trace(Recurrent(), torch.randn(2, 4, 3)).graph
    assert graph.param["cell.weight_ih_l0"].shape == (8, 3)
    assert ag.label_rows(graph, 8) == ("head.weight", "head.bias")


def test_rows_come_from_owners_of_the_label_only(lab, tiers):
    world = lab.make_world(
        lab.graph,
        lab.state,
        tiers,
        ["full", "full", "half"],
        histograms=[[4, 4, 0, 0, 0], [0, 3, 3, 0, 0], [1, 0, 0, 0, 1]],
    )
    after, _ = lab.one_round(HeteroFL(), world, constant)
    bias, old = after["fc.bias"], lab.state["fc.bias"]
    assert bias[:3].tolist() == [2.0, 1.5, 2.0]
    assert torch.equal(bias[3], old[3])  # no client owns label 3
    assert bias[4] == 3.0
    weight = after["fc.weight"]
    assert weight[0, 0] == 2.0 and weight[0, -1] == 1.0  # the half client covers half the inputs
    assert torch.equal(weight[4, 6:], lab.state["fc.weight"][4, 6:])
    uniform, _ = lab.one_round(HeteroFL(label_rows=False), world, constant)
    assert uniform["fc.bias"].tolist() == [2.0] * 5


# ---------------------------------------------------------------- dynamic mode


def test_dynamic_tiers_are_redrawn_with_the_familys_odds(lab, tiers):
    names = ["full"] * 10 + ["half"] * 30
    world = lab.make_world(lab.graph, lab.state, tiers, names)
    strategy = HeteroFL(mode="dynamic")
    state = strategy.init(world)
    drawn = [strategy.begin(world, state, t, [0]).values["tiers"] for t in range(1, 26)]
    assert drawn[0] != drawn[1]
    flat = [name for tiers_ in drawn for name in tiers_]
    share = flat.count("full") / len(flat)
    assert "quarter" not in flat  # offered, but no client runs it
    assert abs(share - 0.25) < 4 * math.sqrt(0.25 * 0.75 / len(flat))
    assert (
        strategy.begin(world, state, 3, [5, 6]).values
        == strategy.begin(world, state, 3, [0]).values
    )


def test_dynamic_widths_and_kept_statistics_exclude_one_another():
    with pytest.raises(ag.SpecError, match="norm: kept statistics would have the width"):
        HeteroFL(mode="dynamic", norm="local")


def test_fixed_tiers_are_not_redrawn(lab, tiers):
    world = lab.make_world(lab.graph, lab.state, tiers, ["full", "half"])
    state = HeteroFL().init(world)
    assert HeteroFL().begin(world, state, 1, [0]) is state
    assert state.values == {"tiers": ["full", "half"]}


def test_dynamic_updates_are_merged_as_they_were_sent(lab, tiers):
    world = lab.make_world(lab.graph, lab.state, tiers, ["full", "half", "quarter", "half"])
    shapes = []

    def update(task):
        shapes.append(task.state["layer2.2.conv1.weight"].shape[0])
        return constant(task)

    for turn in range(1, 4):
        after, _ = lab.one_round(HeteroFL(mode="dynamic"), world, update, round=turn)
        assert after["fc.bias"].tolist() == [2.5] * 5
    assert len(set(shapes)) > 1
