"""Flower's simulation: clients in processes of Ray."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from safetensors.torch import load_file

import archgraph as ag
from archgraph.errors import RunError

pytest.importorskip("ray", reason="needs the extra `flower`")


def test_what_ends_the_simulation_is_said(write, tmp_path, monkeypatch):
    def ends(*arguments: object, **options: object) -> None:
        raise RuntimeError("Ending simulation.") from OSError("no room for Ray\nat all")

    from archgraph.engine.flower import simulation

    monkeypatch.setattr(simulation, "run_simulation", ends)
    with pytest.raises(RunError, match=r"ended.*; found OSError: no room for Ray;"):
        ag.run(write("heterofl", engine="flower"), progress=False, out=tmp_path / "run")


@pytest.mark.slow
@pytest.mark.skipif("ARCHGRAPH_RAY" not in os.environ, reason="set ARCHGRAPH_RAY=1: it starts Ray")
def test_a_simulated_run_has_the_weights_of_a_local_one(write, tmp_path):
    """Through the command, in a process of its own: Ray leaves threads and handlers behind."""
    local = ag.run(write("heterofl"), progress=False, out=tmp_path / "local")
    file = write("heterofl", engine="flower")
    command = [sys.executable, "-m", "archgraph", "run", str(file), "--out", str(tmp_path / "ray")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    place = tmp_path / "ray" / "checkpoints" / "round-000002" / "groups"
    tensors = {k: v for file in place.iterdir() for k, v in load_file(file).items()}
    assert tensors.keys() == local.server.tensors.keys()
    for name, tensor in local.server.tensors.items():
        assert tensors[name].allclose(tensor, rtol=1e-6, atol=1e-6), name
