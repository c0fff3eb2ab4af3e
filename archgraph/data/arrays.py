"""Convert arrays of any package to dense tensors."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from archgraph.data.rows import check_apart
from archgraph.errors import DataError

Text = np.ndarray
"""An array of text. (Tensors cannot contain text.)"""

# pandas' name for the kind of an array's Python values → the type that they are converted to.
_TYPES = {
    "boolean": bool,
    "string": str,
    "bytes": str,
    "integer": np.int64,
    "floating": np.float64,
    "mixed-integer-float": np.float64,
    "decimal": np.float64,
}


def array_of(value: object, where: str) -> Tensor | Text:
    """Convert a tensor, an array, a table, a list, a number or a Pillow image to a tensor.

    Sparse arrays become dense. Text stays an array of text.

    Args:
        value: The user's value.
        where: Name of the value, for errors.

    Raises:
        DataError: If the value contains anything other than numbers and text, or has masked values.

    Example:
        >>> array_of(torch.tensor([[0, 2]]).to_sparse(), "x")
        tensor([[0, 2]])
    """
    _check_present(value, where)
    items: list[object] = list(value) if isinstance(value, list | tuple) else []
    tensors = [_dense(item) for item in items if isinstance(item, Tensor)]
    if len(tensors) == len(items) and len({tensor.shape for tensor in tensors}) == 1:
        return torch.stack(tensors)
    if isinstance(value, Tensor):
        return _dense(value)
    if hasattr(value, "toarray"):  # of scipy.sparse
        value = value.toarray()
    array = _numpy(value, items, where)
    if array.dtype.kind in "US":
        return array.astype(str)
    wide = array.dtype == np.uint64 and bool((array > np.iinfo(np.int64).max).any())
    if array.dtype.kind not in "biufc" or wide:
        raise DataError(
            "has values that do not fit into signed 64-bit numbers",
            where=where,
            found=f"{what(value)}, {array.dtype}",
            hint="for dates, count days: (dates - dates.min()) / np.timedelta64(1, 'D')",
        )
    if hasattr(value, "getbands"):  # Pillow's, whose channels come last
        array = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
    # A copy: torch cannot share memory with negative strides, read-only memory, or numbers of the
    # other byte order.
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C"))


def _check_present(value: object, where: str) -> None:
    """Raise if the value is None or has masked values, which must not be used as data."""
    if value is None:
        raise DataError("is missing", where=where, found="nothing", expected="numbers or names")
    if isinstance(value, torch.masked.MaskedTensor) or np.ma.is_masked(value):
        raise DataError(
            "has masked values",
            where=where,
            found=what(value),
            hint="remove these examples, or fill them: array.filled(0); targets of class -100 are "
            "ignored",
        )


def _numpy(value: object, items: list[object], where: str) -> np.ndarray:
    """Return a value, or the items of a list, as an array of numbers or text."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise DataError(
            "parts differ in shape",
            where=where,
            found=what(value),
            hint="pad or cut them to one shape",
        ) from error
    if array.dtype.kind == "U" and not all(isinstance(i, str | np.ndarray | list) for i in items):
        array = np.array(items, object)  # NumPy converts numbers to text where both occur
    return _typed(array, where) if array.dtype == object else array


def real_numbers(rows: Tensor, where: str) -> Tensor:
    """Convert floating point numbers to float32; integers and booleans stay unchanged.

    Raises:
        DataError: If numbers are complex or not finite, or if rounding to 32 bits makes most of the
            different numbers equal.
    """
    if rows.is_complex():
        raise DataError(
            "are complex numbers",
            where=where,
            found=f"{str(rows.dtype).removeprefix('torch.')} {list(rows.shape)}",
            expected="real numbers",
            hint="torch.view_as_real(x) puts real and imaginary part on a last axis of size 2",
        )
    if not rows.is_floating_point():
        return rows
    single = rows.to(torch.float32)
    good = single.isfinite()
    good = good.flatten(1).all(1) if rows.dim() > 1 else good.reshape(-1)
    for position in (~good).nonzero()[:1].flatten().tolist():
        bad = f"{int((~good).sum())} of {len(good)} examples have NaN or infinity"
        raise DataError(
            "is not finite", where=f"{where}[{position}]", hint=f"{bad}: fill or remove them"
        )
    if rows.dtype == torch.float64 and rows.dim():
        check_apart(rows, single, where)
    return single


def what(value: object) -> str:
    """Describe a value for an error message.

    >>> what(torch.zeros(2, 3)), what([1, 2]), what(None)
    ('Tensor [2, 3]', 'list of 2', 'nothing')
    """
    if isinstance(value, Tensor | np.ndarray):
        return f"{type(value).__name__} {list(value.shape)}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of {len(value)}"
    return "nothing" if value is None else type(value).__name__


def _dense(value: Tensor) -> Tensor:
    value = value.detach().cpu()
    return value if value.layout == torch.strided else value.to_dense()


def _typed(array: np.ndarray, where: str) -> np.ndarray:
    """Convert an array of Python objects to the type that they have in common."""
    import pandas as pd

    cells = array.ravel()
    for position in np.flatnonzero(pd.isna(cells))[:1]:
        at = f"{where}[{np.unravel_index(position, array.shape)[0]}]" if array.ndim else where
        hint = "fill missing values, or remove these examples"
        raise DataError("a value is missing", where=at, found=str(cells[position]), hint=hint)
    # Python counts a bool as an integer, but a mixture of both is a mistake.
    dtype = _TYPES.get(pd.api.types.infer_dtype(cells, skipna=False))
    if dtype is None:
        raise DataError(
            "is not of one type",
            where=where,
            found=" and ".join(sorted({type(cell).__name__ for cell in cells})),
            expected="numbers, text, or true and false",
        )
    return array.astype(dtype)
