"""Hooks that a module has before it is captured.

A graph holds operators and leaves. Hooks on modules that change inputs and outputs run while a
module is captured, so that the graph has what they do; all others would be lost without a word.
Each is an error that says where it is registered and where its function is defined. (What hooks do
that forward registers, or that are on nodes of the autograd graph, shows when the gradients of the
built module are compared.)
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from archgraph.capture.places import definition_of
from archgraph.errors import TraceError

_ON_ALL = {
    "_global_forward_hooks": "a forward hook of all modules",
    "_global_forward_pre_hooks": "a forward pre-hook of all modules",
    "_global_backward_hooks": "a backward hook of all modules",
    "_global_backward_pre_hooks": "a backward pre-hook of all modules",
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
    """Yield an error for each hook that the graph of a module would lose."""
    everywhere = torch.nn.modules.module
    modules = ((path or type(model).__name__, m, _ON_MODULE) for path, m in model.named_modules())
    parameters = ((name, p, _ON_TENSOR) for name, p in model.named_parameters())
    holders = ((everywhere.__name__, everywhere, _ON_ALL), *modules, *parameters)
    for where, holder, kinds in holders:
        for attribute, what in kinds.items():
            for hook in (getattr(holder, attribute) or {}).values():
                yield TraceError(
                    f"has {what}, which may change results or gradients; a graph holds no hooks",
                    where=where,
                    found=definition_of(hook),
                    hint="remove it before tracing and register it on the built module",
                )
