"""The state of an architecture: a dict from name to tensor, and the signature that lists it.

A state contains a tied tensor only once, although PyTorch's ``state_dict`` lists it under several
names. Otherwise it would count twice in sums, norms and distances, and a client could send two
values for one weight. ``ag.state_dict`` adds the other names.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from archgraph.graph.ir import ArchGraph, Role, per_graph

#: Tensors by the names of an architecture's parameters and buffers, as in a state dict.
State: TypeAlias = Mapping[str, Tensor]


class Slot(NamedTuple):
    """Name, shape, dtype and role of one tensor (parameter or buffer) of a state."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Role = "parameter"

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as a ``torch.dtype``."""
        return cast(torch.dtype, getattr(torch, self.dtype))

    @property
    def averaged(self) -> bool:
        """Whether values of this dtype can be averaged: true except for integers and bools."""
        return self.torch_dtype.is_floating_point or self.torch_dtype.is_complex


Signature: TypeAlias = tuple[Slot, ...]


@per_graph
def _signature(graph: ArchGraph) -> Signature:
    return tuple(
        Slot(p.name, p.shape, p.dtype, p.role) for p in graph.params if p.role != "constant"
    )


def signature(graph: ArchGraph | Signature) -> Signature:
    """Return names, shapes, dtypes and roles of an architecture's state, in the state's order.

    >>> from archgraph.graph.ir import ArchGraph, Param, TensorType
    >>> fc = Param("fc.weight", TensorType((10, 4), "float32"))
    >>> print(*signature(ArchGraph(inputs=(), params=(fc,), nodes=(), outputs=())))
    fc.weight: float32[10, 4]
    """
    return _signature(graph) if isinstance(graph, ArchGraph) else graph


def first_difference(actual: Signature, expected: Signature) -> dict[str, Any]:
    """Return the first difference of two signatures as arguments of an error; empty if equal."""
    for a, b in itertools.zip_longest(actual, expected):
        if a != b:
            return {"where": (a or b).name, "found": a or "nothing", "expected": b or "nothing"}
    return {}


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to sum values in: float32 for half precision, otherwise the dtype itself.

    >>> accumulator(torch.bfloat16), accumulator(torch.float64)
    (torch.float32, torch.float64)
    """
    short = dtype.is_floating_point and dtype.itemsize < 4
    return torch.float32 if short else dtype


def widened(values: Tensor) -> Tensor:
    """Return values in a dtype that torch computes in: 8-bit floats as float32, others unchanged.

    >>> widened(torch.ones(2).to(torch.float8_e4m3fn)) + 1
    tensor([2., 2.])
    """
    eight_bits = values.dtype.itemsize == 1 and values.dtype.is_floating_point
    return values.float() if eight_bits else values


def equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same shape and values, whatever their dtype.

    >>> equal(torch.ones(2).to(torch.float8_e5m2), torch.ones(2).to(torch.float8_e5m2))
    True
    """
    return torch.equal(widened(one), widened(other))


def missing(name: str, state: State) -> dict[str, Any]:
    """Return arguments of an error for a missing tensor: the existing tensors, and a hint.

    >>> missing("fc.bias", {"module.fc.bias": torch.zeros(2)})["hint"]
    "remove the prefix 'module.', or read the state with ag.state_of"
    """
    if name in state:
        return {"found": type(state[name]).__name__, "hint": "convert it: torch.as_tensor"}
    for key, value in state.items():
        if key.endswith(f".{name}"):  # of a wrapper: DataParallel, torch.compile
            prefix = key.removesuffix(name)
            hint = f"remove the prefix {prefix!r}, or read the state with ag.state_of"
            return {"found": key, "hint": hint}
        if isinstance(value, Mapping):
            hint = f"pass the state inside it: checkpoint[{key!r}]"
            return {"found": f"a mapping {key!r}", "hint": hint}
    hint = "ag.trace, ag.state_of and transfer.pull return complete states"
    return {"found": None, "hint": hint}
