"""What the options of local training need: of the strategy, the data, the task and the models."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from archgraph.analysis.roles import head
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
from archgraph.language.local import LocalOptions
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
            _check(by_kind.get(tier.name, spec.local), strategy, tier.graph, data, learning)
        except RunError as error:
            key = str(error.where).removeprefix("local.")
            for document, at, one in reversed(changes[tier.name]):
                if key in one.model_fields_set:
                    error.where = document.where((*at, key))
                    raise
            with spec.locating("local"):  # wrong for any kind of client
                raise


def _check(
    local: LocalOptions,
    strategy: Strategy,
    graph: ArchGraph,
    data: Dataset,
    learning: LearningTask,
) -> None:
    """Check the options of one kind of client; errors say `local.KEY`."""
    for key in sorted(strategy.unread):
        if getattr(local, key) != LocalOptions.model_fields[key].default:
            where = f"local.{key}"
            raise RunError("the strategy's clients do not read it", where=where, hint="remove it")
    check_images(local.augment, data)
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
    if local.contrast is not None and head(graph) is None:
        message = "compares features, and the model has no layer behind them"
        raise RunError(message, where="local.contrast", found=graph.name or "model")
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
