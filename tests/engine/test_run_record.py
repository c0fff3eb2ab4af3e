"""The run folder: complete or absent, resumable to the same bits, refused where it does not fit."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from archgraph.engine.experiment import Experiment, Options
from archgraph.engine.local import Loop, execute
from archgraph.engine.record import (
    Checkpoint,
    Record,
    differences,
    digest,
    read_metrics,
    reserved,
)
from archgraph.errors import RunError
from archgraph.strategy import Train


def bits(tensors: Any) -> dict[str, bytes]:
    return {k: v.numpy().tobytes() for k, v in tensors.items()}


def untimed(lines: Any) -> Any:
    """Lines without what a clock wrote."""
    if isinstance(lines, dict):
        return {k: untimed(v) for k, v in lines.items() if k != "seconds"}
    return [untimed(v) for v in lines] if isinstance(lines, list | tuple) else lines


def tree(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


class Stop(BaseException):
    """As sudden as a signal: no handler for exceptions sees it."""


def interrupted(setup: Experiment, folder: Path, client: int, round: int) -> None:
    """Run until a client of a round, then stop in the middle of its training."""

    def die(work):
        if (work.client, work.round) == (client, round):
            raise Stop
        return Train()(work)

    object.__setattr__(setup.strategy, "program", die)
    with pytest.raises(Stop):
        execute(setup, out=folder)
    object.__setattr__(setup.strategy, "program", Train())


# A personal layer: what a client kept decides how it trains.
KEPT = frozenset({"1.running_mean", "1.running_var", "5.weight", "5.bias"})


@pytest.mark.parametrize("every", [1, 2])
def test_resumed_run_ends_with_the_same_bits(experiment, mean, tmp_path, every):
    options = Options(batch=100, checkpoint_every=every)
    whole = execute(experiment(mean(kept=KEPT), rounds=4, options=options), out=tmp_path / "whole")
    broken = experiment(mean(kept=KEPT), rounds=4, options=options)
    interrupted(broken, tmp_path / "broken", client=2, round=4)
    resumed = execute(
        experiment(mean(kept=KEPT), rounds=4, options=options),
        out=tmp_path / "broken",
        resume=True,
    )
    assert bits(resumed.server.tensors) == bits(whole.server.tensors)
    assert resumed.server.values == whole.server.values
    assert untimed(resumed.rounds) == untimed(whole.rounds)
    assert untimed(read_metrics(tmp_path / "broken")) == untimed(read_metrics(tmp_path / "whole"))
    assert tree(tmp_path / "broken") == tree(tmp_path / "whole")


def test_run_that_died_before_its_first_checkpoint_starts_over(experiment, tmp_path, monkeypatch):
    def die(*_: object) -> None:
        raise Stop

    monkeypatch.setattr(Record, "save", die)
    with pytest.raises(Stop):
        execute(experiment(rounds=1), out=tmp_path / "r")
    monkeypatch.undo()
    resumed = execute(experiment(rounds=1), out=tmp_path / "r", resume=True)
    assert bits(resumed.server.tensors) == bits(execute(experiment(rounds=1)).server.tensors)


def test_finished_run_resumes_to_itself(experiment, tmp_path):
    first = execute(experiment(rounds=1), out=tmp_path / "r")
    again = execute(experiment(rounds=1), out=tmp_path / "r", resume=True)
    assert bits(again.server.tensors) == bits(first.server.tensors)
    assert again.rounds == first.rounds


def test_line_that_was_cut_off_is_dropped(experiment, tmp_path):
    whole = execute(experiment(rounds=2), out=tmp_path / "whole")
    interrupted(experiment(rounds=2), tmp_path / "r", client=2, round=2)
    metrics = tmp_path / "r" / "metrics.jsonl"
    with metrics.open("ab") as file:
        file.write(b'{"round": 2, "clients": [{"cli')
    assert [line["round"] for line in read_metrics(tmp_path / "r")] == [1]
    resumed = execute(experiment(rounds=2), out=tmp_path / "r", resume=True)
    assert untimed(resumed.rounds) == untimed(whole.rounds)
    assert [json.loads(t)["round"] for t in metrics.read_text().splitlines()] == [1, 2]


def test_line_without_its_checkpoint_is_written_again(experiment, tmp_path, monkeypatch):
    """The line comes first: killed between the two, the round is repeated, not the line."""
    save = Record.save

    def die(self: Record, checkpoint: Checkpoint) -> Path:
        if checkpoint.round == 2:
            raise Stop
        return save(self, checkpoint)

    monkeypatch.setattr(Record, "save", die)
    with pytest.raises(Stop):
        execute(experiment(rounds=2), out=tmp_path / "r")
    monkeypatch.undo()
    assert len(read_metrics(tmp_path / "r")) == 2
    resumed = execute(experiment(rounds=2), out=tmp_path / "r", resume=True)
    assert [line["round"] for line in read_metrics(tmp_path / "r")] == [1, 2]
    assert len(resumed.rounds) == 2


def test_damaged_line_in_the_middle_is_an_error(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"round": 1}\n{"rou\n{"round": 3}\n')
    with pytest.raises(RunError, match=r"metrics\.jsonl:2: damaged line"):
        read_metrics(tmp_path)


def test_checkpoint_of_another_experiment_is_refused(experiment, tmp_path):
    execute(experiment(rounds=1), out=tmp_path / "r")
    before = {p: p.read_bytes() for p in (tmp_path / "r").rglob("*") if p.is_file()}
    with pytest.raises(RunError, match="holds another experiment; found seed: 0 instead of 1"):
        execute(experiment(rounds=1, seed=1), out=tmp_path / "r", resume=True)
    assert {p: p.read_bytes() for p in (tmp_path / "r").rglob("*") if p.is_file()} == before


def test_checkpoint_copied_from_another_run_is_refused(experiment, tmp_path):
    execute(experiment(rounds=1), out=tmp_path / "a")
    execute(experiment(rounds=1, seed=1), out=tmp_path / "b")
    theirs = tmp_path / "b" / "checkpoints" / "round-000001"
    ours = tmp_path / "a" / "checkpoints" / "round-000001"
    (ours / "server.json").write_bytes((theirs / "server.json").read_bytes())
    with pytest.raises(RunError, match="checkpoint of another experiment"):
        execute(experiment(rounds=1), out=tmp_path / "a", resume=True)


@pytest.mark.parametrize("name", ["server.safetensors", "server.json"])
def test_damaged_checkpoint_is_named(experiment, tmp_path, name):
    execute(experiment(rounds=1), out=tmp_path / "r")
    file = tmp_path / "r" / "checkpoints" / "round-000001" / name
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(RunError, match=r"round-000001: damaged checkpoint.*delete this folder"):
        execute(experiment(rounds=1), out=tmp_path / "r", resume=True)


def test_nothing_to_resume(experiment, tmp_path):
    with pytest.raises(RunError, match=r"no run to resume; found no run\.yaml"):
        execute(experiment(rounds=1), out=tmp_path / "missing", resume=True)
    assert tree(tmp_path) == []


def test_folder_in_use_is_refused_untouched(experiment, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match=r"the run folder is not empty.*resume it, or choose"):
        execute(experiment(rounds=1), out=tmp_path)
    assert tree(tmp_path) == ["notes.txt"]


def test_folder_that_cannot_be_written(experiment, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write the run folder; found Not a directory"):
        execute(experiment(rounds=1), out=tmp_path / "file" / "run")
    with pytest.raises(RunError, match="cannot write the run folder"):
        execute(experiment(rounds=1), out=Path("/proc/run"))


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_folder_without_permission(experiment, tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(RunError, match="cannot write the run folder; found Permission denied"):
        execute(experiment(rounds=1), out=tmp_path / "run")


def test_reservation_is_given_back(tmp_path):
    with pytest.raises(ValueError, match="no data"), reserved(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()
        raise ValueError("no data")
    assert tree(tmp_path) == []


def test_second_process_is_refused(experiment, tmp_path):
    execute(experiment(rounds=1), out=tmp_path / "r")
    holder = os.open(tmp_path / "r", os.O_RDONLY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(RunError, match="another process is writing this run"):
            execute(experiment(rounds=1), out=tmp_path / "r", resume=True)
    finally:
        os.close(holder)
    execute(experiment(rounds=1), out=tmp_path / "r", resume=True)


def test_disk_that_fills_up_leaves_the_last_checkpoint(experiment, tmp_path, monkeypatch):
    setup = experiment(rounds=3)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with Record.create(tmp_path, "", {}) as record:
        loop = Loop(setup, record)
        loop.start(setup.strategy.init(setup.world))
        loop.round()
        monkeypatch.setattr("archgraph.engine.record.save_file", full)
        with pytest.raises(RunError, match="found No space left on device"):
            loop.round()
    names = [p.name for p in (tmp_path / "checkpoints").iterdir()]
    assert sorted(names) == ["round-000000", "round-000001"]


def test_checkpoint_round_trip(tmp_path):
    flat = torch.arange(12.0)
    tensors = {
        "a/view": flat[2:6].view(2, 2),
        "a/same": flat[2:6],
        "b/half": torch.tensor([1.5], dtype=torch.bfloat16),
        "b/count": torch.tensor(3),
        "b/flag": torch.tensor([True, False]),
        "b/transposed": torch.arange(6.0).view(2, 3).t(),
        "b/empty": torch.zeros(0, 3),
    }
    kept = {7: {"state/w": torch.ones(2)}, 1234567: {"keep/m": torch.zeros(1)}}
    values = {"rates": [0.5, 1], "map": {"x": None, "y": 0.1 + 0.2}}
    with Record.create(tmp_path, "name: x\n", {"a": 1}) as record:
        record.save(Checkpoint(3, tensors, values, kept))
    record, found, lines = Record.resume(tmp_path, {"a": 1})
    record.close()
    assert found is not None
    assert (found.round, found.values, lines) == (3, values, [])
    assert set(found.tensors) == set(tensors)
    for name, tensor in tensors.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert torch.equal(found.tensors[name], tensor)
    assert {c: list(k) for c, k in found.kept.items()} == {7: ["state/w"], 1234567: ["keep/m"]}


def test_only_the_last_checkpoints_stay_and_unchanged_clients_are_links(tmp_path):
    kept = {1: {"state/w": torch.ones(2)}, 2: {"state/w": torch.ones(2)}}
    with Record.create(tmp_path, "", {}, keep=2) as record:
        record.changed(1)
        record.changed(2)
        record.save(Checkpoint(1, {}, {}, kept))
        record.changed(2)
        kept = {**kept, 2: {"state/w": torch.zeros(2)}}
        record.save(Checkpoint(2, {}, {}, kept))
        record.save(Checkpoint(3, {}, {}, kept))
    places = sorted((tmp_path / "checkpoints").iterdir())
    assert [p.name for p in places] == ["round-000002", "round-000003"]
    links = [(p / "clients" / "000001.safetensors").stat().st_nlink for p in places]
    assert links == [2, 2]
    record, found, _ = Record.resume(tmp_path, {})
    record.close()
    assert found is not None
    assert torch.equal(found.kept[2]["state/w"], torch.zeros(2))


def test_drafts_of_a_crash_are_swept(tmp_path):
    with Record.create(tmp_path, "", {}) as record:
        record.save(Checkpoint(1, {}, {}, {}))
    (tmp_path / "checkpoints" / ".draft-x").mkdir()
    (tmp_path / "checkpoints" / ".draft-x" / "server.json").write_text("{")
    (tmp_path / ".draft-run.yaml").write_text("x")
    record, found, _ = Record.resume(tmp_path, {})
    record.close()
    assert found is not None
    assert not list(tmp_path.rglob(".draft-*"))


def test_identity_ignores_the_order_of_keys_and_sees_every_value():
    assert digest({"a": [1, {"b": 2}], "c": None}) == digest({"c": None, "a": [1, {"b": 2}]})
    assert digest({"a": 1}) != digest({"a": 1.5})
    assert list(differences({"a": 1}, {"a": 1, "b": {"c": 2}})) == ['b: null instead of {"c": 2}']
