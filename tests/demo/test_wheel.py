"""The wheel holds the whole package, links followed, and nothing beside it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def names(tmp_path_factory) -> set[str]:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        return set(wheel.namelist())


def test_strategies_and_specs_are_files_of_the_package(names):
    for folder in ("strategies", "specs"):
        for file in (ROOT / folder).rglob("*.*"):
            if file.suffix in (".py", ".yaml"):
                assert f"archgraph/{file.relative_to(ROOT)}" in names


def test_it_holds_what_is_read_at_run_time(names):
    assert {"archgraph/py.typed", "archgraph/__init__.pyi", "archgraph/demo/start.md"} <= names


def test_there_is_one_top_level_package(names):
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"archgraph"}
    assert any(name.endswith("licenses/LICENSE") for name in names)
