"""A SuperLink and its SuperNodes on the loopback address, with TLS and authenticated nodes."""

from __future__ import annotations

import contextlib
import importlib.metadata
import ipaddress
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

import archgraph

CONFIG = """
[superlink]
default = "fleet"
[superlink.fleet]
address = "127.0.0.1:{port}"
root-certificates = "{folder}/ca.pem"
"""


def until(ready: Callable[[], object], seconds: float = 120) -> None:
    """Wait for something."""
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Fleet:
    """Its processes, started in a folder and ended with it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.processes: list[subprocess.Popen[bytes]] = []
        (folder / "config.toml").write_text(CONFIG.format(port=self.port, folder=folder))
        # Flower starts further commands by name; all of them use this archgraph.
        commands = importlib.metadata.distribution("flwr").locate_file("../../../bin")
        self.environment = {
            **os.environ,
            "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(Path(archgraph.__file__).parents[1]),
            "FLWR_HOME": str(folder),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
            "OMP_NUM_THREADS": "1",
        }

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a command in a process group of its own; what it prints is in a log."""
        with (self.folder / f"{command[0]}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def flwr(self, *words: str) -> str:
        """What a command of Flower's prints."""
        done = subprocess.run(
            ["flwr", *words], cwd=self.folder, env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def link(self) -> None:
        """Start the SuperLink."""
        words = "--ssl-ca-certfile ca.pem --ssl-certfile server.pem --ssl-keyfile server.key"
        also = "--enable-supernode-auth --disable-runtime-dependency-installation"
        self.start("flower-superlink", "--port", str(self.port), *words.split(), *also.split())
        until(lambda: _listens(self.port))

    def node(self, client: int, *, key: str = "", root: str = "ca.pem") -> subprocess.Popen[bytes]:
        """Start the SuperNode of a client."""
        return self.start(
            "flower-supernode",
            *("--superlink", f"127.0.0.1:{self.port}", "--root-certificates", root),
            *("--auth-supernode-private-key", key or f"client{client}"),
            *("--node-config", f"partition-id={client} keep='{self.folder}/kept{client}'"),
            *("--port", str(free_port()), "--max-retries", "0"),
        )

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a process with those that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def kill_server(self) -> None:
        """Kill the process of the ServerApp."""
        address = f"127.0.0.1:{self.port}"
        for place in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = place.read_bytes().decode().split("\0")
                if address in words and any(word.endswith("flwr-serverapp") for word in words):
                    os.kill(int(place.parent.name), signal.SIGKILL)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Fleet]:
    """A SuperLink with two registered nodes, 0 and 1; a key 2 that it does not know."""
    keys(folder)
    fleet = Fleet(folder)
    try:
        fleet.link()
        for client in range(2):
            fleet.flwr("supernode", "register", f"client{client}.pub", "fleet")
        yield fleet
    finally:
        for process in reversed(fleet.processes):
            process.terminate()
        for process in fleet.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            fleet.kill(process)


def keys(folder: Path) -> None:
    """Certificates of an authority, its server and another authority; keys of nodes."""
    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    other = ec.generate_private_key(ec.SECP256R1())
    (folder / "ca.pem").write_bytes(_certificate("ca", authority, "ca", authority))
    (folder / "other.pem").write_bytes(_certificate("other", other, "other", other))
    (folder / "server.pem").write_bytes(_certificate("localhost", server, "ca", authority))
    plain = NoEncryption()
    (folder / "server.key").write_bytes(
        server.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, plain)
    )
    for node in range(3):
        key = ec.generate_private_key(ec.SECP384R1())
        private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, plain)
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        (folder / f"client{node}").write_bytes(private)
        (folder / f"client{node}.pub").write_bytes(public)


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    signer: ec.EllipticCurvePrivateKey,
) -> bytes:
    def named(common: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common)])

    begins, here = datetime.now(UTC) - timedelta(days=1), ipaddress.ip_address("127.0.0.1")
    made = (
        x509.CertificateBuilder(named(issuer), named(name), key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + timedelta(days=3))
        .add_extension(x509.BasicConstraints(ca=key is signer, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(here)]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    return made.public_bytes(Encoding.PEM)
