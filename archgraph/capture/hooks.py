"""Hooks that a module has before it is captured.

A graph holds operators and leaves. Hooks on modules that change inputs and outputs run while a
module is captured, so that the graph has what they do; all others would be lost without a word.
Each is an error that says where it is registered and where its function is defined. (What hooks do
that forward registers shows when the gradients of the built module are compared.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from archgraph.capture.places import place
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
