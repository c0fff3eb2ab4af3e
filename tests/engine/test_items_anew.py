"""Runs whose training examples are read anew in every pass."""

from __future__ import annotations

import itertools
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


class Stream:
    """Examples of a linear rule, drawn as they are asked for; it counts them."""

    def __init__(self, width: int = 6, length: int | None = None) -> None:
        self.width, self.length, self.reads = width, length, 0

    def __iter__(self) -> Any:
        for _ in itertools.count() if self.length is None else range(self.length):
            self.reads += 1
            x = torch.rand(self.width)
            yield x, int(x.sum() * 3 / self.width)


class Endless(Stream, torch.utils.data.IterableDataset[Any]):
    """A stream of torch, whose class has a `__getitem__` that refuses."""


def streams(examples: int = 40, **more: Any) -> ag.data.Dataset:
    draw = torch.Generator().manual_seed(1)
    x = torch.rand(300, 6, generator=draw)
    y = (x.sum(1) * 0.5).long().clamp(max=2)
    kinds = {"ann": Stream, "bob": Stream, "cleo": Endless}
    train = {name: kind(**more) for name, kind in kinds.items()}
    return dataset_of((train, (x, y)), examples=examples)


def test_clients_learn_from_streams_alike_in_any_process(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("archgraph.processes.workers.LEAST", 0)
    monkeypatch.setattr("archgraph.processes.workers.LEAST_AGAIN", 0)

    def run(rounds: int = 2, **more: Any) -> Any:
        out = more.pop("out", None)
        resume = more.pop("resume", False)
        told = experiment(rounds, **more)
        return ag.run(told, data=streams(), out=out, resume=resume, progress=False)

    alone = run()
    assert [client.examples for client in alone.experiment.world.clients] == [40, 40, 40]
    assert same(weights(alone), weights(run(engine={"workers": 2})))
    run(1, out=tmp_path / "run")
    assert same(weights(alone), weights(run(out=tmp_path / "run", resume=True)))


@pytest.mark.full
def test_a_model_learns_from_streams():
    short = ag.run(experiment(2), data=streams(), progress=False)
    fast = {"epochs": 2, "batch": 8, "lr": 0.5}
    long = ag.run(experiment(40, local=fast), data=streams(), progress=False)
    assert long.evaluation["global"]["accuracy"] > 0.85 > short.evaluation["global"]["accuracy"]


def test_each_pass_of_a_stream_is_another_and_reads_what_it_says():
    data = streams()
    read = [[x for (x,), _ in data.train.streamed(40, seed, [16, 16, 8])] for seed in (1, 2, 1)]
    assert [len(x) for x in read[0]] == [16, 16, 8]
    assert all(torch.equal(a, b) for a, b in zip(read[0], read[2], strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(read[0], read[1], strict=True))
    stream = data.train.stream.args[0].streams[40]  # type: ignore[union-attr]
    assert stream.reads == 40 + 16 + 3 * 40, "the first read, a second look, and three passes"
    assert not data.notes


def test_a_stream_with_a_generator_of_its_own_is_noted():
    draws = torch.Generator().manual_seed(0)

    def drawn() -> Any:
        for _ in range(99):
            yield torch.rand(6, generator=draws), int(torch.randint(3, ()))

    (note,) = dataset_of(({"a": Stream(), "b": drawn}, split()), examples=40).notes
    assert "train: items differ between two reads with the same seed" in note


STREAMS: dict[str, tuple[Any, str]] = {
    "no number of examples": (
        lambda: dataset_of(({"a": Stream()}, split())),
        "expected the number of examples in a pass.*examples=1000",
    ),
    "an iterator": (
        lambda: dataset_of(({"a": iter(Stream())}, split()), examples=9),
        "ends after one pass.*function",
    ),
    "not by client": (
        lambda: dataset_of((Stream(), split()), examples=9), "pass streams by client"
    ),
    "one of two": (
        lambda: dataset_of(({"a": Stream(), "b": split()}, split()), examples=9),
        "train: b: is not a stream, but other clients have streams",
    ),
    "examples of no stream": (
        lambda: dataset_of((split(), split()), examples=9), "is for streams only"
    ),
    "other examples": (
        lambda: dataset_of(({"a": Stream(width=5)}, split()), examples=9),
        r"differ from those of the test split; found float32 \[5\]; expected float32 \[6\]",
    ),
    "too short": (
        lambda: dataset_of(({"a": Stream(length=5)}, split()), examples=9),
        "ended before its pass; found 5 examples; expected 9",
    ),
    "a partition": (
        lambda: ag.run(
            experiment(1, data={"partition": {"scheme": "iid"}}), data=streams(), progress=False
        ),
        "already partitioned by client",
    ),
    "held out": (
        lambda: ag.run(experiment(1, validation=0.2), data=streams(), progress=False),
        "validation: examples of a stream can be neither held out",
    ),
    "other labels": (
        lambda: ag.run(experiment(1, attack={"among": "own"}), data=streams(), progress=False),
        "attack: examples of a stream can be neither held out nor relabelled; remove it",
    ),
    "options that count": (
        lambda: ag.run(
            experiment(1, strategy={"heterofl": {}}),
            data=streams(), progress=False,
        ),
        "found mask_absent, label_rows; expected mask_absent: false, label_rows: false",
    ),
    "counts of classes": (
        lambda: ag.run(experiment(1, strategy={"fedproto": {}}), data=streams(), progress=False),
        "strategy.fedproto: needs the number of examples per class .* unknown for streams",
    ),
    "public examples": (
        lambda: ag.run(
            experiment(1, strategy={"fedmd": {}}, public=8), data=streams(), progress=False
        ),
        "public: examples of a stream can be neither held out .*; use another data set",
    ),
    "statistics of training examples": (
        lambda: streams().train.examples([3]), "examples of a stream cannot be indexed"
    ),
}  # fmt: skip


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", STREAMS)
def test_what_streams_cannot_is_refused_in_words(name: str):
    ask, message = STREAMS[name]
    with pytest.raises(ag.ArchGraphError, match=message):
        ask()


def test_a_drawn_share_is_read_anew_in_every_pass_and_nothing_beside_it():
    items, local = Noisy(*split()), {"epochs": 3, "batch": 4, "lr": 0.1, "fraction": 0.5}
    run = ag.run(experiment(1, local=local), data=(items, split()), progress=False)
    assert run.sound
    assert items.reads == 60 + 2 * 16 + 3 * 30
    data = streams(40)
    run = ag.run(experiment(1, local=local), data=data, progress=False)
    assert [client["seen"] for client in run.rounds[0]["clients"]] == [60] * 3


SUM: dict[str, Any] = {
    "words": lambda over: "yes" if over else "no",
    "true or false": bool,
    "a column": lambda over: [int(over)],
    "floats": float,
}


@pytest.mark.parametrize("form", SUM)
def test_targets_of_streams_are_what_those_of_tests_are(form: str):
    target, x = SUM[form], torch.rand(200, 6, generator=torch.Generator().manual_seed(0))

    class Summed(Stream):
        def __iter__(self) -> Any:
            for x, _ in super().__iter__():
                yield x, target(bool(x.sum() > 3))

    flags = (x.sum(1) > 3).tolist()
    tests = x, [target(flag) for flag in flags]
    data = dataset_of(({"a": Summed()}, tests), task="classification", examples=50)
    assert data.train.stream is not None
    ((rows, targets),) = data.train.stream(0, 1, [50])
    assert torch.equal(targets, (rows["input"].sum(1) > 3).long())


class Turned:
    """Pictures turned at random, whose target is the turn: classes of their own in each read."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        turn = torch.randint(3, ())
        row = torch.cat([torch.eye(3)[turn], torch.rand(3)])
        return row, turn


EYES = torch.cat([torch.eye(3), torch.full((3, 3), 0.5)], 1)


def test_a_target_that_is_drawn_with_its_input_is_read_with_it():
    told = experiment(4, local={"epochs": 6, "batch": 8, "lr": 0.5}, task="classification")
    run = ag.run(told, data=(Turned(), (EYES, torch.arange(3))), progress=False)
    assert run.evaluation["global"]["accuracy"] == 1
