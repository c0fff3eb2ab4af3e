"""Metrics of torchmetrics by name: against torchmetrics on everything at once."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.data import Dataset, Split
from archgraph.engine.task import learning_task
from archgraph.engine.testing import answers
from archgraph.language.task import TaskSpec

torchmetrics: Any = pytest.importorskip("torchmetrics", reason="needs the extra metrics")
GENERATOR = torch.Generator().manual_seed(0)


def data(targets: torch.Tensor, classes: int | None = 4) -> Dataset:
    split = Split(torch.arange(len(targets))[:, None].float(), targets)
    return Dataset("made", "tensor", classes, (1,), split, split)


def spec(kind: str, *metrics: Any) -> TaskSpec:
    return TaskSpec.model_validate({"kind": kind, "metrics": metrics})


def measured(kind: str, said: torch.Tensor, made: Dataset, *metrics: Any) -> dict[str, float]:
    class Says(nn.Module):
        def forward(self, at):
            return said[at[:, 0].long()]

    task = learning_task(spec(kind, *metrics), made)
    assert task.judge not in ("accuracy", "mse")
    return answers(Says(), made.test, learning=task, batch=7)[0].summary()


def test_classes():
    said = torch.randn(40, 4, generator=GENERATOR)
    true = torch.randint(4, (40,), generator=GENERATOR)
    macro = {"f1": {"average": "macro"}}
    found = measured("classification", said, data(true), macro, "auroc", "cohen_kappa", "iou")
    fun = torchmetrics.functional
    facts = {"task": "multiclass", "num_classes": 4}
    assert found["f1_macro"] == pytest.approx(
        float(fun.f1_score(said, true, **facts, average="macro"))
    )
    assert found["auroc"] == pytest.approx(float(fun.auroc(said, true, **facts)))
    assert found["cohen_kappa"] == pytest.approx(float(fun.cohen_kappa(said, true, **facts)))
    assert found["iou"] == pytest.approx(float(fun.jaccard_index(said, true, **facts)))


@pytest.mark.parametrize("name", ["f1", "precision", "recall", "fbeta"])
def test_an_average_is_the_default_of_the_class_for_the_task(name):
    """Of two classes the second one counts, of several each alike: never the accuracy."""
    fun = torchmetrics.functional.classification
    full = {"f1": "f1_score", "fbeta": "fbeta_score"}.get(name, name)
    beta = {"beta": 1.0} if name == "fbeta" else {}
    for classes, kind in ((2, "binary"), (4, "multiclass")):
        said = torch.randn(40, classes, generator=GENERATOR)
        true = torch.randint(classes, (40,), generator=GENERATOR)
        facts = {"num_classes": classes} if classes > 2 else {}
        outputs = said.softmax(1)[:, 1] if classes == 2 else said
        expected = float(getattr(fun, f"{kind}_{full}")(outputs, true, **facts, **beta))
        found = measured("classification", said, data(true, classes), name)
        assert found[name] == pytest.approx(expected)
        assert found[name] != pytest.approx(found["accuracy"])
        pixels = said.view(2, 20, classes).movedim(-1, 1)[..., None]
        counted = measured("segmentation", pixels, data(true.view(2, 20, 1), classes), name)
        assert counted[name] == pytest.approx(expected)
    said = torch.randn(40, 4, generator=GENERATOR)
    true = torch.rand(40, 4, generator=GENERATOR) > 0.3
    if name != "f1":  # the task's own, of all labels together
        function = getattr(fun, f"multilabel_{full}")
        expected = float(function(said, true.int(), num_labels=4, **beta))
        assert measured("multilabel", said, data(true), name)[name] == pytest.approx(expected)


def test_two_classes_in_closed_form_and_options_for_several():
    said = torch.tensor([[0.0, 1], [0, 2], [3, 0], [0, 1], [1, 0]])
    true = torch.tensor([1, 0, 1, 1, 0])
    macro = {"f1": {"average": "macro"}}
    found = measured("classification", said, data(true, 2), "precision", "recall", "f1", macro)
    # Of three that are said to be of class 1, two are; of the other two that are not, one.
    assert found["precision"] == found["recall"] == found["f1"] == pytest.approx(2 / 3)
    assert found["f1_macro"] == pytest.approx((2 / 3 + 1 / 2) / 2)


def test_accuracy_with_options_is_the_share_of_right_answers():
    said = torch.randn(40, 4, generator=GENERATOR)
    true = torch.randint(4, (40,), generator=GENERATOR) ** 2 // 4
    found = measured("classification", said, data(true), {"accuracy": {"top_k": 2}})
    right = (said.topk(2).indices == true[:, None]).any(1)
    assert found["accuracy_2"] == pytest.approx(float(right.double().mean()))


def test_logits_that_could_be_probabilities_are_none():
    said = torch.rand(40, 4, generator=GENERATOR)
    true = torch.ones(40, 4, dtype=torch.bool)
    found = measured("multilabel", said, data(true), {"f1": {"average": "micro"}})
    assert found["f1_micro"] == 1  # every logit is above 0
    classes = torch.randint(4, (40,), generator=GENERATOR)
    found = measured("classification", said, data(classes), "calibration_error")
    error = torchmetrics.functional.calibration_error
    expected = error(said.softmax(1), classes, task="multiclass", num_classes=4)
    assert found["calibration_error"] == pytest.approx(float(expected))


def test_a_torchvision_that_does_not_load_is_named(monkeypatch):
    class Broken:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "torchmetrics":
                raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.delitem(sys.modules, "torchmetrics")
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(ag.SpecError, match=r"torchvision::nms.* install a torchvision for this"):
        learning_task(spec("classification", "auroc"), data(torch.arange(4)))


def test_labels():
    said = torch.randn(40, 4, generator=GENERATOR)
    true = torch.rand(40, 4, generator=GENERATOR) > 0.5
    found = measured("multilabel", said, data(true), {"f1": {"average": "macro"}}, "auroc")
    fun = torchmetrics.functional
    facts = {"task": "multilabel", "num_labels": 4}
    expected = fun.f1_score(said, true.int(), **facts, average="macro")
    assert found["f1_macro"] == pytest.approx(float(expected))
    assert found["auroc"] == pytest.approx(float(fun.auroc(said, true.int(), **facts)))


def test_values():
    said, true = torch.randn(40, 1, generator=GENERATOR), torch.randn(40, generator=GENERATOR)
    found = measured("regression", said, data(true, None), "spearman", "explained_variance", "mape")
    fun = torchmetrics.functional
    assert found["spearman"] == pytest.approx(float(fun.spearman_corrcoef(said[:, 0], true)))
    assert found["explained_variance"] == pytest.approx(
        float(fun.explained_variance(said[:, 0], true)), rel=1e-5
    )


def test_pixels_are_counted_batch_by_batch():
    """Nothing but counts is kept of them, and their value is that of the whole set."""
    said = torch.randn(20, 4, 5, 6, generator=GENERATOR)
    true = torch.randint(4, (20, 5, 6), generator=GENERATOR)
    true[0] = -100
    macro, curve = {"f1": {"average": "macro"}}, {"auroc": {"thresholds": 20}}
    found = measured("segmentation", said, data(true), macro, curve)
    fun = torchmetrics.functional
    facts = {"task": "multiclass", "num_classes": 4, "ignore_index": -100}
    assert found["f1_macro"] == pytest.approx(
        float(fun.f1_score(said, true, **facts, average="macro"))
    )
    expected = fun.auroc(said, true, **facts, thresholds=20)
    assert found["auroc_20"] == pytest.approx(float(expected))


def test_what_is_better_comes_from_the_metric():
    task = learning_task(spec("regression", "mape", "spearman"), data(torch.rand(4), None))
    assert task.judge == "mape"
    assert task.better["mape"] is False and task.better["spearman"] is True


@pytest.mark.parametrize(
    ("kind", "metric", "said"),
    [
        ("classification", "f2", "unknown metric; found 'f2'; expected one of accuracy, iou"),
        ("classification", "aurok", "did you mean 'auroc'?"),
        (
            "classification",
            {"f1": {"averages": "macro"}},
            "task.metrics.0: cannot be computed; found F1Score: ",
        ),
        (
            "classification",
            {"f1": {"average": None}},
            "is not one number; found F1Score, (4,); choose an",
        ),
        ("segmentation", "auroc", "would hold the predictions of all targets; found AUROC"),
        ("regression", "auroc", "unknown metric; found 'auroc'; expected one of mse, rmse, mae"),
    ],
    ids=["unknown", "misspelt", "option", "several", "large", "other"],
)
def test_mistakes(kind, metric, said):
    targets = {
        "classification": torch.arange(8) % 4,
        "segmentation": torch.zeros(8, 3, 3, dtype=torch.int64),
        "regression": torch.rand(8),
    }[kind]
    made = data(targets, None if kind == "regression" else 4)
    with pytest.raises(ag.SpecError, match=re.escape(said)):
        learning_task(spec(kind, metric), made)


def test_without_torchmetrics_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    made = data(torch.rand(8), None)
    assert learning_task(spec("regression", "r2"), made).judge == "r2"
    with pytest.raises(ag.SpecError, match=r"pip install 'archgraph\[metrics\]'"):
        learning_task(spec("regression", "spearman"), made)
