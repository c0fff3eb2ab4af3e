"""The layout of the page over random graphs: arrows, branches and long skips."""

from __future__ import annotations

import math
import random
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import archgraph as ag
import archgraph.viewer as viewer
from archgraph.capture.trace import trace

# Every graph laid out; spots and ends of paths by their numbers.
LAID = """graphs => {
  const wide = text => 7 * text.length;
  SCRIPT
  return graphs.map(({ sizes, edges, columns }) => {
    const split = rows => broken(rows.map(row => row.h), columns);
    const { spots, paths, words, bands, w } = layered(sizes, edges, split);
    return { w, bottoms: bands.map(band => band.bottom),
      spots: spots.map(({ x, y, w, h, layer, open }) => ({ x, y, w, h, layer, open })),
      paths: paths.map(({ from, to, ...path }) => ({ ...path, layer: from.layer })),
      words: words.map(word => ({ ...word, at: spots.indexOf(word.at), width: wide(word.text) })) };
  });
}"""
# Where arrows inside and outside each open part meet its edge, on the screen.
CROSSINGS = """edge => [...document.querySelectorAll("g.item.open:not(.graph)")].map(part => {
  const level = part.querySelector("rect.frame:not(.behind)").getBoundingClientRect()[edge];
  const ends = (lines, last) => [...new Set([...lines.children].filter(line => line.matches("path"))
    .map(line => line.getPointAtLength(last ? line.getTotalLength() : 0)
      .matrixTransform(line.getScreenCTM()))
    .filter(({ y }) => Math.abs(y - level) < (last ? 3 : 30))
    .map(({ x }) => Math.round(x)))].sort((a, b) => a - b);
  const [inner, outer] = [part, part.parentNode.closest("g.item")]
    .map(at => at.querySelector(":scope > .edges"));
  return [ends(inner, edge === "bottom"), ends(outer, edge === "top")];
})"""
SCRIPT = (Path(viewer.__file__).parent / "page/layout.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def laid(browser: Any) -> Any:
    page = browser.new_page()
    yield lambda graphs: page.evaluate(LAID.replace("SCRIPT", SCRIPT), graphs)
    page.close()


def size(rng: random.Random, number: int) -> dict[str, Any]:
    return {
        "w": rng.randint(56, 260),
        "h": rng.choice((30, 47, 64, 300)),
        "entry": 0,
        "exit": 0,
        "open": rng.random() < 0.3,
        "blocks": rng.randint(0, 3),
        "name": f"part{number}",
    }


def edge(tail: int, head: int, quiet: bool = False) -> dict[str, Any]:
    return {"tail": tail, "head": head, "label": "8×8", "quiet": quiet, "room": 60}


def random_graphs(seed: int, many: int, quiet: float = 0.1, cycles: float = 0.1) -> list[Any]:
    """A chain with shortcuts, sources, cycles, an entry and an exit."""
    rng = random.Random(seed)
    graphs = []
    for _ in range(many):
        count = rng.randint(2, 14)
        pairs = {(i, i + 1): False for i in range(count - 1) if rng.random() < 0.85}
        for a, b in combinations(range(count), 2):
            if rng.random() < 1.5 / count:
                pairs.setdefault((a, b), rng.random() < quiet)
            if rng.random() < cycles / count:
                pairs[(b, a)] = True
        if rng.random() < 0.5:
            pairs |= {(-1, 0): False, (-1, rng.randrange(count)): False, (count - 1, -2): False}
        graphs.append(
            {
                "sizes": [size(rng, i) for i in range(count)],
                "edges": [edge(*pair, hush) for pair, hush in pairs.items()],
                "columns": rng.choice((1, 1, 2, 3)),
            }
        )
    return graphs


def frame(spot: Any) -> tuple[float, float, float, float]:
    x, y, w, h = (spot[key] for key in "xywh")
    return x - w / 2, y, x + w / 2, y + h


def meet(a: Any, b: Any, margin: float = 1) -> bool:
    """Whether two rectangles (left, top, right, low) have a common part."""
    return all(max(a[i], b[i]) + margin < min(a[i + 2], b[i + 2]) for i in (0, 1))


def room(word: Any) -> tuple[float, float, float, float]:
    low, high = sorted((word["x"], word["x"] + word["side"] * (6 + word["width"])))
    return low, word["y"] - 11, high, word["y"] + 3


def test_no_arrow_and_no_word_crosses_a_box(laid):
    """A bend stays in the rectangle between its ends."""
    for picture in laid(random_graphs(1, 60)):
        boxes = [frame(spot) for spot in picture["spots"]]
        rectangles = []
        for path in picture["paths"]:
            for (x, y), (x1, y1) in pairwise(path["points"]):
                low, high = min(y, y1), max(y, y1)
                rectangles.append((min(x, x1) - 2, low - 1, max(x, x1) + 2, high + 1))
        rectangles += map(room, picture["words"])
        assert not [(r, box) for r in rectangles for box in boxes if meet(r, box)]
        for number, (spot, box) in enumerate(zip(picture["spots"], boxes, strict=True)):
            ends = [p["points"][-1] for p in picture["paths"] if p["edge"]["head"] == number]
            assert all(box[0] < x < box[2] and y == spot["y"] for x, y in ends)
            assert spot["open"] or len({x for x, _ in ends}) == len(ends)
        assert all(-3 <= r[0] and r[2] <= picture["w"] + 3 for r in rectangles + boxes)


def test_a_merge_stands_below_the_middle_of_its_branches(laid):
    rng = random.Random(2)
    graphs, ends = [], []
    for _ in range(30):
        lengths = [rng.randint(1, 3) for _ in range(rng.randint(2, 5))]
        edges, firsts, number = [edge(-1, 0)], [], 0
        merge = sum(lengths) + 1
        for length in lengths:
            firsts.append(number + 1)
            chain = [0, *range(number + 1, number + length + 1), merge]
            number += length
            edges += [edge(a, b) for a, b in pairwise(chain)]
        shortcut = [edge(0, merge)] if rng.random() < 0.3 else []
        edges += [*shortcut, edge(merge, -2)]
        alike = {"blocks": 0} | ({"w": 120} if rng.random() < 0.5 else {})
        sizes = [size(rng, i) | alike for i in range(merge + 1)]
        graphs.append({"sizes": sizes, "edges": edges, "columns": 1})
        ends.append((firsts, merge, lengths if "w" in alike else []))
    for picture, (firsts, merge, lengths) in zip(laid(graphs), ends, strict=True):
        xs = [spot["x"] for spot in picture["spots"]]
        assert xs[merge] == pytest.approx(xs[0], abs=0.01)
        assert xs[merge] == pytest.approx(sum(xs[i] for i in firsts) / len(firsts), abs=0.01)
        for first, length in zip(firsts, lengths, strict=False):  # a branch is straight
            assert xs[first : first + length] == pytest.approx([xs[first]] * length, abs=0.01)


def test_the_trunk_ends_where_nothing_goes_on(laid):
    """A loop beside the way to the end is longer than that."""
    pairs = [(0, 1), (1, 2), (1, 3), (3, 4), (4, 5), (5, 1)]
    sizes = [size(random.Random(0), i) | {"blocks": 0} for i in range(6)]
    graph = {"sizes": sizes, "edges": [edge(*pair) for pair in pairs], "columns": 1}
    ((first, branch, end, *_),) = (picture["spots"] for picture in laid([graph]))
    assert first["x"] == branch["x"] == end["x"]


def lanes(picture: Any) -> list[tuple[int, float, float, float]]:
    """Upright ways past rows: tail, x, upper and lower end."""
    found = []
    for path in picture["paths"]:
        between = path["points"][2:-2] if path["sides"] else path["points"][2:4]
        for (x, y), (x1, y1) in pairwise(between):
            if x == x1 and (path["ways"] or path["lane"] is not None):
                found.append((path["edge"]["tail"], x, min(y, y1), max(y, y1)))
    return found


def test_a_long_skip_has_a_lane_of_its_own_and_says_so_at_both_ends(laid):
    many = 0
    graphs = random_graphs(3, 60, quiet=0, cycles=0)
    for graph, picture in zip(graphs, laid(graphs), strict=True):
        rows = [spot["layer"] for spot in picture["spots"]]
        blocks = [0] * (max(rows) + 1)
        for row, part in zip(rows, graph["sizes"], strict=True):
            blocks[row] = max(blocks[row], part["blocks"])
        said = {(word["at"], word["head"]): "" for word in picture["words"]}
        for word in picture["words"]:
            said[word["at"], word["head"]] += word["text"]
        for path in picture["paths"]:
            tail, head = path["edge"]["tail"], path["edge"]["head"]
            if min(tail, head) < 0 or sum(blocks[rows[tail] + 1 : rows[head]]) < 2:
                continue
            many += 1
            for end, other, says in ((tail, head, "to "), (head, tail, "skip from ")):
                text = said[end, int(end == head)]
                assert text.startswith(says) and (f"part{other}" in text or " more" in text)
            (x, y), (x1, y1) = path["points"][2:4]
            assert x == x1
            for is_head, turn in enumerate((x, path["points"][-3][0])):
                key = ((tail, head)[is_head], is_head, path["sides"][is_head])
                words = [w for w in picture["words"] if (w["at"], w["head"], w["side"]) == key]
                assert min(turn, words[0]["x"]) <= room(words[0])[0]
                assert room(words[0])[2] <= max(turn, words[0]["x"])
            for other, x2, top, low in lanes(picture):
                beside = max(top, min(y, y1)) < min(low, max(y, y1))
                assert abs(x - x2) >= 7 or other == tail or not beside, (path, other)
    assert many > 50


def test_lanes_cross_no_words_and_no_way_to_the_side_goes_on_in_another(laid):
    pairs = [*pairwise(range(10)), (1, 8), (2, 7), (3, 6)]
    sizes = [size(random.Random(0), i) | {"h": 64, "blocks": 2} for i in range(10)]
    graphs = [
        {
            "sizes": [sizes[0] | {"h": 30 + shift}, *sizes[1:]],  # level with a way in
            "edges": [edge(*pair) for pair in pairs],
            "columns": 2,
        }
        for shift in (2, 123)
    ]
    pairs = [(0, 1), (1, 2), (1, 3), (1, 4), (2, 4), (3, 5), (4, 5), (0, 5)]
    widths = enumerate((66, 152, 93, 66, 156, 115))
    sizes = [size(random.Random(0), i) | {"w": w, "h": 30, "blocks": 0} for i, w in widths]
    gelu = {"sizes": sizes, "edges": [edge(*pair) for pair in pairs], "columns": 1}
    for number, picture in enumerate(laid([gelu, *graphs, *random_graphs(4, 60, cycles=0)])):
        strips = [(x - 2, top, x + 2, low) for _, x, top, low in lanes(picture)]
        words = [room(word) for word in picture["words"]]
        rows = [spot["layer"] for spot in picture["spots"]]
        for path in picture["paths"]:  # a label, where neither a neighbour nor a word needs room
            at = path["edge"]["tail"]
            alone = rows.count(rows[at]) == 1 and all(w["at"] != at for w in picture["words"])
            if at >= 0 and (alone or not number):
                (x, _), bottom = path["points"][0], picture["bottoms"][path["layer"]]
                side = -1 if path["before"] else 1
                words.append(room({"x": x, "y": bottom + 15, "side": side, "width": 50}))
        assert not [(word, strip) for word in words for strip in strips if meet(word, strip)]
        runs = [
            (path["edge"]["tail"], y, min(x, x1), max(x, x1))
            for path in picture["paths"]
            for (x, y), (x1, y1) in pairwise(path["points"])
            if y == y1 and path["sides"]
        ]
        for (tail, y, low, high), (other, y1, low1, high1) in combinations(runs, 2):
            assert tail == other or abs(y - y1) >= 1 or max(low, low1) > min(high, high1)


def framed(seed: int, many: int) -> list[Any]:
    """A chain in a frame that two or three values enter and leave, some dashed."""
    rng = random.Random(seed)
    graphs = []
    for _ in range(many):
        count = rng.randint(2, 8)
        pairs = [*pairwise(range(count)), (-1, 0), (count - 1, -2)]
        pairs += [(tail, rng.randrange(1, count)) for tail in (-1, -3, -3, -5)[: rng.randint(2, 4)]]
        pairs += [(rng.randrange(count), head) for head in (-2, -4, -6)[: rng.randint(1, 3)]]
        edges = [edge(*pair, pair[0] < -1 and rng.random() < 0.5) for pair in dict.fromkeys(pairs)]
        sizes = [size(rng, i) | {"w": rng.randint(100, 260)} for i in range(count)]
        for number, part in enumerate(sizes):
            into = [e for e in edges if e["head"] == number]
            if part["open"]:
                part["entries"] = [14 * i - 28 for i in range(len(into))]
                for port, e in enumerate(into):
                    e["port"] = port
                part["exits"] = [-30, 30]
                for exit, e in enumerate(e for e in edges if e["tail"] == number):
                    e["exit"] = exit % 2
        graphs.append({"sizes": sizes, "edges": edges, "columns": 1})
    return graphs


def bend(path: Any) -> list[tuple[float, float]]:
    """Points of an arrow up to the end of its first bend, about one pixel apart."""
    (x, y), (x1, y1), (x2, y2) = path["points"][:3]
    many = int(math.hypot(x2 - x1, y2 - y1)) + 1
    middle = (y1 + y2) / 2
    found = [(x, y + (y1 - y) * i / 8) for i in range(8)]
    for t in (i / many for i in range(many + 1)):
        a, b, c, d = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3
        found.append(((a + b) * x1 + (c + d) * x2, a * y1 + (b + c) * middle + d * y2))
    return found


def test_values_that_enter_or_leave_a_frame_apart_stay_apart(laid):
    """They share no stretch: neither where they bend first nor beside the boxes that they pass."""
    for picture in laid(framed(5, 60)):
        entering = [path for path in picture["paths"] if path["edge"]["tail"] < 0]
        starts = {path["edge"]["tail"]: path["points"][0][0] for path in entering}
        assert all(abs(a - b) >= 14 for a, b in combinations(starts.values(), 2))
        for head in range(len(picture["spots"])):
            ends = [p["x"] for p in picture["paths"] if p["edge"]["head"] == head]
            assert not picture["spots"][head]["open"] or len(set(ends)) == len(ends)
        arrivals = {p["edge"]["head"]: p["points"][-1][0] for p in picture["paths"]}
        leaving = [x for head, x in arrivals.items() if head < 0]
        assert all(abs(a - b) >= 14 for a, b in combinations(leaving, 2))
        for path in picture["paths"]:
            if (tail := path["edge"]["tail"]) >= 0:
                spot = picture["spots"][tail]
                off = (-30, 30)[path["edge"]["exit"]] if spot["open"] else 0
                assert path["points"][0][0] == pytest.approx(spot["x"] + off)
        for a, b in combinations(entering, 2):
            if a["edge"]["tail"] != b["edge"]["tail"]:
                other = bend(b)
                near = [min(math.dist(point, at) for at in other) < 2 for point in bend(a)]
                assert sum(near) < 12, (a, b)
        for one, two in combinations(lanes(picture), 2):
            beside = max(one[2], two[2]) < min(one[3], two[3])
            assert one[0] == two[0] or abs(one[1] - two[1]) >= 7 or not beside


def test_results_stand_in_the_order_of_the_exits_that_they_leave_by(laid):
    parts = [size(random.Random(0), i) | {"w": 60, "h": 30, "open": False} for i in range(3)]
    parts[0] |= {"w": 200, "open": True, "exits": [-30, 30]}
    for wide in (1, 2):
        parts[wide]["w"] = 120
        edges = [edge(0, 1) | {"exit": 1}, edge(0, 2) | {"exit": 0}]
        ((_, right, left),) = (
            one["spots"] for one in laid([{"sizes": parts, "edges": edges, "columns": 1}])
        )
        assert left["x"] < right["x"]


def test_values_of_one_arrow_that_leave_apart_keep_their_shapes(browser):
    page = browser.new_page()
    edges = page.evaluate(
        """() => { SCRIPT
          const labels = { 1: "3", 2: "5", "quiet 3": "7" }, sources = Object.keys(labels);
          const edge = { tail: 0, head: 1, label: "3", quiet: false, sources, labels };
          return ported(edge, new Map(sources.map((source, i) => [source, i])), []); }""".replace(
            "SCRIPT", SCRIPT
        )
    )
    shown = [(one["exit"], one["label"], one["quiet"]) for one in edges]
    assert shown == [(0, "3", False), (1, "5", False), (2, "7", True)]
    page.close()


class Split(nn.Module):
    """A section with two results of different shapes, the later one made by a longer way."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.short, self.long = nn.Linear(8, 3), nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 5))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.stem(x)
        return self.short(x), self.long(x.relu())


@pytest.mark.parametrize(("model", "edge"), [("unet", "top"), ("split", "bottom")])
def test_an_arrow_continues_where_it_enters_or_leaves_a_frame(opened, model, edge):
    if model == "unet":
        page = opened(ag.load("specs/models/small_unet.yaml"))
    else:
        page = opened(trace(Split(), torch.zeros(1, 6)).graph)
    crossings = page.evaluate(CROSSINGS, edge)
    assert max(len(inner) for inner, _ in crossings) == 2
    for inner, outer in crossings:
        assert inner == pytest.approx(outer, abs=1)
    if model == "split":  # each arrow has the shape of its own value
        flows = page.locator("g.graph > .edges > text.flow").all_text_contents()
        assert flows.count("3") == flows.count("5") == 1
