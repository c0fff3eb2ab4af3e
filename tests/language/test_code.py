"""Which modules of the user's a Python name leads to, and what counts as a change of one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from archgraph.language.code import users_code
from archgraph.language.consent import allowed


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def write(folder: Path, **modules: str) -> None:
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)


def test_a_module_and_what_it_imports_without_comments(folder: Path) -> None:
    write(folder, outer57="import json, inner57\nX = 1\n", inner57="Y = 1\n", beside57="Z = 1\n")
    assert users_code(["outer57:X"]) == {}  # without consent nothing is looked for
    with allowed():
        first = users_code(["outer57:X", "torch.nn:Linear", "nowhere57:X"])
        assert set(first) == {"outer57", "inner57"}
        write(folder, outer57="import json, inner57  # a comment\n\nX = 1\n", beside57="Z = 2\n")
        assert users_code(["outer57:X"]) == first
        write(folder, inner57="Y = 2\n")
        changed = users_code(["outer57:X"])
        assert changed["inner57"] != first["inner57"] and changed["outer57"] == first["outer57"]


@pytest.mark.parametrize("first", ["A = 1\n", None], ids=["package", "folder without __init__"])
def test_modules_of_a_package_and_the_packages_that_run_before_them(
    folder: Path, first: str | None
) -> None:
    name = "packed57" if first else "bare57"
    inside = folder / name / "sub"
    inside.mkdir(parents=True)
    if first:
        (folder / name / "__init__.py").write_text(first)
    (inside / "__init__.py").write_text("from .deep import D\n")
    (inside / "deep.py").write_text("from ..up import U\nD = 1\n")
    (folder / name / "up.py").write_text("U = 1\ndef f():\n    from . import late\n")
    (folder / name / "late.py").write_text("def broken(:\n")  # as it may be where nobody calls f
    with allowed():
        found = {n.removeprefix(name) for n in users_code([f"{name}.sub.deep:D"])}
    expected = {".sub.deep", ".sub", ".up", ".late"}
    assert found == (expected | {""} if first else expected)


def test_the_script_that_runs_and_a_module_whose_file_is_gone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, script57="import gone57\n", gone57="X = 1\n")
    script = type(sys)("__main__")
    script.__file__ = str(folder / "script57.py")
    monkeypatch.setitem(sys.modules, "__main__", script)
    with allowed():
        assert set(users_code(["__main__:Mine"])) == {"__main__", "gone57"}
        __import__("gone57")
        (folder / "gone57.py").unlink()
        assert set(users_code(["__main__:Mine"])) == {"__main__"}
