"""Layers of a model that come back: which are the same ``torch.nn`` types with the same options."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def weighted(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, str]:
    """Print the layers of torch.nn that a forward pass calls and that own weights, by path.

    Classes derived from those of torch.nn do not count, nor do modules that have others inside.
    """
    called: set[str] = set()
    candidates = {
        path: module
        for path, module in model.named_modules()
        if path
        and getattr(nn, type(module).__name__, None) is type(module)
        and not any(True for _ in module.children())
        and any(True for _ in module.parameters(recurse=False))
    }
    hooks = [
        module.register_forward_hook(lambda *_, path=path: called.add(path))
        for path, module in candidates.items()
    ]
    try:
        for training in (False, True):
            with torch.no_grad():
                model.train(training)(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    return {path: repr(module) for path, module in candidates.items() if path in called}


def others(expected: dict[str, str], net: nn.Module) -> dict[str, str]:
    """Print what stands in a built module where a layer of the model is not found again."""
    parts = dict(net.named_modules(remove_duplicate=False))
    return {
        path: repr(parts[path]).split("\n")[0] if path in parts else "nothing"
        for path, text in expected.items()
        if path not in parts or repr(parts[path]) != text
    }
