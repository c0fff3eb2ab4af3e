"""What forward changes beside its results is noted, and taken back: nothing of a capture stays."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from archgraph.capture.held import Held, held
from archgraph.capture.places import place
from archgraph.capture.prints import CONTAINERS, Same, base, contents, is_buffer, is_foreign
from archgraph.capture.spaces import ABSENT, TABLES
from archgraph.capture.tape import Note
from archgraph.errors import TraceError


@contextlib.contextmanager
def assigning(model: torch.nn.Module, changed: dict[str, str], notes: list[Note]) -> Iterator[Held]:
    """Note what forward assigns, and take it back: after a capture these are stand-ins.

    The names of what it has changed are put into ``changed``, each with the place of the code; what
    it does to its own parameters and modules is an error in ``notes``.
    """
    start: list[Any] = []
    with restored(model) as kept:

        def enter(*_: Any) -> None:
            start[:] = [[space.prints() for space in kept.spaces], _parts(model)]

        def leave(*_: Any) -> None:  # right after forward: export takes numbers back by itself
            prints, parts = start
            for space, before in zip(kept.spaces, prints, strict=True):
                for key, after in space.prints().items():
                    if key not in before or after != before[key]:
                        changed[space.name(key)] = space.where(key)
            notes.extend(_replaced(model, parts))

        hooks = (
            model.register_forward_pre_hook(enter, prepend=True),
            model.register_forward_hook(leave),
        )
        try:
            yield kept
        finally:
            for hook in hooks:
                hook.remove()


@contextlib.contextmanager
def restored(model: torch.nn.Module, kept: Held | None = None) -> Iterator[Held]:
    """Take back what forward assigns; ``kept``: the places of an earlier look."""
    kept = held(model) if kept is None else kept
    values = [(space, space.read()) for space in kept.spaces]
    tables = [vars(m)[table] for m in model.modules() for table in TABLES if table in vars(m)]
    insides = [*_insides([*tables, *(value for _, own in values for value in own.values())])]
    sizes = [cache.cache_info().currsize for cache in kept.caches]
    try:
        yield kept
    finally:
        for space, before in values:
            now = space.read()
            for key in now.keys() | before.keys():
                if now.get(key, ABSENT) is not before.get(key, ABSENT):
                    space.write(key, before.get(key, ABSENT))
        for container, contents in insides:
            _refill(container, contents)
        for cache, size in zip(kept.caches, sizes, strict=True):
            if cache.cache_info().currsize != size:
                cache.cache_clear()


@contextlib.contextmanager
def redrawn() -> Iterator[None]:
    """Random numbers of torch, Python and NumPy afterwards as before, whatever a trial draws."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  # trials may use it
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002  # trials may use it


def _parts(model: torch.nn.Module) -> dict[str, Any]:
    """The parameters and modules of a model, and the names of its buffers."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        for name, part in (module._parameters | module._modules).items():
            frozen = isinstance(part, torch.Tensor) and not part.requires_grad
            found[prefix + name] = Same(part), frozen
        found |= {prefix + name: None for name in module._buffers}
    return found


def _replaced(model: torch.nn.Module, before: dict[str, Any]) -> Iterator[TraceError]:
    """Errors for parameters and modules that are others than before."""
    after = _parts(model)
    for name in sorted(after.keys() | before.keys()):
        was, now = before.get(name, ABSENT), after.get(name, ABSENT)
        if was != now:
            only = was is not ABSENT and now is not ABSENT and was[0] == now[0]
            made = "freezes or thaws this parameter" if only else "makes or replaces this part"
            yield TraceError(
                f"forward {made}; the parts of a graph stay as they are",
                where=name,
                found=place(type(model).forward),
                hint="do it before tracing",
            )


def _insides(values: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Containers and buffers among some values and in them, each with what it holds."""
    seen: set[int] = set()
    while values:
        value = values.pop()
        if isinstance(value, CONTAINERS) and id(value) not in seen:
            seen.add(id(value))
            held = contents(value)
            yield value, held
            values += held
        elif is_buffer(value):
            yield value, bytes(value) if is_foreign(value) else copy.copy(value)


def _refill(value: Any, before: Any) -> None:
    """Give a container its contents back, past what a subclass forbids."""
    if is_foreign(value):
        memoryview(value).cast("B")[:] = before
        return
    if is_buffer(value):
        if getattr(getattr(value, "flags", None), "writeable", True):
            value[... if isinstance(value, np.ndarray) else slice(None)] = before
        return
    now, kind = contents(value), base(value)
    if len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True)):
        return
    kind.clear(value)
    if issubclass(kind, dict):
        for key, item in zip(before[::2], before[1::2], strict=True):
            kind.__setitem__(value, key, item)
    else:
        (kind.update if kind is set else kind.extend)(value, before)
