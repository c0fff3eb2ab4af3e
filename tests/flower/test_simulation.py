"""Flower's simulation: clients in processes of Ray."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file

import archgraph as ag
from archgraph.errors import RunError
from archgraph.flower import ENVIRONMENT
from archgraph.language.experiment import EngineSpec
from archgraph.processes.isolation import one_thread

pytest.importorskip("ray", reason="needs the extra `flower`")


def test_what_ends_the_simulation_is_said(write, tmp_path, monkeypatch):
    def ends(*arguments: object, **options: object) -> None:
        raise RuntimeError("Ending simulation.") from OSError("no room for Ray\nat all")

    from archgraph.flower import simulation

    monkeypatch.setattr(simulation, "run_simulation", ends)
    with pytest.raises(RunError, match=r"ended.*; found OSError: no room for Ray;"):
        ag.run(write("heterofl", engine="flower"), progress=False, out=tmp_path / "run")


@pytest.mark.parametrize(
    "engine, processors, share, devices",
    [
        ({}, None, 0, None),
        ({"workers": 3}, 3, 0, None),
        ({"device": "cuda"}, None, 1, None),
        ({"device": "cuda", "workers": 4}, 4, 0.25, 1),
        ({"device": ("cuda:0", "cuda:1")}, 2, 1, 2),
        ({"device": ("cuda:0", "cuda:1"), "workers": 5}, 5, 0.4, 2),
        ({"device": ("cuda:0", "cuda:1"), "workers": 1}, 1, 1, 2),
    ],
)
def test_ray_is_asked_for_a_share_of_a_device(engine, processors, share, devices):
    from archgraph.flower.simulation import _resources

    asked = _resources(EngineSpec(kind="flower", **engine))
    assert asked["client_resources"] == {"num_cpus": 1, "num_gpus": share}
    init = asked.get("init_args", {})
    assert (init.get("num_cpus"), init.get("num_gpus")) == (processors, devices)


def test_a_simulation_waits_for_nodes_that_come_late(write, monkeypatch):
    """One at a time, while the clock says that minutes go by."""
    from flwr.app import Context, RecordDict

    from archgraph.flower import server, simulation

    from .process_grid import ProcessGrid

    class Late(ProcessGrid):
        known = 0

        def get_node_ids(self) -> list[int]:
            self.known += 1
            return list(self.contexts)[: self.known]

    def simulated(app: Any, client: Any, count: int, **options: object) -> None:
        app(Late(client, count), Context(0, 0, {}, RecordDict(), {}))

    clock = itertools.count(0.0, 30.0)
    slow = SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda seconds: None)
    monkeypatch.setattr(server, "time", slow)
    monkeypatch.setattr(simulation, "run_simulation", simulated)
    run = ag.run(write("heterofl", engine="flower", rounds=1), progress=False)
    assert len(run.rounds[0]["clients"]) == 4


SIMULATED = ("fedavg", "heterofl", "fedfa", "nefl", "fedadp", "fedin", "recipfl")

# In a process of its own, since Ray leaves threads and handlers behind; Ray starts once for all.
SCRIPT = """
import sys

import ray

import archgraph

ray.init(num_cpus=1, include_dashboard=False)
ray.shutdown = lambda: None
for file in sys.argv[1:]:
    archgraph.run(file, progress=False, out=file.removesuffix(".yaml"))
"""


@pytest.mark.slow
@pytest.mark.skipif("ARCHGRAPH_RAY" not in os.environ, reason="set ARCHGRAPH_RAY=1: it starts Ray")
def test_simulated_runs_have_the_weights_of_local_ones(write, tmp_path):
    with one_thread():  # as the server in the other process, whose hypernetwork would differ
        local = {method: ag.run(write(method), progress=False) for method in SIMULATED}
    files = {
        method: write(method, engine="flower").rename(tmp_path / f"{method}.yaml")
        for method in SIMULATED
    }
    environment = {**os.environ, **ENVIRONMENT, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(Path(ag.__file__).parents[1])
    command = [sys.executable, "-c", SCRIPT, *map(str, files.values())]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    for method, run in local.items():
        place = tmp_path / method / "checkpoints" / "round-000002" / "groups"
        tensors = {k: v for file in place.iterdir() for k, v in load_file(file).items()}
        assert tensors.keys() == run.server.tensors.keys()
        for name, tensor in run.server.tensors.items():
            assert tensors[name].allclose(tensor, rtol=1e-6, atol=1e-6), (method, name)
