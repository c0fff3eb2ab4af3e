"""Data returned by a user function, for `data: {python: …}`."""

from __future__ import annotations

import torch

from archgraph.data.given import dataset_of
from archgraph.data.values import Dataset
from archgraph.errors import DataError, SpecError
from archgraph.language.data import PythonData
from archgraph.language.python import import_named
from archgraph.processes.isolation import isolated

WHERE = "data.python"


def read_function(spec: PythonData, task: str | None = None) -> Dataset:
    """Call the function under a fixed random state and return its data.

    Raises:
        SpecError: If the caller has not consented to run the function, or it cannot be imported.
        DataError: If the function fails or does not return data.
    """
    make = import_named(spec.python, Dataset, WHERE)
    if not callable(make):
        raise SpecError("is not callable", where=WHERE, found=type(make).__name__)
    # Not the run's seed: several seeds of an experiment are compared on the same rows.
    with isolated(torch.Generator().manual_seed(0)):
        try:
            data = make(**spec.arguments)
            # This reads the items of torch datasets, which runs user code, too.
            return dataset_of(data, spec.python, task, cache=spec.cache)
        except DataError as error:
            error.where = f"{WHERE}: {error.where}"
            raise
        except (Exception, SystemExit) as error:  # whatever the user's function raises
            problem = f"{spec.python}: {type(error).__name__}: {error}"
            raise DataError("the function raised an error", where=WHERE, found=problem) from error
