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
from collections.abc import Iterator, Mapping
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
    function = torch.autograd.Function
    apply, filter_frames = function.__dict__["apply"], TracerBase._filter_traceback_frames
    inference = torch.inference_mode
    enter, leave = inference.__enter__, inference.__exit__
    seen: dict[Any, list[Any]] = {}
    wanted: list[bool] = []

    def applied(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is checkpoint.CheckpointFunction:
            run, _, *rest = args
            if not any(isinstance(a, torch.Tensor) and a.requires_grad for a in rest):
                notes.append(
                    TraceError(
                        "a checkpoint that re-enters lets no gradient through to parameters, since "
                        "none of its inputs needs one",
                        where=running(),
                        hint="give use_reentrant=False, or trace with strict=False",
                    )
                )
            return run(*rest)
        if not cls.__module__.startswith("torch."):
            seen.setdefault(cls, arguments_of(args))
        wanted.append(torch.is_grad_enabled())  # a function's forward runs without gradients
        try:
            return apply.__func__(cls, *args, **kwargs)
        finally:
            wanted.pop()

    def frames(self: Any, stack: traceback.StackSummary) -> traceback.StackSummary:
        start = next((i for i, f in enumerate(stack) if f.name == "forward"), len(stack))
        graded = torch.is_grad_enabled() or (wanted and wanted[-1])
        marks = [] if graded else [NO_GRAD]
        return traceback.StackSummary.from_list(
            [*(f for f in stack[start:] if is_users(f.filename)), *marks]
        )

    def entered(self: Any) -> None:
        self.held = torch.is_grad_enabled()
        if self.mode:
            torch.set_grad_enabled(False)

    def left(self: Any, *_: Any) -> None:
        torch.set_grad_enabled(self.held)

    drawn = torch.get_rng_state()
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  # forward may use it
    replaced: list[tuple[Any, str, Any, Any]] = [
        (function, "apply", apply, classmethod(applied)),
        (TracerBase, "_filter_traceback_frames", filter_frames, frames),
        (inference, "__enter__", enter, entered),
        (inference, "__exit__", leave, left),
    ]
    for holder, name, _, new in replaced:
        setattr(holder, name, new)
    try:
        with registering(notes):
            yield
    finally:
        for holder, name, old, _ in replaced:
            setattr(holder, name, old)
        if not torch.equal(drawn, torch.get_rng_state()):
            notes.append(
                TraceError(
                    "forward seeds torch's random numbers, and a graph does not",
                    where=place,
                    hint="seed them before the call, or trace with strict=False",
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
                    hint="draw with torch instead, or trace with strict=False",
                )
            )
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002  # forward may use it
    notes += [error for cls, given in seen.items() if (error := other_gradient(cls, given))]
