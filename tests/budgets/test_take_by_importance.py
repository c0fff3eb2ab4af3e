"""Take by importance: in families, strategies and on pages, as in Python."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import archgraph as ag
from archgraph.engine.run_models import trained
from archgraph.viewer.document import decode_data

FAMILY = """
archgraph: 1
model: net.yaml
clients:
  - {name: half, count: 2, take: {shares: 0.5, importance: scores/half.safetensors}}
  - {name: full, count: 2}
"""
EXPERIMENT = """
archgraph: 1
name: best
family: family.yaml
data: {dataset: digits, partition: {scheme: iid}}
strategy: {heterofl: {}}
rounds: 1
local: {epochs: 1, batch: 32, lr: 0.05}
"""


@pytest.fixture
def graph() -> ag.ArchGraph:
    return ag.load("specs/models/digits_cnn.yaml")


@pytest.fixture
def scores(graph: ag.ArchGraph) -> ag.Importance:
    return ag.importance(graph, ag.initial_state(graph, seed=5))


@pytest.fixture
def folder(tmp_path: Path, graph: ag.ArchGraph, scores: ag.Importance) -> Path:
    ag.save(graph, tmp_path / "net.yaml")
    scores.save(tmp_path / "scores" / "half.safetensors")
    (tmp_path / "family.yaml").write_text(FAMILY)
    (tmp_path / "experiment.yaml").write_text(EXPERIMENT)
    return tmp_path


def test_a_family_names_the_file_of_its_scores(folder, graph, scores):
    best = ag.take(graph, 0.5, importance=scores)
    assert best != ag.take(graph, 0.5)
    half, _ = ag.resolve(ag.load_family(folder / "family.yaml")).clients
    assert (half.graph, half.transfer) == (best.graph, best.transfer)
    changed = FAMILY.replace(
        "clients:", "change: {take: {sizes: {'*': 8}, importance: I}}\nclients:"
    )
    changed = changed.replace("I}", "scores/half.safetensors}").replace("shares: 0.5", "shares: 1")
    (folder / "family.yaml").write_text(changed)
    family = ag.resolve(ag.load_family(folder / "family.yaml"))
    assert family.graph == ag.take(graph, sizes={"*": 8}, importance=scores).graph


def test_a_missing_file_is_named_with_its_line(folder):
    (folder / "scores" / "half.safetensors").unlink()
    with pytest.raises(
        ag.SpecError, match=r"family\.yaml:5: clients\[0\]\.take\.importance: names a"
    ):
        ag.load_family(folder / "family.yaml")


def test_keywords_take_scores_their_mapping_or_a_file(folder, graph, scores):
    best = ag.take(graph, 0.5, importance=scores)
    file = str(folder / "scores" / "half.safetensors")
    for value in (scores, scores.positions, file):
        assert ag.rewrite(graph, take={"shares": 0.5, "importance": value}, verify=True) == best
    with pytest.raises(ag.SpecError, match=r"narrow\.importance: is an unknown key"):
        ag.rewrite(graph, narrow={"shares": 0.5, "importance": file})


def test_an_update_is_merged_into_the_positions_that_were_taken(graph, scores):
    best = ag.take(graph, 0.5, importance=scores)
    state = ag.initial_state(graph, seed=0)
    update = {k: v + 1 for k, v in best.transfer.pull(state).items() if v.is_floating_point()}
    merger = ag.Merger(graph, state)
    merger.add(best.transfer, best.transfer.pull(state) | update, weight=1)
    merged, _ = merger.result()
    moved = (merged["stem.conv.weight"] != state["stem.conv.weight"]).flatten(1).any(1)
    assert moved.nonzero().flatten().tolist() == scores.best("stem.conv.out", 4).tolist()


def test_a_strategy_trains_and_merges_them(folder, scores):
    """After one round HeteroFL has moved all of the network, and what `half` trains is a part."""
    run = ag.run(folder / "experiment.yaml", out=folder / "out", progress=False)
    models = trained(folder / "out", data_root=None)
    half, joint = models["half"], models["global"]
    rows = scores.best("stem.conv.out", 4)
    assert torch.equal(half.state["stem.conv.weight"], joint.state["stem.conv.weight"][rows])
    assert run.folder is not None


def test_values_in_python_are_recorded_as_they_are(tmp_path, graph, scores):
    take = {"shares": 0.5, "importance": scores}
    family = {"model": graph, "clients": [{"name": "half", "take": take}, {"name": "full"}]}
    data = {"dataset": "digits", "partition": {"scheme": "iid"}}
    values = {"name": "best", "family": family, "data": data, "strategy": {"heterofl": {}}}
    spec = ag.load_experiment(values | {"rounds": 1, "local": {"lr": 0.1}})
    assert not isinstance(spec.family, str)
    client = ag.resolve(spec.family).clients[0]
    assert client.graph == ag.take(graph, 0.5, importance=scores).graph
    assert spec.family.model_dump()["clients"][0]["take"]["importance"] == scores.positions


def test_a_page_takes_scores(graph, scores):
    page = decode_data(ag.view(graph, importance=scores))
    assert page == decode_data(ag.view(graph, importance=dict(scores.positions)))
    assert page["overlays"]["importance"][0] == "importance"


def test_a_page_shows_scores_of_blocks(graph, scores):
    blocks = {"stage1.0": 0.25, "stage2.1": 0.75}
    page = decode_data(ag.view(graph, importance=replace(scores, blocks=blocks)))
    assert page["overlays"]["blocks"] == ["influence of blocks", 0.0, 0.75]
    (shown,) = page["graphs"]
    figures = shown["figures"]["blocks"]
    assert figures["whole"] == 0.5
    assert [f for f in figures["blocks"] if f is not None] == [0.25, 0.75]
    # A page of which no block is scored has none.
    assert [*decode_data(ag.view(graph, importance=scores))["overlays"]] == ["importance"]
