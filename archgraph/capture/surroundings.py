"""The conditions of an export: nothing of the caller's gets in, nothing of forward's stays behind.

Whatever the caller has switched on (autocast, ``no_grad``) stays out of the capture; what the
captured program cannot show (custom gradients, hooks, seeds, draws from Python's own random
numbers) is noted.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import io
import logging
import random
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.fx.proxy import TracerBase
from torch.utils import checkpoint

from archgraph.capture.custom import arguments_of, other_gradient
from archgraph.capture.examples import register_dataclasses
from archgraph.capture.hooks import registering
from archgraph.capture.places import NO_GRAD, is_users, running
from archgraph.capture.tape import Note
from archgraph.errors import TraceError


@contextlib.contextmanager
def spelt_forward(
    model: torch.nn.Module, named: Mapping[str, Any], register: bool = False
) -> Iterator[None]:
    """A forward whose ``**kwargs`` are spelt out, and whose dataclasses pytrees can look into."""
    forward = model.forward
    signature = inspect.signature(forward)
    kinds = {p.name: p.kind for p in signature.parameters.values()}
    rest = next((k for k, kind in kinds.items() if kind is inspect.Parameter.VAR_KEYWORD), None)
    if rest is None and not register:
        yield
        return

    @functools.wraps(forward)
    def spelt_out(*args: Any, **values: Any) -> Any:
        result = forward(*args, **values)
        if register:
            register_dataclasses(result)
        return result

    parameters = [p for p in signature.parameters.values() if p.name != rest]
    parameters += [
        inspect.Parameter(k, inspect.Parameter.KEYWORD_ONLY) for k in named if k not in kinds
    ]
    spelt_out.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # export reads it
    own = vars(model).get("forward")
    model.forward = spelt_out
    try:
        yield
    finally:
        if own is None:
            del model.forward
        else:
            model.forward = own


@contextlib.contextmanager
def reachable(model: torch.nn.Module) -> Iterator[None]:
    """Let ``model.type`` be the submodule of that name, as export looks it up, not the method."""
    hidden = [
        (vars(module), name, part)
        for module in model.modules()
        for name, part in (module._modules | module._parameters | module._buffers).items()
        if name not in vars(module) and hasattr(type(module), name)
    ]
    for own, name, part in hidden:
        own[name] = part
    try:
        yield
    finally:
        for own, name, _ in hidden:
            own.pop(name, None)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence what export logs and prints on the way: its reason reappears in our error."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.redirect_stdout(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


@contextlib.contextmanager
def neutral() -> Iterator[None]:
    """Nothing of the caller's surroundings: they apply to the built module as to the original."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No collection of cycles: a capture makes millions of objects, and the heap stays in use."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def watched(notes: list[Note], place: str) -> Iterator[None]:
    """Note what an exported program cannot show, and keep places inside helper functions.

    Functions with a gradient of their own are exported as their forward; gradient checkpoints
    and inference mode, which export would drop or take apart, become what they compute.
    """
    functions = _Functions(notes)
    inference = torch.inference_mode
    replaced = (
        (torch.autograd.Function, "apply", classmethod(functions.apply)),
        (TracerBase, "_filter_traceback_frames", functions.frames),
        (inference, "__enter__", _enter_inference),
        (inference, "__exit__", _leave_inference),
        (torch.nn.Module, "_apply", _converted),
    )
    with _replaced(replaced), registering(notes), _drawing(notes, place):
        yield
    seen = functions.seen.items()
    notes += [error for cls, given in seen if (error := other_gradient(cls, given))]


@contextlib.contextmanager
def _replaced(attributes: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Attributes of classes with other values, for a while."""
    before = [(holder, name, vars(holder)[name]) for holder, name, _ in attributes]
    for holder, name, new in attributes:
        setattr(holder, name, new)
    try:
        yield
    finally:
        for holder, name, old in before:
            setattr(holder, name, old)


class _Functions:
    """Functions with a gradient of their own that forward applies, each with its arguments."""

    def __init__(self, notes: list[Note]) -> None:
        self.notes = notes
        self.seen: dict[Any, Any] = {}
        self._apply = vars(torch.autograd.Function)["apply"].__func__
        self._graded: list[bool] = []  # of the functions that are running

    def apply(self, cls: Any, *args: Any, **kwargs: Any) -> Any:
        """Instead of ``Function.apply``."""
        if cls is checkpoint.CheckpointFunction:
            run, _, *rest = args
            if not any(isinstance(a, torch.Tensor) and a.requires_grad for a in rest):
                self.notes.append(_ungraded_checkpoint())
            return run(*rest)
        if not cls.__module__.startswith("torch."):
            self.seen.setdefault(cls, arguments_of(args))
        self._graded.append(torch.is_grad_enabled())  # its forward runs without gradients
        try:
            return self._apply(cls, *args, **kwargs)
        finally:
            self._graded.pop()

    def frames(self, stack: traceback.StackSummary) -> traceback.StackSummary:
        """Instead of a tracer's filter: the user's frames, and whether gradients are recorded."""
        start = next((i for i, f in enumerate(stack) if f.name == "forward"), len(stack))
        graded = torch.is_grad_enabled() or (self._graded and self._graded[-1])
        marks = [] if graded else [NO_GRAD]
        return traceback.StackSummary.from_list(
            [*(f for f in stack[start:] if is_users(f.filename)), *marks]
        )


def _ungraded_checkpoint() -> TraceError:
    return TraceError(
        "a checkpoint that re-enters lets no gradient through to parameters, since none of its "
        "inputs needs one",
        where=running(),
        hint="give use_reentrant=False",
    )


_apply = torch.nn.Module._apply


def _converted(module: torch.nn.Module, fn: Any, recurse: bool = True) -> torch.nn.Module:
    """Instead of ``Module._apply``: a conversion to what a module is already changes nothing."""
    tensors = [*module.parameters(recurse), *module.buffers(recurse)]
    with torch.no_grad():
        pairs = [(tensor, fn(tensor)) for tensor in tensors]
    if all((a.dtype, a.device, a.shape) == (b.dtype, b.device, b.shape) for a, b in pairs):
        return module
    return _apply(module, fn, recurse)


def _enter_inference(self: Any) -> None:
    self.held = torch.is_grad_enabled()
    if self.mode:
        torch.set_grad_enabled(False)


def _leave_inference(self: Any, *_: Any) -> None:
    torch.set_grad_enabled(self.held)


@contextlib.contextmanager
def _drawing(notes: list[Note], place: str) -> Iterator[None]:
    """Note what forward does to random numbers outside a graph, and take it back."""
    drawn = torch.get_rng_state()
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  # forward may use it
    try:
        yield
    finally:
        if not torch.equal(drawn, torch.get_rng_state()):
            notes.append(
                TraceError(
                    "forward seeds torch's random numbers, and a graph does not",
                    where=place,
                    hint="seed them before the call",
                )
            )
            torch.set_rng_state(drawn)
        after = np.random.get_state()  # noqa: NPY002  # forward may use it
        if python != random.getstate() or not all(map(np.array_equal, numpy, after)):
            notes.append(
                TraceError(
                    "forward draws from Python's random numbers: what it drew while it was traced "
                    "is fixed in the graph",
                    where=place,
                    hint="draw with torch instead",
                )
            )
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002  # forward may use it
