"""Test examples that a model classified correctly, as stored in runs and studies."""

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

_COUNT = np.dtype("<u2")  # up to 65,535 clients with their own version


def packed(counts: NDArray[np.integer], versions: int) -> dict[str, Json]:
    """Return the number of versions that classified each test example correctly, as plain values.

    Args:
        counts: Count of each test example, ``[example]``.
        versions: Number of versions: 1, or the number of clients with their own.

    Example:
        >>> packed(np.array([1, 0, 1]), 1)
        {'versions': 1, 'counts': 'AQAAAAEA'}
    """
    text = base64.b64encode(counts.astype(_COUNT).tobytes()).decode()
    return {"versions": versions, "counts": text}


def unpacked(value: Mapping[str, Json]) -> NDArray[np.float64]:
    """Return the share of versions that classified each test example correctly, ``[example]``.

    Example:
        >>> unpacked(packed(np.array([2, 0]), 4))
        array([0.5, 0. ])
    """
    counts = np.frombuffer(base64.b64decode(value["counts"]), _COUNT)
    return counts / value["versions"]
