"""Which comparisons count, and how they are corrected together."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from archgraph.studies.claims import RULES, SEEDS, StudyFinding, judge
from archgraph.studies.outcomes import LEVEL, Paired, holm
from archgraph.studies.pictures import differences_picture, drawable

CLEAR = Paired((5.0, 5.5, 6.0, 5.2, 5.8), margin=1.0)
NOISY = Paired((5.0, -5.5, 6.0, -5.2, 0.8), margin=1.0)
EQUAL = Paired((0.1, -0.1, 0.05, -0.05, 0.0), margin=1.0)


def finding(paired: Paired | None, name: str = "a", **more: object) -> StudyFinding:
    runs = ("accuracy", (f"{name}-ours",), (f"{name}-theirs",))
    values: dict[str, object] = {"study": "Study 1", "primary": True, "runs": runs, **more}
    return StudyFinding(claim=name, where="", figure="f", paired=paired, **values)  # type: ignore[arg-type]  # by name


def test_each_comparison_has_one_outcome_or_a_reason():
    few = Paired(CLEAR.differences[: SEEDS - 1], margin=1.0)
    each = [
        finding(CLEAR, "a"),
        finding(Paired(tuple(-d for d in CLEAR.differences)), "b"),
        finding(EQUAL, "c"),
        finding(NOISY, "d"),
        finding(few, "e"),
        finding(None, "f"),
        finding(CLEAR, "g", primary=False),
        *(finding(CLEAR, rule, rule=rule) for rule in RULES),
        finding(None, "h", rule="reference"),  # cells of such a setting are not run
    ]
    assert [one.text for one in judge(each)] == [
        "holds",
        "against",
        "equivalent",
        "undecided",
        "undecided: 4 of 5 seeds",
        "not measured",
        "exploratory",
        *(f"not counted: {text}" for text in RULES.values()),
        "not counted: its setting does not pass the gate of trivial references",
    ]


def test_a_pair_of_runs_is_judged_once():
    first, again = finding(CLEAR), finding(CLEAR)
    turned = ("accuracy", first.runs[2], first.runs[1])
    back = finding(Paired(tuple(-d for d in CLEAR.differences)), runs=turned)
    other = finding(CLEAR, runs=("loss", *first.runs[1:]))  # another measure of the same runs
    texts = [one.text for one in judge([first, again, back, other])]
    assert texts == ["holds", "judged in Study 1", "judged in Study 1", "holds"]
    # Exploratory ones refer to a primary one wherever it stands, else to the one with most seeds.
    early = finding(CLEAR, study="Study 0", primary=False)
    fewer = finding(Paired(CLEAR.differences[:3]), study="Study 2", primary=False)
    each = judge([early, first, fewer])
    assert [one.text for one in each] == ["judged in Study 1", "holds", "judged in Study 1"]
    assert [one.elsewhere for one in each] == [True, False, True] and each[0].p is None
    assert [one.text for one in judge([fewer, early])] == ["compared in Study 0", "exploratory"]
    assert len(drawable(judge([fewer, early]))) == 1
    # What is not measured, or does not count, has no figures for others.
    pairs = [finding(None), finding(CLEAR, rule="untrained"), finding(CLEAR, primary=False)]
    assert judge(pairs)[2].text == "exploratory"


@given(st.lists(st.floats(0.2, 3.0), min_size=1, max_size=6))
def test_claims_of_a_study_or_that_share_runs_are_corrected_together(shifts: list[float]):
    spread = (-1.0, -0.5, 0.0, 0.5, 1.0)
    pairs = [Paired(tuple(shift + x for x in spread)) for shift in shifts]
    # All against one baseline: connected through its runs.
    shared = [
        finding(pair, str(i), study=f"Study {i}", runs=("accuracy", (f"ours {i}",), ("base",)))
        for i, pair in enumerate(pairs)
    ]
    raw = {i: pair.p or 0.0 for i, pair in enumerate(pairs)}
    corrected = holm(raw)
    assert [one.p for one in judge(shared)] == pytest.approx([corrected[i] for i in raw])
    of_one = [finding(pair, str(i)) for i, pair in enumerate(pairs)]
    assert [one.p for one in judge(of_one)] == pytest.approx([corrected[i] for i in raw])
    apart = [finding(pair, str(i), study=f"Study {i}") for i, pair in enumerate(pairs)]
    assert [one.p for one in judge(apart)] == pytest.approx(list(raw.values()))


def test_equivalence_is_corrected_over_claims_that_share_runs():
    one = Paired((-1.0, -0.5, 0.0, 0.5, 1.0), margin=0.92)
    assert one.p_equivalent == pytest.approx(0.03, abs=0.002)  # twice of it is above the level
    shared = [finding(one, i, study=i, runs=("accuracy", (f"ours {i}",), ("base",))) for i in "ab"]
    apart = [finding(one, i, study=i) for i in "ab"]
    assert [each.text for each in judge(shared)] == ["undecided", "undecided"]
    assert [each.text for each in judge(apart)] == ["equivalent", "equivalent"]


def test_what_does_not_count_corrects_nothing():
    spread = (-1.0, -0.5, 0.0, 0.5, 1.0)
    weak = Paired(tuple(1.0 + x for x in spread))  # p about 0.05
    runs = ("accuracy", ("ours",), ("base",))
    alone = judge([finding(weak, runs=runs)])[0].p
    others = [
        finding(CLEAR, str(i), primary=False, runs=("accuracy", (f"{i}",), ("base",)))
        for i in range(9)
    ]
    left = [finding(None, rule, rule=rule) for rule in RULES]
    assert judge([finding(weak, runs=runs), *others, *left])[0].p == alone


def test_what_is_not_measured_yet_is_corrected_for():
    """Else a verdict could come and go with the order in which runs are done."""
    alone, waiting = judge([finding(CLEAR, "a")])[0].p, finding(None, "b")
    assert alone is not None
    first, other = judge([finding(CLEAR, "a"), waiting])
    assert first.p == pytest.approx(2 * alone) and other.text == "not measured"
    elsewhere = dataclasses.replace(waiting, study="Study 2")
    assert judge([finding(CLEAR, "a"), elsewhere])[0].p == alone
    one = judge([finding(Paired((1.0,), margin=1.0))])[0]  # a single seed has no p
    assert (one.p, one.text) == (None, "undecided: 1 of 5 seeds")


def readable(figure: Figure) -> bool:
    """Whether axes with their words lie in the figure, and no number of an axis on another one."""
    figure.draw_without_rendering()
    boxes = [part.get_tightbbox() for part in (*figure.axes, *figure.legends)]
    edges = figure.bbox.padded(2)
    if not all(box and edges.contains(*box.min) and edges.contains(*box.max) for box in boxes):
        return False
    for axis in (axis for panel in figure.axes for axis in (panel.xaxis, panel.yaxis)):
        low, high = sorted(axis.get_view_interval())
        ticks = [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
        pairs = itertools.combinations([label.get_window_extent() for label in ticks], 2)
        if any(a.overlaps(b) for a, b in pairs):
            return False
    return True


def test_differences_are_drawn_with_margin_and_interval():
    name = "a method of a long name better than another one of a long name"
    judged = judge([finding(CLEAR), finding(NOISY, name, primary=False), finding(None)])
    figure = differences_picture(drawable(judged), "A study")
    (panel,) = figure.axes
    intervals, points = panel.get_lines()[1::2], panel.get_lines()[2::2]
    drawn = [[tuple(np.asarray(line.get_xdata())) for line in of] for of in (intervals, points)]
    assert drawn == [[CLEAR.interval, NOISY.interval], [(CLEAR.mean,), (NOISY.mean,)]]
    # The claim that holds is filled, the exploratory one hollow and of another form.
    assert [line.get_markerfacecolor() == "white" for line in points] == [False, True]
    assert points[0].get_marker() != points[1].get_marker()
    assert {(bar.get_x(), bar.get_width()) for bar in panel.patches} == {(-1, 2)}  # type: ignore[attr-defined]  # bars
    (legend,) = figure.legends
    assert "mean difference over 5 seeds" in legend.get_title().get_text()
    assert {text.get_text() for text in legend.get_texts()} == {
        "margin of equivalence", "holds", "exploratory: no verdict",
    }  # fmt: skip
    assert "favours the claim →" in panel.get_xlabel() and readable(figure)
    assert len(drawable(judged)) == 2


def test_each_figure_has_a_panel_and_one_interval_does_not_squeeze_the_others():
    far = Paired(tuple(40 + d for d in CLEAR.differences), margin=1.0)
    pairs = {"a better than b": CLEAR, "c better than d": EQUAL, "e better than f": far}
    each = [
        dataclasses.replace(finding(pair, claim), figure=figure, where="MNIST", runs=runs)
        for figure, runs in (("strong", ("accuracy", (), ())), ("weak", ("matched", (), ())))
        for claim, pair in pairs.items()
        if (figure, pair) != ("strong", far)
    ]
    figure = differences_picture(drawable(judge(each)))
    assert [panel.get_title(loc="left") for panel in figure.axes] == [
        "strong, MNIST: difference in percentage points",
        "weak, MNIST: difference in percentage points",
    ]
    strong, weak = figure.axes
    names = [[text.get_text() for text in panel.get_yticklabels()] for panel in figure.axes]
    assert names == [["a vs b", "c vs d"], ["a vs b", "c vs d", "e vs f"]]
    assert not strong.texts and strong.get_xlim()[1] > CLEAR.mean
    assert [text.get_text() for text in weak.texts] == [f"{far.mean:+.1f}"]
    assert [line.get_marker() for line in weak.get_lines()].count(">") == 1
    assert CLEAR.mean < weak.get_xlim()[1] < far.mean
    assert readable(figure)


def test_a_claim_whose_setting_has_no_gate_is_undecided():
    without, judged = judge([finding(CLEAR, "a", gated=False), finding(CLEAR, "b")])
    assert (without.text, judged.text) == ("undecided: its setting has no gate", "holds")


def test_the_p_that_decided_is_the_one_shown():
    one, other = judge([finding(EQUAL, "a", study="A"), finding(CLEAR, "b", study="B")])
    assert (one.outcome, other.outcome) == ("equivalent", "holds")
    assert (one.p, other.p) == (EQUAL.p_equivalent, CLEAR.p)


def test_detectable_is_of_the_level_that_the_correction_leaves():
    """Three primary comparisons are corrected together, one of them not measured yet."""
    each = judge([
        finding(NOISY, "a"), finding(CLEAR, "b"), finding(None, "c"),
        finding(NOISY, "d", primary=False),
    ])  # fmt: skip
    assert each[0].detectable == NOISY.detectable(LEVEL / 3)
    assert each[3].detectable == NOISY.detectable(LEVEL) and each[2].detectable is None
    few = judge([finding(Paired((1.0, 2.0)), "a"), finding(CLEAR, "b", gated=False)])
    assert [one.together for one in few] == [2, 2]


@pytest.mark.parametrize("published", [None, 4.9, 5.1, 5.9, 6.1])
def test_a_published_difference_lies_outside_the_interval_or_not(published: float | None):
    (one,) = judge([finding(CLEAR, published=published)])  # interval: 5.02 … 5.98
    assert one.outside == (published in (4.9, 6.1))
    (single,) = judge([finding(Paired((1.0,)), published=published)])
    assert not single.outside  # one seed has no interval


def test_the_verdict_says_which_method_is_below_its_reference():
    (one,) = judge([finding(CLEAR, below=("Other † 91.80",))])
    assert one.text == "holds (Other † 91.80)"
    first, again = judge([finding(CLEAR), finding(CLEAR, below=("Other † 91.80",))])
    assert (first.text, again.text) == ("holds", "judged in Study 1")
