"""What commands print: no line wider than the terminal, colours by meaning, progress."""

from __future__ import annotations

import pty
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from archgraph.cli import output
from archgraph.tables import terminal_columns, wrapped
from tests.cli.terminal import EXPERIMENT, call

SPECS = Path(__file__).parents[2] / "specs"
SUBJECTS = ("models/vit_b16.yaml", "models/small_unet.yaml", "families/fedfa_digits.yaml")
COMMANDS = (
    *((command, file) for command in ("show", "explain") for file in SUBJECTS),
    ("compare", "models/small_vgg.yaml", "models/small_resnet.yaml"),
    ("compare", "models/resnet18.yaml", "models/resnet34.yaml"),
    ("match", "models/small_cnn.yaml", "models/small_stages.yaml"),
    ("check", "models/recipfl_bert.yaml", "models/small_unet.yaml"),
    ("strategies",),
    ("help",),
    ("help", "fedfa"),
)


@pytest.mark.sample(4)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_line_is_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch, command):
    monkeypatch.chdir(SPECS)
    monkeypatch.setenv("COLUMNS", "80")
    result = call(*command)
    assert result.exit_code in (0, 1), result.output
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_comparisons_and_mistakes_fit_the_terminal(here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    for seed in (0, 1):
        (here / "e.yaml").write_text(f"{EXPERIMENT}seed: {seed}\n")
        assert call("run", "e.yaml", "--out", f"runs/{seed}").exit_code == 0
    (here / "wrong.yaml").write_text(
        "archgraph: 1\nname: wrong\nsections: [{name: a, stepz: []}]\n"
    )
    for command in (["compare", "runs"], ["check", "."]):
        result = call(*command)
        assert max(map(len, result.stdout.splitlines())) <= 80, result.stdout
    assert "FAIL  wrong.yaml" in result.stdout


@given(st.lists(st.text("ab ", min_size=1), max_size=5), st.integers(10, 39), st.integers(0, 4))
def test_wrapping_keeps_every_word(lines: list[str], width: int, indent: int):
    text = wrapped("\n".join(lines), indent, width)
    assert text.split() == "\n".join(lines).split()
    wide = [line for line in text.split("\n") if len(line) > width]
    assert all(len(line.split()) == 1 for line in wide)  # a word that is longer than a line
    assert wrapped(40 * "a", indent, width) == 40 * "a"


def test_a_pipe_is_as_wide_as_the_terminal_beside_it(monkeypatch: pytest.MonkeyPatch):
    def columns(errors: int) -> bytes:
        code = "from archgraph.tables import terminal_columns; print(terminal_columns())"
        line = [sys.executable, "-c", code]
        return subprocess.run(line, stdout=subprocess.PIPE, stderr=errors, check=True).stdout

    monkeypatch.delenv("COLUMNS", raising=False)
    _, terminal = pty.openpty()
    subprocess.run(["stty", "cols", "132"], stdin=terminal, check=True)
    assert columns(terminal) == b"132\n"
    assert columns(subprocess.DEVNULL) == b"80\n"
    monkeypatch.setenv("COLUMNS", "100")
    assert terminal_columns() == 100


def test_colours_say_what_is_wrong_and_only_to_terminals(monkeypatch: pytest.MonkeyPatch, capsys):
    printed: list[str] = []
    monkeypatch.setattr(typer, "echo", lambda text, **_: printed.append(text))
    monkeypatch.delenv("NO_COLOR", raising=False)
    for text in ("error: x", "note: x", "ok    x", "FAIL  x", "okay x"):
        output.say(text)
    assert [text[:5] for text in printed] == [
        "\x1b[31m",
        "\x1b[33m",
        "\x1b[32m",
        "\x1b[31m",
        "okay ",
    ]
    monkeypatch.setenv("NO_COLOR", "1")
    output.say("error: x")
    assert printed[-1] == "error: x"
    monkeypatch.undo()
    monkeypatch.delenv("NO_COLOR", raising=False)
    output.say("error: x")  # into a file
    assert capsys.readouterr().out == "error: x\n"


def test_progress_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(output, "SECONDS", 0.0)
    assert list(output.with_progress("abc", 3, "files")) == ["a", "b", "c"]
    assert capsys.readouterr().err == "1 of 3 files\n2 of 3 files\n3 of 3 files\n"
    monkeypatch.setattr(output, "SECONDS", 60.0)
    assert list(output.with_progress("abc", 3, "files")) == ["a", "b", "c"]
    assert not capsys.readouterr().err
    # On a terminal each line replaces the last, and none is left.
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    printed: list[str] = []
    monkeypatch.setattr(typer, "echo", lambda text, **_: printed.append(text))
    assert list(output.with_progress("ab", 2, "files")) == ["a", "b"]
    assert printed == ["\r\x1b[K", "1 of 2 files", "\r\x1b[K"]
