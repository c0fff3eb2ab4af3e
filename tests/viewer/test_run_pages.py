"""Pages of runs in a real browser: one follows a run and keeps its place, one holds the viewer."""

from __future__ import annotations

import itertools
import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

import archgraph as ag
from archgraph.graph.ir import ArchGraph
from archgraph.record.changes import append, parameters
from archgraph.reports import report
from archgraph.reports.watch import RunServer
from archgraph.viewer import view
from archgraph.viewer.rounds import recorded_rounds
from tests.reports.test_watch import CONFIG, ask, line


def test_the_page_follows_the_run_and_says_when_the_server_ends(browser: Any, tmp_path: Path):
    (tmp_path / "run.yaml").write_text(CONFIG)
    metrics = tmp_path / "metrics.jsonl"
    lost = [{"client": 0, "name": "whole", "reason": "not finite"}]
    metrics.write_text(json.dumps(json.loads(line(1, 0.25)) | {"rejected": lost}) + "\n")
    context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page = context.new_page()
    noise: list[str] = []
    asked: set[str] = set()
    page.on("console", lambda message: noise.append(message.text))
    page.on("pageerror", lambda error: noise.append(str(error)))
    page.on("request", lambda sent: asked.add(sent.url))
    with RunServer(tmp_path) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            page.goto(server.address, timeout=60_000)
            # Not `wait_for_function`: to ask again it evaluates text, which the page forbids.
            while page.evaluate("seen === undefined"):
                page.wait_for_timeout(50)
            page.evaluate("document.querySelector('details').open = false; scrollTo(0, 200)")
            with metrics.open("a") as file:
                file.write(line(2, 0.5))
            page.wait_for_selector("progress[value='2']", timeout=60_000)
            assert not page.evaluate("document.querySelector('details').open")
            assert page.evaluate("[scrollY, document.documentElement.scrollWidth]") == [200, 390]
            assert page.is_hidden(".lost") and noise == []
            assert asked == {server.address, f"{server.address}state.txt"}
        finally:
            server.shutdown()
            thread.join()
    page.wait_for_selector(".lost", state="visible", timeout=60_000)
    context.close()


def test_the_viewer_follows_the_run_and_loses_nothing_that_is_open(
    browser: Any, net: ArchGraph, run_folder: Path
):
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    noise: list[str] = []
    asked: set[str] = set()
    page.on("console", lambda message: noise.append(message.text))
    page.on("pageerror", lambda error: noise.append(str(error)))
    page.on("request", lambda sent: asked.add(sent.url))
    with RunServer(run_folder, viewer=view, rounds=recorded_rounds) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            page.goto(server.address, timeout=60_000)
            inside = page.frame_locator("iframe.viewer")
            inside.locator("body[data-ready]").wait_for(timeout=60_000)
            inside.locator("#by").select_option("norm")
            inside.locator("#less").click()
            inside.locator("g.item.section > .toggle").last.click()
            frame = page.frames[1]
            open_items = "[...document.querySelectorAll('g.item')].map(g => g.dataset.id).join()"
            fills = "[...document.querySelectorAll('rect.frame')].map(r => r.style.fill).join()"
            before = frame.evaluate(open_items), frame.evaluate(fills)
            assert inside.locator("#told").inner_text() == "3 of 3"
            norms = [float(i) for i in range(len(parameters(net)))]
            append(run_folder, {"round": 4, "norm": norms})
            with (run_folder / "metrics.jsonl").open("a") as file:
                file.write(line(4, 0.75))
            page.wait_for_selector("progress[value='4']", timeout=60_000)
            inside.locator("#told", has_text="4 of 4").wait_for(timeout=60_000)
            assert frame.evaluate(open_items) == before[0] and frame.evaluate(fills) != before[1]
            inside.locator("#round").press("Home")  # who looks at a round stays there
            append(run_folder, {"round": 5, "norm": norms})
            with (run_folder / "metrics.jsonl").open("a") as file:
                file.write(line(5, 0.75))
            inside.locator("#told", has_text="1 of 5").wait_for(timeout=60_000)
            answers = [ask(server, path) for path in ("/", "/viewer.html")]
            policies = [answer[2]["Content-Security-Policy"] for answer in answers]
        finally:
            server.shutdown()
            thread.join()
    context.close()
    assert noise == [] and {url.rpartition("/")[2] for url in asked} == {
        "",
        "state.txt",
        "viewer.html",
        "rounds.json",
    }
    assert "frame-ancestors 'none'" in policies[0] and "frame-src 'self'" in policies[0]
    # The viewer's page says the rest of its policy itself.
    own = re.findall('http-equiv="Content-Security-Policy" content="([^"]*)"', answers[1][1])[0]
    assert policies[1] == "frame-ancestors 'self'" and "connect" not in own
    assert re.findall("script-src 'sha256-[^ ]*'", own)


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


def test_curves_are_read_by_pointer_and_keys_and_hidden_by_their_names(
    browser: Any, tmp_path: Path
):
    (tmp_path / "run.yaml").write_text(CONFIG.replace("rounds: 4", "rounds: 3"))
    rows = [
        json.loads(line(number, accuracy)) for number, accuracy in ((1, 0.2), (2, 0.4), (3, 0.8))
    ]
    for row in rows:  # a second model, half as good
        row["evaluation"]["models"]["half"] = {
            "accuracy": row["evaluation"]["models"]["whole"]["accuracy"] / 2
        }
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    path = report(tmp_path)
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    noise: list[str] = []
    page.on("console", lambda message: noise.append(message.text))
    page.on("pageerror", lambda error: noise.append(str(error)))
    page.goto(path.as_uri())
    figure = page.locator("figure[data-curves]").first
    plot, tip = figure.locator(".reader"), figure.locator(".tip")
    curve = "document.querySelector('.line[data-line=\"1\"] .curve').getAttribute('d')"
    static = page.evaluate(curve)

    def tips() -> list[str]:
        return [" ".join(one.split()) for one in tip.locator("div").all_inner_texts()]

    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
    assert tip.locator("b").first.inner_text() == "round 2"
    assert tips() == ["whole 40.00 %", "half 20.00 %"]
    plot.focus()
    page.keyboard.press("End")
    assert plot.get_attribute("aria-valuetext") == "round 3: whole 80.00 %, half 40.00 %"
    page.keyboard.press("ArrowLeft")
    assert plot.get_attribute("aria-valuetext") == "round 2: whole 40.00 %, half 20.00 %"
    entry = figure.get_by_role("button", name="whole")
    entry.focus()
    page.keyboard.press("Enter")
    assert entry.get_attribute("aria-pressed") == "false"
    assert page.locator(".line").first.get_attribute("display") == "none"
    plot.focus()
    assert tips() == ["half 20.00 %"]

    def steps() -> list[float]:
        heights = [float(point.split()[1]) for point in page.evaluate(curve)[1:].split("L")]
        return [a - b for a, b in itertools.pairwise(heights)]

    # 10, 20 and 40 per cent are equally far apart on a logarithmic axis, and only there.
    assert steps()[1] == pytest.approx(2 * steps()[0], abs=0.3)
    figure.get_by_role("button", name="log y").click()
    assert steps()[1] == pytest.approx(steps()[0], abs=0.3)
    figure.get_by_role("button", name="log y").click()
    assert page.evaluate(curve) == static
    context.close()
    assert noise == []
