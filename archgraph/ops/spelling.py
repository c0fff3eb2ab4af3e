"""Canonical forms: one spelling for calls that say the same, with every silent size written out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from archgraph.graph.ir import Value, size_at
from archgraph.ops.operator import Call, Spelling


def reshape(call: Spelling) -> Call:
    """A reshape to the result's shape."""
    return "aten.reshape", {"self": call.args["self"], "shape": call.shapes[0]}


def expand(call: Spelling) -> Call:
    """An expansion to the result's shape."""
    return "aten.expand", {"self": call.args["self"], "size": call.shapes[0]}


def split(default: int = 0) -> Callable[[Spelling], Call]:
    """A split into parts of given sizes.

    Args:
        default: Dimension that is split where the operator has no such argument; the only one of a
            vector.
    """

    def spelling(call: Spelling) -> Call:
        dim = call.args.get("dim", default if len(call.shapes[0]) > 1 else 0)
        assert isinstance(dim, int)
        cuts = tuple(s[dim] for s in call.shapes)
        args = {"self": call.args["self"], "split_sizes": cuts, "dim": dim}
        return "aten.split_with_sizes", args

    return spelling


def flip(*dims: int) -> Callable[[Spelling], Call]:
    """A flip of given dimensions."""
    return lambda call: ("aten.flip", {"self": call.args["self"], "dims": dims})


def tile(call: Spelling) -> Call:
    """A repetition that names every dimension."""
    dims = call.args["dims"]
    if not isinstance(dims, tuple):
        return call.op, call.args
    ones = (1,) * (len(call.sizes["self"]) - len(dims))
    return "aten.repeat", {"self": call.args["self"], "repeats": ones + dims}


def narrow(call: Spelling) -> Call:
    """A slice from a start that is a number."""
    if call.op != "aten.narrow":
        return call.op, call.args
    start, length, dim = (call.args[name] for name in ("start", "length", "dim"))
    assert isinstance(start, int) and isinstance(length, int) and isinstance(dim, int)
    whole = call.sizes["self"][dim]
    start += whole if start < 0 and isinstance(whole, int) else 0
    args = {"self": call.args["self"], "dim": dim, "start": start, "end": start + length}
    return "aten.slice.Tensor", args


def slice_(call: Spelling) -> Call:
    """A slice with bounds counted from the front."""
    args = dict(call.args)
    if call.op != "aten.slice.Tensor":
        return call.op, args
    dim = args.get("dim", 0)
    assert isinstance(dim, int)
    size = call.sizes["self"][dim]
    start, end = args.get("start"), args.get("end")
    if isinstance(size, int):
        start = start if isinstance(start, int) else 0
        end = end if isinstance(end, int) else size
        args["start"] = min(start + size if start < 0 else start, size)
        args["end"] = min(end + size if end < 0 else end, size)
    elif start in (None, 0) and isinstance(end, int) and end >= 2**62:
        args["start"], args["end"] = 0, None
    return call.op, args


def attention(call: Spelling) -> Call:
    """Attention with its scale, which is 1/√(width of a head) by default."""
    args = dict(call.args)
    if args.get("scale") is None:
        args["scale"] = 1.0 / math.sqrt(size_at(call.sizes["query"][-1], 1))
    return call.op, args


def cast(call: Spelling) -> Call:
    """A cast names the type alone."""
    if call.args.get("dtype") is None:
        return call.op, call.args
    return "aten.to.dtype", {"self": call.args["self"], "dtype": call.args["dtype"]}


def copy(call: Spelling) -> Call:
    """How a copy is scheduled is not part of an architecture."""
    return call.op, {k: v for k, v in call.args.items() if k != "non_blocking"}


# -- calls that return their input -----------------------------------------------------------------


def always(_args: Mapping[str, Value]) -> bool:
    """Whatever its arguments."""
    return True


def pads_nothing(args: Mapping[str, Value]) -> bool:
    """All amounts are zero."""
    amounts = args.get("pad")
    return isinstance(amounts, tuple) and all(a == 0 for a in amounts)
