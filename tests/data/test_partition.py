from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from archgraph.data import load_dataset
from archgraph.data.partition import allot, class_histogram, local_test_indices
from archgraph.engine import prepare
from archgraph.errors import DataError


def partition(targets: Any, *, clients: int, **options: Any) -> tuple[np.ndarray, ...]:
    """Clients of one kind: the scheme shares out everything."""
    return allot(targets, tiers=["all"] * clients, **options)


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
        st.just("equal_dirichlet"),
        st.fixed_dictionaries({"alpha": st.sampled_from([0.1, 0.5, 100.0])}),
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
@given(st.sampled_from(["iid", "dirichlet", "equal_dirichlet"]), st.integers(1, 12))
def test_every_example_has_an_owner(scheme, clients):
    targets = labels()
    parts = partition(targets, clients=clients, scheme=scheme, seed=clients)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(targets)))


@pytest.mark.parametrize("targets", [labels(), np.zeros((600, 4))], ids=["classes", "numbers"])
def test_whole_gives_every_example_to_every_client_beside_a_share(targets):
    kinds = ["one", "other", "aside"]
    one, other, aside = allot(targets, tiers=kinds, scheme="whole", shares={"aside": 0.25})
    assert np.array_equal(one, other) and len(one) == 450 and len(aside) == 150
    assert np.array_equal(np.sort(np.concatenate([one, aside])), np.arange(600))


@pytest.mark.parametrize(
    ("clients", "params"),
    [(10, {}), (23, {}), (5, {"assignment": "deterministic", "per_client": 6})],
)
def test_classes_cover_everything_as_soon_as_the_owners_can(clients, params):
    parts = partition(labels(), clients=clients, scheme="classes", **params)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(600))


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "equal_dirichlet", "classes"])
def test_another_seed_gives_another_partition(scheme):
    one, two = (partition(labels(), clients=4, scheme=scheme, seed=seed) for seed in (1, 2))
    assert not all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "equal_dirichlet", "classes"])
def test_tensor_and_array_targets_agree(scheme):
    one = partition(labels(), clients=3, scheme=scheme, seed=5)
    two = partition(torch.from_numpy(labels()), clients=3, scheme=scheme, seed=5)
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


SCHEMES = ["iid", "dirichlet", "equal_dirichlet", "classes"]
KINDS = ["weak", "strong", "weak", "weak", "strong", "middle", "weak", "weak"]


@settings(max_examples=15)
@given(
    st.sampled_from(SCHEMES[:3]),
    st.dictionaries(st.sampled_from(["strong", "middle"]), st.floats(0.05, 0.4), min_size=1),
    st.integers(0, 2**31),
)
def test_a_share_is_exact_equally_divided_and_of_all_classes(scheme, shares, seed):
    targets = labels(seed=seed % 7)
    parts = allot(targets, tiers=KINDS, shares=shares, scheme=scheme, seed=seed)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(targets)))
    assert all(np.all(np.diff(own) > 0) and own.dtype == np.int64 for own in parts)
    whole = class_histogram(targets, 10)
    for name, share in shares.items():
        owned = [own for own, kind in zip(parts, KINDS, strict=True) if kind == name]
        assert abs(sum(map(len, owned)) - share * len(targets)) <= 1
        assert max(map(len, owned)) - min(map(len, owned)) <= 1
        for own in owned:
            asked = whole * share / len(owned)
            assert np.all(np.abs(class_histogram(targets[own], 10) - asked) <= 2)
    again = allot(targets, tiers=KINDS, shares=shares, scheme=scheme, seed=seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("shares", [None, {}])
def test_without_shares_all_clients_take_part_in_the_scheme(scheme, shares):
    one = allot(labels(), tiers=KINDS, shares=shares, scheme=scheme, seed=3)
    two = partition(labels(), clients=len(KINDS), scheme=scheme, seed=3)
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_others_share_what_is_left_by_the_scheme(scheme):
    parts = allot(labels(), tiers=KINDS, shares={"strong": 0.5}, scheme=scheme, seed=3)
    others = [i for i, kind in enumerate(KINDS) if kind != "strong"]
    rest = np.setdiff1d(np.arange(600), np.concatenate([parts[1], parts[4]]))
    for client, own in zip(
        others, partition(labels()[rest], clients=6, scheme=scheme, seed=3), strict=True
    ):
        assert np.array_equal(parts[client], rest[own])


def test_who_has_a_share_depends_on_the_seed():
    one, two = (allot(labels(), tiers=KINDS, shares={"strong": 0.5}, seed=s)[1] for s in (1, 2))
    assert len(one) == len(two) == 150
    assert not np.array_equal(one, two)


def test_a_share_is_drawn_within_its_classes():
    own = allot(np.zeros(100, np.int64), tiers=["strong", "weak"], shares={"strong": 0.5})[0]
    assert len(own) == 50 and own.max() >= 50


def test_shares_of_all_clients_add_up():
    shares = {"strong": 0.1, "middle": 0.2, "weak": 0.7}
    parts = allot(labels(), tiers=KINDS, shares=shares)
    assert [len(own) for own in parts] == [84, 30, 84, 84, 30, 120, 84, 84]
    assert len(np.unique(np.concatenate(parts))) == 600


def test_recipfl_table_2():
    """One strong client with 50 %, five weak ones with 10 % each."""
    targets = np.repeat(np.arange(10), 100)
    parts = allot(
        targets, tiers=["strong"] + ["weak"] * 5, shares={"strong": 0.5}, scheme="equal_dirichlet"
    )
    assert [len(own) for own in parts] == [500, 100, 100, 100, 100, 100]
    assert class_histogram(targets[parts[0]], 10).tolist() == [50] * 10
    assert all(class_histogram(targets[own], 10).max() > 15 for own in parts[1:])


def test_a_share_of_text_is_a_run():
    text = np.zeros((12, 4), np.int64)
    parts = allot(text, tiers=["weak", "strong", "weak"], shares={"strong": 0.5})
    assert [own.tolist() for own in parts] == [[6, 7, 8], [0, 1, 2, 3, 4, 5], [9, 10, 11]]


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


def test_equal_dirichlet_is_of_equal_size_and_skewed_as_its_alpha_says():
    targets = np.repeat([3, 5, 7, 8, 11], 120)  # any labels
    share = {}
    for alpha in (0.1, 1e6):
        parts = partition(targets, clients=7, scheme="equal_dirichlet", alpha=alpha, seed=1)
        assert {len(own) for own in parts} == {85, 86}
        counts = [class_histogram(targets[own], 12)[[3, 5, 7, 8, 11]] for own in parts]
        share[alpha] = float(np.mean([c.max() / c.sum() for c in counts]))
    assert share[0.1] > 0.5 > 0.3 > share[1e6]


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


def test_ignored_targets_belong_to_no_local_test():
    test = np.array([2, -100, 0, -100, 1])
    assert local_test_indices(test, np.array([1, 0, 1])).tolist() == [0, 2]
    assert local_test_indices(np.array([-100]), np.ones(2)).tolist() == []


def test_digits_clients_test_only_on_what_they_own():
    digits = load_dataset("digits")
    for own in partition(digits.train.targets, clients=6, scheme="classes", per_client=2):
        histogram = class_histogram(digits.train.targets[own], digits.classes)
        chosen = local_test_indices(digits.test.targets, histogram)
        owned = set(digits.train.targets[own].tolist())
        assert set(digits.test.targets[chosen].tolist()) == owned
        assert len(chosen) == sum(int((digits.test.targets == label).sum()) for label in owned)


# ---------------------------------------------------------------- experiments


def test_an_experiment_gives_kinds_of_client_their_shares(tmp_path):
    family = Path(__file__).parents[2] / "specs" / "families" / "fedfa_digits.yaml"
    text = (
        f"archgraph: 1\nname: e\nfamily: {family}\nrounds: 1\n"
        f"local: {{lr: 0.1}}\nstrategy: {{exclusivefl: {{}}}}\n"
        "data:\n  dataset: digits\n  partition: {scheme: equal_dirichlet"
    )
    file = tmp_path / "e.yaml"
    file.write_text(f"{text}, shares: {{deep: 0.5, large: 0.1}}}}\n")
    found = prepare(file)
    total = len(found.data.train.targets)
    sizes = {c.name: c.examples for c in found.world.clients}
    assert sum(c.examples for c in found.world.clients) == total
    assert abs(2 * sizes["deep"] - total / 2) <= 1
    assert abs(sizes["large"] - total / 10) <= 1
    assert abs(sizes["small"] - total * 0.4 / 7) <= 1
    file.write_text(found.text)
    again = prepare(file)
    assert again.facts == found.facts
    assert all(np.array_equal(a, b) for a, b in zip(again.shares, found.shares, strict=True))
    file.write_text(f"{text}}}\n")
    assert "shares" not in prepare(file).facts["data"]["partition"]


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 0}, r"impossible number of clients; found 0; expected 1…600"),
        ({"clients": 601}, r"impossible number of clients; found 601"),
        ({"clients": 61, "scheme": "dirichlet"}, r"1…60 clients of at least 10"),
        (
            {"clients": 2, "scheme": "classes", "per_client": 11},
            r"the partition cannot be drawn.*11",
        ),
        (
            {"clients": 2, "scheme": "classes", "per_client": 0},
            r"the partition cannot be drawn.*per_client=0",
        ),
        (
            {"clients": 7, "scheme": "equal_dirichlet", "alpha": 0.001},
            r"the partition cannot be drawn.*larger alpha",
        ),
        ({"clients": 590, "scheme": "classes"}, r"the partition cannot be drawn.*fewer clients"),
        (
            {"clients": 50, "scheme": "dirichlet", "alpha": 0.01, "min_size": 10},
            r"the partition cannot be drawn.*larger alpha",
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


ONE_CLASS = {"scheme": "classes", "per_client": 1}


@pytest.mark.parametrize(
    ("targets", "tiers", "shares", "options", "message"),
    [
        (
            labels(), KINDS, {"strong": 0.001}, {},
            r"shares.strong: too few examples; found 1; .* each of its 2",
        ),
        (
            labels(), KINDS, {"strong": 0.995}, {},
            r"impossible number of clients; found 6; .* of the 3 examples",
        ),
        (
            labels(), KINDS, {"strong": 0.5}, {**ONE_CLASS, "min_size": 45},
            r"client 0: too few examples; .* at least 45 \(data\.partition\.min_size\)",
        ),
        (  # a client is called by its own number
            np.arange(90) % 3, KINDS[1:4], {"strong": 0.5}, {**ONE_CLASS, "min_size": 16},
            "client 1: too few examples",
        ),
        (
            np.zeros((30, 4), np.int64), ["all"] * 2, {}, {"scheme": "dirichlet"},
            r"not one class per example.*found dirichlet; expected iid or whole",
        ),
    ],
)  # fmt: skip
def test_impossible_shares_are_refused(targets, tiers, shares, options, message):
    with pytest.raises(DataError, match=message):
        allot(targets, tiers=tiers, shares=shares, **{"min_size": 1, **options})
