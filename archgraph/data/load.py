"""Load data sets by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from archgraph.data import cifar, images, pairs, words
from archgraph.data.files import located
from archgraph.data.sentences import LENGTH, VOCABULARY, Encode, SentencePair, encoder, learned
from archgraph.data.source import DATASETS, Source, source
from archgraph.data.tokens import Tokenizer, read_tokenizer
from archgraph.data.values import Dataset
from archgraph.errors import DataError

IMAGES = {"idx": images.read_images, "cifar": cifar.read_cifar}
BPTT = 64
"""Default length of a window of continuous text, in tokens."""
PAIRS = {"pairs": pairs.divided_pairs, "sick": pairs.sick, "multinli": pairs.multinli}
FORMATS = (*IMAGES, "words", *PAIRS)
"""Formats of data sets; see :class:`archgraph.data.source.Source`."""


def load_dataset(
    name: str,
    root: str | Path | None = None,
    *,
    limit: int | None = None,
    bptt: int = BPTT,
    length: int | None = None,
    vocabulary: int | None = None,
    tokenizer: str | Path | None = None,
    verify: bool = True,
) -> Dataset:
    """Load a data set by name from local files.

    Args:
        name: One of `DATASETS`.
        root: Folder below which the files are searched. Default: the environment variable
            `ARCHGRAPH_DATA`. Not needed for `digits`.
        limit: Number of examples to use of each split, from its beginning. The statistics for
            normalisation are computed from these training examples only. Default: all examples.
        bptt: Length of a window of continuous text, in tokens.
        length: Number of tokens of a pair of sentences, including its three special tokens and
            padding. Default: 128.
        vocabulary: Largest number of tokens of the vocabulary that is learned from the training
            pairs. Default: 8192.
        tokenizer: File or folder of a tokenizer. Its vocabulary replaces the learned vocabulary.
        verify: Compare sizes and MD5 checksums with the published files. Set it to False to read
            your own files in the same format.

    Returns:
        The data set, both splits normalised by the statistics of the train split.

    Raises:
        DataError: If the name is unknown, a file is missing, damaged or differs from the published
            file, or an option does not apply to this data set.

    Example:
        >>> load_dataset("digits")
        Dataset(digits: image (1, 8, 8), 10 classes, 1437 train, 360 test)
    """
    for option, value in (("limit", limit), ("bptt", bptt)):
        if value is not None and value < 1:
            raise DataError("is not at least 1", where=f"data.{option}", found=value)
    chosen = source(name)
    check_encoding(chosen, bptt=bptt, length=length, vocabulary=vocabulary, tokenizer=tokenizer)
    files = located(chosen, root, verify=verify)
    if chosen.format in IMAGES:
        return IMAGES[chosen.format](chosen, files, limit)
    if chosen.format == "words":
        return words.read_words(chosen, files, limit, bptt)
    train, test = PAIRS[chosen.format](chosen, files)
    if not (train and test):
        numbers = f"{len(train)} to train on, {len(test)} to test on"
        raise DataError("too few pairs of sentences", where=name, found=numbers)
    length = LENGTH if length is None else length
    if tokenizer is not None:
        pretrained = read_tokenizer(tokenizer)
        encode = _encoder(pretrained, length, name)
        data = pairs.pair_dataset(chosen, (train, test), limit, length, encode)
        return dataclasses.replace(data, tokens=len(pretrained.tokens))
    encode = encoder(learned(train, VOCABULARY if vocabulary is None else vocabulary), length)
    return pairs.pair_dataset(chosen, (train, test), limit, length, encode)


def _encoder(tokenizer: Tokenizer, length: int, name: str) -> Encode:
    """Return a function that encodes pairs with a tokenizer."""

    def encode(sentences: Sequence[SentencePair]) -> dict[str, Tensor]:
        first, second, _ = zip(*sentences, strict=True)
        return tokenizer.encode(length, lambda row: f"{name}: pair {row + 1}", first, second)

    return encode


def check_encoding(chosen: Source, *, bptt: int = BPTT, **options: object) -> None:
    """Raise an error if options for texts do not fit the data set, or set two vocabularies."""
    # `bptt` has a value in every spec: only a value other than the default was requested.
    readers: dict[str, tuple[str, ...]] = {"bptt": ("words",)} if bptt != BPTT else {}
    readers |= {option: tuple(PAIRS) for option, value in options.items() if value is not None}
    for option, formats in readers.items():
        if chosen.format not in formats:
            names = [name for name in DATASETS if source(name).format in formats]
            message, where = f"is not an option of {chosen.name}", f"data.{option}"
            raise DataError(message, where=where, expected=f"one of {', '.join(names)}")
    if {"tokenizer", "vocabulary"} <= readers.keys():
        raise DataError(
            "conflicts with data.tokenizer, which has its own vocabulary", where="data.vocabulary"
        )
