"""Whatever takes a graph takes what has one, and says of a module to trace it first."""

import inspect
from typing import Any

import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.graph.argument import takes_graph
from tests import structures as nets
from tests.nets import captured

# Public functions whose signature has a graph, with what else they need.
CALLS: dict[str, tuple[Any, ...]] = {
    "add_adapters": (2,),
    "add_exits": ({"stage1": 3},),
    "add_lora": (2,),
    "add_scaler": (0.5,),
    "add_step_sizes": (),
    "axes": (),
    "build": (),
    "check": (),
    "cost": (),
    "deepen": ({"stage2": 3},),
    "draw": (),
    "ends_after": ("stage1", 3),
    "exits": (),
    "explain": (),
    "fix_sizes": (),
    "frozen": (),
    "graft": ({"stage2": 3},),
    "initial_state": (),
    "label_rows": (5,),
    "layer_weights": (),
    "layers": (),
    "narrow": (0.5,),
    "outline": (),
    "rewrite": (),
    "shorten": ({"stage2": 1},),
    "skip": ("stage2.1",),
    "split": ("stage1",),
    "structure": (),
    "take": (0.5,),
    "train_only": ("fc.*",),
    "widen": (2,),
    "with_features": (),
}
# Those that take several graphs, or a graph among other things, are called by the tests below.
OTHERS = {
    *("export", "fold", "rank", "state_dict", "widths"),
    *("fit", "importance", "match"),
    *("from_peft", "to_peft", "to_timm"),
}


@pytest.fixture(scope="module")
def model():
    return nets.Net(nets.Basic, (2, 2), (8, 12))


@pytest.fixture(scope="module")
def small(model):
    return ag.take(captured(model, torch.randn(2, 3, 8, 8)).graph, 0.5)


def test_every_public_function_of_a_graph_is_tested_here():
    def takes_a_graph(name: str) -> bool:
        function = getattr(ag, name)
        if inspect.isclass(function) or not callable(function):
            return False
        parameters = inspect.signature(function).parameters.values()
        return any(str(p.annotation) == "ArchGraph" for p in parameters)

    assert {name for name in dir(ag) if takes_a_graph(name)} == {*CALLS, *OTHERS}


@pytest.mark.parametrize(("name", "rest"), CALLS.items(), ids=CALLS)
def test_a_rewritten_stands_for_its_graph(model, small, name, rest):
    function = getattr(ag, name)
    of_graph, of_rewritten = function(small.graph, *rest), function(small, *rest)
    assert repr(of_graph) == repr(of_rewritten)
    if isinstance(of_graph, ag.Rewritten):
        assert of_graph == of_rewritten
    with pytest.raises(ag.GraphError, match=r"found Net; .*trace it first: ag\.trace\(model, exam"):
        function(model, *rest)


@pytest.mark.full
def test_several_graphs_and_graphs_among_other_things(model, small, tmp_path):
    graph = small.graph
    assert ag.align(small, whole=small).score == ag.align(graph, graph).score
    assert ag.join([small, graph]).graph == ag.join([graph, graph]).graph
    assert ag.meet([small, graph]).graph == ag.meet([graph, graph]).graph
    assert ag.chain(list(ag.split(small, "stage1"))) == graph
    assert ag.graft(small, {"stage2": 2}, like=small).graph == graph
    head = captured(nn.Sequential(nn.Flatten(), nn.Linear(256, 3)), torch.zeros(2, 4, 8, 8))
    both = (ag.Rewritten.identity(head.graph), head.graph)
    one, two = (ag.ends_after(small, "stage1", h).graph for h in both)
    assert one == two
    state = ag.initial_state(small)
    assert ag.Merger(small, state).signature == ag.Merger(graph, state).signature
    assert ag.widths(small, ag.Transfer.identity(graph)) == ag.widths(
        graph, ag.Transfer.identity(graph)
    )
    assert ag.state_dict(small, state).keys() == ag.state_dict(graph, state).keys()
    assert ag.fit(small, macs=0.5) == ag.fit(graph, macs=0.5)
    scores = ag.importance(small, state)
    assert scores == ag.importance(graph, state)
    assert ag.match(small, state, state, other=small).order == ag.match(graph, state, state).order
    ag.export(small, state, tmp_path / "small.onnx")
    ag.save(small, tmp_path / "small.yaml")
    assert ag.load(tmp_path / "small.yaml") == graph
    wrong: Any = model
    for call in (
        lambda: ag.align(graph, wrong),
        lambda: ag.join([graph, wrong]),
        lambda: ag.meet([wrong]),
        lambda: ag.chain([wrong]),
        lambda: ag.Merger(wrong, state),
        lambda: ag.state_dict(wrong, state),
        lambda: ag.fit(wrong, macs=0.5),
        lambda: ag.importance(wrong, state),
        lambda: ag.match(wrong, state, state),
        lambda: ag.export(wrong, state, tmp_path / "wrong.onnx"),
        lambda: ag.save(wrong, tmp_path / "wrong.yaml"),
        lambda: ag.add_exits(graph, {"stage1": wrong}),
    ):
        with pytest.raises(ag.GraphError, match="trace it first"):
            call()
    nothing: Any = None
    with pytest.raises(ag.GraphError, match=r"found NoneType; expected an ArchGraph"):
        ag.axes(nothing)


def test_the_first_argument_is_converted_whatever_it_is_annotated_with(small):
    def written(graph: "archgraph.graph.ir.ArchGraph", other: "ArchGraph") -> tuple[Any, Any]:  # type: ignore[name-defined]  # noqa: F821
        return graph, other

    converting: Any = takes_graph(written)
    assert converting(small, small) == (small.graph, small)
    assert converting(other=small, graph=small) == (small.graph, small)


def test_another_kind_of_graph_does_not_stand_for_one():
    other: Any = torch.fx.symbolic_trace(nn.Linear(2, 2))  # its graph is a graph of torch.fx
    with pytest.raises(ag.GraphError, match="trace it first"):
        ag.axes(other)
