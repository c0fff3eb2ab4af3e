"""Models written in Python: the only place where a file imports code of the user's."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic
import torch

from archgraph.analysis.structure import structure
from archgraph.errors import SpecError
from archgraph.fields import Place
from archgraph.graph.ir import ArchGraph
from archgraph.hints import import_cause, listed
from archgraph.language.consent import consented
from archgraph.language.document import Document, beside
from archgraph.language.mistakes import shorten
from archgraph.language.model import FOLDER, Made, PythonModel, reads_folder
from archgraph.limits import LIMITS
from archgraph.ops.schema import torch_dtype

# What readers of a package are told beside, so that nothing is fetched, no pickle is opened and no
# code of the folder's runs.
_CLOSED: Mapping[str, Mapping[str, object]] = {
    "transformers": {
        "local_files_only": True,
        "use_safetensors": True,
        "trust_remote_code": False,
    }
}
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle", "*.h5", "*.msgpack")


def capture(document: Document, spec: PythonModel) -> tuple[ArchGraph, dict[str, torch.Tensor]]:
    """Import, construct and trace a model; the caller's random numbers stay as they were.

    A model ``….from_pretrained`` comes with the weights of its folder, from safetensors only.

    Raises:
        SpecError: If it cannot be imported or constructed, or its folder has no such weights.
        TraceError: If it cannot be captured.
    """
    from archgraph.capture.trace import trace  # torch.export and sympy: most files need neither

    where = document.where(("python",))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        if reads_folder(spec.python):
            model = _pretrained(document, spec, where)
        else:
            model = _made(document, (), spec.python, spec.args)
        if not isinstance(model, torch.nn.Module):
            raise SpecError(
                "does not return a model",
                where=where,
                found=type(model).__name__,
                expected="torch.nn.Module",
            )
        for name, input_spec in spec.inputs.items():
            if math.prod(input_spec.shape) > LIMITS.example_elements:
                raise SpecError(
                    "an example input is too large",
                    where=document.where(("inputs", name)),
                    found=f"{math.prod(input_spec.shape):,} numbers",
                    expected=f"at most {LIMITS.example_elements:,}",
                )
        # A batch of two: torch.export treats sizes of 0 and 1 as constants.
        inputs: dict[str, Any] = {
            name: torch.zeros((2, *input_spec.shape), dtype=torch_dtype(input_spec.dtype))
            for name, input_spec in spec.inputs.items()
        }
        _fits(document, model, inputs)
        with document.locating("python"):
            traced = trace(model, train=spec.train, strict=spec.strict, name=spec.name, **inputs)
    if not spec.sections:
        return traced.graph, traced.state
    graph = traced.graph.replace(sections=tuple(spec.sections.items()))
    with document.locating("sections"):
        structure(graph)
    return graph, traced.state


def _fits(document: Document, model: torch.nn.Module, inputs: Mapping[str, object]) -> None:
    """Check that forward takes arguments of the inputs' names."""
    # Bound, not called: a wrong name is found before the capture, which takes seconds.
    signature = inspect.signature(model.forward)
    try:
        signature.bind(**inputs)
    except TypeError as error:
        asked = [name for name in signature.parameters if name not in inputs]
        one = len(inputs) == len(asked) == 1
        document.fail(
            ("inputs",),
            f"does not fit forward: {error}",
            found=", ".join(inputs),
            expected=f"the names of its arguments, forward{signature}",
            hint=f"write {asked[0]} instead of {next(iter(inputs))}" if one else None,
        )


def _pretrained(document: Document, spec: PythonModel, where: str) -> Any:
    """Load a model with the weights of a folder; refuse if none of them are its own."""
    args = dict(spec.args)
    if _package(spec.python) in _CLOSED:
        args["output_loading_info"] = True
    _safe(document, ("args",), args, weights=True)
    result = _made(document, (), spec.python, args)
    if not isinstance(result, tuple):
        return result
    model, report = result
    parameters = {name for name, _ in model.named_parameters()}
    if parameters <= set(report["missing_keys"]):
        raise SpecError(
            "loads nothing: the folder has none of this model's weights",
            where=where,
            found=listed(sorted(report["unexpected_keys"])) or "no weights",
            expected=listed(sorted(parameters)),
            hint="name the class that the folder's config.json names",
        )
    return model


def _package(name: str) -> str:
    return name.partition(":")[0].partition(".")[0]


def _safe(document: Document, place: Place, args: Mapping[str, Any], *, weights: bool) -> Path:
    """Return the folder argument of a reader; refuse weights that are not safe to load."""
    place = (*place, FOLDER)
    name = args.get(FOLDER)
    if not isinstance(name, str) or not name:
        expected = f"{FOLDER}: a folder"
        document.fail(place, "is not the name of a folder", found=shorten(name), expected=expected)
    folder = beside(document, name, place, folder=True)
    pickles = sorted(path.name for kind in _PICKLES for path in folder.glob(kind))
    if not any(folder.glob("*.safetensors")) and (weights or pickles):
        document.fail(
            place,
            "has no weights in safetensors",
            found=", ".join(pickles) or "no weights at all",
            expected="model.safetensors",
            hint="pickles run code when they are loaded and are never opened; convert "
            "them first if you trust them"
            if pickles
            else None,
        )
    return folder


def _closed(document: Document, place: Place, name: str, args: dict[str, Any]) -> None:
    """Add to a reader's arguments what keeps it on this machine and away from pickles and code."""
    args[FOLDER] = str(_safe(document, place, args, weights=False))
    for key, value in _CLOSED.get(_package(name), {}).items():
        if args.setdefault(key, value) != value:
            document.fail(
                (*place, key),
                "is fixed for safety",
                found=args[key],
                expected=value,
                hint="weights are read from safetensors in a folder of this machine",
            )


def import_named(name: str, base: type, where: str) -> Any:
    """Import what a name ``package.module:path`` stands for.

    Args:
        name: The module is looked for where Python looks for modules; the command line adds the
            folder that it runs in.
        base: Classes of archgraph's own that are of this kind need no consent.
        where: Place in a file, for errors.

    Raises:
        SpecError: If the caller has not consented to run it, the module cannot be imported, or has
            nothing of that name.
    """
    consented(name, base, where)
    module_name, _, path = name.partition(":")
    try:
        value: Any = importlib.import_module(module_name)
        for part in path.split("."):
            value = getattr(value, part)
    except (Exception, SystemExit) as error:  # whatever the module runs when it is imported
        cause, hint = import_cause(error)
        plain = isinstance(cause, (ImportError, AttributeError))
        said = str(cause) if plain else f"{type(cause).__name__}: {cause}"
        raise SpecError("cannot be imported", where=where, found=said, hint=hint) from error
    return value


def _made(document: Document, place: Place, name: str, args: Mapping[str, Any]) -> Any:
    """Call a callable with its arguments; ``place`` is where both are written."""
    where = document.where(("python",))
    function = import_named(name, torch.nn.Module, where)
    if not callable(function):
        raise SpecError("is not callable", where=where, found=type(function).__name__)
    place = (*place, "args")
    arguments = {key: _argument(document, (*place, key), value) for key, value in args.items()}
    if reads_folder(name):
        _closed(document, place, name, arguments)
    try:
        return function(**arguments)
    except (Exception, SystemExit) as error:  # whatever the user's constructor raises
        cause, hint = import_cause(error)
        said = f"{type(cause).__name__}: {cause}"
        raise SpecError("cannot be constructed", where=where, found=said, hint=hint) from error


def _argument(document: Document, place: Place, value: Any) -> Any:
    """Build an argument: a plain value, or the result of another callable, written like a model."""
    if isinstance(value, tuple | list):
        # Sequences as lists, as any other YAML reader gives them.
        return [_argument(document, (*place, i), v) for i, v in enumerate(value)]
    if isinstance(value, Mapping):
        if "python" in value:
            try:
                nested = Made.model_validate(dict(value))
            except pydantic.ValidationError as error:
                raise SpecError(
                    "is not a value made in Python",
                    where=document.where(("python",)),
                    found=shorten(value["python"]),
                    expected="python: package.module:callable, and args",
                ) from error
            return _made(document, place, nested.python, nested.args)
        return {k: _argument(document, (*place, k), v) for k, v in value.items()}
    return value
