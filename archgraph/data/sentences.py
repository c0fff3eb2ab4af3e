"""Pairs of sentences as tokens of a vocabulary that is learned from the training split.

A pair becomes ``[CLS] premise [SEP] hypothesis [SEP]`` and padding (Devlin et al., *BERT*, NAACL
2019, Fig. 2), in three arrays named as the inputs of models: ``input_ids``, ``attention_mask`` (1
on tokens, 0 on padding) and ``token_type_ids`` (1 on the hypothesis).
"""

from __future__ import annotations

import collections
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from archgraph.data.tokens import INPUTS, smallest
from archgraph.errors import DataError

Encode: TypeAlias = Callable[[Sequence["SentencePair"]], dict[str, Tensor]]

MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""The first tokens of a learned vocabulary, in this order."""

LENGTH = 128
"""Default number of tokens of an encoded pair."""

VOCABULARY = 8192
"""Default for the largest number of tokens of a learned vocabulary. With 8192 tokens, 9.1 % of
mnli's test tokens are unknown; with 4096, 13.1 %."""

# One word, or one character that is neither part of a word nor blank.
_WORD = re.compile(r"\w+|[^\w\s]")


class SentencePair(NamedTuple):
    """A labelled pair of sentences.

    Attributes:
        premise: The first sentence.
        hypothesis: The second sentence, which may follow from the premise.
        target: Number of the label.
    """

    premise: str
    hypothesis: str
    target: int


def split_words(text: str) -> list[str]:
    """Split a text into words and punctuation marks, in lower case.

    >>> split_words("Don't stop, now!")
    ['don', "'", 't', 'stop', ',', 'now', '!']
    """
    return _WORD.findall(text.lower())


def learned(pairs: Iterable[SentencePair], size: int = VOCABULARY) -> dict[str, int]:
    """Learn a vocabulary: the special tokens :data:`MARKS` and the most frequent words of pairs.

    Equally frequent words are in alphabetical order, so that the vocabulary depends only on the
    sentences.

    Args:
        pairs: The training split.
        size: Largest number of tokens, including the special tokens.

    Raises:
        DataError: If the size is too small for a word.

    Example:
        >>> list(learned([SentencePair("b a", "a", 0), SentencePair("c b", "a d", 1)], size=7))[5:]
        ['a', 'b']
    """
    if size <= len(MARKS):
        expected = f"more than the {len(MARKS)} marks"
        where = "data.vocabulary"
        raise DataError("vocabulary too small", where=where, found=size, expected=expected)
    count = collections.Counter(
        word
        for pair in pairs
        for text in (pair.premise, pair.hypothesis)
        for word in split_words(text)
    )
    order = sorted(count, key=lambda word: (-count[word], word))
    return {word: number for number, word in enumerate((*MARKS, *order[: size - len(MARKS)]))}


def encoder(vocabulary: Mapping[str, int], length: int = LENGTH) -> Encode:
    """Return a function that encodes pairs with a vocabulary; unknown words become ``[UNK]``.

    A pair that is too long loses words at the ends of its sentences, the longer sentence first.

    Args:
        vocabulary: A vocabulary of :func:`learned`.
        length: Number of tokens of an encoded pair, including its three special tokens and padding.

    Returns:
        A function from pairs to a dict from the names in :data:`INPUTS` to arrays ``[pair,
        position]``, in the smallest sufficient types.

    Raises:
        DataError: If the length is too short for one word of each sentence.

    Example:
        >>> numbers = learned([SentencePair("a b", "c", 0)])
        >>> arrays = encoder(numbers, 8)([SentencePair("a b", "x", 0)])
        >>> arrays["input_ids"].tolist()  # [CLS] a b [SEP] [UNK] [SEP] [PAD] [PAD]
        [[2, 5, 6, 3, 1, 3, 0, 0]]
        >>> arrays["attention_mask"].tolist(), arrays["token_type_ids"].tolist()
        ([[1, 1, 1, 1, 1, 1, 0, 0]], [[0, 0, 0, 0, 1, 1, 0, 0]])
    """
    _check_length(length)
    pad, unknown, begin, end = (vocabulary[mark] for mark in MARKS[:4])
    small = smallest(len(vocabulary))

    def encode(pairs: Sequence[SentencePair]) -> dict[str, Tensor]:
        shape = len(pairs), length
        ids = torch.full(shape, pad, dtype=small)
        mask, types = torch.zeros(shape, dtype=torch.uint8), torch.zeros(shape, dtype=torch.uint8)
        for row, pair in enumerate(pairs):
            first, second = (
                [vocabulary.get(word, unknown) for word in split_words(text)]
                for text in (pair.premise, pair.hypothesis)
            )
            first_length, second_length = truncated_lengths(len(first), len(second), length - 3)
            tokens = [begin, *first[:first_length], end, *second[:second_length], end]
            ids[row, : len(tokens)] = torch.tensor(tokens, dtype=small)
            mask[row, : len(tokens)] = 1
            types[row, first_length + 2 : len(tokens)] = 1
        return dict(zip(INPUTS, (ids, mask, types), strict=True))

    return encode


def truncated_lengths(first: int, second: int, room: int) -> tuple[int, int]:
    """Return the lengths of two sentences after dropping words of the longer until both fit.

    >>> truncated_lengths(4, 3, 10), truncated_lengths(9, 3, 10), truncated_lengths(9, 8, 11)
    ((4, 3), (7, 3), (6, 5))
    """
    # The closed form of dropping one word at a time, from the second sentence if both are equal.
    if first + second <= room:
        return first, second
    if second <= room // 2:
        return room - second, second
    if first <= room - room // 2:
        return first, room - first
    return room - room // 2, room // 2


def _check_length(length: int) -> None:
    if length < 5:
        expected = "at least 5: three marks and a word of each sentence"
        raise DataError("pairs too short", where="data.length", found=length, expected=expected)
