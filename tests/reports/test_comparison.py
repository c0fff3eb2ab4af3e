"""Runs side by side: seeds of one experiment together, everything else apart and named."""

from __future__ import annotations

import csv
import fnmatch
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from archgraph.cli import app
from archgraph.errors import RunError
from archgraph.reports.comparison import Figure, comparison
from archgraph.reports.paper import paper_figures
from archgraph.reports.plots import picture
from archgraph.reports.runs import rows_where

NAMES = ("small", "large", "global")


def made(
    place: Path,
    values: dict[str, float],
    *,
    seed: int = 0,
    name: str = "tiny",
    strategy: str = "fedfa",
    rounds: int = 4,
    done: int = 4,
    every: int = 2,
    text: bool = False,
    matched: bool = False,
    held: bool = False,
    settings: dict[str, Any] | None = None,
) -> Path:
    """A run folder whose last test found these accuracies (or perplexities)."""
    place.mkdir(parents=True)
    evaluate = f"evaluate:\n  every: {every}\n  batch: 8\n"
    (place / "run.yaml").write_text(f"name: {name}\nrounds: {rounds}\n{evaluate}seed: {seed}\n")
    facts = {
        "strategy": {strategy: {"alpha" if strategy == "fedfa" else "mode": 1}},
        "rounds": rounds,
        "local": {"lr": 0.1},
        "seed": seed,
        "family": {"small": {"count": 3, "graph": "aa"}, "large": {"count": 1, "graph": "bb"}},
        **(settings or {}),
    }
    (place / "facts.json").write_text(json.dumps(facts))
    lines = []
    for number in range(1, done + 1):
        line: dict[str, Any] = {
            "round": number,
            "seconds": {"local": 1.0, "server": 0.5, "total": 2.0},
        }
        if number % every == 0:
            extra = {"perplexity": 100.0} if text else {}
            models = {
                key: {
                    "accuracy": value * number / rounds,
                    **({"perplexity": value} if text else extra),
                    "local": {"accuracy": value / 2}
                    | ({"matched": value * number / rounds} if matched else {}),
                }
                for key, value in values.items()
            }
            better = {"better": {"perplexity": False}} if text else {}
            line["evaluation"] = {**better, "models": models, "local": {"accuracy": 0.25}}
            if held:
                half = {k: {"accuracy": v * number / rounds / 2} for k, v in values.items()}
                line["validation"] = {"models": half}
        lines.append(json.dumps(line) + "\n")
    (place / "metrics.jsonl").write_text("".join(lines))
    return place


def accuracies(*values: float) -> dict[str, float]:
    return dict(zip(NAMES, values, strict=False))


def test_seeds_of_one_experiment_are_one_row(tmp_path: Path):
    for seed, low in ((2, 0.3), (0, 0.5), (1, 0.4)):
        made(tmp_path / f"run-{seed}", accuracies(low, 0.8, 0.9), seed=seed)
    (group,) = comparison([tmp_path]).groups
    assert (group.label, group.strategy, group.seeds, group.at) == ("tiny", "fedfa", (0, 1, 2), 4)
    assert group.figures["worst_accuracy"].values == (0.5, 0.4, 0.3)
    assert group.figures["average_accuracy"].values == pytest.approx((0.65, 0.6, 0.55), abs=1e-12)
    assert group.figures["global_accuracy"].mean == pytest.approx(0.9, abs=1e-12)
    assert group.figures["best_local_accuracy"].mean == pytest.approx(0.4, abs=1e-12)
    assert group.figures["seconds"].values == (8.0, 8.0, 8.0)
    assert group.figures["server_seconds"].mean == 2.0
    (table,) = comparison([tmp_path]).tables()
    cells = dict(zip(table.columns, table.rows[0], strict=True))
    assert cells["worst accuracy %"] == "40.00 ± 10.00"
    assert cells["local accuracy %"] == "25.00 ± 0.00"
    assert "worst perplexity" not in cells


def with_clients(folder: Path, **counts: int) -> Path:
    """Say in each test how many clients run a model, as the engine does."""
    lines = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        for name, row in line.get("evaluation", {}).get("models", {}).items():
            if name in counts:
                row["clients"] = counts[name]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_measure_counts_models_by_their_clients(tmp_path: Path):
    folder = with_clients(made(tmp_path / "run", accuracies(0.4, 0.8, 0.9)), small=3, large=1)
    (group,) = comparison([folder]).groups
    assert group.figures["clients.*.accuracy"].values == pytest.approx((0.5,))
    assert group.figures["models.*.accuracy"] == group.figures["average_accuracy"]
    assert group.figures["models.*.accuracy"].values == pytest.approx((0.6,))
    # Rounds 2 and 4: the mean of a half and of the whole.
    (half,) = comparison([folder], last=0.99).groups
    assert half.figures["clients.*.accuracy"].values == pytest.approx((0.375,))
    held = with_clients(
        made(tmp_path / "held", accuracies(0.4, 0.8, 0.9), held=True), small=3, large=1
    )
    (group,) = comparison([held]).groups
    assert group.figures["validation_clients.*.accuracy"].values == pytest.approx((0.25,))
    assert group.figures["validation_models.*.accuracy"].values == pytest.approx((0.3,))
    # None of them is a column, and the global model is no client's.
    assert not [key for key in group.figures if key.startswith(("clients", "models"))]
    assert group.figures.get("models.global.accuracy") is None


def test_a_measure_names_the_models_that_it_averages(tmp_path: Path):
    """FedGKT's models alone, and with the server's part behind them."""
    values = {"edge": 0.5, "other": 0.3, "edge+server": 0.9, "other+server": 0.7}
    counts = {"edge": 1, "edge+server": 1, "other": 3, "other+server": 3}
    folder = with_clients(made(tmp_path / "run", values), **counts)
    figures = comparison([folder]).groups[0].figures
    assert figures["models.edge.accuracy"].values == (0.5,)
    assert figures["models.edge+server.accuracy"].values == (0.9,)
    assert figures["clients.*+server.accuracy"].values == pytest.approx((0.75,))
    assert figures["average_accuracy"].values == pytest.approx((0.6,))
    for missing in ("clients.nothing.accuracy", "clients.*.mse", "clients.accuracy", "weights.a.b"):
        assert figures.get(missing) is None


def test_models_that_no_client_runs_do_not_count_by_clients(tmp_path: Path):
    folder = with_clients(made(tmp_path / "run", accuracies(0.4, 0.8, 0.9)), small=2)
    assert comparison([folder]).groups[0].figures["clients.*.accuracy"].values == (0.4,)


def test_lines_without_numbers_of_clients_have_no_mean_over_them(tmp_path: Path):
    folder = made(tmp_path / "run", accuracies(0.4, 0.8, 0.9))
    figures = comparison([folder]).groups[0].figures
    assert figures.get("clients.*.accuracy") is None
    assert figures["models.*.accuracy"].values == pytest.approx((0.6,))


def test_figures_on_validation_examples_stand_beside_those_on_test_data(tmp_path: Path):
    made(tmp_path / "run", accuracies(0.4, 0.8, 0.9), held=True)
    figures = comparison([tmp_path / "run"]).groups[0].figures
    # The last test is after round 4 of 4: all of each value, half of it on validation examples.
    assert figures["global_accuracy"].values == (0.9,)
    assert figures["validation_global_accuracy"].values == (0.45,)
    assert figures["validation_worst_accuracy"].values == (0.2,)
    (half,) = comparison([tmp_path / "run"], last=0.99).groups
    # After rounds 2 and 4: the mean of a half and of the whole value.
    assert half.figures["validation_global_accuracy"].mean == pytest.approx(0.3375, abs=1e-12)


def test_two_tests_that_found_the_same_are_told_apart(tmp_path: Path):
    """Equal figures of an earlier round neither count nor hide those that do."""
    folder = made(tmp_path / "run", accuracies(0.4, 0.8, 0.9), held=True)
    lines = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    lines[1]["evaluation"] = lines[3]["evaluation"]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    figures = comparison([folder]).groups[0].figures
    assert figures["validation_global_accuracy"].values == (0.45,)


def test_without_validation_examples_there_is_no_such_column(tmp_path: Path):
    made(tmp_path / "with", accuracies(0.4, 0.8, 0.9), held=True)
    made(tmp_path / "without", accuracies(0.4, 0.8, 0.9), settings={"local": {"lr": 0.2}})
    with_, without = comparison([tmp_path / "with", tmp_path / "without"]).groups
    assert "validation_global_accuracy" in with_.figures
    assert not [key for key in without.figures if key.startswith("validation")]
    assert (
        "validation global accuracy %" not in comparison([tmp_path / "without"]).tables()[0].columns
    )


def test_of_perplexities_the_largest_is_the_worst(tmp_path: Path):
    made(tmp_path / "run", accuracies(200.0, 100.0, 90.0), text=True)
    (group,) = comparison([tmp_path]).groups
    assert group.figures["worst_perplexity"].values == (200.0,)
    assert group.figures["average_perplexity"].values == (150.0,)
    assert group.figures["global_perplexity"].values == (90.0,)
    assert group.figures["worst_perplexity"].std is None


def test_a_lone_global_model_is_its_own_submodel(tmp_path: Path):
    made(tmp_path / "run", {"global": 0.7})
    (group,) = comparison([tmp_path / "run"]).groups
    assert group.figures["worst_accuracy"].values == (0.7,)


def test_what_differs_is_named_and_sets_labels_apart(tmp_path: Path):
    values = accuracies(0.5, 0.6, 0.7)
    made(tmp_path / "a", values)
    made(tmp_path / "b", values, settings={"local": {"lr": 0.2}})
    made(tmp_path / "c", values, name="other", strategy="nefl")
    made(tmp_path / "d", values, name="grown", settings={"family": {"small": {"count": 4, "g": 1}}})
    found = comparison([tmp_path])
    assert [g.label for g in found.groups] == ["tiny (lr=0.1)", "tiny (lr=0.2)", "other", "grown"]
    assert found.differences["local.lr"] == ("0.1", "0.2", "0.1", "0.1")
    assert found.differences["strategy"] == ("fedfa", "fedfa", "nefl", "fedfa")
    assert found.differences["family"][0].startswith("3 small, 1 large [")
    # The options of a strategy say nothing beside another strategy.
    assert set(found.differences) == {"strategy", "local.lr", "family"}
    assert [table.title for table in found.tables()] == ["Runs", "Differences"]


def test_options_of_one_strategy_are_compared(tmp_path: Path):
    values = accuracies(0.5, 0.6)
    for option in (1, 2):
        made(tmp_path / f"{option}", values, settings={"strategy": {"fedfa": {"alpha": option}}})
    made(tmp_path / "c", values, name="other", strategy="nefl")
    assert comparison([tmp_path]).differences["fedfa.alpha"] == ("1", "2", "–")


def test_what_follows_from_another_setting_is_not_a_difference(tmp_path: Path):
    """A scheme has options of its own: those at their defaults are not listed."""
    schemes: dict[str, dict[str, Any]] = {
        "iid": {"scheme": "iid"},
        "dirichlet": {"scheme": "dirichlet", "alpha": 1.0, "min_size": 10, "balanced": False},
    }
    for name, scheme in schemes.items():
        data = {"dataset": "digits", "partition": scheme}
        folder = made(tmp_path / name, accuracies(0.5, 0.6), settings={"data": data})
        spec = {
            "archgraph": 1,
            "name": "tiny",
            "family": "f.yaml",
            "strategy": {"fedfa": {}},
            "rounds": 4,
            "local": {"lr": 0.1},
            "data": data,
        }
        (folder / "run.yaml").write_text(json.dumps(spec))
    assert comparison([tmp_path]).differences == {
        "data.partition.scheme": ("dirichlet", "iid"),
        "data.partition.alpha": ("1.0", "–"),
    }


def test_long_values_are_cut_between_words_and_still_told_apart(tmp_path: Path):
    for end in (40, 41):
        steps = {"local": {"schedule": {"MultiStepLR": {"milestones": [*range(20), end]}}}}
        made(tmp_path / str(end), accuracies(0.5, 0.6), settings=steps)
    one, other = comparison([tmp_path]).differences["local.schedule.MultiStepLR.milestones"]
    assert one != other
    assert one.split(" … ")[0] == other.split(" … ")[0]
    assert one.split(" … ")[0].endswith(" 12, 13,")


def test_how_a_run_was_tested_is_part_of_what_it_is(tmp_path: Path):
    values = accuracies(0.5, 0.6)
    made(tmp_path / "a", values)
    made(tmp_path / "b", values, seed=1, every=1)
    found = comparison([tmp_path])
    assert len(found.groups) == 2
    assert found.differences == {"evaluate.every": ("2", "1")}


def test_runs_that_cannot_stand_beside_others_are_refused(tmp_path: Path):
    values = accuracies(0.5, 0.6)
    whole = made(tmp_path / "whole", values)
    made(tmp_path / "more/part", values, seed=1, done=3)
    with pytest.raises(RunError, match="part: is not finished, 3 of 4 rounds: resume it"):
        comparison([tmp_path])
    (group,) = comparison([tmp_path], unfinished=True).groups
    assert (group.at, group.planned, group.seeds) == (2, 4, (0, 1))
    # Both as they were after round 2, time and all.
    assert group.figures["worst_accuracy"].values == (0.25, 0.25)
    assert group.figures["seconds"].values == (4.0, 4.0)
    assert "2 of 4" in group_cells(tmp_path)
    made(tmp_path / "again", values)
    with pytest.raises(RunError, match="seed 0 of the same experiment as"):
        comparison([whole, tmp_path / "again"])
    made(tmp_path / "untested", values, seed=5, done=1)
    with pytest.raises(RunError, match="no round after which all of them were tested"):
        comparison([tmp_path / "untested"], unfinished=True)
    (whole / "facts.json").unlink()
    with pytest.raises(RunError, match="cannot identify the run"):
        comparison([whole])
    with pytest.raises(RunError, match="not a run folder"):
        comparison([tmp_path / "nowhere"])
    with pytest.raises(RunError, match="no runs to compare"):
        comparison([])


def group_cells(place: Path) -> tuple[str, ...]:
    return comparison([place], unfinished=True).tables()[0].rows[0]


def test_lost_updates_are_told(tmp_path: Path):
    for seed in (0, 1):
        made(tmp_path / f"{seed}", {"small": 0.5}, seed=seed)
    path = tmp_path / "1" / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert "lost" not in comparison([tmp_path]).groups[0].figures
    lines[0] |= {"rejected": [{"client": 3}], "failed": [{"client": 1}, {"client": 2}]}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (group,) = comparison([tmp_path]).groups
    assert group.figures["lost"].values == (0.0, 3.0)


def test_a_folder_named_twice_counts_once(tmp_path: Path):
    run = made(tmp_path / "run", accuracies(0.5, 0.6))
    (group,) = comparison([run, tmp_path, run]).groups
    assert group.seeds == (0,)


def test_tiers_are_told_apart_by_their_clients_own_mixtures(tmp_path: Path):
    for seed, low in ((0, 0.5), (1, 0.7)):
        made(tmp_path / f"{seed}", accuracies(low, 0.8, 0.9), seed=seed, matched=True)
    (group,) = comparison([tmp_path]).groups
    assert not any(key.startswith("tier") for key in group.figures)
    found = comparison([tmp_path], tiers=True)
    (group,) = found.groups
    figures = {key: f.values for key, f in group.figures.items() if key.startswith("tier")}
    # The global model is no tier.
    assert figures == {"tier.small.matched": (0.5, 0.7), "tier.large.matched": (0.8, 0.8)}
    table = found.tables()[0]
    cells = dict(zip(table.columns, table.rows[0], strict=True))
    assert (cells["small accuracy %"], cells["large accuracy %"]) == (
        "60.00 ± 14.14",
        "80.00 ± 0.00",
    )
    assert table.columns.index("small accuracy %") < table.columns.index("seconds")
    assert table.note.endswith("each on test data of its own mixture of classes")


def test_tiers_without_mixtures_are_compared_on_their_clients_classes(tmp_path: Path):
    """One run of before among others: nothing stands in one column that is not the same."""
    made(tmp_path / "a", accuracies(0.6, 0.8), matched=True)
    made(tmp_path / "b", accuracies(0.4, 0.2), name="before", strategy="nefl")
    made(tmp_path / "c", {"small": 0.2, "other": 0.4}, name="others", strategy="heterofl")
    found = comparison([tmp_path], tiers=True)
    columns = [f"tier.{name}.accuracy" for name in ("small", "large", "other")]  # says which
    figures = [
        [g.figures[c].mean if c in g.figures else None for c in columns] for g in found.groups
    ]
    assert figures == [[0.3, 0.4, None], [0.2, 0.1, None], [0.1, None, 0.2]]
    assert found.tables()[0].note.endswith("each on test data of its own classes")
    # A tier without clients is tested on no client's data.
    path = tmp_path / "c" / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        for model in line.get("evaluation", {"models": {}})["models"].values():
            del model["local"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    alone = comparison([tmp_path / "c"], tiers=True)
    assert not any(key.startswith("tier") for key in alone.groups[0].figures)
    assert "tiers" not in alone.tables()[0].note


@pytest.mark.parametrize(
    ("last", "tests"),
    [(None, [10]), (0.2, [9, 10]), (0.29, [8, 9, 10]), (1, [10]), (3, [8, 9, 10]), (0.01, [10])],
)
def test_figures_are_means_over_the_tests_of_the_last_rounds(tmp_path: Path, last, tests):
    values = {"small": 0.5, "large": 1.0}
    made(tmp_path / "r", values, rounds=10, done=10, every=1, matched=True)
    found = comparison([tmp_path], tiers=True, last=last)
    (group,) = found.groups
    share = statistics.fmean(tests) / 10
    assert list(group.tests) == tests == found.plain()["groups"][0]["tests"]
    for key, whole in {
        "worst_accuracy": 0.5,
        "average_accuracy": 0.75,
        "tier.large.matched": 1.0,
    }.items():
        assert group.figures[key].mean == pytest.approx(whole * share, abs=1e-12)
    # Time is that of the whole run.
    assert group.figures["seconds"].values == (20.0,)


def test_the_last_rounds_of_an_unfinished_run_are_as_many_as_of_a_finished_one(tmp_path: Path):
    """And they end where all seeds are."""
    values = {"small": 0.5}
    made(tmp_path / "0", values, rounds=20, done=15, every=2)
    made(tmp_path / "1", values, seed=1, rounds=20, done=13, every=2)
    (group,) = comparison([tmp_path], unfinished=True, last=0.2).groups
    assert (group.at, group.tests) == (12, (10, 12))
    assert group.figures["worst_accuracy"].values == (0.5 * 11 / 20,) * 2


@pytest.mark.parametrize("last", [0, -1, float("nan")])
def test_no_part_of_the_rounds_is_refused(tmp_path: Path, last: float):
    made(tmp_path / "r", {"small": 0.5})
    with pytest.raises(
        RunError, match=r"last: does not select any rounds; found .*; expected a fraction"
    ):
        comparison([tmp_path], last=last)


def test_rows_and_columns_are_chosen_by_name_in_every_form(tmp_path: Path):
    for number, low in enumerate((0.4, 0.6)):
        made(tmp_path / f"{number}", accuracies(low, 0.8), settings={"local": {"lr": number}})
    every = comparison([tmp_path])
    first, second = (group.label for group in every.groups)
    chosen = every.choose([second], ["seeds", "sec*", "worst accuracy %"])
    (table,) = chosen.tables()
    seconds = [key for key in every._columns() if fnmatch.fnmatchcase(key, "sec*")]
    titles = [every._columns()[key][0] for key in ("seeds", *seconds, "worst_accuracy")]
    assert table.columns == ("experiment", *titles) and len(table.rows) == 1
    assert table.rows[0][0] == second and first not in chosen.latex() + chosen.csv()
    assert "average" not in chosen.latex() + chosen.csv()
    assert every.choose([], []) == every
    for rows, columns in ((["nobody"], []), ([], ["worst"])):
        with pytest.raises(RunError, match="there is none; found"):
            every.choose(rows, columns)


def test_every_form_tells_the_same_the_tiers_and_how_many_tests(tmp_path: Path):
    for seed, low in ((0, 0.4), (1, 0.6)):
        made(tmp_path / f"{seed}", accuracies(low, 0.8), seed=seed, every=1, matched=True)
    found = comparison([tmp_path], tiers=True, last=0.5)
    plain = json.loads(json.dumps(found.plain()))["groups"][0]
    (row,) = csv.DictReader(found.csv().splitlines())
    assert plain["tests"] == [3, 4]
    assert row["tests"] == "2"
    mean = plain["figures"]["tier.small.matched"]["mean"]
    assert float(row["tier.small.matched"]) == mean == pytest.approx(0.5 * 7 / 8, abs=1e-12)
    deviation = statistics.stdev((0.4 * 7 / 8, 0.6 * 7 / 8))
    assert float(row["tier.small.matched_std"]) == pytest.approx(deviation, abs=1e-12)
    table = found.tables()[0]
    assert dict(zip(table.columns, table.rows[0], strict=True))["tests"] == "2"
    assert "averaged over the tests of the last 50 % of the rounds" in found.markdown()
    assert "global_accuracy" not in row
    shown = f"{100 * mean:.2f} ± {100 * deviation:.2f}"
    assert f"| {shown} |" in found.markdown() and shown.replace("±", r"$\pm$") in found.latex()


def test_the_command_takes_tiers_and_the_last_rounds(tmp_path: Path):
    for seed in (0, 1):
        made(tmp_path / f"{seed}", accuracies(0.4, 0.8), seed=seed, every=1, matched=True)

    def call(*words: str) -> Result:
        return CliRunner().invoke(app, ["compare", str(tmp_path), *words])

    found = json.loads(call("--tiers", "--last", "0.5", "--json").output)
    assert found == json.loads(json.dumps(comparison([tmp_path], tiers=True, last=0.5).plain()))
    assert call("--csv").output == comparison([tmp_path]).csv()
    assert call("--tiers", "--markdown").output == comparison([tmp_path], tiers=True).markdown()
    refused = call("--last", "0")
    assert refused.exit_code != 0
    assert "last: does not select any rounds" in refused.stderr
    assert "are mutually exclusive" in call("--json", "--csv").stderr


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_a_figure_is_the_mean_and_the_deviation_of_its_sample(values: list[float]):
    figure = Figure(tuple(values))
    mean = sum(values) / len(values)
    assert figure.mean == pytest.approx(mean, abs=1e-12)
    square = sum((v - mean) ** 2 for v in values) / (len(values) - 1)
    assert figure.std == pytest.approx(square**0.5, abs=1e-9)


def test_several_runs_are_their_frames_one_below_the_other(tmp_path: Path):
    for seed in (0, 1):
        made(tmp_path / f"a{seed}", accuracies(0.4, 0.8, 0.9), seed=seed, held=True)
    made(tmp_path / "b", {"global": 0.3}, name="other", strategy="nefl")
    found = comparison([tmp_path])
    for group in found.groups:
        for seed, log in zip(group.seeds, group.runs, strict=True):
            rows = rows_where(found.frame, experiment=group.label, seed=seed)
            own = rows[list(log.figures)].reset_index(drop=True)
            assert own.equals(log.figures)
            assert set(rows.loc[rows["submodel"], "group"]) == set(log.submodels)
    assert len(found.frame) == sum(len(log.figures) for g in found.groups for log in g.runs)


def test_curves_are_means_with_bands_over_seeds(tmp_path: Path):
    for seed, low in ((0, 0.4), (1, 0.6)):
        made(tmp_path / f"a{seed}", accuracies(low, 0.8), seed=seed)
    made(tmp_path / "b", accuracies(0.3, 0.3), name="other", strategy="nefl")
    drawn = paper_figures(comparison([tmp_path]))
    assert list(drawn) == ["average", "worst", "time"]  # bytes and MACs these runs do not say
    (average,), (worst,), (time,) = (figure.axes for figure in drawn.values())
    assert [line.get_label() for line in average.get_lines()] == ["tiny", "other"]
    lines = [np.asarray(line.get_ydata()).tolist() for line in worst.get_lines()]
    assert lines == [pytest.approx([0.25, 0.5], abs=1e-12), pytest.approx([0.15, 0.3], abs=1e-12)]
    # A single run has no band; the band of two is one deviation up and down.
    (band,) = worst.collections
    heights = np.asarray(band.get_paths()[0].vertices)[:, 1]
    deviation = statistics.stdev((0.4, 0.6))
    assert heights.max() == pytest.approx(0.5 + deviation, abs=1e-9)
    assert [text.get_text() for text in time.get_yticklabels()] == ["tiny", "other"]


@pytest.mark.full
def test_a_figure_of_a_paper_is_as_wide_as_asked_and_its_letters_can_be_read(tmp_path: Path):
    from matplotlib.text import Text

    for number in range(5):
        name = f"method number {number} " + "with a long name" * (number == 4)
        for seed in range(1 + number % 2):
            made(
                tmp_path / f"{number}-{seed}",
                accuracies(0.1, 0.8),
                name=name,
                seed=seed,
                settings={"rounds": 4, "lr": number},
            )
    compared = comparison([tmp_path])
    drawn = [*paper_figures(compared).items(), *paper_figures(compared, width="178mm").items()]
    for name, figure in drawn:
        figure.draw_without_rendering()
        words = [of for of in figure.findobj(Text) if of.get_text() and of.get_visible()]
        assert min(float(of.get_fontsize()) for of in words) >= 6
        ink = figure.get_tightbbox()  # in inches
        assert min(ink.x0, ink.y0) >= 0
        assert ink.x1 <= figure.get_figwidth() and ink.y1 <= figure.get_figheight()
        (legend,), (panel,) = figure.legends, figure.axes
        assert legend.get_window_extent().y1 <= panel.get_window_extent().y0
        assert panel.get_window_extent().height >= (0.3 if name == "time" else 1) * figure.dpi
        said = "" if name == "time" else "mean ± standard deviation, 1 to 2 seeds"
        assert legend.get_title().get_text() == said
    widths = [figure.get_figwidth() for _, figure in drawn]
    assert widths == pytest.approx([3.3] * 3 + [178 / 25.4] * 3)
    assert b"/Type3" not in picture(drawn[0][1], "pdf")  # text of a PDF stays text


@pytest.mark.full
def test_each_panel_of_a_paper_is_a_file(tmp_path: Path):
    made(tmp_path / "run", accuracies(0.3, 0.3))

    def call(*words: str) -> Result:
        return CliRunner().invoke(app, ["compare", str(tmp_path / "run"), *words])

    assert call("-o", str(tmp_path / "figures")).exit_code == 0
    names = [path.name for path in sorted((tmp_path / "figures").iterdir())]
    assert names == ["average.pdf", "time.pdf", "worst.pdf"]
    refused = call("-o", str(tmp_path / "fig.svg"))
    assert refused.exit_code == 2 and "is not a folder" in refused.output
