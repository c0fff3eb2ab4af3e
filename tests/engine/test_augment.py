"""Random changes of images and their mixtures: what they are, and that runs stay repeatable."""

from __future__ import annotations

import colorsys
import itertools
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import archgraph as ag
from archgraph.engine import prepare
from archgraph.engine.local import Run, execute
from archgraph.federation import (
    Examples,
    Mix,
    MixedExamples,
    Pixels,
    Shard,
    Task,
    Train,
    Work,
    seeded,
)
from archgraph.federation.augment import (
    augmented,
    blended,
    jittered,
    mixed,
    pasted,
    random_windows,
    recoloured,
    zoomed,
)
from archgraph.federation.learning import CLASSIFICATION
from archgraph.federation.objectives import target_loss
from archgraph.federation.training_loss import trained_task
from archgraph.language.experiment import EngineSpec
from archgraph.language.local import (
    AugmentOptions,
    ColourJitterOptions,
    LocalOptions,
    ResizedCropOptions,
)
from archgraph.strategies.fedavg import FedAvg

from .families import STRATEGIES, experiment_of


def drawing(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_crop_is_a_window_of_the_padded_image_drawn_for_each():
    images = torch.arange(1.0, 1 + 200 * 2 * 3 * 4).reshape(200, 2, 3, 4)
    found = augmented(images, AugmentOptions(crop=2), drawing())
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
        found, augmented(images, AugmentOptions(crop=2), drawing())
    )


def test_about_half_of_the_images_are_mirrored():
    images = torch.rand(400, 1, 2, 3, generator=drawing(1))
    found = augmented(images, AugmentOptions(flip=True), drawing())
    mirrored = (found == images.flip(3)).flatten(1).all(1)
    same = (found == images).flatten(1).all(1)
    assert bool((mirrored ^ same).all()) and 160 < int(mirrored.sum()) < 240


def test_nothing_asked_changes_nothing():
    images = torch.rand(3, 1, 2, 2)
    assert torch.equal(augmented(images, AugmentOptions(), drawing()), images)


def test_a_run_trains_on_them_with_the_same_bits_in_processes(experiment, mean):
    def trained(workers: int, **augment: Any) -> dict[str, bytes]:
        local = LocalOptions(lr=0.05, batch=16, augment=AugmentOptions(**augment))
        run = execute(experiment(mean(), rounds=1, local=local, engine=EngineSpec(workers=workers)))
        return {name: tensor.numpy().tobytes() for name, tensor in run.server.tensors.items()}

    everything: dict[str, Any] = {
        "crop": 1,
        "flip": True,
        "resized_crop": ResizedCropOptions(),
        "colour_jitter": ColourJitterOptions(brightness=0.2, contrast=0.2),
        "mixup": 0.5,
        "cutmix": 1.0,
    }
    one = trained(1, **everything)
    assert one == trained(2, **everything)
    for key in everything:
        assert one != trained(1, **{k: v for k, v in everything.items() if k != key}), key


# ---------------------------------------------------------------- crops of random size


@pytest.mark.parametrize("sides", [(32, 32), (28, 28)])
def test_all_of_a_square_image_is_itself(sides: tuple[int, int]):
    images = torch.rand(5, 3, *sides, generator=drawing())
    options = ResizedCropOptions(scale=(1.0, 1.0), ratio=(1.0, 1.0))
    crop = augmented(images, AugmentOptions(resized_crop=options), drawing())
    # Positions are rounded where a side is not a power of two.
    torch.testing.assert_close(crop, images, rtol=0, atol=0 if sides[0] == 32 else 1e-5)


def test_a_window_is_scaled_as_pytorch_scales_it_alone():
    images = torch.rand(40, 2, 9, 7, generator=drawing(1))
    at = random_windows(images.shape, ResizedCropOptions(), drawing())
    crops = zoomed(images, at)
    for image, crop, (top, left, rows, columns) in zip(images, crops, at.T.tolist(), strict=True):
        window = image[None, :, top : top + rows, left : left + columns]
        alone = functional.interpolate(window, (9, 7), mode="bilinear", antialias=True)
        torch.testing.assert_close(crop, alone[0], rtol=0, atol=1e-5)
    assert len(set(map(tuple, at.T.tolist()))) > 30


def test_windows_have_the_areas_and_ratios_that_were_asked_for():
    options = ResizedCropOptions(scale=(0.2, 0.4), ratio=(0.5, 2.0))
    top, left, rows, columns = random_windows(
        torch.Size([4000, 1, 200, 300]), options, drawing()
    ).double()
    area, ratio = rows * columns / 60_000, columns / rows
    assert 0.198 < area.min() < 0.205 and 0.395 < area.max() < 0.402
    assert 0.495 < ratio.min() < 0.51 and 1.95 < ratio.max() < 2.02
    assert area.mean().item() == pytest.approx(0.3, abs=0.005)
    assert ratio.log().mean().item() == pytest.approx(0, abs=0.03)  # uniform in its logarithm
    for start, length, size in ((top, rows, 200), (left, columns, 300)):
        free = (start.mean() / (size - length).mean()).item()
        assert free == pytest.approx(0.5, abs=0.02) and (start + length).max() <= size


@pytest.mark.parametrize(
    ("shape", "window"), [((24, 40), [0, 7, 24, 26]), ((40, 24), [6, 0, 27, 24])]
)
def test_where_no_window_fits_the_middle_is_taken(shape: tuple[int, int], window: list[int]):
    """As torchvision 0.28 answers."""
    options = ResizedCropOptions(scale=(1.0, 1.0), ratio=(0.9, 1.1))
    drawn = random_windows(torch.Size([1, 3, *shape]), options, drawing())
    assert drawn.flatten().tolist() == window


# ---------------------------------------------------------------- colours

PIXELS = torch.tensor([[0.8, 0.4, 0.2], [0.1, 0.6, 0.5]]).T.reshape(1, 3, 1, 2)
GREYS = (0.2989 * 0.8 + 0.587 * 0.4 + 0.114 * 0.2, 0.2989 * 0.1 + 0.587 * 0.6 + 0.114 * 0.5)


def by_hand(change: str, factor: float) -> Tensor:
    """Torchvision's formulas, pixel by pixel."""
    columns = []
    for (red, green, blue), grey in zip(PIXELS[0, :, 0].T.tolist(), GREYS, strict=True):
        if change == "hue":
            hue, saturation, value = colorsys.rgb_to_hsv(red, green, blue)
            columns.append(list(colorsys.hsv_to_rgb((hue + factor) % 1, saturation, value)))
            continue
        other = {"brightness": 0.0, "contrast": sum(GREYS) / 2, "saturation": grey}[change]
        blend = [factor * x + (1 - factor) * other for x in (red, green, blue)]
        columns.append([min(max(x, 0.0), 1.0) for x in blend])
    return torch.tensor(columns).T.reshape(1, 3, 1, 2)


CHANGES = [
    *itertools.product(("brightness", "contrast", "saturation"), (0.5, 2.0)),
    *itertools.product(("hue",), (-0.5, -0.2, 0.3)),
]


@pytest.mark.parametrize(("change", "factor"), CHANGES)
def test_a_change_of_colours_is_torchvisions_by_hand(change: str, factor: float):
    colours = recoloured(PIXELS, change, torch.full((1, 1, 1, 1), factor)).clamp(0, 1)
    torch.testing.assert_close(colours, by_hand(change, factor), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("change", "factor"), CHANGES)
def test_a_change_of_colours_is_torchvisions(change: str, factor: float):
    theirs = pytest.importorskip("torchvision.transforms.v2.functional")
    images = torch.rand(6, 3, 5, 4, generator=drawing())
    images[0] = images[0, :1]  # greys
    images[1] = images[1].round()
    expected = torch.stack([getattr(theirs, f"adjust_{change}")(x, factor) for x in images])
    ours = recoloured(images, change, torch.full((6, 1, 1, 1), factor)).clamp(0, 1)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)


def test_no_jitter_is_the_identity():
    images = torch.randn(3, 3, 4, 4, generator=drawing())
    pixels = Pixels(torch.tensor([100.0, 120, 90]), torch.tensor([50.0, 60, 70]))
    assert torch.equal(jittered(images, ColourJitterOptions(), drawing(), pixels), images)
    slight = ColourJitterOptions(brightness=1e-7, hue=1e-7)
    raw = images.clamp(-1, 1)  # within the bytes
    torch.testing.assert_close(jittered(raw, slight, drawing(), pixels), raw, rtol=0, atol=1e-4)


def test_colours_change_in_the_range_before_normalisation_each_image_by_itself():
    raw = torch.rand(300, 3, 2, 2, generator=drawing())
    mean, std = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.3, 0.25])

    def form(x: Tensor) -> Tensor:
        return x[:, None, None]

    options = ColourJitterOptions(brightness=0.5, contrast=0.3, saturation=0.4, hue=0.1)
    plain = jittered(raw, options, drawing(3))
    normalised = (raw - form(mean)) / form(std)
    ours = jittered(normalised, options, drawing(3), Pixels(mean * 255, std * 255))
    torch.testing.assert_close(ours * form(std) + form(mean), plain, rtol=0, atol=1e-5)
    assert plain.min() >= 0 and plain.max() <= 1
    bright = jittered(raw * 0.5, ColourJitterOptions(brightness=0.5), drawing()) / (raw * 0.5)
    factors = bright.flatten(1)
    torch.testing.assert_close(factors, factors[:, :1].expand_as(factors))
    assert 0.5 <= factors.min() < 0.52 and 1.48 < factors.max() <= 1.5
    strong = jittered(raw * 0.2, ColourJitterOptions(brightness=3.0), drawing()) / (raw * 0.2)
    assert 0 < strong.min() < 0.1 and 3.9 < strong.max() <= 4.0  # from max(0, 1 - b)


def test_changes_follow_in_an_order_of_each_image():
    image = torch.tensor([0.9, 0.3, 0.1]).reshape(1, 3, 1, 1).repeat(400, 1, 1, 1)
    options = ColourJitterOptions(brightness=0.9, saturation=0.9)
    ours = jittered(image, options, drawing())
    draws = torch.rand(2, 400, generator=drawing())
    first, second = (0.1 + 1.8 * draws)[:, :, None, None, None]
    one = recoloured(recoloured(image, "brightness", first).clamp(0, 1), "saturation", second)
    two = recoloured(recoloured(image, "saturation", second).clamp(0, 1), "brightness", first)
    near = [(ours - x.clamp(0, 1)).abs().flatten(1).amax(1) < 1e-5 for x in (one, two)]
    assert bool((near[0] | near[1]).all())
    assert int((near[0] & ~near[1]).sum()) > 40 and int((near[1] & ~near[0]).sum()) > 40


# ---------------------------------------------------------------- mixtures


def minibatch(count: int = 6) -> Examples:
    images = torch.rand(count, 2, 5, 8, generator=drawing(5))
    return Examples((images,), torch.arange(count) % 3, torch.arange(count))


def test_an_image_that_is_all_of_itself_is_the_identity():
    (images,), targets, _, _ = minibatch()
    assert torch.equal(blended(images, images.flip(0), 1.0), images)
    full, share = pasted(images, images.flip(0), 1.0, (2, 3))
    assert torch.equal(full, images) and share == 1
    logits = torch.randn(6, 3, generator=drawing())
    alone = Examples((), targets, targets)
    same = MixedExamples((), targets[:0], targets, Mix(targets, targets.flip(0), 1.0))
    assert torch.equal(*(target_loss(logits, x, CLASSIFICATION) for x in (alone, same)))


def test_the_share_of_cutmix_is_that_of_the_pixels_exactly():
    ones, zeros = torch.ones(3, 2, 5, 8), torch.zeros(3, 2, 5, 8)
    shares = set()
    for share in (0.0, 0.1, 0.36, 0.75, 0.99):
        for row in range(5):
            for column in range(8):
                images, pixels = pasted(ones, zeros, share, (row, column))
                assert pixels == int((images == ones)[0, 0].sum()) / 40
                assert bool((images == images[:1, :1]).all())
                shares.add(pixels)
                if (row, column) == (2, 4):  # in the middle: of both sides sqrt(1 - λ), rounded
                    side = math.sqrt(1 - share)
                    rows, columns = (2 * (int(n * side) // 2) for n in (5, 8))
                    assert pixels == (40 - rows * columns) / 40
    assert len(shares) > 10


@pytest.mark.parametrize("method", ["mixup", "cutmix"])
def test_a_minibatch_is_mixed_with_itself(method: str):
    examples = minibatch()
    (images,), targets = examples.inputs, examples.targets
    options = AugmentOptions.model_validate({method: 1.0})
    for seed in range(20):
        other = mixed(examples, options, drawing(seed))
        assert other.mix is not None and torch.equal(other.mix.first, targets)
        partners = torch.randperm(6, generator=drawing(seed))
        assert torch.equal(other.mix.second, targets[partners])
        share = other.mix.share
        if method == "mixup":
            expected = share * images + (1 - share) * images[partners]
            torch.testing.assert_close(other.inputs[0], expected)
        else:
            own, theirs = other.inputs[0] == images, other.inputs[0] == images[partners]
            assert bool((own | theirs).all())
            moved = partners != torch.arange(6)
            assert own[moved].float().mean().item() == pytest.approx(share)
    assert mixed(examples, AugmentOptions(flip=True), drawing()) is examples


def test_lambda_is_beta_distributed_and_both_methods_take_turns():
    examples = Examples((torch.zeros(2, 1, 1, 1),), torch.tensor([0, 1]), torch.arange(2))
    generator = drawing()

    def shares(**options: Any) -> Tensor:
        every = (mixed(examples, AugmentOptions(**options), generator).mix for _ in range(3000))
        return torch.tensor([mix.share for mix in every if mix is not None])

    for alpha in (0.2, 1.0, 4.0):
        values = shares(mixup=alpha)
        assert values.mean().item() == pytest.approx(0.5, abs=0.03)
        assert values.var().item() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.08)
    # A window of one pixel's image is empty or all of it: λ is 1 by int(1 · side) // 2 = 0.
    both = shares(mixup=1.0, cutmix=1.0)
    assert (both == 1).float().mean().item() == pytest.approx(0.5, abs=0.04)


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(80, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1))


@pytest.mark.parametrize("weights", [None, (1.0, 2.0, 0.5)])
def test_training_takes_the_loss_of_both_targets_by_their_shares(weights):
    """By hand: one step of SGD on λ · loss(y) + (1 - λ) · loss(y[perm])."""
    torch.manual_seed(0)
    net, examples = Linear(), minibatch()
    graph, state = ag.trace(net, examples.inputs[0])
    local = LocalOptions(lr=0.5, batch=6, augment=AugmentOptions(mixup=1.0))
    learning = CLASSIFICATION
    if weights is not None:
        learning = trained_task(CLASSIFICATION, LocalOptions(class_weights=weights), (2, 2, 2))
    shard = Shard(examples.inputs, examples.targets, (2, 2, 2))
    work = Work(0, 1, 1, graph, state, shard, local, seeded(0, "mix"), learning=learning)
    outcome = Train()(work)
    draw = seeded(0, "mix")
    (batch,) = shard.batches(draw, 6)
    mixture = mixed(batch, AugmentOptions(mixup=1.0), draw)
    assert mixture.mix is not None and 0.01 < mixture.mix.share < 0.99
    scales = None if weights is None else torch.tensor(weights)
    share = mixture.mix.share
    logits = net(mixture.inputs[0])
    one = functional.cross_entropy(logits, batch.targets, scales)
    two = functional.cross_entropy(logits, mixture.mix.second, scales)
    loss = share * one + (1 - share) * two
    assert outcome.metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
    (gradient,) = torch.autograd.grad(loss, [net.head.weight])
    expected = net.head.weight - 0.5 * gradient
    torch.testing.assert_close(outcome.state["head.weight"], expected)


# FedGKT's answers of the server are to images that are not mixed.
REFUSING = ("feddistill", "fedgkt", "fedproto")


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_learns_from_the_other_target_or_refuses_mixtures(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """With λ = 0 only the other target counts, whatever the first one is."""
    calls: list[Mix | None] = []

    def trained(wrong: bool) -> Run:
        def mixing(examples: Examples, *_: object) -> Examples:
            targets = examples.targets
            mix = Mix(targets.roll(1), targets, 0.0) if wrong else None
            calls.append(mix)
            return examples if mix is None else MixedExamples(*examples[:3], mix)

        monkeypatch.setattr("archgraph.federation.training.mixed", mixing)
        spec = ag.load_experiment(experiment_of(name, tmp_path))
        local = spec.local.model_copy(update={"augment": AugmentOptions(mixup=1.0)})
        engine = spec.engine.model_copy(update={"workers": 1})
        changes = {"local": local, "engine": engine, "rounds": 1}
        return ag.run(spec.model_copy(update=changes), progress=False)

    try:
        run = trained(wrong=True)
    except ag.RunError as error:
        assert "mixed images" in str(error)
        assert name in REFUSING
        return
    assert any(calls) and name not in REFUSING
    plain = trained(wrong=False)
    for one, other in zip(run.rounds[0]["clients"], plain.rounds[0]["clients"], strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
    for key, value in run.server.tensors.items():
        torch.testing.assert_close(value, plain.server.tensors[key], rtol=1e-4, atol=1e-5)


def test_a_program_that_reads_one_target_of_mixed_images_is_refused() -> None:
    """Without ``unmixable`` it would learn the first class alone."""

    @dataclass(frozen=True)
    class FirstTarget:
        def __call__(self, outputs: Tensor, examples: Examples, work: Work) -> Tensor:
            return nn.functional.cross_entropy(outputs, examples.targets)

    @dataclass(frozen=True)
    class Mine(FedAvg):
        def send(self, *arguments: Any) -> Task:
            return replace(super().send(*arguments), program=Train(FirstTarget()))

    spec = spec_of([1, 4, 4], mixup=0.2)
    images = torch.rand(20, 1, 4, 4), torch.arange(20) % 2
    prepared = prepare(ag.load_experiment(spec), data=(images, images))
    with pytest.raises(ag.RunError, match="mixed images have two targets each"):
        execute(replace(prepared, strategy=Mine()), progress=False)


# ---------------------------------------------------------------- what is refused


def spec_of(shape: list[int], *, out: int = 2, strategy: str = "fedavg", **local: Any) -> Any:
    family: dict[str, Any] = {
        "model": {
            "archgraph": 1,
            "name": "flat",
            "inputs": {"x": shape},
            "sections": [{"name": "head", "steps": ["flatten", {"linear": out}]}],
        },
        "clients": [{"name": "all", "count": 2}],
    }
    return {
        "archgraph": 1,
        "name": "flat",
        "family": family,
        "strategy": {strategy: {}},
        "rounds": 1,
        "local": {"augment": local},
    }


def split(inputs: Tensor, targets: Any) -> Any:
    few = {k: v[:4] for k, v in targets.items()} if isinstance(targets, dict) else targets[:4]
    return (inputs, targets), (inputs[:4], few)


BYTES = (torch.rand(8, 1, 4, 4, generator=drawing()) * 255).byte()
CLASSES = torch.arange(8) % 2
COLOURED = BYTES.repeat(1, 3, 1, 1)
JITTER = {"brightness": 0.2}
MINE = {"objective": "python:torch.nn.functional:mse_loss"}


@pytest.mark.parametrize(
    ("spec", "data", "message"),
    [
        (
            spec_of([3], flip=True),
            split(torch.rand(8, 3), CLASSES),
            r"local\.augment: needs images; found .*\[batch, 3\]",
        ),
        (
            spec_of([1, 4, 4], mixup=1.0, out=1),
            split(BYTES, torch.rand(8)),
            r"augment\.mixup: mixes two .* no single class; found regression .* classification",
        ),
        (
            spec_of([1, 4, 4], cutmix=1.0),
            split(BYTES, torch.rand(8, 2) > 0.5),
            r"augment\.cutmix: mixes two .* found multilabel",
        ),
        (
            spec_of([1, 4, 4], mixup=1.0, strategy="fedproto"),
            split(BYTES, CLASSES),
            r"augment\.mixup: the method cannot learn from mixed images: prototypes are",
        ),
        (
            {**spec_of([1, 4, 4], flip=True), "task": MINE},
            split(BYTES, torch.arange(128).view(8, 4, 4) % 2),
            r"augment\.flip: moves pixels of images, and not .* maps .* found targets \[4, 4\]",
        ),
        (
            {**spec_of([1, 4, 4], resized_crop={}), "task": MINE},
            split(BYTES, {"boxes": torch.rand(8, 2, 4)}),
            r"augment\.resized_crop: moves pixels .* found targets boxes float32 \[·, ·\]",
        ),
        (
            spec_of([1, 4, 4], colour_jitter={"hue": 0.1}),
            split(BYTES, CLASSES),
            r"colour_jitter\.hue: needs images of red, .*; found 1 channel .*three channels",
        ),
        (
            spec_of([3, 4, 4], colour_jitter=JITTER),
            split((COLOURED / 127.5) - 1, CLASSES),
            r"colour_jitter: does not know the range .* values from -1 to .*between 0 and 1",
        ),
    ],
)
def test_what_cannot_be_changed_or_mixed_is_refused(spec: Any, data: Any, message: str):
    with pytest.raises(ag.ArchGraphError, match=message):
        prepare(spec, data=data, python=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"resized_crop": {"scale": [1.0, 0.5]}},
            r"resized_crop\.scale: begins with the larger number; found \[1, 0.5\]",
        ),
        ({"resized_crop": {"ratio": [2, 0.5]}}, r"resized_crop\.ratio: begins with the larger"),
        ({"colour_jitter": {"hue": 0.7}}, r"colour_jitter\.hue: .* expected 0.5 or less"),
        ({"mixup": 0}, r"augment\.mixup: .* expected more than 0"),
        ({"color_jitter": {"hue": 0.1}}, r"it is 'colour_jitter' here"),
    ],
)
def test_options_are_in_their_ranges(options: Any, message: str):
    with pytest.raises(ag.ArchGraphError, match=message):
        prepare(spec_of([3, 4, 4], **options), data=split(COLOURED, CLASSES))


@pytest.mark.parametrize("images", [COLOURED, COLOURED / 255], ids=["bytes", "floats"])
def test_images_of_known_range_are_jittered(images: Tensor, monkeypatch: pytest.MonkeyPatch):
    spec = spec_of([3, 4, 4], colour_jitter={**JITTER, "hue": 0.1}, mixup=0.2)
    setup = prepare(spec, data=split(images, CLASSES))
    state = setup.world.state
    work = setup.work(0, 1, setup.world.tiers[0].graph, state, drawing(), keep={})
    (first, *_) = work.data.batches(None, 4)
    raw = (
        first.inputs[0]
        if work.pixels is None
        else first.inputs[0]
        .mul(work.pixels.std[:, None, None])
        .add(work.pixels.mean[:, None, None])
        / 255
    )
    assert 0 <= raw.min() and raw.max() <= 1 and torch.equal(raw[:, 0], raw[:, 1])
    seen: list[Pixels | None] = []

    def noted(images: Tensor, options: AugmentOptions, draw: Any, pixels: Pixels | None) -> Tensor:
        seen.append(pixels)
        return augmented(images, options, draw, pixels)

    monkeypatch.setattr("archgraph.federation.training.augmented", noted)
    Train()(work)
    assert seen and all(pixels is work.pixels for pixels in seen)


def test_further_inputs_are_not_mixed():
    spec = spec_of([1, 4, 4], mixup=1.0)
    model = spec["family"]["model"]
    model["inputs"] = {"x": [1, 4, 4], "age": [1]}
    model["sections"] = [
        {"name": "image", "steps": ["flatten", {"linear": 3}]},
        {"name": "head", "steps": [{"cat": "age"}, {"linear": 2}]},
    ]
    inputs = {"x": BYTES, "age": torch.rand(8, 1)}
    first = {name: x[:4] for name, x in inputs.items()}
    with pytest.raises(ag.ArchGraphError, match=r"augment\.mixup: mixes images, .*found x, age"):
        prepare(spec, data=((inputs, CLASSES), (first, CLASSES[:4])))


def test_a_kind_of_client_is_refused_where_it_says_so(tmp_path: Path):
    file = experiment_of("fedproto", tmp_path)
    kinds = "\nlocal_of:\n  half:\n    augment:\n      mixup: 0.2\n"
    file.write_text(file.read_text() + kinds)
    line = 1 + file.read_text().splitlines().index("      mixup: 0.2")
    where = rf"fedproto\.yaml:{line}: local_of\.half\.augment\.mixup: the method"
    with pytest.raises(ag.ArchGraphError, match=where):
        prepare(file)


def test_public_images_of_another_data_set_keep_their_colours(tmp_path: Path):
    file = experiment_of("fedmd", tmp_path)
    text = file.read_text().replace("public: 20", "public: {dataset: digits, limit: 40}")
    file.write_text(text.replace("local: {", "local: {augment: {colour_jitter: {contrast: 1}}, "))
    with pytest.raises(ag.ArchGraphError, match=r"colour_jitter: undoes the normalisation"):
        prepare(file)


def test_fedins_pairs_of_features_are_no_images(tmp_path: Path):
    """Its second pass is over features, which nothing crops."""
    file = experiment_of("fedin", tmp_path)
    text = file.read_text().replace("{fedin: {}}", "{fedin: {step: sequential}}")
    file.write_text(text.replace("local: {", "local: {augment: {flip: true, mixup: 1}, "))
    assert ag.run(file, progress=False).sound
