"""Pictures for print: at most as wide as asked, no taller than a page, in letters to be read."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
from torch import nn

from archgraph.analysis.structure import structure
from archgraph.capture.trace import trace
from archgraph.display import coverage
from archgraph.display.cover import Cover
from archgraph.display.dot import wrapped_lines
from archgraph.display.labels import LabelLine
from archgraph.display.picture import draw, render
from archgraph.display.printed import READABLE, SMALLEST, TALL, width_in_points
from archgraph.display.scene import scene
from archgraph.errors import RunError
from archgraph.rewrites.take import take
from archgraph.states import Transfer


def chain(*widths):
    """A graph of linear layers."""
    pairs = itertools.pairwise(widths)
    layers = [m for a, b in pairs for m in (nn.Linear(a, b), nn.ReLU())]
    return trace(nn.Sequential(*layers), torch.zeros(1, widths[0])).graph


def box_of(svg):
    """Width and height of a picture, in points."""
    ((wide, tall),) = re.findall(r'<svg width="(\d+)pt" height="(\d+)pt"', svg)
    return float(wide), float(tall)


@pytest.mark.sample(3)
@pytest.mark.parametrize("width", ["2.4in", "3.3in", "7in"])
@pytest.mark.parametrize("legend", [True, False])
def test_a_picture_for_print_is_as_wide_as_asked_and_its_letters_can_be_read(width, legend):
    graph = chain(*range(8, 16))
    text = draw(graph, width=width, title="", legend=legend)
    wide, tall = box_of(render(text).decode())
    assert wide <= width_in_points(width) + 1 and tall <= TALL + 1
    # Its natural size is larger by at most what shrinks letters of 8 points to 7.
    whole = box_of(render(re.sub(r"\tgraph \[size=.*\n", "", text)).decode())
    assert max(whole[0] / wide, whole[1] / tall) <= SMALLEST / READABLE * 1.02
    assert ("arrows: shapes" in text) == legend and 'POINT-SIZE="16"' not in text


@pytest.mark.full
def test_a_narrow_picture_has_less_detail():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    graph = trace(layer, torch.zeros(1, 5, 8)).graph
    texts = [draw(graph, width=width) for width in ("2.5in", "3in")]
    assert texts[0].count("tooltip=") < texts[1].count("tooltip=")


def test_a_picture_is_the_same_whatever_fonts_the_machine_has(tmp_path, monkeypatch):
    text = draw(chain(3, 4, 5), cover=Cover((2,), {"0.weight": (0.5,)}))
    here = [render(text, form) for form in ("plain", "png")]
    nothing = tmp_path / "fonts.conf"
    nothing.write_text("<fontconfig></fontconfig>")
    monkeypatch.setenv("FONTCONFIG_FILE", str(nothing))
    assert [render(text, form) for form in ("plain", "png")] == here


@pytest.mark.parametrize("width", ["3.3", "0in", "wide", "-2cm"])
def test_what_is_no_width_is_refused(width):
    graph = chain(2, 2)
    with pytest.raises(RunError, match="not a width"):
        draw(graph, width=width)


def test_a_width_for_no_picture_says_how_small_letters_would_be():
    graph = chain(2, 2)
    with pytest.raises(
        RunError, match=r"does not fit a page.*font size of [0-5]\.\d points at 5mm"
    ):
        draw(graph, width="5mm")


def test_a_font_is_that_of_all_words():
    graph = chain(2, 2)
    text = draw(graph, font="Times New Roman")
    assert text.count('fontname="Times New Roman"') == 3 and "Helvetica" not in text


def test_a_family_fits_a_column_with_its_legend():
    graph = chain(*range(8, 16))
    members = (take(graph, 0.5).transfer, 3), (Transfer.identity(graph), 1)
    text = draw(graph, width="3.3in", title="", cover=coverage(members))
    assert box_of(render(text).decode())[0] <= width_in_points("3.3in") + 1
    assert "share of the weights" in text


def test_a_tall_network_stands_in_columns_and_each_arrow_between_them_has_a_number_twice():
    graph = chain(*range(3, 23))
    text = draw(graph, width="7in", title="", legend=False)
    assert "packmode=array_tu" in text
    assert sorted(re.findall(r"%(\w+):", text)) == sorted(node.name for node in graph.nodes)
    numbers = re.findall(r"^\s*(n\d+)_(from|to)\d* \[label=(\d+)", text, re.M)
    leaves = {(tail, number) for tail, way, number in numbers if way == "from"}
    assert leaves and leaves == {(tail, number) for tail, way, number in numbers if way == "to"}


def test_an_overview_has_a_box_per_output_and_a_dotted_arrow_for_what_a_mask_is_made_of():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(9, 8)
            layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

        def forward(self, x, mask):
            hidden = self.layers(self.words(x), src_key_padding_mask=mask == 0)
            return {"hidden": hidden, "twice": hidden * 2}

    ids = torch.zeros(2, 5, dtype=torch.int64)
    graph = trace(Masked(), ids, ids).graph
    sections = [(s.name, [(b.name, b.nodes) for b in s.blocks]) for s in structure(graph).sections]
    picture = scene(graph, sections, detail="section", fold=False)
    assert [box.name for box in picture.boxes if box.kind == "output"] == [
        "hidden (output)", "twice (output)"
    ]  # fmt: skip
    attending = {box.name for box in picture.boxes if "attention" in str(box.lines)}
    dotted = [link for link in picture.links if link.mask]
    assert {(link.tail, link.head) for link in dotted} == {("mask", name) for name in attending}
    assert len(attending) == 3 and {link.tail for link in picture.links} >= {"x", "mask"}
    folded = scene(graph, sections, detail="section")
    assert any("3 × (attention" in str(box.lines) for box in folded.boxes)
    assert not any("mask of attention" in str(box.lines) for box in picture.boxes)


def test_lines_break_between_operators():
    line = LabelLine(
        "conv2d 3×3 → 128 | conv2d 1×1 → 64 · feed-forward words that are longer than a line", False
    )
    lines = [part.text for part in wrapped_lines([line], 27)]
    assert lines == [
        "conv2d 3×3 → 128 |", "conv2d 1×1 → 64 ·", "feed-forward words that are",
        "longer than a line",
    ]  # fmt: skip
