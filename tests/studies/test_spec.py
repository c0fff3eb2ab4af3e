"""Studies as files: what a cell is made of, and where a mistake stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from archgraph.errors import SpecError
from archgraph.studies import load_study
from archgraph.studies.cell import address
from archgraph.studies.spec import StudySpec, cells

FAMILY = """\
model:
  archgraph: 1
  inputs: {x: [4]}
  sections: [{name: fc, steps: [linear: 3]}]
clients: [{name: all, count: 2}]
"""
STUDY = """\
archgraph: 1
study: Somebody, Table 1
experiment:
  family: "{family}.yaml"
  data: {dataset: mnist, limit: 100, partition: {scheme: iid}}
  local: {lr: 0.1, epochs: 2, momentum: 0.9}
  rounds: 2
rows:
  A: {strategy: {fedavg: {}}}
  B: {strategy: {standalone: {}}, local: {lr: 0.01}}
columns:
  - {few: {values: {family: one}}, many: {values: {family: two}, rounds: 4}}
  - {clean: {}, attacked: {attack: {fraction: 0.5}}}
figures: {worst: worst_accuracy, time: {measure: seconds, digits: 1}}
published:
  A: [90, 1.5, 80, 1.5, 91, 1.5, 81, 1.5]
  B: [80, 1.0, 70, 1.0, 81, 1.0, null, 1.0]
compare: [[A, B], [clean, attacked]]
sizes:
  paper: {}
  small:
    seeds: [3, 4]
    experiment: {data: {limit: null}, local: {momentum: null}, rounds: 1}
    rows: {B: {local: {epochs: 1}}}
    columns: {many: {local: {batch: 8}}}
    leave_out: ["B | few, attacked"]
"""


@pytest.fixture
def made(tmp_path: Path):
    (tmp_path / "one.yaml").write_text(FAMILY)
    (tmp_path / "two.yaml").write_text(FAMILY)

    def write(text: str = STUDY) -> StudySpec:
        (tmp_path / "study.yaml").write_text(text)
        return load_study(tmp_path / "study.yaml")

    return write


def test_a_cell_is_the_experiment_then_row_columns_and_size(made):
    study = made()
    whole: Any = {cell.key: cell.experiment for cell in cells(study, "paper")}
    assert list(whole)[:4] == [("A", f"{a}, {b}") for a in ("few", "many") for b in STUDY_LAST]
    assert whole["A", "many, clean"].rounds == 4 and whole["A", "few, clean"].rounds == 2
    local = whole["B", "few, clean"].local
    assert (local.lr, local.epochs) == (0.01, 2)
    assert whole["A", "few, clean"].attack is None
    assert whole["A", "few, attacked"].attack.fraction == 0.5
    assert whole["A", "few, clean"].data.limit == 100

    small: Any = {cell.key: cell.experiment for cell in cells(study, "small")}
    assert len(whole) == 8 and set(whole) - set(small) == {("B", "few, attacked")}
    assert {spec.rounds for spec in small.values()} == {1}
    local = small["B", "many, clean"].local
    assert (local.lr, local.epochs, local.batch) == (0.01, 1, 8)
    assert small["A", "many, clean"].data.limit is None  # null takes a setting out
    assert small["A", "many, clean"].local.momentum is None  # the default again
    assert small["A", "many, clean"].seed == 3
    assert small["A", "few, clean"].local.batch == 32


def test_what_the_study_leaves_out_no_size_has_and_a_size_leaves_out_more(made):
    study = made("leave_out: [A | many*]\n" + STUDY)
    whole, small = ({cell.key for cell in cells(study, n)} for n in ("paper", "small"))
    assert len(whole) == 6 and not whole & {("A", f"many, {last}") for last in STUDY_LAST}
    assert whole - small == {("B", "few, attacked")}
    with pytest.raises(SpecError, match=r"study\.yaml:1: leave_out\[0\]: does not omit any cell"):
        made("leave_out: [C]\n" + STUDY)


STUDY_LAST = ("clean", "attacked")


def test_published_figures_stand_in_the_order_of_columns_and_figures(made):
    study = made()
    assert study.printed("A", "few, attacked", "worst") == 80
    assert study.printed("B", "many, clean", "time") == 1.0
    assert study.printed("B", "many, attacked", "worst") is None


def test_pairs_are_rows_in_columns_or_columns_in_rows(made):
    study = made()
    rows, columns = (list(study.compared(pair)) for pair in study.compare)
    assert rows == [
        (("A", column), ("B", column))
        for column in ("few, clean", "few, attacked", "many, clean", "many, attacked")
    ]
    assert columns == [
        ((row, f"{first}, clean"), (row, f"{first}, attacked"))
        for row in "AB"
        for first in ("few", "many")
    ]


def test_a_trivial_row_has_its_data_and_no_strategy(made):
    row = "  C: {trivial: nearest_neighbours, data: {limit: 50}}\n"
    study = made(STUDY.replace("columns:\n", row + "columns:\n", 1))
    whole = {cell.key: cell for cell in cells(study, "paper")}
    one, other = whole["C", "few, clean"], whole["A", "few, clean"]
    assert (one.trivial, other.trivial) == ("nearest_neighbours", "")
    assert one.experiment.data.model_dump()["limit"] == 50
    named = address(one.experiment, one.trivial)
    assert named.startswith("nearest_neighbours-") and "-seed0-bits" in named
    with pytest.raises(SpecError, match=r"study.yaml:11: rows\.C\.trivial: is not a trivial model"):
        wrong = row.replace("st_n", "st_m")
        cells(made(STUDY.replace("columns:\n", wrong + "columns:\n", 1)), "paper")


def test_keys_that_are_gone_name_their_successor(made):
    for key, words in {"claims: []": "compare: ", "gate: [worst]": "trivial: "}.items():
        with pytest.raises(
            SpecError, match=rf"study\.yaml:1: {key[:4]}.* it was removed: .*{words}"
        ):
            made(f"{key}\n{STUDY}")


WRONG = {
    "misspelt_key_of_an_experiment": ("  rounds: 2", "  roundz: 2", "study.yaml:7: roundz"),
    "value_in_a_row": ("local: {lr: 0.01}", "local: {lr: fast}", "study.yaml:10: local.lr"),
    "unknown_value": ('"{family}.yaml"', '"{famly}.yaml"', "study.yaml:4: family"),
    "missing_family": ("family: two", "family: three", "study.yaml:4: family"),
    "row_of_published": ("  B: [80", "  C: [80", "study.yaml:17: published.C: is not a row"),
    "too_few_published": (
        "81, 1.5]",
        "81]",
        "published.A: has 7 numbers instead of 8, one for each column and figure",
    ),
    "compares_no_row": ("[A, B]", "[A, Bee]", "compare[0][1]: is not a row or column"),
    "compares_a_row_with_a_column": ("[A, B]", "[A, clean]", "compare[0][1]: is not a row or"),
    "compares_parts_of_two_mappings": ("[clean, att", "[few, att", "compare[1][1]: is not a row"),
    "compares_it_with_itself": ("[A, B]", "[A, A]", "compare[0]: compares a row or column with"),
    "compares_three": ("[A, B]", "[A, B, A]", "study.yaml:18: compare[0]: has a wrong value"),
    "leaves_out_nothing": ("B | few, attacked", "B | none", "leave_out[0]: does not omit any cell"),
    "column_of_a_size": ("columns: {many:", "columns: {lots:", "sizes.small.columns.lots"),
    "unknown_strategy": ("{fedavg: {}}", "{fedavgg: {}}", "unknown strategy"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_mistake_is_named_with_its_line(made, wrong: str):
    old, new, message = WRONG[wrong]
    assert old in STUDY
    with pytest.raises(SpecError) as error:
        for cell in cells(made(STUDY.replace(old, new)), "paper"):
            address(cell.experiment)
    assert message in str(error.value)


def test_a_size_that_is_not_there_is_named(made):
    text = STUDY[: STUDY.index("  small:")]
    with pytest.raises(SpecError, match=r"study.yaml:\d+: sizes: has no such size"):
        cells(made(text), "small")


def test_cells_that_show_the_same_run_have_one_experiment_and_measures_of_their_own(made):
    """A value that only a measure names changes no experiment."""
    text = STUDY.replace("  - {clean: {}, attacked: {attack: {fraction: 0.5}}}\n", SHOWN)
    text = text.replace("worst: worst_accuracy", 'worst: "{which}_accuracy"')
    text = text[: text.index("published:")] + "sizes: {paper: {}}\n"
    whole = {cell.key: cell for cell in cells(made(text), "paper")}
    worst, average = whole["A", "few, clean"], whole["A", "few, attacked"]
    assert worst.experiment is average.experiment
    assert worst.experiment is not whole["A", "many, clean"].experiment
    assert worst.figures["worst"].measure == "worst_accuracy"
    assert average.figures["worst"].measure == "average_accuracy"
    assert average.figures["time"].measure == "seconds"


SHOWN = "  - {clean: {values: {which: worst}}, attacked: {values: {which: average}}}\n"


@pytest.mark.parametrize(
    "change",
    [
        "local: {clip: 1.0}",
        "sample: 0.5",
        "server: adam",
        "validation: 0.2",
        "weights: {file: first/a.pt}",
        "weights: {file: second/a.pt}",
        "weights: {file: second/a.pt, fresh: [fc.*]}",
    ],
)
def test_what_decides_figures_decides_where_a_run_lies(made, tmp_path, change):
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.pt").write_text(folder)
    before, end = "strategy: {standalone: {}}, local: {lr: 0.01}", STUDY.index("published:")

    def addresses(of_b: str) -> tuple[set[str], ...]:
        text = STUDY[:end].replace(before, f"strategy: {{fedavg: {{}}}}, {of_b}")
        every = cells(made(text + "sizes: {paper: {}}\n"), "paper")
        return tuple({address(c.experiment) for c in every if c.row == row} for row in "AB")

    first, (ours, theirs) = addresses("weights: {file: first/a.pt}"), addresses(change)
    assert len(ours) == len(theirs) == 4 and not ours & theirs
    assert not first[1] & theirs or "first" in change
    assert len(set.intersection(*addresses("rounds: 2"))) == 4  # as in row A


def test_data_of_ones_own_decide_where_a_run_lies_by_their_content(made, tmp_path):
    """Rows that changed are other rows: figures of the earlier ones are not shown for them."""

    def addresses(of: str) -> set[str]:
        text = STUDY[: STUDY.index("rows:")] + "rows: {A: {strategy: {fedavg: {}}}}\n"
        text = text.replace("{family}", "one").replace("dataset: mnist, limit: 100", of)
        text += "columns: {all: {}}\nfigures: {worst: worst_accuracy}\nsizes: {paper: {}}\n"
        return {address(cell.experiment) for cell in cells(made(text), "paper")}

    (tmp_path / "images" / "a").mkdir(parents=True)
    file, image = tmp_path / "rows.csv", tmp_path / "images" / "a" / "0.png"
    for place, of in ((file, "table: rows.csv, target: y"), (image, "folder: images")):
        place.write_text("x,y\n1,0\n")
        before = addresses(of)
        place.write_text("x,y\n1,1\n")
        assert before and not before & addresses(of)
        place.write_text("x,y\n1,0\n")
        assert addresses(of) == before


def test_a_tokenizer_decides_where_a_run_lies_by_its_content(made, tmp_path):
    for folder, text in (("first", "{}"), ("second", "[]"), ("third", "{}")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tokenizer.json").write_text(text)
    end, clean = STUDY.index("published:"), "clean: {}"
    assert clean in STUDY

    def addresses(of: str) -> list[str]:
        text = STUDY[:end].replace(clean, f"clean: {{data: {{dataset: sick, {of} length: 8}}}}")
        every = cells(made(text + "sizes: {paper: {}}\n"), "paper")
        return [address(c.experiment) for c in every if "clean" in c.column]

    first, second, third, none = (
        addresses(of)
        for of in (
            "tokenizer: first,",
            "tokenizer: second,",
            "tokenizer: third/tokenizer.json,",
            "",
        )
    )
    assert first and first == third
    assert len({*first, *second, *none}) == 3 * len(set(first))
