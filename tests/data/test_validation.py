"""Held-out examples: no client trains on them, and they alone select."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import archgraph as ag
from archgraph.data import Dataset, Split
from archgraph.data.validation import Selection, hold_out
from archgraph.engine.experiment import Experiment
from archgraph.engine.local import execute
from archgraph.engine.run_models import trained
from archgraph.engine.world import prepare
from archgraph.federation import TASKS, Result, ServerState, World
from archgraph.language.validation import ValidationSpec
from archgraph.strategies.fedavg import FedAvg

MODEL = """
archgraph: 1
inputs: {row: [6]}
sections: [{name: net, steps: [linear: {out: 16}, batch_norm, relu, linear: {out: 1}]}]
"""


def rows(count: int = 80) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, 6, generator=generator)
    targets = inputs[:, 0] - inputs[:, 1]
    test = Split(inputs[:20], targets[:20])
    return Dataset("made", "tensor", None, (6,), Split(inputs[20:], targets[20:]), test)


@pytest.fixture
def spec(tmp_path) -> Callable[..., Any]:
    def write(validation: str, rounds: int = 4, lr: float = 0.05, strategy: str = "fedavg") -> Any:
        (tmp_path / "net.yaml").write_text(MODEL)
        (tmp_path / "e.yaml").write_text(f"""\
name: e
family: {{model: net.yaml, clients: [{{name: all, count: 3}}]}}
strategy: {{{strategy}: {{}}}}
rounds: {rounds}
validation: {validation}
local: {{batch: 10, lr: {lr}}}
""")
        return tmp_path / "e.yaml"

    return write


@pytest.mark.parametrize("said", ["0.25", "{clients: 0.25}"])
def test_no_client_trains_on_what_is_held_out(spec, said):
    setup = prepare(spec(said), data=rows())
    everything = np.sort(np.concatenate([*setup.shares, setup.held_out]))
    assert np.array_equal(everything, np.arange(60))
    assert len(setup.held_out) == 15
    assert [c.examples for c in setup.world.clients] == [len(own) for own in setup.shares]
    assert {len(own) for own in setup.shares} == {15}
    again, other = prepare(spec(said), data=rows()), prepare(spec("0.2"), data=rows())
    assert np.array_equal(setup.held_out, again.held_out) and not np.array_equal(
        setup.held_out, other.held_out
    )
    trained_on = {tuple(row) for row in setup.training.inputs.tolist()}
    tested_on = {tuple(row) for row in setup.validating.data.test.inputs.tolist()}
    assert len(trained_on) == 45 and len(tested_on) == 15 and not trained_on & tested_on


def test_windows_of_a_text_are_held_out_at_the_end():
    spec = ValidationSpec(clients=0.2)
    shares, held = hold_out((np.arange(10), np.arange(10, 20)), spec, seed=0, ordered=True)
    assert held.tolist() == [8, 9, 18, 19] and shares[0].tolist() == list(range(8))


@pytest.mark.parametrize("ordered", [False, True])
def test_no_client_trains_on_what_another_one_holds_out(ordered: bool):
    """Under the scheme `whole` every client has every example."""
    same = [np.arange(50)] * 4
    rest, out = hold_out(tuple(same), ValidationSpec(clients=0.2), seed=0, ordered=ordered)
    assert len(out) == len(set(out.tolist())) == 10
    assert all(sorted({*share, *out}) == list(range(50)) for share in rest)
    assert all(len(share) + len(out) == 50 for share in rest)
    parts = (np.arange(30), np.arange(20, 50))
    rest, out = hold_out(parts, ValidationSpec(clients=0.2), seed=0)
    assert all({*left} == {*share} - {*out} for share, left in zip(parts, rest, strict=True))


def line(number: int, value: float | None) -> dict[str, Any]:
    return {"round": number, "validation": {"global": {"mse": value, "r2": value}}}


def selection(**options: Any) -> Selection:
    return Selection.of(ValidationSpec(clients=0.1, **options), TASKS["regression"])


def test_the_best_round_follows_the_direction_of_its_metric():
    lines = [line(1, 3.0), {"round": 2}, line(3, 1.0), line(4, None), line(5, 2.0), line(6, 1.0)]
    assert selection().best(lines) == 3  # mse: less is better, the first of equals
    assert selection(metric="r2").best(lines) == 1
    assert selection().best([line(1, None)]) is None


def test_patience_counts_tests_without_a_better_figure():
    lines = [line(1, 3.0), line(2, 1.0), line(3, 2.0), {"round": 4}, line(5, 2.0)]
    assert selection(patience=3).exhausted(lines) == ""
    said = selection(patience=2).exhausted(lines)
    assert said == "no better mse on validation examples after round 2 in 2 tests"
    assert selection(patience=1).exhausted([line(1, None)]).startswith("no better mse")
    assert selection().exhausted(lines) == ""


def test_a_run_ends_with_its_best_round_and_goes_on_with_the_same_bits(spec, tmp_path):
    """A learning rate that overshoots: the last rounds are not the best on held out examples."""
    folder = tmp_path / "whole"
    file = spec("{clients: 0.3, keep: best}", rounds=7, lr=0.2)
    whole = ag.run(file, data=rows(), out=folder, progress=False)
    figures = {r["round"]: r["validation"]["global"]["mse"] for r in whole.rounds}
    best = min(figures, key=lambda number: figures[number])
    assert whole.best == best < 5  # its checkpoint is not one of the last two
    at_best = next(r for r in whole.rounds if r["round"] == best)
    assert whole.evaluation == at_best["evaluation"]
    assert f"of round {best}, the best on validation examples" in whole.table().note
    for _ in range(2):
        again = ag.run(file, data=rows(), out=folder, resume_from=6, progress=False)
        assert again.best == best and again.evaluation == whole.evaluation
        kept = sorted(path.name for path in (folder / "checkpoints").iterdir())
        assert kept == [f"round-{number:06}" for number in (best, 6, 7)]
    saved = trained(folder, data=rows())["global"].state
    short = ag.run(spec("{clients: 0.3}", rounds=best, lr=0.2), data=rows(), progress=False)
    for name, tensor in short.server.group("global").items():
        assert torch.equal(tensor, whole.server.group("global")[name])
        assert torch.equal(tensor, again.server.group("global")[name])
        assert torch.equal(tensor, saved[name])


def test_where_the_best_round_is_gone_no_run_goes_on_and_nothing_is_lost(spec, tmp_path):
    """The best round until 5 is 3, whose checkpoint made room when 6 became the best."""
    file, folder = spec("{clients: 0.3, keep: best}", rounds=6, lr=0.02), tmp_path / "run"
    with file.open("a") as text:
        text.write("evaluate: {every: 3}\n")
    whole = ag.run(file, data=rows(), out=folder, progress=False)
    assert whole.best == 6

    def content() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    before = content()
    said = r"after round 5: the checkpoint of the best round .* 5, 6, not of 3; resume after a"
    with pytest.raises(ag.RunError, match=said):
        ag.run(file, data=rows(), out=folder, resume_from=5, progress=False)
    assert content() == before
    again = ag.run(file, data=rows(), out=folder, resume=True, progress=False)
    assert again.best == 6


@dataclass(frozen=True)
class InPlace(FedAvg):
    """Writes what it receives into the tensors that it has."""

    def receive(
        self, world: World, state: ServerState, results: Iterable[Result], round: int
    ) -> ServerState:
        """The mean, in place."""
        for name, tensor in super().receive(world, state, results, round).tensors.items():
            state.tensors[name].data.copy_(tensor)
        return state


def test_later_rounds_do_not_write_into_the_best_one(spec, tmp_path):
    """In one go, and where the best round is the last one before the run goes on."""
    file = spec("{clients: 0.3, keep: best}", rounds=6, lr=0.45)
    expected = execute(prepare(file, data=rows()), progress=False)
    assert expected.best is not None and expected.best < 6

    def in_place() -> Experiment:
        setup = prepare(file, data=rows())
        return dataclasses.replace(setup, strategy=InPlace())

    out = tmp_path / "run"
    whole = execute(in_place(), out=out, progress=False)
    again = execute(in_place(), out=out, resume_from=expected.best, progress=False)
    for done in (whole, again):
        assert done.best == expected.best
        torch.testing.assert_close(
            done.server.group("global"), expected.server.group("global"), rtol=0, atol=0
        )


def test_a_run_ends_early_and_says_why(spec, tmp_path):
    file = spec("{clients: 0.3, patience: 1}", rounds=40, lr=0.45)
    done = ag.run(file, data=rows(), out=tmp_path / "run", progress=False)
    assert len(done.rounds) < 40
    said = done.rounds[-1]["stopped"]
    assert re.fullmatch(r"no better mse on validation examples after round \d+ in 1 tests?", said)
    assert said in done.table().note
    again = ag.run(file, data=rows(), out=tmp_path / "run", resume=True, progress=False)
    assert len(again.rounds) == len(done.rounds)
    from archgraph.reports.comparison import comparison

    assert comparison([tmp_path / "run"]).groups[0].figures["global_mse"].mean > 0


def test_test_data_selects_nothing(spec, tmp_path):
    """Other test data: the same rounds, the same best one."""
    file = spec("{clients: 0.3, keep: best, patience: 2}", rounds=6, lr=0.45)
    data = rows()
    turned = dataclasses.replace(data.test, targets=-100 * data.test.targets)
    one = ag.run(file, data=data, progress=False)
    two = ag.run(file, data=dataclasses.replace(data, test=turned), progress=False)
    assert one.best == two.best and len(one.rounds) == len(two.rounds)
    assert json.dumps([r["validation"] for r in one.rounds]) == json.dumps(
        [r["validation"] for r in two.rounds]
    )


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            "{keep: best}",
            "e.yaml:5: validation: lacks the key 'clients'",
        ),
        ("{patience: 3}", "e.yaml:5: validation: lacks the key 'clients'"),
        ("1.0", "e.yaml:5: validation: has a wrong value; found 1.0; expected less than 1"),
        (
            "{clients: 0.1, metric: accuracy}",
            "e.yaml:5: validation.metric: is not measured; found 'accuracy'; expected one of mse",
        ),
        ("0.99", "validation: client 0: leaves no examples to train on; found 20"),
    ],
    ids=["nothing_held_out", "patience_alone", "everything", "other_metric", "too_much"],
)
def test_mistakes(spec, said, message):
    with pytest.raises(ag.ArchGraphError, match=re.escape(message)):
        prepare(spec(said), data=rows())


def test_figures_of_clients_that_there_are_not_are_said(spec):
    with pytest.raises(
        ag.RunError, match=(r"validation\.of: this metric is not measured for these models")
    ):
        ag.run(spec("{clients: 0.1, keep: best, of: local}"), data=rows(), progress=False)
