"""Statistics that are robust to a few outliers: medians, trimmed means, and Krum's selection."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

#: Function from the number of values to the number that is discarded at each end.
Cut: TypeAlias = Callable[[int], int]


def middle(values: Tensor, covered: Tensor, cut: Cut) -> tuple[Tensor, Tensor]:
    """Compute the trimmed mean of each column over the updates; for integers, the lower median.

    Values are added in ascending order, so the result does not depend on the order of the updates.
    The mean is never outside the range of the values, whatever the rounding.

    Args:
        values: ``[update, ...]``.
        covered: Mask of the values that count, of the same shape.
        cut: Function from the number of values to the number that is discarded at each end. At
            least one value must remain.

    Returns:
        The means in double precision, and the numbers of values that count. Where no value counts,
        the mean is undefined.

    Example:
        >>> ones = torch.ones(4, 1, dtype=torch.bool)
        >>> middle(torch.tensor([[2.0], [1e30], [1.0], [4.0]]), ones, lambda count: 1)[0]
        tensor([3.], dtype=torch.float64)
    """
    counts = covered.sum(0)
    exact = not values.is_floating_point()
    absent = torch.iinfo(values.dtype).max if exact else torch.inf
    ordered = torch.from_numpy(np.sort(values.masked_fill(~covered, absent).numpy(), axis=0))
    most = torch.tensor([max((count - 1) // 2, 0) for count in range(len(values) + 1)])
    if exact:
        return ordered.gather(0, most[counts].unsqueeze(0))[0], counts
    low = torch.tensor([cut(count) for count in range(len(values) + 1)]).clamp(0).minimum(most)
    low = low[counts]
    high = (counts - low).clamp(min=1)
    total = torch.zeros(counts.shape, dtype=torch.float64)
    for rank, row in enumerate(ordered):
        total += torch.where((low <= rank) & (rank < high), row, 0)
    ends = (ordered.gather(0, end.unsqueeze(0))[0].double() for end in (low, high - 1))
    return (total / (high - low)).clamp(*ends), counts


def distances(values: Tensor, covered: Tensor) -> tuple[Tensor, Tensor]:
    """Sum squared differences over the values that two updates share, and count the values.

    Args:
        values: ``[update, value]``, in double precision.
        covered: Mask of the values that count, of the same shape.

    Returns:
        Sums and counts, both ``[update, update]``. Sums that overflow are infinite.

    Example:
        >>> values = torch.tensor([[1.0, 2.0], [4.0, 9.0]], dtype=torch.float64)
        >>> sums, counts = distances(values, torch.tensor([[True, True], [True, False]]))
        >>> sums[0, 1].item(), counts[0, 1].item()
        (9.0, 1.0)
    """
    mask = covered.double()
    values = values.masked_fill(~covered, 0.0)
    squares = values.square() @ mask.T
    # Values that are not finite are far from all others.
    sums = (squares + squares.T - 2 * (values @ values.T)).nan_to_num(nan=torch.inf).clamp(min=0)
    return (sums + sums.T) / 2, mask @ mask.T


def krum(squares: Tensor, counts: Tensor, malicious: int, keep: int) -> list[int]:
    """Select the updates nearest to their neighbours (Blanchard et al., NeurIPS 2017, §4).

    The distance of two updates is the mean squared difference of the values that both have. The
    score of an update is the mean of its ``n - f - 2`` smallest distances to other updates, or of
    all its distances if there are fewer. The updates with the smallest scores are selected.

    Args:
        squares: Sums of squared differences, ``[update, update]``.
        counts: Number of values in each sum.
        malicious: Number ``f`` of malicious clients to tolerate.
        keep: Number of updates to select; more than one is multi-Krum.

    Returns:
        The indices of the selected updates, ascending. If scores are equal, the first is selected.

    Example:
        >>> points = torch.tensor([0.0, 0.1, 0.2, 9.0, 0.3])
        >>> squares = (points[:, None] - points).square()
        >>> krum(squares, torch.ones(5, 5), malicious=1, keep=2)
        [1, 2]
    """
    distances = torch.where(counts > 0, squares / counts.clamp(min=1), torch.inf)
    distances.fill_diagonal_(torch.inf)
    nearest = distances.sort(1).values[:, : max(len(squares) - malicious - 2, 1)]
    known = nearest.isfinite()
    scores = nearest.masked_fill(~known, 0.0).sum(1) / known.sum(1)  # without any: NaN
    order = sorted(range(len(scores)), key=lambda i: (not known[i].any(), float(scores[i]), i))
    return sorted(order[:keep])
