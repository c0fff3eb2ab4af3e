"""Growth examined on every model: wider, deeper and in parts, and still the same function?

The original's own weights and inputs are used, in evaluation, in float64 and in float32; what is
constant at the start (zeros, ones, running statistics) is made random first, so that nothing holds
by accident.
"""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

import archgraph as ag
from archgraph.hints import listed
from archgraph.rewrites.laws import in_float64, relative_difference, to_float64
from archgraph.states import DimMap, State
from archgraph.states import Entry as Source
from tests.nets import Foreign
from tests.structures import refusals
from tests.zoo.collection import Entry
from tests.zoo.exam import Level, dropout_off, seed_of, tensors
from tests.zoo.report import Checks, Findings
from tests.zoo.tables import Found, Row, rounded, told

FACTOR = 1.5
TWICE = 2.0  # what runs over an axis bears copies that are equally many
EXACT64, EXACT32 = 1e-10, 1e-5  # relative to each output's largest value
PARAMETERS = 1_500_000  # models of more are narrowed to about as many before they grow
SECONDS = {"quick": 4.0, "full": math.inf}  # for widening axes alone
ATTENTION = ("softmax", "scaled_dot_product_attention")

Reasons = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Law:
    """How often a law was tried, and its largest differences, relative."""

    tried: int = 0
    gap64: float = 0.0
    gap32: float = 0.0

    def with_(self, gap64: float, gap32: float) -> Law:
        """The law, tried once more."""
        return Law(self.tried + 1, max(self.gap64, gap64), max(self.gap32, gap32))


@dataclass(frozen=True, kw_only=True)
class Report(Findings):
    """What one examination found; plain values only, so that it travels as JSON."""

    kind: str = ""  # "transformer", "residual CNN" or "other"
    grown: int = 0  # parameters of what was grown: fewer where it was narrowed first
    free: int = 0
    sections: int = 0
    rounding: float = 0.0  # the original in float32 against itself in float64
    alone: Law = Law()
    together: Law = Law()
    doubled: Law = Law()  # all axes that can be, at once; not tried in older logs
    deeper: Law = Law()  # sections, each alone
    parts: Law = Law()
    axes_together: int = 0
    axes_doubled: int = 0
    effect: float = 0.0  # what the same copies do to the outputs when nothing makes up for them
    sections_together: int = 0
    narrowed_back: bool | None = None
    not_wider: Reasons = ()  # free axes and why they cannot be widened by FACTOR
    not_deeper: Reasons = ()
    not_cut: Reasons = ()


# -- one model --------------------------------------------------------------------------------


def examine(foreign: Foreign, level: Level = "quick", name: str = "") -> Report:
    """Grow one model in every way.

    Args:
        foreign: The model and its example inputs.
        level: ``quick`` widens single axes, in random order, for some seconds only; ``full`` all.
        name: Seeds the random choices.
    """
    exam = Checks()
    model, inputs = foreign.model, (foreign.args, foreign.kwargs)
    del foreign
    dropout_off(model)
    rng = np.random.default_rng(seed_of(name))
    torch.manual_seed(seed_of(name))
    traced = None
    with exam.check("trace"):
        traced = ag.trace(model.eval(), *inputs[0], **inputs[1])
    if traced is None:
        return exam.report(Report)
    del model
    graph, state = traced.graph, unsettled(traced.state)
    del traced
    free = ag.axes(graph).free
    found: dict[str, Any] = {
        "kind": kind_of(graph),
        "parameters": ag.cost(graph).parameters,
        "free": len(free),
    }
    refused: dict[str, str] = {}
    with exam.check("refusals"):
        refused = refusals(graph, FACTOR)
    found["not_wider"] = tuple(refused.items())
    graph, state = smaller(graph, state)
    found["grown"] = ag.cost(graph).parameters
    work = None
    with exam.check("original"):
        work = _Function(graph, state, inputs)
    if work is None:
        return exam.report(Report, **found)
    found["rounding"] = relative_difference(work.expected32, work.expected64)

    left_free = {a.name for a in ag.axes(graph).free}  # of what may be narrower now
    axes = [a for a in free if a.name not in refused and a.name in left_free]
    begin, law = time.process_time(), Law()
    for axis in (axes[i] for i in rng.permutation(len(axes))):
        if time.process_time() - begin > SECONDS[level]:
            break
        with exam.check(f"widen {axis.name}"):
            gaps = work(ag.widen(graph, {axis.name: FACTOR}))
            law = law.with_(*gaps)
            held(*gaps, found["rounding"])
    found["alone"] = law
    with exam.check("widen all"):
        chosen, left = together(graph, [a.name for a in axes])
        found["notes"] = tuple(f"not with the others: {a}: {why}" for a, why in left.items())
        found["axes_together"] = len(chosen)
        if chosen:
            wide = ag.widen(graph, dict.fromkeys(chosen, FACTOR))
            gaps = work(wide)
            found["together"] = Law().with_(*gaps)
            held(*gaps, found["rounding"])
            del wide
            found["effect"] = work.moved(plain(graph, chosen))
            assert found["effect"] > 1e-4, "vacuous: bare copies do the same"
            found["narrowed_back"] = narrowed_back(graph, chosen, state)
            assert found["narrowed_back"], "narrow(widen(g)) is not g"

    with exam.check("double all"):
        alone = refusals(graph, TWICE)
        even, _ = together(
            graph, [a.name for a in ag.axes(graph).free if a.name not in alone], TWICE
        )
        found["axes_doubled"] = len(even)
        if even:
            gaps = work(ag.widen(graph, dict.fromkeys(even, TWICE)))
            found["doubled"] = Law().with_(*gaps)
            held(*gaps, found["rounding"])

    sections = ag.structure(graph).sections
    found["sections"] = len(sections)
    deeper, law, stays = {}, Law(), []
    for section in sections:
        with exam.check(f"deepen {section.name}"):
            try:
                deep = ag.deepen(graph, {section.name: len(section.blocks) + 1})
            except ag.RewriteError as error:
                stays.append((section.name, f"{error.message}: {error.found}"))
                continue
            gaps = work(deep)
            law = law.with_(*gaps)
            held(*gaps, found["rounding"])
            deeper[section.name] = len(section.blocks) + 1
    found |= {"deeper": law, "not_deeper": tuple(stays), "sections_together": len(deeper)}
    if len(deeper) > 1:
        with exam.check("deepen all"):
            held(*work(ag.deepen(graph, deeper)), found["rounding"])

    cuts, uncut, law = [], [], Law()
    for section in sections[:-1]:
        with exam.check(f"split {section.name}"):
            try:
                parts = ag.split(graph, after=section.name)
            except ag.RewriteError as error:
                uncut.append((section.name, f"{error.message}: {error.found}"))
                continue
            assert ag.chain(parts) == graph, "chain(split(g)) is not g"
            law = law.with_(*work.in_parts(parts))
            assert law.gap64 == law.gap32 == 0, "parts compute something else"
            cuts.append(section.name)
    if len(cuts) > 1:
        with exam.check("split all"):
            parts = ag.split(graph, after=cuts)
            assert len(parts) == len(cuts) + 1 and ag.chain(parts) == graph, "chain(split) is not g"
            assert work.in_parts(parts) == (0, 0), "parts compute something else"
    found |= {"parts": law, "not_cut": tuple(uncut)}
    return exam.report(Report, **found)


def held(gap64: float, gap32: float, rounding: float) -> None:
    """Assert that the function stayed, in float32 as far as the original is itself there.

    The original and what it grew into each differ from the function by rounding: twice the
    original's is how far they may differ from each other.
    """
    allowed = max(EXACT32, 2 * rounding)
    assert gap64 <= EXACT64, f"float64 differs by {gap64:.2g}, allowed {EXACT64:g}"
    assert gap32 <= allowed, f"float32 differs by {gap32:.2g}, allowed {allowed:g}"


def kind_of(graph: ag.ArchGraph) -> str:
    """What family an architecture is of, by what it computes."""
    ops = {n.op.split(".")[1] for n in graph.nodes if n.op.startswith("aten.")}
    if ops & set(ATTENTION):
        return "transformer"
    convolves = any(op.startswith("conv") for op in ops)
    sums = any(b.sums for b in ag.structure(graph).blocks)
    return "residual CNN" if convolves and sums else "other"


def unsettled(state: State, *, enlarged: bool = True) -> dict[str, torch.Tensor]:
    """The weights, random where an entry is all of one value, and large enough to matter."""
    made: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        made[name] = tensor
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        if bool((tensor == tensor.mean()).all()):
            noise = 0.25 * torch.randn_like(tensor).tanh()
            made[name] = tensor + noise * tensor.abs().clamp(min=0.5)
        elif enlarged and tensor.dim() > 1:
            natural = tensor[0].numel() ** -0.5
            made[name] = tensor * max(1.0, natural / float(tensor.std()))
    return made


def smaller(graph: ag.ArchGraph, state: State) -> tuple[ag.ArchGraph, dict[str, torch.Tensor]]:
    """The model, narrowed where it is large: a law does not depend on sizes."""
    count = ag.cost(graph).parameters
    if count <= PARAMETERS:
        return graph, dict(state)
    cut_ = ag.take(graph, math.sqrt(PARAMETERS / count))
    return cut_.graph, unsettled(cut_.transfer.pull(state))


def together(
    graph: ag.ArchGraph, names: Sequence[str], factor: float = FACTOR
) -> tuple[list[str], dict[str, str]]:
    """Axes that can be widened at once, and why others cannot join them."""
    chosen, left = list(names), dict[str, str]()
    while chosen:
        try:
            ag.widen(graph, dict.fromkeys(chosen, factor))
        except ag.RewriteError as error:
            chosen.remove(str(error.where))
            left[str(error.where)] = str(error.found)
        else:
            break
    return chosen, left


def plain_entry(entry: Source) -> Source:
    """An entry that copies the same positions and divides nothing."""
    dims = (m and DimMap.of(m.positions, m.size) for m in entry.dims)
    return dataclasses.replace(entry, dims=tuple(dims))


def plain(graph: ag.ArchGraph, names: Sequence[str]) -> ag.Rewritten:
    """The same copies, with nothing that makes up for them."""
    graph, transfer = ag.widen(graph, dict.fromkeys(names, FACTOR))
    entries = {name: plain_entry(entry) for name, entry in transfer.entries.items()}
    return ag.Rewritten(graph, ag.Transfer(transfer.source, transfer.target, entries))


def narrowed_back(graph: ag.ArchGraph, names: Sequence[str], state: State) -> bool:
    """Whether narrowing in Net2Net's mode undoes widening, graph and state, bit for bit."""
    wide = ag.widen(graph, dict.fromkeys(names, FACTOR))
    sizes = {name: ag.axes(graph)[name].size for name in names}
    back = wide >> ag.narrow(wide.graph, sizes=sizes, mode="net2net")
    again = back.transfer.pull(state)
    same = all(torch.equal(again[k], v) for k, v in state.items() if k in again)
    return back.graph == graph and len(again) == len(state) and same


class _Function:
    """What a model computes in evaluation, in both precisions, and what it becomes."""

    def __init__(self, graph: ag.ArchGraph, state: State, inputs: Any) -> None:
        def wide(x: Any) -> Any:
            return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x

        self.names = [key for key, _ in graph.inputs]
        self.inputs32, self.inputs64 = inputs, pytree.tree_map(wide, inputs)
        self.state32, self.state64 = state, {k: wide(v) for k, v in state.items()}
        self.expected32 = self._run(graph, state, self.inputs32)
        self.expected64 = self._run(in_float64(graph), self.state64, self.inputs64)
        pairs = [t for t in self.expected64 if t.dim() and len(t) == 2]  # two examples
        moved = any(not torch.equal(*t) for t in pairs)
        assert moved or not pairs, "vacuous: no output depends on its input"

    @staticmethod
    def _run(graph: ag.ArchGraph, state: State, inputs: Any) -> list[torch.Tensor]:
        with torch.no_grad():
            return tensors(ag.build(graph, state).eval()(*inputs[0], **inputs[1]))

    def __call__(self, rewritten: ag.Rewritten) -> tuple[float, float]:
        """Largest differences from the original, relative, in float64 and float32."""
        ag.check(rewritten.graph)
        own = rewritten.transfer.pull(self.state32)
        narrow = relative_difference(
            self._run(rewritten.graph, own, self.inputs32), self.expected32
        )
        return self.moved(rewritten), narrow

    def moved(self, rewritten: ag.Rewritten) -> float:
        """Largest difference from the original in float64, relative."""
        own = to_float64(rewritten.transfer).pull(self.state64)
        found = self._run(in_float64(rewritten.graph), own, self.inputs64)
        return relative_difference(found, self.expected64)

    def in_parts(self, parts: Any) -> tuple[float, float]:
        """Differences when the parts run one after the other."""
        gaps = []
        for wide in (True, False):
            state = self.state64 if wide else self.state32
            args, kwargs = self.inputs64 if wide else self.inputs32
            bound = {**dict(zip(self.names, args, strict=False)), **kwargs}
            value: Any = ()
            for index, part in enumerate(parts):
                graph = in_float64(part.graph) if wide else part.graph
                net = ag.build(graph, {k: state[k] for k in part.graph.state_names}).eval()
                given = value if isinstance(value, tuple) else (value,)
                names = [key for key, _ in part.graph.inputs]
                handed = dict(zip(names, given, strict=False)) if index else {}
                handed |= {k: bound[k] for k in names[len(given) if index else 0 :]}
                with torch.no_grad():
                    value = net(**handed)
            expected = self.expected64 if wide else self.expected32
            gaps.append(relative_difference(tensors(value), expected))
        return gaps[0], gaps[1]


# -- all models -------------------------------------------------------------------------------


def line(entry: Entry, report: Report, seconds: float) -> str:
    """One model in one line, its failures below."""
    head = (
        f"{report.verdict} {entry.group}/{entry.name} ({seconds:.0f} s, {report.kind}): wider "
        f"{report.free - len(report.not_wider)}/{report.free}, tried {report.alone.tried} "
        f"({_gaps(report.alone)}), {report.axes_together} at once ({_gaps(report.together)}), "
        f"{report.axes_doubled} doubled ({_gaps(report.doubled)}); "
        f"deeper {report.deeper.tried}/{report.sections} ({_gaps(report.deeper)}); "
        f"cuts {report.parts.tried}; rounding {report.rounding:.0e}, effect {report.effect:.0e}"
    )
    return told(report, head)


def figures(report: Report) -> Row:
    """Return how many axes and sections grew, and how far the results were off."""
    laws = {
        "alone": report.alone, "together": report.together, "doubled": report.doubled,
        "deepened": report.deeper,
    }  # fmt: skip
    gaps = {
        f"{name} {bits}": rounded(gap) if law.tried else ""
        for name, law in laws.items()
        for bits, gap in (("64", law.gap64), ("32", law.gap32))
    }
    return {
        "kind": report.kind,
        "free axes": report.free,
        "exact axes": report.free - len(report.not_wider),
        "axes alone": report.alone.tried,
        "axes together": report.axes_together,
        "axes doubled": report.axes_doubled,
        "sections": report.sections,
        "deepened sections": report.deeper.tried,
        "cuts": report.parts.tried,
        **gaps,
        "bare copies": rounded(report.effect) if report.together.tried else "",
        "narrowed back": {None: "", True: "equal", False: "differs"}[report.narrowed_back],
    }


def reasons(found: Found) -> Iterator[Row]:
    """Yield the reasons of refusals without names, most frequent first, with some models."""
    for refused in ("not_wider", "not_deeper", "not_cut"):
        models: dict[str, list[str]] = {}
        for entry, report in found:
            for _, reason in getattr(report, refused):
                models.setdefault(general(reason), []).append(entry.name)
        for reason, names in sorted(models.items(), key=lambda item: -len(item[1])):
            few = listed(list(dict.fromkeys(names)))
            kind = refused.replace("_", " ")
            yield {"refused": kind, "reason": reason, "times": len(names), "models": few}


def general(reason: str) -> str:
    """A reason without the names of one model.

    >>> general("aten.layer_norm in layers.0.norm1 runs over it: copies must be equally many")
    'aten.layer_norm runs over it: copies must be equally many'
    """
    text = re.sub(r" in [\w.]*(?= (runs|sums) )", "", reason)
    if text.startswith("section has no repeatable block"):  # stems and heads
        return "section has no repeatable block"
    return re.sub(r"%[\w.]+", "%…", text)


def _gaps(law: Law) -> str:
    return f"{law.gap64:.0e} / {law.gap32:.0e}" if law.tried else ""
