from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from archgraph.engine.data import load_dataset
from archgraph.engine.partition import class_histogram, local_test_indices, partition
from archgraph.errors import DataError


def labels(count: int = 600, classes: int = 10, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, classes, count)


schemes: st.SearchStrategy[tuple[str, dict[str, Any]]] = st.one_of(
    st.just(("iid", {})),
    st.tuples(
        st.just("dirichlet"),
        st.fixed_dictionaries(
            {
                "alpha": st.sampled_from([0.5, 1, 100.0]),
                "min_size": st.just(1),
                "balanced": st.booleans(),
            }
        ),
    ),
    st.tuples(
        st.just("classes"),
        st.fixed_dictionaries(
            {
                "per_client": st.integers(1, 4),
                "assignment": st.sampled_from(["random", "deterministic", "first-deterministic"]),
            }
        ),
    ),
)


# ---------------------------------------------------------------- laws


@settings(max_examples=25)
@given(schemes, st.integers(1, 12), st.integers(0, 2**31))
def test_parts_are_disjoint_nonempty_ascending_and_seeded(scheme_and_params, clients, seed):
    scheme, params = scheme_and_params
    targets = labels()
    parts = partition(targets, clients=clients, scheme=scheme, seed=seed, **params)
    assert len(parts) == clients
    for own in parts:
        assert len(own) > 0
        assert own.dtype == np.int64
        assert np.all(np.diff(own) > 0)
    owned = np.concatenate(parts)
    assert len(np.unique(owned)) == len(owned)
    assert owned.min() >= 0
    assert owned.max() < len(targets)
    again = partition(targets, clients=clients, scheme=scheme, seed=seed, **params)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@settings(max_examples=10)
@given(st.sampled_from(["iid", "dirichlet"]), st.integers(1, 12))
def test_every_example_has_an_owner(scheme, clients):
    targets = labels()
    parts = partition(targets, clients=clients, scheme=scheme, seed=clients)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(targets)))


@pytest.mark.parametrize(
    ("clients", "params"),
    [(10, {}), (23, {}), (5, {"assignment": "deterministic", "per_client": 6})],
)
def test_classes_cover_everything_as_soon_as_the_owners_can(clients, params):
    parts = partition(labels(), clients=clients, scheme="classes", **params)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(600))


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "classes"])
def test_another_seed_gives_another_partition(scheme):
    one, two = (partition(labels(), clients=4, scheme=scheme, seed=seed) for seed in (1, 2))
    assert not all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "classes"])
def test_tensor_and_array_targets_agree(scheme):
    one = partition(labels(), clients=3, scheme=scheme, seed=5)
    two = partition(torch.from_numpy(labels()), clients=3, scheme=scheme, seed=5)
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


# ---------------------------------------------------------------- closed forms


def test_iid_sizes_differ_by_one_at_most_and_classes_are_mixed():
    targets = np.repeat(np.arange(10), 101)
    parts = partition(targets, clients=7, scheme="iid", seed=3)
    assert {len(own) for own in parts} == {144, 145}
    assert all(class_histogram(targets[own], 10).min() > 0 for own in parts)


def test_dirichlet_with_a_large_alpha_is_even_and_with_a_small_one_is_not():
    targets = np.repeat(np.arange(10), 300)
    even = partition(targets, clients=5, scheme="dirichlet", alpha=1e6, seed=0)
    for own in even:
        assert np.all(np.abs(class_histogram(targets[own], 10) - 60) <= 2)
    skewed = partition(targets, clients=5, scheme="dirichlet", alpha=0.05, min_size=1, seed=0)
    largest_share = [class_histogram(targets[own], 10).max() / len(own) for own in skewed]
    assert np.mean(largest_share) > 0.3


def test_dirichlet_respects_the_least_size():
    sizes = {
        least: [
            min(
                map(len, partition(labels(), clients=6, scheme="dirichlet", min_size=least, seed=s))
            )
            for s in range(8)
        ]
        for least in (1, 40)
    }
    assert min(sizes[1]) < 40 <= min(sizes[40])


def test_balanced_gives_nothing_more_to_clients_above_the_average():
    options: dict[str, Any] = {
        "clients": 6,
        "scheme": "dirichlet",
        "alpha": 0.1,
        "min_size": 1,
        "seed": 2,
    }
    uneven, balanced = (partition(labels(), balanced=b, **options) for b in (False, True))
    assert max(map(len, balanced)) < max(map(len, uneven))
    # At most one class, of about 60 examples, is added to a client at the average of 100.
    assert max(map(len, balanced)) < 100 + 80


@pytest.mark.parametrize("per_client", [1, 2, 10])
def test_each_client_owns_as_many_classes_as_asked(per_client):
    targets = labels(2000)
    for own in partition(targets, clients=12, scheme="classes", per_client=per_client, seed=4):
        assert len(np.unique(targets[own])) == per_client


def test_deterministic_classes_count_on_from_the_client():
    targets = labels()
    parts = partition(
        targets, clients=10, scheme="classes", per_client=2, assignment="deterministic"
    )
    for client, own in enumerate(parts):
        assert set(targets[own]) == {client, (client + 1) % 10}


def test_text_is_cut_into_contiguous_shards():
    parts = partition(np.zeros((10, 64), np.int64), clients=3, scheme="iid", seed=9)
    assert [own.tolist() for own in parts] == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_histogram_counts_and_local_tests_follow_it():
    targets = torch.tensor([3, 3, 0, 1])
    histogram = class_histogram(targets, 5)
    assert histogram.tolist() == [1, 1, 0, 2, 0]
    test = np.array([0, 1, 2, 3, 4, 3, 2])
    assert local_test_indices(test, histogram).tolist() == [0, 1, 3, 5]
    assert local_test_indices(test, np.zeros(5)).tolist() == []
    assert local_test_indices(torch.from_numpy(test), torch.ones(5)).tolist() == list(range(7))


def test_digits_clients_test_only_on_what_they_own():
    digits = load_dataset("digits")
    for own in partition(digits.train.targets, clients=6, scheme="classes", per_client=2):
        histogram = class_histogram(digits.train.targets[own], digits.classes)
        chosen = local_test_indices(digits.test.targets, histogram)
        owned = set(digits.train.targets[own].tolist())
        assert set(digits.test.targets[chosen].tolist()) == owned
        assert len(chosen) == sum(int((digits.test.targets == label).sum()) for label in owned)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 0}, r"impossible number of clients; found 0; expected 1…600"),
        ({"clients": 601}, r"impossible number of clients; found 601"),
        ({"clients": 61, "scheme": "dirichlet"}, r"1…60 clients of at least 10"),
        ({"clients": 2, "scheme": "dirichlet", "min_size": 0}, r"clients need examples"),
        ({"clients": 2, "scheme": "sorted"}, r"unknown scheme; found 'sorted'; expected one of"),
        ({"clients": 2, "alpha": 1.0}, r"unknown parameter; found alpha; expected one of min_size"),
        ({"clients": 2, "scheme": "dirichlet", "alhpa": 1.0}, r"unknown parameter; found alhpa"),
        ({"clients": 2, "scheme": "dirichlet", "alpha": 0.0}, r"no such partition.*greater than"),
        ({"clients": 2, "scheme": "classes", "per_client": 11}, r"no such partition.*11"),
        ({"clients": 2, "scheme": "classes", "per_client": 0}, r"no such partition.*per_client=0"),
        ({"clients": 2, "scheme": "classes", "assignment": "best"}, r"no such partition.*best"),
        ({"clients": 590, "scheme": "classes"}, r"no such partition.*fewer clients"),
        (
            {"clients": 50, "scheme": "dirichlet", "alpha": 0.01, "min_size": 10},
            r"no such partition.*larger alpha",
        ),
        (
            {"clients": 12, "scheme": "classes", "per_client": 1, "min_size": 40},
            r"client 0: too few examples; found \d+; expected at least 40",
        ),
    ],
)
def test_impossible_partitions_are_refused(options, message):
    with pytest.raises(DataError, match=message):
        partition(labels(), **options)


def test_text_cannot_be_split_by_classes():
    with pytest.raises(DataError, match=r"text has no classes.*found dirichlet; expected iid"):
        partition(np.zeros((30, 4), np.int64), clients=2, scheme="dirichlet")


def test_targets_of_another_rank_are_refused():
    with pytest.raises(DataError, match=r"found \(2, 2, 2\)"):
        partition(np.zeros((2, 2, 2)), clients=1)


def test_local_tests_need_classes_of_the_histogram():
    with pytest.raises(DataError, match=r"found 0…7; expected 0…4"):
        local_test_indices(np.array([0, 7]), np.ones(5))
    with pytest.raises(DataError, match="one class per example"):
        local_test_indices(np.zeros((3, 4), np.int64), np.ones(5))


def test_nothing_is_printed(capfd):
    partition(labels(), clients=3, scheme="dirichlet", alpha=0.5, seed=0)
    partition(labels(), clients=2, scheme="classes", per_client=1, seed=0)  # eight classes unowned
    assert capfd.readouterr() == ("", "")
