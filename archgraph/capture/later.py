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
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from archgraph.capture.counting import Asked, counted, growing
from archgraph.capture.examples import tensors
from archgraph.capture.export import Captured
from archgraph.capture.held import CONTAINERS, Held, Space, contents, fingerprint, opaque
from archgraph.capture.restored import restored
from archgraph.capture.tape import Note
from archgraph.errors import TraceError

_FIXED = (str, bytes, tuple)  # containers that are replaced when they grow
_CAPTURING = (
    "is_exporting", "is_compiling", "is_dynamo_compiling", "is_torchdynamo_compiling", "is_tracing",
    "is_scripting", "is_fx_tracing", "FakeTensor", "type", "__class__", "stack", "_getframe",
    "currentframe",
)  # fmt: skip
_CALLS = 3  # that must compute what the first one does
_PROBES = 64  # values of a counter that are tried; one with more of them counts as one that acts


def assignments(model: torch.nn.Module, captured: Captured) -> list[Note]:
    """What is to be said of what forward changes and asks: errors where it matters."""
    calls = _Calls(model, captured)
    notes: list[Note] = []
    if captured.changed:
        matters = calls.safely(calls.change, unknown=True)
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
    captured: Captured

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

    def call(
        self, given: Callable[[Any], Any] = lambda value: value, module: Any = None
    ) -> list[torch.Tensor]:
        """The results of a call; what it writes to buffers is taken back."""
        memory = [(tensor, tensor.detach().clone()) for tensor in self.held()]

        def copy(value: Any) -> Any:
            return given(value.clone()) if isinstance(value, torch.Tensor) else value

        torch.manual_seed(0)
        args, kwargs = pytree.tree_map(copy, (self.captured.args, self.captured.kwargs))
        try:
            return [t.detach().clone() for t in tensors((module or self.model)(*args, **kwargs))]
        finally:
            with torch.no_grad():
                for tensor, before in memory:
                    if not torch.equal(tensor, before):
                        tensor.copy_(before)

    def first(self) -> list[torch.Tensor]:
        """The results of a first call, of which nothing stays."""
        with restored(self.model, {}, []):
            return self.call()

    def change(self) -> bool:
        """Whether a later call computes something else than the first one, buffers apart."""
        first = self.first()
        with restored(self.model, {}, []) as kept:
            changed = self.captured.changed
            if self.reads(_changed(kept, changed)):
                return True
            self.call(_another)
            if not all(_equal(first, self.call()) for _ in range(_CALLS)):
                return True
            return self.acts(first, [*_changed(kept, changed)], "len" in kept.names)

    def reads(self, cells: Iterable[_Cell]) -> bool:
        """Whether forward computes with a tensor that it replaces."""
        used = {_memory(c) for c in self.captured.program.constants.values() if torch.is_tensor(c)}
        return any(_memory(v) in used for c in cells if isinstance(v := c.read(), torch.Tensor))

    def acts(self, first: list[torch.Tensor], cells: list[_Cell], asks: bool) -> bool:
        """Whether a counter acts after more calls, or the length of what grows.

        ``asks``: whether the code asks for lengths at all. Nothing tells how much of an iterator, a
        generator or an array is read: one that each call changes counts as one that acts.
        """
        asked = Asked()
        cells = [inside for cell in cells for inside in _inside(cell)]
        before = [cell.read() for cell in cells]
        for cell in cells:
            cell.write(growing(counted(cell.read(), asked), asked))
        prints = [fingerprint(value) if opaque(value) else None for value in before]
        sizes = [_size(cell.read()) for cell in cells]
        asked.length = False
        if not _equal(first, self.call()):
            return True
        noted, moves = asked.length, []
        for cell, start, size, mark in zip(cells, before, sizes, prints, strict=True):
            now = cell.read()
            if mark is not None and fingerprint(now) != mark:
                return True
            if size != _size(now) and (asks if isinstance(start, _FIXED) else noted):
                return True
            if _moves(start, now):
                moves.append((cell, start, now - start))
        return any(self.acts_at(first, *move, asked) for move in moves)

    def acts_at(
        self, first: list[torch.Tensor], cell: _Cell, start: float, step: float, asked: Asked
    ) -> bool:
        """Whether a call computes something else at some value of a counter."""
        ahead = {probe for probe in asked.probes(step) if (probe - start) * step >= 0}
        if len(ahead) > _PROBES:
            return True
        for probe in sorted(ahead | _far(start, step)):
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
        """Whether a call changes the gradients that parameters have, or goes by them."""
        parameters = [*self.model.parameters()]
        own = [p.grad for p in parameters]
        marks = [torch.ones_like(p) for p in parameters]
        try:
            with torch.enable_grad():
                _grade(parameters, [None] * len(own))
                first = self.first()
                _grade(parameters, marks)
                second = self.first()
            kept = all(
                p.grad is m and m.eq(1).all() for p, m in zip(parameters, marks, strict=True)
            )
            return not kept or not _equal(first, second, loosely=True)
        finally:
            _grade(parameters, own)

    def program(self) -> bool:
        """Whether the captured program computes something else than the model."""
        with restored(self.model, {}, []):
            captured = self.call(module=self.captured.program.module())
        return not _equal(self.first(), captured, loosely=True)


# Names in the code, what to try where it has one of them, and what is then the matter.
_ASKED: tuple[tuple[tuple[str, ...], Callable[[_Calls], bool], str, str], ...] = (
    (
        _CAPTURING,
        lambda calls: calls.program(),
        "forward computes something else while it is captured",
        "let it go by something else than how it is run, or trace with strict=False",
    ),
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
        "forward changes the gradients of parameters or goes by them, and a graph does not",
        "keep them out of forward, or trace with strict=False",
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


def _changed(kept: Held, changed: Mapping[str, str]) -> Iterator[_Cell]:
    """The places of what forward changes."""
    for space in kept.spaces:
        for key in space.read():
            if space.name(key) in changed:
                yield _Cell(
                    functools.partial(_item, space, key), functools.partial(space.write, key)
                )


def _inside(cell: _Cell, depth: int = 2) -> Iterator[_Cell]:
    """A place and the places inside of what it holds."""
    yield cell
    value = cell.read()
    keys = range(len(value)) if type(value) is list else value if type(value) in _DICTS else ()
    for key in list(keys) if depth else ():

        def read(key: Any = key) -> Any:
            return cell.read()[key]

        def write(value: Any, key: Any = key) -> None:
            cell.read()[key] = value

        yield from _inside(_Cell(read, write), depth - 1)


def _size(value: Any) -> int:
    if isinstance(value, (str, bytes)):
        return len(value)
    return len(contents(value)) if isinstance(value, CONTAINERS) else 0


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _grade(parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> None:
    """Give parameters their gradients."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient


def _moves(before: Any, after: Any) -> bool:
    """Whether a value is a number that a call has changed."""
    return type(before) in (int, float) and isinstance(after, (int, float)) and after != before


def _far(start: float, step: float) -> set[float]:
    """Values of a counter many calls ahead; those of an integer are all ones after one more."""
    origin = 0 if isinstance(start, int) else start
    return {origin + step * (2**k - 2) for k in (4, 7, 10, 13, 17, 20)}


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
