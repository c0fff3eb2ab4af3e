"""What is wrong with a machine of a deployment, found before the first round.

Every check is a row of `CHECKS`: it returns what is well, or raises an error that says what is
wrong, where, and what to do. A check whose options are missing is left out.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
import shutil
import socket
import ssl
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
)
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from archgraph.engine.rows import ClientRows
from archgraph.errors import ArchGraphError, RunError, os_reason
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

# Flower's: seconds in which a process must be ready, and by which clocks may differ.
READY_WITHIN, CLOCKS = 30.0, 60.0
SECONDS = 10.0
CONFIGURED = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")


@dataclass(frozen=True)
class Machine:
    """A machine of a deployment, by the options with which its processes are started.

    Attributes:
        app: The folder that ``archgraph flower init`` wrote.
        link: ``HOST:PORT`` of the SuperLink.
        ca: The authority's certificate.
        cert: The server's certificate: this is the server.
        key: The server's private key, or that of a node.
        node: A node's ``--node-config``; None: it is not a node.
        port: Port on which a node's own processes reach it.
        fleet: Name of the SuperLink in Flower's configuration, whose nodes are asked.
    """

    app: Path
    link: str = ""
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    node: str | None = None
    port: int = 9094
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
        except ArchGraphError as error:
            yield Diagnosis(name, str(error), wrong=True)
        except OSError as error:
            text = f"{error.filename}: cannot be used; found {os_reason(error)}"
            yield Diagnosis(name, text, wrong=True)
        except Exception as error:  # whatever a library raises is a finding, too
            yield Diagnosis(name, reason(error), wrong=True)


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


def _speed(machine: Machine) -> str:
    command, began = shutil.which("flwr-clientapp"), time.monotonic()
    if command is None:
        raise RunError(
            "is not on the PATH, and Flower starts it for every message",
            where="flwr-clientapp",
            hint="activate the environment in which archgraph[flower] is installed",
        )
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run([command, "--help"], capture_output=True, timeout=2 * READY_WITHIN)
    seconds = time.monotonic() - began
    if seconds > READY_WITHIN / 2:
        raise RunError(
            "Flower's processes start slowly; it forgets those that are not ready in time, and "
            "starts them again: the run would wait for ever",
            where="flwr-clientapp",
            found=f"{seconds:.0f} s",
            expected=f"well below {READY_WITHIN:g} s",
            hint="end what else this machine does, or start fewer SuperNodes on it",
        )
    return f"a process of Flower's is ready in {seconds:.1f} s ({READY_WITHIN:g} s are allowed)"


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


def _keep(machine: Machine) -> str:
    folder = machine.configuration.get("keep")
    if not folder:
        return "no `keep`: what the client keeps is lost with its process, and by a resumed run"
    path = Path(str(folder)).expanduser()
    path.mkdir(parents=True, exist_ok=True)
    (path / ".written").write_text("")
    (path / ".written").unlink()
    return f"{path} can be written"


def _certificate(path: Path) -> x509.Certificate:
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise RunError("is not a certificate", where=str(path), expected="PEM") from error
    now = datetime.now(UTC)
    for limit, over in (
        (certificate.not_valid_before_utc, now < certificate.not_valid_before_utc),
        (certificate.not_valid_after_utc, now > certificate.not_valid_after_utc),
    ):
        if over:
            raise RunError(
                "is not valid now",
                where=str(path),
                found=f"now {now:%Y-%m-%d %H:%M} UTC, limit {limit:%Y-%m-%d %H:%M}",
                hint="set the clock, or make new certificates as the app's README.md says",
            )
    return certificate


def _authority(machine: Machine) -> str:
    assert machine.ca is not None
    certificate = _certificate(machine.ca)
    return f"{machine.ca} is valid until {certificate.not_valid_after_utc:%Y-%m-%d}"


def _server_certificate(machine: Machine) -> str:
    """See whether the server's certificate is the authority's, its key's, and for its names."""
    assert machine.cert is not None and machine.ca is not None and machine.key is not None
    certificate, where = _certificate(machine.cert), str(machine.cert)
    try:
        certificate.verify_directly_issued_by(_certificate(machine.ca))
    except Exception as error:  # the library has a class for each way in which it is not
        hint = "sign it with the key of this authority, or give its own authority as --ca"
        raise RunError(f"was not signed by {machine.ca}", where=where, hint=hint) from error
    key = load_pem_private_key(machine.key.read_bytes(), None)
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if key.public_key().public_bytes(*form) != certificate.public_key().public_bytes(*form):
        hint = f"give the key with which {machine.cert} was made"
        raise RunError("belongs to another certificate", where=str(machine.key), hint=hint)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    known = [str(name.value) for name in names]
    needed = ["127.0.0.1", *([machine.address[0]] if machine.link else [])]
    for name in needed:
        if name not in known:
            raise RunError(
                "is not for a name by which machines reach the server",
                where=where,
                found=", ".join(known) or "no name",
                expected=name,
                hint=f"add it: subjectAltName={','.join(_alternative(n) for n in needed)}",
            )
    return f"{machine.cert} is for {', '.join(known)}"


def _alternative(name: str) -> str:
    return f"IP:{name}" if re.fullmatch(r"[\d.]+|.*:.*", name) else f"DNS:{name}"


def _port(machine: Machine) -> str:
    """See whether a port of this machine is free."""
    port = machine.port if machine.cert is None else machine.address[1]
    what = "--port" if machine.cert is None else "the SuperLink's port"
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError as error:
            if machine.cert is not None:
                return f"{port} is in use, by the SuperLink if it has been started"
            raise RunError(
                "the port is in use, by another SuperNode maybe",
                where=f"{what} {port}",
                hint=f"start this one with another: --port {port + 1}",
            ) from error
    return f"{what} {port} is free"


def _link(machine: Machine) -> str:
    """Reach the SuperLink: its name, its port, its certificate."""
    host, port = machine.address
    where = f"{host}:{port}"
    try:
        with socket.create_connection((host, port), SECONDS) as plain:
            context = ssl.create_default_context(cafile=machine.ca)
            with context.wrap_socket(plain, server_hostname=host):
                pass
    except socket.gaierror as error:
        hint = "write the server's address, or enter its name in /etc/hosts"
        raise RunError("the name is not known here", where=host, hint=hint) from error
    except ConnectionRefusedError as error:
        hint = "start the SuperLink, with --host 0.0.0.0 for other machines, and this --port"
        raise RunError("nothing listens there", where=where, hint=hint) from error
    except TimeoutError as error:
        hint = "let the server's firewall pass this port"
        message = f"no answer within {SECONDS:g} s"
        raise RunError(message, where=where, hint=hint) from error
    except ssl.SSLCertVerificationError as error:
        raise RunError(
            "the server's certificate is not accepted",
            where=where,
            found=error.verify_message,
            expected=f"one that {machine.ca} signed, for {host}",
            hint="copy ca.pem from the server, or make a certificate for this name",
        ) from error
    except ssl.SSLError as error:
        hint = "start it with --ssl-certfile and --ssl-keyfile; other programs may use this port"
        raise RunError("does not speak TLS", where=where, found=error.reason, hint=hint) from error
    return f"{where} answers, with a certificate that {machine.ca} signed"


def _key(machine: Machine) -> str:
    """Sign in at the SuperLink as the node would, and out again."""
    assert machine.key is not None and machine.ca is not None
    where = str(machine.key)
    try:
        key = load_ssh_private_key(machine.key.read_bytes(), None)
    except ValueError as error:
        hint = "ssh-keygen -q -t ecdsa -b 384 -N '' -f client0"
        message = "is not a private key without a passphrase"
        raise RunError(message, where=where, found=str(error), hint=hint) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        hint = "ssh-keygen -q -t ecdsa -b 384 -N '' -f client0"
        actual = type(key).__name__
        message = "is of another kind"
        raise RunError(message, where=where, found=actual, expected="ECDSA", hint=hint)
    public = key.public_key()
    dates: list[str] = []
    signed = NodeAuthHttpInterceptor(key, public)
    client = FleetHttpClient.from_server_address(
        machine.link, False, machine.ca.read_bytes(), interceptors=[_Dated(dates), signed]
    )
    with client:
        try:
            identity = public_key_to_bytes(public)
            request = ActivateNodeRequest(public_key=identity, heartbeat_interval=30)
            node = client.ActivateNode(request).node_id
            client.DeactivateNode(DeactivateNodeRequest(node_id=node))
        except httpx.TransportError as error:
            message = "cannot be tested: the SuperLink is not reached, as `link` says"
            raise RunError(message, where=where) from error
        except httpx.HTTPStatusError as error:
            if dates and (apart := _apart(dates[-1])) > CLOCKS:
                hint = "set the clocks: signatures are of a time"
                raise RunError(
                    "the clocks differ", where=machine.link, found=f"{apart:.0f} s", hint=hint
                ) from error
            code = error.response.status_code
            raise RunError(
                "the SuperLink does not let this key in",
                where=where,
                found=f"status {code}",
                hint=f"at the server: flwr supernode register {machine.key.name}.pub fleet; or a "
                "SuperNode of this key runs already, or was killed less than a minute ago",
            ) from error
    return f"{where} is registered, as node {node}"


@dataclass(frozen=True)
class _Dated:
    """Notes the server's clock."""

    dates: list[str]

    def intercept(
        self, context: object, call_next: Callable[[object], httpx.Response]
    ) -> httpx.Response:
        response = call_next(context)
        self.dates.append(response.headers.get("date", ""))
        return response


def _apart(date: str) -> float:
    """Return by how many seconds the clocks differ, from the date of an HTTP response."""
    if not date:
        return 0.0
    return abs((parsedate_to_datetime(date) - datetime.now(UTC)).total_seconds())


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


def _is_node(machine: Machine) -> bool:
    return machine.node is not None


def _is_server(machine: Machine) -> bool:
    return machine.cert is not None


CHECKS: tuple[tuple[str, Callable[[Machine], bool], Callable[[Machine], str]], ...] = (
    ("versions", lambda machine: True, _versions),
    ("speed", lambda machine: True, _speed),
    ("data", lambda machine: True, _data),
    ("keep", _is_node, _keep),
    ("authority", lambda machine: machine.ca is not None, _authority),
    ("certificate", _is_server, _server_certificate),
    ("port", lambda machine: _is_node(machine) or _is_server(machine), _port),
    ("link", lambda m: bool(m.link and m.ca) and not _is_server(m), _link),
    ("key", lambda m: _is_node(m) and bool(m.key and m.ca and m.link), _key),
    ("nodes", lambda machine: bool(machine.fleet), _fleet),
)
"""What is checked: its name, on which machines, and how."""
