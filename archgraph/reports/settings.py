"""The settings of an experiment that differ from the defaults."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pydantic
import pydantic_core

from archgraph.errors import SpecError
from archgraph.federation.registry import find_strategy
from archgraph.language import ExperimentSpec
from archgraph.language.data import IidSpec
from archgraph.language.named import LibraryClass
from archgraph.plain import Json
from archgraph.reports.sheets import NOTHING

# Keys that are shown elsewhere on a page, are not a choice, or are paths on the run's machine.
ELSEWHERE = frozenset({"archgraph", "name", "family", "strategy", "rounds", "data.root"})
# Effective values of keys whose default is None.
MEANT: Mapping[str, pydantic.BaseModel] = {"data.partition": IidSpec()}


class Setting(NamedTuple):
    """A setting that differs from its default.

    Attributes:
        key: Dotted path of its keys.
        value: The value, as plain data.
        default: The default; None if the setting is required.
    """

    key: str
    value: Json
    default: Json


def differing(spec: ExperimentSpec) -> tuple[Setting, ...]:
    """Return the settings of an experiment that differ from the defaults.

    Example:
        >>> facts = {"name": "a", "family": "f", "rounds": 1, "local": {"lr": 0.5}}
        >>> spec = ExperimentSpec.model_validate({**facts, "strategy": {"fedavg": {}}})
        >>> differing(spec)
        (Setting(key='local.lr', value=0.5, default=None),)
    """
    rest = (s for s in _of_model(spec, "") if not {s.key, s.key.split(".")[0]} & ELSEWHERE)
    return (*_of_strategy(spec), *rest)


def _of_strategy(spec: ExperimentSpec) -> Iterator[Setting]:
    name, defaults = spec.strategy_name, {}
    if "python" not in spec.strategy:  # a page does not run user code
        try:
            options = [f for f in dataclasses.fields(find_strategy(name)) if f.init]
        except SpecError:  # not installed here: all its options are shown
            options = []
        for option in options:
            value = option.default
            if option.default_factory is not dataclasses.MISSING:
                value = option.default_factory()
            if value is dataclasses.MISSING:  # required options are always shown
                continue
            defaults[option.name] = pydantic_core.to_jsonable_python(value)
    for key, value in spec.strategy_options.items():
        if key not in defaults or value != defaults[key]:
            yield Setting(f"strategy.{name}.{key}", value, defaults.get(key))


def _of_model(model: pydantic.BaseModel, path: str) -> Iterator[Setting]:
    for name, field in type(model).model_fields.items():
        value, key = getattr(model, name), f"{path}{field.alias or name}"
        required = field.is_required()
        default = None if required else field.get_default(call_default_factory=True)
        if value in (default, MEANT.get(key)) and not required:
            continue
        # If all values in a mapping are defaults, the mapping itself is the setting.
        inside = list(_of_model(value, f"{key}.")) if isinstance(value, pydantic.BaseModel) else []
        yield from inside or [Setting(key, _plain(value), _plain(default))]


def _plain(value: Json) -> Json:
    if isinstance(value, pydantic.BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_none=True)
    if isinstance(value, LibraryClass):
        return pydantic_core.to_jsonable_python(value.plain())
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):  # settings per kind of client; unset keys are the run's
        parts = {
            key: of.model_dump(mode="json", exclude_unset=True) if hasattr(of, "model_dump") else of
            for key, of in value.items()
        }
        return pydantic_core.to_jsonable_python(parts)
    return pydantic_core.to_jsonable_python(value)


def said(value: Json) -> str:
    """Format a setting as text.

    >>> said("sgd"), said([1, 2]), said(None)
    ('sgd', '[1, 2]', '–')
    """
    if value is None:
        return NOTHING
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
