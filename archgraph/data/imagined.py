"""Data sets of zeros with the form of the real data sets, so that a check does not read files."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from archgraph.data.load import BPTT, IMAGES, check_encoding
from archgraph.data.pairs import LABELS
from archgraph.data.sentences import LENGTH, VOCABULARY, encoder, learned
from archgraph.data.source import Source, source
from archgraph.data.tokens import INPUTS
from archgraph.data.values import Dataset, Split


def imagined_dataset(
    name: str,
    *,
    limit: int | None = None,
    bptt: int = BPTT,
    length: int | None = None,
    vocabulary: int | None = None,
    tokenizer: str | Path | None = None,
) -> Dataset:
    """Return zeros in the form of a data set, with the same number of examples; classes take turns.

    For text, the first example contains the last word of the vocabulary. With a tokenizer, the
    vocabulary is unknown until the tokenizer's files are read, so all tokens are 0.

    Args:
        name: One of `DATASETS`.
        limit: Number of examples of each split, as for `load_dataset`.
        bptt: Length of a window of continuous text, in tokens.
        length: Number of tokens of an encoded pair of sentences.
        vocabulary: Largest number of tokens of a learned vocabulary.
        tokenizer: File or folder of a tokenizer.

    Raises:
        DataError: If the name is unknown, or an option does not apply to this data set.

    Example:
        >>> imagined_dataset("mnist", limit=100)
        Dataset(mnist: image (1, 28, 28), 10 classes, 100 train, 100 test)
        >>> imagined_dataset("wikitext2")
        Dataset(wikitext2: text (64,), 33278 classes, 32634 train, 3837 test)
    """
    chosen = source(name)
    check_encoding(chosen, bptt=bptt, length=length, vocabulary=vocabulary, tokenizer=tokenizer)
    if chosen.format in IMAGES:
        return _images(chosen, limit)
    if chosen.format == "words":
        return _windows(chosen, limit, bptt)
    length = LENGTH if length is None else length
    most = VOCABULARY if vocabulary is None else vocabulary
    encoder(learned((), most), length)  # raises, as loading does, if one of them is too small
    return _pairs(chosen, limit, length, 1 if tokenizer else min(most, chosen.words or most))


def _images(chosen: Source, limit: int | None) -> Dataset:
    channels, classes = chosen.shape[0], len(chosen.labels)

    def split(published: int) -> Split:
        count = _most(published, limit)
        # A view that repeats one value: a check needs only shapes.
        images = torch.zeros(1, dtype=torch.uint8).expand(count, *chosen.shape)
        targets = torch.arange(count) % classes
        return Split(images, targets, torch.zeros(channels), torch.ones(channels))

    train, test = map(split, chosen.examples)
    return Dataset(chosen.name, "image", classes, chosen.shape, train, test, chosen.labels)


def _windows(chosen: Source, limit: int | None, bptt: int) -> Dataset:
    def split(published: int) -> Split:
        # The last word is a target only.
        inputs = _tokens(_most((published - 1) // bptt, limit), bptt, chosen.words)
        return Split(inputs, torch.zeros(1, dtype=torch.int64).expand(inputs.shape))

    train, test = map(split, chosen.examples)
    labels = tuple(map(str, range(chosen.words)))
    return Dataset(chosen.name, "text", chosen.words, (bptt,), train, test, labels)


def _pairs(chosen: Source, limit: int | None, length: int, words: int) -> Dataset:
    _, mask, types = INPUTS

    def split(published: int) -> Split:
        count = _most(published, limit)
        ones = torch.ones(1, dtype=torch.int16).expand(count, length)
        halves = (torch.arange(length) * 2 >= length).to(torch.int16).expand(count, length)
        targets = torch.arange(count) % len(LABELS)
        return Split(_tokens(count, length, words), targets, beside={mask: ones, types: halves})

    train, test = map(split, chosen.examples)
    return Dataset(chosen.name, "text", len(LABELS), (length,), train, test, LABELS, INPUTS)


def _most(published: int, limit: int | None) -> int:
    return published if limit is None else min(limit, published)


def _tokens(count: int, length: int, words: int) -> Tensor:
    """Return tokens ``[example, position]``: the last word once, the first word everywhere else."""
    tokens = torch.zeros(count, length, dtype=torch.int32)
    tokens[:1, :1] = words - 1
    return tokens
