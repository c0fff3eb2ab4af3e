"""Measures of final weights: closed forms, and a study that names them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import archgraph as ag
from archgraph.errors import RunError, SpecError
from archgraph.federation import Model
from archgraph.states import State
from archgraph.studies.similarity import block_similarity, chance
from archgraph.studies.study import StudyResult
from archgraph.studies.weight_measures import FinalWeights

NET = """\
    archgraph: 1
    name: net
    inputs: {image: [1, 8, 8]}
    params: {depth: 3, width: 4}
    blocks: {plain: {params: {width: null}, steps: [relu, conv: {out: $width}]}}
    sections:
      - {name: stem, steps: [conv: {out: $width, bias: false}]}
      - {name: body, block: plain, depth: $depth, width: $width}
      - {name: head, steps: [global_avg_pool, flatten, linear: 10]}
    choices: {depth: [1, 2, 3], width: [4, 6]}
"""
STUDY = f"""\
archgraph: 1
study: Somebody, Table 2
experiment:
  family:
    model:
  {NET.replace(chr(10), chr(10) + "  ").rstrip()}
    clients: [{{name: small, choose: {{depth: 2}}}}, {{name: large, choose: {{width: 6}}}}]
  data: {{dataset: digits, limit: 40, partition: {{scheme: whole}}}}
  strategy: {{standalone: {{}}}}
  local: {{lr: 0.1}}
  rounds: 1
rows:
  weights: {{values: {{of: weights.large, then: .std}}}}
  distance: {{values: {{of: distance.large.small, then: ""}}}}
  accuracy: {{values: {{of: average_accuracy, then: ""}}}}
columns: {{first: {{values: {{at: .first}}}}, bias: {{values: {{at: .head.linear.bias}}}}}}
figures: {{value: "{{of}}{{at}}{{then}}"}}
leave_out: [accuracy]
sizes: {{paper: {{}}, small: {{seeds: [0, 1]}}}}
"""


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("net") / "net.yaml"
    file.write_text("\n".join(line[4:] for line in NET.splitlines()))
    return file


def drawn(file: Path, seed: int, **choices: int) -> Model:
    graph = ag.load(file, choices)
    return Model(graph, ag.initial_state(graph, seed))


def run(**models: Model) -> FinalWeights:
    """A run whose checkpoint has these models."""
    made = FinalWeights("nowhere")
    made.__dict__["models"] = models
    return made


def scaled(model: Model, factor: float) -> State:
    return {name: factor * value for name, value in model.state.items()}


def test_statistics_in_closed_form(net: Path):
    model = drawn(net, 0)
    state = dict(model.state)
    values = torch.arange(-10.0, 26.0).reshape(state["stem.conv.weight"].shape)
    state["stem.conv.weight"] = values
    state["body.2.conv.weight"] = torch.full_like(state["body.2.conv.weight"], -0.5)
    found = run(small=Model(model.graph, state))
    expected = {"mean": 7.5, "l1": 10.556, "map_l1": 95.0, "q05": -8.0, "q50": 8.0, "q95": 23.0}
    expected["std"] = float(values.std(correction=0))
    for name, value in expected.items():
        assert found.read(f"weights.small.first.{name}") == pytest.approx(value, abs=1e-3), name
        at = f"weights.small.stem.conv.weight.{name}"
        assert found.read(at) == found.read(f"weights.small.first.{name}")
    assert found.read("weights.small.last.map_l1") == 4.5  # the convolution, not the classifier
    bias = float(state["head.linear.bias"].abs().mean())
    assert found.read("weights.small.head.linear.bias.l1") == pytest.approx(bias)
    assert found.read("weights.small.body.7.conv.weight.l1") is None


def test_distance_is_that_of_the_maps_that_both_have(net: Path):
    """The last convolution of the deeper model stands in another block."""
    small, large = drawn(net, 0, depth=2), drawn(net, 1, depth=3, width=6)
    found = run(small=small, large=large)
    ours, theirs = small.state["body.1.conv.weight"], large.state["body.2.conv.weight"]
    by_hand = (theirs[:4, :4] - ours).abs().sum((2, 3)).mean()
    assert found.read("distance.large.small.last", found) == pytest.approx(float(by_hand))
    assert found.read("distance.large.small.body.2.conv.weight", found) is None


def test_similarity_is_that_of_the_blocks_that_are_named(net: Path):
    small, large = drawn(net, 0, depth=2), drawn(net, 1)
    shared = {"body.2.conv.weight": small.state["body.1.conv.weight"]}
    large = Model(large.graph, {**large.state, **shared})
    found = run(**{"small/0": small, "large/1": large})
    assert found.read("similarity.small.large.body.1.2", found) == pytest.approx(1.0, abs=1e-5)
    every = block_similarity(small.graph, small.state, (large.graph, large.state))
    (section,) = (one for one in every if one.section == "body")
    assert section.values[1][2] == found.read("similarity.small.large.body.1.2", found)
    both = [found.read(f"similarity.small.large.body.1.{at}", found) for at in (1, 2)]
    mean = found.read("similarity.small.large.body", found)
    assert None not in both and mean == pytest.approx(sum(map(float, filter(None, both))) / 2)
    assert found.read("similarity.small.large", found) == mean, "of all sections there is one"
    assert found.read("chance.small.large", found) == pytest.approx(chance((4, 4, 9), (4, 4, 9)))
    assert found.read("similarity.small.large.body.1.5", found) is None
    assert found.read("similarity.small.large.stem", found) is None
    assert found.read("similarity.small.large") is None, "there is no second run"


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        ("weights.small.std", r"measure: is not a complete measure; found weights.small.std"),
        ("weights.small.first.stdd", r"measure: is not a statistic; found 'stdd'.*'std'"),
        ("weights.smal.first.std", r"needs one model called smal, not 0; .*small"),
        ("weights.two.first.std", r"needs one model called two, not 2"),
    ],
)
def test_a_name_that_means_nothing_is_refused(net: Path, measure: str, message: str):
    model = drawn(net, 0)
    with pytest.raises(RunError, match=message):
        run(**{"small": model, "two/1": model, "two/2": model}).read(measure)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    folder = tmp_path_factory.mktemp("weights")
    (folder / "table2.yaml").write_text(STUDY)
    return ag.study(folder / "table2.yaml", out=folder / "out")


def test_a_study_reads_its_runs_weights_without_running_again(result: StudyResult):
    """Two models that are compared come from runs of different seeds."""
    folders = list(dict.fromkeys(one.folder for one in result.runs))
    others = dict(zip(folders, reversed(folders), strict=True))
    assert not result.failed and len(folders) == 2
    for one in result.runs:
        weights = FinalWeights(one.folder)
        assert set(weights.models) == {"small/0", "large/1"}
        measures = {"weights": "weights.large{}.std", "distance": "distance.large.small{}"}
        for row, measure in measures.items():
            for column, at in (("first", ".first"), ("bias", ".head.linear.bias")):
                value = result.values(row, column, "value")[one.seed]
                assert value == weights.read(measure.format(at), FinalWeights(others[one.folder]))
    first, other = result.values("weights", "first", "value").values()
    assert first != other


def test_a_value_that_the_cell_has_not_is_named(tmp_path: Path):
    (tmp_path / "table2.yaml").write_text(STUDY.replace("{at}", "{where}"))
    message = r"figures.value: is not a value of the cell; found 'where'"
    with pytest.raises(SpecError, match=message):
        ag.study(tmp_path / "table2.yaml", out=tmp_path, only_read=True)
