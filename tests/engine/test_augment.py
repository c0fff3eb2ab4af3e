"""Random crops and mirror images: what they are, and that runs stay repeatable."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import archgraph as ag
from archgraph.engine import prepare
from archgraph.engine.local import execute
from archgraph.federation.augment import augmented
from archgraph.language.experiment import EngineSpec
from archgraph.language.local import AugmentOptions, LocalOptions


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_crop_is_a_window_of_the_padded_image_drawn_for_each():
    images = torch.arange(1.0, 1 + 200 * 2 * 3 * 4).reshape(200, 2, 3, 4)
    found = augmented(images, AugmentOptions(crop=2), seeded())
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2))
    places = set()
    for image, around in zip(found, padded, strict=True):
        [place] = [
            (top, left)
            for top in range(5)
            for left in range(5)
            if torch.equal(image, around[:, top : top + 3, left : left + 4])
        ]
        places.add(place)
    assert places == {(top, left) for top in range(5) for left in range(5)}
    assert found.is_contiguous() and torch.equal(
        found, augmented(images, AugmentOptions(crop=2), seeded())
    )


def test_about_half_of_the_images_are_mirrored():
    images = torch.rand(400, 1, 2, 3, generator=seeded(1))
    found = augmented(images, AugmentOptions(flip=True), seeded())
    mirrored = (found == images.flip(3)).flatten(1).all(1)
    same = (found == images).flatten(1).all(1)
    assert bool((mirrored ^ same).all()) and 160 < int(mirrored.sum()) < 240


def test_nothing_asked_changes_nothing():
    images = torch.rand(3, 1, 2, 2)
    assert torch.equal(augmented(images, AugmentOptions(), seeded()), images)


def test_a_run_trains_on_them_with_the_same_bits_in_processes(experiment, mean):
    def trained(workers: int, **augment: Any) -> dict[str, bytes]:
        local = LocalOptions(lr=0.05, batch=16, augment=AugmentOptions(**augment))
        run = execute(experiment(mean(), rounds=1, local=local, engine=EngineSpec(workers=workers)))
        return {name: tensor.numpy().tobytes() for name, tensor in run.server.tensors.items()}

    one = trained(1, crop=1, flip=True)
    assert one == trained(2, crop=1, flip=True)
    assert one != trained(1) and one != trained(1, crop=1)


def test_what_is_not_an_image_is_refused():
    with pytest.raises(ag.ArchGraphError, match=r"local\.augment: .*images"):
        prepare(
            {
                "archgraph": 1,
                "name": "flat",
                "family": {
                    "model": {
                        "archgraph": 1,
                        "name": "flat",
                        "inputs": {"x": [3]},
                        "sections": [{"name": "head", "steps": [{"linear": 2}]}],
                    },
                    "clients": [{"name": "all", "count": 2}],
                },
                "strategy": {"fedavg": {}},
                "rounds": 1,
                "local": {"augment": {"flip": True}},
            },
            data=((torch.rand(8, 3), torch.arange(8) % 2), (torch.rand(4, 3), torch.arange(4) % 2)),
        )
