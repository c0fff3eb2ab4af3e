"""Predictions of models on test examples, and their metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from archgraph.data import Split
from archgraph.federation import LearningTask, Metric, Predict, mask_absent
from archgraph.federation.learning import CLASSIFICATION
from archgraph.federation.metrics import IGNORED
from archgraph.processes.isolation import one_thread
from archgraph.processes.process import Died
from archgraph.processes.workers import Workers
from archgraph.states.copies import to_device


@dataclass(frozen=True, eq=False)
class Answers:
    """Values of each test example, from which a model's metrics are computed.

    Attributes:
        metrics: The metrics.
        rows: Dict from metric to the values of each example (see :class:`.Metric`),
            ``[example, ...]``.
        targets: Number of targets of each example that are not ignored, ``[example]``.
    """

    metrics: Sequence[Metric]
    rows: Mapping[str, Tensor]
    targets: Tensor

    def summary(self, chosen: Sequence[int] | slice | Tensor = slice(None)) -> dict[str, float]:
        """Return the metrics of the chosen examples; NaN if all their targets are ignored.

        Example:
            >>> from archgraph.federation.metrics import METRICS
            >>> hits = {"accuracy": torch.tensor([1, 0])}
            >>> Answers([METRICS["accuracy", "classes"]], hits, torch.ones(2)).summary()
            {'accuracy': 0.5}
        """
        count = int(self.targets[chosen].sum())
        if not count:  # a metric of no targets
            return {m.name: math.nan for m in self.metrics}
        return {m.name: m.value(self.rows[m.name][chosen], count) for m in self.metrics}

    @property
    def right(self) -> Tensor:
        """1 for each example that was classified correctly, else 0; int64 ``[example]``."""
        return self.rows["accuracy"].long()

    def matched(self, targets: Tensor, shares: Sequence[Sequence[float]]) -> list[float]:
        """Return each client's expected accuracy on test data with its proportions of the classes.

        This is Σ_c p_c · (accuracy on examples of class c), where p_c is the client's proportion of
        class c. It is the mean over all test sets that could be drawn with these proportions
        (RecipFL, §5.1, draws one). Classes without a test example are ignored, and the other
        proportions are divided by their sum.

        Args:
            targets: Class of each example, ``[example]``; -100 is ignored.
            shares: Proportions of the classes per client, up to a factor (for example, numbers of
                examples), ``[client, class]``.

        Example:
            >>> hits = {"accuracy": torch.tensor([1, 0, 1])}
            >>> Answers([], hits, torch.ones(3)).matched(torch.tensor([0, 0, 1]), [(3, 1, 4)])
            [0.625]
        """
        counted = targets != IGNORED
        hits, targets = self.rows["accuracy"][counted].double(), targets[counted]
        mixtures = torch.tensor(shares, dtype=torch.float64)
        classes = mixtures.shape[1]
        count = torch.bincount(targets, minlength=classes)
        rates = torch.bincount(targets, hits, classes) / count.clamp(min=1)
        mixtures = mixtures * (count > 0)
        # Not a matrix product, so that the bits do not depend on the choice of clients.
        sums = zip((mixtures * rates).sum(1).tolist(), mixtures.sum(1).tolist(), strict=True)
        return [right / total if total else math.nan for right, total in sums]


def answers(
    module: nn.Module,
    data: Split,
    *,
    learning: LearningTask = CLASSIFICATION,
    predict: Predict | None = None,
    masks: Sequence[Tensor] = (),
    batch: int = 500,
    device: str = "cpu",
    workers: Workers | None = None,
) -> list[Answers]:
    """Test a module on examples, once without a mask of classes and once with each mask.

    The module runs in evaluation mode on one thread. Returns a list with the result without a mask,
    followed by the result for each mask.

    Args:
        module: The module, on ``device``.
        data: Test examples.
        learning: The learning task.
        predict: Function that maps outputs to predictions. Default: that of the task.
        masks: Masks of classes, each a bool tensor ``[classes]``. Logits of classes that are False
            in the mask are set to 0.
        batch: Number of examples per batch.
        device: Device of the module.
        workers: Worker processes in which the test runs. Default: this process.
    """
    module.eval()
    metrics = [metric for metric in learning.measured if isinstance(metric, Metric)]
    parts: list[list[dict[str, Tensor]]] = [[] for _ in (None, *masks)]

    @torch.inference_mode()
    def tested(start: int) -> list[dict[str, Tensor]]:
        inputs, targets = data.examples(slice(start, start + batch))
        targets = to_device(targets, device)
        outputs = module(*(to_device(x, device) for x in inputs))
        predictions = learning.predictions(outputs, predict)
        return _rows(metrics, predictions, targets, masks)

    with torch.inference_mode(), one_thread():
        calls = (workers or Workers()).calls(tested, range(0, len(data), batch))
        for start, done in calls:
            # If the system kills a process, its batch is tested in this process.
            results = tested(start) if isinstance(done, Died) else done
            for part, rows in zip(parts, results, strict=True):
                part.append(rows)
    # Metrics get the rows of all batches at once, so that they do not depend on the batch size.
    counts = learning.counts(data.targets)
    return [
        Answers(
            metrics, {m.name: torch.cat([p[m.name] for p in part]).cpu() for m in metrics}, counts
        )
        for part in parts
    ]


def _rows(
    metrics: Sequence[Metric], predictions: Tensor, targets: Tensor, masks: Sequence[Tensor]
) -> list[dict[str, Tensor]]:
    """Return the metrics' rows of a batch without a mask, then with each mask."""
    results = [{m.name: m.rows(predictions, targets) for m in metrics}]
    for present in masks:
        if bool(present.all()):  # a mask of all classes changes nothing
            results.append(results[0])
            continue
        seen = mask_absent(predictions, present)
        results.append({m.name: m.rows(seen, targets) for m in metrics})
    return results
