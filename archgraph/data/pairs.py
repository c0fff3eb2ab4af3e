"""Labelled pairs of sentences (natural language inference) from their original files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from archgraph.data.files import DAMAGED, MOST_BYTES, File, check_size, decode_text, readable
from archgraph.data.sentences import Encode, SentencePair
from archgraph.data.source import Source
from archgraph.data.tokens import INPUTS
from archgraph.data.values import Dataset, Split
from archgraph.errors import DataError

LABELS = ("entailment", "neutral", "contradiction")
"""Classes of a pair, in the order of GLUE."""

MULTINLI = ("multinli_1.0/multinli_1.0_train.jsonl", "multinli_1.0/multinli_1.0_dev_matched.jsonl")
"""Files of MultiNLI's archive for training and for testing."""

PairsBySplit = tuple[list[SentencePair], list[SentencePair]]


def divided_pairs(source: Source, files: Mapping[str, File]) -> PairsBySplit:
    """Split a published *development* set of MNLI or SNLI into training and test pairs.

    About four in five pairs are for training, and the others for testing. Three hypotheses share
    each premise, so the SHA-256 of the premise determines the split: no premise is in both splits.
    Published models for MNLI or SNLI are trained on fifty times as many pairs, so accuracies on
    this split cannot be compared with published accuracies. To read the training pairs of MNLI from
    its archive, use `multinli`.
    """
    (file,) = files.values()
    parts: PairsBySplit = ([], [])
    for pair in read_pairs(file.read(), str(file.path)):
        # Not `hash`, which differs between processes.
        digest = hashlib.sha256(pair.premise.encode()).digest()
        parts[int.from_bytes(digest[:4], "big") % 5 == 0].append(pair)
    return parts


def sick(source: Source, files: Mapping[str, File]) -> PairsBySplit:
    """Read SICK with the split of SemEval-2014: TRAIN and TEST. The part TRIAL is not used."""
    (file,) = files.values()
    parts = read_sick(file.read(), str(file.path))
    return parts["TRAIN"], parts["TEST"]


def multinli(source: Source, files: Mapping[str, File]) -> PairsBySplit:
    """Read MultiNLI's training pairs and matched development set from the published archive.

    Pairs whose annotators have no majority label (`-`) are skipped, as is common practice.

    Raises:
        DataError: If the archive is damaged, or does not contain the expected files.
    """
    (file,) = files.values()
    where = str(file.path)
    # NotImplementedError: a damaged header may name a compression that Python does not support.
    errors = (zipfile.BadZipFile, NotImplementedError, *DAMAGED)
    with (
        file.opened() as stream,
        readable("archive", where, "a complete zip archive", errors),
        zipfile.ZipFile(stream) as archive,
    ):
        train, test = (_member(archive, name, where) for name in MULTINLI)
    return train, test


def _member(archive: zipfile.ZipFile, name: str, where: str) -> list[SentencePair]:
    """Read the labelled pairs of one file of MultiNLI's archive, line by line."""
    if name not in archive.namelist():
        raise DataError("archive does not contain this file", where=where, expected=name)
    check_size(archive.getinfo(name).file_size, MOST_BYTES, "file", f"{where}: {name}")
    keys = ("sentence1", "sentence2", "gold_label")
    with archive.open(name) as lines:
        return _read_lines(lines, f"{where}: {name}", keys, unlabelled="-")


def pair_dataset(
    source: Source, parts: PairsBySplit, limit: int | None, length: int, encode: Encode
) -> Dataset:
    """Build a data set of encoded pairs, with at most `limit` pairs in each split."""

    def split(pairs: Sequence[SentencePair]) -> Split:
        arrays = encode(pairs)
        first = next(iter(arrays))
        targets = torch.tensor([pair.target for pair in pairs], dtype=torch.int64)
        return Split(arrays.pop(first), targets, beside=arrays)

    train, test = (split(pairs[:limit]) for pairs in parts)
    return Dataset(
        source.name, "text", len(LABELS), (length,), train, test, LABELS, INPUTS, mask=INPUTS[1]
    )


def read_pairs(content: bytes, where: str) -> list[SentencePair]:
    """Decode pairs of sentences from lines of JSON with `premise`, `hypothesis` and `label`.

    Raises:
        DataError: If a line is not an object with these keys. The error names the line.

    Example:
        >>> read_pairs(b'{"premise": "a", "hypothesis": "b", "label": "neutral"}', "pairs")
        [SentencePair(premise='a', hypothesis='b', target=1)]
    """
    return _read_lines(_lines(content, where), where, ("premise", "hypothesis", "label"))


def _read_lines(
    lines: Iterable[str | bytes], where: str, keys: Sequence[str], unlabelled: str = ""
) -> list[SentencePair]:
    """Read pairs from JSON objects with these keys, one per line; skip unlabelled pairs."""
    pairs = []
    for number, line in enumerate(lines, 1):
        with _line(where, number):
            record = json.loads(line)
            premise, hypothesis, label = (record[key] for key in keys)
            if not (unlabelled and label == unlabelled):
                pairs.append(_pair(premise, hypothesis, label))
    return pairs


@contextlib.contextmanager
def _line(where: str, number: int) -> Iterator[None]:
    """Convert errors about the content of a line to errors that name the line."""
    try:
        yield
    # RecursionError: a line of JSON may be thousands of open brackets.
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise DataError(
            "not a pair of sentences",
            where=f"{where}:{number}",
            found=f"{type(error).__name__}: {error}",
            expected="two sentences, and a label of " + ", ".join(LABELS),
        ) from error


def read_sick(content: bytes, where: str) -> dict[str, list[SentencePair]]:
    """Decode SICK's tab-separated columns to a dict from TRAIN, TRIAL and TEST to pairs.

    Raises:
        DataError: If a column is missing or a line is malformed. The error names the line.
    """
    columns = ("sentence_A", "sentence_B", "entailment_label", "SemEval_set")
    lines = _lines(content, where)
    # Lines end with "\r\n" and some cells with a blank: stripping the cells removes both.
    header = [name.strip() for name in lines[0].split("\t")] if lines else []
    missing = [name for name in columns if name not in header]
    if missing:
        raise DataError(
            "columns missing", where=f"{where}:1", found=", ".join(header[:4]), expected=missing[0]
        )
    positions = [header.index(name) for name in columns]
    parts: dict[str, list[SentencePair]] = {"TRAIN": [], "TRIAL": [], "TEST": []}
    for number, line in enumerate(lines[1:], 2):
        with _line(where, number):
            fields = line.split("\t")
            premise, hypothesis, label, part = (fields[column].strip() for column in positions)
            parts[part].append(_pair(premise, hypothesis, label.lower()))
    return parts


def _lines(content: bytes, where: str) -> list[str]:
    """Return the lines of a UTF-8 text."""
    # Not splitlines, which also splits at characters that JSON allows inside a string.
    text = decode_text(content, where)
    return text.removesuffix("\n").split("\n") if text else []


def _pair(premise: object, hypothesis: object, label: object) -> SentencePair:
    if not (isinstance(premise, str) and isinstance(hypothesis, str)):
        raise TypeError("a sentence is not a text")
    if label not in LABELS:
        raise ValueError(f"label {label!r}")
    # JSON strings may contain half of a surrogate pair, which is not valid text;
    # UnicodeEncodeError is a ValueError.
    (premise + hypothesis).encode()
    return SentencePair(premise, hypothesis, LABELS.index(str(label)))
