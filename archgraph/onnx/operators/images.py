"""ONNX operators on images: resizing, grid sampling, and rearranging blocks of pixels."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn import functional as F

from archgraph.errors import SpecError
from archgraph.onnx.operators.row import Attributes, Known, OnnxRow, OnnxTable, integers

# Transformation and rounding of PyTorch's nearest mode; the second pair only for whole factors.
_NEAREST = (["asymmetric", "floor"], ["half_pixel", "round_prefer_floor"])
_SMOOTH = ("align_corners", "half_pixel", "pytorch_half_pixel")
_LINEAR = {3: "linear", 4: "bilinear", 5: "trilinear"}


def _resize(at: Attributes, x: Tensor, *rest: Known | None) -> Tensor:
    """Resize with the PyTorch operator that computes the same.

    Raises:
        SpecError: If PyTorch does not have such an operator.
    """
    # Until opset 10 the scales are the only input, or an attribute.
    _, scales, sizes = (*((None, *rest) if len(rest) == 1 else rest), None, None, None)[:3]
    at.refuse("keep_aspect_ratio_policy", "stretch")
    factors, targets = _sizes(at, x, scales, integers(sizes))
    if not factors:
        return x
    name = _native(at, x, factors, targets)
    if name is None:
        options = ", ".join(map(str, _options(at)))
        raise SpecError(
            "resizes in a way for which PyTorch does not have an operator",
            found=f"{[*x.shape]} to {targets}, {options}",
        )
    corners = _options(at)[1] == "align_corners" or (None if name == "nearest" else False)
    return F.interpolate(x, targets[2:], mode=name, align_corners=corners)


def _options(at: Attributes) -> tuple[str, str, str]:
    """Return mode, coordinate transformation and rounding, which are fixed before opset 11."""
    older = at.opset < 11
    return (
        at.get("mode", "nearest"),
        at.get("coordinate_transformation_mode", "asymmetric" if older else "half_pixel"),
        at.get("nearest_mode", "floor" if older else "round_prefer_floor"),
    )


def _sizes(
    at: Attributes, x: Tensor, scales: Known | None, sizes: list[int]
) -> tuple[dict[int, float | None], list[int]]:
    """Return the factor of each axis that changes (None if its new size is set), and all sizes."""
    axes = [a % x.dim() for a in at.get("axes") or range(x.dim())]
    shares = [float(v) for v in np.ravel(scales)] if scales is not None else at.get("scales") or []
    targets: list[int] = list(x.shape)
    if not sizes:
        factors = dict(zip(axes, shares, strict=True))
        targets = [_scaled(size, factors.get(axis, 1.0), axis) for axis, size in enumerate(x.shape)]
        return {axis: factor for axis, factor in factors.items() if factor != 1}, targets
    for axis, size in zip(axes, sizes, strict=True):
        # If the user opened the batch size, the file still has a number.
        targets[axis] = size if axis else _batch(x, size)
    # Compare symbolic sizes as expressions, since `==` would fix them.
    same = [statically_known_true(a == b) for a, b in zip(targets, x.shape, strict=True)]
    return {axis: None for axis in axes if not same[axis]}, targets


def _batch(x: Tensor, size: int) -> int:
    """Return the new size of the batch; that of the tensor, if the tensor's size is open."""
    opened = isinstance(x.shape[0], torch.SymInt) and not isinstance(size, torch.SymInt)
    return x.shape[0] if opened else size


def _scaled(size: int, factor: float, axis: int) -> int:
    """Return the size of an axis after resizing."""
    if not isinstance(size, torch.SymInt):
        # Compute in float32 as ONNX does, since rounding may decide between two sizes.
        return int(size * np.float32(factor))
    if factor != 1 and not (axis and float(factor).is_integer()):
        raise SpecError("resizes an open size", found=factor, expected="a whole number")
    return size * int(factor)


def _native(
    at: Attributes, x: Tensor, factors: Mapping[int, float | None], targets: list[int]
) -> str | None:
    """Return the mode of PyTorch that computes the same; None if there is none."""
    # A factor may be a rounded quotient of two sizes.
    exact = all(
        factor is None or math.isclose(targets[axis], x.shape[axis] * factor, rel_tol=1e-6)
        for axis, factor in factors.items()
    )
    if not 3 <= x.dim() <= 5 or min(factors) < 2 or not exact or at.get("antialias", 0):
        return None
    mode, *nearest = _options(at)
    if mode == "nearest":
        multiple = all(statically_known_true(targets[a] % x.shape[a] == 0) for a in factors)
        return "nearest" if nearest in _NEAREST[: 1 + multiple] else None
    if any(statically_known_true(targets[a] == 1) for a in factors):
        return None
    return _smooth(at, x)


def _smooth(at: Attributes, x: Tensor) -> str | None:
    """Return the mode of PyTorch that interpolates in the same way; None if there is none."""
    mode, transformation, _ = _options(at)
    if not x.is_floating_point() or transformation not in _SMOOTH:
        return None
    if mode == "linear":
        return _LINEAR[x.dim()]
    same = at.get("cubic_coeff_a", -0.75) == -0.75 and not at.get("exclude_outside", 0)
    return "bicubic" if x.dim() == 4 and same else None


def _sample(at: Attributes, x: Tensor, grid: Tensor) -> Tensor:
    mode: str = at.get("mode", "bilinear")
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)  # names since opset 20
    padding, corners = at.get("padding_mode", "zeros"), bool(at.get("align_corners", 0))
    return F.grid_sample(x, grid, mode, padding, corners)


def _affine(at: Attributes, theta: Tensor, size: Known) -> Tensor:
    return F.affine_grid(theta, integers(size), bool(at.get("align_corners", 0)))


def _depth_to_space(at: Attributes, x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    n = at.need("blocksize")
    if at.get("mode", "DCR") == "CRD":
        return F.pixel_shuffle(x, n)
    y = x.reshape(b, n, n, c // n**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return y.reshape(b, c // n**2, h * n, w * n)


IMAGES: OnnxTable = {
    "Resize": OnnxRow(_resize, known=(1, 2, 3), since=10),
    "Upsample": OnnxRow(_resize, known=(1,), since=7),
    "GridSample": OnnxRow(_sample),
    "AffineGrid": OnnxRow(_affine, known=(1,)),
    "DepthToSpace": OnnxRow(_depth_to_space),
}
