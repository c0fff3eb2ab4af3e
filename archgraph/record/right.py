"""Encode which test examples a model classified correctly, for the files of runs and studies."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from archgraph.plain import Json

if TYPE_CHECKING:
    from numpy.typing import NDArray

RIGHT = "right"
"""Key of the encoded counts among the recorded values of a tested model."""

_COUNT = np.dtype("<u2")  # up to 65,535 clients with their own version


def packed(counts: NDArray[np.integer], versions: int) -> dict[str, Json]:
    """Encode how many versions of a model classified each test example correctly.

    Args:
        counts: Number of versions that classified each test example correctly, ``[example]``.
        versions: Number of versions: 1, or the number of clients if each client has its own
            version.

    Example:
        >>> packed(np.array([1, 0, 1]), 1)
        {'versions': 1, 'counts': 'AQAAAAEA'}
    """
    text = base64.b64encode(counts.astype(_COUNT).tobytes()).decode()
    return {"versions": versions, "counts": text}


def unpacked(value: Mapping[str, Json]) -> NDArray[np.float64]:
    """Return, ``[example]``, the fraction of versions that classified an example correctly.

    Example:
        >>> unpacked(packed(np.array([2, 0]), 4))
        array([0.5, 0. ])
    """
    counts = np.frombuffer(base64.b64decode(value["counts"]), _COUNT)
    return counts / value["versions"]
