"""Laws of rewrites: what they draw, what they compare, and that they never hold of nothing."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.ops.constants import constant
from archgraph.rewrites import laws
from archgraph.rewrites.cut import cut_axes
from tests.nets import with_parts
from tests.structures import graph_of


def traced(*layers: nn.Module, size: int = 3):
    return graph_of(nn.Sequential(*layers), torch.zeros(2, size))


@with_parts(
    lambda function, into=4: {
        "a": nn.Linear(into, 8),
        "b": nn.Linear(8, 2),
        "function": function,
    }
)
def Applied(self, x):
    """A function behind a layer."""
    return self.b(self.a(self.function(x)))


# -- nothing is compared ------------------------------------------------------------------------


def test_a_cut_that_leaves_nothing_is_refused():
    graph = traced(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    nothing = {"0.out": np.zeros(0, dtype=np.int64)}
    with pytest.raises(
        ag.RewriteError, match=r"0\.weight: tensor would be empty; found float32\[0, 3\]"
    ):
        laws.mask_equals_take(graph, cut_axes(graph, nothing), nothing)


def test_results_that_become_empty_are_refused():
    graph = traced(nn.Linear(3, 2))
    (linear,) = [n for n in graph.nodes if n.op != "input"]
    type_ = dataclasses.replace(linear.type, shape=(linear.shape[0], 0))
    nodes = [dataclasses.replace(n, type=type_) if n is linear else n for n in graph.nodes]
    with pytest.raises(ag.RewriteError, match=r"%linear: tensor would be empty"):
        laws.refuse_empty(graph, graph.replace(nodes=tuple(nodes)))
    laws.refuse_empty(graph.replace(nodes=tuple(nodes)), graph.replace(nodes=tuple(nodes)))
    none = dataclasses.replace(graph.params[0], type=dataclasses.replace(type_, shape=(0, 2)))
    empty = graph.replace(params=(none, *graph.params[1:]))
    laws.refuse_empty(empty, empty)


def test_an_output_that_loses_its_input_is_refused():
    """A norm over one position is zero whatever comes in, and so is all behind it."""
    graph = traced(nn.Linear(3, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    with pytest.raises(ag.RewriteError, match="no longer depends on the input; found output 0 is"):
        ag.take(graph, sizes={"0.out": 1}, verify=True)
    ag.take(graph, sizes={"0.out": 2}, verify=True)


def test_an_original_that_never_depended_on_its_input_is_accepted():
    @with_parts()
    def Gone(self, x):
        """Multiplies by nothing."""
        return 0 * x

    graph = traced(nn.Linear(3, 4), Gone(), nn.Linear(4, 2))
    assert laws.same_function(graph, ag.Rewritten.identity(graph)) == 0


def test_an_approximate_copy_is_still_seen_to_run(monkeypatch):
    graph = traced(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    ag.widen(graph, sizes={"0.out": 6}, approximate=True, verify=True)

    def broken(*_):
        raise ag.RewriteError("it runs")

    monkeypatch.setattr("archgraph.rewrites.widen.check_law", broken)
    with pytest.raises(ag.RewriteError, match="it runs"):
        ag.widen(graph, sizes={"0.out": 6}, approximate=True, verify=True)


def test_narrow_networks_of_many_rectifiers_pass():
    """One unit a layer: some draw stops every signal, which says nothing of the cut."""
    layers: list[nn.Module] = [nn.Linear(3, 4), nn.ReLU()]
    for _ in range(12):
        layers += [nn.Linear(4, 4), nn.ReLU()]
    graph = traced(*layers, nn.Linear(4, 2))
    stopped = 0
    for seed in range(6):
        kept = {a.name: np.array([seed % 4]) for a in ag.axes(graph).free}
        small = cut_axes(graph, kept)
        assert laws.mask_equals_take(graph, small, kept, seed=seed) <= 1e-10
        wide = laws.in_float64(graph)
        pulled = small.transfer.pull(laws.random_state(wide, seed))
        first, other = (
            laws.evaluated(laws.in_float64(small.graph), pulled, laws.random_inputs(wide, seed=s))
            for s in (seed, seed + 1)
        )
        stopped += torch.equal(first[0], other[0])
    assert stopped, "no draw was stopped: the test shows nothing"


# -- what is drawn ------------------------------------------------------------------------------


def test_parameters_that_a_graph_gives_a_value_are_drawn_all_the_same():
    """A step size that starts at zero hides its whole branch from a law."""
    graph = graph_of(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.zeros(1, 5, 8))
    graph = ag.add_step_sizes(graph, initial=0.0).graph
    state = laws.random_state(laws.in_float64(graph))
    steps = [value for name, value in state.items() if name.endswith("step_size")]
    assert len(steps) == 2 and all(0.75 <= float(value) <= 1.25 for value in steps)


def test_positive_weights_carry_a_signal_through_any_depth():
    graph = traced(*(nn.Linear(64, 64) for _ in range(40)), size=64)
    wide = laws.in_float64(graph)
    state = laws.random_state(wide, positive=True)
    assert all(bool((value >= 0).all()) for value in state.values())
    one, other = (
        laws.evaluated(wide, state, laws.random_inputs(wide, seed=seed)) for seed in (0, 1)
    )
    assert laws.relative_difference(one, other) > 1e-12


def test_buffers_keep_the_value_that_a_graph_gives_them():
    graph = traced(nn.Linear(3, 2))
    held = dataclasses.replace(
        graph.params[1], role="buffer", value=constant(torch.tensor([7.0, 8.0]))
    )
    state = laws.random_state(graph.replace(params=(graph.params[0], held)))
    assert state["0.bias"].tolist() == [7.0, 8.0]


@with_parts(
    lambda: {
        "i": nn.Linear(4, 6),
        "o": nn.Linear(6, 2),
        "w": nn.Parameter(torch.randn(6, 6, dtype=torch.cfloat)),
    }
)
def Spectral(self, x):
    """Complex weights between real layers."""
    return self.o((self.i(x).to(torch.cfloat) @ self.w).abs())


def test_complex_weights_are_drawn_and_compared():
    graph = graph_of(Spectral(), torch.zeros(2, 4))
    state = laws.random_state(laws.in_float64(graph))
    assert state["w"].dtype == torch.complex128
    assert state["w"].real.all() and state["w"].imag.all()
    free = [a.name for a in ag.axes(graph).free]
    assert free
    for name in free:
        kept = {name: np.array([0, 2, 5])}
        assert laws.mask_equals_take(graph, cut_axes(graph, kept), kept) <= 1e-10
    wrong = {free[0]: np.array([0, 1, 2])}
    with pytest.raises(ag.RewriteError, match="mask ≡ take does not hold"):
        laws.mask_equals_take(graph, cut_axes(graph, {free[0]: np.array([0, 2, 5])}), wrong)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.to(torch.uint8) / 255,
        lambda x: x.abs().to(torch.uint8).true_divide(255),
        lambda x: x.round().to(torch.int64).sqrt(),
        lambda x: torch.sigmoid(x.to(torch.int32)),
        lambda x: (x > 0) / 2,
        lambda x: (x * 255).to(torch.uint8).float() / 255,
        lambda x: torch.eye(4)[x[:, :1].long()].squeeze(1),
        lambda x: nn.functional.one_hot(x[:, 0].long(), 4).float(),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_inputs_that_become_whole_numbers(function, dtype):
    def typed(x):
        return function(x).to(dtype)

    graph = graph_of(Applied(typed).to(dtype), (torch.rand(3, 4) * 3).to(dtype))
    ag.take(graph, 0.5, verify=True)
    ag.widen(graph, 2.0, verify=True)
    drawn = laws.random_inputs(graph)["x"]
    whole = {n.dtype for n in graph.nodes} & {"uint8", "int32", "int64"}
    assert bool((drawn < 0).any()) == (not whole) and len(drawn.unique()) > 1


def test_whole_numbers_are_not_all_alike_and_hide_no_row():
    @with_parts(lambda: {"e": nn.Embedding(2, 4)})
    def Embedded(self, ids, mask):
        scores = (self.e(ids).sum(-1)).masked_fill(mask == 0, -torch.inf)
        return scores.softmax(-1)

    ids = torch.zeros(2, 3, dtype=torch.int64)
    graph = graph_of(Embedded(), ids, torch.ones(2, 3, dtype=torch.int64))
    for seed in range(20):
        drawn = laws.random_inputs(graph, seed=seed)
        assert drawn["mask"].any(-1).all()
        assert set(drawn["ids"].unique().tolist()) <= {0, 1}
        assert laws.same_function(graph, ag.Rewritten.identity(graph), seed=seed) == 0


# -- what is compared ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "expected", "gap"),
    [
        ([1.0, -torch.inf], [1.0, -torch.inf], 0.0),
        ([1.5, -torch.inf], [1.0, -torch.inf], 0.5),
        ([1.0, torch.inf], [1.0, -torch.inf], torch.inf),
        ([1.0, 2.0], [1.0, -torch.inf], torch.inf),
        ([torch.nan], [torch.nan], torch.inf),
        ([1.0 + 2.0j], [1.0 + 1.0j], 0.5**0.5),
        ([], [], 0.0),
        ([1.0], [1.0, 2.0], torch.inf),
    ],
)
def test_differences(result, expected, gap):
    given = torch.tensor(result), torch.tensor(expected)
    assert laws.relative_difference([given[0]], [given[1]]) == pytest.approx(gap)


def test_whole_numbers_become_float64_only_inside():
    graph = graph_of(Applied(lambda x: x.to(torch.uint8) / 255), torch.rand(3, 4))
    wide = laws.in_float64(graph)
    (result,) = laws.evaluated(wide, laws.random_state(wide), laws.random_inputs(wide))
    assert result.dtype == torch.float64 and torch.get_default_dtype() == torch.float32
    with pytest.raises(TypeError):
        laws.evaluated(wide, laws.random_state(wide), {})
    assert torch.get_default_dtype() == torch.float32


def test_both_networks_of_a_law_draw_the_same_numbers():
    graph = traced(nn.Linear(3, 4), Applied(lambda x: x + torch.randn_like(x)))
    seeded = torch.get_rng_state()
    assert laws.same_function(graph, ag.add_lora(graph, 2)) == 0
    assert torch.equal(torch.get_rng_state(), seeded)
