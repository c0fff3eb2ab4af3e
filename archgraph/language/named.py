"""Classes of libraries that a file names, with keyword arguments: ``{AdamW: {lr: 0.001}}``.

Each key that takes a class has a row in :data:`ROLES`, which lists the allowed classes: public
subclasses of a base class in a few modules. Nothing else is imported. Arguments are plain data,
which are checked against the signature of the class. (jsonargparse is unsuitable, because it
imports a named object before it can refuse it.)
"""

from __future__ import annotations

import contextlib
import difflib
import enum
import functools
import importlib
import inspect
import json
import numbers
import operator
import types
import typing
from collections import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias, cast

import pydantic

from archgraph.errors import ErrorFacts
from archgraph.fields import Base, Mistake, Place
from archgraph.hints import import_cause, install_command, unknown
from archgraph.language.document import places
from archgraph.language.expression import evaluate, is_expression, names_in
from archgraph.language.mistakes import abbreviate, main_mistake
from archgraph.plain import Json

RoleName: TypeAlias = Literal["optimiser", "schedule", "loss", "metric", "transform"]
# Placeholder numbers of rounds and steps, since a file is checked before they are known. Only
# schedules use them.
_TRIAL: Mapping[RoleName, Mapping[str, int]] = {"schedule": {"rounds": 1000, "steps": 1000}}


@dataclass(frozen=True)
class ClassRole:
    """The classes that a key may name.

    Attributes:
        modules: Modules in which the classes are public.
        base: Base class of the classes, ``module:name``.
        supplied: Arguments that the run supplies.
        closed: Arguments that a file must not set.
        refused: Dict from a class that cannot be used to the reason.
        install: How to install the library.
    """

    modules: tuple[str, ...]
    base: str
    supplied: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    install: str = "pip install torch"


ROLES: Mapping[RoleName, ClassRole] = {
    "optimiser": ClassRole(
        ("torch.optim",),
        "torch.optim:Optimizer",
        supplied=("params",),
        closed=("foreach", "fused", "capturable", "differentiable", "maximize"),
        refused={
            "LBFGS": "it evaluates the loss several times in a step",
            "SparseAdam": "it takes sparse gradients, which these models do not have",
        },
    ),
    "schedule": ClassRole(
        ("torch.optim.lr_scheduler",),
        "torch.optim.lr_scheduler:LRScheduler",
        supplied=("optimizer",),
        closed=("last_epoch", "scale_fn"),
        refused={
            "ReduceLROnPlateau": "it depends on a metric, but schedules are computed before the run"
        },
    ),
    "loss": ClassRole(
        ("torch.nn",),
        "torch.nn.modules.loss:_Loss",
        closed=("reduction", "reduce", "size_average", "ignore_index"),
        # They would accept logits, or labels of 0 and 1, and return meaningless losses.
        refused={
            "BCELoss": "it takes probabilities, and models give logits: name BCEWithLogitsLoss",
            "NLLLoss": "it takes log-probabilities, and models give logits: name CrossEntropyLoss",
            "KLDivLoss": "it takes log-probabilities, which models do not give",
            "PoissonNLLLoss": "its predictions are logarithms, but tests compare predictions "
            "with targets",
            "SoftMarginLoss": "its targets are 1 and -1, and labels are 0 and 1",
            "HingeEmbeddingLoss": "its targets are 1 and -1, and labels are 0 and 1",
        },
    ),
    # Not all of torchmetrics: some metrics download and unpickle weights.
    "metric": ClassRole(
        ("torchmetrics.classification", "torchmetrics.regression", "torchmetrics.segmentation"),
        "torchmetrics:Metric",
        supplied=("num_classes", "num_labels", "ignore_index"),
        install=install_command("torchmetrics"),
    ),
    "transform": ClassRole(
        ("torchvision.transforms.v2",),
        "torchvision.transforms.v2:Transform",
        refused={
            "Normalize": "images are already normalised, in training as in tests; with this "
            "transform, training would see other values than tests"
        },
        install="pip install torchvision",
    ),
}


@dataclass(frozen=True)
class LibraryClass:
    """A class of a library, with keyword arguments from a file.

    Attributes:
        role: The role of its key.
        path: ``module.Class``.
        args: Plain values. In a schedule, also expressions with ``$rounds`` and ``$steps``.
    """

    role: RoleName
    path: str
    args: Mapping[str, Json] = field(default_factory=dict, hash=False)

    @property
    def title(self) -> str:
        """Name of the class."""
        return self.path.rpartition(".")[2]

    @property
    def kind(self) -> type[Any]:
        """The class."""
        return _class(self.path.rpartition(".")[0], self.title)

    def plain(self) -> dict[str, Json]:
        """Return the class and its arguments as written in a file.

        >>> LibraryClass("optimiser", "torch.optim.SGD", {"lr": 0.1}).plain()
        {'SGD': {'lr': 0.1}}
        """
        return {self.title: dict(self.args)}

    def make(
        self, supplied: Mapping[str, object] | None = None, units: Mapping[str, int] | None = None
    ) -> Any:
        """Construct an instance of the class.

        Args:
            supplied: Arguments that the run supplies. Arguments that the class does not have are
                ignored.
            units: Values of ``$rounds`` and ``$steps``.
        """
        known = inspect.signature(self.kind).parameters
        mine = {key: value for key, value in (supplied or {}).items() if key in known}

        def built(value: object) -> object:
            if isinstance(value, LibraryClass):
                return value.make(supplied, units)
            return [built(one) for one in value] if isinstance(value, list) else value

        args = _checked(self.role, self.title, self.args, units or _TRIAL.get(self.role, {}))
        return self.kind(**mine, **{key: built(value) for key, value in args.items()})


def library_class(role: RoleName, also: tuple[str, ...] = ()) -> pydantic.PlainValidator:
    """Return a validator for a class of a role, written as a name or as a name with arguments.

    Args:
        role: The role.
        also: Other allowed names, which are kept as text.
    """
    return pydantic.PlainValidator(
        functools.partial(_read, role, also),
        json_schema_input_type=str | dict[str, dict[str, Json] | None],
    )


def _written(value: LibraryClass | str) -> Json:
    return value if isinstance(value, str) else value.plain()


WRITTEN = pydantic.PlainSerializer(_written)
"""The serialiser that matches :func:`library_class`."""


def _read(role: RoleName, also: tuple[str, ...], value: object) -> LibraryClass | str:
    """Return the named class, checked; the library is imported, and nothing of it is called."""
    if isinstance(value, LibraryClass) or (isinstance(value, str) and value in also):
        return value
    one = isinstance(value, dict) and len(value) == 1
    path, args = next(iter(cast(dict[str, Json], value).items())) if one else (value, None)
    if not (isinstance(path, str) and isinstance(args, dict | None)):
        written = ", ".join(map(str, value)) if isinstance(value, dict) else abbreviate(value)
        expected = "a class, or a class with its arguments, e.g. {NAME: {key: value}}"
        raise Mistake(f"must name exactly one {role}", found=written, expected=expected)
    name = _found(role, path, also)
    args = _frozen(args or {})
    try:
        _checked(role, name, args, _TRIAL.get(role, {}))
    except Mistake as mistake:
        loc = (path, *mistake.place) if one else mistake.place
        raise Mistake(mistake.message, place=loc, **mistake.facts) from None
    return LibraryClass(role, f"{_classes(role)[name]}.{name}", args)


def _found(role: RoleName, path: str, also: tuple[str, ...]) -> str:
    """Return the class that a name means in a role, with or without its module.

    Raises:
        Mistake: If there is none, it cannot be used, or its library is missing.
    """
    row, (module, _, name) = ROLES[role], path.rpartition(".")
    if module and module not in row.modules:
        facts: ErrorFacts = {"found": repr(path), "expected": f"one of {' or '.join(row.modules)}"}
        raise Mistake("is outside the modules that may be named here", **facts)
    if name in row.refused:
        raise Mistake(f"cannot be the {role}", found=repr(name), hint=row.refused[name])
    classes = _classes(role)
    if name in classes and (reason := _unclear(role, name)) is None:
        return name
    usable = [n for n in classes if n not in row.refused and _unclear(role, n) is None]
    facts = unknown(name, [*also, *sorted(usable)])
    similar = _similar(name, usable, also)
    facts["hint"] = f"did you mean {' or '.join(similar)}?" if similar else None
    if name in classes:
        raise Mistake(f"cannot be the {role}: {reason}", **facts)
    raise Mistake(f"is an unknown {role}", **facts)


def _similar(name: str, usable: Sequence[str], also: Sequence[str]) -> list[str]:
    """Return names like those of earlier versions and of functions: f1, one_cycle, cohen_kappa."""
    letters = name.replace("_", "").lower()
    similar = sorted((n for n in usable if letters and letters in n.lower()), key=len)[:3]
    lower = {n.lower(): n for n in (*reversed(usable), *also)}
    close = difflib.get_close_matches(letters, lower, 1)
    return similar or [lower[n] for n in close]


@functools.cache
def _classes(role: RoleName) -> Mapping[str, str]:
    """Return the modules of the classes that a role may name, by the classes' names.

    Raises:
        Mistake: If the library cannot be imported.
    """
    row, (home, _, name) = ROLES[role], ROLES[role].base.partition(":")
    try:
        base = _class(home, name)
        members = [(one, vars(importlib.import_module(one))) for one in row.modules]
    except (ImportError, RuntimeError, OSError) as error:
        cause, cure = import_cause(error)
        missing = isinstance(cause, ModuleNotFoundError)
        library, said = home.partition(".")[0], str(cause).partition("\n")[0]
        if missing:
            raise Mistake(f"needs {library}, which is not installed", hint=row.install) from None
        raise Mistake(f"needs {library}, which cannot be imported", found=said, hint=cure) from None
    return {
        name: module
        for module, values in members
        for name, kind in values.items()
        if isinstance(kind, type) and issubclass(kind, base) and kind is not base
        if kind.__name__ == name and not name.startswith("_")
    }


def _class(module: str, name: str) -> type[Any]:
    return cast(type[Any], getattr(importlib.import_module(module), name))


class _Unclear(Exception):
    """An argument whose values cannot be written in a file."""


def _unclear(role: RoleName, name: str) -> str | None:
    """Return why a file cannot set the arguments of a class; None if it can."""
    try:
        _model(role, name)
    except _Unclear as error:
        return str(error)
    return None


@functools.cache
def _model(role: RoleName, name: str) -> type[pydantic.BaseModel]:
    """Return a pydantic model of the arguments of a class that a file may set.

    Raises:
        _Unclear: If one has no type, or takes a function.
    """
    row, kind = ROLES[role], _class(_classes(role)[name], name)
    # Imports of a library for type checkers only: names of these modules.
    hints = typing.get_type_hints(kind.__init__, localns={**vars(typing), **vars(abc)})
    fields: dict[str, Any] = {}
    for one in inspect.signature(kind).parameters.values():
        if one.name in (*row.supplied, *row.closed) or one.kind is one.VAR_KEYWORD:
            continue
        if one.name not in hints:
            raise _Unclear(f"its argument `{one.name}` has no type")
        if _takes_function(hints[one.name]):
            raise _Unclear(f"its argument `{one.name}` is a function")
        try:
            plain = _plain(hints[one.name], role)
        except _Unclear as error:
            raise _Unclear(f"its argument `{one.name}` {error}") from None
        fields[one.name] = (plain, ... if one.default is one.empty else None)
    return pydantic.create_model(name, __base__=Base, **fields)


def _plain(hint: object, role: RoleName) -> object:
    """Return the plain-data type of a type hint.

    1. An instance of the role's base is written as a class again.
    2. A tensor is a list of numbers; in a union with numbers it is dropped.
    3. A union is reduced to its plain members.
    4. Iterables are lists: pydantic reads an ``Iterable`` only when it is used.
    """
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal or hint in (bool, int, float, str, type(None)):
        return hint
    if hint is numbers.Number:
        return int | float
    if isinstance(hint, enum.EnumMeta):
        return hint
    if isinstance(hint, type) and hint.__name__ == ROLES[role].base.partition(":")[2]:  # 1
        return Annotated[LibraryClass, library_class(role)]
    if hint is _class("torch", "Tensor"):  # 2
        return Annotated[list[float], pydantic.AfterValidator(_class("torch", "tensor"))]
    if origin in (types.UnionType, typing.Union) and (members := _members(inner, role)):  # 3
        return functools.reduce(operator.or_, members)
    if hint is abc.Sequence or origin in (abc.Sequence, abc.Iterable, list):  # 4
        entry = _plain(inner[0], role) if inner else Json
        return types.GenericAlias(list, (entry,))
    if origin is tuple:
        return types.GenericAlias(tuple, tuple(_plain(one, role) for one in inner))
    raise _Unclear("does not take plain values")


def _members(inner: Sequence[object], role: RoleName) -> list[object]:
    """Return the plain types among the members of a union."""
    left_out = _class("torch", "Tensor") if float in inner else None
    members = list[object]()
    for one in inner:
        with contextlib.suppress(_Unclear):
            members += [_plain(one, role)] if one is not left_out else []
    return members


def _takes_function(hint: object) -> bool:
    """Return whether a function may be a value of a type, or a part of one."""
    kinds = (hint, typing.get_origin(hint))
    return abc.Callable in kinds or any(map(_takes_function, typing.get_args(hint)))


def _checked(
    role: RoleName, name: str, args: Mapping[str, Json], units: Mapping[str, int]
) -> dict[str, object]:
    """Return arguments in the types of a class's signature.

    They pass through JSON, so that they are plain data: strict types that take no list otherwise
    take one of a file.

    Raises:
        Mistake: If they do not fit the class.
    """
    model = _model(role, name)
    try:
        checked = model.model_validate_json(json.dumps(_evaluated(args, units)))
    except pydantic.ValidationError as error:
        raise main_mistake(error, model, set(places(args))) from None
    return {key: getattr(checked, key) for key in checked.model_fields_set}


def _evaluated(value: Json, units: Mapping[str, int], loc: Place = ()) -> Json:
    """Return arguments whose expressions are computed.

    Values in rounds or steps are at least 1: a fraction of few rounds could be 0, and the first
    round is trained at the initial rate.
    """
    if isinstance(value, Mapping):
        return {key: _evaluated(one, units, (*loc, key)) for key, one in value.items()}
    if isinstance(value, tuple):
        return [_evaluated(one, units, (*loc, at)) for at, one in enumerate(value)]
    if not is_expression(value):
        return value
    try:
        number = cast(int, evaluate(value, units))
    except Mistake as mistake:
        raise Mistake(mistake.message, place=loc, **mistake.facts) from None
    return max(number, 1) if names_in(value) else number


def _frozen(value: Json) -> Json:
    """Return plain values with tuples for lists, as they are read from a file."""
    if isinstance(value, Mapping):
        return {key: _frozen(one) for key, one in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
