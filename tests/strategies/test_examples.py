"""Strategies of one file outside the package, named by `python:` in a spec: the examples."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import archgraph as ag
from archgraph.federation import Outcome, Result, Train, configure, seeded
from archgraph.language import verdicts

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
NAMES = ("fedavgm", "fedprox", "width_weighted")


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder outside the repository that holds the examples and is searched for modules."""
    place = tmp_path / "mine"
    shutil.copytree(EXAMPLES, place)
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    return place


@pytest.fixture
def folder(outside: Path, consent: None) -> Path:
    """The same, with consent to run what is in it."""
    return outside


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_complete_in_forty_lines(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 40


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", NAMES)
def test_two_rounds_on_digits(folder: Path, name: str) -> None:
    spec = ag.load_experiment(folder / f"{name}.yaml").model_copy(
        update={"rounds": 2, "local": {"lr": 0.1}}
    )
    run = ag.run(spec, out=folder / "run", progress=False)
    for line in run.rounds:
        assert (line["rejected"], line["failed"]) == ([], [])
        assert len(line["clients"]) == 6
    assert set(run.evaluation["models"]) == {"global", "half", "whole"}
    # The run folder says all that is needed to prepare the run again.
    again = ag.load_experiment(folder / "run" / "run.yaml")
    assert configure(again.strategy_name, again.strategy_options) == run.experiment.strategy
    assert again.strategy["python"] == spec.strategy["python"]


def test_fedprox_pulls_towards_what_was_sent(folder: Path, tiny) -> None:
    """The gradient of the term is μ (w - w_t)."""
    world = tiny.uniform(1)
    strategy = configure("fedprox:FedProx", {"mu": 0.5})
    task = strategy.send(world, strategy.init(world), 0, 1)
    assert isinstance(task.program, Train) and task.program.penalty is not None
    weights = {
        name: (value + torch.randn(value.shape, generator=seeded(0, name))).requires_grad_()
        for name, value in tiny.state.items()
    }
    task.program.penalty(weights, tiny.work_of(task, tiny.toy(0))).backward()
    for name, value in weights.items():
        expected = 0.5 * (value.detach() - tiny.state[name])
        torch.testing.assert_close(value.grad, expected, rtol=1e-5, atol=1e-7)


def test_fedavgm_has_momentum_on_weights_alone(folder: Path, lab) -> None:
    """Clients move everything by one: weights then move by 1, by 1.5, by 1.75; statistics by 1."""
    world = lab.make_world(lab.graph, lab.state, {"whole": ag.take(lab.graph, 1.0)}, ["whole"])
    strategy = configure("fedavgm:FedAvgM", {"beta": 0.5})
    state = strategy.init(world)
    trained = {p.name for p in lab.graph.params if p.trainable}
    assert trained < set(lab.state)  # the rest are running statistics
    for round, step in enumerate((1.0, 1.5, 1.75), 1):
        old = state.group("global")
        task = strategy.send(world, state, 0, round)
        update = {name: value + 1 for name, value in task.state.items()}
        results = iter([task.result(Outcome(update), 1)])
        state = strategy.receive(world, state, results, round)
        for name, value in state.group("global").items():
            expected = old[name] + (step if name in trained else 1)
            torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ({"python": "absent_module:Mine"}, r"strategy.python: cannot be imported; .*absent_module"),
        ({"python": "fedprox:Absent"}, r"strategy.python: cannot be imported; .*Absent"),
        (
            {"python": "fedprox:Train"},
            r"is not a strategy; found fedprox:Train",
        ),
        ({"python": "fedprox:FedProx", "mi": 1}, r"strategy.mi: unknown option; found 'mi'"),
        ({"python": "fedprox:FedProx", "mu": "a"}, r"strategy.mu: wrong value; found 'a'"),
        (
            {"python": "archgraph.federation:Strategy"},
            r"lacks evaluated",
        ),
    ],
)
def test_mistakes_are_answered(folder: Path, strategy: dict[str, object], message: str) -> None:
    spec = ag.load_experiment(folder / "fedprox.yaml")
    with pytest.raises(ag.SpecError, match=message):
        ag.run(spec.model_copy(update={"strategy": strategy}), progress=False)


def test_a_name_that_is_not_one_is_refused_with_its_line(folder: Path) -> None:
    text = (folder / "fedprox.yaml").read_text().replace("fedprox:FedProx", "fedprox")
    (folder / "bad.yaml").write_text(text)
    with pytest.raises(ag.SpecError, match=r"bad.yaml:\d+: strategy.*not name a Python class"):
        ag.load_experiment(folder / "bad.yaml")


def test_a_check_imports_it_only_when_told(outside: Path) -> None:
    file = outside / "fedprox.yaml"
    file.write_text(file.read_text().replace("fedprox:FedProx", "absent_module:Mine"))
    (unseen,) = verdicts([file])
    assert unseen.good and "absent_module:Mine not imported" in unseen.note
    (seen,) = verdicts([file], python=True)
    assert not seen.good and "cannot be imported" in str(seen.error)


def test_a_mean_is_weighted_by_what_a_function_of_a_result_returns(folder: Path, lab) -> None:
    """Half moves by 1 at weight 1/4, whole by 2 at weight 1; at power 0 it is HeteroFL."""
    variants = {"half": ag.take(lab.graph, 0.5), "whole": ag.take(lab.graph, 1.0)}
    world = lab.make_world(lab.graph, lab.state, variants, ["half", "whole"])

    def step(name: str, **options: float) -> torch.Tensor:
        strategy = configure(name, options)
        state = strategy.init(world)
        tasks = [strategy.send(world, state, client, 1) for client in (0, 1)]
        moves = [{k: v + by for k, v in task.state.items()} for by, task in enumerate(tasks, 1)]
        results = [task.result(Outcome(m), 10) for task, m in zip(tasks, moves, strict=True)]
        after = strategy.receive(world, state, iter(results), 1).group("global")
        return after["fc.weight"] - lab.state["fc.weight"]

    assert torch.equal(step("width_weighted:WidthWeighted", power=0), step("heterofl"))
    moved = step("width_weighted:WidthWeighted", power=2)
    expected = torch.full_like(moved, 2.0)
    expected[:, :6] = (0.25 * 1 + 1 * 2) / 1.25
    torch.testing.assert_close(moved, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("weights", ["width", lambda result: 0.0, lambda result: float("nan")])
def test_what_is_not_a_weight_is_refused(weights: object) -> None:
    result = Result(client=3, state={}, examples=10)
    with pytest.raises(
        ag.RunError, match=r"client 3: is not a weight of a mean; found .*; expected"
    ):
        result.weight(weights)  # type: ignore[arg-type]
