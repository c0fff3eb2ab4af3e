"""Export examined on every model: files of a model and of its half, run in onnxruntime and back.

Weights of one value are made random first, so that a file that leaves one out differs, and small
ones larger, unless PyTorch itself is then far from its results in double precision.
"""

from __future__ import annotations

import inspect
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
from tests.zoo.tables import Row, rounded, told

BESIDE = 2**30  # bytes of weights above which they stand beside the file
REFUSED = ("cannot be expressed in ONNX", "cannot be exported with an open batch size")


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


def line(entry: Entry, report: Report, seconds: float) -> str:
    """One model in one line, its refusals and failures below."""
    gaps = ", ".join(f"{f.gap:.0e}" for f in (report.whole, report.half) if f)
    size = f"{report.memory / 2**30:.1f} GiB"
    head = f"{report.verdict} {entry.group}/{entry.name} ({seconds:.0f} s, {size}; {gaps})"
    refused = [f"        {what} refused: {why}" for what, why in report.refused]
    return told(report, head, *refused)


def figures(report: Report) -> Row:
    """Return sizes of the files and their differences from PyTorch."""
    whole, half = report.whole, report.half
    return {
        "graph operators": report.nodes,
        "file operators": whole.operators if whole else "",
        "file bytes": whole.bytes if whole else "",
        "file minus PyTorch": rounded(whole.gap) if whole else "",
        "half parameters": half.parameters if half else "",
        "half minus PyTorch": rounded(half.gap) if half else "",
        "export s": round(report.seconds.get("whole: export", 0.0), 1),
    }
