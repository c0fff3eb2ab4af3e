"""The layout of the page over random graphs: arrows, branches and long skips."""

from __future__ import annotations

import random
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest

import archgraph.viewer as viewer

# Every graph laid out; spots and ends of paths by their numbers.
LAID = """graphs => {
  const wide = text => 7 * text.length;
  SCRIPT
  return graphs.map(({ sizes, edges, columns }) => {
    const split = rows => broken(rows.map(row => row.h), columns);
    const { spots, paths, words, w } = layered(sizes, edges, split);
    return { w, spots: spots.map(({ x, y, w, h, layer }) => ({ x, y, w, h, layer })),
      paths: paths.map(({ from, to, ...path }) => path),
      words: words.map(word => ({ ...word, at: spots.indexOf(word.at), width: wide(word.text) })) };
  });
}"""
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


def test_no_arrow_and_no_word_crosses_a_box(laid):
    """A bend stays in the rectangle between its ends."""
    for picture in laid(random_graphs(1, 60)):
        boxes = [frame(spot) for spot in picture["spots"]]
        rectangles = []
        for path in picture["paths"]:
            for (x, y), (x1, y1) in pairwise(path["points"]):
                low, high = min(y, y1), max(y, y1)
                rectangles.append((min(x, x1) - 2, low - 1, max(x, x1) + 2, high + 1))
        for word in picture["words"]:
            ends = word["x"], word["x"] + word["side"] * (6 + word["width"])
            rectangles.append((min(ends), word["y"] - 11, max(ends), word["y"] + 3))
        assert not [(r, box) for r in rectangles for box in boxes if meet(r, box)]
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
        sizes = [size(rng, i) | {"blocks": 0} for i in range(merge + 1)]
        graphs.append({"sizes": sizes, "edges": edges, "columns": 1})
        ends.append((firsts, merge))
    for picture, (firsts, merge) in zip(laid(graphs), ends, strict=True):
        xs = [spot["x"] for spot in picture["spots"]]
        assert xs[merge] == pytest.approx(xs[0], abs=0.01)
        assert xs[merge] == pytest.approx(sum(xs[i] for i in firsts) / len(firsts), abs=0.01)


def test_a_long_skip_has_a_lane_of_its_own_and_says_so_at_both_ends(laid):
    many = 0
    graphs = random_graphs(3, 60, quiet=0, cycles=0)
    for graph, picture in zip(graphs, laid(graphs), strict=True):
        blocks: dict[int, int] = {}
        for spot, part in zip(picture["spots"], graph["sizes"], strict=True):
            blocks[spot["layer"]] = max(blocks.get(spot["layer"], 0), part["blocks"])
        said: dict[tuple[int, int], str] = {}
        for word in picture["words"]:
            said[word["at"], word["head"]] = said.get((word["at"], word["head"]), "") + word["text"]
        lanes = [
            (path["edge"]["tail"], *sorted(((x, y), (x1, y1)), key=lambda p: p[1]))
            for path in picture["paths"]
            for (x, y), (x1, y1) in pairwise(
                path["points"][2:-2] if path["sides"] else path["points"][2:4]
            )
            if x == x1 and (path["lane"] is not None or path["ways"])
        ]
        for path in picture["paths"]:
            tail, head = path["edge"]["tail"], path["edge"]["head"]
            ends = (
                [picture["spots"][i]["layer"] for i in (tail, head)]
                if min(tail, head) >= 0
                else [0, 0]
            )
            if sum(blocks.get(i, 0) for i in range(ends[0] + 1, ends[1])) < 2:
                continue
            many += 1
            for end, other, says in ((tail, head, "to "), (head, tail, "skip from ")):
                text = said[end, int(end == head)]
                assert text.startswith(says) and (f"part{other}" in text or " more" in text)
            (x, y), (x1, y1) = path["points"][2:4]
            assert x == x1
            for other, (x2, top), (_, low) in lanes:
                if other != tail and max(top, min(y, y1)) < min(low, max(y, y1)):
                    assert abs(x - x2) >= 7, (path, other)
        runs = [
            (path["edge"], y, *sorted((x, x1)))
            for path in picture["paths"]
            for (x, y), (x1, y1) in pairwise(path["points"])
            if y == y1 and path["sides"]
        ]
        for (one, y, low, high), (other, y1, low1, high1) in combinations(runs, 2):
            apart = abs(y - y1) >= 1 or max(low, low1) > min(high, high1)
            assert apart or one["tail"] == other["tail"], (one, other)
    assert many > 50
