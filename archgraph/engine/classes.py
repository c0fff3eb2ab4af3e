"""The order of classes in the data and in a pretrained model's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from archgraph.data import Dataset
from archgraph.data.classes import reordered
from archgraph.language.family import FamilySpec
from archgraph.language.model import FOLDER, absolute_path
from archgraph.language.yaml import read_document


def in_order_of_folder(data: Dataset, spec: FamilySpec) -> Dataset:
    """Return the data with its classes in the order of the pretrained model's folder.

    The folder lists the names of the classes (``id2label``). A pretrained head, and programs that
    read the exported model, use the same order.

    Args:
        data: The data.
        spec: The family. Its global model may come from a folder of transformers.
    """
    model, base = spec.model, Path()
    if isinstance(model, str) and model != "join":
        model, base = read_document(model).data, Path(model).parent.absolute()
    args = model.get("args") if isinstance(model, Mapping) else None
    folder = args.get(FOLDER) if isinstance(args, Mapping) else None
    file = Path(absolute_path(str(folder), base)) / "config.json"
    if not data.labels or not data.classified or data.train.stream or not file.is_file():
        return data
    names = json.loads(file.read_text(encoding="utf-8")).get("id2label") or {}
    order = [names[number] for number in sorted(names, key=int)]
    if order == [*data.labels] or sorted(order) != sorted(data.labels):
        return data
    return reordered(data, tuple(map(data.labels.index, order)))
