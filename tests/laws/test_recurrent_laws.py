"""Laws of recurrent layers on random ones: capture, cuts, copies; states, counts, refusals."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import archgraph as ag
from archgraph.analysis.positions import positions
from archgraph.graph.ir import Ref
from archgraph.ops.infer import infer
from archgraph.rewrites import laws
from archgraph.rewrites.cut import cut_axes
from tests.examples import at_most
from tests.nets import captured, with_parts

pytestmark = [
    # PyTorch has no fast path for projections.
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN"),
]

KINDS = {
    "lstm": (nn.LSTM, {}, 4),
    "gru": (nn.GRU, {}, 3),
    "tanh": (nn.RNN, {"nonlinearity": "tanh"}, 1),
    "relu": (nn.RNN, {"nonlinearity": "relu"}, 1),
}
CELLS = {
    "lstm": (nn.LSTMCell, {}),
    "gru": (nn.GRUCell, {}),
    "tanh": (nn.RNNCell, {"nonlinearity": "tanh"}),
    "relu": (nn.RNNCell, {"nonlinearity": "relu"}),
}
STEPS, WIDTH, UNITS = 3, 5, 6


class Sequence(nn.Module):
    """A recurrent layer between others: where its states start and what is read are options."""

    def __init__(self, kind, start="zeros", reads=("sequence",), **options) -> None:
        super().__init__()
        make, own, self.gates = KINDS[kind]
        self.start, self.reads = start, reads
        self.embed, self.layer = nn.Linear(3, WIDTH), make(WIDTH, UNITS, **own, **options)
        self.ways = 1 + self.layer.bidirectional
        out = self.layer.proj_size or UNITS
        sizes = (out, UNITS) if kind == "lstm" else (out,)
        self.states = nn.ParameterList(
            torch.randn(self.ways * self.layer.num_layers, 1, size)
            for size in (sizes if start == "learned" else ())
        )
        wide = {"sequence": self.ways * out, "last": self.ways * out, "hidden": out, "cell": UNITS}
        self.heads = nn.ModuleDict({name: nn.Linear(wide[name], 2) for name in reads})

    def forward(self, x):
        x = self.embed(x)
        first = self.layer.batch_first
        begin = [s.expand(-1, x.shape[0], -1).contiguous() for s in self.states]
        given = (tuple(begin) if len(begin) > 1 else begin[0],) if begin else ()
        y, end = self.layer(x if first else x.transpose(0, 1), *given)
        hidden, cell = end if isinstance(end, tuple) else (end, end)
        ends = [hidden[i - self.ways] for i in range(self.ways)]
        values = {
            "sequence": y if first else y.transpose(0, 1),
            "last": torch.cat(ends, -1),
            "hidden": hidden.sum(0),
            "cell": cell.mean(0),
        }
        return tuple(head(values[name]) for name, head in self.heads.items())


@with_parts(
    lambda kind, **options: {
        "embed": nn.Linear(3, WIDTH),
        "cell": CELLS[kind][0](WIDTH, UNITS, **CELLS[kind][1], **options),
        "head": nn.Linear(UNITS, 2),
    }
)
def Unrolled(self, x):
    """A cell that runs over the steps one by one."""
    x = self.embed(x)
    state = x.new_zeros(x.shape[0], UNITS)
    state = (state, state) if isinstance(self.cell, nn.LSTMCell) else state
    for step in x.unbind(1):
        state = self.cell(step, state)
    return (self.head(state[0] if isinstance(state, tuple) else state),)


@st.composite
def recurrent(draw):
    """A random recurrent network: kind, layers, directions, projection, biases, states, reads."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    bias = draw(st.booleans())
    torch.manual_seed(draw(st.integers(0, 1000)))
    if draw(st.integers(0, 4)) == 0:
        return Unrolled(kind, bias=bias)
    layers = draw(st.integers(1, 2))
    options = {
        "num_layers": layers,
        "bidirectional": draw(st.booleans()),
        "batch_first": draw(st.booleans()),
        "dropout": draw(st.sampled_from([0.0, 0.3])) if layers > 1 else 0.0,
        "bias": bias,
    }
    if kind == "lstm":
        options["proj_size"] = draw(st.sampled_from([0, 3]))
    start = draw(st.sampled_from(["zeros", "learned"]))
    reads = ["sequence", "last", "hidden", *(["cell"] if kind == "lstm" else [])]
    chosen = draw(st.lists(st.sampled_from(reads), min_size=1, unique=True))
    return Sequence(kind, start, tuple(chosen), **options)


def example(batch=2):
    return torch.randn(batch, STEPS, 3, generator=torch.Generator().manual_seed(0))


def graph_of(net):
    return captured(net, example(), train=False).graph


def some(graph, seed):
    """Random positions of every free axis; a projection keeps fewer outputs than units."""
    rng = np.random.default_rng(seed)
    return {
        a.name: np.sort(
            rng.permutation(a.size)[
                : rng.integers(4, 6) if a.role == "cell" else rng.integers(1, min(a.size, 4))
            ]
        )
        for a in ag.axes(graph).free
    }


@given(recurrent(), st.booleans())
@at_most(3)
def test_build_inverts_trace(net, training):
    graph, state = ag.trace(net, example())
    assert graph.notes == ()
    built = ag.build(graph, state)
    x = example(3)
    values = []
    for model in (net, built):
        model.train(training)
        torch.manual_seed(0)  # the same draws for dropout
        values.append(model(x))
        sum(v.square().sum() for v in values[-1]).backward()
    for found, expected in zip(values[1], values[0], strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    gradients = {n: p.grad for n, p in built.named_parameters()}
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-5, atol=1e-5)
    assert captured(built, example()).graph == graph
    assert infer(graph) == graph
    assert ag.parse(str(graph)) == graph


@given(recurrent(), st.integers(0, 2**32 - 1))
@at_most(5)
def test_mask_equals_take(net, seed):
    graph = graph_of(net)
    kept = some(graph, seed)
    assert {a.role for a in ag.axes(graph).free} >= {"hidden"} and not any(
        a.spans for a in ag.axes(graph).free
    )
    small = cut_axes(graph, kept)
    ag.check(small.graph)
    assert infer(small.graph) == small.graph
    assert laws.mask_equals_take(graph, small, kept, seed=seed % 1000) <= 1e-10


@given(recurrent(), st.integers(0, 2**32 - 1))
@at_most(3)
def test_copied_units_keep_the_function_and_merge_again(net, seed):
    graph = graph_of(net)
    rng = np.random.default_rng(seed)
    chosen = {a.name: a.size + int(rng.integers(1, a.size + 1)) for a in ag.axes(graph).free}
    if any(a.role == "cell" for a in ag.axes(graph).free):  # a projection stays narrower
        chosen |= {a.name: 2 * a.size for a in ag.axes(graph).free if a.role in ("cell", "hidden")}
    wide = ag.widen(graph, sizes=chosen, seed=seed % 7)
    ag.check(wide.graph)
    assert laws.same_function(graph, wide) <= 1e-10
    small = {name: ag.axes(graph)[name].size for name in chosen}
    back = ag.narrow(wide.graph, sizes=small, mode="net2net", seed=seed % 7)
    assert back.graph == graph
    assert laws.same_function(graph, wide >> back) <= 1e-10


TWELVE: dict[str, Callable[[], nn.Module]] = {
    **{kind: partial(Sequence, kind, batch_first=True) for kind in KINDS},
    **{
        f"{kind}, two layers, both ways": partial(
            Sequence, kind, num_layers=2, bidirectional=True, reads=("sequence", "last")
        )
        for kind in KINDS
    },
    "projected lstm, learned states": lambda: Sequence(
        "lstm", "learned", ("sequence", "cell"), proj_size=3, num_layers=2
    ),
    "gru without biases": lambda: Sequence("gru", bias=False, num_layers=2),
    "lstm cell": lambda: Unrolled("lstm"),
    "gru cell": lambda: Unrolled("gru"),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", TWELVE)
def test_hidden_states_of_a_cut_are_those_of_the_masked_original(name):
    graph = laws.in_float64(graph_of(TWELVE[name]()))
    kept = some(graph, 1)
    parts = {n.name for n in graph.nodes if "hx" in dict(n.args)}
    ends = [n.name for n in graph.nodes if n.op == "getitem" and {*n.uses()} & parts]
    ends += [n for n in parts if not isinstance(graph.node[n].type, tuple)]
    assert ends
    state, inputs = laws.random_state(graph), laws.random_inputs(graph)
    masked, values = laws.masked(graph, state, kept)
    small = cut_axes(graph, kept)
    shown = tuple(map(Ref, ends))
    wide = laws.outputs(ag.build(masked.replace(outputs=shown), values).eval(), inputs)
    narrow = laws.outputs(
        ag.build(small.graph.replace(outputs=shown), small.transfer.pull(state)).eval(), inputs
    )
    for end, before, after in zip(ends, wide, narrow, strict=True):
        index = positions(ag.axes(graph).value[end][0][-1], kept)
        assert 0 < after.shape[-1] < before.shape[-1]
        torch.testing.assert_close(before[..., index], after, rtol=1e-10, atol=1e-10)
        assert after.abs().max() > 1e-3


def test_every_layer_and_direction_has_sizes_of_its_own():
    net = Sequence("lstm", num_layers=2, bidirectional=True, proj_size=3, dropout=0.2)
    free = [(a.name, a.size) for a in ag.axes(graph_of(net)).free]
    ends = ("", "~2", "~3", "~4")
    pairs = [(f"layer.{role}{end}", n) for end in ends for role, n in (("cell", 6), ("hidden", 3))]
    assert free == [("embed.out", WIDTH), *pairs]
    small = ag.take(graph_of(net), sizes={"layer.cell~2": 4, "layer.hidden~3": 2}, verify=True)
    shapes = {p.name.removeprefix("layer."): p.shape for p in small.graph.params}
    assert shapes["weight_ih_l0_reverse"] == (16, 5) and shapes["weight_hr_l0_reverse"] == (3, 4)
    assert shapes["weight_hh_l1"] == (24, 2) and shapes["weight_ih_l1"] == (24, 6)
    assert shapes["weight_hh_l0"] == (24, 3)


def test_a_cut_keeps_the_same_units_in_every_gate():
    graph, state = captured(Sequence("gru"), example(), train=False)
    kept = [4, 1]
    small = ag.take(graph, positions={"layer.hidden": kept})
    rows = [gate * UNITS + unit for gate in range(3) for unit in kept]
    pulled = small.transfer.pull(state)
    whole = state["layer.weight_hh_l0"]
    assert torch.equal(pulled["layer.weight_hh_l0"], whole[rows][:, kept])
    assert torch.equal(pulled["layer.bias_ih_l0"], state["layer.bias_ih_l0"][rows])


@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ways", [1, 2])
@pytest.mark.parametrize("projected", [0, 3])
def test_counts_and_initial_values_are_those_of_the_layer(kind, ways, projected):
    if projected and kind != "lstm":
        return
    own = {"proj_size": projected} if projected else {}
    net = Sequence(kind, num_layers=2, bidirectional=ways == 2, **own)
    graph, state = captured(net, example(), train=False)
    out = projected or UNITS
    macs = weights = 0
    for inside in (WIDTH, ways * out):
        one = net.gates * UNITS * (inside + out) + projected * UNITS
        macs, weights = macs + STEPS * ways * one, weights + ways * one
    heads = (3 * WIDTH, WIDTH), (ways * out * 2, 2)
    assert ag.cost(graph).macs == macs + STEPS * sum(n for n, _ in heads)
    biases = 2 * 2 * ways * net.gates * UNITS
    assert ag.cost(graph).parameters == weights + biases + sum(map(sum, heads))
    fresh = ag.build(graph, seed=0).state_dict()
    bound = UNITS**-0.5
    for name in state:
        if name.startswith("layer."):
            assert 0.3 * bound < fresh[name].abs().max() <= bound, name


def test_what_a_recurrent_layer_cannot_do_is_refused_by_name():
    projected = graph_of(Sequence("lstm", proj_size=4))
    with pytest.raises(ag.RewriteError, match=r"layer: these sizes are incompatible; found a proj"):
        ag.take(projected, sizes={"cell": 3, "hidden": 3})
    graph = graph_of(Sequence("gru", num_layers=2, batch_first=True))
    with pytest.raises(
        ag.RewriteError, match=r"has aten.gru.input .* which is recurrent: no weights"
    ):
        ag.deepen(graph, {"layer": 3})


@with_parts(
    lambda kind: {
        "layers": nn.ModuleList(
            KINDS[kind][0](6, 6, batch_first=True, **KINDS[kind][1]) for _ in range(2)
        ),
        "embed": nn.Linear(3, 6),
        "head": nn.Linear(6, 2),
    }
)
def Residual(self, x):
    """A recurrent layer whose result is added to its input."""
    x = self.embed(x)
    for layer in self.layers:
        x = x + layer(x)[0]
    return self.head(x)


@pytest.mark.parametrize("kind", KINDS)
def test_a_residual_recurrent_layer_starts_as_nothing(kind):
    """All weights at zero, from a state of zeros: it adds zeros, and learns."""
    graph = graph_of(Residual(kind))
    deep = ag.deepen(graph, {"layers": 3}, verify=True)
    state = laws.to_float64(deep.transfer).pull(laws.random_state(laws.in_float64(graph)))
    net = ag.build(laws.in_float64(deep.graph), state)
    net(example().double()).square().sum().backward()
    new = [p for n, p in net.named_parameters() if n not in graph.param]
    assert len(new) == 4 and all(not p.any() for p in new)
    if kind != "relu":  # whose slope at zero is zero
        assert any(p.grad is not None and p.grad.any() for p in new)


@with_parts(lambda start: {"layer": nn.GRU(3, 4), "start": start})
def Packed(self, x, lengths):
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, True, False)
    first = (torch.zeros(1, x.shape[0], 4),) if self.start else ()
    return self.layer(packed, *first)[1][0]


@pytest.mark.parametrize("start", [False, True])
def test_packed_sequences_are_refused_by_name(start):
    with pytest.raises(ag.TraceError, match="runs over a packed sequence") as refusal:
        captured(Packed(start), example(3), torch.tensor([3, 2, 1]))
    assert "padded sequence" in str(refusal.value)


@with_parts(
    lambda: {
        "layer": nn.GRU(3, 4, 2, batch_first=True),
        "head": nn.Linear(4, 2),
        "seen": torch.zeros(2, 2, 4),
    }
)
def Stateful(self, x):
    """A buffer takes the last states of both layers."""
    y, hidden = self.layer(x)
    self.seen.copy_(hidden.detach())
    return self.head(y)


def test_states_that_forward_keeps_are_followed():
    net = Stateful()
    graph, state = captured(net, example())
    built = ag.build(graph, state)
    net(example()), built(example())
    torch.testing.assert_close(built.state_dict()["seen"], net.state_dict()["seen"])


WRITTEN = (
    "aten.gru.input(input=%x, hx=%h, params=(a, b, c, d), has_biases=False, num_layers=2, "
    "dropout=0.0, train=False, bidirectional=False, batch_first=True)"
)


def test_several_layers_in_one_operator_are_pinned():
    """A graph may be written so; a capture never is."""
    text = """graph ''
parameter a: float32[3, 2]
parameter b: float32[3, 1]
parameter c: float32[3, 1]
parameter d: float32[3, 1]
%x: float32[batch, 4, 2] = input()
%h: float32[2, batch, 1] = aten.zeros(size=(2, batch, 1))
%gru: (float32[batch, 4, 1], float32[2, batch, 1]) = OPERATOR
%y: float32[batch, 4, 1] = getitem(source=%gru, index=0)
forward x = %x
return %y""".replace("OPERATOR", WRITTEN)
    graph = ag.parse(text)
    ag.check(graph)
    assert all(
        "several layers or directions" in ag.axes(graph)[f"{leaf}.out"].reason for leaf in "abcd"
    )
    with pytest.raises(ag.GraphError, match="gru"):
        ag.check(ag.parse(text.replace("a: float32[3, 2]", "a: float32[4, 2]")))
