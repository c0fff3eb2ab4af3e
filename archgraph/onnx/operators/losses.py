"""Rows of losses, which files of training hold."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from archgraph.onnx.operators.row import Attributes, OnnxRow, OnnxTable

_NONE = -(2**31)  # a class that no example has


def _likelihood(at: Attributes, x: Any, target: Any, weight: Any = None) -> torch.Tensor:
    ignored = at.get("ignore_index", _NONE)
    how = at.get("reduction", "mean")
    return F.nll_loss(x, target.long(), weight, ignore_index=ignored, reduction=how)


def _cross_entropy(at: Attributes, x: Any, target: Any, weight: Any = None) -> Any:
    logs = F.log_softmax(x, 1)
    loss = _likelihood(at, logs, target, weight)
    return (loss, logs) if at.outputs > 1 else loss


LOSSES: OnnxTable = {
    "NegativeLogLikelihoodLoss": OnnxRow(_likelihood),
    "SoftmaxCrossEntropyLoss": OnnxRow(_cross_entropy),
}
