"""Transforms of torchvision in training: they are torchvision's own, and runs stay repeatable."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import archgraph as ag
from archgraph.engine import prepare
from archgraph.federation import LocalOptions, Pixels, Shard, Train, Work, seeded
from archgraph.federation.transforms import transform_images

v2: Any = pytest.importorskip("torchvision.transforms.v2", reason="torchvision is no dependency")

CHAIN: tuple[Any, ...] = (
    {"RandomCrop": {"size": [8, 8], "padding": 2}},
    "RandomHorizontalFlip",
    {"ColorJitter": {"brightness": 0.4, "contrast": 0.4}},
)
THEIRS = (
    v2.RandomCrop([8, 8], padding=2),
    v2.RandomHorizontalFlip(),
    v2.ColorJitter(brightness=0.4, contrast=0.4),
)
DRAW = torch.Generator().manual_seed(0)
BYTES = (torch.rand(40, 3, 8, 8, generator=DRAW) * 255).byte()
CLASSES = torch.arange(40) % 2
# A client's images as the data gives them: bytes, normalised by channel.
MEAN, STD = BYTES.float().mean((0, 2, 3)), BYTES.float().std((0, 2, 3))
IMAGES = (BYTES - MEAN[:, None, None]) / STD[:, None, None]


def theirs(images: Tensor) -> Tensor:
    """Change images between 0 and 1 one by one, in plain torchvision, and normalise them."""
    changed = []
    for image in images:
        for transform in THEIRS:
            image = transform(image)
        changed.append(image)
    return (torch.stack(changed) * 255 - MEAN[:, None, None]) / STD[:, None, None]


def test_images_are_changed_as_in_plain_torchvision():
    chain = LocalOptions(transforms=CHAIN).transforms
    assert chain is not None
    torch.manual_seed(3)
    ours = transform_images(IMAGES, chain, Pixels(MEAN, STD))
    torch.manual_seed(3)
    torch.testing.assert_close(ours, theirs(BYTES / 255), rtol=1e-4, atol=1e-4)
    torch.manual_seed(3)
    plain = transform_images(BYTES / 255, chain, None)
    torch.testing.assert_close((plain * 255 - MEAN[:, None, None]) / STD[:, None, None], ours)
    assert not torch.equal(ours, IMAGES)


def test_a_client_learns_what_a_loop_in_plain_pytorch_learns():
    """The same weights, and so the same answers: two passes of crops and mirrored images."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    graph, state = ag.trace(net, IMAGES[:2])
    local = LocalOptions(lr=0.1, batch=8, epochs=2, transforms=CHAIN)
    shard = Shard((IMAGES,), CLASSES, (20, 20))
    pixels = Pixels(MEAN, STD)
    work = Work(0, 1, 1, graph, state, shard, local, seeded(0, "work"), pixels=pixels)
    torch.manual_seed(5)
    ours = ag.build(graph, Train()(work).state)
    torch.manual_seed(5)
    draw, steps = seeded(0, "work"), torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        for batch in shard.batches(draw, 8):
            steps.zero_grad()
            images = theirs(BYTES[batch.ids] / 255)
            functional.cross_entropy(net(images), batch.targets).backward()
            steps.step()
    torch.testing.assert_close(ours(IMAGES), net(IMAGES), rtol=1e-3, atol=1e-3)
    assert torch.equal(ours(IMAGES).argmax(1), net(IMAGES).argmax(1))


def spec_of(shape: list[int], *transforms: Any, **more: Any) -> Any:
    family: dict[str, Any] = {
        "model": {
            "archgraph": 1,
            "name": "flat",
            "inputs": {"x": shape},
            "sections": [{"name": "head", "steps": ["flatten", {"linear": 2}]}],
        },
        "clients": [{"name": "all", "count": 2}],
    }
    spec = {"archgraph": 1, "name": "flat", "family": family, "strategy": "fedavg", "rounds": 2}
    return {**spec, "local": {"lr": 0.05, "batch": 8, "transforms": transforms}, **more}


def split(inputs: Tensor, targets: Any) -> Any:
    few = {k: v[:8] for k, v in targets.items()} if isinstance(targets, dict) else targets[:8]
    return (inputs, targets), (inputs[:8], few)


def bits(workers: int, *transforms: Any, seed: int = 0) -> str:
    """Return the digest of what a run learns."""
    spec = spec_of([3, 8, 8], *transforms, engine={"workers": workers}, seed=seed)
    run = ag.run(spec, data=split(BYTES, CLASSES), progress=False)
    learned = {name: tensor.numpy().tobytes() for name, tensor in run.server.tensors.items()}
    return hashlib.sha256(repr(sorted(learned.items())).encode()).hexdigest()


def test_a_run_has_the_same_bits_in_any_number_of_processes():
    """In a process of its own, whose workers are forked: they need conftest's torchvision."""
    code = "import tests.conftest, tests.engine.test_transforms as t; print(t.bits(2, *t.CHAIN))"
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    two = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    one = bits(1, *CHAIN)
    assert one == two.stdout.split()[-1] == bits(1, *CHAIN)
    assert one != bits(1, *CHAIN, seed=1)
    for left in range(len(CHAIN)):
        assert one != bits(1, *CHAIN[:left], *CHAIN[left + 1 :])


FLIP = "RandomHorizontalFlip"
MINE = {"objective": "python:torch.nn.functional:mse_loss"}


@pytest.mark.parametrize(
    ("spec", "data", "message"),
    [
        (
            spec_of([3], FLIP),
            split(torch.rand(8, 3), CLASSES[:8]),
            r"local\.transforms: needs images; found .*\[batch, 3\]",
        ),
        (
            spec_of([3, 8, 8], FLIP, task=MINE),
            split(BYTES[:8], torch.arange(512).view(8, 8, 8) % 2),
            r"transforms would change the images, but not .* maps .* found targets \[8, 8\]",
        ),
        (
            spec_of([3, 8, 8], FLIP),
            split(BYTES[:8] / 127.5 - 1, CLASSES[:8]),
            r"transforms: take images whose values are between 0 and 1; found values from -1 to",
        ),
        (
            spec_of([3, 8, 8], FLIP, {"Resize": {"size": [4, 4]}}),
            split(BYTES[:8], CLASSES[:8]),
            r"transforms: must return images of the same shape; found \[3, 4, 4\]; expected \[3, 8",
        ),
        (
            spec_of([3, 8, 8], {"FiveCrop": {"size": 4}}),
            split(BYTES[:8], CLASSES[:8]),
            r"transforms\[0\]: cannot change these images: .*; found FiveCrop, \[3, 8, 8\]",
        ),
        (
            spec_of([3, 8, 8], {"ColorJitter": {"hue": 0.7}}),
            split(BYTES[:8], CLASSES[:8]),
            r"transforms\[0\]: cannot change these images: hue values should be between",
        ),
    ],
)
def test_what_cannot_be_changed_is_refused(spec: Any, data: Any, message: str):
    with pytest.raises(ag.ArchGraphError, match=message):
        prepare(spec, data=data, python=True)
