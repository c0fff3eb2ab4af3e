"""Branches on the values of a tensor that can go only one way.

While a program is exported, a tensor in an ``if`` is decided from the calls that made it: by the
range of their results. A draw from [0, 1) is never below 0 (layer drop that never drops), and
numbers are taken to be finite (guards against overflow in half precision).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.utils._sympy.value_ranges import ValueRanges

from archgraph.capture.places import running
from archgraph.capture.tape import Note

Ends: TypeAlias = tuple[float, float]  # the lowest and the highest result that a call may have

_ANY: Ends = (-math.inf, math.inf)
_NO: Ends = (0.0, 0.0)
_YES: Ends = (1.0, 1.0)
_EITHER: Ends = (0.0, 1.0)
_BELOW_ONE = math.nextafter(1.0, 0.0)


@contextlib.contextmanager
def deciding(notes: list[Note]) -> Iterator[None]:
    """Let forward branch on a tensor where its range decides; each such branch is noted."""
    tensor: Any = torch.Tensor
    original, read = tensor.__bool__, tensor.item

    def decide(self: torch.Tensor) -> bool:
        (low, high), why = _range(self)
        if low <= 0 <= high and low != high:  # it may be zero, and something else
            return bool(original(self))
        notes.append(f"a branch for {why} is left out of the graph ({running()})")
        return low != 0

    def item(self: torch.Tensor) -> Any:
        (low, high), why = _range(self)
        if low == high and self.dtype == torch.bool:
            notes.append(f"a branch for {why} is left out of the graph ({running()})")
            return low != 0
        value = read(self)
        if isinstance(value, torch.SymFloat) and math.isfinite(low) and math.isfinite(high):
            value.node.shape_env.var_to_range[value.node.expr] = ValueRanges(low, high)
        return value

    tensor.__bool__, tensor.item = decide, item
    try:
        yield
    finally:
        del tensor.__bool__, tensor.item


def _range(tensor: torch.Tensor) -> tuple[Ends, str]:
    """Range of a tensor of the program that is being exported, and what is outside of it."""
    mode = get_proxy_mode()
    slot = get_proxy_slot(tensor, mode.tracer, None) if mode is not None else None
    node = getattr(getattr(slot, "proxy", None), "node", None)
    work = _Ranges()
    ends = work.of(node)
    return ends, "numbers that are not finite" if work.finite else "draws that never occur"


class _Ranges:
    """Ranges of the results of calls; ``finite``: where numbers were taken to be finite."""

    def __init__(self) -> None:
        self.finite = False
        self._known: dict[torch.fx.Node, Ends] = {}

    def of(self, value: Any) -> Ends:
        """Range of a call's result, or of a number."""
        if isinstance(value, (bool, int, float)):
            return float(value), float(value)
        if not isinstance(value, torch.fx.Node):
            return _ANY
        if value not in self._known:
            self._known[value] = self._call(value)
        return self._known[value]

    def _call(self, node: torch.fx.Node) -> Ends:
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            return _ANY
        name, args = target._schema.name.removeprefix("aten::"), node.args
        if name in _TESTS:
            self.finite = True
            return _TESTS[name]
        if name in _COMPARED and len(args) == 2:
            if name == "ne" and args[0] is args[1]:  # whether it is NaN
                self.finite = True
                return _NO
            return _compared(name, self.of(args[0]), self.of(args[1]))
        if name in _DRAWN:
            return _DRAWN[name](node)
        if name in _CASTS:
            return _cast(self.of(args[0]), torch.bool in (*args, *node.kwargs.values()))
        if name in _PAIRS and len(args) == 2 and not node.kwargs:
            return _PAIRS[name](self.of(args[0]), self.of(args[1]))
        if name in _SINGLES and not (name in _EXTREMES and len(args) > 1):
            return _SINGLES[name](self.of(args[0]))
        return _ANY


def _compared(name: str, a: Ends, b: Ends) -> Ends:
    """Range of a comparison."""
    if name in ("gt", "ge"):
        return _compared({"gt": "lt", "ge": "le"}[name], b, a)
    if name == "ne":
        return _not(_compared("eq", a, b))
    if name == "eq":
        apart = a[1] < b[0] or b[1] < a[0]
        return _NO if apart else _YES if a == b and a[0] == a[1] else _EITHER
    below, above = (a[1] < b[0], a[0] >= b[1]) if name == "lt" else (a[1] <= b[0], a[0] > b[1])
    return _YES if below else _NO if above else _EITHER


def _truth(a: Ends) -> Ends:
    """Whether a number is not zero."""
    if a == _NO:
        return _NO
    return _EITHER if a[0] <= 0 <= a[1] else _YES


def _not(a: Ends) -> Ends:
    low, high = _truth(a)
    return 1 - high, 1 - low


def _or(a: Ends, b: Ends) -> Ends:
    (a, b) = _truth(a), _truth(b)
    return max(a[0], b[0]), max(a[1], b[1])


def _and(a: Ends, b: Ends) -> Ends:
    return _not(_or(_not(a), _not(b)))


def _total(a: Ends) -> Ends:
    """Of any number of terms."""
    return _NO if a == _NO else (0.0 if a[0] >= 0 else -math.inf, 0.0 if a[1] <= 0 else math.inf)


def _cast(a: Ends, to_bool: bool) -> Ends:
    """In another type, which may round."""
    whole = all(map(math.isfinite, a))
    return _truth(a) if to_bool else (math.floor(a[0]), math.ceil(a[1])) if whole else a


def _drawn_between(node: torch.fx.Node) -> Ends:
    """``uniform(self, from, to)``."""
    given: tuple[Any, ...] = (*node.args[1:3], *(0.0, 1.0)[len(node.args[1:3]) :])
    return (float(given[0]), float(given[1])) if not any(map(_is_call, given)) else _ANY


def _is_call(value: Any) -> bool:
    return isinstance(value, torch.fx.Node)


def _itself(a: Ends) -> Ends:
    return a


_TESTS = {"isinf": _NO, "isnan": _NO, "isposinf": _NO, "isneginf": _NO, "isfinite": _YES}
_COMPARED = ("lt", "le", "gt", "ge", "eq", "ne")
_CASTS = ("to", "_to_copy")
_EXTREMES = ("max", "min")  # of one tensor; of two they are other operators
_PAIRS: dict[str, Callable[[Ends, Ends], Ends]] = {
    **dict.fromkeys(("logical_or", "bitwise_or", "__or__"), _or),
    **dict.fromkeys(("logical_and", "bitwise_and", "__and__"), _and),
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
}
_SINGLES: dict[str, Callable[[Ends], Ends]] = {
    **dict.fromkeys(("logical_not", "bitwise_not"), _not),
    **dict.fromkeys(("any", "all"), _truth),
    **dict.fromkeys(("sum", "count_nonzero"), _total),
    **dict.fromkeys((*_EXTREMES, "amax", "amin", "mean", "clone", "detach", "alias"), _itself),
    **dict.fromkeys(("contiguous", "view", "reshape", "squeeze", "unsqueeze"), _itself),
    **dict.fromkeys(("select", "slice", "expand"), _itself),
}
_DRAWN: dict[str, Callable[[torch.fx.Node], Ends]] = {
    **dict.fromkeys(("rand", "rand_like"), lambda _: (0.0, _BELOW_ONE)),
    **dict.fromkeys(("uniform", "uniform_"), _drawn_between),
}
