"""Rows of operators that move positions: reshapes, slices, joins, indexing."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from archgraph.errors import SpecError
from archgraph.onnx.operators.row import Attributes, Row, Table, axes_of, whole


def _reshape(at: Attributes, x: torch.Tensor, shape: Any = None) -> torch.Tensor:
    sizes = whole(shape) if shape is not None else list(at.need("shape"))
    if not at.get("allowzero", 0):
        sizes = [x.shape[i] if isinstance(s, int) and s == 0 else s for i, s in enumerate(sizes)]
    if isinstance(x.shape[0], torch.SymInt) and all(isinstance(s, int) and s > 0 for s in sizes):
        sizes[0] = -1  # a file for a batch of one writes it out
    return x.reshape(sizes)


def _flatten(at: Attributes, x: torch.Tensor) -> torch.Tensor:
    axis = at.get("axis", 1) % max(x.dim(), 1) if at.get("axis", 1) != x.dim() else x.dim()
    if axis == 1:
        return x.flatten(1) if x.dim() > 1 else x.reshape(-1, 1)
    front, back = 1, 1
    for size in x.shape[:axis]:
        front = front * size
    for size in x.shape[axis:]:
        back = back * size
    return x.reshape(front, back)


def _transpose(at: Attributes, x: torch.Tensor) -> torch.Tensor:
    return x.permute(at.get("perm") or list(reversed(range(x.dim()))))


def _squeeze(at: Attributes, x: torch.Tensor, axes: Any = None) -> torch.Tensor:
    found = axes_of(at, axes)
    if found is None:
        found = [i for i, size in enumerate(x.shape) if isinstance(size, int) and size == 1]
    return x.squeeze(found) if found else x


def _unsqueeze(at: Attributes, x: torch.Tensor, axes: Any = None) -> torch.Tensor:
    found = axes_of(at, axes) or []
    rank = x.dim() + len(found)
    for axis in sorted(a % rank for a in found):
        x = x.unsqueeze(axis)
    return x


def _slice(
    at: Attributes, x: torch.Tensor, starts: Any = None, ends: Any = None, axes: Any = None,
    steps: Any = None,
) -> torch.Tensor:  # fmt: skip
    first = whole(starts) if starts is not None else list(at.need("starts"))
    last = whole(ends) if ends is not None else list(at.need("ends"))
    where = axes_of(at, axes)
    where = where if where is not None else list(range(len(first)))
    step = whole(steps) or [1] * len(first)
    for begin, end, axis, by in zip(first, last, where, step, strict=True):
        if by > 0:
            x = torch.ops.aten.slice.Tensor(x, axis % x.dim(), begin, end, by)
        else:
            picked = range(*slice(begin, end, by).indices(int(x.shape[axis])))
            x = x.index_select(axis % x.dim(), torch.tensor([*picked], dtype=torch.long))
    return x


def _split(at: Attributes, x: torch.Tensor, sizes: Any = None) -> Any:
    axis = at.get("axis", 0)
    given = whole(sizes) or at.get("split")
    if given:
        return tuple(x.split([*given], axis))
    part = -(-x.shape[axis] // at.get("num_outputs", at.outputs))
    return tuple(x.split(part, axis))


def _gather(at: Attributes, x: torch.Tensor, index: Any) -> torch.Tensor:
    axis = at.get("axis", 0) % x.dim()
    if not isinstance(index, torch.Tensor):  # known: a row, a column
        if index.ndim == 0:
            return x.select(axis, whole(index)[0])
        index = torch.tensor(index.astype(np.int64))
    if axis == 0 and x.dim() == 2 and x.is_floating_point() and isinstance(x, torch.nn.Parameter):
        return F.embedding(index.long(), x)
    index = torch.where(index < 0, index + x.shape[axis], index).long()
    return x[(slice(None),) * axis + (index,)]


def _gather_elements(at: Attributes, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    axis = at.get("axis", 0)
    return x.gather(axis, torch.where(index < 0, index + x.shape[axis], index).long())


def _gather_nd(at: Attributes, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    batch = at.get("batch_dims", 0)
    lead = [
        torch.arange(x.shape[i]).reshape([-1 if i == j else 1 for j in range(index.dim() - 1)])
        for i in range(batch)
    ]
    return x[(*lead, *(part.long() for part in index.unbind(-1)))]


_REDUCE = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _scatter_elements(at: Attributes, x: Any, index: Any, updates: Any) -> torch.Tensor:
    axis, how = at.get("axis", 0), at.get("reduction", "none")
    index = torch.where(index < 0, index + x.shape[axis], index).long()
    if how == "none":
        return x.scatter(axis, index, updates)
    return x.scatter_reduce(axis, index, updates, _REDUCE[how])


def _scatter_nd(at: Attributes, x: Any, index: Any, updates: Any) -> torch.Tensor:
    at.refuse("reduction", "none", "add")
    where = tuple(part.long() for part in index.unbind(-1))
    return torch.index_put(x, where, updates, accumulate=at.get("reduction", "none") == "add")


def _expand(at: Attributes, x: torch.Tensor, shape: Any) -> torch.Tensor:
    sizes = whole(shape)
    rank = max(len(sizes), x.dim())
    own = [1] * (rank - x.dim()) + list(x.shape)
    sizes = [1] * (rank - len(sizes)) + sizes
    return x.expand(
        [o if isinstance(s, int) and s == 1 else s for o, s in zip(own, sizes, strict=True)]
    )


def _pad(
    at: Attributes, x: torch.Tensor, pads: Any = None, value: Any = None, axes: Any = None
) -> Any:
    given = whole(pads) or list(at.get("pads") or at.get("paddings") or ())
    where = [a % x.dim() for a in whole(axes)] or list(range(x.dim()))
    half = len(given) // 2
    before, after = [0] * x.dim(), [0] * x.dim()
    for axis, a, b in zip(where, given[:half], given[half:], strict=True):
        before[axis], after[axis] = a, b
    mode = at.get("mode", "constant")
    fill = value.item() if value is not None else at.get("value", 0.0)
    modes = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}
    amounts = [n for axis in reversed(range(x.dim())) for n in (before[axis], after[axis])]
    if mode == "constant":
        return F.pad(x, amounts, value=fill)
    while amounts and amounts[-2:] == [0, 0]:
        amounts = amounts[:-2]
    sides = len(amounts) // 2
    lead = x.dim() - sides
    flat = x.reshape(1, -1, *x.shape[lead:]) if lead != 2 else x
    return F.pad(flat, amounts, modes[mode]).reshape(
        *x.shape[:lead], *(x.shape[i] + before[i] + after[i] for i in range(lead, x.dim()))
    )


def _concat(at: Attributes, *inputs: torch.Tensor) -> torch.Tensor:
    return torch.cat(inputs, at.get("axis", 1))


def _depth_to_space(at: Attributes, x: torch.Tensor) -> torch.Tensor:
    b, c, h, w = x.shape
    n = at.need("blocksize")
    if at.get("mode", "DCR") == "CRD":
        return F.pixel_shuffle(x, n)
    y = x.reshape(b, n, n, c // n**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return y.reshape(b, c // n**2, h * n, w * n)


def _space_to_depth(at: Attributes, x: torch.Tensor) -> torch.Tensor:
    b, c, h, w = x.shape
    n = at.need("blocksize")
    y = x.reshape(b, c, h // n, n, w // n, n)
    y = (
        y.permute(0, 1, 3, 5, 2, 4)
        if at.get("mode", "DCR") == "CRD"
        else y.permute(0, 3, 5, 1, 2, 4)
    )
    return y.reshape(b, c * n**2, h // n, w // n)


def _tile(at: Attributes, x: torch.Tensor, repeats: Any) -> torch.Tensor:
    return x.repeat(whole(repeats))


def _trilu(at: Attributes, x: torch.Tensor, k: Any = None) -> torch.Tensor:
    offset = whole(k)[0] if k is not None else 0
    return torch.triu(x, offset) if at.get("upper", 1) else torch.tril(x, offset)


def _filled(at: Attributes, shape: Any) -> torch.Tensor:
    value = at.get("value")
    fill = torch.zeros(1) if value is None else torch.from_numpy(np.asarray(value))
    return torch.full(whole(shape), fill.item(), dtype=fill.dtype)


def _range(at: Attributes, start: Any, limit: Any, delta: Any) -> torch.Tensor:
    if start.dtype.kind == "f":
        return torch.arange(
            start.item(), limit.item(), delta.item(), dtype=torch.from_numpy(np.ravel(start)).dtype
        )
    first, last, step = whole(start) + whole(limit) + whole(delta)
    return torch.arange(first, last, step)


def _one_hot(at: Attributes, index: torch.Tensor, depth: Any, values: torch.Tensor) -> torch.Tensor:
    n = whole(depth)[0]
    axis = at.get("axis", -1)
    index = index.long()
    index = torch.where(index < 0, index + n, index)  # beyond it there is no hot position
    hot = (index.unsqueeze(-1) == torch.arange(n)).movedim(-1, axis)
    return torch.where(hot, values[1], values[0])


def _eye(at: Attributes, x: torch.Tensor) -> torch.Tensor:
    from archgraph.onnx.tensors import DTYPES
    from archgraph.ops.schema import torch_dtype

    kind = at.get("dtype")
    k = at.get("k", 0)
    rows, columns = x.shape
    eye = torch.arange(columns) == torch.arange(rows).unsqueeze(1) + k
    return eye.to(torch_dtype(DTYPES[kind]) if kind else x.dtype)


def _shape(at: Attributes, x: torch.Tensor) -> Any:
    sizes = list(x.shape)[at.get("start", 0) : at.get("end")]
    return np.array(sizes, dtype=object)


def _top_k(at: Attributes, x: torch.Tensor, k: Any = None) -> Any:
    count = whole(k)[0] if k is not None else at.need("k")
    axis = at.get("axis", -1)
    # Of equal values the first counts; what topk of PyTorch takes is not said.
    values, places = x.sort(dim=axis, descending=bool(at.get("largest", 1)), stable=True)
    return values.narrow(axis, 0, count), places.narrow(axis, 0, count)


def _upsample_sizes(x: torch.Tensor, scales: list[float], sizes: list[Any]) -> list[Any]:
    return (
        sizes[2:] if sizes else [int(s * f) for s, f in zip(x.shape[2:], scales[2:], strict=True)]
    )


def _resize(at: Attributes, x: torch.Tensor, *rest: Any) -> torch.Tensor:
    _, scales, sizes = (*((None, *rest) if len(rest) == 1 else rest), None, None, None)[:3]
    given = (
        [float(v) for v in np.ravel(scales)] if scales is not None else list(at.get("scales") or ())
    )
    target = whole(sizes)
    if at.get("axes") is not None or x.dim() < 3:
        raise SpecError("resizes some axes", found=at.get("axes"), expected="all of an image")
    at.refuse("keep_aspect_ratio_policy", "stretch")
    at.refuse("antialias", 0)
    if (given and given[:2] != [1, 1]) or (
        target and [*map(str, target[:2])] != [*map(str, x.shape[:2])]
    ):
        raise SpecError("resizes batch or channels", found=given or target)
    out = _upsample_sizes(x, given, target)
    if given and any(o != s * f for o, s, f in zip(out, x.shape[2:], given[2:], strict=True)):
        raise SpecError("resizes to a part of a position", found=given)
    mode = at.get("mode", "nearest")
    place = at.get(
        "coordinate_transformation_mode", "half_pixel" if at.opset > 10 else "asymmetric"
    )
    if mode == "nearest":
        factors = [o / s for o, s in zip(out, x.shape[2:], strict=True)]
        whole_factors = all(f == int(f) for f in factors)
        if (
            place == "asymmetric"
            and at.get("nearest_mode", "floor" if at.opset < 11 else "round_prefer_floor")
            == "floor"
        ):
            return F.interpolate(x, out, mode="nearest")
        if (
            place == "half_pixel"
            and at.get("nearest_mode", "round_prefer_floor") == "round_prefer_floor"
            and whole_factors
        ):
            return F.interpolate(x, out, mode="nearest")
        raise SpecError(
            "rounds positions in another way", found=f"{place}, {at.get('nearest_mode')}"
        )
    names = {"linear": {3: "linear", 4: "bilinear", 5: "trilinear"}, "cubic": {4: "bicubic"}}
    name = names.get(mode, {}).get(x.dim())
    if name is None:
        raise SpecError("interpolates in another way", found=mode)
    if mode == "cubic":
        at.refuse("cubic_coeff_a", -0.75)
        at.refuse("exclude_outside", 0)
    if place == "align_corners":
        return F.interpolate(x, out, mode=name, align_corners=True)
    if place in ("half_pixel", "pytorch_half_pixel"):
        if place == "pytorch_half_pixel" and 1 in out:
            raise SpecError("rounds positions in another way", found=place)
        return F.interpolate(x, out, mode=name, align_corners=False)
    raise SpecError("rounds positions in another way", found=place)


SHAPES: Table = {
    "Reshape": Row(_reshape, known=(1,)),
    "Flatten": Row(_flatten),
    "Transpose": Row(_transpose),
    "Squeeze": Row(_squeeze, known=(1,)),
    "Unsqueeze": Row(_unsqueeze, known=(1,)),
    "Slice": Row(_slice, known=(1, 2, 3, 4)),
    "Split": Row(_split, known=(1,)),
    "Gather": Row(_gather, numbers=True),
    "GatherElements": Row(_gather_elements),
    "GatherND": Row(_gather_nd),
    "ScatterElements": Row(_scatter_elements),
    "Scatter": Row(_scatter_elements),
    "ScatterND": Row(_scatter_nd),
    "Expand": Row(_expand, known=(1,)),
    "Pad": Row(_pad, known=(1, 2, 3)),
    "Concat": Row(_concat),
    "DepthToSpace": Row(_depth_to_space),
    "SpaceToDepth": Row(_space_to_depth),
    "Tile": Row(_tile, known=(1,), since=6),
    "Trilu": Row(_trilu, known=(1,)),
    "ConstantOfShape": Row(_filled, known=(0,)),
    "Range": Row(_range, known=(0, 1, 2)),
    "OneHot": Row(_one_hot, known=(1,)),
    "EyeLike": Row(_eye),
    "Shape": Row(_shape),
    "Size": Row(lambda at, x: np.array(x.numel(), dtype=object)),
    "TopK": Row(_top_k, known=(1,)),
    "Resize": Row(_resize, known=(1, 2, 3), since=10),
    "Upsample": Row(_resize, known=(1,), since=7),
}
