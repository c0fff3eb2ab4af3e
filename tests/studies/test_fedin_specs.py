"""FedIN's models, families and experiments against Table I and §V-A."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import archgraph as ag
from archgraph.engine.world import prepare
from archgraph.federation import configure
from archgraph.language.data import DirichletSpec, IidSpec, NamedData
from archgraph.strategies.fedin import FedIN, model_parts
from archgraph.studies import load_study
from archgraph.studies.spec import cells

SPECS = Path(__file__).resolve().parents[2] / "specs"
PAPER = [
    (cell.row, cell.column, cell.experiment)
    for name in ("fedin_table2", "fedin_fig7")
    for cell in cells(load_study(SPECS / "studies" / f"{name}.yaml"), "paper")
    if cell.experiment is not None and cell.experiment.strategy_name == "fedin"
]

# Table I: channels of both convolutions and stride of the first; then how often the second line
# is repeated. The shortcut of a first line is 1 × 1 with the same stride.
STAGES = ((64, 256, 1), (128, 512, 2), (256, 1024, 2))
REPEATED = {"a": (2, 3, 0), "b": (2, 1, 0), "c": (2, 2, 0), "d": (1, 3, 0), "e": (1, 1, 0)}
CLIENTS = {"a": 2, "b": 1, "c": 2, "d": 2, "e": 3}


def layers(graph: ag.ArchGraph) -> list[tuple[int, int, int]]:
    """Channels, kernel, stride of each convolution."""
    found = []
    for node in graph.nodes:
        if node.op == "aten.conv2d":
            out, _, kernel, wide = graph.param[next(node.leaves())].shape
            stride = node.arg("stride", (1, 1))
            assert kernel == wide and isinstance(stride, tuple) and stride[0] == stride[1]
            assert isinstance(stride[0], int)
            found.append((out, kernel, stride[0]))
    return found


def printed(model: str) -> list[tuple[int, int, int]]:
    """The same as Table I prints it."""
    rows = [(64, 3, 1)]
    for (inner, outer, stride), again in zip(STAGES, REPEATED[model], strict=True):
        rows += [(inner, 1, stride), (outer, 3, 1), (outer, 1, stride)]  # with its shortcut
        rows += [(inner, 1, 1), (outer, 3, 1)] * again
    return rows


@pytest.fixture(scope="module", params=["cifar10", "fashion"])
def family(request):
    return ag.resolve(ag.load_family(SPECS / "families" / f"fedin_{request.param}.yaml"))


def test_models_are_those_of_table_1(family):
    assert {m.name: m.count for m in family.clients} == CLIENTS
    for member in family.clients:
        assert layers(member.graph) == printed(member.name)
        assert member.graph.param["dense.linear.weight"].shape == (10, 1024)


def test_extractor_is_stage_1_and_classifier_the_dense_layer_and_both_are_small(family):
    """§IV: "only occupying a very small part"; the cuts are the defaults."""
    for member in family.clients:
        split = model_parts(member.graph)
        held = [k for k in split.ends if member.graph.param[k].role == "parameter"]
        names = [f"stage1.{k}" for k in ("conv.weight", "bn.weight", "bn.bias")]
        assert held == [*names, "dense.linear.weight", "dense.linear.bias"]
        sizes = {p.name: math.prod(p.shape) for p in member.graph.params if p.role == "parameter"}
        assert sum(sizes[k] for k in held) < 0.01 * sum(sizes.values())


def test_models_train_on_their_own_features(family):
    """A forward of all parts, of the smallest model."""
    graph = family.clients[-1].graph
    x = torch.randn(2, *graph.nodes[0].shape[1:])
    parts = [ag.build(p, seed=1).eval() for p in model_parts(graph).parts]
    with torch.no_grad():
        s_in = parts[0](x)
        s_out = parts[1](s_in)
        assert parts[2](s_out).shape == (2, 10)
    assert s_in.shape[1:] == (64, *x.shape[2:])
    assert s_out.shape[1:] == (1024, *(n // 4 for n in x.shape[2:]))


@pytest.mark.parametrize(("row", "column", "spec"), PAPER, ids=[f"{p[0]}-{p[1]}" for p in PAPER])
def test_experiments_are_as_published(row, column, spec):
    local = spec.local
    assert isinstance(spec.data, NamedData)
    last, epochs = {"cifar10": (25, 5), "fashion_mnist": (60, 1)}[spec.data.dataset]
    assert (local.chosen.title, local.epochs, spec.rounds) == ("Adam", epochs, 200)
    assert spec.sample == 1.0
    assert local.settings_at(last, 200, 1, 1)["lr"] == 1e-3
    assert local.settings_at(last + 1, 200, 1, 1)["lr"] == pytest.approx(1e-4)
    assert local.settings_at(200, 200, 1, 1)["lr"] == pytest.approx(1e-4)
    scheme = spec.data.partition
    iid = column.endswith(", IID")
    assert isinstance(scheme, IidSpec if iid else DirichletSpec)
    if isinstance(scheme, DirichletSpec):
        assert scheme.alpha == 0.5
    assert isinstance(configure(spec.strategy_name, spec.strategy_options), FedIN)


@pytest.mark.parametrize("size", ["paper", "small"])
def test_ablations_are_those_of_figure_7(size):
    every = cells(load_study(SPECS / "studies/fedin_fig7.yaml"), size)
    options = {c.row[:3]: c.experiment.strategy_options for c in every if c.experiment}
    usual = options["Fed"]
    assert usual == {"store": "latest", "sample": 640}
    assert options["(a)"] == {**usual, "step": "sequential"}
    assert options["(b)"] == {**usual, "aggregate": False}
    assert options["(c)"] == {"in_training": False}
    assert len(PAPER) == 10


def test_an_experiment_can_begin(data_root):
    spec = next(spec for _, column, spec in PAPER if column == "Fashion-MNIST, non-IID")
    small = spec.model_copy(update={"data": spec.data.model_copy(update={"limit": 500})})
    setup = prepare(small, data_root=data_root)
    state = setup.strategy.init(setup.world)
    assert len(setup.world.clients) == 10 and "dense.linear.weight" in state.group("shared")
