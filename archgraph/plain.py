"""Functions for plain values, which JSON and YAML can represent."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

Json: TypeAlias = Any
"""None, a boolean, a number, a string, or a list or mapping (with string keys) of these."""

JsonSchema: TypeAlias = dict[str, Json]


def digest(value: Json) -> str:
    """Return the SHA-256 of a JSON value, independent of the order of its keys.

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def by_text(value: object) -> bool:
    """Return whether all keys in a value are strings; JSON would silently convert other keys.

    >>> by_text({"a": [{"b": 1}]}), by_text({"a": [{2: 1}]})
    (True, False)
    """
    match value:
        case Mapping():
            return all(isinstance(k, str) and by_text(item) for k, item in value.items())
        case list() | tuple():
            return all(map(by_text, value))
        case _:
            return True


def json_safe(value: Json) -> Json:
    """Replace NaN and infinities, which JSON does not support, by None.

    >>> json_safe({"loss": float("nan"), "steps": [1.0, 2]})
    {'loss': None, 'steps': [1.0, 2]}
    """
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {key: json_safe(item) for key, item in value.items()}
        case list() | tuple():
            return [json_safe(item) for item in value]
        case _:
            return value


def differences(actual: Json, expected: Json, path: str = "") -> Iterator[str]:
    """Yield the differences between two JSON values, as texts ``key: … instead of …``.

    >>> list(differences({"a": {"b": 1}}, {"a": {"b": 2}}))
    ['a.b: 1 instead of 2']
    >>> list(differences({"loss": float("nan")}, {"loss": float("nan")}))
    []
    """
    if isinstance(actual, Mapping) and isinstance(expected, Mapping):
        for key in sorted({*actual, *expected}, key=str):
            inner = f"{path}.{key}" if path else str(key)
            yield from differences(actual.get(key), expected.get(key), inner)
    elif actual != expected and (actual == actual or expected == expected):  # else both are NaN
        yield f"{path}: {_brief(actual)} instead of {_brief(expected)}"


def _brief(value: Json) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    if len(text) <= 60:
        return text
    return text[:56] + ('…"' if isinstance(value, str) else "…")
