"""Data sets as values: read from local files, checked byte for byte, kept compact.

Nothing is ever downloaded. `digits` comes with scikit-learn and works on a bare machine; the other
sets are read from their original files, plain, `.gz` or `.xz`, below one root folder.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import lzma
import os
import pickle
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from archgraph.engine.sentences import (
    INPUTS,
    LENGTH,
    VOCABULARY,
    Encode,
    Pair,
    encoder,
    learned,
    pretrained,
)
from archgraph.errors import DataError
from archgraph.hints import nearest

Indices: TypeAlias = Tensor | np.ndarray | Sequence[int] | slice

ROOT_VARIABLE = "ARCHGRAPH_DATA"

# No file of any data set here is larger; a compressed file that is was made to fill the memory.
_MOST_BYTES = 1 << 30


@dataclass(frozen=True, eq=False)
class Split:
    """One split of a data set, in the most compact types that lose nothing.

    Attributes:
        inputs: Images, uint8 `[example, channel, height, width]`, or tokens, of any integer type
            `[example, position]`.
        targets: Classes, int64 `[example]`, or the next tokens, int64 `[example, position]`.
        mean: Mean of each channel over the *train* split, in units of `inputs`; None for text.
        std: Standard deviation of each channel likewise.
        beside: Further inputs by name, `[example, ...]`: an attention mask, say.

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

    def __post_init__(self) -> None:
        """Check that every input has a target."""
        for name, inputs in (("inputs", self.inputs), *self.beside.items()):
            if len(inputs) != len(self.targets):
                raise DataError(
                    "inputs and targets differ in number",
                    found=f"{len(inputs)} {name}, {len(self.targets)} targets",
                    expected="as many targets as inputs",
                )

    def __len__(self) -> int:
        """Number of examples."""
        return len(self.inputs)

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """The chosen examples as a model takes them: images float32 and normalised, tokens int64.

        Args:
            indices: Positions in this split, in the wanted order; a slice copies least.

        Returns:
            Inputs `[batch, channel, height, width]` or `[batch, position]`, and their targets.
        """
        chosen = _as_index(indices)
        inputs, targets = self.inputs[chosen], self.targets[chosen]
        if self.mean is None or self.std is None:
            return _whole(inputs), targets
        mean, std = self.mean[:, None, None], self.std[:, None, None]
        return inputs.to(torch.float32).sub_(mean).div_(std), targets

    def examples(self, indices: Indices) -> tuple[tuple[Tensor, ...], Tensor]:
        """As :meth:`batch`, with all inputs in their order.

        Example:
            >>> ids = torch.tensor([[2, 7, 0]], dtype=torch.int16)
            >>> split = Split(ids, torch.tensor([1]), beside={"attention_mask": ids.bool()})
            >>> split.examples([0])
            ((tensor([[2, 7, 0]]), tensor([[1, 1, 0]])), tensor([1]))
        """
        chosen = _as_index(indices)
        inputs, targets = self.batch(chosen)
        return (inputs, *(_whole(more[chosen]) for more in self.beside.values())), targets

    def subset(self, indices: Indices) -> Split:
        """The chosen examples as a split of its own, normalised by the same statistics."""
        chosen = _as_index(indices)
        beside = {name: more[chosen] for name, more in self.beside.items()}
        return Split(self.inputs[chosen], self.targets[chosen], self.mean, self.std, beside)

    def with_only(self, names: Collection[str]) -> Split:
        """The split with these of the further inputs."""
        beside = {name: more for name, more in self.beside.items() if name in names}
        return Split(self.inputs, self.targets, self.mean, self.std, beside)


def _whole(inputs: Tensor) -> Tensor:
    """Integers of any size, and flags, as int64."""
    return inputs if inputs.is_floating_point() else inputs.to(torch.int64)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A classification or next-token data set.

    Attributes:
        name: Its name in `DATASETS`.
        kind: `image` or `text`.
        classes: Number of classes, or of words where the targets are the next ones.
        shape: Shape of one input: `(channel, height, width)` or `(position,)`.
        train: Examples to train on.
        test: Examples to test on.
        labels: Name of each class, or each word of the vocabulary.
        inputs: Name of each input in order, where there are several: that of `Split.inputs`, then
            those of `Split.beside`.
    """

    name: str
    kind: Literal["image", "text"]
    classes: int
    shape: tuple[int, ...]
    train: Split
    test: Split
    labels: tuple[str, ...]
    inputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check that both splits offer the inputs that are named."""
        for split in (self.train, self.test):
            if self.inputs[1:] != tuple(split.beside):
                raise DataError(
                    "inputs have other names",
                    where=self.name,
                    found=", ".join(split.beside) or "none",
                    expected=", ".join(self.inputs[1:]) or "none beside the first",
                )

    @property
    def classified(self) -> bool:
        """Whether every example has one class; else it has a target at each position."""
        return self.train.targets.dim() == 1

    @property
    def integral(self) -> bool:
        """Whether inputs are integers, as models take them."""
        return self.train.mean is None and not self.train.inputs.is_floating_point()

    def with_only(self, names: Collection[str]) -> Dataset:
        """The data set with its first input, and those of the others that are named.

        Example:
            >>> ids = torch.zeros(1, 3, dtype=torch.int16)
            >>> split = Split(ids, torch.tensor([0]), beside={"mask": ids, "types": ids})
            >>> names = ("ids", "mask", "types")
            >>> data = Dataset("pairs", "text", 2, (3,), split, split, ("no", "yes"), names)
            >>> data.with_only({"types"}).inputs
            ('ids', 'types')
        """
        kept = tuple(n for i, n in enumerate(self.inputs) if i == 0 or n in names)
        return dataclasses.replace(
            self,
            train=self.train.with_only(kept),
            test=self.test.with_only(kept),
            inputs=kept,
        )

    def __repr__(self) -> str:
        """One line: what it is and how much of it there is."""
        return (
            f"Dataset({self.name}: {self.kind} {self.shape}, {self.classes} classes, "
            f"{len(self.train)} train, {len(self.test)} test)"
        )


def load_dataset(
    name: str,
    root: str | Path | None = None,
    *,
    limit: int | None = None,
    bptt: int = 64,
    length: int | None = None,
    vocabulary: int | None = None,
    tokenizer: str | Path | None = None,
    verify: bool = True,
) -> Dataset:
    """Load a data set by name from local files.

    Args:
        name: One of `DATASETS`.
        root: Folder below which the files are looked for; by default what the environment variable
            `ARCHGRAPH_DATA` names. `digits` needs none.
        limit: Keep at most the first so many examples of each split; the normalisation is that of
            the kept train examples.
        bptt: Length of a text window, in tokens.
        length: Tokens of a pair of sentences, its three marks and padding among them; None: 128.
        vocabulary: Most tokens of the vocabulary that is learned from the train pairs; None: 8192.
        tokenizer: Folder of a pretrained model's tokenizer, whose vocabulary is used instead.
        verify: Compare sizes and MD5 checksums with the published files. False reads files of one's
            own in the same format; everything else is still checked.

    Returns:
        The data set, its two splits normalised by the statistics of its train split.

    Raises:
        DataError: The name is unknown, a file is missing, damaged or not the published one, or an
            option is not one of this data set.

    Example:
        >>> load_dataset("digits")
        Dataset(digits: image (1, 8, 8), 10 classes, 1437 train, 360 test)
    """
    if name not in _SOURCES:
        raise DataError(
            "unknown data set",
            where="data",
            found=repr(name),
            expected=f"one of {', '.join(DATASETS)}",
            hint=nearest(name, DATASETS),
        )
    if limit is not None and limit < 1:
        raise DataError("limit too small", where=name, found=limit, expected="at least 1")
    if bptt < 1:
        raise DataError("window too short", where=name, found=f"bptt={bptt}", expected="at least 1")
    source = _SOURCES[name]
    given = {"length": length, "vocabulary": vocabulary, "tokenizer": tokenizer}
    for option, value in given.items():
        if value is not None and not source.pairs:
            raise DataError(
                f"has no option {option}",
                where=name,
                found=value,
                expected="it with pairs of sentences: " + ", ".join(_pair_sets()),
            )
    if tokenizer is not None and vocabulary is not None:
        raise DataError(
            "has two vocabularies",
            where=name,
            found=f"a learned one of {vocabulary} tokens and that of {tokenizer}",
            expected="one of them",
        )
    options = _Options(
        limit=limit,
        bptt=bptt,
        length=LENGTH if length is None else length,
        vocabulary=VOCABULARY if vocabulary is None else vocabulary,
        tokenizer=tokenizer,
    )
    paths = _locate(name, source, root) if source.files else {}
    files = {
        file: _File(path, source.files[file] if verify else None) for file, path in paths.items()
    }
    return source.read(name, files, options)


def channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel of uint8 images `[example, channel, …]`.

    A constant channel gets the deviation 1, so that normalising it gives zeros.

    Example:
        >>> channel_statistics(torch.tensor([[[[1, 3]], [[5, 5]]]], dtype=torch.uint8))
        (tensor([2., 5.]), tensor([1., 1.]))
    """
    values = torch.arange(256, dtype=torch.float64)
    means, deviations = [], []
    for channel in images.unbind(1):
        # Counting the 256 values is exact and needs no float copy of the images.
        share = torch.bincount(channel.flatten(), minlength=256).double() / channel.numel()
        mean = (share * values).sum()
        variance = (share * (values - mean) ** 2).sum()
        means.append(mean)
        deviations.append(variance.sqrt() if variance > 0 else torch.ones_like(variance))
    return torch.stack(means).float(), torch.stack(deviations).float()


@dataclass(frozen=True)
class _Options:
    """What is asked of a data set; see :func:`load_dataset`."""

    limit: int | None
    bptt: int
    length: int
    vocabulary: int
    tokenizer: str | Path | None


# ---------------------------------------------------------------- finding and reading files


class _Published(NamedTuple):
    """What the published file contains once decompressed."""

    size: int  # bytes
    md5: str


@dataclass(frozen=True)
class _File:
    """A data file on disk, and what it has to contain."""

    path: Path
    published: _Published | None

    def read(self) -> bytes:
        """The decompressed content, complete and verified."""
        most = _MOST_BYTES if self.published is None else self.published.size
        try:
            with _open(self.path) as stream:
                content = stream.read(most + 1)
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise DataError(
                "data file cannot be read",
                where=str(self.path),
                found=str(error) or type(error).__name__,
                expected="a complete file" if self.published is None else f"{most} bytes",
                hint="fetch the file again",
            ) from error
        if len(content) > most:
            raise DataError(
                "data file too long",
                where=str(self.path),
                found=f"more than {most} bytes",
                expected=f"{most} bytes" if self.published else f"at most {most} bytes",
                hint="fetch the file again",
            )
        if self.published is not None:
            self._verify(content, self.published)
        return content

    def _verify(self, content: bytes, published: _Published) -> None:
        if len(content) < published.size:
            raise DataError(
                "data file truncated",
                where=str(self.path),
                found=f"{len(content)} bytes",
                expected=f"{published.size} bytes",
                hint="fetch the file again",
            )
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if md5 != published.md5:
            raise DataError(
                "wrong checksum",
                where=str(self.path),
                found=f"MD5 {md5} of the decompressed content",
                expected=published.md5,
                hint="fetch the file again, or pass verify=False for a file of your own",
            )


def _open(path: Path) -> io.BufferedIOBase:
    """The decompressed stream of a plain, `.gz` or `.xz` file."""
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.suffix == ".xz":
        return lzma.open(path, "rb")
    return path.open("rb")


def _locate(name: str, source: _Source, root: str | Path | None) -> dict[str, Path]:
    """Path of each file of the source, all from one folder."""
    chosen = root if root is not None else os.environ.get(ROOT_VARIABLE)
    if chosen is None:
        raise DataError(
            "no data folder given",
            where=name,
            expected="the folder that holds " + " or ".join(f"{f}/" for f in source.folders),
            hint=f"set data.root or the environment variable {ROOT_VARIABLE}; "
            "`digits` needs no files",
        )
    folder = Path(chosen).expanduser()
    if not folder.is_dir():
        raise DataError(
            "data folder missing",
            where=name,
            found=f"no folder {folder}",
            expected="the folder that holds " + " or ".join(f"{f}/" for f in source.folders),
            hint=f"correct data.root or {ROOT_VARIABLE}",
        )
    best: tuple[Path, dict[str, Path]] = (folder / source.folders[0], {})
    for place in (*(folder / sub for sub in source.folders), folder):
        found = {file: path for file in source.files if (path := _variant(place / file))}
        if len(found) > len(best[1]):
            best = place, found
    place, found = best
    missing = [file for file in source.files if file not in found]
    if missing:
        raise DataError(
            "data file missing",
            where=str(place),
            found=f"{len(found)} of {len(source.files)} files of {name}",
            expected=f"{', '.join(missing)} (plain, .gz or .xz)",
            hint=f"put the original files there; nothing is downloaded (searched below {folder})",
        )
    return found


def _variant(path: Path) -> Path | None:
    """The file as it is stored: plain, `.gz` or `.xz`."""
    candidates = (path, path.with_name(path.name + ".gz"), path.with_name(path.name + ".xz"))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


# ---------------------------------------------------------------- formats


def read_idx(content: bytes, rank: int, where: str) -> np.ndarray:
    """Decode an IDX file of unsigned bytes.

    Args:
        content: The decompressed file: magic `0 0 8 rank`, `rank` big-endian sizes, then the bytes.
        rank: Expected number of dimensions: 3 for images, 1 for labels.
        where: Name of the file, for errors.

    Returns:
        uint8 array with `rank` dimensions.

    Raises:
        DataError: The magic number is another, or the length does not fit the sizes.

    Example:
        >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), rank=1, where="labels")
        array([7, 9], dtype=uint8)
    """
    header = 4 * (1 + rank)
    magic = int.from_bytes(content[:4], "big")
    if len(content) < header or magic != 0x800 + rank:
        raise DataError(
            "not an IDX file of this kind",
            where=where,
            found=f"magic {magic}" if len(content) >= 4 else f"{len(content)} bytes",
            expected=f"magic {0x800 + rank} and {rank} sizes",
            hint="check that images and labels are not exchanged",
        )
    shape = tuple(int.from_bytes(content[4 * i : 4 * i + 4], "big") for i in range(1, rank + 1))
    size = header
    count = 1
    for extent in shape:
        count *= extent
    size += count
    if len(content) != size:
        raise DataError(
            "data file truncated" if len(content) < size else "data file too long",
            where=where,
            found=f"{len(content)} bytes",
            expected=f"{size} bytes for shape {shape}",
            hint="fetch the file again",
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy()


# All that the CIFAR batches need to come back. `_reconstruct` lives under another name in each
# generation of numpy; an array tells which function it is.
_RECONSTRUCT = np.empty(0).__reduce__()[0]
_SAFE_GLOBALS: Mapping[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _Refused(Exception):
    """A pickle asked for something that no data file needs."""


class _RestrictedUnpickler(pickle.Unpickler):
    """Rebuilds arrays and plain containers; imports nothing, calls nothing else."""

    def find_class(self, module: str, name: str) -> object:
        try:
            return _SAFE_GLOBALS[module, name]
        except KeyError:
            raise _Refused(f"{module}.{name}") from None


def read_cifar_batch(
    content: bytes, where: str, classes: str = "labels"
) -> tuple[np.ndarray, np.ndarray]:
    """Decode one CIFAR batch: a pickled dict with `data` and `labels`.

    Args:
        content: The decompressed pickle. Nothing in it is executed: names other than numpy's array
            constructors are refused.
        where: Name of the file, for errors.
        classes: What the labels are called.

    Returns:
        Images, uint8 `[example, channel, height, width]` = `[n, 3, 32, 32]`, and labels, int64
        `[example]`.

    Raises:
        DataError: The pickle asks for anything unsafe, is damaged, or holds something else.
    """
    try:
        batch = _RestrictedUnpickler(io.BytesIO(content), encoding="bytes").load()
    except _Refused as refused:
        raise DataError(
            "unsafe pickle refused, nothing was executed",
            where=where,
            found=str(refused),
            expected="numpy arrays, lists, strings and numbers only",
            hint="do not trust this file; fetch the original",
        ) from refused
    except Exception as error:  # a damaged pickle may fail with any exception whatsoever
        raise DataError(
            "not a CIFAR batch",
            where=where,
            found=f"{type(error).__name__}: {error}",
            expected="a pickled dict with data and labels",
            hint="fetch the file again",
        ) from error
    entries = batch if isinstance(batch, dict) else {}
    data = entries.get(b"data", entries.get("data"))
    labels = entries.get(classes.encode(), entries.get(classes))
    if (
        not isinstance(data, np.ndarray)
        or data.dtype != np.uint8
        or data.ndim != 2
        or data.shape[1] != 3 * 32 * 32
    ):
        found = f"{data.dtype} {data.shape}" if isinstance(data, np.ndarray) else type(data)
        raise DataError(
            "CIFAR batch without images", where=where, found=found, expected="uint8 (n, 3072) data"
        )
    if (
        not isinstance(labels, list)
        or len(labels) != len(data)
        or not all(type(label) is int for label in labels)
    ):
        raise DataError(
            "CIFAR batch without labels",
            where=where,
            found=f"{len(labels)} labels" if isinstance(labels, list) else type(labels),
            expected=f"a list of {len(data)} integers",
        )
    return data.reshape(-1, 3, 32, 32), np.array(labels, np.int64)


def read_tokens(content: bytes, where: str) -> list[str]:
    r"""Split text into words at blanks, with `<eos>` at the end of every line.

    Raises:
        DataError: The text is not UTF-8.

    Example:
        >>> read_tokens(b"a b\n\n", "example")
        ['a', 'b', '<eos>', '<eos>']
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            "not a UTF-8 text", where=where, found=str(error), hint="fetch the file again"
        ) from error
    # Only "\n" ends a line and only blanks part words: str.splitlines() and str.split() know more.
    lines = text.removesuffix("\n").split("\n") if text else []
    return [word for line in lines for word in (*filter(None, line.split(" ")), "<eos>")]


# ---------------------------------------------------------------- the data sets


def _read_digits(name: str, files: Mapping[str, _File], options: _Options) -> Dataset:
    """The 1797 digits that scikit-learn brings along, split 4 : 1 within each class."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = torch.from_numpy(digits.images.astype(np.uint8)).unsqueeze(1)
    targets = torch.from_numpy(digits.target.astype(np.int64))
    # The seed is part of the data set: the split is the same in every run of every experiment.
    train, test = train_test_split(
        np.arange(len(targets)), test_size=0.2, random_state=0, stratify=digits.target
    )
    return _images(
        name,
        (images[train], targets[train]),
        (images[test], targets[test]),
        _TEN_DIGITS,
        options.limit,
    )


def _read_mnist(name: str, files: Mapping[str, _File], options: _Options) -> Dataset:
    """MNIST and its drop-in replacements: four IDX files."""
    splits = []
    for part in ("train", "t10k"):
        pictures, labels = files[f"{part}-images-idx3-ubyte"], files[f"{part}-labels-idx1-ubyte"]
        images = read_idx(pictures.read(), 3, str(pictures.path))
        targets = read_idx(labels.read(), 1, str(labels.path)).astype(np.int64)
        if len(images) != len(targets):
            raise DataError(
                "images and labels differ in number",
                where=str(labels.path),
                found=f"{len(targets)} labels",
                expected=f"{len(images)}, as in {pictures.path.name}",
            )
        _check_range(targets, 10, str(labels.path))
        splits.append((torch.from_numpy(images).unsqueeze(1), torch.from_numpy(targets)))
    labels_of = _CLOTHES if name == "fashion_mnist" else _TEN_DIGITS
    return _images(name, splits[0], splits[1], labels_of, options.limit)


def _read_cifar10(name: str, files: Mapping[str, _File], options: _Options) -> Dataset:
    """CIFAR-10: five train batches and a test batch."""
    limit = options.limit

    def gather(batches: Iterable[str]) -> tuple[Tensor, Tensor]:
        images: list[np.ndarray] = []
        targets: list[np.ndarray] = []
        for batch in batches:
            file = files[batch]
            pixels, labels = read_cifar_batch(file.read(), str(file.path))
            _check_range(labels, 10, str(file.path))
            images.append(pixels)
            targets.append(labels)
            if limit is not None and sum(map(len, targets)) >= limit:
                break
        return torch.from_numpy(np.concatenate(images)), torch.from_numpy(np.concatenate(targets))

    train = gather(f"data_batch_{i}" for i in range(1, 6))
    return _images(name, train, gather(["test_batch"]), _CIFAR, limit)


def _read_cifar100(name: str, files: Mapping[str, _File], options: _Options) -> Dataset:
    """CIFAR-100 by its fine labels: one file of train examples and one of test examples."""

    def part(file: _File) -> tuple[Tensor, Tensor]:
        images, labels = read_cifar_batch(file.read(), str(file.path), "fine_labels")
        _check_range(labels, len(_CIFAR_FINE), str(file.path))
        return torch.from_numpy(images), torch.from_numpy(labels)

    return _images(name, part(files["train"]), part(files["test"]), _CIFAR_FINE, options.limit)


def _read_wikitext(name: str, files: Mapping[str, _File], options: _Options) -> Dataset:
    """WikiText-2 as windows of consecutive tokens; the vocabulary is that of the train text."""
    limit, bptt = options.limit, options.bptt
    vocabulary: dict[str, int] = {}

    def windows(file: _File) -> Split:
        words = read_tokens(file.read(), str(file.path))
        if not vocabulary:
            for word in words:
                vocabulary.setdefault(word, len(vocabulary))
        unknown = vocabulary.get("<unk>")
        tokens = [vocabulary.get(word, unknown) for word in words]
        if None in tokens:
            raise DataError(
                "word outside the vocabulary",
                where=str(file.path),
                found=repr(words[tokens.index(None)]),
                expected="words of the train text, which holds no <unk>",
            )
        stream = torch.tensor(tokens, dtype=torch.int64)
        count = (len(stream) - 1) // bptt
        if count < 1:
            raise DataError(
                "text shorter than one window",
                where=str(file.path),
                found=f"{len(stream)} tokens",
                expected=f"at least {bptt + 1}",
                hint="choose a smaller bptt",
            )
        count = count if limit is None else min(count, limit)
        # Two views of one stream: a token is stored once though it is input and target.
        return Split(
            stream[: count * bptt].view(count, bptt),
            stream[1 : count * bptt + 1].view(count, bptt),
        )

    train = windows(files["wiki.train.tokens"])
    test = windows(files["wiki.test.tokens"])
    return Dataset(name, "text", len(vocabulary), (bptt,), train, test, tuple(vocabulary))


def _read_dev_pairs(name: str, files: Mapping[str, _File], options: _Options) -> Dataset:
    """A published *development* set of MNLI or SNLI, cut in two: neither is the published split.

    The training pairs of both corpora are not among the files that are read here. About four in
    five pairs are for training, the others for testing; which, the premise alone decides (its
    SHA-256), so that no premise is in both: three hypotheses share each. Accuracies are therefore
    not those that are published for MNLI or SNLI, whose models see fifty times as many pairs.
    """
    (file,) = files.values()
    parts: tuple[list[Pair], list[Pair]] = ([], [])
    for pair in read_pairs(file.read(), str(file.path)):
        digest = hashlib.sha256(pair.premise.encode()).digest()
        parts[int.from_bytes(digest[:4], "big") % 5 == 0].append(pair)
    return _pairs(name, *parts, options)


def _read_sick(name: str, files: Mapping[str, _File], options: _Options) -> Dataset:
    """SICK by its own split of SemEval-2014: TRAIN and TEST; TRIAL is left out."""
    (file,) = files.values()
    parts = read_sick(file.read(), str(file.path))
    return _pairs(name, parts["TRAIN"], parts["TEST"], options)


def read_pairs(content: bytes, where: str) -> list[Pair]:
    """Decode pairs of sentences: a JSON object a line, `premise`, `hypothesis`, `label`.

    Raises:
        DataError: A line is something else; names it.

    Example:
        >>> read_pairs(b'{"premise": "a", "hypothesis": "b", "label": "neutral"}', "pairs")
        [Pair(premise='a', hypothesis='b', target=1)]
    """
    pairs = []
    for number, line in enumerate(_lines(content, where), 1):
        try:
            found = json.loads(line)
            pairs.append(_pair(found["premise"], found["hypothesis"], found["label"]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(
                "no pair of sentences",
                where=f"{where}:{number}",
                found=f"{type(error).__name__}: {error}",
                expected="premise, hypothesis and a label of " + ", ".join(_NLI),
            ) from error
    return pairs


def read_sick(content: bytes, where: str) -> dict[str, list[Pair]]:
    """Decode SICK, columns between tabs, as pairs by part: TRAIN, TRIAL, TEST.

    Raises:
        DataError: A column is missing, or a line is something else; names it.
    """
    columns = ("sentence_A", "sentence_B", "entailment_label", "SemEval_set")
    lines = _lines(content, where)
    header = [name.strip() for name in lines[0].split("\t")] if lines else []
    missing = [name for name in columns if name not in header]
    if missing:
        raise DataError(
            "columns missing", where=f"{where}:1", found=", ".join(header[:4]), expected=missing[0]
        )
    places = [header.index(name) for name in columns]
    parts: dict[str, list[Pair]] = {"TRAIN": [], "TRIAL": [], "TEST": []}
    for number, line in enumerate(lines[1:], 2):
        try:
            fields = line.split("\t")
            premise, hypothesis, label, part = (fields[place].strip() for place in places)
            parts[part].append(_pair(premise, hypothesis, label.lower()))
        except (ValueError, KeyError, IndexError) as error:
            raise DataError(
                "no pair of sentences",
                where=f"{where}:{number}",
                found=f"{type(error).__name__}: {error}",
                expected=f"{', '.join(columns)}",
            ) from error
    return parts


def _lines(content: bytes, where: str) -> list[str]:
    """Lines of a UTF-8 text."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            "not a UTF-8 text", where=where, found=str(error), hint="fetch the file again"
        ) from error
    return text.removesuffix("\n").split("\n") if text else []


def _pair(premise: object, hypothesis: object, label: object) -> Pair:
    if not (isinstance(premise, str) and isinstance(hypothesis, str)):
        raise TypeError("a sentence is no text")
    if label not in _NLI:
        raise ValueError(f"label {label!r}")
    # Half of a surrogate pair is a string in JSON, but no text: UnicodeEncodeError is a ValueError.
    (premise + hypothesis).encode()
    return Pair(premise, hypothesis, _NLI.index(str(label)))


def _pairs(name: str, train: list[Pair], test: list[Pair], options: _Options) -> Dataset:
    """Assemble a data set of pairs of sentences, whose targets are the classes in `_NLI`."""
    if not (train and test):
        raise DataError(
            "no pairs of sentences",
            where=name,
            found=f"{len(train)} to train on, {len(test)} to test on",
            expected="at least one each",
        )
    encode: Encode
    if options.tokenizer is None:
        encode = encoder(learned(train, options.vocabulary), options.length)
    else:
        encode = pretrained(options.tokenizer, options.length)

    def split(pairs: list[Pair]) -> Split:
        arrays = encode(pairs)
        first = next(iter(arrays))
        targets = torch.tensor([pair.target for pair in pairs], dtype=torch.int64)
        return Split(arrays.pop(first), targets, beside=arrays)

    parts = split(train[: options.limit]), split(test[: options.limit])
    return Dataset(name, "text", len(_NLI), (options.length,), *parts, _NLI, INPUTS)


def _images(
    name: str,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    labels: tuple[str, ...],
    limit: int | None,
) -> Dataset:
    """Assemble an image data set; `train` and `test` are images and classes."""
    images, _ = train = train[0][:limit], train[1][:limit]
    mean, std = channel_statistics(images)
    return Dataset(
        name,
        "image",
        len(labels),
        tuple(images.shape[1:]),
        Split(*train, mean, std),
        Split(test[0][:limit], test[1][:limit], mean, std),
        labels,
    )


def _check_range(targets: np.ndarray, classes: int, where: str) -> None:
    """Raise unless there are targets and each is one of the classes."""
    if len(targets) == 0 or targets.min() < 0 or targets.max() >= classes:
        raise DataError(
            "label out of range",
            where=where,
            found=f"{targets.min()}…{targets.max()}" if len(targets) else "no examples",
            expected=f"classes 0…{classes - 1}",
        )


def _as_index(indices: Indices) -> Tensor | slice:
    """What a tensor can be indexed with."""
    if isinstance(indices, slice | Tensor):
        return indices
    return torch.as_tensor(np.asarray(indices, dtype=np.int64))


# In the order of GLUE.
_NLI = ("entailment", "neutral", "contradiction")
_TEN_DIGITS = tuple("0123456789")
_CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_CIFAR = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
_CIFAR_FINE = tuple(
    """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
    camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile
    cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp
    lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
    oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
    spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
    train trout tulip turtle wardrobe whale willow_tree wolf woman worm
    """.split()
)


@dataclass(frozen=True)
class _Source:
    """Where a data set lives and how it is read.

    Attributes:
        folders: Places below the root, in the order of search; the root itself comes last.
        files: Each file, with the size and MD5 of its decompressed content.
        read: Makes the data set from the located files.
        pairs: Whether it is of pairs of sentences, which are encoded as one likes.
    """

    folders: tuple[str, ...]
    files: Mapping[str, _Published]
    read: Callable[[str, Mapping[str, _File], _Options], Dataset]
    pairs: bool = False


# Checksums are of the decompressed content, so that it does not matter how a file is stored. Those
# of CIFAR and WikiText-2 are published as such; those of the IDX files were taken from the
# content of .gz files whose own published MD5 (in tests/engine/test_data.py) was checked first.
_SOURCES: Mapping[str, _Source] = {
    "digits": _Source((), {}, _read_digits),
    "mnist": _Source(
        ("mnist", "MNIST/raw", "MNIST"),
        {
            "train-images-idx3-ubyte": _Published(47040016, "6bbc9ace898e44ae57da46a324031adb"),
            "train-labels-idx1-ubyte": _Published(60008, "a25bea736e30d166cdddb491f175f624"),
            "t10k-images-idx3-ubyte": _Published(7840016, "2646ac647ad5339dbf082846283269ea"),
            "t10k-labels-idx1-ubyte": _Published(10008, "27ae3e4e09519cfbb04c329615203637"),
        },
        _read_mnist,
    ),
    "fashion_mnist": _Source(
        ("fashion-mnist", "fashion_mnist", "FashionMNIST/raw", "FashionMNIST"),
        {
            "train-images-idx3-ubyte": _Published(47040016, "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
            "train-labels-idx1-ubyte": _Published(60008, "9018921c3c673c538a1fc5bad174d6f9"),
            "t10k-images-idx3-ubyte": _Published(7840016, "8181f5470baa50b63fa0f6fddb340f0a"),
            "t10k-labels-idx1-ubyte": _Published(10008, "15d484375f8d13e6eb1aabb0c3f46965"),
        },
        _read_mnist,
    ),
    "cifar10": _Source(
        ("cifar-10-batches-py", "cifar10", "CIFAR10", "cifar10/cifar-10-batches-py"),
        {
            "data_batch_1": _Published(31035704, "c99cafc152244af753f735de768cd75f"),
            "data_batch_2": _Published(31035320, "d4bba439e000b95fd0a9bffe97cbabec"),
            "data_batch_3": _Published(31035999, "54ebc095f3ab1f0389bbae665268c751"),
            "data_batch_4": _Published(31035696, "634d18415352ddfa80567beed471001a"),
            "data_batch_5": _Published(31035623, "482c414d41f54cd18b22e5b47cb7c3cb"),
            "test_batch": _Published(31035526, "40351d587109b95175f43aff81a1287e"),
        },
        _read_cifar10,
    ),
    "cifar100": _Source(
        ("cifar-100-python", "cifar100", "CIFAR100", "cifar100/cifar-100-python"),
        {
            "train": _Published(155249918, "16019d7e3df5f24257cddd939b257f8d"),
            "test": _Published(31049859, "f0ef6b0ae62326f3e7ffdfab6717acfc"),
        },
        _read_cifar100,
    ),
    "wikitext2": _Source(
        ("wikitext-2", "wikitext2", "WikiText2"),
        {
            "wiki.train.tokens": _Published(10797148, "34a77ebe59551b3a3b3d8c0a2797c976"),
            "wiki.test.tokens": _Published(1256449, "781c9418ab9414bd09e4aad825aae752"),
        },
        _read_wikitext,
    ),
    "mnli": _Source(
        ("nli", "mnli", "MNLI"),
        {"mnli_dev_matched.jsonl": _Published(2198164, "d5f01f94da000c0e7d73b7890359e2ac")},
        _read_dev_pairs,
        pairs=True,
    ),
    "snli": _Source(
        ("nli", "snli", "SNLI"),
        {"snli_dev.jsonl": _Published(1645357, "9fc910897d3314716d5317af2a5282ad")},
        _read_dev_pairs,
        pairs=True,
    ),
    "sick": _Source(
        ("nli", "sick", "SICK"),
        {"SICK.txt": _Published(2432648, "e1059f69c667c10e63e74f6a798a9535")},
        _read_sick,
        pairs=True,
    ),
}

DATASETS: tuple[str, ...] = tuple(_SOURCES)
"""Names that `load_dataset` knows."""


def _pair_sets() -> list[str]:
    return [name for name, source in _SOURCES.items() if source.pairs]
