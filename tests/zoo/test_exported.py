"""A sample of the zoo exported; ``python -m tests.zoo --exam onnx`` examines all of it."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

pytest.importorskip("onnx", reason="the extra onnx is not installed")
pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
pytest.importorskip("onnxscript", reason="the extra onnx is not installed")

import archgraph as ag
from tests.nets import Foreign
from tests.zoo import exported
from tests.zoo.collection import entry
from tests.zoo.exported import File, Report, examine, figures, line
from tests.zoo.report import Failure
from tests.zoo.tables import rows


@pytest.mark.full
@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["torchvision/squeezenet1_1", "transformers/bert"])
def test_the_whole_and_half_are_run_and_come_back(name):
    with warnings.catch_warnings():  # what foreign code warns of is not ours
        warnings.simplefilter("ignore")
        report = examine(entry(name).make(), name=name)
    assert report.failures == () and report.refused == ()
    assert report.whole and report.half and report.half.parameters < 0.5 * report.parameters
    assert 0 < report.whole.gap <= 1e-5 and 0 < report.half.gap <= 1e-5


@pytest.mark.full
def test_the_examination_sees_what_is_wrong(monkeypatch):
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    load = ag.load

    def other(path):
        graph, state = load(path)
        return graph, {k: v + 1 for k, v in state.items()}

    monkeypatch.setattr(exported, "_example", lambda *a: pytest.fail("an example"))
    monkeypatch.setattr(ag, "load", other)
    with pytest.raises(pytest.fail.Exception, match="an example"):
        examine(Foreign(net, (torch.randn(2, 3),)))
    monkeypatch.setattr(exported, "_example", lambda *a: 0.5)
    report = examine(Foreign(net, (torch.randn(2, 3),)))
    assert {f.check for f in report.failures} == {"whole: round trip", "half: round trip"}
    assert report.whole and report.whole.gap == 0.5


@pytest.mark.full
def test_a_refusal_is_not_a_failure():
    class Median(nn.Module):
        def forward(self, x):
            return torch.special.bessel_j0(x)

    report = examine(Foreign(Median(), (torch.randn(2, 3),)))
    assert report.ok and "bessel_j0" in dict(report.refused)["whole"]
    item = entry("transformers/bert")
    [row] = rows([(item, report)], figures)
    assert row["verdict"] == "refused"
    assert str(row["remarks"]).startswith("whole refused: cannot be expressed in ONNX")
    assert line(item, report, 1.0).startswith("refused transformers/bert")


def test_a_report_survives_json_and_its_row_shows_it():
    file = File(1_000, 30, 2_000_000, 3e-7)
    report = Report(
        parameters=1_000, nodes=9, whole=file, seconds={"whole: export": 2.5},
        failures=(Failure("half: round trip", "AssertionError: a | b"),),
    )  # fmt: skip
    assert Report.from_json(report.to_json()) == report
    [row] = rows([(entry("transformers/bert"), report)], figures)
    sizes = {"graph operators": 9, "file operators": 30, "file bytes": 2_000_000}
    assert row | sizes == row and (row["half parameters"], row["export s"]) == ("", 2.5)
    assert (row["file minus PyTorch"], row["verdict"]) == ("3e-07", "FAIL")
