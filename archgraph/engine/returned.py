"""Checks of the values that strategies and programs return to the engine."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor

from archgraph.errors import ArchGraphError, RejectedUpdate, RunError
from archgraph.federation import Outcome, ServerState, State
from archgraph.graph.ir import ArchGraph
from archgraph.plain import by_text
from archgraph.states.updates import expected_entries, finite, foreign

T = TypeVar("T")
WRONG = "returned the wrong type"


# For each type of a field, a requirement on the field's items.
_ITEMS: list[tuple[Any, str, Callable[[Any], object]]] = [
    (State, "Tensor", lambda item: isinstance(item, Tensor)),
    (Mapping[str, float], "a number", float),
    (Mapping[str, Any], "a JSON value; use other fields for tensors", json.dumps),
    (Mapping[str, Any], "a JSON value whose keys are strings", by_text),
]


def returned(kind: type[T], value: object, owner: object, method: str = "__call__") -> T:
    """Check the value that a method of a strategy, or a program, has returned.

    Args:
        kind: Expected type.
        value: The returned value.
        owner: The strategy or program.
        method: Name of the method.

    Raises:
        RunError: If the value, or a graph, state, metric or JSON value in it, has the wrong type.
            The message names owner, method and field.

    Example:
        >>> from archgraph.federation import ServerState, Train
        >>> returned(ServerState, None, Train(), "begin")
        Traceback (most recent call last):
        archgraph.errors.RunError: Train.begin: returned the wrong type; found None; expected ...
    """
    where = f"{getattr(owner, '__name__', type(owner).__name__)}.{method}"
    _expect(kind, value, where)
    for name, (type_, checks) in _fields(typing.cast(Any, kind)).items():
        field, path = getattr(value, name), f"{where}: {kind.__name__}.{name}"
        _expect(type_, field, path)
        for expected, holds in checks:
            for key, item in field.items():
                if not _holds(str.encode, key):  # lone surrogates cannot be written to a file
                    raise _wrong(key, f"{path}: a key", "text")
                if not _holds(holds, item):
                    raise _wrong(item, f"{path}[{key!r}]", expected)
    if isinstance(value, ServerState):  # as read from a checkpoint, where tuples are lists
        plain = {str(key): json.loads(json.dumps(item)) for key, item in value.values.items()}
        value = dataclasses.replace(value, values=plain)
    return typing.cast(T, value)


@contextlib.contextmanager
def noted(strategy: object, method: str, round: int) -> Iterator[None]:
    """Add the method and the round as a note to an error that a strategy's own code raises."""
    try:
        yield
    except ArchGraphError:
        raise
    except Exception as error:
        error.add_note(f"in {type(strategy).__name__}.{method}, round {round}")
        raise


def outcome_of(program: object, value: object) -> Outcome:
    """Copy a program's outcome to dicts of detached tensors.

    The program then cannot change the outcome before it is merged or recorded.

    Raises:
        RunError: As in :func:`returned`.
        RejectedUpdate: If a tensor is not an ordinary dense tensor, or cannot be stored. The
            message names the tensor.
    """
    if isinstance(value, Outcome):
        value = Outcome(**{name: _read(getattr(value, name)) for name in _fields(Outcome)})
    outcome = returned(Outcome, value, program)
    return Outcome(
        state=detached(outcome.state),
        keep=detached(outcome.keep, stored=True),
        others={str(name): detached(_read(state)) for name, state in outcome.others.items()},
        extras=detached(outcome.extras, stored=True),
        metrics={str(name): float(number) for name, number in outcome.metrics.items()},
    )


def _read(value: Any) -> Any:
    """Copy a mapping: a program's own mapping may return other values the next time."""
    return dict(value) if isinstance(value, Mapping) else value


def detached(state: State, *, stored: bool = False) -> dict[str, Tensor]:
    """Return detached tensors that a checkpoint can store."""
    for name, tensor in state.items():
        if (kind := foreign(tensor)) is not None:
            raise RejectedUpdate("not a dense tensor", where=name, found=kind)
        if stored:
            try:
                save({name: torch.empty(0, dtype=tensor.dtype)})
            except (KeyError, ValueError, SafetensorError) as error:
                raise RejectedUpdate(
                    "a checkpoint cannot store this tensor", where=name, found=str(tensor.dtype)
                ) from error
    # Pending conjugations and negations are computed, since they would be lost in files and views.
    return {str(name): t.detach().resolve_conj().resolve_neg() for name, t in state.items()}


def each_returned(kind: type[T], values: object, owner: object, method: str) -> Iterator[T]:
    """Yield the values of an iterable that a method has returned, after a check of each value.

    Raises:
        RunError: As in :func:`returned`.
    """
    _expect(Iterable, values, f"{type(owner).__name__}.{method}")
    for value in typing.cast(Iterable[object], values):
        yield returned(kind, value, owner, method)


def received(
    owner: object,
    receive: Callable[[], object],
    before: ServerState,
    graph: ArchGraph,
    number: int,
) -> ServerState:
    """Return the checked result of a strategy's ``receive``.

    Raises:
        RunError: As in :func:`returned`. Also raised if a weight of the global graph has another
            shape or dtype, if values became NaN or infinite, or if ``receive`` wrote into the
            tensors of the previous state. Tensors that were sent or saved may share their memory.
    """
    where = f"{type(owner).__name__}.receive"
    # Versions of tensors, not copies: comparing values would need a second state in memory.
    versions = {name: _version(tensor) for name, tensor in before.tensors.items()}
    after = returned(ServerState, receive(), owner, "receive")
    for name, tensor in before.tensors.items():
        at = f"{where}: {name} (round {number})"
        if _version(tensor) != versions[name]:
            raise RunError(
                "writes into the server's tensors",
                where=at,
                hint="return new tensors, since sent and saved tensors may share their memory",
            )
        path, now = name.partition("/")[2], after.tensors.get(name, tensor)
        changed = (now.shape, now.dtype) != (tensor.shape, tensor.dtype)
        if changed and path in graph.param and graph.param[path].shape == tuple(tensor.shape):
            raise RunError(
                "returned a tensor with another shape or dtype",
                where=at,
                found=_form(now),
                expected=_form(tensor),
                hint="round means of integers, such as batch norm's counters, to integers",
            )
        # All updates are finite. Values that were not finite before may be a mask.
        if now is not tensor and not finite(now) and finite(tensor):
            raise RunError(
                "returned numbers that are not finite",
                where=at,
                hint="check for a division by 0, or lower the server's learning rate",
            )
    return after


def fitting(graph: ArchGraph, state: State, owner: object, method: str) -> None:
    """Check that a strategy's weights fit the graph that it returns with them.

    Raises:
        RunError: If a tensor has another shape, or is an integer tensor where the graph has a
            floating-point tensor, or vice versa. The message names owner, method and tensor.
    """
    for want in expected_entries(graph):
        tensor = state.get(want.name)
        if tensor is not None and (
            tensor.shape != want.shape
            or tensor.dtype.is_floating_point != want.dtype.is_floating_point
        ):
            raise RunError(
                "returns a tensor with another shape or dtype",
                where=f"{type(owner).__name__}.{method}: {want.name}",
                found=_form(tensor),
                expected=graph.param[want.name].type,
                hint=f"`{method}` must keep shapes and dtypes, also of buffers",
            )


def _form(tensor: Tensor) -> str:
    return f"{tensor.dtype}{list(tensor.shape)}".removeprefix("torch.")


def _version(tensor: Tensor) -> int:
    """Return torch's count of writes to a tensor; tensors of inference mode have none."""
    return 0 if tensor.is_inference() else tensor._version


# Cached, since resolving type hints takes longer than checking a small client's result.
@functools.cache
def _fields(kind: Any) -> Mapping[str, tuple[Any, list[tuple[str, Callable[[Any], object]]]]]:
    """Return for each field that is a graph or mapping its type, and the checks of its items."""
    return {
        name: (typing.get_origin(hint) or hint, [row[1:] for row in _ITEMS if row[0] == hint])
        for name, hint in typing.get_type_hints(kind).items()
        if hint is ArchGraph or typing.get_origin(hint) is Mapping
    }


def _expect(kind: Any, value: object, where: str) -> None:
    if not isinstance(value, kind):
        raise _wrong(value, where, kind.__name__)


def _wrong(value: object, where: str, expected: str) -> RunError:
    actual, hint = type(value).__name__, None
    if value is None:
        actual, hint = "None", "check that every path returns a value"
    return RunError(WRONG, where=where, found=actual, expected=expected, hint=hint)


def _holds(check: Callable[[Any], object], item: object) -> bool:
    try:
        return check(item) is not False
    # A tensor of two values is not a number, nor is an integer above the largest float.
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return False
