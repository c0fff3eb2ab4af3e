"""Reading YAML: composed nodes become plain data, with the line of every key.

Only mappings, sequences and plain scalars are read; nothing is constructed, no tag is followed.
What a file may ask for is bounded (:mod:`archgraph.limits`) while it is read, not afterwards: size,
depth, values (aliases count each time they are used).
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import Reader, ReaderError

from archgraph.errors import SpecError
from archgraph.fields import Place
from archgraph.language.document import Document
from archgraph.language.mistakes import shorten
from archgraph.limits import LIMITS

_TAG = "tag:yaml.org,2002:"
_KINDS = frozenset({"null", "bool", "int", "float", "str", "map", "seq", "timestamp"})
_WORDS = {"true": True, "false": False}

# What is not YAML, in the parser's words, and what to do.
_CURES = (
    (r"character '\\t'", "indent with spaces, not with tabs"),
    (r"<block end>", "let the keys of a mapping, or the dashes of a list, begin in one column"),
    (r"mapping values are not allowed", "write one key in a line, and text with a colon in quotes"),
    (
        r"expected ',' or '[\]}]'",
        "close every bracket, and put commas between items",
    ),
    (r"could not find expected ':'", "write a colon and a space behind each key"),
)


class _Reader:
    """Turns composed YAML nodes into plain data, noting lines and counting what it makes."""

    def __init__(self, file: str, text: str, blocks: Mapping[int, str]) -> None:
        self.file = file
        self.source = text.split("\n")
        self.blocks = blocks
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
            if node.style == "|" and node.start_mark.line in self.blocks:
                return self.blocks[node.start_mark.line]
            try:
                value = self.scalar(node)
            except (ValueError, KeyError, OverflowError):  # a tag or a YAML version of its own
                kind = str(node.tag).removeprefix(_TAG)
                self.fail(node, f"is not a valid {kind}", found=shorten(node.value))
            # Half a character cannot be printed or written again.
            if isinstance(value, str) and not _is_text(value):
                self.fail(node, "is not text", found=shorten(value), expected="whole characters")
            return value
        self.fail(node, "is not plain YAML")

    def text_start(self, node: ScalarNode) -> tuple[int, int]:
        line, column = node.start_mark.line, node.start_mark.column
        if node.style not in ("|", ">"):
            return line + 1, column + (node.style is not None)
        content = next((s for s in self.source[line + 1 :] if s.strip()), "")
        return line + 2, len(content) - len(content.lstrip(" "))

    def mapping(self, node: MappingNode, place: Place) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode) or key_node.tag == f"{_TAG}merge":
                self.fail(key_node, "has a key that is not a plain word", expected="a word")
            key = str(key_node.value)
            if not _is_text(key):
                self.fail(key_node, "has a key that is not a plain word", expected="a word")
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


def _is_text(value: str) -> bool:
    """Whether a string can be written as UTF-8: half a character of two cannot."""
    return value.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in value)


class _Composer(Composer):
    """A composer that stops as soon as there is too much."""

    count = level = 0

    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader)
        self.warn_double_anchors = False

    def compose_node(self, parent: Any, index: Any) -> Any:
        """One node, counted."""
        self.count += 1
        self.level += 1
        if self.count > LIMITS.yaml_values:
            self.stop("holds too many values", f"at most {LIMITS.yaml_values}")
        if self.level > LIMITS.yaml_depth + 1:
            self.stop("is nested too deeply", f"at most {LIMITS.yaml_depth} levels")
        node = super().compose_node(parent, index)
        self.level -= 1
        return node

    def stop(self, message: str, expected: str) -> NoReturn:
        raise _TooMuch(message, expected, self.parser.peek_event().start_mark.line + 1)


class _TooMuch(Exception):
    """A bound was passed, on a line."""


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
    """A path that may hold anything, as text."""
    name = str(path)
    return name if name.isprintable() and len(name) < 200 else repr(name[:200])


def is_onnx(path: str | os.PathLike[str]) -> bool:
    """Whether a file is an ONNX file, by its name."""
    return Path(path).suffix.lower() == ".onnx"


def read_document(path: str | os.PathLike[str]) -> Document:
    """Read a YAML file; an ONNX file has no keys.

    Raises:
        SpecError: If it is missing, no plain YAML, or asks for too much.
    """
    if is_onnx(path):
        return Document(str(path), {}, {})
    return parse_document(read_text(Path(path)), str(path))


# A key at the left edge whose value is a block of lines, each indented by two spaces.
_BLOCK = re.compile(r"^(\w+): \|\n((?:  [^ \n][^\n]*(?:\n|\Z))++)(?=\S|\Z)", re.MULTILINE)
# Other signs that YAML, or one of its versions, takes for the end of a line.
_BREAKS = re.compile("[\r\x85\u2028\u2029\ufeff]")


def _cut_blocks(text: str) -> tuple[str, dict[int, str]]:
    """The text with blocks of plain lines emptied, and those blocks by the line of their key.

    Leaves and nodes are nearly all of a flat file; a YAML scanner goes through them sign by sign.
    """
    blocks: dict[int, str] = {}
    line = seen = 0

    def cut(match: re.Match[str]) -> str:
        nonlocal line, seen
        body = match.group(2)
        line += text.count("\n", seen, match.start())
        seen = match.start()
        if _BREAKS.search(body) or Reader.NON_PRINTABLE.search(body):
            return match.group()
        blocks[line] = body[2:].replace("\n  ", "\n")
        return f"{match.group(1)}: |\n" + "\n" * body.count("\n")

    return _BLOCK.sub(cut, text), blocks


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
    rest, blocks = _cut_blocks(text)
    root = _compose(rest, file)
    if not isinstance(root, MappingNode):
        raise SpecError("is not a mapping", where=f"{file}:1", expected="keys and values")
    found = {
        v.start_mark.line
        for k, v in root.value
        if k.start_mark.column == 0 and isinstance(v, ScalarNode) and v.style == "|"
    }
    if not blocks.keys() <= found:
        # What looked like a key stands inside something else: read the text as it is.
        root, blocks = _compose(text, file), {}
    reader = _Reader(file, text, blocks)
    data = reader.read(root, ())
    return Document(file, data, reader.lines, reader.texts)


def _compose(text: str, file: str) -> Node:
    """The nodes of YAML text.

    Raises:
        SpecError: If it is not YAML, or asks for too much.
    """
    if (size := len(text.encode("utf-8", "surrogatepass"))) > LIMITS.yaml_bytes:
        raise SpecError(
            "is too large",
            where=file,
            found=f"{size} bytes beside the lines of leaves and nodes",
            expected=f"≤ {LIMITS.yaml_bytes}",
        )
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _Composer
    try:
        return yaml.compose(text)
    except _TooMuch as error:
        message, expected, line = error.args
        raise SpecError(message, where=f"{file}:{line}", expected=expected) from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        problem = str(error.problem or error.context).removeprefix("found ")
        hints = (hint for pattern, hint in _CURES if re.search(pattern, problem))
        raise SpecError(
            "is not YAML", where=f"{file}:{line}", found=problem, hint=next(hints, None)
        ) from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise SpecError(
            "holds a character that YAML does not allow",
            where=f"{file}:{line}",
            found=f"U+{error.character:04X}"
            if isinstance(error.character, int)
            else repr(error.character),
        ) from None
    except YAMLError as error:
        raise SpecError("is not YAML", where=file, found=str(error)) from None
