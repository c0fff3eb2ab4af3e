"""Type inference with symbolic sizes, used if sizes other than the batch are open."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import sympy  # type: ignore[import-untyped]  # no stubs exist
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy import functions

from archgraph.errors import GraphError
from archgraph.graph.polynomial import Polynomial, Size, as_size, floor_divide
from archgraph.graph.values import BATCH_WORD, TensorType
from archgraph.ops.kernels import run_kernel
from archgraph.ops.types import ResultType

_QUOTIENTS = (functions.FloorDiv, functions.CleanDiv)
_REMAINDERS = (functions.Mod, functions.PythonMod, sympy.Mod)


def size_of(expression: sympy.Expr, names: Mapping[str, str]) -> Size:
    """Convert an expression of symbols to a size.

    Args:
        expression: The expression.
        names: Dict from symbols to the names of open sizes.

    Raises:
        ValueError: If the expression is not built from sums, products and quotients of open sizes.

    Example:
        >>> a, b = sympy.symbols("a b")
        >>> size_of((2 * a + 2) * b, {"a": "length", "b": "batch"})
        2*batch*length + 2*batch
    """
    above, below = _fraction(expression, names)
    return floor_divide(as_size(above), as_size(below))


def _fraction(expression: sympy.Expr, names: Mapping[str, str]) -> tuple[Size, Size]:
    """Return numerator and denominator of an expression that may contain rational numbers."""
    match expression:
        case sympy.Rational():
            return int(expression.p), int(expression.q)
        case sympy.Symbol() if str(expression) in names:
            return Polynomial.of(names[str(expression)]), 1
        case sympy.Pow(args=(base, sympy.Integer() as power)):
            sides = _fraction(base, names)
            above, below = sides if power > 0 else sides[::-1]
            return math.prod([above] * abs(int(power))), math.prod([below] * abs(int(power)))
    parts = [_fraction(part, names) for part in expression.args]
    if isinstance(expression, sympy.Mul):
        return math.prod(above for above, _ in parts), math.prod(below for _, below in parts)
    if isinstance(expression, sympy.Add):
        total, below = parts[0]
        for above, divisor in parts[1:]:
            total, below = total * divisor + above * below, below * divisor
        return total, below
    if isinstance(expression, (*_QUOTIENTS, *_REMAINDERS)):
        (a, b), (c, d) = parts
        quotient = floor_divide(as_size(a * d), as_size(b * c))
        if isinstance(expression, _QUOTIENTS):
            return quotient, 1
        return a * d - c * b * quotient, b * d
    raise ValueError(str(expression))


def symbolic_type(
    op: str, args: tuple[tuple[str, object], ...], sizes: Mapping[str, int]
) -> ResultType:
    """Infer the type of an operator's result with its meta kernel on symbolic sizes.

    1. Replace each open size by a symbol. The symbol has the value of the example as a hint, with
       which the kernel evaluates conditions. Symbols with equal values get different hints.
    2. Convert the sizes of the result, which are expressions of symbols.
    3. If the kernel has replaced a symbol by a number or another symbol, the result does not hold
       for all values of the sizes.

    Raises:
        GraphError: If the arguments do not fit, or if they fit only for some values of the sizes.
        NotImplementedError: If the operator has no meta kernel.
    """
    env = ShapeEnv(duck_shape=False, specialize_zero_one=False)
    symbols: dict[str, torch.SymInt] = {}
    hints: dict[str, int] = {}
    for name, value in (*sizes.items(), (BATCH_WORD, 1009)):  # 1.
        while value in hints.values():
            value -= 1
        hints[name] = value
        source = ConstantSource(name)
        symbol = env.create_symbol(value, source, DimDynamic.DYNAMIC, None)
        node = env.create_symintnode(symbol, hint=value, source=source)
        assert isinstance(node, torch.SymInt)
        symbols[name] = node
    names = {str(node.node.expr): name for name, node in symbols.items()}

    def symbol_of(size: Size) -> int | torch.SymInt:
        if not isinstance(size, Polynomial):
            return size
        return size.value(symbols)  # type: ignore[arg-type]  # symbols count as numbers

    # Composite operators run their decompositions in Python, which preserves symbols.
    with enable_python_dispatcher(), FakeTensorMode(shape_env=env):
        result = run_kernel(op, args, symbol_of)
    for symbol, other in env.replacements.items():  # 3.
        if str(symbol) in names:
            other_name = names.get(str(other), str(other))
            raise GraphError(f"{op} does not fit all {names[str(symbol)]}", found=other_name)

    def type_(value: object) -> TensorType:
        if not isinstance(value, torch.Tensor):
            raise GraphError("results are not tensors", found=type(value).__name__)
        try:
            shape = [
                size_of(size.node.expr, names) if isinstance(size, torch.SymInt) else size
                for size in value.shape
            ]
        except ValueError as error:
            message = f"{op} computes a size that a graph cannot express"
            raise GraphError(message, found=str(error)) from None
        return TensorType(tuple(shape), str(value.dtype).removeprefix("torch."))  # 2.

    return tuple(map(type_, result)) if isinstance(result, Sequence) else type_(result)
