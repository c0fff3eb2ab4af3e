"""A sample of the zoo, small enough for every run of the tests; `make zoo` examines all of it."""

from __future__ import annotations

import warnings

import pytest

from tests import sheets
from tests.zoo.collection import FAMILIES, OTHERS, entries, entry
from tests.zoo.exam import Report, examine
from tests.zoo.report import Failure
from tests.zoo.table import figures
from tests.zoo.tables import rows, write

pytestmark = pytest.mark.slow

CLASSIFIERS = (
    "googlenet", "mobilenet_v2", "regnet_y_400mf", "resnet18", "shufflenet_v2_x0_5",
    "squeezenet1_1", "r3d_18",
)  # fmt: skip
TRANSFORMERS = (
    "bert", "albert", "clip", "convnext", "deberta", "gpt2", "llama", "opt", "roberta", "segformer",
    "swin", "t5", "vit", "sew", "whisper",
)  # fmt: skip
NAMES = [f"transformers/{n}" for n in TRANSFORMERS] + [f"torchvision/{n}" for n in CLASSIFIERS]

# Hidden states are outputs of these two: their width is not the model's own to cut.
PINNED = {"transformers/clip": 0.75, "transformers/t5": 0.94}


@pytest.mark.full
@pytest.mark.sample(22)
@pytest.mark.parametrize("name", NAMES)
def test_every_check_of_the_examination(name):
    item = entry(name)
    with warnings.catch_warnings():  # what foreign code warns of is not ours
        warnings.simplefilter("ignore")
        report = examine(item.make(), name=item.name)
    assert report.failures == ()
    assert report.left_out == ()
    assert not any("could not be captured" in note for note in report.notes)
    assert {"trace", "eval", "train", "retrace", "yaml", "take 0.5", "law"} <= set(report.passed)
    assert report.gap is not None and report.gap <= 1e-10
    assert report.share is not None and report.share >= PINNED.get(name, 0.95)
    assert report.half < 0.5 * report.parameters or name in PINNED


def test_every_model_is_in_the_collection_once():
    names = [(e.group, e.name) for e in entries()]
    assert len(set(names)) == len(names)
    groups = [group for group, _ in names]
    assert groups.count("torchvision") == 80 + len(OTHERS)
    assert groups.count("transformers") == len(FAMILIES) >= 24


def test_a_report_survives_json_and_its_row_shows_its_failures():
    report = Report(
        parameters=1_000, nodes=3, share=0.5, gap=1e-16, seconds={"trace": 0.04},
        passed=("trace",), failures=(Failure("law", "RewriteError: a | b", "place"),),
        left_out=(("macs", "why"),), notes=("/x/site-packages/noted",),
    )  # fmt: skip
    assert Report.from_json(report.to_json()) == report
    assert not report.ok
    [row] = rows([(entry("transformers/bert"), report)], figures)
    assert (row["parameters"], row["share on free axes"], row["trace s"]) == (1_000, 0.5, 0.04)
    assert (row["mask minus take"], row["verdict"]) == ("1e-16", "FAIL")
    assert row["remarks"] == "law: RewriteError: a | b; no macs: why; noted"
    assert list(row)[-2:] == ["verdict", "remarks"] and row["axes s"] == ""


def test_some_models_are_examined_again_and_the_others_stay(tmp_path):
    good, bad = Report(parameters=7), Report(failures=(Failure("law", "a"),))
    bert, vit = map(entry, ("transformers/bert", "transformers/vit"))
    write(file := tmp_path / "zoo.csv", [(bert, bad), (vit, good)], figures, keep=False)
    write(file, [(bert, good)], figures, keep=True)
    assert [row["verdict"] for row in sheets.read(file)] == ["pass", "pass"]
    assert [row["model"] for row in sheets.read(file)] == ["bert", "vit"]
