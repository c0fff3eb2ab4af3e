"""Built modules: states, seeds, copies, and refusals."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.graph.ir import BATCH, ArchGraph, Leaf, Node, Param, Ref, TensorType
from archgraph.module.build import build, filled, load_state
from archgraph.ops.infer import infer, infer_call
from tests.nets import captured, with_parts


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)
    )


X = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def traced():
    return captured(net(), X)


def test_seeds_decide_the_weights(traced):
    graph, _ = traced
    a, b, c = (ag.initial_state(graph, seed) for seed in (1, 1, 2))
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert not torch.equal(a["0.weight"], c["0.weight"])


def test_initial_weights_have_the_scale_of_torchs_own(traced):
    graph, _ = traced
    state = ag.initial_state(graph, 0)
    bound = 27**-0.5
    assert bound * 0.9 < float(state["0.weight"].max()) <= bound
    assert bound * 0.9 < -float(state["0.weight"].min()) <= bound
    assert torch.equal(state["1.weight"], torch.ones(4))
    assert torch.equal(state["1.running_var"], torch.ones(4))
    assert not state["1.running_mean"].any() and not state["1.bias"].any()
    assert int(state["1.num_batches_tracked"]) == 0


def test_a_module_does_not_share_memory_with_the_state_it_was_built_from(traced):
    graph, state = traced
    before = {k: v.clone() for k, v in state.items()}
    module = ag.build(graph, state)
    with torch.no_grad():
        for tensor in module.state_dict().values():
            tensor.add_(1)
    assert all(torch.equal(state[k], before[k]) for k in state)


def test_a_module_for_training_is_in_its_mode() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Dropout(), nn.Conv2d(4, 2, 3)).eval()
    graph, state = captured(model, torch.zeros(2, 1, 8, 8))
    modes = {m.training for m in filled(graph, state, training=True).modules()}
    assert modes == {True} and not any(m.training for m in build(graph, state).modules())


def test_copies_and_pickles_compute_the_same(traced):
    graph, state = traced
    module = ag.build(graph, state).eval()
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(other(X), module(X), rtol=0, atol=0)
        assert other.arch == graph and not other.training
        assert other.state_dict().keys() == module.state_dict().keys()


def test_states_load_whole_or_not_at_all(traced):
    graph, state = traced
    module = ag.build(graph, state)
    other = ag.initial_state(graph, 3)
    load_state(module, other)
    assert all(torch.equal(v, other[k]) for k, v in ag.state_of(module).items())
    bad = dict(state) | {"4.weight": torch.zeros(2, 63)}
    with pytest.raises(ag.GraphError, match=r"4\.weight: .* another shape; found \(2, 63\)"):
        load_state(module, bad)
    assert all(torch.equal(v, other[k]) for k, v in ag.state_of(module).items())


def test_missing_and_misshapen_tensors_are_named(traced):
    graph, state = traced
    with pytest.raises(ag.GraphError, match=r"4\.bias: the state lacks this tensor; expected"):
        ag.build(graph, {k: v for k, v in state.items() if k != "4.bias"})
    with pytest.raises(ag.GraphError, match=r"4\.bias: .* another shape; found \(3,\)"):
        ag.build(graph, dict(state) | {"4.bias": torch.zeros(3)})
    for prefix in ("module.", "_orig_mod."):
        message = rf"lacks this tensor; found {prefix}.*; remove the prefix '{prefix}'"
        with pytest.raises(ag.GraphError, match=message):
            ag.build(graph, {prefix + k: v for k, v in state.items()})
    others: dict[str, Any] = {
        r"found a mapping 'model'.*checkpoint\['model'\]": {"model": state, "epoch": 3},
        r"as ag\.trace, ag\.state_of .*; found list": list(state.values()),
        r"found ndarray; .*convert it": {k: v.numpy() for k, v in state.items()},
    }
    for message, other in others.items():
        with pytest.raises(ag.GraphError, match=message):
            ag.build(graph, other)
    with pytest.raises(ag.GraphError, match="not a module built by archgraph"):
        ag.state_of(nn.Linear(1, 1))


def test_shapes_are_inferred_for_any_batch(traced):
    graph, _ = traced
    blank = graph.replace(nodes=tuple(n if n.op == "input" else _untyped(n) for n in graph.nodes))
    assert infer(blank) == graph
    node = Node("y", "aten.relu", (("self", Ref("conv2d")),))
    assert type_in(graph, node) == TensorType((BATCH, 4, 4, 4), "float32")


def type_in(graph, node):
    types = {n.name: n.type for n in graph.nodes}
    return infer_call(node, types, {p.name: p.type for p in graph.params})


def _untyped(node):
    import dataclasses

    return dataclasses.replace(node, type=TensorType((), "float32"))


def test_shapes_that_cannot_agree_are_located(traced):
    graph, _ = traced
    node = Node("y", "aten.linear", (("input", Ref("conv2d")), ("weight", Leaf("4.weight"))))
    with pytest.raises(
        ag.GraphError, match=r"%y: aten\.linear does not fit.*weight float32\[2, 64\]"
    ):
        type_in(graph, node)


@pytest.mark.parametrize("name", ["type.weight", "half", "arch", "x.train", "0.lambda", "_leaf"])
def test_names_that_shadow_what_modules_have(name):
    graph = ArchGraph(
        (("x", Ref("x")),),
        (Param(name, TensorType((3,), "float32")),),
        (
            Node("x", "input", (), TensorType((BATCH, 3), "float32")),
            Node(
                "y",
                "aten.mul.Tensor",
                (("self", Ref("x")), ("other", Leaf(name))),
                TensorType((BATCH, 3), "float32"),
            ),
        ),
        Ref("y"),
    )
    built = ag.build(graph, {name: torch.tensor([1.0, 2.0, 3.0])})
    assert list(built.state_dict()) == [name]
    assert built(torch.ones(1, 3)).tolist() == [[1.0, 2.0, 3.0]]


def test_a_leafs_name_never_runs_as_code(tmp_path):
    mark = tmp_path / "ran"
    evil = f'w", open({str(mark)!r}, "w").close() or "'.replace(".", "\u2024")
    param = Param(evil, TensorType((2, 3), "float32"))
    args = (("input", Ref("x")), ("weight", Leaf(evil)))
    nodes = (
        Node("x", "input", (), TensorType((BATCH, 3), "float32")),
        Node("y", "aten.linear", args, TensorType((BATCH, 2), "float32")),
    )
    graph = ArchGraph((("x", Ref("x")),), (param,), nodes, Ref("y"))
    assert ag.build(graph)(torch.zeros(2, 3)).shape == (2, 2)
    assert not mark.exists()


@pytest.mark.parametrize("name", ["", "a..b", "a.", "a\nb.c"])
def test_names_that_are_not_a_path_are_refused(name):
    graph = ArchGraph((), (Param(name, TensorType((1,), "float32")),), (), None)
    with pytest.raises(ag.GraphError, match="not a path of attributes"):
        ag.build(graph)


def test_types_of_a_long_graph_are_inferred_in_linear_time():
    import time

    type_ = TensorType((BATCH, 3), "float32")
    nodes = [Node("n0", "input", (), type_)]
    for i in range(1, 2001):
        nodes.append(Node(f"n{i}", "aten.relu", (("self", Ref(f"n{i - 1}")),), type_))
    graph = ArchGraph((("n0", Ref("n0")),), (), tuple(nodes), Ref("n0"))
    start = time.perf_counter()
    assert infer(graph) == graph
    assert time.perf_counter() - start < 20  # 1 s alone on a core; a shared one needs more


def test_sizes_follow_the_batch():
    @with_parts()
    def Pairs(self, x):
        """A block that is called with three rows for each example."""
        batch = x.shape[0] // 3
        return x.reshape(batch, 6) + x.new_ones(batch * batch).sum()

    @with_parts(lambda: {"pairs": Pairs()})
    def Folded(self, x):
        return self.pairs(x.reshape(x.shape[0] * 3, 2))

    graph, state = captured(Folded(), torch.randn(2, 6))
    assert any(n.shape[:1] == (3 * BATCH,) for n in graph.nodes)
    for batch in (1, 4):
        x = torch.randn(batch, 6)
        torch.testing.assert_close(ag.build(graph, state)(x), x + batch**2, rtol=0, atol=0)
