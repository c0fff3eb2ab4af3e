"""The user's own continuous text, for `data: {text: …}`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from archgraph.data.files import MOST_BYTES, check_size, decode_text
from archgraph.data.tokens import read_tokenizer
from archgraph.data.values import Dataset
from archgraph.data.words import UNKNOWN, token_windows, windows, words_of
from archgraph.language.data import TextData

S = TypeVar("S", list[str], Tensor)
SHARE = 0.1
"""Default fraction of a text, at its end, that is set aside for tests."""
MOST_TEXT = MOST_BYTES >> 5  # each character becomes a Python object and a number


def read_running_text(spec: TextData) -> Dataset:
    """Read text as windows of characters, words or tokens; each target is the next one in the text.

    Raises:
        DataError: If the text is not UTF-8, or is too short for a training and a test window.
    """
    path = Path(spec.text)
    if spec.tokenizer is not None:
        tokenizer = read_tokenizer(spec.tokenizer)
        streams, sources = _streams(spec, lambda file: tokenizer.running(_text(file), str(file)))
        data = windows(path.stem, tokenizer.tokens, streams, sources, spec.bptt)
        return dataclasses.replace(data, tokens=len(tokenizer.tokens))
    by = list if spec.by != "word" else words_of
    (train, test), sources = _streams(spec, lambda file: by(_text(file)))
    known = vocabulary(train, test)
    return token_windows(path.stem, known, (train, test), sources, spec.bptt)


def _streams(spec: TextData, read: Callable[[Path], S]) -> tuple[tuple[S, S], list[str]]:
    """Return training and test tokens, and the names of their files for errors."""
    tokens = read(Path(spec.text))
    if isinstance(spec.test, str):
        return (tokens, read(Path(spec.test))), [spec.text, spec.test]
    # The end instead of a random part: neighbouring windows share words.
    cut = round(len(tokens) * (1 - (spec.test or SHARE)))
    return (tokens[:cut], tokens[cut:]), [f"{spec.text}: train", f"{spec.text}: test"]


def vocabulary(train: Sequence[str], test: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct tokens of the training text in order of first occurrence.

    If the test text contains other tokens, `<unk>` is added at the end.

    Example:
        >>> vocabulary("banana", "ban"), vocabulary("banana", "band")
        (('b', 'a', 'n'), ('b', 'a', 'n', '<unk>'))
    """
    known = dict.fromkeys(train)
    foreign = UNKNOWN not in known and any(token not in known for token in test)
    return (*known, UNKNOWN) if foreign else tuple(known)


def _text(path: Path) -> str:
    check_size(path.stat().st_size, MOST_TEXT, "file", path)
    return decode_text(path.read_bytes(), str(path), "save it as UTF-8")
