"""Find strategies by name, and read their options from a spec."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Mapping

from archgraph.errors import SpecError
from archgraph.federation.strategy import Strategy
from archgraph.hints import EXTRAS, import_cause, optional_module, unknown
from archgraph.language.experiment import installed_strategy, strategy_options
from archgraph.language.mistakes import in_words
from archgraph.language.python import import_named
from archgraph.plain import Json


def find_strategy(name: str) -> type[Strategy]:
    """Return the strategy class of a name.

    Args:
        name: An entry point of the group ``archgraph.strategies``, or ``package.module:Class``,
            which is imported; inside :func:`archgraph.language.allowed`, if it is not archgraph's.

    Raises:
        SpecError: If there is none or more than one, it cannot be imported, or it is not a
            strategy.

    Example:
        >>> find_strategy("fedav")
        Traceback (most recent call last):
        archgraph.errors.SpecError: strategy: unknown strategy; found 'fedav'; expected one of ...
    """
    if ":" in name:
        return _checked(import_named(name, Strategy, "strategy.python"), name)
    entry = installed_strategy(name)
    try:
        return _checked(entry.load(), entry.value)
    except (ImportError, AttributeError) as error:
        cause, hint = import_cause(error)
        raise SpecError(
            f"strategy {name} cannot be imported",
            where="strategy",
            found=f"{entry.value}: {cause}",
            hint=hint or "reinstall the package that provides it",
        ) from error


def _checked(strategy: object, name: str) -> type[Strategy]:
    """Check that a class is a complete strategy."""
    if not (isinstance(strategy, type) and issubclass(strategy, Strategy)):
        raise SpecError(
            "is not a strategy",
            where="strategy",
            found=name,
            expected="a subclass of archgraph.federation.Strategy",
        )
    if inspect.isabstract(strategy):
        lacks = ", ".join(sorted(strategy.__abstractmethods__))
        raise SpecError(f"{name} lacks {lacks}", where="strategy")
    return strategy


def _installed(cls: type[Strategy], where: str) -> None:
    """Raise an error for a strategy whose extra is missing."""
    for module in (module for module, extra in EXTRAS.items() if extra == cls.extra):
        optional_module(module, kind=SpecError, where=where)


def configure(name: str, options: Mapping[str, Json] | None = None) -> Strategy:
    """Build a strategy from plain options, checked field by field.

    Args:
        name: Name of the strategy.
        options: Its fields by name; ``preset`` names a set of values that the others override.

    Raises:
        SpecError: For an unknown strategy, option or preset (with the nearest name), or a value of
            the wrong type or outside its range; ``where`` is ``strategy.name.option``.

    Example:
        >>> configure("fedavg", {"weights": "uniform"}).weights
        'uniform'
    """
    import pydantic

    cls = find_strategy(name)
    prefix = "strategy" if ":" in name else f"strategy.{name}"
    _installed(cls, prefix)
    chosen = dict(options or {})
    preset = chosen.pop("preset", None)
    if preset is not None:
        if preset not in cls.presets:
            facts = unknown(str(preset), cls.presets)
            raise SpecError("unknown preset", where=f"{prefix}.preset", **facts)
        chosen = {**cls.presets[preset], **chosen}
    fields = [field.name for field in strategy_options(cls)]
    for key in chosen:
        if key not in fields:
            raise SpecError("unknown option", where=f"{prefix}.{key}", **unknown(key, fields))
    types = typing.get_type_hints(cls)
    defaults = {field.name: field.default for field in strategy_options(cls)}
    values = {}
    for key, value in chosen.items():
        try:
            # JSON's strictness: 1 is a float, "1" and True are not; a list is a tuple.
            text = json.dumps(value)
            read = pydantic.TypeAdapter(types[key]).validate_json(text, strict=True)
            # A default that a run has recorded is the same: 300, which is read as 300.0.
            values[key] = defaults[key] if read == defaults[key] else read
        except (pydantic.ValidationError, TypeError) as error:
            expected = "a plain value"
            if isinstance(error, pydantic.ValidationError):
                expected = in_words(error.errors()[0]["msg"])
            raise SpecError(
                "wrong value", where=f"{prefix}.{key}", found=repr(value), expected=expected
            ) from None
    try:
        strategy = cls(**values)
        Strategy.__post_init__(strategy)  # also where the class has one that does not call it
        return strategy
    except SpecError as error:
        error.where = f"{prefix}.{error.where}" if error.where else prefix
        raise
