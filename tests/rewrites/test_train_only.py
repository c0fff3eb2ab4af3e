"""What is trained: chosen by pattern, and nothing else is touched, bit for bit."""

from __future__ import annotations

import pytest
import torch

import archgraph as ag
from archgraph.federation import (
    LocalOptions,
    Model,
    Train,
    Work,
    module_of,
    optimiser,
    seeded,
    training,
)
from archgraph.hypernet.graphs import local
from tests.nets import captured, tied_head
from tests.strategies.conftest import CLASSES, Net, toy


@pytest.fixture(scope="module")
def traced():
    torch.manual_seed(0)
    return ag.trace(Net(), torch.randn(2, 1, 8, 8))


def trained_names(graph: ag.ArchGraph) -> list[str]:
    return [p.name for p in graph.params if p.trainable]


def test_only_what_is_named_is_trained_and_the_function_stays(traced):
    new = ag.train_only(traced.graph, ["fc.*", "layer2.0.short.weight"])
    assert trained_names(new.graph) == ["layer2.0.short.weight", "fc.weight", "fc.bias"]
    assert new.transfer == ag.Transfer.identity(traced.graph)
    module, before = ag.build(new.graph, traced.state), ag.build(traced.graph, traced.state)
    wanted = {n for n, p in module.named_parameters() if p.requires_grad}
    assert wanted == {"layer2.0.short.weight", "fc.weight", "fc.bias"}
    x = torch.randn(3, 1, 8, 8, generator=seeded(0, "x"))
    assert torch.equal(module(x), before(x))


def test_the_choice_replaces_an_earlier_one_and_survives_text(traced):
    first = ag.train_only(traced.graph, "fc.*").graph
    assert trained_names(ag.train_only(first, "stem.*").graph) == ["stem.weight", "stem.bias"]
    assert ag.train_only(first, "*").graph == traced.graph
    assert ag.parse(str(first)) == first


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("*.adaptor*", r"^\*\.adaptor\*: matches no trainable parameter"),
        ("fc.wieght", "did you mean 'fc.weight'"),
        ("layer1.0.bn1.running_mean", "did you mean 'layer1.0.bn1."),
        ("", "matches no trainable parameter"),
    ],
)
def test_a_pattern_of_nothing_is_an_error_with_the_nearest_names(traced, pattern, words):
    with pytest.raises(ag.GraphError, match=words):
        ag.train_only(traced.graph, ["fc.*", pattern])


def test_a_tied_parameter_answers_to_each_of_its_names():
    graph = captured(tied_head(), torch.zeros(2, 3, dtype=torch.int64)).graph
    (owner,) = graph.params
    assert owner.aliases
    for name in (owner.name, *owner.aliases):
        assert ag.train_only(graph, name).graph == graph


@pytest.mark.parametrize(
    "local_options",
    [
        LocalOptions(epochs=2, batch=4, momentum=0.9, weight_decay=0.1, clip=1.0),
        LocalOptions.model_validate(
            {"batch": 4, "optimiser": {"Adam": {"lr": 0.01, "weight_decay": 0.1}}}
        ),
    ],
    ids=["sgd", "adam"],
)
def test_local_training_leaves_frozen_entries_bit_for_bit(monkeypatch, traced, local_options):
    """Neither decay nor momentum nor clipping reaches them; the gradient is that of the others."""
    graph = ag.train_only(traced.graph, ["layer1.1.*", "fc.*"]).graph
    work = Work(0, 1, 1, graph, traced.state, toy(1), local_options, seeded(0, "work"))
    seen: list[int] = []

    def counting(local, parameters, *rounds):
        parameters = list(parameters)
        seen.extend(p.numel() for p in parameters)
        return optimiser(local, parameters, *rounds)

    monkeypatch.setattr(training, "optimiser", counting)
    after = Train()(work).state
    parameters = [p for p in graph.params if p.role == "parameter"]
    assert sorted(seen) == sorted(size(p) for p in parameters if p.trainable)
    for p in parameters:
        assert torch.equal(after[p.name], traced.state[p.name]) != p.trainable, p.name


def size(param: ag.Param) -> int:
    return int(torch.Size(param.shape).numel())


def test_the_hypernetwork_leaves_frozen_entries_at_the_client(traced):
    rules = local(ag.train_only(traced.graph, "fc.*").graph)
    assert rules["stem.weight"] == "frozen" and "fc.weight" not in rules


@pytest.mark.parametrize(
    "rewrite",
    [
        lambda g: ag.take(g, 0.5),
        lambda g: ag.widen(g, 1.5),
        lambda g: ag.graft(g, {"layer1": 4}),
        lambda g: ag.skip(g, ["layer1.1"]),
        lambda g: ag.deepen(g, {"layer1": 4}),
    ],
    ids=["take", "widen", "graft", "skip", "deepen"],
)
def test_other_rewrites_keep_what_is_frozen(traced, rewrite):
    """Freezing and another rewrite commute, where both know the parameters."""
    frozen = ag.train_only(traced.graph, ["layer2.*", "fc.*"])
    one = rewrite(frozen.graph)
    other = rewrite(traced.graph)
    assert one.transfer == other.transfer
    assert one.graph == ag.train_only(other.graph, ["layer2.*", "fc.*"]).graph
    state = ag.initial_state(traced.graph, seed=3)
    module = module_of(Model(one.graph, one.transfer.pull(state)))
    assert module(torch.zeros(2, 1, 8, 8)).shape == (2, CLASSES)
