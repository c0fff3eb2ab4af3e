"""Which operators keep zeros: what a sum over an axis may rely on when positions are masked.

Masking zeroes dropped positions of leaves. Whether a *result* is zero there too decides whether a
sum over the axis is the cut network's sum. Each function gives, for every result of the current
operator, the layouts at whose masked positions it need not be zero (its dirt); what it does not
list is certainly zero. An axis in two dimensions of one result is listed if either needs it.
Zero means arbitrarily small: what jumps at zero (``sign``, ``!=``) does not keep it.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence

import torch

from archgraph.graph.ir import Atom, Leaf, Ref, Value, in_mode
from archgraph.layout.layouts import Fixed, Layout, Var
from archgraph.ops.equations import Dims, Dirt, Equations
from archgraph.ops.schema import from_atom, schema, torch_dtype

Zeros = Callable[[Equations, list[Dims]], list[Dirt]]


def _open(dims: Sequence[Layout]) -> Dirt:
    return tuple(d for d in dims if not isinstance(d, Fixed))


def _stretched(eq: Equations, value: Value, dims: Dims) -> Dirt:
    """Dirt of an operand as a part of a result that it broadcasts to."""
    return eq.dirt_of(value) + _missing(eq, value, dims)


def _missing(eq: Equations, value: Value, dims: Dims) -> Dirt:
    """Dimensions that a broadcast operand does not have: it is constant along them."""
    own = eq.of(value)
    lead = len(dims) - len(own)
    return _open(
        [d for i, d in enumerate(dims) if i < lead or (own[i - lead].size == 1 and d.size != 1)]
    )


def never(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Nothing is known to be zero."""
    return [_open(dims) for dims in results]


def always(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Zeros everywhere."""
    return [() for _ in results]


def first(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Zero where the first operand is; positions in its result (integers) are not."""
    operands = eq.operands()
    dirt = eq.dirt_of(operands[0]) if operands else ()
    floating = [torch_dtype(t.dtype).is_floating_point for t in eq.node.types]
    mixed = any(floating) and not all(floating)
    return [
        _open(dims) if mixed and not real else dirt
        for dims, real in zip(results, floating, strict=True)
    ]


def every(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Zero where all operands are."""
    dirt = tuple(d for v in eq.operands() for d in eq.dirt_of(v))
    return [dirt] * len(results)


def each(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Operand by operand, stretched."""
    return [_stretched(eq, v, dims) for v, dims in zip(eq.operands(), results, strict=True)]


def some(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """A sum of products: zero where one of the operands is."""
    return [_product(eq, eq.operands(), dims) for dims in results]


def _product(eq: Equations, operands: Sequence[Value], dims: Dims) -> Dirt:
    count = Counter(v for d in dims for v in eq.axes_in([d]))
    if not count:
        return ()
    votes: Counter[Var] = Counter()
    twice = {v for v, n in count.items() if n > 1}
    for value in operands:
        own = Counter(v for d in eq.of(value) for v in eq.axes_in([d]))
        twice |= {v for v, n in own.items() if n > 1}
        dirt = eq.axes_in(eq.dirt_of(value))
        votes.update(v for v in count if v not in own or v in dirt)
    # an axis that occurs twice (outer product, square matrix) needs all operands
    return tuple(v for v in count if votes[v] == len(operands) or (v in twice and votes[v]))


def value(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Position by position: zero where all operands are, if the function is zero at zero."""
    operands = eq.operands()
    at_zero = _at_zero(eq)
    if at_zero == 0:
        dirt = tuple(d for v in operands for d in _stretched(eq, v, results[0]))
        return [dirt] * len(results)
    if not math.isfinite(at_zero):
        _pole(eq, operands, results[0])
    return never(eq, results)


def quotient(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Zero where the numerator is and the denominator is not; endless the other way round."""
    if not eq.has(eq.node.args[0][0]) or len(eq.operands()) == 1:
        return some(eq, results) if eq.has(eq.node.args[0][0]) else never(eq, results)
    (dims,), (above, below) = results, eq.operands()
    vague = eq.axes_in(_stretched(eq, below, dims))
    dirty = eq.axes_in(_stretched(eq, above, dims))
    for var in eq.axes_in(dims):
        if var not in vague:
            if var in dirty:
                eq.span(var, "division by zero")
            dirty[var] = None
    return [tuple(dirty)]


def _pole(eq: Equations, operands: Sequence[Value], dims: Dims) -> None:
    """The operator has no value where operands are zero: no law can hold for such an axis."""
    dirty = eq.axes_in([d for operand in operands for d in _stretched(eq, operand, dims)])
    for var in eq.axes_in(dims) if operands else ():
        if var not in dirty:
            eq.span(var, f"{eq.node.op.split('.')[1]} of zero")


def chosen(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """``where``: zero where both branches are."""
    dirt: Dirt = ()
    for name in ("self", "other"):
        given = eq.node.arg(name)
        if eq.has(name):
            dirt += _stretched(eq, given, results[0])
        elif given != 0:
            return never(eq, results)
    return [dirt]


def filled(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """``masked_fill``: zero where its input is, if it fills with zero."""
    if eq.node.arg("value") != 0 or eq.has("value"):
        return never(eq, results)
    return [_stretched(eq, eq.node.arg("self"), results[0])]


def second(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Zero where the source of a copy is."""
    return [_stretched(eq, eq.node.arg("src"), results[0])]


def added(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """``self + a @ b``: zero where self and the product are."""
    start, *factors = eq.operands()
    dims = results[0]
    return [_stretched(eq, start, dims) + _product(eq, factors, dims)]


def looked_up(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Rows of a table: zero where the table's columns are."""
    table = eq.dirt_of(eq.node.arg("weight"))
    return [_open(dims[:-1]) + table for dims in results]


def weighted(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Linear layers and convolutions: the weight is zero on masked outputs, the bias too."""
    (dims,) = results
    given, weight = eq.node.arg("input"), eq.node.arg("weight")
    rank = len(eq.arg("weight"))
    # which dimension counts the outputs: convolutions have the kernel's behind it
    channel = len(dims) - (rank - 1 if "stride" in schema(eq.node.op).by_name else 1)
    rest = [d for i, d in enumerate(dims) if i != channel or rank == 1]
    dirt: Dirt = ()
    if isinstance(weight, Leaf):
        across = eq.axes_in(rest)
        dirt = tuple(v for v in eq.axes_in(eq.dirt_of(given)) if v in across)
    else:
        dirt = _product(eq, [given, weight], dims)
    if eq.has("bias"):  # one number per output, whatever the input
        dirt += _open(rest) + eq.dirt_of(eq.node.arg("bias"))
    return [dirt]


def normalised(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Norms, ``(x − μ)/σ · w + b``: w and b are zero on masked channels, whatever x is."""
    dims, x = results[0], eq.node.args[0][1]
    channels, mean = _normalised(eq, len(dims))
    given = {n: eq.node.arg(n) for n in ("weight", "bias") if eq.has(n)}
    dirt: Dirt = tuple(d for v in given.values() for d in eq.dirt_of(v))
    if "weight" not in given:  # zero only where x is and no mean is taken off
        dirt += eq.dirt_of(x) + eq.dirt_of(eq.node.arg("running_mean"))
        dirt += _open([d for i, d in enumerate(dims) if i in mean])
    rest = [d for i, d in enumerate(dims) if i not in channels]
    if "bias" in given:
        dirt += _open(rest)
    elif _open(rest):
        over = eq.axes_in([d for i, d in enumerate(dims) if i in mean and i not in channels])
        own = eq.axes_in(rest)
        dirt += tuple(over) + tuple(v for v in eq.axes_in(eq.dirt_of(x)) if v in own)
    return [dirt, *(_open(d) for d in results[1:])]


def _normalised(eq: Equations, rank: int) -> tuple[range, set[int]]:
    """Dimensions that the affine part has, and those whose mean is taken off."""
    names = schema(eq.node.op).by_name
    if "normalized_shape" in names:
        tail = range(rank - len(eq.ints("normalized_shape")), rank)
        return tail, set(tail)
    if "num_groups" in names:
        return range(1, 2), set(range(1, rank))
    return range(1, 2), set(range(rank)) - {1}


def scaled_rows(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """``g · v/‖v‖``: zero where either is; a whole row of zeros has no direction."""
    return [eq.dirt_of(eq.node.arg("v")), *(_open(d) for d in results[1:])]


def attended(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Attention: a mean of values, zero where all values are."""
    (dims,) = results
    values = eq.node.arg("value")
    own = eq.axes_in([d for i, d in enumerate(eq.of(values)) if i != len(eq.of(values)) - 2])
    others = tuple(v for v in eq.axes_in(dims) if v not in own)
    return [others + _open(dims[-2:-1]) + eq.dirt_of(values)]


def passed(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """One of several results."""
    source = eq.node.arg("source")
    assert isinstance(source, Ref)
    return [eq.dirt[source.name][eq.integer("index")]]


# -- the value at zero ----------------------------------------------------------------------

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
