"""Small experiments on `digits` for the methods that Flower runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MODEL = """
archgraph: 1
name: small
inputs: {image: [1, 8, 8]}
blocks:
  residual:
    params: {width: null}
    shortcut: auto
    steps: [{conv: {out: $width, kernel: 3}}, batch_norm, relu, {conv: {out: $width, kernel: 3}}]
sections:
  - {name: stem, steps: [{conv: {out: 8, kernel: 3, stride: 2}}, batch_norm, relu]}
  - {name: body, block: residual, depth: 2, width: 8}
  - {name: head, steps: [relu, global_avg_pool, flatten, {linear: {out: 10}}]}
"""

DEEP = {"name": "whole", "count": 2}
WIDTHS = [{"name": "half", "count": 2, "take": 0.5}, DEEP]
DEPTHS = [{"name": "flat", "count": 2, "shorten": {"body": 1}}, DEEP]
HYPERNETWORK = {"width": 16, "hidden": 16, "tile": 8, "descriptor": "id"}

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"clients": [{"name": "all", "count": 4}]},
    "fedavg, local statistics": {
        "clients": [{"name": "all", "count": 4}],
        "strategy": {"fedavg": {"norm": "local"}},
    },
    "fedrep": {"clients": WIDTHS, "strategy": {"fedrep": {"head_epochs": 2}}},
    "ditto": {"clients": WIDTHS},
    "heterofl": {"clients": WIDTHS},
    "fedfa": {
        "clients": [{"name": "small", "count": 2, "shorten": {"body": 1}, "take": 0.5}, DEEP]
    },
    "nefl": {"clients": WIDTHS},
    "heterofl, further models": {
        "clients": WIDTHS,
        "strategy": {"heterofl": {"norm": "local", "scaler": False}},
        "also": {"whole": ["half"]},
    },
    "heterofl, settings": {
        "clients": [{**WIDTHS[0], "local": {"lr": 0.01, "proximal": 0.1}}, DEEP],
        "strategy": {"heterofl": {"norm": "local", "scaler": False}},
        "server": {"optimiser": "adam", "bias_correction": "flower"},
    },
    "fedadp": {"clients": DEPTHS},
    "fedin": {"clients": DEPTHS},
    "fjord": {"clients": WIDTHS},
    "recipfl": {"clients": WIDTHS, "strategy": {"recipfl": HYPERNETWORK}},
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """An experiment of a method, as a file with its model beside it."""

    def write(method: str, **more: Any) -> Path:
        kind = METHODS[method]
        (tmp_path / "model.yaml").write_text(MODEL)
        values: dict[str, Any] = {
            "archgraph": 1,
            "name": "flower",
            "family": {"model": "model.yaml", "clients": kind["clients"]},
            "data": {"dataset": "digits", "limit": 200, "partition": {"scheme": "dirichlet"}},
            "strategy": kind.get("strategy", {method: {}}),
            **{str(key): kind[key] for key in ("also", "server") if key in kind},
            "rounds": 2,
            "local": {"lr": 0.05, "momentum": 0.9, "batch": 16},
            "seed": 3,
            **more,
        }
        file = tmp_path / "experiment.yaml"
        file.write_text(json.dumps(values))
        return file

    return write
