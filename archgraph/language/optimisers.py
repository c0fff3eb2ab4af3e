"""Optimisers of local training: those of ``torch.optim`` that step on dense gradients alone.

Their options are those of the class's signature. What every optimiser has stands beside them in
``local``, and what says how a step is computed (``fused``) is not theirs to choose.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import pydantic

from archgraph.errors import ErrorFacts
from archgraph.fields import Mistake
from archgraph.hints import unknown
from archgraph.plain import Json

if TYPE_CHECKING:
    import torch

# A table and not a search in `torch.optim`, whose import takes seconds; a test compares the two.
OptimiserName = Literal[
    "sgd",
    "adam",
    "adamw",
    "adamax",
    "nadam",
    "radam",
    "rmsprop",
    "rprop",
    "asgd",
    "adagrad",
    "adadelta",
    "adafactor",
    "muon",
]
NAMES: tuple[str, ...] = typing.get_args(OptimiserName)
# Keys of `local` that an optimiser reads if it has an argument of the name.
SHARED = ("lr", "momentum", "weight_decay")
_COMPUTED = {"params", "foreach", "fused", "capturable", "differentiable", "maximize"}
# Those from before the others: rates and decays of runs with them are as `local` has them. Written
# out, since PyTorch, whose import takes seconds, need not be asked then.
_FIRST = {"sgd": SHARED, "adam": ("lr", "weight_decay")}

Optimiser: TypeAlias = str | dict[str, Json]


def optimiser_class(name: str) -> type[torch.optim.Optimizer]:
    """Return an optimiser's class.

    >>> optimiser_class("adamw").__name__
    'AdamW'
    """
    import torch

    return next(
        kind
        for title, kind in vars(torch.optim).items()
        if title.lower() == name and isinstance(kind, type)
    )


def optimiser_options(name: str) -> dict[str, Json]:
    """Return the options of an optimiser with their defaults, those that `local` shares included.

    >>> optimiser_options("rprop")
    {'lr': 0.01, 'etas': (0.5, 1.2), 'step_sizes': (1e-06, 50)}
    """
    parameters = inspect.signature(optimiser_class(name)).parameters.values()
    return {p.name: p.default for p in parameters if p.name not in _COMPUTED}


def own_defaults(name: str) -> dict[str, Json]:
    """Return what an optimiser has by default of the keys that `local` shares.

    >>> own_defaults("adamw"), own_defaults("sgd")
    ({'lr': 0.001, 'weight_decay': 0.01}, {})
    """
    if name in _FIRST:
        return {}
    options = optimiser_options(name)
    return {key: float(options[key]) for key in shared_options(name)}


def shared_options(name: str) -> tuple[str, ...]:
    """Return the keys of `local` that an optimiser reads.

    >>> shared_options("adam"), shared_options("rprop")
    (('lr', 'weight_decay'), ('lr',))
    """
    if name in _FIRST:
        return _FIRST[name]
    return tuple(key for key in optimiser_options(name) if key in SHARED)


def _read(value: object) -> Optimiser:
    if isinstance(value, dict) and len(value) == 1:
        name, options = next(iter(value.items()))
    else:
        name, options = value, None
    if not isinstance(name, str) or not isinstance(options, dict | None):
        expected = "a name, or a name with options, e.g. {adamw: {betas: [0.9, 0.99]}}"
        said = ", ".join(map(str, value)) if isinstance(value, dict) else repr(value)
        raise Mistake("is not one optimiser", found=said, expected=expected)
    if name not in NAMES:
        hint = {
            "lbfgs": "L-BFGS evaluates the loss several times in a step",
            "sparseadam": "SparseAdam takes sparse gradients, which these models do not have",
        }.get(name.lower())
        facts: ErrorFacts = {**unknown(name.lower(), NAMES), "found": repr(name)}
        raise Mistake("is an unknown optimiser", **({**facts, "hint": hint} if hint else facts))
    if not options:
        return name
    _check_options(name, options)
    return {name: options}


def _check_options(name: str, options: Mapping[str, Json]) -> None:
    """Raise what is wrong with the names and forms of an optimiser's options."""
    known = {k: v for k, v in optimiser_options(name).items() if k not in SHARED}
    for key, value in options.items():
        if key in SHARED:
            hint = f"write `{key}` beside `optimiser`"
            raise Mistake("stands in `local` itself", place=(name, key), found=value, hint=hint)
        if key not in known:
            raise Mistake(f"is not an option of {name}", place=(name, key), **unknown(key, known))
        if not _alike(value, known[key]):
            expected = f"a value such as {_yaml(known[key])}"
            message, loc = "has a wrong value", (name, key)
            raise Mistake(message, place=loc, found=_yaml(value), expected=expected)


def check_optimiser(name: str, values: Mapping[str, Json]) -> None:
    """Raise what the class says of the values of its options, those of `local` included."""
    import torch

    try:
        kind: Callable[..., object] = optimiser_class(name)
        kind([torch.zeros(1, 1, requires_grad=True)], **values)
    except (ValueError, RuntimeError) as error:
        raise Mistake(f"is refused by PyTorch: {error}", place=("optimiser", name)) from None


def _alike(value: Json, default: Json) -> bool:
    """Return whether a value has the form of a default."""
    if default is None:
        return True
    if isinstance(default, tuple):
        listed = isinstance(value, list | tuple) and len(value) == len(default)
        return listed and all(map(_alike, value, default))
    if isinstance(default, bool) or isinstance(value, bool):
        return type(value) is type(default)
    return isinstance(value, int | float)


def _yaml(value: Json) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_yaml, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


OptimiserChoice = Annotated[
    Optimiser,
    pydantic.PlainValidator(
        _read,
        json_schema_input_type=OptimiserName | dict[OptimiserName, dict[str, Json] | None],
    ),
]
