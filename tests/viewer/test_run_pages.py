"""Pages of runs in a real browser: their pictures, and the viewer inside."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import archgraph as ag
from archgraph.graph.ir import ArchGraph
from archgraph.reports import report
from archgraph.viewer import view
from tests.reports.test_follow import CONFIG, line


def test_the_page_of_a_run_holds_the_viewer_which_reaches_nothing(
    browser: Any, net: ArchGraph, tmp_path: Path
):
    (tmp_path / "run.yaml").write_text(CONFIG)
    (tmp_path / "metrics.jsonl").write_text(line(1, 0.25))
    (tmp_path / "models").mkdir()
    for name in ("global", "whole"):
        ag.save(net, tmp_path / "models" / f"{name}.yaml")
    path = report(tmp_path, viewer=view)
    context = browser.new_context(viewport={"width": 390, "height": 800})
    page = context.new_page()
    noise: list[str] = []
    page.on("console", lambda message: noise.append(message.text))
    page.on("pageerror", lambda error: noise.append(str(error)))
    page.goto(path.as_uri())
    inside = page.frame_locator("iframe.viewer")
    inside.locator("body[data-ready]").wait_for(timeout=60_000)
    # A frame may get its size after its script has run: then, too, the whole is shown.
    at = "document.querySelector('svg g[transform]').getAttribute('transform')"
    frame = page.frames[1]
    shown = frame.evaluate(at)
    page.evaluate("document.querySelector('iframe').style.display = 'none'")
    page.evaluate("document.querySelector('iframe').style.display = ''")
    inside.locator("g.item.section").first.wait_for(state="visible")
    # On a telephone the picture has the most room, and some beside what is selected.
    picture = "document.querySelector('#panes').clientHeight / innerHeight"
    assert frame.evaluate(picture) > 0.4
    assert "scale(0)" not in shown and frame.evaluate(at) == shown
    inside.locator("g.item.section").first.click()
    assert inside.locator("g.item[data-id]").count() > 1
    assert frame.evaluate(picture) > 0.2
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate("document.querySelector('iframe').contentDocument") is None
    assert noise == []
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_wide_table_shows_where_more_of_it_is(browser: Any, tmp_path: Path, scheme: str):
    """A shadow at each side to which it scrolls."""
    (tmp_path / "run.yaml").write_text(CONFIG)
    (tmp_path / "metrics.jsonl").write_text(line(1, 0.25) + line(2, 0.5))
    context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    page.goto(report(tmp_path).as_uri())
    page.add_style_tag(content=".wide table { min-width: 40rem; }")
    table = page.locator(".wide").first
    assert page.evaluate("document.documentElement.scrollWidth") == 390

    def ends() -> list[int]:
        shown = Image.open(io.BytesIO(table.screenshot())).convert("L")
        row = [shown.tobytes()[2 * shown.width + x] for x in (1, shown.width // 2, shown.width - 2)]
        return [abs(row[0] - row[1]), abs(row[2] - row[1])]

    left, right = ends()
    assert left < 4 and right > 30
    table.evaluate("one => one.scrollLeft = one.scrollWidth")
    left, right = ends()
    assert left > 30 and right < 4
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_pictures_fit_the_page_and_stand_out_from_it(
    browser: Any, tmp_path: Path, width: int, scheme: str
):
    (tmp_path / "run.yaml").write_text(CONFIG)
    (tmp_path / "metrics.jsonl").write_text(line(1, 0.25) + line(2, 0.5))
    path = report(tmp_path)
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    noise: list[str] = []
    page.on("console", lambda message: noise.append(message.text))
    page.goto(path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == width
    found = page.evaluate(
        """[...document.querySelectorAll("figure.picture text")].map(one => {
            const [box, of] = [one, one.closest("svg")].map(e => e.getBoundingClientRect());
            const inside = box.left >= of.left && box.right <= of.right + 1;
            return [one.textContent, box.height, inside, getComputedStyle(one).fill];
        })"""
    )
    words = [of[0] for of in found]
    assert {"whole", "accuracy on all test data", "local training"} <= set(words)
    assert min(height for _, height, _, _ in found) >= 9  # pixels
    assert all(inside for *_, inside, _ in found), found
    ink = {"light": "rgb(31, 41, 51)", "dark": "rgb(228, 231, 235)"}
    assert {fill for *_, fill in found} == {ink[scheme]}
    assert noise == []
    context.close()
