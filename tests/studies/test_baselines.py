"""Baselines and tests of the studies as their papers have them, not as a default has them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import archgraph as ag
from archgraph.federation import configure
from archgraph.language import load_family
from archgraph.language.data import NamedData
from archgraph.studies import load_study
from archgraph.studies.cell import address
from archgraph.studies.spec import StudyCell, StudySizeName, cells
from archgraph.studies.study import SMALL

SPECS = Path(__file__).resolve().parents[2] / "specs"
NEFL = sorted(path.stem for path in (SPECS / "studies").glob("nefl_*.yaml"))
EXITS = sorted(
    path.stem
    for pattern in ("depthfl_resnet*", "scalefl_resnet*", "small_nefl_exits*", "small_nefl_levels")
    for path in (SPECS / "families").glob(f"{pattern}.yaml")
)
SIZES: tuple[StudySizeName, ...] = ("paper", "small")


def configured(name: str, options: Any) -> Any:
    """A strategy whose options are read by name."""
    return configure(name, options)


def cells_of(name: str, size: StudySizeName = "small") -> list[StudyCell]:
    study = load_study(SPECS / "studies" / f"{name}.yaml")
    return list(cells(study, size)) if size in study.sizes else []


# -- FedIN ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["fedin_table2", "fedin_fig4", "fedin_fig6"])
def test_fedin_averages_over_clients_and_tells_fedgkts_two_models_apart(name, size):
    """Table II has FedGKT-clients and FedGKT-server; §V-A3 evaluates the clients' models."""
    measures = {
        cell.row: {figure.measure for figure in cell.figures.values()} - {"seconds"}
        for cell in cells_of(name, size)
    }
    assert measures == {
        "FedIN": {"clients.*.accuracy"},
        "FedAvg": {"clients.*.accuracy"},
        "HeteroFL": {"clients.*.accuracy"},
        "FedGKT-clients": {"clients.edge.accuracy"},
        "FedGKT-server": {"clients.edge+server.accuracy"},
    }


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["fedin_table2", "fedin_fig4", "fedin_fig5", "fedin_fig6"])
def test_fedgkts_server_makes_ten_passes_and_fedin_stores_the_latest_pairs(name, size):
    """§V-A3: 10; §V-C: half of the default. Fig. 4 to 6 are the runs of Table II."""
    options = {cell.row: cell.experiment.strategy_options for cell in cells_of(name, size)}
    gkt = {row: given["server_epochs"] for row, given in options.items() if "FedGKT" in row}
    assert set(gkt.values()) == {10}
    assert 2 * 10 == configured("fedgkt", {}).server_epochs
    assert options["FedIN"] == {"store": "latest", "sample": 640}


# -- NeFL -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", NEFL)
def test_nefls_baselines_leave_distillation_out(name, size):
    """§V-A2: "we chose to omit this"; FedDyn is not mentioned."""
    for cell in cells_of(name, size):
        spec = cell.experiment
        if spec.strategy_name in ("depthfl", "scalefl"):
            strategy = configured(spec.strategy_name, spec.strategy_options)
            off = {"depthfl": {"alpha": 0, "distil": False}, "scalefl": {"gamma": 0}}
            for option, value in off[spec.strategy_name].items():
                assert getattr(strategy, option) == value, cell.row


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", EXITS)
def test_exits_bring_features_to_the_size_that_the_classifier_takes(name):
    """§V-A2: "downsampling layers to adjust the feature size"."""
    family = ag.resolve(load_family(SPECS / "families" / f"{name}.yaml"))
    taken = {
        node.name: family.graph.param[leaf].shape[1]
        for node in family.graph.nodes
        if node.op == "aten.linear"
        for leaf in node.leaves()
        if leaf.endswith("weight")
    }
    assert len(taken) == len(ag.exits(family.graph)) and len(set(taken.values())) == 1


@pytest.mark.parametrize("size", SIZES)
def test_depthfl_distils_with_full_weight_before_a_run_ends(size):
    """A ramp of 300 rounds ends at 0.108 in the 100 rounds of RecipFL's MNIST."""
    seen = 0
    for cell in cells_of("recipfl_table3", size):
        if cell.experiment.strategy_name == "depthfl":
            strategy = configured("depthfl", cell.experiment.strategy_options)
            assert strategy.distil and strategy.ramp == 0.3
            seen += 1
    assert seen


# -- RecipFL, FedADP ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["table3", "fig5", "fig6"])
def test_recipfl_is_tested_several_times_in_the_last_fifth(name):
    """One test has a deviation of 2.3 points, the mean of four 0.2."""
    for cell in cells_of(f"recipfl_{name}"):
        evaluate, rounds = cell.experiment.evaluate, cell.experiment.rounds
        tests = [number for number in range(1, rounds + 1) if evaluate.due(number, rounds)]
        assert [number / rounds for number in tests] == [0.85, 0.9, 0.95, 1.0], cell.row
        assert {figure.last for figure in cell.figures.values()} == {0.2}


@pytest.mark.parametrize("size", SIZES)
def test_recipfl_has_a_row_of_the_papers_eq_8(size):
    described = {}
    for cell in cells_of("recipfl_table3", size):
        if cell.experiment.strategy_name == "recipfl":
            options = cell.experiment.strategy_options
            described[cell.row] = configured("recipfl", options).described
    assert described == {"RecipFL": "head", "RecipFL (Eq. 8)": "all"}


@pytest.mark.parametrize("size", SIZES)
def test_fedadps_clients_train_on_a_fifth_of_their_data(size):
    assert {cell.experiment.local.fraction for cell in cells_of("fedadp_table1", size)} == {0.2}


def test_rows_without_the_division_by_the_width_rate_say_so():
    """The codes of ScaleFL and FedRolex divide by it, their papers do not say so."""
    seen = 0
    paths = [*(SPECS / "studies").glob("*.yaml"), SPECS / "benchmark/rates.yaml"]
    for study in map(load_study, paths):
        for strategy in (row.get("strategy") for row in study.rows.values()):
            if isinstance(strategy, dict) and strategy.keys() & {"scalefl", "fedrolex"}:
                (name,) = strategy
                assert not configured(name, strategy[name]).scaler
                assert "scaler: true" in study.about, study.study
                seen += 1
    assert seen


# -- what counts ----------------------------------------------------------------------------------


@pytest.mark.full
def test_small_test_sets_have_answers():
    """Digits have 360 test examples; a limit is one of the test examples, too."""
    drawn = re.compile(r"(worst|average|global)_accuracy|(models|clients)\..*accuracy")
    asked = set()
    for path in sorted(
        (*(SPECS / "studies").glob("*.yaml"), *(SPECS / "ablations").glob("*.yaml"))
    ):
        study = load_study(path)
        if not study.compare:
            continue
        for cell in (cell for size in study.sizes for cell in cells(study, size)):
            data = cell.experiment.data
            if not isinstance(data, NamedData):
                continue
            small = data.dataset == "digits" or (data.limit or SMALL) < SMALL
            shown = [figure.measure for figure in cell.figures.values()]
            if small and any(map(drawn.match, shown)):
                assert cell.experiment.evaluate.answers, (path.name, cell.row, cell.column)
                asked.add(path.stem)
    assert asked == {"personal", "scalefl_exits", "unlike"}


def test_equal_cells_of_several_studies_are_the_same_runs():
    """Table 2 and the ablation read the runs of FedFA's Table 1."""

    def runs(path: str) -> set[str]:
        every = cells(load_study(SPECS / path), "small")
        return {address(cell.experiment) for cell in every}

    first = runs("studies/fedfa_table1.yaml")
    assert runs("studies/fedfa_table2.yaml") <= first
    assert len(runs("ablations/fedfa_depth.yaml") & first) == 2
