"""Read the user's choice of axes, for ``take``, ``narrow`` and ``widen``.

``0.5`` and ``{"layer1.*": 0.5}`` are shares: fractions of axes to keep, or factors in ``widen``.
``sizes={"heads": 4}`` sets the size of an axis, and ``positions={"fc1.out": [0, 2, 5]}`` lists the
positions (indices) to keep. A share for several axes cuts at most one axis of every product of axes
(:meth:`archgraph.analysis.axes.Axes.independent`). Sizes and positions apply to each axis that
matches.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from archgraph.analysis.axes import Axes, Axis
from archgraph.errors import RewriteError
from archgraph.hints import listed

# One fraction for every width, or a dict from axis name, role or pattern to fraction. One fraction
# for every width does not apply to ranks of adapters.
OneShare: TypeAlias = float | str  # 0.5 or "50%"
Shares: TypeAlias = (
    OneShare | Mapping[str, OneShare] | Mapping[Axis, OneShare] | Mapping[str | Axis, OneShare]
)
Sizes: TypeAlias = Mapping[str, int] | Mapping[Axis, int] | Mapping[str | Axis, int]
Positions: TypeAlias = Mapping[str, Any] | Mapping[Axis, Any] | Mapping[str | Axis, Any]
LARGEST_FACTOR = 16  # a larger number is more likely a size
_PERCENT = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?) ?%\s*")
Rounding: TypeAlias = Literal["ceil", "floor"]


def chosen_axes(
    solved: Axes,
    shares: Shares | None,
    sizes: Sizes | None = None,
    positions: Positions | None = None,
    *,
    grow: bool = False,
    rounding: Rounding = "ceil",
    allow_nothing: bool = False,
) -> tuple[dict[Axis, int], dict[Axis, npt.NDArray[np.int64]]]:
    """Return a dict from axis to new size, and a dict from axis to the positions (indices) to keep.

    The second dict contains only the axes in ``positions``. In each argument, a key may be an axis,
    or a name, role or pattern that matches axes. Positions override sizes, and sizes override
    shares. In each dict, later items override earlier ones. An axis keeps at least one position.

    Shares that change nothing are an error. Otherwise, a client whose shares match only pinned axes
    would train the full model unnoticed.

    Args:
        solved: Axes of the graph.
        shares: One fraction in (0, 1] for all widths, or a dict from axis to fraction.
        sizes: Dict from axis to its number of positions.
        positions: Dict from axis to the positions to keep, each at most once.
        grow: If True, axes become wider: ``shares`` are factors of at least 1, sizes are at least
            the present sizes, and positions may repeat but must include every old position.
        rounding: How a fraction of an axis is rounded to a size.
        allow_nothing: If True, accept shares that change nothing.

    Raises:
        RewriteError: If the choice is empty; if a value is not a possible share, factor, size or
            list of positions; if shares or factors other than 1 change nothing and
            ``allow_nothing`` is False.
        AxisError: If an axis does not exist or is pinned.

    Example:
        >>> import torch
        >>> from archgraph.analysis.axes import axes
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> solved = axes(trace(net, torch.zeros(1, 3)).graph)
        >>> (
        ...     [*chosen_axes(solved, 0.3)[0].values()],
        ...     [*chosen_axes(solved, None, {"channels": 4})[0].values()],
        ... )
        ([3], [4])
    """
    if all(choice is None for choice in (shares, sizes, positions)):
        raise RewriteError(
            "no axes are chosen",
            expected="a share such as 0.5, sizes={axis: 4} or positions={axis: [0, 2, 5]}",
        )
    if rounding not in get_args(Rounding):
        raise RewriteError("unknown rounding", found=rounding, expected="ceil or floor")
    requested = _by_axis(solved, percent(shares), "a factor" if grow else "a share", share=True)
    by_share = {axis: _number(axis, share, grow) for axis, share in requested}
    counts = {axis: _rounded(axis, share, rounding) for axis, share in by_share.items()}
    requested = _by_axis(solved, sizes, "a dict from axis to size")
    counts |= {axis: _size(axis, size, grow) for axis, size in requested}
    requested = _by_axis(solved, positions, "a dict from axis to positions")
    chosen = {axis: _index(axis, index, grow) for axis, index in requested}
    if not (chosen or allow_nothing):
        _check_changes(solved, shares, by_share, counts)
    return counts, chosen


def _rounded(axis: Axis, share: float, rounding: Rounding) -> int:
    """Return the number of positions that a fraction of an axis has, at least one."""
    # 0.07 × 100 is 7.000000000000001: rounding up must not make that 8.
    exact = round(share * axis.size, 9)
    return max(math.floor(exact) if rounding == "floor" else math.ceil(exact), 1)


def _size(axis: Axis, size: Any, grow: bool) -> int:
    """Check the new size of an axis: at most the present size, or with ``grow`` at least it."""
    low, high = (axis.size, math.inf) if grow else (1, axis.size)
    integral = isinstance(size, numbers.Integral) and not isinstance(size, bool)
    if not integral or not low <= size <= high:
        bounds = f"a whole number from {low}" + ("" if grow else f" to {high}")
        hint = "take and narrow make axes narrower" if integral and grow else None
        raise RewriteError(
            "size out of range", where=axis.name, found=size, expected=bounds, hint=hint
        )
    return int(size)


def _check_changes(
    solved: Axes, shares: Any, by_share: Mapping[Axis, float], counts: Mapping[Axis, int]
) -> None:
    """Check that shares other than 1 change at least one axis.

    Sizes may equal the present sizes, because the user wrote them explicitly.

    Raises:
        RewriteError: If nothing changes. The message gives the reasons for the first few axes.
    """
    asked = [axis for axis, share in by_share.items() if share != 1]
    nothing = not asked and (isinstance(shares, Mapping) or shares in (None, 1))
    if nothing or any(count != axis.size for axis, count in counts.items()):
        return
    # No free axis was chosen, or every share rounds to the present size.
    what = "rounded to the present size" if asked else "pinned"
    reasons = {a.name: str(a.size) if asked else a.reason for a in asked or solved.pinned}
    few = listed(f"{name} ({reason})" for name, reason in reasons.items())
    raise RewriteError(
        "changes nothing: every axis keeps its size",
        found=f"{shares}, and {f'{what}: {few}' if reasons else 'no axis'}",
        hint="`explain` shows what would free an axis; for the full model, omit the choice "
        "(in Python: allow_nothing=True)",
    )


def _index(axis: Axis, requested: Any, grow: bool) -> npt.NDArray[np.int64]:
    """Return the old position of each new position of an axis."""
    index, problem, actual = _whole_numbers(axis, requested), "", requested
    old, new = set(range(axis.size)), set(index.tolist())
    if outside := sorted(new - old):
        problem, actual = "position outside the axis", f"{outside[0]}, of 0 to {axis.size - 1}"
    elif grow and (missing := sorted(old - new)):
        problem, actual = "every old position must occur", f"{missing[0]} is missing"
    elif not grow and not 0 < len(index) == len(new):
        problem = "positions must be distinct and not empty"
    if problem:
        raise RewriteError(problem, where=axis.name, found=actual)
    return index


def _by_axis(
    solved: Axes, choice: Any, expected: str, *, share: bool = False
) -> Iterator[tuple[Axis, Any]]:
    """Yield each matching axis with its value.

    The value is 1 for an axis that a share does not cut because it cuts another factor of the
    axis' product.
    """
    if choice is None:
        return
    if isinstance(choice, Mapping):
        for key, value in choice.items():
            matching = (solved[key.name],) if isinstance(key, Axis) else solved.match(key)
            for axis in matching:
                if not axis.free:  # passed as an Axis: names match only free axes
                    raise RewriteError("axis cannot change", where=axis.name, found=axis.reason)
            cut = solved.independent(matching) if share else matching
            yield from ((axis, value if axis in cut else 1) for axis in matching)
    elif share and isinstance(choice, numbers.Real) and not isinstance(choice, bool):
        _number(None, choice, expected == "a factor")
        yield from ((axis, choice) for axis in solved.independent())
    else:
        raise RewriteError(
            "cannot choose axes",
            found=repr(choice),
            expected=f"{expected}, or a dict from axis to {expected}" if share else expected,
        )


def percent(value: Any) -> Any:
    """Convert a percentage to a number; return any other value unchanged.

    >>> percent("14.3%"), percent(0.5)
    (0.143, 0.5)
    """
    match = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    return float(Fraction(match[1]) / 100) if match else value


def _number(axis: Axis | None, value: Any, grow: bool) -> float:
    """Check a share in (0, 1], or with ``grow`` a factor from 1 to ``LARGEST_FACTOR``."""
    value = percent(value)
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not (1 <= value <= LARGEST_FACTOR if grow else 0 < value <= 1):
        bounds = f"from 1 to {LARGEST_FACTOR}" if grow else "in (0, 1]"
        raise RewriteError(
            "not a factor" if grow else "not a share",
            where=axis.name if axis is not None else None,
            found=value,
            expected=f"a number {bounds}",
            hint=_size_hint(axis, value) if number else _positions_hint(value),
        )
    # Read a float32 as the decimal that it prints, e.g. 0.1 instead of 0.10000000149.
    return float(str(value)) if isinstance(value, np.floating) else float(value)


def _size_hint(axis: Axis | None, number: float) -> str:
    is_size = axis is not None and number > 1 and float(number).is_integer()
    size = f"{axis.name!r}: {int(number)}" if axis is not None and is_size else "axis: 4"
    return f"to set numbers of positions, pass sizes={{{size}}}"


def _positions_hint(value: Any) -> str | None:
    several = isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, str)
    return "to choose positions, pass positions={axis: [0, 2, 5]}" if several else None


def _whole_numbers(axis: Axis, requested: Any) -> npt.NDArray[np.int64]:
    try:
        index = np.asarray(requested)
    except ValueError:  # rows of different lengths
        index = np.empty((0, 0))
    integers = not index.size or index.dtype.kind in "iu"  # an empty list has a float dtype
    if isinstance(requested, str) or index.ndim != 1 or not integers:
        raise RewriteError(
            "positions must be a list of whole numbers", where=axis.name, found=repr(requested)
        )
    return index.astype(np.int64)
