"""Convert pydantic's errors to messages about the file: place, found, expected, hint."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import pydantic
from pydantic_core import ErrorDetails

from archgraph.errors import ErrorFacts
from archgraph.fields import Key, Mistake, Place
from archgraph.hints import nearest
from archgraph.language.elsewhere import suggestion
from archgraph.plain import Json

ModelType: TypeAlias = type[pydantic.BaseModel]

# Pydantic's wording, and the wording of our messages.
WORDS = (
    (r"tuple|list|array", "a list"),
    (r"dictionary|mapping|object|dictionary or (object.*|instance of .*)", "a mapping"),
    (r"Unable to extract tag using discriminator ('.*')", r"a mapping with the key \1"),
    (r"string", "text"),
    (r"integer(, (got a number with|unable to parse) .*)?", "an integer"),
    (r"number(, unable to parse string as a number)?|finite number", "a number"),
    (r"boolean(, unable to interpret input)?", "true or false"),
    (r"None", "nothing"),
    (r"greater than or equal to (.*)", r"\1 or more"),
    (r"less than or equal to (.*)", r"\1 or less"),
    (r"greater than (.*)", r"more than \1"),
    (r"String should match pattern '(.*)'", r"text that matches \1"),
    (r"String should have at least 1 character", "text that is not empty"),
    (r"(?:Tuple|List|Dictionary|Value) should have at least (\d+) items?.*", r"\1 or more entries"),
    (r"(?:Tuple|List|Dictionary|Value) should have at most (\d+) items?.*", r"at most \1 entries"),
)


def known_place(lines: Collection[Place], loc: Place, rest: Place) -> Place:
    """Extend a place by the following keys that the file contains.

    The file lacks the key of an option that is written as a bare value, and the tags of pydantic's
    unions.
    """
    for key in rest:
        if (*loc, key) in lines:
            loc = (*loc, key)
    return loc


def main_mistake(
    error: pydantic.ValidationError,
    model: ModelType,
    lines: Collection[Place],
    loc: Place = (),
    ignore: Callable[[Json], bool] | None = None,
) -> Mistake:
    """Return the most informative mistake that pydantic found, with its place.

    Args:
        error: The errors of pydantic.
        model: The pydantic model.
        lines: The places (tuples of keys and indices) in the file.
        loc: Place of the validated data in the file.
        ignore: Function that returns whether a value cannot be validated yet.
    """
    errors = error.errors(include_url=False)
    if ignore is not None:
        errors = [e for e in errors if e["type"] == "extra_forbidden" or not ignore(e["input"])]

    def where(fault: ErrorDetails) -> Place:
        return known_place(lines, loc, fault["loc"])

    first = _most_telling(errors, where)
    inner = where(first)
    same = [e for e in errors if where(e) == inner]
    key = "".join(map(str, first["loc"][-1:]))
    match first["type"]:
        case "extra_forbidden":
            names = _field_names(model, first["loc"][:-1])
            expected = f"one of {', '.join(names)}" if names else None
            hint = _advice(key, names, model, first["loc"][:-1])
            facts: ErrorFacts = {"found": repr(key), "expected": expected, "hint": hint}
            return Mistake("is an unknown key", place=inner, **facts)
        case "missing" if isinstance(
            first["loc"][-1], int
        ):  # a list with a fixed number of entries
            value = abbreviate(first["input"])
            return Mistake("has too few entries", place=inner, found=value)
        case "missing":
            expected = _description(model, first)
            return Mistake(f"lacks the key {key!r}", place=inner, expected=expected)
        case "value_error":
            return _raised(first, inner)
        case "literal_error" | "union_tag_invalid":
            return _choice(first, inner, same)
        case _:
            # The members of a union each report what they expected at the same place.
            words = dict.fromkeys(in_words(e["msg"]) for e in same)
            value = abbreviate(first["input"])
            facts = {"found": value, "expected": " or ".join(words)}
            return Mistake("has a wrong value", place=inner, **facts)


def _most_telling(
    errors: Sequence[ErrorDetails], where: Callable[[ErrorDetails], Place]
) -> ErrorDetails:
    """Return the most informative error.

    1. A misspelt key is often also a missing one; the misspelling is more informative.
    2. Among a union's members, the one that was read furthest is the most informative; one that was
       read completely came further than one of another type.
    """
    first = min(errors, key=lambda e: e["type"] != "extra_forbidden")  # 1
    if first["type"] in ("extra_forbidden", "missing"):
        return first
    inner = where(first)
    return max(  # 2
        errors,
        key=lambda e: (where(e)[: len(inner)] == inner, e["type"] == "value_error", len(e["loc"])),
    )


def _raised(fault: ErrorDetails, loc: Place) -> Mistake:
    """Return the mistake that one of our own validators raised, with its place in the file."""
    cause = fault["ctx"]["error"]
    if isinstance(cause, Mistake):
        other = (*loc, *cause.other) if cause.other else ()
        return Mistake(cause.message, place=(*loc, *cause.place), other=other, **cause.facts)
    return Mistake(str(cause), place=loc, found=abbreviate(fault["input"]))


def _choice(fault: ErrorDetails, loc: Place, same: Sequence[ErrorDetails]) -> Mistake:
    """Return the mistake of a value outside a list of choices, with all that is valid."""
    facts = fault["ctx"]
    # Pydantic lists the choices as text: 'a', 'b' or 'c'.
    listed = facts.get("expected_tags") or facts["expected"]
    names = [n.strip(" '") for n in listed.replace(" or ", ",").split(",")]
    wrong = facts.get("tag", fault["input"])
    listed = f"one of {', '.join(names)}" if len(names) > 1 else names[0]
    others = [in_words(e["msg"]) for e in same if e["type"] in ("int_type", "tuple_type")]
    return Mistake(
        "has an unknown value",
        place=loc,
        found=abbreviate(wrong),
        expected=" or ".join((listed, *others)),
        hint=nearest(wrong, names) if isinstance(wrong, str) else None,
    )


def abbreviate(value: object) -> str:
    """Shorten a value for a message.

    >>> abbreviate("x" * 100)[-5:], abbreviate({"a": 1}), abbreviate((1, 2))
    ('xxxx…', 'a mapping', '[1, 2]')
    """
    if isinstance(value, Mapping):
        return "a mapping"
    text = repr(list(value)) if isinstance(value, tuple) else repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def in_words(message: str) -> str:
    """Translate pydantic's "Input should be …" to our wording.

    >>> in_words("Input should be greater than or equal to 1"), in_words("Input should be less")
    ('1 or more', 'less')
    """
    text = message.removeprefix("Input should be ").removeprefix("a valid ")
    for pattern, words in WORDS:
        if match := re.fullmatch(pattern, text):
            return match.expand(words)
    return text


def _field_names(model: ModelType, loc: tuple[Key, ...]) -> list[str]:
    """Return the keys of the model at a location; none if it is ambiguous."""
    kinds: list[ModelType] = [model]
    for key in loc:
        inner = [
            m
            for kind in kinds
            for n, f in kind.model_fields.items()
            if key == (f.alias or n)
            for m in _models(f.annotation)
        ]
        # Not a key: the position in a list, or the tag of a union's member.
        tagged = [m for m in kinds if key == m.__name__ or _tag_of(m, key)]
        kinds = inner or tagged or kinds
    return [f.alias or n for n, f in kinds[0].model_fields.items()] if len(kinds) == 1 else []


def _advice(key: str, names: list[str], model: ModelType, loc: tuple[Key, ...]) -> str | None:
    """Return the hint about an unknown key: a similar name, or the mapping to which it belongs."""
    if (hint := suggestion(key, names)) is not None:
        return hint
    if key.isdecimal():
        return "write numbers with a point, not with a comma"
    parts = () if loc else model.model_fields.items()
    for name, field in parts:
        if any(key in inner.model_fields for inner in _models(field.annotation)):
            return f"it is a key of {name!r}: {name}.{key}"
    return None


def _description(model: ModelType, fault: ErrorDetails) -> str | None:
    """Return the description of a key that is missing at the top of the file."""
    key = str(fault["loc"][-1])
    field = model.model_fields.get(key) if len(fault["loc"]) == 1 else None
    if field is None or not field.description:
        return None
    return f"{key}: {field.description.partition(';')[0]}"


def _tag_of(model: ModelType, key: Key) -> bool:
    return any(key in getattr(f.annotation, "__args__", ()) for f in model.model_fields.values())


def _models(annotation: object) -> Iterable[ModelType]:
    """Yield the models inside a type annotation."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _models(inner)
