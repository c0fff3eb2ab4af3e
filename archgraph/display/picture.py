"""Draw a graph as DOT text, SVG, PNG or PDF, with the Graphviz library of pygraphviz."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from archgraph.analysis.structure import structure
from archgraph.display.columns import columns
from archgraph.display.cover import Cover, Reach
from archgraph.display.dot import Drawing
from archgraph.display.labels import count_parameters
from archgraph.display.legend import heading
from archgraph.display.markup import FONT
from archgraph.display.pieces import Detail
from archgraph.display.printed import fitting_page, letters_across
from archgraph.display.scene import Box, Scene, scene
from archgraph.errors import RunError
from archgraph.files import write
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph
from archgraph.notebook import MOST

FORMATS = ("dot", "svg", "png", "pdf")
SECONDS = 300.0
# From the most detailed to the least detailed.
DETAILS: tuple[Detail, ...] = ("node", "block", "section")


@takes_graph
def draw(
    graph: ArchGraph,
    path: str | os.PathLike[str] | None = None,
    *,
    cover: Cover | None = None,
    detail: Detail = "block",
    fold: bool = True,
    title: str | None = None,
    legend: bool = True,
    notes: Sequence[Sequence[str]] = (),
    width: str | None = None,
    font: str | None = None,
) -> str:
    """Draw a graph as a static picture, and return its DOT text.

    Sections and blocks are nested frames. Equal neighbouring blocks are drawn once, with a count
    (`×12`). Arrows are labelled with shapes without the batch axis. Operators that are used only in
    training are dashed. With `cover`, each block shows the number of clients that train it, and the
    fraction of its weights that clients have on average. The colour of the block's boxes shows the
    same fraction.

    Args:
        graph: The architecture.
        path: File for the picture: `.svg`, `.png`, `.pdf` or `.dot`. By default, no file is
            written.
        cover: Result of :func:`archgraph.display.cover.coverage`. Blocks with different coverage
            are drawn separately.
        detail: `node` draws a box for each operator. `block` draws an operator without weights in
            the same box as the operator before it. `section` draws a frame for each section and a
            box for each block.
        fold: Whether equal neighbouring blocks are drawn once, with a count.
        title: Heading. If empty, there is no heading. Default: the graph's name.
        legend: Whether to explain marks and colours below the heading.
        notes: Rows of a table below the heading; the first row has the column titles.
        width: Width in print, such as ``3.3in``, ``84mm`` or ``240pt``. The picture must fit this
            width and a height of 9 inches with a font size of at least 7 points. If the picture is
            too large, less detail than `detail` is drawn, down to one box per section. Up to three
            columns are used.
        font: An installed font, such as ``Times New Roman``.

    Raises:
        RunError: If the file cannot be written, its suffix is not a picture format, or the picture
            does not fit the width even with the least detail.

    Example:
        >>> from archgraph.graph.ir import ArchGraph, BATCH, Node, Ref, TensorType
        >>> kind = TensorType((BATCH, 8), "float32")
        >>> x = Node("x", "input", type=kind)
        >>> y = Node("relu", "aten.relu", (("self", Ref("x")),), kind)
        >>> text = draw(ArchGraph((("x", Ref("x")),), (), (x, y), Ref("relu"), name="tiny"))
        >>> text.splitlines()[0]
        'digraph tiny {'
    """
    form = "" if path is None else picture_form(path, FORMATS)  # fail before the slow layout
    parts = structure(graph).sections
    sections = [(part.name, [(block.name, block.nodes) for block in part.blocks]) for part in parts]
    marks = None if cover is None else cover.parts
    total = count_parameters(graph, tuple(graph.param))
    headline = graph.name if title is None else title
    letters = None if width is None else letters_across(width)

    def drawn(level: tuple[Detail, bool], number: int = 1, most: int | None = None) -> str:
        only, per_section = level
        picture = scene(
            graph, sections, detail=only, fold=fold, per_section=per_section, marks=marks
        )
        fed = {} if cover is None else _fed(graph, picture, cover)
        head = heading(picture, headline, total, cover, notes, legend=legend, letters=letters)
        tips = functools.partial(_tooltip, graph)
        drawing = Drawing(picture, fed, tips, font or FONT, most, columns(picture, number))
        return drawing.source(head)

    if width is None:
        text = drawn((detail, False))
    else:
        levels = [(one, False) for one in DETAILS[DETAILS.index(detail) :]]
        text = fitting_page(width, [*levels, (DETAILS[-1], True)], drawn, _size)
    if path is not None:
        write(Path(path), text if form == "dot" else render(text, form))
    return text


def picture_form(path: str | os.PathLike[str], formats: Sequence[str]) -> str:
    """Return the picture format for the suffix of a file.

    Raises:
        RunError: If the suffix is not a picture format.
    """
    suffix = Path(path).suffix
    form = suffix.lower().lstrip(".")
    if form not in formats:
        raise RunError(
            "is not a picture format",
            where=str(path),
            found=suffix or "no ending",
            expected=" or ".join(f".{name}" for name in formats),
        )
    return form


def notebook(graph: ArchGraph) -> str | None:
    """Return a picture of a graph for a notebook, as SVG; None if the graph is too large."""
    return render(draw(graph), "svg").decode() if len(graph.nodes) <= MOST else None


def render(text: str, form: str = "svg") -> bytes:
    """Render DOT text with Graphviz in a format such as `svg`, `png` or `pdf`.

    The default font is DejaVu Sans, so that a picture has the same size on every machine.

    Raises:
        RunError: If Graphviz rejects the text or takes longer than five minutes.

    Example:
        >>> render("digraph { a -> b }").startswith(b"<?xml")
        True
    """
    # -P: a module in the current folder must not replace pygraphviz.
    code = (
        "import sys, pygraphviz\n"
        "graph = pygraphviz.AGraph(string=sys.stdin.buffer.read().decode())\n"
        "sys.stdout.buffer.write(graph.draw(format=sys.argv[1], prog='dot'))\n"
    )
    try:
        with tempfile.TemporaryDirectory() as folder:
            fonts = Path(folder, "fonts.conf")
            fonts.write_text(_font_configuration(replaced=FONT in text))
            done = subprocess.run(
                [sys.executable, "-P", "-c", code, form],
                input=text.encode(),
                capture_output=True,
                timeout=SECONDS,
                check=False,
                env=os.environ | {"FONTCONFIG_FILE": str(fonts)},
            )
    except subprocess.TimeoutExpired as error:
        raise RunError(
            f"the layout takes more than {SECONDS:g} s",
            hint="draw less detail, or write a .dot file and run Graphviz yourself",
        ) from error
    # Graphviz omits a label that it cannot parse, prints a warning, and exits with 0.
    if done.returncode or not done.stdout or b"syntax error" in done.stderr:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise RunError("Graphviz cannot draw this", found=lines[-1] if lines else "no output")
    return done.stdout


def _font_configuration(*, replaced: bool) -> str:
    """Return a fontconfig configuration with the fonts of matplotlib, then those of the machine.

    Otherwise, widths would differ between machines, and PNG and PDF files from a machine without
    fonts would not have any text.

    Args:
        replaced: Whether DejaVu Sans replaces the default font of pictures.
    """
    matplotlib = importlib.util.find_spec("matplotlib")  # importing it takes a second
    assert matplotlib is not None and matplotlib.origin is not None  # a requirement of archgraph
    fonts = Path(matplotlib.origin).parent / "mpl-data" / "fonts" / "ttf"
    machine = os.environ.get("FONTCONFIG_FILE", "/etc/fonts/fonts.conf")
    rule = f"""<match target="pattern">
    <test name="family"><string>{FONT.split(",")[0]}</string></test>
    <edit name="family" mode="assign" binding="strong"><string>DejaVu Sans</string></edit>
  </match>"""
    return f"""<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  {rule if replaced else ""}
  <dir>{escape(str(fonts))}</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
  <include ignore_missing="yes">{escape(machine)}</include>
</fontconfig>
"""


def _size(text: str) -> tuple[float, float]:
    """Return width and height of a picture in points, including margins."""
    _, scale, wide, tall = render(text, "plain").split(b"\n", 1)[0].split()
    return 72 * float(scale) * float(wide) + 3, 72 * float(scale) * float(tall) + 3


def _fed(graph: ArchGraph, picture: Scene, cover: Cover) -> dict[str, Reach]:
    """Return the coverage of each box and block, over all its parameters.

    A box without weights has the coverage of its block. Sections are omitted, since their mean
    would hide a block that few clients train.
    """

    def mean(leaves: tuple[str, ...]) -> Reach | None:
        return cover.reach({k: count_parameters(graph, (k,)) for k in leaves if k in cover})

    fed = {f"box {box.name}": mean(box.leaves) for box in picture.boxes}
    for block in (group for group in picture.clusters() if group.boxes):
        fed[f"group {block.name}"] = around = mean(block.leaves)
        for name in block.boxes:
            fed[f"box {name}"] = fed[f"box {name}"] or around
    return {name: part for name, part in fed.items() if part is not None}


def _tooltip(graph: ArchGraph, box: Box) -> str:
    """Return the operators of a box as text, as in the printed graph."""
    return "\n".join(str(graph.node[name]) for name in box.nodes)
