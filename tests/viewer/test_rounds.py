"""Overlays over the rounds of a run: a slider, one scale, and figures that are the run's."""

from __future__ import annotations

import math

import pytest

from archgraph.record.changes import FILE, RoundChange, parameters, read_changes
from archgraph.reports import read_run
from archgraph.viewer import view
from archgraph.viewer.document import decode_data
from archgraph.viewer.rounds import STOPS, over_rounds

FILLS = "all => all.map(r => r.style.fill).join()"


def test_the_page_has_the_figures_of_every_round(net, run_folder):
    whole = decode_data(view(read_run(run_folder)))["graphs"][0]
    told, changes = whole["rounds"], read_changes(run_folder, net)
    assert [whole["leaves"][i][0] for i in told["leaves"]] == list(parameters(net))
    assert told["numbers"] == [1, 2, 3] and told["norm"] == [one.norm for one in changes]
    rows = [None if at < 0 else told["rows"][at] for at in told["coverage"]]
    assert rows == [one.coverage for one in changes] and rows[2] is None
    assert told["top"] == math.hypot(*filter(None, changes[0].norm))


def test_what_was_not_finite_does_not_end_the_scale(net):
    many = len(parameters(net)) - 2
    changes = [
        RoundChange(round=1, norm=[3.0, None] + [0.0] * many),
        RoundChange(round=2, norm=[4.0, 3.0] + [0.0] * many),
    ]
    assert over_rounds(changes, net)["top"] == 5


@pytest.mark.parametrize("many", [0, 1, 2, STOPS, 5 * STOPS + 1])
def test_of_many_rounds_some_are_shown_the_first_and_the_last_among_them(net, many):
    empty = [0.0] * len(parameters(net))
    changes = [RoundChange(round=n, norm=empty) for n in range(1, many + 1)]
    numbers = over_rounds(changes, net)["numbers"]
    assert len(numbers) == min(many, STOPS) and numbers == sorted(set(numbers))
    assert numbers[:1] + numbers[-1:] == ([1, many] if many else [])


def test_a_run_that_recorded_no_changes_has_no_such_colours(run_folder):
    (run_folder / FILE).unlink()
    assert "rounds" not in decode_data(view(read_run(run_folder)))["graphs"][0]


def test_the_slider_changes_colours_legend_panel_and_address(opened, run_folder):
    page = opened(read_run(run_folder))

    def shown():
        return page.eval_on_selector_all("rect.frame", FILLS)

    page.select_option("#by", "none")
    page.select_option("#by", "norm")
    place = page.get_attribute("g.world", "transform")  # in the room that the slider leaves
    page.evaluate("archgraph.app.panes[0].fit(false)")
    assert page.get_attribute("g.world", "transform") == place
    assert page.inner_text("#told") == "3 of 3" and "Round 3" in page.inner_text("#panel")
    assert "update norm" in page.inner_text("#key") and "%" not in page.inner_text("#key")
    seen, ticks = [shown()], page.inner_text("#key")
    page.focus("#round")
    page.keyboard.press("ArrowLeft")
    assert page.inner_text("#told") == "2 of 3" and "Round 2" in page.inner_text("#panel")
    farthest = "#changed tbody tr td:nth-child(2)"  # of this round, the largest first
    norms = [float(one) for one in page.locator(farthest).all_inner_texts()]
    assert norms == sorted(norms, reverse=True) and 0 < len(norms) <= 5
    assert math.hypot(*norms) == pytest.approx(
        float(page.inner_text("#changed dd >> nth=0")), rel=1e-3
    )
    assert page.get_attribute("#round", "aria-valuetext") == "round 2 of 3"
    seen.append(shown())
    page.focus("g.item[tabindex='0']")
    page.keyboard.press(",")
    page.keyboard.press(",")  # there is none before the first
    assert page.inner_text("#told") == "1 of 3" and "round=1" in page.evaluate("location.hash")
    seen.append(shown())
    assert len(set(seen)) == 3 and page.inner_text("#key") == ticks  # one scale for all rounds
    page.select_option("#by", "coverage")
    assert "50 %" in page.inner_text("#key") and shown() not in seen
    again = opened(read_run(run_folder), hash=page.evaluate("location.hash"))
    assert again.input_value("#by") == "coverage" and again.inner_text("#told") == "1 of 3"
    again.keyboard.press(".")
    again.keyboard.press(".")
    assert again.inner_text("#told") == "3 of 3" and "round=" not in again.evaluate("location.hash")
    assert "unknown" in again.inner_text("#changed")


@pytest.mark.parametrize("by", ["none", "kinds", "weights"])
def test_the_slider_is_there_at_once_and_shows_what_a_round_changed(opened, run_folder, by):
    page = opened(read_run(run_folder), hash=f"#by={by}")
    assert page.inner_text("#told") == "3 of 3" and "round=" not in page.evaluate("location.hash")
    assert page.inner_text("#track") == "accuracy 75.00 %"  # as in tables
    page.keyboard.press(",")
    assert page.inner_text("#told") == "2 of 3" and page.input_value("#by") == "norm"


def test_shares_of_the_weights_are_those_of_the_client_that_is_shown(opened, family):
    page = opened(family, hash="#by=weights")
    shown = """() => { const { app } = archgraph, [pane] = app.panes, { weights } = app.overlays;
      return weights.at(pane.model, pane.model.root, app.kind(pane, weights)); }"""
    whole = sum(math.prod(param.shape) for param in family.graph.params)
    for i, kind in enumerate(family.clients):
        page.select_option("#as", f"client{i}")
        share = sum(math.prod(param.shape) for param in kind.graph.params) / whole
        assert f"share of weights of {kind.name}" in page.inner_text("#key")
        assert "a weight has two sides: at half width" in page.inner_text("#key")
        assert page.evaluate(shown) == pytest.approx(share)


def test_figures_of_parts_are_those_of_their_parameters(opened, net, run_folder):
    """Folded or not: a fold has the figures of all its repetitions."""
    page = opened(read_run(run_folder))
    told = page.evaluate(
        """() => { const model = archgraph.app.model(0), found = [];
          const names = model.data.operators.name;
          const walk = item => {
            const rows = [0, 1, 2].map(at => {
              archgraph.app.turn(at);
              return archgraph.changed(model, item);
            });
            found.push([model.every(item).map(o => names[o]), rows]);
            model.children(item).forEach(walk);
          };
          walk(model.root); return found; }"""
    )
    changes, names = read_changes(run_folder, net), parameters(net)
    assert len(told) > 20 and any(row[0] for _, row in told if row[0])
    for operators, rows in told:
        own = {leaf for name in operators for leaf in net.node[name].leaves()}
        at = [i for i, name in enumerate(names) if name in own]
        sizes = [math.prod(net.param[names[i]].shape) for i in at]
        for change, row in zip(changes, rows, strict=True):
            if not at:
                assert row is None
                continue
            assert row["round"] == change.round
            assert row["norm"] == pytest.approx(math.hypot(*(change.norm[i] or 0.0 for i in at)))
            reached = [] if change.coverage is None else [change.coverage[i] for i in at]
            mean = sum(n * share for n, share in zip(sizes, reached, strict=False)) / sum(sizes)
            assert row["coverage"] == (pytest.approx(mean) if reached else None)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_telephone_has_room_for_the_slider(opened, run_folder, dark):
    page = opened(read_run(run_folder), hash="#by=norm", width=390, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("#round").bounding_box()["width"] > 100
    assert page.locator(".area").first.bounding_box()["height"] > 200


def test_damaged_lines_cost_the_colours_and_not_the_page(net, run_folder):
    (run_folder / FILE).write_text("{}\n")
    with pytest.warns(UserWarning, match=r"no colours over the rounds: .*damaged line"):
        data = decode_data(view(read_run(run_folder)))
    assert "rounds" not in data["graphs"][0]
