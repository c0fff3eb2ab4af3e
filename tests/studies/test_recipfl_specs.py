"""RecipFL's families: DepthFL's weak clients have the small models of Table 2."""

from __future__ import annotations

from pathlib import Path

import pytest

import archgraph as ag
from archgraph.federation.family import resolve
from archgraph.language import load_family

FAMILIES = Path(__file__).parents[2] / "specs/families"


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("exits", "small"),
    [
        ("recipfl_mnist_exits", "recipfl_mnist"),
        ("recipfl_cifar10_exits", "recipfl_cifar10_depth"),
        ("recipfl_cifar100_exits", "recipfl_cifar100_depth"),
    ],
)
def test_an_exit_ends_in_the_layers_of_the_small_model(exits: str, small: str) -> None:
    sizes = []
    for name in (exits, small):
        family = resolve(load_family(FAMILIES / f"{name}.yaml"))
        kinds = {kind.name: kind for kind in family.clients}
        spent = ag.cost(kinds["weak"].graph)
        sizes.append((spent.parameters, spent.macs, kinds["weak"].count, kinds["strong"].count))
    assert sizes[0] == sizes[1]
