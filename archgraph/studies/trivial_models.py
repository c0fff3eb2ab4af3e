"""Models without hidden layers: class counts, softmax regression, nearest neighbours.

Models do not receive test labels. Each model yields scores for the test inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from archgraph.errors import RunError
from archgraph.hints import optional_module

PENALTIES = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
"""L2 penalties of softmax regression, beginning with the strongest."""
NEIGHBOURS = (1, 3, 5, 10, 20)
"""Numbers of nearest neighbours."""

_GRADIENT = 1e-4  # largest gradient entry at the optimum of a mean loss, as in scikit-learn
_ITERATIONS = 1000
_ROWS = 1000  # number of examples whose distances are in memory at the same time


class Labelled(NamedTuple):
    """Examples with one class each.

    Attributes:
        inputs: Features, float32 ``[example, feature]``.
        targets: Classes, int64 ``[example]``.
    """

    inputs: Tensor
    targets: Tensor

    def at(self, positions: np.ndarray) -> Labelled:
        """Return the examples at the given indices."""
        chosen = torch.from_numpy(positions)
        return Labelled(self.inputs[chosen], self.targets[chosen])


def majority_class(
    train: Labelled, inputs: Tensor, classes: int, choices: Sequence[float]
) -> Iterator[tuple[float, Tensor]]:
    """Yield scores ``[example, class]`` that predict the most frequent class, the first if tied.

    Args:
        train: Examples to fit.
        inputs: Test inputs, ``[example, feature]``.
        classes: Number of classes.
        choices: Hyperparameters, which do not affect the scores.
    """
    for choice in choices:
        count = torch.bincount(train.targets, minlength=classes)
        yield choice, count.double().expand(len(inputs), classes)


def softmax_regression(
    train: Labelled, inputs: Tensor, classes: int, choices: Sequence[float]
) -> Iterator[tuple[float, Tensor]]:
    """Yield the logits ``[example, class]`` of softmax regression for each L2 penalty.

    Minimises mean cross-entropy + penalty / 2 · ‖W‖² by L-BFGS; biases are not penalised. The
    minimum is unique, so the result does not depend on the start.

    Args:
        train: Examples to fit.
        inputs: Test inputs, ``[example, feature]``.
        classes: Number of classes.
        choices: Penalties, beginning with the strongest. Each fit starts from the previous optimum.
    """
    # Centred features need far fewer steps. The optimum is the same, since biases are not
    # penalised.
    middle = train.inputs.mean(0)
    x, targets = train.inputs - middle, train.targets
    # Transposed once, because every step multiplies by the transpose.
    turned = x.T.contiguous()
    start = np.zeros((x.shape[1] + 1) * classes)

    def objective(flat: np.ndarray, penalty: float) -> tuple[float, np.ndarray]:
        weight, bias = _matrices(flat, classes)
        logits = (x @ weight.float()).double() + bias
        log_shares = functional.log_softmax(logits, 1)
        loss = functional.nll_loss(log_shares, targets) + penalty / 2 * weight.square().sum()
        residual = log_shares.exp()
        residual[torch.arange(len(targets)), targets] -= 1
        residual /= len(targets)
        slope = (turned @ residual.float()).double() + penalty * weight
        return float(loss), torch.cat([slope, residual.sum(0)[None]]).flatten().numpy()

    minimize = optional_module("scipy.optimize", kind=RunError, where="softmax regression").minimize
    for penalty in choices:
        options = {"gtol": _GRADIENT, "ftol": 1e-9, "maxiter": _ITERATIONS}
        start = minimize(
            objective, start, (penalty,), method="L-BFGS-B", jac=True, options=options
        ).x
        weight, bias = _matrices(start, classes)
        yield penalty, ((inputs - middle) @ weight.float()).double() + bias


def _matrices(flat: np.ndarray, classes: int) -> tuple[Tensor, Tensor]:
    """Return the weights ``[feature, class]`` and the biases ``[class]``."""
    both = torch.from_numpy(flat).view(-1, classes)
    return both[:-1], both[-1]


def nearest_neighbours(
    train: Labelled, inputs: Tensor, classes: int, choices: Sequence[float]
) -> Iterator[tuple[float, Tensor]]:
    """Yield each k with the votes ``[example, class]`` of the k nearest training examples.

    Distances are Euclidean. If votes are tied, the class of the nearest voter wins.

    Args:
        train: Examples to fit.
        inputs: Test inputs, ``[example, feature]``.
        classes: Number of classes.
        choices: Values of k. If k exceeds the number of training examples, all of them vote.
    """
    most = min(int(max(choices)), len(train.targets))
    near = torch.cat(
        [
            torch.cdist(part, train.inputs).topk(most, largest=False).indices
            for part in inputs.split(_ROWS)
        ]
    )
    votes = functional.one_hot(train.targets[near], classes)  # [example, neighbour, class]
    for number in choices:
        voters = votes[:, : int(number)]
        count = voters.sum(1).double()
        # Less than one vote, and larger the nearer the first voter of a class is.
        first = torch.where(count > 0, voters.argmax(1), most)
        yield number, count - first / (most + 1)
