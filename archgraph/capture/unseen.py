"""What a module does that no capture shows: it is found on the module itself, before the export.

A graph holds operators and leaves. Hooks on gradients, memory that two leaves share and state that
is not a tensor would be lost without a word, so each is an error that says which and where.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch

from archgraph.errors import TraceError

_MODULE_HOOKS = {
    "_backward_hooks": "a backward hook",
    "_backward_pre_hooks": "a backward pre-hook",
}
_TENSOR_HOOKS = {
    "_backward_hooks": "a hook on its gradient",
    "_post_accumulate_grad_hooks": "a hook after its gradient is accumulated",
}
_HINT = "remove it before tracing and register it on the built module, or trace with strict=False"


def unseen(model: torch.nn.Module) -> Iterator[TraceError]:
    """Hooks on gradients and extra state, which the graph of a module would lose."""
    for path, module in model.named_modules():
        yield from _hooks(path or type(model).__name__, module, _MODULE_HOOKS)
        if type(module).get_extra_state is not torch.nn.Module.get_extra_state:
            yield TraceError(
                "has extra state (get_extra_state), and a graph holds tensors only",
                where=path or type(model).__name__,
                found=place(type(module).get_extra_state),
                hint="keep it in buffers, or trace with strict=False, which leaves it out",
            )
    for name, parameter in model.named_parameters():
        yield from _hooks(name, parameter, _TENSOR_HOOKS)


def place(function: Any) -> str:
    """Where a function is defined, or what it is called."""
    inner = getattr(function, "func", function)  # of a functools.partial
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(function)


def gradient_hook(where: str, what: str, function: Any) -> TraceError:
    """The error for a hook that may change gradients."""
    message = f"has {what}, which may change gradients; a graph holds no hooks"
    return TraceError(message, where=where, found=place(function), hint=_HINT)


def _hooks(where: str, holder: Any, kinds: Mapping[str, str]) -> Iterator[TraceError]:
    for attribute, what in kinds.items():
        for hook in (getattr(holder, attribute) or {}).values():
            yield gradient_hook(where, what, hook)


# -- memory ---------------------------------------------------------------------------------------


def shared(
    model: torch.nn.Module, constants: Mapping[str, torch.Tensor], written: Collection[str]
) -> Iterator[TraceError]:
    """Tensors that share memory with one that changes, or a gradient, without being one tensor.

    ``constants`` are what forward uses beside its leaves, ``written`` the buffers that it changes.
    """
    found: dict[int, tuple[str, torch.Tensor]] = {}
    own = itertools.chain(model.named_parameters(), model.named_buffers())
    for name, tensor in itertools.chain(own, constants.items()):
        found.setdefault(id(tensor), (name, tensor))
    for name, tensor in constants.items():
        if tensor.grad_fn is not None:
            yield TraceError(
                "was computed from parameters before forward; a graph would hold it as a constant",
                where=name,
                hint="compute it in forward, or trace with strict=False",
            )
    for pair in overlapping(found.values()):
        if any(tensor.requires_grad or name in written for name, tensor in pair):
            (first, _), (second, _) = sorted(pair, key=lambda item: item[0] in constants)
            yield TraceError(
                "shares memory with a leaf that changes, and would not change with it",
                where=second,
                found=f"the memory of {first}",
                hint=f"let both names hold one parameter, compute {second} in forward, or trace "
                "with strict=False, which copies both",
            )


def overlapping(
    tensors: Iterable[tuple[str, torch.Tensor]],
) -> Iterator[tuple[tuple[str, torch.Tensor], tuple[str, torch.Tensor]]]:
    """Pairs of named tensors that have an element in common.

    Memory is compared element by element: the weights of a recurrent layer may lie in one
    allocation side by side, even interleaved, and have nothing in common.
    """
    spans = sorted(
        ((*_span(tensor), name, tensor) for name, tensor in tensors if _dense(tensor)),
        key=lambda item: item[:2],
    )
    for index, (_, end, name, tensor) in enumerate(spans):
        for start, _, other, second in itertools.islice(spans, index + 1, None):
            if start >= end:
                break
            if _meet(tensor, second):
                yield (name, tensor), (other, second)


def _dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor has elements in memory of its own or shared with others."""
    return tensor.layout is torch.strided and tensor.numel() > 0


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Address of a tensor's first byte and of the one behind its last.

    A tensor without data (on the meta device) has that of its storage object instead.
    """
    storage, size = tensor.untyped_storage(), tensor.element_size()
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    length = 1 + sum((n - 1) * step for n, step in steps)
    start = (storage.data_ptr() or storage._cdata) + int(tensor.storage_offset()) * size
    return start, start + int(length) * size


def _meet(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors whose memory overlaps have an element in common."""
    (first, _), (second, _) = _span(a), _span(b)
    step, size = second - first, a.element_size()
    if size != b.element_size() or step % size:
        return True
    ours, theirs = (_elements(t) for t in (a, b))
    return bool(torch.isin(theirs + step // size, ours).any())


def _elements(tensor: torch.Tensor) -> torch.Tensor:
    """Positions of a tensor's elements, counted from its first one."""
    positions = torch.zeros((), dtype=torch.int64)
    for size, step in zip(tensor.shape, tensor.stride(), strict=True):
        positions = positions[..., None] + torch.arange(size) * step
    return positions.flatten()
