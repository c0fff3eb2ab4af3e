"""Every row of the operator table: cut a network that contains it, and compare with masking."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import nn

import archgraph as ag
from archgraph.layout.layouts import AxisRef, leaves
from archgraph.ops.infer import infer
from archgraph.ops.opaque import OPAQUE
from archgraph.ops.operator import unknown_axes
from archgraph.ops.table import ROWS, base
from archgraph.rewrites.cut import cut_axes
from archgraph.rewrites.laws import mask_equals_take
from tests.nets import captured
from tests.ops.examples import (
    ENDLESS,
    EXAMPLES,
    PINNING,
    RECURRENT,
    Net,
    Pointwise,
    pointwise_operators,
)
from tests.ops.folded import USES

# Rows that no example reaches: what torch.export, or capture, never leaves in a graph.
ALIASES = {
    "input": "an input has the layout that its type says",
    "clone": "an identity: capture drops it",
    "contiguous": "an identity: capture drops it",
    "_to_copy": "capture writes to.dtype",
    "type_as": "capture writes to.dtype",
    "view": "capture writes reshape",
    "alias": "an identity: capture drops it",
    **dict.fromkeys(
        ("eye", "range", "linspace", "logspace", "scalar_tensor"), "a constant: capture folds it"
    ),
    **{
        f"{kind}_window": "a constant: capture folds it"
        for kind in ("hann", "hamming", "blackman", "bartlett", "kaiser")
    },
    "conj": "of complex numbers, as imag",
    "resolve_conj": "of complex numbers, as imag",
    "_neg_view": "of complex numbers, as _conj",
    "resolve_neg": "of complex numbers, as imag",
}


def random_cut(graph, rng, spanned=False):
    return {
        a.name: np.sort(rng.permutation(a.size)[: rng.integers(1, a.size + 1)])
        for a in ag.axes(graph).free
        if spanned or not a.spans
    }


def state_of_axis(graph, leaf):
    """What the first dimension of a producer's weight is: free, spanned, partly free or pinned."""
    solved = ag.axes(graph)
    own = [solved[a.name] for a in leaves(solved.of(leaf)[0]) if isinstance(a, AxisRef)]
    free = [a for a in own if a.free]
    if not free:
        assert all(a.reason for a in own)
        return "pinned"
    if any(a.spans for a in free):
        return "spanned"
    return "free" if free == own else "partly"


def check_laws(graph, seeds=(0,)):
    """Cuts build, run, have the inferred types, and equal the masked network."""
    spans = any(a.spans for a in ag.axes(graph).free)
    for seed in seeds:
        rng = np.random.default_rng(seed)
        for spanned in (True, False) if spans else (False,):
            kept = random_cut(graph, rng, spanned)
            small = cut_axes(graph, kept)
            ag.check(small.graph)
            assert infer(small.graph) == small.graph
            mask_equals_take(graph, small, kept, tolerance=1e-10, seed=seed)


def name(example):
    return f"{example.key}-{example.kind}-{example.expect.replace(' ', '+')}"


@pytest.mark.sample(25)
@pytest.mark.parametrize("example", EXAMPLES + PINNING, ids=name)
def test_rows_cut_as_they_say(example):
    net = Net(example)
    graph = captured(net, net.input(), train=False).graph
    used = {n.op for n in graph.nodes}
    assert example.key in {op.removeprefix("aten.") for op in used} | set(map(base, used))
    found = [state_of_axis(graph, f"make.{i}.weight") for i in range(example.operands)]
    assert " ".join(found) == example.expect
    check_laws(graph)


COVERED = {e.key for e in EXAMPLES} | set(ALIASES) | set(OPAQUE)
OPERATORS = pointwise_operators(COVERED)


@pytest.mark.sample(3)
@pytest.mark.parametrize("start", range(0, len(OPERATORS), 16))
def test_pointwise_operators_need_no_row(start):
    names = OPERATORS[start : start + 16]
    graph = captured(Pointwise(names), torch.rand(2, 3), train=False).graph
    found = [state_of_axis(graph, f"make.{i}.weight") for i in range(len(names))]
    expected = ["spanned" if n.partition(".")[0] in ENDLESS else "free" for n in names]
    assert dict(zip(names, found, strict=True)) == dict(zip(names, expected, strict=True))
    check_laws(graph)


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_layers_cut_what_feeds_them_and_their_units(kind):
    net = RECURRENT[kind]()
    graph = captured(net, torch.rand(2, 5, 3), train=False).graph
    assert any(base(n.op) == kind for n in graph.nodes)
    assert {a.role for a in ag.axes(graph).free} == {"channels", "hidden"}
    assert state_of_axis(graph, "make.0.weight") == "free"
    check_laws(graph)


def test_every_row_has_an_example():
    covered = (
        COVERED
        | {e.key for e in PINNING}
        | set(RECURRENT)
        | {n.partition(".")[0] for n in OPERATORS}
        | {use.key for use in USES}
    )
    # What only spells another operator has its examples in test_table.
    rules = {key for key, found in ROWS.items() if found.rule is not unknown_axes} | {"input"}
    assert {key for key in rules - covered if key.partition(".")[0] not in covered} == set()
    assert set(ALIASES) <= set(ROWS) and {e.key for e in PINNING} <= set(OPAQUE)


# A function without a value at zero is noticed where its operand is zero for sure; behind noise
# that is multiplied by zero, say, it is not.
SHAPE_PRESERVING = {
    kind: [e for e in EXAMPLES if e.kind == kind and e.keeps_shape and e.key not in ENDLESS]
    for kind in ("image", "tokens")
}


@pytest.mark.full
@given(st.data(), st.integers(0, 1000))
@settings(max_examples=20, phases=[Phase.explicit, Phase.generate])
def test_rows_compose(data, seed):
    kind = data.draw(st.sampled_from(["image", "tokens"]))
    parts = data.draw(st.lists(st.sampled_from(SHAPE_PRESERVING[kind]), min_size=2, max_size=4))
    net = Net(*parts)
    check_laws(captured(net, net.input(), train=False).graph, seeds=(seed,))


@pytest.mark.parametrize("shuffle", [nn.PixelShuffle(2), nn.PixelUnshuffle(2)])
def test_pixels_that_are_channels_of_a_layer_are_cut_in_whole_blocks(shuffle):
    x = torch.randn(2, 4, 4, 6)
    width = shuffle(torch.zeros(1, 4, 4, 8)).shape[-1]
    model = nn.Sequential(nn.Linear(6, 8), shuffle, nn.Linear(width, 3))
    graph, state = captured(model, x)
    (axis,) = (a for a in ag.axes(graph).free if a.name.startswith("0.out"))
    wide = ag.widen(graph, 2.0)
    torch.testing.assert_close(ag.build(wide.graph, wide.transfer.pull(state))(x), model(x))
    # Every second pixel, or pair of them: the law compares with the masked model.
    small = ag.take(graph, positions={axis.name: range(0, axis.size, 2)}, verify=True)
    assert ag.build(small.graph, small.transfer.pull(state))(x).shape == model(x).shape
