"""Runs on a machine that has a device: on it, and beside it on the processor.

What makes a device of its own is in `tests/device.py`; each case has a process (`on_device.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pydantic
import pytest

import archgraph as ag
from archgraph.engine.world import prepare
from archgraph.language.experiment import EngineSpec
from tests.engine.families import SERVERS, STRATEGIES, experiment_of

ROOT = Path(__file__).parents[2]


def found(case: str) -> dict[str, Any]:
    """What a case finds; nothing is said on the way."""
    command = [sys.executable, "-m", "tests.engine.on_device", case]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=1200, cwd=ROOT, env=environment
    )
    assert not done.returncode and not done.stderr, done.stderr[-2000:]
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.full
def test_no_step_of_training_waits_for_the_device() -> None:
    """Passes of three times as many steps wait as often: for their losses, and for results."""
    for name, (few_steps, many_steps) in found("few_waits").items():
        assert few_steps == many_steps, name
        assert few_steps["aten::_local_scalar_dense"] < 40 * 3, name  # checks of each client


@pytest.mark.full
def test_no_step_of_any_strategy_but_one_waits_for_the_device() -> None:
    waits = found("waits")
    # FedProto picks the classes of a minibatch, whose number follows from values.
    assert {name for name, (few, many) in waits.items() if few != many} == {"fedproto"}


@pytest.mark.full
def test_a_few_strategies_have_the_same_bits_on_a_device() -> None:
    bits = found("few_strategies")
    assert len(bits) > 3 and all(bits.values())


def test_a_run_on_a_device_records_what_its_rounds_changed() -> None:
    lines = found("recorded")
    assert '"norm"' in lines["cpu"] and lines["other"] == lines["cpu"]


@pytest.mark.full
def test_every_strategy_has_the_same_bits_on_a_device() -> None:
    assert found("strategies") == dict.fromkeys(set(STRATEGIES) - set(SERVERS), True)


@pytest.mark.full
def test_servers_that_train_do_so_on_the_device() -> None:
    distances = found("servers")
    # On several threads a sum may be rounded otherwise.
    assert distances["fedgkt"] <= 1e-6
    # Codes of nodes are computed by other operations there; Adam's first steps are as long as they
    # are, however small a gradient is.
    assert distances["recipfl"] <= 2e-2


@pytest.mark.full
def test_a_device_that_is_there_costs_clients_on_the_processor_nothing() -> None:
    """PyTorch then computes gradients in threads, which no fork survives: a fork server starts."""
    runs = found("gradients")
    assert set(runs) == {f"{when}, {n}" for when in ("before", "after") for n in (None, 2)}
    assert all(trained == [3, 3] for trained in runs.values())


@pytest.mark.full
def test_processes_are_started_on_a_device_that_was_used_before() -> None:
    case = found("used")
    assert case["trained"] == [3, 3]
    assert not Path(f"/proc/{case['waits']}").exists()  # it ended with who had started it


@pytest.mark.full
def test_a_client_on_a_device_ends_no_run() -> None:
    runs = found("failing")
    calls = runs["calls"]
    names = [call if isinstance(call, str) else call[0] for call in calls]
    assert names == [
        *("a", "b", "its process was ended by SIGKILL", "c"),
        *("not done after 2 s (deadline)", "d", "e"),
    ]
    assert {call[1] for call in calls if isinstance(call, list)} == {"other:0", "other:1"}
    first, again = calls[0], runs["again"][0]
    assert first[0] == "a" and again[0] == "f"
    assert len({call[2] for call in calls if isinstance(call, list)}) <= 4  # they are used again
    assert "a client's work cannot be sent to its process" in runs["unsent"]


@pytest.mark.full
def test_a_deadline_begins_when_a_process_has_its_client() -> None:
    """And a process that dies before costs its client, not the run."""
    calls = found("starting")
    assert [name for name, *_ in calls["late"]] == ["a", "b"]
    assert calls["crash"] == ["its process was ended by SIGKILL"] * 2


@pytest.mark.full
def test_nothing_is_left_of_a_killed_server() -> None:
    processes = found("killed")
    assert processes["were"] >= 3 and processes["are"] == 0  # a fork server and its workers


@pytest.mark.full
def test_runs_of_a_study_use_a_device_one_after_the_other() -> None:
    said = found("study")["said"]
    assert [text.rpartition(": ")[2] for text in said] == ["done"] * 3


@pytest.mark.parametrize(
    ("engine", "places"),
    [
        ({}, ()),
        ({"workers": 4}, ()),
        ({"device": "cuda"}, ()),
        ({"device": "cuda", "workers": 1}, ()),
        ({"device": "cuda", "workers": 3}, ("cuda",)),
        ({"device": "cuda", "deadline": 5}, ("cuda",)),
        ({"device": ("cuda:0", "cuda:1")}, ("cuda:0", "cuda:1")),
    ],
)
def test_who_trains_in_processes_on_devices(
    engine: dict[str, Any], places: tuple[str, ...]
) -> None:
    assert EngineSpec.model_validate(engine).places == places


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ({"device": ("cuda:0", "cpu")}, "must name different devices of one kind"),
        ({"device": ("cuda", "cuda:0")}, "must name different devices of one kind"),
        ({"device": ("cpu",) * 2}, "must name different devices of one kind"),
        ({"device": ("cpu:0", "cpu:1")}, "must name different devices of one kind"),
        ({"device": ()}, "at least 1 item"),
    ],
)
def test_devices_that_make_no_sense_are_refused(engine: dict[str, Any], said: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=said):
        EngineSpec.model_validate(engine)


def test_a_list_of_devices_is_read_and_written(tmp_path: Path) -> None:
    file = experiment_of("fedavg", tmp_path)
    file.write_text(file.read_text() + 'engine: {device: ["cuda:0", "cuda:1"], workers: 4}\n')
    spec = ag.load_experiment(file)
    assert spec.engine.places == ("cuda:0", "cuda:1")
    plain = spec.engine.model_dump(mode="json", exclude_defaults=True)
    assert plain == {"device": ["cuda:0", "cuda:1"], "workers": 4}
    file.write_text(file.read_text().replace('"cuda:1"', '"cuda:0"'))
    said = r"engine.device: must name different devices.*found \['cuda:0', 'cuda:0'\]"
    with pytest.raises(ag.SpecError, match=said):
        ag.load_experiment(file)


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ({"device": "meta", "memory": 100.0}, "engine.memory: can be limited only on a CPU"),
        ({"device": "mps"}, r"found 'mps' \(this build of PyTorch cannot compute on it\)"),
        (
            {"device": "warp"},
            "engine.device: this machine.* cannot use the device; found 'warp'",
        ),
        (
            {"device": ("cuda:0", "cuda:1")},
            r"engine.device: this machine.* cannot use the device; found 'cuda:0'",
        ),
    ],
)
def test_a_device_that_cannot_be_used_is_named(engine: Any, said: str, tmp_path: Path) -> None:
    spec = ag.load_experiment(experiment_of("fedavg", tmp_path))
    with pytest.raises(ag.RunError, match=said):
        prepare(spec.model_copy(update={"engine": EngineSpec.model_validate(engine)}))
