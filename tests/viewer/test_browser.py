"""The page in a real browser: every interaction changes what it should, and nothing else happens.

That no page says or requests anything is checked by the fixture that opens it.
"""

from __future__ import annotations

import math
import struct
from itertools import pairwise
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.analysis.cost import cost
from archgraph.capture.trace import trace
from archgraph.display.colours import FAMILIES, SCALE, blend
from archgraph.federation.family import Family
from archgraph.federation.world import Tier
from archgraph.graph.ir import ArchGraph
from archgraph.rewrites.shorten import shorten
from archgraph.rewrites.take import take
from archgraph.states import Rewritten


def items(page):
    """What can be seen, by identifier."""
    return page.eval_on_selector_all("g.item[data-id]", "all => all.map(g => g.dataset.id)")


def item(page, identifier):
    return page.locator(f"g.item[data-id='{identifier}']")


def text(page):
    return page.inner_text("#panel")


def numbered(page, name):
    """Identifier of the block of a name."""
    return page.evaluate(
        "name => 'b' + archgraph.data.graphs[0].blocks.findIndex(b => b[0] === name)", name
    )


def test_containers_open_and_close_and_the_address_keeps_them(opened, net):
    page = opened(net)
    page.click("#less")
    closed = items(page)
    layers = page.evaluate(
        "'s' + archgraph.data.graphs[0].sections.findIndex(s => s[0] === 'layers')"
    )
    item(page, layers).locator(":scope > .toggle").click()
    after = items(page)
    assert len(after) > len(closed) and set(closed) < set(after)
    assert item(page, layers).get_attribute("aria-expanded") == "true"
    assert "×3" in item(page, layers).text_content()
    assert layers in page.evaluate("location.hash")
    item(page, layers).locator(":scope > .toggle").click()
    assert items(page) == closed
    page.click("#more")
    assert len(items(page)) > len(closed)


def test_what_opens_leaves_nothing_beside_the_pane(opened, net):
    page = opened(net)
    first = "g.item:not(.open) > .toggle >> nth=0"
    for act in ("#more", "#more", "#less", first, first, first, first):
        page.locator(act).dispatch_event("click")  # it may be out of sight
        area, picture = (page.locator(one).bounding_box() for one in (".area", "g.world"))
        assert area["x"] <= picture["x"], act
        assert picture["x"] + picture["width"] <= area["x"] + area["width"], act


def test_the_state_in_the_address_comes_back(opened, net):
    page = opened(net)
    page.click("#less")
    page.select_option("#by", "parameters")
    page.click("#names")
    page.locator("g.item.section").first.click(position={"x": 40, "y": 5})
    page.wait_for_timeout(250)
    hash = page.evaluate("location.hash")
    shown, selected = items(page), page.locator("g.selected").get_attribute("data-id")
    transform = page.get_attribute("g.world", "transform")
    again = opened(net, hash=hash)
    assert items(again) == shown
    assert again.locator("g.selected").get_attribute("data-id") == selected
    assert again.input_value("#by") == "parameters"
    assert again.get_attribute("#names", "aria-pressed") == "true"
    scale = transform.split("scale")[1][:6]
    assert again.get_attribute("g.world", "transform").split("scale")[1][:6] == scale


def test_a_fold_shows_its_repetitions_one_by_one(opened, net):
    page = opened(net)
    page.click("#less")
    page.locator("g.item:has(> text.times)").first.click(position={"x": 40, "y": 5})
    page.click("text=Show all 3")
    names = page.locator("g.item.block > text.strong").all_text_contents()
    assert [n for n in names if n.startswith("layers.")] == ["layers.0", "layers.1", "layers.2"]


class Normed(nn.Module):
    """A layer behind a norm that several operators spell out."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        normed = self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
        return x + self.linear(normed)


def test_an_idiom_shows_its_name_and_size_and_opens_to_its_operators(opened):
    page = opened(trace(nn.Sequential(Normed(), nn.ReLU()), torch.zeros(1, 5, 8)).graph)
    page.click("#more")
    box = page.locator("g.item.box", has_text="RMSNorm")
    assert box.locator("g.item.operator").count() == 6
    box.locator(":scope > .toggle").click()
    assert box.locator(":scope > text").all_text_contents() == ["RMSNorm", "8 parameters"]
    box.click(position={"x": 60, "y": 10})
    assert page.inner_text("#panel .kind") == "RMSNorm"
    assert "8 (10 %)" in text(page)


def test_parts_add_up_to_the_whole_folded_or_not(opened, net, family):
    page = opened(family)
    sums = page.evaluate(
        """() => archgraph.data.graphs.map((_, i) => {
          const model = archgraph.app.model(i);
          return ["parameters", "macs", "bytes"].map(key =>
            model.children(model.root).reduce((sum, item) => sum + model.sum(item, key), 0));
        })"""
    )
    for graph, told in zip([net, *(one.graph for one in family.clients)], sums, strict=True):
        spent = cost(graph)
        assert told == [spent.parameters, spent.macs, sum(n.bytes for n in spent.nodes.values())]


def test_search_finds_names_operators_and_shapes_by_keyboard(opened, net):
    page = opened(net)
    page.click("#less")
    for word in ("linear1", "attention", "batch, 5, 16"):
        page.keyboard.press("Escape")
        page.keyboard.press("/")
        page.keyboard.type(word)
        assert page.locator("#results li").count() >= 1, word
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.locator("#results").is_hidden()
    assert page.locator("g.selected").count() == 1
    assert "16" in text(page)
    assert page.locator("#crumbs button").count() >= 2
    page.locator("#crumbs button").first.click()
    assert page.locator("#panel h2").inner_text() == "net"


def test_all_of_it_by_keyboard(opened, net):
    page = opened(net)
    page.click("#less")
    closed = items(page)
    page.focus("g.item[tabindex='0']")
    page.keyboard.press("Home")
    for _ in range(len(closed)):
        page.keyboard.press("ArrowDown")
        if page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "false":
            break
    here = page.evaluate("document.activeElement.dataset.id")
    page.keyboard.press("ArrowRight")
    assert len(items(page)) > len(closed)
    assert page.evaluate("document.activeElement.dataset.id") == here
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.id") != here
    page.keyboard.press("Enter")
    assert page.locator("g.selected").get_attribute("data-id") == page.evaluate(
        "document.activeElement.dataset.id"
    )
    outline = page.evaluate(
        "getComputedStyle(document.activeElement.querySelector('.frame')).strokeDasharray"
    )
    assert outline != "none"  # where the keyboard stands can be seen
    page.keyboard.press("ArrowLeft")
    page.keyboard.press(" ")
    assert items(page) == closed


def test_every_part_is_found_by_its_identifier_in_a_page_that_opened_none(opened, net):
    ids, found = opened(net).evaluate(
        """() => { const model = archgraph.app.model(0), ids = [];
          const walk = item => { ids.push(item.id); model.children(item).forEach(walk); };
          walk(model.root);
          const fresh = () => new model.constructor(model.data, 0);
          return [ids, ids.map(id => fresh().find(id)?.id)]; }"""
    )
    assert found == ids and {one[0] for one in ids} == set("rsxo")


@pytest.mark.full
def test_pan_zoom_and_fit_move_the_picture(opened, net):
    page = opened(net)

    def at():
        return page.get_attribute("g.world", "transform")

    start = at()
    page.mouse.move(80, 700)
    page.mouse.down()
    page.mouse.move(140, 640)
    page.mouse.up()
    panned = at()
    assert panned != start
    page.mouse.wheel(0, 40)
    wheeled = at()
    assert wheeled != panned
    page.click("#in")
    assert at().split("scale")[1] != wheeled.split("scale")[1]
    page.click("#fit")
    box = page.locator("g.world").bounding_box()
    assert 0 <= box["x"] and box["y"] >= 0 and box["height"] <= 850


def test_which_client_lacks_this_block(opened, family):
    page = opened(family)
    page.click("#less")
    page.keyboard.press("/")
    page.keyboard.type("layers.2")
    page.keyboard.press("Enter")
    assert "Lacking in short." in text(page) and " bytes (" in text(page)
    data = page.evaluate("archgraph.data.graphs[0]")
    number = [block[0] for block in data["blocks"]].index("layers.2")
    clients, share, kinds = data["feeding"]["rows"][data["feeding"]["blocks"][number]]
    assert clients == 3 and kinds[2] == 0 and (2 * kinds[0] + kinds[1]) / 4 == pytest.approx(share)
    told = f"3 of 4 clients, {share:.0%} of the weights over all"
    assert told.replace("%", " %") in text(page)


def test_the_whole_graph_says_who_lacks_which_blocks(opened, family, net):
    page = opened(family)
    told = page.inner_text("#panel .lacks").replace("\n", " ")
    assert told == "short lacks layers.2" and "not short" in text(page)
    page.click("#panel .lacks button")
    assert page.locator("#panel h2").inner_text() == "layers.2"
    assert "Lacking in short." in text(page)


def test_search_lists_pinned_axes_and_says_when_there_is_nothing(opened, net):
    page = opened(net)
    page.fill("#search", "pinned")
    found = page.locator("#results li").all_inner_texts()
    pinned = [axis[0] for axis in page.evaluate("archgraph.data.graphs[0].axes") if axis[7]]
    assert [one.split("\n")[0] for one in found] == pinned and pinned
    page.locator("#results li", has_text="head.out").click()
    assert "pinned: dimension 1" in text(page)
    page.fill("#search", "nobody")
    assert page.locator("#results").inner_text() == "nothing is called that"
    page.keyboard.press("Enter")
    assert "pinned: dimension 1" in text(page)


def test_search_lists_parts_and_operators_before_axes(opened, net):
    page = opened(net)
    page.fill("#search", "linear1")
    notes = page.locator("#results small").all_inner_texts()
    axis = [note.startswith("axis") for note in notes]
    assert len(set(axis)) == 2 and axis == sorted(axis)


def test_links_stand_on_the_line_of_their_row(opened, family):
    page = opened(family)
    lines = page.eval_on_selector_all(
        "#panel tr:has(.link)",
        """rows => rows.map(row => [...row.cells].map(cell => {
          const range = document.createRange();
          range.selectNodeContents(cell.querySelector(".link, .whole") || cell.firstChild);
          return range.getClientRects()[0].bottom; }))""",
    )
    assert len(lines) > 4 and all(max(one) - min(one) < 0.6 for one in lines), lines
    page.evaluate(
        "(({ app }) => app.visit(app.panes[0], app.panes[0].model.find('s0')))(archgraph)"
    )
    below = page.eval_on_selector_all(
        "#panel dl > div",
        """rows => rows.map(row => {
          const [name, value] = [...row.children].map(one => {
            const range = document.createRange();
            range.selectNodeContents(one.querySelector(".link") || one);
            return range.getClientRects()[0]; });
          return value.bottom - name.bottom; })""",
    )
    assert page.locator("#panel dd .link").count() > 0 and max(below) - min(below) < 0.6, below


def test_why_a_layer_cannot_be_cut_and_what_would_free_it(opened, net):
    page = opened(net)
    page.click("#less")
    page.keyboard.press("/")
    page.keyboard.type("head")
    page.keyboard.press("Enter")
    assert "pinned: dimension 1 of the model's output" in text(page)
    assert "would free it: a layer after it" in text(page)


@pytest.mark.full
def test_what_is_fed_least_is_one_click_away(opened, family):
    page = opened(family)
    page.click("#less")
    page.keyboard.press("Escape")
    page.locator("#panel table button.link").first.click()
    assert page.locator("#panel h2").inner_text() == "layers.2"
    assert page.locator("g.selected").get_attribute("data-id") == numbered(page, "layers.2")


def test_a_share_costs_what_take_costs(opened, net):
    page = opened(net)
    page.select_option("#as", "share")
    for percents in (1, 7, 30, 50, 81, 99, 100):
        told = page.evaluate(
            """n => (archgraph.app.shape("share", n), archgraph.app.panes.map(
              ({small}) => [small.parameters, small.macs])[0])""",
            percents,
        )
        small = cost(take(net, percents / 100, allow_nothing=True).graph)
        assert told == [small.parameters, small.macs], percents
        assert f"{small.macs:,} MACs" in page.inner_text("#left")


@pytest.mark.full
def test_half_of_the_macs_is_one_choice_away(opened, net):
    """The largest share in per cent that costs so little."""
    page = opened(net)
    page.select_option("#as", "macs")
    assert page.input_value("#much") == "50"
    total = cost(net).macs
    costs = [cost(take(net, n / 100, allow_nothing=True).graph).macs for n in range(1, 101)]
    for percents in (1, 30, 50, 100):
        told = page.evaluate(
            "n => (archgraph.app.shape('macs', n), archgraph.app.panes[0].small.macs)", percents
        )
        fits = [macs for macs in costs if macs <= percents / 100 * total]
        assert told == (fits or costs)[-1 if fits else 0], percents
    assert "100 % of every width" in page.inner_text("#left")


def test_a_client_narrows_boxes_and_lacks_blocks(opened, family):
    page = opened(family, hash="#as=client1&open=s1")
    # Each bar beside its length at full width, and how far below the last word of its box it is.
    bars = """all => all.map(bar => {
      const words = [...bar.parentNode.querySelectorAll(":scope > text")].map(t => t.getBBox());
      return [bar.getTotalLength() / bar.previousSibling.getTotalLength(),
        bar.getBBox().y - 1.5 - Math.max(...words.map(box => box.y + box.height))]; })"""
    shares = page.eval_on_selector_all(".left + .left", bars)
    assert page.input_value("#as") == "client1" and len(shares) > 2
    assert 0.5 in [round(share, 3) for share, _ in shares] and all(gap > 0 for _, gap in shares)
    assert "Sizes in the picture are the whole network's" in page.inner_text("#submodel")
    page.select_option("#as", "client2")
    assert page.locator(".left").count() == 0
    page.click("#more")
    assert page.locator("g.item.gone").count() > 0
    page.select_option("#as", "whole")
    assert page.locator("g.item.gone").count() == 0 and page.inner_text("#left") == ""


@pytest.mark.sample(3)
@pytest.mark.parametrize("width", [390, 700, 1440])
def test_no_choice_is_cut(opened, family, width):
    page = opened(family, width=width)
    for name in ("graph", "beside", "as", "by"):
        # Natural width of the longest choice beside the one that it has.
        natural, actual = page.eval_on_selector(
            f"#{name}",
            """one => { const actual = one.clientWidth;
              one.style.cssText = "width: max-content; max-width: none";
              const natural = one.clientWidth; one.style.cssText = "";
              return [natural, actual]; }""",
        )
        assert actual >= natural, name


def test_the_map_of_clients_leads_to_their_blocks(opened, family):
    page = opened(family)
    cells = page.locator(".map .row").nth(2).locator(".cell")
    assert cells.last.get_attribute("title").startswith("short, head")
    assert page.locator(".map .ticks").inner_text().split("\n") == [
        "0 %",
        "25 %",
        "50 %",
        "75 %",
        "100 %",
    ]
    stem = page.locator(".map .row").nth(1).locator(".cell").first
    colour = stem.evaluate("cell => cell.style.backgroundColor")
    assert stem.get_attribute("title") == "narrow, stem: 50 % of the weights"
    red, green, blue = (int(blend(SCALE, 0.5)[i : i + 2], 16) for i in (1, 3, 5))
    assert colour == f"rgb({red}, {green}, {blue})"  # the scale of the picture
    assert page.locator(".map .cell.none").count() == 1
    page.locator(".map .cell.none").click()
    assert page.input_value("#as") == "client2"
    assert page.locator("#panel h2").inner_text() == "layers.2"


def test_the_slider_and_the_colours_change(opened, family):
    page = opened(family)
    page.select_option("#as", "share")
    told = page.inner_text("#left")
    page.focus("#much")
    page.keyboard.press("ArrowLeft")
    assert page.inner_text("#left") != told
    fills = "all => all.map(r => r.style.fill).join()"
    seen = set()
    for by in ("none", "clients", "weights", "parameters", "macs", "bytes"):
        page.select_option("#by", by)
        seen.add(page.eval_on_selector_all("rect.frame", fills))
        assert page.locator("#key").is_visible() == (by != "none")
    assert len(seen) == 6


@pytest.mark.full
def test_a_picture_of_several_screens_has_a_map_that_leads_through_it(opened, net):
    page = opened(net)
    frames = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"

    def sight():  # as parts of the whole: left, top, right, low
        page.evaluate(frames)
        w, h = map(float, page.get_attribute(".minimap", "viewBox").split()[2:])
        keys = ("x", "y", "width", "height")
        x, y, width, height = (float(page.get_attribute(".sight", key)) for key in keys)
        return [x / w, y / h, (x + width) / w, (y + height) / h]

    assert page.locator(".minimap").count() == 0  # all of it is in sight
    page.evaluate("archgraph.app.panes[0].go({ x: 0, y: 0, k: 6 })")
    left, top, right, low = sight()
    assert left == top == 0 and 0 < right < 1 and 0 < low < 1
    colours = "all => all.map(path => path.style.fill)"
    assert len(page.eval_on_selector_all(".minimap path", colours)) > 1
    area = page.locator(".minimap").bounding_box()
    page.mouse.click(area["x"] + 0.5 * area["width"], area["y"] + 0.75 * area["height"])
    left, top, right, low = sight()
    assert (left + right) / 2 == pytest.approx(0.5, abs=0.02)
    assert (top + low) / 2 == pytest.approx(0.75, abs=0.02)
    page.mouse.down()  # drag it back
    page.mouse.move(area["x"] + 0.5 * area["width"], area["y"] + 0.5 * area["height"])
    page.mouse.up()
    assert sight()[1] < top
    page.click("#fit")
    page.evaluate(frames)
    assert page.locator(".minimap").count() == 0


@pytest.mark.sample(2)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_telephone_shows_all_of_it(opened, family, dark):
    page = opened(family, width=390, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator(".area").first.bounding_box()["height"] > 200
    page.select_option("#graph", "2")  # the page keeps the family's name
    assert page.inner_text("#title") == "pets" and page.locator("#title").bounding_box()["x"] >= 0
    page.select_option("#graph", "0")
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert colour == ("rgb(20, 24, 29)" if dark else "rgb(255, 255, 255)")
    page.locator("g.item").nth(1).click(position={"x": 20, "y": 5})
    assert page.locator("#panel").is_visible()


def test_hostile_names_are_text(opened, net):
    name = "<img src=x onerror=alert(1)></script>"
    page = opened({name: net})
    assert page.inner_text("#title") == name
    assert page.locator("img").count() == 0


def test_side_by_side_marks_what_differs_and_opens_in_step(opened, family):
    page = opened(family)
    page.click("#less")
    page.select_option("#beside", "2")
    page.click("#less")
    left, right = page.locator(".pane").nth(0), page.locator(".pane").nth(1)
    assert "differences, read off the transfer between them." in text(page)
    marked = right.locator("g.item[data-mark='narrower']")
    assert marked.count() >= 1 and "narrower" in (marked.first.text_content() or "")
    before = right.locator("g.item").count()
    left.locator("g.item.section", has_text="3 ×").locator(":scope > .toggle").click()
    assert right.locator("g.item").count() > before
    left.locator("g.item.section").first.click(position={"x": 50, "y": 5})
    assert right.locator("g.selected").count() == 1
    assert "corresponds to" in text(page)

    def place(pane):
        return pane.locator("g.world").get_attribute("transform").split("scale")[0]

    was = place(right)
    page.mouse.move(60, 700)
    page.mouse.down()
    page.mouse.move(90, 720)
    page.mouse.up()
    assert place(right) != was


def test_what_the_other_lacks_is_marked_and_listed(opened, family):
    page = opened(family, hash="#g=0.3")
    assert page.locator("#differences").is_visible()
    page.locator("#differences tr", has_text="layers.2").locator("button").first.click()
    selected = page.locator("g.selected")
    assert selected.first.get_attribute("data-mark") == "missing"
    assert "missing in the other" in text(page)
    marked, picture = page.evaluate(
        """() => { const [{ world, at, model }] = archgraph.app.panes;
          const marks = [...world.querySelectorAll("text.badge")];
          return [Math.max(...marks.map(one => one.getBoundingClientRect().right)),
            world.getBoundingClientRect().left + at.k * model.root.layout.w]; }"""
    )
    assert marked <= picture


@pytest.mark.full
def test_graphs_of_the_command_line_stand_side_by_side_at_once(opened, net):
    page = opened([net, net, net])
    assert page.locator(".pane").count() == 3
    assert "The same architecture: found by aligning" in text(page)
    assert page.locator("[data-mark]").count() == 0


def test_all_of_the_picture_is_printed(opened, family):
    page = opened(family)
    page.evaluate("archgraph.app.panes[0].go({ x: -900, y: -500, k: 3 })")
    before = page.get_attribute("g.world", "transform")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    inside, view = page.evaluate(
        """() => { const { svg, world } = archgraph.app.panes[0], at = world.getBBox();
        return [[at.x, at.y, at.x + at.width, at.y + at.height],
          svg.getAttribute("viewBox").split(" ").map(Number)]; }"""
    )
    assert page.get_attribute("g.world", "transform") == ""
    assert view[0] <= inside[0] and view[1] <= inside[1]
    assert inside[2] <= view[0] + view[2] and inside[3] <= view[1] + view[3]
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.get_attribute("g.world", "transform") == before
    assert page.evaluate("archgraph.app.panes[0].svg.hasAttribute('viewBox')") is False
    assert "print-color-adjust: exact" in page.content()


def shown(page):
    """What each pane shows, what it marks, and where the picture stands."""
    return page.evaluate(
        """() => archgraph.app.panes.map(p => [p.model.data.name,
          [...p.svg.querySelectorAll("g.item")].map(g => [g.dataset.id, g.dataset.mark || ""]),
          p.selected])"""
    )


def test_every_client_beside_the_global_model(opened, family):
    page = opened(family)
    for graph in ("2", "3"):
        page.select_option("#beside", graph)
    assert page.locator(".which").all_inner_texts() == ["pets\n×", "narrow\n×", "short\n×"]
    # As many rows as `archgraph compare` has for the one and for the other, what both have once.
    heads = page.locator("#differences th").all_inner_texts()
    assert heads == ["part", "pets", "narrow", "short"]
    rows = page.evaluate("archgraph.app.comparison.rows")
    pairs = page.evaluate("archgraph.data.pairs")
    told = {(d[1], d[2] or d[3]) for i in (2, 3) for d in pairs[f"0 {i}"]["differences"]}
    assert {(row["level"], row["part"]) for row in rows} == told and len(rows) == len(told)
    sizes = {row["part"]: [s and s["text"] for s in row["shares"]] for row in rows}
    assert sizes["stem.out"] == [8, 4, 8] and sizes["layers.2"][2] is None
    page.locator("#differences tr", has_text="layers.2").locator("button").first.click()
    assert page.locator("g.selected").count() == 2 and "missing in short" in text(page)
    assert "nothing" in text(page) and "layers (narrower)" in text(page)
    page.wait_for_timeout(250)
    again = opened(family, hash=page.evaluate("location.hash"))
    assert shown(again) == shown(page)
    # Without the global model two clients are compared with each other.
    again.click("button[aria-label='Remove pets']")
    again.keyboard.press("Escape")
    heads = again.locator("#differences th").all_inner_texts()
    assert heads == ["part", "narrow", "short"]
    kinds = set(again.locator("#differences td:last-child small").all_inner_texts())
    assert kinds == {"wider", "missing"} or kinds == {"wider"}
    again.select_option("#graph", "3")
    names = again.locator(".which").all_inner_texts()
    assert names == ["short\n×", "narrow\n×"]


@pytest.mark.full
def test_panes_open_fold_and_move_in_step(opened, net):
    graphs = [net, take(net, 0.5), net]
    page = opened(graphs)
    page.click("#less")
    page.wait_for_timeout(250)
    closed = opened(graphs, hash=page.evaluate("location.hash"))
    assert shown(closed) == shown(page)
    closed.close()

    def places():
        return page.locator("g.world").evaluate_all(
            "all => all.map(g => g.getAttribute('transform'))"
        )

    for pane in (2, 0):
        before = [len(one[1]) for one in shown(page)]
        host = page.locator(".pane").nth(pane)
        host.locator("g.item.section", has_text="×3").locator(":scope > .toggle").click()
        assert all(a != len(b[1]) for a, b in zip(before, shown(page), strict=True))
    page.locator(".pane").nth(1).locator("g.item:has(> text.times) > rect.frame").last.click(
        position={"x": 40, "y": 5}
    )
    page.click("text=Show all 3")
    lines = page.locator("g.item.block > text.strong").all_text_contents()
    assert lines.count("layers.2") == 3
    page.click("#fit")
    was = places()
    page.mouse.move(60, 700)
    page.mouse.wheel(0, 40)
    assert all(a != b for a, b in zip(was, places(), strict=True))


@pytest.mark.full
def test_panes_are_swiped_on_a_telephone(opened, net):
    page = opened([net, net, net], width=390)
    boxes = [page.locator(".pane").nth(i).bounding_box() for i in range(3)]
    assert all(box["width"] > 300 and box["height"] > 200 for box in boxes)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("(p => p.scrollWidth > p.clientWidth)(document.querySelector('#panes'))")
    assert page.is_disabled("#beside") and boxes[2]["x"] > 390
    page.locator("g.item").first.click()
    page.locator("#panel button.link").last.click()  # what corresponds in the last pane
    assert page.locator(".pane").nth(2).bounding_box()["x"] < 390


@pytest.mark.full
def test_what_is_selected_stays_in_sight_when_the_panel_grows(opened, net):
    page = opened(net, width=390)
    area = page.locator(".area")
    room = area.bounding_box()
    low = page.evaluate(
        """low => [...document.querySelectorAll("g.item")]
          .map(g => [g.getBoundingClientRect().top, g.dataset.id])
          .filter(([top]) => top + 10 < low).sort(([a], [b]) => b - a)[0][1]""",
        room["y"] + room["height"],
    )
    item(page, low).click(position={"x": 60, "y": 5})  # right of the sign that opens it
    now, box = area.bounding_box(), page.locator("g.selected > .frame").last.bounding_box()
    assert now["height"] < room["height"]
    assert now["y"] <= box["y"] < now["y"] + now["height"] - 10


def test_importance_colours_what_it_was_given_of(opened, net):
    page = opened(net, importance={"stem.weight": 0.5, "head.weight": 2.0}, hash="#by=importance")
    assert page.inner_text("#legend").split() == ["importance", "0", "0.5", "1", "1.5", "2"]

    def colours(name):
        frames = page.locator("g.item.section", has_text=name).locator("> rect.frame")
        return frames.evaluate_all("all => all.map(r => r.style.fill)")

    assert colours("stem") != colours("head") and all(colours("stem"))
    assert not any(colours("layers"))
    page.locator("g.item.section", has_text="stem").click(position={"x": 20, "y": 5})
    assert "importance\n0.5" in text(page)


class Turns(nn.Module):
    """Two unlike layers in turn, three times, and one more in the same section."""

    def __init__(self, last: int = 24) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 8)
        widths = ((16,), (32, 32)) * 3 + ((last,),)
        self.layers = nn.ModuleList(
            nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise((8, *inner, 8))), nn.ReLU())
            for inner in widths
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = x + layer(x)
        return x


def turns(name: str, last: int = 24) -> ArchGraph:
    return trace(Turns(last), torch.zeros(2, 6)).graph.replace(name=name)


@pytest.mark.full
def test_a_fold_of_several_blocks_has_the_figures_of_all_of_them(opened):
    graph = turns("turns")
    narrow = take(graph, 0.5)
    tiers = (
        Tier("whole", graph, Rewritten.identity(graph).transfer, count=1),
        Tier("narrow", narrow.graph, narrow.transfer, count=3),
    )
    page = opened(Family(graph, None, tiers, "turns"))
    data = page.evaluate("archgraph.data.graphs[0]")
    assert [fold[1:3] for fold in data["folds"]] == [[2, 3]]
    first, count = data["folds"][0][0], 6
    feeding = data["feeding"]
    blocks = [feeding["blocks"][first + i] for i in range(count)]
    assert len(set(blocks)) > 1  # unlike, so that no row of one of them would do
    shares = [feeding["rows"][row][1] for row in blocks]
    whole = feeding["rows"][feeding["folds"][0]][1]
    assert min(shares) < whole < max(shares)
    page.evaluate("(({app}) => app.visit(app.panes[0], app.panes[0].model.find('f0')))(archgraph)")
    assert f"{whole:.0%} of the weights".replace("%", " %") in text(page)


@pytest.mark.full
def test_parts_that_the_first_graph_lacks_are_not_said_to_be_the_same(opened):
    shorter = shorten(turns("short"), {"layers": 5}).graph
    page = opened([shorter, turns("b"), turns("c", last=20)], hash="#g=1.2")
    told = page.inner_text("#differences")
    assert "The same architecture" not in told
    assert f"Parts that {shorter.name} lacks are not compared with each other." in told


@pytest.mark.full
def test_an_address_that_names_no_colour_opens_the_page(opened, family):
    page = opened(family, hash="#by=constructor")
    assert page.input_value("#by") == "weights"


class Dense(nn.Module):
    """Blocks that hand on their input beside what they make: each is wider than the last."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(6, 8), nn.Linear(24, 3)
        self.layers = nn.ModuleList(nn.Linear(8 + 4 * i, 4) for i in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = torch.cat([x, layer(x).relu()], 1)
        return self.head(x)


@pytest.mark.full
def test_a_fold_of_unlike_widths_shows_the_shapes_of_its_first_block(opened):
    page = opened(trace(Dense(), torch.zeros(2, 6)).graph)
    data = page.evaluate("archgraph.data.graphs[0]")
    assert [fold[2:5] for fold in data["folds"]] == [[4, "layers.0–3", 1]]
    for _ in range(4):
        page.click("#more")
    fold = page.locator("g.item:has(> text.times)")
    assert fold.get_attribute("aria-expanded") == "true"
    flows = fold.locator("text.flow").all_text_contents()
    assert set(flows) == {"4", "12"}
    assert "24" in page.locator("text.flow").all_text_contents()  # behind the fold


# Points along every arrow, and what must not lie under them.
CROSSED = """() => {
  const area = document.querySelector(".area");
  const all = (selector) => [...area.querySelectorAll(selector)]
    .map((one) => [one, one.getBoundingClientRect()]);
  const points = [...area.querySelectorAll("path.edge")].flatMap((path) => {
    const { a, d, e, f } = path.getScreenCTM();
    const length = path.getTotalLength();
    const many = Math.max(60, Math.ceil(length / 5));
    return Array.from({ length: many + 1 }, (_, i) => path.getPointAtLength(length * i / many))
      .map((p) => [p.x * a + e, p.y * d + f]);
  });
  const over = (r, m) => points.some(([x, y]) =>
    x > r.left + m && x < r.right - m && y > r.top + m && y < r.bottom - m);
  const under = (rows, margin) => rows.filter(([, r]) => over(r, margin))
    .map(([one]) => one.textContent || one.parentNode.getAttribute("aria-label"));
  const boxes = all("g.item:not(.open):not(.graph) > rect.frame:not(.behind)");
  const scale = archgraph.app.panes[0].at.k;
  const heights = all("text").map(([text]) => parseFloat(getComputedStyle(text).fontSize) * scale);
  const covered = all("text.flow").filter(([, r]) => boxes.some(([, b]) =>
    Math.min(r.right, b.right) - Math.max(r.left, b.left) > 2
    && Math.min(r.bottom, b.bottom) - Math.max(r.top, b.top) > 2));
  return { covered: covered.map(([one]) => one.textContent),
    titles: under(all("g.item > text"), 1), boxes: under(boxes, 2),
    labels: under(all("text.flow"), 2), least: Math.min(...heights),
    arrows: area.querySelectorAll("path.edge").length };
}"""


class Branches(nn.Module):
    """Ways of unlike length side by side, within one another, and around everything."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(9))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b, c, d, e, f, g, h, i = self.layers
        first = a(x).relu()
        inner = c(b(first).relu()).relu() + d(first)
        wide = torch.cat([e(inner), f(f(inner).relu()), first], 1)
        return g(h(wide.unflatten(1, (3, 8)).sum(1)).relu() + inner) * i(first) + x


@pytest.mark.sample(3)
@pytest.mark.parametrize("model", ["net", "branches", "recurrent", "unet"])
def test_no_arrow_crosses_a_title_or_a_box_and_the_first_look_can_be_read(opened, net, model):
    graphs = {
        "net": lambda: net,
        "branches": lambda: trace(Branches(), torch.zeros(1, 8)).graph,
        "unet": lambda: ag.load("specs/models/small_unet.yaml"),
        "recurrent": lambda: trace(nn.LSTM(4, 6, 2, batch_first=True), torch.zeros(1, 5, 4)).graph,
    }
    page = opened(graphs[model]())
    assert page.evaluate(CROSSED)["least"] >= 9
    for _ in range(4):
        found = page.evaluate(CROSSED)
        assert found["arrows"] > 1
        assert [found[key] for key in ("titles", "boxes", "labels", "covered")] == [[], [], [], []]
        page.click("#more")


class Wide(nn.Module):
    """Forty ways side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.ways = nn.ModuleList(nn.Linear(8, 8) for _ in range(40))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([way(x) for way in self.ways], 1)


def test_a_wide_picture_begins_at_a_readable_scale_and_lists_all_neighbours(opened):
    page = opened(trace(Wide(), torch.zeros(1, 8)).graph)
    for _ in range(3):
        page.click("#more")
    assert page.evaluate(CROSSED)["least"] >= 8.5
    area, first = (page.locator(one).first.bounding_box() for one in (".area", "g.item.input"))
    assert area["x"] <= first["x"] and first["x"] + first["width"] <= area["x"] + area["width"]
    page.evaluate("(({app}) => app.select(app.panes[0], app.panes[0].visible()[0]))(archgraph)")
    more = page.locator("#panel dd .more").first
    assert more.inner_text() == "show all 40"
    assert float(more.evaluate("one => parseFloat(getComputedStyle(one).marginLeft)")) >= 4


@pytest.mark.full
def test_a_tall_picture_stands_in_columns_and_fits(opened):
    chain = nn.Sequential(*(m for k in range(40) for m in (nn.Linear(8 + k, 9 + k), nn.ReLU())))
    page = opened(trace(chain, torch.zeros(1, 8)).graph)
    page.click("#more")
    page.click("#fit")
    whole = "archgraph.app.panes[0].world.getBoundingClientRect()"
    tall, wide = page.evaluate(f"[{whole}.height, {whole}.width]")
    found = page.evaluate(CROSSED)
    assert tall < 2 * wide and (found["titles"], found["boxes"]) == ([], [])


def test_colours_tell_what_operators_do(opened, net):
    page = opened(net)
    assert page.input_value("#by") == "kinds"
    assert "linear" in page.locator("#key").inner_text().split()
    head = page.locator("g.item.section:not(.open) > rect.frame").last
    shown = head.evaluate("one => getComputedStyle(one).fill")
    red, green, blue = (int(FAMILIES["linear"][i : i + 2], 16) for i in (1, 3, 5))
    assert shown == f"rgb({red}, {green}, {blue})"
    colours = """() => [["g.item:not(.open) > rect.frame", "fill"],
      ["#key i", "backgroundColor"]].map(([selector, key]) =>
        [...new Set([...document.querySelectorAll(selector)].map(one => one.style[key]))]
          .filter(Boolean).sort())"""
    legends = set()
    for act in ("#less", "#more", "#more", "#more"):  # the legend has the colours of the boxes
        page.click(act)
        boxes, legend = page.evaluate(colours)
        assert boxes == legend, act
        legends.add(tuple(legend))
    assert len(legends) > 1


class Auxiliary(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.aux, self.head = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x):
        x = self.body(x).relu()
        return {"out": self.head(x), "aux": self.aux(x)} if self.training else {"out": self.head(x)}


def test_the_legend_explains_dashes_where_there_are_any(opened, net):
    for graph, dashed in ((trace(Auxiliary(), torch.zeros(2, 4)).graph, 1), (net, 0)):
        page = opened(graph)
        page.click("#more")
        assert bool(page.locator(".edge.quiet, .item.aside").count()) == bool(dashed)
        assert page.locator("#key .dashed").count() == dashed


def test_arrows_of_what_is_selected_are_coloured_and_lead_to_its_neighbours(opened, net):
    page = opened(net)
    page.click("#less")
    layers = page.locator("g.item", has=page.locator("> text.times"))
    layers.click(position={"x": 90, "y": 5})
    assert page.locator(".edge.in").count() == 1 and page.locator(".edge.out").count() == 1
    facts = dict(zip(*[page.locator(f"#panel {tag}").all_inner_texts() for tag in ("dt", "dd")]))  # noqa: B905
    assert facts["takes values from"] == "stem" and facts["gives values to"] == "head"
    page.keyboard.press("Escape")
    assert page.locator(".edge.in").count() == 0


@pytest.mark.full
def test_arrows_are_followed_into_and_out_of_open_parts(opened, net):
    page = opened(net, hash="#open=s1.f0")
    first = page.evaluate("archgraph.app.panes[0].model.find('f0') ? 'f0' : 's1'")
    inside = page.locator(f"g.item[data-id='{first}'] g.item").first
    inside.click(position={"x": 60, "y": 5})
    assert page.locator(".edge.in").count() == 2  # into the part that holds it, and on to it


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["svg", "png"])
def test_a_picture_is_saved_as_it_is_seen(opened, net, kind):
    page = opened(net, hash="#as=share&much=50")
    page.click("summary")
    with page.expect_download() as saved:
        page.click(f"#{kind}")
    data = saved.value.path().read_bytes()
    assert saved.value.suggested_filename == f"net.{kind}"
    if kind == "svg":
        root = ElementTree.fromstring(data)
        texts = {one.text for one in root.iter("{http://www.w3.org/2000/svg}text")}
        assert (
            {"stem", "head", "×3"} <= texts and b"fill:rgb" in data and b"scale" not in data[:200]
        )
    else:
        assert data[:4] == b"\x89PNG"
        width, height = struct.unpack(">II", data[16:24])
        drawn = page.evaluate("archgraph.app.panes[0].model.root.layout")
        assert (width, height) == (math.ceil(2 * drawn["w"]), math.ceil(2 * drawn["h"]))


def test_help_opens_by_its_key(opened, net):
    page = opened(net)
    page.keyboard.press("?")
    assert page.locator("#helping").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("#helping").is_hidden()


def test_counterparts_are_level_and_marks_have_a_legend(opened, family):
    """However unlike the heights of their parts, opened or closed, from the first look on."""
    page = opened([family.graph, *(one.graph for one in family.clients[1:])], hash="#by=none")
    tops = """() => archgraph.app.panes.map(pane => Object.fromEntries(
      pane.model.children(pane.model.root).map(item =>
        [item.name, item.view.g.querySelector("rect.frame").getBoundingClientRect().top])))"""
    for act in ("#less", "#more", "#fit"):
        page.click(act)
        first, *others = page.evaluate(tops)
        for one in others:
            for name in first.keys() & one.keys():
                assert one[name] == pytest.approx(first[name], abs=0.5), (act, name)
    assert page.locator("#marks .swatch").count() > 0
    assert "narrower" in page.inner_text("#marks")


@pytest.mark.full
def test_networks_without_a_common_part_say_so(opened, net):
    other = trace(nn.Conv2d(3, 5, 3), torch.zeros(1, 3, 8, 8)).graph
    page = opened([net, other])
    assert "nothing in common" in text(page)
    assert page.locator("[data-mark]").count() == 0


def test_the_whole_graph_says_where_its_parameters_are(opened, net):
    page = opened(net)
    section = page.locator("#panel section", has_text="Where the parameters are")
    rows = section.locator("tbody tr").all_inner_texts()
    assert [row.split()[0] for row in rows] == ["layers", "stem", "head"]  # the largest first
    assert rows[0].startswith("layers ×3")
    sizes = {p.name: math.prod(p.shape) for p in net.params}
    total = sum(sizes.values())
    stem = sum(size for name, size in sizes.items() if name.startswith("stem."))
    assert f"{stem / total:.0%}, {stem}".replace("%", " %") in rows[1]
    section.locator("button", has_text="stem").click()
    assert f"{stem} ({stem / total:.0%})".replace("%", " %") in text(page)


@pytest.mark.full
def test_parts_say_what_the_submodel_has_of_them(opened, family):
    """A closed section counts the blocks that stay; an axis says how many positions do."""
    page = opened(family, hash="#as=client2")
    page.click("#less")
    assert "2 of 3 blocks" in item(page, "s1").text_content()
    item(page, "s1").click()
    assert "short: 2 of 3 blocks" in text(page)
    page.select_option("#as", "client1")  # the panel follows
    assert "3 × (attention" in item(page, "s1").text_content()
    assert " of 3 blocks" not in item(page, "s1").text_content()
    assert "2 of 3 blocks" not in text(page)
    item(page, "s0").click()
    assert "8 positions, channels\n4 of them in narrow" in text(page)
    page.select_option("#as", "whole")
    assert "of them in" not in text(page)
