"""Writing through a view: what the tensor becomes when a view of it is overwritten."""

from __future__ import annotations

from collections.abc import Callable

from archgraph.graph.ir import Value
from archgraph.ops.operator import Call, ViewWrite


def _scatter(op: str, write: ViewWrite, **place: Value) -> Call:
    return op, {"self": write.whole, "src": write.part, **place}


def slice_(write: ViewWrite) -> Call:
    """A run of positions."""
    bounds = {k: write.args[k] for k in ("dim", "start", "end", "step") if k in write.args}
    return _scatter("aten.slice_scatter", write, **bounds)


def select(write: ViewWrite) -> Call:
    """One position.

    >>> from archgraph.graph.ir import Ref
    >>> args = {"dim": 1, "index": 2}
    >>> select(ViewWrite("aten.select.int", args, Ref("x"), Ref("y"), (4, 3), 0))
    ('aten.select_scatter', {'self': Ref(name='x'), 'src': Ref(name='y'), 'dim': 1, 'index': 2})
    """
    return _scatter("aten.select_scatter", write, dim=write.args["dim"], index=write.args["index"])


def unbind(write: ViewWrite) -> Call:
    """One position of several that were taken apart."""
    return _scatter("aten.select_scatter", write, dim=write.args.get("dim", 0), index=write.index)


def split(write: ViewWrite) -> Call | None:
    """One part of several, where all have a size that is a number."""
    sizes = write.args["split_sizes"]
    if not isinstance(sizes, tuple):
        return None
    cuts = [s for s in sizes if isinstance(s, int)]
    if len(cuts) != len(sizes):
        return None
    start = sum(cuts[: write.index])
    end = start + cuts[write.index]
    dim = write.args.get("dim", 0)
    return _scatter("aten.slice_scatter", write, dim=dim, start=start, end=end)


def diagonal(write: ViewWrite) -> Call:
    """A diagonal."""
    place = {k: write.args[k] for k in ("offset", "dim1", "dim2") if k in write.args}
    return _scatter("aten.diagonal_scatter", write, **place)


def reshape(write: ViewWrite) -> Call:
    """All of it in another shape."""
    return "aten.reshape", {"self": write.part, "shape": write.shape}


def transpose(write: ViewWrite) -> Call:
    """Two dimensions change places again."""
    dims = [v for k, v in write.args.items() if k != "self"]
    return "aten.transpose.int", {"self": write.part, "dim0": dims[0], "dim1": dims[1]}


def permute(write: ViewWrite) -> Call:
    """The inverse order."""
    order = write.args["dims"]
    assert isinstance(order, tuple)
    back = [0] * len(order)
    for position, dim in enumerate(order):
        assert isinstance(dim, int)
        back[dim % len(order)] = position
    return "aten.permute", {"self": write.part, "dims": tuple(back)}


def component(index: int) -> Callable[[ViewWrite], Call]:
    """The real (0) or imaginary (1) parts of complex numbers, written as pairs."""
    return lambda write: _scatter("aten.select_scatter", write, dim=len(write.shape), index=index)


def itself(write: ViewWrite) -> Call:
    """An operator that is its own inverse."""
    return write.op, {"self": write.part}


def by(op: str) -> Callable[[ViewWrite], Call]:
    """An operator whose inverse is another one."""
    return lambda write: (op, {"self": write.part})
