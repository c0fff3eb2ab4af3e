"""Runs whose training examples are read anew in every pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import archgraph as ag
from archgraph.data import dataset_of


class Noisy:
    """Digits with noise that each read draws; it counts its reads."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets, self.reads = inputs, targets, 0

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.reads += 1
        noise = torch.randn(()) + np.random.rand()  # noqa: NPY002  # as datasets of others do
        return self.inputs[index] + 0.3 * noise, int(self.targets[index])


def experiment(rounds: int = 2, **more: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    return {
        "name": "items",
        "family": {
            "model": ag.trace(net, torch.zeros(1, 6)),
            "clients": [{"name": "c", "count": 3}],
        },
        "strategy": {"fedavg": {}},
        "rounds": rounds,
        "local": {"epochs": 2, "batch": 8, "lr": 0.1},
        **more,
    }


def split() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    return torch.rand(60, 6, generator=draw), torch.arange(60) % 3


def weights(run: Any) -> dict[str, Tensor]:
    return dict(run.models[0].state)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


def test_bits_depend_neither_on_processes_nor_on_interruptions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("archgraph.processes.workers.LEAST", 0)  # short clients, too
    monkeypatch.setattr("archgraph.processes.workers.LEAST_AGAIN", 0)
    reads = []

    def run(
        rounds: int = 2, out: Path | None = None, resume: bool = False, **more: Any
    ) -> dict[str, Tensor]:
        train = Noisy(*split())
        run = ag.run(
            experiment(rounds, **more),
            data=(train, split()),
            out=out,
            resume=resume,
            progress=False,
        )
        reads.append(train.reads)
        return weights(run)

    alone = run()
    assert same(alone, run())
    assert same(alone, run(engine={"workers": 2}))
    assert reads[-1] < reads[0], "other processes have read"
    run(rounds=1, out=tmp_path / "run")
    assert same(alone, run(rounds=2, out=tmp_path / "run", resume=True))


def test_each_pass_reads_each_item_once_and_cached_items_never_again():
    fresh, cached = Noisy(*split()), Noisy(*split())
    new = weights(ag.run(experiment(), data=(fresh, split()), progress=False))
    # The first read, 16 items twice to see whether they repeat, 2 rounds of 2 passes.
    assert fresh.reads == 60 + 2 * 16 + 4 * 60
    once = dataset_of((cached, split()), cache=True)
    old = weights(ag.run(experiment(), data=once, progress=False))
    assert cached.reads == 60 + 3 * 16
    assert not same(new, old)


def test_items_that_become_larger_are_refused_in_the_run():
    class Growing(Noisy):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            self.reads += 1
            return torch.zeros(6 if self.reads < 150 else 7), int(self.targets[index])

    run = ag.run(experiment(1), data=(Growing(*split()), split()), progress=False)
    assert any("differ" in text for text in run.troubles)
