"""Running text of the user's own, as `data: {text: …}` names it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from archgraph.data.files import MOST_BYTES, decode_text
from archgraph.data.values import Dataset
from archgraph.data.words import UNKNOWN, token_windows, words_of
from archgraph.errors import DataError
from archgraph.language.data import TextData

SHARE = 0.1
"""Share of a text, its end, that is set aside for tests where nothing is said."""
MOST_TEXT = MOST_BYTES >> 5  # each character becomes an object of Python's and a number


def read_text(spec: TextData) -> Dataset:
    """Read text as windows of consecutive characters or words, each with the next ones.

    Raises:
        DataError: If it is not UTF-8, or shorter than one window to train and one to test on.
    """
    path = Path(spec.text)
    tokens = _tokens(path, spec.by)
    if isinstance(spec.test, str):
        train, test = tokens, _tokens(Path(spec.test), spec.by)
        places = [str(path), spec.test]
    else:
        cut = round(len(tokens) * (1 - (spec.test or SHARE)))
        train, test = tokens[:cut], tokens[cut:]
        places = [f"{path}: train", f"{path}: test"]
    known = vocabulary(train, test, spec.vocabulary)
    return token_windows(path.stem, known, (train, test), places, spec.bptt)


def vocabulary(train: Sequence[str], test: Iterable[str], most: int | None) -> tuple[str, ...]:
    """Return the training text's tokens by first occurrence; `<unk>` last, if others occur.

    Args:
        train: The training text.
        test: The text to test on.
        most: At most so many tokens, `<unk>` among them: the most frequent ones.

    Example:
        >>> vocabulary("banana", "ban", None), vocabulary("banana", "band", 3)
        (('b', 'a', 'n'), ('a', 'n', '<unk>'))
    """
    known = dict.fromkeys(train)
    foreign = any(token not in known for token in test)
    if most is not None and len(known) + foreign > most:
        frequent = {token for token, _ in Counter(train).most_common(most - 1)}
        known, foreign = {token: None for token in known if token in frequent}, True
    return (*known, UNKNOWN) if foreign and UNKNOWN not in known else tuple(known)


def _tokens(path: Path, by: str) -> list[str]:
    size = path.stat().st_size
    if size > MOST_TEXT:
        raise DataError(
            "file too long",
            where=str(path),
            found=f"{size:,} bytes",
            expected=f"at most {MOST_TEXT:,} bytes",
        )
    text = decode_text(path.read_bytes(), str(path), "save it as UTF-8")
    return list(text) if by == "character" else words_of(text)
