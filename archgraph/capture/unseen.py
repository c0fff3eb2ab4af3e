"""Find hooks and state of a module that a capture does not show.

A graph contains operators, parameters and buffers. Each parameter and buffer has its own memory.
Other properties of a module would be lost, so they cause an error that names them:

- Hooks. Hooks that change inputs and outputs of modules are allowed, because they run during a
  capture. This module does not find hooks on nodes of the autograd graph, or hooks that are
  registered during forward. :mod:`~archgraph.capture.verify` finds them when it compares gradients.
- Memory that two parameters or buffers share, and state that is not a tensor.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from archgraph.capture.places import definition_of, is_users
from archgraph.capture.restored import reachable_values
from archgraph.errors import TraceError
from archgraph.hints import listed

_ON_ALL = {
    "_global_forward_hooks": "a forward hook of all modules",
    "_global_forward_pre_hooks": "a forward pre-hook of all modules",
    "_global_backward_hooks": "a backward hook of all modules",
    "_global_backward_pre_hooks": "a backward pre-hook of all modules",
}
_ON_MODULE = {"_backward_hooks": "a backward hook", "_backward_pre_hooks": "a backward pre-hook"}
_ON_TENSOR = {
    "_backward_hooks": "a hook on its gradient",
    "_post_accumulate_grad_hooks": "a hook after its gradient is accumulated",
}


def registered(model: nn.Module) -> Iterator[TraceError]:
    """Yield an error for each hook that the graph of a module would lose."""
    everywhere = nn.modules.module
    modules = ((path or type(model).__name__, m, _ON_MODULE) for path, m in model.named_modules())
    parameters = ((name, p, _ON_TENSOR) for name, p in model.named_parameters())
    holders = ((everywhere.__name__, everywhere, _ON_ALL), *modules, *parameters)
    for where, holder, kinds in holders:
        for attribute, what in kinds.items():
            for hook in (getattr(holder, attribute) or {}).values():
                yield TraceError(
                    f"has {what}, which may change results or gradients; a graph contains no hooks",
                    where=where,
                    found=definition_of(hook),
                    hint="remove it before tracing and register it on the built module",
                )


def extra_state(model: nn.Module) -> Iterator[TraceError]:
    """Yield an error for state that is not a tensor, which the graph would lose."""
    for path, module in model.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            yield TraceError(
                "has extra state (get_extra_state), but a graph contains only tensors",
                where=path or type(model).__name__,
                found=definition_of(type(module).get_extra_state),
                hint="keep it in buffers",
            )


def other_state(model: nn.Module) -> Iterator[TraceError]:
    """Yield an error if ``state_dict`` does not contain exactly the parameters and buffers."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    leaves = parameters | dict(model.named_buffers(remove_duplicate=False))
    state = model.state_dict(keep_vars=True)
    tensors = {key: value for key, value in state.items() if isinstance(value, Tensor)}
    hooks = [hook for m in model.modules() for hook in m._state_dict_hooks.values()]
    public = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    for key in dict.fromkeys((*parameters, *tensors)):
        if leaves.get(key) is not tensors.get(key) or id(leaves[key]) not in public:
            yield TraceError(
                "is missing from the model's state_dict, parameters() or buffers(), or is another "
                "tensor there",
                where=key,
                found=definition_of(hooks[0]) if hooks else None,
                hint="remove what changes the state_dict",
            )


def other_classes(model: nn.Module) -> Iterator[TraceError]:
    """Yield an error for parameters and buffers of a class with custom arithmetic."""
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        for method in ("__torch_function__", "__torch_dispatch__"):
            work = getattr(getattr(type(tensor), method, None), "__func__", None)
            if work is not None and is_users(definition_of(work)):
                yield TraceError(
                    f"is a {type(tensor).__name__}, which defines its own arithmetic; a graph "
                    "contains plain tensors",
                    where=name,
                    found=definition_of(work),
                    hint="make it a plain tensor before tracing",
                )


def shared(
    model: nn.Module, constants: Mapping[str, Tensor], written: Collection[str]
) -> Iterator[TraceError]:
    """Yield an error for tensors that share memory or a gradient with a parameter that changes.

    Several names of the same tensor are allowed. ``constants`` are the tensors that forward uses in
    addition to parameters and buffers, and ``written`` are the buffers that forward changes.
    """
    tensors: dict[int, tuple[str, Tensor]] = {}
    leaves = itertools.chain(model.named_parameters(), model.named_buffers())
    for name, tensor in itertools.chain(leaves, constants.items()):
        tensors.setdefault(id(tensor), (name, tensor))
    for name, tensor in constants.items():
        if tensor.grad_fn is not None:
            yield TraceError(
                "was computed from parameters before forward; a graph would hold it as a constant",
                where=name,
                hint="compute it in forward",
            )
    for pair in overlapping(tensors.values()):
        if any(tensor.requires_grad or name in written for name, tensor in pair):
            # The smaller one can be computed from the other.
            (first, _), (second, _) = sorted(
                pair, key=lambda item: (item[0] in constants, -item[1].numel())
            )
            yield TraceError(
                "shares memory with a tensor that changes, but would not change in the graph",
                where=second,
                found=f"the memory of {first}",
                hint=f"use one parameter for both names, or compute {second} in forward",
            )


def unregistered(model: nn.Module, constants: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield a note about weights that are not registered, such as those of layers in a list.

    ``constants`` are the tensors that forward uses in addition to the model's parameters and
    buffers, as views without gradients.
    """
    used = {_span(tensor) for tensor in constants.values() if _dense(tensor)}
    registered = {id(parameter) for parameter in model.parameters()}
    names = [
        path.partition(".")[2]  # without the model's class
        for tensor, path in reachable_values(model)[1]
        if isinstance(tensor, Tensor) and tensor.requires_grad and tensor.is_leaf
        if id(tensor) not in registered and _dense(tensor) and _span(tensor) in used
    ]
    if names:
        yield (
            f"{listed(names, 4)}: constants of the graph, not trained and not in the "
            "state: the module does not register them (they are in a plain list, tuple or dict; "
            "nn.ModuleList, nn.ModuleDict and nn.ParameterList register theirs)"
        )


def overlapping(
    tensors: Iterable[tuple[str, Tensor]],
) -> Iterator[tuple[tuple[str, Tensor], tuple[str, Tensor]]]:
    """Yield pairs of named tensors that have an element in common.

    Memory is compared element by element, because tensors in the same allocation, such as the
    weights of a recurrent layer, may have no element in common.
    """
    spans = sorted(
        ((*_span(tensor), name, tensor) for name, tensor in tensors if _dense(tensor)),
        key=lambda item: item[:3],
    )
    # Sorted by start: a tensor that overlaps with another one starts before the other's end.
    for index, (memory, _, end, name, tensor) in enumerate(spans):
        for other_memory, start, _, other, second in itertools.islice(spans, index + 1, None):
            if other_memory != memory or start >= end:
                break
            if _meet(tensor, second):
                yield (name, tensor), (other, second)


def _dense(tensor: Tensor) -> bool:
    """Return whether a tensor has elements in memory."""
    return tensor.layout is torch.strided and tensor.numel() > 0


def _span(tensor: Tensor) -> tuple[int, int, int]:
    """Return the memory of a tensor, the address of its first byte, and the end of its last byte.

    All tensors with values are in the same memory. On the meta device, each storage is a separate
    memory.
    """
    storage, size = tensor.untyped_storage(), tensor.element_size()
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    length = 1 + sum((n - 1) * step for n, step in steps)
    start = storage.data_ptr() + int(tensor.storage_offset()) * size
    return storage._cdata if tensor.is_meta else 0, start, start + int(length) * size


def _meet(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors whose memory overlaps have an element in common."""
    if a.is_contiguous() and b.is_contiguous():
        return True
    (_, first, _), (_, second, _) = _span(a), _span(b)
    step, size = second - first, a.element_size()
    if size != b.element_size() or step % size:
        return True
    ours, theirs = (_elements(t) for t in (a, b))
    return bool(torch.isin(theirs + step // size, ours).any())


def _elements(tensor: Tensor) -> Tensor:
    """Return the positions of a tensor's elements, counted from its first one."""
    _, start, end = _span(tensor)
    positions = torch.arange((end - start) // tensor.element_size())
    return positions.as_strided(tensor.shape, tensor.stride()).flatten()
