"""The server of a run that goes on: it shows that run to this machine, and nothing else."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from archgraph.errors import RunError
from archgraph.reports.page import chart_script
from archgraph.reports.watch import SCRIPT, RunServer

SECRET = "nobody else may read this"
CONFIG = """\
archgraph: 1
name: slow
family: {model: net.yaml, clients: [{name: whole}]}
data: {dataset: digits}
strategy: {fedavg: {}}
rounds: 4
"""


def line(number: int, accuracy: float) -> str:
    row = {"accuracy": accuracy}
    facts = {"models": {"whole": row}, "judge": "accuracy", "better": {"accuracy": True}}
    seconds = {"local": 30.0, "total": 60.0}
    return json.dumps({"round": number, "evaluation": facts, "seconds": seconds}) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    (run / "pictures").mkdir(parents=True)
    (run / "run.yaml").write_text(CONFIG)
    (run / "metrics.jsonl").write_text(line(1, 0.25))
    (tmp_path / "secret.txt").write_text(SECRET)
    (run / "link.txt").symlink_to(tmp_path / "secret.txt")
    (run / "pictures" / "link.svg").symlink_to(tmp_path / "secret.txt")
    (run / "up").symlink_to("/")
    return run


@pytest.fixture
def writer(folder: Path) -> Iterator[int]:
    """A process that writes the run, as its lock shows."""
    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with contextlib.suppress(OSError):  # a test closes it
        yield lock
        os.close(lock)


@pytest.fixture
def server(folder: Path) -> Iterator[RunServer]:
    with RunServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(
    server: RunServer, path: str, host: str | None = None, method: str = "GET"
) -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.putrequest(method, path, skip_host=True)
    name = f"127.0.0.1:{server.server_port}" if host is None else host
    if name:
        connection.putheader("Host", name)
    connection.endheaders()
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, answer.headers


def test_a_run_that_nobody_writes_has_no_time_left(server: RunServer, writer: int):
    said = ask(server, "/state.txt")[1]
    os.close(writer)  # as when its process ends, in whatever way
    assert ask(server, "/state.txt")[1] != said, "the page asks again"
    assert (
        "<p>round 1 of 4, not running now: archgraph run … --resume goes on</p>"
        in (ask(server, "/")[1])
    )


@pytest.mark.usefixtures("writer")
def test_it_shows_what_the_run_has_written_so_far(server: RunServer, folder: Path):
    status, text, _ = ask(server, "/")
    assert status == 200 and "<p>round 1 of 4, about 3 min left</p>" in text
    assert 'max="4" value="1"></progress>' in text and "25.00" in text
    before = ask(server, "/state.txt")[1]
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(line(2, 0.5) + '{"round": 3, "ev')  # a line that is being written
    assert ask(server, "/state.txt")[1] != before
    text = ask(server, "/")[1]
    assert "round 2 of 4" in text and "50.00" in text
    assert text == ask(server, "/")[1]


def test_only_this_machine_reaches_it(server: RunServer):
    assert server.server_address[0] == "127.0.0.1"
    listening = socket.getaddrinfo(socket.gethostname(), server.server_port, socket.AF_INET)
    for *_, address in listening:
        host = str(address[0])
        if not host.startswith("127."):
            with pytest.raises(OSError), socket.create_connection((host, server.server_port), 2):
                pass


@pytest.mark.parametrize(
    "path",
    [
        "/metrics.jsonl", "/run.yaml", "/link.txt", "/up/etc/passwd", "/pictures/link.svg",
        "/../secret.txt", "/run/../../secret.txt", "//secret.txt", "/%2e%2e/secret.txt",
        "/..%2fsecret.txt", "/..\\secret.txt", "/%00", "/?", "/./", "/index.html/",
        "/state.txt/", "/state.txt/../run.yaml",
        "http://127.0.0.1/secret.txt", "secret.txt", "*",
    ],
)  # fmt: skip
def test_no_path_leads_to_a_file(server: RunServer, path: str):
    status, text, _ = ask(server, path)
    assert status == 404 and "nothing here" in text and SECRET not in text


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:PORT", "127.0.0.1", "127.0.0.1:1", "127.0.0.1:PORT@x"],
)
def test_a_page_whose_name_leads_here_gets_nothing(server: RunServer, host: str):
    for path in ("/", "/state.txt"):
        status, text, _ = ask(server, path, host.replace("PORT", str(server.server_port)))
        assert status == 403 and "not the name of this server" in text
    assert ask(server, "/state.txt", f"localhost:{server.server_port}")[0] == 200


def test_nothing_of_linked_files_is_on_the_page_and_nothing_is_loaded(server: RunServer):
    _, text, headers = ask(server, "/")
    assert SECRET not in text
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff" and "Server" in headers
    assert "Python" not in headers["Server"]
    assert re.findall(r"<script>(.*?)</script>", text, re.DOTALL) == [chart_script(), SCRIPT]
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]', text)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
def test_nothing_can_be_changed(server: RunServer, method: str):
    assert ask(server, "/", method=method)[0] == 501


def test_a_damaged_run_is_told_and_the_server_goes_on(server: RunServer, folder: Path):
    (folder / "metrics.jsonl").write_text("[]\n" + line(2, 0.5))
    status, text, _ = ask(server, "/")
    assert status == 503 and "metrics.jsonl" in text
    (folder / "metrics.jsonl").write_text(line(1, 0.5))
    assert ask(server, "/")[0] == 200


def test_what_is_not_a_run_or_a_port_is_refused(tmp_path: Path, server: RunServer, folder: Path):
    with pytest.raises(RunError, match="not a run folder"):
        RunServer(tmp_path)
    with pytest.raises(RunError, match="cannot listen"):
        RunServer(folder, server.server_port)


@contextlib.contextmanager
def killed(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Ends a process that a failed test leaves behind, which would be waited for."""
    try:
        yield
    finally:
        process.kill()


def test_the_command_ends_by_ctrl_c(folder: Path):
    command = [sys.executable, "-m", "archgraph", "watch", str(folder)]
    # A job in the background of a shell ignores interrupts, and so would its children.
    heeding = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    with (
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heeding
        ) as process,
        killed(process),
    ):
        assert process.stdout is not None and process.stderr is not None
        said = process.stdout.readline().decode()
        assert re.match(r"http://127\.0\.0\.1:\d+/ shows .*; Ctrl-C ends", said)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert process.stderr.read() == b""
