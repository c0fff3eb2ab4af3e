"""Pairs of sentences: a vocabulary that is a function of them, and rows that can be read back."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from archgraph.data import Dataset, load_dataset
from archgraph.data import pairs as pairs_module
from archgraph.data.files import File
from archgraph.data.pairs import divided_pairs, read_pairs, read_sick
from archgraph.data.sentences import (
    MARKS,
    Encode,
    SentencePair,
    encoder,
    learned,
    split_words,
    truncated_lengths,
)
from archgraph.data.source import source
from archgraph.data.tokens import INPUTS, read_tokenizer
from archgraph.errors import DataError
from tests.data.test_data import publish, store

texts = st.lists(st.sampled_from("a b c dog dog's , . café".split()), max_size=9).map(" ".join)
pairs = st.lists(st.builds(SentencePair, texts, texts, st.integers(0, 2)), min_size=1, max_size=6)


@given(pairs, st.integers(6, 14))
def test_a_vocabulary_is_bounded_and_does_not_depend_on_the_order(found, size):
    vocabulary = learned(found, size)
    assert list(vocabulary.values()) == list(range(len(vocabulary)))
    assert len(vocabulary) <= size and tuple(vocabulary)[: len(MARKS)] == MARKS
    assert list(learned(found[::-1], size)) == list(vocabulary)
    every = [w for p in found for t in (p.premise, p.hypothesis) for w in split_words(t)]
    kept, lost = set(vocabulary) - set(MARKS), set(every) - set(vocabulary)
    assert kept <= set(every)
    assert not lost or min(map(every.count, kept)) >= max(map(every.count, lost))


@given(pairs, st.integers(5, 30))
def test_a_row_can_be_read_back(found, length):
    vocabulary = learned(found)
    name_of = {number: word for word, number in vocabulary.items()}
    arrays = encoder(vocabulary, length)(found)
    assert tuple(arrays) == INPUTS
    for place, pair in enumerate(found):
        ids, mask, types = (arrays[name][place].tolist() for name in INPUTS)
        real = sum(mask)
        assert mask == [1] * real + [0] * (length - real)
        row = [name_of[i] for i in ids]
        first, second = split_words(pair.premise), split_words(pair.hypothesis)
        kept, others = truncated_lengths(len(first), len(second), length - 3)
        assert row[:real] == ["[CLS]", *first[:kept], "[SEP]", *second[:others], "[SEP]"]
        assert set(row[real:]) <= {"[PAD]"}
        assert types == [0] * (kept + 2) + [1] * (others + 1) + [0] * (length - real)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(2, 30))
def test_the_longer_sentence_loses_words_first(first, second, room):
    a, b = first, second
    while a + b > room:
        a, b = (a - 1, b) if a > b else (a, b - 1)
    assert truncated_lengths(first, second, room) == (a, b)


def test_unknown_words_and_small_types():
    vocabulary = learned([SentencePair("a b", "c", 0)])
    arrays = encoder(vocabulary, 6)([SentencePair("z", "A", 0)])
    assert arrays["input_ids"].tolist() == [[2, 1, 3, vocabulary["a"], 3, 0]]
    assert [x.dtype for x in arrays.values()] == [torch.int16, torch.uint8, torch.uint8]
    many = {**vocabulary, **{f"w{i}": 8 + i for i in range(40_000)}}
    assert encoder(many, 6)([SentencePair("w39999", "", 0)])["input_ids"].tolist() == [
        [2, 40_007, 3, 3, 0, 0]
    ]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: learned([], 5),
            "data.vocabulary: vocabulary too small; found 5; expected more than the 5 marks",
        ),
        (lambda: encoder(learned([]), 4), r"data\.length: pairs too short; found 4"),
        (
            lambda: read_tokenizer("/nowhere/at all"),
            "tokenizer is missing; found /nowhere/at all; nothing is downloaded",
        ),
        (
            lambda: load_dataset("digits", length=9),
            "data.length: is not an option of digits",
        ),
        (
            lambda: load_dataset("mnli", vocabulary=9, tokenizer="x"),
            "data.vocabulary: conflicts with data.tokenizer",
        ),
    ],
)
def test_what_cannot_be_is_said(call, words):
    with pytest.raises(DataError, match=words):
        call()


# ---------------------------------------------------------------- files


def line(premise: object = "a", hypothesis: object = "b", label: object = "neutral") -> str:
    return json.dumps({"premise": premise, "hypothesis": hypothesis, "label": label})


def test_the_premise_alone_decides_which_part_a_pair_is_in(tmp_path):
    lines = [line(premise=premise) for premise in "abcdefghijklmnopqrst"]
    (tmp_path / "mnli_dev_matched.jsonl").write_text("\n".join(lines) + "\n")
    files = {"dev": File(tmp_path / "mnli_dev_matched.jsonl", None)}
    train, test = divided_pairs(source("mnli"), files)
    assert "".join(pair.premise for pair in test) == "afjkls"
    assert len(train) == 14


@pytest.mark.parametrize(
    ("bad", "found"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        (line(label="-"), "ValueError: label '-'"),
        (line(label=["neutral"]), "ValueError"),
        (line(premise=3), "TypeError: a sentence is not a text"),
        (line(hypothesis="\ud800"), "UnicodeEncodeError"),
        ('{"premise": "a", "hypothesis": "b"}', "KeyError: 'label'"),
    ],
)
def test_a_line_that_is_no_pair_is_named(bad, found):
    with pytest.raises(DataError, match=rf"^pairs:2: not a pair of sentences; found {found}"):
        read_pairs(f"{line()}\n{bad}\n".encode(), "pairs")
    with pytest.raises(DataError, match="is not UTF-8 text"):
        read_pairs(b"\xff", "pairs")


SICK = "pair_ID\tsentence_A\tsentence_B\tentailment_label\tSemEval_set\r\n"


def test_sick_is_read_by_its_header():
    rows = "1\tA man\tA boy \tNEUTRAL\tTRAIN\r\n2\tx\ty\tENTAILMENT\tTEST \r\n"
    parts = read_sick((SICK + rows).encode(), "sick")
    assert parts == {
        "TRAIN": [SentencePair("A man", "A boy", 1)],
        "TRIAL": [],
        "TEST": [SentencePair("x", "y", 0)],
    }
    with pytest.raises(DataError, match=r"sick:1: columns missing; .* expected SemEval_set"):
        read_sick(SICK.replace("SemEval_set", "set").encode(), "sick")
    for bad in ("1\ta", "1\ta\tb\tMAYBE\tTRAIN", "1\ta\tb\tNEUTRAL\tDEV"):
        with pytest.raises(DataError, match="sick:2: not a pair of sentences"):
            read_sick((SICK + bad).encode(), "sick")


@pytest.fixture
def mnli(tmp_path, monkeypatch):
    """A root with a small file in MNLI's format: three hypotheses for each of forty premises."""
    labels = ("entailment", "neutral", "contradiction")
    rows = [line(f"p{i} x", f"h{i} {label}", label) for i in range(40) for label in labels]
    content = "\n".join(rows).encode()
    publish(monkeypatch, "mnli", {"mnli_dev_matched.jsonl": content})
    store(tmp_path / "nli" / "mnli_dev_matched.jsonl", content)
    return tmp_path


def multinli(lines: list[dict[str, str]], name: str = "train") -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for part in (name, "dev_matched"):
            content = "\n".join(map(json.dumps, lines)) + "\n"
            archive.writestr(f"multinli_1.0/multinli_1.0_{part}.jsonl", content)
    return stream.getvalue()


def test_multinli_is_read_from_its_archive(tmp_path, monkeypatch):
    pair = {"sentence1": "A boy", "sentence2": "a b", "gold_label": "neutral", "genre": "x"}
    lines = [pair, {**pair, "gold_label": "-"}, {**pair, "gold_label": "entailment"}]

    def read(content: bytes) -> Dataset:
        publish(monkeypatch, "multinli", {"multinli_1.0.zip": content}, archive=True)
        store(tmp_path / "multinli_1.0.zip", content)
        return load_dataset("multinli", tmp_path, length=10)

    data = read(multinli(lines))
    assert data.train.targets.tolist() == data.test.targets.tolist() == [1, 0]
    assert data.inputs == INPUTS and data.shape == (10,)
    wrong = r"multinli_1\.0_train\.jsonl:4: not a pair of sentences; found KeyError: 'sentence1'"
    with pytest.raises(DataError, match=wrong):
        read(multinli([*lines, {"premise": "a"}]))
    with pytest.raises(
        DataError, match=(r"does not contain this file; expected multinli_1\.0/multinli_1\.0_tr")
    ):
        read(multinli(lines, "test"))
    with pytest.raises(DataError, match="archive cannot be read; found File is not a zip file"):
        read(b"x")
    store(tmp_path / "multinli_1.0.zip", multinli(lines))
    with pytest.raises(DataError, match=r"multinli_1\.0\.zip: data file too long"):
        load_dataset("multinli", tmp_path)
    store(tmp_path / "multinli_1.0.zip", b"y")
    with pytest.raises(DataError, match=r"wrong checksum; found MD5 .* of the stored content"):
        load_dataset("multinli", tmp_path)
    (tmp_path / "multinli_1.0.zip").unlink()
    with pytest.raises(
        DataError, match=r"expected multinli_1\.0\.zip; put .* nothing is downloaded"
    ):
        load_dataset("multinli", tmp_path)
    monkeypatch.setattr(pairs_module, "MOST_BYTES", 50)
    with pytest.raises(DataError, match=r"file is too large; found \d+ bytes; expected at most 50"):
        read(multinli(lines))


def test_no_premise_is_in_both_splits(mnli):
    data = load_dataset("mnli", mnli, length=8, vocabulary=200)
    premises = [{row[1] for row in s.inputs.tolist()} for s in (data.train, data.test)]
    assert len(data.train) + len(data.test) == 120
    # A word of its own each in training; unknown in the test, since the words are training's.
    assert len(premises[0]) == len(data.train) / 3 and premises[1] == {1}
    assert data.train.targets.bincount().tolist() == [len(premises[0])] * 3
    assert (data.kind, data.classes, data.shape) == ("text", 3, (8,))
    assert data.labels == ("entailment", "neutral", "contradiction")
    assert data.classified and data.integral and data.inputs == INPUTS


def test_a_limit_leaves_words_and_encoding_as_they_are(mnli):
    whole, few = (load_dataset("mnli", mnli, length=8, limit=n) for n in (None, 5))
    assert len(few.train) == len(few.test) == 5
    (a, targets), (b, _) = whole.train.examples(slice(0, 5)), few.train.examples(slice(0, 9))
    assert all(torch.equal(x, y) and x.dtype == torch.int64 for x, y in zip(a, b, strict=True))
    assert torch.equal(targets, few.train.targets)
    assert torch.equal(whole.train.batch([0])[0], a[0][:1])


def test_only_the_inputs_that_are_asked_for_stay(mnli):
    data = load_dataset("mnli", mnli, length=8)
    assert data.with_only(()).inputs == ("input_ids",)
    two = data.with_only({"token_type_ids"})
    assert two.inputs == ("input_ids", "token_type_ids")
    inputs, _ = two.test.examples([0])
    assert len(inputs) == 2 and torch.equal(inputs[1], data.test.examples([0])[0][2])


# ---------------------------------------------------------------- a pretrained model's tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A WordPiece tokenizer of a few words, saved as those of published models are."""
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    folder = tmp_path_factory.mktemp("tokenizer")
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "dog", "##s", "run", "a"]
    (folder / "vocab.txt").write_text("\n".join(entries) + "\n")
    made = transformers.BertTokenizerFast(vocab={w: i for i, w in enumerate(entries)})
    saved = tmp_path_factory.mktemp("saved")
    made.save_pretrained(saved)
    return saved


def pretrained(folder: Path, length: int) -> Encode:
    read = read_tokenizer(folder)

    def encode(pairs: Sequence[SentencePair]) -> dict[str, torch.Tensor]:
        first, second, _ = zip(*pairs, strict=True)
        return read.encode(length, str, first, second)

    return encode


def test_a_tokenizers_words_are_used(tokenizer):
    arrays = pretrained(tokenizer, 9)(
        [SentencePair("Dogs run", "a cat", 0), SentencePair("a " * 9, "run", 1)]
    )
    assert tuple(arrays) == INPUTS
    assert arrays["input_ids"].tolist() == [
        [2, 5, 6, 7, 3, 8, 1, 3, 0],
        [2, 8, 8, 8, 8, 8, 3, 7, 3],
    ]
    assert arrays["attention_mask"].tolist() == [[1] * 8 + [0], [1] * 9]
    assert arrays["token_type_ids"].tolist() == [[0] * 5 + [1] * 3 + [0], [0] * 7 + [1] * 2]


def test_it_agrees_with_the_learned_one_on_whole_words(tokenizer):
    """The same row for the same pair, up to the numbers of the words; truncated alike."""
    vocabulary = {w: i for i, w in enumerate([*MARKS, "dog", "##s", "run", "a"])}
    for length in (5, 6, 7, 9, 12):
        some = [
            SentencePair("a dog run a dog", "run a", 0),
            SentencePair("run", "a a a a a a", 0),
            SentencePair("", "", 0),
        ]
        ours, theirs = encoder(vocabulary, length)(some), pretrained(tokenizer, length)(some)
        for name in INPUTS:
            assert torch.equal(ours[name], theirs[name]), (name, length)


def test_a_folder_without_a_tokenizer_is_said(tmp_path):
    pytest.importorskip("transformers", reason="needs the extra hf")
    with pytest.raises(DataError, match="tokenizer cannot be read"):
        read_tokenizer(tmp_path)


def test_a_data_set_takes_the_tokenizer(mnli, tokenizer):
    data = load_dataset("mnli", mnli, length=8, tokenizer=tokenizer)
    assert int(data.train.inputs.max()) <= 8 < data.tokens == 9
    by_file = load_dataset("mnli", mnli, length=8, tokenizer=tokenizer / "tokenizer.json")
    assert torch.equal(by_file.train.inputs, data.train.inputs)


# ---------------------------------------------------------------- the published files


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "train", "test", "largest"),
    [
        ("mnli", [2739, 2478, 2563], [740, 645, 650], 4095),
        ("snli", [2700, 2602, 2635], [629, 633, 643], 4095),
        ("sick", [1274, 2524, 641], [1404, 2790, 712], 2175),
    ],
)
def test_real_files(data_root, name, train, test, largest):
    if not (data_root / "nli").is_dir():
        pytest.skip("no nli/ among the data")
    data = load_dataset(name, data_root, length=48, vocabulary=4096)
    assert data.train.targets.bincount().tolist() == train
    assert data.test.targets.bincount().tolist() == test
    assert int(data.train.inputs.max()) == largest
    size = sum(x.nbytes for x in (data.train.inputs, *data.train.beside.values()))
    assert size == len(data.train) * 48 * (2 + 1 + 1)
