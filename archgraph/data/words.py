"""Continuous text as windows of consecutive words, for predicting the next word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from archgraph.data.files import File, decode_text
from archgraph.data.source import Source
from archgraph.data.values import Dataset, Split
from archgraph.errors import DataError

UNKNOWN = "<unk>"
"""Token for words outside the vocabulary."""


def read_words(source: Source, files: Mapping[str, File], limit: int | None, bptt: int) -> Dataset:
    """Read a data set with one file per split; the training text determines the vocabulary."""
    train, test = (
        words_of(decode_text(files[name].read(), str(files[name].path))) for name in source.files
    )
    vocabulary = tuple(dict.fromkeys(train))
    sources = [str(files[name].path) for name in source.files]
    return token_windows(source.name, vocabulary, (train, test), sources, bptt, limit)


def token_windows(
    name: str,
    vocabulary: Sequence[str],
    streams: tuple[Sequence[str], Sequence[str]],
    sources: Sequence[str],
    bptt: int,
    limit: int | None = None,
) -> Dataset:
    """Cut training and test tokens into windows, whose targets are the next tokens.

    Args:
        name: Name of the data set.
        vocabulary: All tokens, ordered by their numbers.
        streams: Training and test tokens.
        sources: Names of the files of both, for errors.
        bptt: Length of a window.
        limit: Largest number of windows of each split. Default: all.

    Raises:
        DataError: If a token is unknown and the vocabulary lacks `<unk>`, or if the text is shorter
            than a window.
    """
    number = {token: i for i, token in enumerate(vocabulary)}
    unknown = number.get(UNKNOWN)

    def numbered(words: Sequence[str], where: str) -> Tensor:
        tokens = [number.get(word, unknown) for word in words]
        if None in tokens:
            message = f"word outside the vocabulary, which lacks {UNKNOWN}"
            raise DataError(message, where=where, found=repr(words[tokens.index(None)]))
        return torch.tensor(tokens, dtype=torch.int64)

    train, test = map(numbered, streams, sources)
    return windows(name, vocabulary, (train, test), sources, bptt, limit)


def windows(
    name: str,
    vocabulary: Sequence[str],
    streams: tuple[Tensor, Tensor],
    sources: Sequence[str],
    bptt: int,
    limit: int | None = None,
) -> Dataset:
    """Cut token numbers, int64 ``[position]``, into windows; see :func:`token_windows`."""

    def cut(stream: Tensor, where: str) -> Split:
        count = (len(stream) - 1) // bptt
        if count < 1:
            message, hint = "text shorter than one window", "choose a smaller bptt"
            size, least = f"{len(stream)} tokens", f"at least {bptt + 1}"
            raise DataError(message, where=where, found=size, expected=least, hint=hint)
        count = count if limit is None else min(count, limit)
        # Two views of one stream: each token, both input and target, is stored once.
        return Split(
            stream[: count * bptt].view(count, bptt),
            stream[1 : count * bptt + 1].view(count, bptt),
        )

    train, test = map(cut, streams, sources)
    return Dataset(name, "text", len(vocabulary), (bptt,), train, test, tuple(vocabulary))


def words_of(text: str) -> list[str]:
    r"""Split a text into words at blanks, with `<eos>` at the end of every line.

    Example:
        >>> words_of("a b\n\n")
        ['a', 'b', '<eos>', '<eos>']
    """
    # Only "\n" ends a line and only blanks separate words, unlike str.splitlines() and str.split().
    lines = text.removesuffix("\n").split("\n") if text else []
    return [word for line in lines for word in (*filter(None, line.split(" ")), "<eos>")]
