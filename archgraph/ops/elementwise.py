"""What operators that work position by position share: their axes, types, and value at zero."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from archgraph.graph.ir import Atom, Leaf, Ref, TensorType, Value, in_mode
from archgraph.ops import zeros
from archgraph.ops.equations import Dims, Dirt, Equations
from archgraph.ops.operator import Operator
from archgraph.ops.schema import from_atom, schema, torch_dtype
from archgraph.ops.types import Args, broadcast, certain, plain_value, real


def elementwise(eq: Equations) -> list[Dims]:
    """Operands agree up to broadcasting; so do several results."""
    return [eq.broadcast(eq.layouts())] * len(eq.node.types)


def same_layout(eq: Equations) -> list[Dims]:
    """The result has the first operand's layout (a second operand only gives dtype or values)."""
    return [eq.of(eq.node.args[0][1])] * len(eq.node.types)


_GELU_MODES = ("none", "tanh")  # the only texts that a pointwise operator takes


def elementwise_type(args: Args) -> TensorType:
    """Real tensors of one element type, and numbers."""
    tensors = real(*(v for v in args.values() if isinstance(v, TensorType)))
    for value in args.values():
        plain = plain_value(value)
        number = isinstance(plain, (bool, int, float)) or plain in _GELU_MODES
        certain(isinstance(value, TensorType) or number)
    return TensorType(broadcast(t.shape for t in tensors), tensors[0].dtype)


# -- the value at zero ----------------------------------------------------------------------------


def value_at_zero(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Position by position: zero where all operands are, if the function is zero at zero."""
    operands = eq.operands()
    at_zero = _at_zero(eq)
    if at_zero == 0:
        dirt = tuple(d for v in operands for d in zeros.stretched(eq, v, results[0]))
        return [dirt] * len(results)
    if not math.isfinite(at_zero):
        _pole(eq, operands, results[0])
    return zeros.never(eq, results)


def _pole(eq: Equations, operands: Sequence[Value], dims: Dims) -> None:
    """The operator has no value where operands are zero: no law can hold for such an axis."""
    dirty = eq.axes_in([d for operand in operands for d in zeros.stretched(eq, operand, dims)])
    for var in eq.axes_in(dims) if operands else ():
        if var not in dirty:
            eq.span(var, f"{eq.node.op.split('.')[1]} of zero")


_SMALL, _NEGLIGIBLE = 1e-100, 1e-20


def _at_zero(eq: Equations) -> float:
    """What the current operator gives where all its tensor operands are zero."""
    constants: list[tuple[str, Value]] = []
    for name, given in eq.node.args:
        given = in_mode(given, False)
        if isinstance(given, (Ref, Leaf)):
            constants.append((name, Atom(eq.operand_dtype(given))))
        elif isinstance(given, (bool, int, float, str, Atom)) or given is None:
            constants.append((name, (given,)))
        else:
            return 1.0
    try:
        return _evaluate(eq.node.op, tuple(constants), str(constants))
    except (RuntimeError, TypeError, ValueError, IndexError):
        return 1.0  # not a function of single numbers: nothing is known


@functools.lru_cache(maxsize=4096)
def _evaluate(op: str, constants: tuple[tuple[str, Value], ...], key: str) -> float:
    """The operator at zero and next to it; ``key`` tells 1, 1.0 and True apart, which are equal."""
    facts = schema(op)
    if torch.Tag.nondeterministic_seeded in facts.overload.tags:
        return 1.0
    worst = 0.0
    for at in (0.0, _SMALL, -_SMALL):
        given: dict[str, object] = {}
        for name, item in constants:
            if isinstance(item, Atom):
                dtype = torch_dtype(item.name)
                real, complex_ = dtype.is_floating_point, dtype.is_complex
                wide = torch.float64 if real else torch.complex128 if complex_ else dtype
                zero = torch.zeros(1, dtype=wide)
                if real or complex_:
                    zero += at
                given[name] = zero
            else:
                assert isinstance(item, tuple)
                given[name] = from_atom(item[0]) if isinstance(item[0], Atom) else item[0]
        positional, keyword = facts.call_args(given)
        with torch.no_grad():
            found = facts.overload(*positional, **keyword)
        if not isinstance(found, torch.Tensor) or found.numel() != 1:
            return 1.0
        size = float(found.to(torch.complex128).abs())
        if not math.isnan(size):
            worst = max(worst, size)
        elif at == 0:  # next to it: on the side that the function is not made for
            return math.inf
    return 0.0 if worst <= _NEGLIGIBLE else worst


# ATen's pointwise operators need no row of their own: PyTorch's tag gives them this one.
PLAIN = Operator(elementwise, value_at_zero, pointwise=True)
REAL = replace(PLAIN, type=elementwise_type)
# A curve over one operand; further operands do not broadcast with it.
CURVE = replace(PLAIN, rule=same_layout)
# The operand's numbers, or some of them.
COPY = replace(CURVE, zero=zeros.first)
