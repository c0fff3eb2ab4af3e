"""A sample of the zoo with blocks left out; ``python -m tests.zoo --exam skips``: all of it."""

from __future__ import annotations

import warnings

import pytest

from tests.zoo.collection import entry
from tests.zoo.report import Failure
from tests.zoo.skips import Report, examine, figures

pytestmark = pytest.mark.slow

# Removable blocks.
SAMPLE = {
    "transformers/bert": 3, "transformers/t5": 5, "transformers/segformer": 4,
    "transformers/whisper": 5, "torchvision/resnet18": 5, "torchvision/squeezenet1_1": 4,
}  # fmt: skip


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", SAMPLE)
def test_every_removable_block_obeys_the_law(name):
    item = entry(name)
    with warnings.catch_warnings():  # what foreign code warns of is not ours
        warnings.simplefilter("ignore")
        report = examine(item.make(), name=item.name)
    assert report.failures == ()
    assert (report.removable, report.wrong) == (SAMPLE[name], 0)


def test_a_report_survives_json_and_its_row_counts_blocks():
    report = Report(
        blocks=5, removable=3, wrong=1, passed=("trace",),
        failures=(Failure("skip layer.0", "RewriteError: a | b"),),
    )  # fmt: skip
    assert Report.from_json(report.to_json()) == report and not report.ok
    assert figures(report) == {"blocks": 5, "removable": 3, "wrong": 1}
