"""Importance: what a position touches, and what the scores of it promise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import archgraph as ag
from archgraph.analysis.positions import positions
from archgraph.budgets.importance import ImportanceMethod
from archgraph.rewrites.laws import in_float64, masked, random_inputs, random_state
from archgraph.states.pieces import position_sums
from tests.examples import at_most
from tests.nets import FOREIGN, captured, image, networks, with_parts

METHODS: tuple[ImportanceMethod, ...] = ("weights", "taylor")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def in_double(net: nn.Module) -> tuple[ag.ArchGraph, dict[str, torch.Tensor]]:
    graph = in_float64(captured(net, image()).graph)
    return graph, random_state(graph)


def batches(count: int = 2) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randn(4, 3, 6, 6, generator=generator).double(), torch.arange(4) + i)
        for i in range(count)
    ]


def scored(graph: ag.ArchGraph, state: Any, method: Any) -> ag.Importance:
    return ag.importance(graph, state, batches(), method)


# -- laws --------------------------------------------------------------------------------------


@at_most(3)
@given(networks())
def test_a_position_touches_what_its_cut_removes(net):
    graph = captured(net, image()).graph
    solved = ag.axes(graph)
    for param in graph.params:
        tensor = torch.rand(param.shape, dtype=torch.float64)
        sums = position_sums(tensor, solved.leaf[param.name], {a.name for a in solved.free})
        for axis in (solved[name] for name in sums):
            for gone in {0, axis.size - 1}:
                rest = {axis.name: np.delete(np.arange(axis.size), gone)}
                index = [positions(layout, rest) for layout in solved.leaf[param.name]]
                cut = tensor[np.ix_(*index)].sum()
                assert float(sums[axis.name][gone]) == pytest.approx(float(tensor.sum() - cut))


@pytest.mark.sample(3)
@pytest.mark.parametrize("method", METHODS)
@at_most(2)
@given(networks(), st.randoms(use_true_random=False))
def test_scores_follow_a_permutation_of_the_axes(method, net, random):
    graph, state = in_double(net)
    orders = {a.name: random.sample(range(a.size), a.size) for a in ag.axes(graph).free}
    moved = ag.take(graph, positions=orders)
    before, after = (
        scored(g, s, method) for g, s in ((graph, state), (moved.graph, moved.transfer.pull(state)))
    )
    for name, order in orders.items():
        assert np.allclose(before.of(name)[order], after.of(name), rtol=1e-6, atol=1e-12), name
    values = ag.axes(graph).value
    for block in ag.structure(graph).blocks:
        # A chain from one axis to another is compared position by position: its order counts.
        if block.name in before.blocks and values[block.exit] == values[block.bypass]:
            name = block.name
            assert before.blocks[name] == pytest.approx(after.blocks[name], abs=1e-9), name


@pytest.mark.sample(3)
@pytest.mark.parametrize("method", METHODS)
@at_most(2)
@given(networks(), st.integers(0, 99))
def test_a_position_without_weights_is_the_least_important(method, net, at):
    graph, state = in_double(net)
    axis = ag.axes(graph).free[at % len(ag.axes(graph).free)]
    gone = at % axis.size
    others = np.delete(np.arange(axis.size), gone)
    _, small = masked(graph, state, {axis.name: others})
    without = {k: v.masked_fill(v.abs() < 1e-50, 0) for k, v in small.items()}
    scores = scored(graph, without, method).of(axis)
    assert scores[gone] == 0 <= scores[others].min()
    assert scores.max() > 0


@at_most(3)
@given(networks(), st.sampled_from([0.25, 0.5, 0.75]))
def test_take_by_importance_takes_the_best_positions_in_their_order(net, share):
    graph, state = captured(net, image())
    scores = ag.importance(graph, state)
    best = {}
    for axis in ag.axes(graph).free:
        count = int(np.ceil(share * axis.size))
        best[axis.name] = scores.best(axis, count)
        assert (np.diff(best[axis.name]) > 0).all() and len(best[axis.name]) == count
        rest = np.setdiff1d(np.arange(axis.size), best[axis.name])
        assert scores.of(axis)[best[axis.name]].min() >= scores.of(axis)[rest].max(initial=0)
    by_scores = ag.take(graph, share, importance=scores, allow_nothing=True, verify=True)
    assert by_scores == ag.take(graph, positions=best)
    sizes = {name: len(index) for name, index in best.items()}
    assert by_scores == ag.take(graph, sizes=sizes, importance=scores)
    # Positions that are all alike keep the first, as without importance.
    alike = ag.Importance({a.name: [1.0] * a.size for a in ag.axes(graph).free})
    assert ag.take(graph, sizes=sizes, importance=alike) == ag.take(graph, sizes=sizes)


@pytest.mark.full
@pytest.mark.sample(5)
@pytest.mark.parametrize("name", ["vit", "bert", "densenet121", "mobilenet_v2", "swin_t"])
def test_foreign_models_are_scored_by_every_method(name):
    foreign = FOREIGN[name]()
    graph, state = captured(foreign.model.eval(), *foreign.args, **foreign.kwargs)
    batch = dict(random_inputs(graph)), torch.arange(2)
    data = [({k: v.float() if v.is_floating_point() else v for k, v in batch[0].items()}, batch[1])]

    def loss(outputs, targets):
        logits = outputs if isinstance(outputs, torch.Tensor) else outputs["logits"]
        return nn.functional.cross_entropy(logits, targets % logits.shape[-1])

    solved, removable = ag.axes(graph), [b for b in ag.structure(graph).blocks if b.removable]
    for method in METHODS:
        scores = ag.importance(graph, state, data, method, loss=loss)
        assert [*scores.positions] == [a.name for a in solved.free]
        assert all(scores.of(axis).sum() > 0 for axis in solved.free), method
        assert [*scores.blocks] == [b.name for b in removable]
        assert all(0 <= influence <= 2 for influence in scores.blocks.values())
        ag.take(graph, 0.5, importance=scores)


# -- closed forms ------------------------------------------------------------------------------


def linear_net() -> tuple[ag.ArchGraph, dict[str, torch.Tensor]]:
    net = nn.Sequential(nn.Linear(3, 5, bias=False), nn.Linear(5, 2, bias=False)).double()
    graph, state = captured(net, torch.zeros(1, 3, dtype=torch.float64))
    return graph, dict(state)


def test_taylor_is_the_derivative_in_closed_form():
    """Of Σ t·B A x the parts of a unit are linear in its row of A and in its column of B."""
    graph, state = linear_net()
    a, b = state["0.weight"], state["1.weight"]
    data = [(torch.randn(7, 3).double(), torch.randn(7, 2).double()) for _ in range(3)]
    scores = ag.importance(graph, state, data, "taylor", loss=lambda y, t: (y * t).sum())
    parts = [2 * ((x @ a.T) * (t @ b)).sum(0).abs() for x, t in data]
    assert scores.of("0.out") == pytest.approx(torch.stack(parts).mean(0).numpy())


def test_norms_in_closed_form():
    graph, state = linear_net()
    a, b = state["0.weight"], state["1.weight"]
    norms = (a.square().sum(1) + b.square().sum(0)).sqrt()
    assert ag.importance(graph, state).of("0.out") == pytest.approx(norms.numpy())


@with_parts(lambda matrix: {"matrix": nn.Parameter(matrix)})
def Added(self, x):
    """A block that adds a linear map of its input."""
    return x + x @ self.matrix


def turned(angle: float) -> nn.Module:
    """A block that turns pairs of numbers by an angle, or passes them on."""
    c, s = float(np.cos(angle)), float(np.sin(angle))
    turn = torch.block_diag(*2 * [torch.tensor([[c, s], [-s, c]], dtype=torch.float64)])
    block: nn.Module = Added(turn - torch.eye(4))
    return block


@pytest.mark.parametrize("angle", [0.0, np.pi / 3, np.pi / 2, np.pi])
def test_the_influence_of_a_block_is_one_minus_the_cosine_of_its_turn(angle):
    net = nn.Sequential(nn.Linear(3, 4), turned(angle), turned(0.3), nn.Linear(4, 2)).double()
    graph, state = captured(net, torch.zeros(1, 3, dtype=torch.float64))
    scores = ag.importance(graph, state, [(torch.randn(6, 3).double(), None)])
    assert scores.blocks["1"] == pytest.approx(1 - np.cos(angle), abs=1e-12)
    assert scores.blocks["2"] == pytest.approx(1 - np.cos(0.3))


@with_parts(lambda factor: {"matrix": nn.Parameter(factor * torch.eye(4, dtype=torch.float64))})
def Appending(self, x):
    """A dense block, which appends as many numbers as it is passed, times a factor."""
    return torch.cat([x, x @ self.matrix], 1)


@pytest.mark.parametrize("factor", [0.0, 1.0, 2.0])
def test_the_influence_of_a_dense_block_is_that_of_what_it_appends(factor):
    net = nn.Sequential(nn.Linear(3, 4), Appending(factor), nn.Linear(8, 2)).double()
    graph, state = captured(net, torch.zeros(1, 3, dtype=torch.float64))
    scores = ag.importance(graph, state, [(torch.randn(6, 3).double(), None)])
    assert scores.blocks["1"] == pytest.approx(1 - 1 / np.sqrt(1 + factor**2), abs=1e-12)


@pytest.mark.full
def test_heads_are_scored_whole():
    """A head is worth the sum of what its positions are worth."""
    foreign = FOREIGN["bert"]()
    graph, state = captured(foreign.model, **foreign.kwargs)
    state = {name: torch.zeros_like(value) for name, value in state.items()}
    key = next(n for n in state if n.endswith("0.attention.self.query.weight"))
    state[key][8:16] = 1.0  # the second of four heads of eight positions
    scores = ag.importance(graph, state)
    heads = next(a for a in ag.axes(graph).match("heads") if ".0." in a.name)
    assert scores.of(heads) == pytest.approx([0, np.sqrt(8 * 32), 0, 0])


# -- values ------------------------------------------------------------------------------------


def test_scores_are_saved_and_read(tmp_path: Path):
    scores = ag.Importance(
        {"a.out": np.array([0.1, 0.3]).tolist(), "b.heads": [1, 0, 2]},
        {"layer1.1": 0.25},
        "taylor",
    )
    path = scores.save(tmp_path / "new" / "scores.safetensors")
    again = ag.Importance.load(path)
    assert again == scores and again.positions["b.heads"] == (1.0, 0.0, 2.0)
    assert repr(again) == "<Importance by taylor: 2 axes, 1 block>"
    assert "influence of blocks: layer1.1 0.25" in str(again)
    assert again._repr_html_().count("<table>") == 1


@pytest.mark.parametrize("content", [b"", b"nonsense", None])
def test_a_file_of_something_else_is_refused_by_name(tmp_path: Path, content):
    path = tmp_path / "scores.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(
        ag.RewriteError, match=r"scores\.safetensors: cannot read importance; found"
    ):
        ag.take(ag.load("specs/models/digits_cnn.yaml"), 0.5, importance=path)


def test_weights_are_no_scores(tmp_path: Path):
    from archgraph.states.wire import save_tensors

    save_tensors(tmp_path / "weights.safetensors", {"fc.weight": torch.zeros(2)})
    with pytest.raises(ag.RewriteError, match=r"expected a file that Importance\.save wrote"):
        ag.Importance.load(tmp_path / "weights.safetensors")


@pytest.mark.parametrize("values", [[-1.0], [float("nan")], [], "many", [[1.0]], 0.5])
def test_scores_are_finite_and_not_negative(values):
    with pytest.raises(ag.RewriteError, match=r"importance of a\.out: not scores of positions"):
        ag.Importance({"a.out": values})


def test_scores_of_another_network_are_refused():
    graph, _ = linear_net()
    axis = ag.axes(graph)["0.out"]
    for wrong, message in (
        ({"0.oot": [1.0] * 5}, "0.out: no importance scores for this axis; .*did you mean"),
        (
            {"0.out": [1.0] * 4},
            "does not match the size of the axis; found 4 scores; expected 5 positions",
        ),
    ):
        with pytest.raises(ag.RewriteError, match=message):
            ag.take(graph, 0.5, importance=ag.Importance(wrong))
        # What is not cut needs no scores.
        assert ag.take(graph, sizes={axis: 5}, importance=ag.Importance(wrong)).graph == graph


def test_what_cannot_be_measured_says_why():
    graph, state = linear_net()
    with pytest.raises(ag.DataError, match=r"importance by taylor needs batches; .*data=\["):
        ag.importance(graph, state, method="taylor")
    with pytest.raises(ag.DataError, match="needs batches"):
        ag.importance(graph, state, [], "taylor")
    with pytest.raises(ag.RewriteError, match="expected weights, taylor"):
        ag.importance(graph, state, method="hessian")  # type: ignore[arg-type]
    with pytest.raises(ag.GraphError, match=r"0\.weight"):
        ag.importance(graph, {})


def test_what_is_kept_of_an_axis():
    scores = ag.Importance({"a": [1, 4, 0, 3]})
    assert [scores.kept("a", n) for n in (0, 1, 2, 3, 4)] == [0, 0.5, 0.875, 1, 1]
    assert ag.Importance({"a": [0, 0]}).kept("a", 1) == 0.5
