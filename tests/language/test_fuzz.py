"""Malformed files are rejected where the fault is, or load to graphs that can be used."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import archgraph as ag
from archgraph.cli import app
from archgraph.errors import GraphError, SpecError
from archgraph.graph.text import parse
from archgraph.language import flat
from archgraph.limits import LIMITS
from tests.language import fuzzing

COUNT = 500
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.language.fuzzing", "--count", str(COUNT), "--seed", "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.full
@pytest.mark.slow
def test_no_mutation_does_harm(found: dict[str, Any]) -> None:
    assert found["count"] == COUNT
    assert not found["faults"], json.dumps(found["faults"], indent=1)
    assert found["slowest"][1] < 2 * fuzzing.SECONDS
    assert found["peak"][1] < fuzzing.BYTES


@pytest.mark.full
@pytest.mark.slow
def test_mutations_reach_both_ends(found: dict[str, Any]) -> None:
    """Files that are always refused, or never, would say nothing."""
    assert min(found["outcomes"]["rejected"], found["outcomes"]["loaded"]) > COUNT // 20


@pytest.mark.slow
def test_the_command_line_says_one_thing(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "500")  # a reason is a line
    runner = CliRunner()
    codes = []
    for number in range(8):
        case = fuzzing.case(99, number)
        path = tmp_path / f"{number}.yaml"
        path.write_bytes(case.data)
        ran = runner.invoke(app, ["check", str(path)])
        assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
        assert ran.exit_code in (0, 2)
        codes.append(ran.exit_code)
        verdict, *reasons = [s for s in ran.stdout.split("\n") if s.strip()][:-1]
        assert verdict.startswith("FAIL") == len(reasons) == (ran.exit_code == 2)
        assert not ran.stderr
    assert codes.count(2) > 5


# -- one fault each ---------------------------------------------------------------------------

TINY = """\
graph 'tiny'
parameter fc.weight: float32[4, 2]
buffer fc.steps: int64[]
%x: float32[batch, 2] = input()
%linear: float32[batch, 4] = aten.linear(input=%x, weight=fc.weight) @ fc
%split: (float32[batch, 2], float32[batch, 2]) = aten.split_with_sizes(self=%linear, \
split_sizes=(2, 2), dim=-1)
%half: float32[batch, 2] = getitem(source=%split, index=0)
%count: int64[] = aten.add.Tensor(self=fc.steps, other=1)
update fc.steps = %count
forward x = %x
return %half
"""


def load(folder: Path, *changes: tuple[str, str]) -> Any:
    """The tiny model with some of its text changed, read from a file."""
    text = flat.dump(parse(TINY))
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "m.yaml").write_text(text)
    return ag.load(folder / "m.yaml")


def test_the_tiny_model_is_sound(tmp_path: Path) -> None:
    assert load(tmp_path) == parse(TINY)


FAULTS = [
    # names
    (("fc.weight", "@'a\" or b'"), "tensor with an invalid name"),
    (("fc.weight", "@'a\\\\'"), "tensor with an invalid name"),
    (("fc.weight", "fc..weight"), "tensor with an invalid name"),
    (("fc.weight", "fc"), "fc.steps: tensor and module with the same path; found fc"),
    (("fc.weight", "@'\\ud800'"), "has an unpaired surrogate"),
    (('"tiny"', '"\\ud800"'), "invalid Unicode character"),
    (('"x": "%x"', '"class": "%x"'), "argument of forward must be an identifier; found class"),
    (('"%half"', "\"T{'class': %half}\""), "invalid name in a named tuple; found class"),
    (('"%half"', "\"{'a': %half, 'a': %x}\""), "two results with the same name"),
    # operators
    (("aten.linear(input=%x", "aten.save(self=%x, filename='x'"), "%linear: unknown operator"),
    (("aten.linear(", "aten.from_file("), "%linear: unknown operator"),
    (("aten.linear(input=%x, weight=fc.weight)", "aten.random.from(self=%x, from=1, to=None)"),
     "%linear: unknown operator"),
    (("aten.linear(input=%x", "aten.linear(input='x'"),
     "%linear: argument 'input' has the wrong type; found 'x'; expected Tensor"),
    (("dim=-1", "dim=9223372036854775808"), "argument 'dim' has the wrong type"),
    (("dim=-1", "dim=True"), "argument 'dim' has the wrong type; found True; expected int"),
    (("dim=-1", "dim=7"), "%split: aten.split_with_sizes does not fit its arguments"),
    (("split_sizes=(2, 2)", "split_sizes=(2, 3)"), "%split: aten.split_with_sizes does not fit"),
    (("(self=fc.steps", "(self=%split"), "argument 'self' has the wrong type; found %split"),
    (("source=%split", "source=%linear"), "%half: getitem takes one of several results"),
    (("index=0", "index=2"), "%half: no such result; found 2; expected 0 to 1"),
    (("index=0", "index=True"), "%half: no such result"),
    # types
    (("%linear: float32[batch, 4]", "%linear: float32[batch, 5]"),
     "%linear: aten.linear computes another type than declared; found float32[batch, 5]; "
     "expected float32[batch, 4]"),
    (("%linear: float32", "%linear: float64"), "computes another type than declared"),
    (("%half: float32[batch, 2]", "%half: float32[2, 2]"), "getitem computes another type"),
    (("fc.weight: float32", "fc.weight: int64"), "fc.weight: parameter that cannot be trained"),
    (("fc.steps: int64[]", "fc.steps: float32[]"), "%count: aten.add.Tensor computes another type"),
    (('"fc.steps": "%count"', '"fc.steps": "%half"'), "fc.steps: update with the wrong shape"),
    (('"fc.steps": "%count"', '"fc.steps": "7"'), "fc.steps: update with the wrong shape"),
    (('"%half"', '"%split"'), "outputs: several results where one is expected"),
    (('"%half"', '"train(%half, None)"'), "the graph returns no tensor in evaluation"),
    # sizes
    (("%x: float32[batch, 2]", "%x: float32[batch**99999999, 2]"), "is not a power"),
    (("%x: float32[batch, 2]", "%x: float32[batch**-1, 2]"), "cannot be read"),
    (("%x: float32[batch, 2]", "%x: float32[batch, batch - 9]"), "%x: negative size"),
    (("%x: float32[batch, 2]", "%x: float32[9999999999999]"),
     f"%x: size too large; found float32[9999999999999]; expected at most {LIMITS.size}"),
    (("%x: float32[batch, 2]", "%x: float32[1000000000, 2000000000]"),
     f"%x: tensor too large; found float32[1000000000, 2000000000]; "
     f"expected at most {LIMITS.elements} elements"),
    (("%x: float32[batch, 2]", f"%x: float32[{'1, ' * 40}1]"),
     f"%x: too many dimensions; found 41; expected at most {LIMITS.rank}"),
    (("fc.weight: float32[4, 2]", "fc.weight: float32[4000000, 2000000]"),
     f"fc.weight: tensor too large; found float32[4000000, 2000000]; "
     f"expected at most {LIMITS.leaf_elements} elements"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), FAULTS)
def test_a_fault_is_found_where_it_is(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        load(tmp_path, change)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}/m.yaml:")


def test_results_are_counted_before_they_are_made() -> None:
    graph = parse(
        "%x: float32[1000000000] = input()\n%all: (float32[],) = aten.unbind.int(self=%x)\n"
        "%one: float32[] = getitem(source=%all, index=0)\nforward x = %x\nreturn %one"
    )
    with pytest.raises(GraphError) as caught:
        ag.check(graph)
    assert str(caught.value) == (
        f"%all: too many results; found 1000000000; expected at most {LIMITS.results}"
    )


def test_no_name_of_a_file_runs_as_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SpecError, match="tensor with an invalid name"):
        ag.build(load(tmp_path, ("fc.weight", '@\'x", 0) or print("ran") or ("\'')))
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    "name", ["/dev/zero", "a" * 5000, '"a\\0b"', "..", "none.yaml", "f.yaml/x", "'\x7f'"]
)
def test_a_family_names_files_that_are_there(tmp_path: Path, name: str) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(f"archgraph: 1\nmodel: {name}\nclients: [{{name: a}}]\n")
    with pytest.raises(SpecError, match=r"f\.yaml:2: "):
        ag.load_family(file)


@pytest.mark.parametrize(
    "text",
    [
        "&a {a: *a}",
        "[" * 10_000,
        "{a: " * 10_000,
        "[" + "1, " * 60_000 + "]",
        "x: " + "9" * 401,
        "a: &x [b]\n" + "".join(f"a{i}: &x{i} [*x, *x]\n" for i in range(30_000)),
    ],
    ids=["cycle", "deep lists", "deep mappings", "long list", "long number", "many anchors"],
)
def test_yaml_is_bounded_while_it_is_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.yaml").write_text(f"archgraph: 1\nname: x\ninputs:\n {text}\n")
    with pytest.raises(SpecError, match=r"m\.yaml:\d+"):
        ag.load(tmp_path / "m.yaml")


@pytest.mark.parametrize(
    "text", ["$w ** 9", "9**9**9", "$w * 99999 * 99999", "$w << 99", "$w " * 99]
)
def test_expressions_are_bounded(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.yaml").write_text(
        "archgraph: 1\nname: m\ninputs: {x: [4]}\nparams: {w: 9}\n"
        f"sections:\n  - {{name: s, steps: [linear: {{out: '{text} + $w'}}]}}\n"
    )
    with pytest.raises(SpecError, match=r"m\.yaml:6: sections\[0\]"):
        ag.load(tmp_path / "m.yaml")
