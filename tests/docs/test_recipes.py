"""Recipes for machines: files that their programs read, with options that these have."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from ruamel.yaml import YAML

from archgraph.cli import app

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
JOBS = sorted(EXAMPLES.glob("*.sbatch"))


def options(program: str) -> set[str]:
    """The options of a program of Flower's, from the parser that reads them."""
    pytest.importorskip("flwr", reason="needs the extra `flower`")
    if program == "flower-superlink":
        from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink as parser
    else:
        from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode as parser
    return {name for action in parser()._actions for name in action.option_strings}


def commands(text: str) -> Iterator[list[str]]:
    """The commands of a job that start a program of ours, of Flower's or of Ray's."""
    for line in text.replace("\\\n", " ").splitlines():
        start = re.search(r"\b(flower-superlink|flower-supernode|archgraph|ray start)\b", line)
        if start and not line.startswith("#"):
            yield shlex.split(line[start.start() :])


def composed() -> list[list[str]]:
    services = YAML(typ="safe").load((EXAMPLES / "compose.yaml").read_text())["services"]
    return [service["command"] for service in services.values()]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_job_is_a_script(job):
    assert subprocess.run(["bash", "-n", job], capture_output=True).stderr == b""
    assert job.read_text().splitlines()[1].startswith("#SBATCH ")


@pytest.mark.parametrize("program", ["flower-superlink", "flower-supernode"])
def test_recipes_start_flower_with_options_that_it_has(program):
    started = [*composed(), *(words for job in JOBS for words in commands(job.read_text()))]
    used = {
        word.partition("=")[0]
        for words in started
        if words[0] == program
        for word in words
        if word.startswith("--")
    }
    assert len(used) > 3 and used <= options(program)


def test_recipes_call_commands_of_archgraph():
    called = [w[1:] for job in JOBS for w in commands(job.read_text()) if w[0] == "archgraph"]
    assert [words[0] for words in called] == ["run"]
    for words in called:
        command: Any = typer.main.get_command(app)
        while isinstance(command, click.Group):
            with click.Context(command) as context:
                name, command, words = command.resolve_command(context, words)
        command.make_context(name, words)


def test_recipes_start_ray_with_options_that_it_has():
    scripts = pytest.importorskip("ray.scripts.scripts", reason="needs the extra `flower`")
    known = {name for option in scripts.start.params for name in option.opts}
    started = [w for job in JOBS for w in commands(job.read_text()) if w[0] == "ray"]
    assert len(started) == 2
    for words in started:
        used = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert used <= known


def test_each_node_of_a_composition_is_a_client_with_a_key_and_rows_of_its_own():
    nodes = [words for words in composed() if words[0] == "flower-supernode"]
    keys, clients = (
        [next(w for w in words if w.startswith(start)) for words in nodes]
        for start in ("--auth-supernode-private-key=", "--node-config=partition-id=")
    )
    assert len({*keys}) == len({*clients}) == len(nodes) == 2
