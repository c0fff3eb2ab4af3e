"""An experiment without files: models and data of Python's, and who of the data gets which."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.engine.world import prepare
from archgraph.language import ExperimentSpec
from tests.engine.own import bits, rows, split_of

INPUTS, CLASSES, OWNERS = rows()
X, Y = split_of(INPUTS, CLASSES)
SPLIT = (X, Y), (X, Y)


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 3))


def experiment(family: Any, **more: Any) -> dict[str, Any]:
    return {
        "name": "mine",
        "family": family,
        "strategy": {"heterofl": {}},
        "rounds": 1,
        "local": {"epochs": 1, "batch": 8, "lr": 0.1},
        **more,
    }


def two_sizes(model: object) -> dict[str, Any]:
    clients = [{"name": "whole", "count": 1}, {"name": "half", "count": 2, "take": 0.5}]
    return {"model": model, "clients": clients}


def test_a_module_of_ones_own_is_trained_from_its_weights_without_a_file(tmp_path, monkeypatch):
    traced = ag.trace(net(), X)
    run = ag.run(experiment(two_sizes(traced)), data=SPLIT, progress=False, out=tmp_path / "run")
    first = run.experiment.world.state
    assert all(torch.equal(first[name], value) for name, value in net().state_dict().items())
    assert run.experiment.world.tiers[1].graph.param["0.weight"].shape == (3, 2)
    final = next(model for model in run.models if model.name == "global")
    net().load_state_dict(final.state)
    # The same as from files.
    (tmp_path / "made_mine.py").write_text(
        "from tests.data.test_python_door import net\n\n\ndef make():\n    return net()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    python = {"python": "made_mine:make", "inputs": {"input": [2]}}
    other = ag.run(experiment(two_sizes(python)), data=SPLIT, progress=False, python=True)
    assert bits(other) == bits(run)
    # And it goes on from its folder.
    again = ag.run(
        experiment(two_sizes(traced), rounds=2), data=SPLIT, progress=False,
        out=tmp_path / "run", resume=True,
    )  # fmt: skip
    assert len(again.rounds) == 2
    unlike = experiment(two_sizes(ag.trace(net(1), X)), rounds=3)
    with pytest.raises(ag.RunError, match="another experiment"):
        ag.run(unlike, data=SPLIT, progress=False, out=tmp_path / "run", resume=True)


def test_clients_bring_models_and_weights_of_their_own():
    one, two = ag.trace(net(1), X), ag.trace(net(2), X)
    clients = [{"name": "a", "model": one}, {"name": "b", "model": two}]
    setup = prepare(experiment({"clients": clients}, strategy={"standalone": {}}), data=SPLIT)
    for tier, seed in zip(setup.world.tiers, (1, 2), strict=True):
        assert torch.equal(tier.source["0.weight"], net(seed).state_dict()["0.weight"])
    graph = experiment(two_sizes(one.graph))
    assert not torch.equal(
        prepare(graph, data=SPLIT).world.state["0.weight"], one.state["0.weight"]
    )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            experiment(two_sizes(net())),
            r"family.model: is a module, not a graph; trace it first: ag.trace\(model, example\)",
        ),
        (
            experiment(two_sizes(ag.trace(net().to("meta"), X))),
            r"family.model: has no values: .* on the meta device; found 0\.weight; load weights",
        ),
        (experiment(two_sizes(3)), "experiment: family.model: has an unknown value; found 3"),
        ({**experiment({}), "round": 3}, "experiment: round: is an unknown key.*'rounds'"),
    ],
)
def test_values_are_checked_as_files_are(values, said):
    with pytest.raises(ag.SpecError, match=said):
        ag.run(values, data=SPLIT)


def hospitals(**owners: Any) -> ExperimentSpec:
    clients = [{"name": name, "owners": who} for name, who in owners.items()]
    clients[-1]["take"] = 0.5
    family = {"model": ag.trace(net(), X), "clients": clients}
    return ag.load_experiment(experiment(family))


def by_owner() -> Any:
    names = list(dict.fromkeys(OWNERS))
    parts = {name: [i for i, who in enumerate(OWNERS) if who == name] for name in names}
    return {name: (X[at], Y[at]) for name, at in parts.items()}, (X, Y)


def test_who_of_the_data_gets_which_model_is_said_by_name():
    data = by_owner()
    setup = prepare(hospitals(whole=["cid"], half=["ann", "bob"]), data=data)
    assert [client.name for client in setup.world.clients] == ["whole", "half", "half"]
    assert list(setup.data.owners) == ["cid", "ann", "bob"]
    for name, share in zip(setup.data.owners, setup.shares, strict=True):
        assert torch.equal(setup.data.train.targets[share], data[0][name][1])
    other = prepare(hospitals(whole=["ann"], half=["cid", "bob"]), data=data)
    assert setup.facts["owners"] != other.facts["owners"]  # a run is not resumed with others


@pytest.mark.parametrize(
    ("owners", "data", "said"),
    [
        (
            {"whole": ["cid"], "half": ["ann", "eve"]},
            by_owner(),
            "must name each client of the data once; found cid, ann, eve; expected ann, bob",
        ),
        ({"whole": ["cid"], "half": ["ann"]}, SPLIT, "expected data with clients"),
        ({"whole": None, "half": ["ann"]}, SPLIT, "lacks `owners`, which other clients have"),
    ],
)
def test_names_that_are_not_the_datas_are_refused(owners, data, said):
    with pytest.raises(ag.ArchGraphError, match=said):
        prepare(hospitals(**owners), data=data)
