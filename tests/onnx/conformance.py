"""Published test cases of ONNX.

Write the figures with ``python -m tests.onnx.conformance --write docs/measured/onnx-cases.csv``.

Each case is a small file with inputs and outputs. Its nodes are computed as they are while a file
is captured, and the results compared with the published ones. What lies outside of the scope is
refused by a rule that can be named: control flow, text, types that PyTorch lacks.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import torch
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.loader import load_model_tests

import archgraph as ag
from archgraph.onnx.network import DOMAINS, REFUSED, OnnxModule
from archgraph.onnx.operators.known import FOLDS, known_tensor
from archgraph.onnx.tensors import DTYPES
from archgraph.rewrites.laws import outputs
from tests import sheets

GROUPS = ("node", "pytorch-converted", "pytorch-operator", "simple", "light")
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
Sets = list[tuple[list[Any], list[Any]]]
UNSIGNED = re.compile("not implemented for '(UInt16|UInt32|UInt64)'")
OF_SHAPES = ("Shape", "Size")  # of which the numbers are not read
# Half precision: the published numbers are rounded at other places.
TOLERANCES = {"float16": 4e-3, "bfloat16": 4e-2}


@dataclass(frozen=True)
class Case:
    """A file with inputs and outputs."""

    group: str
    name: str
    model: Any
    sets: Sets
    rtol: float
    atol: float


@dataclass(frozen=True)
class Outcome:
    """What became of a case: ``equal``, ``different``, ``refused``, ``outside`` of the scope."""

    group: str
    name: str
    kinds: tuple[str, ...]
    word: str
    reason: str = ""


def cases(group: str) -> Iterator[Case]:
    """The cases of a group in the package's order."""
    if group == "node":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of NumPy, while cases are computed
            collected = collect_testcases(None)
        for made in collected:
            sets = [(list(given), list(results)) for given, results in made.data_sets or ()]
            yield Case(group, made.name, made.model, sets, made.rtol, made.atol)
        return
    if group == "light":  # whole networks, whose weights are made by ConstantOfShape
        for file in sorted(LIGHT.glob("*.onnx")):
            yield _network(file)
        return
    for found in load_model_tests(kind=group):
        folder = Path(found.model_dir)
        sets = [(_stored(f, "input"), _stored(f, "output")) for f in folder.glob("test_data_set_*")]
        model = onnx.load(folder / "model.onnx")
        yield Case(group, found.name, model, sets, found.rtol, found.atol)


def _network(file: Path) -> Case:
    """A whole network with the input for which the package ships a result."""
    model = onnx.load(file)
    stored = {item.name for item in model.graph.initializer}
    (given,) = (i for i in model.graph.input if i.name not in stored)
    shape = [dim.dim_value for dim in given.type.tensor_type.shape.dim]
    size = math.prod(shape)
    x = (np.arange(size) / size).astype(np.float32).reshape(shape)
    results = onnx.load_tensor(file.with_name(f"{file.stem}_output_0.pb"))
    return Case("light", file.stem, model, [([x], [results])], 1e-3, 1e-5)


def _stored(folder: Path, kind: str) -> list[Any]:
    """Tensors of a case; None for what is no tensor."""
    files = sorted(folder.glob(f"{kind}_*.pb"), key=lambda f: int(f.stem.rpartition("_")[2]))
    values: list[Any] = []
    for file in files:
        try:
            values.append(onnx.numpy_helper.to_array(onnx.load_tensor(file)))
        except Exception:  # a sequence, read as a tensor, fails in many ways
            values.append(None)
    return values


def examine(case: Case) -> Outcome:
    """Compute a case and compare it."""
    kinds = tuple(dict.fromkeys(node.op_type for node in case.model.graph.node))
    reason = outside(case)
    if reason:
        return Outcome(case.group, case.name, kinds, "outside", reason)
    try:
        for given, expected in case.sets:
            compute = _loaded if case.group == "light" else _computed
            for result, number in zip(compute(case.model, given), expected, strict=True):
                reason = reason or _difference(result, number, case)
    except ag.ArchGraphError as error:
        found = f", {error.facts['found']}" if error.facts.get("found") is not None else ""
        return Outcome(case.group, case.name, kinds, "refused", f"{error.message}{found}")
    except Exception as error:  # capture refuses whatever PyTorch does not compute
        if UNSIGNED.search(str(error)):
            reason = "unsigned integers of 16 bits and more, with which PyTorch does not compute"
            return Outcome(case.group, case.name, kinds, "outside", reason)
        text = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        return Outcome(case.group, case.name, kinds, "refused", text[:120])
    return Outcome(case.group, case.name, kinds, "different" if reason else "equal", reason)


def outside(case: Case) -> str:
    """Why a case lies outside of the scope; nothing where it does not."""
    main = case.model.graph
    for node in main.node:
        if node.domain not in DOMAINS:
            return f"operators of the domain {node.domain}"
        if node.op_type in REFUSED:
            return REFUSED[node.op_type]
    for item in (*main.input, *main.output):
        kind = item.type.WhichOneof("value")
        if kind != "tensor_type":
            return "sequences or values that may be missing, as inputs or results"
        if item.type.tensor_type.elem_type not in DTYPES:
            return "types that PyTorch does not compute with (text, 8-bit floats, 2 and 4 bits)"
    for node in main.node:
        target = next((a.i for a in node.attribute if a.name == "to"), 1)
        if target not in DTYPES:
            return "types that PyTorch does not compute with (text, 8-bit floats, 2 and 4 bits)"
    return ""


def _computed(model: Any, values: Sequence[Any]) -> list[torch.Tensor]:
    """Results of a file; inputs that a row needs to know are known."""
    stored = {item.name for item in model.graph.initializer}
    given = [item.name for item in model.graph.input if item.name not in stored]
    module = OnnxModule(model, Path(), model.graph.name).eval()
    asked = {
        step.inputs[i]
        for step in module.steps
        for i in (step.row.known if step.row else range(len(step.inputs)))
        if i < len(step.inputs)
    }
    for step in reversed(module.steps):  # what follows from known numbers is known
        if step.kind in FOLDS and step.kind not in OF_SHAPES and asked & {*step.outputs}:
            asked |= {*step.inputs}
    known = {n: np.asarray(v) for n, v in zip(given, values, strict=False) if n in asked}
    module.known |= known
    live = {n: _tensor(v) for n, v in zip(given, values, strict=False) if n not in known}
    module.inputs = tuple(live)
    with torch.no_grad():
        results = module(**live)
    return [*results.values()] if isinstance(results, dict) else [results]


def _loaded(model: Any, values: Sequence[Any]) -> list[torch.Tensor]:
    """Results of the graph that a file becomes."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        onnx.save(model, path)
        graph, state = ag.load(path)
    names = [node.name for node in graph.nodes if node.op == "input"]
    inputs = {n: _tensor(v) for n, v in zip(names, values, strict=True)}
    return outputs(ag.build(graph, state).eval(), inputs)


def _tensor(value: Any) -> torch.Tensor:
    if isinstance(value, onnx.TensorProto):
        value = onnx.numpy_helper.to_array(value)
    return known_tensor(np.array(value))


def _difference(result: torch.Tensor, expected: Any, case: Case) -> str:
    """How a result differs; nothing where it does not."""
    wanted = _tensor(expected)
    if result.shape != wanted.shape:
        return f"shape {[*result.shape]} instead of {[*wanted.shape]}"
    if result.dtype != wanted.dtype:
        return f"{result.dtype} instead of {wanted.dtype}"
    rtol = max(case.rtol, 1e-3, TOLERANCES.get(str(wanted.dtype).removeprefix("torch."), 0))
    near = torch.isclose(result, wanted, rtol=rtol, atol=max(case.atol, 1e-5), equal_nan=True)
    return "" if bool(near.all()) else f"{int((~near).sum())} of {near.numel()} numbers"


def outcomes(groups: Sequence[str] = GROUPS, each: int = sys.maxsize) -> list[Outcome]:
    """Outcomes of some groups, at most so many cases of files that begin with one operator."""
    seen: Counter[str] = Counter()
    found = []
    for case in (case for group in groups for case in cases(group)):
        kind = case.model.graph.node[0].op_type
        seen[kind] += 1
        if seen[kind] <= each:
            found.append(examine(case))
    return found


def by_group(found: Sequence[Outcome]) -> Iterator[dict[str, object]]:
    """Yield how many cases of each group ended in which way."""
    words = ("equal", "different", "refused", "outside")
    for group in dict.fromkeys(o.group for o in found):
        count = Counter(o.word for o in found if o.group == group)
        yield {"group": group, "cases": count.total(), **{word: count[word] for word in words}}


def by_reason(found: Sequence[Outcome]) -> Iterator[dict[str, object]]:
    """Yield the reasons why cases are not equal, by operator within the scope."""
    count: Counter[tuple[str, str, str]] = Counter()
    for o in found:
        if o.word != "equal":
            kind = o.kinds[0] if len(o.kinds) == 1 else "several"
            count[o.word, "" if o.word == "outside" else kind, o.reason] += 1
    for (word, kind, reason), cases in sorted(count.items()):
        yield {"outcome": word, "operator": kind, "reason": reason, "cases": cases}


def main(arguments: Sequence[str] | None = None) -> int:
    """Examine groups of cases; 0 where none is different."""
    parser = argparse.ArgumentParser(prog="python -m tests.onnx.conformance", description=__doc__)
    parser.add_argument("--group", choices=GROUPS, action="append", help="these groups only")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write a CSV file")
    parser.add_argument("--show", action="store_true", help="name the cases that are not equal")
    options = parser.parse_args(arguments)
    found = outcomes(tuple(options.group or GROUPS))
    if options.show:
        for o in found:
            if o.word in ("different", "refused"):
                print(o.word, o.name, o.reason, sep=": ")  # noqa: T201 - the command's product
    if options.write:
        sheets.write(options.write, by_group(found))
        reasons = options.write.with_stem(f"{options.write.stem}-reasons")
        sheets.write(reasons, by_reason(found))
    for row in by_group(found):
        print(row)  # noqa: T201 - the command's product
    return 1 if any(o.word == "different" for o in found) else 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
