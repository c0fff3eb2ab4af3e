"""Runs on a machine that has a device: ``python -m tests.engine.on_device CASE``, one process each.

What a case finds is printed as JSON, for `test_devices.py`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from ruamel.yaml import YAML

import archgraph as ag
from archgraph.engine.local import Run
from archgraph.processes.process import PRELOAD, Died
from archgraph.processes.workers import Workers
from archgraph.record import changes
from tests import device
from tests.engine.families import SERVERS, STRATEGIES, experiment_of, result


def ran(name: str, folder: Path, rounds: int = 0, **engine: Any) -> Run:
    """A run of a strategy, of as many rounds as its experiment has."""
    device.register()
    spec = ag.load_experiment(experiment_of(name, folder))
    engine_spec = type(spec.engine).model_validate(engine)
    update = {"engine": engine_spec, "rounds": rounds or spec.rounds}
    return ag.run(spec.model_copy(update=update), progress=False)


def few_strategies(folder: Path) -> dict[str, Any]:
    """Every eighth of :func:`strategies`."""
    return strategies(folder, 8)


def strategies(folder: Path, every: int = 1) -> dict[str, Any]:
    """Whether each strategy has the processor's bits there, in this process and in two others."""
    names = [name for name in STRATEGIES if name not in SERVERS][::every]
    engines = {"device": "other"}, {"device": "other", "workers": 2}
    on_device = {n: [result(ran(n, folder, **engine)) for engine in engines] for n in names}
    return {name: runs == [result(ran(name, folder))] * 2 for name, runs in on_device.items()}


def recorded(folder: Path) -> dict[str, Any]:
    """What a run on the device records of its clients' updates, and one on the processor."""
    device.register()
    spec, found = ag.load_experiment(experiment_of("heterofl", folder)), {}
    for place in ("other", "cpu"):
        engine = type(spec.engine).model_validate({"device": place})
        ag.run(spec.model_copy(update={"engine": engine}), out=folder / place, progress=False)
        found[place] = (folder / place / changes.FILE).read_text()
    return found


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


# Ways to train, tried with FedAvg.
WAYS = {
    "all": "proximal: 0.1, clip: 1.0, accumulate: 2, over: round, "
    "schedule: {CosineAnnealingLR: {T_max: $steps}}, "
    "loss: {CrossEntropyLoss: {label_smoothing: 0.1}}",
}


def waits_of(name: str, folder: Path, way: str = "") -> list[dict[str, int]]:
    """How often a strategy waits for the device in passes of few steps, and of more."""
    device.register()
    counts = []
    for batch in (30, 10):
        file = experiment_of(name, folder)
        text = file.read_text().replace("batch: 16", f"batch: {batch}, {way}".rstrip(", "))
        rounds = 2 if name in SERVERS else 1
        file.write_text(text.replace("rounds: 2", f"rounds: {rounds}"))
        spec = ag.load_experiment(file)
        device.WAITS.clear()
        engine = type(spec.engine).model_validate({"device": "other"})
        run = ag.run(spec.model_copy(update={"engine": engine}), progress=False)
        assert not any(line["rejected"] or line["failed"] for line in run.rounds), run.rounds
        counts.append(dict(device.WAITS))
    return counts


def few_waits(folder: Path) -> dict[str, Any]:
    """Waits of NeFL, and of FedAvg with all that can be asked of training at once."""
    return {"nefl": waits_of("nefl", folder), "all": waits_of("fedavg", folder, WAYS["all"])}


def waits(folder: Path) -> dict[str, Any]:
    """Waits of every strategy."""
    return {name: waits_of(name, folder) for name in STRATEGIES}


def gradients(folder: Path) -> dict[str, Any]:
    """Who takes part in runs on the processor, before and after this process computes gradients."""
    found: dict[str, Any] = {}
    for when in ("before", "after"):
        for workers in (None, 2):
            key = f"{when}, {workers}"
            run = ran("fedavg", folder, **({"workers": workers} if workers else {}))
            found[key] = [len(line["clients"]) for line in run.rounds]
        torch.ones((), requires_grad=True).mul(2).backward()
    return found


def used(folder: Path) -> dict[str, Any]:
    """Who takes part where the device was used before; a process waits when this one ends."""
    workers, job = Workers(2, devices=("other",)), Job()
    ((_, (_, _, waits)),) = workers.calls(job, ["a"], again=True)
    torch.empty(0, device="other")
    run = ran("fedavg", folder, device="other", workers=2)
    return {"trained": [len(line["clients"]) for line in run.rounds], "waits": waits}


class Job:
    """What processes call: says who did it, or does what clients must not."""

    def __init__(self, place: str = "cpu") -> None:
        self.place = place

    def on(self, place: str) -> Job:
        return Job(place)

    def __call__(self, what: str) -> tuple[str, str, int]:
        if what == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "late":
            time.sleep(60)
        number = torch.device(self.place).index or 0
        assert torch.ones(1, device=self.place).device == torch.device("other", number)
        return what, self.place, os.getpid()


def said(done: Any) -> Any:
    """What came of a call, in plain values."""
    return done.reason if isinstance(done, Died) else list(done)


STUDY = """
archgraph: 1
study: tiny
about: Runs that need a device, one after the other.
experiment: {experiment}
rows: {{A: {{local: {{epochs: 1}}}}}}
columns: {{D: {{rounds: 1, engine: {{device: ["other:0"], workers: 2}}}}}}
figures: {{acc: average_accuracy}}
sizes: {{small: {{about: All there is., seeds: [0, 1, 2]}}}}
"""


def study(folder: Path) -> dict[str, Any]:
    """How the runs of a study end, all of which use the device."""
    plain = YAML(typ="safe", pure=True).load(experiment_of("fedavg", folder))
    (folder / "study.yaml").write_text(STUDY.format(experiment=json.dumps(plain)))
    said: list[str] = []
    ag.study(folder / "study.yaml", out=folder / "runs", notify=said.append)
    return {"said": said}


class Slow(Job):
    """Is on its device after four seconds, as with CUDA on a busy machine, or dies on the way."""

    def on(self, place: str) -> Slow:
        time.sleep(4)
        if self.place == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        return Slow(place)


class Heavy:
    """Takes long to be sent."""

    def __reduce__(self) -> Any:
        time.sleep(2)
        return str, ("heavy",)


def starting(folder: Path) -> dict[str, Any]:
    """What comes of calls whose process takes longer to start than they may, or dies at that."""
    found = {}
    for name, deadline, job, items in (
        ("late", 3.0, Slow(), ["a", "b"]),
        ("crash", None, Slow("crash"), [Heavy(), "b"]),
    ):
        workers = Workers(2, devices=("other",), deadline=deadline)
        found[name] = [said(done) for _, done in workers.calls(job, items, again=True)]
        workers.close()
    return found


def working(folder: Path) -> dict[str, Any]:
    """Work for a minute, in a process beside one that waits."""
    workers, job = Workers(2, devices=("other",)), Job()
    return {"done": [said(done) for _, done in workers.calls(job, ["a", "late"], again=True)]}


def killed(folder: Path) -> dict[str, Any]:
    """Processes that a server had started, and those that are left twenty seconds after its end."""
    command = [sys.executable, "-m", "tests.engine.on_device", "working"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        those: list[int] = []
        until = time.monotonic() + 60
        while len(those) < 3 and time.monotonic() < until:
            time.sleep(0.05)
            those = descendants(server.pid)
        server.kill()
    until = time.monotonic() + 20
    while any(map(alive, those)) and time.monotonic() < until:
        time.sleep(0.1)
    return {"were": len(those), "are": sum(alive(pid) for pid in those)}


def descendants(pid: int) -> list[int]:
    """Processes that one has started, and those that they have."""
    file = Path(f"/proc/{pid}/task/{pid}/children")
    children = [int(number) for number in file.read_text().split()] if file.exists() else []
    return [*children, *(further for child in children for further in descendants(child))]


def alive(pid: int) -> bool:
    """Whether a process is there, and has not ended without anybody asking how."""
    file = Path(f"/proc/{pid}/stat")
    try:
        return file.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may end while it is looked at
        return False


def failing(folder: Path) -> dict[str, Any]:
    """What comes of calls that kill their process, are late, or cannot be sent."""
    workers, job = Workers(2, devices=("other:0", "other:1"), deadline=2.0), Job()
    torch.ones(1, device="other", requires_grad=True).sum().backward()  # in this process
    items = ["a", "b", "killed", "c", "late", "d", "e"]
    found: dict[str, Any] = {
        "calls": [said(done) for _, done in workers.calls(job, items, again=True)],
        "again": [said(done) for _, done in workers.calls(job, ["f"], again=True)],
    }
    try:
        list(workers.calls(job, [Path.cwd().iterdir()], again=True))
    except ag.RunError as error:
        found["unsent"] = str(error)
    return found


def main() -> None:
    """Print what a case finds."""
    device.register()  # here, and not where pytest imports this file
    # As PyTorch does by itself for the devices of installed packages, in every process.
    PRELOAD.append("tests.engine.with_device")
    torch.set_num_threads(2)  # as on a machine with two cores, where workers are left out
    case: Callable[[Path], dict[str, Any]] = globals()[sys.argv[1]]
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(case(Path(folder))))  # noqa: T201 - read by the test


if __name__ == "__main__":
    main()
