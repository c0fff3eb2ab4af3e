"""A sample of the zoo grown; ``python -m tests.zoo --exam growth`` examines all of it."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import archgraph as ag
from tests.nets import Foreign
from tests.zoo import growth
from tests.zoo.collection import entry
from tests.zoo.growth import Law, Report, examine, figures, general, reasons, unsettled
from tests.zoo.report import Failure
from tests.zoo.tables import rows

pytestmark = pytest.mark.slow

# Free axes that cannot be widened by a half, sections that grow, sections behind which it is cut.
SAMPLE = {
    "transformers/gpt2": (1, 1, 2),
    "torchvision/resnet18": (0, 4, 5),
    "torchvision/squeezenet1_1": (0, 0, 4),
    "transformers/bert": (1, 0, 2),
    "transformers/gpt_neox": (1, 1, 2),
    "transformers/falcon": (2, 1, 2),
    "transformers/vit": (1, 1, 2),
    "transformers/clip": (0, 2, 5),
}


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", SAMPLE)
def test_a_grown_model_computes_the_same(name, monkeypatch):
    monkeypatch.setitem(growth.SECONDS, "quick", 1.0)
    item = entry(name)
    with warnings.catch_warnings():  # what foreign code warns of is not ours
        warnings.simplefilter("ignore")
        report = examine(item.make(), name=item.name)
    assert report.failures == ()
    found = (len(report.not_wider), report.deeper.tried, report.parts.tried)
    assert found == SAMPLE[name]
    assert all(why for _, why in (*report.not_wider, *report.not_deeper, *report.not_cut))
    assert report.axes_together == report.free - len(report.not_wider) and report.narrowed_back
    assert report.alone.tried and report.effect > 1e-4
    assert max(report.alone.gap64, report.together.gap64, report.deeper.gap64) <= 1e-10
    assert max(report.alone.gap32, report.together.gap32, report.deeper.gap32) <= 1e-5


def test_the_examination_sees_what_is_wrong(monkeypatch):
    """Copies with nothing that makes up for them fail, alone and together."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    widen = ag.widen

    def bare(graph, spec, **options):
        right = widen(graph, spec, **options)
        entries = {k: growth.plain_entry(e) for k, e in right.transfer.entries.items()}
        return ag.Rewritten(
            right.graph, ag.Transfer(right.transfer.source, right.transfer.target, entries)
        )

    monkeypatch.setattr(ag, "widen", bare)
    report = examine(Foreign(net, (torch.randn(5, 3),)))
    assert {f.check for f in report.failures} >= {"widen 0.out", "widen 2.out", "widen all"}


def test_a_report_survives_json_and_its_rows_count_reasons():
    report = Report(
        kind="transformer", parameters=1_000, free=4, sections=3, alone=Law(3, 1e-16, 1e-7),
        not_wider=(("a.out", "aten.layer_norm in a.b runs over it: uneven"),),
        not_deeper=(("head", "section has no repeatable block: head, which changes"),),
        passed=("trace",), failures=(Failure("widen all", "AssertionError: a | b"),),
        narrowed_back=False, notes=("noted",),
    )  # fmt: skip
    assert Report.from_json(report.to_json()) == report and not report.ok
    found = [(entry("transformers/bert"), report)]
    [row] = rows(found, figures)
    assert (row["kind"], row["free axes"], row["exact axes"]) == ("transformer", 4, 3)
    assert (row["alone 64"], row["alone 32"], row["together 64"]) == ("1e-16", "1e-07", "")
    assert row["narrowed back"] == "differs" and row["verdict"] == "FAIL"
    assert row["remarks"] == "widen all: AssertionError: a | b; noted"
    wider, deeper = reasons(found)
    assert [*wider.values()] == ["not wider", "aten.layer_norm runs over it: uneven", 1, "bert"]
    assert deeper["reason"] == "section has no repeatable block"


def test_reasons_without_names():
    reason = "aten.matmul in h.0.attn sums over it: %a_1 is also used by %b"
    assert general(reason) == "aten.matmul sums over it: %… is also used by %…"


def test_no_entry_stays_of_one_value():
    state = {
        "w": torch.full((3, 4), 1e-3).fill_diagonal_(0),
        "b": torch.zeros(4),
        "n": torch.ones(4),
    }
    made = unsettled(state)
    assert made["w"].std() > 0.1 and made["b"].unique().numel() == made["n"].unique().numel() == 4
