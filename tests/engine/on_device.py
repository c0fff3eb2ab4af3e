"""Runs on a machine that has a device: ``python -m tests.engine.on_device CASE``, one process each.

What a case finds is printed as JSON, for `test_devices.py`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import archgraph as ag
from archgraph.engine.local import Run
from archgraph.engine.process import Died
from archgraph.engine.workers import Workers
from tests import device
from tests.engine.families import SERVERS, STRATEGIES, experiment_of, result


def ran(name: str, folder: Path, rounds: int = 0, **engine: Any) -> Run:
    """A run of a strategy, of as many rounds as its experiment has."""
    device.register()()
    spec = ag.load_experiment(experiment_of(name, folder))
    engine_spec = type(spec.engine).model_validate(engine)
    update = {"engine": engine_spec, "rounds": rounds or spec.rounds}
    return ag.run(spec.model_copy(update=update), progress=False)


def strategies(folder: Path) -> dict[str, Any]:
    """Whether each strategy has the same bits in two processes there as on the processor."""
    names = [name for name in STRATEGIES if name not in SERVERS]
    on_device = {name: ran(name, folder, device="other", workers=2) for name in names}
    return {name: result(run) == result(ran(name, folder)) for name, run in on_device.items()}


def servers(folder: Path) -> dict[str, Any]:
    """How far server and clients on the device are from the processor's bits."""
    found: dict[str, Any] = {}
    for name in SERVERS:
        run, other = ran(name, folder, 1), ran(name, folder, 1, device="other")
        (_, first), (_, second) = result(run), result(other)
        assert not any(line["rejected"] or line["failed"] for line in other.rounds)
        found[name] = max(_distance(first[key], second[key]) for key in first)
    return found


def _distance(first: Any, second: Any) -> float:
    one, two = (torch.tensor(x, dtype=torch.float64) for x in (first, second))
    return float((one - two).abs().max()) if one.numel() else 0.0


def gradients(folder: Path) -> dict[str, Any]:
    """Who takes part in runs on the processor, before and after this process computes gradients."""
    found: dict[str, Any] = {}
    for when in ("before", "after"):
        for workers in (None, 2):
            key = f"{when}, {workers}"
            try:
                run = ran("fedavg", folder, **({"workers": workers} if workers else {}))
                found[key] = [len(line["clients"]) for line in run.rounds]
            except ag.RunError as error:
                found[key] = str(error)
        torch.ones((), requires_grad=True).mul(2).backward()
    return found


def used(folder: Path) -> dict[str, Any]:
    """What is said where the device was used before; a process waits when this one ends."""
    workers, job = Workers(2, places=("other",)), Job()
    workers.prepare(job)
    ((_, (_, _, waits)),) = workers.calls(job, ["a"], again=True)
    torch.empty(0, device="other")
    spec = ag.load_experiment(experiment_of("fedavg", folder))
    engine = type(spec.engine)(device="other", workers=2)
    try:
        ag.run(spec.model_copy(update={"engine": engine}), progress=False)
    except ag.RunError as error:
        return {"said": str(error), "waits": waits}
    return {}


class Job:
    """What processes call: says who did it, or does what clients must not."""

    def __init__(self, place: str = "cpu") -> None:
        self.place = place

    def on(self, place: str) -> Job:
        return Job(place)

    def __call__(self, what: str, tell: Any) -> tuple[str, str, int]:
        if what == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "late":
            time.sleep(60)
        assert torch.ones(1, device=self.place).device.type == "other"
        return what, self.place, os.getpid()


def said(done: Any) -> Any:
    """What came of a call, in plain values."""
    return done.reason if isinstance(done, Died) else list(done)


def failing(folder: Path) -> dict[str, Any]:
    """What comes of calls that kill their process, are late, or cannot be sent."""
    workers, job = Workers(2, places=("other", "other:0"), deadline=2.0), Job()
    workers.prepare(job)
    torch.ones(1, device="other", requires_grad=True).sum().backward()  # in this process
    items = ["a", "b", "killed", "c", "late", "d", "e"]
    found: dict[str, Any] = {
        "calls": [said(done) for _, done in workers.calls(job, items, again=True)],
        "again": [said(done) for _, done in workers.calls(job, ["f"], again=True)],
    }
    nursery = workers._nursery
    assert nursery is not None
    try:
        list(workers.calls(job, [Path.cwd().iterdir()], again=True))
    except ag.RunError as error:
        found["unsent"] = str(error)
    os.kill(nursery._process.pid or 0, signal.SIGKILL)
    nursery._process.join()
    try:
        list(workers.calls(job, ["g"]))
    except ag.RunError as error:
        found["orphan"] = str(error)
    return found


def main() -> None:
    """Print what a case finds."""
    device.register()  # here, and not where pytest imports this file
    torch.set_num_threads(2)  # as on a machine with two cores, where workers are left out
    case: Callable[[Path], dict[str, Any]] = globals()[sys.argv[1]]
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(case(Path(folder))))  # noqa: T201 - read by the test


if __name__ == "__main__":
    main()
