"""Draw a graph: DOT text, rendered by the Graphviz library that the pygraphviz wheel carries."""

from __future__ import annotations

import html
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import graphviz

from archgraph.display import colours
from archgraph.display.scene import Box, Cluster, Detail, Scene, parameters, scene
from archgraph.errors import ArchGraphError, RunError
from archgraph.files import write
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph
from archgraph.tables import count

Direction = Literal["TB", "LR"]
FORMATS = ("dot", "svg", "png", "pdf")
FONT = "Helvetica,Arial,sans-serif"
SECONDS = 300.0
# Operators of the largest graph that a notebook draws without being asked.
NOTEBOOK = 2000
# Names of blocks longer than this are shown without the name of their section.
LONG = 20
# Total length of arrows, in ranks, above which they are drawn with less care.
DENSE = 4000
# Least width of a box, in inches: leaves a frame's title room beside the arrow that enters it.
WIDTH = "2.2"


@takes_graph
def draw(
    graph: ArchGraph,
    path: str | os.PathLike[str] | None = None,
    *,
    cover: Mapping[str, float] | None = None,
    detail: Detail = "block",
    direction: Direction = "TB",
    title: str | None = None,
) -> str:
    """Draw a graph and return the DOT text of the picture.

    Sections and blocks are nested frames; arrows carry shapes without the batch axis; what takes
    part in training only is dashed. With `cover` the picture is FedFA's Fig. 1: every block shows
    the share of clients that feed it, and weak points stand out in orange.

    Args:
        graph: The architecture.
        path: Where to write the picture: `.svg`, `.png`, `.pdf` or `.dot`. None: nowhere.
        cover: Share of clients, 0 to 1, by leaf or block name (see
            :func:`archgraph.display.cover.coverage`). A block that it does not name has the
            mean of its leaves, weighted by their sizes.
        detail: `node` shows every operator, `block` folds the cheap ones into what feeds them.
        direction: `TB` from top to bottom, `LR` from left to right.
        title: Heading; None: the graph's name.

    Raises:
        RunError: If the file cannot be written or its ending is not a format.
        ArchGraphError: If `cover` has an unknown name or a value outside 0 to 1.

    Example:
        >>> from archgraph.graph.ir import ArchGraph, Batch, Node, Ref, TensorType
        >>> kind = TensorType((Batch(), 8), "float32")
        >>> x = Node("x", "input", type=kind)
        >>> y = Node("relu", "aten.relu", (("self", Ref("x")),), kind)
        >>> text = draw(ArchGraph((("x", Ref("x")),), (), (x, y), Ref("relu"), name="tiny"))
        >>> text.splitlines()[0]
        'digraph tiny {'
    """
    target = None if path is None else Path(path)
    ending = "" if target is None else target.suffix.lower().lstrip(".")
    if target is not None and ending not in FORMATS:
        raise RunError(
            "is not a picture format",
            where=str(target),
            found=target.suffix or "no ending",
            expected=" or ".join(f".{name}" for name in FORMATS),
        )
    from archgraph.analysis.structure import structure

    structured = structure(graph)
    sections = [(s.name, [(b.name, b.nodes) for b in s.blocks]) for s in structured.sections]
    picture = scene(graph, sections, detail=detail)
    shares = None if cover is None else _shares(graph, picture, cover)
    text = _dot(graph, picture, shares, direction, graph.name if title is None else title)
    if target is not None:
        write(target, text if ending == "dot" else render(text, ending))
    return text


def notebook(graph: ArchGraph) -> str | None:
    """The picture that a notebook shows, as SVG text; None if the graph is too large for one."""
    return render(draw(graph), "svg").decode() if len(graph.nodes) <= NOTEBOOK else None


def render(dot: str, form: str = "svg") -> bytes:
    """Picture of a DOT text in a format that Graphviz knows (`svg`, `png`, `pdf`).

    Graphviz runs in a process of its own: its C code writes to the terminal and cannot be
    stopped from within.

    Raises:
        RunError: If Graphviz refuses the text or takes longer than five minutes.

    Example:
        >>> render("digraph { a -> b }").startswith(b"<?xml")
        True
    """
    code = (
        "import sys, pygraphviz\n"
        "graph = pygraphviz.AGraph(string=sys.stdin.buffer.read().decode())\n"
        "sys.stdout.buffer.write(graph.draw(format=sys.argv[1], prog='dot'))\n"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", code, form],
            input=dot.encode(),
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RunError(
            "the layout takes too long",
            expected=f"at most {SECONDS:g} s",
            hint="draw less detail, or write .dot and lay it out elsewhere",
        ) from error
    if done.returncode or not done.stdout:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise RunError("Graphviz cannot draw this", found=lines[-1] if lines else "no output")
    return done.stdout


def _shares(graph: ArchGraph, picture: Scene, cover: Mapping[str, float]) -> dict[str, float]:
    """Share of clients by box and by group name, from shares by leaf or block."""
    blocks = {block.name for section in picture.groups for block in section.groups}
    sections = {section.name for section in picture.groups}
    known = graph.param.keys() | blocks | sections
    for name, share in cover.items():
        if name not in known:
            raise ArchGraphError("coverage of an unknown leaf or block", where=name)
        if not 0.0 <= share <= 1.0:
            raise ArchGraphError(
                "is not a share of clients", where=name, found=share, expected="0 to 1"
            )

    def mean(leaves: tuple[str, ...]) -> float | None:
        known_leaves = [(cover[k], parameters(graph, (k,))) for k in leaves if k in cover]
        total = sum(size for _, size in known_leaves)
        return sum(share * size for share, size in known_leaves) / total if total else None

    shares: dict[str, float] = {}
    for section in picture.groups:
        if section.name in cover:
            shares[f"group {section.name}"] = cover[section.name]
        for group in section.groups:
            around = cover[group.name] if group.name in cover else mean(group.leaves)
            if around is None:
                continue
            shares[f"group {group.name}"] = around
            for name in group.boxes:
                inner = mean(picture.box[name].leaves)
                shares[f"box {name}"] = around if inner is None else inner
    for box in picture.boxes:
        alone = mean(box.leaves)
        if alone is not None:
            shares.setdefault(f"box {box.name}", alone)
    return shares


def percent(share: float) -> str:
    """A share in whole per cent; rounding never reaches 0 % or 100 %.

    >>> percent(0.0), percent(0.001), percent(0.5), percent(0.999), percent(1.0)
    ('0 %', '<1 %', '50 %', '>99 %', '100 %')
    """
    text = f"{100 * share:.0f} %"
    if text == "0 %" and share > 0:
        return "<1 %"
    if text == "100 %" and share < 1:
        return ">99 %"
    return text


def _text(text: str, *, size: int = 10, colour: str = colours.INK, bold: bool = False) -> str:
    inner = html.escape(text, quote=False)
    if bold:
        inner = f"<B>{inner}</B>"
    return f'<FONT POINT-SIZE="{size}" COLOR="{colour}">{inner}</FONT>'


def _box_label(box: Box, share: float | None, quiet: str) -> str:
    if box.kind != "operator":
        return f"<{_text(box.lines[0].text, size=11, bold=True)}>"
    notes = [count(box.parameters)] if box.parameters else []
    rows = []
    for line in box.lines:
        row = _text(line.text, size=10 if line.strong else 9, bold=line.strong)
        if notes and (line.strong or line is box.lines[-1]):
            row += "  " + _text(notes.pop(), size=8, colour=quiet)
        rows.append(row)
    if share is not None:
        rows[0] += "  " + _text(percent(share), size=9, bold=True)
    return f"<{'<BR/>'.join(rows)}>"


def _group_label(group: Cluster, share: float | None, within: str = "") -> str:
    """A frame's title: its name, the block's if it holds one only, and its share or size."""
    size = 10 if within else 12
    text = _text(_short(group.name, within), size=size, bold=True)
    if _single(group) and group.groups[0].name != group.name:
        text += "  " + _text(_short(group.groups[0].name, group.name), size=10)
    if share is not None:
        text += "  " + _text(percent(share), size=size, bold=True)
    elif not within and group.note != "0":
        text += "  " + _text(group.note, size=8, colour=colours.QUIET)
    return f"<{text}>"


def _single(group: Cluster) -> bool:
    """Whether a section is one block: it needs one frame only."""
    return len(group.groups) == 1


def _short(name: str, within: str) -> str:
    """A block's name, without the name of its section if it is long.

    >>> _short("layer1.0", "layer1"), _short("encoder.layers.encoder_layer_0.mlp", "encoder.layers")
    ('layer1.0', 'encoder_layer_0.mlp')
    """
    return name.removeprefix(f"{within}.") if len(name) > LONG else name


def _heading(graph: ArchGraph, picture: Scene, title: str, legend: bool) -> str:
    total = count(parameters(graph, tuple(graph.param)))
    notes = f"{total} parameters (grey: of a part) · arrows: shapes without the batch axis"
    if any(b.training for b in picture.boxes) or any(k.training for k in picture.links):
        notes += " · dashed: training only"
    rows = [f"<TR><TD>{_text(title or 'architecture', size=16, bold=True)}</TD></TR>"]
    rows.append(f"<TR><TD>{_text(notes, size=9, colour=colours.QUIET)}</TD></TR>")
    if legend:
        steps = [i / 10 for i in range(11)]
        cells = "".join(
            f'<TD BGCOLOR="{colours.blend(colours.SCALE, s)}" WIDTH="30" HEIGHT="14">'
            f"{_text(f'{100 * s:.0f}', size=8)}</TD>"
            for s in steps
        )
        caption = _text("share of clients that feed a parameter, %", size=9, colour=colours.QUIET)
        rows.append(
            '<TR><TD><TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="2"><TR>'
            f"<TD>{caption}  </TD>{cells}</TR></TABLE></TD></TR>"
        )
    return f'<<TABLE BORDER="0" CELLSPACING="2">{"".join(rows)}</TABLE>>'


def _dot(
    graph: ArchGraph,
    picture: Scene,
    shares: Mapping[str, float] | None,
    direction: Direction,
    title: str,
) -> str:
    dot = graphviz.Digraph(graph.name or "architecture")
    dot.attr(
        "graph",
        rankdir=direction,
        fontname=FONT,
        label=_heading(graph, picture, title, shares is not None),
        labelloc="t",
        nodesep="0.25",
        ranksep="0.12",
        bgcolor=colours.PAPER,
        margin="0.15",
    )
    dot.attr(
        "node",
        shape="box",
        style="filled,rounded",
        fillcolor=colours.PAPER,
        color=colours.LINE,
        fontname=FONT,
        fontsize="10",
        margin="0.1,0.04",
        height="0.28",
    )
    dot.attr(
        "edge",
        color=colours.QUIET,
        fontcolor=colours.QUIET,
        fontname=FONT,
        fontsize="8",
        arrowsize="0.6",
    )
    ids = {box.name: f"n{i}" for i, box in enumerate(picture.boxes)}
    frames = iter(range(len(picture.boxes) * 2 + 2))
    inside: set[str] = set()
    spine = _spine(picture)

    def box_of(target: graphviz.Digraph, box: Box, around: float | None) -> None:
        look = {"group": "spine"} if box.name in spine else {}
        share = None if shares is None else shares.get(f"box {box.name}")
        if share is not None and box.kind == "operator":
            look["fillcolor"] = colours.blend(colours.SCALE, share)
        if any(line.strong for line in box.lines) and box.kind == "operator":
            look["width"] = WIDTH
        if box.kind != "operator":
            fill = colours.INPUT if box.kind == "input" else colours.OUTPUT
            look.update(style="filled,rounded,bold", fillcolor=fill)
        if box.training:
            look["style"] = "filled,rounded,dashed"
        # A share is shown unless the frame around the box shows the same one.
        hidden = share is None or not box.leaves
        hidden = hidden or (around is not None and percent(around) == percent(share or 0.0))
        label = _box_label(
            box, None if hidden else share, colours.QUIET if share is None else colours.INK
        )
        target.node(ids[box.name], label, tooltip="\n".join(_tips(graph, box)), **look)

    def group_of(target: graphviz.Digraph, group: Cluster, within: str) -> None:
        block = group.groups[0] if _single(group) else group
        with target.subgraph(name=f"cluster_{next(frames)}") as frame:
            share = None if shares is None else shares.get(f"group {block.name}")
            frame.attr(
                label=_group_label(group, share, within),
                labeljust="l",
                labelloc="t",
                style="filled,rounded",
                fillcolor=colours.BLOCK if block.boxes else colours.SECTION,
                color=colours.LINE if block.boxes else colours.BLOCK,
                margin="7",
                tooltip=f"{group.name}: {group.note} parameters",
            )
            for inner in () if _single(group) else group.groups:
                group_of(frame, inner, group.name)
            for name in block.boxes:
                inside.add(name)
                box_of(frame, picture.box[name], share)

    for group in picture.groups:
        group_of(dot, group, "")
    for box in picture.boxes:
        if box.name not in inside:
            box_of(dot, box, None)
    if _span(picture) > DENSE:
        # Too many long arrows to route around boxes: less care, straight lines, in seconds.
        dot.attr("graph", splines="line", mclimit="0.1", nslimit="2")
    for link in picture.links:
        dot.edge(
            ids[link.tail],
            ids[link.head],
            label=f" {link.label} " if link.label else None,
            style="dashed" if link.training else None,
        )
    return dot.source


def _depths(picture: Scene) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Length of the longest path to every box, and the boxes that feed it."""
    into: dict[str, list[str]] = {}
    for link in picture.links:
        into.setdefault(link.head, []).append(link.tail)
    depth: dict[str, int] = {}
    for box in picture.boxes:
        depth[box.name] = 1 + max((depth[tail] for tail in into.get(box.name, ())), default=-1)
    return depth, into


def _span(picture: Scene) -> int:
    """Total length of all arrows, in ranks: what the effort of a layout grows with."""
    depth, _ = _depths(picture)
    return sum(depth[link.head] - depth[link.tail] for link in picture.links)


def _spine(picture: Scene) -> frozenset[str]:
    """Boxes on the longest path to the deepest output; it runs straight, the rest bends."""
    depth, into = _depths(picture)
    ends = [b for b in picture.boxes if b.kind == "output" and not b.training] or picture.boxes
    name = max(ends, key=lambda box: depth[box.name]).name
    path = [name]
    while into.get(name):
        name = max(into[name], key=lambda tail: depth[tail])
        path.append(name)
    return frozenset(path)


def _tips(graph: ArchGraph, box: Box) -> Iterator[str]:
    """What a pointer over a box shows: its operators as the graph prints them."""
    for name in box.nodes:
        yield str(graph.node[name])
