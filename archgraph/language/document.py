"""A parsed file: plain data, with the line of each key and item."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NoReturn, Self, TypeAlias, TypeVar, Unpack

import pydantic

from archgraph.errors import ArchGraphError, ErrorFacts, SpecError
from archgraph.fields import Base, Key, Place
from archgraph.language.mistakes import ModelType, abbreviate, known_place, main_mistake
from archgraph.language.writing import yaml_text
from archgraph.notebook import preformatted
from archgraph.plain import Json

M = TypeVar("M", bound=pydantic.BaseModel)
PathKind: TypeAlias = Literal["file", "folder", "file or folder"]


def dotted(loc: Place) -> str:
    """Render a place (a tuple of keys and indices) as text.

    >>> dotted(("sections", 2, "steps", 0))
    'sections[2].steps[0]'
    """
    parts = [f"[{k}]" if isinstance(k, int) else f".{k}" for k in loc]
    return "".join(parts).removeprefix(".")


def places(value: Json, loc: Place = ()) -> Iterator[Place]:
    """Yield the places of every value inside plain data.

    >>> list(places({"a": {"b": 1}}))
    [(), ('a',), ('a', 'b')]
    """
    yield loc
    if isinstance(value, dict | tuple):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*loc, key))


# Compared and hashed by identity: results computed from a file are cached by its document.
@dataclass(frozen=True, eq=False)
class Document:
    """The content of a YAML file. Reading the same text again returns the same object.

    Attributes:
        file: Path as the user gave it, for messages.
        data: Mappings, tuples, strings, numbers, booleans and ``None``.
        lines: Dict from the place of a key or item (a tuple of keys and indices) to its line, from
            1.
        texts: Dict from the place of a string to the line (from 1) and column (from 0) at which its
            text begins.
    """

    file: str
    data: Json
    lines: Mapping[Place, int]
    texts: Mapping[Place, tuple[int, int]] = field(default_factory=dict)

    def where(self, loc: Place) -> str:
        """Return file, line and key of a place. If the place is missing, use its parent's line."""
        known = loc
        while known and known not in self.lines:
            known = known[:-1]
        name = f": {dotted(loc)}" if loc else ""
        line = self.lines.get(known, 1) if self.lines else 0  # of no file
        return f"{self.file}{f':{line}' if line else ''}{name}"

    def fail(self, loc: Place, message: str, **facts: Unpack[ErrorFacts]) -> NoReturn:
        """Raise a ``SpecError`` that points at a place of the file."""
        # From None: the message restates the error of pydantic or the YAML parser in the file's
        # terms.
        raise SpecError(message, where=self.where(loc), **facts) from None

    @contextlib.contextmanager
    def locating(self, *loc: Key) -> Iterator[None]:
        """Add the file and line of a place to errors that are raised in this context."""
        try:
            yield
        except ArchGraphError as error:
            if (error.where or "").startswith(f"{self.file}:"):
                raise
            # Values passed in Python carry their keys only, `strategy.fedavg.weights`.
            parts = (error.where or "").split(".")
            inside: Place = tuple(int(part) if part.isdecimal() else part for part in parts)
            if inside[: len(loc)] == loc:
                error.where = self.where(inside)
            else:
                error.where = ": ".join(filter(None, (self.where(loc), error.where)))
            raise

    def validate(self, model: type[M]) -> M:
        """Validate the data as a pydantic model.

        Raises:
            SpecError: For the first mistake, with its file, line and key.
        """
        try:
            return model.model_validate(self.data)
        except pydantic.ValidationError as error:
            self.refuse(error, model)

    def refuse(
        self,
        error: pydantic.ValidationError,
        model: ModelType,
        loc: Place = (),
        ignore: Callable[[Json], bool] | None = None,
        hint: str | None = None,
    ) -> NoReturn:
        """Raise a ``SpecError`` for the most informative of pydantic's errors."""
        mistake = main_mistake(error, model, self.lines, loc, ignore)
        mistake.facts["hint"] = mistake.facts.get("hint") or hint
        line = self.lines.get(mistake.other) if mistake.other else None
        message = mistake.message + (f", as on line {line}" if line else "")
        self.fail(mistake.place, message, **mistake.facts)

    def known(self, loc: Place, rest: Place) -> Place:
        """Extend a place by those keys of ``rest`` that the file contains."""
        return known_place(self.lines, loc, rest)

    def sub(self, loc: Place) -> Document:
        """Return the part of the file at a place as a document.

        If the file does not contain the place, the data is None.
        """
        size, data = len(loc), self.data
        for key in loc:
            data = data.get(key) if isinstance(data, dict) else data[key]
            if data is None:
                break
        lines = {k[size:]: v for k, v in self.lines.items() if k[:size] == loc}
        texts = {k[size:]: v for k, v in self.texts.items() if k[:size] == loc}
        return Document(self.file, data, lines, texts)


class FromFile(Base):
    """The validated content of a file. Comparisons ignore the location of the file."""

    _document: Document | None = pydantic.PrivateAttr(None)
    _changed: frozenset[str] = pydantic.PrivateAttr(frozenset())

    def __repr__(self) -> str:
        """Return a one-line summary; ``print`` writes all of it as YAML."""
        return f"<{type(self).__name__} {self.summary()}>"

    def __str__(self) -> str:
        return yaml_text(
            self.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
        )

    def _repr_html_(self) -> str:
        return preformatted(repr(self).strip("<>"), str(self).splitlines())

    def summary(self) -> str:
        """Summarise the file in a few words."""
        return str(getattr(self, "name", ""))

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and dict(self) == dict(other)

    def document_of(self, loc: Place) -> Document:
        """Return the document that contains a place: the file, or values changed in Python."""
        if self._document is not None and loc[0] not in self._changed:
            return self._document
        # Changed in Python: the line of the file would point at a value that no longer holds.
        name = type(self).__name__.removesuffix("Spec").lower()
        return Document(name, self.model_dump(by_alias=True, exclude_unset=True), {})

    def read_from(self, document: Document) -> Self:
        """Record the document from which these values were read, and return the values."""
        # Private attributes may be set on a frozen model, and are not part of its value.
        self._document, self._changed = document, frozenset()
        return self

    def model_copy(self, *, update: Mapping[str, object] | None = None, deep: bool = False) -> Self:
        """Return a copy with some values changed.

        Errors about changed values do not name a line.
        """
        copy = super().model_copy(update=update, deep=deep)
        copy._changed = self._changed | frozenset(update or ())
        return copy

    def completed(self, **values: object) -> Self:
        """Return a copy with some values changed. Errors still name the lines of the file."""
        return super().model_copy(update=values)

    def locating(self, *loc: str) -> contextlib.AbstractContextManager[None]:
        """Add the file and line of a place to errors raised in this context, if it is in a file."""
        if self._document is None or loc[0] in self._changed:
            return contextlib.nullcontext()
        return self._document.locating(*loc)


def beside(
    document: Document,
    name: str,
    loc: Place,
    kind: PathKind = "file",
) -> Path:
    """Return the path of a file or folder that another file names.

    A relative name is relative to the folder of the file that contains the name.

    Raises:
        SpecError: If the file or folder does not exist.
    """
    try:
        path = (Path(document.file).parent / Path(name).expanduser()).resolve()
        there = ("file" in kind and path.is_file()) or ("folder" in kind and path.is_dir())
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, links in a circle
        path, there = Path(name), False
    if not there:
        text = str(path) if name.isprintable() else name
        shipped = "`archgraph init specs` writes such files" if "specs" in path.parts else None
        hint = shipped if kind == "file" else "nothing is downloaded"
        document.fail(
            loc,
            f"names a {kind} that does not exist",
            found=text if len(text) < 200 else abbreviate(text),
            expected=f"a {kind} of this machine, absolute or relative to this file",
            hint=hint,
        )
    return path
