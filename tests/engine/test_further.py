"""Further models that clients train beside their own: updates of their own, never tested."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import archgraph as ag
from archgraph.engine import prepare
from archgraph.engine.clients import ClientFacts, read_clients
from archgraph.engine.evaluate import Evaluator
from archgraph.federation import Outcome
from archgraph.reports import read_run, run_page
from archgraph.reports.charts import Picture
from archgraph.reports.header import header
from archgraph.reports.run_tables import tiers

from .test_run_spec import EXPERIMENT, MODEL, bits

# Clients 0, 1, 2 have half the width; 3 and 4 are whole, and train a half, too: 5 and 6.
HALVES, WHOLES, FURTHER = (0, 1, 2), (3, 4), (5, 6)
LOCAL = {"norm": "local", "scaler": False, "label_rows": False}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """An experiment whose whole clients train the half model, too."""

    def make(**changes: Any) -> Path:
        values = {**EXPERIMENT, "also": {"whole": ["half"]}, **changes}
        (tmp_path / "model.yaml").write_text(MODEL)
        file = tmp_path / "experiment.yaml"
        file.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))
        return file

    return make


def test_a_further_model_is_a_client_with_the_same_data(write):
    setup = prepare(write(validation={"clients": 0.2}))
    world = setup.world
    assert [c.name for c in world.clients] == ["half"] * 3 + ["whole"] * 2 + ["half"] * 2
    assert [c.of for c in world.clients] == [None] * 5 + [3, 4]
    assert [c.id for c in world.participants] == [0, 1, 2, 3, 4]
    for client in FURTHER:
        own = world.clients[client].owner
        assert (setup.shares[client] == setup.shares[own]).all()
        assert world.clients[client].histogram == world.clients[own].histogram
        assert world.clients[client].examples == len(setup.shares[client])
    # Statistics, tests on held-out examples: every training example counts once.
    assert len(setup.training) == sum(map(len, setup.shares[:5]))


@pytest.mark.parametrize("weights", ["uniform", "examples"])
def test_a_mean_by_hand(write, weights):
    """Client c moves all that it has by c + 1; the weight is that of the client's own update."""
    setup = prepare(write(strategy={"heterofl": {**LOCAL, "weights": weights}}))
    world, strategy = setup.world, setup.strategy
    first = strategy.init(world)

    def results():
        for client in (*HALVES, *WHOLES, *FURTHER):
            task = strategy.send(world, first, client, 1)
            moved = {name: value + (client + 1) for name, value in task.state.items()}
            yield task.result(Outcome(moved), len(setup.shares[client]))

    after = strategy.receive(world, first, results(), 1)
    size = [1 if weights == "uniform" else len(share) for share in setup.shares]

    def mean(*clients):
        return sum(size[c] * (c + 1) for c in clients) / sum(size[c] for c in clients)

    name = next(p.name for p in world.graph.params if p.shape == (10, 8))
    change = (after.group("global")[name] - first.group("global")[name])[0]
    torch.testing.assert_close(
        change[:4], torch.full((4,), mean(*HALVES, *WHOLES, *FURTHER)), rtol=1e-5, atol=1e-5
    )
    torch.testing.assert_close(change[4:], torch.full((4,), mean(*WHOLES)), rtol=1e-5, atol=1e-5)


def test_it_is_drawn_with_its_client_and_attacks_with_it(write):
    run = ag.run(
        write(
            sample=2,
            rounds=4,
            attack={"fraction": 0.5, "within": "tiers"},
            strategy={"heterofl": LOCAL},
        ),
        progress=False,
    )
    setup = run.experiment
    assert setup.rate == 0.4
    drawn = [{row["client"] for row in line["clients"]} for line in run.rounds]
    for clients in drawn:
        assert len(clients & {*HALVES, *WHOLES}) == 2
        assert {c - 2 for c in clients & {*FURTHER}} == clients & {*WHOLES}
    assert any(clients & {*FURTHER} for clients in drawn)
    assert {c - 2 for c in setup.malicious & {*FURTHER}} == setup.malicious & {*WHOLES}
    assert len(setup.malicious & {*WHOLES}) == 1
    (whole,) = setup.malicious & {*WHOLES}
    assert torch.equal(setup.exchanged[whole], setup.exchanged[whole + 2])
    owners = torch.cat([setup.exchanged[client] for client in setup.malicious & {*HALVES, *WHOLES}])
    owned = np.concatenate([setup.shares[i] for i in setup.malicious & {*HALVES, *WHOLES}])
    pooled = setup.data.train.targets[torch.from_numpy(owned)]
    assert sorted(owners.tolist()) == sorted(pooled.tolist())


def test_it_changes_the_server_and_is_not_tested(write, tmp_path, monkeypatch):
    options = {"strategy": {"heterofl": LOCAL}, "evaluate": {"trained": True}}
    run = ag.run(write(**options), out=tmp_path / "with", progress=False)
    without = ag.run(write(also=None, **options), progress=False)
    assert bits(run.server.tensors) != bits(without.server.tensors)
    rows = run.rounds[0]["clients"]
    assert [row["trained"] != {} for row in rows] == [True] * 5 + [False] * 2
    # What the five clients have is drawn from their own numbers, with or without the others.
    for row, other in zip(rows, without.rounds[0]["clients"], strict=False):
        assert {**row, "seconds": 0} == {**other, "seconds": 0}
    facts = read_clients(tmp_path / "with")
    assert [(c.label, c.of) for c in facts[4:]] == [
        ("client 4, whole", None),
        ("client 3, half", 3),
        ("client 4, half", 4),
    ]
    [half] = [row for row in run.table().rows if row[0] == "half"]
    assert half[1] == "3"
    log = read_run(tmp_path / "with")
    drawn: list[list[ClientFacts]] = []
    assert dict(header(log))["clients"] == "5: 3 half, 2 whole"
    table = tiers(log)
    many = {row[0]: row[table.columns.index("clients")] for row in table.rows}
    assert (many["half"], many["whole"], many["global"]) == ("3", "2", "5")

    def recorded(clients: list[ClientFacts]) -> list[Picture]:
        drawn.append(clients)
        return []

    monkeypatch.setattr(run_page, "client_charts", recorded)
    run_page.page(log)
    assert [[client.client for client in clients] for clients in drawn] == [[0, 1, 2, 3, 4]]


def test_models_are_tested_on_the_clients_whose_own_they_are(write):
    setup = prepare(write(strategy={"heterofl": LOCAL}))
    models = setup.strategy.evaluated(setup.world, setup.strategy.init(setup.world))
    [whole, *tiers] = models
    personal = replace(tiers[0], name="of one further model", clients=(6,))
    own = Evaluator(setup)._own([whole, *tiers, personal])
    assert {model.name: model.clients for model in own} == {
        "global": (),
        "half": HALVES,
        "whole": WHOLES,
    }


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("strategy", "more"),
    [("flexifed", {}), ("heterofl", LOCAL)],
    ids=["flexifed", "heterofl"],
)
def test_processes_and_resumed_runs_have_the_same_bits(write, tmp_path, strategy, more):
    """Of what a client keeps for each of its models, too."""
    changes = {"strategy": {strategy: more}, "rounds": 3, "local": {"lr": 0.1}, "sample": 3}
    one, two = (
        ag.run(write(engine={"workers": n}, **changes), out=tmp_path / str(n), progress=False)
        for n in (1, 2)
    )
    assert bits(one.server.tensors) == bits(two.server.tensors)
    again = ag.run(write(**changes), out=tmp_path / "2", resume_from=2, progress=False)
    assert bits(again.server.tensors) == bits(one.server.tensors)
    for ours, theirs in zip(one.rounds, again.rounds, strict=True):
        assert ours["evaluation"] == theirs["evaluation"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown_tier": ({"also": {"hole": ["half"]}}, "also.hole: is not a kind of client.*'whole'"),
    "unknown_model": (
        {"also": {"whole": ["hal"]}},
        "also.whole: is not a kind of client; found 'hal'",
    ),
    "own": (
        {"also": {"half": ["half"]}},
        "also.half: names a model that the client already trains",
    ),
    "twice": ({"also": {"whole": ["half", "half"]}}, "also.whole: names a model that the client"),
    "recipfl": ({"strategy": {"recipfl": {}}}, "strategy.recipfl: .*`also`"),
    "private": (
        {"privacy": {"clip": 1.0, "noise": 1.0, "delta": 1e-5}},
        "also: cannot be combined with `privacy`",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_is_refused(write, what):
    changes, message = REFUSED[what]
    with pytest.raises(ag.ArchGraphError, match=message):
        prepare(write(**changes))
