"""The flat form: any graph as YAML, without loss.

The tensors of the model (``leaves``) and its operators (``nodes``) are listed one per line, in the
text syntax of :mod:`archgraph.graph.text`, so that a diff of two files compares two architectures::

    archgraph: 1
    name: "tiny"
    inputs:
      "x": "%x"
    leaves: |
      parameter fc.weight: float32[10, 64]
    nodes: |
      %x: float32[batch, 64] = input()
      %linear: float32[batch, 10] = aten.linear(input=%x, weight=fc.weight) @ fc
    outputs: "%linear"
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, TypeVar

from pydantic import Field

from archgraph.errors import GraphError
from archgraph.fields import Base, Place, Version
from archgraph.graph import text as syntax
from archgraph.graph.ir import ArchGraph, Value, show
from archgraph.graph.sizes import with_size_words
from archgraph.language.document import Document
from archgraph.language.yaml import parse_document

T = TypeVar("T")


class FlatModel(Base):
    """A graph as a list of operators, in the format that ``archgraph.save`` writes."""

    archgraph: Version
    name: str = ""
    inputs: dict[str, str]
    leaves: str = ""
    nodes: str = ""
    outputs: str
    updates: dict[str, str] = Field(default={})
    sections: dict[str, tuple[str, ...]] = Field(default={})
    notes: tuple[str, ...] = ()
    modes: dict[str, Literal["train", "eval"]] = Field(default={})


def quoted(text: str) -> str:
    r"""Render text as a double-quoted YAML scalar on one line.

    >>> print(quoted('a "b"\n'))
    "a \"b\"\n"
    """
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}
    # `\U` for whatever else YAML might read differently: line ends of Unicode, control characters.
    signs = (escapes.get(s) or (s if s.isprintable() else f"\\U{ord(s):08x}") for s in text)
    return f'"{"".join(signs)}"'


def _part(key: str, lines: Iterable[object], mark: str = "") -> list[str]:
    """Return the lines of a key and its value, or none if the value is empty."""
    content = [f"  {line}" for line in lines]
    return [f"{key}:{mark}", *content] if content else []


def _pairs(pairs: Iterable[tuple[str, Value]]) -> Iterator[str]:
    return (f"{quoted(key)}: {quoted(show(value))}" for key, value in pairs)


def dump(graph: ArchGraph) -> str:
    r"""Render a graph as flat YAML.

    Raises:
        GraphError: If a name in the graph cannot be written without loss.

    Example:
        >>> from archgraph.graph.text import parse
        >>> text = "%x: float32[batch, 2] = input()\nforward x = %x\nreturn %x"
        >>> print(dump(parse(text)))
        archgraph: 1
        name: ""
        inputs:
          "x": "%x"
        nodes: |
          %x: float32[batch, 2] = input()
        outputs: "%x"
        <BLANKLINE>
    """
    sections = (f"{quoted(k)}: [{', '.join(map(quoted, v))}]" for k, v in graph.sections)
    modes = (f"{quoted(path)}: {'train' if flag else 'eval'}" for path, flag in graph.flags)
    lines = [
        "archgraph: 1",
        f"name: {quoted(graph.name)}",
        *(_part("inputs", _pairs(graph.inputs)) or ["inputs: {}"]),
        # As text of its own, `|`: a line of the file is a line of `print(graph)`, without quotes.
        *_part("leaves", graph.params, " |"),
        *_part("nodes", graph.nodes, " |"),
        f"outputs: {quoted(show(graph.outputs))}",
        *_part("updates", _pairs(graph.updates)),
        *_part("sections", sections),
        *_part("notes", (f"- {quoted(note)}" for note in graph.notes)),
        *_part("modes", modes),
    ]
    text = "\n".join(lines) + "\n"
    if (lost := _difference(graph, text)) is not None:
        raise GraphError("cannot be written without loss", found=lost, hint="rename it")
    return text


def _difference(graph: ArchGraph, text: str) -> str | None:
    """Return the part of a graph that its file does not reproduce; None if it is complete."""
    # Read back at once: a name that YAML changes would otherwise surface in another session.
    back = read_flat(parse_document(text, "the written file"))
    if back == graph:
        return None
    ours, theirs = (*graph.params, *graph.nodes), (*back.params, *back.nodes)
    # Lengths differ where a name has a line break.
    different = (str(a) for a, b in zip(ours, theirs, strict=False) if a != b)
    return next(different, "inputs, outputs, updates or sections")


def _lines(document: Document, key: str, text: str, read_line: Callable[..., T]) -> tuple[T, ...]:
    """Parse the statements of a block of text, one per line."""
    first, column = document.texts.get((key,), (1, 0))
    return tuple(
        read_line(line, line=first + i, column=column, file=document.file)
        for i, line in enumerate(text.split("\n"))
        if line.strip()
    )


def _value(document: Document, loc: Place, text: str) -> Value:
    line, column = document.texts.get(loc, (1, 0))
    return syntax.parse_value(text, line=line, column=column, file=document.file)


def line_of(document: Document, where: str) -> int:
    """Return the line number of a node (``%name …``), a tensor or an update in a flat file.

    If no line matches, return the line number of the key that ``where`` names, or else of
    ``nodes``.
    """
    name = where.partition(" in ")[0]
    if name.startswith("%"):
        return _line(document, "nodes", lambda text: syntax.statement_name(text) == name[1:])
    key, _, buffer = name.partition(" ")
    if key == "update" and ("updates", buffer) in document.lines:
        return document.lines["updates", buffer]
    if (key,) in document.lines:
        return document.lines[(key,)]
    return _line(document, "leaves", lambda text: syntax.statement_name(text) == name)


def _line(document: Document, key: str, here: Callable[[str], bool]) -> int:
    first, _ = document.texts.get((key,), (document.lines.get(("nodes",), 1), 0))
    lines = str(document.data.get(key, "")).split("\n")
    return first + next((i for i, text in enumerate(lines) if here(text)), 0)


def read_flat(document: Document) -> ArchGraph:
    """Parse the graph of a flat file. Only the syntax is checked.

    Raises:
        SpecError: If a key or a line cannot be parsed.
    """
    flat = document.validate(FlatModel)
    graph = ArchGraph(
        inputs=tuple((k, _value(document, ("inputs", k), v)) for k, v in flat.inputs.items()),
        params=_lines(document, "leaves", flat.leaves, syntax.parse_param),
        nodes=_lines(document, "nodes", flat.nodes, syntax.parse_node),
        outputs=_value(document, ("outputs",), flat.outputs),
        updates=tuple((k, _value(document, ("updates", k), v)) for k, v in flat.updates.items()),
        sections=tuple(flat.sections.items()),
        name=flat.name,
        notes=flat.notes,
        flags=tuple((path, mode == "train") for path, mode in flat.modes.items()),
    )
    return with_size_words(graph)
