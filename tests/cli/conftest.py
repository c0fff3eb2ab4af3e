"""A folder with a model, a family and an experiment, in which the user stands."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.terminal import EXPERIMENT, FAMILY, MODEL


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "made_here", raising=False)
    for name, text in (("model", MODEL), ("family", FAMILY), ("experiment", EXPERIMENT)):
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path
