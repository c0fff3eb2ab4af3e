"""Later calls: whether a model computes something else when it is called again, or otherwise.

A graph computes the same at every call, buffers apart. Forward may count its calls, keep a result
to look at, ask the time or whether gradients are recorded; where that has an effect, a graph cannot
follow. Nothing but other calls tells, so where forward changes or asks something, the model itself
runs: on the example, on other numbers, on the example again, and with counters set to where they
could act.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from archgraph.capture.cells import HeldCell, Trial, cells
from archgraph.capture.clock import clock_names, later_clock
from archgraph.capture.examples import tensors
from archgraph.capture.export import Captured
from archgraph.capture.restored import redrawn, restored
from archgraph.capture.surroundings import quiet
from archgraph.capture.tape import Note
from archgraph.errors import TraceError

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
    notes += [_unknown(name, place) for name, place in captured.kept.hidden().items()]
    asked = dict(captured.kept.names)
    for name in clock_names(asked.keys()):
        asked.setdefault("time", asked[name])
    for names, differs, message, hint in _ASKED:
        where = next((asked[n] for n in names if n in asked), None)
        if where and calls.safely(functools.partial(differs, calls), unknown=False):
            notes.append(TraceError(message, where=where, hint=hint))
    return notes


def _same(name: str, place: str) -> str:
    return f"{place}: forward changes {name}; a second call computes the same"


def _matters(name: str, place: str) -> TraceError:
    return TraceError(
        f"forward changes {name}, and a later call computes something else; a graph does not",
        where=place,
        hint="make it a buffer (register_buffer)",
    )


def _unknown(name: str, place: str) -> TraceError:
    return TraceError(
        f"forward uses {name}, and nothing shows whether a call changes it",
        where=place,
        hint="keep numbers, tensors or containers instead",
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
        with torch.no_grad(), redrawn(), quiet():
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

    @functools.cached_property
    def usual(self) -> list[torch.Tensor]:
        """The results of a first call."""
        return self.first()

    def first(self, module: Any = None) -> list[torch.Tensor]:
        """The results of a first call, of which nothing stays."""
        with restored(self.model, self.captured.kept):
            return self.call(module=module)

    def change(self) -> bool:
        """Whether a later call computes something else than the first one, buffers apart."""
        first = self.usual
        with restored(self.model, self.captured.kept) as kept:
            changed = self.captured.changed
            if self.reads(cells(kept, changed)):
                return True
            self.call(_another)
            if not all(_equal(first, self.call()) for _ in range(_CALLS)):
                return True
            return self.acts(first, list(cells(kept, changed)), "len" in kept.names)

    def reads(self, places: Iterable[HeldCell]) -> bool:
        """Whether forward computes with a tensor that it replaces."""
        used = {_memory(c) for c in self.captured.program.constants.values() if torch.is_tensor(c)}
        return any(_memory(v) in used for c in places if isinstance(v := c.read(), torch.Tensor))

    def acts(self, first: list[torch.Tensor], places: list[HeldCell], asks: bool) -> bool:
        """Whether a value acts after more calls; ``asks``: whether the code asks for lengths."""
        trials = [Trial(inside) for cell in places for inside in cell.inside()]
        if not _equal(first, self.call()) or any(trial.acts(asks) for trial in trials):
            return True
        return any(self.acts_at(first, trial) for trial in trials if trial.step)

    def acts_at(self, first: list[torch.Tensor], trial: Trial) -> bool:
        """Whether a call computes something else at some value of a counter."""
        start, step = trial.start, trial.step
        ahead = {probe for probe in trial.asked.probes(step) if (probe - start) * step >= 0}
        if len(ahead) > _PROBES:
            return True
        for probe in sorted(ahead | _far(start, step)):
            trial.cell.write(type(start)(probe))
            if not _equal(first, self.call()):
                return True
        trial.cell.write(start)
        return False

    def otherwise(self, switch: Callable[[], Any]) -> bool:
        """Whether the model computes something else under some switch."""
        usual = self.usual
        with switch():
            return not _equal(usual, self.first(), loosely=True)

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
        return not _equal(self.usual, self.first(self.captured.run), loosely=True)

    def autocast(self) -> bool:
        """Whether the captured program computes something else under autocast than the model."""
        with torch.autocast("cpu", torch.bfloat16):
            found, expected = self.first(self.captured.run), self.first()
        return not _equal(found, expected, loosely=True, eps=torch.finfo(torch.bfloat16).eps)


# Names in the code, what to try where it has one of them, and what is then the matter.
_ASKED: tuple[tuple[tuple[str, ...], Callable[[_Calls], bool], str, str], ...] = (
    (
        _CAPTURING,
        lambda calls: calls.program(),
        "forward computes something else while it is captured",
        "let it go by something else than how it is run",
    ),
    (
        (
            "time",
            "time_ns",
            "perf_counter",
            "perf_counter_ns",
            "monotonic",
            "monotonic_ns",
            "process_time",
            "thread_time",
            "now",
            "utcnow",
            "today",
            "localtime",
            "gmtime",
            "ctime",
            "strftime",
            "urandom",
        ),
        lambda calls: calls.otherwise(later_clock),
        "forward computes something else each time, and a graph does not",
        "give what changes as an input, draw with torch",
    ),
    (
        ("is_grad_enabled", "requires_grad", "grad_fn", "is_leaf", "is_inference_mode_enabled"),
        lambda calls: calls.otherwise(torch.enable_grad),
        "forward computes something else while gradients are recorded, and a graph does not",
        "let it go by self.training",
    ),
    (
        ("is_autocast_enabled", "is_autocast_cpu_enabled", "get_autocast_dtype"),
        lambda calls: calls.autocast(),
        "forward asks whether autocast is on, and computes something else than its graph then",
        "choose the precision by an argument",
    ),
    (
        ("grad", "zero_grad"),
        lambda calls: calls.gradients(),
        "forward changes the gradients of parameters or goes by them, and a graph does not",
        "keep them out of forward",
    ),
)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _grade(parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> None:
    """Give parameters their gradients."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient


def _far(start: float, step: float) -> set[float]:
    """Values of a counter many calls ahead; those of an integer are all ones after one more."""
    origin = 0 if isinstance(start, int) else start
    return {origin + step * (2**k - 2) for k in (4, 7, 10, 13, 17, 20)}


def _equal(
    first: list[torch.Tensor], second: list[torch.Tensor], loosely: bool = False, eps: float = 0
) -> bool:
    """Whether the results of two calls are equal: to the bit, or up to the choice of a kernel."""
    if [t.shape for t in first] != [t.shape for t in second]:
        return False
    for a, b in zip(first, second, strict=True):
        exact = not (loosely and a.is_floating_point())
        bound = 0.0 if exact else max(torch.finfo(a.dtype).eps, eps) ** 0.5
        if not torch.allclose(a, b, rtol=bound, atol=bound, equal_nan=True):
            return False
    return True


def _another(value: torch.Tensor) -> torch.Tensor:
    """Other numbers of the same kind: an input of another call."""
    if not value.dim():
        return value
    return value.flip(0) + 1 if value.is_floating_point() else value.flip(0)
