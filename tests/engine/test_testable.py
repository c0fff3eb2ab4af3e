"""What a run's tests could not use is refused before its first round."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

import archgraph as ag
from archgraph.engine import execute, prepare
from archgraph.engine.world import first_state
from archgraph.errors import RunError
from archgraph.federation import (
    Evaluated,
    LowRankAveraging,
    Outcome,
    ServerState,
    Train,
    Work,
    World,
)
from archgraph.language.checking import verdicts
from archgraph.language.experiment import EvaluateSpec, ExperimentSpec
from archgraph.language.local import LocalOptions
from tests.engine.families import experiment_of

DIGITS = Path(__file__).parents[2] / "specs" / "experiments" / "fedfa_digits.yaml"


def answering(work: Work) -> Outcome:
    """A survey's program."""
    return Outcome(state=work.state, keep=work.keep, metrics={"answer": 1.0})


@pytest.fixture(params=[False, True], ids=["no survey", "survey"])
def start(experiment, mean, request):
    """Begin a run of a method of means, with a survey or without."""

    def begin(evaluate: EvaluateSpec | None = None, change=None, **options) -> None:
        strategy = mean(asked=answering if request.param else None, **options)
        if change is not None:
            models = strategy.evaluated

            def predicting(world: World, state: ServerState) -> Iterable[Evaluated]:
                for model in models(world, state):
                    yield dataclasses.replace(model, **change)

            object.__setattr__(strategy, "evaluated", predicting)  # it is frozen
        chosen = experiment(strategy, evaluate=evaluate or EvaluateSpec(), rounds=0)
        first_state(chosen)  # with a survey it has no models yet
        if request.param:
            execute(chosen, progress=False)

    return begin


def test_models_without_logits_are_refused_after_a_survey_too(start) -> None:
    start()
    with pytest.raises(RunError, match=r"does not fit classification; found \[batch, 10, 1\]"):
        start(change={"predict": lambda outputs: outputs[..., None]})


def test_examples_for_statistics_that_nothing_recomputes_are_refused(start) -> None:
    few = EvaluateSpec(statistics=50)
    start(few, statistics="recompute")
    with pytest.raises(RunError, match=r"evaluate\.statistics: changes nothing.*found 50"):
        start(few)


def test_fine_tuning_that_no_model_gets_is_refused(start) -> None:
    tuned = EvaluateSpec(fine_tune=2)
    start(tuned)
    with pytest.raises(RunError, match=r"evaluate\.fine_tune: changes nothing.*found 2"):
        start(tuned, tuned=Train())
    with pytest.raises(RunError, match=r"evaluate\.fine_tune: changes nothing"):
        start(tuned, change={"clients": ()})


def test_what_changes_no_test_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(
        "archgraph: 1\ninputs: {x: [1, 8, 8]}\n"
        "sections: [{name: s, steps: [flatten, linear: 10]}]\n"
    )
    file = tmp_path / "e.yaml"
    file.write_text(
        "archgraph: 1\nname: e\nfamily: {model: m.yaml, clients: [{name: a}]}\n"
        "data: {dataset: digits, limit: 20}\nstrategy: {fedavg: {}}\n"
        "rounds: 1\nlocal: {lr: 0.1}\nevaluate:\n  every: 1\n  statistics: 50\n"
    )
    with pytest.raises(RunError, match=r"e\.yaml:10: evaluate\.statistics: changes nothing"):
        first_state(prepare(file))


def test_before_a_survey_no_model_is_asked_for(experiment, mean) -> None:
    strategy = mean(asked=answering)
    object.__setattr__(strategy, "evaluated", None)  # it is frozen
    assert first_state(experiment(strategy)).group("global")


def test_a_survey_is_not_run_to_find_out(experiment, mean) -> None:
    def never(work: Work) -> Outcome:
        raise AssertionError

    assert first_state(experiment(mean(asked=never))).group("global")


def test_what_shipped_strategies_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All keys of `local` are read by each of them, so that none has to be refused."""
    from importlib.metadata import entry_points

    model = tmp_path / "net.yaml"
    model.write_text(
        "archgraph: 1\ninputs: {image: [1, 8, 8]}\nsections:\n"
        "  - {name: a, steps: [flatten, linear: 16, relu]}\n"
        "  - {name: b, steps: [linear: 16, relu]}\n"
        "  - {name: c, steps: [linear: 16, relu]}\n"
        "  - {name: d, steps: [linear: 10]}\n"
    )
    read: set[str] = set()
    plain = LocalOptions.__getattribute__

    def spied(self: LocalOptions, name: str) -> object:
        read.add(name)
        return plain(self, name)

    for entry in entry_points(group="archgraph.strategies"):
        options = {
            "recipfl": {"width": 16, "hidden": 16, "tile": 8},
            "fedgkt": {"after": "c"},
            "flexfl_pool": {"apoz": {"*": 0.5}},
        }.get(entry.name, {})
        family: dict[str, object] = {"model": str(model), "clients": ({"name": "a", "count": 2},)}
        if entry.name in ("depthfl", "scalefl"):  # which train networks with exits
            family["change"] = {"add_exits": {"b": 10}}
        if issubclass(entry.load(), LowRankAveraging):
            family["change"] = {"add_lora": 2}
        spec = ExperimentSpec.model_validate(
            {
                "name": "read",
                "family": family,
                "data": {"dataset": "digits", "limit": 40},
                "strategy": {entry.name: options},
                "rounds": 1,
                "local": {"lr": 0.1},
                **({"public": 20} if entry.name == "fedmd" else {}),
            }
        )
        read.clear()
        with monkeypatch.context() as spying:
            spying.setattr(LocalOptions, "__getattribute__", spied)
            run = ag.run(spec, progress=False)
        assert run.sound
        fields = set(LocalOptions.model_fields)
        assert fields <= read, entry.name
    assert torch.is_grad_enabled()


def test_a_check_gives_numbers_to_a_strategy_that_chooses_by_them(tmp_path: Path):
    """The others begin on shapes alone."""
    (verdict,) = verdicts([experiment_of("fiarse", tmp_path)])
    assert verdict.good, verdict.note
