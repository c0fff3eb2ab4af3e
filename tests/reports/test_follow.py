"""A run that is followed: its page is written after each round and reloads itself until it ends."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from archgraph.errors import RunError
from archgraph.reports import page, report
from tests.cli.terminal import call

CONFIG = """\
archgraph: 1
name: slow
family: {model: net.yaml, clients: [{name: whole}]}
data: {dataset: digits}
strategy: {fedavg: {}}
rounds: 4
local: {lr: 0.1}
"""
RELOADS = '<meta http-equiv="refresh" content="10">'


def line(number: int, accuracy: float) -> str:
    row = {"accuracy": accuracy}
    facts = {"models": {"whole": row}, "judge": "accuracy", "better": {"accuracy": True}}
    seconds = {"local": 30.0, "total": 60.0}
    return json.dumps({"round": number, "evaluation": facts, "seconds": seconds}) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.yaml").write_text(CONFIG)
    (run / "metrics.jsonl").write_text(line(1, 0.25))
    return run


@pytest.fixture
def writer(folder: Path) -> Iterator[int]:
    """A process that writes the run, as its lock shows."""
    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with contextlib.suppress(OSError):  # a test closes it
        yield lock
        os.close(lock)


def until(path: Path, *words: str) -> str:
    """Return the page once it has these words."""
    for _ in range(3000):
        text = path.read_text() if path.exists() else ""
        if all(word in text for word in words):
            return text
        threading.Event().wait(0.02)
    raise AssertionError(f"{words} are not on the page")


def test_the_page_follows_the_run_until_it_ends(folder: Path, writer: int, monkeypatch):
    monkeypatch.setattr(page, "LOOK", 0.01)
    path = folder / "report.html"
    shown: list[str] = []

    def viewer(log) -> str:
        shown.append(log.name)
        return "<p>the viewer</p>"

    following = threading.Thread(target=partial(report, folder, viewer=viewer, follow=True))
    following.start()
    try:
        until(path, RELOADS, "25.00", "1 of 4")
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(line(2, 0.5) + '{"round": 3, "ev')  # a line that is being written
        text = until(path, RELOADS, "50.00", "2 of 4")
        assert not shown and "<iframe" not in text
        with (folder / "metrics.jsonl").open("a") as file:
            file.write('aluation": {}}\n' + line(4, 0.75))
    finally:
        os.close(writer)  # as when its process ends, in whatever way
        following.join(60)
    text = path.read_text()
    assert not following.is_alive() and 'http-equiv="refresh"' not in text
    assert "75.00" in text and shown == ["slow"] and "<iframe" in text


def test_a_run_that_has_ended_is_written_once(folder: Path):
    assert RELOADS not in report(folder, follow=True).read_text()


def test_several_runs_are_not_followed(folder: Path, tmp_path: Path):
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "run.yaml").write_text(CONFIG)
    with pytest.raises(
        RunError, match="follow: only one run at a time can be followed; found 2 runs"
    ):
        report(tmp_path, follow=True)


def test_watch_is_gone_and_names_its_successor():
    said = call("watch", "runs/mine")
    assert said.exit_code == 2 and "archgraph report RUN --follow" in " ".join(said.output.split())


@pytest.mark.full
@pytest.mark.usefixtures("writer")
def test_the_command_ends_by_ctrl_c_and_its_page_does_not_reload(folder: Path):
    command = [sys.executable, "-m", "archgraph", "report", str(folder), "--follow"]
    # A job in the background of a shell ignores interrupts, and so would its children.
    heeding = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heeding
    ) as process:
        try:
            until(folder / "report.html", RELOADS)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
            assert process.stderr is not None and process.stderr.read() == b""
        finally:
            process.kill()
    assert not re.search("http-equiv=.refresh", (folder / "report.html").read_text())
