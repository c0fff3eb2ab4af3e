"""Find strategies by name, and build them from their options."""

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
    """Return the class of a strategy, given its name.

    Args:
        name: The name of an entry point in the group ``archgraph.strategies``, or
            ``package.module:Class``. A class outside archgraph is imported only in a ``with`` block
            of :func:`archgraph.language.allowed`.

    Raises:
        SpecError: If no strategy or several strategies have this name, or if the class cannot be
            imported or is not a strategy.

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
    """Check that a class is a strategy without abstract methods."""
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
    """Raise an error if the packages of the strategy's extra are not installed."""
    for module in (module for module, extra in EXTRAS.items() if extra == cls.extra):
        optional_module(module, kind=SpecError, where=where)


def configure(name: str, options: Mapping[str, Json] | None = None) -> Strategy:
    """Build a strategy from a dict of options, and check the options.

    Args:
        name: Name of the strategy.
        options: Dict from option to value. The value of the key ``preset`` is the name of a
            predefined set of values. The values in the dict override the predefined values.

    Raises:
        SpecError: If the strategy, an option or the preset is unknown, or a value has the wrong
            type or is out of range. The error's ``where`` is ``strategy.name.option``.

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
            # Strict JSON rules: 1 is valid as a float, "1" and True are not. A list is read as a
            # tuple.
            text = json.dumps(value)
            read = pydantic.TypeAdapter(types[key]).validate_json(text, strict=True)
            # A value that equals the default keeps the default's type: 300 is read as 300.0.
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
