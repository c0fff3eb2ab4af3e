"""Arrays of any package as dense tensors, or the reason why they are not."""

from __future__ import annotations

from numbers import Integral, Number

import numpy as np
import torch
from torch import Tensor

from archgraph.data.rows import check_apart
from archgraph.errors import DataError
from archgraph.federation.metrics import IGNORED

Text = np.ndarray
"""An array of text, which no tensor can hold."""

# numpy's letter of a type → what it is called, and what to do instead.
_NOT_NUMBERS = {
    "M": ("are dates", "count from the first: (dates - dates.min()) / np.timedelta64(1, 'D')"),
    "m": ("are spans of time", "count them in a unit: spans / np.timedelta64(1, 's')"),
    "V": ("has named columns", "np.lib.recfunctions.structured_to_unstructured(array)"),
}


def array_of(value: object, where: str, *, ignored: bool = False) -> Tensor | Text:
    """Convert a tensor, an array, a table, a list, a number or a Pillow image.

    Sparse ones become dense. What is text stays an array of text.

    Args:
        value: What a user has.
        where: Its name, for errors.
        ignored: Whether masked integers are classes that count for nothing (-100).

    Raises:
        DataError: If it holds no numbers, or hides some; says what it holds.

    Example:
        >>> array_of(torch.tensor([[0, 2]]).to_sparse(), "x")
        tensor([[0, 2]])
        >>> array_of(np.ma.masked_array([3, 4], [True, False]), "y", ignored=True)
        tensor([-100,    4])
    """
    if value is None:
        raise DataError("is missing", where=where, found="nothing", expected="numbers or names")
    items: list[object] = list(value) if isinstance(value, list | tuple) else []
    tensors = [_dense(item, where, ignored) for item in items if isinstance(item, Tensor)]
    if len(tensors) == len(items) and len({tensor.shape for tensor in tensors}) == 1:
        return torch.stack(tensors)
    if isinstance(value, Tensor):
        return _dense(value, where, ignored)
    if hasattr(value, "toarray"):  # of scipy.sparse
        value = value.toarray()
    picture = hasattr(value, "getbands")  # Pillow's, whose channels come last
    try:
        array = np.ma.asanyarray(value) if np.ma.isMaskedArray(value) else np.asarray(value)
    except (TypeError, ValueError) as error:
        uneven = bool(items)
        raise DataError(
            "parts differ in shape" if uneven else "is not a tensor and does not convert to one",
            where=where,
            found=_unequal(items) or what(value),
            hint="pad or cut them to one shape" if uneven else None,
        ) from error
    if array.dtype.kind == "U" and not all(isinstance(i, str | np.ndarray | list) for i in items):
        array = np.array(items, object)  # NumPy writes numbers among text as text
    if array.dtype == object:
        array = _typed(array, value, where)
    if array.dtype.kind in "US":
        return array.astype(str)
    if array.dtype.kind in _NOT_NUMBERS:
        message, hint = _NOT_NUMBERS[array.dtype.kind]
        raise DataError(message, where=where, found=what(value), hint=hint)
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        message, hint = "are too large for 64 bits with a sign", "np.unique(…, return_inverse=True)"
        hint = f"to number identifiers from 0: {hint}[1]"
        raise DataError(message, where=where, found=array.max(), hint=hint)
    if array.dtype == np.longdouble:
        array = array.astype(np.float64)
    if isinstance(array, np.ma.MaskedArray):
        array = _unmasked(array.data, np.ma.getmaskarray(array), where, ignored)
    if picture:
        array = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
    # A copy: torch can neither share negative strides nor arrays that cannot be written to, nor
    # numbers of the other byte order.
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C"))


def real_numbers(rows: Tensor, where: str) -> Tensor:
    """Return real numbers as float32, finite; integers and booleans unchanged.

    Raises:
        DataError: If they are complex, one is not finite, or most become equal in 32 bits.
    """
    if rows.is_complex():
        raise DataError(
            "are complex numbers",
            where=where,
            found=f"{str(rows.dtype).removeprefix('torch.')} {list(rows.shape)}",
            expected="real numbers",
            hint="torch.view_as_real(x) has real and imaginary part on a last axis of 2",
        )
    if not rows.is_floating_point():
        return rows
    single = rows.to(torch.float32)
    good = single.isfinite()
    good = good.flatten(1).all(1) if rows.dim() > 1 else good.reshape(-1)
    for position in (~good).nonzero()[:1].flatten().tolist():
        bad = f"{int((~good).sum())} of {len(good)} examples have NaN or infinity"
        hint = f"{bad}: fill or remove them"
        raise DataError("is not finite", where=f"{where}[{position}]", hint=hint)
    if rows.dtype == torch.float64 and rows.dim():
        check_apart(rows, single, where)
    return single


def what(value: object) -> str:
    """Describe a value for an error.

    >>> what(torch.zeros(2, 3)), what([1, 2]), what(None)
    ('Tensor [2, 3]', 'list of 2', 'nothing')
    """
    if isinstance(value, Tensor | np.ndarray):
        return f"{type(value).__name__} {list(value.shape)}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of {len(value)}"
    return "nothing" if value is None else type(value).__name__


def _unequal(items: list[object]) -> str:
    """Return the first two shapes that differ, in words; empty where shapes cannot be told."""
    try:
        shapes = [[*np.asarray(item).shape] for item in items]
    except (TypeError, ValueError):
        return ""
    other = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), None)
    return "" if other is None else f"shape {shapes[0]} at 0, and {shapes[other]} at {other}"


def _dense(value: Tensor, where: str, ignored: bool) -> Tensor:
    if isinstance(value, torch.masked.MaskedTensor):
        data, hidden = value.get_data(), ~value.get_mask()
        return torch.from_numpy(_unmasked(data.numpy(), hidden.numpy(), where, ignored))
    if value.is_nested:
        raise DataError(
            "parts differ in shape",
            where=where,
            found=f"a nested tensor of {value.size(0)}",
            hint="pad them to one shape: torch.nested.to_padded_tensor(x, 0)",
        )
    value = value.detach().cpu()
    if value.is_quantized:
        return value.dequantize()
    return value if value.layout == torch.strided else value.to_dense()


def _unmasked(data: np.ndarray, hidden: np.ndarray, where: str, ignored: bool) -> np.ndarray:
    """Return an array without its mask: what it hides must not count as what stands there."""
    if not hidden.any():
        return data
    classes = data.dtype.kind in "iu" or (data.dtype.kind == "b" and data.ndim == 1)
    if ignored and classes:
        return np.where(hidden, IGNORED, data.astype(np.int64))
    every = np.atleast_1d(hidden)
    rows = every.reshape(every.shape[0], -1).any(1)
    raise DataError(
        "has masked values, which are no data",
        where=f"{where}[{int(rows.argmax())}]",
        found=f"masked in {int(rows.sum())} of {rows.size} examples",
        hint="remove these examples, or fill them: array.filled(0)",
    )


def _typed(array: np.ndarray, value: object, where: str) -> np.ndarray:
    """Return an array of Python objects in the type that all of them have."""
    import pandas as pd

    cells = array.ravel()
    missing = np.asarray(pd.isna(cells), bool)
    for position in np.flatnonzero(missing)[:1]:
        numbers = f"{missing.sum()} of {len(missing)} are missing"
        raise DataError(
            "a value is missing",
            where=f"{where}[{np.unravel_index(position, array.shape)[0]}]" if array.ndim else where,
            found=str(cells[position]),
            hint=f"{numbers}: fill them, or remove these examples" if array.ndim else None,
        )
    first: dict[type, int] = {}
    for at, cell in enumerate(cells):
        first.setdefault(type(cell), at)
    for kinds, dtype in (
        ((bool, np.bool_), bool),
        ((str, bytes), str),
        ((Integral,), np.int64),
        ((Number,), np.float64),
    ):
        # A bool is an integer: beside numbers it is one mistake or the other.
        flags = any(issubclass(one, bool | np.bool_) for one in first) and dtype is not bool
        if not flags and all(issubclass(one, kinds) for one in first):
            return array.astype(dtype)
    several = len(first) > 1
    raise DataError(
        "are of several types" if several else "is not a tensor and does not convert to one",
        where=where,
        found=" and ".join(f"{one.__name__} at {at}" for one, at in first.items())
        if several
        else what(value),
        expected="one type for all examples" if several else None,
    )
