"""Writing through a view: what the tensor becomes when a view of it is overwritten."""

from __future__ import annotations

from collections.abc import Mapping

from archgraph.graph.ir import Size, Value
from archgraph.ops.table import base

Call = tuple[str, dict[str, Value]]


def overwritten(
    op: str,
    given: Mapping[str, Value],
    whole: Value,
    part: Value,
    shape: tuple[Size, ...],
    index: int = 0,
) -> Call | None:
    """The call that gives a tensor after one of its views was overwritten; None if none does.

    Args:
        op: Operator that made the view, in canonical form; empty where the view is the whole.
        given: Its arguments by name.
        whole: The tensor before.
        part: What the view holds now.
        shape: Shape of the tensor.
        index: Which result of the operator the view is.

    >>> from archgraph.graph.ir import Ref
    >>> overwritten("aten.select.int", {"dim": 1, "index": 2}, Ref("x"), Ref("y"), (4, 3))
    ('aten.select_scatter', {'self': Ref(name='x'), 'src': Ref(name='y'), 'dim': 1, 'index': 2})
    """
    match base(op):
        case "slice":
            bounds = {k: given[k] for k in ("dim", "start", "end", "step") if k in given}
            return "aten.slice_scatter", {"self": whole, "src": part, **bounds}
        case "select":
            place = {"dim": given["dim"], "index": given["index"]}
            return "aten.select_scatter", {"self": whole, "src": part, **place}
        case "unbind":
            place = {"dim": given.get("dim", 0), "index": index}
            return "aten.select_scatter", {"self": whole, "src": part, **place}
        case "split_with_sizes":
            sizes = given["split_sizes"]
            if not isinstance(sizes, tuple):
                return None
            cuts = [s for s in sizes if isinstance(s, int)]
            if len(cuts) != len(sizes):
                return None
            start = sum(cuts[:index])
            bounds = {"dim": given.get("dim", 0), "start": start, "end": start + cuts[index]}
            return "aten.slice_scatter", {"self": whole, "src": part, **bounds}
        case "diagonal":
            place = {k: given[k] for k in ("offset", "dim1", "dim2") if k in given}
            return "aten.diagonal_scatter", {"self": whole, "src": part, **place}
        case "reshape" | "squeeze" | "unsqueeze":
            return "aten.reshape", {"self": part, "shape": shape}
        case "transpose" | "swapaxes" | "swapdims":
            dims = [v for k, v in given.items() if k != "self"]
            return "aten.transpose.int", {"self": part, "dim0": dims[0], "dim1": dims[1]}
        case "permute":
            order = given["dims"]
            assert isinstance(order, tuple)
            back = [0] * len(order)
            for position, dim in enumerate(order):
                assert isinstance(dim, int)
                back[dim % len(order)] = position
            return "aten.permute", {"self": part, "dims": tuple(back)}
        case "t" | "numpy_T" | "mT":
            return op, {"self": part}
        case "view_as_real":
            return "aten.view_as_complex", {"self": part}
        case "view_as_complex":
            return "aten.view_as_real", {"self": part}
        case _:
            return None


__all__ = ["overwritten"]
