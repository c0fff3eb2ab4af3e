"""Strategies of one file outside the package, named by `python:` in a spec: the examples."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import archgraph as ag
from archgraph.federation import (
    LocalOptions,
    Outcome,
    Result,
    ServerState,
    World,
    configure,
    covered_mean,
    rate_of,
)
from archgraph.language import verdicts
from archgraph.strategies.heterofl import HeteroFL

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


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


def test_an_example_is_complete_in_eighty_lines() -> None:
    assert len((EXAMPLES / "scaffold.py").read_text().splitlines()) <= 80


def test_two_rounds_on_digits(folder: Path) -> None:
    spec = ag.load_experiment(folder / "scaffold.yaml").model_copy(update={"rounds": 2})
    run = ag.run(spec, out=folder / "run", progress=False)
    for line in run.rounds:
        assert (line["rejected"], line["failed"]) == ([], [])
        assert len(line["clients"]) == 6
    assert set(run.evaluation["models"]) == {"global", "half", "whole"}
    # The run folder says all that is needed to prepare the run again.
    again = ag.load_experiment(folder / "run" / "run.yaml")
    assert configure(again.strategy_name, again.strategy_options) == run.experiment.strategy
    assert again.strategy["python"] == spec.strategy["python"]


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.25},
        {"optimiser": {"SGD": {"lr": 0.25}}},
        {"lr": 0.5, "schedule": {"ConstantLR": {"factor": 0.5, "total_iters": 9}}},
    ],
)
def test_a_scaffold_client_steps_along_its_corrected_gradient(
    folder: Path, lab, options: dict[str, object]
) -> None:
    """After one step y = x - η (g - c_i + c), and c_i is g (Algorithm 1, lines 10-12)."""
    world = lab.make_world(lab.graph, lab.state, {"half": ag.take(lab.graph, 0.5)}, ["half"])
    strategy = configure("scaffold:Scaffold", {})
    control = lab.random_state(lab.state, 1)
    task = strategy.send(world, strategy.init(world).with_group("control", control), 0, 1)
    c, c_i = task.extras, lab.random_state(task.state, 2)
    assert c["fc.weight"].shape == (5, 6)
    local = LocalOptions.model_validate({"batch": 100, **options})
    work = replace(lab.work_of(task, data := lab.toy(0), local), keep=c_i)
    outcome = task.program(work)
    module = ag.build(task.graph, task.state).train()
    functional.cross_entropy(module(data.inputs), data.targets).backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        step = 0.25 * (parameter.grad - c_i[name] + c[name])
        _same(outcome.state[name], parameter.detach() - step)
        _same(outcome.keep[name], parameter.grad)
        _same(outcome.extras[name], c[name] + parameter.grad - c_i[name])
    # After K = 3 steps, option II of line 12.
    outcome = task.program(replace(work, local=local.model_copy(update={"epochs": 3})))
    for name, parameter in module.named_parameters():
        moved = parameter.detach() - outcome.state[name]
        _same(outcome.keep[name], c_i[name] - c[name] + moved / (3 * 0.25))


def test_a_scaffold_server_moves_by_means_of_the_sampled_clients(folder: Path, lab) -> None:
    """Two of four clients: x + η_g mean Δy_i and c + 2/4 mean Δc_i, statistics excepted."""
    tiers = {"whole": ag.take(lab.graph, 1.0)}
    world = lab.make_world(lab.graph, lab.state, tiers, ["whole"] * 4, examples=[1, 2, 3, 4])
    strategy = configure("scaffold:Scaffold", {"server_lr": 0.5})
    control = lab.random_state(lab.state, 1)
    state = strategy.init(world).with_group("control", control)
    results = [
        strategy.send(world, state, client, 1).result(
            Outcome({k: v + dy for k, v in lab.state.items()},
                    extras={k: v + dc for k, v in control.items()}), client + 1)
        for client, dy, dc in ((1, 1, 3), (3, 2, 5))
    ]  # fmt: skip
    after = strategy.receive(world, state, iter(results), 1)
    for name in (p.name for p in lab.graph.params if p.trainable):
        _same(after.group("global")[name], lab.state[name] + 0.5 * 1.5)
        _same(after.group("control")[name], control[name] + 0.5 * 4)
    statistics = "layer1.0.bn1.running_mean"
    _same(after.group("global")[statistics], lab.state[statistics] + 1.5)


def _same(value: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ({"python": "absent_module:Mine"}, r"strategy.python: cannot be imported; .*absent_module"),
        ({"python": "scaffold:Absent"}, r"strategy.python: cannot be imported; .*Absent"),
        (
            {"python": "scaffold:Controlled"},
            r"is not a strategy; found scaffold:Controlled",
        ),
        ({"python": "scaffold:Scaffold", "mi": 1}, r"strategy.mi: unknown option; found 'mi'"),
        (
            {"python": "scaffold:Scaffold", "server_lr": "a"},
            r"strategy.server_lr: wrong value; found 'a'",
        ),
        (
            {"python": "archgraph.federation:Strategy"},
            r"lacks evaluated",
        ),
    ],
)
def test_mistakes_are_answered(folder: Path, strategy: dict[str, object], message: str) -> None:
    spec = ag.load_experiment(folder / "scaffold.yaml")
    with pytest.raises(ag.SpecError, match=message):
        ag.run(spec.model_copy(update={"strategy": strategy}), progress=False)


def test_a_name_that_is_not_one_is_refused_with_its_line(folder: Path) -> None:
    text = (folder / "scaffold.yaml").read_text().replace("scaffold:Scaffold", "fedprox")
    (folder / "bad.yaml").write_text(text)
    with pytest.raises(ag.SpecError, match=r"bad.yaml:\d+: strategy.*not name a Python class"):
        ag.load_experiment(folder / "bad.yaml")


def test_a_check_imports_it_only_when_told(outside: Path) -> None:
    file = outside / "scaffold.yaml"
    file.write_text(file.read_text().replace("scaffold:Scaffold", "absent_module:Mine"))
    (unseen,) = verdicts([file])
    assert unseen.good and "absent_module:Mine not imported" in unseen.note
    (seen,) = verdicts([file], python=True)
    assert not seen.good and "cannot be imported" in str(seen.error)


@dataclass(frozen=True)
class WidthWeighted(HeteroFL):
    """HeteroFL whose clients count by a power of their width rate."""

    power: float = 1.0

    def receive(
        self, world: World, state: ServerState, results: Iterable[Result], round: int
    ) -> ServerState:
        def weight(result: Result) -> float:
            return rate_of(world.tier(result.tier)) ** self.power

        return covered_mean(world, state, results, weights=weight, rows=self.owned_rows(world))


def test_a_mean_is_weighted_by_what_a_function_of_a_result_returns(lab) -> None:
    """Half moves by 1 at weight 1/4, whole by 2 at weight 1; at power 0 it is HeteroFL."""
    variants = {"half": ag.take(lab.graph, 0.5), "whole": ag.take(lab.graph, 1.0)}
    world = lab.make_world(lab.graph, lab.state, variants, ["half", "whole"])

    def step(strategy: HeteroFL) -> torch.Tensor:
        state = strategy.init(world)
        tasks = [strategy.send(world, state, client, 1) for client in (0, 1)]
        moves = [{k: v + by for k, v in task.state.items()} for by, task in enumerate(tasks, 1)]
        results = [task.result(Outcome(m), 10) for task, m in zip(tasks, moves, strict=True)]
        after = strategy.receive(world, state, iter(results), 1).group("global")
        return after["fc.weight"] - lab.state["fc.weight"]

    assert torch.equal(step(WidthWeighted(power=0)), step(HeteroFL()))
    moved = step(WidthWeighted(power=2))
    expected = torch.full_like(moved, 2.0)
    expected[:, :6] = (0.25 * 1 + 1 * 2) / 1.25
    torch.testing.assert_close(moved, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("weights", ["width", lambda result: 0.0, lambda result: float("nan")])
def test_what_is_not_a_weight_is_refused(weights: object) -> None:
    result = Result(client=3, state={}, examples=10)
    with pytest.raises(
        ag.RunError, match=r"client 3: is not a valid weight for an average; found .*; expected"
    ):
        result.weight(weights)  # type: ignore[arg-type]
