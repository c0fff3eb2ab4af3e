"""What a run records of each round's changes: the library's figures, and the same when resumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import archgraph as ag
from archgraph.engine.loading import load
from archgraph.engine.local import execute
from archgraph.errors import RunError
from archgraph.federation import Result, ServerState
from archgraph.language.experiment import EngineSpec
from archgraph.module.initial import initial_state
from archgraph.record.changes import (
    FILE,
    Changes,
    RoundChange,
    parameters,
    read_changes,
)
from archgraph.rewrites.take import take
from archgraph.states import Rewritten

SPEC = """\
archgraph: 1
name: changing
family:
  archgraph: 1
  name: widths
  model: MODEL
  clients:
    - {name: whole, count: 2}
    - {name: half, count: 2, take: 0.5}
data: {dataset: digits, limit: 90}
strategy: {heterofl: {}}
rounds: 4
sample: 1
local: {batch: 16, lr: 0.05}
evaluate: {every: 4}
"""


def given(many: Rewritten, client: int, skip: frozenset[str] = frozenset()) -> Result:
    return Result(client, {}, 1, unmerged=skip, transfer=many.transfer)


def line(changes: Changes, results: list[Result], state: ServerState) -> RoundChange:
    assert list(changes.noted(iter(results))) == results
    return RoundChange.model_validate(changes.line(1, state, state))


def test_coverage_is_that_of_all_positions_that_an_update_reaches(net):
    whole, half = Rewritten.identity(net), take(net, 0.5)
    tail = take(net, positions={a.name: range(a.size // 2, a.size) for a in ag.axes(net).free})
    skip = frozenset({"5.weight", "5.bias"})
    state = ServerState().with_group("global", initial_state(net, 0))
    changes = Changes(net)
    for parts in ([half], [half, tail], [half, half], [whole, half], [tail]):
        results = [given(part, i, skip) for i, part in enumerate(parts)]
        found = line(changes, results, state)
        for name, share in zip(parameters(net), found.coverage or (), strict=True):
            pushed = [
                part.transfer.push({k: torch.ones(e.shape) for k, e in part.graph.param.items()})
                for part in parts
            ]
            reached = torch.stack([covered[name] > 0 for _, covered in pushed]).any(0)
            expected = 0.0 if name in skip else float(reached.double().mean())
            assert share == pytest.approx(expected, rel=1e-3)
        assert found.norm == [0.0] * len(parameters(net))


def test_an_update_for_other_weights_covers_nothing(net):
    state = ServerState().with_group("global", initial_state(net, 0))
    results = [given(Rewritten.identity(take(net, 0.5).graph), 0), Result(1, {}, 1)]
    assert line(Changes(net), results, state).coverage is None


def test_a_round_that_nobody_reached_covers_nothing_of_what_there_was(net):
    """Neither if nothing came back, nor if the strategy did not look at it."""
    state = ServerState().with_group("global", initial_state(net, 0))
    changes = Changes(net)
    assert set(line(changes, [given(Rewritten.identity(net), 0)], state).coverage or ()) == {1.0}
    assert line(changes, [], state).coverage == [0.0] * len(parameters(net))
    assert set(line(changes, [given(Rewritten.identity(net), 0)], state).coverage or ()) == {1.0}
    changes.noted(iter([given(Rewritten.identity(net), 0)]))
    unread = RoundChange.model_validate(changes.line(2, state, state))
    assert unread.coverage == [0.0] * len(parameters(net))


def test_a_server_without_global_weights_has_no_changes(net):
    empty = ServerState()
    assert Changes(net).line(1, empty, empty.with_group("global", initial_state(net, 0))) is None


def test_what_is_not_finite_is_told_as_missing(net):
    state = initial_state(net, 0)
    before = ServerState().with_group("global", state)
    after = before.with_group("global", {**state, "5.bias": state["5.bias"] * torch.inf})
    norms = dict(
        zip(parameters(net), (Changes(net).line(1, before, after) or {})["norm"], strict=True)
    )
    assert norms["5.bias"] is None and norms["5.weight"] == 0


def test_a_run_records_norm_and_coverage_of_every_round(tmp_path: Path, net):
    """One client a round: the lines tell whose turn it was, whatever the number of workers."""
    ag.save(net, tmp_path / "net.yaml")
    (tmp_path / "spec.yaml").write_text(SPEC.replace("MODEL", str(tmp_path / "net.yaml")))
    spec = ag.load_experiment(tmp_path / "spec.yaml")
    for workers in (1, 2):
        engine = EngineSpec(workers=workers)
        out = tmp_path / str(workers)
        run = ag.run(spec.model_copy(update={"engine": engine}), out=out, progress=False)
    assert (tmp_path / "1" / FILE).read_bytes() == (tmp_path / "2" / FILE).read_bytes()
    graph = load(out / "models" / "global.yaml")
    told = read_changes(out, graph)
    assert [one.round for one in told] == [1, 2, 3, 4]
    tiers = {tier.name: tier for tier in run.experiment.world.tiers}
    for change, row in zip(told, run.rounds, strict=True):
        (client,) = row["clients"]
        covered = tiers[client["name"]].transfer.coverage
        shares = [covered.share(name) for name in parameters(graph)]
        assert change.coverage == pytest.approx(shares, rel=1e-3)
    assert {client["name"] for row in run.rounds for client in row["clients"]} == set(tiers)
    before, after = (saved(out, number) for number in (3, 4))
    for name, norm in zip(parameters(graph), told[3].norm, strict=True):
        moved = after[name].double() - before[name].double()
        assert norm == pytest.approx(float(moved.norm()), rel=1e-3)
    assert any(told[3].norm)


def saved(folder: Path, number: int) -> dict[str, torch.Tensor]:
    """The global weights in a checkpoint."""
    files = (folder / "checkpoints" / f"round-{number:06d}" / "groups").iterdir()
    tensors = {name: t for file in files for name, t in load_file(file).items()}
    return {name.removeprefix("global/"): t for name, t in tensors.items()}


def test_lines_after_a_checkpoint_and_damaged_ones_are_written_again(experiment, tmp_path: Path):
    """A checkpoint decides where a run goes on; what is only shown never stops it."""
    whole = execute(experiment(rounds=3), out=tmp_path / "r")
    path = tmp_path / "r" / FILE
    lines = path.read_text().splitlines(keepends=True)
    assert len(lines) == 3 and len(whole.rounds) == 3
    execute(experiment(rounds=3), out=tmp_path / "r", resume_from=2)
    assert path.read_text().splitlines(keepends=True) == lines
    path.write_text(lines[0] + lines[1][:20])
    execute(experiment(rounds=3), out=tmp_path / "r", resume_from=2)
    assert path.read_text() == lines[0] + lines[2]
    path.unlink()
    execute(experiment(rounds=4), out=tmp_path / "r", resume=True)
    assert [json.loads(text)["round"] for text in path.read_text().splitlines()] == [4]
    execute(experiment(rounds=1), out=tmp_path / "r", overwrite=True)
    assert [json.loads(text)["round"] for text in path.read_text().splitlines()] == [1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"round": 1, "norm": [1.0]}', "describes another model; found 1 parameters; expected 6"),
        ('{"round": 1, "norm": [0.0, 0.0], "coverage": [1.0]}', "damaged line; found Value error"),
        ("[]", "damaged line"),
        ('{"round": 1, "norm": [1e999]}', "damaged line; found Input should be a finite number"),
        ('{"round": "1", "norm": []}', "damaged line; found Input should be a valid integer"),
    ],
)
def test_a_line_that_no_round_writes_is_refused_by_place(net, tmp_path: Path, text, said):
    (tmp_path / FILE).write_text(f"{text}\n")
    with pytest.raises(RunError, match=said) as error:
        read_changes(tmp_path, net)
    assert f"{FILE}:1" in str(error.value)


def test_a_run_of_before_has_none_and_a_line_that_was_cut_off_is_dropped(net, tmp_path: Path):
    assert read_changes(tmp_path, net) == ()
    text = '{"round": 1, "norm": [0, 1.5, null, 2.0, 0, 0]}\n{"round": 2, "no'
    (tmp_path / FILE).write_text(text)
    (one,) = read_changes(tmp_path, net)
    assert one.norm == [0.0, 1.5, None, 2.0, 0.0, 0.0] and one.coverage is None
