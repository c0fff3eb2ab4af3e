"""What is published builds, is well described, and holds the whole package and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from archgraph import hints

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def wheel(files):
    with zipfile.ZipFile(files[0]) as opened:
        yield opened


@pytest.fixture(scope="module")
def names(wheel) -> set[str]:
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


def test_both_distributions_pass_the_checks_of_the_package_index(files):
    assert [file.suffix for file in files] == [".whl", ".gz"]
    check = [sys.executable, "-m", "twine", "check", "--strict", *map(str, files)]
    subprocess.run(check, check=True, capture_output=True)


def test_the_description_has_no_picture_and_the_base_few_packages(wheel, names):
    (metadata,) = (wheel.read(name).decode() for name in names if name.endswith("/METADATA"))
    assert f"Name: {hints.DISTRIBUTION}\n" in metadata
    assert "## Install" in metadata and "![" not in metadata and "<img" not in metadata
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist")]
    assert 0 < len([line for line in required if "extra ==" not in line]) <= 15
