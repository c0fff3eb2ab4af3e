"""The run folder: complete or absent, resumable to the same bits, refused where it does not fit."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import subprocess
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import archgraph.record.folder as record_module
from archgraph.engine.experiment import Experiment
from archgraph.engine.local import execute
from archgraph.engine.rounds import Loop
from archgraph.errors import RunError
from archgraph.federation import Train
from archgraph.record.checkpoint import SUMS, Checkpoint
from archgraph.record.folder import (
    RunRecord,
    read_metrics,
    reserved,
)
from archgraph.record.proof import sha256


def bits(tensors: Any) -> dict[str, bytes]:
    return {k: v.numpy().tobytes() for k, v in tensors.items()}


def untimed(lines: Any) -> Any:
    """Lines without what a clock wrote."""
    if isinstance(lines, dict):
        return {k: untimed(v) for k, v in lines.items() if k != "seconds"}
    return [untimed(v) for v in lines] if isinstance(lines, list | tuple) else lines


def tree(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


class Stop(KeyboardInterrupt):
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
FACTS = {"rounds": 4, "local": {"lr": 0.1}}
KEPT = frozenset({"1.running_mean", "1.running_var", "5.weight", "5.bias"})


def test_resumed_run_ends_with_the_same_bits(experiment, mean, tmp_path):
    whole = execute(experiment(mean(private=KEPT), rounds=4, sampled=None), out=tmp_path / "whole")
    broken = experiment(mean(private=KEPT), rounds=4, sampled=None)
    interrupted(broken, tmp_path / "broken", client=2, round=4)
    again = experiment(mean(private=KEPT), rounds=4, sampled=None)
    resumed = execute(again, out=tmp_path / "broken", resume=True)
    assert bits(resumed.server.tensors) == bits(whole.server.tensors)
    assert resumed.server.values == whole.server.values
    assert untimed(resumed.rounds) == untimed(whole.rounds)
    assert untimed(read_metrics(tmp_path / "broken")) == untimed(read_metrics(tmp_path / "whole"))
    assert tree(tmp_path / "broken") == tree(tmp_path / "whole")
    first, second = (
        (tmp_path / name / "changes.jsonl").read_text() for name in ("broken", "whole")
    )
    assert first == second and len(first.splitlines()) == 4
    assert resumed.notes == ()  # nothing that decides bits has changed


def test_run_that_died_before_its_first_checkpoint_starts_over(experiment, tmp_path, monkeypatch):
    def die(*_: object) -> None:
        raise Stop

    monkeypatch.setattr(RunRecord, "save", die)
    with pytest.raises(Stop):
        execute(experiment(rounds=1), out=tmp_path / "r")
    monkeypatch.undo()
    resumed = execute(experiment(rounds=1), out=tmp_path / "r", resume=True)
    assert bits(resumed.server.tensors) == bits(execute(experiment(rounds=1)).server.tensors)


@pytest.mark.parametrize("overwrite", [False, True])
def test_run_that_died_at_any_step_of_its_beginning_can_be_resumed(
    experiment, tmp_path, monkeypatch, overwrite
):
    """Died at the first thing that it writes or removes, at the second, and so on."""
    expected = bits(execute(experiment(rounds=0)).server.tensors)
    steps = itertools.count()
    for step in steps:
        folder = tmp_path / str(step)
        folder.mkdir()
        if overwrite:
            execute(experiment(rounds=0), out=folder)
        left = iter(range(step))

        def die(action: Any, left: Any = left) -> Any:
            def acted(*arguments: Any) -> Any:
                if next(left, None) is None:
                    raise Stop
                return action(*arguments)

            return acted

        with monkeypatch.context() as patch:
            for name in ("write", "_remove"):
                patch.setattr(record_module, name, die(getattr(record_module, name)))
            patch.setattr(RunRecord, "save", die(RunRecord.save))
            try:
                execute(experiment(rounds=0), out=folder, overwrite=overwrite)
                break
            except Stop:
                pass
        for place in filter(Path.is_dir, (folder, folder / "models", folder / "checkpoints")):
            (place / ".draft-x").write_text("na")  # died in the middle of a file
        resumed = execute(experiment(rounds=0), out=folder, resume=True)
        assert bits(resumed.server.tensors) == expected
        assert not list(folder.rglob(".draft-*"))
    assert next(steps) > 5


def test_draft_in_a_new_folder_is_in_nobodys_way(experiment, tmp_path):
    (tmp_path / ".draft-run.yaml-x").write_text("na")
    execute(experiment(rounds=1), out=tmp_path)
    assert not list(tmp_path.rglob(".draft-*"))


def test_nothing_is_resumed_in_a_folder_of_other_files(experiment, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="no run to resume"):
        execute(experiment(rounds=1), out=tmp_path, resume=True)
    assert tree(tmp_path) == ["notes.txt"]


def test_run_goes_on_from_the_round_that_is_asked_for(experiment, tmp_path):
    whole = execute(experiment(rounds=3), out=tmp_path / "r")
    with pytest.raises(RunError, match="no checkpoint of this round; found 2, 3; expected 1"):
        execute(experiment(rounds=3), out=tmp_path / "r", resume_from=1)
    record, found, lines = RunRecord.resume(
        tmp_path / "r", "", {"rounds": 3, "clients": 4, "seed": 0}, after=2
    )
    record.close()
    assert found is not None
    assert (found.round, [line["round"] for line in lines]) == (2, [1, 2])
    assert [p.name for p in (tmp_path / "r" / "checkpoints").iterdir()] == ["round-000002"]
    again = execute(experiment(rounds=3), out=tmp_path / "r", resume_from=2)
    assert bits(again.server.tensors) == bits(whole.server.tensors)
    assert untimed(again.rounds) == untimed(whole.rounds)


def test_a_finished_run_goes_on_for_more_rounds(experiment, tmp_path):
    whole = execute(experiment(rounds=3), out=tmp_path / "whole")
    execute(experiment(rounds=1), out=tmp_path / "r")
    more = execute(experiment(rounds=3), out=tmp_path / "r", resume=True)
    assert bits(more.server.tensors) == bits(whole.server.tensors)
    assert [line["round"] for line in more.rounds] == [1, 2, 3]
    assert more.notes == (
        "from round 2, rounds: 3 instead of 1: the last digits of results may differ",
    )
    assert json.loads((tmp_path / "r/facts.json").read_bytes())["rounds"] == 3
    again = execute(experiment(rounds=3), out=tmp_path / "r", resume=True)
    assert again.notes == more.notes
    before = contents(tmp_path / "r")
    with pytest.raises(RunError, match="started with more rounds; found 2; expected 3 or more"):
        execute(experiment(rounds=2), out=tmp_path / "r", resume=True)
    assert contents(tmp_path / "r") == before


def test_run_that_goes_on_elsewhere_says_that_bits_may_differ(experiment, tmp_path, monkeypatch):
    assert execute(experiment(rounds=1), out=tmp_path / "whole").notes == ()
    interrupted(experiment(rounds=3), tmp_path / "r", client=2, round=3)
    threads = torch.get_num_threads()
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 99)
        resumed = execute(experiment(rounds=3), out=tmp_path / "r", resume=True)
    note = f"from round 3, threads: 99 instead of {threads}: the last digits"
    assert [text[: len(note)] for text in resumed.notes] == [note]
    assert note in resumed.table().note
    assert resumed.sound
    # A run that went on elsewhere once does not become one that did not.
    again = execute(experiment(rounds=3), out=tmp_path / "r", resume=True)
    assert again.notes[0] == resumed.notes[0]


def test_a_link_keeps_its_digest_and_is_not_read_again(tmp_path, monkeypatch):
    read: list[str] = []

    def counted(path: Path) -> str:
        read.append(f"{path.parent.name}/{path.name}")
        return sha256(path)

    monkeypatch.setattr("archgraph.record.checkpoint.sha256", counted)
    tensors = {"a/w": torch.ones(2), "b/w": torch.ones(2)}
    kept = {4: {"state/w": torch.ones(1)}}
    with RunRecord.create(tmp_path, "", FACTS) as record:
        record.save(Checkpoint(1, tensors, {}, kept))
        record.save(Checkpoint(2, {**tensors, "b/w": torch.zeros(2)}, {}, kept))
    assert [name for name in read if not name.endswith("server.json")] == [
        f"{name}.safetensors"
        for name in ("groups/000000", "groups/000001", "clients/000004", "groups/000001")
    ]
    place = tmp_path / "checkpoints" / "round-000002"
    done = subprocess.run(
        ["sha256sum", "-c", SUMS], cwd=place, capture_output=True, text=True, check=True
    )
    assert len(done.stdout.splitlines()) == 4


def test_line_without_its_checkpoint_is_written_again(experiment, tmp_path, monkeypatch):
    """The line comes first: killed between the two, the round is repeated, not the line."""
    save = RunRecord.save

    def die(self: RunRecord, checkpoint: Checkpoint) -> Path:
        if checkpoint.round == 2:
            raise Stop
        return save(self, checkpoint)

    monkeypatch.setattr(RunRecord, "save", die)
    with pytest.raises(Stop):
        execute(experiment(rounds=2), out=tmp_path / "r")
    monkeypatch.undo()
    assert len(read_metrics(tmp_path / "r")) == 2
    resumed = execute(experiment(rounds=2), out=tmp_path / "r", resume=True)
    assert [line["round"] for line in read_metrics(tmp_path / "r")] == [1, 2]
    assert len(resumed.rounds) == 2


@pytest.mark.parametrize(
    "line",
    ['{"round": "1"}', "3", "{}", "[" * 100_000, '{"rou', '{"evaluation": {}}'],
)
def test_a_line_that_no_round_writes_is_an_error(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_text(f'{{"round": 1}}\n{line}\n')
    with pytest.raises(RunError, match=r"metrics\.jsonl:2: damaged line"):
        read_metrics(tmp_path)


def test_folder_that_cannot_be_written(experiment, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        RunError, match="cannot write the run folder; found a file instead of a folder"
    ):
        execute(experiment(rounds=1), out=tmp_path / "file" / "run")
    with pytest.raises(RunError, match="cannot write the run folder"):
        execute(experiment(rounds=1), out=Path("/proc/run"))


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_folder_without_permission(experiment, tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(RunError, match="cannot write the run folder; found no permission"):
        execute(experiment(rounds=1), out=tmp_path / "run")


def test_folder_that_takes_no_file_is_refused_before_any_work(tmp_path, monkeypatch):
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.raises(RunError, match="cannot write the run folder; found a full disk"):
        with reserved(tmp_path / "run"):
            raise AssertionError("the work has begun")


def test_a_refused_run_leaves_no_file_open(tmp_path):
    with RunRecord.create(tmp_path, "", FACTS):
        before = set(Path("/proc/self/fd").iterdir())
        for _ in range(3):
            with pytest.raises(RunError, match="another process is writing this run"):
                RunRecord.create(tmp_path, "", FACTS)
        assert set(Path("/proc/self/fd").iterdir()) == before


def test_a_run_without_checkpoint_has_no_last_one(tmp_path):
    RunRecord.create(tmp_path, "", FACTS).close()
    with pytest.raises(
        RunError, match="no checkpoint; a run writes its first checkpoint before round 1"
    ):
        RunRecord.last(tmp_path, FACTS)


def test_a_checkpoint_is_a_draft_until_all_of_it_is_on_the_disk(tmp_path, monkeypatch):
    """What a power cut leaves: names that a resumed run removes, or a whole checkpoint."""
    synced: list[str] = []
    seen: list[set[str]] = []

    def noted(path: Path) -> None:
        inside = path.relative_to(checkpoints).parts
        synced.append("/".join(inside[1:]) or ("draft" if inside else "checkpoints"))
        seen.append({p.name[:7] for p in checkpoints.iterdir()})

    checkpoints = tmp_path / "checkpoints"
    with RunRecord.create(tmp_path, "", FACTS) as record:
        monkeypatch.setattr("archgraph.record.checkpoint.sync", noted)
        record.save(Checkpoint(1, {"w": torch.ones(1)}, {}, {4: {"state/w": torch.ones(1)}}))
    assert synced[-1] == "checkpoints"
    assert {*synced} >= {"groups/000000.safetensors", "clients/000004.safetensors"}
    assert {*synced} >= {"groups", "clients", "draft"}
    assert seen[:-1] == [{".draft-"}] * (len(seen) - 1)
    assert seen[-1] == {"round-0"}


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

    with RunRecord.create(tmp_path, "", FACTS) as record:
        loop = Loop(setup, record)
        loop.start(setup.strategy.init(setup.world))
        loop.round()
        monkeypatch.setattr("archgraph.states.wire.save_file", full)
        with pytest.raises(RunError, match="found a full disk"):
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
    with RunRecord.create(tmp_path, "name: x\n", {"a": 1, **FACTS}) as record:
        record.save(Checkpoint(3, tensors, values, kept))
    record, found, lines = RunRecord.resume(tmp_path, "", {"a": 1, **FACTS})
    record.close()
    assert found is not None
    assert (found.round, found.values, lines) == (3, values, [])
    assert set(found.tensors) == set(tensors)
    for name, tensor in tensors.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert torch.equal(found.tensors[name], tensor)
    assert {c: list(k) for c, k in found.private.items()} == {7: ["state/w"], 1234567: ["keep/m"]}


def test_only_the_last_checkpoints_stay_and_unchanged_clients_are_links(tmp_path):
    kept = {1: {"state/w": torch.ones(2)}, 2: {"state/w": torch.ones(2)}}
    with RunRecord.create(tmp_path, "", FACTS, keep=2) as record:
        record.save(Checkpoint(1, {}, {}, kept))
        kept = {**kept, 2: {"state/w": torch.zeros(2)}}
        record.save(Checkpoint(2, {}, {}, kept))
        record.save(Checkpoint(3, {}, {}, kept))
    places = sorted((tmp_path / "checkpoints").iterdir())
    assert [p.name for p in places] == ["round-000002", "round-000003"]
    links = [(p / "clients" / "000001.safetensors").stat().st_nlink for p in places]
    assert links == [2, 2]
    record, found, _ = RunRecord.resume(tmp_path, "", FACTS)
    record.close()
    assert found is not None
    assert torch.equal(found.private[2]["state/w"], torch.zeros(2))


def files(folder: Path, round: int) -> dict[str, int]:
    """Inode of each group's file of a checkpoint."""
    place = folder / "checkpoints" / f"round-{round:06d}"
    names = json.loads((place / "server.json").read_text())["groups"]
    paths = [place / "groups" / f"{number:06d}.safetensors" for number in range(len(names))]
    assert sorted(place.glob("groups/*")) == paths
    return {name: path.stat().st_ino for name, path in zip(names, paths, strict=True)}


def resumed(folder: Path) -> Checkpoint:
    record, found, _ = RunRecord.resume(folder, "", FACTS)
    record.close()
    assert found is not None
    return found


# What a strategy may call a group, and no file may be called.
ODD = ["", ".", "..", "a b", "\\", "nul\0", "x" * 300, "\N{SNOWMAN}", "con:1", "last-17", "\n"]


def test_groups_may_be_called_anything(tmp_path):
    tensors = {f"{name}/w/0": torch.full((2,), float(i)) for i, name in enumerate(ODD)}
    tensors |= {"alone": torch.ones(1), "/rooted": torch.zeros(1), "../../up": torch.ones(3)}
    (tmp_path / "r").mkdir()
    with RunRecord.create(tmp_path / "r", "", FACTS) as record:
        record.save(Checkpoint(1, tensors, {}, {}))
    assert list(files(tmp_path / "r", 1)) == [*ODD, "alone"]
    assert [path.name for path in tmp_path.iterdir()] == ["r"]
    assert bits(resumed(tmp_path / "r").tensors) == bits(tensors)


def test_groups_that_did_not_change_are_links(tmp_path):
    """Whichever place they have in the table; all others are written, whatever changed of them."""

    def ones(*names: str) -> dict[str, torch.Tensor]:
        return {name: torch.ones(2) for name in names}

    first = ones("gone/w", "same/w", "same/b", "new/w", "more/w", "less/w", "less/b", "equal/w")
    with RunRecord.create(tmp_path, "", FACTS, keep=9) as record:
        record.save(Checkpoint(1, first, {}, {}))
        second = {
            "before/w": torch.zeros(2),
            "ahead/w": torch.zeros(2),
            # Groups may be in another order; in a file it is that of the names.
            **{name: first[name] for name in ("more/w", "less/w", "same/w", "same/b")},
            "new/w": torch.zeros(2),
            "more/b": torch.ones(2),
            "equal/w": first["equal/w"].clone(),
        }
        record.save(Checkpoint(2, second, {}, {}))
        record.save(Checkpoint(3, second, {}, {}))
    one, two, three = (files(tmp_path, round) for round in (1, 2, 3))
    assert {name for name in two if two[name] in one.values()} == {"same"}
    assert two["same"] == one["same"]
    assert three == two
    assert bits(resumed(tmp_path).tensors) == bits(second)


@pytest.mark.parametrize(
    "write",
    [
        lambda tensor: tensor.view(3)[0].add_(1),
        lambda tensor: tensor.data[0].add_(1),
        lambda tensor: tensor.numpy().__setitem__(0, 1),
    ],
    ids=["view", "data", "numpy"],
)
def test_a_tensor_that_was_changed_in_place_is_written_again(tmp_path, write):
    """Also where torch does not count the change."""
    weights = {"a/w": torch.zeros(3), "b/w": torch.zeros(3)}
    weights |= {"b/none": torch.empty(0), "b/one": torch.tensor(2.0), "b/z": torch.ones(2) * 1j}
    with RunRecord.create(tmp_path, "", FACTS) as record:
        record.save(Checkpoint(1, weights, {}, {}))
        write(weights["a/w"])
        record.save(Checkpoint(2, weights, {}, {}))
    one, two = files(tmp_path, 1), files(tmp_path, 2)
    assert one["a"] != two["a"]
    assert one["b"] == two["b"]
    assert resumed(tmp_path).tensors["a/w"].tolist() == [1, 0, 0]


def test_checkpoints_keep_no_tensor_alive_and_take_no_newcomer_for_it(tmp_path):
    with RunRecord.create(tmp_path, "", FACTS) as record:
        tensors = {"a/w": torch.zeros(1000)}
        seen = weakref.ref(tensors["a/w"])
        record.save(Checkpoint(1, tensors, {}, {}))
        del tensors["a/w"]
        assert seen() is None
        # As like as not in the place of the one that is gone.
        for value in range(5):
            record.save(Checkpoint(2 + value, {"a/w": torch.full((1000,), value)}, {}, {}))
    assert resumed(tmp_path).tensors["a/w"].unique().tolist() == [4]


def test_resumed_record_links_what_did_not_change(tmp_path):
    with RunRecord.create(tmp_path, "", FACTS) as record:
        record.save(Checkpoint(1, {"a/w": torch.ones(2), "b/w": torch.ones(2)}, {}, {}))
    record, found, _ = RunRecord.resume(tmp_path, "", FACTS)
    assert found is not None
    with record:
        record.save(Checkpoint(2, {**found.tensors, "b/w": torch.zeros(2)}, {}, {}))
    one, two = files(tmp_path, 1), files(tmp_path, 2)
    assert one["a"] == two["a"]
    assert one["b"] != two["b"]


def test_loaded_tensors_outlive_their_file_and_never_change_it(tmp_path):
    """They are maps of the file; what is written to one of them stays in memory."""
    with RunRecord.create(tmp_path, "", FACTS, keep=1) as record:
        record.save(Checkpoint(1, {"a/w": torch.arange(3.0)}, {}, {1: {"state/w": torch.ones(1)}}))
    resumed(tmp_path).tensors["a/w"][0] = 7
    assert resumed(tmp_path).tensors["a/w"].tolist() == [0, 1, 2]
    record, found, _ = RunRecord.resume(tmp_path, "", FACTS, keep=1)
    assert found is not None
    with record:
        record.save(Checkpoint(2, {"b/w": torch.ones(1)}, {}, {1: {"state/w": torch.zeros(1)}}))
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["round-000002"]
    assert found.tensors["a/w"].tolist() == [0, 1, 2]
    assert found.private[1]["state/w"].tolist() == [1]


def test_loading_maps_files_and_saving_copies_none(tmp_path):
    """Private memory of this process, in MiB, against 64 MiB of tensors."""

    def private() -> float:
        with Path("/proc/self/status").open() as status:
            return (
                next(int(text.split()[1]) for text in status if text.startswith("RssAnon")) / 1024
            )

    tensors = {f"{group}/w": torch.full((4, 1 << 20), float(group)) for group in range(4)}
    with RunRecord.create(tmp_path, "", FACTS) as record:
        before = private()
        record.save(Checkpoint(1, tensors, {}, {}))
        assert private() - before < 8
    del tensors
    before = private()
    found = resumed(tmp_path)
    assert private() - before < 8
    assert [found.tensors[f"{group}/w"].mean().item() for group in range(4)] == [0, 1, 2, 3]
    assert private() - before < 8


def test_a_file_system_without_links_gets_copies(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    weights = {"a/w": torch.ones(2)}
    with RunRecord.create(tmp_path, "", FACTS) as record:
        for round in (1, 2, 3):
            record.save(Checkpoint(round, weights, {}, {4: {"state/w": torch.ones(1)}}))
    assert files(tmp_path, 2) != files(tmp_path, 3)
    found = resumed(tmp_path)
    assert (bits(found.tensors), list(found.private)) == (bits(weights), [4])


def test_drafts_of_a_crash_are_swept(tmp_path):
    with RunRecord.create(tmp_path, "", FACTS) as record:
        record.save(Checkpoint(1, {}, {}, {}))
    (tmp_path / "checkpoints" / ".draft-x").mkdir()
    (tmp_path / "checkpoints" / ".draft-x" / "server.json").write_text("{")
    (tmp_path / ".draft-run.yaml").write_text("x")
    record, found, _ = RunRecord.resume(tmp_path, "", FACTS)
    record.close()
    assert found is not None
    assert not list(tmp_path.rglob(".draft-*"))
