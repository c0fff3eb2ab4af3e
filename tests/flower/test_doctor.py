"""What is wrong with a machine of a deployment, without servers."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="needs the extra `flower`")

from archgraph.cli import app as command
from archgraph.errors import RunError
from archgraph.flower import doctor
from archgraph.flower.doctor import CHECKS, Machine, diagnoses
from archgraph.flower.starter import write_app

from .fleet import free_port, keys

CHECK = {name: check for name, _, check in CHECKS}


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("papers")
    keys(folder)
    return folder


@pytest.fixture
def link(papers: Path) -> Iterator[str]:
    """The address of a server that speaks TLS once."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(papers / "server.pem", papers / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with socket.socket() as nothing:
                try:
                    plain, _ = listening.accept()
                    nothing = plain
                    context.wrap_socket(plain, server_side=True).close()
                except OSError:  # refused, or not asked
                    nothing.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        with socket.socket() as last:  # where the test did not come
            last.connect_ex(listening.getsockname())
    thread.join()


def wrong(name: str, machine: Machine) -> str:
    with pytest.raises(RunError) as caught:
        CHECK[name](machine)
    return str(caught.value)


def test_a_link_is_reached_with_the_right_authority(papers, link):
    machine = Machine(papers, link, papers / "ca.pem", node="")
    assert f"{link} answers, with a certificate that" in CHECK["link"](machine)


def test_a_link_with_another_authority_is_not(papers, link):
    said = wrong("link", Machine(papers, link, papers / "other.pem", node=""))
    assert "the SuperLink is not reached; found" in said and "certificate" in said
    assert f"expected TLS, with a certificate that {papers}/other.pem signed for 127.0.0.1" in said


def test_a_link_where_nothing_is(papers):
    port = free_port()
    said = wrong("link", Machine(papers, f"127.0.0.1:{port}", papers / "ca.pem", node=""))
    assert "the SuperLink is not reached; found Connection refused" in said
    assert "expected HOST:PORT" in wrong("link", Machine(papers, "server", papers / "ca.pem"))


def test_data_and_versions_of_an_app(write, tmp_path):
    app = tmp_path / "app"
    write_app(write("heterofl"), app)
    assert "archgraph" in CHECK["versions"](Machine(app))
    assert "200 train" in CHECK["data"](Machine(app))
    said = CHECK["data"](Machine(app, node="partition-id=3"))
    assert said.startswith("client 3 (whole): ") and "examples of shape [1, 8, 8]" in said
    for node in ("", "partition-id=9"):
        assert "partition-id: not a client; found" in wrong("data", Machine(app, node=node))
    assert "quote texts within" in wrong("data", Machine(app, node="partition-id=0 data=/data"))
    project = (app / "pyproject.toml").read_text().replace('version = "0.', 'version = "7.')
    (app / "pyproject.toml").write_text(project)
    assert "pip install 'archgraph[flower]==7." in wrong("versions", Machine(app))


def test_every_check_is_made_and_something_wrong_has_exit_code_2(monkeypatch, tmp_path):
    def unreadable(machine: Machine) -> str:
        raise PermissionError(13, "Permission denied", "/root/rows")

    rows = [("data", lambda m: True, lambda m: "12 examples"), ("nodes", lambda m: False, wrong)]
    monkeypatch.setattr(doctor, "CHECKS", rows)
    assert [(one.check, one.wrong) for one in diagnoses(Machine(tmp_path))] == [("data", False)]
    done = CliRunner().invoke(command, ["flower", "doctor", str(tmp_path)])
    assert (done.exit_code, done.output) == (0, "ok data: 12 examples\n")
    monkeypatch.setattr(doctor, "CHECKS", [("data", lambda m: True, unreadable), *rows])
    done = CliRunner().invoke(command, ["flower", "doctor", str(tmp_path)])
    assert done.exit_code == 2
    first, last = done.output.splitlines()
    assert first.startswith("FAIL data: PermissionError") and last.startswith("ok data")
