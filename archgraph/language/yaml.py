"""Read YAML as plain data, with the line of every key.

The parser is libyaml, which is ten times as fast as a parser in Python. Only mappings, sequences
and plain scalars are read. Tags are not followed, and no objects are constructed. The limits of
:mod:`archgraph.limits` on depth and on the number of keys and values are enforced during reading.
An alias counts each time that it is used.
"""

from __future__ import annotations

import functools
import math
import os
import re
from pathlib import Path
from typing import NoReturn, Unpack

import yaml
from yaml import Event, MarkedYAMLError, ScalarEvent

from archgraph.errors import ErrorFacts, SpecError, os_reason
from archgraph.fields import Place
from archgraph.language.document import Document
from archgraph.language.mistakes import abbreviate
from archgraph.limits import LIMITS
from archgraph.plain import Json

_TAG = "tag:yaml.org,2002:"
# Tags that a file may write out. Dates stay text: JSON, another form of a spec, has none.
_TAGS = {f"{_TAG}{k}" for k in ("null", "bool", "int", "float", "str", "map", "seq", "timestamp")}
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
# A character that no YAML file may hold.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_BREAK = re.compile("\r\n?|[\n\x85\u2028\u2029]")  # as libyaml counts lines

# Errors in the parser's words, and advice.
_CURES = (
    (r"character '\\t'|tab character", "indent with spaces, not with tabs"),
    (r"expected ('-'|key)", "align the keys of a mapping, or the dashes of a list, in one column"),
    (
        r"mapping values are not allowed",
        "write one key per line, and put text that contains a colon in quotes",
    ),
    (r"expected ',' or '[\]}]'", "close every bracket, and put commas between items"),
    (r"could not find expected ':'", "write a colon and a space after each key"),
)


class _Reader:
    """Turns the events of a text into plain data, noting lines and counting what it makes.

    Raises:
        MarkedYAMLError: If the text is not one YAML document.
    """

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.source = text.split("\n")
        self.lines: dict[Place, int] = {}
        self.texts: dict[Place, tuple[int, int]] = {}
        self.count = 0
        self.events: list[Event] = []
        # By the index of an alias, the index of its value. Resolved here and not while reading: an
        # anchor may be set again further down.
        self.targets: dict[int, int] = {}
        anchors: dict[str, int] = {}
        # A PyYAML that was built without libyaml gives the same events, slowly.
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            index = len(self.events)
            # A value has at most two events; four frame the document.
            if index > 2 * LIMITS.yaml_values + 4:
                self.too_many(event)
            if isinstance(event, yaml.DocumentStartEvent) and index > 1:
                raise MarkedYAMLError(
                    problem="but found another document", problem_mark=event.start_mark
                )
            if isinstance(event, yaml.AliasEvent):
                if event.anchor not in anchors:
                    problem = f"undefined alias {event.anchor!r}"
                    raise MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
                self.targets[index] = anchors[event.anchor]
            elif isinstance(event, yaml.NodeEvent) and event.anchor is not None:
                anchors[event.anchor] = index
            self.events.append(event)

    def fail(self, event: Event, message: str, **facts: Unpack[ErrorFacts]) -> NoReturn:
        raise SpecError(message, where=f"{self.file}:{event.start_mark.line + 1}", **facts)

    def too_many(self, event: Event) -> NoReturn:
        self.fail(event, "holds too many values", expected=f"at most {LIMITS.yaml_values}")

    def document(self) -> dict[str, Json]:
        """Return the mapping in the text."""
        # After the starts of the stream and of the document; an empty text has no document.
        if not isinstance(next(iter(self.events[2:]), None), yaml.MappingStartEvent):
            raise SpecError("is not a mapping", where=f"{self.file}:1", expected="keys and values")
        return self.read(2, ())[0]

    def read(self, index: int, loc: Place) -> tuple[Json, int]:
        """Return the value that begins at an event, and the index of the event after it."""
        if index in self.targets:
            return self.read(self.targets[index], loc)[0], index + 1
        event = self.events[index]
        self.count += 1
        if self.count > LIMITS.yaml_values:
            self.too_many(event)
        # An alias of its own ancestor ends here, too.
        if len(loc) > LIMITS.yaml_depth:
            self.fail(event, "is nested too deeply", expected=f"at most {LIMITS.yaml_depth} levels")
        self.lines.setdefault(loc, event.start_mark.line + 1)
        tag = _tag(event)
        if tag not in _TAGS:
            self.fail(event, "has a tag", found=tag, expected="plain YAML")
        if isinstance(event, yaml.MappingStartEvent):
            return self.mapping(index, loc)
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Json] = []
            index += 1
            while not isinstance(self.events[index], yaml.CollectionEndEvent):
                item, index = self.read(index, (*loc, len(items)))
                items.append(item)
            return tuple(items), index + 1
        self.texts[loc] = self.text_start(event)
        kind = tag.removeprefix(_TAG)
        try:
            return self.scalar(event, kind), index + 1
        except (ValueError, KeyError):  # a written tag, or digits of another YAML version
            self.fail(event, f"is not a valid {kind}", found=abbreviate(event.value))

    def text_start(self, event: ScalarEvent) -> tuple[int, int]:
        line, column = event.start_mark.line, event.start_mark.column
        if event.style not in ("|", ">"):
            return line + 1, column + (event.style in ("'", '"'))
        content = next((s for s in self.source[line + 1 :] if s.strip()), "")
        return line + 2, len(content) - len(content.lstrip(" "))

    def mapping(self, index: int, loc: Place) -> tuple[dict[str, Json], int]:
        result: dict[str, Json] = {}
        index += 1
        while not isinstance(event := self.events[index], yaml.CollectionEndEvent):
            event = self.events[self.targets.get(index, index)]
            # No merge keys (`<<`), which YAML 1.2 dropped: a key would come from another line.
            if not isinstance(event, ScalarEvent) or _tag(event) == f"{_TAG}merge":
                self.fail(event, "has a key that is not a plain word", expected="a word")
            key, inner = event.value, (*loc, event.value)
            if key in result:
                hint = f"first on line {self.lines[inner]}"
                self.fail(event, f"has the key {abbreviate(key)} twice", hint=hint)
            self.count += 1
            self.lines[inner] = event.start_mark.line + 1
            result[key], index = self.read(index + 1, inner)
        return result, index + 1

    def scalar(self, event: ScalarEvent, kind: str) -> Json:
        text = event.value
        match kind:
            case "null":
                return None
            case "bool":
                return _WORDS[text.lower()]
            case "int":
                digits = text.replace("_", "")
                # Before the conversion, whose time grows with the square of their number.
                if len(digits.lstrip("+-")) > LIMITS.digits:
                    self.fail(
                        event,
                        "is too large a number",
                        found=abbreviate(text),
                        expected=f"at most {LIMITS.digits} digits",
                    )
                return int(digits, 0 if digits.lstrip("+-")[:2].lower() in ("0x", "0o") else 10)
            case "float":
                word = text.replace("_", "").lower()
                if word.lstrip("+-") in (".inf", ".nan"):
                    self.fail(event, "is not a finite number", found=text)
                value = float(word)
                if math.isinf(value):
                    self.fail(event, "is too large a number", found=abbreviate(text))
                return value
            case _:
                return text


def _tag(event: Event) -> str:
    """Return the tag of a value: as written, else by its form, and of a plain word by its text."""
    tag = str(event.tag or "!")
    if tag != "!":
        return tag
    if isinstance(event, yaml.CollectionStartEvent):
        return _TAG + ("map" if isinstance(event, yaml.MappingStartEvent) else "seq")
    words = _WORD_TAGS.items() if event.implicit[0] or event.tag == "!" else ()
    return next((word for word, rule in words if rule.fullmatch(event.value)), f"{_TAG}str")


def _read(path: Path) -> str:
    """Return the content of a text file.

    Raises:
        SpecError: If it is missing, too large, or not UTF-8.
    """
    limit = LIMITS.file_bytes
    try:
        # A pipe may never end, and a device never does.
        if path.exists() and not path.is_file() and not path.is_dir():
            facts: ErrorFacts = {"expected": "a text file"}
            facts["hint"] = "write its output to a file first"
            raise SpecError("is not a file", where=_printable(path), **facts)
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        reason = os_reason(error)
        raise SpecError("cannot be read", where=_printable(path), found=reason) from None
    if len(data) > limit:
        raise SpecError("is too large", where=str(path), expected=f"at most {limit} bytes")
    try:
        # Line ends as Python reads them from any text file.
        return data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        where = f"{path}:{data.count(10, 0, error.start) + 1}"
        byte = f"byte 0x{data[error.start]:02x}"
        raise SpecError("is not UTF-8 text", where=where, found=byte) from None


def _printable(path: Path) -> str:
    """Format a path, which may hold anything; escape and shorten it where necessary."""
    name = str(path)
    return name if name.isprintable() and len(name) < 200 else repr(name[:200])


def is_onnx(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is an ONNX file, judged by its name."""
    return Path(path).suffix.lower() == ".onnx"


def read_document(path: str | os.PathLike[str]) -> Document:
    """Read a YAML file, or the architecture of a saved model. An ONNX file gives an empty document.

    Raises:
        SpecError: If the file is missing, is not plain YAML, or exceeds a limit.
    """
    if is_onnx(path):
        return Document(str(path), {}, {})
    if (file := Path(path) / "model.yaml").is_file():
        return parse_document(_read(file), str(file))
    return parse_document(_read(Path(path)), str(path))


def parse_document(text: str, file: str) -> Document:
    """Read YAML text. Messages use ``file`` as the name of its file.

    Raises:
        SpecError: If the text is not a mapping in plain YAML, or exceeds a limit.

    Example:
        >>> parse_document("a: [1, {b: yes}]", "x.yaml").data
        {'a': (1, {'b': 'yes'})}
    """
    return _parsed(text, file) if len(text) <= _REMEMBERED else _parsed.__wrapped__(text, file)


# Longest text that is cached: specs are read repeatedly, but long flat graphs are not.
_REMEMBERED = 2**15


@functools.lru_cache(maxsize=512)
def _parsed(text: str, file: str) -> Document:
    if (sign := _FORBIDDEN.search(text)) is not None:
        where = f"{file}:{text.count(chr(10), 0, sign.start()) + 1}"
        code = f"U+{ord(sign.group()):04X}"
        raise SpecError("holds a character that YAML does not allow", where=where, found=code)
    try:
        reader = _Reader(file, text)
    except MarkedYAMLError as error:
        raise _not_yaml(error, text, file) from None
    return Document(file, reader.document(), reader.lines, reader.texts)


def _not_yaml(error: MarkedYAMLError, text: str, file: str) -> SpecError:
    """Return the error for a text that is not YAML, in words for people who do not parse."""
    mark = error.problem_mark or error.context_mark
    # An open bracket is noticed at the end, after the last line.
    line = min(mark.line, text.rstrip().count("\n")) + 1 if mark is not None else 1
    problem = str(error.problem or error.context).removeprefix("found ")
    if mark is not None and problem.startswith("character that"):
        character = _BREAK.split(text)[mark.line][mark.column]
        problem = problem.replace("character", f"character {character!r}")
    missing = re.fullmatch("(did|could) not find expected (.*)", problem)
    facts: ErrorFacts = {"expected": missing[2]} if missing else {"found": problem}
    facts["hint"] = next((hint for pattern, hint in _CURES if re.search(pattern, problem)), None)
    return SpecError("is not YAML", where=f"{file}:{line}", **facts)
