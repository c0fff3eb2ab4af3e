"""Trivial models: by hand, beside scikit-learn, blind to test labels; as rows of a study."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from archgraph.data import Dataset, Split, load_dataset
from archgraph.engine.experiment import Experiment
from archgraph.engine.world import prepare
from archgraph.errors import RunError
from archgraph.federation import TASKS
from archgraph.language import load_experiment
from archgraph.language.validation import ValidationSpec
from archgraph.studies.spec import TRIVIAL
from archgraph.studies.trivial import CLASSIFIERS, chosen, trivial_test
from archgraph.studies.trivial_models import (
    Labelled,
    majority_class,
    nearest_neighbours,
    softmax_regression,
)

LINEAR = """\
archgraph: 1
name: linear
family:
  model:
    archgraph: 1
    name: net
    inputs: {image: [1, 8, 8]}
    sections:
      - {name: body, steps: [flatten]}
      - {name: head, steps: [linear: 10]}
  clients: [{name: all, count: 4}]
data: {dataset: digits, limit: 400, partition: {scheme: classes, per_client: 3}}
strategy: {fedavg: {}}
local: {lr: 0.05, epochs: 2}
rounds: 3
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("references") / "linear.yaml"
    path.write_text(LINEAR)
    return path


@pytest.fixture(scope="module")
def linear(file: Path) -> Experiment:
    return prepare(file)


def labelled(split: Split) -> Labelled:
    inputs, targets = split.batch(slice(None))
    return Labelled(inputs.flatten(1), targets)


def together(experiment: Experiment) -> Labelled:
    """The examples of all clients; classes that no client owns are nobody's."""
    at = torch.cat([torch.from_numpy(share) for share in experiment.shares]).unique()
    return labelled(experiment.data.train).at(at.numpy())


def relabelled(experiment: Experiment, part: str, targets: torch.Tensor) -> Experiment:
    """The experiment with other targets in `train` or `test`."""
    split = dataclasses.replace(getattr(experiment.data, part), targets=targets)
    data: Any = {part: split}
    return dataclasses.replace(experiment, data=dataclasses.replace(experiment.data, **data))


# ---------------------------------------------------------------- the models


def test_softmax_regression_has_the_accuracy_of_scikit_learns_optimum():
    linear_model = pytest.importorskip("sklearn.linear_model")
    data = load_dataset("digits")
    train, test = labelled(data.train), labelled(data.test)
    penalties = (1.0, 0.1, 0.01, 0.001)
    for penalty, logits in softmax_regression(train, test.inputs, 10, penalties):
        # scikit-learn minimises C · Σ loss + ‖W‖² / 2.
        theirs = linear_model.LogisticRegression(
            C=1 / (penalty * len(train.targets)), max_iter=5000, tol=1e-8
        ).fit(train.inputs.double().numpy(), train.targets.numpy())
        expected = theirs.score(test.inputs.double().numpy(), test.targets.numpy())
        accuracy = float((logits.argmax(1) == test.targets).double().mean())
        assert accuracy == pytest.approx(expected, abs=1e-3)


def test_softmax_regression_of_no_information_has_the_shares_of_the_classes():
    # Features that are all 0: only biases are left, whose optimum are the classes' log shares.
    rows = Labelled(torch.zeros(10, 3), torch.tensor([0] * 5 + [1] * 3 + [2] * 2))
    _, logits = next(softmax_regression(rows, torch.zeros(1, 3), 3, [0.1]))
    assert logits.softmax(1)[0].tolist() == pytest.approx([0.5, 0.3, 0.2], abs=1e-3)


def test_majority_class_of_equals_is_the_first():
    rows = Labelled(torch.zeros(4, 1), torch.tensor([2, 1, 1, 2]))
    _, scores = next(majority_class(rows, torch.zeros(3, 1), 3, [0]))
    assert scores.argmax(1).tolist() == [1, 1, 1]


def test_nearest_neighbours_by_hand():
    rows = Labelled(torch.tensor([[0.0], [1.0], [2.0], [10.0]]), torch.tensor([1, 0, 0, 2]))
    votes = dict(nearest_neighbours(rows, torch.tensor([[0.1]]), 3, [1, 2, 3, 99]))
    # One: its own. Two: one vote each, of which the nearer counts. Three and all: two to one.
    assert {k: int(v.argmax(1)) for k, v in votes.items()} == {1: 1, 2: 1, 3: 0, 99: 0}


# ---------------------------------------------------------------- as a row


def accuracy(experiment: Experiment, name: str) -> float:
    return float(trivial_test(experiment, name)["global"]["accuracy"])


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_row_is_the_model_with_the_choice_of_held_out_rows(linear: Experiment, name: str):
    (model, choices), rows = CLASSIFIERS[name], together(linear)
    test = labelled(linear.data.test)
    choice = chosen(model, rows, 10, choices, linear.world.seed)
    _, scores = next(model(rows, test.inputs, 10, [choice]))
    expected = float((scores.argmax(1) == test.targets).double().mean())
    torch.manual_seed(5)
    tested = trivial_test(linear, name)
    assert tested["models"] == {"global": {"accuracy": expected, "clients": 4}}
    # The same answers, whatever is counted as right.
    order = torch.randperm(len(test.targets), generator=torch.Generator().manual_seed(0))
    other = relabelled(linear, "test", test.targets[order])
    shuffled = float((scores.argmax(1) == test.targets[order]).double().mean())
    assert accuracy(other, name) == shuffled


def test_a_row_has_figures_on_clients_own_mixtures(linear: Experiment):
    tested = trivial_test(linear, "majority_class")
    hit = int(torch.bincount(together(linear).targets, minlength=10).argmax())
    # The most frequent class is right wherever it occurs, and nothing else is.
    shares = [c.histogram[hit] / sum(c.histogram) for c in linear.world.clients]
    assert tested["local"]["matched"] == pytest.approx(sum(shares) / 4)
    assert tested["tenth"]["matched"] == pytest.approx(min(shares))


def test_held_out_examples_are_not_fitted(file: Path):
    spec = load_experiment(file).model_copy(update={"validation": ValidationSpec(clients=0.2)})
    experiment = prepare(spec)
    assert len(experiment.held_out) > 50
    targets = experiment.data.train.targets.clone()
    targets[experiment.held_out] = 0
    other = relabelled(experiment, "train", targets)
    assert accuracy(other, "softmax_regression") == accuracy(experiment, "softmax_regression")


def test_ignored_targets_count_for_nothing(linear: Experiment):
    targets = linear.data.test.targets.clone()
    targets[::2] = -100
    hit = int(torch.bincount(together(linear).targets, minlength=10).argmax())
    expected = float((linear.data.test.targets[1::2] == hit).double().mean())
    assert accuracy(relabelled(linear, "test", targets), "majority_class") == expected


def test_tokens_are_known_by_which_occur(linear: Experiment):
    # The class is whether token 3 occurs, whatever its place: no number of a token says so.
    tokens = torch.randint(4, 9, (400, 6), generator=torch.Generator().manual_seed(0))
    targets = torch.arange(400) % 2
    tokens[torch.arange(400), torch.arange(400) % 6] = torch.where(targets == 1, 3, 4)
    split = Split(tokens.to(torch.int16), targets)
    data = Dataset("words", "text", 2, (6,), split, split)
    assert accuracy(dataclasses.replace(linear, data=data), "softmax_regression") == 1


def test_a_model_of_another_task_is_refused(linear: Experiment):
    world = dataclasses.replace(linear.world, learning=TASKS["regression"])
    with pytest.raises(
        RunError, match="nearest_neighbours needs targets with one class per example; found r"
    ):
        trivial_test(dataclasses.replace(linear, world=world), "nearest_neighbours")


def test_the_names_of_files_are_those_of_the_models():
    assert TRIVIAL == [*CLASSIFIERS]
