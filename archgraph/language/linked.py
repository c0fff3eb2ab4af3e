"""Files that name other files: families and experiments."""

from __future__ import annotations

import math
import os
from pathlib import Path

from archgraph.fields import Place
from archgraph.hints import unknown
from archgraph.language.data import DataSpec
from archgraph.language.document import Document, beside
from archgraph.language.experiment import ExperimentSpec
from archgraph.language.family import FamilySpec
from archgraph.language.model import anchored
from archgraph.language.yaml import read_document


def load_family(path: str | os.PathLike[str]) -> FamilySpec:
    """Read a family file; :func:`archgraph.federation.family.resolve` makes its graphs.

    Raises:
        SpecError: If it cannot be understood, with file, line and key.
    """
    return _family(read_document(path))


def load_experiment(path: str | os.PathLike[str]) -> ExperimentSpec:
    """Read an experiment file, and the family that it names.

    Raises:
        SpecError: If either cannot be understood, with file, line and key.
    """
    return read_experiment(read_document(path))


def read_experiment(document: Document) -> ExperimentSpec:
    """The experiment that a document holds; files that it names are found from the document's.

    Raises:
        SpecError: If it cannot be understood, with file, line and key.
    """
    kind = kind_of(document.data)
    if kind in ("model", "family"):
        name = Path(document.file).name
        whole = f"{{model: {name}, clients: [{{name: all, count: 4}}]}}"
        document.fail(
            (),
            f"is a {kind}, not an experiment",
            expected="keys such as family, data, strategy and rounds",
            hint=f"name it in an experiment, family: {name if kind == 'family' else whole}",
        )
    spec = document.validate(ExperimentSpec)
    if isinstance(spec.family, str):
        file = beside(document, spec.family, ("family",))
        family = load_family(file)
    else:
        family = _family(document.sub(("family",)))
    _shared(document, spec, family)
    spec = spec.model_copy(update={"family": family, "data": _data(document, spec.data)})
    return spec.read_from(document)


def _data(document: Document, data: DataSpec) -> DataSpec:
    """The data with its files and folders named so that they are found from anywhere."""
    found = {
        key: str(beside(document, name, ("data", key), folder=kind == "folder"))
        for key, kind in data.located.items()
        if isinstance(name := getattr(data, key), str)
    }
    return data.model_copy(update=found)


def _shared(document: Document, spec: ExperimentSpec, family: FamilySpec) -> None:
    """Check that shares of the data are the family's, and that all data is shared out."""
    shares = None if spec.data.partition is None else spec.data.partition.shares
    if shares is None:
        return
    place = ("data", "partition", "shares")
    kinds = [member.name for member in family.clients]
    for name in shares:
        if name not in kinds:
            document.fail(
                (*place, name),
                "is not a kind of client",
                **unknown(name, kinds),
            )
    complete, total = len(shares) == len(kinds), sum(shares.values())
    if complete != math.isclose(total, 1):
        document.fail(
            place,
            "leaves some data to no client" if complete else "leaves no data to the other clients",
            found=f"{total:g}",
            expected="1 together" if complete else "less than 1 together",
        )


def kind_of(data: object) -> str:
    """What the content of a file wants to be, by the keys that only one kind has.

    >>> kind_of({"clients": []}), kind_of({"rounds": 3}), kind_of({"sections": []}), kind_of([])
    ('family', 'experiment', 'model', '')
    """
    keys = set(data) if isinstance(data, dict) else set()
    return next((kind for kind, own in _KEYS.items() if keys & own), "")


_KEYS = {
    "study": {"study"},
    "experiment": {"family", "strategy", "rounds"},
    "figures": {"figures"},
    "family": {"clients"},
    "model": {"sections", "nodes", "python", "inputs"},
}


def _family(document: Document) -> FamilySpec:
    """A family whose model files are named so that they are found from anywhere."""
    spec = document.validate(FamilySpec)
    spec = spec.model_copy(
        update={
            "model": spec.model
            if spec.model == "join"
            else _source(document, spec.model, ("model",)),
            "clients": tuple(
                member.model_copy(
                    update={"model": _source(document, member.model, ("clients", i, "model"))}
                )
                for i, member in enumerate(spec.clients)
            ),
        }
    )
    return spec.read_from(document)


def _source(document: Document, source: object, place: Place) -> object:
    if isinstance(source, str):
        return str(beside(document, source, place))
    return anchored(source, Path(document.file).parent.absolute())
