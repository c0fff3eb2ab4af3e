"""ATen overloads by name: their arguments, defaults, and whether a graph may contain them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from archgraph.errors import GraphError
from archgraph.graph.ir import Atom, Value, show

# Operators that read or write anything except their arguments; never accepted.
_UNSAFE = frozenset({"from_file", "set_", "set_data", "_debug_has_internal_overlap"})
# Numbers that a graph may omit, by operator: a norm without momentum averages over all its batches,
# and its layer counts them.
LEFT_OUT: Mapping[str, str] = MappingProxyType({"aten.batch_norm": "momentum"})
# Arguments about where or how to store, not what to compute: they are never part of a graph.
STORAGE_ARGS = frozenset(
    {"device", "layout", "pin_memory", "cudnn_enable", "cudnn_enabled", "non_blocking"}
)


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of an operator's schema."""

    name: str
    type: str
    required: bool
    default: Value
    keyword_only: bool


@dataclass(frozen=True)
class Schema:
    """An ATen overload and its arguments.

    Attributes:
        op: Name in graphs, e.g. ``aten.add.Tensor``.
        overload: The overload to call.
        args: Arguments in order, including those in ``STORAGE_ARGS`` (``device``, ``layout``).
        returns: Number of results; -1 for a list.
    """

    op: str
    overload: torch._ops.OpOverload
    args: tuple[Argument, ...]
    returns: int

    @functools.cached_property
    def by_name(self) -> dict[str, Argument]:
        """Dict from name to argument."""
        return {a.name: a for a in self.args}

    def call_args(self, values: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Convert a dict of arguments to the positional and keyword arguments of a call."""
        positional = [a for a in self.args if not a.keyword_only]
        # Up to the last one with a value, since those before it cannot be omitted.
        while positional and not (positional[-1].name in values or positional[-1].required):
            positional.pop()
        keyword = {a.name: values[a.name] for a in self.args if a.keyword_only and a.name in values}
        number = LEFT_OUT.get(self.op)
        if number is not None and values.get(number) is None:
            values = {**values, number: 0.0}  # no result depends on it
        # A required storage argument (batch_norm's cudnn_enabled) is a permission: grant it.
        return [
            values.get(a.name, True if a.name in STORAGE_ARGS else a.default) for a in positional
        ], keyword

    @functools.cached_property
    def makes_tensor(self) -> bool:
        """Whether the operator creates a tensor and has an argument ``device`` (``zeros``)."""
        return "device" in self.by_name and "Tensor" not in (self.args[0].type if self.args else "")


def op_name(overload: torch._ops.OpOverload) -> str:
    """Return the graph name of an overload.

    >>> op_name(torch.ops.aten.relu.default), op_name(torch.ops.aten.add.Tensor)
    ('aten.relu', 'aten.add.Tensor')
    """
    namespace, _, packet = overload._schema.name.partition("::")
    name = overload._overloadname
    return f"{namespace}.{packet}" if name == "default" else f"{namespace}.{packet}.{name}"


@functools.cache
def op_schema(op: str) -> Schema:
    """Return the schema of an operator from its name in graphs.

    Raises:
        GraphError: If this is not the name of a functional ATen operator.
    """
    parts = op.split(".")
    overload = None
    if parts[0] == "aten" and len(parts) in (2, 3) and parts[1] not in _UNSAFE:
        packet = getattr(torch.ops.aten, parts[1], None)
        overload = getattr(packet, parts[2] if len(parts) == 3 else "default", None)
    if not isinstance(overload, torch._ops.OpOverload):
        raise GraphError(
            "unknown operator",
            found=op,
            expected="an ATen overload such as aten.conv2d or aten.add.Tensor",
        )
    if overload._schema.is_mutable:
        raise GraphError("operator changes its arguments in place", found=op)
    args = tuple(
        Argument(
            a.name,
            str(a.type),
            not a.has_default_value(),
            to_value(a.default_value, str(a.type)) if a.has_default_value() else None,
            bool(a.kwarg_only),
        )
        for a in overload._schema.arguments
    )
    returns = overload._schema.returns
    count = -1 if len(returns) == 1 and str(returns[0].type).startswith("List") else len(returns)
    return Schema(op, overload, args, count)


def to_value(value: object, type_: str = "") -> Value:
    """Convert an argument of torch to a value of a graph.

    Lists become tuples, and enumerations such as dtypes become :class:`Atom`.

    >>> to_value([1, 2]), to_value(torch.float32), to_value(1, "float")
    ((1, 2), Atom(name='float32'), 1.0)
    """
    match value:
        case list() | tuple():
            return tuple(to_value(v, "float" if "float" in type_ else "") for v in value)
        case torch.dtype() | torch.memory_format() | torch.layout():
            return Atom(str(value).removeprefix("torch."))
        # A bool is also an int, and has to remain a bool.
        case None | bool() | str() | float():
            return value
        case int():
            floating = type_.startswith(("float", "Optional[float]", "List[float]"))
            return float(value) if floating else value
    if "dtype" in type_ or "ScalarType" in type_:
        return None
    raise GraphError("argument cannot be part of a graph", found=repr(value))


def from_atom(atom: Atom) -> torch.dtype | torch.memory_format | torch.layout:
    """Return the torch enumeration that an ``Atom`` names.

    >>> from_atom(Atom("int64"))
    torch.int64
    """
    value = getattr(torch, atom.name, None)
    if not isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
        raise GraphError("unknown torch enumeration", found=f":{atom.name}", expected=":float32")
    return value


@functools.cache
def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype with this name.

    Raises:
        GraphError: If torch does not have this dtype.

    >>> torch_dtype("float32")
    torch.float32
    """
    value = from_atom(Atom(name))
    if not isinstance(value, torch.dtype):
        raise GraphError("unknown dtype", found=name)
    return value


def canonical_args(op: str, args: Mapping[str, Value]) -> tuple[tuple[str, Value], ...]:
    """Return the arguments in schema order, without those that equal their defaults.

    Raises:
        GraphError: If an argument is missing, or if the operator does not have an argument.
    """
    schema = op_schema(op)
    if unknown := sorted(args.keys() - schema.by_name.keys()):
        raise GraphError(f"{op} has no argument {unknown[0]!r}", expected=", ".join(schema.by_name))
    result = []
    for argument in schema.args:
        if argument.name in STORAGE_ARGS:
            continue
        if argument.name not in args:
            if argument.required:
                raise GraphError(f"{op} needs argument {argument.name!r}", found=sorted(args))
            continue
        value = args[argument.name]
        if argument.type in ("float", "Optional[float]") and type(value) is int:
            value = float(value)
        # Compared as printed: True, 1 and 1.0 compare equal, but are different arguments.
        if argument.required or show(value) != show(argument.default):
            result.append((argument.name, value))
    return tuple(result)
