"""Similarity of blocks and scales of models: closed forms, the paper's figures, run folders."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result as Shown
from safetensors.torch import save_file
from torch import Tensor, nn
from typer.testing import CliRunner

import archgraph as ag
from archgraph.analysis.layers import layers
from archgraph.cli import app
from archgraph.engine import prepare, run
from archgraph.engine.trained import trained
from archgraph.errors import GraphError, RunError
from archgraph.reports.plots import picture
from archgraph.studies.similarity import (
    Matching,
    SectionSimilarity,
    _match,
    block_similarity,
    chance,
    scale_variation,
    similarity,
    weights,
)
from archgraph.studies.weights import heat, scale_plot, scale_table, similarity_tables


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------- similarity of two layers

MATCHING: tuple[Matching, ...] = ("greedy", "assignment")


@pytest.mark.parametrize("matching", MATCHING)
@pytest.mark.parametrize("shape", [(12, 7, 9), (12, 1, 9), (12, 7, 1)])
def test_a_layer_is_like_itself_moved_and_scaled(matching, shape):
    a = drawn(*shape)
    assert similarity(a, a, matching=matching) == pytest.approx(1.0, abs=1e-6)
    assert similarity(a, 3 * a + 2, matching=matching) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("matching", MATCHING)
def test_the_order_of_filters_and_maps_means_nothing(matching):
    a = drawn(12, 7, 9)
    filters, maps = torch.randperm(12), torch.stack([torch.randperm(7) for _ in range(12)])
    b = a[filters][torch.arange(12)[:, None], maps]
    assert similarity(a, b, matching=matching) == pytest.approx(1.0, abs=1e-6)


def test_two_filters_in_closed_form():
    """Maps that rise, fall or bend: correlations are 1, −1 and 0."""
    up, down, bend = torch.tensor([[-1.0, 0, 1], [1, 0, -1], [1, -2, 1]])
    a = torch.stack([torch.stack([up, bend]), torch.stack([up, up])])
    b = torch.stack([torch.stack([down, bend]), torch.stack([bend, up])])
    # r̂ of filters: [(0 + 0) or (−1 + 1)] = 0, 1; of (up, up): (−1 + 0)/2, (0 + 1)/2.
    for matching in MATCHING:
        assert similarity(a, b, matching=matching) == pytest.approx((1.0 - 0.5) / 2, abs=1e-6)
    # Row by row the first takes what the second needs; the best matching leaves it.
    one = torch.tensor([[0.9, 0.8], [0.8, 0.1]])
    assert float(_match(one[:, None], "greedy")) == pytest.approx((0.9 + 0.1) / 2)
    assert float(_match(one[:, None], "assignment")) == pytest.approx((0.8 + 0.8) / 2)


def by_definition(a: Tensor, b: Tensor) -> float:
    """Appendix B.3 as it is written, one element after the other."""

    def greedy(table: Tensor) -> float:
        free, total = list(range(table.shape[1])), 0.0
        for line in table:
            best = max(free, key=lambda j: float(line[j]))
            free.remove(best)
            total += float(line[best])
        return total / len(table)

    between = torch.zeros(len(a), len(b))
    for i, j in itertools.product(range(len(a)), range(len(b))):
        both = torch.corrcoef(torch.cat([a[i], b[j]]))
        between[i, j] = greedy(both[: a.shape[1], a.shape[1] :])
    return greedy(between)


@pytest.mark.parametrize("sizes", [((6, 5), (6, 5)), ((4, 3), (6, 5)), ((4, 5), (9, 5))])
def test_greedy_is_what_the_paper_describes(sizes, monkeypatch):
    a, b = (drawn(*size, 9, seed=i) for i, size in enumerate(sizes))
    assert similarity(a, b) == pytest.approx(by_definition(a, b), abs=1e-6)
    monkeypatch.setattr("archgraph.studies.similarity.ROOM", 1)
    assert similarity(a, b) == pytest.approx(by_definition(a, b), abs=1e-6)


@pytest.mark.parametrize("channels, published", [(64, 0.660), (128, 0.720)])
def test_untrained_layers_have_the_published_similarity(channels, published):
    """Table 7, 0 epochs: 0.660 and 0.720 for 64 and 128 channels of 3 × 3 kernels."""
    filters = None if channels == 64 else 64
    found = chance((channels, channels, 9), (channels, channels, 9), "greedy", filters)
    assert found == pytest.approx(published, abs=0.007)
    a, b = drawn(64, 64, 9), drawn(64, 64, 9, seed=1)
    assert similarity(a, b, matching="assignment", filters=8) > 0.69


def test_constant_maps_and_other_kernels():
    assert similarity(torch.ones(3, 2, 9), drawn(3, 2, 9)) == 0
    with pytest.raises(GraphError, match=r"kernels of different sizes .*: 9 and 25 values"):
        similarity(drawn(3, 2, 9), drawn(3, 2, 25))


def test_a_sample_takes_the_same_filters_of_both():
    a = drawn(40, 3, 9)
    assert similarity(a, a, filters=5) == pytest.approx(1.0, abs=1e-6)
    assert similarity(a, drawn(40, 3, 9, seed=2), filters=5) < 0.9


# ---------------------------------------------------------------- models


class Block(nn.Module):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.short = nn.Conv2d(inputs, width, 1) if inputs != width else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return (self.conv2(self.conv1(x).relu()) + self.short(x)).relu()


class Net(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.stage = nn.Sequential(*[Block(4 if i == 0 else width, width) for i in range(4)])
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stage(self.stem(x).relu()).mean((2, 3)))


def traced(width: int = 8, seed: int = 0) -> tuple[ag.ArchGraph, dict[str, Tensor]]:
    torch.manual_seed(seed)
    made = ag.trace(Net(width), torch.zeros(2, 1, 8, 8))
    return made.graph, made.state


def test_equal_blocks_are_alike_and_a_projection_is_compared_with_nothing():
    graph, state = traced()
    copied = {k: state[k.replace("stage.2", "stage.1")] for k in state}
    (found,) = block_similarity(graph, copied)
    assert found.section == "stage"
    assert found.rows == found.columns == ("stage.1", "stage.2", "stage.3")
    values = found.values
    assert values[0][1] == pytest.approx(1.0, abs=1e-6)
    assert values[0][0] is None
    assert values[2][0] == values[0][2] == pytest.approx(found.chance, abs=0.1)
    assert found.layers == 2


def test_two_models_of_different_width_are_compared_block_by_block():
    graph, state = traced()
    narrow = ag.take(graph, 0.5)
    every = block_similarity(graph, state, (narrow.graph, narrow.transfer.pull(state)))
    stage = next(one for one in every if one.section == "stage")
    assert stage.rows == stage.columns == ("stage.0", "stage.1", "stage.2", "stage.3")
    for i, j in itertools.product(range(4), range(4)):
        value = stage.values[i][j]
        if 0 in (i, j) and i != j:
            assert value is None
        elif i == j:  # a prefix is found again in the whole
            assert value == pytest.approx(1.0, abs=1e-6)
            assert stage.chance < 0.7


def test_transposed_and_grouped_weights_stand_out_in_kernel():
    net = nn.Sequential(
        nn.ConvTranspose2d(3, 5, 2), nn.Conv2d(5, 10, 3, groups=5), nn.Flatten(), nn.LazyLinear(7)
    )
    net(torch.zeros(2, 3, 8, 8))
    graph, state, *_ = ag.trace(net, torch.zeros(2, 3, 8, 8))
    shapes = {w.leaf: tuple(w.of(state).shape) for w in weights(graph)}
    assert shapes == {"0.weight": (5, 3, 4), "1.weight": (10, 1, 9), "3.weight": (7, 490, 1)}
    mine = weights(graph)[0].of(state)
    assert torch.equal(mine[2, 1], state["0.weight"][1, 2].flatten())


def test_unknown_sections_are_named():
    graph, state = traced()
    message = r"no such section; found 'stge'; expected .*did you mean 'stage"
    with pytest.raises(GraphError, match=message):
        block_similarity(graph, state, sections=["stge"])
    assert block_similarity(graph, state, sections=["stem"]) == ()


# ---------------------------------------------------------------- scales


def test_a_multiple_has_its_factor_as_ratio():
    graph, state = traced()
    for factor in (3.0, -0.5, 1.0):
        other = {k: factor * v for k, v in state.items()}
        found = scale_variation({"a": (graph, state), "c": (graph, other)}, "a")
        assert found.layers == tuple(k for k in state if k.endswith("weight"))
        for layer, scale in found.models["c"].items():
            assert scale.ratio == pytest.approx(abs(factor), rel=1e-5)
            distance = abs(factor - 1) * found.magnitudes[layer]
            assert scale.distance == pytest.approx(distance, rel=1e-5)


def test_magnitudes_in_closed_form():
    """Appendix F: mean over weight maps of the sum of absolute values."""
    graph, state = traced()
    ones = {k: torch.full_like(v, -2.0) for k, v in state.items()}
    found = scale_variation({"a": (graph, ones), "b": (graph, state)}, "a")
    assert found.magnitudes["stem.weight"] == 18.0
    assert found.magnitudes["head.weight"] == 2.0


def test_models_are_compared_on_the_prefix_that_both_have():
    graph, state = traced()
    narrow = ag.take(graph, sizes={"stage*": 5})
    part = narrow.transfer.pull(state)
    found = scale_variation({"wide": (graph, state), "narrow": (narrow.graph, part)})
    assert found.baseline == "narrow"
    assert all(s.ratio == 1.0 and s.distance == 0.0 for s in found.models["wide"].values())
    changed = {k: v + 1 for k, v in state.items()}
    found = scale_variation({"wide": (graph, changed), "narrow": (narrow.graph, part)})
    distances = {layer: s.distance for layer, s in found.models["wide"].items()}
    assert distances["stage.1.conv1.weight"] == pytest.approx(9.0, rel=1e-5)
    back = scale_variation({"wide": (graph, state), "narrow": (narrow.graph, part)}, "wide")
    assert back.models["narrow"]["stage.1.conv1.weight"].ratio == 1.0


def test_layers_that_a_model_lacks_are_absent():
    graph, state = traced()
    short = ag.shorten(graph, {"stage": 2})
    part = short.transfer.pull(state)
    found = scale_variation({"a": (graph, state), "b": (short.graph, part)}, "a")
    assert "stage.3.conv1.weight" in found.layers
    assert "stage.3.conv1.weight" not in found.models["b"]
    rows = {row[0]: row for row in scale_table(found).rows}
    assert rows["stage.3.conv1.weight"][2:] == ("–",)
    assert rows["stage.1.conv1.weight"][2:] == ("1.000 · 0.000",)


def test_scales_need_two_models_and_a_baseline_that_is_there():
    one = traced()
    with pytest.raises(GraphError, match=r"needs two models to compare, not 1"):
        scale_variation({"a": one})
    with pytest.raises(GraphError, match=r"baseline: no model c among a, b"):
        scale_variation({"a": one, "b": one}, "c")


# ---------------------------------------------------------------- layers


def test_every_entry_of_the_state_is_in_one_layer():
    class Odd(nn.Module):
        """A tied weight, a norm with a counter, an entry that nothing uses, a recurrent cell."""

        def __init__(self) -> None:
            super().__init__()
            self.one, self.norm, self.two = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
            self.two.weight = self.one.weight
            self.cell = nn.LSTM(4, 4, batch_first=True)
            self.spare = nn.Parameter(torch.zeros(3))
            # A constant of the architecture, no state.
            self.table: Tensor
            self.register_buffer("table", torch.randn(4), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.cell(self.two(self.norm(self.one(x + self.table)))[:, None])[0]

    graph = ag.trace(Odd(), torch.zeros(2, 4)).graph
    assert any(p.role == "constant" for p in graph.params)
    found = layers(graph)
    names = [name for layer in found for name in layer.entries]
    assert sorted(names) == sorted(graph.state_names)
    assert found[0].entries == ("one.weight", "one.bias")
    assert ("two.bias",) in [layer.entries for layer in found]
    assert (found[-1].node, found[-1].entries) == ("", ("spare",))
    kinds = {layer.entries: layer.kind for layer in found}
    assert kinds["two.bias",] == "aten.linear(input=%, weight=%1, bias=%parameter float32[4])"


# ---------------------------------------------------------------- pictures and commands


def test_pictures_are_drawn():
    blocks = ("stage.0", "stage.1")
    one = SectionSimilarity("stage", blocks, blocks[:1], ((None,), (0.8,)), 0.65, 1)
    figure = heat([one, one], title="two")
    assert [t.get_text() for t in figure.axes[0].texts] == [".80"]
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["0", "1"]
    assert picture(figure, "png").startswith(b"\x89PNG")
    (table,) = similarity_tables([one])
    assert table.rows == (("stage.0", ""), ("stage.1", "0.800"))
    graph, state = traced()
    plot = scale_plot(scale_variation({"a": (graph, state), "b": (graph, state)}))
    assert [line.get_label() for line in plot.axes[1].lines] == ["b"]
    assert picture(plot).startswith(b"<?xml")


MODEL = """
archgraph: 1
name: small
inputs: {image: [1, 8, 8]}
sections:
  - name: stem
    steps:
      - conv: {out: 8, kernel: 3, stride: 2}
      - batch_norm
      - relu
  - name: head
    steps:
      - global_avg_pool
      - flatten
      - linear: {out: 10}
"""
EXPERIMENT = """
archgraph: 1
name: alone
family:
  clients:
    - {name: half, count: 2, model: model.yaml, take: 0.5}
    - {name: whole, count: 1, model: model.yaml}
data: {dataset: digits, limit: 200}
strategy: standalone
rounds: 1
seed: 3
"""


def command(*words: Any) -> Shown:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and a run of three clients that never talk."""
    place = tmp_path_factory.mktemp("run")
    (place / "model.yaml").write_text(MODEL)
    (place / "experiment.yaml").write_text(EXPERIMENT)
    run(place / "experiment.yaml", out=place / "run", progress=False)
    return place


def test_models_of_a_run_are_those_of_its_clients(folder):
    found = trained(folder / "run")
    assert list(found) == ["half/0", "half/1", "whole/2"]
    first = {t.name: t.state for t in prepare(folder / "experiment.yaml").world.tiers}
    for name, model in found.items():
        assert model.state.keys() == set(model.graph.state_names)
        before, after = (s["head.linear.weight"] for s in (first[name[:-2]], model.state))
        assert not torch.equal(before, after)
    one, other = found["half/0"].state, found["half/1"].state
    assert not torch.equal(one["head.linear.weight"], other["head.linear.weight"])
    with pytest.raises(RunError, match=r"not a run folder; found no run\.yaml"):
        trained(folder)


def test_scales_of_a_run(folder, monkeypatch):
    shown = command("scales", folder / "run", "-o", folder / "s.png")
    assert shown.exit_code == 0, shown.output
    assert "scales beside half/0" in shown.output
    assert "whole/2" in shown.output and "head.linear.weight" in shown.output
    assert (folder / "s.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.chdir(folder)  # long paths are shortened
    two = command("scales", "run:half/1", "run:whole/2")
    assert two.exit_code == 0 and "run:whole/2" in two.output
    save_file(ag.initial_state(ag.load(folder / "model.yaml"), 5), folder / "w5.safetensors")
    model, weights = folder / "model.yaml", ("--state", folder / "w5.safetensors")
    same = command("scales", model, model, *weights)  # one architecture, two states
    assert same.exit_code == 0, same.output
    wrong = command("scales", folder / "run", *weights)
    assert wrong.exit_code == 2 and "has weights of its own" in wrong.stderr


def test_similarity_of_models_and_of_a_run(folder, tmp_path):
    run_ = folder / "run"
    shown = command("similarity", f"{run_}:half/0", f"{run_}:half/1", "-o", tmp_path / "h.svg")
    assert shown.exit_code == 0, shown.output
    assert "independent" in shown.output and (tmp_path / "h.svg").exists()
    graph = ag.load(folder / "model.yaml")
    save_file(ag.initial_state(graph, 5), tmp_path / "w.safetensors")
    model = folder / "model.yaml"
    state = ("--state", tmp_path / "w.safetensors")
    same = command("similarity", model, model, *state, *state)
    assert same.exit_code == 0 and same.output.count("1.000") == 2
    # Without a file the weights are untrained ones.
    assert "1.000" not in command("similarity", model, model, *state).output


@pytest.mark.parametrize(
    "words, message",
    [
        (["similarity", "{run}"], "holds several models; found half/0, half/1, whole/2"),
        (["similarity", "{run}:x"], "has no such model; found x; expected half/0"),
        (["similarity", "{model}"], "no blocks to compare; expected a section"),
        (["similarity", "{model}", "--state", "{model}"], "is not a safetensors file"),
        (["similarity", "{model}", "--section", "stm"], "no such section; found 'stm'"),
        (["scales", "{model}"], "needs two models to compare"),
        (["scales", "{model}", "--state", "a", "--state", "b"], "--state: more files than models"),
    ],
)
def test_mistakes_are_told_in_one_line(folder, words, message):
    places = {"run": folder / "run", "model": folder / "model.yaml"}
    shown = command(*(word.format(**places) for word in words))
    assert shown.exit_code == 2
    assert message in shown.output.replace("\n", " ")
