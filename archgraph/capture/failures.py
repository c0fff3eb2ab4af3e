"""Explain a failure of ``torch.export``: the line of the user's code, the reason, and a remedy.

This module also has settings of a model with which it can be traced.
"""

from __future__ import annotations

import contextlib
import linecache
import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.distributions import distribution
from torch.nn.utils.rnn import PackedSequence

from archgraph.capture.places import definition_of, is_users
from archgraph.errors import Inexpressible, TraceError
from archgraph.ops.schema import op_name

# Temporarily changes a setting of a model, and yields notes on it: empty if nothing changed.
Switch: TypeAlias = Callable[[nn.Module], contextlib.AbstractContextManager[list[str]]]

_BRANCH = (
    "forward branches in Python on the values of a tensor; use torch.where or torch.cond, trace a "
    "submodule that does not branch, or pass the value as an argument of forward (a Python number "
    "in the example inputs is fixed in the graph)"
)
_CAUSAL = (
    "the layer compares its mask with a causal one: pass is_causal (or tgt_is_causal) in the call, "
    "or create the mask in forward or store it in a buffer"
)
_VALIDATED = (
    "pass validate_args=False to it and to the distributions that it wraps, or call "
    "torch.distributions.Distribution.set_default_validate_args(False) before tracing"
)


class UnknownType(TraceError):
    """Raised if torch cannot flatten an input or a result of forward, because of its type."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def is_unknown(error: BaseException) -> bool:
    """Return whether forward takes or returns an object that torch cannot flatten."""
    return re.search(_UNKNOWN, f"{type(error).__name__} {error}") is not None


def is_branch(error: BaseException) -> bool:
    """Return whether forward branched in Python on the values of a tensor."""
    return re.search(_BRANCHES, f"{type(error).__name__} {error}") is not None


def _packs(error: BaseException) -> bool:
    """Return whether a recurrent layer was running over a packed sequence."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(isinstance(v, PackedSequence) for f in frames for v in f.f_locals.values())


def _compares_masks(error: BaseException) -> bool:
    """Return whether a layer of torch was checking whether its mask is causal."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(frame.name == "_detect_is_causal_mask" for frame in frames)


def _validates(error: BaseException) -> bool:
    """Return whether a distribution was validating arguments or values."""
    frames = traceback.extract_tb(error.__traceback__)
    checks = ("__init__", "_validate_sample")
    return any(f.filename == distribution.__file__ and f.name in checks for f in frames)


def _operation(error: BaseException) -> str:
    """Return the torch operator that was running; empty if there was none."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    running = (value for frame in frames for value in frame.f_locals.values())
    names = [op_name(value) for value in running if isinstance(value, torch._ops.OpOverload)]
    return names[-1] if names else ""


def place_of(error: BaseException) -> tuple[str, int, str] | None:
    """Return the innermost line of the user's code that was running: file, line, function."""
    stack = [(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(error.__traceback__)]
    frames = [frame for frame in stack if is_users(frame[0])]
    if any(name == "forward" for _, _, name in frames):
        return frames[-1]
    # Errors of a program that is checked after forward quote the line in their text.
    quoted = re.findall(r'File "([^"]+)", line (\d+), in (\w+)', str(error))
    users = [(file, int(line), name) for file, line, name in quoted if is_users(file)]
    layers = [frame for frame in stack if frame[2] == "forward" and frame[0].startswith(_LAYERS)]
    return next(iter([*reversed(users), *reversed(layers), *reversed(frames)]), None)


# Folders of torch that contain layers.
_LAYERS = tuple(f"{Path(torch.__file__).parent / room}/" for room in ("nn", "ao"))
_BRANCHES = r"data-dependent|GuardOnDataDependent|DataDependentOutput"
_UNKNOWN = r"not a known type|Unsupported input type"
_REASONS: tuple[tuple[str, str, str], ...] = (
    (
        r"\.numpy\(\) is not supported|numpy\(\)|can't convert .* to numpy",
        "forward leaves torch for numpy",
        "use torch functions instead",
    ),
    (
        _UNKNOWN,
        "an input or output has a type that torch cannot look into",
        "use tensors, tuples, dicts and dataclasses, or register it with "
        "torch.utils._pytree.register_pytree_node",
    ),
    (
        r"fake tensor in the exported program constant|BatchedTensor|TensorWrapper|"
        r"GradTrackingTensor",
        "forward computes gradients or vectorises functions internally (torch.autograd.grad, "
        "vmap), or uses the data of a tensor (.data)",
        "trace a submodule that does not, and use .detach() instead of .data",
    ),
    (
        r"is a view and is being modified inplace",
        "forward writes in place to one of several views that were created together",
        "this also fails without tracing; index the tensor instead of splitting it",
    ),
    (
        r"not on the expected device|same device|is on \w+, different from other tensors",
        "tensors on different devices are used together",
        "create tensors in forward on the device of an input: device=x.device",
    ),
)


@contextlib.contextmanager
def uncached(model: nn.Module) -> Iterator[list[str]]:
    """Temporarily set ``config.use_cache`` of all modules to False, and yield a note about it.

    A graph cannot contain the object with the keys and values for generation. Models that return
    this object have the setting ``use_cache``. Dropping the object from the results is not enough:
    a cache concatenates earlier keys with those of the call, and in each layer a ``cat`` with an
    empty tensor would unify axes.
    """
    every = [getattr(module, "config", None) for module in model.modules()]
    configs = [c for c in every if getattr(c, "use_cache", None) is True]
    for config in configs:
        config.use_cache = False  # type: ignore[union-attr]  # it is True above
    note = (
        "config.use_cache is off in the graph: its additional results have a type that a graph "
        "cannot contain"
    )
    try:
        yield [note] if configs else []
    finally:
        for config in configs:
            config.use_cache = True  # type: ignore[union-attr]


_EXPERTS = "batched_mm"  # the way of transformers to run experts without branches


@contextlib.contextmanager
def batched_experts(model: nn.Module) -> Iterator[list[str]]:
    """Temporarily run all experts without branches, if the model supports it; yield a note."""
    settable: list[Any] = [  # models of transformers, by their method
        module
        for module in model.modules()
        if hasattr(module, "set_experts_implementation")
        and getattr(module.config, "_experts_implementation", _EXPERTS) != _EXPERTS
    ]
    # Save all attributes: the setter of a configuration also sets nested configurations.
    before = [(vars(module.config), dict(vars(module.config))) for module in settable]
    note = (
        f'in the graph, experts run as with set_experts_implementation("{_EXPERTS}"): without '
        "branches, with the same results"
    )
    try:
        for module in settable:
            module.set_experts_implementation(_EXPERTS)
        # For a model without experts, the method sets nothing.
        now = (module.config._experts_implementation for module in settable)
        yield [note] if _EXPERTS in now else []
    finally:
        for attributes, values in before:
            attributes.clear()
            attributes.update(values)


# Settings of a model that may make it traceable, by the failure that they may avoid.
SWITCHES: tuple[tuple[type[TraceError], Switch], ...] = (
    (UnknownType, uncached),
    (Inexpressible, batched_experts),
)


def explained_failure(model: nn.Module, error: Exception, call: Callable[[], object]) -> TraceError:
    """Return an error that explains where and why ``torch.export`` failed.

    ``call`` runs forward on the example inputs without tracing.
    """
    text, line = f"{type(error).__name__} {error}", place_of(error)
    where = f"{line[0]}:{line[1]} in {line[2]}" if line else definition_of(type(model).forward)
    code = linecache.getline(line[0], line[1]).strip() if line else ""
    kind: type[TraceError] = TraceError
    # First, since a packed sequence may fail in any operation of its layer.
    if _packs(error):
        reason = (
            "it runs over a packed sequence, and a graph cannot express the batch size of each step"
        )
        hint = (
            "pass the padded sequence to the layer, and pick or mask its results by length "
            "(gather, torch.where)"
        )
    elif is_branch(error) and _validates(error):
        kind, reason = Inexpressible, "a distribution checks the values of its arguments"
        hint = _VALIDATED
    elif is_branch(error):
        kind, reason = Inexpressible, "it branches on the values of a tensor"
        code = code or first_line(error)
        hint = _CAUSAL if _compares_masks(error) else _BRANCH
    else:
        reason = first_line(error)
        hint = _refused(call, _operation(error))
        for pattern, why, remedy in _REASONS:
            if re.search(pattern, text):
                kind = UnknownType if pattern is _UNKNOWN else TraceError
                reason, hint = f"{why} ({reason})", remedy
                break
    message = f"{type(model).__name__} cannot be captured: {reason}"
    return kind(message, where=where, found=code or None, hint=hint)


def _refused(call: Callable[[], object], operation: str) -> str:
    """Return a hint for other failures: forward itself fails, or only torch.export."""
    try:
        call()
    except Exception:  # whatever forward raises
        return "pass example inputs that forward accepts without tracing"
    what = operation or "this line"
    return (
        f"forward accepts these inputs, but torch.export does not support {what}: compute it with "
        "other operators, or trace a submodule that does not use it"
    )
