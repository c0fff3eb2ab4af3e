"""One examination for every model: is the graph the model, and does every cut of it work?"""

from __future__ import annotations

import itertools
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

import archgraph as ag
from archgraph.analysis.axes import Axis
from archgraph.layout.layouts import AxisRef, leaves
from archgraph.ops.infer import infer
from archgraph.rewrites.cut import cut_axes
from archgraph.rewrites.laws import (
    evaluated,
    in_float64,
    mask_equals_take,
    random_inputs,
    random_state,
    refuse_empty,
    relative_difference,
)
from tests.laws.test_share_laws import check_share
from tests.nets import Foreign
from tests.zoo.layers import others, weighted
from tests.zoo.report import Checks, Findings

Level = Literal["quick", "full"]

LAW = 1e-9  # mask ≡ take in float64, relative to the largest output
LAW_PARAMETERS = 200_000_000  # above, its five float64 copies do not fit beside another model
SAME = 1e-6  # built against original, in float32
SAME_SUMS = 1e-5  # gradients: sums over positions and examples, in an order that kernels choose
AXES = 3  # axes cut alone at the quick level
DROPOUTS = (
    "p", "dropout", "attention_dropout", "activation_dropout", "dropout_prob", "hidden_dropout",
    "dropout_rate", "attn_dropout", "dropout_p", "resid_pdrop", "attn_pdrop", "embd_pdrop",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Report(Findings):
    """What one examination found; plain values only, so that it travels as JSON."""

    nodes: int = 0
    macs: int = 0
    free: int = 0
    pinned: int = 0
    spanned: int = 0
    blocks: int = 0
    removable: int = 0
    sections: int = 0
    layers: int = 0  # of torch.nn, called and with weights of their own
    returned: int = 0  # those that the built module has again, with the same options
    half: int = 0  # parameters that halving every free axis leaves
    share: float | None = None  # of the parameters, on at least one free axis
    gap: float | None = None  # worst difference of mask ≡ take
    law_axes: int = 0


def tensors(output: Any) -> list[torch.Tensor]:
    """The tensors of any model output, in order."""
    values = output.to_tuple() if hasattr(output, "to_tuple") else output
    return [t for t in pytree.tree_leaves(values) if isinstance(t, torch.Tensor)]


def loss_of(found: list[torch.Tensor]) -> torch.Tensor:
    """A loss that reaches everything that has a gradient."""
    terms = [t.square().mean() for t in found if t.is_floating_point() and t.requires_grad]
    if not terms:
        raise AssertionError("no output has a gradient")
    return torch.stack([t.reshape(()) for t in terms]).sum()


def dropout_off(model: torch.nn.Module) -> None:
    """Set every dropout probability to zero: what is left of training is deterministic."""
    for module in model.modules():
        for name in DROPOUTS:
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def seed_of(name: str) -> int:
    """A seed that depends on nothing but a name."""
    return zlib.crc32(name.encode())


def examine(foreign: Foreign, level: Level = "quick", name: str = "") -> Report:
    """Run every check on one model.

    Args:
        foreign: The model and its example inputs; its dropout probabilities are set to zero.
        level: ``quick`` cuts three axes alone and leaves out three blocks, ``full`` twelve axes and
            every removable block.
        name: Seeds the random choices.
    """
    exam = Checks()
    model, args, kwargs = foreign.model, foreign.args, foreign.kwargs
    del foreign  # a giant's original is freed before its cuts are made
    dropout_off(model)
    rng = np.random.default_rng(seed_of(name))
    traced = None
    with exam.check("trace"):
        traced = ag.trace(model, *args, **kwargs)
    if traced is None:
        count = sum(p.numel() for p in model.parameters())
        return exam.report(Report, parameters=count)
    graph, state = traced
    figures: dict[str, Any] = {"nodes": len(graph.nodes), "notes": tuple(traced.notes)}

    parameters = figures["parameters"] = sum(p.numel() for p in model.parameters())
    with exam.check("parameters"):
        found = ag.cost(graph).parameters
        assert found == parameters, f"graph has {found}, the model {parameters}"
    with exam.check("macs"):
        macs = figures["macs"] = ag.cost(graph).macs
        expected = multiplications(model, args, kwargs)
        if macs < expected:  # perhaps the model computes what no output needs
            live = multiplications(ag.build(graph, state), args, kwargs)
            if live == macs:
                figures["notes"] += (f"{expected - macs} multiplications reach no output",)
                expected = live
        assert macs == expected, f"graph has {macs}, torch counts {expected}"
    with exam.check("layers"):
        expected_layers = weighted(model, args, kwargs)
        unlike = others(expected_layers, ag.build(graph, state))
        figures |= {"layers": len(expected_layers), "returned": len(expected_layers) - len(unlike)}
        if unlike:
            path, other = next(iter(unlike.items()))
            figures["notes"] += (f"{len(unlike)} layers are another thing; {path}: {other}",)
    reached: set[str] = set()
    for mode in ("eval", "train"):
        with exam.check(mode):
            reached = equal_in_mode(model, graph, state, args, kwargs, training=mode == "train")
    if "train" not in exam.passed:  # every parameter that the original gives a gradient
        with exam.check("original trains"):
            model.load_state_dict({**model.state_dict(), **state})
            reached = gradients(model.train(), args, kwargs)
    del model

    with exam.check("retrace"):
        again = ag.trace(ag.build(graph, state), *args, **kwargs).graph
        assert again == graph, _first_difference(again, graph)
    with exam.check("infer"):
        again = infer(graph)
        assert again == graph, _first_difference(again, graph)
    with exam.check("text"):
        again = ag.parse(str(graph))
        assert again == graph, _first_difference(again, graph)
    with exam.check("yaml"), TemporaryDirectory() as folder:
        ag.save(graph, Path(folder) / "net.yaml")
        again = ag.load(Path(folder) / "net.yaml")
        assert again == graph, _first_difference(again, graph)

    solved = None
    with exam.check("axes"):
        solved = ag.axes(graph.replace())  # a copy: nothing that is cached helps the clock
    with exam.check("structure"):
        structure = ag.structure(graph)
        figures |= {
            "blocks": len(structure.blocks),
            "removable": sum(b.removable for b in structure.blocks),
            "sections": len(structure.sections),
        }
    if solved is None:
        return exam.report(Report, **figures)
    free = solved.free
    figures |= {
        "free": len(free),
        "pinned": len(solved.pinned),
        "spanned": sum(bool(a.spans) for a in free),
    }
    with exam.check("reasons"):
        silent = [a.name for a in solved.pinned if not a.reason]
        assert not silent, f"pinned without a reason: {', '.join(silent[:3])}"
        figures["share"] = share(graph, solved)

    step = _Step(graph, state, args, kwargs, reached)
    if free:
        with exam.check("take 0.5"):
            small = ag.take(graph, 0.5)
            check_share(graph, small, 0.5, {axis.name for axis in solved.independent()})
            assert infer(small.graph) == small.graph, "infer finds other types"
            figures["half"] = step(small)
            assert figures["half"] < parameters, "nothing became smaller"
    for axis in _spread(free, AXES if level == "quick" else 4 * AXES, rng):
        with exam.check(f"take {axis.name}"):
            step(ag.take(graph, positions={axis: random_half(axis, rng)}))

    removable: list[str] = []
    if "structure" in exam.passed:
        removable = [b.name for b in ag.structure(graph).blocks if b.removable]
    left_out = _ends_and_one(removable, rng) if level == "quick" else removable
    for block in left_out:
        with exam.check(f"skip {block}"):  # the law for all at the full level, else for one
            lawful = parameters <= LAW_PARAMETERS and (level == "full" or block == left_out[-1])
            try:
                step(ag.skip(graph, [block], verify=lawful))
            except ag.RewriteError as error:  # the only block that mixes positions, say
                if "no longer depends on the input" not in str(error):
                    raise
                figures["notes"] += (f"without {block} {error.message}",)
                step(ag.skip(graph, [block]))
    if removable and free:
        with exam.check("skip and take"):
            shorter = ag.skip(graph, _ends_and_one(removable, rng)[-1:])
            step(shorter >> ag.take(shorter.graph, 0.5, allow_nothing=True))

    whole = [a for a in free if not a.spans]
    kept = {a.name: random_half(a, rng) for a in whole}
    figures["law_axes"] = len(kept)
    if not kept:
        exam.left_out.append(("law", "no free axis that no norm or softmax spans"))
    elif parameters > LAW_PARAMETERS:
        exam.left_out.append(("law", f"{parameters / 1e6:.0f} M parameters in float64"))
    else:
        with exam.check("law"):
            small = cut_axes(graph, kept)
            gap = mask_equals_take(graph, small, kept, tolerance=math.inf)
            figures["gap"] = gap
            assert gap <= LAW, f"mask and take differ by {gap:.2g} (relative), allowed {LAW:g}"
            assert effect(graph, small) > 1e-6, "vacuous: the cut changes no output"
    return exam.report(Report, **figures)


def equal_in_mode(
    model: torch.nn.Module,
    graph: ag.ArchGraph,
    state: dict[str, torch.Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    training: bool,
) -> set[str]:
    """Values, gradients and batch statistics of the built module are the original's.

    Returns:
        Parameters that the original gives a gradient.
    """
    built = ag.build(graph, state)
    keys, wanted = list(built.state_dict()), list(model.state_dict())
    assert set(keys) == set(wanted), f"state dict: {_first_other(keys, wanted)}"
    # Further names of tied tensors come last: where they stood is no part of an architecture.
    tied = {name for p in graph.params for name in p.aliases}
    keys, wanted = ([n for n in names if n not in tied] for names in (keys, wanted))
    assert keys == wanted, f"state dict: {_first_other(keys, wanted)}"
    built.load_state_dict(model.state_dict(), strict=True)
    model.train(training)
    built.train(training)
    model.zero_grad(set_to_none=True)
    torch.manual_seed(0)
    expected = tensors(model(*args, **kwargs))
    torch.manual_seed(0)
    found = tensors(built(*args, **kwargs))
    assert len(found) == len(expected), f"{len(found)} outputs, the original has {len(expected)}"
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=SAME, atol=SAME)
    loss_of(expected).backward()
    loss_of(found).backward()
    ours = dict(built.named_parameters())
    original = {k: p.grad for k, p in model.named_parameters() if p.grad is not None}
    largest = max((float(g.abs().max()) for g in original.values()), default=0.0)
    for name in dict(model.named_parameters()):
        gradient, theirs = ours[name].grad, original.get(name)
        assert (theirs is None) == (gradient is None), f"gradient of {name}"
        if theirs is not None and gradient is not None:
            # A key's bias has the gradient 0 before a softmax: what is left of it is rounding.
            scale = max(float(theirs.abs().max()), largest / 100) or 1.0
            worst = float((gradient - theirs).abs().max()) / scale
            assert worst <= SAME_SUMS, f"gradient of {name} differs by {worst:.2g} (relative)"
    reached = set(original)
    assert reached, "the original gives no parameter a gradient"
    own = built.state_dict()
    for name, tensor in model.state_dict().items():  # batch statistics moved alike
        torch.testing.assert_close(own[name], tensor, rtol=SAME, atol=SAME, equal_nan=True)
    return reached


def gradients(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[str]:
    """Parameters that a training step of the model reaches."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(0)
    loss_of(tensors(model(*args, **kwargs))).backward()
    return {name for name, p in model.named_parameters() if p.grad is not None}


def multiplications(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Multiply–accumulates of one example in evaluation: half of torch's FLOPs.

    The counter knows convolutions and products of matrices; products with a vector and of three
    tensors are added. Fused attention and recurrent layers, of which it counts nothing on a CPU,
    are taken apart.
    """

    def one(inputs: Any) -> Any:
        return pytree.tree_map(
            lambda x: x[:1] if isinstance(x, torch.Tensor) and x.dim() else x, inputs
        )

    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        counter = FlopCounterMode(display=False, custom_mapping=_VECTORS)
        with torch.backends.mkldnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH), counter:
            model.eval()(*one(args), **one(kwargs))
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return counter.get_total_flops() // 2


def _vector(a: Any, b: Any, *_: Any, **__: Any) -> int:
    return 2 * math.prod(a)


def _three(a: Any, b: Any, c: Any, *ones: Any, **_: Any) -> int:
    """The first two tensors contracted, over the last dimension of the first, then the third."""
    shapes = [list(a), list(b), list(c)]
    for shape, dims in zip(shapes, ones, strict=False):
        for dim in dims:
            shape.insert(dim, 1)
    products = math.prod(map(max, *shapes))
    return 2 * (products + products // a[-1])


_VECTORS: dict[Any, Any] = {
    torch.ops.aten.mv: _vector,
    torch.ops.aten.dot: _vector,
    torch.ops.aten.vdot: _vector,
    torch.ops.aten._trilinear: _three,
}


def effect(graph: ag.ArchGraph, small: ag.Rewritten) -> float:
    """How far a cut moves the outputs, relative to the largest: nothing would prove nothing."""
    wide, narrow = in_float64(graph), in_float64(small.graph)
    state, inputs = random_state(wide), random_inputs(wide)
    found = evaluated(narrow, small.transfer.pull(state), inputs)
    return relative_difference(found, evaluated(wide, state, inputs))


def share(graph: ag.ArchGraph, solved: Any) -> float:
    """Share of the parameters that lie on at least one free axis."""
    free = {a.name for a in solved.free}
    total = covered = 0
    for param in graph.params:
        if param.role == "parameter":
            count = math.prod(param.shape)
            refs = (leaf for layout in solved.of(param.name) for leaf in leaves(layout))
            total += count
            covered += count if any(isinstance(r, AxisRef) and r.name in free for r in refs) else 0
    return covered / total if total else 1.0


@dataclass(frozen=True)
class _Step:
    """Build a rewritten graph and train it for one step."""

    graph: ag.ArchGraph
    state: dict[str, torch.Tensor]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reached: set[str]

    def __call__(self, small: ag.Rewritten) -> int:
        ag.check(small.graph)
        refuse_empty(self.graph, small.graph)
        net = ag.build(small.graph, small.transfer.pull(self.state)).train()
        torch.manual_seed(0)
        found = tensors(net(*self.args, **self.kwargs))
        assert all(t.isfinite().all() for t in found if t.is_floating_point()), (
            "an output is not finite"
        )
        loss_of(found).backward()
        own = dict(net.named_parameters())
        used = {leaf for node in small.graph.nodes for leaf in node.leaves()}
        missing = [n for n in self.reached if n in own and n in used and own[n].grad is None]
        assert not missing, f"no gradient for {', '.join(sorted(missing)[:3])}"
        wrong = [n for n, p in own.items() if p.grad is not None and not p.grad.isfinite().all()]
        assert not wrong, f"gradient not finite for {', '.join(wrong[:3])}"
        torch.optim.SGD(net.parameters(), 1e-4).step()
        floats = [t for t in ag.state_of(net).values() if t.is_floating_point()]
        assert all(t.isfinite().all() for t in floats), "weights not finite after a step"
        count, cost = sum(p.numel() for p in net.parameters()), ag.cost(small.graph).parameters
        assert cost == count, f"cost counts {cost} parameters, the module has {count}"
        return count


def random_half(axis: Axis, rng: np.random.Generator) -> np.ndarray:
    """Random half of an axis's positions, in order."""
    chosen: np.ndarray = np.sort(rng.permutation(axis.size)[: math.ceil(axis.size / 2)])
    return chosen


def _spread(axes: tuple[Axis, ...], count: int, rng: np.random.Generator) -> list[Axis]:
    """Random axes, one from each of ``count`` equal stretches of the model."""
    parts = np.array_split(np.arange(len(axes)), min(count, len(axes)) or 1)
    return [axes[int(rng.choice(part))] for part in parts if len(part)]


def _ends_and_one(names: list[str], rng: np.random.Generator) -> list[str]:
    """The first, a random one between, and the last."""
    inner = names[1:-1]
    chosen = names[:1] + ([inner[int(rng.integers(len(inner)))]] if inner else []) + names[-1:]
    return list(dict.fromkeys(chosen))


def _first_other(found: list[str], expected: list[str]) -> str:
    """The first of two lists of names that differs, and whether only their order does."""
    pairs = itertools.zip_longest(found, expected, fillvalue="nothing")
    a, b = next((a, b) for a, b in pairs if a != b)
    order = " (the same names in another order)" if sorted(found) == sorted(expected) else ""
    return f"{a} instead of {b}{order}"


def _first_difference(found: ag.ArchGraph, expected: ag.ArchGraph) -> str:
    """The first line in which two printed graphs differ."""
    again = found.replace(name=expected.name)  # capture names a graph after its class
    pairs = zip(str(again).splitlines(), str(expected).splitlines(), strict=False)
    for a, b in pairs:
        if a != b:
            return f"{a.strip()} instead of {b.strip()}"
    return "equal in print, not as values"
