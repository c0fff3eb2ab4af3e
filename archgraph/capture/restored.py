"""What forward changes beside its results is noted, and taken back: nothing of a capture stays."""

from __future__ import annotations

import contextlib
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from archgraph.capture.held import ABSENT, TABLES, Held, Same, contents, held
from archgraph.capture.places import place
from archgraph.capture.tape import Note
from archgraph.errors import TraceError

_DEPTH = 3  # containers in containers


@contextlib.contextmanager
def restored(model: torch.nn.Module, changed: dict[str, str], notes: list[Note]) -> Iterator[Held]:
    """Take back what forward assigns: after a capture these are stand-ins, not tensors.

    The names of what it has changed are put into ``changed``, each with the place of the code; what
    it does to its own parameters and modules is an error in ``notes``.
    """
    kept = held(model)
    values = [(space, space.read()) for space in kept.spaces]
    tables = [vars(m)[table] for m in model.modules() for table in TABLES if table in vars(m)]
    insides = [*_insides(tables), *(i for _, own in values for i in _insides(own.values()))]
    sizes = [cache.cache_info().currsize for cache in kept.caches]
    start: list[Any] = []

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
                hint="do it before tracing, or trace with strict=False",
            )


def _insides(values: Any, depth: int = _DEPTH) -> Iterator[tuple[Any, Any]]:
    """Containers among some values and in them, each with what it holds."""
    for value in values:
        if isinstance(value, np.ndarray):
            yield value, value.copy()
        elif isinstance(value, (dict, list, set, deque)):
            held = contents(value)
            yield value, held
            if depth:
                yield from _insides(held, depth - 1)


def _refill(value: Any, before: Any) -> None:
    """Give a container its contents back, past what a subclass forbids."""
    if isinstance(value, np.ndarray):
        if value.flags.writeable:
            value[...] = before
        return
    now = contents(value)
    if len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True)):
        return
    base: Any = next(b for b in (OrderedDict, dict, list, set, deque) if isinstance(value, b))
    base.clear(value)
    if issubclass(base, dict):
        for key, item in zip(before[::2], before[1::2], strict=True):
            base.__setitem__(value, key, item)
    else:
        (base.update if base is set else base.extend)(value, before)
