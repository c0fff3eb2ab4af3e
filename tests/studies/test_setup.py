"""What runs were, in words: what cells share is said once, what differs beside those cells."""

from __future__ import annotations

from typing import Any

import pytest

from archgraph.language import ExperimentSpec
from archgraph.studies.setup import _averages, _facts, varying
from archgraph.studies.spec import StudyCell, StudyFigure

CELLS: list[tuple[str, ...]] = [
    (row, part, column) for row in "AB" for part in "xy" for column in "pq"
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (lambda row, x, p: "1", "1"),
        (lambda row, x, p: "", ""),
        (lambda row, x, p: row, "A (A) / B (B)"),
        (lambda row, x, p: x, "x (x) / y (y)"),
        (lambda row, x, p: "" if row == "A" else p, "p (p: B) / q (q: B)"),
        (lambda row, x, p: x + p, "xp (x, p) / xq (x, q) / yp (y, p) / yq (y, q)"),
        (lambda row, x, p: "1" if row == "A" or p == "q" else "2", "1 (p: A · q) / 2 (p: B)"),
    ],
)
def test_cells_are_named_by_what_a_text_depends_on(text, expected):
    texts: dict[tuple[str, ...], str] = {cell: text(*cell) for cell in CELLS}
    assert varying(texts) == expected


def test_rows_with_the_same_text_stand_together_and_no_cell_has_nothing():
    rates = dict(zip("ABC", ("0.1", "0.2", "0.1"), strict=True))
    assert varying({(row, ""): rate for row, rate in rates.items()}) == "0.1 (A · C) / 0.2 (B)"
    assert varying({("A", "x"): "1", ("B", "y"): "2"}) == "1 (A) / 2 (B)"  # rows before columns
    assert varying({}) == ""


@pytest.mark.parametrize(
    ("measure", "options", "expected"),
    [
        ("tier.weak.matched", {"last": 0.2}, "accuracy, mean over the `weak` clients, each on its "
         "own mixture of classes, mean of the tests of the last 20 % of the rounds"),
        ("local_matched", {"last": 0.125}, "accuracy, mean over the clients, each on its own "
         "mixture of classes, mean of the tests of the last 12.5 % of the rounds"),
        ("worst_perplexity", {}, "perplexity, worst of the clients' models, last test"),
        ("validation_global_accuracy", {"last": 3}, "accuracy, the server's model, on held-out "
         "training examples, mean of the tests of the last 3 rounds"),
        ("models.s*.accuracy", {"within": 7.6e11}, "accuracy, mean over the models `s*`, each "
         "counted once, at the last test within 760G multiply–accumulates"),
        ("megabytes_down", {}, "over all rounds"),
        ("reach.0.9.global_accuracy", {}, "rounds × passes until `global_accuracy` first is 0.9"),
    ],
)  # fmt: skip
def test_a_figure_says_what_it_averages(measure, options, expected):
    assert _averages(StudyFigure(measure=measure, **options)) == expected


MODEL = {
    "archgraph": 1,
    "inputs": {"x": (4,)},
    "sections": ({"name": "fc", "steps": ({"linear": 3},)},),
}


def experiment(family: dict[str, Any], **more: Any) -> ExperimentSpec:
    facts = {"name": "a", "family": family, "strategy": {"fedavg": {}}, "rounds": 1}
    return ExperimentSpec.model_validate({**facts, "data": {"dataset": "digits"}, **more})


def test_kinds_of_client_say_what_they_train_with_instead_and_nothing_else():
    clients = (
        {"name": "slow", "owners": ("d", "e"), "local": {"lr": 0.3, "batch": 8}},
        {"name": "fast", "owners": ("a", "b", "c"), "local": {"epochs": 2}},
    )
    spec = experiment({"model": MODEL, "clients": clients}, local={"lr": 0.05})
    facts = _facts(StudyCell("A", "", spec, {}), {})
    assert facts["optimiser"] == "SGD (lr 0.05)" and facts["clients"].startswith("2 `slow` (15 ")
    assert "3 `fast`" in facts["clients"]
    texts = [text for text in facts.values() if "`:" in text]
    assert texts == ["`slow`: batch 8, lr 0.3", "`fast`: epochs 2"]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"dataset": "digits"}, "digits, 1,437 training and 360 test examples"),
        ({"dataset": "digits", "limit": 400}, "digits, 400 training and 360 test examples"),
        ({"dataset": "wikitext2"}, "wikitext2, 2,088,628 training and 245,569 test tokens"),
        ({"dataset": "wikitext2", "bptt": 20, "limit": 150}, "wikitext2, 3,000 training and 3,000 "
         "test tokens"),
    ],
)  # fmt: skip
def test_the_setup_counts_what_a_limit_leaves(data, expected):
    spec = experiment({"model": MODEL, "clients": ({"name": "all"},)}, data=data)
    assert _facts(StudyCell("A", "", spec, {}), {})["examples"] == expected
