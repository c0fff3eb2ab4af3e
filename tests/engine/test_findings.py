"""What a strategy finds in a result: where, when, and that no client can say it."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
import torch

from archgraph.engine.local import execute
from archgraph.errors import RejectedUpdate, RunError
from archgraph.federation import Result, State
from archgraph.language.aggregate import AggregateSpec
from archgraph.language.experiment import EngineSpec


def look(result: Result) -> State:
    """The process and its threads, and a sum whose bits depend on them."""
    large = torch.linspace(0, 1, 2**20) * result.state["5.bias"][0]
    facts = torch.tensor([os.getpid(), torch.get_num_threads()])
    return {"facts": facts, "sum": large.sum(), "first": result.state["5.bias"][0].clone()}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_result_is_examined_on_one_thread_where_the_client_worked(experiment, mean, workers):
    found: list[State] = []
    method = mean(find=look, seen=lambda result: found.append(result.findings))
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        execute(experiment(method, rounds=1, engine=EngineSpec(workers=workers)))
    finally:
        torch.set_num_threads(threads)
    processes = [int(one["facts"][0]) for one in found]
    assert all((process == os.getpid()) == (workers == 1) for process in processes)
    assert all(one["facts"][1] == 1 for one in found)


def test_findings_lie_in_memory_as_in_a_file_in_whatever_process(experiment, mean):
    """A sum over what is transposed or expanded has other bits than over a copy in order."""

    def views(result: Result) -> State:
        weight = result.state["5.weight"]
        return {
            "across": weight.transpose(0, 1),
            "wide": weight[:, :1].expand(-1, 9),
            "conjugated": torch.fft.fft(weight).conj(),
            "alias": weight,
        }

    found: dict[int, list[State]] = {1: [], 2: []}
    for workers, kept in found.items():
        seen = lambda result, kept=kept: kept.append(result.findings)  # noqa: E731  # of this run
        execute(experiment(mean(find=views, seen=seen), engine=EngineSpec(workers=workers)))
    for one, two in zip(*found.values(), strict=True):
        for name, value in one.items():
            assert value.stride() == two[name].stride() and value.is_contiguous()
            assert value.is_conj() is False and torch.equal(value, two[name])
    pointers = [{t.data_ptr() for t in one.values()} for one in found[1]]
    assert all(len(places) == 4 for places in pointers)


@pytest.mark.parametrize("limit", [{"clip": 0.01}, {"clip": "median"}, {"bound": 1e6}])
def test_findings_are_those_of_the_update_as_it_is_merged(experiment, mean, limit):
    """A clipped one is examined again, and one that waits on disk has its own back."""
    found: list[tuple[float, float]] = []

    def pair(result: Result) -> None:
        found.append((float(result.findings["first"]), float(result.state["5.bias"][0])))

    setup = experiment(mean(find=look, seen=pair), rounds=1, sampled=None)
    if "clip" in limit:
        setup = replace(setup, world=replace(setup.world, aggregate=AggregateSpec(**limit)))
    else:
        setup = replace(setup, **limit)
    run = execute(setup)
    clipped = [client.get("clipped", 1.0) for client in run.rounds[0]["clients"]]
    assert (min(clipped) < 1) == ("clip" in limit)
    assert len(found) == 4 and all(there == now for there, now in found)


def test_an_update_that_is_refused_once_it_is_clipped_is_left_out_by_name(experiment, mean):
    first: dict[int, float] = {}

    def refuse(result: Result) -> None:
        value = float(result.state["5.bias"][0])
        if first.setdefault(result.client, value) != value and result.client == 2:
            raise RejectedUpdate("too small", where="5.bias")

    setup = experiment(mean(refuse=refuse), rounds=1, sampled=None)
    run = execute(replace(setup, world=replace(setup.world, aggregate=AggregateSpec(clip=0.01))))
    (line,) = run.rounds
    assert [client["client"] for client in line["clients"]] == [0, 1, 3]
    assert [(row["client"], row["reason"]) for row in line["rejected"]] == [
        (2, "5.bias: too small")
    ]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([1.0], "findings: returned the wrong type; found list; expected Mapping"),
        (
            {"norm": 1.0},
            r"findings\['norm'\]: returned the wrong type; found float; expected Tensor",
        ),
    ],
)
def test_findings_that_are_not_tensors_by_name_are_refused(experiment, mean, value: Any, said):
    with pytest.raises(RunError) as error:
        execute(experiment(mean(find=lambda result: value), rounds=1))
    assert error.match(f"Mean.examine: Result.{said}")
