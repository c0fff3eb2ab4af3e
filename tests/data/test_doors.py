"""Data of the user's own, by every door: the same rows give the same bits."""

from __future__ import annotations

import random
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

import archgraph as ag
from archgraph.data import Dataset, Split, dataset_of, load_dataset
from archgraph.data.doors import READERS, read_data
from archgraph.data.rows import Records, parted
from archgraph.engine import prepare
from archgraph.engine.run_models import trained
from archgraph.errors import DataError, RunError, SpecError
from archgraph.language import verdicts
from archgraph.language.data import (
    DOORS,
    FolderData,
    HuggingFaceData,
    TableData,
    TextData,
)
from tests.engine.own import (
    CLIENTS,
    bits,
    pictures,
    rows,
    split_of,
    write_experiment,
    write_images,
    write_table,
)

TRAIN = 45


class Items(TorchDataset[Any]):
    """A torch dataset of the map style, an item at a time."""

    def __init__(self, inputs: Any, targets: Any) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.inputs[index], int(self.targets[index])


def test_every_kind_of_data_has_a_reader():
    assert set(READERS) == set(DOORS.values())


# ---------------------------------------------------------------- the same rows, the same bits


def table_doors(folder: Path) -> dict[str, tuple[dict[str, Any] | None, Any]]:
    """What an experiment says, and what `ag.run` is given, for the same 45 + 15 rows."""
    inputs, classes, clients = rows()
    write_table(folder / "train.csv", inputs[:TRAIN], classes[:TRAIN], clients[:TRAIN])
    write_table(folder / "test.csv", inputs[TRAIN:], classes[TRAIN:], clients[TRAIN:])
    train, test = (
        split_of(inputs[:TRAIN], classes[:TRAIN]),
        split_of(inputs[TRAIN:], classes[TRAIN:]),
    )
    from datasets import Dataset as Arrow
    from datasets import DatasetDict

    both = DatasetDict(
        {
            name: Arrow.from_dict({"x": part[0].tolist(), "y": part[1].tolist()})
            for name, part in (("train", train), ("test", test))
        }
    )
    both.save_to_disk(folder / "saved")
    (folder / "mydata.py").write_text(
        "import numpy as np\nfrom tests.engine.own import rows, split_of\n"
        "def make(count):\n    x, y, _ = rows(60)\n"
        "    return split_of(x[:count], y[:count]), split_of(x[count:], y[count:])\n"
    )
    table = {
        "table": "train.csv", "target": "y", "columns": ["x0", "x1"], "test": "test.csv",
        "standardise": False,
    }  # fmt: skip
    split = Split(*train), Split(*test)
    return {
        "tensors": (None, (train, test)),
        "arrays": (None, tuple((x.numpy(), y.numpy()) for x, y in (train, test))),
        "torch": (None, (Items(*train), TensorDataset(*test))),
        "dataset": (None, Dataset("d", "tensor", 3, (2,), *split, ("a", "b", "c"))),
        "python": ({"python": "mydata:make", "with": {"count": TRAIN}}, None),
        "table": (table, None),
        "huggingface": ({"huggingface": "saved", "inputs": "x", "target": "y"}, None),
        "in memory": (None, {"huggingface": both, "inputs": "x", "target": "y"}),
    }


def test_the_same_rows_give_the_same_bits_by_every_door(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    found, facts = {}, {}
    for name, (said, given) in table_doors(tmp_path).items():
        run = ag.run(write_experiment(tmp_path, said), data=given, python=True)
        # Which code made the rows is recorded, and does not make it another experiment.
        facts[name] = {k: v for k, v in run.experiment.facts.items() if k != "code"}
        found[name] = bits(run)
    sys.modules.pop("mydata")
    for name in found:
        assert found[name] == found["tensors"], name
        assert facts[name] == facts["tensors"], name


def test_the_same_images_give_the_same_bits(tmp_path):
    images, classes = pictures(), np.arange(30) % 3
    write_images(tmp_path / "images" / "train", images[:24], classes[:24])
    write_images(tmp_path / "images" / "test", images[24:], classes[24:])
    # In a folder, images are in the order of their classes.
    first, last = (
        np.argsort(classes[:24], kind="stable"),
        np.argsort(classes[24:], kind="stable") + 24,
    )
    given = split_of(images[first], classes[first]), split_of(images[last], classes[last])
    shape = (1, 4, 5)
    by_folder = ag.run(write_experiment(tmp_path, {"folder": "images"}, shape=shape))
    by_tensor = ag.run(write_experiment(tmp_path, None, shape=shape), data=given)
    assert by_folder.experiment.data.labels == ("0", "1", "2")
    assert bits(by_folder) == bits(by_tensor)
    assert by_folder.experiment.facts == by_tensor.experiment.facts
    from datasets import Dataset as Arrow
    from datasets import DatasetDict, Features, Image, Value
    from PIL import Image as Pillow

    kind = Features({"img": Image(), "label": Value("int64"), "who": Value("string")})
    DatasetDict(
        {
            name: Arrow.from_dict(
                {
                    "img": [Pillow.fromarray(images[i, 0]) for i in order],
                    "label": classes[order],
                    "who": [CLIENTS[i % 3] for i in order],
                },
                features=kind,
            )
            for name, order in (("train", first), ("test", last))
        }
    ).save_to_disk(tmp_path / "saved")
    saved = {"huggingface": "saved", "inputs": {"image": "img"}, "target": "label"}
    by_hub = ag.run(write_experiment(tmp_path, saved, shape=shape))
    assert bits(by_hub) == bits(by_tensor)
    owned = ag.run(write_experiment(tmp_path, {**saved, "client": "who"}, shape=shape))
    assert list(owned.experiment.data.owners) == list(CLIENTS)
    assert bits(owned) != bits(by_hub)


def test_own_images_are_treated_as_those_of_a_known_set(tmp_path):
    digits = load_dataset("digits", limit=80)
    given = tuple((split.inputs, split.targets) for split in (digits.train, digits.test))
    shape, said = (1, 8, 8), {"dataset": "digits", "limit": 80}
    known = ag.run(write_experiment(tmp_path, said, shape=shape, classes=10))
    own = ag.run(write_experiment(tmp_path, None, shape=shape, classes=10), data=given)
    assert bits(own) == bits(known)
    assert own.experiment.data.labels == known.experiment.data.labels


def test_rows_that_belong_to_clients_stay_theirs_by_every_door(tmp_path, monkeypatch):
    """A column of a table, and a mapping of clients, share out the same rows."""
    monkeypatch.syspath_prepend(tmp_path)
    inputs, classes, clients = rows()
    write_table(tmp_path / "train.csv", inputs[:TRAIN], classes[:TRAIN], clients[:TRAIN])
    write_table(tmp_path / "test.csv", inputs[TRAIN:], classes[TRAIN:], clients[TRAIN:])
    named = {"table": "train.csv", "target": "y", "test": "test.csv", "client": "who"}
    table = write_experiment(tmp_path, {**named, "standardise": False})
    by_table = ag.run(table)
    owned = {
        name: [i for i in range(TRAIN) if clients[i] == name]
        for name in dict.fromkeys(clients[:TRAIN])
    }
    train = {name: split_of(inputs[own], classes[own]) for name, own in owned.items()}
    test = split_of(inputs[TRAIN:], classes[TRAIN:])
    by_mapping = ag.run(write_experiment(tmp_path, None), data=(train, test))
    assert bits(by_table) == bits(by_mapping)
    for run in (by_table, by_mapping):
        owners = run.experiment.data.owners
        assert list(owners) == list(owned)
        covered = np.sort(np.concatenate(run.experiment.shares))
        assert covered.tolist() == list(range(TRAIN))
    for place, own in enumerate(owned.values()):
        assert by_table.experiment.shares[place].tolist() == own
        for run in (by_table, by_mapping):
            shard = run.experiment.shard(place)
            assert torch.equal(shard.inputs[0], torch.from_numpy(inputs[own]))
    # Standardised by all rows to train on.
    scaled = prepare(write_experiment(tmp_path, named)).data
    every, _ = scaled.train.batch(slice(None))
    torch.testing.assert_close(every.mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(every.std(0, correction=0), torch.ones(2), atol=1e-5, rtol=0)


def test_a_run_goes_on_only_with_the_same_data(tmp_path):
    inputs, classes, clients = rows()
    write_table(tmp_path / "train.csv", inputs, classes, clients)
    said = {"table": "train.csv", "target": "y", "client": "who"}
    file = write_experiment(tmp_path, said, rounds=2)
    ag.run(file, out=tmp_path / "run")
    again = ag.run(tmp_path / "run" / "run.yaml", out=tmp_path / "run", resume=True)
    assert len(again.rounds) == 2
    assert "partition" not in (tmp_path / "run" / "run.yaml").read_text()
    swapped = [clients[1], clients[0], *clients[2:]]
    for changed in ((inputs + 1, classes, clients), (inputs, classes, swapped)):
        write_table(tmp_path / "train.csv", *changed)
        with pytest.raises(RunError, match=r"examples|owners"):
            ag.run(file, out=tmp_path / "run", resume=True)
    write_table(tmp_path / "train.csv", inputs, classes, clients)
    other = write_experiment(tmp_path, {**said, "standardise": False}, rounds=2)
    with pytest.raises(RunError, match="examples"):
        ag.run(other, out=tmp_path / "run", resume=True)
    (tmp_path / "train.csv").rename(tmp_path / "renamed.csv")
    moved = write_experiment(tmp_path, {**said, "table": "renamed.csv"}, rounds=2)
    assert len(ag.run(moved, out=tmp_path / "run", resume=True).rounds) == 2


def test_whose_rows_are_is_a_fact_of_a_run(tmp_path):
    """The same examples in the same order, two of them swapped between clients."""
    inputs, classes, clients = rows()
    write_table(tmp_path / "test.csv", inputs, classes)
    said = {"table": "train.csv", "target": "y", "test": "test.csv", "client": "who"}
    file = write_experiment(tmp_path, said)
    facts = []
    for names in (clients, [clients[1], clients[0], *clients[2:]]):
        write_table(tmp_path / "train.csv", inputs, classes, names)
        facts.append(dict(prepare(file).facts))
    assert facts[0].pop("owners") != facts[1].pop("owners")
    assert facts[0] == facts[1]


def test_an_argument_takes_the_place_of_what_the_file_names(tmp_path):
    inputs, classes, _ = rows()
    train, test = (
        split_of(inputs[:TRAIN], classes[:TRAIN]),
        split_of(inputs[TRAIN:], classes[TRAIN:]),
    )
    partition = {"scheme": "dirichlet", "alpha": 0.4, "min_size": 2}
    file = write_experiment(tmp_path, {"dataset": "digits", "partition": partition})
    run = ag.run(file, data=(train, test), out=tmp_path / "run")
    text = (tmp_path / "run" / "run.yaml").read_text()
    assert "digits" not in text and "alpha: 0.4" in text
    models = trained(tmp_path / "run", data=(train, test))
    assert {k: v.numpy().tobytes() for k, v in models["global"].state.items()} == bits(run)
    with pytest.raises(DataError, match=r"must name the data.*ag\.run"):
        ag.run(tmp_path / "run" / "run.yaml")


# ---------------------------------------------------------------- what each door reads


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_columns_of_a_table(tmp_path):
    file = write(
        tmp_path / "t.csv",
        "\ufeffid,age,city,smokes,y\n1,30,Bern,0,no\n2,50,Rom,1,yes\n3,40,Bern,1,no\n"
        "4,40, Wien,0,yes\n",
    )
    said, task = "y", "classification"
    data = read_data(TableData(table=file, target=said, columns=("age", "city"), test=0.5), task)
    assert (data.kind, data.shape, data.labels) == ("table", (4,), ("no", "yes"))
    whole = torch.cat([data.train.inputs, data.test.inputs])
    assert sorted(whole[:, 0].tolist()) == [30, 40, 40, 50]
    assert torch.equal(whole[:, 1:].sum(1), torch.ones(4))
    assert data.train.mean is not None and data.train.mean[1:].tolist() == [0, 0, 0]
    turned = read_data(TableData(table=file, target=said, columns=("city", "age"), test=0.5), task)
    assert torch.equal(turned.train.inputs, data.train.inputs[:, [1, 2, 3, 0]])
    # A category that looks like a number, and the other way round.
    both = TableData(table=file, target=said, columns={"age": "category", "smokes": "category"})
    assert read_data(both, task).shape == (5,)
    flags = TableData(table=file, target=("smokes", "id"), columns=("age",))
    with pytest.raises(DataError, match=r"t.csv: row 2: id: is not 0 or 1; found '2'"):
        read_data(flags, "multilabel")
    text = Path(file).read_text()
    numbers = re.sub(r"\n([234]),", lambda found: f"\n{int(found[1]) % 2},", text)
    write(tmp_path / "t.csv", numbers)
    labelled = read_data(flags, "multilabel")
    assert labelled.train.targets.dtype == torch.bool and labelled.labels == ("smokes", "id")


@pytest.mark.parametrize(
    ("task", "kind"),
    [(None, torch.int64), ("regression", torch.float32), ("classification", torch.int64)],
    ids=["none", "regression", "classification"],
)
def test_a_column_is_what_the_task_learns(tmp_path, task, kind):
    inputs, _, _ = rows()
    write_table(tmp_path / "rows.csv", inputs, np.arange(60) % 7)
    said = {} if task is None else {"task": task}
    outputs = 1 if task == "regression" else 7
    file = write_experiment(tmp_path, {"table": "rows.csv", "target": "y"}, classes=outputs, **said)
    (verdict,) = verdicts([file])
    assert verdict.good, verdict.error
    run = ag.run(file, out=tmp_path / "run")
    assert run.experiment.data.train.targets.dtype == kind
    # What the run folder says is read in the same way.
    assert prepare(tmp_path / "run" / "run.yaml").facts == run.experiment.facts


def test_a_parquet_file_is_the_table_of_its_rows(tmp_path):
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    inputs, classes, clients = rows()
    write_table(tmp_path / "t.csv", inputs, classes, clients)
    columns = {"x0": inputs[:, 0], "x1": inputs[:, 1], "y": classes, "who": clients}
    parquet.write_table(arrow.table(columns), tmp_path / "t.parquet")
    one, other = (
        read_data(TableData(table=str(tmp_path / name), target="y", client="who"))
        for name in ("t.csv", "t.parquet")
    )
    assert torch.equal(one.train.inputs, other.train.inputs)
    assert torch.equal(one.test.targets, other.test.targets)
    assert {k: v.tolist() for k, v in one.owners.items()} == {
        k: v.tolist() for k, v in other.owners.items()
    }


def test_pandas_reads_text_and_no_path(tmp_path, monkeypatch):
    """A path could be an address."""
    import io

    import pandas

    file = write(tmp_path / "t.csv", "x,y\n" + "0.5,0\n1.5,1\n" * 9)
    seen, read = [], pandas.read_csv

    def spied(source, **options):
        seen.append(source)
        return read(source, **options)

    monkeypatch.setattr(pandas, "read_csv", spied)
    read_data(TableData(table=file, target="y"))
    assert {type(source) for source in seen} == {io.StringIO}


def test_large_numbers_are_standardised_before_they_are_rounded(tmp_path):
    seconds = 1_700_000_000 + np.arange(8)
    lines = "".join(f"{second},0.1,{second % 2}\n" for second in seconds)
    file = write(tmp_path / "t.csv", f"at,same,y\n{lines}")
    write(tmp_path / "u.csv", f"at,same,y\n{seconds[0]},0.1,0\n")
    data = read_data(TableData(table=file, target="y", test=str(tmp_path / "u.csv")))
    wanted = (seconds - seconds.mean()) / seconds.std()
    found, _ = data.train.batch(slice(None))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found[:, 0], torch.from_numpy(wanted).float())
    assert not found[:, 1].any() and data.test.batch([0])[0][0].tolist() == found[0].tolist()


def test_a_missing_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"needs the package pyarrow.*archgraph-torch\[data\]"):
        read_data(TableData(table=str(tmp_path / "t.parquet"), target="y"))


def test_images_are_upright_scaled_and_of_one_number_of_channels(tmp_path):
    from PIL import Image

    colour = np.zeros((6, 8, 3), np.uint8)
    colour[:, :4] = (255, 0, 0)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.fromarray(colour).save(tmp_path / name / "1.png")
        Image.fromarray(colour[..., 0]).save(tmp_path / name / "2.png")
    turned = Image.fromarray(colour)
    turned.getexif()[0x0112] = 6  # to be turned by 90 degrees
    turned.save(tmp_path / "a" / "3.jpg", exif=turned.getexif(), quality=100)
    data = read_data(FolderData(folder=str(tmp_path), size=(4, 2), test=0.4))
    assert data.shape == (3, 4, 2) and data.labels == ("a", "b")
    assert (len(data.train), len(data.test)) == (3, 2)
    grey = read_data(FolderData(folder=str(tmp_path), size=(4, 2), test=0.4, colour=False))
    assert grey.shape == (1, 4, 2)
    with pytest.raises(
        DataError, match=r"3.jpg: images differ in size; found 8 × 6; expected 6 × 8"
    ):
        read_data(FolderData(folder=str(tmp_path)))


def test_true_and_false_are_classes_and_a_constant_column_becomes_zero(tmp_path):
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    columns = {"x": np.full(20, 7.0), "y": np.arange(20) % 4 == 0}
    parquet.write_table(arrow.table(columns), tmp_path / "t.parquet")
    spec = TableData(table=str(tmp_path / "t.parquet"), target="y")
    with pytest.raises(DataError, match=r"y: could have several meanings; found True"):
        read_data(spec)
    data = read_data(spec, "classification")
    assert (data.train.targets.dtype, data.labels) == (torch.int64, ("False", "True"))
    assert torch.equal(data.train.batch(slice(None))[0], torch.zeros(len(data.train), 1))


def test_an_image_of_16_bits_is_refused(tmp_path):
    from PIL import Image

    write_images(tmp_path, pictures(), np.arange(30) % 3)
    Image.fromarray(np.zeros((4, 5), np.uint16)).save(tmp_path / "0" / "0000.png")
    with pytest.raises(DataError, match=r"0000.png: image has more than 8 bits per channel"):
        read_data(FolderData(folder=str(tmp_path)))


def test_a_turned_photo_is_upright(tmp_path):
    """Red on the left, and to be turned by 90 degrees: red is above."""
    from PIL import Image

    write_images(tmp_path, pictures(9, (8, 6)), np.arange(9) % 3)
    pixels = np.zeros((6, 8, 3), np.uint8)
    pixels[:, :4] = (255, 0, 0)
    photo = Image.fromarray(pixels)
    photo.getexif()[0x0112] = 6
    photo.save(tmp_path / "0" / "0000.jpg", exif=photo.getexif(), quality=100)
    data = read_data(FolderData(folder=str(tmp_path)))
    assert data.shape == (3, 8, 6)
    red = [i for i in torch.cat([data.train.inputs, data.test.inputs]).float() if i[1].max() < 30]
    assert len(red) == 1
    assert red[0][0, :3].min() > 200 and red[0][0, 5:].max() < 60


def test_torch_datasets_of_pictures():
    """As those of torchvision are without a transform: images of Pillow, and integers."""
    from PIL import Image

    images, classes = pictures(), np.arange(30) % 3
    grey = Items([Image.fromarray(image[0]) for image in images], classes)
    given = split_of(images, classes)
    found = dataset_of((grey, grey))
    assert found.kind == "image"
    assert torch.equal(found.train.inputs, dataset_of((given, given)).train.inputs)
    coloured = Items([Image.fromarray(image[0]).convert("RGB") for image in images], classes)
    assert dataset_of((coloured, coloured)).shape == (3, 4, 5)


def test_text_by_character_and_by_word(tmp_path):
    file = write(tmp_path / "t.txt", "the cat sat\non the mat\n" * 20)
    data = read_data(TextData(text=file, bptt=8))
    assert data.kind == "text" and set(data.labels) == set("the cat sat\non the mat\n")
    assert torch.equal(data.train.inputs[0, 1:], data.train.targets[0, :-1])
    assert "".join(data.labels[i] for i in data.train.inputs[0].tolist()) == "the cat "
    words = read_data(TextData(text=file, by="word", bptt=8, test=0.25))
    assert words.labels == ("the", "cat", "sat", "<eos>", "on", "mat")
    other = write(tmp_path / "o.txt", "the dog sat on the mat\n" * 4)
    apart = read_data(TextData(text=file, by="word", bptt=8, test=other))
    assert apart.labels[-1] == "<unk>" and len(apart.test) == 3
    assert len(read_data(TextData(text=file, bptt=8, test=0.5)).test) == 230 // 8
    short = write(tmp_path / "s.txt", "the dog\n")
    with pytest.raises(DataError, match=r"s\.txt: text shorter than one window; found 3 tokens"):
        read_data(TextData(text=file, by="word", bptt=8, test=short))


def test_a_share_for_tests_is_drawn_from_every_client_and_class():
    count = 200
    labels = torch.arange(count) % 4
    clients = tuple("abc"[i % 7 % 3] for i in range(count))
    train, test = parted(Records({"x": torch.arange(count)}, labels, clients), 0.25)
    positions = torch.cat([train.inputs["x"], test.inputs["x"]]).sort().values
    assert torch.equal(positions, torch.arange(count))
    assert test.clients is not None
    for client in "abc":
        own = [i for i, who in enumerate(test.clients) if who == client]
        assert abs(len(own) - clients.count(client) / 4) <= 1
        counts = torch.bincount(test.targets[own], minlength=4)
        assert counts.max() - counts.min() <= 2
    single = Records({"x": torch.arange(5)}, labels[:5], ("a", "a", "a", "a", "b"))
    kept, _ = parted(single, 0.9)
    assert kept.clients == ("a", "b")


def test_a_file_of_test_rows_needs_only_what_is_asked_for(tmp_path):
    inputs, classes, clients = rows()
    write_table(tmp_path / "train.csv", inputs, classes, clients)
    write_table(tmp_path / "test.csv", inputs[:9], classes[:9])
    said = {"table": str(tmp_path / "train.csv"), "test": str(tmp_path / "test.csv"), "target": "y"}
    data = read_data(TableData(**said, client="who"))  # type: ignore[arg-type]
    assert (len(data.train), len(data.test), len(data.owners)) == (60, 9, 3)
    write_table(tmp_path / "test.csv", inputs[:9, :1], classes[:9])
    with pytest.raises(
        DataError, match=r"test.csv: row 1: x1: a value is missing; found nan; 9 of 69"
    ):
        read_data(TableData(**said, client="who"))  # type: ignore[arg-type]
    write_table(tmp_path / "test.csv", inputs[:9], ["1", *["?"] * 8])
    with pytest.raises(DataError, match=r"test.csv: row 2: y: is not a number; found '\?'"):
        values = {**said, "columns": ("x0",)}
        read_data(TableData(**values), "regression")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="leaves no input columns"):
        read_data(TableData(**said, columns=()))  # type: ignore[arg-type]


def test_arrays_tables_of_pandas_and_lists_of_pairs():
    pandas = pytest.importorskip("pandas")
    inputs, classes, _ = rows(9)
    wanted = dataset_of(((inputs, classes), (inputs, classes)))
    frame = pandas.DataFrame(inputs, columns=["a", "b"]), pandas.Series(classes)
    pairs = list(zip(inputs, classes, strict=True))
    plain = (inputs.tolist(), classes.tolist())
    for form in (frame, pairs, plain):
        found = dataset_of((form, form))
        assert torch.equal(found.train.inputs, wanted.train.inputs)
        assert torch.equal(found.test.targets, wanted.test.targets)


def test_sizes_are_bounded(tmp_path, monkeypatch):
    """Before anything of that size is made."""
    write_images(tmp_path / "images", pictures(), np.arange(30) % 3)
    inputs, classes, _ = rows()
    write_table(tmp_path / "rows.csv", inputs, classes)
    (tmp_path / "t.txt").write_text("abc" * 99)
    from datasets import Dataset as Arrow

    Arrow.from_dict({"x": inputs.tolist(), "y": classes}).save_to_disk(tmp_path / "saved")
    images = FolderData(folder=str(tmp_path / "images"))
    table = TableData(table=str(tmp_path / "rows.csv"), target="y")
    category = TableData(table=table.table, target="y", columns={"x0": "category"})
    text = TextData(text=str(tmp_path / "t.txt"), bptt=8)
    import pyarrow.parquet as parquet
    from pyarrow.csv import read_csv

    parquet.write_table(read_csv(tmp_path / "rows.csv"), tmp_path / "rows.parquet")
    packed = TableData(table=str(tmp_path / "rows.parquet"), target="y")
    hub = HuggingFaceData(huggingface=str(tmp_path / "saved"), inputs="x", target="y")
    for module, name, most, spec, message in (
        ("folder", "MOST_BYTES", 599, images, "set of images is too large; found 600 bytes"),
        ("folder", "MOST_PIXELS", 19, images, "image is too large; found 20 pixels"),
        ("table", "MOST_TABLE", 99, table, "rows.csv: file is too large"),
        (
            "columns",
            "MOST_VALUES",
            119,
            table,
            "rows.csv: row 1: table is too large; found 120 values",
        ),
        ("columns", "MOST_CATEGORIES", 59, category, "too many values for a category; found 60"),
        ("text", "MOST_TEXT", 296, text, "t.txt: file is too large; found 297 bytes"),
        ("table", "MOST_VALUES", 179, packed, "rows.parquet: table is too large; found 180 v"),
        ("table", "MOST_BYTES", 899, packed, r"rows.parquet: table is too large; found .* by"),
        ("huggingface", "MOST_BYTES", 99, hub, "set is too large"),
        ("rows", "MOST_CLASSES", 2, table, "too many classes; found class 2"),
    ):
        read_data(spec)
        with monkeypatch.context() as patch:
            patch.setattr(f"archgraph.data.{module}.{name}", most)
            with pytest.raises(DataError, match=message):
                read_data(spec)


def test_a_saved_set_with_names_of_classes_and_maps(tmp_path):
    from datasets import ClassLabel, Features, Sequence, Value
    from datasets import Dataset as Arrow

    columns = {"x": [[0.5, i] for i in range(9)], "y": [0, 1, 0] * 3, "at": [[[0, 1], [2, 0]]] * 9}
    kinds = Features(
        x=Sequence(Value("float32")),
        y=ClassLabel(names=["no", "yes", "never"]),
        at=Sequence(Sequence(Value("int64"))),
    )
    Arrow.from_dict(columns, features=kinds).save_to_disk(tmp_path / "saved")
    one = HuggingFaceData(huggingface=str(tmp_path / "saved"), inputs="x", target="y")
    assert (read_data(one).classes, read_data(one).labels[2]) == (3, "never")
    with pytest.raises(DataError, match=r"several meanings; found int64 \[2, 2\].*: segmentation"):
        read_data(one.model_copy(update={"target": "at"}))
    maps = read_data(one.model_copy(update={"target": "at"}), "segmentation")
    assert maps.train.targets.shape[1:] == (2, 2) and maps.classes == 3
    with pytest.raises(DataError, match="there is no such column; found 'who'"):
        read_data(one.model_copy(update={"inputs": "who"}))
    from datasets import DatasetDict

    both = DatasetDict(train=Arrow.from_dict(columns), test=Arrow.from_dict(columns))
    both.save_to_disk(tmp_path / "both")
    with pytest.raises(DataError, match=r"conflicts with the split `test` of the set"):
        read_data(one.model_copy(update={"test": 0.5, "huggingface": str(tmp_path / "both")}))
    # An image that is only named is not followed.
    named = Arrow.from_dict({"x": [{"path": "far.png", "bytes": None}] * 9, "y": [0, 1, 0] * 3})
    named.save_to_disk(tmp_path / "named")
    with pytest.raises(DataError, match=r"row 1: x: the image is not in the set; files that a set"):
        read_data(one.model_copy(update={"huggingface": str(tmp_path / "named")}))


def test_several_inputs_by_name():
    one = {"ids": torch.zeros(4, 3, dtype=torch.int64), "mask": torch.ones(4, 3, dtype=torch.bool)}
    data = dataset_of(((one, torch.arange(4) % 2), (one, torch.arange(4) % 2)))
    assert data.inputs == ("ids", "mask") and data.kind == "text"

    class Named(Items):
        def __getitem__(self, index):
            return {k: v[index] for k, v in one.items()}, index % 2

    again = dataset_of((Named(None, range(4)), Named(None, range(4))))
    assert again.inputs == data.inputs
    assert torch.equal(again.train.beside["mask"], data.train.beside["mask"])


NAMED = """\
archgraph: 1
name: two
inputs: {a: [3], b: %s}
sections:
  - {name: head, steps: [linear: {from: b, out: 3}]}
"""


def test_further_inputs_may_be_numbers(tmp_path):
    one = {"a": torch.rand(12, 3), "b": torch.rand(12, 2), "c": torch.rand(12, 4)}
    split = one, torch.arange(12) % 3
    file = write_experiment(tmp_path, None)
    (tmp_path / "model.yaml").write_text(NAMED % "[2]")
    run = ag.run(file, data=(split, split))
    assert [(node.name, node.dtype) for node in run.experiment.world.graph.nodes[:2]] == [
        ("a", "float32"), ("b", "float32")
    ]  # fmt: skip
    (tmp_path / "model.yaml").write_text(NAMED.replace("a: [3], ", "") % "[2]")
    with pytest.raises(RunError, match=r"found float32\[batch, 3\] \(data\)"):
        ag.run(file, data=(split, split))
    (tmp_path / "model.yaml").write_text(NAMED % "{shape: [2], dtype: int64}")
    with pytest.raises((RunError, SpecError), match="int64"):
        ag.run(file, data=(split, split))


def test_channels_come_first(tmp_path):
    images = torch.from_numpy(pictures()).movedim(1, -1)
    split = images, torch.arange(30) % 3
    with pytest.raises(RunError, match=r"batch, 4, 5, 1\].*images\.permute\(0, 3, 1, 2\)"):
        ag.run(write_experiment(tmp_path, None, shape=(1, 4, 5)), data=(split, split))


def test_the_function_gets_the_same_random_numbers_every_time(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "drawn.py").write_text(
        "import torch, numpy, random\n"
        "def make():\n"
        "    x = torch.rand(9, 2) + numpy.random.rand() + random.random()\n"
        "    return (x, torch.arange(9) % 3), (x, torch.arange(9) % 3)\n"
    )
    file = write_experiment(tmp_path, {"python": "drawn:make"})
    before = torch.get_rng_state()
    one, other = (prepare(file, python=True) for _ in range(2))
    assert one.facts == other.facts
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(SpecError, match=r"experiment.yaml:8: data.python: names Python code"):
        prepare(file)
    seen = [v for v in verdicts([file]) if v.unseen]
    assert len(seen) == 1 and "drawn:make not imported" in seen[0].note
    (good,) = verdicts([file], python=True)
    assert good.good and not good.unseen


class Drawn(Items):
    """Items with noise that is drawn on each read, from one of the generators that people use."""

    def __init__(self, inputs: Any, targets: Any, source: str) -> None:
        super().__init__(inputs, targets)
        self.source = source

    def __getitem__(self, index: int) -> tuple[Any, int]:
        torch_seed = torch.Generator().manual_seed(index)
        draws: dict[str, Any] = {
            "torch": lambda: float(torch.rand(())),
            "numpy": lambda: np.random.rand(),  # noqa: NPY002  # as datasets of others do
            "random": random.random,
            "rarely": lambda: float(torch.rand(()) < 0.2),
            "index": lambda: float(torch.rand((), generator=torch_seed)),
            "none": lambda: 0.0,
        }
        noise = draws[self.source]()
        return self.inputs[index] + noise, int(self.targets[index])


SOURCES = ["torch", "numpy", "random", "rarely", "index", "none"]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("shared", [False, True], ids=["whole", "by client"])
def test_items_are_read_anew_under_a_seed(source: str, shared: bool) -> None:
    """Whatever generator they draw from: alike under one seed, and it is left as it was."""
    inputs, targets = torch.rand(40, 6), torch.arange(40) % 3

    def read(seed: int) -> Dataset:
        torch.manual_seed(seed), np.random.seed(seed), random.seed(seed)  # noqa: NPY002
        train, other = Drawn(inputs, targets, source), Drawn(inputs, targets, "none")
        return dataset_of(({"ann": other, "bob": train} if shared else train, other))

    data, again = read(0), read(1)
    after = float(torch.rand(())), float(np.random.rand()), random.random()  # noqa: NPY002
    torch.manual_seed(1), np.random.seed(1), random.seed(1)  # noqa: NPY002
    states = float(torch.rand(())), float(np.random.rand()), random.random()  # noqa: NPY002
    assert after == states, "reading leaves the generators where they were"
    assert torch.equal(data.train.inputs, again.train.inputs)
    assert data.notes == ()
    (first,), chosen = data.train.examples(slice(None), seed=1)
    (other,), _ = data.train.examples(slice(None), seed=2)
    assert torch.equal(chosen, data.train.targets)
    assert torch.equal(first, other) == (source in ("index", "none"))
    (some,), _ = again.train.examples([70, 3] if shared else [33, 3], seed=1)
    assert torch.equal(some, first[[70, 3] if shared else [33, 3]]), "whoever reads, in any order"


@pytest.mark.parametrize("source", SOURCES)
def test_items_that_are_read_once_are_noted_where_they_change(source: str) -> None:
    inputs, targets = torch.rand(40, 6), torch.arange(40) % 3
    drawn, fixed = Drawn(inputs, targets, source), Drawn(inputs, targets, "none")
    cached, tested = dataset_of((drawn, fixed), cache=True), dataset_of((fixed, drawn))
    assert cached.train.again is None
    if source in ("index", "none"):
        assert cached.notes == tested.notes == ()
        return
    (note,), (other,) = cached.notes, tested.notes
    assert note.startswith("data: train: items differ") and "all rounds use the same values" in note
    assert other == note.replace("train:", "test:")


@pytest.mark.parametrize("draw", [time.perf_counter, random.Random(0).random])
def test_items_that_no_seed_repeats_are_noted(draw: Any) -> None:
    """Of a clock, and of a generator of their own."""

    class Own(Items):
        def __getitem__(self, index: int) -> tuple[Any, int]:
            return self.inputs[index] + draw() % 1, int(self.targets[index])

    rows = torch.rand(9, 6), torch.arange(9) % 3
    (note,) = dataset_of((Own(*rows), rows)).notes
    assert "train: items differ between two reads with the same seed" in note


def test_a_mask_is_read_with_its_image() -> None:
    """A flip that both share; classes of whole images are not read again."""

    class Flipped(Items):
        def __getitem__(self, index: int) -> tuple[Any, Any]:
            image, mask = self.inputs[index], self.targets[index]
            return (image.flip(-1), mask.flip(-1)) if torch.rand(()) < 0.5 else (image, mask)

    images = torch.rand(8, 1, 3, 4)
    masks = (images[:, 0] > 0.5).long()
    data = dataset_of((Flipped(images, masks), (images, masks)), task="segmentation")
    (x,), y = data.train.examples(slice(None), seed=4)
    assert torch.equal((x[:, 0] > 0.5).long(), y)
    assert not torch.equal(y, masks)


def test_large_items_are_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archgraph.data.items.IN_FILE", 100)
    inputs = torch.rand(40, 6)
    data = dataset_of((Drawn(inputs, torch.arange(40) % 3, "none"), (inputs, torch.arange(40) % 3)))
    assert torch.equal(data.train.inputs, inputs)
    assert data.train.inputs.untyped_storage().filename
    clients = {name: Drawn(inputs[:20], torch.arange(20) % 3, "none") for name in "ab"}
    data = dataset_of((clients, (inputs, torch.arange(40) % 3)))
    assert torch.equal(data.train.inputs, inputs[:20].repeat(2, 1))
    assert data.train.inputs.untyped_storage().filename
