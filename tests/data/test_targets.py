"""Targets of any type and shape: classes, classes at each place, several at once, numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from archgraph.data import Dataset, Split
from archgraph.data.partition import allot, class_histogram
from archgraph.errors import DataError

INPUTS = torch.arange(12, dtype=torch.float32).view(6, 2)
FLAGS = torch.tensor([[1, 0, 1], [0, 0, 1]] * 3, dtype=torch.bool)
MAPS = torch.tensor([[[0, 1], [2, -100]]] * 6)


def dataset(targets: torch.Tensor, classes: int | None, **more) -> Dataset:
    split = Split(INPUTS, targets)
    return Dataset("made", "tensor", classes, (2,), split, split, **more)


def test_statistics_normalise_inputs_of_any_rank():
    mean, std = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 4.0])
    split = Split(INPUTS, torch.zeros(6), mean, std)
    before = INPUTS.clone()
    assert torch.equal(split.batch(slice(None))[0], (INPUTS - mean) / std)
    assert torch.equal(split.inputs, before)  # stored as float32, and left alone
    volumes = torch.arange(48, dtype=torch.uint8).view(2, 2, 3, 2, 2)
    got, _ = Split(volumes, torch.zeros(2), mean, std).batch([1])
    assert torch.equal(got, ((volumes.float() - mean.view(2, 1, 1, 1)) / std.view(2, 1, 1, 1))[1:])


@pytest.mark.parametrize(
    ("targets", "classes", "histogram"),
    [
        (torch.tensor([0, 2, 2, 0, 1, 1]), 3, [2, 2, 2]),
        (MAPS, 3, [6, 6, 6]),
        (FLAGS, 3, [3, 0, 6]),
        (torch.rand(6), None, []),
        (torch.rand(6, 4), None, []),
    ],
    ids=["classes", "maps", "flags", "numbers", "vectors"],
)
def test_targets_of_every_type_are_counted_and_shared_out(targets, classes, histogram):
    data = dataset(targets, classes)
    assert data.classified == (targets.dim() == 1 and classes is not None)
    assert class_histogram(data.train.targets, classes).tolist() == histogram
    parts = allot(data.train.targets, tiers=["all"] * 3, seed=1)
    assert sorted(np.concatenate(parts).tolist()) == list(range(6))
    # In a random order: only windows of text follow one another.
    assert parts[0].tolist() != [0, 1]


@pytest.mark.parametrize(
    "targets",
    [FLAGS, MAPS, torch.rand(6), torch.rand(6, 4)],
    ids=["flags", "maps", "numbers", "vectors"],
)
def test_only_one_class_per_example_can_be_divided_by_classes(targets):
    for scheme in ("dirichlet", "equal_dirichlet", "classes"):
        with pytest.raises(DataError, match=f"not one class per example.*found {scheme}"):
            allot(targets, tiers=["all"] * 2, scheme=scheme)
    assert len(allot(targets, tiers=["a", "b"], shares={"a": 0.5})) == 2


@pytest.mark.parametrize(
    ("targets", "classes", "message"),
    [
        (torch.zeros(6), 2, "targets have another type.*found torch.float32.*since there are 2"),
        (torch.zeros(6, dtype=torch.int64), None, "targets have another type.*float32, since"),
        (
            torch.tensor([0, 1, 2, 0, 1, 2]),
            2,
            "label out of range; found 0…2; expected classes 0…1",
        ),
        (torch.tensor([0, 1, -1, 0, 1, 0]), 2, "label out of range; found -1…1"),
        (FLAGS, 4, r"another number of classes; found \[6, 3\]; expected \[example, 4\]"),
        (torch.tensor([0, 1, np.nan, 0, 1, 0], dtype=torch.float32), None, "not finite"),
    ],
    ids=["numbers", "classes", "too_large", "negative", "flags", "nan"],
)
def test_targets_that_do_not_fit_the_classes_are_refused(targets, classes, message):
    with pytest.raises(DataError, match=message):
        dataset(targets, classes)


def test_both_splits_have_one_form():
    train, test = Split(INPUTS, torch.zeros(6)), Split(INPUTS[:, :1], torch.zeros(6))
    with pytest.raises(DataError, match=r"made: test: inputs differ.*float32 \[1\].*float32 \[2\]"):
        Dataset("made", "tensor", None, (2,), train, test)
    test = Split(INPUTS, torch.zeros(6, 1))
    with pytest.raises(DataError, match="made: test: targets differ"):
        Dataset("made", "tensor", None, (2,), train, test)


def test_clients_own_every_example_once():
    def owned(*parts: list[int]) -> Dataset:
        owners = {f"c{i}": np.array(part, np.int64) for i, part in enumerate(parts)}
        return dataset(torch.zeros(6), None, owners=owners)

    assert "6 train of 2 clients" in repr(owned([0, 2, 4], [1, 3, 5]))
    with pytest.raises(DataError, match="a client has no examples; found c1"):
        owned([0, 1, 2, 3, 4, 5], [])
    with pytest.raises(DataError, match=r"exactly once; found 6 positions, 5 different"):
        owned([0, 1, 2], [2, 3, 4])
    with pytest.raises(DataError, match=r"exactly once; found 5 positions, 5 different"):
        owned([0, 1, 2], [3, 4])
