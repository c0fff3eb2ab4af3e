"""Data sets: a train and a test split in compact types, normalised when examples are read.

The type of targets determines their meaning:

=========  =====================================  ==========================================
type       shape                                  meaning
=========  =====================================  ==========================================
int64      ``[example]``                          the class of each example
int64      ``[example, position]``                a class, or the next token, at each position
int64      ``[example, height, width]``           a class at each pixel
bool       ``[example, class]``                   whether each class applies (multilabel)
float32    ``[example]``, ``[example, ...]``      numbers to be predicted
=========  =====================================  ==========================================

Targets of class ``-100`` are ignored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from archgraph.errors import DataError
from archgraph.federation.metrics import IGNORED
from archgraph.federation.shard import TextPadding
from archgraph.states.updates import finite

Indices: TypeAlias = Tensor | np.ndarray | Sequence[int] | slice

# Maps a client's first position, a seed and sizes to minibatches: inputs by name, and targets.
StreamReader: TypeAlias = Callable[
    [int, int, Sequence[int]], Iterator[tuple[Mapping[str, Tensor], Tensor]]
]
# Maps positions and a seed to inputs by name, in order, and targets.
ExampleReader: TypeAlias = Callable[[Tensor, int], tuple[Mapping[str, Tensor], Tensor]]

# Maps inputs to mean and deviation of their channels or columns.
Moments: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]

InputKind: TypeAlias = Literal["image", "text", "table", "tensor"]


@dataclass(frozen=True, eq=False)
class Split:
    """One split of a data set, in the most compact lossless types.

    Attributes:
        inputs: Images, uint8 `[example, channel, height, width]`; rows of a table `[example,
            feature]`, float64 if they are normalised, else float32; tokens, of any integer type
            `[example, position]`; or floating point numbers of any shape `[example, ...]`.
        targets: Classes, labels or numbers, int64, bool or float32 `[example, ...]`; see the table
            in :mod:`archgraph.data.values`.
        mean: Mean of each channel (of a table: each feature) over training examples, in units of
            `inputs`. None for text, and for numbers that are not normalised.
        std: Standard deviation of each channel or feature, in the same units. None if `mean` is
            None.
        beside: Dict from name to an additional input, `[example, ...]`, such as an attention mask.
        padding: Padding of texts, with which batches are trimmed to their longest text. Default:
            batches are not trimmed.
        again: Function that reads examples again with a given seed, for data that changes when it
            is read again, such as random crops.
        stream: Function that reads minibatches of a client's stream. If set, examples cannot be
            indexed, and only the dtype, shape and length of `inputs` and `targets` are used.

    Example:
        >>> images = torch.tensor([[[[0, 2]]], [[[4, 6]]]], dtype=torch.uint8)
        >>> split = Split(images, torch.tensor([7, 8]), *channel_statistics(images))
        >>> split.batch([1])
        (tensor([[[[0.4472, 1.3416]]]]), tensor([8]))
    """

    inputs: Tensor
    targets: Tensor
    mean: Tensor | None = None
    std: Tensor | None = None
    beside: Mapping[str, Tensor] = field(default_factory=dict)
    padding: TextPadding | None = None
    again: ExampleReader | None = None
    stream: StreamReader | None = None

    def __post_init__(self) -> None:
        """Check that every input has a target."""
        for name, inputs in (("inputs", self.inputs), *self.beside.items()):
            if len(inputs) != len(self.targets):
                numbers = f"{len(inputs)} {name}, {len(self.targets)} targets"
                raise DataError("inputs and targets differ in number", found=numbers)

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.inputs)

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets of some examples, in the types that models accept.

        Args:
            indices: Indices of the examples, in the requested order. A slice avoids copies.

        Returns:
            Inputs `[batch, ...]`, normalised if the split has statistics, and targets. Images are
            float32, and tokens int64.
        """
        self._check_positions()
        chosen = _as_index(indices, len(self))
        return self._normalised(self.inputs[chosen]), self.targets[chosen]

    def _check_positions(self) -> None:
        """Raise an error if the split is a stream, whose examples cannot be indexed."""
        if self.stream is not None:
            raise DataError(
                "examples of a stream cannot be indexed",
                expected="code that only reads a client's training examples in passes",
                hint="pass the data as a torch dataset with __len__ and __getitem__",
            )

    def streamed(
        self, first: int, seed: int, sizes: Sequence[int]
    ) -> Iterator[tuple[tuple[Tensor, ...], Tensor]]:
        """Yield minibatches of a client's stream, in the form of :meth:`examples`."""
        assert self.stream is not None
        for rows, targets in self.stream(first, seed, sizes):
            inputs = [*rows.values()]
            yield (self._normalised(inputs[0]), *map(_widened, inputs[1:])), targets

    def _normalised(self, inputs: Tensor) -> Tensor:
        # Normalised on each access, so that images stay uint8, a quarter of the memory.
        if self.mean is None or self.std is None:
            return _widened(inputs)
        form = (-1, *(1 for _ in inputs.shape[2:]))
        mean, std = self.mean.view(form), self.std.view(form)
        # A copy, since the stored numbers may already have that type.
        return inputs.to(mean.dtype, copy=True).sub_(mean).div_(std).float()

    def examples(
        self, indices: Indices, seed: int | None = None
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return a tuple of all inputs, and the targets of some examples.

        Args:
            indices: Indices of the examples, in the requested order.
            seed: Seed with which examples are read again, if the split can read them again.
                Default: return the examples of the first read.

        Example:
            >>> ids = torch.tensor([[2, 7, 0]], dtype=torch.int16)
            >>> split = Split(ids, torch.tensor([1]), beside={"attention_mask": ids.bool()})
            >>> split.examples([0])
            ((tensor([[2, 7, 0]]), tensor([[1, 1, 0]])), tensor([1]))
        """
        self._check_positions()
        chosen = _as_index(indices, len(self))
        if self.again is not None and seed is not None:
            rows, targets = self.again(torch.arange(len(self))[chosen], seed)
            first, *_ = rows.values()
            beside = [rows[name] for name in self.beside]
        else:
            first, targets, *beside = (
                x[chosen] if isinstance(chosen, slice) else x.index_select(0, chosen)
                for x in (self.inputs, self.targets, *self.beside.values())
            )
        inputs = (self._normalised(first), *map(_widened, beside))
        return self.padding.cut(inputs, targets) if self.padding else (inputs, targets)

    def with_only(self, names: Collection[str]) -> Split:
        """Return the split without the additional inputs that are not in `names`."""
        beside = {name: more for name, more in self.beside.items() if name in names}
        return dataclasses.replace(self, beside=beside, padding=None)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test examples, and the form of their inputs and targets.

    Attributes:
        name: Name in `DATASETS`, or name of the file or function from which the data was read.
        kind: Kind of the inputs: `image`, `text`, `table` (rows of a table) or `tensor`.
        classes: Number of classes, or number of words if targets are next words; None if targets
            are numbers.
        shape: Shape of one input: `(channel, height, width)`, `(position,)`, `(column,)`.
        train: Training examples.
        test: Test examples.
        labels: Name of each class, or each word of the vocabulary.
        inputs: Names of the inputs in order, if there are several: the name of `Split.inputs`, then
            the names of the additional inputs.
        owners: Dict from client to the indices of its examples in `train`, int64 `[example]`; empty
            if the data does not assign examples to clients.
        notes: Warnings for the user of a run.
        tokens: Size of the tokenizer's vocabulary, including tokens that do not occur; 0 without a
            tokenizer.
        mask: Name of the input that is 0 on padding; empty if there is none.
        separate: Whether texts are independent examples, not consecutive windows of one text.
        measure: Function that computes the mean and deviation for normalising inputs. Default:
            inputs are not normalised, or their statistics are fixed.

    Example:
        >>> rows, prices = torch.rand(4, 3), torch.rand(4)
        >>> split = Split(rows, prices)
        >>> Dataset("houses", "table", None, (3,), split, split)
        Dataset(houses: table (3,), 4 train, 4 test)
    """

    name: str
    kind: InputKind
    classes: int | None
    shape: tuple[int, ...]
    train: Split
    test: Split
    labels: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    owners: Mapping[str, np.ndarray] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    tokens: int = 0
    separate: bool = False
    mask: str = ""
    measure: Moments | None = None

    def __post_init__(self) -> None:
        """Check that both splits have the same types and shapes, and that targets fit `classes`."""
        for name, split in (("train", self.train), ("test", self.test)):
            where = f"{self.name}: {name}"
            if self.inputs[1:] != tuple(split.beside):
                names = ", ".join(split.beside) or "none"
                expected = ", ".join(self.inputs[1:]) or "only the first input"
                message = "further inputs have other names"
                raise DataError(message, where=where, found=names, expected=expected)
            _check_form("inputs", split.inputs, self.train.inputs, where)
            _check_form("targets", split.targets, self.train.targets, where)
            _check_targets(split.targets, self.classes, where)
        _check_owners(self.owners, len(self.train), self.name)

    @property
    def classified(self) -> bool:
        """Whether every example has one class."""
        return self.train.targets.dtype == torch.int64 and self.train.targets.dim() == 1

    @property
    def consecutive(self) -> bool:
        """Whether examples are consecutive windows of one continuous text."""
        targets = self.train.targets
        windows = targets.dtype == torch.int64 and targets.dim() == 2
        return windows and self.kind == "text" and not self.separate

    @property
    def integral(self) -> bool:
        """Whether inputs are integers and not normalised."""
        return self.train.mean is None and not self.train.inputs.is_floating_point()

    def with_only(self, names: Collection[str]) -> Dataset:
        """Return the data set without the additional inputs that are not in `names`.

        Example:
            >>> ids = torch.zeros(1, 3, dtype=torch.int16)
            >>> split = Split(ids, torch.tensor([0]), beside={"mask": ids, "types": ids})
            >>> names = ("ids", "mask", "types")
            >>> data = Dataset("pairs", "text", 2, (3,), split, split, ("no", "yes"), names)
            >>> data.with_only({"types"}).inputs
            ('ids', 'types')
        """
        # The first input always stays: a single input may have any name.
        chosen = tuple(n for i, n in enumerate(self.inputs) if i == 0 or n in names)
        return dataclasses.replace(
            self,
            train=self.train.with_only(chosen),
            test=self.test.with_only(chosen),
            inputs=chosen,
        )

    def normalised_by(self, at: np.ndarray) -> Dataset:
        """Return the data, normalised with the statistics of only some training examples.

        Args:
            at: Indices of these examples.

        Example:
            >>> images = torch.tensor([[[[0, 2]]], [[[4, 6]]]], dtype=torch.uint8)
            >>> split = Split(images, torch.tensor([0, 1]), *channel_statistics(images))
            >>> data = Dataset("two", "image", 2, (1, 1, 2), split, split)
            >>> data = dataclasses.replace(data, measure=channel_statistics)
            >>> data.normalised_by(np.array([1])).test.batch([1])[0]
            tensor([[[[-1.,  1.]]]])
        """
        if self.measure is None:
            return self
        mean, std = self.measure(self.train.inputs[torch.from_numpy(at)])
        train, test = (
            dataclasses.replace(split, mean=mean, std=std) for split in (self.train, self.test)
        )
        return dataclasses.replace(self, train=train, test=test)

    def __repr__(self) -> str:
        """Render name, form and size on one line."""
        classes = "" if self.classes is None else f", {self.classes} classes"
        clients = f" of {len(self.owners)} clients" if self.owners else ""
        return (
            f"Dataset({self.name}: {self.kind} {self.shape}{classes}, "
            f"{len(self.train)} train{clients}, {len(self.test)} test)"
        )


def channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of each channel of uint8 images `[example, channel, …]`.

    For a constant channel the deviation is 1, so that its normalised values are zeros.

    Example:
        >>> channel_statistics(torch.tensor([[[[1, 3]], [[5, 5]]]], dtype=torch.uint8))
        (tensor([2., 5.]), tensor([1., 1.]))
    """
    values = torch.arange(256, dtype=torch.float64)
    means, deviations = [], []
    for channel in images.unbind(1):
        # Counting the 256 values is exact and does not need a float copy of the images.
        share = torch.bincount(channel.flatten(), minlength=256).double() / channel.numel()
        mean = (share * values).sum()
        variance = (share * (values - mean) ** 2).sum()
        means.append(mean)
        deviations.append(variance.sqrt() if variance > 0 else torch.ones_like(variance))
    return torch.stack(means).float(), torch.stack(deviations).float()


def check_alike(
    form: object, first: object, where: str, message: str, hint: str | None = None
) -> None:
    """Check that an example has the same form (types and shapes) as the first example.

    Raises:
        DataError: If the forms differ, with this message and hint.
    """
    if form != first:
        expected = f"{first}, as the first one"
        raise DataError(message, where=where, found=form, expected=expected, hint=hint)


def _check_form(what: str, tensor: Tensor, train: Tensor, where: str) -> None:
    """Check that the rows of a tensor have the type and shape of the training examples."""
    actual, expected = row_form(tensor), row_form(train)
    if actual != expected:
        message = f"{what} differ from those of the train split"
        raise DataError(message, where=where, found=actual, expected=expected)


def row_form(tensor: Tensor) -> str:
    """Describe the type and shape of one row of a tensor."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape[1:])}"


def _check_targets(targets: Tensor, classes: int | None, where: str) -> None:
    """Check that targets have a valid type, and that classes are in range."""
    if classes is None:
        kinds, expected = {torch.float32}, "float32, since the data has no classes"
    else:
        kinds = {torch.int64, torch.bool}
        expected = f"int64 (or bool, for several at once), since there are {classes} classes"
    if targets.dtype not in kinds:
        raise DataError(
            "targets have another type", where=where, found=targets.dtype, expected=expected
        )
    if targets.dtype == torch.float32 and not finite(targets):
        raise DataError("targets are not finite", where=where)
    if targets.dtype == torch.bool and targets.shape[1:] != (classes,):
        message, expected = "targets have another number of classes", f"[example, {classes}]"
        raise DataError(message, where=where, found=list(targets.shape), expected=expected)
    if targets.dtype != torch.int64 or not targets.numel() or classes is None:
        return
    # A mask copies the targets, which may fill the memory for a text; its targets are never -100.
    real = targets if targets.min() >= 0 else targets[targets != IGNORED]
    if len(real) and not 0 <= int(real.min()) <= int(real.max()) < classes:
        numbers, expected = f"{int(real.min())}…{int(real.max())}", f"classes 0…{classes - 1}"
        hint = "classes count from 0; use -100 for targets to ignore" if real.min() < 0 else None
        raise DataError(
            "label out of range", where=where, found=numbers, expected=expected, hint=hint
        )


def _check_owners(owners: Mapping[str, np.ndarray], examples: int, where: str) -> None:
    """Check that every training example has exactly one client, and every client an example."""
    for client, positions in owners.items():
        if len(positions) == 0:
            raise DataError("a client has no examples", where=where, found=client)
    if owners:
        assigned = np.sort(np.concatenate(list(owners.values())))
        if not np.array_equal(assigned, np.arange(examples)):
            message = "clients do not own every training example exactly once"
            numbers = f"{len(assigned)} positions, {len(np.unique(assigned))} different"
            raise DataError(message, where=where, found=numbers)


def _widened(inputs: Tensor) -> Tensor:
    """Convert integers of any size, and booleans, to int64."""
    return inputs if inputs.is_floating_point() else inputs.to(torch.int64)


def _as_index(indices: Indices, count: int) -> Tensor | slice:
    """Convert indices, or a mask, to a tensor of indices."""
    if isinstance(indices, slice):
        return indices
    if not isinstance(indices, Tensor):
        values = np.asarray(indices)
        type_ = values.dtype if values.dtype == bool else np.int64
        indices = torch.as_tensor(values.astype(type_, copy=False))
    return torch.arange(count)[indices] if indices.dtype == torch.bool else indices
