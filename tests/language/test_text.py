"""The text syntax is the exact inverse of printing."""

from __future__ import annotations

import base64
import pickle
import zlib

import pytest
from hypothesis import given

from archgraph.errors import SpecError
from archgraph.graph import text
from archgraph.graph.ir import ArchGraph, Constant, Leaf, Node, Param, Value, same_value, show
from tests.examples import at_most
from tests.language import strategies


@at_most(20)
@given(strategies.graphs)
def test_parsing_is_the_inverse_of_printing(graph: ArchGraph) -> None:
    back = text.parse(str(graph))
    assert back == graph
    assert str(back) == str(graph)  # tells 1 from 1.0 and True, which compare equal
    assert back.name == graph.name


@at_most(100)
@given(strategies.values)
def test_values_keep_their_types(value: Value) -> None:
    assert same_value(text.parse_value(show(value)), value)


@given(strategies.nodes)
def test_nodes_read_back(node: Node) -> None:
    assert text.parse_node(str(node)) == node


@given(strategies.params())
def test_leaves_read_back(param: Param) -> None:
    assert text.parse_param(str(param)) == param


def test_numbers_are_told_from_leaves() -> None:
    assert text.parse_value("0.weight") == Leaf("0.weight")
    assert text.parse_value("0.5") == 0.5
    assert text.parse_value("1e-05") == 1e-05
    assert text.parse_value("-inf") == float("-inf")
    assert text.parse_value("e5") == Leaf("e5")
    assert text.parse_value("@training") == Leaf("training")


def test_empty_lines_and_comments_count_for_nothing() -> None:
    source = "\n# a comment\n%x: float32[batch] = input()\n\nforward x = %x\nreturn %x\n"
    assert len(text.parse(source).nodes) == 1


HEAD = "%x: float32[batch, 2] = input()\nforward x = %x\n"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            HEAD + "%y: float32[batch, 2 = aten.relu(self=%x)\nreturn %y",
            "line 3, column 22: cannot be read; found '= aten.relu(self=%x)'; expected ','",
        ),
        (
            HEAD + "%y: floot32[batch] = aten.relu(self=%x)\nreturn %y",
            "line 3, column 5: is not a dtype; found 'floot32'; expected e.g. float32, int64, bool",
        ),
        (
            HEAD + "%y: float32[batch] = aten.relu(self)\nreturn %y",
            "line 3, column 36: cannot be read; found ')'; expected '='",
        ),
        (
            HEAD + "%y: float32[batch, None] = aten.relu(self=%x)",
            "line 3, column 20: cannot be the name of a size; found 'None'; "
            "expected another identifier",
        ),
        (
            HEAD + "nodule x\nreturn %x",
            "line 3, column 1: is not a statement; found 'nodule'; expected one of "
            "parameter, buffer, constant, graph, note, section, update, forward, return, %name: …",
        ),
        (HEAD, "a graph needs one line 'return …'; found 0 of them"),
        (
            HEAD + "return %x %x",
            "line 3, column 11: has extra text; found '%x'; expected end of line",
        ),
        (
            HEAD + "return 'a",
            'line 3, column 8: cannot be read; found "\'a"; expected a quoted string',
        ),
        (
            HEAD + "return 99999999999999999999999",
            "line 3, column 8: is out of range; found 99999999999999999999999; "
            "expected an integer of 64 bits",
        ),
        (
            HEAD + "return " + "(" * 80 + ")" * 80,
            "line 3, column 73: is nested too deeply; found '" + "(" * 15 + ")" * 9 + "…'; "
            "expected at most 64 levels",
        ),
        (
            "parameter w: float32[batch]",
            "line 1, column 14: is not valid for a leaf; found float32[batch]; "
            "expected sizes ≥ 0, no open ones",
        ),
        (
            "buffer w: float32[2] frozen",
            "line 1, column 22: is not allowed here; found 'frozen'; expected 'alias' or 'frozen'",
        ),
        (
            "constant c: float32[2] = raw:AAAA",
            "line 1, column 26: has the wrong number of bytes; found 3; expected 8 for float32[2]",
        ),
        (
            "constant c: float32[2] = raw:A",
            "line 1, column 26: is damaged; found Invalid base64-encoded string: number of data "
            "characters (1) cannot be 1 more than a multiple of 4; "
            "expected base64 of the tensor's bytes",
        ),
        (
            "constant c: float32[999999, 999999] = raw:",
            "line 1, column 39: is too large; found 3999992000004 bytes; expected ≤ 268435456",
        ),
    ],
)
def test_mistakes_are_located(source: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        text.parse(source)
    assert str(error.value) == message


def test_mistakes_name_the_file() -> None:
    with pytest.raises(SpecError, match=r"^net\.txt:3:8: cannot be read"):
        text.parse(HEAD + "return ]", file="net.txt")


def test_a_small_file_cannot_fill_the_memory() -> None:
    bomb = base64.b64encode(zlib.compress(bytes(64 * 2**20), 9)).decode()
    with pytest.raises(SpecError, match="found more than 8; expected 8 for float32"):
        text.parse(f"constant c: float32[2] = zlib:{bomb}\nreturn None")


def test_long_numerals_are_refused_at_once() -> None:
    with pytest.raises(SpecError, match="out of range"):
        text.parse_value("9" * 10_000_000)


def test_graphs_do_not_depend_on_the_packing_of_constants() -> None:
    data = bytes(range(100)) * 4
    plain = base64.b64encode(data).decode()
    param = text.parse_param(f"constant c: float32[100] = raw:{plain}")
    assert param.value == Constant("float32", (100,), data)
    assert "zlib:" in str(param)
    assert text.parse_param(str(param)) == param


def test_errors_survive_pickling() -> None:
    with pytest.raises(SpecError) as error:
        text.parse_value("]")
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)
