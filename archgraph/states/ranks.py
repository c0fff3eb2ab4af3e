"""Sum squares between two quantiles of an array in one pass, without sorting the array."""

from __future__ import annotations

import math

import numpy as np

SAMPLE = 1 << 13
PIECE = 1 << 16  # values that stay in the cache


def squares_between(
    values: np.ndarray, first: int, final: int, *, signed: bool = True
) -> tuple[float, int]:
    """Sum the squares of all values between two ranks, and count these values.

    A rank is an index into the values in ascending order.

    1. From a sample, estimate a lower and an upper bound of the value at each of the two ranks.
    2. In one pass over the values, count the values below each bound, and sum the squares of the
       values that are certainly between the ranks. Collect the values between the two bounds of a
       rank.
    3. Find the values at both ranks among the collected values. If the estimates were wrong, repeat
       step 2 and collect all values.

    Args:
        values: The values.
        first: The lower rank, from 0. All values that equal the value at this rank are included.
        final: The upper rank. All values that equal the value at this rank are included.
        signed: If True, sort the values; if False, sort their magnitudes.

    Example:
        >>> squares_between(np.array([3.0, -1.0, 2.0]), 1, 2)
        (13.0, 2)
    """
    sample = values[:: max(len(values) // SAMPLE, 1)]  # 1
    sample = np.sort(sample if signed else np.abs(sample))

    def around(rank: int) -> tuple[float, float]:
        share = rank / len(values)
        # Six standard deviations of the rank in a random sample.
        slack = math.ceil(6 * math.sqrt(share * (1 - share) * len(sample))) + 1
        guess = int(share * len(sample))
        return sample[max(guess - slack, 0)], sample[min(guess + slack, len(sample) - 1)]

    nothing, everything = (-np.inf, -np.inf), (-np.inf, np.inf)
    for low, high in (
        (around(first) if first else nothing, around(final)),
        (everything, everything),
    ):
        squares, below, inner, pieces = 0.0, 0, 0, list[np.ndarray]()
        for start in range(0, len(values), PIECE):  # 2
            piece = values[start : start + PIECE]
            piece = piece if signed else np.abs(piece)
            inside = piece < high[0]
            near = ~inside & (piece <= high[1])
            if first:
                below += int(np.count_nonzero(piece < low[0]))
                near |= (piece >= low[0]) & (piece <= low[1])
                inside &= piece > low[1]
            inner += int(np.count_nonzero(inside))
            pieces.append(piece[np.flatnonzero(near)])
            wide = (piece * inside).astype(np.float64)  # squares may overflow float32
            squares += float(wide @ wide)
        close = np.concatenate(pieces)  # 3
        at, until = first - below, final - below - inner
        lower = np.count_nonzero(close <= low[1])
        if (not first or 0 <= at < lower) and lower <= until < len(close):
            break
    ends = np.partition(close, [at, until])[[at, until]]
    close = close[(close >= ends[0]) & (close <= ends[1])].astype(np.float64)
    return squares + float(close @ close), inner + len(close)
