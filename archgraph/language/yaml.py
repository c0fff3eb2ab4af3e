"""Reading YAML: a parser's events become nodes, and nodes plain data, with the line of every key.

libyaml is the parser, ten times as fast as one in Python. Only mappings, sequences and plain
scalars are read; nothing is constructed, no tag is followed. What a file may ask for is bounded
(:mod:`archgraph.limits`) while it is read, not afterwards: depth, values (aliases count each time
they are used).
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import yaml
from yaml import Event, MappingNode, MarkedYAMLError, Node, ScalarNode, SequenceNode

from archgraph.errors import SpecError
from archgraph.fields import Place
from archgraph.language.document import Document
from archgraph.language.mistakes import shorten
from archgraph.limits import LIMITS

_TAG = "tag:yaml.org,2002:"
_KINDS = frozenset({"null", "bool", "int", "float", "str", "map", "seq", "timestamp"})
_WORDS = {"true": True, "false": False}

# How plain words are read: the first row that fits, else text. These are the rules of YAML 1.2
# (`no` is text, and `1e-3` a number), with `_` between digits.
_WORD_TAGS = {
    f"{_TAG}{kind}": re.compile(pattern)
    for kind, pattern in {
        "bool": r"true|True|TRUE|false|False|FALSE",
        "float": r"[-+]?[0-9][0-9_]*(\.[0-9_]*([eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)"
        r"|[-+]?\.[0-9_]+([eE][-+][0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "int": r"[-+]?0(b[01_]+|o[0-7_]+|x[0-9a-fA-F_]+)|[-+][0-9_]+|[0-9][0-9_]*",
        "merge": "<<",
        "null": "~|null|Null|NULL|",
        "value": "=",
    }.items()
}
# A sign that no YAML file may hold.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_BREAK = re.compile("\r\n?|[\n\x85\u2028\u2029]")  # as libyaml counts lines

# What is not YAML, in the parser's words, and what to do.
_CURES = (
    (r"character '\\t'|tab character", "indent with spaces, not with tabs"),
    (
        r"expected ('-'|key)",
        "let the keys of a mapping, or the dashes of a list, begin in one column",
    ),
    (r"mapping values are not allowed", "write one key in a line, and text with a colon in quotes"),
    (
        r"expected ',' or '[\]}]'",
        "close every bracket, and put commas between items",
    ),
    (r"could not find expected ':'", "write a colon and a space behind each key"),
)


class _Reader:
    """Turns composed YAML nodes into plain data, noting lines and counting what it makes."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.source = text.split("\n")
        self.lines: dict[Place, int] = {}
        self.texts: dict[Place, tuple[int, int]] = {}
        self.count = 0

    def fail(self, node: Node, message: str, **facts: Any) -> NoReturn:
        raise SpecError(message, where=f"{self.file}:{node.start_mark.line + 1}", **facts)

    def read(self, node: Node, place: Place) -> Any:
        self.lines.setdefault(place, node.start_mark.line + 1)
        self.count += 1
        if self.count > LIMITS.yaml_values:
            self.fail(node, "holds too many values", expected=f"at most {LIMITS.yaml_values}")
        # An alias of its own ancestor ends here, too.
        if len(place) > LIMITS.yaml_depth:
            self.fail(node, "is nested too deeply", expected=f"at most {LIMITS.yaml_depth} levels")
        if str(node.tag).removeprefix(_TAG) not in _KINDS:
            self.fail(node, "has a tag", found=str(node.tag), expected="plain YAML")
        if isinstance(node, MappingNode):
            return self.mapping(node, place)
        if isinstance(node, SequenceNode):
            return tuple(self.read(item, (*place, i)) for i, item in enumerate(node.value))
        if isinstance(node, ScalarNode):
            self.texts[place] = self.text_start(node)
            try:
                value = self.scalar(node)
            except (ValueError, KeyError, OverflowError):  # a tag or a YAML version of its own
                kind = str(node.tag).removeprefix(_TAG)
                self.fail(node, f"is not a valid {kind}", found=shorten(node.value))
            return value
        self.fail(node, "is not plain YAML")

    def text_start(self, node: ScalarNode) -> tuple[int, int]:
        line, column = node.start_mark.line, node.start_mark.column
        if node.style not in ("|", ">"):
            return line + 1, column + (node.style in ("'", '"'))
        content = next((s for s in self.source[line + 1 :] if s.strip()), "")
        return line + 2, len(content) - len(content.lstrip(" "))

    def mapping(self, node: MappingNode, place: Place) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode) or key_node.tag == f"{_TAG}merge":
                self.fail(key_node, "has a key that is not a plain word", expected="a word")
            key = str(key_node.value)
            if key in result:
                first = self.lines[(*place, key)]
                self.fail(
                    key_node, f"has the key {shorten(key)} twice", hint=f"first on line {first}"
                )
            self.lines[(*place, key)] = key_node.start_mark.line + 1
            result[key] = self.read(value_node, (*place, key))
        return result

    def scalar(self, node: ScalarNode) -> Any:
        text = str(node.value)
        match str(node.tag).removeprefix(_TAG):
            case "null":
                return None
            case "bool":
                return _WORDS[text.lower()]
            case "int":
                digits = text.replace("_", "")
                if len(digits.lstrip("+-")) > LIMITS.digits:
                    expected = f"at most {LIMITS.digits} digits"
                    self.fail(node, "is too large a number", found=shorten(text), expected=expected)
                return int(digits, 0 if digits.lstrip("+-")[:2].lower() in ("0x", "0o") else 10)
            case "float":
                word = text.replace("_", "").lower()
                if word.lstrip("+-") in (".inf", ".nan"):
                    self.fail(node, "is not a finite number", found=text)
                value = float(word)
                if value in (float("inf"), float("-inf")):
                    self.fail(node, "is too large a number", found=shorten(text))
                return value
            case _:
                return text


class _Composer:
    """Makes nodes of a parser's events; stops as soon as there is too much."""

    def __init__(self, text: str, file: str) -> None:
        # A PyYAML that was built without libyaml gives the same events, slowly.
        self.events = yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        self.file = file
        self.anchors: dict[str, Node] = {}
        self.count = 0

    def document(self) -> Node | None:
        """Return the only document of the text, or None if the text is empty."""
        root = None
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    self.fail(event, "but found another document")
                root = self.node(next(self.events), 0)
        return root

    def node(self, event: Event, level: int) -> Node:
        """Build the node that begins with an event."""
        self.count += 1
        if self.count > LIMITS.yaml_values:
            self.stop(event, "holds too many values", f"at most {LIMITS.yaml_values}")
        if level > LIMITS.yaml_depth:
            self.stop(event, "is nested too deeply", f"at most {LIMITS.yaml_depth} levels")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                self.fail(event, f"undefined alias {event.anchor!r}")
            return self.anchors[event.anchor]
        node = self.begun(event)
        if event.anchor is not None:
            self.anchors[event.anchor] = node  # before its items, which may be aliases of it
        for item in self.items() if not isinstance(node, ScalarNode) else ():
            value = self.node(item, level + 1)
            if isinstance(node, MappingNode):
                node.value.append((value, self.node(next(self.events), level + 1)))
            else:
                node.value.append(value)
        return node

    def begun(self, event: Event) -> Node:
        """Build a scalar, or a collection without its items."""
        tag = None if event.tag == "!" else event.tag
        if isinstance(event, yaml.ScalarEvent):
            if tag is None:
                words = _WORD_TAGS.items() if event.implicit[0] or event.tag == "!" else ()
                fits = (name for name, rule in words if rule.fullmatch(event.value))
                tag = next(fits, f"{_TAG}str")
            return ScalarNode(tag, event.value, event.start_mark, event.end_mark, event.style)
        if isinstance(event, yaml.MappingStartEvent):
            return MappingNode(tag or f"{_TAG}map", [], event.start_mark)
        return SequenceNode(tag or f"{_TAG}seq", [], event.start_mark)

    def items(self) -> Iterator[Event]:
        """Yield the events with which the items of a collection begin."""
        for event in self.events:
            if isinstance(event, yaml.CollectionEndEvent):
                return
            yield event

    def fail(self, event: Event, problem: str) -> NoReturn:
        raise MarkedYAMLError(problem=problem, problem_mark=event.start_mark)

    def stop(self, event: Event, message: str, expected: str) -> NoReturn:
        line = event.start_mark.line + 1
        raise SpecError(message, where=f"{self.file}:{line}", expected=expected)


def read_text(path: Path) -> str:
    """Content of a text file.

    Raises:
        SpecError: If it is missing, too large, or not UTF-8.
    """
    limit = LIMITS.file_bytes
    try:
        # A pipe may never end, and a device never does.
        if path.exists() and not path.is_file() and not path.is_dir():
            raise SpecError(
                "is not a file",
                where=_shown(path),
                expected="a text file",
                hint="write what it gives into a file first",
            )
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise SpecError("cannot be read", where=_shown(path), found=error.strerror) from None
    except ValueError as error:  # a path with a null byte
        raise SpecError("cannot be read", where=_shown(path), found=str(error)) from None
    if len(data) > limit:
        raise SpecError(
            "is too large", where=str(path), found=f"more than {limit} bytes", expected=f"≤ {limit}"
        )
    try:
        # Line ends as Python reads them from any text file.
        return data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SpecError(
            "is not UTF-8 text",
            where=f"{path}:{line}",
            found=f"byte 0x{data[error.start]:02x}",
        ) from None


def _shown(path: Path) -> str:
    """Format a path, which may hold anything; escape and shorten it where necessary."""
    name = str(path)
    return name if name.isprintable() and len(name) < 200 else repr(name[:200])


def is_onnx(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is an ONNX file, judged by its name."""
    return Path(path).suffix.lower() == ".onnx"


def read_document(path: str | os.PathLike[str]) -> Document:
    """Read a YAML file; an ONNX file has no keys.

    Raises:
        SpecError: If it is missing, no plain YAML, or asks for too much.
    """
    if is_onnx(path):
        return Document(str(path), {}, {})
    return parse_document(read_text(Path(path)), str(path))


def parse_document(text: str, file: str) -> Document:
    """Read YAML text; ``file`` names it in messages.

    Raises:
        SpecError: If it is not plain YAML mapping, or asks for too much.

    Example:
        >>> parse_document("a: [1, {b: yes}]", "x.yaml").data
        {'a': (1, {'b': 'yes'})}
    """
    return _parsed(text, file) if len(text) <= _REMEMBERED else _parsed.__wrapped__(text, file)


# Texts that are remembered: specs, which refer to one another, not weights or long flat graphs.
_REMEMBERED = 2**15


@functools.lru_cache(maxsize=512)
def _parsed(text: str, file: str) -> Document:
    root = _compose(text, file)
    if not isinstance(root, MappingNode):
        raise SpecError("is not a mapping", where=f"{file}:1", expected="keys and values")
    reader = _Reader(file, text)
    data = reader.read(root, ())
    return Document(file, data, reader.lines, reader.texts)


def _compose(text: str, file: str) -> Node | None:
    """Parse YAML text into nodes.

    Raises:
        SpecError: If it is not YAML, or asks for too much.
    """
    if (sign := _FORBIDDEN.search(text)) is not None:
        raise SpecError(
            "holds a character that YAML does not allow",
            where=f"{file}:{text.count(chr(10), 0, sign.start()) + 1}",
            found=f"U+{ord(sign.group()):04X}",
        )
    try:
        return _Composer(text, file).document()
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # What stays open is noticed at the end, behind the last line.
        line = min(mark.line, text.rstrip().count("\n")) + 1 if mark is not None else 1
        problem = str(error.problem or error.context).removeprefix("found ")
        if mark is not None and problem.startswith("character that"):
            character = _BREAK.split(text)[mark.line][mark.column]
            problem = problem.replace("character", f"character {character!r}")
        hints = (hint for pattern, hint in _CURES if re.search(pattern, problem))
        facts: dict[str, str | None] = {"found": problem, "hint": next(hints, None)}
        if (missing := re.fullmatch("(did|could) not find expected (.*)", problem)) is not None:
            facts |= {"found": None, "expected": missing[2]}
        raise SpecError("is not YAML", where=f"{file}:{line}", **facts) from None
