"""The README is true: its Python runs as written, its YAML is a valid family."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from archgraph.language import load_family

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text()


def test_python_runs_as_written(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    scope: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.S):
        exec(block, scope)  # the README's own code
    assert capsys.readouterr().out.startswith("%")
    assert set(scope["state"]) == set(scope["graph"].state_names)


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", TEXT, re.S))
def test_yaml_is_a_valid_family(block, tmp_path):
    file = tmp_path / "family.yaml"
    file.write_text(block)
    assert [c.name for c in load_family(file).clients] == ["weak", "strong"]


def test_files_and_commands_that_it_names_exist():
    for path in re.findall(r"(?:specs|docs)/[\w/.*]+\w\.(?:yaml|md)", TEXT):
        assert (ROOT / path).exists(), path
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", TEXT, re.M):
        assert f"\n{target}:" in makefile
