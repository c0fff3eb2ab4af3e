"""The notebooks of the documentation run, and what they show can be shown."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))
PAGES = {"different-models": 2, "looking-into-a-run": 1, "submodels-by-budget": 2, "your-model": 2}
"""How many pages each notebook shows."""
QUICK = "your-model"


def shown_by(cell: str, namespace: dict[str, Any]) -> object:
    """Run a cell as a kernel does, and return the value of its last line."""
    body = ast.parse(cell).body
    last = body[-1]
    if not isinstance(last, ast.Expr):
        exec(cell, namespace)
        return None
    exec(compile(ast.Module(body[:-1], []), "<cell>", "exec"), namespace)
    return eval(compile(ast.Expression(last.value), "<cell>", "eval"), namespace)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.full] * (path.stem != QUICK), id=path.stem)
        for path in NOTEBOOKS
    ],
)
def test_a_notebook_runs_and_shows_its_pages(path: Path, monkeypatch, tmp_path: Path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    pages = 0
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == [] and cell["execution_count"] is None, "committed without output"
        value = shown_by("".join(cell["source"]), namespace)
        html = value._repr_html_() if hasattr(value, "_repr_html_") else repr(value)
        pages += html.startswith("<iframe ")
    assert pages == PAGES[path.stem]
