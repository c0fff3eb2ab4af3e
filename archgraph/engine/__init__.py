"""Running strategies: data and partitions, local training, the round loop, its record.

Names are imported on first use, because torch and its friends take seconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from archgraph.engine.data import DATASETS, Dataset, Split, load_dataset
    from archgraph.engine.partition import class_histogram, local_test_indices

# A submodule would hide a function of its own name (`partition`): such functions are reached
# through their module and are not listed here.
_HOME = {
    "DATASETS": "data",
    "Dataset": "data",
    "Split": "data",
    "load_dataset": "data",
    "class_histogram": "partition",
    "local_test_indices": "partition",
}

__all__ = ["DATASETS", "Dataset", "Split", "class_histogram", "load_dataset", "local_test_indices"]


def __getattr__(name: str) -> object:
    """Import an exported name from the module that defines it."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
