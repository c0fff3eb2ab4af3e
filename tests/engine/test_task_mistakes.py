"""Mistakes that people make with tasks, each with the message that answers it."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.data import Dataset, Split
from archgraph.engine.world import first_state, prepare


class Wrong(NamedTuple):
    """A mistake: what the file says, what the data is, what the model gives, what is answered."""

    about: str
    task: str
    targets: torch.Tensor
    outs: int
    said: str
    classes: int | None = None


CLASSES, NUMBERS = torch.tensor([0, 1, 2, 1, 0, 2]), torch.linspace(0, 1, 6)
FLAGS = torch.tensor([[True, False, True]] * 6)

MISTAKES = (
    Wrong(
        "numbers under classification",
        "classification",
        NUMBERS,
        3,
        "e.yaml:5: task: classification cannot learn these targets; found targets float32 "
        "[example] (made); expected int64, one class for each example; write task: regression",
    ),
    Wrong(
        "classes under regression",
        "regression",
        CLASSES,
        1,
        "e.yaml:5: task: regression cannot learn these targets; found targets int64 [example] "
        "(made); expected float32, numbers; write task: classification",
        3,
    ),
    Wrong(
        "flags under classification",
        "classification",
        FLAGS,
        3,
        "expected int64, one class for each example; write task: multilabel",
        3,
    ),
    Wrong(
        "one output for several classes",
        "classification",
        CLASSES,
        1,
        "the model's output does not fit classification; found [batch, 1]; expected [batch, 3]: "
        "a logit for each of 3 classes (made)",
        3,
    ),
    Wrong(
        "as many outputs as a regression has not",
        "regression",
        NUMBERS,
        3,
        "the model's output does not fit regression; found [batch, 3]; expected [batch, 1] or "
        "[batch]: numbers (made)",
    ),
    Wrong(
        "an output too few for the labels",
        "multilabel",
        FLAGS,
        2,
        "the model's output does not fit multilabel; found [batch, 2]; expected [batch, 3]: a "
        "logit for each of 3 labels (made)",
        3,
    ),
    Wrong(
        "an unknown task",
        "regresion",
        NUMBERS,
        1,
        "e.yaml:5: task: has an unknown value; found 'regresion'; expected one of classification, "
        "multilabel, regression, segmentation, next_token; did you mean 'regression'?",
    ),
    Wrong(
        "a misspelt metric",
        "{kind: regression, metrics: [mae, rmsee]}",
        NUMBERS,
        1,
        "e.yaml:5: task.metrics[1]: is an unknown metric; found 'rmsee'; expected one of loss, "
        "accuracy, iou, perplexity, f1, mse, rmse, mae, r2, BinaryAUROC, ",
    ),
    Wrong(
        "a metric of another task",
        "{kind: regression, metrics: [accuracy]}",
        NUMBERS,
        1,
        "e.yaml:5: task.metrics[0]: is not a metric of regression; found accuracy; expected mse, "
        "rmse, mae, r2",
    ),
    Wrong(
        "a task without a kind",
        "{metrics: [mse]}",
        NUMBERS,
        1,
        "e.yaml:5: task: must name a kind or an objective; expected kind, or objective; e.g. "
        "kind: regression",
    ),
    Wrong(
        "an objective that is not Python's",
        "{objective: huber}",
        NUMBERS,
        1,
        "e.yaml:5: task.objective: has a wrong value; found 'huber'; expected text that matches",
    ),
    Wrong(
        "an objective that is not there",
        "{objective: 'python:tests.engine.test_task_mistakes:hubr'}",
        NUMBERS,
        1,
        "e.yaml:5: task.objective: cannot be imported; found module "
        "'tests.engine.test_task_mistakes' has no attribute 'hubr'",
    ),
    Wrong(
        "an output that the model does not have",
        "{kind: regression, output: prediction}",
        NUMBERS,
        1,
        "e.yaml:5: task.output: changes nothing: each model returns a single output, also in "
        "training; found prediction",
    ),
)


@pytest.mark.sample(3)
@pytest.mark.parametrize("wrong", MISTAKES, ids=[w.about.replace(" ", "_") for w in MISTAKES])
def test_mistakes_are_answered_before_the_first_round(tmp_path, wrong):
    inputs = torch.zeros(6, 4)
    split = Split(inputs, wrong.targets)
    data = Dataset("made", "tensor", wrong.classes, (4,), split, split)
    ag.save(ag.trace(nn.Linear(4, wrong.outs), inputs[:2]).graph, tmp_path / "net.yaml")
    text = f"""\
name: e
data: {{dataset: digits}}
family: {{model: net.yaml, clients: [{{name: all, count: 2}}]}}
strategy: {{fedavg: {{}}}}
task: {wrong.task}
rounds: 1
local: {{lr: 0.1}}
"""
    (tmp_path / "e.yaml").write_text(text)
    with pytest.raises(ag.ArchGraphError, match=re.escape(wrong.said)):
        first_state(prepare(tmp_path / "e.yaml", data=data, python=True))
