"""Metrics of torchmetrics by name, computed over the whole set."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from archgraph.errors import SpecError
from archgraph.federation import LearningTask, Metric
from archgraph.federation.metrics import IGNORED, METRICS, TargetForm, aligned
from archgraph.hints import unknown
from archgraph.plain import Json

EXTRA = "pip install 'archgraph[metrics]'"
# What metrics are called in files, where torchmetrics says it at length.
SHORT = {
    "f1": "F1Score",
    "fbeta": "FBetaScore",
    "iou": "JaccardIndex",
    "mcc": "MatthewsCorrCoef",
    "kappa": "CohenKappa",
    "mse": "MeanSquaredError",
    "mae": "MeanAbsoluteError",
    "mape": "MeanAbsolutePercentageError",
    "r2": "R2Score",
    "pearson": "PearsonCorrCoef",
    "spearman": "SpearmanCorrCoef",
}
_VARIANTS = ("Binary", "Multiclass", "Multilabel")
# Averages of metrics that a task has itself: with options they mean what they mean without.
_AVERAGES: Mapping[tuple[str, TargetForm], str] = {
    ("accuracy", "classes"): "micro",
    ("accuracy", "labels"): "micro",
    ("f1", "labels"): "micro",
}


def torch_metric(
    name: str,
    options: Mapping[str, Json],
    task: LearningTask,
    classes: int,
    where: str,
    *,
    numbers: int = 1,
    examples: int = 4,
) -> Metric:
    """Make a metric of torchmetrics.

    Args:
        name: Its name: that of its class, in lower case with or without underscores, or a key of
            ``SHORT``.
        options: Arguments of its class.
        task: What is learned.
        classes: Number of classes or labels.
        where: Place in a file, for errors.
        numbers: How many numbers a target has, if it is numbers.
        examples: How many examples there are to test on.

    Raises:
        SpecError: If torchmetrics is not installed or does not have it, it does not take the
            options or such targets, or it is not one number.
    """
    ours = [known for known, form in METRICS if form == task.form]
    try:
        import torchmetrics
    except ImportError as error:
        facts = unknown(name, ours)
        facts["hint"] = f"for metrics of torchmetrics, {EXTRA}"
        raise SpecError("unknown metric", where=where, **facts) from error
    except RuntimeError as error:  # a torchvision that does not fit PyTorch: torchmetrics loads it
        raise SpecError(
            "torchmetrics cannot be imported",
            where=where,
            found=str(error).splitlines()[0],
            hint="install a torchvision for this PyTorch, or remove torchvision",
        ) from error
    classed = task.form in ("classes", "labels")
    module = torchmetrics.classification if classed else torchmetrics.regression
    known = {_plain(n): n for n in module.__all__ if not n.startswith(_VARIANTS)}
    full = known.get(_plain(SHORT.get(name, name)))
    if full is None:
        shorts = [short for short, long in SHORT.items() if _plain(long) in known]
        every = [*ours, *shorts, *map(_snake, known.values())]
        raise SpecError("unknown metric", where=where, **unknown(name, every))
    arguments = dict(options)
    if task.form in ("classes", "labels"):
        average = _AVERAGES.get((name, task.form))
        arguments = _of_task(module, full, options, task.form, classes, average)
    binary = classes == 2 and arguments.get("task") == "binary"
    # A partial of a module's function can be pickled: workers test models, too.
    make = functools.partial(_created, getattr(module, full), tuple(arguments.items()))
    try:
        metric = make()
        with _silent():
            shape = (classes,) if classed else (numbers,)[: numbers > 1]
            metric.update(*_trial(task.form, min(examples, 4), shape, binary=binary))
            value = metric.compute()
    except Exception as error:  # whatever its constructor says of the options
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SpecError(
            "cannot be computed",
            where=where,
            found=f"{full}: {reason}",
            hint=f"a target has {numbers} numbers: name a metric of several, mae or r2 say"
            if numbers > 1
            else "its options are those of its class in torchmetrics",
        ) from error
    if not isinstance(value, Tensor) or value.numel() != 1:
        shape = tuple(value.shape) if isinstance(value, Tensor) else value
        raise SpecError(
            "is not one number",
            where=where,
            found=f"{full}, {shape}",
            hint="leave out what asks for one of each output"
            if task.form == "values"
            else "choose an average: {average: macro}, say",
        )
    form: _Whole | _Counted
    if task.per_example or task.form in ("labels", "values"):
        form = _Whole(make, task.form, binary)
    elif _summed(metric):
        form = _Counted(make, binary)
    else:
        raise SpecError(
            "would hold the predictions of all targets",
            where=where,
            found=full,
            hint="give it thresholds: {thresholds: 100}, say",
        )
    label = "_".join([name, *map(str, options.values())])
    better = metric.higher_is_better
    return Metric(label, better, form.rows, form.value, frozenset({task.form}))


def _of_task(
    module: Any,
    full: str,
    options: Mapping[str, Json],
    form: TargetForm,
    classes: int,
    average: str | None,
) -> dict[str, Json]:
    """Return the arguments of a metric of classes or labels.

    1. Of two classes it is torchmetrics' binary one, unless an option is for several (`average`).
    2. Its average is the default of its class for the task (`MulticlassF1Score`: macro): the class
       that serves all tasks says `micro`, which for one class per example is the accuracy.
    """
    binary = getattr(module, f"Binary{full}", None)
    if form == "labels":
        facts = {"task": "multilabel", "num_labels": classes}
    elif classes == 2 and binary and options.keys() <= inspect.signature(binary).parameters.keys():
        facts = {"task": "binary", "ignore_index": IGNORED}  # 1
    else:
        facts = {"task": "multiclass", "num_classes": classes, "ignore_index": IGNORED}
    facts |= options
    kind = getattr(module, f"{facts['task']}".capitalize() + full, None)
    if "average" in inspect.signature(getattr(module, full).__new__).parameters and kind:  # 2
        known = inspect.signature(kind).parameters
        if "average" in known:
            return {"average": average or known["average"].default, **facts}
    return facts


@dataclass(frozen=True)
class _Whole:
    """A metric of predictions and targets that are kept until it is computed.

    Attributes:
        make: Makes it.
        form: Form of a target.
        binary: Whether it takes the probability of the second of two classes.
    """

    make: functools.partial[Any]
    form: TargetForm
    binary: bool = False

    def rows(self, predictions: Tensor, targets: Tensor) -> Tensor:
        outputs = aligned(predictions, targets) if self.form == "values" else predictions
        # One tensor per batch, predictions beside targets: in a float, classes stay exact to 2^24.
        return torch.cat([x.reshape(len(x), -1).float() for x in (outputs, targets)], 1)

    def value(self, rows: Tensor, count: int) -> float:
        if not len(rows):
            return 0.0
        metric = self.make()
        if self.form == "classes":
            outputs, true = rows[:, :-1].softmax(1), rows[:, -1].long()
            outputs = outputs[:, 1] if self.binary else outputs
        else:
            outputs, true = rows.chunk(2, 1)
            if self.form == "labels":
                outputs, true = outputs.sigmoid(), true.int()
            if self.form == "values" and outputs.shape[1] == 1:
                outputs, true = outputs[:, 0], true[:, 0]
        with _silent():
            metric.update(outputs.contiguous(), true.contiguous())
            return float(metric.compute())


@dataclass(frozen=True)
class _Counted:
    """A metric whose state is a sum over examples: that of each batch is kept.

    Attributes:
        make: Makes it.
        binary: Whether it takes the probability of the second of two classes.
    """

    make: functools.partial[Any]
    binary: bool = False

    def rows(self, predictions: Tensor, targets: Tensor) -> Tensor:
        metric = self.make().to(predictions.device)
        with _silent():
            # torchmetrics takes classes on the second axis.
            outputs = predictions.movedim(-1, 1).softmax(1)
            metric.update(outputs[:, 1] if self.binary else outputs, targets)
        states = [getattr(metric, name).double().flatten() for name in metric.metric_state]
        return torch.cat(states)[None]

    def value(self, rows: Tensor, count: int) -> float:
        metric, total, start = self.make(), rows.sum(0), 0
        for name, state in metric.metric_state.items():
            part = total[start : start + state.numel()]
            setattr(metric, name, part.view(state.shape).to(state.dtype))
            start += state.numel()
        with _silent():
            return float(metric.compute())


def _created(kind: Any, options: tuple[tuple[str, Any], ...]) -> Any:
    with _silent():
        return kind(**dict(options))


def _summed(metric: Any) -> bool:
    """Return whether states of batches add up: then a row per batch is all that is held."""
    reductions = [metric._reductions[name] for name in metric.metric_state]
    return all(getattr(one, "__name__", "") == "dim_zero_sum" for one in reductions)


def _trial(
    form: TargetForm, examples: int, shape: tuple[int, ...], *, binary: bool
) -> tuple[Tensor, Tensor]:
    """Predictions and targets of a few examples; predictions of one have this shape."""
    generator = torch.Generator().manual_seed(0)
    said = torch.randn(examples, *shape, generator=generator)
    if form == "classes":
        return said[:, 1] if binary else said, torch.arange(examples) % shape[0]
    if form == "labels":
        return said, torch.arange(said.numel()).view(said.shape) % 2
    return said, torch.randn(examples, *shape, generator=generator)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Silence torchmetrics: its warnings (a class without examples) would come in every round."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _snake(name: str) -> str:
    """Write the name of a class with underscores: ``R2Score`` as ``r2_score``."""
    return re.sub("(?<=[a-z])(?=[A-Z])|(?<=.)(?=[A-Z][a-z])", "_", name).lower()
