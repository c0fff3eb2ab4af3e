"""Hooks: those that a module has before it is captured, and those that forward registers.

A graph holds operators and leaves. Hooks on modules that change inputs and outputs run while a
module is captured, so that the graph has what they do; all others would be lost without a word.
Each is an error that says where it is registered and where its function is defined.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from archgraph.capture.custom import StandIn, other_saved, shape_of
from archgraph.capture.places import is_users, place, running
from archgraph.capture.tape import Note
from archgraph.errors import TraceError

_ON_ALL = {
    "_global_forward_hooks": "a forward hook",
    "_global_forward_pre_hooks": "a forward pre-hook",
    "_global_backward_hooks": "a backward hook",
    "_global_backward_pre_hooks": "a backward pre-hook",
}
_ON_MODULE = {
    "_backward_hooks": "a backward hook",
    "_backward_pre_hooks": "a backward pre-hook",
}
_ON_TENSOR = {
    "_backward_hooks": "a hook on its gradient",
    "_post_accumulate_grad_hooks": "a hook after its gradient is accumulated",
}
_NODE = torch.autograd.function._HookMixin
_REGISTER: tuple[tuple[Any, str, str], ...] = (
    (torch.Tensor, "register_hook", "a hook on its gradient"),
    (
        torch.Tensor,
        "register_post_accumulate_grad_hook",
        "a hook after its gradient is accumulated",
    ),
    (torch.nn.Module, "register_full_backward_hook", "a backward hook"),
    (torch.nn.Module, "register_full_backward_pre_hook", "a backward pre-hook"),
    (_NODE, "_register_hook", "a hook on a node of the autograd graph"),
)


def registered(model: torch.nn.Module) -> Iterator[TraceError]:
    """Hooks that the graph of a module would lose."""
    for attribute, what in _ON_ALL.items():
        for hook in getattr(torch.nn.modules.module, attribute).values():
            yield TraceError(
                f"{what} of all modules is registered, and the built module has other submodules",
                where="torch.nn.modules.module",
                found=place(hook),
                hint="remove it before tracing",
            )
    for path, module in model.named_modules():
        yield from _hooks(path or type(model).__name__, module, _ON_MODULE)
    for name, parameter in model.named_parameters():
        yield from _hooks(name, parameter, _ON_TENSOR)
        for hook in _on_accumulator(parameter):
            yield _error(name, "a hook on the node that accumulates its gradient", hook)


@contextlib.contextmanager
def registering(notes: list[Note]) -> Iterator[None]:
    """Note the hooks on gradients and on saved tensors that forward registers."""
    saving = torch.autograd.graph.saved_tensors_hooks
    old = [(holder, name, vars(holder)[name]) for holder, name, _ in _REGISTER]
    enter = saving.__enter__
    saved: dict[tuple[Any, Any, str], set[StandIn]] = {}

    def entered(self: Any) -> None:
        pack, unpack = self.pack_hook, self.unpack_hook
        if is_users(place(pack)):
            shapes = saved.setdefault((pack, unpack, running()), set())
            pack, unpack = functools.partial(_recorded, shapes), _same
        torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)

    try:
        for holder, name, what in _REGISTER:
            setattr(holder, name, _noting(holder, name, what, notes))
        saving.__enter__ = entered  # type: ignore[method-assign]  # taken back below
        yield
    finally:
        saving.__enter__ = enter  # type: ignore[method-assign]  # as it was
        for holder, name, before in old:
            setattr(holder, name, before)
    notes += [error for key, shapes in saved.items() if (error := other_saved(*key, shapes))]


def _noting(holder: Any, name: str, what: str, notes: list[Note]) -> Any:
    """A method that registers a hook, and notes it."""
    register = getattr(holder, name)

    @functools.wraps(register)
    def noted(self: Any, hook: Any, *args: Any, **kwargs: Any) -> Any:
        # For a hook on a module torch registers one of its own on a node.
        if holder is not _NODE or is_users(place(hook)):
            notes.append(_error(running(), what, hook))
        return register(self, hook, *args, **kwargs)

    return staticmethod(noted) if isinstance(vars(holder)[name], staticmethod) else noted


def _recorded(shapes: set[StandIn], tensor: torch.Tensor) -> torch.Tensor:
    shapes.add(shape_of(tensor))
    return tensor


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _hooks(where: str, holder: Any, kinds: Mapping[str, str]) -> Iterator[TraceError]:
    for attribute, what in kinds.items():
        for hook in (getattr(holder, attribute) or {}).values():
            yield _error(where, what, hook)


def _on_accumulator(parameter: torch.Tensor) -> Iterator[Any]:
    """Hooks on the node of the autograd graph that accumulates a parameter's gradient.

    Nothing lists the hooks of a node, but one more hook shares a table with them.
    """
    if not parameter.requires_grad or not parameter.is_leaf:
        return
    with torch.inference_mode(False), torch.enable_grad():
        function = parameter.view_as(parameter).grad_fn
    if function is None:
        return
    for register in ("register_hook", "register_prehook"):
        one_more = getattr(function.next_functions[0][0], register)(_nothing)
        hooks = one_more.hooks_dict_ref() or {}
        one_more.remove()
        yield from list(hooks.values())


def _nothing(*_: Any) -> None:
    """A hook that does nothing."""


def _error(where: str, what: str, hook: Any) -> TraceError:
    """The error for a hook that may change gradients."""
    return TraceError(
        f"has {what}, which may change gradients; a graph holds no hooks",
        where=where,
        found=place(hook),
        hint="remove it before tracing and register it on the built module",
    )
