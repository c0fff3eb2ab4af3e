"""Check options of local training against the data, the task and the models."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import torch

from archgraph.data import Dataset
from archgraph.engine.facts import family_of
from archgraph.engine.fit import check_images
from archgraph.engine.task import OwnLoss
from archgraph.errors import RunError
from archgraph.federation import LearningTask
from archgraph.federation.family import Family
from archgraph.federation.training_loss import trained_task
from archgraph.federation.transforms import transform_images
from archgraph.graph.ir import ArchGraph
from archgraph.language import ExperimentSpec
from archgraph.language.local import LocalOptions
from archgraph.language.named import LibraryClass
from archgraph.ops.schema import torch_dtype


def check_local(
    spec: ExperimentSpec,
    by_kind: Mapping[str, LocalOptions],
    family: Family,
    data: Dataset,
    learning: LearningTask,
) -> None:
    """Check that data, task and models have what the options need.

    Raises:
        RunError: If an option would have no effect or cannot be applied. The message names its key.
    """
    written = family_of(spec)
    for index, tier in enumerate(family.clients):
        try:
            local = by_kind.get(tier.name, spec.local)
            _check(local, tier.graph, spec.rounds)
            if local.loss is not None:
                _check_loss(local, data, learning)
            if local.transforms is not None:
                _check_transforms(local.transforms, data, spec.public)
        except RunError as error:
            keys = str(error.where).split(".")[1:]
            local_keys = written.clients[index].local
            if local_keys is not None and keys[0] in local_keys.model_fields_set:
                at = ("clients", index, "local")
                error.where = written.document_of(at).where((*at, *keys))
                raise
            with spec.locating("local"):  # wrong for all kinds of client
                raise


def _check(local: LocalOptions, graph: ArchGraph, rounds: int) -> None:
    """Check optimiser and schedule of one kind of client; errors name the key in `local`."""
    leaves = [p for p in graph.params if p.trainable and p.role == "parameter"]
    blank = [torch.empty(p.shape, dtype=torch_dtype(p.dtype), device="meta") for p in leaves]
    try:  # for example, Muon takes only matrices
        if blank:
            local.chosen.make({"params": blank})
    except (ValueError, RuntimeError) as error:
        raise RunError(
            f"PyTorch rejects {local.chosen.title}: {error}",
            where="local.optimiser",
            found=graph.name or "model",
            hint="choose another optimiser, or freeze the parameters that it cannot train "
            "(`train_only`)",
        ) from None
    # The number of steps is unknown: the schedule is created, and its first step is checked.
    local.settings_at(rounds if local.over is None else 1, rounds, 1, 1000)


def _check_loss(local: LocalOptions, data: Dataset, learning: LearningTask) -> None:
    """Check that a loss accepts outputs and targets of the task, on examples of zeros."""
    assert local.loss is not None
    title, where = local.loss.title, "local.loss"
    if isinstance(learning.loss, OwnLoss):
        raise RunError(
            "would replace the objective of `task`",
            where=where,
            found=title,
            hint="remove `local.loss`, or the objective",
        )
    classes = data.classes or 1
    if learning.form == "classes":  # more examples than classes: losses of numbers do not fit
        targets = torch.zeros(classes + 1, dtype=torch.long)
        predictions = torch.zeros(classes + 1, classes)
    else:
        predictions = targets = torch.zeros(2, *data.train.targets.shape[1:])
    problem = ""
    try:
        with warnings.catch_warnings(action="ignore"):
            trained_task(learning, local).loss(predictions, targets)
    except (ValueError, RuntimeError, TypeError) as error:
        problem = str(error).partition("\n")[0]
    if problem:
        raise RunError(
            f"{title} does not accept outputs and targets of the task: {problem}",
            where=where,
            found=f"{learning.name} ({data.name})",
        )


def _check_transforms(transforms: Sequence[LibraryClass], data: Dataset, public: object) -> None:
    """Check that inputs are images with known range, and that transforms keep their shape."""
    check_images(data)
    where = "local.transforms"
    if data.train.targets.dim() > 2:
        raise RunError(
            "transforms would change the images, but not the boxes or maps in their targets",
            where=where,
            found=f"targets {list(data.train.targets.shape[1:])} ({data.name})",
            expected="targets that do not depend on positions in the image",
            hint="transform image and target together in the dataset's __getitem__",
        )
    if not isinstance(public, int | None):
        raise RunError(
            "transforms need the normalisation of the run's data, but the public data set has "
            "another one",
            where=where,
            hint="use training examples as public examples, e.g. `public: 200`",
        )
    images = (data.train if data.train.stream is None else data.test).inputs
    least, most = map(float, images.aminmax())
    if data.train.mean is None and (least < 0 or most > 1):
        raise RunError(
            "take images whose values are between 0 and 1",
            where=where,
            found=f"values from {least:.3g} to {most:.3g} ({data.name})",
            hint="pass bytes, which are normalised here, or images before you normalise them",
        )
    shape = _transformed_shape(transforms, data)
    if shape != data.shape:
        raise RunError(
            "must return images of the same shape",
            where=where,
            found=list(shape),
            expected=f"{list(data.shape)} ({data.name})",
        )


def _transformed_shape(transforms: Sequence[LibraryClass], data: Dataset) -> tuple[int, ...]:
    """Return the shape of an image of zeros after the transforms.

    Raises:
        RunError: If a transform does not return a tensor.
    """
    image = torch.zeros(1, *data.shape)
    for at, one in enumerate(transforms):
        try:
            with torch.random.fork_rng(devices=()):
                image = transform_images(image, [one], None)
        except (ValueError, TypeError, RuntimeError, AttributeError) as error:  # torchvision's
            raise RunError(
                f"cannot change these images: {error}",
                where=f"local.transforms.{at}",
                found=f"{one.title}, {list(data.shape)} ({data.name})",
            ) from None
    return tuple(image.shape[1:])
