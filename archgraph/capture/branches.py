"""Decide branches on the values of a tensor that have only one possible outcome.

During an export, an ``if`` on a tensor is decided from the calls that computed the tensor. If the
tensor depends only on constants and buffers (a mask), the branch is decided by its value. Otherwise
it is decided by the range of possible results. For example, a random number in [0, 1) is never
below 0, as in layer drop with the rate 0. Numbers are assumed to be finite, which decides guards
against overflow in half precision.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.fx.node import Argument
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._sympy.value_ranges import ValueRanges

from archgraph.capture.calls import KERNEL_ERRORS
from archgraph.capture.places import running
from archgraph.capture.surroundings import replaced
from archgraph.capture.tape import Observed

Ends: TypeAlias = tuple[float, float]  # lowest and highest possible result of a call

_ANY: Ends = (-math.inf, math.inf)
_NO: Ends = (0.0, 0.0)
_YES: Ends = (1.0, 1.0)
_EITHER: Ends = (0.0, 1.0)
_BELOW_ONE = math.nextafter(1.0, 0.0)


@contextlib.contextmanager
def deciding(model: nn.Module, observed: Observed) -> Iterator[None]:
    """Allow branches on a tensor with only one possible outcome; note omitted branches."""
    original, read = Tensor.__bool__, Tensor.item
    constants = _Constants(model)

    def known(self: Tensor, *, single: bool) -> float | None:
        """Return the value of a tensor, or a value with the same truth; None if it can differ."""
        node = _node(self)
        if node is None:
            return None
        value = constants.of(node)
        if value is not None and value.numel() == 1:
            observed.buffers |= dict.fromkeys(constants.names.get(node, ()), running())
            return value.item()
        observed.sizes |= node in constants.sized
        work = _Ranges()
        low, high = work.of(node)
        if low != high and (single or low <= 0 <= high):
            return None
        why = "non-finite numbers" if work.finite else "draws that never occur"
        observed.notes.append(f"the graph omits a branch for {why} ({running()})")
        return low

    def decide(self: Tensor) -> bool:
        value = known(self, single=False)
        return bool(original(self)) if value is None else value != 0

    def item(self: Tensor) -> bool | float | torch.SymFloat:
        # `if tensor.any().item()` branches like `if tensor.any()`; numbers stay symbols.
        value = known(self, single=True) if self.dtype == torch.bool else None
        if value is not None:
            return value != 0
        number = read(self)
        low, high = _Ranges().of(_node(self))
        # A comparison of a drawn number with a constant is then decided by the number's range.
        if isinstance(number, torch.SymFloat) and math.isfinite(low) and math.isfinite(high):
            number.node.shape_env.var_to_range[number.node.expr] = ValueRanges(low, high)
        return number

    with replaced(((Tensor, "__bool__", decide), (Tensor, "item", item))):
        yield
    observed.notes += [
        f"a branch depends on the values of {name}: the graph contains the one for the present "
        f"values ({where})"
        for name, where in observed.buffers.items()
    ]


def _node(tensor: Tensor) -> fx.Node | None:
    """Return the call of the current program that computed a tensor."""
    mode = get_proxy_mode()
    slot = get_proxy_slot(tensor, mode.tracer, None) if mode is not None else None
    return getattr(getattr(slot, "proxy", None), "node", None)


class _Constants:
    """Values of calls that depend only on constants and buffers.

    Each call runs once, in order, on copies. If a call with an unknown result writes to memory,
    the content of this memory becomes unknown.

    Attributes:
        names: Buffers on which known calls depend.
        sized: Calls that depend only on constants, buffers and open sizes.
    """

    def __init__(self, model: nn.Module) -> None:
        self._buffers = [
            (f"{path}.{name}" if path else name, module, name, buffer)
            for path, module in model.named_modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self._values: dict[fx.Node, object] = {}
        self._seen: set[fx.Node] = set()
        self.names: dict[fx.Node, frozenset[str]] = {}
        self.sized: set[fx.Node] = set()

    def of(self, node: fx.Node) -> Tensor | None:
        """Return the value of a call; None if it depends on other values."""
        self._follow(node.graph)
        value = self._values.get(node)
        return value if isinstance(value, Tensor) else None

    def _follow(self, graph: fx.Graph) -> None:
        tensors = ((m._buffers.get(n), path, buffer) for path, m, n, buffer in self._buffers)
        current = {_node(t): (path, buffer) for t, path, buffer in tensors if t is not None}
        # Outside of the export's modes, so that calls use real tensors and are not recorded.
        with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
            for node in graph.nodes:
                if node in self._seen:
                    continue
                self._seen.add(node)
                if node in current:
                    path, buffer = current[node]
                    self._values[node] = buffer.detach().clone()
                    self.names[node] = frozenset((path,))
                elif node.op == "get_attr":
                    buffer = getattr(graph.owning_module, str(node.target), None)
                    if isinstance(buffer, Tensor) and not isinstance(buffer, FakeTensor):
                        self._values[node] = buffer.detach().clone()
                elif node.op == "call_function":
                    self._call(node)

    def _call(self, node: fx.Node) -> None:
        target, used = node.target, node.all_input_nodes
        if isinstance(target, torch._ops.OpOverload):
            drawn = torch.Tag.nondeterministic_seeded in target.tags
            if not drawn and all(n in self._values for n in used):
                args, kwargs = pytree.tree_map_only(
                    fx.Node, self._values.__getitem__, (node.args, node.kwargs)
                )
                with contextlib.suppress(*KERNEL_ERRORS):  # not every operator runs on the CPU
                    self._values[node] = target(*args, **kwargs)
            elif not drawn and all(n in self._values or self._is_sized(n) for n in used):
                self.sized.add(node)
            if node not in self._values and target._schema.is_mutable:
                self._forget(node)
        elif target is operator.getitem and node.args[0] in self._values:
            self._values[node] = self._values[node.args[0]][node.args[1]]  # type: ignore[index]
        if node in self._values:
            self.names[node] = frozenset().union(*(self.names.get(n, ()) for n in used))

    def _is_sized(self, node: fx.Node) -> bool:
        return node in self.sized or isinstance(node.meta.get("val"), (torch.SymInt, torch.SymBool))

    def _forget(self, node: fx.Node) -> None:
        """Forget the memory to which a call with an unknown result writes."""
        inputs = (self._values.get(n) for n in node.all_input_nodes)
        written = {t.untyped_storage().data_ptr() for t in inputs if isinstance(t, Tensor)}
        self._values = {
            n: v
            for n, v in self._values.items()
            if not isinstance(v, Tensor) or v.untyped_storage().data_ptr() not in written
        }


class _Ranges:
    """Ranges of the results of calls; ``finite`` is True if a range assumes finite numbers."""

    def __init__(self) -> None:
        self.finite = False
        self._known: dict[fx.Node, Ends] = {}

    def of(self, value: Argument) -> Ends:
        """Return the range of a call's result, or of a number."""
        if isinstance(value, (bool, int, float)):
            return float(value), float(value)
        if not isinstance(value, fx.Node):
            return _ANY
        if value not in self._known:
            self._known[value] = self._call(value)
        return self._known[value]

    def _call(self, node: fx.Node) -> Ends:
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            return _ANY
        name, args = target._schema.name.removeprefix("aten::"), node.args
        if name in _TESTS:
            self.finite = True
            return _TESTS[name]
        if name in _COMPARED and len(args) == 2:
            if name == "ne" and args[0] is args[1]:  # a test for NaN
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
    """Return the range of a comparison."""
    if name in ("ge", "gt", "ne"):
        return _not(_compared({"ge": "lt", "gt": "le", "ne": "eq"}[name], a, b))
    always, never = {
        "lt": (a[1] < b[0], a[0] >= b[1]),
        "le": (a[1] <= b[0], a[0] > b[1]),
        "eq": (a == b and a[0] == a[1], a[1] < b[0] or b[1] < a[0]),
    }[name]
    return _YES if always else _NO if never else _EITHER


def _truth(a: Ends) -> Ends:
    """Return the range of the boolean ``x != 0``."""
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
    """Return the range of a sum of any number of terms."""
    return _NO if a == _NO else (0.0 if a[0] >= 0 else -math.inf, 0.0 if a[1] <= 0 else math.inf)


def _cast(a: Ends, to_bool: bool) -> Ends:
    """Return the range after a cast to another dtype, which may round."""
    finite = all(map(math.isfinite, a))
    return _truth(a) if to_bool else (math.floor(a[0]), math.ceil(a[1])) if finite else a


def _drawn_between(node: fx.Node) -> Ends:
    """Return the range of ``uniform(self, from, to)``."""
    low = node.args[1] if len(node.args) > 1 else 0.0
    high = node.args[2] if len(node.args) > 2 else 1.0
    if isinstance(low, (int, float)) and isinstance(high, (int, float)):
        return float(low), float(high)
    return _ANY


def _itself(a: Ends) -> Ends:
    return a


_TESTS = {"isinf": _NO, "isnan": _NO, "isposinf": _NO, "isneginf": _NO, "isfinite": _YES}
_COMPARED = ("lt", "le", "gt", "ge", "eq", "ne")
_CASTS = ("to", "_to_copy")
_EXTREMES = ("max", "min")  # of one tensor; with two arguments they are other operators
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
_DRAWN: dict[str, Callable[[fx.Node], Ends]] = {
    **dict.fromkeys(("rand", "rand_like"), lambda _: (0.0, _BELOW_ONE)),
    **dict.fromkeys(("uniform", "uniform_"), _drawn_between),
}
