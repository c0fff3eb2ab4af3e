"""What the options of local training need: of the strategy, the data, the task and the models."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from archgraph.data import Dataset
from archgraph.engine.facts import local_changes
from archgraph.engine.fit import check_images
from archgraph.errors import RunError
from archgraph.federation import LearningTask, Strategy
from archgraph.federation.family import Family
from archgraph.federation.metrics import cross_entropy
from archgraph.federation.training import optimiser
from archgraph.graph.ir import ArchGraph
from archgraph.language import ExperimentSpec
from archgraph.language.local import AugmentOptions, ColourJitterOptions, LocalOptions
from archgraph.ops.schema import torch_dtype


def check_local(
    spec: ExperimentSpec,
    by_kind: Mapping[str, LocalOptions],
    strategy: Strategy,
    family: Family,
    data: Dataset,
    learning: LearningTask,
) -> None:
    """Check that data, task, strategy and models have what the options need.

    Raises:
        RunError: Names the key that has nothing to change, or nothing that it can change.
    """
    changes = local_changes(spec)
    for tier in family.clients:
        try:
            local = by_kind.get(tier.name, spec.local)
            _check(local, tier.graph, data, learning)
            if local.augment is not None:
                _check_augment(local.augment, strategy, data, learning, spec.public)
        except RunError as error:
            keys = str(error.where).split(".")[1:]
            for document, at, one in reversed(changes[tier.name]):
                if keys[0] in one.model_fields_set:
                    error.where = document.where((*at, *keys))
                    raise
            with spec.locating("local"):  # wrong for any kind of client
                raise


def _check(local: LocalOptions, graph: ArchGraph, data: Dataset, learning: LearningTask) -> None:
    """Check the options of one kind of client; errors say `local.KEY`."""
    for key in ("class_weights", "label_smoothing"):
        if getattr(local, key) is not None:
            _check_loss(f"local.{key}", data, learning)
    weights = local.class_weights
    if isinstance(weights, tuple) and (len(weights) != data.classes or not any(weights)):
        raise RunError(
            "must have a weight for each class, and one above 0",
            where="local.class_weights",
            found=f"{len(weights)} weights" if any(weights) else "zeros alone",
            expected=f"{data.classes} weights, in the order of the classes ({data.name})",
        )
    leaves = [p for p in graph.params if p.trainable and p.role == "parameter"]
    blank = [torch.empty(p.shape, dtype=torch_dtype(p.dtype), device="meta") for p in leaves]
    try:  # Muon takes matrices alone
        if blank:
            optimiser(local, blank, 1, 1)
    except ValueError as error:
        raise RunError(
            f"{local.optimiser_name} cannot train this model: {error}",
            where="local.optimiser",
            found=graph.name or "model",
            hint="choose another optimiser, or freeze what it cannot train (`train_only`)",
        ) from None


def _check_loss(where: str, data: Dataset, learning: LearningTask) -> None:
    """Check that a task has the loss that weights of classes and smoothing are options of."""
    if learning.form != "classes":
        raise RunError(
            "changes the cross-entropy of classes, which this task does not have",
            where=where,
            found=f"{learning.name} ({data.name})",
            expected="classification, segmentation or next_token",
            hint="remove it, or write an objective of your own (`task.objective`)",
        )
    if learning.loss is not cross_entropy:
        raise RunError(
            "changes the task's cross-entropy, which an objective of yours replaces",
            where=where,
            hint="remove it, and let the objective do so",
        )


def _check_augment(
    options: AugmentOptions,
    strategy: Strategy,
    data: Dataset,
    learning: LearningTask,
    public: object,
) -> None:
    """Check that there are images, whose colours are known and that can be mixed as they say."""
    check_images(options, data)
    moving = [key for key in ("crop", "resized_crop", "flip") if getattr(options, key)]
    if moving and (data.fields is not None or data.train.targets.dim() > 2):
        raise RunError(
            "moves pixels of images, and not the boxes or maps that are their targets",
            where=f"local.augment.{moving[0]}",
            found=f"targets {data.fields or list(data.train.targets.shape[1:])} ({data.name})",
            expected="targets without positions in the image",
            hint="change image and target together in the dataset's __getitem__; colour_jitter is "
            "possible here",
        )
    if options.colour_jitter is not None:
        _check_colours(options.colour_jitter, data, public)
    for key in ("mixup", "cutmix"):
        if getattr(options, key) is None:
            continue
        where, hint = f"local.augment.{key}", "remove it"
        if not learning.per_example:
            raise RunError(
                "mixes two images and the losses of their classes, and here an image has no "
                "single class",
                where=where,
                found=f"{learning.name} ({data.name})",
                expected="classification",
                hint=hint,
            )
        if strategy.unmixable:
            message = f"the method cannot learn from mixed images: {strategy.unmixable}"
            raise RunError(message, where=where, hint=hint)
        if data.train.beside:
            inputs = ", ".join(data.inputs)
            message = "mixes images, and the model has further inputs"
            raise RunError(message, where=where, found=inputs, expected="one input", hint=hint)


def _check_colours(options: ColourJitterOptions, data: Dataset, public: object) -> None:
    """Check that images have the colours that change, in a known range."""
    where, channels = "local.augment.colour_jitter", data.shape[0]
    for key in ("saturation", "hue"):
        if getattr(options, key) and channels != 3:
            raise RunError(
                "needs images of red, green and blue",
                where=f"{where}.{key}",
                found=f"{channels} channel{'s' * (channels > 1)} ({data.name})",
                expected="three channels",
                hint="remove it; brightness and contrast change any image",
            )
    if not isinstance(public, int | None):
        raise RunError(
            "undoes the normalisation of the run's data, and public images of another data set "
            "have one of their own",
            where=where,
            hint="take `public` out of the training examples, `public: 200`",
        )
    images = (data.train if data.train.stream is None else data.test).inputs
    least, most = map(float, images.aminmax())
    if data.train.mean is None and (least < 0 or most > 1):
        raise RunError(
            "does not know the range of these images",
            where=where,
            found=f"values from {least:.3g} to {most:.3g} ({data.name})",
            expected="bytes, or numbers between 0 and 1",
            hint="give images as they are before you normalise them; bytes are normalised here",
        )
