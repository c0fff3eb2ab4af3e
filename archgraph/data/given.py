"""Data from Python: tensors, arrays, torch datasets, or a mapping of clients to these."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Hashable, Mapping
from typing import Protocol, TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from archgraph.data.rows import Records, check_apart, dataset_of_rows
from archgraph.data.values import Dataset, check_alike, row_form
from archgraph.errors import DataError
from archgraph.hints import listed
from archgraph.processes.isolation import isolated

FORMS = (
    "(train, test), each a torch dataset or a pair (inputs, targets) of tensors, "
    "or train as a mapping of clients to such"
)
DRAWN_ANEW = (
    "{where}: items differ from one read to the next (random crops, noise); they were read once, "
    "so all rounds see the same values; use `local: {{augment: …}}` for random crops and flips"
)
READ_AGAIN = 16  # items of a split: random transforms show at once, and reading may be slow
# The only input of a model may be called anything.
INPUT = "input"


class Items(Protocol):
    """A torch dataset of the map style."""

    def __len__(self) -> int: ...

    def __getitem__(self, position: int) -> object: ...


def dataset_of(value: object, name: str = "data") -> Dataset:
    """Return a data set from tensors, arrays or torch datasets.

    Images are uint8 ``[example, channel, height, width]``, which are normalised by the training
    examples, or floating point numbers, which are taken as they are; tokens are integers. Targets
    are classes counted from 0 (integers), labels (bool ``[example, class]``) or numbers (floating
    point).

    Args:
        value: A :class:`Dataset`; or ``(train, test)``, each a torch dataset of the map style with
            items ``(input, target)``, or a pair ``(inputs, targets)`` of tensors or arrays. Several
            inputs are a mapping by name. ``train`` may be a mapping of clients to such: then it is
            partitioned already.
        name: Name of the data set, also in errors.

    Raises:
        DataError: If it is something else, its examples differ in shape or type, or a number is not
            finite.

    Example:
        >>> train = torch.rand(6, 3), torch.arange(6) % 2
        >>> dataset_of((train, train))
        Dataset(data: tensor (3,), 2 classes, 6 train, 6 test)
        >>> dataset_of(({"ann": train, "bob": train}, train))
        Dataset(data: tensor (3,), 2 classes, 12 train of 2 clients, 6 test)
    """
    if isinstance(value, Dataset):
        return value
    for part in value if isinstance(value, tuple | list) else (value,):
        _check_columns(part, name)
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise DataError("is not a data set", where=name, found=_what(value), expected=FORMS)
    train, test = value
    rows = (
        _together(
            [(client, _rows(part, f"{name}: train: {client}")) for client, part in train.items()],
            f"{name}: train",
        )
        if isinstance(train, Mapping)
        else _rows(train, f"{name}: train")
    )
    data = dataset_of_rows(name, None, rows, _rows(test, f"{name}: test"))
    # Only after everything is read: a second read may advance the data set's own generators.
    splits = {"train": list(train.values())[:4] if isinstance(train, Mapping) else [train]}
    changing = [
        split
        for split, parts in (splits | {"test": [test]}).items()
        if any(_by_item(part) and _drawn_anew(part) for part in parts)
    ]
    notes = (DRAWN_ANEW.format(where=f"{name}: {' and '.join(changing)}"),) if changing else ()
    return dataclasses.replace(data, notes=notes)


def _check_columns(value: object, where: str) -> None:
    """Raise for a data set of Hugging Face, whose columns do not say what models see."""
    columns = getattr(value, "column_names", None)
    if not columns or not hasattr(value, "set_format"):
        return
    names = columns if isinstance(columns, list) else next(iter(columns.values()))
    raise DataError(
        "is a data set of Hugging Face, whose columns do not say what models see",
        where=where,
        found=listed(names, 8),
        expected='data={"huggingface": dataset, "inputs": COLUMN, "target": COLUMN}',
        hint='for texts "text" instead of "inputs", with "tokenizer" and "length"; a dataset may '
        'be {"train": one, "test": another}',
    )


def _together(parts: list[tuple[Hashable, Records]], where: str) -> Records:
    """Concatenate the rows of all clients, one client after the other."""
    if not parts:
        raise DataError("lists no clients", where=where)
    _, first = parts[0]
    expected = _form(first)
    for client, rows in parts:
        at = f"{where}: {client}"
        if not len(rows):
            raise DataError("a client has no examples", where=at)
        check_alike(_form(rows), expected, at, "clients differ in the form of their data")
    return Records(
        {k: torch.cat([rows.inputs[k] for _, rows in parts]) for k in first.inputs},
        torch.cat([rows.targets for _, rows in parts]),
        tuple(client for client, rows in parts for _ in range(len(rows))),
    )


def _form(rows: Records) -> str:
    """Describe type and shape of a row's inputs and target."""
    tensors = {**rows.inputs, "target": rows.targets}
    return ", ".join(f"{name} {row_form(tensor)}" for name, tensor in tensors.items())


def _rows(value: object, where: str) -> Records:
    """Return the rows of one split, or of one client's part of it."""
    if type(value) is TensorDataset:
        inputs, targets = _pair(value.tensors, where)
    elif isinstance(value, tuple) and len(value) == 2:
        inputs, targets = value
    elif _by_item(value):
        inputs, targets = _items(value, where)
    else:
        # A stream is refused as well: examples are divided among clients by their positions.
        loader = isinstance(value, DataLoader)
        raise DataError(
            "is not a split of a data set",
            where=where,
            found=_what(value),
            expected="a torch dataset with __len__ and __getitem__, or a pair (inputs, targets)",
            hint="pass loader.dataset: batches follow from the experiment" if loader else None,
        )
    by_name = inputs if isinstance(inputs, Mapping) else {INPUT: inputs}
    tensors = {
        str(k): _input(v, f"{where}: {k}" if len(by_name) > 1 else where)
        for k, v in by_name.items()
    }
    target_rows = _target(targets, f"{where}: targets")
    for key, rows in tensors.items():
        if rows.dim() == 0 or target_rows.dim() == 0 or len(rows) != len(target_rows):
            shapes = f"{key} {list(rows.shape)}, targets {list(target_rows.shape)}"
            raise DataError("inputs and targets differ in number", where=where, found=shapes)
    return Records(tensors, target_rows)


def _pair(item: object, where: str) -> tuple[object, object]:
    """Return input and target of an item, or of all items."""
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise DataError(
            "is not a pair (input, target)",
            where=where,
            found=_what(item),
            hint="several inputs are a mapping by the names of the model's inputs: "
            "({'ids': …, 'mask': …}, target)",
        )
    return item[0], item[1]


def _items(value: Items, where: str) -> tuple[object, Tensor]:
    """Read inputs and targets of a torch dataset, item by item."""
    inputs: dict[str | None, list[Tensor]] = collections.defaultdict(list)
    targets = []
    # Not by iteration: torch datasets of the map style need not raise IndexError at their end.
    for position in range(len(value)):
        at = f"{where}[{position}]"
        try:
            item = value[position]
        except Exception as error:  # whatever the user's dataset raises
            problem = f"{type(error).__name__}: {error}"
            raise DataError("an example cannot be read", where=at, found=problem) from error
        one, target = _item(item, at)
        for key, part in one.items():
            inputs[key].append(part)
        targets.append(target)
    stacked = {key: _stack(parts, where) for key, parts in inputs.items()}
    return stacked[None] if None in stacked else stacked, _stack(targets, f"{where}: targets")


def _item(item: object, where: str) -> tuple[dict[str | None, Tensor], Tensor]:
    """Return an item's inputs by name (None for a single input without one), and its target."""
    one, target = _pair(item, where)
    parts = one.items() if isinstance(one, Mapping) else ((None, one),)
    inputs = {key: _array(part, where) for key, part in parts}
    return inputs, _array(target, f"{where}: target")


def _drawn_anew(value: Items) -> bool:
    """Return whether items change from one read to the next (random crops, noise).

    Some items are read again under other seeds; the random state is restored, so that a run
    stays reproducible.
    """
    positions = np.linspace(0, len(value) - 1, min(len(value), READ_AGAIN)).astype(int).tolist()
    reads = []
    # Three seeds: two may draw the same flip.
    for seed in range(3):
        with isolated(torch.Generator().manual_seed(seed)):
            try:
                reads.append([_item(value[position], "") for position in positions])
            except Exception:  # whatever the user's dataset raises: it can be read once
                return True
    return any(
        one.keys() != again.keys()
        or not torch.equal(target, target_again)
        or not all(torch.equal(part, again[key]) for key, part in one.items())
        for first, *others in zip(*reads, strict=True)
        for one, target in [first]
        for again, target_again in others
    )


def _stack(parts: list[Tensor], where: str) -> Tensor:
    if not parts:
        return torch.zeros(0)
    first = row_form(parts[0][None])
    for position, part in enumerate(parts):
        message, at = "examples differ in shape or type", f"{where}[{position}]"
        check_alike(row_form(part[None]), first, at, message)
    return torch.stack(parts)


def _by_item(value: object) -> TypeGuard[Items]:
    """Return whether examples have positions; a subclass of ``TensorDataset`` may change them."""
    listed = hasattr(value, "__getitem__") and hasattr(value, "__len__")
    complete = isinstance(value, str | bytes | tuple | Mapping) or type(value) is TensorDataset
    # What converts to an array (a tensor, a pandas table) has all examples at once.
    return listed and not complete and not hasattr(value, "__array__")


def _array(value: object, where: str) -> Tensor:
    """Convert a tensor, an array, a number or a Pillow image to a tensor."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    picture = hasattr(value, "getbands")  # Pillow's, whose channels come last
    try:
        array = np.asarray(value)
        if picture:
            array = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
        # A copy: torch can neither share negative strides nor arrays that cannot be written to.
        return torch.from_numpy(np.array(array))
    except (TypeError, ValueError) as error:
        message = "is not a tensor and does not convert to one"
        raise DataError(message, where=where, found=_what(value)) from error


def _input(value: object, where: str) -> Tensor:
    """Return inputs as a model takes them: floating point as float32, integers unchanged."""
    rows = _array(value, where)
    if rows.is_floating_point():
        return _single(rows, where)
    if rows.is_complex():
        raise DataError("are complex numbers", where=where)
    return rows.to(torch.uint8) if rows.dtype == torch.bool else rows


def _target(value: object, where: str) -> Tensor:
    """Return targets in one of their three types."""
    rows = _array(value, where)
    if rows.dtype == torch.bool and rows.dim() in (0, 2):
        return rows
    # Types that say one thing and mean another are asked about: each reading trains another model.
    if rows.dtype == torch.bool:
        raise DataError(
            "are booleans without an axis of labels",
            where=where,
            found=row_form(rows),
            hint="for two classes, with a logit each: targets.long(); for one label, with one "
            "logit: targets[:, None]",
        )
    if not rows.is_floating_point():
        return rows.to(torch.int64)
    if rows.dim() == 2 and rows.shape[1] > 1 and bool(((rows == 0) | (rows == 1)).all()):
        raise DataError(
            "are floating point numbers, all 0 or 1",
            where=where,
            found=row_form(rows),
            expected="classes (int), labels (bool), or other numbers to predict",
            hint="for one class each: targets.argmax(1); for several labels: targets.bool()",
        )
    return _single(rows, where)


def _single(rows: Tensor, where: str) -> Tensor:
    """Return finite numbers as float32; refuse those that most of the rounding would merge."""
    single = _finite(rows.to(torch.float32), where)
    if rows.dtype == torch.float64 and rows.dim():
        check_apart(rows, single, where)
    return single


def _finite(rows: Tensor, where: str) -> Tensor:
    good = rows.isfinite()
    good = good.flatten(1).all(1) if rows.dim() > 1 else good.reshape(-1)
    for position in (~good).nonzero()[:1].flatten().tolist():
        hint = f"{int((~good).sum())} of {len(good)} examples have NaN or infinity"
        raise DataError("is not finite", where=f"{where}[{position}]", hint=hint)
    return rows


def _what(value: object) -> str:
    if isinstance(value, Tensor | np.ndarray):
        return f"{type(value).__name__} {list(value.shape)}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of {len(value)}"
    return "nothing" if value is None else type(value).__name__
