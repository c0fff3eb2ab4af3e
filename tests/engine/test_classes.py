"""Classes in the order of a model's folder."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from archgraph.data import Dataset, Split
from archgraph.engine.classes import in_order_of_folder
from archgraph.language.family import FamilySpec, MemberSpec
from archgraph.language.model import FOLDER


@pytest.mark.parametrize("inline", [True, False])
def test_classes_have_the_order_of_the_models_folder(inline, tmp_path):
    """They were in alphabetical order: the names in the result's config.json were other ones."""
    rows, targets = torch.rand(6, 2), torch.arange(6) % 3
    split = Split(rows, targets)
    data = Dataset("pets", "table", 3, (2,), split, split, labels=("ant", "bee", "cat"))
    model: Any = {
        "python": "transformers:AutoModel.from_pretrained",
        "args": {FOLDER: "net"},
        "inputs": {"x": [2]},
    }
    if inline:
        model["args"][FOLDER] = str(tmp_path / "net")
    else:
        (tmp_path / "model.yaml").write_text(json.dumps(model))
        model = str(tmp_path / "model.yaml")
    spec = FamilySpec(name="f", model=model, clients=(MemberSpec(name="all"),))
    (tmp_path / "net").mkdir()
    for names, expected in ((["cat", "ant", "bee"], True), (["LABEL_0", "LABEL_1"], False)):
        config = {"id2label": dict(enumerate(names))}
        (tmp_path / "net" / "config.json").write_text(json.dumps(config))
        again = in_order_of_folder(data, spec)
        assert list(again.labels) == (names if expected else ["ant", "bee", "cat"])
        for one in (again.train, again.test):
            assert torch.equal(one.inputs, rows)
            assert [again.labels[i] for i in one.targets] == ["ant", "bee", "cat"] * 2
