"""Metrics of torchmetrics by name: against torchmetrics on everything at once."""

from __future__ import annotations

import re
import sys
from typing import Any

import pydantic
import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.data import Dataset, Split
from archgraph.engine.task import learning_task
from archgraph.engine.testing import answers
from archgraph.language.named import _classes
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
    micro = {"MulticlassF1Score": {"average": "micro"}}
    names = ("MulticlassF1Score", "MulticlassAUROC", "MulticlassCohenKappa")
    found = measured("classification", said, data(true), micro, *names, "iou")
    fun = torchmetrics.functional.classification
    assert found["MulticlassF1Score_micro"] == pytest.approx(found["accuracy"])
    assert found["MulticlassF1Score"] == pytest.approx(
        float(fun.multiclass_f1_score(said, true, 4))
    )
    assert found["MulticlassAUROC"] == pytest.approx(float(fun.multiclass_auroc(said, true, 4)))
    kappa = float(fun.multiclass_cohen_kappa(said, true, 4))
    assert found["MulticlassCohenKappa"] == pytest.approx(kappa)
    assert found["iou"] == pytest.approx(float(fun.multiclass_jaccard_index(said, true, 4)))


def test_two_classes_in_closed_form():
    """A metric of two takes the probability of the second, of examples and of pixels."""
    said = torch.tensor([[0.0, 1], [0, 2], [3, 0], [0, 1], [1, 0]])
    true = torch.tensor([1, 0, 1, 1, 0])
    names = ("BinaryPrecision", "BinaryRecall", "BinaryF1Score", "MulticlassF1Score")
    # Of three that are said to be of class 1, two are; of the other two that are not, one.
    for found in (
        measured("classification", said, data(true, 2), *names),
        measured("segmentation", said.T[None, :, :, None], data(true.view(1, 5, 1), 2), *names),
    ):
        assert [found[name] for name in names[:3]] == pytest.approx([2 / 3] * 3)
        assert found["MulticlassF1Score"] == pytest.approx((2 / 3 + 1 / 2) / 2)


def test_accuracy_with_options_is_the_share_of_right_answers():
    said = torch.randn(40, 4, generator=GENERATOR)
    true = torch.randint(4, (40,), generator=GENERATOR) ** 2 // 4
    found = measured(
        "classification", said, data(true), {"MulticlassAccuracy": {"top_k": 2, "average": "micro"}}
    )
    right = (said.topk(2).indices == true[:, None]).any(1)
    assert found["MulticlassAccuracy_2_micro"] == pytest.approx(float(right.double().mean()))


def test_logits_that_could_be_probabilities_are_none():
    said = torch.rand(40, 4, generator=GENERATOR)
    true = torch.ones(40, 4, dtype=torch.bool)
    found = measured("multilabel", said, data(true), {"MultilabelF1Score": {"average": "micro"}})
    assert found["MultilabelF1Score_micro"] == 1  # every logit is above 0
    classes = torch.randint(4, (40,), generator=GENERATOR)
    found = measured("classification", said, data(classes), "MulticlassCalibrationError")
    error = torchmetrics.functional.calibration_error
    expected = error(said.softmax(1), classes, task="multiclass", num_classes=4)
    assert found["MulticlassCalibrationError"] == pytest.approx(float(expected))


def test_a_torchvision_that_does_not_load_is_named(monkeypatch):
    class Broken:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "torchmetrics":
                raise RuntimeError("operator torchvision::nms does not exist")

    _classes.cache_clear()
    monkeypatch.delitem(sys.modules, "torchmetrics")
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(pydantic.ValidationError, match="needs torchmetrics") as caught:
        spec("classification", "MulticlassAUROC")
    facts: Any = caught.value.errors()[0]["ctx"]["error"].facts
    assert "torchvision::nms" in facts["found"] and "from the same index" in facts["hint"]


def test_labels():
    said = torch.randn(40, 4, generator=GENERATOR)
    true = torch.rand(40, 4, generator=GENERATOR) > 0.5
    found = measured("multilabel", said, data(true), "MultilabelF1Score", "MultilabelAUROC")
    fun = torchmetrics.functional
    facts = {"task": "multilabel", "num_labels": 4}
    expected = fun.f1_score(said, true.int(), **facts, average="macro")
    assert found["MultilabelF1Score"] == pytest.approx(float(expected))
    assert found["MultilabelAUROC"] == pytest.approx(float(fun.auroc(said, true.int(), **facts)))


NUMBERS = ("SpearmanCorrCoef", "ExplainedVariance", "MeanAbsolutePercentageError")


def test_values():
    said, true = torch.randn(40, 1, generator=GENERATOR), torch.randn(40, generator=GENERATOR)
    found = measured("regression", said, data(true, None), *NUMBERS)
    fun = torchmetrics.functional
    assert found["SpearmanCorrCoef"] == pytest.approx(
        float(fun.spearman_corrcoef(said[:, 0], true))
    )
    assert found["ExplainedVariance"] == pytest.approx(
        float(fun.explained_variance(said[:, 0], true)), rel=1e-5
    )


def test_pixels_are_counted_batch_by_batch():
    """Nothing but counts is kept of them, and their value is that of the whole set."""
    said = torch.randn(20, 4, 5, 6, generator=GENERATOR)
    true = torch.randint(4, (20, 5, 6), generator=GENERATOR)
    true[0] = -100
    curve = {"MulticlassAUROC": {"thresholds": 20}}
    found = measured("segmentation", said, data(true), "MulticlassF1Score", curve)
    fun = torchmetrics.functional
    facts = {"task": "multiclass", "num_classes": 4, "ignore_index": -100}
    assert found["MulticlassF1Score"] == pytest.approx(
        float(fun.f1_score(said, true, **facts, average="macro"))
    )
    expected = fun.auroc(said, true, **facts, thresholds=20)
    assert found["MulticlassAUROC_20"] == pytest.approx(float(expected))


def test_what_is_better_comes_from_the_metric():
    task = learning_task(spec("regression", NUMBERS[2], NUMBERS[0]), data(torch.rand(4), None))
    assert task.judge == NUMBERS[2]
    assert task.better[NUMBERS[2]] is False and task.better[NUMBERS[0]] is True


@pytest.mark.parametrize(
    ("kind", "metric", "said"),
    [
        (
            "classification",
            {"MulticlassF1Score": {"average": "none"}},
            "does not return one number; found MulticlassF1Score, (4,); choose an",
        ),
        (
            "segmentation",
            "MulticlassAUROC",
            "would need the predictions of all targets in memory; found MulticlassAUROC",
        ),
        ("regression", "MulticlassAUROC", "cannot be computed; found MulticlassAUROC: "),
        ("regression", "accuracy", "is not a metric of regression; found accuracy; expected mse,"),
    ],
    ids=["several", "large", "other", "own"],
)
def test_metrics_that_do_not_fit_the_task(kind, metric, said):
    targets = {
        "classification": torch.arange(8) % 4,
        "segmentation": torch.zeros(8, 3, 3, dtype=torch.int64),
        "regression": torch.rand(8),
    }[kind]
    made = data(targets, None if kind == "regression" else 4)
    with pytest.raises(ag.SpecError, match=re.escape(said)):
        learning_task(spec(kind, metric), made)


def test_without_torchmetrics_the_message_names_the_extra(monkeypatch):
    _classes.cache_clear()
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    made = data(torch.rand(8), None)
    assert learning_task(spec("regression", "r2"), made).judge == "r2"
    with pytest.raises(pydantic.ValidationError, match="needs torchmetrics") as caught:
        spec("regression", "SpearmanCorrCoef")
    facts: Any = caught.value.errors()[0]["ctx"]["error"].facts
    assert facts["hint"] == "pip install 'archgraph-torch[metrics]'"
