"""Check the arguments of a built module against the input types of its graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from archgraph.errors import GraphError
from archgraph.graph.ir import (
    BATCH,
    BATCH_WORD,
    ArchGraph,
    Polynomial,
    Record,
    Ref,
    TensorType,
    Value,
)
from archgraph.graph.sizes import OpenSize, open_sizes, single_name
from archgraph.ops.schema import torch_dtype

_Steps = tuple[int | str, ...]  # keys from an argument to a tensor inside it


@dataclass(frozen=True)
class TensorInput:
    """One tensor that forward takes.

    Attributes:
        label: Name of the tensor in messages.
        index: Index of the argument that is or contains the tensor.
        key: Name of this argument.
        steps: Keys that lead to the tensor inside the argument.
        type: Type of the tensor in the graph.
        dtype: The dtype of this type, as a ``torch.dtype``.
    """

    label: str
    index: int
    key: str
    steps: _Steps
    type: TensorType
    dtype: torch.dtype

    def fits(self, value: object, dtype: torch.dtype) -> bool:
        """Return whether a value is a tensor with the expected shape and the given dtype."""
        return (
            isinstance(value, Tensor)
            and value.dtype is dtype
            and value.dim() == len(self.type.shape)
            and not self.other_sizes(value)
        )

    def other_sizes(self, value: Tensor) -> list[int]:
        """Return the dimensions in which a tensor's size differs from the expected fixed size."""
        sizes = enumerate(zip(self.type.shape, value.shape, strict=False))
        return [dim for dim, (size, other) in sizes if isinstance(size, int) and size != other]

    def refusal(self, value: object, dtype: torch.dtype) -> GraphError:
        """Return the error for a value that does not fit."""
        message = "does not fit this module"
        expected = str(TensorType(self.type.shape, _name(dtype)))
        actual, rank = type(value).__name__, len(self.type.shape)
        if not isinstance(value, Tensor):
            message, hint = "is not a tensor", _remedy(value, _name(dtype))
        else:
            actual = f"{_name(value.dtype)}[{', '.join(map(str, value.shape))}]"
            others = self.other_sizes(value)
            if value.dim() == rank - 1 and self.type.shape[:1] == (BATCH,):
                hint = "the batch dimension seems to be missing: pass x[None]"
            elif value.dim() != rank or others:
                hint = "pass this shape, or trace the model on an example of the other shape"
                if others == [0]:
                    hint += "; the graph's notes say why the size of the batch is fixed"
            else:
                hint = f"convert it: .to(torch.{_name(dtype)})"
        return GraphError(
            message, where=f"input {self.label}", found=actual, expected=expected, hint=hint
        )


@dataclass(frozen=True)
class InputTypes:
    """The tensors that forward takes.

    A floating-point parameter or buffer is recorded as well, because it shows the current dtype and
    device of a module.

    Attributes:
        tensors: All tensors that forward takes, in order.
        sizes: Dict from name to dynamic size.
        leaf: Path of the floating-point parameter or buffer; empty if there is none.
        dtype: The dtype of this parameter or buffer in the graph.
    """

    tensors: tuple[TensorInput, ...]
    sizes: Mapping[str, OpenSize]
    leaf: tuple[str, ...]
    dtype: torch.dtype | None

    @staticmethod
    def of(graph: ArchGraph) -> InputTypes:
        """Return the input types of a graph."""
        tensors = []
        for index, (key, value) in enumerate(graph.inputs):
            for steps, name in tensors_in(value, ()):
                node = graph.node[name]
                label = key + "".join(f"[{step!r}]" for step in steps)
                type_, dtype = TensorType(node.shape, node.dtype), torch_dtype(node.dtype)
                tensors.append(TensorInput(label, index, key, steps, type_, dtype))
        leaves = ((param.name, torch_dtype(param.dtype)) for param in graph.params)
        name, floating = next((leaf for leaf in leaves if leaf[1].is_floating_point), ("", None))
        return InputTypes(
            tuple(tensors), open_sizes(graph), tuple(name.split(".")) if name else (), floating
        )

    def check(
        self, module: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> None:
        """Check that the inputs have the types of the graph. Missing inputs are not reported here.

        1. If the module was converted to another dtype, its inputs must have this dtype.
        2. All tensors must be on the module's device, unless its weights are offloaded (on meta).
        3. A dynamic size must have the same value in all inputs, in the range that the graph
           allows.

        Raises:
            GraphError: If an input does not match. The message names it and the expected type.
        """
        # Tracing a module records comparisons of sizes, which would fix them in the trace.
        if torch.jit.is_tracing():  # type: ignore[attr-defined]  # public in its documentation
            return
        leaf = self._leaf_of(module)
        # Dict from dynamic size to its value and the input that has it.
        values: dict[str, tuple[int, str]] = {}
        later: list[tuple[TensorInput, int, Polynomial, int]] = []
        for item in self.tensors:
            if item.index >= len(args) and item.key not in kwargs:
                continue
            value = args[item.index] if item.index < len(args) else kwargs[item.key]
            for step in item.steps:
                value = _inside(value, step, item.label)
            if isinstance(value, fx.Proxy):  # symbolic tracing has no types
                return
            shape = self._checked(item, value, leaf).shape  # 1, 2
            for dim, (size, actual) in enumerate(zip(item.type.shape, shape, strict=True)):  # 3
                if name := single_name(size):
                    self._check_size(name, actual, item.label, values)
                elif isinstance(size, Polynomial):
                    later.append((item, dim, size, actual))
        for item, dim, size, actual in later:
            expected = size.value({name: value for name, (value, _) in values.items()})
            if actual != expected:
                raise GraphError(
                    f"dimension {dim} does not have the size {size}",
                    where=f"input {item.label}",
                    found=actual,
                    expected=expected,
                )

    def _checked(self, item: TensorInput, value: object, leaf: Tensor | None) -> Tensor:
        """Return a value after checking that it has the module's current dtype and device."""
        dtype = leaf.dtype if leaf is not None and item.dtype is self.dtype else item.dtype
        if not item.fits(value, dtype):
            raise item.refusal(value, dtype)
        assert isinstance(value, Tensor)
        # Weights on meta are offloaded: a hook loads them when their layer runs.
        if leaf is not None and not leaf.is_meta and value.device != leaf.device:
            raise GraphError(
                f"is on {value.device} and the module on {leaf.device}",
                where=f"input {item.label}",
                hint=f"move it: .to({str(leaf.device)!r})",
            )
        return value

    def _check_size(
        self, name: str, value: int, label: str, values: dict[str, tuple[int, str]]
    ) -> None:
        """Record a dynamic size; raise if it differs from an earlier value or is out of range."""
        word = f"{name} size" if name == BATCH_WORD else name
        before, first = values.setdefault(name, (value, label))
        if value != before:
            raise GraphError(
                f"has a different {word} than input {first}",
                where=f"input {label}",
                found=value,
                expected=before,
            )
        size = self.sizes[name]
        least = size.low if name == BATCH_WORD else max(size.low, 1)
        if not least <= value <= size.high:
            fix = "split the batch, or trace" if name == BATCH_WORD else "trace"
            raise GraphError(
                f"the graph is not valid for this {word}",
                where=f"input {label}",
                found=value,
                expected=size.range,
                hint=f"{fix} the model on an example of this size",
            )

    def _leaf_of(self, module: nn.Module) -> Tensor | None:
        """Return the tensor at :attr:`leaf` in a module; None if the module has no such tensor."""
        # Read the tables of the module, because an attribute may be computed (parametrisations).
        *path, name = self.leaf or ("",)
        for part in path:
            if (inside := module._modules.get(part)) is None:
                return None
            module = inside
        return (module._parameters | module._buffers).get(name)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def checked(forward: Callable[..., object], types: InputTypes) -> Callable[..., object]:
    """Wrap the network's forward with a check of its inputs."""

    # Check in forward, because the user's hooks may convert the inputs before.
    @functools.wraps(forward)
    def compared(self: nn.Module, *args: object, **kwargs: object) -> object:
        types.check(self, args, kwargs)
        return forward(self, *args, **kwargs)

    return compared


def tensors_in(value: Value, steps: _Steps) -> list[tuple[_Steps, str]]:
    """Return pairs of the keys that lead to a tensor inside an argument, and the tensor's name."""
    match value:
        case Ref(name):
            return [(steps, name)]
        case tuple():
            return [t for i, v in enumerate(value) for t in tensors_in(v, (*steps, i))]
        case Record():
            return [t for k, v in value.fields for t in tensors_in(v, (*steps, k))]
        case _:
            return []


def _inside(value: object, step: int | str, label: str) -> object:
    try:
        if isinstance(step, str) and not isinstance(value, Mapping):
            return getattr(value, step)
        return value[step]  # type: ignore[index]  # what has no items is refused below
    except (AttributeError, LookupError, TypeError):
        raise GraphError(
            "is missing",
            where=f"input {label}",
            found=f"a {type(value).__name__} without {step!r}",
            hint="pass tensors in the same structure as in the example that was traced",
        ) from None


def _remedy(value: object, dtype: str) -> str:
    """Return a hint for converting a value to the required tensor."""
    if value is None:
        return "to call it without this input, trace the model without it"
    if isinstance(value, Mapping):
        return "pass each tensor by name: module(**inputs)"
    if isinstance(value, list | tuple) and any(isinstance(v, Tensor) for v in value):
        return "pass each tensor as an argument: module(*inputs)"
    return f"convert it: torch.as_tensor(value, dtype=torch.{dtype})"
