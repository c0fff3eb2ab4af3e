"""What a model says to test examples, and how much of it is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from archgraph.engine.data import Split
from archgraph.engine.data.values import IGNORED
from archgraph.federation import (
    Logits,
    Predict,
    mask_absent,
)


@dataclass(frozen=True, eq=False)
class Answers:
    """What a model said to each test example.

    Attributes:
        loss: Sum of the cross-entropy over the example's targets, float64 ``[example]``.
        right: Number of targets that were predicted, int64 ``[example]``.
        targets: Number of targets, 1 for images, the window's length for text, ``[example]``.
    """

    loss: Tensor
    right: Tensor
    targets: Tensor

    def summary(self, chosen: Sequence[int] | slice | Tensor = slice(None)) -> dict[str, float]:
        """Accuracy and mean loss over the chosen examples.

        Example:
            >>> answers = Answers(torch.ones(2), torch.tensor([1, 0]), torch.tensor([1, 1]))
            >>> answers.summary()
            {'accuracy': 0.5, 'loss': 1.0}
        """
        count = max(int(self.targets[chosen].sum()), 1)
        return {
            "accuracy": int(self.right[chosen].sum()) / count,
            "loss": float(self.loss[chosen].sum()) / count,
        }

    def matched(self, targets: Tensor, shares: Sequence[float]) -> float:
        """Accuracy to be expected of test examples with these shares of the classes.

        Σ_c p_c · (accuracy on examples of class c): the mean over all test sets that could be drawn
        by the shares p (RecipFL, §5.1, draws one). Classes without a test example count for nothing
        and the other shares are divided by their sum.

        Args:
            targets: Class of each example, ``[example]``.
            shares: Of each class, up to a common factor (numbers of examples, say), ``[class]``.

        Example:
            >>> answers = Answers(torch.zeros(3), torch.tensor([1, 0, 1]), torch.ones(3))
            >>> answers.matched(torch.tensor([0, 0, 1]), (3, 1, 4))
            0.625
        """
        count = torch.bincount(targets, minlength=len(shares))
        right = torch.bincount(targets, self.right.double(), len(shares))
        mixture = torch.tensor(shares, dtype=torch.float64) * (count > 0)
        whole = float(mixture.sum())
        return float(mixture @ (right / count.clamp(min=1))) / whole if whole else 0.0


def answers(
    module: nn.Module,
    data: Split,
    *,
    predict: Predict | None = None,
    masks: Sequence[Tensor] = (),
    batch: int = 500,
    device: str = "cpu",
) -> list[Answers]:
    """Test a module in eval mode: its answers, then those under each mask.

    Args:
        module: On ``device``.
        data: Test examples.
        predict: From outputs to logits ``[batch, ..., classes]``; None: the only output.
        masks: For each, test with the logits of other classes set to 0, bool ``[classes]``.
        batch: Examples at a time.
        device: Where the module is.
    """
    predict = predict or Logits()
    module.eval()
    variants: list[Tensor | None] = [None, *masks]
    parts: list[list[tuple[Tensor, Tensor]]] = [[] for _ in variants]
    with torch.inference_mode():
        for start in range(0, len(data), batch):
            inputs, targets = data.examples(slice(start, start + batch))
            wanted = targets.to(device)
            logits = predict(module(*(x.to(device) for x in inputs)))
            whole: tuple[Tensor, Tensor] | None = None
            for present, part in zip(variants, parts, strict=True):
                # A mask that hides nothing changes nothing.
                if whole is None or (present is not None and not bool(present.all())):
                    shown = logits if present is None else mask_absent(logits, present)
                    part.append(_compare(shown, wanted))
                    whole = whole or part[-1]
                else:
                    part.append(whole)
    counts = (data.targets != IGNORED).reshape(len(data), -1).sum(1)
    return [
        Answers(torch.cat([loss for loss, _ in part]), torch.cat([hit for _, hit in part]), counts)
        for part in parts
    ]


def _compare(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy and number of right predictions of each example, on the CPU."""
    loss = nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]),
        targets.reshape(-1),
        reduction="none",
        ignore_index=IGNORED,
    )
    hits = logits.argmax(-1) == targets
    count = len(targets)
    return loss.double().reshape(count, -1).sum(1).cpu(), hits.reshape(count, -1).sum(1).cpu()
