"""The identity and the origin of a run: versions, the program, its commit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from archgraph.engine.bits import BITS
from archgraph.machine import processor
from archgraph.studies import origin
from archgraph.studies.cell import address
from archgraph.studies.spec import cells, load_study
from archgraph.studies.study_tables import _code
from tests.studies.test_study import STUDY


def test_bits_and_torch_are_part_of_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "table1.yaml").write_text(STUDY)
    spec = cells(load_study(tmp_path / "table1.yaml"), "small")[0].experiment
    names = [address(spec)]
    monkeypatch.setattr("archgraph.studies.origin.BITS", BITS + 1)
    names.append(address(spec))
    monkeypatch.setattr(torch, "__version__", "9.9.9+cpu")
    names.append(address(spec))
    assert len(set(names)) == 3 and "-torch9.9.9-numpy" in names[-1]
    assert len({origin.settings_part(name) for name in names}) == 1
    assert names[0].startswith(origin.settings_part(names[0]) + "-bits")


def test_docstrings_do_not_change_the_digest_of_the_program(tmp_path: Path):
    def tree(text: str) -> str:
        (tmp_path / "module.py").write_text(text)
        return origin._without_docstrings(tmp_path / "module.py")

    plain = tree("def f():\n    return 1\n\n\nclass A:\n    x = 'kept'\n")
    documented = (
        "'M.'\ndef f():\n    'F.'\n    return 1  # why\nclass A:\n    'A.'\n    x = 'kept'\n"
    )
    assert tree(documented) == plain
    for change in (("return 1", "return 2"), ("'kept'", "'other'")):
        assert tree(documented.replace(*change)) != plain


def test_only_a_commit_of_this_repository_is_shown():
    facts = {"code": "1f2e", "archgraph": "0.1.0"}
    head = (origin._git("rev-parse", "HEAD") or "")[:12]
    if head:  # an archive of the sources has no history
        assert _code({**facts, "commit": head}) == f"code 1f2e, commit {head}"
    for commit in ("0123456789ab", origin.UNCOMMITTED):
        assert _code({**facts, "commit": commit}) == "code 1f2e, uncommitted changes"
    assert _code({**facts, "commit": ""}) == "code 1f2e, archgraph 0.1.0"


def test_a_changed_file_is_not_of_its_commit(monkeypatch: pytest.MonkeyPatch):
    answers = {"rev-parse": "0123456789abcdef", "status": ""}
    monkeypatch.setattr(origin, "_git", lambda first, *rest: answers[first])
    assert origin._commit() == "0123456789ab"
    answers["status"] = " M archgraph/engine/fit.py"
    assert origin._commit() == origin.UNCOMMITTED
    answers["rev-parse"] = None  # type: ignore[assignment]  # no repository
    assert origin._commit() == ""


def test_a_processor_is_named_by_family_model_and_stepping():
    if "model name" in Path("/proc/cpuinfo").read_text():
        assert all(f", {key} " in processor() for key in ("family", "model", "stepping"))
