"""The names users write are there, are what they say, and come without torch until used."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest

import archgraph as ag
from archgraph import hints

ROOT = Path(__file__).parents[1]
# Another project has this name on the package index.
OTHER_PROJECT = re.compile(
    r"""pip install[^\n|]*?[ '"]archgraph(?![\w.-])|\barchgraph\[[a-z]"""
    r"""|(?:version|distribution|metadata)\(["']archgraph["']\)|pypi\.org/project/archgraph(?![-\w])"""
)


def test_every_public_name_resolves_to_a_function_or_class():
    for name in dir(ag):
        assert not isinstance(getattr(ag, name), types.ModuleType), name
        assert getattr(ag, name).__doc__, name


def test_functions_win_over_submodules_of_the_same_name():
    import archgraph.capture.trace  # noqa: F401 - importing it must not hide the function

    assert callable(ag.trace) and callable(ag.check) and callable(ag.build)


def test_importing_the_package_does_not_import_torch():
    code = "import archgraph, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_only_our_distribution_is_installed_or_asked_for():
    assert OTHER_PROJECT.search("pip install -U archgraph")
    assert OTHER_PROJECT.search("pip install 'archgraph[onnx]'")
    assert not OTHER_PROJECT.search("pip install 'archgraph-torch[onnx]'")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    texts = {".py", ".md", ".toml", ".yaml", ".yml", ".txt", ".cfg", ".ipynb", ".sbatch", ""}
    for file in files:
        if file.suffix in texts and file.is_file() and file != Path(__file__):
            match = OTHER_PROJECT.search(file.read_text(encoding="utf-8"))
            assert match is None, f"{file.relative_to(ROOT)}: {match}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == hints.DISTRIBUTION


@pytest.mark.parametrize("installed", ["here", "elsewhere", "editable", "not"])
def test_the_version_says_whether_the_installed_code_runs(monkeypatch, tmp_path, installed):
    record = tmp_path / "archgraph_torch-1.2.3.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: archgraph-torch\nVersion: 1.2.3\n"
    )
    source = f'{{"url": "{ROOT.as_uri()}", "dir_info": {{"editable": true}}}}'
    if installed == "editable":
        (record / "direct_url.json").write_text(source)
    if installed == "here":
        monkeypatch.setattr(hints, "__file__", str(tmp_path / "archgraph" / "hints.py"))

    def distribution(name):
        if installed == "not":
            raise importlib.metadata.PackageNotFoundError(name)
        return importlib.metadata.PathDistribution(record)

    monkeypatch.setattr("importlib.metadata.distribution", distribution)
    expected = {"elsewhere": "1.2.3+local", "not": "0+local"}.get(installed, "1.2.3")
    assert hints.version() == expected
