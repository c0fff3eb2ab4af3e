"""Values of a file that are one number for certain, whatever the sizes of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from archgraph.onnx.network import OnnxStep

_ELEMENTWISE = frozenset(
    "Add Sub Mul Div Neg Mod Sqrt Pow Floor Ceil Max Min Identity Cast CastLike Abs "
    "Reciprocal".split()
)
_END = 2**31 - 1  # ends of slices from here on are the last element's


def singles(steps: Sequence[OnnxStep], known: Mapping[str, Any]) -> dict[str, int]:
    """Constants and values of shapes that are one number, of no axis or of one: their axes.

    Only what is certain counts: an element of a shape, and arithmetic of such.
    """
    ranks = {n: np.ndim(v) for n, v in known.items() if np.size(v) == 1 and np.ndim(v) < 2}
    shapes: set[str] = set()
    for step in steps:
        rank = _rank(step, ranks, shapes, known)
        if rank is not None and rank < 2:
            ranks[step.outputs[0]] = rank
        elif step.kind == "Shape" or (
            step.kind in ("Cast", "Identity") and step.inputs[0] in shapes
        ):
            shapes.add(step.outputs[0])
    return ranks


def _rank(
    step: OnnxStep, ranks: Mapping[str, int], shapes: set[str], known: Mapping[str, Any]
) -> int | None:
    """Return how many axes a step's result has if it is one number; None if not certain."""
    first, *rest = step.inputs or ("",)
    single, size = ranks.get(first), first in shapes
    match step.kind:
        case "Size":
            return 0
        case "Shape":
            start, end = step.attributes.get("start", 0), step.attributes.get("end")
            return 1 if _one(start, _END if end is None else end) else None
        case "Gather" if (size or single == 1) and rest[0] in known and rest[0] in ranks:
            return ranks[rest[0]]
        case "Slice" if size and len(rest) > 1 and all(n in known and n in ranks for n in rest[:2]):
            start, end = (int(np.ravel(known[name])[0]) for name in rest[:2])
            every = known.get(rest[3], 0) if len(rest) > 3 and rest[3] else 1
            return 1 if _one(start, end) and np.array_equal(np.ravel(every), [1]) else None
        case "Squeeze" if single is not None and len(rest) + len(step.attributes) == 0:
            return 0
        case "Squeeze":
            return 0 if single == 1 else None
        case "Unsqueeze" if single == 0:
            return 1
        case kind if kind in _ELEMENTWISE:
            types = step.row.types if step.row else ()
            numbers = [name for i, name in enumerate(step.inputs) if i not in types]
            return max((ranks.get(name, 2) for name in numbers), default=2)
    return None


def _one(start: int, end: int) -> bool:
    """Return whether a slice is of one element, if it has any: both ends count from one side."""
    return (end - start == 1 and (start < 0) == (end < 0)) or (start == -1 and end >= _END)
