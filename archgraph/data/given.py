"""Data passed in Python: tensors, arrays or torch datasets, or a mapping from clients to them."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from archgraph.data.arrays import Text, array_of, real_numbers, what
from archgraph.data.items import (
    Item,
    Items,
    ItemTarget,
    Reading,
    StoredRows,
    Streaming,
    joined_rows,
)
from archgraph.data.rows import Records, dataset_of_rows
from archgraph.data.targets import Meaning, form_of, meaning, raw_targets, target_array
from archgraph.data.values import (
    Dataset,
    ExampleReader,
    Split,
    channel_statistics,
    check_alike,
    row_form,
)
from archgraph.errors import DataError

FORMS = (
    "(train, test), each a torch dataset or a pair (inputs, targets) of tensors, "
    "or train as a mapping of clients to such"
)
HUB = (
    'for a data set of Hugging Face, name its columns: data={"huggingface": dataset, '
    '"inputs": COLUMN, "target": COLUMN}'
)
DRAWN_ONCE = (
    "{where}: items differ from one read to the next (random crops, noise); they were read once, "
    "so all rounds use the same values"
)
NOT_REPEATABLE = (
    "{where}: items differ between two reads with the same seed, so runs are not reproducible: "
    "draw from the global random numbers of torch, NumPy or Python"
)
READ_AGAIN = 16  # items of a split: enough to notice random transforms; reading may be slow
READ_AT_ONCE = 64  # items in memory at a time while a split is read
# The only input of a model may have any name.
INPUT = "input"


class SplitPart(NamedTuple):
    """A split, or one client's part of a split, before its targets are interpreted.

    Attributes:
        where: Name of the part, for errors.
        inputs: Inputs by name, ``[example, ...]``.
        targets: Numbers or text ``[example, ...]``.
        items: The torch dataset from which the examples were read, if it was read item by item.
    """

    where: str
    inputs: dict[str, Tensor]
    targets: Tensor | Text
    items: Items | None = None

    @property
    def form(self) -> str:
        """Description of the type and shape of one input and one target."""
        inputs = ", ".join(f"{name} {row_form(rows)}" for name, rows in self.inputs.items())
        return f"{inputs}, target {form_of(self.targets)}"


def dataset_of(
    value: object,
    name: str = "data",
    task: str | None = None,
    *,
    cache: bool = False,
    examples: int | None = None,
) -> Dataset:
    """Build a data set from tensors, arrays or torch datasets.

    Images are uint8 ``[example, channel, height, width]`` or floating point numbers. Images of type
    uint8 are normalised with the statistics of the training examples; floating point numbers are
    not normalised. Tokens are integers. The task determines how targets are converted
    (:func:`archgraph.data.targets.meaning`). Without a task, targets must be whole numbers, which
    are the classes of the examples.

    Args:
        value: A :class:`Dataset`, or a pair ``(train, test)``. Each of the two is a map-style torch
            dataset with items ``(input, target)``, or a pair ``(inputs, targets)`` of tensors or
            arrays. Several inputs are a mapping from names to values. ``train`` may also be a
            mapping from clients to training data, which determines the partition.
        name: Name of the data set, also in errors.
        task: Name of the learning task; :data:`archgraph.language.task.OWN` for an objective
            without a task.
        cache: If True, read each item of a torch dataset once. By default, training items are read
            again in every pass, with seeds derived from the run's seed. Random crops and noise
            therefore change from pass to pass, and results do not depend on the number of
            processes. Test items are always read once.
        examples: For streams: number of examples read from each client per pass. ``train`` is then
            a mapping from clients to streams. A stream is an iterable (such as an
            ``IterableDataset``) or a function that returns an iterator. Only one minibatch of a
            stream is in memory.

    Raises:
        DataError: If the value is not of these types, examples differ in shape or type, or a number
            is not finite.

    Example:
        >>> train = torch.rand(6, 3), torch.arange(6) % 2
        >>> dataset_of((train, train))
        Dataset(data: tensor (3,), 2 classes, 6 train, 6 test)
        >>> dataset_of(({"ann": train, "bob": train}, train))
        Dataset(data: tensor (3,), 2 classes, 12 train of 2 clients, 6 test)
        >>> words = torch.rand(3, 4), ["cat", "dog", "cat"]
        >>> dataset_of((words, words), task="classification").labels
        ('cat', 'dog')
    """
    if isinstance(value, Dataset):
        return value
    if not isinstance(value, tuple | list) or len(value) != 2:
        hint = HUB if hasattr(value, "column_names") else None
        raise DataError(
            "is not a data set", where=name, found=what(value), expected=FORMS, hint=hint
        )
    train, test = value
    if isinstance(train, Mapping) and any(map(_is_stream, train.values())):
        return _streams(train, _part(test, f"{name}: test"), name, task, examples)
    if examples is not None and not _is_stream(train):
        raise DataError("`examples` is for streams only", where=name, found=examples)
    by_client = _train_parts(train, f"{name}: train")
    parts = [*by_client.values()]
    tested = _part(test, f"{name}: test")
    before = form_of(parts[0].targets)
    if len(tested.targets) and (after := form_of(tested.targets)) != before:
        raise DataError(
            "targets differ from those of the train split",
            where=tested.where,
            found=after,
            expected=before,
        )
    said = meaning([part.targets for part in (*parts, tested)], f"{name}: targets", task)
    # `said` has one more part, the test split.
    triples = zip(by_client, parts, said.parts, strict=False)
    rows = _together([(client, Records(part.inputs, t)) for client, part, t in triples])
    data = dataset_of_rows(
        name, None, rows, Records(tested.inputs, said.parts[-1]), labels=said.labels
    )
    again = None if cache else _reading(parts, said, data)
    # Only after all items are read: a second read may advance the data set's own generators.
    notes = (
        *_changing(parts, f"{name}: train", is_once=again is None),
        *_changing([tested], f"{name}: test", is_once=True),
    )
    return dataclasses.replace(
        data, train=dataclasses.replace(data.train, again=again), notes=notes
    )


def _is_stream(value: object) -> bool:
    """Return whether the examples of a split can be iterated, but not indexed."""
    if isinstance(value, IterableDataset):  # has a `__getitem__`, which raises
        return True
    plain = isinstance(value, str | bytes | Mapping | DataLoader | list | tuple)
    positions = plain or hasattr(value, "__getitem__")
    return not positions and (hasattr(value, "__iter__") or callable(value))


def _streams(
    train: Mapping[Hashable, object],
    tested: SplitPart,
    name: str,
    task: str | None,
    examples: int | None,
) -> Dataset:
    """Return data whose clients read streams; the test examples determine the targets.

    1. Read the first examples of each stream. They must have the shapes and types of the test
       examples. Images are normalised by the statistics of these first examples. Read some of them
       twice, and add a note if they differ under the same seed.
    2. Represent the inputs and targets of the train split by views of one example, which do not
       need memory.

    Raises:
        DataError: If a value is not a stream or can be read only once, or if its examples differ in
            shape or type from those of the test split.
    """
    if type(examples) is not int or examples < 2:
        raise DataError(
            "has streams, whose length is unknown",
            where=name,
            expected="the number of examples in a pass",
            hint="dataset_of(…, examples=1000)",
        )
    firsts = {i * examples: stream for i, stream in enumerate(train.values())}
    where = f"{name}: train"
    for client, stream in train.items():
        _check_stream(stream, f"{where}: {client}")
    said = meaning([tested.targets], f"{name}: targets", task)
    rows = Records(tested.inputs, said.parts[0])
    test = dataset_of_rows(name, None, rows, rows, labels=said.labels)
    reading = Streaming(firsts, _item, where)
    stacked = _Converted(test, said, "examples differ from those of the test split")
    read = functools.partial(_read_stream, reading, stacked)
    begin = [next(read(first, 0, [min(examples, READ_AT_ONCE)])) for first in firsts]  # 1

    def repeats(first: int, rows: Mapping[str, Tensor]) -> bool:
        more, of = next(read(first, 0, [min(examples, READ_AGAIN)]))
        return all(torch.equal(part, rows[key][: len(of)]) for key, part in more.items())

    alike = all(repeats(first, rows) for first, (rows, _) in zip(firsts, begin, strict=True))
    notes = () if alike else (NOT_REPEATABLE.format(where=where),)
    split, total = test.test, examples * len(firsts)
    inputs = {key: torch.cat([rows[key] for rows, _ in begin]) for key in begin[0][0]}
    first, *beside = inputs.values()
    mean, std = channel_statistics(first) if test.kind == "image" else (None, None)
    stands = [one[:1].expand(total, *one.shape[1:]) for one in (first, *beside)]  # 2
    targets = split.targets[:1].expand(total, *split.targets.shape[1:])
    streamed = Split(
        stands[0],
        targets,
        mean,
        std,
        dict(zip(split.beside, stands[1:], strict=True)),
        stream=read,
    )
    owners = {str(c): np.arange(at, at + examples) for c, at in zip(train, firsts, strict=True)}
    tested_split = dataclasses.replace(split, mean=mean, std=std)
    return dataclasses.replace(test, train=streamed, test=tested_split, owners=owners, notes=notes)


def _check_stream(stream: object, where: str) -> None:
    """Raise unless the stream can create a new iterator in each pass."""
    once = isinstance(stream, Iterator)
    if once or not _is_stream(stream):
        raise DataError(
            "is an iterator, which ends after one pass"
            if once
            else "is not a stream, but other clients have streams",
            where=where,
            found=what(stream),
            expected="an iterable, or a function that returns a new iterator",
            hint="pass loader.dataset: the experiment sets the batches"
            if isinstance(stream, DataLoader)
            else "pass a function that returns the iterator, or an IterableDataset",
        )


def _read_stream(
    reading: Streaming, stacked: _Converted, first: int, seed: int, sizes: Sequence[int]
) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    """Yield minibatches of a stream."""
    return (stacked(items, reading.where) for items in reading.batches(first, seed, sizes))


def _reading(parts: Sequence[SplitPart], said: Meaning, data: Dataset) -> ExampleReader | None:
    """Return a function that reads training examples again; None if this is not possible."""
    items = [part.items for part in parts if part.items is not None]
    if len(items) < len(parts):
        return None
    firsts = itertools.accumulate((len(part.targets) for part in parts), initial=0)
    reading = Reading(list(zip(firsts, items, strict=False)), _item)
    where, read = parts[0].where, _Converted(data, said, "examples differ from the first read")
    return lambda at, seed: read(reading.of(at.tolist(), seed, where), where)


@dataclasses.dataclass(frozen=True)
class _Converted:
    """Function that stacks items, and converts their targets like those of a data set.

    Attributes:
        data: The data set. Items must have the same shapes and types as its examples.
        said: The conversion of the data set's targets.
        message: Error message for items with other shapes or types.
    """

    data: Dataset
    said: Meaning
    message: str

    def __call__(self, items: Sequence[Item], where: str) -> tuple[dict[str, Tensor], Tensor]:
        names = {(self.data.inputs or (INPUT,))[0]: self.data.test.inputs, **self.data.test.beside}
        inputs = {}
        for name, before in names.items():
            parts = [one[name if name in one else None] for one, _ in items]
            inputs[name] = _input(_stack(parts, where), where)
            check_alike(row_form(inputs[name]), row_form(before), where, self.message)
        at, like = f"{where}: targets", self.data.test.targets
        stacked = _stack([target for _, target in items], where)
        targets = self.said.convert(raw_targets(stacked, at))
        check_alike(row_form(targets), row_form(like), at, self.message)
        most, classes = int(targets.max()) if targets.numel() else 0, self.data.classes
        if self.data.classified and classes is not None and most >= classes:
            raise DataError("a class that the first read did not have", where=at, found=most)
        return inputs, targets


def _train_parts(train: object, where: str) -> dict[Hashable, SplitPart]:
    """Return a dict from each client to its training examples.

    If the examples are not divided among clients, the only key is None.

    Raises:
        DataError: If there are no clients, a client has no examples, or the examples of clients
            differ in shape or type.
    """
    if not isinstance(train, Mapping):
        return {None: _part(train, where)}
    if not train:
        raise DataError("lists no clients", where=where)
    parts = {c: _part(part, f"{where}: {c}", len(train)) for c, part in train.items()}
    form = next(iter(parts.values())).form
    for part in parts.values():
        if not len(part.targets) and len(parts) > 1:
            raise DataError("a client has no examples", where=part.where)
        check_alike(part.form, form, part.where, "clients differ in the form of their data")
    return parts


def _together(parts: list[tuple[Hashable, Records]]) -> Records:
    """Concatenate the rows of all clients, one client after the other."""
    client, first = parts[0]
    if client is None:
        return first
    return Records(
        {k: joined_rows([rows.inputs[k] for _, rows in parts]) for k in first.inputs},
        torch.cat([rows.targets for _, rows in parts]),
        tuple(client for client, rows in parts for _ in range(len(rows))),
    )


def _part(value: object, where: str, parts: int = 1) -> SplitPart:
    """Return the rows of one split, or of one client if `parts` clients share the split."""
    targets: object
    items = None
    if type(value) is TensorDataset:
        inputs, targets = _pair(value.tensors, where)
    elif isinstance(value, tuple) and len(value) == 2:
        inputs, targets = value
    elif _by_item(value):
        # A list runs no code: its items do not change.
        items = None if type(value) is list else value
        inputs, targets = _items(value, where, parts)
    else:
        # A stream without clients is refused, too: examples are divided by their positions.
        loader = isinstance(value, DataLoader)
        raise DataError(
            "is not a split of a data set",
            where=where,
            found=what(value),
            expected="a torch dataset with __len__ and __getitem__, or a pair (inputs, targets)",
            hint="pass loader.dataset: the experiment sets the batches"
            if loader
            else "pass streams by client: {client: stream}"
            if _is_stream(value)
            else None,
        )
    by_name = inputs if isinstance(inputs, Mapping) else {INPUT: inputs}
    tensors = {
        str(k): _input(v, f"{where}: {k}" if len(by_name) > 1 else where)
        for k, v in by_name.items()
    }
    rows = raw_targets(targets, f"{where}: targets")
    for key, tensor in tensors.items():
        if tensor.dim() == 0 or len(tensor) != (len(rows) if rows.ndim else None):
            shapes = f"{key} {list(tensor.shape)}, targets {list(rows.shape)}"
            raise DataError("inputs and targets differ in number", where=where, found=shapes)
    return SplitPart(where, tensors, rows, items)


def _pair(item: object, where: str) -> tuple[object, object]:
    """Return input and target of an item, or of all items."""
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise DataError(
            "is not a pair (input, target)",
            where=where,
            found=what(item),
            hint=HUB
            if isinstance(item, Mapping)
            else "pass several inputs as a mapping by the names of the model's inputs: "
            "({'ids': …, 'mask': …}, target)",
        )
    return item[0], item[1]


def _items(value: Items, where: str, parts: int) -> tuple[object, object]:
    """Read inputs and targets of a torch dataset, item by item."""
    inputs: dict[str | None, StoredRows] = {}
    targets: list[ItemTarget] = []
    reading, count = Reading([(0, value)], _item), len(value)
    # By index: torch datasets of the map style need not raise IndexError at their end.
    for start in range(0, count, READ_AT_ONCE):
        positions = range(start, min(start + READ_AT_ONCE, count))
        for position, (one, target) in zip(positions, reading.of(positions, 0, where), strict=True):
            for key, part in one.items():
                inputs.setdefault(key, StoredRows(count, where, parts)).put(position, part)
            targets.append(target)
    stacked = {key: rows.tensor for key, rows in inputs.items()}
    every = _stack(targets, f"{where}: targets")
    return stacked[None] if None in stacked else stacked or torch.zeros(0), every


def _item(item: object, where: str) -> Item:
    """Return an item's inputs by name (None for a single input without one), and its target."""
    one, target = _pair(item, where)
    parts = one.items() if isinstance(one, Mapping) else ((None, one),)
    inputs = {key: _numbers(part, where) for key, part in parts}
    return inputs, target_array(target, f"{where}: target")


def _changing(parts: Sequence[SplitPart], where: str, *, is_once: bool) -> Iterator[str]:
    """Yield a note if items of a split differ between two reads with the same seed.

    With `is_once`, the reads have different seeds.
    """
    if any(p.items is not None and _changes(p.items, seeds=is_once) for p in parts):
        yield (DRAWN_ONCE if is_once else NOT_REPEATABLE).format(where=where)


def _changes(value: Items, *, seeds: bool) -> bool:
    """Return whether items differ between reads, with the same seed or with different `seeds`."""
    positions = np.linspace(0, len(value) - 1, min(len(value), READ_AGAIN)).astype(int).tolist()
    reading = Reading([(0, value)], _item)
    try:
        # Three seeds: two could draw the same flip.
        reads = [reading.of(positions, seed if seeds else 0) for seed in range(3 if seeds else 2)]
    except DataError:  # it can be read only once
        return True
    return any(
        one.keys() != again.keys()
        or not np.array_equal(np.asarray(target), np.asarray(target_again))
        or not all(torch.equal(part, again[key]) for key, part in one.items())
        for first, *others in zip(*reads, strict=True)
        for one, target in [first]
        for again, target_again in others
    )


def _stack(parts: Sequence[Tensor | Text], where: str) -> Tensor | Text:
    """Return inputs, or targets, of items as one array."""
    if not parts:
        return torch.zeros(0)
    first = form_of(parts[0][None])
    for position, part in enumerate(parts):
        message, at = "examples differ in shape or type", f"{where}[{position}]"
        check_alike(form_of(part[None]), first, at, message)
    tensors = [part for part in parts if isinstance(part, Tensor)]
    return torch.stack(tensors) if tensors else np.array(parts)


def _by_item(value: object) -> TypeGuard[Items]:
    """Return whether to read the value by item, as subclasses of ``TensorDataset`` may need."""
    listed = hasattr(value, "__getitem__") and hasattr(value, "__len__")
    complete = isinstance(value, str | bytes | tuple | Mapping) or type(value) is TensorDataset
    # A value that converts to an array (a tensor, a pandas table) has all examples at once.
    return listed and not complete and not hasattr(value, "__array__")


def _numbers(value: object, where: str) -> Tensor:
    """Convert inputs to a tensor."""
    rows = array_of(value, where)
    if isinstance(rows, Tensor):
        return rows
    raise DataError(
        "are text",
        where=where,
        found=what(value),
        expected="numbers",
        hint="encode texts as tokens, and categories as numbers",
    )


def _input(value: object, where: str) -> Tensor:
    """Convert inputs to what models accept: floating point to float32; integers stay unchanged."""
    rows = real_numbers(_numbers(value, where), where)
    return rows.to(torch.uint8) if rows.dtype == torch.bool else rows
