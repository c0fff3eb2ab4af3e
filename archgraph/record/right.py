"""Which test examples a model answered rightly, as a run's line and a study's record hold it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from archgraph.plain import Json

if TYPE_CHECKING:
    from numpy.typing import NDArray

RIGHT = "right"
"""The key of a tested model's figures."""

_COUNT = np.dtype("<u2")  # up to 65,535 clients with a version of their own


def packed(counts: NDArray[np.integer], versions: int) -> dict[str, Json]:
    """Return how many versions of a model answered each test example rightly, as plain values.

    Args:
        counts: Of each test example, ``[example]``.
        versions: Number of versions: 1, or the clients that have one of their own.

    Example:
        >>> packed(np.array([1, 0, 1]), 1)
        {'versions': 1, 'counts': 'AQAAAAEA'}
    """
    text = base64.b64encode(counts.astype(_COUNT).tobytes()).decode()
    return {"versions": versions, "counts": text}


def unpacked(value: Mapping[str, Json]) -> NDArray[np.float64]:
    """Return the share of versions that answered each test example rightly, ``[example]``.

    Example:
        >>> unpacked(packed(np.array([2, 0]), 4))
        array([0.5, 0. ])
    """
    counts = np.frombuffer(base64.b64decode(value["counts"]), _COUNT)
    return counts / value["versions"]
