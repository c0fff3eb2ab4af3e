"""Typical mistakes with data of one's own: each is refused, with its place, in our words.

A row is what is done, and the whole message. `check` says of a file what `run` says.
"""

from __future__ import annotations

import datetime
import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import archgraph as ag
from archgraph.errors import ArchGraphError
from archgraph.language import verdicts
from tests.engine.own import pictures, rows, write_experiment, write_images, write_table

INPUTS, CLASSES, CLIENTS = rows()
TABLE = {"table": "rows.csv", "target": "y"}
FOLDER = {"folder": "images", "size": [4, 5]}
HUB = {"huggingface": "saved", "inputs": "x", "target": "y"}


def table(change: Callable[[str], str] = str, **options: Any) -> Callable[[Path], dict[str, Any]]:
    """A table whose text was changed."""

    def make(folder: Path) -> dict[str, Any]:
        write_table(folder / "rows.csv", INPUTS, CLASSES, CLIENTS)
        file = folder / "rows.csv"
        file.write_text(change(file.read_text()))
        return {**TABLE, **options}

    return make


def cell(line: int, column: int, value: str) -> Callable[[str], str]:
    """Another value in a cell; lines count from 1."""

    def change(text: str) -> str:
        lines = [line.split(",") for line in text.splitlines()]
        lines[line - 1][column] = value
        return "\n".join(map(",".join, lines)) + "\n"

    return change


def images(change: Callable[[Path], object], **options: Any) -> Callable[[Path], dict[str, Any]]:
    """A folder of images in which something was changed."""

    def make(folder: Path) -> dict[str, Any]:
        write_images(folder / "images", pictures(), np.arange(30) % 3)
        change(folder / "images")
        return {**FOLDER, **options}

    return make


def text(content: str | bytes, **options: Any) -> Callable[[Path], dict[str, Any]]:
    def make(folder: Path) -> dict[str, Any]:
        raw = content.encode() if isinstance(content, str) else content
        (folder / "t.txt").write_bytes(raw)
        return {"text": "t.txt", **options}

    return make


def saved(columns: dict[str, Any], **options: Any) -> Callable[[Path], dict[str, Any]]:
    def make(folder: Path) -> dict[str, Any]:
        from datasets import Dataset as Arrow

        Arrow.from_dict(columns).save_to_disk(folder / "saved")
        return {**HUB, **options}

    return make


def two_splits(*classes: list[str], **options: Any) -> Callable[[Path], dict[str, Any]]:
    """A set with a split to test on, whose classes may have names of their own."""

    def make(folder: Path) -> dict[str, Any]:
        from datasets import ClassLabel, DatasetDict, Features, List, Value
        from datasets import Dataset as Arrow

        columns = {"x": INPUTS[:9].tolist(), "y": CLASSES[:9]}
        kinds = [Features(x=List(Value("float32")), y=ClassLabel(names=names)) for names in classes]
        parts = (Arrow.from_dict(columns, features=kind) for kind in kinds)
        DatasetDict(zip(("train", "test"), parts, strict=True)).save_to_disk(folder / "saved")
        return {**HUB, **options}

    return make


def deep_image(folder: Path) -> dict[str, Any]:
    from datasets import Dataset as Arrow

    content = io.BytesIO()
    Image.fromarray(np.full((4, 5), 3000, np.uint16)).save(content, "PNG")
    cells = [{"bytes": content.getvalue(), "path": None}] * 6
    Arrow.from_dict({"x": cells, "y": [0, 1] * 3}).save_to_disk(folder / "saved")
    return HUB


NAMES = ["a", "b", "c"]


def function(source: str) -> Callable[[Path], dict[str, Any]]:
    def make(folder: Path) -> dict[str, Any]:
        (folder / "wrong_data.py").write_text(f"import torch\ndef make():\n    {source}\n")
        return {"python": "wrong_data:make"}

    return make


def said(**data: Any) -> Callable[[Path], dict[str, Any]]:
    return lambda folder: data


def parquet(
    names: Sequence[str], *columns: Any, **options: Any
) -> Callable[[Path], dict[str, Any]]:
    """A Parquet file, whose last column is the target."""

    def make(folder: Path) -> dict[str, Any]:
        import pyarrow as arrow
        import pyarrow.parquet as pq

        parts = [arrow.array(column) for column in (*columns, [0, 1] * 4)]
        pq.write_table(arrow.Table.from_arrays(parts, [*names, "y"]), folder / "rows.parquet")
        return {**TABLE, "table": "rows.parquet", **options}

    return make


def workbook(folder: Path) -> dict[str, Any]:
    (folder / "rows.xlsx").write_text("")
    return {**TABLE, "table": "rows.xlsx"}


def an_empty_folder(folder: Path) -> dict[str, Any]:
    (folder / "saved").mkdir()
    return HUB


def parts(place: Path, *classes: int) -> None:
    """Images to train and to test on, of so many classes each."""
    for part, count in zip(("train", "test"), classes, strict=True):
        write_images(place / part, pictures(count), np.arange(count))


def unlink(place: Path, pattern: str) -> None:
    for path in sorted(place.glob(pattern)):
        path.unlink()


def flat(place: Path) -> None:
    """Images beside one another."""
    for path in sorted(place.glob("*/*")):
        path.rename(place / path.name)
    for path in sorted(place.iterdir()):
        if path.is_dir():
            path.rmdir()


def bigger(place: Path) -> None:
    write_images(place, pictures(1, (6, 5), seed=1), np.array([2]))


# What is done, and the whole message: line 7 of the experiment is `data:`.
MISTAKES: dict[str, tuple[Callable[[Path], dict[str, Any]], str]] = {
    "nothing_said": (
        said(),
        "experiment.yaml:7: data: must name the data; found nothing; expected a mapping "
        "with dataset, python, folder, table, huggingface, text",
    ),
    "a_name_only": (
        said(python="mydata.make"),
        "experiment.yaml:8: data.python: is not the name of a callable; found "
        "'mydata.make'; expected package.module:callable",
    ),
    "no_data": (
        said(partition={"scheme": "iid"}),
        "experiment.yaml:7: data: must name the data; expected one of dataset, python, "
        "folder, table, huggingface, text; in Python, pass it: ag.run(..., data=...)",
    ),
    "misspelt_door": (
        said(tabel="rows.csv", target="y"),
        "experiment.yaml:8: data.tabel: is an unknown key; found 'tabel'; expected one of "
        "dataset, python, folder, table, huggingface, text, partition; did you mean 'table'?",
    ),
    "misspelt_option": (
        said(table="rows.csv", target="y", clients="who"),
        "experiment.yaml:10: data.clients: is an unknown key; found 'clients'; expected one "
        "of partition, table, target, columns, text, tokenizer, length, client, standardise, "
        "separator, test; did you mean 'client'?",
    ),
    "two_doors": (
        said(dataset="digits", folder="images"),
        "experiment.yaml:9: data.folder: names data twice; found dataset and folder",
    ),
    "no_target": (
        said(table="rows.csv"),
        "experiment.yaml:7: data: lacks the key 'target'; expected the column to be predicted",
    ),
    "file_not_there": (
        said(**TABLE),
        "experiment.yaml:8: data.table: names a file that does not exist; found rows.csv; "
        "expected a file of this machine, absolute or relative to this file",
    ),
    "no_such_column": (
        table(target="yy"),
        "experiment.yaml:9: data.target: there is no such column; found 'yy'; expected "
        "one of x0, x1, y, who; did you mean 'y'?",
    ),
    "no_such_client_column": (
        table(client="whom"),
        "experiment.yaml:10: data.client: there is no such column; found 'whom'; "
        "expected one of x0, x1, y, who; did you mean 'who'?",
    ),
    "no_such_input_column": (
        table(columns=["x0", "x2"]),
        "experiment.yaml:10: data.columns: there is no such column; found 'x2'; expected"
        " one of x0, x1, y, who",
    ),
    "target_among_inputs": (
        table(columns=["x0", "y"]),
        "experiment.yaml:10: data.columns: y is also the target or the client; leave y out of "
        "columns",
    ),
    "missing_value": (
        table(cell(5, 0, "")),
        "experiment.yaml:7: data: rows.csv: row 4: x0: a value is missing; found ''; 1 of 60 are "
        "missing: fill them, remove the rows, or omit the column",
    ),
    "nan": (
        table(cell(7, 1, "NaN")),
        "experiment.yaml:7: data: rows.csv: row 6: x1: a value is missing; found 'NaN'; 1 of 60 "
        "are missing: fill them, remove the rows, or omit the column",
    ),
    "infinite": (
        table(cell(7, 1, "inf")),
        "experiment.yaml:7: data: rows.csv: row 6: x1: is too large for 32 bits; found 'inf'",
    ),
    "not_a_number": (
        table(cell(9, 0, "1,5".replace(",", "_")), columns={"x0": "number"}),
        "experiment.yaml:7: data: rows.csv: row 8: x0: is not a number; found '1_5'; expected a "
        "number, such as -1.5 or 2e3; for a column of categories, write columns: {x0: "
        "category}",
    ),
    "one_odd_cell": (
        table(cell(9, 0, "?")),
        "experiment.yaml:7: data: rows.csv: row 8: x0: is not a number; found '?'; expected a "
        "number, such as -1.5 or 2e3; for a column of categories, write columns: {x0: "
        "category}",
    ),
    "target_not_a_number": (
        table(cell(3, 2, "high"), task="regression"),
        "experiment.yaml:8: data: rows.csv: row 2: y: is not a number; found 'high'; expected a "
        "number, such as -1.5 or 2e3; to predict classes, write task: classification",
    ),
    "a_class_written_twice": (
        table(cell(5, 2, "00")),
        "experiment.yaml:7: data: rows.csv: row 4: y: is the same number as '0' in rows.csv: "
        "row 1; found '00'",
    ),
    "a_class_written_twice_with_a_point": (
        table(cell(5, 2, "0.0"), task="classification"),
        "experiment.yaml:8: data: rows.csv: row 4: y: is the same number as '0' in rows.csv: "
        "row 1; found '0.0'",
    ),
    "ragged": (
        table(lambda text: text.replace("\n", ",7\n", 3).replace(",7", "", 1)),
        "experiment.yaml:7: data: rows.csv: table cannot be read; found Error tokenizing data. "
        "C error: Expected 4 fields in line 2, saw 5; expected CSV",
    ),
    "semicolons": (
        table(lambda text: text.replace(",", ";")),
        "experiment.yaml:9: data.target: there is no such column; found 'y'; expected one of "
        "x0;x1;y;who",
    ),
    "one_class": (
        table(lambda text: text.replace(",1,", ",0,").replace(",2,", ",0,")),
        "experiment.yaml:7: data: rows: train: all targets are the same class; found class 0",
    ),
    "two_columns_of_one_name": (
        table(lambda text: text.replace("x1", "x0", 1)),
        "experiment.yaml:7: data: rows.csv: columns need different names; found 'x0'",
    ),
    "two_columns_of_one_name_in_parquet": (
        parquet("xx", range(8), range(8)),
        "experiment.yaml:7: data: rows.parquet: columns need different names; found 'x'",
    ),
    "a_time": (
        parquet("x", [datetime.datetime(2026, 1, day + 1) for day in range(8)]),
        "experiment.yaml:7: data: rows.parquet: row 1: x: is neither a number nor text; found "
        "Timestamp; turn the column into numbers or text, or omit it",
    ),
    "a_nested_column": (
        parquet("x", [None, *[[1, 2]] * 7]),
        "experiment.yaml:7: data: rows.parquet: row 2: x: is neither a number nor text; found "
        "ndarray; turn the column into numbers or text, or omit it",
    ),
    "seconds_of_an_epoch": (
        parquet("x", range(1_700_000_000, 1_700_000_008), standardise=False),
        "experiment.yaml:7: data: rows.parquet: x: values become equal when they are rounded to "
        "32 bits; found 1 of 8 different values; expected values that differ in 32 bits; subtract "
        "a constant from them, or use their logarithms",
    ),
    "values_of_all_sizes": (
        parquet("x", [1, 2, 3, 4, 5, 6, 7, 10**12]),
        "experiment.yaml:7: data: rows.parquet: x: values become equal when they are rounded to "
        "32 bits; found 2 of 8 different values; expected values that differ in 32 bits; subtract "
        "a constant from them, or use their logarithms",
    ),
    "targets_of_an_epoch": (
        parquet(
            ["x", "t"],
            [0.5] * 8,
            range(1_700_000_000, 1_700_000_008),
            target="t",
            task="regression",
        ),
        "experiment.yaml:8: data: rows.parquet: row 1: t: values become equal when they are "
        "rounded to 32 bits; found 1 of 8 different values; expected values that differ in 32 "
        "bits; subtract a constant from them, or use their logarithms",
    ),
    "a_decimal_comma": (
        parquet("x", ["1,5", "2,25", "-3,0", "4,5", "5", "6,5", "7,5", "8,5"]),
        "experiment.yaml:7: data: rows.parquet: row 1: x: is it a number or a category?; found "
        "'1,5'; expected numbers such as 1.5 for 1,5 or 1234 for 1,234; for a column of "
        "categories, write columns: {x: category}",
    ),
    "a_decimal_comma_in_every_other_row": (
        parquet("x", ["1,5", "2"] * 4),
        "experiment.yaml:7: data: rows.parquet: row 1: x: is it a number or a category?; found "
        "'1,5'; expected numbers such as 1.5 for 1,5 or 1234 for 1,234; for a column of "
        "categories, write columns: {x: category}",
    ),
    "thousands_grouped_by_blanks": (
        parquet("x", ["1\u202f500", "12 000,5"] * 4),
        "experiment.yaml:7: data: rows.parquet: row 1: x: is it a number or a category?; found "
        "'1\\u202f500'; expected numbers such as 1.5 for 1,5 or 1234 for 1,234; for a column of "
        "categories, write columns: {x: category}",
    ),
    "a_currency": (
        parquet("x", ["$1.50", "$2", "$3", "\u22121"] * 2),
        "experiment.yaml:7: data: rows.parquet: row 1: x: is it a number or a category?; found "
        "'$1.50'; expected numbers such as 1.5 for 1,5 or 1234 for 1,234; for a column of "
        "categories, write columns: {x: category}",
    ),
    "numbers_of_rows": (
        parquet(["__index_level_0__"], range(8)),
        "experiment.yaml:8: data.table: row numbers are not a column to learn from; found "
        "__index_level_0__; save the table without its index, or list the input columns: columns: "
        "[…]",
    ),
    "percent": (
        parquet(["x", "t"], [0.5] * 8, ["5%", "7.5 %", "8%", "9%"] * 2, target="t"),
        "experiment.yaml:7: data: rows.parquet: row 1: t: could have several meanings; found "
        "'5%'; expected whole numbers (classes), or a task; write task: classification, or task: "
        "regression; for your own objective, task: {kind: regression, objective: …}",
    ),
    "integers_of_19_digits": (
        parquet("x", range(2**62, 2**62 + 8)),
        "experiment.yaml:7: data: rows.parquet: row 1: x: values become equal when they are "
        "rounded to 64 bits; found 1 of 8 different values; omit the column, or subtract a "
        "constant from its values",
    ),
    "a_column_without_a_name": (
        table(lambda text: text.replace("x0", "", 1)),
        "experiment.yaml:7: data: rows.csv: columns need different names; found ''",
    ),
    "a_label_of_three_values": (
        table(task="multilabel"),
        "experiment.yaml:8: data: rows.csv: row 3: y: is not 0 or 1; found '2'",
    ),
    "a_target_as_it_was_written_before": (
        table(target={"values": "y"}),
        "experiment.yaml:9: data.target: has a wrong value; found a mapping; expected text or a "
        "list",
    ),
    "several_classes": (
        table(target=["y", "x0"], task="classification"),
        "experiment.yaml:10: data.target: has several columns; found task: classification; "
        "expected one column, or task: regression or multilabel",
    ),
    "empty_table": (
        table(lambda text: text.split("\n")[0] + "\n"),
        "experiment.yaml:7: data: rows.csv: the table has no rows",
    ),
    "not_a_table": (
        workbook,
        "experiment.yaml:7: data: rows.xlsx: is not a table; expected .csv or .parquet",
    ),
    "other_number_of_clients": (
        table(client="who", test=0.5),
        "experiment.yaml:7: data: family and data have different numbers of clients; "
        "found 2 clients in the family; expected 3: ann, cid, bob",
    ),
    "a_partition_without_a_scheme": (
        table(partition={"alpha": 0.5}),
        "experiment.yaml:10: data.partition: has a wrong value; found a mapping; expected a "
        "mapping with the key 'scheme'",
    ),
    "partitioned_twice": (
        table(client="who", partition={"scheme": "iid"}),
        "experiment.yaml:11: data.partition: the data is already partitioned by client (rows, 3 "
        "clients); remove `partition`, or do not pass the data by client",
    ),
    "unequal_images": (
        images(bigger, size=None),
        "experiment.yaml:7: data: images/2/0000.png: images differ in size; found 6 × 5; expected "
        "4 × 5, as the first one; scale them to one size; for a folder, size: [HEIGHT, WIDTH] "
        "does this",
    ),
    "empty_class": (
        images(lambda place: unlink(place, "1/*")),
        "experiment.yaml:7: data: images/1: is empty or not a folder; expected a folder for "
        "each class, with its images",
    ),
    "not_an_image": (
        images(lambda place: (place / "1" / "notes.txt").write_text("")),
        "experiment.yaml:7: data: images/1/notes.txt: is not an image; expected .png, .jpg, "
        ".jpeg, .bmp, .webp, .pgm, .ppm; move it elsewhere; texts are a column of a "
        "table",
    ),
    "images_without_classes": (
        images(flat),
        "experiment.yaml:7: data: images/0000.png: is empty or not a folder; expected a folder "
        "for each class, with its images",
    ),
    "damaged_image": (
        images(lambda place: (place / "1" / "0001.png").write_bytes(b"PNG")),
        "experiment.yaml:7: data: images/1/0001.png: image cannot be read; found cannot "
        "identify image file 'images/1/0001.png'; expected a complete image, one of BMP, JPEG, "
        "PNG, PPM, WEBP",
    ),
    "test_class_unknown": (
        images(lambda place: parts(place, 2, 3)),
        "experiment.yaml:7: data: images/test/2: a class has test images only: "
        "is the folder's name misspelt?",
    ),
    "test_given_twice": (
        images(lambda place: parts(place, 3, 3), test=0.2),
        "experiment.yaml:10: data.test: conflicts with the folder images/test: "
        "remove one of the two",
    ),
    "everything_for_tests": (
        images(lambda place: None, test=1.0),
        "experiment.yaml:10: data.test: has a wrong value; found 1.0; expected less than 1",
    ),
    "no_test_file": (
        text("abc" * 99, test="u.txt"),
        "experiment.yaml:9: data.test: names a file that does not exist; found u.txt; expected "
        "a file of this machine, absolute or relative to this file",
    ),
    "text_too_short": (
        text("short"),
        "experiment.yaml:7: data: t.txt: train: text shorter than one window; found 4 tokens;"
        " expected at least 65; choose a smaller bptt",
    ),
    "text_not_utf8": (
        text(b"\xff\xfe" * 99),
        "experiment.yaml:7: data: t.txt: is not UTF-8 text; found byte 0xff at position 0; "
        "save it as UTF-8",
    ),
    "not_a_saved_set": (
        an_empty_folder,
        "experiment.yaml:8: data.huggingface: is not a saved data set; found "
        "Directory saved is neither a `Dataset` directory nor a `DatasetDict` directory.; "
        "expected the folder that `dataset.save_to_disk(folder)` wrote",
    ),
    "no_such_feature": (
        saved({"x": [[1.0, 2.0]] * 9, "z": [0, 1, 2] * 3}),
        "experiment.yaml:10: data.target: there is no such column; found 'y'; expected one of x, z",
    ),
    "unequal_rows": (
        saved({"x": [[1.0], [1.0, 2.0]] * 3, "y": [0, 1] * 3}),
        "experiment.yaml:7: data.huggingface: x: parts differ in shape; found list of 6; pad or "
        "cut them to one shape",
    ),
    "nan_in_a_saved_set": (
        saved({"x": [[1.0], [float("nan")]] * 3, "y": [0, 1] * 3}),
        "experiment.yaml:7: data.huggingface: x[1]: is not finite; 3 of 6 examples have NaN or "
        "infinity: fill or remove them",
    ),
    "seconds_in_a_saved_set": (
        saved({"x": [[1.7e9 + n] for n in range(6)], "y": [0, 1] * 3}),
        "experiment.yaml:7: data.huggingface: x: values become equal when they are rounded to 32 "
        "bits; found 1 of 6 different values; expected values that differ in 32 bits; subtract a "
        "constant from them, or use their logarithms",
    ),
    "texts_as_inputs": (
        saved({"x": ["good", "bad"] * 3, "y": [0, 1] * 3}),
        "experiment.yaml:7: data.huggingface: x: does not consist of numbers; found text; "
        "instead of inputs write text: x, tokenizer: tokenizer.json, length: 128",
    ),
    "splits_of_other_classes": (
        two_splits(NAMES, ["c", "b", "a"]),
        "experiment.yaml:10: data.target: splits differ in the names or the order of classes; "
        "found y: test: c, b, a; expected a, b, c, as train has it; dataset.cast_column('y', …) "
        "gives both the same names",
    ),
    "an_image_of_16_bits": (
        deep_image,
        "experiment.yaml:7: data: saved: row 1: x: image has more than 8 bits per channel; "
        "found I;16; convert it, or read the images with your own function: data: {python: …}",
    ),
    "no_such_function": (
        said(python="wrong_data_nowhere:make"),
        "experiment.yaml:8: data.python: cannot be imported; found No module named "
        "'wrong_data_nowhere'; install it, or run archgraph in the folder that contains it",
    ),
    "failing_function": (
        function("raise FileNotFoundError('scans.npz')"),
        "experiment.yaml:8: data.python: the function raised an error; found wrong_data:make: "
        "FileNotFoundError: scans.npz",
    ),
    "nothing_returned": (
        function("torch.rand(3)"),
        "experiment.yaml:7: data.python: wrong_data:make: is not a data set; found nothing; "
        "expected (train, test), each a torch dataset or a pair (inputs, targets) of tensors,"
        " or train as a mapping of clients to such",
    ),
    "one_part_returned": (
        function("return torch.rand(9, 2), torch.arange(9)"),
        "experiment.yaml:7: data.python: wrong_data:make: train: is not a split of a data set; "
        "found Tensor [9, 2]; expected a torch dataset with __len__ and __getitem__, or a pair "
        "(inputs, targets)",
    ),
    "a_target_that_is_no_number": (
        table(cell(7, 2, "tbd"), columns=["x0", "x1"]),
        "experiment.yaml:7: data: rows.csv: row 6: y: could have several meanings; found 'tbd'; "
        "expected whole numbers (classes), or a task; write task: classification, or task: "
        "regression; for your own objective, task: {kind: regression, objective: …}",
    ),
    "other_classes_than_the_model": (
        table(cell(3, 2, "3"), columns=["x0", "x1"]),
        "experiment.yaml:3: family: tiny: the model's output does not fit classification; "
        "found [batch, 3]; expected [batch, 4]: a logit for each of 4 classes (rows)",
    ),
    "labels_out_of_range": (
        function("d = torch.rand(9, 2), torch.arange(9) - 4; return d, d"),
        "experiment.yaml:7: data.python: wrong_data:make: train: label out of range; found "
        "-4…4; expected classes 0…4; classes count from 0; use -100 for targets to ignore",
    ),
    "unequal_numbers": (
        function("return (torch.rand(9, 2), torch.arange(8)), (torch.rand(9, 2), torch.arange(9))"),
        "experiment.yaml:7: data.python: wrong_data:make: train: inputs and targets differ in "
        "number; found input [9, 2], targets [8]",
    ),
    "zero_one_floats": (
        function("d = torch.rand(9, 2), torch.ones(9, 3).tril(); return d, d"),
        "experiment.yaml:7: data.python: wrong_data:make: targets: could have several meanings; "
        "found float32 [3]; expected whole numbers (the class of each example), or a task; write "
        "task: regression (numbers), task: classification (whole numbers) or task: multilabel (0 "
        "and 1)",
    ),
    "nan_in_tensor": (
        function("d = torch.full((9, 2), torch.nan), torch.arange(9) % 3; return d, d"),
        "experiment.yaml:7: data.python: wrong_data:make: train[0]: is not finite; 9 of 9 "
        "examples have NaN or infinity: fill or remove them",
    ),
    "client_without_rows": (
        function(
            "d = torch.rand(9, 2), torch.arange(9) % 3; e = d[0][:0], d[1][:0]; "
            "return {'ann': d, 'bob': d, 'cid': e}, d"
        ),
        "experiment.yaml:7: data.python: wrong_data:make: train: cid: a client has no examples",
    ),
    "clients_differ": (
        function(
            "d = torch.rand(9, 2), torch.arange(9) % 3; "
            "return {'ann': d, 'bob': (d[0][:, :1], d[1]), 'cid': d}, d"
        ),
        "experiment.yaml:7: data.python: wrong_data:make: train: bob: clients differ in "
        "the form of their data; found input float32 [1], target int64 []; expected input "
        "float32 [2], target int64 [], as the first one",
    ),
}
X, Y = torch.rand(9, 2), torch.arange(9) % 3
SPLIT = (X, Y)


class Stream(IterableDataset[Any]):
    def __iter__(self):
        yield from zip(X, Y, strict=True)


class Uneven(TensorDataset):
    def __getitem__(self, index):
        return X[index][: 1 + index % 2], Y[index]


# What is given to `ag.run`, and the whole message.
ARGUMENTS: dict[str, tuple[Any, str]] = {
    "one_split_only": (
        SPLIT,
        "data: train: is not a split of a data set; found Tensor [9, 2]; expected a torch "
        "dataset with __len__ and __getitem__, or a pair (inputs, targets)",
    ),
    "a_path": (
        "images/",
        "data: is not a data set; found str; expected (train, test), each a torch dataset or "
        "a pair (inputs, targets) of tensors, or train as a mapping of clients to such",
    ),
    "a_loader": (
        (DataLoader(TensorDataset(*SPLIT)), SPLIT),
        "data: train: is not a split of a data set; found DataLoader; expected a torch dataset "
        "with __len__ and __getitem__, or a pair (inputs, targets); pass loader.dataset: the "
        "experiment sets the batches",
    ),
    "a_stream": (
        (Stream(), SPLIT),
        "data: train: is not a split of a data set; found Stream; expected a torch dataset with "
        "__len__ and __getitem__, or a pair (inputs, targets); pass streams by client: {client: "
        "stream}",
    ),
    "unequal_items": (
        (Uneven(*SPLIT), SPLIT),
        "data: train[1]: examples differ in shape or type; found float32 [2]; expected "
        "float32 [1], as the first one",
    ),
    "three_values": (
        (TensorDataset(X, X, Y), SPLIT),
        "data: train: is not a pair (input, target); found tuple of 3; pass several inputs as a "
        "mapping by the names of the model's inputs: ({'ids': …, 'mask': …}, target)",
    ),
    "no_clients": (
        ({}, SPLIT),
        "data: train: lists no clients",
    ),
    "no_test_examples": (
        (SPLIT, (X[:0], Y[:0])),
        "data: test: has no examples",
    ),
    "targets_as_text": (
        ((X.numpy(), np.array(["a"] * 9)), SPLIT),
        "data: test: targets differ from those of the train split; found int64 []; expected text "
        "[]",
    ),
    "one_class_only": (
        ((X, Y * 0), (X, Y * 0)),
        "data: train: all targets are the same class; found class 0",
    ),
    "too_large_a_class": (
        ((X, Y * 10**9), SPLIT),
        "data: too many classes; found class 2000000000; expected at most 1048576 classes, "
        "counted from 0; to predict numbers, use floating point numbers",
    ),
    "test_of_another_shape": (
        (SPLIT, (X[:, :1], Y)),
        "data: test: inputs differ from those of the train split; found float32 [1]; expected "
        "float32 [2]",
    ),
    "test_with_other_targets": (
        (SPLIT, (X, torch.rand(9))),
        "data: test: targets differ from those of the train split; found float32 []; expected "
        "int64 []",
    ),
    "test_with_other_inputs": (
        (({"a": X, "b": X}, Y), ({"a": X, "c": X}, Y)),
        "data: test: inputs have other names than in the train split; found a, c; expected a, b",
    ),
    "infinite_target": (
        ((X, X[:, 0] / 0), SPLIT),
        "data: train: targets[0]: is not finite; 9 of 9 examples have NaN or infinity: fill or "
        "remove them",
    ),
    "seconds_of_an_epoch": (
        ((X.double() + 1.7e9, Y), SPLIT),
        "data: train: values become equal when they are rounded to 32 bits; found 1 of 9 "
        "different values; expected values that differ in 32 bits; subtract a constant from them, "
        "or use their logarithms",
    ),
    "complex_inputs": (
        ((X + 1j, Y), SPLIT),
        "data: train: are complex numbers; found complex64 [9, 2]; expected real numbers; "
        "torch.view_as_real(x) puts real and imaginary part on a last axis of size 2",
    ),
    "another_number_of_classes": (
        ((X, Y), (X, Y + 1)),
        "experiment.yaml:3: family: tiny: the model's output does not fit classification; "
        "found [batch, 3]; expected [batch, 4]: a logit for each of 4 classes (data)",
    ),
}


def message(call: Callable[[], object], folder: Path) -> str:
    """What is refused, without the name of the folder."""
    try:
        call()
    except ArchGraphError as error:
        return str(error).replace(f"{folder}/", "")
    return "nothing"


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    make, expected = MISTAKES[name]
    data = {key: value for key, value in make(tmp_path).items() if value is not None}
    task: Any = {"task": data.pop("task")} if "task" in data else {}
    shape = (1, 4, 5) if "folder" in data else (2,)
    file = write_experiment(tmp_path, data, shape=shape, clients=2, **task)
    found = message(lambda: ag.run(file, python=True), tmp_path)
    (verdict,) = verdicts([file], python=True)
    sys.modules.pop("wrong_data", None)
    assert str(verdict.error).replace(f"{tmp_path}/", "") == found
    assert found == expected


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_mistake_in_an_argument(name: str, tmp_path: Path) -> None:
    data, expected = ARGUMENTS[name]
    file = write_experiment(tmp_path, None)
    found = message(lambda: ag.run(file, data=data), tmp_path)
    assert found == expected
