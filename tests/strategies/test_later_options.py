"""Options that several methods share reach the client's loss, the mean and the tests."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from archgraph.federation import NormPolicy, Outcome, TaskLoss, Train
from archgraph.strategies.allsmall import AllSmall
from archgraph.strategies.clusteredfl import ClusteredFL
from archgraph.strategies.exclusivefl import ExclusiveFL
from archgraph.strategies.fedavg import FedAvg
from archgraph.strategies.fedfa import FedFA
from archgraph.strategies.fedrolex import FedRolex
from archgraph.strategies.fjord import FjORD
from archgraph.strategies.heterofl import HeteroFL
from archgraph.strategies.inclusivefl import InclusiveFL

METHODS: dict[str, Any] = {
    "allsmall": AllSmall,
    "clusteredfl": ClusteredFL,
    "exclusivefl": ExclusiveFL,
    "fedavg": FedAvg,
    "fedrolex": FedRolex,
    "fjord": FjORD,
    "heterofl": HeteroFL,
    "inclusivefl": InclusiveFL,
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("weights", "mean"), [("examples", 1.25), ("uniform", 1.5)])
def test_clients_count_by_their_examples_or_alike(lab, name: str, weights: str, mean: float):
    world, strategy = lab.uniform(2, examples=[30, 10]), METHODS[name](weights=weights)
    state = strategy.init(world)

    def results():
        for client in (0, 1):
            task = strategy.send(world, state, client, 1)
            moved = {k: torch.full_like(v, client + 1) for k, v in task.state.items()}
            extras = {k: torch.full_like(v, client + 1) for k, v in task.extras.items()}
            yield task.result(Outcome(moved, extras=extras), world.clients[client].examples)

    after = strategy.receive(world, state, results(), 1)
    (bias,) = (value for key, value in after.tensors.items() if key.endswith("/fc.bias"))
    assert bias.tolist() == pytest.approx([mean] * 5)
    statistics = [v for k, v in after.tensors.items() if k.endswith("bn1.running_mean")]
    if name == "fjord":
        assert {v for s in statistics for v in s.tolist()} >= {mean}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("mask", [True, False])
def test_the_loss_passes_over_absent_classes_where_that_is_asked_for(lab, name: str, mask: bool):
    world, strategy = lab.uniform(1), METHODS[name](mask_absent=mask)
    task = strategy.send(world, strategy.init(world), 0, 1)
    assert task.program.objective == TaskLoss(mask_absent=mask)


@pytest.mark.parametrize(("method", "mask"), [(FedAvg, False), (FedFA, True), (HeteroFL, True)])
def test_absent_classes_are_passed_over_as_the_papers_do(lab, method: Any, mask: bool):
    world, strategy = lab.uniform(1), method()
    program = strategy.send(world, strategy.init(world), 0, 1).program
    assert program == Train(TaskLoss(mask_absent=mask))


@pytest.mark.parametrize("name", METHODS)
def test_static_statistics_are_recomputed_for_tests(lab, name: str):
    world, strategy = lab.uniform(1), METHODS[name](norm="static")
    models = strategy.evaluated(world, strategy.init(world))
    assert {model.statistics for model in models} == {"recompute"}


@pytest.mark.parametrize("name", ["clusteredfl", "inclusivefl"])
def test_local_statistics_stay_with_the_client(lab, name: str):
    world, strategy = lab.uniform(1), METHODS[name](norm="local")
    task = strategy.send(world, strategy.init(world), 0, 1)
    assert task.private >= NormPolicy("local").private(world.graph) > frozenset()
