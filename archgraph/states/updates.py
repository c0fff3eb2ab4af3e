"""Check clients' updates: names, shapes, dtypes, finite values, and options for the average."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import Parameter

from archgraph.errors import RejectedUpdate
from archgraph.graph.ir import ArchGraph, per_graph
from archgraph.ops.table import statistics
from archgraph.states.state import (
    Signature,
    Slot,
    State,
    accumulator,
    equal,
    signature,
    widened,
)
from archgraph.states.transfer import Transfer

# Bound on values, weights and scales, so that the sums of a round stay within single precision.
LARGEST = 2.0**80


class Update(NamedTuple):
    """A client's state after training, with the client's weight and masks for the average.

    Attributes:
        transfer: Linear map from the global state to the client's state.
        state: The client's state after training.
        weight: Weight of this client, relative to the weights of other clients.
        scales: Dict from parameter name to a factor. The client's values of this parameter are
            multiplied by the factor. The sum of weights, by which the mean is divided, does not
            depend on the factor.
        rows: Dict from parameter name to a vector with one number per row of the parameter: 1 if
            the row is averaged, else 0.
        unmerged: Names of the client's parameters and buffers that are not averaged. They may be
            missing in the state.
    """

    transfer: Transfer
    state: State
    weight: float = 1.0
    scales: Mapping[str, float] = MappingProxyType({})
    rows: Mapping[str, Tensor] = MappingProxyType({})
    unmerged: Collection[str] = ()


class ExpectedEntry(NamedTuple):
    """A tensor that an update must have, with its shape and dtype as torch objects."""

    slot: Slot
    name: str
    shape: torch.Size
    dtype: torch.dtype
    averaged: bool


def expected_entries(graph: ArchGraph | Signature) -> tuple[ExpectedEntry, ...]:
    """Return the tensors that an update of this architecture must have, in order."""
    return _of_graph(graph) if isinstance(graph, ArchGraph) else _of_slots(graph)


@per_graph
def _of_graph(graph: ArchGraph) -> tuple[ExpectedEntry, ...]:
    return _of_slots(signature(graph))


@functools.lru_cache(maxsize=256)
def _of_slots(slots: Signature) -> tuple[ExpectedEntry, ...]:
    return tuple(
        ExpectedEntry(s, s.name, torch.Size(s.shape), s.torch_dtype, s.averaged) for s in slots
    )


@torch.no_grad()
def unsummable(graph: ArchGraph | Signature, state: State) -> dict[str, Tensor]:
    """Return tensors that cannot be summed and never change, such as attention masks of −∞.

    These tensors are neither trained nor written by forward, and have infinite values or values of
    ``LARGEST`` or more. For a signature, the result is empty, because a signature does not show how
    a tensor is used.

    Args:
        graph: The architecture, or its signature.
        state: State of the architecture; tensors may be missing.

    Example:
        >>> from torch import nn, zeros
        >>> from archgraph.capture.trace import trace
        >>> class Causal(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.register_buffer("mask", torch.full((2, 2), -math.inf).triu(1))
        ...
        ...     def forward(self, x):
        ...         return x + self.mask
        >>> list(unsummable(*trace(Causal(), zeros(3, 2, 2))))
        ['mask']
    """
    names = _unchanged(graph) if isinstance(graph, ArchGraph) else ()
    here = {name: state[name] for name in names if name in state}
    return {name: v for name, v in here.items() if not bool((widened(v).abs() < LARGEST).all())}


@per_graph
def _unchanged(graph: ArchGraph) -> tuple[str, ...]:
    """Return the floating-point leaves that neither training nor forward changes."""
    written = statistics(graph)
    leaves = {p.name for p in graph.params if not p.trainable and p.name not in written}
    types = {slot.name: slot.torch_dtype for slot in signature(graph) if slot.name in leaves}
    return tuple(n for n, type_ in types.items() if type_.is_floating_point)


def check_update(
    graph: ArchGraph | Signature,
    state: State,
    *,
    finite: bool = True,
    optional: Collection[str] = (),
    fixed: State = MappingProxyType({}),
) -> None:
    """Check that a state matches this architecture and can be averaged.

    Args:
        graph: The architecture, or its signature.
        state: The update.
        finite: If True, also check that no value is NaN, infinite or too large to be summed.
        optional: Names of tensors that may be missing, such as those that stay with the client.
        fixed: Result of :func:`unsummable` on the previous state. Tensors that are still equal to
            these are not checked.

    Raises:
        RejectedUpdate: If a tensor is missing or unknown, has a wrong type, shape or dtype, or has
            a value that is NaN, infinite, or 1.2e24 (2⁸⁰) or more. The message names the tensor.

    >>> slots = (Slot("w", (2,), "float32"),)
    >>> check_update(slots, {"w": torch.tensor([1.0, float("nan")])})
    Traceback (most recent call last):
    archgraph.errors.RejectedUpdate: w: not finite; found 1 NaN and 0 infinite of 2 values
    """
    if not isinstance(state, Mapping):
        raise RejectedUpdate("not a mapping of names to tensors", found=type(state).__name__)
    expected = expected_entries(graph)
    if optional:
        expected = tuple(w for w in expected if w.name in state or w.name not in optional)
    for want in expected:
        value = state.get(want.name)
        if (
            type(value) is not Tensor
            or value.shape != want.shape
            or value.dtype != want.dtype
            or value.layout is not torch.strided
            or value.is_nested
            or value.is_quantized
            or value.is_meta
        ):  # runs for every entry of every client, so the details are worked out only here
            _check_entry(want, value)
    _check_number(expected, state)
    if finite:
        _check_values(expected, state, fixed)


def _check_number(expected: Collection[ExpectedEntry], state: State) -> None:
    """Check that a state has no unknown entries."""
    if len(state) != len(expected):
        further = sorted(map(str, set(state) - {want.name for want in expected}))
        raise RejectedUpdate("unknown entry", where=further[0], found=f"{len(further)} more")


# Other subclasses of Tensor define their own computations.
_ORDINARY: tuple[type, ...] = (Tensor, Parameter)


def foreign(value: object) -> str | None:
    """Describe a value if it is not an ordinary dense tensor; None if it is.

    >>> foreign(torch.zeros(2)), foreign([0.0]), foreign(torch.eye(2).to_sparse())
    (None, 'list', 'torch.sparse_coo tensor on cpu')
    """
    if type(value) not in _ORDINARY:
        return type(value).__name__
    tensor = cast(Tensor, value)
    if tensor.is_nested or tensor.is_quantized:
        return "nested tensor" if tensor.is_nested else "quantized tensor"
    if tensor.layout != torch.strided or tensor.is_meta:
        return f"{tensor.layout} tensor on {tensor.device}"
    return None


def finite(values: Tensor) -> bool:
    """Return whether all values are finite.

    >>> finite(torch.tensor([3e38, 3e38])), finite(torch.tensor([float("inf"), -float("inf")]))
    (True, False)
    """
    values = widened(values)
    return bool(values.sum().isfinite()) or bool(values.isfinite().all())


def all_finite(tensors: Collection[Tensor]) -> bool:
    """Return whether all values of tensors on one device are finite, with one synchronisation.

    >>> all_finite([torch.ones(2), torch.tensor(float("nan"))]), all_finite([])
    (False, True)
    """
    if not tensors:
        return True
    norms = torch._foreach_norm([widened(values.detach()) for values in tensors])
    return math.isfinite(torch.stack(norms).sum()) or all(map(finite, tensors))


def _check_entry(want: ExpectedEntry, value: Tensor | None) -> None:
    if value is None:
        raise RejectedUpdate("missing entry", where=want.name, expected=str(want.slot))
    if (kind := foreign(value)) is not None:
        raise RejectedUpdate("not a dense tensor", where=want.name, found=kind)
    dtype = str(value.dtype).removeprefix("torch.")
    facts = ("shape", [*value.shape], [*want.shape]), ("dtype", dtype, want.slot.dtype)
    for fact, actual, expected in facts:
        if actual != expected:
            raise RejectedUpdate(f"wrong {fact}", where=want.name, found=actual, expected=expected)


@torch.no_grad()
def _check_values(expected: Iterable[ExpectedEntry], state: State, fixed: State) -> None:
    values: dict[str, Tensor] = {}
    for want in expected:
        value, before = state[want.name], fixed.get(want.name)
        if want.averaged and (before is None or not equal(value, before.to(value.device))):
            values[want.name] = widened(value)
    # A single NaN or infinity makes the norm NaN or infinite. So a small norm proves in one pass,
    # without writing, that all values are finite and no larger. Otherwise each value is checked,
    # since the norm may overflow.
    narrow = [value for value in values.values() if value.dtype == torch.float32]
    others = [value for value in values.values() if value.dtype != torch.float32]
    norms = [*torch._foreach_norm(narrow)] if narrow else []
    norms += [torch.linalg.vector_norm(v, dtype=accumulator(v.dtype)) for v in others]
    if norms and not bool((torch.stack(norms) < LARGEST).all()):  # synchronises once
        for name, value in values.items():
            _check_value(name, value)


def _check_value(name: str, value: Tensor) -> None:
    if not value.numel():
        return
    wrong, infinite = int(value.isnan().sum()), int(value.isinf().sum())
    if wrong or infinite:
        raise RejectedUpdate(
            "not finite",
            where=name,
            found=f"{wrong} NaN and {infinite} infinite of {value.numel()} values",
        )
    if (largest := value.abs().max().item()) >= LARGEST:
        raise RejectedUpdate(
            "too large to be averaged",
            where=name,
            found=f"a value of {largest:.3g}",
            hint="values must be below 2**80, 1.2e24: training has diverged, or the client is "
            "faulty",
        )


def check_options(update: Update) -> None:
    """Check the options of an update.

    1. The weight is a number between 2⁻⁸⁰ and 2⁸⁰.
    2. ``scales``, ``rows`` and ``unmerged`` contain only names of the client's state.
    3. Scales are numbers below 2⁸⁰, so that products with values do not overflow.
    4. Each mask in ``rows`` has a 0 or 1 for each row of its tensor.

    Raises:
        RejectedUpdate: If the weight, a scale or a mask is invalid, or a name does not exist.
    """
    if not (_number(update.weight) and 1 / LARGEST < update.weight < LARGEST):  # 1
        raise RejectedUpdate("weight is not between 2**-80 and 2**80", found=update.weight)
    options = (("scale", update.scales), ("row mask", update.rows), ("unmerged", update.unmerged))
    for kind, names in options:  # 2
        for name in names:
            if name not in update.transfer.entries:
                raise RejectedUpdate(f"{kind} of an unknown entry", where=name)
    for name, scale in update.scales.items():  # 3
        if not (_number(scale) and abs(scale) < LARGEST):
            raise RejectedUpdate("scale is not a number below 2**80", where=name, found=scale)
    if update.rows:  # 4
        _check_rows(update)


def _check_rows(update: Update) -> None:
    shapes = {slot.name: slot.shape for slot in update.transfer.target}
    for name, mask in update.rows.items():
        if (other := foreign(mask)) is not None:
            raise RejectedUpdate("row mask is not a dense tensor", where=name, found=other)
        actual, expected = list(mask.shape), list(shapes[name][:1])
        if not expected or actual != expected:
            raise RejectedUpdate(
                "row mask has the wrong length", where=name, found=actual, expected=expected
            )
        if not ((mask == 0) | (mask == 1)).all():
            raise RejectedUpdate("row mask has values other than 0 and 1", where=name)


def _number(value: float) -> bool:
    """Return whether a value is a number that is finite as a float."""
    try:
        return math.isfinite(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # not a number
        return False
