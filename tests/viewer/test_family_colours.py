"""The colour and the numbers of every block of a family, on its page and in its picture.

Both are compared with the transfers: by position, without the code that they share.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from archgraph.analysis.structure import structure
from archgraph.display.colours import SCALE, blend
from archgraph.display.cover import coverage, percent
from archgraph.display.picture import draw
from archgraph.federation.family import Family, resolve
from archgraph.language import load_family
from archgraph.states.dimension_map import DimMap

FAMILIES = Path("specs/families")
NAMES = ("fedfa_pre_resnet", "recipfl_cifar100_exits", "heterofl_fashion")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module", params=NAMES)
def shown(request) -> Family:
    return resolve(load_family(FAMILIES / f"{request.param}.yaml"))


def counted(family: Family) -> dict[str, tuple[int, float]]:
    """By block: how many clients have any of its weights, and the share that a client has."""
    graph, result = family.graph, {}
    sizes = {p.name: math.prod(p.shape) for p in graph.params if p.role == "parameter"}
    for block in structure(graph).blocks:
        leaves = {k for n in block.nodes for k in graph.node[n].leaves() if k in sizes}
        clients, weights, total = 0, 0.0, sum(sizes[k] for k in leaves)
        for kind in family.clients:
            taken = dict.fromkeys(leaves, 0)
            for entry in kind.transfer.entries.values():
                if entry.source in taken:
                    dims, shape = entry.dims, graph.param[entry.source].shape
                    rows = [len({*positions(d)}) if d else None for d in dims]
                    pairs = zip(rows or [None] * len(shape), shape, strict=True)
                    taken[entry.source] = math.prod(size if n is None else n for n, size in pairs)
            clients += kind.count * any(taken.values())
            weights += kind.count * sum(taken.values()) / max(total, 1)
        if total:
            result[block.name] = clients, weights / sum(kind.count for kind in family.clients)
    return result


def positions(dim: DimMap) -> list[int]:
    """The positions that a client takes of a dimension."""
    return dim.gather(torch.arange(dim.size), 0).tolist()


def told(clients: int, weights: float, total: int) -> str:
    return f"{clients} of {total} clients {percent(weights)} of the weights over all"


def test_a_picture_paints_and_tells_each_block(shown, tmp_path):
    draw(shown.graph, tmp_path / "a.svg", cover=coverage(shown), detail="section", fold=False)
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    groups = {
        kind: [g for g in root.iter(f"{SVG}g") if g.get("class") == kind]
        for kind in ("node", "cluster")
    }
    words = {
        id(g): [t.text or "" for t in g.iter(f"{SVG}text")]
        for kind in groups.values()
        for g in kind
    }
    total = sum(kind.count for kind in shown.clients)
    # A section of one block is one box of its name.
    sections = structure(shown.graph).sections
    alone = {s.blocks[0].name: s.name for s in sections if len(s.blocks) == 1}
    for name, (clients, weights) in counted(shown).items():
        short = {name, name.partition(".")[2], alone.get(name, name)}
        boxes = [g for g in groups["node"] if short & {*words[id(g)]}]
        fills = {
            path.get("fill")
            for g in boxes
            for path in (*g.iter(f"{SVG}path"), *g.iter(f"{SVG}polygon"))
        }
        assert blend(SCALE, weights) in fills, name
        frames = [
            " ".join(words[id(g)])
            for kind in groups.values()
            for g in kind
            if short & {*words[id(g)]}
        ]
        assert any(told(clients, weights, total) in text.replace(" · ", " ") for text in frames), (
            name
        )


def test_a_page_paints_and_tells_each_block(shown, opened):
    page = opened(shown)
    found = page.evaluate(
        """() => { const { app } = archgraph, [pane] = app.panes, { model } = pane;
        return model.data.blocks.map((block, i) => {
          const item = model.holder(model.blockOps[i][0], "block");
          app.visit(pane, item);
          if (pane.opened(item)) pane.toggle(item, false);
          const frame = item.view.g.querySelector(":scope > rect.frame:not(.behind)");
          return [block[0], frame.style.fill, app.panel.host.innerText.replace(/\\s+/g, " ")];
        }); }"""
    )
    total, expected = sum(kind.count for kind in shown.clients), counted(shown)
    assert {name for name, _, _ in found} >= expected.keys()
    for name, fill, words in found:
        if name not in expected:
            assert not fill, name  # nothing to feed: no colour
            continue
        clients, weights = expected[name]
        colour = blend(SCALE, weights)
        rgb = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        assert [int(n) for n in re.findall(r"\d+", fill)] == pytest.approx(rgb, abs=1), name
        assert told(clients, weights, total).replace("clients ", "clients, ") in words, name
