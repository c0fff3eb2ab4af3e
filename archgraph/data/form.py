"""The form of a data set: types, class names and scales, for reading rows on another machine.

No machine of a deployment reads all rows. Still, all machines must use the same number for a class,
the same feature for a category and the same scale for numbers. The form has the class names,
categories and scales of one data set, with which all machines read their rows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from archgraph.data.columns import check_columns, measures, targets
from archgraph.data.folder import images_of_classes
from archgraph.data.rows import number_classes, numbered
from archgraph.data.table import columns_seen, files_of, table_columns
from archgraph.data.values import Dataset, InputKind, Split, row_form
from archgraph.errors import DataError
from archgraph.language.data import DataSpec, FolderData, TableData, column_names

Columns: TypeAlias = dict[str, tuple[str, ...] | None]
"""Dict from column to the values of the category in order; None for a column of numbers."""


@dataclass(frozen=True)
class DataForm:
    """Types, shapes, class names and scales of a data set, without its rows.

    Attributes:
        inputs: Type and shape of an input.
        targets: Type and shape of a target.
        labels: Names of the classes, in order; empty if targets are numbers.
        mean: Mean of each channel of images, or of each feature of a table. It is subtracted from
            inputs. None if inputs are not normalised.
        std: Standard deviation of each channel or feature, by which inputs are divided. None if
            inputs are not normalised.
        columns: Dict from each input column of a table to its kind; empty for images.
    """

    inputs: str
    targets: str
    labels: tuple[str, ...]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    columns: Columns

    @classmethod
    def of(cls, spec: DataSpec, data: Dataset) -> DataForm:
        """Return the form of a data set that was loaded from a spec.

        Raises:
            DataError: If rows of this kind of data cannot be read separately on each machine.
        """
        if not isinstance(spec, TableData | FolderData) or data.kind == "text":
            raise DataError(
                "rows of this kind cannot be read separately on each machine",
                where="data",
                found=data.name,
                expected="a table of numbers and categories, or a folder of images",
            )
        mean, std = (
            None if value is None else tuple(value.double().tolist())
            for value in (data.train.mean, data.train.std)
        )
        columns = _columns(spec) if isinstance(spec, TableData) else {}
        forms = row_form(data.train.inputs), row_form(data.train.targets)
        return cls(*forms, data.labels, mean, std, columns)

    def dump(self) -> str:
        """Return the form as JSON."""
        return json.dumps(self.__dict__, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def load(cls, text: str) -> DataForm:
        """Read the JSON of :meth:`dump`; numbers are restored exactly."""
        plain = json.loads(text)
        columns = {k: None if v is None else tuple(v) for k, v in plain.pop("columns").items()}
        parts: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()
        }
        return cls(**parts, columns=columns)

    def check(self, other: DataForm, where: str) -> None:
        """Check that other data has this form.

        Raises:
            DataError: If the forms differ. The error names the attribute that differs.
        """
        for part, expected in self.__dict__.items():
            if (actual := getattr(other, part)) != expected:
                raise DataError(
                    f"{part} differ from those of the data that the app was created with",
                    where=where,
                    found=actual,
                    expected=expected,
                    hint="use the same data here, or create the app again",
                )

    def read(self, spec: DataSpec, path: str, task: str | None = None) -> Dataset:
        """Read the rows on this machine in this form, and use all of them for training.

        1. Read the columns of a table that the form lists, or images in the form's size and
           channels.
        2. Number the classes and scale the inputs as in the form.

        Args:
            spec: The experiment's `data`.
            path: The rows on this machine: the table, or the folder of images.
            task: The learning task, as for :func:`archgraph.data.doors.read_data`.

        Raises:
            DataError: If a class or category is not in the form, or a value is missing or has the
                wrong kind. The error names the file and the row.
        """
        if isinstance(spec, TableData):  # step 1
            inputs, answers = self._table(spec, Path(path), task)
        else:
            channels, height, width = (int(n) for n in self.inputs.split("[")[1][:-1].split(","))
            classes, inputs = images_of_classes(Path(path), (height, width), colour=channels == 3)
            answers = numbered(classes, self.labels, lambda row: f"{path}: {classes[row]}")
        if (actual := row_form(answers)) != self.targets:
            raise DataError(
                "targets have another form", where=path, found=actual, expected=self.targets
            )
        scale = torch.float64 if inputs.dtype == torch.float64 else torch.float32
        mean, std = (  # step 2
            None if value is None else torch.tensor(value, dtype=torch.float64).to(scale)
            for value in (self.mean, self.std)
        )
        split = Split(inputs, answers, mean, std)
        kind: InputKind = "table" if isinstance(spec, TableData) else "image"
        shape = tuple(inputs.shape[1:])
        count = len(self.labels) or None
        return Dataset(Path(path).stem, kind, count, shape, split, split, self.labels)

    def _table(self, spec: TableData, path: Path, task: str | None) -> tuple[Tensor, Tensor]:
        """Return the inputs and the targets of a table."""
        table, _ = table_columns([path], spec.separator)
        asked = column_names(spec.target)
        check_columns(table, {"target": asked, "columns": self.columns}, "columns")
        parts = []
        for name, values in self.columns.items():
            column = table[name]
            if values is None:
                parts.append(torch.from_numpy(column.numbers())[:, None])
            else:
                numbers = numbered(column.texts(), values, column.at)
                parts.append(torch.eye(len(values), dtype=torch.float64)[numbers])
        inputs = torch.cat(parts, 1)
        columns = [table[name] for name in asked]
        answers, names = targets(columns, task, single=isinstance(spec.target, str))
        if answers.dtype == torch.int64:
            answers = numbered([names[n] for n in answers], self.labels, columns[0].at)
        return inputs if spec.standardise else inputs.float(), answers


def _columns(spec: TableData) -> Columns:
    """Return the input columns of a table."""
    table, _ = table_columns(files_of(spec), spec.separator)
    columns: Columns = {}
    for name, kind in columns_seen(spec, table).items():
        column = table[name]
        columns[name] = None if measures(column, kind) else number_classes(column.texts())[1]
    return columns


def with_path(spec: DataSpec, path: str) -> DataSpec:
    """Return a spec that reads another table or folder; the same spec if the path is empty.

    >>> with_path(TableData(table="a.csv", target="y"), "b.csv").table
    'b.csv'
    """
    if not path or not isinstance(spec, TableData | FolderData):
        return spec
    return spec.model_copy(update={"table" if isinstance(spec, TableData) else "folder": path})
