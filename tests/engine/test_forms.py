"""What comes back from a checkpoint, or from a process, is what went there, in order and form."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.engine.local import execute
from archgraph.federation import Outcome, ServerState, Train, Work
from archgraph.language.experiment import EngineSpec
from archgraph.record.checkpoint import Checkpoint
from archgraph.record.folder import RunRecord
from archgraph.states.updates import finite

UNSET = object()


class Name(enum.StrEnum):
    """A name that is not only text."""

    ANSWER = "answer"


@dataclass(frozen=True)
class Answers:
    """Says what it finds, under a name that is not only text."""

    scale: object = UNSET

    def __call__(self, work: Work) -> Outcome:
        done = Train()(work)
        return replace(done, metrics={**done.metrics, Name.ANSWER: float(self.scale is UNSET)})


def test_an_object_that_stands_for_itself_is_itself_in_every_process(experiment, mean):
    """A pickled one would be another: such work goes to a process that is forked with it."""
    found: list[float] = []
    seen = lambda result: found.append(result.metrics["answer"])  # noqa: E731  # as a field
    setup = experiment(mean(program=Answers(), seen=seen), engine=EngineSpec(workers=2), rounds=2)
    run = execute(setup)
    assert found == [1.0] * sum(len(line["clients"]) for line in run.rounds)
    assert len(found) > 3 and not any(line["failed"] for line in run.rounds)


def test_a_checkpoint_gives_names_back_in_their_order(tmp_path):
    tensors = {f"global/{name}": torch.ones(2) for name in ("z", "b", "m", "a")}
    kept = {3: {f"keep/{name}": torch.zeros(1, dtype=torch.int64) for name in "qpr"}}
    with RunRecord.create(tmp_path, "", {"rounds": 2}, keep=1) as record:
        record.save(Checkpoint(1, tensors, {}, kept))
        turned = dict(reversed(tensors.items()))
        record.save(Checkpoint(2, turned, {}, kept))
    last = RunRecord.last(tmp_path, {"rounds": 2})
    assert list(last.tensors) == list(turned)
    assert list(last.private[3]) == list(kept[3])


def test_plain_values_are_at_once_what_a_checkpoint_makes_of_them(experiment, mean, tmp_path):
    class Tuples(mean):  # type: ignore[misc, valid-type]  # a fixture
        def receive(self, world: Any, state: ServerState, results: Any, round: int) -> ServerState:
            seen = [*state.values.get("seen", []), type(state.values.get("pair")).__name__]
            after: ServerState = super().receive(world, state, results, round)
            return after.with_values(seen=seen, pair=(1, 2))

    run = execute(experiment(Tuples(), rounds=3))
    assert run.server.values["seen"] == ["NoneType", "list", "list"]


def test_a_strategy_may_receive_in_inference_mode(experiment, mean, tmp_path):
    @dataclass(frozen=True)
    class Keeps:
        def __call__(self, work: Work) -> Outcome:
            return replace(Train()(work), keep={"mine": torch.ones(2)})

    class Quiet(mean):  # type: ignore[misc, valid-type]  # a fixture
        def receive(self, world: Any, state: ServerState, results: Any, round: int) -> ServerState:
            with torch.inference_mode():
                after: ServerState = super().receive(world, state, results, round)
            return after

    run = execute(experiment(Quiet(program=Keeps()), rounds=2), out=tmp_path / "run")
    assert len(run.rounds) == 2


@pytest.mark.parametrize("method", ["begin", "send", "receive"])
def test_an_error_of_a_strategy_names_class_method_and_round(experiment, mean, method: str):
    class Wrong(mean):  # type: ignore[misc]  # a fixture
        pass

    def broken(self: Any, world: Any, state: Any, *args: Any) -> Any:
        if args[-1] == 2 or args[0] == 2:  # the round: last, or before the clients of `begin`
            raise KeyError("absent")
        return getattr(mean, method)(self, world, state, *args)

    setattr(Wrong, method, broken)
    with pytest.raises(KeyError) as caught:
        execute(experiment(Wrong(), rounds=3, clients=2, sampled=None))
    assert f"in Wrong.{method}, round 2" in caught.value.__notes__


def test_networks_for_volumes_are_trained():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv3d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    volumes, classes = torch.randn(40, 1, 4, 4, 4), torch.arange(40) % 3
    model = ag.trace(net, volumes[:2])
    family = {"model": model, "clients": [{"name": "all", "count": 2}]}
    spec = {
        "name": "volumes",
        "family": family,
        "strategy": {"fedavg": {}},
        "rounds": 1,
        "local": {"lr": 0.1},
    }
    run = ag.run(spec, data=((volumes, classes), (volumes[:9], classes[:9])), progress=False)
    assert len(run.rounds[0]["clients"]) == 2


@pytest.mark.parametrize("kind", ["float8_e5m2", "float8_e4m3fn", "float16", "complex64", "int64"])
def test_values_of_every_type_are_looked_at(kind):
    values = torch.tensor([0.0, 1.0]).to(getattr(torch, kind))
    assert finite(values)
    if values.is_floating_point() or values.is_complex():
        assert not finite(torch.tensor([float("nan"), 1.0]).to(values.dtype))


class Quantised(nn.Module):
    """Scales of eight bits, which nothing changes, as buffers and as a frozen parameter."""

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 8), nn.Linear(8, 3)
        scale = torch.arange(-4.0, 4.0).exp2().to(kind)
        self.register_buffer("scale", scale)
        self.register_buffer("lone", torch.full((3,), 2.0).to(kind))
        self.frozen = nn.Parameter(scale.clone(), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.inner(x).relu() * self.scale.float() * self.frozen.float())


RULES: list[dict[str, Any]] = [
    {},
    {"aggregate": "median"},
    {"aggregate": {"krum": {"malicious": 0.2}}},
    {"aggregate": {"clip": 0.1}},
    {"server": {"optimiser": "adam"}},
    {"bound": 5.0},
    {
        "privacy": {"clip": 1.0, "noise": 0.1, "delta": 1e-3},
        "strategy": {"fedavg": {"weights": "uniform"}},
    },
    {"strategy": "fedrolex"},
    {"strategy": "fedfa"},
]


@pytest.mark.sample(4)
@pytest.mark.parametrize("rules", RULES, ids=str)
def test_entries_of_eight_bits_stay_as_they_are(rules, tmp_path):
    torch.manual_seed(0)
    rows, classes = torch.randn(48, 6), torch.arange(48) % 3
    for kind in (torch.float8_e4m3fn, torch.float8_e8m0fnu):
        model = ag.trace(Quantised(kind), rows[:2])
        clients = [{"name": "all", "count": 5}]
        if rules.get("strategy") in ("fedrolex", "fedfa"):
            clients += [{"name": "half", "count": 2, "take": 0.5}]
        spec = {"name": "quantised", "family": {"model": model, "clients": clients}, "rounds": 2}
        spec |= {"strategy": "fedavg", "local": {"batch": 4, "lr": 0.1}, **rules}
        out = tmp_path / str(kind)
        data = ((rows, classes), (rows[:9], classes[:9]))
        run = ag.run(spec, data=data, progress=False, out=out)
        assert not run.troubles
        run = ag.run(spec | {"rounds": 3}, data=data, progress=False, out=out, resume=True)
        for name in ("scale", "lone", "frozen"):
            value = run.server.tensors[f"global/{name}"]
            assert torch.equal(value.view(torch.uint8), model.state[name].view(torch.uint8)), name
