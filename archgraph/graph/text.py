"""Parse the printed form of a graph, the inverse of ``str(graph)``.

Every construct is on a single line, so errors have a line and column::

    graph 'tiny'
    parameter fc.weight: float32[10, 64]
    %x: float32[batch, 64] = input()
    %linear: float32[batch, 10] = aten.linear(input=%x, weight=fc.weight) @ fc
    forward x = %x
    return %linear

Parsing does not evaluate code: a word is a number, the name of a parameter, buffer or constant, or
one of a few reserved words.
"""

from __future__ import annotations

import ast
import base64
import binascii
import math
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar, get_args

from archgraph.errors import SpecError
from archgraph.graph.ir import (
    BATCH_WORD,
    TRAINING,
    ArchGraph,
    Atom,
    Constant,
    Leaf,
    Mode,
    Node,
    Param,
    Polynomial,
    Record,
    Ref,
    Role,
    Size,
    TensorType,
    Value,
)
from archgraph.graph.polynomial import as_size
from archgraph.graph.sizes import is_size_name, with_size_words
from archgraph.graph.values import BATCH, WORD
from archgraph.limits import LIMITS

ROLES: tuple[Role, ...] = get_args(Role)

_FLOAT8 = ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
# Bytes per element. Quantised and sub-byte types are not supported in files.
_DTYPES = {
    1: ("bool", "uint8", "int8", *(f"float8_{kind}" for kind in _FLOAT8)),
    2: ("uint16", "int16", "float16", "bfloat16"),
    4: ("uint32", "int32", "float32", "complex32"),
    8: ("uint64", "int64", "float64", "complex64"),
    16: ("complex128",),
}
ITEM_SIZES = {dtype: size for size, dtypes in _DTYPES.items() for dtype in dtypes}

_STRING = re.compile(r"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"")
_PACKED = re.compile(r"(zlib|raw):([A-Za-z0-9+/=]*)")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][+-]?[0-9]+)?")
_SIZE_WORD = re.compile(r"[A-Za-z_]\w*|[0-9]+")
_SIZE_SIGNS = ("*", "//", "+", "-")
_FLOAT_WORDS = {"inf": math.inf, "+inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_LITERALS: dict[str, Value] = {"None": None, "True": True, "False": False, "training": TRAINING}

T = TypeVar("T")


@dataclass(slots=True)
class _Cursor:
    """A position in one line of text, with the location for messages."""

    text: str
    line: int = 1
    file: str = ""
    column: int = 0
    at: int = 0
    last: int = 0  # start of the last token

    def fail(
        self, message: str, *, found: str | None = None, expected: str | None = None
    ) -> NoReturn:
        column = self.column + self.at + 1
        line = f"line {self.line}, column {column}"
        where = f"{self.file}:{self.line}:{column}" if self.file else line
        if found is None:
            rest = self.text[self.at :].strip()
            found = repr(rest if len(rest) <= 24 else rest[:24] + "…") if rest else "end of line"
        raise SpecError(message, where=where, found=found, expected=expected)

    def refuse(self, message: str, expected: str, found: str | None = None) -> NoReturn:
        """Raise an error at the last token."""
        token = self.text[self.last : self.at]
        self.at = self.last
        self.fail(message, found=repr(token) if found is None else found, expected=expected)

    def blanks(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1

    def peek(self, sign: str) -> bool:
        self.blanks()
        return self.text.startswith(sign, self.at)

    def take(self, sign: str) -> bool:
        if self.peek(sign):
            self.at += len(sign)
            return True
        return False

    def need(self, sign: str) -> None:
        if not self.take(sign):
            self.fail("cannot be read", expected=f"'{sign}'")

    def match(self, pattern: re.Pattern[str], expected: str) -> re.Match[str]:
        self.blanks()
        match = pattern.match(self.text, self.at)
        if match is None:
            self.fail("cannot be read", expected=expected)
        self.last, self.at = self.at, match.end()
        return match

    def word(self, expected: str) -> str:
        return self.match(WORD, expected).group()

    def string(self) -> str:
        token = self.match(_STRING, "a quoted string").group()
        try:
            text = str(ast.literal_eval(token))
            text.encode()  # a lone surrogate is valid in a Python string, but not in a file
        except UnicodeEncodeError:
            self.refuse("has an unpaired surrogate", "a Python string literal", token)
        except (SyntaxError, ValueError):
            self.refuse("has an unknown escape", "a Python string literal", token)
        return text

    def name(self, expected: str) -> str:
        """Read a word; a name with other characters is quoted, with or without ``@``."""
        self.blanks()
        self.take("@")
        quoted = self.text[self.at : self.at + 1] in ("'", '"')
        return self.string() if quoted else self.word(expected)

    def end(self) -> None:
        self.blanks()
        if self.at < len(self.text):
            self.fail("has extra text", expected="end of line")

    def bounded(self, word: str) -> int:
        """Return the value of the last token, an integer."""
        # Check the length first: converting a long numeral to an integer is quadratic.
        if len(word) > 24 or abs(int(word)) > 2**64:
            self.refuse("is out of range", "an integer of 64 bits", word[:24])
        return int(word)


def _size(cursor: _Cursor, depth: int = 0) -> Size:
    """Read a sum of products of integers and names, with ``//`` and powers of names."""
    total = _size_term(cursor, depth)
    while (plus := cursor.take("+")) or cursor.take("-"):
        term = _size_term(cursor, depth)
        total = _bounded_size(cursor, total + (term if plus else -1 * term))
    return total


def _size_term(cursor: _Cursor, depth: int) -> Size:
    value = _size_factor(cursor, depth)
    while (by := cursor.take("//")) or cursor.take("*"):
        factor = _size_factor(cursor, depth)
        if by and factor == 0:
            cursor.fail("is divided by zero", expected="a size above 0")
        value = _bounded_size(cursor, value // factor if by else value * factor)
    return value


def _size_factor(cursor: _Cursor, depth: int) -> Size:
    if depth > LIMITS.value_depth:
        cursor.fail("is nested too deeply", expected=f"at most {LIMITS.value_depth} levels")
    if cursor.take("("):
        inside = _size(cursor, depth + 1)
        cursor.need(")")
        return inside
    if cursor.take("-"):
        return -1 * _size_factor(cursor, depth + 1)
    word = cursor.match(_SIZE_WORD, "a size: an integer, or a name such as 'batch'").group()
    if word.isdecimal():
        return cursor.bounded(word)
    if not is_size_name(word):
        cursor.refuse("cannot be the name of a size", "another identifier")
    size: Size = Polynomial.of(word)
    if cursor.take("**"):
        power = cursor.match(_SIZE_WORD, "an integer").group()
        if not power.isdecimal() or not 1 <= cursor.bounded(power) <= LIMITS.size_degree:
            cursor.refuse("is not a power", f"an integer of 1 to {LIMITS.size_degree}")
        size = math.prod([size] * int(power))
    return size


def _bounded_size(cursor: _Cursor, size: Size) -> Size:
    """Return a size unchanged after checking its number of terms and degree."""
    size = as_size(size)
    if isinstance(size, Polynomial):
        degree = max(map(len, size.terms))
        if len(size.terms) > LIMITS.size_terms or degree > LIMITS.size_degree:
            cursor.fail(
                "is too long for a size",
                expected=f"at most {LIMITS.size_terms} terms of {LIMITS.size_degree} factors",
            )
    return size


def _tensor_type(cursor: _Cursor) -> TensorType:
    dtype = cursor.word("a tensor type such as float32[batch, 3]")
    if dtype not in ITEM_SIZES:
        cursor.refuse("is not a dtype", "e.g. float32, int64, bool")
    cursor.need("[")
    sizes: list[Size] = []
    while not cursor.take("]"):
        if sizes:
            cursor.need(",")
        sizes.append(_size(cursor))
    return TensorType(tuple(sizes), dtype)


def _type(cursor: _Cursor) -> TensorType | tuple[TensorType, ...]:
    return _items(cursor, _tensor_type) if cursor.take("(") else _tensor_type(cursor)


def _items(cursor: _Cursor, item: Callable[[_Cursor], T]) -> tuple[T, ...]:
    """Read the items of a tuple after its opening bracket, up to and including the closing one."""
    items: list[T] = []
    while not cursor.take(")"):
        if items:
            cursor.need(",")
            if cursor.take(")"):
                break
        items.append(item(cursor))
    return tuple(items)


def _value(cursor: _Cursor, depth: int = 0) -> Value:
    cursor.blanks()
    # Values are parsed recursively: a file must not exhaust Python's stack.
    if depth > LIMITS.value_depth:
        cursor.fail("is nested too deeply", expected=f"at most {LIMITS.value_depth} levels")
    start = cursor.at
    if cursor.take("("):
        items = _items(cursor, lambda c: _value(c, depth + 1))
        return _size_from(cursor, start, items)
    if cursor.take("%"):
        return Ref(cursor.name("the name of a node"))
    if cursor.take("@"):
        return Leaf(cursor.name("the name of a leaf"))
    if cursor.take(":"):
        return Atom(cursor.word("a torch enumeration such as float32"))
    if cursor.peek("{"):
        return _record(cursor, "", depth)
    if cursor.text[cursor.at : cursor.at + 1] in ("'", '"'):
        return cursor.string()
    return _size_from(cursor, start, _word_value(cursor, depth))


def _size_from(cursor: _Cursor, start: int, value: Value) -> Value:
    """Return a value, or the size that starts with it: ``(3,)`` but ``(h + 3)*2``.

    A single word is read as a leaf here; :func:`parse` knows which words are sizes.
    """
    if not any(map(cursor.peek, _SIZE_SIGNS)):
        return value
    cursor.at = start
    return _size(cursor)


def _word_value(cursor: _Cursor, depth: int) -> Value:
    """Read a value that starts with a word: number, literal, size, mode, record or leaf."""
    word = cursor.word("a value")
    if cursor.peek("{"):
        return _record(cursor, word, depth)
    if word in _LITERALS:
        return _LITERALS[word]
    if word == "train":
        cursor.need("(")
        train = _value(cursor, depth + 1)
        cursor.need(",")
        evaluation = _value(cursor, depth + 1)
        cursor.need(")")
        return Mode(train, evaluation)
    if word == BATCH_WORD:
        return BATCH
    if _INTEGER.fullmatch(word):
        return cursor.bounded(word)
    if word in _FLOAT_WORDS:
        return _FLOAT_WORDS[word]
    return float(word) if _FLOAT.fullmatch(word) else Leaf(word)


def _record(cursor: _Cursor, name: str, depth: int) -> Record:
    cursor.need("{")
    fields: list[tuple[str, Value]] = []
    while not cursor.take("}"):
        if fields:
            cursor.need(",")
        key = cursor.string()
        cursor.need(":")
        fields.append((key, _value(cursor, depth + 1)))
    return Record(tuple(fields), name)


def _constant(cursor: _Cursor, kind: TensorType) -> Constant:
    """Read the bytes of a constant, and decompress at most the number that its type allows."""
    cursor.blanks()
    shape = tuple(s for s in kind.shape if isinstance(s, int))
    size = math.prod(shape) * ITEM_SIZES[kind.dtype]
    if size > LIMITS.constant_bytes:
        cursor.fail("is too large", found=f"{size} bytes", expected=f"≤ {LIMITS.constant_bytes}")
    packed = cursor.match(_PACKED, "'zlib:…' or 'raw:…'")
    try:
        data = base64.b64decode(packed.group(2), validate=True)
        if packed.group(1) == "zlib":
            unpack = zlib.decompressobj()
            # One byte more than expected suffices to refuse a bomb without unpacking it.
            data = unpack.decompress(data, size + 1)
    except (binascii.Error, zlib.error) as error:
        cursor.refuse("is damaged", "base64 of the tensor's bytes", str(error))
    if len(data) != size:
        length = str(len(data)) if len(data) < size else f"more than {size}"
        cursor.refuse("has the wrong number of bytes", f"{size} for {kind}", length)
    return Constant(kind.dtype, shape, data)


def _param(cursor: _Cursor, role: Role) -> Param:
    name = cursor.name("the name of a leaf")
    cursor.need(":")
    cursor.blanks()
    start = cursor.at
    kind = _tensor_type(cursor)
    if any(isinstance(s, Polynomial) or s < 0 for s in kind.shape):
        cursor.at = start
        cursor.fail("is not valid for a leaf", found=str(kind), expected="sizes ≥ 0, no open ones")
    aliases: list[str] = []
    trainable = role == "parameter"
    while not cursor.peek("=") and cursor.at < len(cursor.text):
        match cursor.word("'alias', 'frozen', '=' or end of line"):
            case "alias":
                aliases.append(cursor.name("the name of an alias"))
            case "frozen" if role == "parameter":
                trainable = False
            case _:
                cursor.refuse("is not allowed here", "'alias' or 'frozen'")
    value = _constant(cursor, kind) if cursor.take("=") else None
    return Param(name, kind, role, trainable, tuple(aliases), value)


def _node(cursor: _Cursor) -> Node:
    cursor.need("%")
    name = cursor.name("the name of a node")
    cursor.need(":")
    kind = _type(cursor)
    cursor.need("=")
    op = cursor.word("an operator")
    cursor.need("(")

    def argument(cursor: _Cursor) -> tuple[str, Value]:
        key = cursor.word("the name of an argument")
        cursor.need("=")
        return key, _value(cursor)

    args = _items(cursor, argument)
    scope = ""
    if cursor.take("@"):
        # The rest of the line, since module names may contain any character.
        scope = cursor.text[cursor.at :].strip()
        if not scope:
            cursor.fail("has no scope", expected="a module path")
        cursor.at = len(cursor.text)
    return Node(name, op, args, kind, scope)


def _section(cursor: _Cursor) -> tuple[str, tuple[str, ...]]:
    name = cursor.string()
    cursor.need("(")
    return name, _items(cursor, _Cursor.string)


def _pair(cursor: _Cursor) -> tuple[str, Value]:
    key = cursor.name("a name")
    cursor.need("=")
    return key, _value(cursor)


# The field of a graph that a line adds to, by the line's first word; '%' starts a node.
_STATEMENTS: dict[str, tuple[str, Callable[[_Cursor], object]]] = {
    "graph": ("name", _Cursor.string),
    "note": ("notes", _Cursor.string),
    "section": ("sections", _section),
    "update": ("updates", _pair),
    "forward": ("inputs", _pair),
    "return": ("outputs", _value),
}


def _statement(cursor: _Cursor) -> tuple[str, object]:
    """Read one line: return the field of the graph that it adds to, and the item."""
    if cursor.peek("%"):
        return "nodes", _node(cursor)
    word = cursor.word("a statement")
    if word in ROLES:
        return "params", _param(cursor, word)
    if word not in _STATEMENTS:
        expected = ", ".join([*ROLES, *_STATEMENTS, "%name: …"])
        cursor.refuse("is not a statement", f"one of {expected}")
    name, read = _STATEMENTS[word]
    return name, read(cursor)


def parse(text: str, *, file: str = "") -> ArchGraph:
    r"""Parse the printed form of a graph.

    ``parse(str(graph)) == graph`` holds for every graph. Empty lines and lines that start with
    ``#`` are ignored. Only the syntax is checked; :func:`archgraph.ops.check.check` checks that the
    graph is valid.

    Args:
        text: The printed form, one statement per line.
        file: Name of the file with the text, for messages.

    Raises:
        SpecError: If a line cannot be parsed. The message has the line and the column.

    Example:
        >>> graph = parse("%x: float32[batch, 2] = input()\nforward x = %x\nreturn %x")
        >>> print(graph)
        graph ''
        %x: float32[batch, 2] = input()
        forward x = %x
        return %x
    """
    fields: dict[str, list[Any]] = {"inputs": [], "params": [], "nodes": []}
    # Not splitlines(), which also splits at characters that quoted names may contain. Bounded by
    # the limit: a file of empty lines must not become a list of as many strings.
    lines = text.split("\n", LIMITS.lines)
    if len(lines) > LIMITS.lines:
        raise SpecError(f"has more than {LIMITS.lines} lines", where=file or None)
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            name, item = _all_of(_statement, line, number, 0, file)
            fields.setdefault(name, []).append(item)
    outputs, names = fields.pop("outputs", []), fields.pop("name", [""])
    if len(outputs) != 1:
        raise SpecError(
            "a graph needs one line 'return …'", where=file or None, found=f"{len(outputs)} of them"
        )
    items = {field: tuple(values) for field, values in fields.items()}
    return with_size_words(ArchGraph(**items, outputs=outputs[0], name=names[-1]))


def _all_of(read: Callable[[_Cursor], T], text: str, line: int, column: int, file: str) -> T:
    """Parse a complete text; errors count from ``line`` (from 1) and ``column`` (from 0)."""
    cursor = _Cursor(text, line, file, column)
    result = read(cursor)
    cursor.end()
    return result


def parse_value(text: str, *, line: int = 1, column: int = 0, file: str = "") -> Value:
    """Parse the value of an argument, the inverse of :func:`archgraph.graph.ir.show`.

    Raises:
        SpecError: If the text cannot be parsed.

    Example:
        >>> parse_value("(%relu, 2*batch, fc.weight, training, 0.5)")[1]
        2*batch
    """
    return _all_of(_value, text, line, column, file)


def parse_node(text: str, *, line: int = 1, column: int = 0, file: str = "") -> Node:
    """Parse one node, the inverse of ``str(node)``.

    Raises:
        SpecError: If the text cannot be parsed.

    Example:
        >>> parse_node("%relu: float32[batch, 8] = aten.relu(self=%x) @ act").scope
        'act'
    """
    return _all_of(_node, text, line, column, file)


def parse_param(text: str, *, line: int = 1, column: int = 0, file: str = "") -> Param:
    """Parse one parameter, buffer or constant, the inverse of ``str(param)``.

    Raises:
        SpecError: If the text cannot be parsed.

    Example:
        >>> parse_param("parameter fc.bias: float32[10] frozen").trainable
        False
    """

    def read(cursor: _Cursor) -> Param:
        word = cursor.word("the role of a leaf")
        if word not in ROLES:
            cursor.refuse("is not a role", " or ".join(ROLES))
        return _param(cursor, word)

    return _all_of(read, text, line, column, file)


def statement_name(line: str) -> str | None:
    """Return the name of the node, parameter, buffer or constant that a line defines.

    None for other lines.

    >>> statement_name("%'a b': float32[] = input()"), statement_name("buffer bn.mean: float32[3]")
    ('a b', 'bn.mean')
    """
    cursor = _Cursor(line)
    try:
        if not cursor.take("%") and cursor.word("a role") not in ROLES:
            return None
        return cursor.name("a name")
    except SpecError:
        return None
