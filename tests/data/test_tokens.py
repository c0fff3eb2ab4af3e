"""Texts as tokens: those of transformers, in the order of the rows, and padding counts nowhere."""

from __future__ import annotations

import csv
import json
import random
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.data import Dataset
from archgraph.data.doors import data_from_python, read_data
from archgraph.data.tokens import INPUTS, Tokenizer, read_tokenizer
from archgraph.engine import prepare
from archgraph.errors import ArchGraphError, DataError, SpecError
from archgraph.federation import TASKS
from archgraph.federation.metrics import IGNORED
from archgraph.language import verdicts
from archgraph.language.data import HuggingFaceData, TableData, TextData
from tests.engine.own import write_experiment

tokenizers = pytest.importorskip("tokenizers", reason="needs the extra data")
WORDS = "the cat sat on mat a dog ran good bad it's café 😀 1.5 <unk> İ".split()
MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def sentences(count: int, seed: int = 0, most: int = 9) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, most))) for _ in range(count)]


def pieces() -> Any:
    """BERT's kind of tokenizer, of a few words."""
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.BertNormalizer()
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    options: Any = {"vocab_size": 70, "special_tokens": MARKS, "show_progress": False}
    made.train_from_iterator(sentences(60), tokenizers.trainers.WordPieceTrainer(**options))
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return made


def byte_pairs() -> Any:
    """GPT-2's kind, which keeps every blank, has no marks, and pads on the left."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.train_from_iterator(
        sentences(60),
        tokenizers.trainers.BpeTrainer(
            vocab_size=320,
            special_tokens=["<end>", "<pad>"],
            show_progress=False,
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    made.enable_padding(direction="left", pad_id=1, pad_token="<pad>")
    return made


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tokenizers")
    kinds = {"pieces": pieces(), "byte_pairs": byte_pairs()}
    for name, made in kinds.items():
        made.save(str(folder / f"{name}.json"))
    return {name: folder / f"{name}.json" for name in kinds}


@pytest.fixture(scope="module")
def read(files) -> Tokenizer:
    return read_tokenizer(files["pieces"])


def write_rows(path: Path, rows: Mapping[str, Sequence[object]]) -> str:
    with path.open("w", newline="", encoding="utf-8") as stream:
        table = csv.writer(stream)
        table.writerow(rows)
        table.writerows(zip(*rows.values(), strict=True))
    return str(path)


def real(data: Dataset) -> list[list[int]]:
    """Tokens of each example to train on, without padding."""
    mask = data.train.beside["attention_mask"].bool()
    return [row[keep].tolist() for row, keep in zip(data.train.inputs, mask, strict=True)]


# ---------------------------------------------------------------- the tokens of transformers


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", ["pieces", "byte_pairs"])
def test_tokens_are_those_of_transformers(files, tmp_path, kind, side):
    """Of a file as of a folder, texts and pairs, cut and padded on either side."""
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(files[kind]),
        pad_token={"pieces": "[PAD]", "byte_pairs": "<pad>"}[kind],
        padding_side=side,
        truncation_side=side,
    )
    theirs.save_pretrained(tmp_path / "folder")
    by_file = tokenizers.Tokenizer.from_file(str(files[kind]))
    by_file.enable_padding(direction=side, pad_id=theirs.pad_token_id, pad_token=theirs.pad_token)
    by_file.enable_truncation(99, direction=side)
    by_file.save(str(tmp_path / "file.json"))
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path / "folder", local_files_only=True)
    first, second = [*sentences(30, 1), "  two  blanks ", "\n"], [*sentences(30, 2), "x", "\ty"]
    for name in ("file.json", "folder"):
        ours = read_tokenizer(tmp_path / name)
        for pair in (None, second) if kind == "pieces" else (None,):
            for length in (5, 9, 40):
                expected = auto(
                    first, pair, max_length=length, truncation=True, padding="max_length",
                    return_token_type_ids=True, return_tensors="pt",
                )  # fmt: skip
                for key, rows in ours.encode(length, str, first, pair).items():
                    assert torch.equal(rows.to(torch.int64), expected[key]), (name, length, key)


def test_the_class_of_a_folder_decides_as_in_transformers(tmp_path):
    """Its configuration may change what tokenizer.json says: here whether words keep capitals."""
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    entries = {word: i for i, word in enumerate([*MARKS, "[MASK]", "cat", "Cat"])}
    transformers.BertTokenizerFast(vocab=entries, do_lower_case=False).save_pretrained(tmp_path)
    ids = read_tokenizer(tmp_path).encode(4, str, ["Cat"])["input_ids"]
    assert ids.tolist() == [[2, 6, 3, 0]]


# ---------------------------------------------------------------- padding counts nowhere


class Masked(nn.Module):
    """Attends to real tokens alone."""

    def __init__(self, tokens: int, outputs: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(tokens, 16), nn.Linear(16, outputs)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    def forward(self, input_ids, attention_mask):
        h = self.layer(self.embed(input_ids), src_key_padding_mask=attention_mask == 0)
        weights = attention_mask.unsqueeze(-1) / attention_mask.sum(1)[:, None, None]
        return self.head((h * weights).sum(1))


@pytest.mark.parametrize("kind", ["pieces", "byte_pairs"])
def test_padding_never_changes_the_loss(files, tmp_path, kind):
    table = write_rows(
        tmp_path / "rows.csv", {"text": sentences(20), "y": [i % 3 for i in range(20)]}
    )
    torch.manual_seed(0)
    net, losses = Masked(320, 3), []
    for length in (60, 90):
        said: Any = {
            "table": table,
            "text": "text",
            "tokenizer": str(files[kind]),
            "length": length,
        }
        split = read_data(TableData(target="y", **said)).train
        inputs, targets = split.examples(slice(None))
        losses.append(TASKS["classification"].losses(net(*inputs[:2]), targets))
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["pieces", "byte_pairs"])
@pytest.mark.parametrize("length", [4, 40, 60])
def test_padding_is_no_next_token(files, kind, length):
    """Inputs, targets, counts and losses are those of each text alone, on whichever side it is."""
    task, texts = TASKS["next_token"], [*sentences(12), " ".join(WORDS)]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(320, 8), nn.Linear(8, 320))
    arrays, targets = read_tokenizer(files[kind]).next_tokens(length, str, texts)
    inputs = arrays["input_ids"].to(torch.int64)
    losses, counts = task.losses(net(inputs), targets), task.counts(targets)
    backend = tokenizers.Tokenizer.from_file(str(files[kind]))
    backend.no_padding()
    for row, text in enumerate(texts):
        ids = torch.tensor(backend.encode(text).ids[: length + 1])
        counted = targets[row] != IGNORED
        assert inputs[row][counted].tolist() == ids[:-1].tolist()
        assert targets[row][counted].tolist() == ids[1:].tolist()
        assert bool(arrays["attention_mask"][row][counted].all())
        assert int(counts[row]) == len(ids) - 1
        torch.testing.assert_close(
            losses[row], task.losses(net(ids[None, :-1]), ids[None, 1:])[0], rtol=1e-6, atol=1e-6
        )


LANGUAGE_MODEL = """\
archgraph: 1
name: tiny
inputs: {tokens: {shape: [%d], dtype: int64}}
sections:
  - {name: body, steps: [embedding: {count: 70, width: 8}, linear: 8, relu]}
  - {name: head, steps: [linear: 70]}
"""


def test_perplexity_is_of_real_tokens(files, tmp_path):
    """That of a run is the one of its global model on the real tokens of the test rows."""
    texts = [f"{text} the end" for text in sentences(40)]
    table = write_rows(tmp_path / "rows.csv", {"text": texts, "who": list("abcd" * 10)})
    for length in (16, 40):
        said: Any = {
            "table": table,
            "text": "text",
            "tokenizer": str(files["pieces"]),
            "client": "who",
        }
        file = write_experiment(tmp_path, {**said, "length": length}, clients=4)
        (tmp_path / "model.yaml").write_text(LANGUAGE_MODEL % length)
        run = ag.run(file, progress=False)
        (model,) = (m for m in run.models if m.name == "global")
        test = run.experiment.data.test
        real = test.targets != IGNORED
        assert 0 < int(real.sum()) < real.numel()
        logits = ag.build(model.graph, model.state)(test.inputs.to(torch.int64)).detach()
        loss = nn.functional.cross_entropy(logits[real].double(), test.targets[real])
        figures = run.evaluation["global"]
        assert figures["perplexity"] == pytest.approx(float(loss.exp()), rel=1e-5)
        hits = (logits.argmax(-1) == test.targets)[real]
        assert figures["accuracy"] == pytest.approx(float(hits.double().mean()), rel=1e-9)


@pytest.mark.parametrize(
    "strategy",
    [{"heterofl": {}}, {"fjord": {"distil": True}}, {"flexfl_pool": {"apoz": {"*": 0.5}}}],
    ids=str,
)
def test_padding_never_changes_a_run(files, tmp_path, strategy):
    """Nor what clients learn from one another: two lengths lead to the same weights."""
    texts = [f"{text} the end" for text in sentences(40, most=6)]
    table = write_rows(tmp_path / "rows.csv", {"text": texts, "who": list("abcd" * 10)})
    said = {"table": table, "text": "text", "tokenizer": str(files["pieces"]), "client": "who"}
    weights = []
    for length in (24, 40):
        file = write_experiment(tmp_path, {**said, "length": length}, clients=4)
        chosen = file.read_text().replace("{fedavg: {}}", json.dumps(strategy))
        file.write_text(chosen)
        (tmp_path / "model.yaml").write_text(LANGUAGE_MODEL % length)
        family = (tmp_path / "family.yaml").read_text().replace("count: 4}", "count: 2}")
        family += "  - {name: half, count: 2, take: 0.5}\n"
        (tmp_path / "family.yaml").write_text(family)
        run = ag.run(file, progress=False)
        assert int((run.experiment.data.train.targets != IGNORED).sum(1).max()) < 24  # none is cut
        weights.append(next(m for m in run.models if m.name == "global").state)
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------- the same rows by every door


def test_rows_stay_in_order_by_every_door(files, tmp_path):
    """A table and a saved set give the same tokens, classes and clients, row by row."""
    from datasets import ClassLabel
    from datasets import Dataset as Arrow

    texts, classes = sentences(30), ["bad", "good"] * 15
    clients = [f"c{i % 3}" for i in range(30)]
    rows = {"t": texts, "y": classes, "who": clients}
    options: Any = {"tokenizer": str(files["pieces"]), "length": 12}
    Arrow.from_dict(rows).cast_column("y", ClassLabel(names=["bad", "good"])).save_to_disk(
        tmp_path / "saved"
    )
    table = write_rows(tmp_path / "t.csv", rows)
    columns: Any = {"text": "t", "target": "y", "client": "who", **options}
    by_table = read_data(TableData(table=table, **columns), "classification")
    by_hub = read_data(
        HuggingFaceData(huggingface=str(tmp_path / "saved"), **columns), "classification"
    )
    assert by_table.labels == by_hub.labels == ("bad", "good")
    assert by_table.inputs == by_hub.inputs == INPUTS and by_table.separate and by_hub.separate
    for a, b in ((by_table.train, by_hub.train), (by_table.test, by_hub.test)):
        assert torch.equal(a.inputs, b.inputs) and torch.equal(a.targets, b.targets)
        assert all(torch.equal(a.beside[name], b.beside[name]) for name in INPUTS[1:])
    assert {k: v.tolist() for k, v in by_table.owners.items()} == {
        k: v.tolist() for k, v in by_hub.owners.items()
    }
    # A fifth of every client's rows, and each row with its own class.
    assert [len(part) for part in by_table.owners.values()] == [8, 8, 8]
    encoded = read_tokenizer(files["pieces"]).encode(12, str, texts)["input_ids"].tolist()
    pairs = {(tuple(row), label == "good") for row, label in zip(encoded, classes, strict=True)}
    for split in (by_table.train, by_table.test):
        for row, target in zip(split.inputs.tolist(), split.targets.tolist(), strict=True):
            assert (tuple(row), bool(target)) in pairs


def test_a_set_in_memory_is_read_as_a_saved_one(files, tmp_path):
    """Texts, pairs, the next token; columns of texts without a tokenizer are asked about."""
    from datasets import Dataset as Arrow
    from datasets import DatasetDict

    texts, classes = sentences(30), ["bad", "good"] * 15
    rows = {"t": texts, "u": texts[::-1], "y": classes, "who": [f"c{i % 3}" for i in range(30)]}
    one = Arrow.from_dict(rows)
    both = DatasetDict(train=one.select(range(24)), test=one.select(range(24, 30)))
    both.save_to_disk(tmp_path / "both")
    one.save_to_disk(tmp_path / "one")
    options: Any = {"tokenizer": str(files["pieces"]), "length": 12}
    for name, loaded in (("one", one), ("both", both), ("both", dict(both))):
        for columns in (
            {"text": "t", "target": "y", "client": "who"},
            {"text": ("t", "u"), "target": "y"},
            {"text": "t"},
        ):
            folder: Any = {"huggingface": str(tmp_path / name), **columns, **options}
            task = "classification" if "target" in columns else None
            saved = read_data(HuggingFaceData(**folder), task)
            loads = tokenizers.Tokenizer.from_file(options["tokenizer"])
            for value in ({**folder, "huggingface": loaded, "tokenizer": loads}, folder):
                memory = data_from_python(value, task)
                assert (memory.labels, memory.inputs) == (saved.labels, saved.inputs)
                assert memory.owners.keys() == saved.owners.keys()
                for a, b in ((memory.train, saved.train), (memory.test, saved.test)):
                    assert torch.equal(a.inputs, b.inputs) and torch.equal(a.targets, b.targets)
                    assert all(torch.equal(a.beside[k], b.beside[k]) for k in INPUTS[1:])
    for value, task, message in (
        (
            {"huggingface": one, "inputs": "t", "target": "y"},
            "classification",
            "instead of inputs write text",
        ),
        (
            {"huggingface": one, "text": "t", "target": "y"},
            None,
            "found no tokenizer and no length",
        ),
        ({"huggingface": one, "txt": "t"}, None, "data: txt: is an unknown key.* mean 'text'"),
        (
            {"huggingface": iter(texts), "text": "t", **options},
            None,
            "is not a data set of Hugging",
        ),
        ({"huggingface": {"test": one}, "text": "t", **options}, None, "lacks the training split"),
        (
            {"huggingface": one, "text": "t", **options, "partition": {"scheme": "iid"}},
            None,
            "data.partition: is not read from an argument",
        ),
        (one, None, 'is not a data set; found Dataset; .*: data={"huggingface": dataset'),
        (both, None, 'is not a data set; found DatasetDict; .*: data={"huggingface": dataset'),
        ((one, one), None, 'for a data set of Hugging Face.*: data={"huggingface": dataset'),
    ):
        with pytest.raises((DataError, SpecError), match=message):
            data_from_python(value, task)


def test_running_text_is_cut_into_windows_of_tokens(files, tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(sentences(80)), encoding="utf-8")
    said: Any = {
        "text": str(tmp_path / "text.txt"),
        "tokenizer": str(files["byte_pairs"]),
        "bptt": 8,
    }
    data = read_data(TextData(**said))
    backend = tokenizers.Tokenizer.from_file(str(files["byte_pairs"]))
    backend.no_padding()
    ids = backend.encode((tmp_path / "text.txt").read_text(encoding="utf-8")).ids
    stream = data.train.inputs.flatten().tolist()
    assert stream == ids[: len(stream)] and data.consecutive
    assert data.train.targets.flatten().tolist() == ids[1 : len(stream) + 1]
    assert 0.85 < len(data.train) / (len(ids) // 8) < 0.95


def test_texts_are_not_windows_of_one(files, tmp_path):
    """They are shared out and held out at random, where windows of a text keep their order."""
    texts = [f"the {text}" for text in sentences(60)]
    table = write_rows(tmp_path / "rows.csv", {"text": texts, "n": range(60)})
    said: Any = {"table": table, "text": "text", "tokenizer": str(files["pieces"]), "length": 12}
    more: Any = {"validation": {"clients": 0.25}}
    file = write_experiment(tmp_path, said, clients=2, **more)
    (tmp_path / "model.yaml").write_text(LANGUAGE_MODEL % 12)
    setup = prepare(file)
    for share in setup.shares:
        assert np.ptp(share) > 30  # of 48 rows: not one half or the other
    last = sorted(i for share in setup.shares for i in share)[-len(setup.held_out) :]
    assert setup.held_out.tolist() != last and min(setup.held_out) < 20


def test_columns_of_text_are_told_from_categories(tmp_path):
    """Names of several words may be categories, where they occur again and again."""
    cities = ["New York City", "Rio de Janeiro", "Sri Jayawardenepura Kotte"] * 4
    labels = ["a", "b"] * 6
    table = write_rows(tmp_path / "rows.csv", {"x": cities, "y": labels})
    assert read_data(TableData(table=table, target="y"), "classification").shape == (3,)
    reviews = [f"{text} and so on" for text in sentences(12)]
    table = write_rows(tmp_path / "rows.csv", {"x": reviews, "y": labels})
    said = TableData(table=table, target="y", columns={"x": "category"})
    assert read_data(said, "classification").shape == (12,)
    expected = "expected text: x, tokenizer: tokenizer.json, length: 128"
    with pytest.raises(DataError, match=f"x: is it a text or a category?.*{expected}"):
        read_data(TableData(table=table, target="y"), "classification")


def test_texts_are_taken_as_they_are(files, tmp_path):
    """No blank is lost, and words that stand for a missing number elsewhere are words."""
    texts = ["  the cat ", "none", "nan", "007", "a\nb", "NULL", "cat " * 40_000]
    table = write_rows(tmp_path / "rows.csv", {"x": texts, "y": [*list("ababab"), "b"]})
    Path(table).write_bytes(b"\xef\xbb\xbf" + Path(table).read_bytes())
    said: Any = {"text": "x", "tokenizer": str(files["byte_pairs"]), "length": 12}
    data = read_data(TableData(table=table, target="y", test=table, **said), "classification")
    backend = tokenizers.Tokenizer.from_file(str(files["byte_pairs"]))
    *decoded, longest = [backend.decode(ids) for ids in real(data)]
    assert decoded == texts[:-1] and texts[-1].startswith(longest)


def test_words_that_the_tokenizer_does_not_know_are_noted(files, tmp_path):
    rows: Any = {"x": ["Ελλάδα και θάλασσα"] * 10, "y": [0, 1] * 5}
    table = write_rows(tmp_path / "rows.csv", rows)
    said: Any = {"text": "x", "target": "y", "tokenizer": str(files["pieces"]), "length": 12}
    (note,) = read_data(TableData(table=table, **said)).notes
    assert note.startswith("rows: 60 % of the tokens are [UNK]: is this the tokenizer of ")
    rows["x"] = ["the cat", "a dog and a mouse"] * 5
    assert read_data(TableData(table=write_rows(tmp_path / "r.csv", rows), **said)).notes == ()


# ---------------------------------------------------------------- mistakes


Change = Callable[[Path], dict[str, Any]]


def told(**changes: Any) -> Change:
    return lambda folder: changes


def cell(value: str) -> Change:
    def change(folder: Path) -> dict[str, Any]:
        rows = (folder / "rows.csv").read_text().splitlines()
        rows[4] = f'"{value}",x,good,4'
        (folder / "rows.csv").write_text("\n".join(rows) + "\n")
        return {}

    return change


def tokenizer(change: Callable[[dict[str, Any]], None]) -> Change:
    def write(folder: Path) -> dict[str, Any]:
        content = json.loads((folder / "t.json").read_text())
        change(content)
        (folder / "t.json").write_text(json.dumps(content))
        return {}

    return write


def without_padding(content: dict[str, Any]) -> None:
    content["added_tokens"] = content["added_tokens"][1:]


def with_padding_of_another_token(content: dict[str, Any]) -> None:
    content["padding"] = {
        "strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None, "pad_id": 1,
        "pad_type_id": 0, "pad_token": "[PAD]",
    }  # fmt: skip


def with_a_token_that_does_not_occur(content: dict[str, Any]) -> None:
    content["model"]["vocab"]["zebra"] = 75


def parquet(cells: list[object]) -> Change:
    def change(folder: Path) -> dict[str, Any]:
        pq, pa = (pytest.importorskip(name) for name in ("pyarrow.parquet", "pyarrow"))
        rows = {"review": cells, "label": ["a", "b"] * (len(cells) // 2)}
        pq.write_table(pa.table(rows), folder / "rows.parquet")
        return {"table": "rows.parquet"}

    return change


MISTAKES: dict[str, tuple[Change, str]] = {
    "no_tokenizer": (
        told(tokenizer=None, length=None),
        "data.text: texts need a tokenizer and a length; found no tokenizer and no length; "
        "expected tokenizer: tokenizer.json, length: 128",
    ),
    "no_length": (told(length=None), "data.text: texts need a tokenizer and a length; found no le"),
    "length_of_none": (told(length=0), "data.length: has a wrong value; found 0; expected 1 or"),
    "length_of_text": (told(length="many"), "data.length: has a wrong value; found 'many'; expe"),
    "length_too_short": (
        told(length=2),
        "data.length: is too short; found 2; expected at least 3: 2 marks and a token of",
    ),
    "pairs_too_short": (
        told(length=4, text=["review", "other"]),
        "data.length: is too short; found 4; expected at least 5: 3 marks",
    ),
    "tokenizer_not_there": (
        told(tokenizer="there"),
        "data.tokenizer: names a file or folder that does not exist; found there; expected a file "
        "or folder of this machine, absolute or relative to this file; nothing is downloaded",
    ),
    "not_a_tokenizer": (
        told(tokenizer="rows.csv"),
        "data: rows.csv: tokenizer cannot be read; found e",
    ),
    "tokenizer_of_another_kind": (
        tokenizer(dict.clear),
        "data: t.json: tokenizer cannot be read; found ",
    ),
    "no_padding": (
        tokenizer(without_padding),
        "data: t.json: the tokenizer has no padding token; expected a padding setting, or a "
        "special token [PAD], <pad>; before saving it, call tokenizer.enable_padding(",
    ),
    "padding_of_another_token": (
        tokenizer(with_padding_of_another_token),
        "data: t.json: the number of the padding token belongs to another token; found [PAD] as "
        "number 1; expected number 0; call enable_padding(",
    ),
    "no_template": (
        lambda folder: {"tokenizer": "b.json", "text": ["review", "other"]},
        "data: b.json: does not separate the two texts of a pair; set its post_processor",
    ),
    "tokenizer_alone": (told(text=None), "data.tokenizer: applies to columns of texts only"),
    "no_such_text": (
        told(text="reviews"),
        "data.text: there is no such column; found 'reviews'; expected one of review, other, "
        "label, n; did you mean 'review'?",
    ),
    "text_is_target": (told(text="label"), "data.text: label is also the target or the client; "),
    "text_twice": (told(text=["review", "review"]), "data.text: names a column twice; found rev"),
    "three_texts": (told(text=["review", "other", "label"]), "data.text: has a wrong value; found"),
    "pairs_without_target": (
        told(text=["review", "other"], target=None),
        "data.text: next-token prediction needs a single column of texts; found two columns",
    ),
    "columns_too": (told(columns=["n"]), "data.columns: applies to columns of numbers and"),
    "numbers_as_text": (
        told(text="n"),
        "data: rows.csv: row 1: n: is not a text: all values are numbers; found '1'; name another",
    ),
    "empty_text": (cell("  "), "data: rows.csv: row 4: review: the text is missing; found '  '"),
    "none": (
        parquet(["a dog", None, "the", "cat"]),
        "data: rows.parquet: row 2: review: the text is missing; found nan; remove the row",
    ),
    "not_texts": (
        parquet([1.5, float("nan"), 2.5, 3.5]),
        "data: rows.parquet: row 1: review: is not a text; found 1.5",
    ),
    "one_token": (
        told(tokenizer="b.json", text="other", target=None, task="next_token"),
        "data: rows.csv: row 1: other: has fewer than 2 tokens; found 'x'; remove it",
    ),
    "next_token_of_classes": (
        told(task="next_token"),
        "data: rows.csv: row 1: label: could have several meanings; found 'good'; expected whole",
    ),
    "classes_without_target": (
        told(task="regression", target=None),
        "data: regression needs a target; write target: with the column to be predicted",
    ),
    "too_many_tokens": (
        tokenizer(with_a_token_that_does_not_occur),
        "family: tiny: the model's embedding has too few rows for the vocabulary; "
        "found token 75, but fewer rows; "
        "expected an embedding of at least 76 rows (rows); use the model's own "
        "tokenizer, or enlarge its embedding",
    ),
    "longer_than_the_model": (
        told(length=12),
        "family: tiny: the model's inputs do not fit the data; ",
    ),
    "words_by_tokens": (
        told(table=None, target=None, length=None, text="t.json", by="word"),
        "data.by: conflicts with the tokenizer, which has its own tokens; found word",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_said(files, tmp_path, name):
    change, expected = MISTAKES[name]
    (tmp_path / "t.json").write_bytes(files["pieces"].read_bytes())
    (tmp_path / "b.json").write_bytes(files["byte_pairs"].read_bytes())
    reviews = {"review": sentences(20), "other": ["x"] * 20}
    write_rows(tmp_path / "rows.csv", {**reviews, "label": ["good", "bad"] * 10, "n": range(1, 21)})
    data: dict[str, Any] = {
        "table": "rows.csv",
        "text": "review",
        "target": "label",
        "task": "classification",
        "tokenizer": "t.json",
    }
    data = {**data, "length": 10, **change(tmp_path)}
    task: Any = {"task": data.pop("task")} if "task" in data else {}
    said = {key: value for key, value in data.items() if value is not None}
    file = write_experiment(tmp_path, said, clients=2, **task)
    (tmp_path / "model.yaml").write_text(CLASSIFIER)
    (verdict,) = verdicts([file])
    message = re.sub(r"^experiment\.yaml:\d+: ", "", str(verdict.error).replace(f"{tmp_path}/", ""))
    assert message.startswith(expected), message
    with pytest.raises(ArchGraphError, match=re.escape(str(verdict.error)[-40:])):
        ag.run(file, progress=False)


CLASSIFIER = """\
archgraph: 1
name: tiny
inputs: {tokens: {shape: [10], dtype: int64}}
sections:
  - {name: embedding, steps: [embedding: {count: 70, width: 8}, flatten]}
  - {name: head, steps: [linear: 2]}
"""


def test_packages_are_asked_for_where_they_are_needed(files, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(DataError, match=r"needs the package tokenizers; .*archgraph-torch\[data\]"):
        read_tokenizer(files["pieces"])


# ---------------------------------------------------------------- a model of transformers


BERT = """\
archgraph: 1
name: bert
family:
  model:
    python: transformers:BertForSequenceClassification
    args:
      config:
        python: transformers:BertConfig
        args: {num_labels: 2, vocab_size: 70, hidden_size: 16, num_hidden_layers: 1,
          num_attention_heads: 2, intermediate_size: 16, max_position_embeddings: 16}
    inputs:
      attention_mask: {shape: [14], dtype: int64}
      input_ids: {shape: [14], dtype: int64}
      token_type_ids: {shape: [14], dtype: int64}
  clients:
    - {name: whole, count: 2}
    - {name: half, count: 1, take: 0.5}
data:
  {table: rows.csv, text: [first, second], target: same, client: who, tokenizer: t.json, length: 14}
task: classification
strategy: {heterofl: {}}
rounds: 2
local: {epochs: 2, batch: 8, optimiser: {Adam: {lr: 0.01}}}
"""


@pytest.mark.full
def test_a_bert_of_transformers_learns_pairs(files, tmp_path):
    """Its inputs by name, in an order of its own; what archgraph computes is what it computes."""
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    (tmp_path / "t.json").write_bytes(files["pieces"].read_bytes())
    draw = random.Random(0)
    rows = [(a, draw.choice([a, "dog" if a == "cat" else "cat"])) for a in ["cat", "dog"] * 30]
    write_rows(
        tmp_path / "rows.csv",
        {
            "first": [f"the {a}" for a, _ in rows],
            "second": [f"a {b} ran on" for _, b in rows],
            "same": [a == b for a, b in rows],
            "who": list("abc" * 20),
        },
    )
    (tmp_path / "bert.yaml").write_text(BERT)
    run = ag.run(tmp_path / "bert.yaml", progress=False, python=True)
    data = run.experiment.data
    assert data.inputs == INPUTS and data.labels == ("False", "True")
    (model,) = (m for m in run.models if m.name == "global")
    config = transformers.BertConfig(
        num_labels=2, vocab_size=70, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=16,
    )  # fmt: skip
    theirs = transformers.BertForSequenceClassification(config).eval()
    theirs.load_state_dict(ag.state_dict(model.graph, model.state))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "t.json"))
    inputs, targets = data.test.examples(slice(None))
    texts = tokenizer.batch_decode(inputs[0], skip_special_tokens=True)
    named = dict(zip(INPUTS, inputs, strict=True))
    with torch.no_grad():
        logits = theirs(**named).logits
    loss = nn.functional.cross_entropy(logits, targets)
    assert run.evaluation["global"]["loss"] == pytest.approx(float(loss), rel=1e-4)
    assert [(t.count("cat") != 1) == bool(y) for t, y in zip(texts, targets, strict=True)] == [
        True
    ] * len(targets)
