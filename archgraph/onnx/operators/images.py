"""Rows of operators on images: resizing, sampling at positions, blocks of pixels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from archgraph.errors import SpecError
from archgraph.limits import LIMITS
from archgraph.onnx.operators.row import Attributes, Known, OnnxRow, OnnxTable, whole

_LINEAR = {3: "linear", 4: "bilinear", 5: "trilinear"}


def _resize(at: Attributes, x: torch.Tensor, *rest: Any) -> torch.Tensor:
    """Resize by PyTorch's own operator where it says the same, else axis by axis."""
    roi, scales, sizes = (*((None, *rest) if len(rest) == 1 else rest), None, None, None)[:3]
    factors, targets = _sizes(at, x, scales, whole(sizes))
    name = _native(at, x, factors, targets)
    if name is not None:
        corners = True if at.get("coordinate_transformation_mode") == "align_corners" else None
        corners = False if corners is None and name != "nearest" else corners
        return F.interpolate(x, targets[2:], mode=name, align_corners=corners)
    regions = np.ravel(roi) if roi is not None else np.zeros(0)
    axes = [a % x.dim() for a in at.get("axes") or range(x.dim())]
    for axis, factor in enumerate(factors):
        if factor == 1 and at.get("coordinate_transformation_mode") != "tf_crop_and_resize":
            continue
        region = (0.0, 1.0)
        if len(regions) and axis in axes:
            region = regions[axes.index(axis)], regions[axes.index(axis) + len(axes)]
        if factor != 1 or tuple(region) != (0, 1):
            x = _along(at, x, axis, int(targets[axis]), float(factor), region)
    return x


def _sizes(at: Attributes, x: torch.Tensor, scales: Any, sizes: list[Any]) -> tuple[Any, Any]:
    """Factor and size of each axis; the batch keeps its size."""
    axes = [a % x.dim() for a in at.get("axes") or range(x.dim())]
    given = [float(v) for v in np.ravel(scales)] if scales is not None else at.get("scales") or []
    factors: list[float] = [1.0] * x.dim()
    targets: list[Any] = list(x.shape)
    policy = at.get("keep_aspect_ratio_policy", "stretch")
    if sizes and policy != "stretch":
        shares = [s / x.shape[a] for a, s in zip(axes, sizes, strict=True)]
        share = min(shares) if policy == "not_larger" else max(shares)
        sizes = [int(share * x.shape[a] + 0.5) for a in axes]
        given = [share] * len(axes)
    for i, axis in enumerate(axes):
        size = x.shape[axis]
        if isinstance(size, torch.SymInt):
            if given and given[i] != 1:
                raise SpecError("resizes the batch", found=given[i], expected=1)
            continue
        targets[axis] = sizes[i] if sizes else int(size * np.float32(given[i]))
        factors[axis] = given[i] if given else targets[axis] / size
    return factors, targets


def _native(at: Attributes, x: torch.Tensor, factors: list[float], targets: Any) -> str | None:
    """Return the mode in which PyTorch computes the same, or None if it has none."""
    changed = [i for i, factor in enumerate(factors) if factor != 1]
    exact = all(targets[i] == x.shape[i] * factors[i] for i in changed)
    if not 3 <= x.dim() <= 5 or min(changed, default=2) < 2 or not exact or at.get("antialias", 0):
        return None
    older = at.opset < 11
    place = at.get("coordinate_transformation_mode", "asymmetric" if older else "half_pixel")
    mode = at.get("mode", "nearest")
    if mode == "nearest":
        rounding = at.get("nearest_mode", "floor" if older else "round_prefer_floor")
        multiple = all(targets[i] % x.shape[i] == 0 for i in changed)
        same = (place, rounding) == ("asymmetric", "floor") or (
            (place, rounding) == ("half_pixel", "round_prefer_floor") and multiple
        )
        return "nearest" if same else None
    if not x.is_floating_point() or any(targets[i] == 1 for i in changed):
        return None
    if place not in ("align_corners", "half_pixel", "pytorch_half_pixel"):
        return None
    if mode == "linear":
        return _LINEAR[x.dim()]
    plain = at.get("cubic_coeff_a", -0.75) == -0.75 and not at.get("exclude_outside", 0)
    return "bicubic" if x.dim() == 4 and plain else None


def _along(
    at: Attributes, x: torch.Tensor, axis: int, size: int, factor: float, region: Any
) -> torch.Tensor:
    """Resize one axis: each new position is a weighted sum of old ones."""
    before = int(x.shape[axis])
    older = at.opset < 11
    place = at.get("coordinate_transformation_mode", "asymmetric" if older else "half_pixel")
    at_old = _positions(place, size, before, factor, region)
    if at.get("mode", "nearest") == "nearest":
        rounding = at.get("nearest_mode", "floor" if older else "round_prefer_floor")
        index = np.clip(_rounded(at_old, rounding), 0, before - 1).astype(np.int64)
        y = x.index_select(axis, torch.from_numpy(index))
    elif not x.is_floating_point():
        raise SpecError("interpolates whole numbers", found=str(x.dtype))
    else:
        matrix = torch.from_numpy(_weights(at, at_old, before, factor)).to(x.dtype)
        y = (x.movedim(axis, -1) @ matrix.t()).movedim(-1, axis)
    outside = (at_old < 0) | (at_old > before - 1)
    if place == "tf_crop_and_resize" and outside.any():
        shape = [-1 if i == axis else 1 for i in range(x.dim())]
        value = at.get("extrapolation_value", 0.0)
        y = torch.where(torch.from_numpy(outside).reshape(shape), value, y).to(x.dtype)
    return y


def _positions(place: str, size: int, before: int, factor: float, region: Any) -> Known:
    """Old positions of the new ones."""
    new = np.arange(size, dtype=np.float64)
    if place == "align_corners":
        return new * (before - 1) / (size - 1) if size != 1 else new * 0
    if place == "asymmetric":
        return new / factor
    if place == "tf_crop_and_resize":
        first, last = region[0] * (before - 1), region[1] * (before - 1)
        return first + (new * (last - first) / (size - 1) if size != 1 else (last - first) / 2)
    if place == "pytorch_half_pixel" and size == 1:
        return new * 0
    shift = before / 2 * (1 - size / (factor * before)) if place == "half_pixel_symmetric" else 0.0
    if place not in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric"):
        raise SpecError("counts positions in another way", found=place)
    return shift + (new + 0.5) / factor - 0.5


def _rounded(positions: Known, rounding: str) -> Known:
    if rounding == "floor":
        return np.floor(positions)
    if rounding == "ceil":
        return np.ceil(positions)
    up = rounding == "round_prefer_ceil"
    return np.floor(positions + 0.5) if up else np.ceil(positions - 0.5)


def _weights(at: Attributes, positions: Known, before: int, factor: float) -> Known:
    """Compute how much each old position counts for each new one; outside, the edge counts."""
    if len(positions) * before > LIMITS.folded_elements:
        raise SpecError(
            "resizes between too many positions",
            found=f"{before:,} and {len(positions):,}",
            expected=f"at most {LIMITS.folded_elements:,} pairs of them",
        )
    cubic = at.get("mode") == "cubic"
    a = at.get("cubic_coeff_a", -0.75)
    narrow = min(factor, 1.0) if at.get("antialias", 0) else 1.0
    reach = math.ceil((2 if cubic else 1) / narrow) + 1
    matrix = np.zeros((len(positions), before))
    for row, position in enumerate(positions):
        near = np.arange(math.floor(position) - reach, math.floor(position) + reach + 1)
        distance = np.abs(near - position) * narrow
        share = _cubic(distance, a) if cubic else np.clip(1 - distance, 0, 1)
        if at.get("exclude_outside", 0):
            share = np.where((near < 0) | (near >= before), 0, share)
        np.add.at(matrix[row], np.clip(near, 0, before - 1), share / share.sum())
    return matrix


def _cubic(t: Known, a: float) -> Known:
    """Keys' kernel."""
    inner = (a + 2) * t**3 - (a + 3) * t**2 + 1
    outer = a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a
    return np.where(t <= 1, inner, np.where(t < 2, outer, 0.0))


def _sample(at: Attributes, x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    names = {"linear": "bilinear", "cubic": "bicubic"}
    mode = at.get("mode", "bilinear")
    return F.grid_sample(
        x, grid, names.get(mode, mode), at.get("padding_mode", "zeros"),
        bool(at.get("align_corners", 0)),
    )  # fmt: skip


def _affine(at: Attributes, theta: torch.Tensor, size: Any) -> torch.Tensor:
    return F.affine_grid(theta, whole(size), bool(at.get("align_corners", 0)))


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
    crd = at.get("mode", "DCR") == "CRD"
    y = x.reshape(b, c, h // n, n, w // n, n)
    y = y.permute(0, 1, 3, 5, 2, 4) if crd else y.permute(0, 3, 5, 1, 2, 4)
    return y.reshape(b, c * n**2, h // n, w // n)


def _fold(at: Attributes, x: torch.Tensor, image: Any, block: Any) -> torch.Tensor:
    sizes, kernel = whole(image), whole(block)
    n = len(sizes)
    if n != 2:
        raise SpecError("folds other than images", found=f"{n} axes", expected=2)
    strides, dilations = (list(at.get(name) or [1] * n) for name in ("strides", "dilations"))
    pads = list(at.get("pads") or [0] * 2 * n)
    padded = tuple(size + a + b for size, a, b in zip(sizes, pads[:n], pads[n:], strict=True))
    y = F.fold(x, padded, tuple(kernel), tuple(dilations), 0, tuple(strides))
    for axis, size in enumerate(sizes):
        y = y.narrow(2 + axis, pads[axis], size)
    return y


IMAGES: OnnxTable = {
    "Resize": OnnxRow(_resize, known=(1, 2, 3), since=10),
    "Upsample": OnnxRow(_resize, known=(1,), since=7),
    "GridSample": OnnxRow(_sample),
    "AffineGrid": OnnxRow(_affine, known=(1,)),
    "Col2Im": OnnxRow(_fold, known=(1, 2)),
    "DepthToSpace": OnnxRow(_depth_to_space),
    "SpaceToDepth": OnnxRow(_space_to_depth),
}
