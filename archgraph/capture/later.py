"""Later calls: whether a model computes something else when it is called again, or otherwise.

A graph computes the same at every call, buffers apart. Forward may count its calls, keep a result
to look at, ask the time or whether gradients are recorded; where that has an effect, a graph cannot
follow. Nothing but other calls tells, so where forward changes or asks something, the model itself
runs: on the example, on other numbers, on the example again, and with counters set to where they
could act.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from archgraph.capture.counting import Asked, counted, growing
from archgraph.capture.examples import tensors
from archgraph.capture.export import Captured
from archgraph.capture.held import Held, Space
from archgraph.capture.restored import restored
from archgraph.capture.tape import Note
from archgraph.errors import TraceError

_CALLS = 3  # that must compute what the first one does
_PROBES = 64  # values of a counter that are tried; one with more of them counts as one that acts


def assignments(model: torch.nn.Module, captured: Captured) -> list[Note]:
    """What is to be said of what forward changes and asks: errors where it matters."""
    calls = _Calls(model, captured.args, captured.kwargs)
    notes: list[Note] = []
    if captured.changed:
        matters = calls.safely(lambda: calls.change(captured.changed), unknown=True)
        for name, place in captured.changed.items():
            notes.append(_matters(name, place) if matters else _same(name, place))
    for names, differs, message, hint in _ASKED:
        where = next((captured.names[n] for n in names if n in captured.names), None)
        if where and calls.safely(functools.partial(differs, calls), unknown=False):
            notes.append(TraceError(message, where=where, hint=hint))
    return notes


def _same(name: str, place: str) -> str:
    return f"{place}: forward changes {name}; a second call computes the same"


def _matters(name: str, place: str) -> TraceError:
    return TraceError(
        f"forward changes {name}, and a later call computes something else; a graph does not",
        where=place,
        hint="make it a buffer (register_buffer), or trace with strict=False",
    )


@dataclass(frozen=True)
class _Calls:
    """Calls of a model on its example inputs, each from the same buffers and random numbers."""

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def safely(self, check: Callable[[], bool], unknown: bool) -> bool:
        """The outcome of a check that calls the model; ``unknown`` where the model cannot run."""
        if any(tensor.is_meta for tensor in self.held()):
            return unknown
        with torch.no_grad(), torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return check()
            except Exception:  # whatever the user's forward raises
                return unknown

    def held(self) -> Iterator[torch.Tensor]:
        """Parameters and buffers."""
        yield from self.model.parameters()
        yield from self.model.buffers()

    def call(self, given: Callable[[Any], Any] = lambda value: value) -> list[torch.Tensor]:
        """The results of a call; what it writes to buffers is taken back."""
        memory = [(tensor, tensor.detach().clone()) for tensor in self.held()]

        def copy(value: Any) -> Any:
            return given(value.clone()) if isinstance(value, torch.Tensor) else value

        torch.manual_seed(0)
        args, kwargs = pytree.tree_map(copy, (self.args, self.kwargs))
        try:
            return [t.detach().clone() for t in tensors(self.model(*args, **kwargs))]
        finally:
            with torch.no_grad():
                for tensor, before in memory:
                    if not torch.equal(tensor, before):
                        tensor.copy_(before)

    def first(self) -> list[torch.Tensor]:
        """The results of a first call, of which nothing stays."""
        with restored(self.model, {}, []):
            return self.call()

    def change(self, changed: Mapping[str, str]) -> bool:
        """Whether a later call computes something else than the first one, buffers apart."""
        first = self.first()
        with restored(self.model, {}, []) as kept:
            self.call(_another)
            if not all(_equal(first, self.call()) for _ in range(_CALLS)):
                return True
            return self.acts(first, kept, changed)

    def acts(self, first: list[torch.Tensor], kept: Held, changed: Mapping[str, str]) -> bool:
        """Whether a counter acts after more calls, or the length of a container that grows."""
        asked = Asked()
        cells = [
            cell
            for space in kept.spaces
            for key in space.read()
            if space.name(key) in changed
            for cell in _cells(
                _Cell(functools.partial(_item, space, key), functools.partial(space.write, key))
            )
        ]
        before = [cell.read() for cell in cells]
        for cell in cells:
            cell.write(growing(counted(cell.read(), asked), asked))
        sizes = [_size(cell) for cell in cells]
        asked.length = False
        if not _equal(first, self.call()):
            return True
        if asked.length and sizes != [_size(cell) for cell in cells]:
            return True
        moves = [
            (c, b, c.read() - b) for c, b in zip(cells, before, strict=True) if _moves(b, c.read())
        ]
        return any(
            self.acts_at(first, cell, start, asked.probes(step)) for cell, start, step in moves
        )

    def acts_at(
        self, first: list[torch.Tensor], cell: _Cell, start: float, probes: set[float]
    ) -> bool:
        """Whether a call computes something else at some value of a counter."""
        if len(probes) > _PROBES:
            return True
        for probe in sorted(probes):
            cell.write(type(start)(probe))
            if not _equal(first, self.call()):
                return True
        cell.write(start)
        return False

    def otherwise(self, switch: Callable[[], Any]) -> bool:
        """Whether the model computes something else under some switch."""
        first = self.first()
        with switch():
            return not _equal(first, self.first(), loosely=True)

    def gradients(self) -> bool:
        """Whether a call changes the gradients that parameters have."""
        parameters = [*self.model.parameters()]
        own = [p.grad for p in parameters]
        marks = [torch.ones_like(p) for p in parameters]
        try:
            for parameter, mark in zip(parameters, marks, strict=True):
                parameter.grad = mark
            self.first()
            return any(
                p.grad is not m or not m.eq(1).all() for p, m in zip(parameters, marks, strict=True)
            )
        finally:
            for parameter, gradient in zip(parameters, own, strict=True):
                parameter.grad = gradient


# Names in the code, what to try where it has one of them, and what is then the matter.
_ASKED: tuple[tuple[tuple[str, ...], Callable[[_Calls], bool], str, str], ...] = (
    (
        ("time", "time_ns", "perf_counter", "monotonic", "now", "today", "urandom"),
        lambda calls: calls.otherwise(contextlib.nullcontext),
        "forward computes something else each time, and a graph does not",
        "give what changes as an input, draw with torch, or trace with strict=False",
    ),
    (
        ("is_grad_enabled", "requires_grad", "grad_fn", "is_leaf", "is_inference_mode_enabled"),
        lambda calls: calls.otherwise(torch.enable_grad),
        "forward computes something else while gradients are recorded, and a graph does not",
        "let it go by self.training, or trace with strict=False",
    ),
    (
        ("grad", "zero_grad"),
        lambda calls: calls.gradients(),
        "forward changes the gradients of parameters, and a graph does not",
        "change them outside of forward, or trace with strict=False",
    ),
)


_DICTS = (dict, OrderedDict, defaultdict, Counter)


@dataclass(frozen=True)
class _Cell:
    """A place that holds a value."""

    read: Callable[[], Any]
    write: Callable[[Any], None]


def _item(space: Space, key: str) -> Any:
    return space.read().get(key)


def _cells(cell: _Cell, depth: int = 2) -> Iterator[_Cell]:
    """A place and the places inside of what it holds."""
    yield cell
    value = cell.read()
    keys = range(len(value)) if type(value) is list else value if type(value) in _DICTS else ()
    for key in list(keys) if depth else ():

        def read(key: Any = key) -> Any:
            return cell.read()[key]

        def write(value: Any, key: Any = key) -> None:
            cell.read()[key] = value

        yield from _cells(_Cell(read, write), depth - 1)


def _size(cell: _Cell) -> int:
    value = cell.read()
    return len(value) if isinstance(value, (list, deque)) else 0


def _moves(before: Any, after: Any) -> bool:
    """Whether a value is a number that a call has changed."""
    return type(before) in (int, float) and isinstance(after, (int, float)) and after != before


def _equal(first: list[torch.Tensor], second: list[torch.Tensor], loosely: bool = False) -> bool:
    """Whether the results of two calls are equal: to the bit, or up to the choice of a kernel."""
    if [t.shape for t in first] != [t.shape for t in second]:
        return False
    for a, b in zip(first, second, strict=True):
        exact = not (loosely and a.is_floating_point())
        bound = 0.0 if exact else torch.finfo(a.dtype).eps ** 0.5
        if not torch.allclose(a, b, rtol=bound, atol=bound, equal_nan=True):
            return False
    return True


def _another(value: torch.Tensor) -> torch.Tensor:
    """Other numbers of the same kind: an input of another call."""
    if not value.dim():
        return value
    return value.flip(0) + 1 if value.is_floating_point() else value.flip(0)
