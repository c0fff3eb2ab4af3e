"""Recurrent language models in federated runs: the shipped files, on the text of this test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import archgraph as ag
from archgraph.language.yaml import read_document

SPECS = Path(__file__).parents[2] / "specs"
MODEL = "model.yaml"
SMALL = {"vocabulary": 50, "width": 8}


def shipped(strategy: str) -> list[Any]:
    """Clients of a shipped family, one of each."""
    clients = read_document(SPECS / "families" / f"small_{strategy}_lstm.yaml").data["clients"]
    return [{**dict(client), "count": 1} for client in json.loads(json.dumps(clients))]


LARGE = {**SMALL, "width": 16}
# Sizes and numbers of layers that a method joins: no client has all of the global model.
UNLIKE: list[dict[str, Any]] = [
    {"name": "wide", "count": 1, "choose": {**SMALL, "width": 16, "layers": 1}},
    {"name": "deep", "count": 1, "choose": SMALL},
]
FAMILIES: dict[str, dict[str, Any]] = {
    "heterofl": {"model": MODEL, "choose": SMALL, "clients": shipped("heterofl")},
    "nefl": {"model": MODEL, "choose": SMALL, "clients": shipped("nefl")},
    "fedfa": {"model": MODEL, "choose": LARGE, "clients": UNLIKE},
    "fedadp": {"model": MODEL, "choose": LARGE, "clients": UNLIKE},
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("strategy", FAMILIES)
def test_an_lstm_learns_a_text(tmp_path: Path, strategy: str) -> None:
    """Words in a cycle, which every tier begins to continue; windows of 8 words."""
    model = (SPECS / "models" / "lstm.yaml").read_text()
    assert "shape: [32]" in model
    (tmp_path / MODEL).write_text(model.replace("shape: [32]", "shape: [8]"))
    draw = np.random.default_rng(0)
    starts = draw.integers(0, 49, 40)
    words = [f"w{(start + i) % 49}" for start in starts for i in range(9)]
    (tmp_path / "text.txt").write_text(" ".join(words) + "\n")
    file = SPECS / "experiments" / "small" / "heterofl_wikitext2.yaml"
    experiment = json.loads(json.dumps(read_document(file).data))
    experiment |= {
        "family": FAMILIES[strategy],
        "strategy": {strategy: {}},
        "data": {"text": "text.txt", "by": "word", "bptt": 8, "partition": {"scheme": "iid"}},
        "rounds": 2,
        "local": {"epochs": 2, "batch": 4, "optimiser": {"Adam": {"lr": 0.05}}},
        "evaluate": {"every": 1},
    }
    (tmp_path / "experiment.json").write_text(json.dumps(experiment))
    run = ag.run(tmp_path / "experiment.json")
    assert run.sound
    assert len(run.rounds) == 2
    models = run.rounds[-1]["evaluation"]["models"]
    assert set(models) == {"global", *(c["name"] for c in FAMILIES[strategy]["clients"])}
    found = {name: figures["perplexity"] for name, figures in models.items()}
    assert all(value < 40 for value in found.values()), found  # of 50 words
