"""The graph hypernetwork examined on every model: is every tensor generated or local by a rule?

A small hypernetwork is sized for each model alone. What it generates takes the place of the model's
own weights.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import archgraph as ag
from archgraph.hypernet import DecoderSlot, GraphHypernetwork
from archgraph.states import State
from tests.nets import Foreign
from tests.zoo.collection import Entry
from tests.zoo.exam import Level, dropout_off, seed_of, tensors
from tests.zoo.report import Checks, Findings
from tests.zoo.tables import Found, Row, told

# Small, since what is examined does not depend on sizes.
NETWORK: dict[str, Any] = {"width": 16, "hidden": 16, "tile": 8}
RULES = ("buffer", "frozen", "unused", "not real")


@dataclass(frozen=True, kw_only=True)
class Report(Findings):
    """What one examination found; plain values only, so that it travels as JSON."""

    nodes: int = 0
    generated: int = 0  # tensors
    numbers: int = 0  # in them
    local: dict[str, int] = field(default_factory=dict)  # tensors by rule
    slots: dict[str, int] = field(default_factory=dict)  # tensors by slot
    weights: int = 0  # of the hypernetwork
    finite: bool | None = None  # what the model computes with generated weights


# -- one model --------------------------------------------------------------------------------


def examine(foreign: Foreign, level: Level = "quick", name: str = "") -> Report:
    """Generate one model's weights.

    Args:
        foreign: The model and its example inputs.
        level: Makes no difference.
        name: Seeds the hypernetwork.
    """
    exam = Checks()
    model, args, kwargs = foreign.model, foreign.args, foreign.kwargs
    del foreign
    dropout_off(model)
    traced = None
    with exam.check("trace"):
        traced = ag.trace(model, *args, **kwargs)
    if traced is None:
        return exam.report(Report)
    expected = trained_names(model, traced.graph)
    del model
    graph, state = traced
    found: dict[str, Any] = {"parameters": ag.cost(graph).parameters, "nodes": len(graph.nodes)}

    network = None
    with exam.check("sizes"):
        network = GraphHypernetwork.for_graphs([graph], seed=seed_of(name), **NETWORK)
    if network is None:
        return exam.report(Report, **found)
    made = network.entries(graph)
    found |= {
        "generated": len(made),
        "numbers": sum(math.prod(e.shape) for e in made),
        "slots": dict(Counter(str(e.slot) for e in made)),
        "weights": sum(p.numel() for p in network.parameters()),
    }
    with exam.check("rules"):
        local = network.unset(graph)
        found["local"] = dict(Counter(local.values()))
        names = sorted([*(e.name for e in made), *local])
        assert names == sorted(state), f"neither or twice: {_other(names, sorted(state))}"
        assert set(found["local"]) <= set(RULES), f"a rule is new: {sorted(found['local'])}"
        # What the model itself says of its parameters.
        names = sorted(e.name for e in made)
        assert names == expected, f"not what is trained: {_other(names, expected)}"
    with exam.check("no decoder"):
        named_without_decoder(network, graph)

    new: dict[str, torch.Tensor] = {}
    with exam.check("generate"):
        with torch.no_grad():
            new = network.generate([graph], [state])[0]
        fit(new, state, [e.name for e in made])
    with exam.check("gradients"):
        reached(network, graph, state)
    if "generate" not in exam.passed:
        return exam.report(Report, **found)
    own = {**state, **{k: v.detach() for k, v in new.items()}}
    gap = half_square(own, state)
    new.clear()
    with exam.check("pull back"):
        loss = network.pull_back([graph], [state], [state])
        assert math.isclose(loss, gap, rel_tol=1e-4), f"{loss}, by hand {gap}"
        bad = [
            n
            for n, p in network.named_parameters()
            if p.grad is not None and not p.grad.isfinite().all()
        ]
        assert not bad, f"gradient of φ not finite: {', '.join(bad[:3])}"
    with exam.check("run"), torch.no_grad():
        values = tensors(ag.build(graph, own).eval()(*args, **kwargs))
        found["finite"] = all(bool(t.isfinite().all()) for t in values if t.is_floating_point())
    return exam.report(Report, **found)


def _other(found: Sequence[str], expected: Sequence[str]) -> str:
    """Names that only one of two lists has, or has more often."""
    a, b = Counter(found), Counter(expected)
    return ", ".join([*(a - b), *(b - a)][:3])


def trained_names(model: torch.nn.Module, graph: ag.ArchGraph) -> list[str]:
    """Parameters that torch would train and that some operator reads, real ones, sorted."""
    used = {leaf for node in graph.nodes for leaf in node.leaves()}
    return sorted(
        name
        for name, p in model.named_parameters()
        if p.requires_grad and name in used and p.is_floating_point()
    )


def named_without_decoder(network: GraphHypernetwork, graph: ag.ArchGraph) -> None:
    """For each slot: without its decoder the error names a tensor that it would set."""
    slots = network.slots
    try:
        for slot in slots:
            network.slots = {k: v for k, v in slots.items() if k != slot}
            wanted = [e.name for e in network.entries(graph) if e.slot == slot]
            try:
                network.unset(graph)
            except ag.GraphError as error:
                assert error.where in wanted, f"{error.where} is named, not {wanted[0]}"
            else:
                raise AssertionError(f"nothing sets {wanted[0]}, and no rule says so")
    finally:
        network.slots = slots


def fit(new: State, state: State, names: Sequence[str]) -> None:
    """Assert that generated tensors have the names, sizes and types that they must, and numbers."""
    assert list(new) == list(names), f"generated: {_other(list(new), names)}"
    for name, value in new.items():
        own = state[name]
        assert value.shape == own.shape and value.dtype == own.dtype, (
            f"{name} is {value.dtype}{tuple(value.shape)}, not {own.dtype}{tuple(own.shape)}"
        )
        assert value.isfinite().all(), f"{name} is not finite"


def reached(network: GraphHypernetwork, graph: ag.ArchGraph, state: State) -> None:
    """Assert that every tensor moves its decoder, and all of them together every other part."""
    entries = [e for e in network.entries(graph) if math.prod(e.shape)]
    codes: dict[DecoderSlot, list[torch.Tensor]] = {slot: [] for slot in network.slots}

    def keep(slot: DecoderSlot) -> Callable[[Any, Any, torch.Tensor], None]:
        def hook(module: Any, given: Any, code: torch.Tensor) -> None:
            code.retain_grad()
            codes[slot].append(code)

        return hook

    hooks = [
        decode.register_forward_hook(keep(slot))
        for slot, decode in zip(network.slots, network.decoders, strict=True)
    ]
    new = network.generate([graph], [state])[0]
    for hook in hooks:
        hook.remove()
    if not entries:
        return
    network.zero_grad()
    torch.autograd.backward(
        [new[e.name] for e in entries],
        [torch.ones((), dtype=e.dtype).expand(e.shape) for e in entries],
    )
    for slot, found in codes.items():
        wanted = [e.name for e in entries if e.slot == slot]
        gradients = [code.grad for code in found if code.grad is not None]
        assert all(g.isfinite().all() for g in gradients), f"gradient of {slot} not finite"
        moved = sum(int(g.reshape(len(g), -1).any(1).sum()) for g in gradients)
        assert moved == len(wanted), f"{moved} tensors of {len(wanted)} move {slot}: {wanted[0]}"
    for part in ("word", "encoder", "join", "gnn.cell.weight_hh", "norm", "decoders"):
        own = [p for n, p in network.named_parameters() if n.startswith(part)]
        still = [p for p in own if p.grad is None or not p.grad.any()]
        assert own and not still, f"{part} is not moved"
    network.zero_grad()


def half_square(a: State, b: State) -> float:
    """Half the squared distance of two states, over what is real, in float64."""
    total = 0.0
    for name, value in b.items():
        if value.is_floating_point():
            difference = a[name].double() - value.double()
            total += float(torch.linalg.vector_norm(difference)) ** 2
    return total / 2


# -- all models -------------------------------------------------------------------------------


def line(entry: Entry, report: Report, seconds: float) -> str:
    """One model in one line, its failures below."""
    stays = ", ".join(f"{count} {why}" for why, count in report.local.items())
    head = (
        f"{report.verdict} {entry.group}/{entry.name} "
        f"({seconds:.0f} s, {report.memory / 2**30:.1f} GiB): "
        f"{report.generated} generated by {len(report.slots)} slots; local: {stays or 'none'}; "
        f"output {_OUTPUT[report.finite]}"
    )
    return told(report, head)


_OUTPUT = {None: "unknown", True: "finite", False: "not finite"}


def figures(report: Report) -> Row:
    """Return what is generated and what stays with the client, in tensors by rule."""
    return {
        "nodes": report.nodes,
        "generated tensors": report.generated,
        "generated numbers": report.numbers,
        **{f"local: {rule}": report.local.get(rule, 0) for rule in RULES},
        "slots": len(report.slots),
        "hypernetwork parameters": report.weights,
        "output": _OUTPUT[report.finite],
        "s": round(sum(report.seconds.values()), 1),
    }


def slots(found: Found) -> Iterator[Row]:
    """Yield every slot of the zoo, that of most models first."""
    count: Counter[str] = Counter()
    models: dict[str, list[str]] = {}
    for entry, report in found:
        count.update(report.slots)
        for slot in report.slots:
            models.setdefault(slot, []).append(entry.name)
    for slot, names in sorted(models.items(), key=lambda item: (-len(item[1]), item[0])):
        row = {"tensors": count[slot], "models": len(names), "for example": " ".join(names[:2])}
        yield {"slot": slot, **row}
