"""Flower's deployment: a SuperLink and two SuperNodes in processes of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import archgraph as ag
from archgraph.cli import app as command
from archgraph.errors import RunError

pytest.importorskip("flwr", reason="needs the extra `flower`")

from archgraph.flower.deployment import deployed_client, serve
from archgraph.flower.starter import write_app

from .fleet import Fleet, running, until
from .process_grid import ProcessGrid

FAMILY = {"model": "model.yaml", "clients": [{"name": "half", "take": 0.5}, {"name": "whole"}]}
ALIKE = {"model": "model.yaml", "clients": [{"name": "all", "count": 2}]}

# A client app whose node 1 sends something else in each round, and is not done in the fourth.
FAULTY = """
import dataclasses
import time
from pathlib import Path

import torch
from flwr.clientapp import ClientApp

from archgraph.flower.deployment import deployed_client
from archgraph.flower.records import as_record, of_record

here = Path(__file__)
honest = deployed_client(here.with_name("experiment.yaml"))


class Faulty(ClientApp):
    def __call__(self, message, context):
        reply = honest(message, context)
        if message.metadata.message_type != "train" or context.node_config["partition-id"] != 1:
            return reply
        number, returned = int(message.metadata.group_id), of_record(reply.content["body"])
        state = dict(returned.outcome.state)
        name = next(iter(state))
        if number == 1:
            state[name] = state[name] * torch.nan
        elif number == 2:
            state[name] = state[name][:1]
        elif number == 3:
            state = {"fc.weight": torch.ones(2, 2)}
        else:
            Path("MARKER").touch()
            time.sleep(600)
        outcome = dataclasses.replace(returned.outcome, state=state)
        reply.content["body"] = as_record(dataclasses.replace(returned, outcome=outcome))
        return reply


app = Faulty()
"""

SAID = ("not finite", "wrong shape", "missing entry", "the node failed")


def equal(folder: Path, local: Any) -> bool:
    """Whether the state after round 2 has the bits of a local run."""
    place = folder / "checkpoints" / "round-000002" / "groups"
    tensors = {k: v for file in place.iterdir() for k, v in load_file(file).items()}
    own = local.server.tensors
    return tensors.keys() == own.keys() and all(own[name].equal(t) for name, t in tensors.items())


def test_an_app_holds_all_that_its_machines_need(write, tmp_path):
    """Models in place, no folder of this machine; the same experiment for a local run."""
    file = write("heterofl", rounds=1)
    local = ag.run(file, progress=False)
    app = tmp_path / "app"
    done = CliRunner().invoke(command, ["flower", "init", str(file), str(app)])
    said = {Path(line.removeprefix("wrote ")).name for line in done.output.splitlines()}
    assert said == {path.name for path in app.iterdir()} and len(said) == 5
    (tmp_path / "model.yaml").unlink()
    assert str(tmp_path) not in "".join(path.read_text() for path in app.iterdir())
    again = ag.run(app / "experiment.yaml", progress=False)
    assert again.experiment.facts == local.experiment.facts
    with pytest.raises(RunError, match="is not empty"):
        write_app(file, app)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_the_certificate_of_an_app_is_one_for_its_host_and_the_servers_own_processes(
    write, tmp_path
):
    write_app(write("heterofl"), tmp_path / "app")
    text = (tmp_path / "app" / "README.md").read_text()
    commands = re.findall(r"^\$ (openssl (?:.*\\\n)*.*)$", text, re.MULTILINE)
    assert len(commands) == 2
    checks = [
        f"openssl verify -CAfile ca.pem {asked} server.pem"
        for asked in ("-verify_hostname server.example", "-verify_ip 127.0.0.1")
    ]
    for command_line in (*commands, *checks):
        line = command_line.replace("HOST", "server.example")
        subprocess.run(line, shell=True, check=True, cwd=tmp_path, capture_output=True)


def test_an_app_says_what_python_code_its_machines_need(write, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "from archgraph.strategies.fedavg import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n"
    (tmp_path / "flower_mine.py").write_text(text)
    file = write("heterofl", strategy={"python": "flower_mine:Mine"}, rounds=1)
    write_app(file, tmp_path / "mine", python=True)
    said = (tmp_path / "mine" / "README.md").read_text()
    assert "consent: `flower_mine:Mine`." in said and said.count("python=true") == 1
    write_app(write("heterofl"), tmp_path / "own")
    assert "python" not in (tmp_path / "own" / "README.md").read_text()


def test_an_app_goes_on_with_what_its_nodes_have_in_files(write, tmp_path):
    """Server and nodes of the app in this process, begun anew between two rounds."""
    file = write("fedavg, local statistics", family=ALIKE)
    local, app, out = ag.run(file, progress=False), tmp_path / "app", tmp_path / "out"
    write_app(file, app)

    def start(folder: Path, **asked: Any) -> None:
        grid = ProcessGrid(deployed_client(folder / "experiment.yaml"), 2)
        for context in grid.contexts.values():
            context.node_config["keep"] = str(tmp_path / "kept")
        serve(grid, folder / "experiment.yaml", {"out": str(out), "join": 0, **asked})

    with pytest.raises(RunError, match="unknown holder; found nobody; expected node or server"):
        start(app, private="nobody")
    write_app(write("fedavg, local statistics", family=ALIKE, rounds=1), tmp_path / "shorter")
    start(tmp_path / "shorter")
    start(app, resume=True)
    assert equal(out, local)


def test_an_app_refuses_what_flower_does_not_carry(write, tmp_path):
    with pytest.raises(RunError, match=r"engine\.memory: cannot be used in a Flower app"):
        write_app(write("heterofl", engine={"memory": 9}), tmp_path / "app")
    graph = ag.load(tmp_path / "model.yaml")
    save_file(ag.build(graph).state_dict(), tmp_path / "first.safetensors")
    with pytest.raises(RunError, match=r"weights: cannot be used in a Flower app"):
        file = write("heterofl", weights={"file": str(tmp_path / "first.safetensors")})
        write_app(file, tmp_path / "app")


def test_a_machine_of_an_app_computes_where_its_configuration_says(write, tmp_path):
    app = tmp_path / "app"
    write_app(write("heterofl"), app)
    grid = ProcessGrid(deployed_client(app / "experiment.yaml"), 2)
    expected = (
        "engine.device: this machine, or this build of PyTorch, cannot use the device; found 'meta'"
    )
    with pytest.raises(RunError, match=expected):
        serve(grid, app / "experiment.yaml", {"out": str(tmp_path / "out"), "device": "meta"})
    for context in grid.contexts.values():
        context.node_config["device"] = "meta"
    with pytest.raises(RunError, match=expected):
        serve(grid, app / "experiment.yaml", {"out": str(tmp_path / "out"), "join": 0})


servers = pytest.mark.skipif(
    "ARCHGRAPH_FLOWER" not in os.environ, reason="set ARCHGRAPH_FLOWER=1: it starts servers"
)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running(tmp_path_factory.mktemp("fleet")) as started:
        yield started


def lines(run: Path) -> list[Any]:
    file = run / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.mark.slow
@servers
@pytest.mark.parametrize("what", ["certificate", "key"])
def test_a_node_with_the_wrong_papers_is_refused(fleet, what):
    wrong = {"root": "other.pem"} if what == "certificate" else {"key": "client2"}
    assert fleet.node(0, **wrong).wait(60) != 0
    said = {"certificate": "CERTIFICATE_VERIFY_FAILED", "key": "Failed to activate SuperNode"}
    assert said[what] in fleet.log("flower-supernode")


@pytest.mark.slow
@servers
@pytest.mark.timeout(900)
def test_a_faulty_node_is_refused_by_name_and_the_round_goes_on_without_a_killed_one(fleet, write):
    fleet.node(0)
    two, app, marker = fleet.node(1), fleet.folder / "faulty", fleet.folder / "marker"
    write_app(write("heterofl", rounds=4, family=FAMILY), app)
    (app / "client_app.py").write_text(FAULTY.replace("MARKER", str(marker)))

    def kill() -> None:
        until(marker.exists, 600)
        fleet.kill(two)

    killer = threading.Thread(target=kill)
    killer.start()
    out = fleet.folder / "first"
    fleet.flwr("run", str(app), "fleet", "--stream", "-c", f"out='{out}'")
    killer.join()
    rounds = lines(out)
    assert [[row["client"] for row in line["clients"]] for line in rounds] == [[0]] * 4
    reasons = [
        [(row["client"], row["reason"]) for row in line["rejected"] + line["failed"]]
        for line in rounds
    ]
    for ((client, reason),), said in zip(reasons, SAID, strict=True):
        assert client == 1
        assert said in reason


@pytest.mark.slow
@servers
@pytest.mark.timeout(900)
def test_a_killed_server_goes_on_from_its_checkpoint(fleet, write):
    """With what clients keep at their nodes, which a new run of Flower's would not find."""
    nodes = [fleet.node(client) for client in range(2)]
    file = write("fedavg, local statistics", family=ALIKE)
    local, app, out = ag.run(file, progress=False), fleet.folder / "app", fleet.folder / "second"
    write_app(file, app)
    fleet.flwr("run", str(app), "fleet", "-c", f"out='{out}'")
    until(lambda: lines(out), 300)
    fleet.kill_server()
    assert len(lines(out)) == 1
    fleet.flwr("run", str(app), "fleet", "--stream", "-c", f"out='{out}' resume=true")
    assert equal(out, local)
    for node in nodes:
        fleet.kill(node)
