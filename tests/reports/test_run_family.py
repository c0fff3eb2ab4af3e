"""The family of a run folder: its clients have the positions that they trained."""

from __future__ import annotations

from pathlib import Path

import torch
from torchvision.ops import MLP

import archgraph as ag
from archgraph.federation.family import Family
from archgraph.relate.align import align
from archgraph.reports.run_family import run_family
from archgraph.reports.runs import read_run
from archgraph.viewer import view
from archgraph.viewer.document import decode_data

POSITIONS = [1, 4, 6, 7]


def recorded(tmp_path: Path) -> tuple[Family, Path]:
    """A family whose clients have chosen positions, and the folder of a run of it."""
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    model = ag.trace(MLP(5, [8, 8, 3]), x[:2])
    first, second = (axis.name for axis in ag.axes(model.graph).free)
    scores = ag.Importance({first: range(8), second: range(8)})
    scores.save(tmp_path / "scores.safetensors")
    file = str(tmp_path / "scores.safetensors")
    family = {
        "model": model,
        "clients": [
            {"name": "full"},
            {"name": "chosen", "take": {"positions": {first: POSITIONS}}},
            {"name": "best", "take": {"shares": 0.5, "importance": scores}},
            {"name": "filed", "fit": {"macs": "50%", "importance": file}},
            {"name": "half", "take": 0.5, "count": 2},
        ],
    }
    ag.run(
        {
            "name": "positions",
            "family": family,
            "strategy": {"heterofl": {}},
            "rounds": 1,
            "local": {"epochs": 1, "batch": 10, "lr": 0.1},
            "data": {"dataset": "mine", "partition": {"scheme": "iid"}},
        },
        data=((x, torch.arange(60) % 3), (x, torch.arange(60) % 3)),
        out=tmp_path / "run",
        progress=False,
    )
    return ag.resolve(ag.load_family(family)), tmp_path / "run"


def test_clients_have_the_positions_that_were_chosen(tmp_path: Path) -> None:
    family, folder = recorded(tmp_path)
    again = run_family(read_run(folder))
    for kind, expected in zip(again.clients, family.clients, strict=True):
        assert kind.transfer == expected.transfer, kind.name
        assert (kind.graph, kind.count) == (expected.graph, expected.count)
    chosen = {kind.name: kind for kind in family.clients}
    assert chosen["chosen"].transfer != align(chosen["chosen"].graph, family.graph).transfer
    pages = [decode_data(view(subject))["graphs"][0] for subject in (read_run(folder), family)]
    assert pages[0]["feeding"] == pages[1]["feeding"]
    # What cannot be repeated is aligned.
    (tmp_path / "scores.safetensors").unlink()
    for kind in run_family(read_run(folder)).clients:
        way = chosen[kind.name].transfer
        if kind.name == "filed":
            way = align(kind.graph, family.graph).transfer
        assert kind.transfer == way
