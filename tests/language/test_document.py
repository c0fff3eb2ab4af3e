"""What a YAML file may ask for is bounded, and every mistake has a line."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from archgraph.engine import prepare
from archgraph.errors import ArchGraphError, SpecError
from archgraph.federation.family import resolve
from archgraph.language import load_experiment, load_family
from archgraph.language.family import MemberSpec
from archgraph.language.yaml import parse_document, read_document


def test_keys_and_items_know_their_lines() -> None:
    document = parse_document("a: 1\nb:\n  - x\n  - {c: 2}\n", "f.yaml")
    assert document.data == {"a": 1, "b": ("x", {"c": 2})}
    assert document.where(("b", 1, "c")) == "f.yaml:4: b[1].c"
    assert document.where(("b", 1, "nothing")) == "f.yaml:4: b[1].nothing"


def test_scalars_are_those_of_yaml_1_2() -> None:
    source = "[1, -2, 0x10, 0o14, 1_000, 1e-4, .5, yes, on, true, null, ~, 2020-01-01, '1']"
    document = parse_document(f"a: {source}", "f.yaml")
    assert document.data["a"] == (
        1, -2, 16, 12, 1000, 1e-4, 0.5, "yes", "on", True, None, None, "2020-01-01", "1",
    )  # fmt: skip


def test_aliases_are_read_as_what_they_stand_for() -> None:
    assert parse_document("a: &x [1]\nb: *x", "f.yaml").data == {"a": (1,), "b": (1,)}


BOMB = "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"a{i + 1}: &a{i + 1} [{','.join([f'*a{i}'] * 10)}]\n" for i in range(9)
)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a: 1\nb: 2\na: 3", "f.yaml:3: has the key 'a' twice; first on line 1"),
        (BOMB, "f.yaml:1: holds too many values; expected at most 20000"),
        ("a: &a [*a]", "f.yaml:1: is nested too deeply; expected at most 40 levels"),
        ("a: " + "[" * 50 + "]" * 50, "f.yaml:1: is nested too deeply; expected at most 40 levels"),
        (
            "a: " + "[" * 2000 + "]" * 2000,
            "f.yaml:1: is nested too deeply; expected at most 40 levels",
        ),
        (
            "a: " + "9" * 99,
            f"f.yaml:1: is too large a number; found '{'9' * 58}…; expected at most 19 digits",
        ),
        ("a: !!bool maybe", "f.yaml:1: is not a valid bool; found 'maybe'"),
        ("a: !!int x", "f.yaml:1: is not a valid int; found 'x'"),
        ("a: !!float x", "f.yaml:1: is not a valid float; found 'x'"),
        ('a: "\\ud800"', "f.yaml:1: is not YAML; found invalid Unicode character escape code"),
        ("a: 1e999", "f.yaml:1: is too large a number; found '1e999'"),
        ("a: .nan", "f.yaml:1: is not a finite number; found .nan"),
        (
            "a: !!python/object/apply:os.system [ls]",
            "f.yaml:1: has a tag; "
            "found tag:yaml.org,2002:python/object/apply:os.system; expected plain YAML",
        ),
        ("a: !mine x", "f.yaml:1: has a tag; found !mine; expected plain YAML"),
        ("!mine {a: x}", "f.yaml:1: has a tag; found !mine; expected plain YAML"),
        ("!!set {a, b}", "f.yaml:1: has a tag; found tag:yaml.org,2002:set; expected plain YAML"),
        ("? [a]\n: b", "f.yaml:1: has a key that is not a plain word; expected a word"),
        (
            "a: &x {b: 1}\nc: {<<: *x}",
            "f.yaml:2: has a key that is not a plain word; expected a word",
        ),
        (
            "a:\n\t- b",
            "f.yaml:2: is not YAML; found character '\\t' that cannot start any token; "
            "indent with spaces, not with tabs",
        ),
        (
            "a: [1",
            "f.yaml:1: is not YAML; expected ',' or ']'; close every bracket, and put commas "
            "between items",
        ),
        ("a: 1\nb: *c", "f.yaml:2: is not YAML; found undefined alias 'c'"),
        ("a: 1\nb: \x00", "f.yaml:2: holds a character that YAML does not allow; found U+0000"),
        ("- a", "f.yaml:1: is not a mapping; expected keys and values"),
        ("", "f.yaml:1: is not a mapping; expected keys and values"),
    ],
)
def test_what_is_refused(source: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        parse_document(source, "f.yaml")
    assert str(error.value) == message


SIGNS = ["+", "-", ".", "_", "0", "1", "9", "e", "E", "0x", "0o", "f", ":", "inf", "NaN"]
WORDS = [
    "yes",
    "no",
    "on",
    "Off",
    "y",
    "true",
    "True",
    "tRUE",
    "FALSE",
    "~",
    "null",
    "Null",
    "nULL",
]


@given(st.sampled_from(WORDS) | st.lists(st.sampled_from(SIGNS), min_size=1).map("".join))
def test_plain_words_are_read_as_by_another_parser_of_yaml_1_2(word: str) -> None:
    text = f"a: {word}\n"
    try:
        expected = YAML(typ="safe", pure=True).load(text)["a"]
    except (YAMLError, ValueError, TypeError, KeyError):  # neither of us reads it
        with pytest.raises(SpecError):
            parse_document(text, "f.yaml")
        return
    if isinstance(expected, float) and not math.isfinite(expected):
        return  # refused
    value = parse_document(text, "f.yaml").data["a"]
    assert (type(value), value) == (type(expected), expected)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(
        SpecError, match=r"none\.yaml: cannot be read; found no such file or folder"
    ):
        read_document(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9")
    with pytest.raises(SpecError, match=r"latin\.yaml:1: is not UTF-8 text; found byte 0xe9"):
        read_document(tmp_path / "latin.yaml")
    with pytest.raises(SpecError, match=r"cannot be read; found a folder"):
        read_document(tmp_path)
    with pytest.raises(SpecError, match=r"null: is not a file"):
        read_document("/dev/null")
    with pytest.raises(SpecError, match=r"cannot be read; found embedded null byte"):
        read_document("a\0b")


def test_the_same_anchor_twice_is_yaml() -> None:
    document = parse_document("a: &x 1\nb: &x 2\nc: *x", "f.yaml")
    assert document.data == {"a": 1, "b": 2, "c": 2}


@pytest.mark.parametrize(
    "source",
    [
        "a: |\n  x\n  y\nb: 1\n",
        "a: |\n  x\n  y",
        "a: |\n  x\n\n  y\n",
        "a: |\n  x\n   y\n",
        "a: |\n   x\n  y\n",
        "a: |\n  # x\n  é: |\n  z\nb: |\n  w\n\n",
        "a: >\n  x\nb: |-\n  y\n",
        "k: 'a\n\n  a: |\n  x\n  y'\n",
        "k: [b,\n a: |\n  x\n ]\n",
        "a: |\n  x\x85y\n",
        "a: |\n  x\ty\n",
        "# a: |\n  x: 1\n",
    ],
)
def test_blocks_of_lines_are_read_as_yaml_reads_them(source: str) -> None:
    """The short way past the YAML scanner gives what the scanner gives."""
    try:
        expected = YAML(typ="safe", pure=True).load(source)
    except YAMLError:
        with pytest.raises(SpecError):
            parse_document(source, "f.yaml")
        return
    assert parse_document(source, "f.yaml").data == expected


def test_what_was_changed_after_reading_is_no_lines_fault(tmp_path: Path) -> None:
    """A value that Python put in place of the file's names its key, and not the file's line."""
    file = tmp_path / "e.yaml"
    file.write_text(
        "archgraph: 1\nname: e\nfamily: {model: m.yaml, clients: [{name: a}]}\n"
        "data: {dataset: digits, limit: 20}\nstrategy: {fedavg: {weights: all}}\nrounds: 1\n"
        "local: {lr: 0.1}\n"
    )
    (tmp_path / "m.yaml").write_text(
        "archgraph: 1\ninputs: {x: [1, 8, 8]}\n"
        "sections: [{name: s, steps: [flatten, linear: 10]}]\n"
    )
    spec = load_experiment(file)
    with pytest.raises(SpecError, match=r"e\.yaml:5: strategy\.fedavg\.weights: wrong value"):
        prepare(spec)
    wrong = spec.model_copy(update={"strategy": {"fedavg": {"weights": "none"}}})
    for changed in (wrong, wrong.model_copy(update={"rounds": 2, "local": {"lr": 0.1}})):
        with pytest.raises(SpecError) as error:
            prepare(changed)
        assert str(error.value).startswith("strategy.fedavg.weights: wrong value; found 'none'")
    kept = spec.model_copy(update={"rounds": 2, "local": {"lr": 0.1}})
    with pytest.raises(SpecError, match=r"e\.yaml:5: strategy"):
        prepare(kept)


def test_a_family_that_was_changed_is_what_it_says_now(tmp_path):
    """Neither its old lines nor its old values count."""
    (tmp_path / "m.yaml").write_text(
        "archgraph: 1\ninputs: {x: [1, 8, 8]}\n"
        "sections: [{name: s, steps: [flatten, linear: 16, relu, linear: 10]}]\n"
    )
    file = tmp_path / "f.yaml"
    file.write_text("archgraph: 1\nmodel: m.yaml\nclients:\n  - {name: a, take: {nothing: 0.5}}\n")
    spec = load_family(file)
    with pytest.raises(ArchGraphError, match=r"^.*f\.yaml:4: clients\[0\]\.take: "):
        resolve(spec)
    wrong = spec.model_copy(
        update={"clients": (MemberSpec.model_validate({"name": "b", "take": {"none": 0.5}}),)}
    )
    with pytest.raises(ArchGraphError, match=r"^family: clients\[0\]\.take: "):
        resolve(wrong)
    inline = {
        "archgraph": 1,
        "inputs": {"x": (1, 8, 8)},
        "sections": ({"name": "s", "steps": ("flatten", {"linear": 10})},),
    }
    other = spec.model_copy(update={"model": inline, "clients": (MemberSpec(name="b"),)})
    assert [p.shape for p in resolve(other).graph.params] == [(10, 64), (10,)]
