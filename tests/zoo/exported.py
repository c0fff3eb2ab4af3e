"""Export examined on every model: files of a model and of its half, run in onnxruntime and back.

Weights of one value are made random first, so that a file that leaves one out differs, and small
ones larger, unless PyTorch itself is then far from its results in double precision.
"""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import onnx
import torch

import archgraph as ag
from archgraph.onnx.session import TOLERANCES, check_file, distance, open_session, run_session
from archgraph.rewrites.laws import outputs, random_inputs
from archgraph.states import State
from tests.nets import Foreign
from tests.zoo.collection import Entry
from tests.zoo.exam import Level, seed_of, tensors
from tests.zoo.growth import unsettled
from tests.zoo.report import Checks, Findings
from tests.zoo.tables import (
    Found,
    by_group,
    each_group,
    failures,
    grid,
    listing,
    not_examined,
    told,
)

BESIDE = 2**30  # bytes of weights above which they stand beside the file
REFUSED = ("cannot be expressed in ONNX", "cannot be exported with a free batch size")


@dataclass(frozen=True)
class File:
    """What a file holds, and how far it is from PyTorch."""

    parameters: int
    operators: int
    bytes: int
    gap: float


@dataclass(frozen=True, kw_only=True)
class Report(Findings):
    """What one examination found; plain values only, so that it travels as JSON."""

    nodes: int = 0
    whole: File | None = None
    half: File | None = None
    refused: tuple[tuple[str, str], ...] = ()  # what is not exported, and why


def examine(foreign: Foreign, level: Level = "quick", name: str = "") -> Report:
    """Export a model and its half; the level and the name (a seed) change nothing else."""
    exam = Checks()
    model, args, kwargs = foreign.model.eval(), foreign.args, foreign.kwargs
    del foreign
    torch.manual_seed(seed_of(name))
    traced = None
    with exam.check("trace"):
        traced = ag.trace(model, *args, **kwargs)
    if traced is None:
        return exam.report(Report)
    graph, state = traced.graph, unsettled(traced.state)
    if not _steady(graph, state):
        state = unsettled(traced.state, enlarged=False)
    del traced
    expected: list[torch.Tensor] = []
    with exam.check("original"), torch.no_grad():
        full = model.state_dict()  # with the versions of its layers
        full.update(state)
        model.load_state_dict(full)
        expected = tensors(model(*args, **kwargs))
    # In the order in which forward takes them, as the file does.
    given = tensors(inspect.signature(model.forward).bind(*args, **kwargs).arguments)
    del model
    work = _Work(exam, [])
    whole = work("whole", graph, state, (given, expected))
    half = None
    small = None
    with exam.check("take 0.5"):
        small = ag.take(graph, 0.5, allow_nothing=True)
    if small is not None:
        weights = small.transfer.pull(state)
        del state
        half = work("half", small.graph, weights, None)
    return exam.report(
        Report,
        parameters=ag.cost(graph).parameters,
        nodes=len(graph.nodes),
        whole=whole,
        half=half,
        refused=tuple(work.refused),
    )


def _steady(graph: ag.ArchGraph, state: State) -> bool:
    """Whether single precision gives what double precision does, to a tenth of what is allowed."""
    module = ag.build(graph, state).eval()
    inputs = random_inputs(graph)
    expected = outputs(module, inputs)
    double = {
        name: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for name, x in inputs.items()
    }
    try:
        exact = outputs(module.double(), double)
    except (RuntimeError, TypeError, ag.ArchGraphError):  # the graph itself is in single precision
        return True
    return distance(expected, exact, TOLERANCES["float32"]) <= TOLERANCES["float32"] / 10


@dataclass(frozen=True)
class _Work:
    """Exports graphs, and notes what fails and what is refused."""

    exam: Checks
    refused: list[tuple[str, str]]

    def __call__(
        self,
        what: str,
        graph: ag.ArchGraph,
        state: State,
        example: tuple[list[torch.Tensor], list[torch.Tensor]] | None,
    ) -> File | None:
        check = self.exam.check
        beside = sum(t.nbytes for t in state.values()) > BESIDE
        with TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            with check(f"{what}: export"):
                try:
                    place: Literal["inside", "beside"] = "beside" if beside else "inside"
                    ag.export(graph, state, path, weights=place, verify=False)
                except ag.GraphError as error:
                    if error.message not in REFUSED:
                        raise
                    self.refused.append((what, f"{error.message}: {error.facts.get('found')}"))
            if not path.exists():
                return None
            gap = float("inf")
            with check(f"{what}: onnxruntime"):
                gap = check_file(path, ag.build(graph, state).eval(), what)
                if example is not None:
                    gap = max(gap, _example(path, *example))
            with check(f"{what}: round trip"):
                _round_trip(path, graph, state)
            proto = onnx.load(path, load_external_data=False)
            parts = (proto.graph, *proto.functions)
            size = sum(file.stat().st_size for file in Path(folder).iterdir())
        return File(
            ag.cost(graph).parameters, sum(len(part.node) for part in parts), size, float(gap)
        )


def _example(path: Path, inputs: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """How far the file is from the original model on its own example."""
    gap = distance(run_session(open_session(path), inputs), expected, TOLERANCES["float32"])
    assert gap <= TOLERANCES["float32"], f"the original differs by {gap:.1e} (relative)"
    return gap


def _round_trip(path: Path, graph: ag.ArchGraph, state: State) -> None:
    """The file becomes the same graph, with equal weights, axes and blocks."""
    again, weights = ag.load(path)
    assert again == graph and again.name == graph.name, "another graph"
    assert list(weights) == list(graph.state_names), "other names of weights"
    wrong = [n for n, t in weights.items() if not torch.equal(t, state[n])]
    assert not wrong, f"other weights: {', '.join(wrong[:3])}"
    # Reasons name lines of the traced code, which the text of a graph does not.
    assert _axes(again) == _axes(graph), "other axes"
    assert ag.structure(again).blocks == ag.structure(graph).blocks, "other blocks"


def _axes(graph: ag.ArchGraph) -> list[tuple[object, ...]]:
    return [(a.name, a.size, a.role, a.free, len(a.spans)) for a in ag.axes(graph).all]


# -- all models -------------------------------------------------------------------------------

_COLUMNS = (
    "model", "parameters", "operators: graph", "file", "MB", "file − PyTorch", "half: parameters",
    "file − PyTorch", "export s", "verdict",
)  # fmt: skip


def line(entry: Entry, report: Report, seconds: float) -> str:
    """One model in one line, its refusals and failures below."""
    gaps = ", ".join(f"{f.gap:.0e}" for f in (report.whole, report.half) if f)
    size = f"{report.memory / 2**30:.1f} GiB"
    head = f"{_verdict(report)} {entry.group}/{entry.name} ({seconds:.0f} s, {size}; {gaps})"
    refused = [f"        {what} refused: {why}" for what, why in report.refused]
    return told(report, head, *refused)


def table(found: Found, level: Level, models: int) -> str:
    """The page: a summary, a table per group, refusals and failures."""
    parts = [
        "# The zoo as ONNX files",
        "Written by `python -m tests.zoo --exam onnx`; do not edit.",
        "Every model is traced, weights of one value are made random (and small ones larger, where "
        "single precision can then be compared at all), and the whole and half of "
        "every free axis (`take 0.5`) are exported. onnxruntime runs each file on random inputs "
        "of two batch sizes, beside the built module, and the whole on its example, beside the "
        f"original; allowed is {TOLERANCES['float32']:g} of the largest value of each result in "
        "single precision. Then the file is loaded: the same graph, weights bit for bit, "
        "the same axes and blocks.",
        "A refusal is not a failure; it is listed with its reason. *file*: operators in the "
        "file. Processor seconds on one core, for the whole.",
        _summary(found),
    ]
    refused = [f"- {e.group}/{e.name}, {what}: {why}" for e, r in found for what, why in r.refused]
    parts += [*not_examined(found, models), *by_group(found, _COLUMNS, _row)]
    parts += [*listing("Refused", refused), *failures(found)]
    return "\n\n".join(parts) + "\n"


def _verdict(report: Report) -> str:
    return "FAIL" if not report.ok else "refused" if report.refused else "pass"


def _summary(found: Found) -> str:
    heads = ("group", "models", "pass", "refused", "worst difference: whole", "half")
    rows = []
    for group, own in each_group(found):
        verdicts = Counter(map(_verdict, own))
        worst = (
            f"{max((f.gap for r in own if (f := getattr(r, key))), default=0.0):.0e}"
            for key in ("whole", "half")
        )
        counts = str(len(own)), str(verdicts["pass"]), str(verdicts["refused"])
        rows.append((group, *counts, *worst))
    return grid(heads, rows)


def _row(entry: Entry, report: Report) -> tuple[str, ...]:
    whole, half = report.whole, report.half
    verdict = _verdict(report)
    return (
        entry.name,
        f"{report.parameters:,}",
        str(report.nodes),
        str(whole.operators) if whole else "",
        f"{whole.bytes / 1e6:.1f}" if whole else "",
        f"{whole.gap:.0e}" if whole else "",
        f"{half.parameters:,}" if half else "",
        f"{half.gap:.0e}" if half else "",
        f"{report.seconds.get('whole: export', 0.0):.1f}",
        "**fail**" if verdict == "FAIL" else verdict,
    )
