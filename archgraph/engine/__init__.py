"""Running strategies: data and partitions, local training, the round loop, its record.

Names are imported on first use, because torch and its friends take seconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from archgraph.engine.attack import Attack, malicious
    from archgraph.engine.data import DATASETS, Dataset, Split, load_dataset
    from archgraph.engine.evaluate import Evaluator, answers, recalibrated
    from archgraph.engine.experiment import Experiment, Options
    from archgraph.engine.local import Run, execute, run
    from archgraph.engine.partition import class_histogram, local_test_indices
    from archgraph.engine.record import read_metrics
    from archgraph.engine.shard import Shard
    from archgraph.engine.world import prepare

# A submodule would hide a function of its own name (`partition`): such functions are reached
# through their module and are not listed here. For the same reason no submodule is called `run`.
_HOME = {
    "DATASETS": "data",
    "Attack": "attack",
    "Dataset": "data",
    "Evaluator": "evaluate",
    "Experiment": "experiment",
    "Options": "experiment",
    "Run": "local",
    "Shard": "shard",
    "Split": "data",
    "answers": "evaluate",
    "class_histogram": "partition",
    "execute": "local",
    "load_dataset": "data",
    "local_test_indices": "partition",
    "malicious": "attack",
    "prepare": "world",
    "read_metrics": "record",
    "recalibrated": "evaluate",
    "run": "local",
}

__all__ = [
    "DATASETS",
    "Attack",
    "Dataset",
    "Evaluator",
    "Experiment",
    "Options",
    "Run",
    "Shard",
    "Split",
    "answers",
    "class_histogram",
    "execute",
    "load_dataset",
    "local_test_indices",
    "malicious",
    "prepare",
    "read_metrics",
    "recalibrated",
    "run",
]


def __getattr__(name: str) -> object:
    """Import an exported name from the module that defines it."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
