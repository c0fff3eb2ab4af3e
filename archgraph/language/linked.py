"""Files that name other files: families and experiments."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias, TypeVar

import torch

from archgraph.errors import SpecError
from archgraph.fields import Place
from archgraph.graph.ir import ArchGraph
from archgraph.hints import unknown
from archgraph.language import flat
from archgraph.language.data import DataSpec
from archgraph.language.document import Document, beside, dotted, places
from archgraph.language.experiment import ExperimentSpec
from archgraph.language.family import FamilySpec, Rewrites
from archgraph.language.kinds import kind_of
from archgraph.language.model import anchored
from archgraph.language.yaml import parse_document, read_document
from archgraph.plain import Json
from archgraph.states.importance import Importance

R = TypeVar("R", bound=Rewrites)
FirstWeights: TypeAlias = dict[str, torch.Tensor]


def load_family(path: str | os.PathLike[str] | Mapping[str, object]) -> FamilySpec:
    r"""Read a family file. :func:`archgraph.federation.resolve` builds the clients' graphs.

    Args:
        path: The file, or a dict with the same keys. In a dict, a model may also be a graph, or the
            result of ``ag.trace``, whose weights become the initial weights.

    Raises:
        SpecError: If the family is invalid. The message names file, line and key.

    Example:
        >>> from archgraph.graph.text import parse
        >>> text = "%x: float32[batch, 2] = input()\nforward x = %x\nreturn %x"
        >>> family = load_family({"model": parse(text), "clients": [{"name": "all", "count": 2}]})
        >>> [(client.name, client.count) for client in family.clients]
        [('all', 2)]
    """
    if not isinstance(path, Mapping):
        return _family(read_document(path))
    document, weights = _from_values("family", path, ("family",))
    family = _family(document)
    family.weights.update(weights)
    return family


def load_experiment(path: str | os.PathLike[str] | Mapping[str, object]) -> ExperimentSpec:
    r"""Read an experiment file, and the family that the file names.

    Args:
        path: The file, or a dict with the same keys. In a dict, a model may also be a graph, or the
            result of ``ag.trace``, whose weights become the initial weights.

    Raises:
        SpecError: If the experiment or the family is invalid. The message names file, line and key.

    Example:
        >>> from archgraph.graph.text import parse
        >>> text = "%x: float32[batch, 2] = input()\nforward x = %x\nreturn %x"
        >>> family = {"model": parse(text), "clients": [{"name": "all", "count": 2}]}
        >>> values = {"name": "mine", "family": family, "strategy": {"fedavg": {}}, "rounds": 3}
        >>> load_experiment({**values, "local": {"lr": 0.1}}).rounds
        3
    """
    if isinstance(path, Mapping):
        return read_experiment(*_from_values("experiment", path))
    return read_experiment(read_document(path))


def read_experiment(
    document: Document, weights: Mapping[Place, FirstWeights] = MappingProxyType({})
) -> ExperimentSpec:
    """Read the experiment in a document. Paths in the document are relative to its file.

    Args:
        document: The parsed file.
        weights: Dict from place to weights, for models that were passed as Python objects.

    Raises:
        SpecError: If the experiment is invalid. The message names file, line and key.
    """
    kind = kind_of(document.data)
    if kind in ("model", "family"):
        name = Path(document.file).name
        example = f"{{model: {name}, clients: [{{name: all, count: 4}}]}}"
        hint = (
            f"write an experiment file with the key family: {name if kind == 'family' else example}"
        )
        document.fail((), f"is a {kind}, not an experiment", hint=hint)
    spec = document.validate(ExperimentSpec)
    if isinstance(spec.family, str):
        file = beside(document, spec.family, ("family",))
        family = load_family(file)
    else:
        family = _family(document.sub(("family",)))
    family.weights.update(weights)
    _shared(document, spec, family)
    _trained_too(document, spec, family)
    updates = {"family": family, "data": _data(document, spec.data)}
    # Not by `beside`: with its SHA-256 the file need not exist for a check.
    if spec.weights is not None:
        file = (Path(document.file).parent / Path(spec.weights.file).expanduser()).absolute()
        updates["weights"] = spec.weights.model_copy(update={"file": os.path.normpath(file)})
    return spec.model_copy(update=updates).read_from(document)


def _from_values(
    kind: str, values: Mapping[str, object], at: Place = ()
) -> tuple[Document, dict[Place, FirstWeights]]:
    """Convert Python values to a document with models as text, and their weights.

    Args:
        kind: Kind of the described file, as the document's name.
        values: Keys and values of an experiment, or of a part of one.
        at: The place of that part.
    """
    weights: dict[Place, FirstWeights] = {}

    def plain(value: Json, loc: Place = ()) -> Json:
        if isinstance(value, torch.nn.Module):
            raise SpecError(
                "is a module, not a graph",
                where=dotted(loc),
                hint="trace it first: ag.trace(model, example)",
            )
        graph = getattr(value, "graph", value)  # from ag.trace or a rewrite
        if isinstance(graph, ArchGraph):
            if (state := getattr(value, "state", None)) is not None:
                _check_values(state, dotted(loc))
                weights[loc[1:]] = dict(state)  # the family's own places: without `family`
            return parse_document(flat.dump(graph), dotted(loc)).data
        if isinstance(value, Importance):
            return plain(value.plain(), loc)
        if isinstance(value, Mapping):
            return {key: plain(item, (*loc, key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return tuple(plain(item, (*loc, i)) for i, item in enumerate(value))
        return value

    data = {"archgraph": 1, **plain(values, at)}
    if isinstance(data.get("family"), dict):
        data["family"] = {"archgraph": 1, **data["family"]}
    # Line 0: values passed in Python are not in a file.
    return Document(kind, data, dict.fromkeys(places(data), 0)), weights


def _check_values(state: Mapping[str, object], where: str) -> None:
    """Raise an error for the state of a model on the meta device."""
    empty = next((name for name, value in state.items() if getattr(value, "is_meta", False)), None)
    if empty is not None:
        raise SpecError(
            "has no values: the model was traced on the meta device",
            where=where,
            found=empty,
            hint="load weights into the model before tracing it, or pass only the graph "
            "(traced.graph), whose weights are drawn from the seed",
        )


def _data(document: Document, data: DataSpec) -> DataSpec:
    """Return the data with absolute paths of its files and folders."""
    paths = {
        key: str(beside(document, name, ("data", key), kind))
        for key, kind in data.located.items()
        if isinstance(name := getattr(data, key), str)
    }
    return data.model_copy(update=paths)


def _shared(document: Document, spec: ExperimentSpec, family: FamilySpec) -> None:
    """Check that `shares` names kinds of client and divides all data."""
    shares = None if spec.data.partition is None else spec.data.partition.shares
    if shares is None:
        return
    loc = ("data", "partition", "shares")
    kinds = [member.name for member in family.clients]
    for name in shares:
        if name not in kinds:
            document.fail((*loc, name), "is not a kind of client", **unknown(name, kinds))
    # Fractions of all kinds must add up to 1; otherwise, something must remain for the others.
    complete, total = len(shares) == len(kinds), sum(shares.values())
    if complete != math.isclose(total, 1):
        message = "leaves no data for the other clients"
        if complete:
            message = "leaves some data without a client"
        expected = f"fractions with a sum {'of' if complete else 'below'} 1"
        document.fail(loc, message, found=f"{total:g}", expected=expected)


def _trained_too(document: Document, spec: ExperimentSpec, family: FamilySpec) -> None:
    """Check that `also` names other kinds of client, each at most once."""
    kinds = [member.name for member in family.clients]
    for name, others in (spec.also or {}).items():
        unheard = next((other for other in (name, *others) if other not in kinds), None)
        if unheard is not None:
            document.fail(("also", name), "is not a kind of client", **unknown(unheard, kinds))
        if len({name, *others}) <= len(others):
            message = "names a model that the client already trains"
            document.fail(("also", name), message, found=", ".join(others))


def _family(document: Document) -> FamilySpec:
    """Read a family, and make the paths of the files that it names absolute."""
    spec = document.validate(FamilySpec)

    def source(model: object, loc: Place) -> object:
        if isinstance(model, str):
            return str(beside(document, model, loc))
        return anchored(model, Path(document.file).parent.absolute())

    def scored(rewrites: R, loc: Place) -> R:
        for key in ("take", "fit"):
            options = getattr(rewrites, key)
            name = getattr(options, "importance", None)
            if isinstance(name, str):
                file = str(beside(document, name, (*loc, key, "importance")))
                other = options.model_copy(update={"importance": file})
                rewrites = rewrites.model_copy(update={key: other})
        return rewrites

    clients = tuple(
        scored(member, ("clients", i)).model_copy(
            update={"model": source(member.model, ("clients", i, "model"))}
        )
        for i, member in enumerate(spec.clients)
    )
    updates = {
        "model": spec.model if spec.model == "join" else source(spec.model, ("model",)),
        "change": scored(spec.change, ("change",)),
        "clients": clients,
    }
    return spec.model_copy(update=updates).read_from(document)
