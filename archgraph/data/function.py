"""Data that a function of the user's returns, as `data: {python: …}` names it."""

from __future__ import annotations

import torch

from archgraph.data.given import dataset_of
from archgraph.data.values import Dataset
from archgraph.errors import DataError, SpecError
from archgraph.language.data import PythonData
from archgraph.language.python import imported
from archgraph.processes.isolation import isolated

WHERE = "data.python"


def read(spec: PythonData) -> Dataset:
    """What the function returns; it is called with its own random numbers, the same every time.

    Raises:
        SpecError: If the caller has not consented to run it, or it cannot be imported.
        DataError: If it fails, or returns something else than data.
    """
    make = imported(spec.python, Dataset, WHERE)
    if not callable(make):
        raise SpecError("is not callable", where=WHERE, found=type(make).__name__)
    with isolated(torch.Generator().manual_seed(0)):
        try:
            made = make(**spec.arguments)
            # Items of torch datasets are asked for here: that is the user's code, too.
            return dataset_of(made, spec.python)
        except DataError as error:
            error.where = f"{WHERE}: {error.where}"
            raise
        except (Exception, SystemExit) as error:  # whatever the user's function raises
            raise DataError(
                "the function failed",
                where=WHERE,
                found=f"{spec.python}: {type(error).__name__}: {error}",
            ) from error
