"""The benchmark compares methods at equal computation, with rates that all choose alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import archgraph as ag
from archgraph.language import load_family
from archgraph.studies import load_study
from archgraph.studies.spec import cells

SPECS = Path(__file__).resolve().parents[2] / "specs"
RECORDS = SPECS.parent / "docs/measured/benchmark"
# They train other numbers of multiply–accumulates on purpose: a ceiling, and the smallest network.
OTHERS = {"FedAvg, all large", "AllSmall, width", "AllSmall, depth"}
FAMILIES = ("width", "both", "exits", "levels")
LARGEST = 4e6  # multiply–accumulates


def macs(name: str) -> dict[str, int]:
    family = ag.resolve(load_family(SPECS / f"families/benchmark_{name}.yaml"))
    assert [kind.count for kind in family.clients] == [10, 5, 5]
    return {kind.name: ag.cost(kind.graph).macs for kind in family.clients}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_kind_of_client_computes_as_much_as_by_depth_to_2_percent(name: str):
    depth, other = macs("depth"), macs(name)
    assert depth["small"] < 0.35 * depth["large"] and depth["large"] <= LARGEST
    assert other == pytest.approx(depth, rel=0.02)


def test_rates_are_chosen_alike_and_not_by_test_data():
    study = load_study(SPECS / "benchmark/rates.yaml")
    runs = cells(study, "small")
    by_row: dict[str, set[float | None]] = {}
    for cell in runs:
        assert cell.experiment.validation is not None
        assert {figure.measure for figure in cell.figures.values()} == {
            "validation_clients.*.accuracy"
        }
        by_row.setdefault(cell.row, set()).add(cell.experiment.local.lr)
    assert set(map(frozenset, by_row.values())) == {frozenset((0.0125, 0.025, 0.05, 0.1))}
    assert not set(study.sizes["small"].seeds) & set(range(10))


def test_recorded_runs_of_all_methods_computed_as_much_to_2_percent():
    """Clients that draw or search their networks would exceed the budgets unnoticed."""
    spent: dict[str, set[float]] = {}
    for line in (RECORDS / "rates.jsonl").read_text().splitlines():
        record = json.loads(line)
        macs = sum(line["macs"]["round"] for line in record["rounds"])
        spent.setdefault(record["row"], set()).add(macs)
    methods = {row: max(of) for row, of in spent.items() if row not in OTHERS}
    assert len(methods) > 1
    assert methods == pytest.approx(dict.fromkeys(methods, methods["HeteroFL"]), rel=0.02)
