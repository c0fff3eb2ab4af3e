"""Whether a machine of a deployment has the app's version and data, and reaches the SuperLink.

Every check is a row of `CHECKS`: it returns what is well, or raises an error that says what is
wrong, where, and what to do. A check whose options are missing is left out.
"""

from __future__ import annotations

import importlib.metadata
import re
import socket
import ssl
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from archgraph.engine.rows import ClientRows
from archgraph.errors import ArchGraphError, RunError
from archgraph.flower.client import client_of
from archgraph.flower.deployment import (
    READY,
    client_experiment,
    form_beside,
    machine_experiment,
)
from archgraph.plain import Json
from archgraph.processes.reasons import reason
from archgraph.tables import plural

# Seconds in which a SuperLink answers.
SECONDS = 10.0
CONFIGURED = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")


@dataclass(frozen=True)
class Machine:
    """A machine of a deployment, by the options with which its processes are started.

    Attributes:
        app: The folder that ``archgraph flower init`` wrote.
        link: ``HOST:PORT`` of the SuperLink.
        ca: The authority's certificate.
        node: A node's ``--node-config``; None: it is the server.
        fleet: Name of the SuperLink in Flower's configuration, whose nodes are asked.
    """

    app: Path
    link: str = ""
    ca: Path | None = None
    node: str | None = None
    fleet: str = ""

    @property
    def configuration(self) -> dict[str, Json]:
        """The values of a node's configuration, as Flower reads them.

        Raises:
            RunError: If it is not of the form ``name=value name=value``.
        """
        lines = "\n".join(
            f"{name} = {value}" for name, value in CONFIGURED.findall(self.node or "")
        )
        try:
            return tomllib.loads(lines)
        except tomllib.TOMLDecodeError as error:
            hint = "quote texts within: --node-config 'partition-id=0 data=\"/data\"'"
            raise RunError(
                "is not read by Flower", where="--node-config", found=str(error), hint=hint
            ) from error

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the SuperLink."""
        host, _, port = self.link.rpartition(":")
        if not host or not port.isdigit():
            hint = "the port of a SuperLink is 8000 unless it was started with --port"
            raise RunError("is not an address", where=self.link, expected="HOST:PORT", hint=hint)
        return host.strip("[]"), int(port)


@dataclass(frozen=True)
class Diagnosis:
    """What a check came to.

    Attributes:
        check: What was checked.
        text: What is well; or what is wrong, where, and what to do.
        wrong: Whether something is.
    """

    check: str
    text: str
    wrong: bool = field(default=False)


def diagnoses(machine: Machine) -> Iterator[Diagnosis]:
    """Yield a finding for each check of a machine, one after the other."""
    for name, applies, check in CHECKS:
        if not applies(machine):
            continue
        try:
            yield Diagnosis(name, check(machine))
        except Exception as error:  # whatever a library raises is a finding, too
            text = str(error) if isinstance(error, ArchGraphError) else reason(error)
            yield Diagnosis(name, text, wrong=True)


def _versions(machine: Machine) -> str:
    ours = {name: importlib.metadata.version(name) for name in ("archgraph", "flwr", "torch")}
    project = tomllib.loads((machine.app / "pyproject.toml").read_text(encoding="utf-8"))
    wrote = project.get("tool", {}).get("archgraph", {}).get("version", ours["archgraph"])
    if wrote != ours["archgraph"]:
        raise RunError(
            "another version than that of the app",
            where="archgraph",
            found=ours["archgraph"],
            expected=wrote,
            hint=f"pip install 'archgraph[flower]=={wrote}', on every machine",
        )
    return ", ".join(f"{name} {version}" for name, version in ours.items())


def _data(machine: Machine) -> str:
    file = machine.app / "experiment.yaml"
    if machine.node is None:
        if form_beside(file):
            project = tomllib.loads((machine.app / "pyproject.toml").read_text(encoding="utf-8"))
            machine_experiment(file, project["tool"]["flwr"]["app"]["config"], ())
            return "the server's data have the form of the app"
        return f"{machine_experiment(file, {}).data!r}"
    configuration = machine.configuration
    experiment, client = client_experiment(file, configuration), client_of(configuration)
    if client not in range(len(experiment.shares)):
        raise RunError(
            "not a client",
            where="partition-id",
            found="none" if client == -1 else client,
            expected=f"0...{len(experiment.shares) - 1}",
            hint="--node-config 'partition-id=0'",
        )
    known = experiment.world.clients[client]
    rows = ClientRows(known.examples, known.histogram if experiment.world.counted else None)
    tensors = ", ".join(map(str, experiment.data.shape))
    return (
        f"client {client} ({known.name}): {plural(rows.examples, 'example')} of shape "
        f"[{tensors}]{rows.by_label}"
    )


def _link(machine: Machine) -> str:
    """Reach the SuperLink: its name, its port, its certificate."""
    host, port = machine.address
    where = f"{host}:{port}"
    try:
        with socket.create_connection((host, port), SECONDS) as plain:
            context = ssl.create_default_context(cafile=machine.ca)
            with context.wrap_socket(plain, server_hostname=host):
                pass
    except OSError as error:  # of names and connections, and of TLS
        raise RunError(
            "the SuperLink is not reached",
            where=where,
            found=getattr(error, "verify_message", "") or error.strerror or str(error),
            expected=f"TLS, with a certificate that {machine.ca} signed for {host}",
            hint="start it with --host 0.0.0.0 for other machines, let the server's firewall pass "
            "its port, and copy ca.pem from there",
        ) from error
    return f"{where} answers, with a certificate that {machine.ca} signed"


def _fleet(machine: Machine) -> str:
    """Ask all nodes through a run of Flower's that has no rounds."""
    command = ["flwr", "run", str(machine.app), machine.fleet, "--stream"]
    done = subprocess.run([*command, "--run-config", "doctor=true"], capture_output=True, text=True)
    said = (done.stdout + done.stderr).splitlines()
    if READY not in said:
        error = [line for line in said if ".errors." in line]
        raise RunError(
            "not every node is ready",
            where=machine.fleet,
            found="; ".join(line.partition("Error: ")[2] for line in error) or "; ".join(said[-3:]),
        )
    return "; ".join(line for line in said if line.startswith("client "))


CHECKS: tuple[tuple[str, Callable[[Machine], bool], Callable[[Machine], str]], ...] = (
    ("versions", lambda machine: True, _versions),
    ("data", lambda machine: True, _data),
    ("link", lambda machine: bool(machine.link and machine.ca), _link),
    ("nodes", lambda machine: bool(machine.fleet), _fleet),
)
"""What is checked: its name, on which machines, and how."""
