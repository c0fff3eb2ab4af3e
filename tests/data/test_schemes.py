"""Partitions are those of flwr-datasets, example for example: beside it where it is installed."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from archgraph.data.schemes import SCHEMES

CASES: list[tuple[str, dict[str, Any]]] = [
    ("iid", {}),
    ("dirichlet", {"alpha": 0.1, "min_size": 8}),
    ("dirichlet", {"alpha": 0.5, "min_size": 3}),
    ("dirichlet", {"alpha": 0.3, "min_size": 1, "balanced": True}),
    ("equal_dirichlet", {"alpha": 0.5}),
    ("equal_dirichlet", {"alpha": 0.005}),
    ("classes", {"per_client": 2}),
    ("classes", {"per_client": 3, "assignment": "random"}),
    ("classes", {"per_client": 1, "assignment": "deterministic"}),
]


def examples(seed: int) -> tuple[np.ndarray, int]:
    """Classes of 40–400 examples, some sorted and some with gaps, and a number of clients."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, random.integers(3, 12), random.integers(40, 400))
    if seed % 3 == 0:
        labels = np.sort(labels)
    return labels * (1 + seed % 2), int(random.integers(1, 9))


def cut(
    scheme: Callable[..., tuple[np.ndarray, ...]], seed: int, options: dict[str, Any]
) -> list[list[int]] | None:
    labels, clients = examples(seed)
    try:
        return [part.tolist() for part in scheme(labels, clients, seed, **options)]
    except ValueError:
        return None


def flower(name: str) -> Callable[..., tuple[np.ndarray, ...]]:
    """The same scheme by flwr-datasets."""
    datasets = pytest.importorskip("datasets")
    partitioner = pytest.importorskip("flwr_datasets.partitioner")

    def collected(made: Any, labels: np.ndarray, order: np.ndarray) -> tuple[np.ndarray, ...]:
        made.dataset = datasets.Dataset.from_dict({"label": labels, "position": order})
        shards = (made.load_partition(client) for client in range(made.num_partitions))
        return tuple(np.sort(shard.with_format("numpy")[:]["position"]) for shard in shards)

    def scheme(labels: np.ndarray, clients: int, seed: int, **options: Any) -> Any:
        order = np.arange(len(labels))
        if name == "iid":
            order = np.random.default_rng(seed).permutation(order)
            return collected(partitioner.IidPartitioner(clients), labels * 0, order)
        if name == "dirichlet":
            made = partitioner.DirichletPartitioner(
                clients,
                "label",
                options["alpha"],
                options["min_size"],
                options.get("balanced", False),
                seed=seed,
            )
        elif name == "equal_dirichlet":
            _, labels = np.unique(labels, return_inverse=True)
            each, more = divmod(len(labels), clients)
            sizes = [each + (client < more) for client in range(clients)]
            made = partitioner.InnerDirichletPartitioner(sizes, "label", seed=seed, **options)
        else:
            assignment = options.get("assignment", "first-deterministic")
            made = partitioner.PathologicalPartitioner(
                clients, "label", options["per_client"], assignment, seed=seed
            )
        return collected(made, labels, order)

    return scheme


@pytest.mark.sample(8)
@pytest.mark.parametrize(("name", "options"), CASES)
def test_every_example_goes_where_flwr_datasets_puts_it(name, options):
    original = flower(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of repeated draws and of classes without an owner
        for seed in range(25):
            assert cut(SCHEMES[name], seed, options) == cut(original, seed, options), seed


def test_partitions_stay_what_they_were():
    found = [cut(SCHEMES[name], seed, options) for name, options in CASES for seed in range(12)]
    assert sum(parts is None for parts in found) == REFUSED
    assert hashlib.sha256(repr(found).encode()).hexdigest() == PINNED


# Computed with flwr-datasets 0.6.1.
REFUSED = 8
PINNED = "663b42ab5fee4891e3d21efc96a4aa417c86119d2883a3caa18a3d4bc1132ccf"
