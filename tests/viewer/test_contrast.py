"""What is drawn can be seen (WCAG 2.1, AA): words at 4.5:1, arrows, borders and frames at 3:1.

The colours are those that the browser computes for a page and those in the SVG of a picture, over
the whole ramp of an overlay.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from archgraph.display.colours import PAPER, SCALE, blend
from archgraph.display.cover import Cover
from archgraph.display.picture import draw
from tests.display.test_colours import contrast

LEAST = {"words": 4.5, "line": 3.0, "frame": 3.0}
SVG = "{http://www.w3.org/2000/svg}"

# Distinct pairs of what is rendered: kind, colour, the colour behind it, other colours of it, and a
# name. What is outside the pictures is compared where `all` is set.
PAIRS = """all => {
  const style = getComputedStyle;
  const channels = (text) =>
    text === "none" ? [0, 0, 0, 0] : [...text.match(/[\\d.]+/g).map(Number), 1].slice(0, 4);
  const opacity = (one) =>
    one.nodeType === 1 ? Number(style(one).opacity) * opacity(one.parentNode) : 1;
  const over = (colour, back, one) => {
    const [r, g, b, a] = channels(colour), share = a * opacity(one);
    return [r, g, b].map((v, i) => Math.round(v * share + back[i] * (1 - share)));
  };
  const body = channels(style(document.body).backgroundColor);
  const around = (item) => {
    const outer = item.parentNode.closest("g.item");
    return outer ? within(outer) : body;
  };
  const frameOf = (item) => item.querySelector(":scope > .frame:not(.behind)");
  const within = (item) => {
    const frame = frameOf(item);
    return frame ? over(style(frame).fill, around(item), frame) : body;
  };
  const pairs = new Map();
  const add = (kind, one, colour, back, name, others = []) => {
    const pair = [kind, over(colour, back, one), back.slice(0, 3), others];
    pairs.set(String(pair), [...pair, name]);
  };
  for (const item of document.querySelectorAll(".area g.item")) {
    const name = item.getAttribute("aria-label").slice(0, 30);
    const every = (...selectors) =>
      item.querySelectorAll(selectors.map((one) => `:scope > ${one}`).join());
    for (const text of every("text", ".edges text")) {
      const back = text.matches(".badge") ? around(item) : within(item);
      add("words", text, style(text).fill, back, `${name}: ${text.textContent}`);
    }
    for (const line of every(".edges path", ".left", ".toggle path")) {
      const sign = line.matches(".sign") && channels(style(line.previousSibling).fill);
      add("line", line, style(line).stroke, sign || within(item), name);
    }
    const frame = frameOf(item), back = around(item);
    if (!frame) continue;
    const { stroke } = style(frame);
    // A mark or a selection has a thick border, which is seen against what is around.
    if (!item.matches("[data-mark], .selected")) add("frame", frame, stroke, within(item), name);
    // A box ends where its border or its fill differs from what is around.
    add("frame", frame, stroke, back, `${name}, from outside`, [within(item).slice(0, 3)]);
  }
  const behind = (one) => {
    const colour = channels(style(one).backgroundColor);
    return colour[3] ? colour : behind(one.parentNode);
  };
  for (const one of all ? document.querySelectorAll("body *") : []) {
    if (one.closest(".area, script, noscript, option") || !one.getClientRects().length) continue;
    const { color, borderTopColor, borderTopWidth } = style(one);
    const text = [...one.childNodes].find((part) => part.nodeType === 3 && part.data.trim());
    if (text) add("words", one, color, behind(one), text.data.slice(0, 30));
    const { placeholder } = one;
    if (placeholder) add("words", one, style(one, "::placeholder").color, behind(one), placeholder);
    if (one.matches("button, select, input, .swatch i") && parseFloat(borderTopWidth)) {
      add("line", one, borderTopColor, behind(one.parentNode), one.outerHTML.slice(0, 40));
    }
  }
  return [...pairs.values()];
}"""


def unseen(pairs):
    """Pairs that differ too little, with their contrast."""
    found = set()
    for kind, colour, behind, others, name in pairs:
        several = {hexadecimal(one) for one in (colour, *others)}
        value = max(contrast(one, hexadecimal(behind)) for one in several)
        if value < LEAST[kind]:
            found.add((round(value, 2), kind, name, hexadecimal(behind), *sorted(several)))
    return found


def hexadecimal(colour):
    """A colour of a browser or of an SVG."""
    names = {"white": "#ffffff", "black": "#000000"}
    return names.get(colour, colour) if isinstance(colour, str) else f"#{bytes(colour).hex()}"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_all_of_a_page_can_be_seen_on_every_colour(opened, family, dark):
    page = opened(family, dark=dark)
    page.emulate_media(reduced_motion="reduce", color_scheme="dark" if dark else "light")
    for _ in range(4):
        page.click("#more")
    kinds: set[str] = set()

    def look(what, everywhere=True):
        pairs = page.evaluate(PAIRS, everywhere)
        kinds.update(kind for kind, *_ in pairs)
        assert unseen(pairs) == set(), what
        return pairs

    for by in ("none", "kinds"):
        page.evaluate("by => archgraph.app.tint(by)", by)
        look(by)
    page.evaluate("archgraph.app.overlays.weights.at = () => archgraph.share")
    fills = set()
    for shape in ("whole", "share", "client2"):
        page.evaluate("as => archgraph.app.shape(as)", shape)
        for step in range(0, 21, 1 if shape == "whole" else 5):
            page.evaluate(
                "share => { archgraph.share = share; archgraph.app.tint('weights'); }", step / 20
            )
            pairs = look((shape, step / 20), everywhere=step == 0)  # the rest stays as it is
            fills |= {tuple(back) for kind, _, back, *_ in pairs if kind == "frame"}
    rgb = [tuple(int(blend(SCALE, i / 20)[at : at + 2], 16) for at in (1, 3, 5)) for i in range(21)]
    near = [min(max(abs(a - b) for a, b in zip(one, f, strict=True)) for f in fills) for one in rgb]
    assert kinds == LEAST.keys() and max(near) <= 1  # the whole ramp was looked at
    page.evaluate("(({ app }) => app.select(app.panes[0], app.panes[0].visible()[3]))(archgraph)")
    assert page.locator(".edge.in, .edge.out").count() > 1
    look("selected")
    page.evaluate("archgraph.app.shape('whole'); archgraph.app.arrange([0, 2, 3])")
    assert page.locator("[data-mark]").count() > 3
    look("side by side")


def shapes(element):
    """Filled areas and borders of a group: fill, border, and the box of its points."""
    for one in (*element.iter(f"{SVG}polygon"), *element.iter(f"{SVG}path")):
        numbers = [*map(float, re.findall(r"-?[\d.]+", one.get("points") or one.get("d")))]
        xs, ys = numbers[::2], numbers[1::2]
        yield one.get("fill"), one.get("stroke"), (min(xs), min(ys), max(xs), max(ys))


@pytest.mark.parametrize("covered", [False, True])
def test_all_of_a_picture_can_be_seen_on_every_colour(net, tmp_path: Path, covered):
    leaves = [param.name for param in net.params]
    parts = {name: (i / (len(leaves) - 1),) for i, name in enumerate(leaves)}
    path = tmp_path / "net.svg"
    cover = Cover((1,), parts) if covered else None
    draw(net, path, cover=cover, detail="node", fold=False)
    groups = list(ElementTree.parse(path).iter(f"{SVG}g"))
    kinds = {k: [g for g in groups if g.get("class") == k] for k in ("node", "edge", "cluster")}
    fills = {fill for g in kinds["node"] for fill, _, _ in shapes(g)}
    pairs: list[tuple[Any, ...]] = []
    for group in kinds["cluster"]:
        frame, *_ = shapes(group)
        assert frame[0] in {"none", PAPER}, "a frame is not filled"
        pairs.append(("frame", frame[1], PAPER, (), "frame"))
    for group in kinds["node"]:
        for fill, border, _ in shapes(group):
            pairs += [("frame", border, back, (), "box") for back in (fill, PAPER)]
        pairs += [("words", t.get("fill"), fill, (), t.text) for t in group.iter(f"{SVG}text")]
    for group in kinds["edge"]:
        pairs += [("line", border, PAPER, (), "arrow") for _, border, _ in shapes(group)]
    # The legend: words stand on the cell that is drawn around them.
    areas = [(fill, box) for g in groups[:1] for fill, _, box in shapes(g) if fill != "none"]
    texts = [t for g in groups[:1] for t in g.iter(f"{SVG}text") if (t.text or "").strip("\xa0 ■")]
    for text in texts:
        x, y = float(text.get("x", "")), float(text.get("y", ""))
        behind = [
            f for f, (left, top, right, low) in areas if left <= x <= right and top <= y <= low
        ]
        pairs.append(("words", text.get("fill"), behind[-1], (), text.text))
    assert unseen(pairs) == set()
    assert len(fills) > (10 if covered else 4) and {kind for kind, *_ in pairs} == LEAST.keys()
