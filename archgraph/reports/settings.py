"""What an experiment says that is not the default."""

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

# Shown elsewhere on a page, not a choice, or a path of the machine that the run was on.
ELSEWHERE = frozenset({"archgraph", "name", "family", "strategy", "rounds", "data.root"})
# What a key means that is left out.
MEANT: Mapping[str, pydantic.BaseModel] = {"data.partition": IidSpec()}


class Setting(NamedTuple):
    """A value that is not the default.

    Attributes:
        key: Path of its keys, dotted.
        value: As plain values.
        default: Value of a setting that is left out; None if there is none.
    """

    key: str
    value: Json
    default: Json


def differing(spec: ExperimentSpec) -> tuple[Setting, ...]:
    """Return an experiment's settings that are not the defaults, those of its strategy first.

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
            if value is dataclasses.MISSING:  # must be given: whatever it is, it is shown
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
        # A mapping of defaults only differs as a whole: it is there, where nothing is the default.
        inside = list(_of_model(value, f"{key}.")) if isinstance(value, pydantic.BaseModel) else []
        yield from inside or [Setting(key, _plain(value), _plain(default))]


def _plain(value: Json) -> Json:
    if isinstance(value, pydantic.BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_none=True)
    if isinstance(value, LibraryClass):
        return pydantic_core.to_jsonable_python(value.plain())
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):  # of kinds of client: what is left out is the run's
        parts = {
            key: of.model_dump(mode="json", exclude_unset=True) if hasattr(of, "model_dump") else of
            for key, of in value.items()
        }
        return pydantic_core.to_jsonable_python(parts)
    return pydantic_core.to_jsonable_python(value)


def said(value: Json) -> str:
    """Write a setting as text.

    >>> said("sgd"), said([1, 2]), said(None)
    ('sgd', '[1, 2]', '–')
    """
    if value is None:
        return NOTHING
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
