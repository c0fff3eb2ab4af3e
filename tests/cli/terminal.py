"""The command line as a person types it, and the files that its tests start from."""

from __future__ import annotations

import os
from pathlib import Path

import typer.main
from click.testing import CliRunner, Result

from archgraph import cli

MODEL = """\
archgraph: 1
name: tiny
inputs: {image: [1, 8, 8]}
params: {depth: 2}
blocks:
  residual:
    params: {width: null}
    shortcut: auto
    steps: [conv: {out: $width}, batch_norm, relu]
sections:
  - {name: stem, steps: [conv: {out: 4}, relu]}
  - {name: body, block: residual, depth: $depth, width: 4}
  - {name: head, steps: [global_avg_pool, flatten, linear: {out: 10}]}
choices: {depth: [1, 2, 3]}
"""
FAMILY = """\
archgraph: 1
name: pair
model: model.yaml
clients:
  - {name: whole, count: 1}
  - {name: half, count: 3, take: 0.5}
"""
EXPERIMENT = """\
archgraph: 1
name: quick
family: family.yaml
data: {dataset: digits, partition: {scheme: iid}, limit: 200}
strategy: {heterofl: {}}
rounds: 2
local: {epochs: 1, batch: 50, lr: 0.1}
"""


def call(*args: str | Path) -> Result:
    # Messages stand in one line where no test says how wide the terminal is.
    width = {"COLUMNS": os.environ.get("COLUMNS", "1000")}
    return CliRunner(env=width).invoke(typer.main.get_command(cli.app), [str(a) for a in args])


def refused(result: Result, *words: str) -> None:
    """The law of mistakes: exit code 2, one message on standard error, no traceback."""
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    for word in words:
        assert word in result.stderr
