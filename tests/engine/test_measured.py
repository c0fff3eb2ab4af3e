"""What papers measure beside the models' own figures, each worked out by hand."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import archgraph as ag
from archgraph.engine.attack import drawn_attackers
from archgraph.engine.experiment import Experiment
from archgraph.engine.local import execute
from archgraph.federation import Evaluated, LocalOptions, ServerState, World
from archgraph.language.experiment import EvaluateSpec
from archgraph.reports.comparison import Comparison, RunGroup
from archgraph.reports.measures import cost_measures
from archgraph.reports.paper import paper_figures
from archgraph.reports.plots import COSTS
from archgraph.reports.runs import Log, together
from archgraph.strategies.fedavg import FedAvg
from archgraph.strategies.standalone import Standalone

SPECS = Path(__file__).parents[2] / "specs"
Make = Callable[..., Experiment]


def trained(**changes: Any) -> EvaluateSpec:
    return EvaluateSpec(batch=100, trained=True, **changes)


# ---------------------------------------------------------------- after training, before the mean


def test_the_mean_over_one_client_is_its_model_after_training(experiment: Make):
    one = experiment(FedAvg(), clients=1, rounds=2, sampled=None, evaluate=trained())
    for line in execute(one).rounds:
        (row,) = line["clients"]
        whole = line["evaluation"]["models"]["global"]
        own = {key: row["trained"][key] for key in ("accuracy", "loss")}
        assert own == {key: whole[key] for key in own}  # it owns all classes
        assert line["evaluation"]["trained"]["accuracy"] == row["trained"]["accuracy"]


def test_a_client_that_shares_nothing_is_tested_alike_before_and_after(experiment: Make):
    alone = experiment(Standalone(), rounds=1, sampled=None, evaluate=trained())
    world = alone.world
    tiers = tuple(dataclasses.replace(tier, source=world.state) for tier in world.tiers)
    alone = dataclasses.replace(alone, world=dataclasses.replace(world, tiers=tiers))
    (line,) = execute(alone).rounds
    after, before = line["evaluation"]["local"], line["evaluation"]["trained"]
    assert set(after) == set(before) == {"accuracy", "loss", "masked", "matched"}
    assert before == pytest.approx(after)
    rows = [row["trained"]["accuracy"] for row in line["clients"]]
    assert before["accuracy"] == pytest.approx(sum(rows) / 4)


def test_clients_are_tested_before_the_mean_not_after_it(experiment: Make):
    setup = experiment(FedAvg(), rounds=1, sampled=None, evaluate=trained())
    (line,) = execute(setup).rounds
    assert len({row["trained"]["loss"] for row in line["clients"]}) == 4
    assert line["evaluation"]["trained"] != line["evaluation"]["models"]["global"]
    plain = execute(dataclasses.replace(setup, evaluate=EvaluateSpec(batch=100)))
    assert "trained" not in plain.rounds[0]["evaluation"] | plain.rounds[0]["clients"][0]
    figures = {k: v for k, v in line["evaluation"].items() if k != "trained"}
    assert figures == plain.rounds[0]["evaluation"]  # testing changes nothing


def test_only_rounds_that_are_tested_and_in_the_strategys_way(experiment: Make):
    class Recomputed(FedAvg):
        def evaluated(self, world: World, state: ServerState) -> Iterator[Evaluated]:
            for model in super().evaluated(world, state):
                yield dataclasses.replace(model, statistics="recompute")

    both = [
        execute(experiment(kind(), clients=1, rounds=2, sampled=None, evaluate=trained(every=2)))
        for kind in (FedAvg, Recomputed)
    ]
    assert "trained" not in both[0].rounds[0]["clients"][0]
    stored, fresh = (run.rounds[1]["clients"][0]["trained"]["loss"] for run in both)
    assert stored != fresh
    assert fresh == pytest.approx(both[1].evaluation["global"]["loss"])


# ---------------------------------------------------------------- malicious clients within tiers


def test_each_tier_has_its_share_of_malicious_clients():
    tiers = ["a"] * 10 + ["b"] * 6 + ["c"] * 4
    for seed in range(20):
        chosen = drawn_attackers(range(20), 0.25, seed, tiers)  # 2.5, 1.5 and 1 of 5 clients
        assert Counter(tiers[i] for i in chosen) == {"a": 3, "b": 1, "c": 1}
    assert len({drawn_attackers(range(20), 0.25, seed, tiers) for seed in range(20)}) > 10


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=40), st.floats(0, 1))
def test_as_many_are_malicious_within_tiers_as_without(tiers: list[str], share: float):
    clients = range(len(tiers))
    chosen = drawn_attackers(clients, share, 0, tiers)
    assert len(chosen) == len(drawn_attackers(clients, share, 0))
    for name in set(tiers):
        exact = len(chosen) * tiers.count(name) / len(tiers)
        assert abs(sum(tiers[i] == name for i in chosen) - exact) < 1


def test_an_experiment_says_within_what_they_are_drawn(experiment: Make):
    from archgraph.language.experiment import AttackSpec

    setup = experiment(attack=AttackSpec(fraction=0.5, within="tiers"))
    assert Counter(i % 2 for i in setup.malicious) == {0: 1, 1: 1}
    chosen = {
        dataclasses.replace(experiment(seed=seed, attack=AttackSpec(fraction=0.5))).malicious
        for seed in range(12)
    }
    assert any(len({i % 2 for i in one}) == 1 for one in chosen)  # the paper's are not so drawn


# ---------------------------------------------------------------- multiply–accumulates


def test_macs_of_a_round_and_of_an_epoch(experiment: Make):
    setup = experiment(rounds=2, sampled=2, local=LocalOptions(epochs=2, batch=16, fraction=0.5))
    rounds = execute(setup).rounds
    # A 3 × 3 convolution of 1 to 4 channels on 4 × 4 places, 64 to 10 units: 9·4·16 + 640.
    example = 1216
    used = [math.ceil(0.5 * len(share)) for share in setup.shares]
    for line in rounds:
        for row in line["clients"]:
            assert row["macs"] == 3 * example * 2 * used[row["client"]]
        assert line["macs"] == {
            "round": sum(row["macs"] for row in line["clients"]),
            "epoch": 0.5 * example * sum(used),  # two of four clients
            "epochs": 2,
        }


def log_of(lines: list[dict[str, Any]]) -> Log:
    return Log(Path("run"), "", tuple(lines))


def test_columns_of_what_is_computed():
    def found(lines: list[dict[str, Any]]) -> dict[str, list[float]]:
        figures = together({"run": [log_of(lines)]}, {"run": [0]})
        return {m.key: m.values.dropna().tolist() for m in cost_measures(figures)}

    macs = [{"round": 30.0, "epoch": 5.0, "epochs": 2}, {"round": 40.0, "epoch": 5.0, "epochs": 2}]
    lines = [{"round": number, "macs": one} for number, one in enumerate(macs, 1)]
    keys = ("macs", "mace", "epochs", "tmac")
    assert [found(lines)[key] for key in keys] == [[70], [5], [4], [20]]
    assert all(found([{"round": 0}, *lines])[key] == [] for key in keys)


def test_what_fedfa_prints_for_pre_resnet():
    """Table 2, IID, depth: MACE 2.05 T; the widths of its other columns were searched for."""
    family = ag.resolve(ag.load_family(SPECS / "families" / "fedfa_pre_resnet_depth.yaml"))
    mean = sum(kind.count * ag.cost(kind.graph).macs for kind in family.clients) / 100
    assert 10 * 175 * mean == pytest.approx(2.05e12, rel=0.01)  # 10 clients of 175 images


def test_accuracy_is_drawn_over_what_was_sent_and_computed():
    def run(scale: float) -> list[dict[str, Any]]:
        return [
            {
                "round": number,
                "clients": [{"client": 0, "bytes_down": 1e6 * scale, "bytes_up": 3e6}],
                "macs": {"round": 2e9 * scale, "epoch": 1.0, "epochs": 1},
                "evaluation": {"models": {"all": {"accuracy": 0.1 * number}}},
            }
            for number in (1, 2)
        ]

    def group(name: str, *logs: Log) -> RunGroup:
        return RunGroup(name, {}, logs, tuple(range(len(logs))), (1, 2), {})

    one = group("one", log_of(run(1)), log_of(run(3)))
    drawn = paper_figures(Comparison((one,), ()))
    (sent,), (computed,) = drawn["bytes"].axes, drawn["macs"].axes
    # The mean of two runs: 4 and 6 MB, 2 and 6 GMACs a round.
    assert list(np.asarray(sent.get_lines()[0].get_xdata())) == [5, 10]
    assert list(np.asarray(computed.get_lines()[0].get_xdata())) == [4, 8]
    assert [panel.get_xlabel() for panel in (sent, computed)] == list(COSTS)
    older = [{k: v for k, v in line.items() if k != "macs"} for line in run(1)]
    both = Comparison((group("one", log_of(run(1))), group("older", log_of(older))), ())
    assert list(paper_figures(both)) == ["average", "worst", "bytes"]
