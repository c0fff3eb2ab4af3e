"""The flat form loses nothing, and a file is written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings

from archgraph.engine.loading import load
from archgraph.errors import RunError, SpecError
from archgraph.graph.ir import ArchGraph, Leaf, Node, Param, Ref, TensorType
from archgraph.graph.text import parse
from archgraph.language import flat, save
from archgraph.language.yaml import parse_document
from tests.examples import at_most
from tests.language import strategies

TINY = parse(
    "graph 'tiny'\n"
    "parameter fc.weight: float32[4, 2]\n"
    "%x: float32[batch, 2] = input()\n"
    "%linear: float32[batch, 4] = aten.linear(input=%x, weight=fc.weight) @ fc\n"
    "section 'all' ('fc',)\n"
    "forward x = %x\n"
    "return %linear"
)


@at_most(15)
@given(strategies.graphs)
def test_reading_is_the_inverse_of_writing(graph: ArchGraph) -> None:
    for pairs in (graph.inputs, graph.updates, graph.sections):
        assume(len(dict(pairs)) == len(pairs))
    back = flat.read_flat(parse_document(flat.dump(graph), "graph.yaml"))
    assert back == graph
    assert str(back) == str(graph)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=5)
@given(strategies.strings)
def test_a_saved_graph_loads(tmp_path: Path, name: str) -> None:
    graph = TINY.replace(name=name)
    save(graph, tmp_path / "graph.yaml")
    assert load(tmp_path / "graph.yaml") == graph
    assert load(tmp_path / "graph.yaml").name == name


def test_the_file_is_for_people(tmp_path: Path) -> None:
    save(TINY, tmp_path / "tiny.yaml")
    assert (tmp_path / "tiny.yaml").read_text() == (
        "archgraph: 1\n"
        'name: "tiny"\n'
        "inputs:\n"
        '  "x": "%x"\n'
        "leaves: |\n"
        "  parameter fc.weight: float32[4, 2]\n"
        "nodes: |\n"
        "  %x: float32[batch, 2] = input()\n"
        "  %linear: float32[batch, 4] = aten.linear(input=%x, weight=fc.weight) @ fc\n"
        'outputs: "%linear"\n'
        "sections:\n"
        '  "all": ["fc"]\n'
    )


def test_a_name_that_could_be_taken_for_something_else_is_kept(tmp_path: Path) -> None:
    kind = TensorType((2,), "float32")
    graph = ArchGraph(
        inputs=(),
        params=(Param("a: b", kind), Param("0", kind)),
        nodes=(Node("y", "aten.add.Tensor", (("self", Leaf("a: b")), ("other", Leaf("0"))), kind),),
        outputs=Ref("y"),
    )
    save(graph, tmp_path / "odd.yaml")
    assert load(tmp_path / "odd.yaml") == graph


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch) -> None:
    target = tmp_path / "graph.yaml"
    target.write_text("old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"cannot write the file; found a full disk"):
        save(TINY, target)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    save(TINY, tmp_path / "new" / "graph.yaml")
    assert load(tmp_path / "new" / "graph.yaml") == TINY


def test_mistakes_in_lines_are_located_in_the_file() -> None:
    text = flat.dump(TINY).replace("[batch, 2] =", "[batch, 2 =")
    with pytest.raises(SpecError) as error:
        flat.read_flat(parse_document(text, "g.yaml"))
    assert str(error.value) == ("g.yaml:8:24: cannot be read; found '= input()'; expected ','")


def test_operators_that_write_in_place_are_refused(tmp_path: Path) -> None:
    target = tmp_path / "g.yaml"
    target.write_text(flat.dump(TINY).replace("aten.linear(", "aten.set_("))
    with pytest.raises(SpecError) as error:
        load(target)
    assert str(error.value) == (
        f"{target}:9: %linear: unknown operator; found aten.set_; "
        "expected an ATen operator that does not work in place"
    )


def test_a_reference_to_nothing_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "g.yaml"
    target.write_text(flat.dump(TINY).replace('outputs: "%linear"', 'outputs: "%liner"'))
    with pytest.raises(SpecError) as error:
        load(target)
    assert str(error.value) == (
        f"{target}:10: outputs: uses a result that no earlier operator computes; found %liner"
    )
