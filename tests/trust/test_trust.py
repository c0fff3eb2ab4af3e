"""A sample of what `make trust` does: the scripts work, and find what they are to find."""

from __future__ import annotations

import ast
import json
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests import sheets
from tests.trust import log
from tests.trust.folders import mutate_header, mutate_json
from tests.trust.kills import differing
from tests.trust.log import Log
from tests.trust.mutants import Runner, _announcing, _install, _live
from tests.trust.mutations import mutants, rank
from tests.trust.planted import EQUIVALENT, PLANTED
from tests.trust.rooms import ROOMS

ROOT = Path(__file__).resolve().parents[2]
SOURCE = '''\
def clamp(x: int, low: int = 0) -> int:
    """Not below a bound."""
    if x < low:
        raise ValueError(f"found {x + 1}")
    total = x
    total = max(total, low, key=abs)
    return total - 1
'''
CHANGES = [
    "x < low → x <= low",
    "raise ValueError(f'found {x + 1}') → pass",
    "total = max(total, low, key=abs) → pass",
    "max(total, low, key=abs) → max(total, low)",
    "max(total, low, key=abs) → min(total, low, key=abs)",
    "return total - 1 → return None",
    "total - 1 → total + 1",
    "1 → 2",
    "1 → 0",
]


def test_every_mutant_is_one_small_change(tmp_path):
    (tmp_path / "m.py").write_text(SOURCE)
    assert [m.change for m in mutants(tmp_path, "room", "m.py")] == CHANGES
    original = ast.unparse(ast.parse(SOURCE)).splitlines()
    for number in range(len(CHANGES)):
        mutant = mutants(tmp_path, "room", "m.py")[number]
        changed = ast.unparse(mutant.apply()).splitlines()
        pairs = zip(original, changed, strict=True)
        (odd,) = [at for at, (before, after) in enumerate(pairs, start=1) if before != after]
        assert odd == mutant.line
        compile(mutant.apply(), "m.py", "exec")


def test_arguments_that_are_the_same_are_not_exchanged(tmp_path):
    (tmp_path / "m.py").write_text(
        "def f(n):\n    return zeros(len(n), len(n)), power(n, len(n))\n"
    )
    changes = [m.change for m in mutants(tmp_path, "room", "m.py")]
    assert "power(n, len(n)) → power(len(n), n)" in changes
    assert not any(change.startswith("zeros") for change in changes)


def test_a_sample_does_not_depend_on_where_code_stands(tmp_path):
    (tmp_path / "m.py").write_text(SOURCE)
    before = {m.name: rank(3, m) for m in mutants(tmp_path, "room", "m.py")}
    (tmp_path / "m.py").write_text("\n\n" + SOURCE)
    assert {m.name: rank(3, m) for m in mutants(tmp_path, "room", "m.py")} == before


@pytest.mark.full
def test_changed_code_runs_in_functions_that_exist():
    from archgraph.plain import json_safe

    path = "archgraph/plain.py"
    live = _live({path})
    mutant = next(m for m in mutants(ROOT, "", path) if m.function == "json_safe")
    assert mutant.change.startswith("return ")
    try:
        _install(live, path, mutant.apply())
        assert json_safe(1.0) is None
        hits: set[tuple[str, int]] = set()
        json_safe.__globals__["__reached__"] = hits.add
        _install(live, path, _announcing(path))
        assert json_safe([1.0]) == [1.0]
        assert {place for place, _ in hits} == {path}
        assert len(hits) > 2
    finally:
        _install(live, path, ast.parse((ROOT / path).read_text()))
        json_safe.__globals__.pop("__reached__", None)
    assert json_safe(1.0) == 1.0


def test_a_log_counts_while_its_files_are_as_they_were(tmp_path, monkeypatch):
    monkeypatch.setattr(log, "ROOT", tmp_path)
    log.sha256.cache_clear()
    for name in ("a.py", "b.py", "test_a.py", "test_b.py"):
        (tmp_path / name).write_text(name)
    first = Log(tmp_path / "log")
    first.add("change", "one", ["a.py", "test_a.py"], verdict="killed")
    first.add("change", "two", ["a.py", "test_b.py"], verdict="survived")
    first.add("test", "one", ["b.py"], lines=[("b.py", 1)])
    assert Log(tmp_path / "log").known("change").keys() == {"one", "two"}
    (tmp_path / "test_b.py").write_text("another")
    (tmp_path / "b.py").unlink()
    log.sha256.cache_clear()
    again = Log(tmp_path / "log")
    assert {name: line["verdict"] for name, line in again.known("change").items()} == {
        "one": "killed"
    }
    assert not again.known("test")
    log.sha256.cache_clear()


def test_tests_whose_log_lacks_a_file_run_again():
    """Else a change there would seem to be one that no test reaches."""
    runner = Runner((), Log(None))
    runner._log.add("test", "t", ["a.py"], seconds=0.0, sound=True, lines=[["a.py", 3]])
    session: Any = SimpleNamespace(items=[SimpleNamespace(nodeid="t")])
    (found,) = runner._reached(session, {}, {"a.py"})
    assert found["lines"] == [["a.py", 3]]
    with pytest.raises(RuntimeError, match="No such file"):  # it is asked again, about both
        runner._reached(session, {}, {"a.py", "archgraph/missing.py"})


def test_a_change_that_no_test_runs_is_called_unreached():
    mutant, session = mutants(ROOT, "", "archgraph/plain.py")[0], cast(pytest.Session, None)
    assert Runner((), Log(None))._examine(session, {}, mutant, []) == ("unreached", None)


def test_planted_faults_fit_the_code():
    assert all(fault.line > 0 and fault.room in ROOMS for fault in PLANTED)
    compiled = [compile(fault.apply(), fault.path, "exec") for fault in PLANTED]
    assert len(compiled) == len({fault.name for fault in PLANTED})


@pytest.mark.full
def test_equivalent_mutants_are_mutants_with_a_reason():
    names = {m.name for room, r in ROOMS.items() for p in r.modules for m in mutants(ROOT, room, p)}
    assert set(EQUIVALENT) <= names
    assert all(EQUIVALENT.values())


def test_rows_replace_those_of_the_same_kind(tmp_path):
    file = tmp_path / "fuzz.csv"
    sheets.update(file, [{"kind": "a, b", "n": 1}, {"kind": "c", "n": 2}], "kind")
    sheets.update(file, [{"kind": "c", "n": 3, "more": "\n"}], "kind")
    assert file.read_text().startswith("kind,n,more\n")
    first, second = sheets.read(file)
    assert first == {"kind": "a, b", "n": "1", "more": ""}
    assert second == {"kind": "c", "n": "3", "more": "\n"}


def test_mutations_of_files_change_them():
    rng = random.Random(0)
    line = b'{"a": 1}\n{"round": 1, "clients": [{"client": 0}]}\n'
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    tensors = len(header).to_bytes(8, "little") + header + bytes(4)
    for mutate, data in ((mutate_json, line), (mutate_header, tensors)):
        assert len({mutate(rng, data) for _ in range(40)} - {data}) > 10


def test_differences_of_runs_are_named():
    assert differing({"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "4"}) == ["b", "c"]


@pytest.mark.full
@pytest.mark.parametrize(
    "command",
    [
        ("fuzz", "--count", "40"),
        ("kills", "--kills", "2", "--strategy", "heterofl", "--workers", "2"),
    ],
    ids=lambda command: command[0],
)
def test_a_sample_does_no_harm(command):
    run = [sys.executable, "-m", f"tests.trust.{command[0]}", *command[1:]]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
