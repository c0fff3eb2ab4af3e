"""Convert rows of user data to a data set, in the same way for all sources.

The functions of this module set rows aside for tests, number the classes, compute the statistics of
images and columns, and record the clients of rows. The same rows give the same data set for
tensors, a table, a folder and a function.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from archgraph.data.partition import stratified_order
from archgraph.data.values import Dataset, InputKind, Moments, Split, channel_statistics
from archgraph.errors import DataError
from archgraph.federation.metrics import IGNORED
from archgraph.hints import unknown

SHARE = 0.2
"""Default fraction of the rows that is set aside for tests."""
MOST_CLASSES = 2**20
MOST_COMPARED = 2**22  # values, in the first rows
NOISE = 1e-12  # relative size of differences that count as rounding errors


@dataclass(frozen=True, eq=False)
class Records:
    """Rows with their targets.

    Attributes:
        inputs: Dict from the names of a model's inputs, in order, to tensors ``[row, ...]``. A
            single input may have any name.
        targets: int64, bool or float32 ``[row, ...]``, as in :class:`Split`.
        clients: The client of each row; None if the data does not name clients.
    """

    inputs: Mapping[str, Tensor]
    targets: Tensor
    clients: tuple[Hashable, ...] | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.targets)

    def at(self, positions: np.ndarray) -> Records:
        """Return the rows at these positions, in this order."""
        chosen = torch.from_numpy(positions)
        clients = self.clients and tuple(self.clients[i] for i in positions)
        inputs = {name: rows[chosen] for name, rows in self.inputs.items()}
        return Records(inputs, self.targets[chosen], clients)


def parted(rows: Records, share: float | None = None) -> tuple[Records, Records]:
    """Split rows into training and test rows, with a fraction of each client's rows for tests.

    The test rows contain all classes in proportion. They do not depend on the seed of the run, so
    all runs use the same test rows. Every client keeps at least one training row.

    Raises:
        DataError: If there would be no training row or no test row.

    Example:
        >>> rows = Records({"x": torch.arange(10.0)}, torch.arange(10) % 2)
        >>> train, test = parted(rows, 0.2)
        >>> len(train), sorted(test.targets.tolist())
        (8, [0, 1])
    """
    share = share or SHARE
    labels = rows.targets.numpy()
    classed = labels.ndim == 1 and labels.dtype == np.int64
    labels = labels if classed else np.zeros(len(rows), np.int64)
    chosen = []
    for positions in owners(rows, len(rows)).values():
        count = min(round(share * len(positions)), len(positions) - 1)
        chosen.append(positions[stratified_order(labels[positions], 0)[: max(count, 0)]])
    # In the order of the source, so that runs over the same rows are bit-identical.
    test = np.sort(np.concatenate(chosen))
    train = np.setdiff1d(np.arange(len(rows)), test)
    if not (len(train) and len(test)):
        numbers = f"{len(train)} to train on, {len(test)} to test on"
        hint = "enlarge the share for tests" if len(train) else None
        raise DataError("too few rows", where="data.test", found=numbers, hint=hint)
    return rows.at(train), rows.at(test)


def divided(
    rows: Records, clients: tuple[Hashable, ...] | None, count: int | None, share: float | None
) -> tuple[Records, Records]:
    """Split rows into training and test rows, at a row number or with :func:`parted`.

    Args:
        rows: Rows without clients.
        clients: The client of each row, at least of each training row. Default: no clients.
        count: Number of training rows, which come first. Default: use `share`.
        share: Fraction of the rows that :func:`parted` sets aside for tests.

    Example:
        >>> rows = Records({"x": torch.arange(3.0)}, torch.arange(3) % 2)
        >>> [len(part) for part in divided(rows, ("a", "b"), 2, None)]
        [2, 1]
    """
    if count is None:
        return parted(dataclasses.replace(rows, clients=clients), share)
    positions = np.arange(len(rows))
    train, test = rows.at(positions[:count]), rows.at(positions[count:])
    return dataclasses.replace(train, clients=clients and clients[:count]), test


def check_apart(
    exact: Tensor,
    rounded: Tensor,
    where: str,
    names: Sequence[str] = (),
) -> None:
    """Check that most different numbers stay different when they are rounded to 32 bits.

    Args:
        exact: The numbers, float64 ``[row, ...]``.
        rounded: The same numbers, rounded to 32 bits.
        where: Name of the numbers, for errors.
        names: Names of the columns, if the columns have names.

    Raises:
        DataError: If most of the different values of a column become equal.

    Example:
        >>> seconds = torch.arange(9, dtype=torch.float64) + 1.7e9
        >>> check_apart(seconds - 1.7e9, (seconds - 1.7e9).float(), "time")
        >>> rounding = torch.tensor([0.1 + 0.2, 0.3], dtype=torch.float64)
        >>> check_apart(rounding, rounding.float(), "a constant")
        >>> check_apart(seconds, seconds.float(), "time")
        Traceback (most recent call last):
        archgraph.errors.DataError: time: values become equal when they are rounded to 32 bits; \
found 1 of 9 different values; expected values that differ in 32 bits; subtract a constant from \
them, or use their logarithms
    """
    if not exact.numel():
        return
    # Count distinct values of each sorted column: a difference of 0 is a repeated value. Only in
    # the first rows: sorting all of a large table would take longer than reading it.
    some = max(MOST_COMPARED // max(exact[:1].numel(), 1), 64)
    before, after = (x[:some].flatten(1).sort(0).values for x in (exact[:, None], rounded[:, None]))
    # Values that differ by rounding errors alone (0.1 + 0.2 and 0.3) count as one.
    least, most = before[:1].amin(0), before[-1:].amax(0)
    distinct, left = ((x.diff(dim=0) != 0).sum(0) + 1 for x in (before, after))
    spread = most - least > NOISE * torch.maximum(least.abs(), most.abs())
    for column in torch.nonzero((left * 2 <= distinct) & spread)[:1, 0].tolist():
        raise DataError(
            "values become equal when they are rounded to 32 bits",
            where=f"{where}: {names[column]}" if names else where,
            found=f"{left[column]} of {distinct[column]} different values",
            expected="values that differ in 32 bits",
            hint="subtract a constant from them, or use their logarithms",
        )


def owners(rows: Records, count: int) -> dict[Hashable, np.ndarray]:
    """Return a dict from each client, in order of appearance, to the indices of its rows.

    If the rows do not have clients, the only key is None.

    >>> rows = Records({}, torch.zeros(3), ("b", "a", "b"))
    >>> {client: own.tolist() for client, own in owners(rows, 3).items()}
    {'b': [0, 2], 'a': [1]}
    """
    if rows.clients is None:
        return {None: np.arange(count)}
    by_client: dict[Hashable, list[int]] = {}
    for position, client in enumerate(rows.clients):
        by_client.setdefault(client, []).append(position)
    return {client: np.array(positions, np.int64) for client, positions in by_client.items()}


def number_classes(
    names: Sequence[str], order: Callable[[str], str | int] = str
) -> tuple[Tensor, tuple[str, ...]]:
    """Return the class number of each row, and the class names, sorted with the key ``order``.

    Example:
        >>> number_classes(["b", "a", "b"])
        (tensor([1, 0, 1]), ('a', 'b'))
        >>> number_classes(["10", "9"], int)[1]
        ('9', '10')
    """
    known = tuple(sorted(set(names), key=order))
    return numbered(names, known), known


def numbered(names: Sequence[str], known: Sequence[str], at: Callable[[int], str] = str) -> Tensor:
    """Return the index of each name in ``known``, int64 ``[row]``.

    Raises:
        DataError: If a name is not in ``known``. ``at`` returns the location of its row.
    """
    number = {name: i for i, name in enumerate(known)}
    for row, name in enumerate(names):
        if name not in number:
            message = "is not one of the known classes or categories"
            raise DataError(message, where=at(row), **unknown(name, known))
    return torch.tensor([number[name] for name in names], dtype=torch.int64)


def dataset_of_rows(
    name: str,
    kind: InputKind | None,
    train: Records,
    test: Records,
    *,
    labels: tuple[str, ...] = (),
    measure: Moments | None = None,
) -> Dataset:
    """Build a data set from rows; images are normalised by the statistics of the training rows.

    Args:
        name: Name of the data set.
        kind: Kind of the inputs. Default: `image`, `tensor` or `text`, from their type and shape.
        train: Training rows, with the clients that own them.
        test: Test rows.
        labels: Names of the classes. Default: their numbers.
        measure: Function that computes the mean and deviation of each column. Default: columns are
            not normalised.

    Raises:
        DataError: If a split is empty, there is only one class, or the splits differ in form.
    """
    _check_splits(name, train, test)
    first, *others = train.inputs
    inputs = train.inputs[first]
    kind = kind or _kind_of(inputs)
    if kind == "image":
        measure = channel_statistics
    mean, std = (None, None) if measure is None else measure(inputs)

    def split(rows: Records) -> Split:
        beside = {key: rows.inputs[key] for key in others}  # in the order of the train split
        return Split(rows.inputs[first], rows.targets, mean, std, beside)

    counted = _classes(name, train.targets, test.targets, labels)
    classes = len(labels) or counted
    by_client = {} if train.clients is None else owners(train, len(train))
    return Dataset(
        name,
        kind,
        classes,
        tuple(inputs.shape[1:]),
        split(train),
        split(test),
        labels or tuple(map(str, range(classes or 0))),
        tuple(train.inputs) if others else (),
        {str(client): positions for client, positions in by_client.items()},
        measure=measure,
    )


def _check_splits(name: str, train: Records, test: Records) -> None:
    """Raise if a split is empty, or the names of inputs differ between the splits."""
    for part, rows in (("train", train), ("test", test)):
        if len(rows) == 0:
            raise DataError("has no examples", where=f"{name}: {part}")
    if test.inputs.keys() != train.inputs.keys():
        raise DataError(
            "inputs have other names than in the train split",
            where=f"{name}: test",
            found=", ".join(test.inputs),
            expected=", ".join(train.inputs),
        )


def _kind_of(inputs: Tensor) -> InputKind:
    """Return the kind of inputs, from their type and shape."""
    if inputs.dtype == torch.uint8 and inputs.dim() == 4:
        return "image"
    return "tensor" if inputs.is_floating_point() else "text"


def _classes(where: str, train: Tensor, test: Tensor, labels: Sequence[str]) -> int | None:
    """Return the number of classes; None if the targets are numbers."""
    if train.is_floating_point():
        return None
    if train.dtype == torch.bool:
        return train.shape[1]
    real = train[train != IGNORED]
    if not len(real) or bool((real == real[0]).all()):
        number = int(real[0]) if len(real) else -1
        names = dict(enumerate(labels))
        value = f"class {names.get(number, number)}" if len(real) else "none"
        raise DataError("all targets are the same class", where=f"{where}: train", found=value)
    classes = int(max(train.max(), test.max())) + 1
    if classes > MOST_CLASSES:
        raise DataError(
            "too many classes",
            where=where,
            found=f"class {classes - 1}",
            expected=f"at most {MOST_CLASSES} classes, counted from 0",
            hint="to predict numbers, use floating point numbers",
        )
    return classes
