"""Baselines of a study without a network: class counts, softmax regression, nearest neighbours.

A trivial model is fitted to the training examples of all clients together and tested like a global
model. Its hyperparameters (a penalty, a number of neighbours) are chosen on held-out training
examples, never on test examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from archgraph.data import Dataset
from archgraph.data.partition import stratified_order
from archgraph.engine.evaluate import mean_of, worst_tenth
from archgraph.engine.experiment import Experiment
from archgraph.engine.testing import Answers
from archgraph.errors import RunError
from archgraph.federation.metrics import IGNORED
from archgraph.fields import GLOBAL
from archgraph.plain import Json
from archgraph.record.points import CLIENTS
from archgraph.record.right import RIGHT, packed
from archgraph.studies.trivial_models import (
    NEIGHBOURS,
    PENALTIES,
    Labelled,
    majority_class,
    nearest_neighbours,
    softmax_regression,
)

HELD_OUT = 0.2
"""Fraction of the training examples that is held out to choose hyperparameters."""

_PATIENCE = 2  # number of consecutive choices worse than the best that end the search

Classifier: TypeAlias = Callable[
    [Labelled, Tensor, int, Sequence[float]], Iterator[tuple[float, Tensor]]
]
CLASSIFIERS: Mapping[str, tuple[Classifier, Sequence[float]]] = {
    "majority_class": (majority_class, (0,)),
    "softmax_regression": (softmax_regression, PENALTIES),
    "nearest_neighbours": (nearest_neighbours, NEIGHBOURS),
}
"""Dict from name to classifier and its hyperparameters."""


def trivial_test(experiment: Experiment, name: str) -> dict[str, Json]:
    """Return the test metrics of a trivial model, in the format of ``metrics.jsonl``.

    Args:
        experiment: The resolved experiment; its held-out examples are not used for fitting.
        name: One of :data:`CLASSIFIERS`.

    Raises:
        RunError: If the model cannot predict targets of this type.
    """
    learning = experiment.world.learning
    if learning.name != "classification":
        raise RunError(
            f"{name} needs targets with one class per example", where="trivial", found=learning.name
        )
    participants = experiment.world.participants
    # Clients may share examples.
    pooled = np.unique(np.concatenate([experiment.shares[client.id] for client in participants]))
    answered, targets = _answered(experiment, pooled, name)
    figures = {"accuracy": float(answered.right.double().mean())}
    matched = answered.matched(targets, [client.histogram for client in participants])
    # A client without test examples of its classes has no accuracy on its class distribution.
    clients = [{"matched": figure} for figure in matched if not math.isnan(figure)]
    model = {**figures, CLIENTS: len(participants)}
    local = {"local": mean_of(clients), "tenth": worst_tenth(clients, ())} if clients else {}
    test = {"better": learning.better, "models": {GLOBAL: model}, GLOBAL: figures, **local}
    # As for a run, because a small test set is also a random sample for these rows.
    if experiment.evaluate.answers:
        counts = np.zeros(len(experiment.data.test), np.int64)
        counts[(experiment.data.test.targets != IGNORED).numpy()] = answered.right.numpy()
        test[RIGHT] = {GLOBAL: packed(counts, 1)}
    return test


def _answered(experiment: Experiment, pooled: np.ndarray, name: str) -> tuple[Answers, Tensor]:
    """Return which test examples a classifier predicts correctly, and their classes."""
    (model, choices), classes = CLASSIFIERS[name], experiment.data.classes or 0
    train, test = _labelled(experiment.data)
    rows = train.at(pooled[(train.targets[pooled] != IGNORED).numpy()])
    test = test.at((test.targets != IGNORED).nonzero()[:, 0].numpy())
    choice = chosen(model, rows, classes, choices, experiment.world.seed)
    _, scores = next(model(rows, test.inputs, classes, [choice]))
    hits = {"accuracy": scores.argmax(1) == test.targets}
    return Answers((), hits, torch.ones_like(test.targets)), test.targets


def chosen(
    model: Classifier, rows: Labelled, classes: int, choices: Sequence[float], seed: int
) -> float:
    """Return the hyperparameter with the best accuracy on held-out rows; the first if tied.

    Args:
        model: Function that fits a model to the rows that are not held out.
        rows: Training examples.
        classes: Number of classes.
        choices: Values of the hyperparameter in the order of the search. The search ends after two
            consecutive values that are worse than the best.
        seed: Seed with which the held-out rows are drawn, with all classes in proportion.
    """
    order = stratified_order(rows.targets.numpy(), seed)
    count = round(HELD_OUT * len(order))
    if not count or len(choices) == 1:  # without held-out rows, or with a single choice
        return choices[0]
    judging, rest = rows.at(order[:count]), rows.at(np.sort(order[count:]))
    best, most, worse = choices[0], -1, 0
    for choice, scores in model(rest, judging.inputs, classes, choices):
        right = int((scores.argmax(1) == judging.targets).sum())
        if right > most:
            best, most = choice, right
        worse = worse + 1 if right < most else 0
        # Weak penalties need the most steps and overfit, so they are skipped once they are worse.
        if worse == _PATIENCE:
            break
    return best


def _labelled(data: Dataset) -> Iterator[Labelled]:
    """Yield training and test examples as rows of numbers; texts become token indicators."""
    splits = (data.train, data.test)
    words = 1 + max(int(split.inputs.max()) for split in splits) if data.integral else 0
    for split in splits:
        if data.integral:
            tokens = split.inputs.flatten(1).long()
            rows = torch.zeros(len(tokens), words).scatter_(1, tokens, 1.0)
        else:
            rows = torch.cat([x.flatten(1).float() for x in split.examples(slice(None))[0]], 1)
        yield Labelled(rows, split.targets)
