"""Models written in Python: import, construct and trace them."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import math
import operator
from collections.abc import Mapping
from typing import Any  # the result of a user's callable

import pydantic
import torch

from archgraph.analysis.structure import structure
from archgraph.errors import ErrorFacts, SpecError, raised_in
from archgraph.fields import Place
from archgraph.graph.ir import ArchGraph
from archgraph.graph.sizes import open_sizes, with_open_sizes
from archgraph.graph.values import BATCH_WORD
from archgraph.hints import import_cause, listed
from archgraph.language.consent import consented
from archgraph.language.document import Document, beside
from archgraph.language.mistakes import abbreviate
from archgraph.language.model import FOLDER, PythonModel, PythonValue, reads_folder
from archgraph.limits import LIMITS
from archgraph.ops.schema import torch_dtype
from archgraph.plain import Json

# Package → arguments that its `from_pretrained` always gets, so that nothing is downloaded, no
# pickle is opened and no code in the folder is run.
_CLOSED: Mapping[str, Mapping[str, object]] = {
    "transformers": {"local_files_only": True, "use_safetensors": True, "trust_remote_code": False}
}
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle", "*.h5", "*.msgpack")


def capture(document: Document, spec: PythonModel) -> tuple[ArchGraph, dict[str, torch.Tensor]]:
    """Import, construct and trace a model; the caller's random state is preserved.

    A model that ``….from_pretrained`` returns has the weights of its folder, which must be in
    safetensors files.

    Raises:
        SpecError: If the model cannot be imported or constructed, or its folder has no safetensors
            file.
        TraceError: If the model cannot be traced.
    """
    from archgraph.capture.trace import (
        trace,
    )  # imports torch.export and sympy, which most files do not need

    where = document.where(("python",))
    # No devices: saving the generators of all GPUs would start CUDA.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        if reads_folder(spec.python):
            model = _pretrained(document, spec, where)
        else:
            model = _construct(document, (), spec.python, spec.args)
        if not isinstance(model, torch.nn.Module):
            facts: ErrorFacts = {"found": type(model).__name__, "expected": "torch.nn.Module"}
            raise SpecError("does not return a model", where=where, **facts)
        inputs: dict[str, Any] = {}
        axes: dict[str, dict[int, str]] = {}
        for name, input_spec in spec.inputs.items():
            # A batch of two: torch.export treats sizes of 0 and 1 as constants.
            examples = {n: s.example for n, s in spec.open.items()} | {BATCH_WORD: 2}
            names = spec.shape(name)
            shape = [examples[s] if isinstance(s, str) else s for s in names]
            axes[name] = {dim: s for dim, s in enumerate(names) if isinstance(s, str)}
            if (size := math.prod(shape) // 2) > LIMITS.example_elements:
                facts = {"found": f"{size:,}", "expected": f"at most {LIMITS.example_elements:,}"}
                document.fail(("inputs", name), "is too large an example", **facts)
            inputs[name] = torch.zeros(shape, dtype=torch_dtype(input_spec.dtype))
        _fits(document, model, inputs)
        with document.locating("python"):
            # A batch axis that is the first one is not marked.
            stated = {k: v for k, v in axes.items() if v != {0: BATCH_WORD}}
            call = functools.partial(trace, model, train=spec.train, strict=spec.strict)
            traced = call(name=spec.name, open=stated, **inputs)
    graph = _limited(document, traced.graph, spec)
    if not spec.sections:
        return graph, traced.state
    graph = graph.replace(sections=tuple(spec.sections.items()))
    with document.locating("sections"):
        structure(graph)  # for its errors: sections that the graph does not have
    return graph, traced.state


def _limited(document: Document, graph: ArchGraph, spec: PythonModel) -> ArchGraph:
    """Restrict the open sizes of a graph to the ranges in the file."""
    sizes = dict(open_sizes(graph))
    for name, stated in spec.open.items():
        size, asked = sizes[name], stated.size(name)
        low = max(asked.low, size.low)
        for key, value in (("from", stated.least), ("to", stated.to)):
            if key in stated.model_fields_set and not size.low <= (value or 0) <= size.high:
                message = "is outside the range of sizes that the model accepts"
                document.fail(("open", name, key), message, found=value, expected=size.range)
        high = min(asked.high, size.high)
        sizes[name] = dataclasses.replace(size, low=low, high=high)
    return with_open_sizes(graph, sizes) if spec.open else graph


def _fits(document: Document, model: torch.nn.Module, inputs: Mapping[str, object]) -> None:
    """Check that forward takes arguments of the inputs' names."""
    # Binding finds a wrong name at once, before the trace, which takes seconds.
    signature = inspect.signature(model.forward)
    try:
        signature.bind(**inputs)
    except TypeError as error:
        expected = f"the names of its arguments, forward{signature}"
        message = f"does not fit forward: {error}"
        document.fail(("inputs",), message, found=", ".join(inputs), expected=expected)


def _pretrained(document: Document, spec: PythonModel, where: str) -> Any:
    """Load a model with the weights of a folder; raise an error if none of them is used."""
    args = dict(spec.args)
    # transformers only warns about weights that it initialises. Its report lists these weights.
    if _package(spec.python) in _CLOSED:
        args["output_loading_info"] = True
    result = _construct(document, (), spec.python, args, weights=True)
    if not isinstance(result, tuple):
        return result
    model, report = result
    parameters = {name for name, _ in model.named_parameters()}
    # Some weights may be missing, such as a new classifier, which is drawn from the seed.
    if parameters <= set(report["missing_keys"]):
        message = "loads nothing: the folder has none of this model's weights"
        hint = "name the class that the folder's config.json names"
        actual = listed(sorted(report["unexpected_keys"])) or "no weights"
        expected = listed(sorted(parameters))
        raise SpecError(message, where=where, found=actual, expected=expected, hint=hint)
    return model


def _package(name: str) -> str:
    return name.partition(":")[0].partition(".")[0]


def _restricted(
    document: Document, loc: Place, name: str, args: Mapping[str, Json], *, weights: bool
) -> dict[str, Json]:
    """Return a reader's arguments plus those that exclude downloads, pickles and code."""
    folder_loc = (*loc, FOLDER)
    if not isinstance(folder_name := args.get(FOLDER), str) or not folder_name:
        document.fail(folder_loc, "is not the name of a folder", found=abbreviate(folder_name))
    folder = beside(document, folder_name, folder_loc, "folder")
    pickles = sorted(path.name for kind in _PICKLES for path in folder.glob(kind))
    # A folder of a configuration or a tokenizer has no weights at all.
    if not any(folder.glob("*.safetensors")) and (weights or pickles):
        hint = "pickles run code when loaded; convert them first if you trust them"
        facts: ErrorFacts = {"found": ", ".join(pickles) or "no weights at all"}
        facts["hint"] = hint if pickles else None
        document.fail(folder_loc, "has no weights in safetensors", **facts)
    closed = {**args, FOLDER: str(folder)}
    for key, value in _CLOSED.get(_package(name), {}).items():
        if closed.setdefault(key, value) != value:
            facts = {"found": args[key], "expected": value}
            document.fail((*loc, key), "is fixed for safety", **facts)
    return closed


def import_named(name: str, base: type, where: str) -> Any:
    """Import the object that a name ``package.module:path`` refers to.

    Args:
        name: Name of the object. Its module is searched on ``sys.path``, to which the command line
            adds the current folder.
        base: Subclasses of this class that are part of archgraph need no consent.
        where: Place in a file, for errors.

    Raises:
        SpecError: If consent is missing, the module cannot be imported, or the object does not
            exist.
    """
    consented(name, base, where)
    module_name, _, path = name.partition(":")
    try:
        return operator.attrgetter(path)(importlib.import_module(module_name))
    except (Exception, SystemExit) as error:  # any code that the module runs on import
        cause, hint = import_cause(error)
        plain = isinstance(cause, (ImportError, AttributeError))
        said = _with_line(cause, str(cause) if plain else f"{type(cause).__name__}: {cause}")
        raise SpecError("cannot be imported", where=where, found=said, hint=hint) from error


def _with_line(cause: BaseException, text: str) -> str:
    code = raised_in(cause)
    return f"{text} ({code})" if code else text


def constructor(document: Document) -> functools.partial[object]:
    """Return a function without arguments that constructs the model of a file.

    Raises:
        SpecError: If the model is not written in Python, or cannot be imported.
    """
    if not isinstance(document.data, Mapping) or "python" not in document.data:
        hint = (
            "`like: true` needs a model of transformers or timm that the file names with `python:`"
        )
        document.fail((), "is not a model written in Python", hint=hint)
    spec = document.validate(PythonModel)
    return _call(document, (), spec.python, spec.args)


def _construct(
    document: Document, loc: Place, name: str, args: Mapping[str, Json], *, weights: bool = False
) -> Any:
    """Call a callable with its arguments; ``loc`` is their location in the file."""
    call = _call(document, loc, name, args, weights=weights)
    try:
        return call()
    except (Exception, SystemExit) as error:  # any error of the user's constructor
        cause, hint = import_cause(error)
        where, said = document.where(("python",)), f"{type(cause).__name__}: {cause}"
        raise SpecError(
            "cannot be constructed", where=where, found=_with_line(cause, said), hint=hint
        ) from error


def _call(
    document: Document, loc: Place, name: str, args: Mapping[str, Json], *, weights: bool = False
) -> functools.partial[object]:
    """Return a callable with its arguments, which are constructed first."""
    where = document.where(("python",))
    loc = (*loc, "args")
    # Before anything is imported, so that a missing folder is reported without consent.
    if reads_folder(name):
        args = _restricted(document, loc, name, args, weights=weights)
    function = import_named(name, torch.nn.Module, where)
    if not callable(function):
        raise SpecError("is not callable", where=where, found=type(function).__name__)
    arguments = {key: _argument(document, (*loc, key), value) for key, value in args.items()}
    return functools.partial(function, **arguments)


def _argument(document: Document, loc: Place, value: Json) -> Any:
    """Build an argument: a plain value, or the result of another callable, written like a model."""
    if isinstance(value, tuple | list):
        # Sequences as lists, as any other YAML reader gives them.
        return [_argument(document, (*loc, i), v) for i, v in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    if "python" not in value:
        return {k: _argument(document, (*loc, k), v) for k, v in value.items()}
    try:
        nested = PythonValue.model_validate(dict(value))
    except pydantic.ValidationError as error:
        document.refuse(error, PythonValue, loc)
    return _construct(document, loc, nested.python, nested.args)
